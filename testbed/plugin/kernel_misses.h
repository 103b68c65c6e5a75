/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Writer of kernel_misses.bin.gz: each miss of kernel code, with the chain of calls that led
 * there. Chains are a tree, of which each node is written once.
 */
#ifndef PTAT_KERNEL_MISS_WRITER_H
#define PTAT_KERNEL_MISS_WRITER_H

#include "calls.h"
#include "gzout.h"

struct kernel_place {
	uint32_t caller;
	uint32_t number; /* 0: free */
	uint64_t address;
};

struct kernel_misses {
	struct gzout out;
	uint64_t count, lost;

	/* Hash table of what is in the file. */
	struct kernel_place *place;
	uint32_t places, room;
};

struct kernel_miss {
	uint64_t time_ns;
	uint64_t va;
	uint64_t pgd_pfn;
	uint64_t address;	  /* of the instruction */
	struct call_stack *stack; /* NULL: none is known */
	uint8_t cause;		  /* PTAT_TRUTH_CAUSE_* */
	uint8_t shift;
	uint8_t cpu;
};

/* 0, or -1 after a message on stderr. @path must outlive it; NULL: nothing is written. */
int kernel_misses_open(struct kernel_misses *misses, const char *path);
void kernel_misses_put(struct kernel_misses *misses, const struct kernel_miss *miss);

/* Adds what says that the file is whole, if it is. */
void kernel_misses_close(struct kernel_misses *misses);

#endif
