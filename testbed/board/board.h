// SPDX-License-Identifier: BSD-2-Clause
/*
 * A board without hardware: the firmware's own logic, a capture stream that was
 * recorded earlier, and a link. It streams all of the file at each START,
 * however soon it has to stop.
 */
#ifndef PTAT_PRETEND_BOARD_H
#define PTAT_PRETEND_BOARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control.h"

#define BLOCK_BYTES 8192
#define NEVER	    SIZE_MAX

/* What goes wrong; block numbers, or NEVER. */
struct faults {
	size_t stall;		   /* USB: the endpoint halts in front of this block */
	size_t unplug;		   /* the board is gone in the middle of this block */
	size_t garbage;		   /* USB: bytes that are no block come in front of this one */
	size_t damage;		   /* this block has a wrong bit */
	size_t drop;		   /* this block is not sent */
	size_t twice;		   /* this block is sent twice */
	size_t lie;		   /* number of blocks by which it overstates what it sent */
	size_t slow_us;		   /* pause between blocks */
	size_t wire;		   /* the version of the stream that it says it sends */
	size_t channels;	   /* how many it says it has */
	bool is_short;		   /* USB: all transfers end early, and blocks are cut */
	size_t lose, repeat, swap; /* UDP: per 1,000 datagrams */
	size_t tail;		   /* UDP: how often the last datagram is lost */
	bool any_per_block;	   /* blocks must be sent one by one */
};

struct pretend {
	struct control control;
	struct hardware hw;
	struct faults faults;
	const uint8_t *data;
	size_t blocks;

	pthread_mutex_t lock; /* protects `control` and what follows */
	pthread_cond_t changed;
	unsigned int recording; /* number of the START that is being served */
	uint32_t host;
	bool all_sent;
};

/* Sends frames of the other end to the firmware's logic; locks. */
size_t pretend_handle(struct pretend *board, const void *request, size_t size, void *response);

/* They never return. */
void run_usb(struct pretend *board, const char *serial);
void run_udp(struct pretend *board, const char *port);

void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
