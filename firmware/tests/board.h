// SPDX-License-Identifier: BSD-2-Clause
/* A board of variables, for tests. */
#ifndef PTAT_TEST_BOARD_H
#define PTAT_TEST_BOARD_H

#include "../hardware.h"

#define BOARD_SLICE_BITS 9
#define BOARD_TABLES	 ((PTAT_PROTO_MATRIX_COLUMNS + BOARD_SLICE_BITS - 1) / BOARD_SLICE_BITS)
#define BOARD_PINS	 5
#define BOARD_TAPS	 32

struct board {
	struct hardware hw;

	bool recording, mapped, mapped_while_written, busy_bus;
	unsigned int starts, stops, flushes;
	unsigned int undrained; /* so many more times drained() says no */
	uint64_t blocks;
	uint32_t trigger, sample, mirror, remap[2], now_ms;
	struct ptat_proto_window windows[PTAT_PROTO_WINDOWS_MAX];
	uint64_t table[BOARD_TABLES << BOARD_SLICE_BITS];

	/* A pin is captured right at the delays [begin, end); it is noticed if `checked`. */
	struct {
		unsigned int begin, end, delay;
		bool checked;
	} pins[BOARD_PINS];
};

void board_init(struct board *board);

#endif
