/* SPDX-License-Identifier: BSD-2-Clause */
/* The TSC, and the clock that the kernel keeps by it. */
#ifndef PTAT_CLOCK_H
#define PTAT_CLOCK_H

#include <stdint.h>
#include <time.h>
#include <x86intrin.h>

#define CLOCK_TRIES 32

struct moment {
	uint64_t tsc, ns;
};

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Both clocks at one moment: the try that nothing came between. */
static inline struct moment both_clocks(void)
{
	struct moment found = { 0 };
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < CLOCK_TRIES; i++) {
		uint64_t before = __rdtsc(), ns = now_ns(), took = __rdtsc() - before;

		if (took < least) {
			least = took;
			found = (struct moment){ before + took / 2, ns };
		}
	}
	return found;
}

#endif
