/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What libptat-heap.so tells the recorder of mappings: one datagram for each change.
 */
#ifndef PTAT_HEAP_H
#define PTAT_HEAP_H

#include <stdint.h>

#define PTAT_HEAP_MAGIC	 0x50544850
#define PTAT_HEAP_FRAMES 24

enum ptat_heap_kind {
	PTAT_HEAP_ALLOC, /* malloc and its kin */
	PTAT_HEAP_FREE,
	PTAT_HEAP_MAP, /* mmap */
	PTAT_HEAP_UNMAP,
};

struct ptat_heap_message {
	uint32_t magic;
	uint16_t kind;
	uint16_t frames; /* how many of `frame` follow */
	uint32_t pid;
	uint32_t unused;
	uint64_t tsc;
	uint64_t address;
	uint64_t bytes;
	uint64_t frame[PTAT_HEAP_FRAMES]; /* return addresses, the innermost first */
};

#endif /* PTAT_HEAP_H */
