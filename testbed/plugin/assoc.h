/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A set-associative array of translations with true LRU replacement: each set is kept in order
 * of use, the most recent first and the empty ways last, so the victim is always the last way and
 * hot entries are found first.
 *
 * Keys are one word, so that a way is tested with one XOR. The TLBs keep everything in the key;
 * the paging-structure caches also have a value, the table an entry points to.
 */
#ifndef PTAT_ASSOC_H
#define PTAT_ASSOC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BIT_U64(n)	    (UINT64_C(1) << (n))
#define BITS_U64(high, low) ((~UINT64_C(0) >> (63 - (high))) & (~UINT64_C(0) << (low)))

#define KEY_VPN		    BITS_U64(35, 0) /* va 47:12, the page's own offset bits zero */
#define KEY_PCID	    BITS_U64(47, 36)
#define KEY_PCID_SHIFT	    36
#define KEY_SIZE	    BITS_U64(49, 48) /* enum page_size */
#define KEY_SIZE_SHIFT	    48
#define KEY_VALID	    BIT_U64(50)
#define KEY_GLOBAL	    BIT_U64(51) /* matches whatever the PCID */
#define KEY_STORE	    BIT_U64(52) /* writable and dirty: a store needs no new walk */
#define KEY_EXEC	    BIT_U64(53)
#define KEY_REGION	    BIT_U64(54) /* the page overlaps the region */

struct assoc {
	uint64_t *key;
	uint64_t *value; /* same shape as key, or NULL */
	uint32_t set_mask;
	uint32_t ways; /* 0: the array does not exist */
};

static inline bool key_matches(uint64_t key, uint64_t want)
{
	uint64_t diff = key ^ want;

	return !(diff & (KEY_VPN | KEY_SIZE | KEY_VALID)) &&
	       (!(diff & KEY_PCID) || key & KEY_GLOBAL);
}

/* Sizes are checked where they are read (options.c). */
static inline void assoc_init(struct assoc *a, unsigned entries, unsigned ways, bool values)
{
	memset(a, 0, sizeof(*a));
	if (!entries)
		return;
	a->ways = ways;
	a->set_mask = entries / ways - 1;
	a->key = calloc(entries, sizeof(*a->key));
	a->value = values ? calloc(entries, sizeof(*a->value)) : NULL;
	if (!a->key || (values && !a->value))
		abort();
}

static inline void assoc_free(struct assoc *a)
{
	free(a->key);
	free(a->value);
}

static inline size_t assoc_entries(const struct assoc *a)
{
	return (size_t)(a->set_mask + 1) * a->ways;
}

static inline size_t assoc_set(const struct assoc *a, uint64_t index)
{
	return (index & a->set_mask) * a->ways;
}

/* Way of @want in the set at @set, or -1. */
static inline int assoc_find(const struct assoc *a, size_t set, uint64_t want)
{
	for (unsigned way = 0; way < a->ways; way++)
		if (key_matches(a->key[set + way], want))
			return (int)way;
	return -1;
}

static inline void assoc_to_front(uint64_t *set, unsigned way, uint64_t first)
{
	memmove(set + 1, set, way * sizeof(*set));
	set[0] = first;
}

static inline void assoc_touch(struct assoc *a, size_t set, unsigned way)
{
	if (!way)
		return;
	assoc_to_front(a->key + set, way, a->key[set + way]);
	if (a->value)
		assoc_to_front(a->value + set, way, a->value[set + way]);
}

/* Returns the key that had to leave: an invalid one as long as the set has room. */
static inline uint64_t assoc_insert(struct assoc *a, size_t set, uint64_t key, uint64_t value)
{
	uint64_t victim = a->key[set + a->ways - 1];

	assoc_to_front(a->key + set, a->ways - 1, key);
	if (a->value)
		assoc_to_front(a->value + set, a->ways - 1, value);
	return victim;
}

/* Keeps room at the end of the set. */
static inline void assoc_remove(struct assoc *a, size_t set, unsigned way)
{
	unsigned last = a->ways - 1;

	memmove(a->key + set + way, a->key + set + way + 1, (last - way) * sizeof(*a->key));
	a->key[set + last] = 0;
	if (a->value)
		memmove(a->value + set + way, a->value + set + way + 1,
			(last - way) * sizeof(*a->value));
}

#endif
