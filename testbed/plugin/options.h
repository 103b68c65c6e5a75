/* SPDX-License-Identifier: GPL-2.0 */
/* The plugin's arguments: key=value, as QEMU passes them. */
#ifndef PTAT_OPTIONS_H
#define PTAT_OPTIONS_H

#include "tlb.h"

struct options {
	uint64_t region_base;
	uint64_t region_size;  /* bytes */
	uint64_t marker_bytes; /* of the region's start: stores there are markers */
	char *ram;	       /* file that is the guest's RAM */
	uint64_t ram_size;     /* bytes */
	uint64_t lowmem;       /* bytes of RAM below 4 GiB */
	uint64_t pf_entry;     /* virtual address of the guest's page fault handler */
	char *bus;	       /* output files */
	char *truth;
	char *counters;
	char *accesses;	      /* NULL: not written */
	char *kernel_misses;  /* NULL: not written */
	uint64_t entry_begin; /* where the kernel's entry code lies, for kernel_misses */
	uint64_t entry_end;
	char *snapshots;      /* NULL: not written, and no instructions counted */
	uint64_t granularity; /* bytes of a bus address */
	uint64_t buffer;      /* records of the capture FIFO; 0: never full */
	uint64_t drain;	      /* records per second that leave it */
	struct cpu_model model;
};

/* 0, or -1 after a message on stderr. Splits the strings of @argv in place. */
int options_parse(struct options *options, int argc, char **argv);

#endif
