// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT on x86-64: caches, TLBs, and page faults of traced address spaces.
 */
#include <linux/io.h>
#include <linux/ptat.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include <asm/processor-flags.h>
#include <asm/smp.h>
#include <asm/tlbflush.h>
#include <asm/trap_pf.h>
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

/* Strongly uncached, as the walker sees the region: no MTRR makes it write-combining. */
void __iomem *ptat_arch_map_region(phys_addr_t pa, unsigned long size)
{
	return ioremap_uc(pa, size);
}

/* Is the region gone, and may the caller sleep to detach it? */
static bool detach_lost_region(struct pt_regs *regs)
{
	if (!ptat_region_lost() || faulthandler_disabled() || !(regs->flags & X86_EFLAGS_IF))
		return false;
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
 * Return: true if the access can be tried again, as the hardware has other page
 * tables now.
 *
 * Context: page fault, interrupts are off.
 */
bool ptat_page_fault(struct pt_regs *regs, unsigned long error_code, unsigned long addr)
{
	const struct mm_struct *mm = current->mm;

	if (mm && READ_ONCE(mm->ptat_mode))
		trace_ptat_fault(mm->ptat_id, addr, error_code);
	if ((error_code & X86_PF_RSVD) || static_branch_unlikely(&ptat_readback_key))
		return detach_lost_region(regs);
	return false;
}
