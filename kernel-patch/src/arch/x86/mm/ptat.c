// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT on x86-64: caches, TLBs, and page faults of traced address spaces.
 */
#include <linux/io.h>
#include <linux/ptat.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include <asm/extable.h>
#include <asm/processor-flags.h>
#include <asm/smp.h>
#include <asm/tlbflush.h>
#include <asm/trap_pf.h>
#include <asm/trapnr.h>
#include <trace/events/ptat.h>

/* Write back and invalidate the caches of all CPUs. */
void ptat_arch_flush_caches(void)
{
	wbinvd_on_all_cpus();
}

/* Flush the TLB of this CPU, and what it caches of tables above the last level. */
void ptat_arch_flush_tlb_local(void)
{
	__flush_tlb_all();
}

/*
 * As the walker sees the region.  On a bus that is strongly uncached: no MTRR
 * makes it write-combining.
 */
void __iomem *ptat_arch_map_region(phys_addr_t pa, unsigned long size)
{
	return ptat_trapping() ? ioremap_cache(pa, size) : ioremap_uc(pa, size);
}

/* The region does not answer.  Can the access be tried again? */
static bool recover(struct pt_regs *regs, unsigned long error_code, unsigned long addr)
{
	if (faulthandler_disabled() || !(regs->flags & X86_EFLAGS_IF))
		/* Detaching takes sleep: let the access fail; others will detach. */
		return !user_mode(regs) && fixup_exception(regs, X86_TRAP_PF, error_code, addr);
	local_irq_enable();
	ptat_detach("does not answer");
	local_irq_disable();
	return true;
}

/**
 * ptat_page_fault - log a page fault of a traced address space
 * @regs: of the interrupted context
 * @error_code: of the page fault
 * @addr: user address that was accessed
 *
 * A region that is lost causes faults: all ones have reserved bits set, and
 * zeroes are not present.  With readback, each fault checks the region, as a
 * page that is there would fault for ever.
 *
 * Return: true if the fault is dealt with: the access can be tried again, as the
 * hardware has other page tables now, or it fails by the exception table.
 *
 * Context: page fault, interrupts are off.
 */
bool ptat_page_fault(struct pt_regs *regs, unsigned long error_code, unsigned long addr)
{
	const struct mm_struct *mm = current->mm;

	if (mm && READ_ONCE(mm->ptat_mode) && addr < TASK_SIZE_MAX)
		trace_ptat_fault(mm->ptat_id, addr, error_code);
	if (!(error_code & X86_PF_RSVD) && !static_branch_unlikely(&ptat_readback_key))
		return false;
	/* Interrupts have been off since the walk, so no other CPU can have detached it. */
	return ptat_region_lost() && recover(regs, error_code, addr);
}
