// SPDX-License-Identifier: BSD-2-Clause
/* Frames of the command protocol: docs/protocol.md. */
#ifndef PTAT_FRAME_H
#define PTAT_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ptat_protocol.h"

/* Finds frames in a stream of bytes. Zero-initialise. */
struct frame_reader {
	uint8_t data[PTAT_PROTO_FRAME_BYTES_MAX];
	size_t size;
	uint32_t skipped; /* bytes that were part of no frame, saturating */
};

/* As zlib's: `crc` is 0 at first, then what the call before returned. */
uint32_t frame_crc(uint32_t crc, const void *data, size_t size);

/* Size of the valid frame that `data` begins with, or 0. */
size_t frame_check(const void *data, size_t size);

/* Writes a frame around `payload`, completing `header`; returns its size. */
size_t frame_write(void *frame, struct ptat_proto_header header, const void *payload);

/*
 * Takes one byte. Where that completes a frame, copies it to `frame`, which has
 * room for FRAME_BYTES_MAX, and returns its size, else 0.
 */
size_t frame_read(struct frame_reader *reader, uint8_t byte, void *frame);

#endif
