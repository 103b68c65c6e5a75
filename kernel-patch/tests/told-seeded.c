/* SPDX-License-Identifier: GPL-2.0 */
/* Ways on which PTAT is not told, or too late, what was done to a table; marked as is found. */

static void at_the_end(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	set_ptes_lazy(mm, addr, ptep, pte, 1); /* found */
	pte_unmap_unlock(ptep, ptl);
}

static void without_unlock(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	set_ptes_lazy(mm, addr, ptep, pte, 1); /* found */
}

static void after_the_unlock(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	set_ptes_lazy(mm, addr, ptep, pte, 1); /* found */
	pte_unmap_unlock(ptep, ptl);
	ptat_set_new(ptep);
}

static void after_the_flush(struct mmu_gather *tlb, pte_t *ptep)
{
	clear_full_ptes_lazy(tlb->mm, addr, ptep, 1, tlb->fullmm); /* found */
	tlb_flush_mmu_tlbonly(tlb);
	ptat_mirror_range(ptep, ptep + 1);
	pte_unmap_unlock(ptep, ptl);
}

static int one_break_leads_past(struct vm_fault *vmf, pte_t *ptep)
{
	do {
		set_pte_range(vmf, folio, page, 1, addr); /* found */
		if (need_resched())
			goto unlock;
	} while (ptep++, addr != end);
	ptat_set_range(vmf->pte, ptep);
unlock:
	pte_unmap_unlock(ptep, ptl);
	return 0;
}

static void by_the_other_hook(struct mm_struct *mm, pte_t *ptep)
{
	ptep_get_and_clear_full_lazy(mm, addr, ptep, 0); /* found */
	ptat_set_new(ptep);
	pte_unmap_unlock(ptep, ptl);
}

static void only_before(struct mm_struct *mm, pte_t *ptep, pte_t pte)
{
	ptat_mirror_range(ptep, ptep + 1);
	wrprotect_ptes_lazy(mm, addr, ptep, 1); /* found */
	pte_unmap_unlock(ptep, ptl);
}

/* All is told in time. */
static int in_time(struct mmu_gather *tlb, pte_t *ptep, pte_t pte)
{
	pte_t *from = ptep;

	do {
		pte = get_and_clear_full_ptes_lazy(tlb->mm, addr, ptep, 1, 0);
		if (pte_dirty(pte))
			break;
	} while (ptep++, addr != end);
	ptat_mirror_range(from, ptep);
	tlb_flush_mmu_tlbonly(tlb);
	set_ptes_lazy(tlb->mm, addr, ptep, pte, 1);
	ptat_set_new(ptep);
	pte_unmap_unlock(ptep, ptl);
	return 0;
}

static void at_once(struct mm_struct *mm, pte_t *ptep)
{
	ptat_mirror(ptep, ptep_set_wrprotect_lazy(mm, addr, ptep).pte);
}
