// SPDX-License-Identifier: BSD-2-Clause
#include "board.h"

#include <assert.h>
#include <string.h>

static void start(void *context)
{
	struct board *board = context;

	assert(!board->recording);
	board->recording = true;
	board->starts++;
}

static void stop(void *context)
{
	struct board *board = context;

	assert(board->recording);
	board->recording = false;
	board->stops++;
}

static void flush(void *context)
{
	((struct board *)context)->flushes++;
}

static bool drained(void *context)
{
	struct board *board = context;

	assert(!board->recording);
	return !board->undrained || !board->undrained--;
}

static uint64_t blocks(void *context)
{
	return ((struct board *)context)->blocks;
}

static void set_trigger(void *context, uint32_t set)
{
	assert(!((struct board *)context)->recording);
	((struct board *)context)->trigger = set;
}

static void set_sample(void *context, uint32_t one_in)
{
	assert(!((struct board *)context)->recording);
	((struct board *)context)->sample = one_in;
}

static void set_window(void *context, unsigned int index, struct ptat_proto_window window)
{
	assert(index < PTAT_PROTO_WINDOWS_MAX);
	((struct board *)context)->windows[index] = window;
}

static void set_mirror(void *context, uint32_t ranks)
{
	assert(!((struct board *)context)->recording);
	((struct board *)context)->mirror = ranks;
}

static void set_mapped(void *context, bool mapped)
{
	((struct board *)context)->mapped = mapped;
}

static void set_table(void *context, unsigned int index, uint64_t value)
{
	struct board *board = context;

	assert(index < sizeof(board->table) / sizeof(*board->table));
	board->mapped_while_written |= board->mapped;
	board->table[index] = value;
}

static void set_remap(void *context, uint32_t first_mib, uint32_t offset_mib)
{
	struct board *board = context;

	board->mapped_while_written |= board->mapped;
	board->remap[0] = first_mib;
	board->remap[1] = offset_mib;
}

static void set_delay(void *context, unsigned int pin, unsigned int tap)
{
	assert(pin < BOARD_PINS && tap < BOARD_TAPS);
	((struct board *)context)->pins[pin].delay = tap;
}

static struct bus_sample sample_bus(void *context)
{
	struct board *board = context;
	struct bus_sample sample = { .commands = board->busy_bus ? 1000 : 0 };

	for (int i = 0; i < BOARD_PINS && board->busy_bus; i++) {
		bool right = board->pins[i].delay >= board->pins[i].begin &&
			     board->pins[i].delay < board->pins[i].end;

		sample.illegal += board->pins[i].checked && !right ? 100 : 0;
	}
	return sample;
}

static void health(void *context, struct ptat_proto_health *health)
{
	struct board *board = context;

	health->fill_bytes = 8192;
	health->blocks = board->blocks;
	health->illegal[3] = 33;
}

static uint32_t now_ms(void *context)
{
	return ((struct board *)context)->now_ms;
}

void board_init(struct board *board)
{
	memset(board, 0, sizeof(*board));
	board->busy_bus = true;
	for (int i = 0; i < BOARD_PINS; i++) {
		board->pins[i].begin = 8 + i;
		board->pins[i].end = 20 + i;
		board->pins[i].checked = true;
	}
	board->hw = (struct hardware){
		.context = board,
		.start = start,
		.stop = stop,
		.flush = flush,
		.drained = drained,
		.blocks = blocks,
		.set_trigger = set_trigger,
		.set_sample = set_sample,
		.set_window = set_window,
		.table_slice_bits = BOARD_SLICE_BITS,
		.set_mirror = set_mirror,
		.set_mapped = set_mapped,
		.set_table = set_table,
		.set_remap = set_remap,
		.pins = BOARD_PINS,
		.taps = BOARD_TAPS,
		.set_delay = set_delay,
		.sample_bus = sample_bus,
		.health = health,
		.now_ms = now_ms,
	};
}
