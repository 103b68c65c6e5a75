/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which part of a program is measured. The environment says by whom:
 *
 * PTAT_SNAPSHOT=N      the testbed: a NOP that its plugin knows, with N in RAX at the begin and
 *                      N + 1 at the end (docs/formats.md)
 * PTAT_PERF=CTL,ACK    perf stat -D -1 --control fd:CTL,ACK: descriptors of two pipes
 */
#ifndef PTAT_COUNTED_H
#define PTAT_COUNTED_H

#include "workload.h"

#include <unistd.h>

static inline void tell_perf(const char *what)
{
	static const char expected[] = "ack\n"; /* perf sends its NUL, too */
	const char *descriptors = getenv("PTAT_PERF");
	char answer[sizeof(expected)] = "";
	int control, acknowledge;

	if (!descriptors)
		return;
	if (sscanf(descriptors, "%d,%d", &control, &acknowledge) != 2)
		fail("PTAT_PERF=%s: expected two descriptors", descriptors);
	if (dprintf(control, "%s\n", what) < 0 ||
	    read(acknowledge, answer, sizeof(answer)) < (ssize_t)strlen(expected) ||
	    strncmp(answer, expected, strlen(expected)))
		fail("perf does not answer to '%s'", what);
}

static inline void take_snapshot(unsigned int which)
{
	const char *first = getenv("PTAT_SNAPSHOT");

	if (first)
		asm volatile(".byte 0x0f,0x1f,0x80,0x03,0x00,0x54,0x50"
			     :
			     : "a"(strtoull(first, NULL, 10) + which)
			     : "memory");
}

static inline double counted_begin(void)
{
	tell_perf("enable");
	take_snapshot(0);
	return seconds_now();
}

/* Returns the seconds since counted_begin() returned @begin. */
static inline double counted_end(double begin)
{
	double seconds = seconds_now() - begin;

	take_snapshot(1);
	tell_perf("disable");
	return seconds;
}

/* Not a constant, and no line like the one before it. */
static inline void fill_random(void *buffer, uint64_t bytes)
{
	uint64_t state = 1;

	for (uint64_t i = 0; i < bytes; i++)
		((char *)buffer)[i] = '0' + random_below(&state, 64);
}

#endif /* PTAT_COUNTED_H */
