/* SPDX-License-Identifier: GPL-2.0 */
#include "walk.h"

#define FOUR_GIB BIT_U64(32)
#define GRANTS	 (PTE_WRITE | PTE_USER | PTE_NX)

const uint64_t *ram_entry(const struct guest_ram *ram, uint64_t pa)
{
	uint64_t offset = pa & ~UINT64_C(7);

	if (offset >= FOUR_GIB)
		offset = offset - FOUR_GIB + ram->lowmem_bytes;
	else if (offset >= ram->lowmem_bytes)
		return NULL;
	if (offset >= ram->size_bytes)
		return NULL;
	return (const uint64_t *)(ram->base + offset);
}

void psc_init(struct psc *psc, const struct cpu_model *model)
{
	for (int i = 0; i < PSC_LEVELS; i++)
		assoc_init(&psc->level[i], model->psc[i].entries, model->psc[i].ways, true);
}

void psc_free(struct psc *psc)
{
	for (int i = 0; i < PSC_LEVELS; i++)
		assoc_free(&psc->level[i]);
}

static void psc_flush_matching(struct psc *psc, uint64_t mask, uint64_t want)
{
	for (int i = 0; i < PSC_LEVELS; i++) {
		struct assoc *cache = &psc->level[i];

		for (size_t index = assoc_entries(cache); index-- > 0;) {
			unsigned way = index % cache->ways;

			if ((cache->key[index] & mask) == want)
				assoc_remove(cache, index - way, way);
		}
	}
}

void psc_flush_pcid(struct psc *psc, unsigned pcid)
{
	psc_flush_matching(psc, KEY_VALID | KEY_PCID, KEY_VALID | (uint64_t)pcid << KEY_PCID_SHIFT);
}

void psc_flush_all(struct psc *psc)
{
	psc_flush_matching(psc, KEY_VALID, KEY_VALID);
}

/* An entry of psc->level[i] covers 2^(21 + 9 i) bytes. */
static unsigned psc_shift(int level)
{
	return 21 + 9 * level;
}

static uint64_t psc_key(uint64_t va, unsigned shift, uint64_t context)
{
	return (va & BITS_U64(47, 0)) >> shift | context;
}

void psc_flush_address(struct psc *psc, uint64_t va, uint64_t context)
{
	for (int i = 0; i < PSC_LEVELS; i++) {
		struct assoc *cache = &psc->level[i];
		uint64_t key = psc_key(va, psc_shift(i), context);
		size_t set = assoc_set(cache, key & KEY_VPN);
		int way = assoc_find(cache, set, key);

		if (way >= 0)
			assoc_remove(cache, set, way);
	}
}

/* Table to go on from and its level's shift; the deepest cached entry wins. */
static unsigned psc_start(struct psc *psc, uint64_t va, uint64_t context, uint64_t *table,
			  uint64_t *grants)
{
	for (int i = 0; i < PSC_LEVELS; i++) {
		struct assoc *cache = &psc->level[i];
		uint64_t key = psc_key(va, psc_shift(i), context);
		size_t set = assoc_set(cache, key & KEY_VPN);
		int way = assoc_find(cache, set, key);

		if (way < 0)
			continue;
		assoc_touch(cache, set, way);
		*table = cache->value[set] & PTE_FRAME;
		*grants = cache->value[set] & GRANTS;
		return psc_shift(i) - 9;
	}
	return 39;
}

static void psc_insert(struct psc *psc, uint64_t va, uint64_t context, unsigned shift,
		       uint64_t value)
{
	struct assoc *cache = &psc->level[(shift - 21) / 9];
	uint64_t key = psc_key(va, shift, context);

	if (cache->ways)
		assoc_insert(cache, assoc_set(cache, key & KEY_VPN), key, value);
}

void walk_tables(const struct guest_ram *ram, struct psc *psc, uint64_t root, uint64_t context,
		 uint64_t va, struct walk *walk)
{
	uint64_t table = root & PTE_FRAME;
	uint64_t grants = GRANTS;
	unsigned shift = 39;

	if (psc)
		shift = psc_start(psc, va, context, &table, &grants);
	walk->reads = 0;
	walk->entry = 0;
	walk->completed = false;

	for (;; shift -= 9) {
		uint64_t pa = table + (va >> shift & 511) * 8;
		const uint64_t *slot = ram_entry(ram, pa);
		uint64_t entry;

		walk->shift = shift;
		walk->grants = grants;
		if (!slot)
			return;
		/* Another vCPU may be writing it. */
		entry = __atomic_load_n(slot, __ATOMIC_RELAXED);
		walk->read[walk->reads++] = pa;
		walk->entry = entry;
		if (!(entry & PTE_PRESENT))
			return;
		grants &= entry ^ PTE_NX;
		walk->grants = grants;
		if (shift == 12 || entry & PTE_LARGE) {
			walk->completed = shift < 39; /* reserved in a PML4E */
			return;
		}
		table = entry & PTE_FRAME;
		if (psc)
			psc_insert(psc, va, context, shift, table | grants);
	}
}
