/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prints the frequency of this machine's TSC in kHz.
 *
 * It runs beside QEMU, whose TCG gives a guest this machine's TSC.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define TRIES	    16
#define INTERVAL_US 50000

struct moment {
	uint64_t tsc;
	int64_t ns;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Both clocks at one moment: the try that nothing came between. */
static struct moment both(void)
{
	struct moment found = { 0 };
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < TRIES; i++) {
		uint64_t before = __rdtsc();
		int64_t ns = now_ns();
		uint64_t took = __rdtsc() - before;

		if (took < least) {
			least = took;
			found = (struct moment){ before + took / 2, ns };
		}
	}
	return found;
}

int main(void)
{
	struct moment first = both(), last;

	usleep(INTERVAL_US);
	last = both();
	printf("%.0f\n", (double)(last.tsc - first.tsc) * 1e6 / (double)(last.ns - first.ns));
	return 0;
}
