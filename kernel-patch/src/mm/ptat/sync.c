// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: copy entries of twins to the region.
 */
#include <linux/bitmap.h>
#include <linux/mmdebug.h>
#include <trace/events/ptat.h>

#include "internal.h"

/* The twin that an entry is part of. */
struct twin {
	struct ptat_table *table;
	unsigned long offset;	/* of the entry, in the twins and in the region */
};

static struct twin twin_of(const void *entry)
{
	unsigned long offset = (unsigned long)entry - ptat_map.virt;

	return (struct twin){ &ptat_tables[PHYS_PFN(offset)], offset };
}

static void log_pmd(const struct twin *twin, unsigned long val)
{
	phys_addr_t slot = ptat_map.region + twin->offset;
	u64 va = ptat_entry_va(twin->table->va, slot, PTAT_LEVEL_PMD);

	/* ptat_link_table() has logged it. */
	if (ptat_val_is_table(val))
		return;
	if (val)
		trace_ptat_leaf_set(ptat_mark(), twin->table->mm, slot, va, val, PTAT_LEVEL_PMD);
	else
		trace_ptat_leaf_clear(ptat_mark(), twin->table->mm, slot, va, 0, PTAT_LEVEL_PMD);
}

static void log_pte(const struct twin *twin, unsigned long val)
{
	phys_addr_t slot = ptat_map.region + twin->offset;
	u64 va = ptat_entry_va(ptat_table_va(twin->table), slot, PTAT_LEVEL_PTE);

	if (val)
		trace_ptat_pte_set(0, twin->table->mm, slot, va, val, PTAT_LEVEL_PTE);
	else
		trace_ptat_pte_clear(0, twin->table->mm, slot, va, 0, PTAT_LEVEL_PTE);
}

static bool is_filled(const struct twin *twin)
{
	return test_bit(offset_in_page(twin->offset) / PTAT_ENTRY_BYTES, twin->table->filled);
}

static void store_pte(const struct twin *twin, unsigned long val)
{
	if (trace_ptat_pte_set_enabled() || trace_ptat_pte_clear_enabled())
		log_pte(twin, val);
	__assign_bit(offset_in_page(twin->offset) / PTAT_ENTRY_BYTES, twin->table->filled, val);
	ptat_region_write(twin->offset, ptat_shown_val(val, PTAT_LEVEL_PTE));
}

static void sync_val(const void *entry, unsigned long val)
{
	struct twin twin = twin_of(entry);

	VM_WARN_ON_ONCE(!twin.table->mm);
	val = ptat_hw_val(val);
	if (twin.table->level == PTAT_LEVEL_PMD) {
		log_pmd(&twin, val);
		ptat_region_write(twin.offset, ptat_shown_val(val, PTAT_LEVEL_PMD));
	} else {
		/* hugetlb uses the PTE primitives for PMD tables: go by the level. */
		store_pte(&twin, val);
	}
}

void __ptat_sync_pte(const pte_t *ptep, pte_t pte)
{
	sync_val(ptep, pte_val(pte));
}
EXPORT_SYMBOL(__ptat_sync_pte);

void __ptat_sync_pmd(const pmd_t *pmdp, pmd_t pmd)
{
	sync_val(pmdp, pmd_val(pmd));
}
EXPORT_SYMBOL(__ptat_sync_pmd);

/* Store an entry of a twin as the hardware would have it, and copy it. */
void __ptat_set_pte(pte_t *ptep, pte_t pte)
{
	WRITE_ONCE(*ptep, __pte(ptat_hw_val(pte_val(pte))));
	sync_val(ptep, pte_val(pte));
}
EXPORT_SYMBOL(__ptat_set_pte);

void __ptat_set_pmd(pmd_t *pmdp, pmd_t pmd)
{
	WRITE_ONCE(*pmdp, __pmd(ptat_hw_val(pmd_val(pmd))));
	sync_val(pmdp, pmd_val(pmd));
}
EXPORT_SYMBOL(__ptat_set_pmd);

void __ptat_sync_range(const pte_t *from, const pte_t *to)
{
	struct twin twin = twin_of(from);
	const pte_t *ptep;

	for (ptep = from; ptep != to; ptep++, twin.offset += PTAT_ENTRY_BYTES)
		if (pte_val(*ptep) || is_filled(&twin))
			store_pte(&twin, ptat_hw_val(pte_val(*ptep)));
}

void __ptat_sync_new(pte_t *from, const pte_t *to)
{
	struct twin twin = twin_of(from);
	pte_t *ptep;

	/* The entry of a PMD table that hugetlb treats as a PTE. */
	if (twin.table->level == PTAT_LEVEL_PMD) {
		__ptat_set_pte(from, *from);
		return;
	}
	for (ptep = from; ptep != to; ptep++, twin.offset += PTAT_ENTRY_BYTES) {
		if (!pte_val(*ptep) && !is_filled(&twin))
			continue;
		WRITE_ONCE(*ptep, __pte(ptat_hw_val(pte_val(*ptep))));
		store_pte(&twin, pte_val(*ptep));
	}
}
EXPORT_SYMBOL(__ptat_sync_new);

/**
 * ptat_sync_table - copy a whole table to a region that has been cleared
 * @table: the table
 * @twin: its twin
 *
 * Context: all other CPUs are stopped.
 */
void ptat_sync_table(struct ptat_table *table, const unsigned long *twin)
{
	unsigned long offset = (unsigned long)twin - ptat_map.virt;
	unsigned int i;

	bitmap_zero(table->filled, PTRS_PER_PTE);
	for (i = 0; i < PTRS_PER_PTE; i++) {
		if (!twin[i])
			continue;
		__set_bit(i, table->filled);
		ptat_region_write(offset + i * PTAT_ENTRY_BYTES,
				  ptat_shown_val(ptat_hw_val(twin[i]), table->level));
	}
}

/**
 * ptat_clear_table - clear a table that nobody can reach
 * @table: the table; no entry of it is present
 * @twin: its twin
 */
void ptat_clear_table(struct ptat_table *table, unsigned long *twin)
{
	unsigned long offset = (unsigned long)twin - ptat_map.virt;
	unsigned int i;

	for (i = 0; i < PTRS_PER_PTE; i++) {
		VM_WARN_ON_ONCE(ptat_val_present(twin[i]));
		twin[i] = 0;
		ptat_region_write(offset + i * PTAT_ENTRY_BYTES, 0);
	}
	bitmap_zero(table->filled, PTRS_PER_PTE);
}
