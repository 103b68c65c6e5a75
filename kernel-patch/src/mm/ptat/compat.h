/* SPDX-License-Identifier: GPL-2.0 */
/*
 * PTAT: what differs between kernel versions.  Features are tested for, not
 * version numbers.
 */
#ifndef _MM_PTAT_COMPAT_H
#define _MM_PTAT_COMPAT_H

#include <linux/mm.h>
#include <linux/mm_types.h>
#include <linux/sched/mm.h>

#ifdef ptdesc_page
#include <linux/iommu.h>

static inline bool ptat_mm_has_pasid(struct mm_struct *mm)
{
	return mm_valid_pasid(mm);
}

/* A word of a page that is a page table; nothing else uses it of a PMD table. */
static inline unsigned long *ptat_spare_word(struct page *page)
{
	return &page_ptdesc(page)->_pt_pad_1;
}
#else	/* before struct ptdesc (v6.6) */
#include <linux/ioasid.h>
#include <asm/pgalloc.h>

static inline bool ptat_mm_has_pasid(struct mm_struct *mm)
{
#ifdef CONFIG_IOMMU_SVA
	return pasid_valid(mm->pasid);
#else
	return false;
#endif
}

static inline unsigned long *ptat_spare_word(struct page *page)
{
	return &page->_pt_pad_1;
}

/* VMAs of these kernels have no lock of their own. */
static inline void vma_start_write(struct vm_area_struct *vma)
{
}

/* Page tables of these kernels are not walked without mmap or rmap locks. */
static inline void pte_free_defer(struct mm_struct *mm, pgtable_t table)
{
	pte_free(mm, table);
}
#endif

#endif /* _MM_PTAT_COMPAT_H */
