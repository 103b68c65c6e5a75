/* SPDX-License-Identifier: GPL-2.0 */
#include <stdio.h>
#include <time.h>

#include "capture.h"

uint64_t capture_clock_ns(void)
{
	struct timespec now;

	/* Not slewed by NTP: the bus and the guest's TSC differ by a constant drift only. */
	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

int capture_open(struct capture *capture, const struct options *options,
		 const struct guest_ram *ram)
{
	size_t words = (options->region_size / 8 + 63) / 64;

	memset(capture, 0, sizeof(*capture));
	capture->options = options;
	capture->ram = ram;
	if (bus_open(&capture->bus, options->bus, options->granularity) ||
	    truth_open(&capture->truth, options->truth) ||
	    accesses_open(&capture->accesses, options->accesses) ||
	    kernel_misses_open(&capture->kernel_misses, options->kernel_misses))
		return -1;
	bus_set_fifo(&capture->bus, options->buffer, options->drain);
	capture->not_accessed = calloc(words, sizeof(uint64_t));
	capture->not_dirty = calloc(words, sizeof(uint64_t));
	if (!capture->not_accessed || !capture->not_dirty)
		abort();
	pthread_mutex_init(&capture->lock, NULL);
	return 0;
}

static void save(struct capture *capture)
{
	bus_flush(&capture->bus);
	truth_flush(&capture->truth);
	counters_write(&capture->counters, capture->options->model.name, capture->bus.lost,
		       capture->truth.lost, capture->options->counters);
}

static void set_active(struct capture *capture, bool active)
{
	__atomic_store_n(&capture->active, active, __ATOMIC_RELAXED);
}

void capture_start(struct capture *capture)
{
	pthread_mutex_lock(&capture->lock);
	if (!capture->closed) {
		bus_mark(&capture->bus, PTAT_WIRE_MARK_START, 0, capture_clock_ns());
		set_active(capture, true);
	}
	pthread_mutex_unlock(&capture->lock);
}

void capture_stop(struct capture *capture)
{
	pthread_mutex_lock(&capture->lock);
	if (capture->active) {
		set_active(capture, false);
		bus_mark(&capture->bus, PTAT_WIRE_MARK_STOP, 0, capture_clock_ns());
		save(capture);
	}
	pthread_mutex_unlock(&capture->lock);
}

void capture_snapshot(struct capture *capture, uint64_t label, const uint64_t instructions[MODES])
{
	pthread_mutex_lock(&capture->lock);
	if (!capture->closed)
		counters_snapshot(&capture->counters, label, capture_clock_ns(), instructions,
				  capture->options->snapshots);
	pthread_mutex_unlock(&capture->lock);
}

void capture_close(struct capture *capture)
{
	pthread_mutex_lock(&capture->lock);
	set_active(capture, false);
	capture->closed = true;
	save(capture);
	if (capture->bus.lost || capture->truth.lost)
		fprintf(stderr, "ptat plugin: %llu bus accesses and %llu truth records were lost\n",
			(unsigned long long)capture->bus.lost,
			(unsigned long long)capture->truth.lost);
	if (capture->accesses.lost)
		fprintf(stderr, "ptat plugin: %llu accesses were lost\n",
			(unsigned long long)capture->accesses.lost);
	if (capture->kernel_misses.lost)
		fprintf(stderr, "ptat plugin: %llu misses of kernel code were lost\n",
			(unsigned long long)capture->kernel_misses.lost);
	accesses_close(&capture->accesses);
	kernel_misses_close(&capture->kernel_misses);
	bus_close(&capture->bus);
	truth_close(&capture->truth);
	counters_free(&capture->counters);
	free(capture->not_accessed);
	free(capture->not_dirty);
	pthread_mutex_unlock(&capture->lock);
}

bool capture_begin(struct capture *capture)
{
	if (!__atomic_load_n(&capture->active, __ATOMIC_RELAXED))
		return false;
	pthread_mutex_lock(&capture->lock);
	if (capture->active)
		return true;
	pthread_mutex_unlock(&capture->lock);
	return false;
}

void capture_lock(struct capture *capture)
{
	pthread_mutex_lock(&capture->lock);
}

void capture_unlock(struct capture *capture)
{
	pthread_mutex_unlock(&capture->lock);
}

static void bit_assign(uint64_t *bits, uint64_t index, bool value)
{
	if (value)
		bits[index / 64] |= BIT_U64(index % 64);
	else
		bits[index / 64] &= ~BIT_U64(index % 64);
}

static bool bit_test(const uint64_t *bits, uint64_t index)
{
	return bits[index / 64] & BIT_U64(index % 64);
}

/* A CPU would have to write the entry to set its bits: the mirror must never leave that to it. */
static bool needs_hardware_write(const struct capture *capture, uint64_t pa, bool dirty)
{
	uint64_t slot = (pa - capture->options->region_base) / 8;

	return bit_test(capture->not_accessed, slot) ||
	       (dirty && bit_test(capture->not_dirty, slot));
}

/* Intel's WALK_COMPLETED may include walks that end in a fault; the model keeps them apart. */
static void add_walk(struct walks *walks, const struct walk_context *context,
		     const struct walk *walk)
{
	if (context->flags & PTAT_TRUTH_FLAG_FAULT) {
		walks->faulted[context->cause]++;
		return;
	}
	walks->completed[context->cause]++;
	if (walk->shift <= page_shift(PAGE_1G))
		walks->completed_size[context->cause][walk_page_size(walk)]++;
}

static enum mode mode_of(const struct walk_context *context, uint64_t va)
{
	/* The kernel runs no code at user addresses, nor the other way round. */
	if (context->cause == PTAT_TRUTH_CAUSE_FETCH)
		return is_user_address(va) ? MODE_USER : MODE_KERNEL;
	return context->flags & PTAT_TRUTH_FLAG_KERNEL_MODE ? MODE_KERNEL : MODE_USER;
}

static void count_walk(struct counters *counters, const struct walk_context *context,
		       const struct walk *walk)
{
	struct walks *walks = &counters_space(counters, context->pgd_pfn)->walks;

	if (context->flags & PTAT_TRUTH_FLAG_RACE)
		counters->races++;
	add_walk(walks, context, walk);
}

void capture_walk(struct capture *capture, const struct walk_context *context, uint64_t now_ns,
		  uint64_t va, const struct walk *walk)
{
	struct truth_walk record = {
		.va = va,
		.pgd_pfn = context->pgd_pfn,
		.shift = walk->shift,
		.cause = context->cause,
		.flags = context->flags,
		.cpu = context->cpu,
	};
	bool hardware_write = false;

	/* A walk's reads follow each other at once: on a 64-byte bus only that joins them. */
	for (int i = 0; i < walk->reads; i++) {
		uint64_t pa = walk->read[i];
		bool last = i == walk->reads - 1;
		bool dirty = last && walk->completed && context->cause == PTAT_TRUTH_CAUSE_STORE;

		if (!region_has(capture->options, pa))
			continue;
		record.time_ns = bus_access(&capture->bus, pa, false, now_ns);
		if (last) {
			record.flags |= PTAT_TRUTH_FLAG_LEAF_IN_REGION;
			capture->counters.walker_leaf_reads++;
		} else {
			record.flags |= PTAT_TRUTH_FLAG_PMD_IN_REGION;
			capture->counters.walker_pmd_reads++;
		}
		hardware_write |= needs_hardware_write(capture, pa, dirty);
	}
	capture->counters.walks_without_accessed_bit += hardware_write;
	add_walk(&capture->counters.mode[mode_of(context, va)], context, walk);
	if (!is_user_address(va))
		return;
	if (!(record.flags & PTAT_TRUTH_FLAG_LEAF_IN_REGION))
		record.time_ns = bus_tick(&capture->bus, now_ns);
	truth_put(&capture->truth, &record);
	count_walk(&capture->counters, context, walk);
}

static void note_entry(struct capture *capture, uint64_t pa)
{
	const uint64_t *slot = ram_entry(capture->ram, pa);
	uint64_t index = (pa - capture->options->region_base) / 8;
	uint64_t entry = __atomic_load_n(slot, __ATOMIC_RELAXED);
	bool present = entry & PTE_PRESENT;

	bit_assign(capture->not_accessed, index, present && !(entry & PTE_ACCESSED));
	bit_assign(capture->not_dirty, index, present && entry & PTE_WRITE && !(entry & PTE_DIRTY));
}

static void count_cpu_access(struct capture *capture, uint64_t pa, bool store, bool locked)
{
	struct counters *counters = &capture->counters;

	/* A locked operation loads and stores: it is counted once, at its load. */
	if (locked)
		counters->cpu_locked += !store;
	else if (!store)
		counters->cpu_loads++;
	else if (pa - capture->options->region_base < capture->options->marker_bytes)
		counters->cpu_marker_stores++;
	else
		counters->cpu_entry_stores++;
}

void capture_cpu_access(struct capture *capture, uint64_t pa, unsigned bytes, bool store,
			bool locked)
{
	uint64_t step = capture->options->granularity;
	uint64_t end = pa + bytes;
	bool counted = false;

	pthread_mutex_lock(&capture->lock);
	for (uint64_t at = pa & ~UINT64_C(7); store && !capture->closed && at < end; at += 8)
		if (region_has(capture->options, at) &&
		    at - capture->options->region_base >= capture->options->marker_bytes)
			note_entry(capture, at);

	for (uint64_t at = pa; capture->active && at < end; at = (at | (step - 1)) + 1) {
		if (!region_has(capture->options, at))
			continue;
		bus_access(&capture->bus, at, store, capture_clock_ns());
		if (!counted)
			count_cpu_access(capture, at, store, locked);
		counted = true;
	}
	pthread_mutex_unlock(&capture->lock);
}
