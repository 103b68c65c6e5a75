/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Page-table access tracing (PTAT): the hooks of memory management.
 * See Documentation/admin-guide/mm/ptat.rst.
 *
 * Each page-table page of the region has a twin in ordinary memory.  The
 * kernel reads and writes twins; these hooks copy ("sync") each change to the
 * region, which only the hardware walks.
 *
 * asm/pgtable.h includes this file: keep its dependencies few.
 */
#ifndef _LINUX_PTAT_H
#define _LINUX_PTAT_H

#include <linux/types.h>

struct mm_struct;
struct page;
struct pt_regs;
struct task_struct;

/* What a table holds. */
enum ptat_level {
	PTAT_LEVEL_PTE = 1,
	PTAT_LEVEL_PMD = 2,
};

/* Why an address space came to be traced; shown in the log. */
enum ptat_why {
	PTAT_WHY_ON,
	PTAT_WHY_FORK,
	PTAT_WHY_EXEC,
};

#ifdef CONFIG_PTAT

#include <linux/jump_label.h>
#include <asm/page_types.h>
#include <asm/pgtable_types.h>
#include <asm/ptat.h>

DECLARE_STATIC_KEY_FALSE(ptat_key);
DECLARE_STATIC_KEY_FALSE(ptat_readback_key);
DECLARE_STATIC_KEY_FALSE(ptat_trap_key);

/**
 * struct ptat_map - where the region and the twins are
 * @region: physical address of what the hardware walks
 * @twin:   physical address of the twins; the table at @region + x has its
 *          twin at @twin + x
 * @virt:   the twins in the direct map
 * @size:   bytes of each
 */
struct ptat_map {
	phys_addr_t region;
	phys_addr_t twin;
	unsigned long virt;
	unsigned long size;
};

extern struct ptat_map ptat_map;
extern bool ptat_region_is_ram;
extern bool ptat_want_trap;
extern bool ptat_aging;

void ptat_reserve_region(void);
void ptat_reserve_twins(void);
void ptat_detach(const char *why);
bool ptat_region_lost(void);

void __ptat_set_pte(pte_t *ptep, pte_t pte);
void __ptat_set_pmd(pmd_t *pmdp, pmd_t pmd);
void __ptat_sync_pte(const pte_t *ptep, pte_t pte);
void __ptat_sync_pmd(const pmd_t *pmdp, pmd_t pmd);
void __ptat_sync_range(const pte_t *from, const pte_t *to);
void __ptat_sync_new(pte_t *from, const pte_t *to);
struct page *__ptat_shadow_pte_table(struct mm_struct *mm, pmd_t *pmdp, struct page *page);
struct page *__ptat_unshadow_pte_table(struct mm_struct *mm, struct page *page);
pmd_t *__ptat_shadow_pmd_table(struct mm_struct *mm, pmd_t *pmdp, unsigned long addr);
unsigned long __ptat_link_table(struct mm_struct *mm, const void *entry, phys_addr_t pa,
				enum ptat_level level);
void __ptat_move_table(struct mm_struct *mm, const pmd_t *pmdp, unsigned long addr);
void __ptat_free_table(struct page *page);
void __ptat_mm_fork(struct mm_struct *mm, const struct mm_struct *oldmm);
void __ptat_mm_exec(struct mm_struct *mm);
void __ptat_mm_secureexec(struct mm_struct *mm);
void __ptat_mm_attach(struct task_struct *tsk, enum ptat_why why);
void __ptat_mm_exit(struct mm_struct *mm);
void __ptat_flush_stores(void);

static __always_inline bool ptat_enabled(void)
{
	return static_branch_unlikely(&ptat_key);
}

/*
 * Has @mm ever been traced, so that tables of it can be in the region?
 * A macro, because struct mm_struct is incomplete here.
 */
#define ptat_mm_has_id(mm)	(ptat_enabled() && READ_ONCE((mm)->ptat_id))

/* Is @entry part of a twin? */
static __always_inline bool ptat_shadowed(const void *entry)
{
	return ptat_enabled() && (unsigned long)entry - ptat_map.virt < ptat_map.size;
}

/* Are accessed bits of @entry kept from reclaim? */
static __always_inline bool ptat_keeps_young(const void *entry)
{
	return ptat_shadowed(entry) && !READ_ONCE(ptat_aging);
}

/**
 * ptat_sync_pte - copy a PTE that has been changed to the region
 * @ptep: the entry
 * @pte: what it holds now
 *
 * Context: the caller holds the lock of the table.
 */
static __always_inline void ptat_sync_pte(const pte_t *ptep, pte_t pte)
{
	if (ptat_shadowed(ptep))
		__ptat_sync_pte(ptep, pte);
}

/**
 * ptat_sync_pmd - copy a PMD entry that has been changed to the region
 * @pmdp: the entry
 * @pmd: what it holds now
 *
 * Context: the caller holds the lock of the table.
 */
static __always_inline void ptat_sync_pmd(const pmd_t *pmdp, pmd_t pmd)
{
	if (ptat_shadowed(pmdp))
		__ptat_sync_pmd(pmdp, pmd);
}

/**
 * ptat_sync_range - copy what a loop has changed in a PTE table to the region
 * @from: the first entry that may have been changed
 * @to: the entry after the last one
 *
 * For loops that use the primitives with a leading "__", which leave the
 * region as it is.
 *
 * Context: the caller holds the lock of the table, and has flushed no TLB since
 * the first change.
 */
static __always_inline void ptat_sync_range(const pte_t *from, const pte_t *to)
{
	if (ptat_shadowed(from))
		__ptat_sync_range(from, to);
}

/**
 * ptat_sync_new - copy entries that have just been written to the region
 * @from: the first entry
 * @to: the entry after the last one
 *
 * Unlike ptat_sync_range(), it also sets the accessed and dirty bits of the
 * entries that the hardware is about to see set.
 *
 * Context: the caller holds the lock of the table, and has flushed no TLB since
 * the first store.
 */
static __always_inline void ptat_sync_new(pte_t *from, const pte_t *to)
{
	if (ptat_shadowed(from))
		__ptat_sync_new(from, to);
}

static __always_inline phys_addr_t __ptat_twin_pa(const struct ptat_map *map, phys_addr_t pa)
{
	/* No entry but that of a table ever holds a frame of the region. */
	return pa - map->region < map->size ? pa - map->region + map->twin : pa;
}

/**
 * ptat_twin_pa - the address of a table as the kernel knows it
 * @pa: physical address that a PMD or PUD entry holds
 * @val: the entry
 *
 * Return: the twin's address for a table of the region, else @pa.
 */
static __always_inline phys_addr_t ptat_twin_pa(phys_addr_t pa, unsigned long val)
{
	if (ptat_enabled() && ptat_val_is_marked(val))
		return __ptat_twin_pa(&ptat_map, pa);
	return pa;
}

/**
 * ptat_shadow_pte_table - let a PTE table be walked in the region
 * @mm: its owner
 * @pmdp: the entry that will point to it
 * @page: a constructed table, empty and not linked yet
 *
 * Return: the table to link; @page if @mm is not traced or the region is full.
 *
 * Context: the caller holds the lock of the table that @pmdp is part of.
 */
static __always_inline struct page *ptat_shadow_pte_table(struct mm_struct *mm, pmd_t *pmdp,
							  struct page *page)
{
	return ptat_enabled() ? __ptat_shadow_pte_table(mm, pmdp, page) : page;
}

/**
 * ptat_unshadow_pte_table - give a table's page of the region back
 * @mm: its owner
 * @page: a table that is empty and not linked any more
 *
 * Return: an ordinary table for @page; @page if there is no memory.
 *
 * Context: may sleep.
 */
static __always_inline struct page *ptat_unshadow_pte_table(struct mm_struct *mm,
							    struct page *page)
{
	return ptat_enabled() ? __ptat_unshadow_pte_table(mm, page) : page;
}

/**
 * ptat_shadow_pmd_table - let a PMD table be walked in the region
 * @mm: its owner
 * @pmdp: a constructed table, empty and not linked yet
 * @addr: an address that it serves
 *
 * Return: the table to link; @pmdp if @mm is not traced or the region is full.
 *
 * Context: any.
 */
static __always_inline pmd_t *ptat_shadow_pmd_table(struct mm_struct *mm, pmd_t *pmdp,
						    unsigned long addr)
{
	return ptat_enabled() ? __ptat_shadow_pmd_table(mm, pmdp, addr) : pmdp;
}

/**
 * ptat_link_table - log that a table becomes reachable
 * @mm: its owner
 * @entry: the entry that is about to point to the table
 * @pa: physical address of the table
 * @level: what the table holds
 *
 * Return: frame and cache attributes for @entry.
 *
 * Context: the caller holds the lock of the table that @entry is part of.
 */
static __always_inline phys_addr_t ptat_link_table(struct mm_struct *mm, const void *entry,
						   phys_addr_t pa, enum ptat_level level)
{
	return ptat_enabled() ? __ptat_link_table(mm, entry, pa, level) : pa;
}

/* mremap() is about to move a PMD table, and all below it, to @addr. */
static __always_inline void ptat_move_table(struct mm_struct *mm, const pmd_t *pmdp,
					    unsigned long addr)
{
	if (ptat_enabled())
		__ptat_move_table(mm, pmdp, addr);
}

/* A table is destroyed; stale TLB entries may still refer to it. */
static __always_inline void ptat_free_table(struct page *page)
{
	if (ptat_enabled())
		__ptat_free_table(page);
}

/* @mm is a copy of @oldmm, without tables yet. */
static __always_inline void ptat_mm_fork(struct mm_struct *mm, const struct mm_struct *oldmm)
{
	if (ptat_enabled())
		__ptat_mm_fork(mm, oldmm);
}

/* @mm is new, and will replace that of the caller of execve(). */
static __always_inline void ptat_mm_exec(struct mm_struct *mm)
{
	if (ptat_enabled())
		__ptat_mm_exec(mm);
}

/* The program that is about to run in @mm, for the first time, gains privileges. */
static __always_inline void ptat_mm_secureexec(struct mm_struct *mm)
{
	if (ptat_enabled())
		__ptat_mm_secureexec(mm);
}

/* @tsk runs in an address space that may be new to the log. */
static __always_inline void ptat_mm_attach(struct task_struct *tsk, enum ptat_why why)
{
	if (ptat_enabled())
		__ptat_mm_attach(tsk, why);
}

/* All tables of @mm are freed. */
static __always_inline void ptat_mm_exit(struct mm_struct *mm)
{
	if (ptat_enabled())
		__ptat_mm_exit(mm);
}

/**
 * ptat_flush_stores - let stores to the region arrive before a TLB flush
 * @mm: whose TLB entries are about to be flushed
 *
 * A walk after the flush must not find what was there before the stores.
 */
#define ptat_flush_stores(mm)						\
	do {								\
		if (static_branch_unlikely(&ptat_readback_key) &&	\
		    READ_ONCE((mm)->ptat_id))				\
			__ptat_flush_stores();				\
	} while (0)

#else /* !CONFIG_PTAT */

#define PTAT_TABLE_FLAGS		0

#define ptat_mm_has_id(mm)		((void)(mm), false)
#define ptat_shadowed(entry)		((void)(entry), false)
#define ptat_keeps_young(entry)		((void)(entry), false)
#define ptat_flush_stores(mm)		((void)(mm))

/* Macros, because types of page tables are not known here. */
#define __ptat_set_pte(ptep, pte)	((void)(ptep), (void)(pte))
#define __ptat_set_pmd(pmdp, pmd)	((void)(pmdp), (void)(pmd))
#define ptat_sync_pte(ptep, pte)	((void)(ptep), (void)(pte))
#define ptat_sync_pmd(pmdp, pmd)	((void)(pmdp), (void)(pmd))
#define ptat_sync_range(from, to)	((void)(from), (void)(to))
#define ptat_sync_new(from, to)		((void)(from), (void)(to))

#define ptat_shadow_pte_table(mm, pmdp, page)	((void)(mm), (void)(pmdp), (page))
#define ptat_unshadow_pte_table(mm, page)	((void)(mm), (page))
#define ptat_shadow_pmd_table(mm, pmdp, addr)	((void)(mm), (void)(addr), (pmdp))
#define ptat_move_table(mm, pmdp, addr)		((void)(mm), (void)(pmdp), (void)(addr))

static inline phys_addr_t ptat_link_table(struct mm_struct *mm, const void *entry,
					  phys_addr_t pa, enum ptat_level level)
{
	return pa;
}

static inline phys_addr_t ptat_twin_pa(phys_addr_t pa, unsigned long val)
{
	return pa;
}

static inline void ptat_free_table(struct page *page)
{
}

static inline void ptat_mm_fork(struct mm_struct *mm, const struct mm_struct *oldmm)
{
}

static inline void ptat_mm_exec(struct mm_struct *mm)
{
}

static inline void ptat_mm_secureexec(struct mm_struct *mm)
{
}

static inline void ptat_mm_attach(struct task_struct *tsk, enum ptat_why why)
{
}

static inline void ptat_mm_exit(struct mm_struct *mm)
{
}

static inline void ptat_reserve_region(void)
{
}

static inline void ptat_reserve_twins(void)
{
}

static inline bool ptat_page_fault(struct pt_regs *regs, unsigned long error_code,
				   unsigned long addr)
{
	return false;
}

#endif /* CONFIG_PTAT */

#ifdef CONFIG_PTAT_TRAP
/* Are last-level TLB misses page faults? */
static __always_inline bool ptat_trapping(void)
{
	return static_branch_unlikely(&ptat_trap_key);
}

long __ptat_trap_page_fault(struct pt_regs *regs, unsigned long error_code, unsigned long addr);
bool __ptat_trap_debug(struct pt_regs *regs);
void __ptat_trap_syscall(struct pt_regs *regs);
void __ptat_trap_exit_work(struct pt_regs *regs);

/**
 * ptat_trap_page_fault - a page fault may be a TLB miss of a traced process
 * @regs: of the interrupted context
 * @error_code: of the page fault; corrected if it is a real one
 * @addr: address that was accessed
 *
 * Return: true if it is dealt with.
 *
 * Context: page fault; interrupts are off.
 */
static __always_inline bool ptat_trap_page_fault(struct pt_regs *regs,
						 unsigned long *error_code,
						 unsigned long addr)
{
	long fault;

	if (!ptat_trapping())
		return false;
	fault = __ptat_trap_page_fault(regs, *error_code, addr);
	if (fault < 0)
		return true;
	*error_code = fault;
	return false;
}

/**
 * ptat_trap_debug - a debug exception of user mode may be the end of a step
 * @regs: of user space
 *
 * Return: true if nobody else has asked for a single step.
 *
 * Context: interrupts are off.
 */
static __always_inline bool ptat_trap_debug(struct pt_regs *regs)
{
	return ptat_trapping() && __ptat_trap_debug(regs);
}

/* The instruction that was to be stepped is a system call. */
static __always_inline void ptat_trap_syscall(struct pt_regs *regs)
{
	if (ptat_trapping())
		__ptat_trap_syscall(regs);
}

/* The thread is about to sleep, or to get a signal: its instruction will trap again. */
static __always_inline void ptat_trap_exit_work(struct pt_regs *regs)
{
	if (ptat_trapping())
		__ptat_trap_exit_work(regs);
}
#else /* !CONFIG_PTAT_TRAP */
#define ptat_trapping()			false
#define ptat_trap_page_fault(regs, error_code, addr)			\
	((void)(regs), (void)(error_code), (void)(addr), false)
#define ptat_trap_debug(regs)		((void)(regs), false)
#define ptat_trap_syscall(regs)		((void)(regs))
#define ptat_trap_exit_work(regs)	((void)(regs))
#endif /* CONFIG_PTAT_TRAP */

#endif /* _LINUX_PTAT_H */
