/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The page walker of one vCPU: four-level paging over the guest's RAM, which the plugin has
 * mapped, with paging-structure caches.
 */
#ifndef PTAT_WALK_H
#define PTAT_WALK_H

#include "tlb.h"

#define PTE_PRESENT  BIT_U64(0)
#define PTE_WRITE    BIT_U64(1)
#define PTE_USER     BIT_U64(2)
#define PTE_ACCESSED BIT_U64(5)
#define PTE_DIRTY    BIT_U64(6)
#define PTE_LARGE    BIT_U64(7)
#define PTE_GLOBAL   BIT_U64(8)
#define PTE_NX	     BIT_U64(63)
#define PTE_FRAME    BITS_U64(51, 12)

struct guest_ram {
	const uint8_t *base;
	uint64_t size_bytes;
	uint64_t lowmem_bytes; /* what lies below 4 GiB; the rest starts at 4 GiB */
};

/* Caches of non-leaf entries: 0 PDE, 1 PDPTE, 2 PML4E. */
struct psc {
	struct assoc level[PSC_LEVELS];
};

#define WALK_READS_MAX 4

struct walk {
	uint64_t read[WALK_READS_MAX]; /* physical addresses of the entries read, in order */
	uint64_t entry;		       /* the last of them */
	uint64_t grants; /* PTE_WRITE, PTE_USER and PTE_NX, which stands for "may execute" */
	uint8_t reads;
	uint8_t shift;	/* log2 of what the last entry covers: 12, 21, 30 or 39 */
	bool completed; /* the last entry maps a page */
};

/* The entry at guest-physical address @pa, or NULL if no RAM is there. */
const uint64_t *ram_entry(const struct guest_ram *ram, uint64_t pa);

void psc_init(struct psc *psc, const struct cpu_model *model);
void psc_free(struct psc *psc);
void psc_flush_address(struct psc *psc, uint64_t va, uint64_t context);
void psc_flush_pcid(struct psc *psc, unsigned pcid);
void psc_flush_all(struct psc *psc);

/*
 * Walks for @va from the table at @root. @context is a tlb's (PCID). @psc may be NULL: then all
 * levels are read and nothing is remembered. Never reads outside @ram, whatever the tables hold.
 */
void walk_tables(const struct guest_ram *ram, struct psc *psc, uint64_t root, uint64_t context,
		 uint64_t va, struct walk *walk);

/* Physical address of @va after a completed walk. */
static inline uint64_t walk_address(const struct walk *walk, uint64_t va)
{
	uint64_t offset = BIT_U64(walk->shift) - 1;

	return (walk->entry & PTE_FRAME & ~offset) | (va & offset);
}

static inline enum page_size walk_page_size(const struct walk *walk)
{
	return (walk->shift - 12) / 9;
}

#endif
