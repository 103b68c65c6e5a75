/* SPDX-License-Identifier: GPL-2.0 */
#include "tlb.h"

#define HELD_PER_ENTRY 8 /* enough for few of them to be shared */

static void held_init(struct tlb *tlb, size_t entries)
{
	size_t counts = HELD_PER_ENTRY;

	while (counts < HELD_PER_ENTRY * entries)
		counts *= 2;
	tlb->held_mask = counts - 1;
	for (int size = 0; size < PAGE_SIZES; size++) {
		tlb->held[size] = calloc(counts, sizeof(*tlb->held[size]));
		if (!tlb->held[size])
			abort();
	}
}

void tlb_init(struct tlb *tlb, const struct cpu_model *model)
{
	size_t entries = 0;

	memset(tlb, 0, sizeof(*tlb));
	while (tlb->arrays < TLB_ARRAYS_MAX && model->tlb[tlb->arrays].name) {
		const struct tlb_geometry *geometry = &model->tlb[tlb->arrays];
		struct assoc *array = &tlb->array[tlb->arrays++];

		assoc_init(array, geometry->entries, geometry->ways, false);
		entries += geometry->entries;
		for (int side = 0; side < TLB_SIDES; side++)
			for (int size = 0; size < PAGE_SIZES; size++)
				if (geometry->sides & BIT_U64(side) &&
				    geometry->sizes & BIT_U64(size))
					tlb->by_size[side][geometry->level - 1][size] = array;
	}
	held_init(tlb, entries);

	for (int size = 0; size < PAGE_SIZES; size++) {
		static const uint64_t nothing;
		const struct assoc *array = tlb->by_size[TLB_DATA][0][size];

		tlb->fast[size].key = array ? array->key : &nothing;
		tlb->fast[size].set_mask = array ? array->set_mask : 0;
		tlb->fast[size].ways = array ? array->ways : 0;
	}
	tlb_set_pcid(tlb, 0);
}

void tlb_free(struct tlb *tlb)
{
	for (unsigned i = 0; i < tlb->arrays; i++)
		assoc_free(&tlb->array[i]);
	for (int size = 0; size < PAGE_SIZES; size++)
		free(tlb->held[size]);
}

void tlb_set_pcid(struct tlb *tlb, unsigned pcid)
{
	tlb->context = KEY_VALID | (uint64_t)pcid << KEY_PCID_SHIFT;
}

static size_t array_set(const struct assoc *array, uint64_t va, enum page_size size)
{
	return assoc_set(array, (va & BITS_U64(47, 0)) >> page_shift(size));
}

/* Of a page of that size whose number has these low bits. */
static uint32_t *held(const struct tlb *tlb, uint64_t vpn, enum page_size size)
{
	return &tlb->held[size][vpn >> (9 * size) & tlb->held_mask];
}

static uint32_t *held_key(const struct tlb *tlb, uint64_t key)
{
	return held(tlb, key & KEY_VPN, (key & KEY_SIZE) >> KEY_SIZE_SHIFT);
}

static void insert(struct tlb *tlb, struct assoc *array, uint64_t va, enum page_size size,
		   uint64_t key)
{
	uint64_t victim = assoc_insert(array, array_set(array, va, size), key, 0);

	++*held(tlb, va >> 12 & KEY_VPN, size);
	if (victim & KEY_VALID)
		--*held_key(tlb, victim);
}

/* Page sizes with which @va may be there, as SIZE_*. */
static unsigned sizes_held(const struct tlb *tlb, uint64_t va)
{
	unsigned sizes = 0;

#pragma GCC unroll 3
	for (int size = 0; size < PAGE_SIZES; size++)
		if (*held(tlb, va >> 12 & KEY_VPN, size))
			sizes |= BIT_U64(size);
	return sizes;
}

/* Key found in one level, or 0. */
static uint64_t level_lookup(struct tlb *tlb, enum tlb_side side, int level, uint64_t va,
			     unsigned sizes)
{
	for (; sizes; sizes &= sizes - 1) {
		enum page_size size = __builtin_ctz(sizes);
		struct assoc *array = tlb->by_size[side][level][size];
		size_t set;
		int way;

		if (!array)
			continue;
		set = array_set(array, va, size);
		way = assoc_find(array, set, tlb_vpn(va, size) | tlb_size_key(size) | tlb->context);
		if (way >= 0) {
			assoc_touch(array, set, way);
			return array->key[set];
		}
	}
	return 0;
}

uint64_t tlb_lookup(struct tlb *tlb, enum tlb_side side, uint64_t va, uint64_t need)
{
	unsigned sizes = sizes_held(tlb, va);
	bool promote = false;
	uint64_t key;

	if (!sizes)
		return 0;
	key = level_lookup(tlb, side, 0, va, sizes);
	if (!key) {
		key = level_lookup(tlb, side, 1, va, sizes);
		promote = key;
	}
	if (need & ~key) {
		if (key)
			tlb_flush_page(tlb, va, (tlb->context & KEY_PCID) >> KEY_PCID_SHIFT, true);
		return 0;
	}
	if (promote) {
		enum page_size size = (key & KEY_SIZE) >> KEY_SIZE_SHIFT;

		if (tlb->by_size[side][0][size])
			insert(tlb, tlb->by_size[side][0][size], va, size, key);
	}
	return key;
}

void tlb_fill(struct tlb *tlb, enum tlb_side side, uint64_t va, enum page_size size, uint64_t flags)
{
	uint64_t key = tlb_vpn(va, size) | tlb_size_key(size) | tlb->context | flags;

	for (int level = 0; level < 2; level++)
		if (tlb->by_size[side][level][size])
			insert(tlb, tlb->by_size[side][level][size], va, size, key);
}

static void remove_way(struct tlb *tlb, struct assoc *array, size_t set, unsigned way)
{
	--*held_key(tlb, array->key[set + way]);
	assoc_remove(array, set, way);
}

void tlb_flush_page(struct tlb *tlb, uint64_t va, unsigned pcid, bool global)
{
	uint64_t context = KEY_VALID | (uint64_t)pcid << KEY_PCID_SHIFT;

	for (unsigned sizes = sizes_held(tlb, va); sizes; sizes &= sizes - 1) {
		enum page_size size = __builtin_ctz(sizes);
		uint64_t want = tlb_vpn(va, size) | tlb_size_key(size) | context;

		for (unsigned i = 0; i < tlb->arrays; i++) {
			struct assoc *array = &tlb->array[i];
			size_t set = array_set(array, va, size);

			for (unsigned way = array->ways; way-- > 0;) {
				uint64_t key = array->key[set + way];

				if (key_matches(key, want) && (global || !(key & KEY_GLOBAL)))
					remove_way(tlb, array, set, way);
			}
		}
	}
}

/* Removes every key with (key & mask) == want. */
static void flush_matching(struct tlb *tlb, uint64_t mask, uint64_t want)
{
	for (unsigned i = 0; i < tlb->arrays; i++) {
		struct assoc *array = &tlb->array[i];

		for (size_t index = assoc_entries(array); index-- > 0;) {
			unsigned way = index % array->ways;

			if ((array->key[index] & mask) == want)
				remove_way(tlb, array, index - way, way);
		}
	}
}

void tlb_flush_pcid(struct tlb *tlb, unsigned pcid)
{
	flush_matching(tlb, KEY_VALID | KEY_GLOBAL | KEY_PCID,
		       KEY_VALID | (uint64_t)pcid << KEY_PCID_SHIFT);
}

void tlb_flush_non_global(struct tlb *tlb)
{
	flush_matching(tlb, KEY_VALID | KEY_GLOBAL, KEY_VALID);
}

void tlb_flush_all(struct tlb *tlb)
{
	flush_matching(tlb, KEY_VALID, KEY_VALID);
}
