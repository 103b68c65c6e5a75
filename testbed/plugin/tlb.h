/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The TLBs of one vCPU: first-level arrays for data and for instructions, second-level arrays
 * that may be shared by both. They hold no physical addresses: the model only has to know
 * whether a translation is there, and with which rights.
 */
#ifndef PTAT_TLB_H
#define PTAT_TLB_H

#include "assoc.h"

enum page_size { PAGE_4K, PAGE_2M, PAGE_1G, PAGE_SIZES };
enum tlb_side { TLB_DATA, TLB_FETCH, TLB_SIDES };

#define SIDE_DATA      BIT_U64(TLB_DATA)
#define SIDE_FETCH     BIT_U64(TLB_FETCH)
#define SIZE_4K	       BIT_U64(PAGE_4K)
#define SIZE_2M	       BIT_U64(PAGE_2M)
#define SIZE_1G	       BIT_U64(PAGE_1G)

#define TLB_ARRAYS_MAX 8
#define PSC_LEVELS     3

struct tlb_geometry {
	const char *name; /* as in the plugin argument tlb_<name>=<entries>x<ways> */
	uint8_t sides;	  /* SIDE_* that look here */
	uint8_t level;	  /* 1 or 2 */
	uint8_t sizes;	  /* SIZE_* that it can hold */
	uint16_t entries;
	uint16_t ways;
};

struct psc_geometry {
	uint16_t entries; /* 0: this CPU has no such cache */
	uint16_t ways;
};

struct cpu_model {
	const char *name;
	struct tlb_geometry tlb[TLB_ARRAYS_MAX]; /* ends at the first without a name */
	struct psc_geometry psc[PSC_LEVELS];	 /* PDE, PDPTE, PML4E cache */
};

extern const struct cpu_model cpu_models[];
extern const unsigned cpu_models_count;

struct tlb {
	uint64_t context; /* KEY_VALID and the current PCID, in a key's place */
	/* The first-level data arrays again, for tlb_hit_fast(). */
	struct {
		const uint64_t *key;
		uint32_t set_mask;
		uint32_t ways;
	} fast[PAGE_SIZES];

	/*
	 * How many valid entries of each size all arrays have, by the low bits of their page
	 * numbers: what is not there mostly costs no search.
	 */
	uint32_t *held[PAGE_SIZES];
	uint64_t held_mask;

	struct assoc array[TLB_ARRAYS_MAX];
	unsigned arrays;
	struct assoc *by_size[TLB_SIDES][2][PAGE_SIZES]; /* [][level - 1][]; may be NULL */
};

static inline unsigned page_shift(enum page_size size)
{
	return 12 + 9 * size;
}

static inline uint64_t tlb_vpn(uint64_t va, enum page_size size)
{
	return (va >> 12 & KEY_VPN) >> (9 * size) << (9 * size);
}

static inline uint64_t tlb_size_key(enum page_size size)
{
	return (uint64_t)size << KEY_SIZE_SHIFT;
}

void tlb_init(struct tlb *tlb, const struct cpu_model *model);
void tlb_free(struct tlb *tlb);
void tlb_set_pcid(struct tlb *tlb, unsigned pcid);

/*
 * Key of the translation of @va with all rights @need (KEY_STORE, KEY_EXEC or 0), now the most
 * recently used one; 0: a walk is needed. A translation without the rights is dropped,
 * as CPUs walk again before they report a violation.
 */
uint64_t tlb_lookup(struct tlb *tlb, enum tlb_side side, uint64_t va, uint64_t need);

/* After a walk. @flags: KEY_GLOBAL, KEY_STORE, KEY_EXEC, KEY_REGION. */
void tlb_fill(struct tlb *tlb, enum tlb_side side, uint64_t va, enum page_size size,
	      uint64_t flags);

/* Translations of @va for @pcid, also global ones if @global. */
void tlb_flush_page(struct tlb *tlb, uint64_t va, unsigned pcid, bool global);
void tlb_flush_pcid(struct tlb *tlb, unsigned pcid);
void tlb_flush_non_global(struct tlb *tlb);
void tlb_flush_all(struct tlb *tlb);

/*
 * Key of a data translation of @va outside the region that is already the most recently used of
 * its set: then nothing has to change. 0: this is for tlb_lookup().
 */
static inline uint64_t tlb_hit_fast(const struct tlb *tlb, uint64_t va, uint64_t need)
{
	uint64_t mask = KEY_VPN | KEY_PCID | KEY_SIZE | KEY_VALID | KEY_REGION | need;

#pragma GCC unroll 3
	for (int size = 0; size < PAGE_SIZES; size++) {
		uint64_t set = va >> page_shift(size) & tlb->fast[size].set_mask;
		uint64_t key = tlb->fast[size].key[set * tlb->fast[size].ways];
		uint64_t want = tlb_vpn(va, size) | tlb_size_key(size) | tlb->context | need;

		if (!((key ^ want) & mask))
			return key;
	}
	return 0;
}

#endif
