// SPDX-License-Identifier: BSD-2-Clause
#ifndef PTAT_SELFTEST_H
#define PTAT_SELFTEST_H

#include <stdbool.h>

#include "hardware.h"

enum selftest {
	SELFTEST_PASSED,
	SELFTEST_NO_CLOCK, /* the bus has no clock: nothing can be said */
	SELFTEST_FAILED,
};

/*
 * Puts commands of our own on the way from the pins to the front end, and compares
 * what comes out of the buffer, memory included. Leaves the board without a mapping.
 */
enum selftest selftest_loopback(const struct hardware *hw);

#endif
