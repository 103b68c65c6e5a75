/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Page-table access tracing on x86-64: entry formats, caches and TLBs.
 *
 * linux/ptat.h includes this file for architectures with ARCH_HAS_PTAT.
 */
#ifndef _ASM_X86_PTAT_H
#define _ASM_X86_PTAT_H

#include <linux/compiler.h>
#include <linux/types.h>
#include <asm/page_types.h>
#include <asm/pgtable_types.h>

/* An entry with these flags points to a table that is walked uncached (PAT entry 3). */
#define PTAT_TABLE_FLAGS	(_PAGE_PCD | _PAGE_PWT)

/*
 * Return @val as the region shows it: with the accessed bit set, and in a
 * writable entry the dirty bit too, so that the hardware never writes there.
 * An entry without access rights keeps an accessed bit that reclaim clears in
 * the twin only; it is set here as well, or region and twin would differ.
 */
static __always_inline unsigned long ptat_hw_val(unsigned long val)
{
	if (val & _PAGE_PRESENT)
		return val | _PAGE_ACCESSED | (val & _PAGE_RW ? _PAGE_DIRTY : 0);
	if (val & _PAGE_PROTNONE)
		return val | _PAGE_ACCESSED;
	return val;
}

static __always_inline bool ptat_val_present(unsigned long val)
{
	return val & _PAGE_PRESENT;
}

/* Does a PMD or PUD entry that holds @val point to a table? */
static __always_inline bool ptat_val_is_table(unsigned long val)
{
	return (val & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

/* Tables of the region are walked uncached, and hardly anything else is. */
static __always_inline bool ptat_val_is_uncached(unsigned long val)
{
	return unlikely(val & _PAGE_PCD);
}

/* The value of an entry that points to the table at @pa, without its permissions. */
static __always_inline unsigned long ptat_table_val(phys_addr_t pa, bool uncached)
{
	return pa | (uncached ? PTAT_TABLE_FLAGS : 0);
}

/*
 * Make the entry at @slot point to the table at @to if it points to the one at
 * @from.  Stores only if the entry changes.
 */
static inline void ptat_repoint(unsigned long *slot, unsigned long from, unsigned long to)
{
	unsigned long mask = PTE_PFN_MASK | PTAT_TABLE_FLAGS;
	unsigned long val = READ_ONCE(*slot);

	if (ptat_val_is_table(val) && (val & mask) == from)
		WRITE_ONCE(*slot, (val & ~mask) | to);
}

void ptat_arch_flush_caches(void);
void ptat_arch_flush_tlb_local(void);
void __iomem *ptat_arch_map_region(phys_addr_t pa, unsigned long size);

struct pt_regs;

bool ptat_page_fault(struct pt_regs *regs, unsigned long error_code, unsigned long addr);

#endif /* _ASM_X86_PTAT_H */
