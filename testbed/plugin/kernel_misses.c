/* SPDX-License-Identifier: GPL-2.0 */
#include <stdlib.h>
#include <string.h>

#include "kernel_misses.h"
#include "ptat_kernel_misses.h"

#define ROOM_MIN 4096u

int kernel_misses_open(struct kernel_misses *misses, const char *path)
{
	uint64_t header = PTAT_KERNEL_MISSES_HEADER;

	memset(misses, 0, sizeof(*misses));
	if (gzout_open(&misses->out, path))
		return -1;
	if (path)
		gzout_put(&misses->out, &header, sizeof(header));
	return 0;
}

/* Where the place is in the table, or belongs. */
static struct kernel_place *find(const struct kernel_misses *misses, uint32_t caller,
				 uint64_t address)
{
	uint64_t hash = (address ^ (uint64_t)caller << 40) * UINT64_C(0x9e3779b97f4a7c15);
	uint32_t at = hash >> 32;

	for (;; at++) {
		struct kernel_place *place = &misses->place[at & (misses->room - 1)];

		if (!place->number || (place->caller == caller && place->address == address))
			return place;
	}
}

static void make_room(struct kernel_misses *misses)
{
	struct kernel_place *old = misses->place;
	uint32_t old_room = misses->room;

	misses->room = old_room ? 2 * old_room : ROOM_MIN;
	misses->place = calloc(misses->room, sizeof(*misses->place));
	if (!misses->place)
		abort();
	for (uint32_t i = 0; i < old_room; i++)
		if (old[i].number)
			*find(misses, old[i].caller, old[i].address) = old[i];
	free(old);
}

static uint32_t place_number(struct kernel_misses *misses, uint32_t caller, uint64_t address)
{
	struct ptat_kernel_place record = { .kind = PTAT_KERNEL_MISSES_PLACE };
	struct kernel_place *place;

	if (2 * misses->places >= misses->room)
		make_room(misses);
	place = find(misses, caller, address);
	if (place->number)
		return place->number;
	*place = (struct kernel_place){
		.caller = caller,
		.number = ++misses->places,
		.address = address,
	};
	record.place = place->number;
	record.caller = caller;
	record.address = address;
	gzout_put(&misses->out, &record, sizeof(record));
	return place->number;
}

/* The place of the innermost call. */
static uint32_t place_of(struct kernel_misses *misses, struct call_stack *stack)
{
	unsigned known = stack->depth;
	uint32_t caller;

	while (known && !stack->call[known - 1].place)
		known--;
	caller = known ? stack->call[known - 1].place : 0;
	for (unsigned i = known; i < stack->depth; i++) {
		caller = place_number(misses, caller, stack->call[i].address);
		stack->call[i].place = caller;
	}
	return caller;
}

void kernel_misses_put(struct kernel_misses *misses, const struct kernel_miss *miss)
{
	uint32_t caller = miss->stack ? place_of(misses, miss->stack) : 0;
	struct ptat_kernel_miss record = {
		.kind = PTAT_KERNEL_MISSES_MISS,
		.cause = miss->cause,
		.shift = miss->shift,
		.cpu = miss->cpu,
		.place = place_number(misses, caller, miss->address),
		.time = miss->time_ns,
		.va = miss->va,
		.pgd_pfn = miss->pgd_pfn,
	};

	if (gzout_put(&misses->out, &record, sizeof(record)))
		misses->count++;
	else
		misses->lost++;
}

void kernel_misses_close(struct kernel_misses *misses)
{
	struct ptat_kernel_end end = {
		.kind = PTAT_KERNEL_MISSES_END,
		.misses = misses->count,
	};

	if (!misses->out.file)
		return;
	gzout_put(&misses->out, &end, sizeof(end));
	gzout_close(&misses->out);
	free(misses->place);
	misses->place = NULL;
}
