// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: page tables of traced address spaces, from shadowing to freeing, and
 * the log of which addresses they serve.
 */
#include <linux/memcontrol.h>
#include <linux/vmstat.h>
#include <asm/pgalloc.h>
#include <trace/events/ptat.h>

#include "internal.h"

/*
 * The addresses that a PTE table serves follow from the PMD entry that points
 * to it, so the base address of each PMD table must be known: in
 * &ptat_table.va, or for a table in ordinary memory in a spare word of its
 * page.
 *
 * An address space that became traced late may have PMD tables above
 * TASK_SIZE_MAX (the LDT with page-table isolation) whose spare word was never
 * set: what it holds is no user address either.
 */
static u64 pmd_table_base(phys_addr_t pa)
{
	const struct ptat_table *table = ptat_table(pa);

	return table ? table->va : *ptat_spare_word(pfn_to_page(PHYS_PFN(pa)));
}

static bool serves_user(u64 base)
{
	return IS_ALIGNED(base, PUD_SIZE) && base < TASK_SIZE_MAX;
}

/**
 * ptat_set_pmd_table_base - note which addresses an ordinary PMD table serves
 * @page: the table
 * @addr: one of the addresses
 */
void ptat_set_pmd_table_base(struct page *page, unsigned long addr)
{
	*ptat_spare_word(page) = addr & PUD_MASK;
}

/* The first address of the PTE table that the PMD entry at @slot points to. */
static u64 pte_table_base(phys_addr_t slot)
{
	return ptat_entry_va(pmd_table_base(slot & PAGE_MASK), slot, PTAT_LEVEL_PMD);
}

/**
 * ptat_table_va - the first address that a table serves
 * @table: the table
 *
 * A PTE table has it from its parent: mremap() moves PMD tables with all below.
 */
u64 ptat_table_va(const struct ptat_table *table)
{
	if (table->level == PTAT_LEVEL_PMD)
		return table->va;
	return table->slot ? pte_table_base(table->slot) : 0;
}

/*
 * Let @twin take the place of the constructed, empty table @page: exchange all
 * that makes a page a page table (its lock, its type, and its charge to a memory
 * cgroup), and free @page.
 */
static void replace_page(struct page *page, struct page *twin)
{
	const size_t begin = offsetof(struct page, lru);
	char table[offsetof(struct page, _refcount) - offsetof(struct page, lru)];

	mod_lruvec_page_state(page, NR_PAGETABLE, -1);
	memcpy(table, (void *)page + begin, sizeof(table));
	memcpy((void *)page + begin, (void *)twin + begin, sizeof(table));
	memcpy((void *)twin + begin, table, sizeof(table));
#ifdef CONFIG_MEMCG
	swap(page->memcg_data, twin->memcg_data);
#endif
	mod_lruvec_page_state(twin, NR_PAGETABLE, 1);
	__free_page(page);
}

/* The twin to use for @page; @page itself if @mm is not traced or there is none. */
static struct page *shadow(struct mm_struct *mm, struct page *page, enum ptat_level level,
			   u64 va, phys_addr_t slot)
{
	struct ptat_table *table;
	struct page *twin;

	if (!READ_ONCE(mm->ptat_mode) || !ptat_mm_is_seen(mm) || ptat_detached())
		return page;

	twin = ptat_pool_get(level);
	if (!twin) {
		trace_ptat_table_alloc(ptat_mark(), mm->ptat_id, 0, va, level);
		return page;
	}
	replace_page(page, twin);
	table = ptat_table(page_to_phys(twin));
	table->mm = mm->ptat_id;
	table->level = level;
	table->va = va;
	table->slot = slot;
	table->hidden = false;
	trace_ptat_table_alloc(ptat_mark(), table->mm, ptat_hw_pa(page_to_phys(twin)), va, level);
	return twin;
}

struct page *__ptat_shadow_pte_table(struct mm_struct *mm, pmd_t *pmdp, struct page *page)
{
	if (!mm->ptat_id || !serves_user(pmd_table_base(__pa(pmdp) & PAGE_MASK)))
		return page;
	return shadow(mm, page, PTAT_LEVEL_PTE, 0, __pa(pmdp));
}

pmd_t *__ptat_shadow_pmd_table(struct mm_struct *mm, pmd_t *pmdp, unsigned long addr)
{
	struct page *page = virt_to_page(pmdp);

	if (!mm->ptat_id)
		return pmdp;
	if (READ_ONCE(ptat_trace_pmd_tables) && addr < TASK_SIZE_MAX)
		page = shadow(mm, page, PTAT_LEVEL_PMD, addr & PUD_MASK, 0);
	/* Also while tracing is off: there may be tables below when it is on again. */
	if (!ptat_table(page_to_phys(page)))
		ptat_set_pmd_table_base(page, addr);
	return page_address(page);
}

/* A huge page's table is of no use in the region until the page is split. */
struct page *__ptat_unshadow_pte_table(struct mm_struct *mm, struct page *page)
{
	struct page *ordinary;

	if (!ptat_table(page_to_phys(page)))
		return page;
	ordinary = pte_alloc_one(mm);
	if (!ordinary)
		return page;
	pte_free_defer(mm, page);
	return ordinary;
}

/* What an entry holds that points to the table of the region with that twin. */
static unsigned long region_val(phys_addr_t twin)
{
	return ptat_table_val(__ptat_region_pa(&ptat_map, twin),
			      ptat_trapping() ? PTAT_TABLE_TRAP : PTAT_TABLE_BUS);
}

unsigned long __ptat_link_table(struct mm_struct *mm, const void *entry, phys_addr_t pa,
				enum ptat_level level)
{
	struct ptat_table *table = ptat_table(pa);
	bool in_region = table && ptat_mm_is_seen(mm) && !ptat_detached();
	unsigned long val = in_region ? region_val(pa) : pa;
	phys_addr_t slot;
	u64 base;

	if (!mm->ptat_id)
		return pa;
	/* The split of a huge page fills the table behind an entry on the stack. */
	if (!virt_addr_valid(entry) ||
	    (level == PTAT_LEVEL_PTE && !PageTable(virt_to_page(entry))))
		return val;

	slot = __pa(entry);
	if (table)
		table->slot = slot;
	else if (!READ_ONCE(mm->ptat_mode))
		return val;
	base = pmd_table_base(level == PTAT_LEVEL_PMD ? pa : slot & PAGE_MASK);
	if (serves_user(base))
		trace_ptat_table_link(ptat_mark(), mm->ptat_id, ptat_hw_pa(pa), ptat_hw_pa(slot),
				      level == PTAT_LEVEL_PMD ? base : pte_table_base(slot),
				      level);
	return val;
}

void __ptat_move_table(struct mm_struct *mm, const pmd_t *pmdp, unsigned long addr)
{
	struct ptat_table *table = ptat_table(__pa(pmdp));

	if (!mm->ptat_id)
		return;
	if (table)
		table->va = addr & PUD_MASK;
	else
		ptat_set_pmd_table_base(virt_to_page(pmdp), addr);
	trace_ptat_table_move(ptat_mark(), mm->ptat_id, ptat_hw_pa(__pa(pmdp)), addr & PUD_MASK,
			      PTAT_LEVEL_PMD);
}

void __ptat_free_table(struct page *page)
{
	struct ptat_table *table = ptat_table(page_to_phys(page));

	if (!table)
		return;
	trace_ptat_table_free(ptat_mark(), table->mm, ptat_hw_pa(page_to_phys(page)),
			      table->level);
	table->mm = 0;
	table->slot = 0;
	memcg_kmem_uncharge_page(page, 0);
	ptat_pool_put(page);
}

/* The entry that points to @table, if that can still be. */
static unsigned long *slot_of(const struct ptat_table *table)
{
	/* Free, or not linked yet. */
	if (!table->mm || !table->slot)
		return NULL;
	/* The PMD table may be gone before the PTE table is given back. */
	if (table->level == PTAT_LEVEL_PTE && !PageTable(pfn_to_page(PHYS_PFN(table->slot))))
		return NULL;
	return __va(table->slot);
}

/**
 * ptat_walk_twin - let the hardware walk a table in ordinary memory
 * @table: the table
 * @twin: physical address of its twin
 *
 * Context: all other CPUs are stopped, or the address space has never run.
 */
void ptat_walk_twin(const struct ptat_table *table, phys_addr_t twin)
{
	unsigned long *slot = slot_of(table);

	if (slot)
		ptat_repoint(slot, region_val(twin), ptat_table_val(twin, 0));
}

/**
 * ptat_walk_region - let the hardware walk a table in the region again
 * @table: the table; the region has all that its twin has
 * @twin: physical address of the twin
 *
 * Context: all other CPUs are stopped.
 */
void ptat_walk_region(const struct ptat_table *table, phys_addr_t twin)
{
	unsigned long *slot = slot_of(table);

	if (slot)
		ptat_repoint(slot, ptat_table_val(twin, 0), region_val(twin));
}
