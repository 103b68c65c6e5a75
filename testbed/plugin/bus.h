/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The memory bus as a capture device sees it: a writer of the capture stream of
 * docs/formats.md, optionally behind a capture FIFO that can overflow.
 *
 * Times are in ns of the caller's clock; each record is moved on by at least one, so that times
 * are strictly increasing. Not thread-safe: the caller has the one lock.
 */
#ifndef PTAT_BUS_H
#define PTAT_BUS_H

#include <stdbool.h>

#include "outfile.h"
#include "ptat_wire.h"

struct bus {
	struct outfile out;
	uint64_t block[PTAT_WIRE_BLOCK_WORDS];
	unsigned words;	       /* used in block; 0: no block is open */
	uint32_t seq;	       /* of the next block */
	uint64_t last_time_ns; /* of the last tick */
	uint64_t record_ns;    /* of the last record in the block */
	uint64_t address_mask; /* what the bus shows of an address */

	uint64_t pending_lost;	   /* accesses to report in the next LOST record */
	uint64_t lost;		   /* accesses that will not be in the file */
	uint64_t unsaved_accesses; /* in memory only: gone if the next write fails */
	uint64_t unsaved_lost;	   /* the same, reported by LOST records */

	/* FIFO model; a size of 0 is a FIFO that never fills. */
	double fifo_records;
	double fifo_drain_per_ns;
	double fifo_level;
	uint64_t fifo_time_ns;
	bool fifo_overflow;
};

/* 0, or -1 after a message on stderr. @path must outlive the bus. */
int bus_open(struct bus *bus, const char *path, unsigned granularity_bytes);

/* Limits the FIFO to @records, emptied at @drain_per_s. */
void bus_set_fifo(struct bus *bus, unsigned records, unsigned drain_per_s);

/* A time of its own for something that is not on the bus. */
uint64_t bus_tick(struct bus *bus, uint64_t now_ns);

/* One access; returns its time, whether or not the FIFO had room for it. */
uint64_t bus_access(struct bus *bus, uint64_t pa, bool write, uint64_t now_ns);
void bus_mark(struct bus *bus, unsigned code, uint32_t argument, uint64_t now_ns);

/* Puts everything into the file; the last block may be partly empty. */
void bus_flush(struct bus *bus);
void bus_close(struct bus *bus);

#endif
