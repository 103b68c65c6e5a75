/* SPDX-License-Identifier: GPL-2.0 */
/* Ways past the primitives that sync entries; what must be found is marked. */

static void stores(struct vm_fault *vmf, pte_t *ptep, pmd_t *pmdp, pte_t pte, pmd_t pmd)
{
	pte_t local = pte;

	*ptep = pte;							/* found */
	ptep[3] = pte;							/* found */
	ptep->pte |= _PAGE_DIRTY;					/* found */
	pmdp->pmd = 0;							/* found */
	WRITE_ONCE(*pmdp, pmd);						/* found */
	*vmf->pte = pte;						/* found */
	WRITE_ONCE(*vmf->pmd, pmd);					/* found */
	xchg(&ptep->pte, 0);						/* found */
	set_bit(_PAGE_BIT_ACCESSED, (unsigned long *)ptep);		/* found */
	clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&vmf->pte->pte); /* found */
	memset(ptep, 0, PAGE_SIZE);					/* found */
	clear_page(pmdp);						/* found */
	__set_ptes(mm, addr, ptep, pte, 1);				/* found */
	native_set_pte(ptep, pte);					/* found */
	native_pmd_clear(pmdp);						/* found */

	/* Through the primitives, or to no entry of a table. */
	set_pte(ptep, pte);
	set_pmd(pmdp, pmd);
	local = pte_mkclean(local);
	local.pte = 0;
	pte = READ_ONCE(*ptep);
	if ((unsigned long)ptep & ~PAGE_MASK)
		pmd = *pmdp;
}
