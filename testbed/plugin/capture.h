/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is recorded between START and STOP: the bus, the truth and the counters, which all vCPUs
 * share under one lock.
 */
#ifndef PTAT_CAPTURE_H
#define PTAT_CAPTURE_H

#include <pthread.h>

#include "accesses.h"
#include "bus.h"
#include "counters.h"
#include "kernel_misses.h"
#include "options.h"
#include "truth.h"
#include "walk.h"

struct capture {
	pthread_mutex_t lock;
	bool active; /* written under the lock; read without it as a hint */
	bool closed; /* QEMU is exiting; vCPUs may still run */

	const struct options *options;
	const struct guest_ram *ram;
	struct bus bus;
	struct truth truth;
	struct counters counters;
	struct accesses accesses;
	struct kernel_misses kernel_misses;

	/*
	 * One bit for each entry of the region, kept from boot on: stored by the kernel as present
	 * without ACCESSED, or as writable without DIRTY. QEMU's own walker would set them behind
	 * our back, so reading the entry at a walk does not tell.
	 */
	uint64_t *not_accessed;
	uint64_t *not_dirty;
};

/* Who walks. */
struct walk_context {
	uint32_t pgd_pfn;
	uint8_t cause; /* PTAT_TRUTH_CAUSE_* */
	uint8_t flags; /* PTAT_TRUTH_FLAG_* that the caller knows */
	uint8_t cpu;
};

/* 0, or -1 after a message on stderr. Keeps @options and @ram. */
int capture_open(struct capture *capture, const struct options *options,
		 const struct guest_ram *ram);

void capture_start(struct capture *capture);
void capture_stop(struct capture *capture);

/* What the counters say now, under a label of the guest's choice. */
void capture_snapshot(struct capture *capture, uint64_t label, const uint64_t instructions[MODES]);

/* Writes everything that is left, also if the guest never said STOP. */
void capture_close(struct capture *capture);

/* The clock of bus and truth. */
uint64_t capture_clock_ns(void);

void capture_lock(struct capture *capture);
void capture_unlock(struct capture *capture);

/* Takes the lock if recording. False: not recording, not locked. */
bool capture_begin(struct capture *capture);

/*
 * A walk at @now_ns, while recording and with the lock held, under which there may be several: its
 * reads of the region go on the bus, and if it was for a user address, it is written to the truth
 * and counted. The caller makes the walk itself under the lock, too, so that no other record comes
 * between what it saw and its reads.
 */
void capture_walk(struct capture *capture, const struct walk_context *context, uint64_t now_ns,
		  uint64_t va, const struct walk *walk);

/* A load or store by the CPU at a physical address range that overlaps the region. */
void capture_cpu_access(struct capture *capture, uint64_t pa, unsigned bytes, bool store,
			bool locked);

static inline bool region_has(const struct options *options, uint64_t pa)
{
	return pa - options->region_base < options->region_size;
}

static inline bool is_user_address(uint64_t va)
{
	return va < BIT_U64(47);
}

#endif
