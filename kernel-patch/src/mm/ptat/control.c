// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: which address spaces are traced.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <trace/events/ptat.h>

#include "internal.h"

static atomic_long_t secureexecs;
static atomic64_t last_id;

/* Address spaces with an older identity are not walked in the region any more. */
u64 ptat_first_id = 1;

/**
 * ptat_forget_all - trace no address space that is traced now
 *
 * Context: the region is detached.
 */
void ptat_forget_all(void)
{
	WRITE_ONCE(ptat_first_id, atomic64_read(&last_id) + 1);
}

/**
 * ptat_secureexecs - how often tracing ended because a program gained privileges
 */
unsigned long ptat_secureexecs(void)
{
	return atomic_long_read(&secureexecs);
}

static void set_identity(struct mm_struct *mm, enum ptat_mode mode)
{
	WRITE_ONCE(mm->ptat_id, atomic64_inc_return(&last_id));
	mm->ptat_tgid = current->tgid;
	WRITE_ONCE(mm->ptat_mode, mode);
}

void __ptat_mm_fork(struct mm_struct *mm, const struct mm_struct *oldmm)
{
	mm->ptat_id = 0;
	mm->ptat_mode = PTAT_MODE_OFF;
	mm->ptat_hidden = false;
	if (READ_ONCE(oldmm->ptat_mode) == PTAT_MODE_CHILDREN && ptat_mm_is_seen(oldmm))
		set_identity(mm, PTAT_MODE_CHILDREN);
}

void __ptat_mm_exec(struct mm_struct *mm)
{
	const struct mm_struct *old = current->mm;
	enum ptat_mode mode = old ? READ_ONCE(old->ptat_mode) : PTAT_MODE_OFF;

	if (mode == PTAT_MODE_OFF || !ptat_mm_is_seen(old))
		return;
	/* The child of vfork() is another process in the same mm. */
	if (mode == PTAT_MODE_PROCESS && old->ptat_tgid != current->tgid)
		return;
	set_identity(mm, mode);
}

/* What the new privileges give access to must not show in a trace. */
void __ptat_mm_secureexec(struct mm_struct *mm)
{
	unsigned long offset;

	if (!mm->ptat_mode || READ_ONCE(ptat_trace_secureexec))
		return;
	WRITE_ONCE(mm->ptat_mode, PTAT_MODE_OFF);
	mm->ptat_hidden = true;
	/* Those of the stack, with the arguments. */
	for (offset = PTAT_MARKER_BYTES; offset < ptat_map.size; offset += PAGE_SIZE) {
		struct ptat_table *table = ptat_table(ptat_map.twin + offset);

		if (READ_ONCE(table->mm) != mm->ptat_id)
			continue;
		table->hidden = true;
		ptat_walk_twin(table, ptat_map.twin + offset);
	}
	atomic_long_inc(&secureexecs);
	pr_info_ratelimited("%s[%d] gains privileges: it is not traced any more\n",
			    current->comm, current->tgid);
}

void __ptat_mm_attach(struct task_struct *tsk, enum ptat_why why)
{
	const struct mm_struct *mm = tsk->mm;

	if (mm && READ_ONCE(mm->ptat_mode))
		trace_ptat_mm_attach(ptat_mark(), mm->ptat_id, __pa(mm->pgd), tsk, why);
}

void __ptat_mm_exit(struct mm_struct *mm)
{
	if (mm->ptat_id)
		trace_ptat_mm_exit(ptat_mark(), mm->ptat_id);
}

/* Note the bases of the PMD tables that @mm has: new tables may come below them. */
static void note_pmd_tables(struct mm_struct *mm)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;
	unsigned long addr, next;

	mmap_assert_write_locked(mm);
	/* Page faults of other threads only take the lock of their VMA. */
	for_each_vma(vmi, vma)
		vma_start_write(vma);

	for (addr = 0; addr < TASK_SIZE; addr = next) {
		pgd_t *pgd = pgd_offset(mm, addr);
		p4d_t *p4d;
		pud_t pud;

		next = pgd_addr_end(addr, TASK_SIZE);
		if (pgd_none(*pgd))
			continue;
		p4d = p4d_offset(pgd, addr);
		next = p4d_addr_end(addr, next);
		if (p4d_none(*p4d))
			continue;
		pud = READ_ONCE(*pud_offset(p4d, addr));
		next = pud_addr_end(addr, next);
		if (pud_present(pud) && !pud_leaf(pud))
			ptat_set_pmd_table_base(pfn_to_page(pud_pfn(pud)), addr);
	}
}

static void enable_hooks(void)
{
	static DEFINE_MUTEX(lock);

	mutex_lock(&lock);
	if (!ptat_enabled())
		static_branch_enable(&ptat_key);
	mutex_unlock(&lock);
}

/* The first time that @mm is traced. */
static int start_tracing(struct mm_struct *mm, enum ptat_mode mode)
{
	note_pmd_tables(mm);
	set_identity(mm, mode);
	/* Pairs with iommu_sva_bind_device(), which sets the PASID and then looks here. */
	smp_mb();
	if (ptat_mm_has_pasid(mm)) {
		WRITE_ONCE(mm->ptat_mode, PTAT_MODE_OFF);
		WRITE_ONCE(mm->ptat_id, 0);
		return -EBUSY;
	}
	__ptat_mm_attach(current, PTAT_WHY_ON);
	return 0;
}

/**
 * ptat_set_mode - trace the address space of the caller, or stop that
 * @mode: what to trace
 *
 * Return: 0; -ENODEV if the region is detached, -EBUSY if a device shares the
 * address space, -EINTR if the caller is killed, -EINVAL for a kernel thread.
 *
 * Context: may sleep; takes the mmap lock.
 */
int ptat_set_mode(enum ptat_mode mode)
{
	struct mm_struct *mm = current->mm;
	int err = 0;

	if (!mm)
		return -EINVAL;
	if (mode != PTAT_MODE_OFF) {
		if (ptat_detached())
			return -ENODEV;
		enable_hooks();
	}
	if (mmap_write_lock_killable(mm))
		return -EINTR;
	if (mode != PTAT_MODE_OFF && mm->ptat_id < READ_ONCE(ptat_first_id)) {
		err = start_tracing(mm, mode);
	} else {
		mm->ptat_tgid = current->tgid;
		mm->ptat_hidden = false;
		WRITE_ONCE(mm->ptat_mode, mode);
	}
	mmap_write_unlock(mm);
	return err;
}
