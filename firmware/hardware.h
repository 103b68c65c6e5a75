// SPDX-License-Identifier: BSD-2-Clause
/* All that the firmware's logic knows of the board it runs on. */
#ifndef PTAT_HARDWARE_H
#define PTAT_HARDWARE_H

#include <stdbool.h>
#include <stdint.h>

#include "ptat_protocol.h"

/* What the front end saw while one delay was tried. */
struct bus_sample {
	uint32_t commands; /* in all */
	uint32_t illegal;  /* of them, those that the memory's protocol forbids */
};

struct hardware {
	void *context; /* first argument of each function */

	/* The recording. start() drops what an earlier one left. */
	void (*start)(void *context);
	void (*stop)(void *context);
	void (*flush)(void *context);
	/* After stop(): all that was captured has been given to the link. */
	bool (*drained)(void *context);
	/* Blocks given to the link since start(). */
	uint64_t (*blocks)(void *context);

	/* What is recorded. Only called while nothing is. */
	void (*set_trigger)(void *context, uint32_t set);
	void (*set_sample)(void *context, uint32_t one_in);
	void (*set_window)(void *context, unsigned int index, struct ptat_proto_window window);

	/* Ranks (a bit each) for which the controller swaps the pins of data commands. */
	void (*set_mirror)(void *context, uint32_t ranks);

	/*
	 * Address mapping: value number `index` of the tables, then the remapping.
	 * set_mapped(false) comes before the first change, set_mapped(true) after the last.
	 */
	unsigned int table_slice_bits; /* bits of the coordinate that one table looks up */
	void (*set_mapped)(void *context, bool mapped);
	void (*set_table)(void *context, unsigned int index, uint64_t value);
	void (*set_remap)(void *context, uint32_t first_mib, uint32_t offset_mib);

	/* Capture delays: `taps` of them on each of `pins`. */
	unsigned int pins, taps;
	void (*set_delay)(void *context, unsigned int pin, unsigned int tap);
	/* Watches the bus for long enough to judge the delays that are set. */
	struct bus_sample (*sample_bus)(void *context);

	/* Fills all but `state`. */
	void (*health)(void *context, struct ptat_proto_health *health);
	/* Wraps. */
	uint32_t (*now_ms)(void *context);
};

#endif
