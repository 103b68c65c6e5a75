// SPDX-License-Identifier: BSD-2-Clause
/* Capture control: commands in, responses out, whatever link they come by. */
#ifndef PTAT_CONTROL_H
#define PTAT_CONTROL_H

#include <stddef.h>

#include "calibrate.h"
#include "hardware.h"

struct control {
	const struct hardware *hw;
	struct ptat_proto_identity identity;
	struct eyes eyes;

	uint32_t state; /* PTAT_PROTO_STATE_… */
	uint32_t owner; /* the host that the recording belongs to */
	uint32_t heard_ms;
	struct ptat_proto_stopped stopped; /* of the last recording */
	uint32_t malformed;		   /* frames that were dropped, saturating */
};

/* `identity.state` is ignored. */
void control_init(struct control *control, const struct hardware *hw,
		  const struct ptat_proto_identity *identity);

/*
 * Answers one request. `response` has room for FRAME_BYTES_MAX; returns its size,
 * 0 if there is nothing to answer.
 */
size_t control_handle(struct control *control, const void *request, size_t size, void *response);

/* Writes the tables of an address mapping. */
void control_load_matrix(const struct hardware *hw, const struct ptat_proto_matrix *matrix);

/* To be called often: ends a recording whose host is gone. */
void control_poll(struct control *control);

#endif
