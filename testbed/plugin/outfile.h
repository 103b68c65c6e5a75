/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An output file of records with a large buffer. When the disk is full the buffered records are
 * dropped, the file stays a whole number of records and later writes are tried again; the caller
 * counts what was dropped.
 */
#ifndef PTAT_OUTFILE_H
#define PTAT_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OUTFILE_BUFFER_BYTES (1u << 16)

struct outfile {
	const char *path;
	uint8_t *buffer;
	size_t used_bytes;
	uint64_t file_bytes;
	int fd;
	int reported; /* one message a file */
};

/* 0, or -1 after a message on stderr. @path must outlive the file. */
int outfile_open(struct outfile *out, const char *path);
/* False: it could not be written, and all that was put since the flush before is gone. */
bool outfile_flush(struct outfile *out);
bool outfile_close(struct outfile *out);

static inline bool outfile_has_room(const struct outfile *out, size_t bytes)
{
	return out->used_bytes + bytes <= OUTFILE_BUFFER_BYTES;
}

/* There must be room. */
static inline void outfile_put(struct outfile *out, const void *record, size_t bytes)
{
	memcpy(out->buffer + out->used_bytes, record, bytes);
	out->used_bytes += bytes;
}

#endif
