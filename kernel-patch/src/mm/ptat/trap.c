// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT, trap mode: see the TLB misses of the CPU itself, without a device.
 *
 * The region is cached memory.  Where the twin has a present leaf, the region
 * has it poisoned: not present.  So a walk that a TLB miss has caused ends in a
 * page fault.  The handler finds in the twin that nothing is wrong, records the
 * miss, and makes the entry valid just long enough for the TLB to load it:
 *
 * touch: the handler reads the page itself, and poisons the entry again before
 *        it returns.  It needs a TLB that user space and the kernel share.
 * step:  the entry stays valid for one instruction of the thread, which the trap
 *        flag ends.  Always works, at twice the cost.
 *
 * No TLB is flushed for that: what is in a TLB stays right, as the entry is.
 *
 * Whoever changes an entry stores it poisoned (see sync.c), with the lock of the
 * table held.  The handler holds no lock.  It only ever exchanges one value for
 * the other, so a change that comes between wins: it has stored something else.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/percpu.h>
#include <linux/pgtable.h>
#include <linux/ptat.h>
#include <linux/sched/signal.h>
#include <linux/timex.h>
#include <linux/uaccess.h>

#include "internal.h"

/* Of an access by the kernel that faults again: how often it is touched. */
#define PTAT_KERNEL_RETRIES	3

/* How many misses of a kind decide whether a touch is of use. */
#define PTAT_TRAP_TRIALS	16

DEFINE_STATIC_KEY_FALSE(ptat_trap_key);

const char * const ptat_trap_method_names[PTAT_TRAP_METHODS] = {
	[PTAT_TRAP_AUTO] = "auto",
	[PTAT_TRAP_TOUCH] = "touch",
	[PTAT_TRAP_SINGLE_STEP] = "step",
};

/* How misses of data and of instructions are let through. */
enum ptat_trap_method ptat_trap_data_method;
enum ptat_trap_method ptat_trap_code_method;

/* While a method is still to be found out. */
static struct trial {
	atomic_t touched;
	atomic_t retried;
} trials[2];

/**
 * ptat_trap_init - let misses trap, if that was asked for at boot
 *
 * Return: 0, or -EOPNOTSUPP.
 */
int __init ptat_trap_init(void)
{
	if (!ptat_want_trap)
		return 0;
	if (!ptat_arch_can_trap())
		return -EOPNOTSUPP;
	/* An emulator then shows each walk, to compare.  Devices know no exchange. */
	if (!ptat_region_is_ram)
		pr_warn("the region is not RAM: traps work in an emulator only\n");
	static_branch_enable(&ptat_trap_key);
	return 0;
}

/**
 * ptat_trap_start - find out anew what this CPU needs
 */
void ptat_trap_start(void)
{
	memset(trials, 0, sizeof(trials));
	WRITE_ONCE(ptat_trap_data_method, PTAT_TRAP_AUTO);
	WRITE_ONCE(ptat_trap_code_method, PTAT_TRAP_AUTO);
}

/* Does a touch help here?  If it does not, the same access comes again at once. */
static bool touch_helps(bool fetch, bool retry)
{
	enum ptat_trap_method *method = fetch ? &ptat_trap_code_method : &ptat_trap_data_method;
	struct trial *trial = &trials[fetch];
	int touched;

	switch (READ_ONCE(*method)) {
	case PTAT_TRAP_TOUCH:
		return !retry;
	case PTAT_TRAP_SINGLE_STEP:
		return false;
	default:
		break;
	}
	if (retry) {
		atomic_inc(&trial->retried);
		return false;
	}
	touched = atomic_inc_return(&trial->touched);
	if (touched > PTAT_TRAP_TRIALS)
		WRITE_ONCE(*method, atomic_read(&trial->retried) > PTAT_TRAP_TRIALS / 2 ?
				    PTAT_TRAP_SINGLE_STEP : PTAT_TRAP_TOUCH);
	return true;
}

static void open_entry(struct ptat_trap_state *state, u32 entry, u64 val)
{
	unsigned int i;

	for (i = 0; i < state->count; i++)
		if (state->open[i].entry == entry)
			break;
	if (i == PTAT_TRAP_OPEN_MAX) {
		i = state->oldest++ % PTAT_TRAP_OPEN_MAX;
		ptat_region_exchange(state->open[i].entry, state->open[i].val,
				     ptat_val_poison(state->open[i].val));
	} else if (i == state->count) {
		state->count++;
	}
	state->open[i].entry = entry;
	state->open[i].val = val;
}

/**
 * ptat_trap_close - poison what is valid for the current thread only
 *
 * Context: interrupts are off.
 */
noinstr void ptat_trap_close(void)
{
	struct ptat_trap_state *state = &current->ptat_trap;

	while (state->count) {
		state->count--;
		ptat_region_exchange(state->open[state->count].entry,
				     state->open[state->count].val,
				     ptat_val_poison(state->open[state->count].val));
	}
	state->oldest = 0;
}

/* The twin's entry that serves @addr, as get_user_pages_fast() would find it. */
static const u64 *find_leaf(struct mm_struct *mm, unsigned long addr, enum ptat_level *level)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pudp, pud;
	pmd_t *pmdp, pmd;

	if (pgd_none(READ_ONCE(*pgd)))
		return NULL;
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(READ_ONCE(*p4d)))
		return NULL;
	pudp = pud_offset(p4d, addr);
	pud = READ_ONCE(*pudp);
	if (!pud_present(pud) || pud_leaf(pud))
		return NULL;
	pmdp = pmd_offset(pudp, addr);
	pmd = READ_ONCE(*pmdp);
	*level = PTAT_LEVEL_PMD;
	if (!pmd_present(pmd) || pmd_leaf(pmd))
		return (const u64 *)pmdp;
	*level = PTAT_LEVEL_PTE;
	return (const u64 *)pmd_page_vaddr(pmd) + pte_index(addr);
}

/**
 * ptat_trap_peek - where the kernel sees a byte of the current process
 * @addr: address of the byte
 *
 * Unlike an access, this walks no table of the region.
 *
 * Return: NULL if the page is not there.
 *
 * Context: interrupts are off.
 */
u8 *ptat_trap_peek(unsigned long addr)
{
	enum ptat_level level;
	const u64 *leaf = find_leaf(current->mm, addr, &level);
	unsigned long size, pfn;
	u64 val;

	if (!leaf)
		return NULL;
	val = READ_ONCE(*leaf);
	if (!ptat_val_is_leaf(val, level))
		return NULL;
	size = level == PTAT_LEVEL_PMD ? PMD_SIZE : PAGE_SIZE;
	pfn = PHYS_PFN(ptat_val_frame(val) & ~(size - 1));
	return pfn_valid(pfn) ? (u8 *)__va(PFN_PHYS(pfn)) + (addr & (size - 1)) : NULL;
}

/* Let the TLB load the entry by an access of our own. */
static void touch(struct ptat_trap_state *state, unsigned long addr)
{
	u8 byte;

	state->touching = true;
	pagefault_disable();
	/* If that fails, the access will trap again, and be stepped. */
	(void)__get_user(byte, (u8 __user *)addr);
	pagefault_enable();
	state->touching = false;
}

/* Note the access.  Is it the one that was let through last? */
static bool is_retry(struct ptat_trap_access *last, const struct ptat_trap *trap)
{
	if (last->ip == trap->ip && last->addr == trap->addr && last->sp == trap->sp) {
		last->retries++;
		return true;
	}
	*last = (struct ptat_trap_access) {
		.ip = trap->ip, .addr = trap->addr, .sp = trap->sp,
	};
	return false;
}

static void record(const struct ptat_trap *trap, u32 entry, u16 flags)
{
	struct ptat_trap_record rec = {
		.tsc = get_cycles(),
		.addr = trap->addr,
		.ip = trap->ip,
		.mm = current->mm->ptat_id,
		.tgid = current->tgid,
		.tid = current->pid,
		.entry = entry,
		.cpu = smp_processor_id(),
		.flags = flags | (trap->write ? PTAT_TRAP_WRITE : 0) |
			 (trap->fetch ? PTAT_TRAP_FETCH : 0) |
			 (trap->kernel ? PTAT_TRAP_KERNEL : 0),
	};

	ptat_ring_put(&rec);
}

/* The entry is valid now: let the TLB load it. */
static enum ptat_trap_result let_through(const struct ptat_trap *trap, u32 entry, u64 val,
					 u16 flags)
{
	struct ptat_trap_state *state = &current->ptat_trap;
	struct ptat_trap_access *last = &state->last[trap->kernel];
	bool retry = is_retry(last, trap);

	if (retry)
		flags |= PTAT_TRAP_RETRY;
	if (trap->kernel ? last->retries < PTAT_KERNEL_RETRIES : touch_helps(trap->fetch, retry)) {
		record(trap, entry, flags);
		touch(state, trap->addr);
		ptat_region_exchange(entry, val, ptat_val_poison(val));
		return PTAT_TRAP_DONE;
	}
	record(trap, entry, flags | (trap->kernel ? PTAT_TRAP_LEFT : PTAT_TRAP_STEP));
	open_entry(state, entry, val);
	if (trap->kernel)
		return PTAT_TRAP_DONE;
	state->ip = trap->ip;
	return PTAT_TRAP_STEPS;
}

/**
 * ptat_trap_fault - a page fault may be a TLB miss
 * @trap: the access
 *
 * Return: what to do about it.
 *
 * Context: page fault; interrupts are off.
 */
enum ptat_trap_result ptat_trap_fault(const struct ptat_trap *trap)
{
	struct mm_struct *mm = current->mm;
	enum ptat_level level;
	const u64 *leaf;
	u16 flags = 0;
	u64 val, was;
	u32 entry;

	if (ptat_detached() || !ptat_mm_is_seen(mm) || current->ptat_trap.touching)
		return PTAT_TRAP_NOT_OURS;
	leaf = find_leaf(mm, trap->addr, &level);
	if (!leaf || !ptat_shadowed(leaf))
		return PTAT_TRAP_NOT_OURS;
	if (trap->may_sleep && !fatal_signal_pending(current) && !ptat_ring_has_room())
		return PTAT_TRAP_WAITS;
	entry = ((unsigned long)leaf - ptat_map.virt) / PTAT_ENTRY_BYTES;
	if (level == PTAT_LEVEL_PMD)
		flags |= PTAT_TRAP_HUGE;

	/* The walk found the entry valid, as somebody's was open: the fault is real. */
	if (trap->present)
		return PTAT_TRAP_NOT_OURS;
	val = READ_ONCE(*leaf);
	if (!ptat_val_is_leaf(val, level))
		return PTAT_TRAP_NOT_OURS;
	if (!ptat_arch_permits(val, trap)) {
		record(trap, entry, flags | PTAT_TRAP_FAULT);
		return PTAT_TRAP_DENIED;
	}

	/* The instruction before has ended without telling, or the kernel has left some. */
	if (!trap->kernel && current->ptat_trap.count && current->ptat_trap.ip != trap->ip)
		ptat_trap_close();

	val = ptat_hw_val(val);
	was = ptat_region_exchange(entry, ptat_val_poison(val), val);
	if (was == val) {
		flags |= PTAT_TRAP_SHARED;
	} else if (was != ptat_val_poison(val)) {
		/* Between the twin and the region: who changes it holds the lock of the table. */
		record(trap, entry, flags | PTAT_TRAP_FAULT);
		return PTAT_TRAP_NOT_OURS;
	}
	return let_through(trap, entry, val, flags);
}
