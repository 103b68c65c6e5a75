// SPDX-License-Identifier: BSD-2-Clause
/* Prints the frequency of this machine's TSC in kHz. */
#include <stdio.h>
#include <unistd.h>

#include "clock.h"

#define INTERVAL_US 50000

int main(void)
{
	struct moment first = both_clocks(), last;

	usleep(INTERVAL_US);
	last = both_clocks();
	printf("%.0f\n", (double)(last.tsc - first.tsc) * 1e6 / (double)(last.ns - first.ns));
	return 0;
}
