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

/*
 * Flags of an entry that points to a table of the region.  On a bus, the table
 * is walked uncached (PAT entry 3); where misses trap, a bit that the hardware
 * ignores marks the entry.
 */
#define PTAT_TABLE_BUS		(_PAGE_PCD | _PAGE_PWT)
#define PTAT_TABLE_TRAP		_PAGE_SOFTW1
#define PTAT_TABLE_FLAGS	(PTAT_TABLE_BUS | PTAT_TABLE_TRAP)

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

/* Is a table of the region below an entry that holds @val?  Hardly any other has the flags. */
static __always_inline bool ptat_val_is_marked(unsigned long val)
{
	return unlikely(val & (_PAGE_PCD | PTAT_TABLE_TRAP));
}

/* The value of an entry that points to the table at @pa, without its permissions. */
static __always_inline unsigned long ptat_table_val(phys_addr_t pa, unsigned long flags)
{
	return pa | flags;
}

/* Does an entry of a table of that level map a page? */
static __always_inline bool ptat_val_is_leaf(unsigned long val, unsigned int level)
{
	return (val & _PAGE_PRESENT) && (level == 1 || (val & _PAGE_PSE));
}

/* The frame that a leaf maps. */
static __always_inline phys_addr_t ptat_val_frame(unsigned long val)
{
	return val & PTE_PFN_MASK;
}

/*
 * A leaf that the hardware takes for not present.  It is never zero, which is
 * what an entry becomes when it is cleared, and has no frame of RAM in it, as
 * speculation may use that (L1TF).
 */
static __always_inline unsigned long ptat_val_poison(unsigned long val)
{
	return (val ^ PTE_PFN_MASK) & ~_PAGE_PRESENT;
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

struct pt_regs;
struct ptat_trap;

void ptat_arch_flush_caches(void);
void ptat_arch_flush_tlb_local(void);
void __iomem *ptat_arch_map_region(phys_addr_t pa, unsigned long size);
bool ptat_arch_can_trap(void);
bool ptat_arch_permits(unsigned long val, const struct ptat_trap *trap);

bool ptat_page_fault(struct pt_regs *regs, unsigned long error_code, unsigned long addr);

#endif /* _ASM_X86_PTAT_H */
