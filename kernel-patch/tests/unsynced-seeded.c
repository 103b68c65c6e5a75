/* SPDX-License-Identifier: GPL-2.0 */
/* Ways on which entries are not synced, or too late; what must be found is marked. */

static void at_the_end(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	__set_ptes(mm, addr, ptep, pte, 1); /* found */
	pte_unmap_unlock(ptep, ptl);
}

static void without_unlock(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	__set_ptes(mm, addr, ptep, pte, 1); /* found */
}

static void after_the_unlock(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	__set_ptes(mm, addr, ptep, pte, 1); /* found */
	pte_unmap_unlock(ptep, ptl);
	arch_sync_new_ptes(ptep, ptep + 1);
}

static void after_the_flush(struct mmu_gather *tlb, pte_t *ptep)
{
	clear_full_ptes(tlb->mm, addr, ptep, 1, tlb->fullmm); /* found */
	tlb_flush_mmu_tlbonly(tlb);
	arch_sync_ptes(ptep, ptep + 1);
	pte_unmap_unlock(ptep, ptl);
}

static int one_break_leads_past(struct vm_fault *vmf, pte_t *ptep)
{
	do {
		__set_ptes(mm, addr, ptep, pte, 1); /* found */
		if (need_resched())
			goto unlock;
	} while (ptep++, addr != end);
	arch_sync_new_ptes(vmf->pte, ptep);
unlock:
	pte_unmap_unlock(ptep, ptl);
	return 0;
}

static void by_the_other_hook(struct mm_struct *mm, pte_t *ptep)
{
	__ptep_get_and_clear_full(mm, addr, ptep, 0); /* found */
	arch_sync_new_ptes(ptep, ptep + 1);
	pte_unmap_unlock(ptep, ptl);
}

static void only_before(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	arch_sync_ptes(ptep, ptep + 1);
	wrprotect_ptes(mm, addr, ptep, 1); /* found */
	pte_unmap_unlock(ptep, ptl);
}

/* All is synced in time. */
static int in_time(struct mmu_gather *tlb, pte_t *ptep, pte_t pte)
{
	pte_t *from = ptep;

	do {
		pte = get_and_clear_full_ptes(tlb->mm, addr, ptep, 1, 0);
		if (pte_dirty(pte))
			break;
	} while (ptep++, addr != end);
	arch_sync_ptes(from, ptep);
	tlb_flush_mmu_tlbonly(tlb);
	__set_ptes(tlb->mm, addr, ptep, pte, 1);
	arch_sync_new_ptes(ptep, ptep + 1);
	pte_unmap_unlock(ptep, ptl);
	return 0;
}

static void at_once(struct mm_struct *mm, pte_t *ptep)
{
	pte_t pte = __ptep_set_wrprotect(mm, addr, ptep);

	ptat_sync_pte(ptep, pte);
}
