/* SPDX-License-Identifier: GPL-2.0 */
#include <string.h>
#include <zlib.h>

#include "bus.h"

int bus_open(struct bus *bus, const char *path, unsigned granularity_bytes)
{
	memset(bus, 0, sizeof(*bus));
	bus->address_mask = ~(uint64_t)(granularity_bytes - 1);
	return outfile_open(&bus->out, path);
}

void bus_set_fifo(struct bus *bus, unsigned records, unsigned drain_per_s)
{
	bus->fifo_records = records;
	bus->fifo_drain_per_ns = drain_per_s / 1e9;
}

static void save(struct bus *bus)
{
	if (!outfile_flush(&bus->out)) {
		bus->lost += bus->unsaved_accesses;
		bus->pending_lost += bus->unsaved_accesses + bus->unsaved_lost;
	}
	bus->unsaved_accesses = 0;
	bus->unsaved_lost = 0;
}

static void block_close(struct bus *bus)
{
	unsigned records = bus->words - PTAT_WIRE_WORD_FIRST_RECORD;
	uint32_t crc;

	memset(bus->block + bus->words, 0, (PTAT_WIRE_WORD_CHECK - bus->words) * 8);
	crc = crc32(0, (const Bytef *)bus->block, PTAT_WIRE_WORD_CHECK * 8);
	bus->block[PTAT_WIRE_WORD_CHECK] = PTAT_WIRE_CHECK(records, crc);
	bus->words = 0;
	outfile_put(&bus->out, bus->block, PTAT_WIRE_BLOCK_BYTES);
	if (!outfile_has_room(&bus->out, PTAT_WIRE_BLOCK_BYTES))
		save(bus);
}

/*
 * Makes room for one record at @time_ns whose time field has @delta_bits, and returns its delta.
 * Where that would overflow, absolute time goes first: as a TIME record or as a new block.
 */
static uint64_t record_start(struct bus *bus, uint64_t time_ns, unsigned delta_bits)
{
	bool far = bus->words && time_ns - bus->record_ns > PTAT_WIRE_MASK(delta_bits);
	uint64_t delta;

	if (bus->words && bus->words + far >= PTAT_WIRE_WORD_CHECK)
		block_close(bus);
	if (!bus->words) {
		bus->block[PTAT_WIRE_WORD_HEADER] = PTAT_WIRE_HEADER(0, bus->seq++);
		bus->block[PTAT_WIRE_WORD_TIME] = time_ns;
		bus->words = PTAT_WIRE_WORD_FIRST_RECORD;
		bus->record_ns = time_ns;
	} else if (far) {
		bus->block[bus->words++] = PTAT_WIRE_TIME(time_ns);
		bus->record_ns = time_ns;
	}
	delta = time_ns - bus->record_ns;
	bus->record_ns = time_ns;
	return delta;
}

static void put_lost(struct bus *bus, uint64_t now_ns)
{
	uint64_t delta;

	/*
	 * Starting the record may close a block, fail to write it and add to what is pending; so
	 * the count is taken after.
	 */
	if (!bus->pending_lost)
		return;
	delta = record_start(bus, bus_tick(bus, now_ns), PTAT_WIRE_EVENT_DELTA_BITS);
	bus->block[bus->words++] = PTAT_WIRE_LOST(delta, bus->pending_lost);
	bus->unsaved_lost += bus->pending_lost;
	bus->pending_lost = 0;
}

/*
 * True if the FIFO takes one more record. After an overflow it takes none until it is half
 * empty: else LOST records would fill each slot that becomes free.
 */
static bool fifo_push(struct bus *bus, uint64_t time_ns)
{
	if (!bus->fifo_records)
		return true;
	bus->fifo_level -= (double)(time_ns - bus->fifo_time_ns) * bus->fifo_drain_per_ns;
	bus->fifo_time_ns = time_ns;
	if (bus->fifo_level < 0)
		bus->fifo_level = 0;
	if (bus->fifo_overflow)
		bus->fifo_overflow = bus->fifo_level > bus->fifo_records / 2;
	else
		bus->fifo_overflow = bus->fifo_level + 1 > bus->fifo_records;
	if (bus->fifo_overflow)
		return false;
	bus->fifo_level += 1;
	return true;
}

uint64_t bus_tick(struct bus *bus, uint64_t now_ns)
{
	bus->last_time_ns = now_ns > bus->last_time_ns ? now_ns : bus->last_time_ns + 1;
	return bus->last_time_ns;
}

uint64_t bus_access(struct bus *bus, uint64_t pa, bool write, uint64_t now_ns)
{
	uint64_t time_ns, delta;

	if (!fifo_push(bus, now_ns)) {
		bus->lost++;
		bus->pending_lost++;
		return bus_tick(bus, now_ns);
	}
	put_lost(bus, now_ns);
	time_ns = bus_tick(bus, now_ns);
	delta = record_start(bus, time_ns, PTAT_WIRE_ACCESS_DELTA_BITS);
	bus->block[bus->words++] = PTAT_WIRE_ACCESS(write, delta, pa & bus->address_mask);
	bus->unsaved_accesses++;
	return time_ns;
}

void bus_mark(struct bus *bus, unsigned code, uint32_t argument, uint64_t now_ns)
{
	uint64_t delta;

	put_lost(bus, now_ns);
	delta = record_start(bus, bus_tick(bus, now_ns), PTAT_WIRE_EVENT_DELTA_BITS);
	bus->block[bus->words++] = PTAT_WIRE_MARK(delta, code, argument);
}

void bus_flush(struct bus *bus)
{
	put_lost(bus, bus->last_time_ns);
	if (bus->words)
		block_close(bus);
	save(bus);
}

void bus_close(struct bus *bus)
{
	bus_flush(bus);
	outfile_close(&bus->out);
}
