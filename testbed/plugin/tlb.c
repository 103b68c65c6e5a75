/* SPDX-License-Identifier: GPL-2.0 */
#include "tlb.h"

#define HELD_PER_ENTRY 8 /* enough for few of them to be shared */

static void array_init(struct tlb_array *array, const struct tlb_geometry *geometry)
{
	size_t counts = HELD_PER_ENTRY;

	assoc_init(&array->assoc, geometry->entries, geometry->ways, false);
	while (counts < HELD_PER_ENTRY * (size_t)geometry->entries)
		counts *= 2;
	array->held_mask = counts - 1;
	for (int size = 0; size < PAGE_SIZES; size++) {
		array->held[size] = calloc(counts, sizeof(*array->held[size]));
		if (!array->held[size])
			abort();
	}
}

static void array_free(struct tlb_array *array)
{
	assoc_free(&array->assoc);
	for (int size = 0; size < PAGE_SIZES; size++)
		free(array->held[size]);
}

void tlb_init(struct tlb *tlb, const struct cpu_model *model)
{
	memset(tlb, 0, sizeof(*tlb));
	while (tlb->arrays < TLB_ARRAYS_MAX && model->tlb[tlb->arrays].name) {
		const struct tlb_geometry *geometry = &model->tlb[tlb->arrays];
		struct tlb_array *array = &tlb->array[tlb->arrays++];

		array_init(array, geometry);
		for (int side = 0; side < TLB_SIDES; side++)
			for (int size = 0; size < PAGE_SIZES; size++)
				if (geometry->sides & BIT_U64(side) &&
				    geometry->sizes & BIT_U64(size))
					tlb->by_size[side][geometry->level - 1][size] = array;
	}

	for (int size = 0; size < PAGE_SIZES; size++) {
		static const uint64_t nothing;
		const struct tlb_array *array = tlb->by_size[TLB_DATA][0][size];

		tlb->fast[size].key = array ? array->assoc.key : &nothing;
		tlb->fast[size].set_mask = array ? array->assoc.set_mask : 0;
		tlb->fast[size].ways = array ? array->assoc.ways : 0;
	}
	tlb_set_pcid(tlb, 0);
}

void tlb_free(struct tlb *tlb)
{
	for (unsigned i = 0; i < tlb->arrays; i++)
		array_free(&tlb->array[i]);
}

void tlb_set_pcid(struct tlb *tlb, unsigned pcid)
{
	tlb->context = KEY_VALID | (uint64_t)pcid << KEY_PCID_SHIFT;
}

static size_t array_set(const struct tlb_array *array, uint64_t va, enum page_size size)
{
	return assoc_set(&array->assoc, (va & BITS_U64(47, 0)) >> page_shift(size));
}

static uint16_t *array_held(const struct tlb_array *array, uint64_t vpn, enum page_size size)
{
	return &array->held[size][vpn >> (9 * size) & array->held_mask];
}

static uint16_t *array_held_key(const struct tlb_array *array, uint64_t key)
{
	return array_held(array, key & KEY_VPN, (key & KEY_SIZE) >> KEY_SIZE_SHIFT);
}

static void array_insert(struct tlb_array *array, uint64_t va, enum page_size size, uint64_t key)
{
	uint64_t victim = assoc_insert(&array->assoc, array_set(array, va, size), key, 0);

	++*array_held_key(array, key);
	if (victim & KEY_VALID)
		--*array_held_key(array, victim);
}

/* Key found in one level, or 0. */
static uint64_t level_lookup(struct tlb *tlb, enum tlb_side side, int level, uint64_t va)
{
	for (int size = 0; size < PAGE_SIZES; size++) {
		struct tlb_array *array = tlb->by_size[side][level][size];
		size_t set;
		int way;

		if (!array || !*array_held(array, va >> 12, size))
			continue;
		set = array_set(array, va, size);
		way = assoc_find(&array->assoc, set,
				 tlb_vpn(va, size) | tlb_size_key(size) | tlb->context);
		if (way >= 0) {
			assoc_touch(&array->assoc, set, way);
			return array->assoc.key[set];
		}
	}
	return 0;
}

uint64_t tlb_lookup(struct tlb *tlb, enum tlb_side side, uint64_t va, uint64_t need)
{
	uint64_t key = level_lookup(tlb, side, 0, va);
	bool promote = false;

	if (!key) {
		key = level_lookup(tlb, side, 1, va);
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
			array_insert(tlb->by_size[side][0][size], va, size, key);
	}
	return key;
}

void tlb_fill(struct tlb *tlb, enum tlb_side side, uint64_t va, enum page_size size, uint64_t flags)
{
	uint64_t key = tlb_vpn(va, size) | tlb_size_key(size) | tlb->context | flags;

	for (int level = 0; level < 2; level++)
		if (tlb->by_size[side][level][size])
			array_insert(tlb->by_size[side][level][size], va, size, key);
}

static void array_remove(struct tlb_array *array, size_t set, unsigned way)
{
	--*array_held_key(array, array->assoc.key[set + way]);
	assoc_remove(&array->assoc, set, way);
}

void tlb_flush_page(struct tlb *tlb, uint64_t va, unsigned pcid, bool global)
{
	uint64_t context = KEY_VALID | (uint64_t)pcid << KEY_PCID_SHIFT;

	for (unsigned i = 0; i < tlb->arrays; i++) {
		struct tlb_array *array = &tlb->array[i];

		for (int size = 0; size < PAGE_SIZES; size++) {
			uint64_t want = tlb_vpn(va, size) | tlb_size_key(size) | context;
			size_t set = array_set(array, va, size);

			if (!*array_held(array, va >> 12, size))
				continue;
			for (unsigned way = array->assoc.ways; way-- > 0;) {
				uint64_t key = array->assoc.key[set + way];

				if (key_matches(key, want) && (global || !(key & KEY_GLOBAL)))
					array_remove(array, set, way);
			}
		}
	}
}

/* Removes every key with (key & mask) == want. */
static void flush_matching(struct tlb *tlb, uint64_t mask, uint64_t want)
{
	for (unsigned i = 0; i < tlb->arrays; i++) {
		struct tlb_array *array = &tlb->array[i];

		for (size_t index = assoc_entries(&array->assoc); index-- > 0;) {
			unsigned way = index % array->assoc.ways;

			if ((array->assoc.key[index] & mask) == want)
				array_remove(array, index - way, way);
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
