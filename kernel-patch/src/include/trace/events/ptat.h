/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ptat

#if !defined(_TRACE_PTAT_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_PTAT_H

#include <linux/ptat.h>
#include <linux/sched.h>
#include <linux/tracepoint.h>
#include <linux/types.h>

/*
 * Physical addresses are the hardware's: of the region, or of ordinary memory
 * for a table that is not traced.  Each event with a seq has been preceded by
 * the store of seq to a marker slot of the region.
 */

TRACE_DEFINE_ENUM(PTAT_WHY_ON);
TRACE_DEFINE_ENUM(PTAT_WHY_FORK);
TRACE_DEFINE_ENUM(PTAT_WHY_EXEC);

#define show_ptat_why(why)				\
	__print_symbolic(why,				\
			 { PTAT_WHY_ON, "on" },		\
			 { PTAT_WHY_FORK, "fork" },	\
			 { PTAT_WHY_EXEC, "exec" })

TRACE_EVENT(ptat_mm_attach,

	TP_PROTO(u64 seq, u64 mm, u64 pgd, struct task_struct *tsk, u8 why),

	TP_ARGS(seq, mm, pgd, tsk, why),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, mm)
		__field(u64, pgd)
		__field(pid_t, tgid)
		__field(u8, why)
		__array(char, comm, TASK_COMM_LEN)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->mm = mm;
		__entry->pgd = pgd;
		__entry->tgid = tsk->tgid;
		__entry->why = why;
		memcpy(__entry->comm, tsk->comm, TASK_COMM_LEN);
	),

	TP_printk("seq=%llu mm=%llu pgd=0x%llx tgid=%d why=%s comm=%s",
		  __entry->seq, __entry->mm, __entry->pgd, __entry->tgid,
		  show_ptat_why(__entry->why), __entry->comm)
);

TRACE_EVENT(ptat_mm_exit,

	TP_PROTO(u64 seq, u64 mm),

	TP_ARGS(seq, mm),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, mm)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->mm = mm;
	),

	TP_printk("seq=%llu mm=%llu", __entry->seq, __entry->mm)
);

DECLARE_EVENT_CLASS(ptat_table_at,

	TP_PROTO(u64 seq, u64 mm, u64 pa, u64 va, u8 level),

	TP_ARGS(seq, mm, pa, va, level),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, mm)
		__field(u64, pa)
		__field(u64, va)
		__field(u8, level)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->mm = mm;
		__entry->pa = pa;
		__entry->va = va;
		__entry->level = level;
	),

	TP_printk("seq=%llu mm=%llu pa=0x%llx va=0x%llx level=%u",
		  __entry->seq, __entry->mm, __entry->pa,
		  __entry->va, __entry->level)
);

/* pa == 0: the region was full, the table lies in ordinary memory. */
DEFINE_EVENT(ptat_table_at, ptat_table_alloc,

	TP_PROTO(u64 seq, u64 mm, u64 pa, u64 va, u8 level),

	TP_ARGS(seq, mm, pa, va, level)
);

/* mremap() moves a whole PMD table, and with it all below, to va. */
DEFINE_EVENT(ptat_table_at, ptat_table_move,

	TP_PROTO(u64 seq, u64 mm, u64 pa, u64 va, u8 level),

	TP_ARGS(seq, mm, pa, va, level)
);

TRACE_EVENT(ptat_table_link,

	TP_PROTO(u64 seq, u64 mm, u64 pa, u64 slot_pa, u64 va, u8 level),

	TP_ARGS(seq, mm, pa, slot_pa, va, level),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, mm)
		__field(u64, pa)
		__field(u64, slot_pa)
		__field(u64, va)
		__field(u8, level)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->mm = mm;
		__entry->pa = pa;
		__entry->slot_pa = slot_pa;
		__entry->va = va;
		__entry->level = level;
	),

	TP_printk("seq=%llu mm=%llu pa=0x%llx slot_pa=0x%llx va=0x%llx level=%u",
		  __entry->seq, __entry->mm, __entry->pa, __entry->slot_pa,
		  __entry->va, __entry->level)
);

TRACE_EVENT(ptat_table_free,

	TP_PROTO(u64 seq, u64 mm, u64 pa, u8 level),

	TP_ARGS(seq, mm, pa, level),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, mm)
		__field(u64, pa)
		__field(u8, level)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->mm = mm;
		__entry->pa = pa;
		__entry->level = level;
	),

	TP_printk("seq=%llu mm=%llu pa=0x%llx level=%u", __entry->seq,
		  __entry->mm, __entry->pa, __entry->level)
);

DECLARE_EVENT_CLASS(ptat_entry,

	TP_PROTO(u64 seq, u64 mm, u64 slot_pa, u64 va, u64 val, u8 level),

	TP_ARGS(seq, mm, slot_pa, va, val, level),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, mm)
		__field(u64, slot_pa)
		__field(u64, va)
		__field(u64, entry)
		__field(u8, level)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->mm = mm;
		__entry->slot_pa = slot_pa;
		__entry->va = va;
		__entry->entry = val;
		__entry->level = level;
	),

	TP_printk("seq=%llu mm=%llu slot_pa=0x%llx va=0x%llx entry=0x%llx level=%u",
		  __entry->seq, __entry->mm, __entry->slot_pa,
		  __entry->va, __entry->entry, __entry->level)
);

/* Entries of PMD tables that do not point to a table. */
DEFINE_EVENT(ptat_entry, ptat_leaf_set,

	TP_PROTO(u64 seq, u64 mm, u64 slot_pa, u64 va, u64 val, u8 level),

	TP_ARGS(seq, mm, slot_pa, va, val, level)
);

DEFINE_EVENT(ptat_entry, ptat_leaf_clear,

	TP_PROTO(u64 seq, u64 mm, u64 slot_pa, u64 va, u64 val, u8 level),

	TP_ARGS(seq, mm, slot_pa, va, val, level)
);

/* Optional detail: entries of PTE tables, without a marker (seq is 0). */
DEFINE_EVENT(ptat_entry, ptat_pte_set,

	TP_PROTO(u64 seq, u64 mm, u64 slot_pa, u64 va, u64 val, u8 level),

	TP_ARGS(seq, mm, slot_pa, va, val, level)
);

DEFINE_EVENT(ptat_entry, ptat_pte_clear,

	TP_PROTO(u64 seq, u64 mm, u64 slot_pa, u64 va, u64 val, u8 level),

	TP_ARGS(seq, mm, slot_pa, va, val, level)
);

TRACE_EVENT(ptat_fault,

	TP_PROTO(u64 mm, u64 va, u64 error_code),

	TP_ARGS(mm, va, error_code),

	TP_STRUCT__entry(
		__field(u64, mm)
		__field(u64, va)
		__field(u64, error_code)
	),

	TP_fast_assign(
		__entry->mm = mm;
		__entry->va = va;
		__entry->error_code = error_code;
	),

	TP_printk("mm=%llu va=0x%llx error_code=0x%llx", __entry->mm,
		  __entry->va, __entry->error_code)
);

TRACE_EVENT(ptat_marker,

	TP_PROTO(u64 seq, u64 cookie),

	TP_ARGS(seq, cookie),

	TP_STRUCT__entry(
		__field(u64, seq)
		__field(u64, cookie)
	),

	TP_fast_assign(
		__entry->seq = seq;
		__entry->cookie = cookie;
	),

	TP_printk("seq=%llu cookie=%llu", __entry->seq, __entry->cookie)
);

#endif /* _TRACE_PTAT_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
