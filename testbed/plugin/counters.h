/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What hardware counters would say: page walks of each address space (CR3), by cause and page
 * size; and what touched the region while capturing.
 */
#ifndef PTAT_COUNTERS_H
#define PTAT_COUNTERS_H

#include "ptat_truth.h"
#include "tlb.h"

#define CAUSES 3 /* PTAT_TRUTH_CAUSE_* */

struct walks {
	uint64_t completed[CAUSES];
	uint64_t completed_size[CAUSES][PAGE_SIZES];
	uint64_t faulted[CAUSES];
};

struct address_space {
	struct address_space *next;
	uint32_t pgd_pfn;
	struct walks walks;
};

enum mode { MODE_USER, MODE_KERNEL, MODES };

struct counters {
	struct address_space *spaces; /* walks for user addresses */
	struct walks mode[MODES];     /* walks for any address, by the mode that took them */
	uint64_t walker_leaf_reads;
	uint64_t walker_pmd_reads;
	uint64_t cpu_loads;
	uint64_t cpu_locked;
	uint64_t cpu_entry_stores;
	uint64_t cpu_marker_stores;
	uint64_t walks_without_accessed_bit;
	uint64_t races;
};

/* The counts of one address space; made at the first call. The pointer stays valid. */
struct address_space *counters_space(struct counters *counters, uint32_t pgd_pfn);

/* Writes counters.json (docs/formats.md). 0, or -1 after a message on stderr. */
int counters_write(const struct counters *counters, const char *model, uint64_t bus_lost,
		   uint64_t truth_lost, const char *path);

/*
 * Adds a line to snapshots.jsonl (docs/formats.md), for readers while the guest runs. 0, or
 * -1 after a message on stderr. @instructions: executed so far.
 */
int counters_snapshot(const struct counters *counters, uint64_t label, uint64_t time_ns,
		      const uint64_t instructions[MODES], const char *path);

void counters_free(struct counters *counters);

#endif
