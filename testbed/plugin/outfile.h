/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An output file of fixed-size records with a large buffer. When the disk is full the buffered
 * records are dropped, the file stays a whole number of records and later writes are tried
 * again; the caller counts what was dropped.
 */
#ifndef PTAT_OUTFILE_H
#define PTAT_OUTFILE_H

#include <stddef.h>
#include <stdint.h>

enum outfile_state {
	OUTFILE_BUFFERED, /* in memory */
	OUTFILE_WRITTEN,  /* everything so far is in the file */
	OUTFILE_DROPPED,  /* everything since the last OUTFILE_WRITTEN is gone */
};

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
enum outfile_state outfile_write(struct outfile *out, const void *record, size_t record_bytes);
enum outfile_state outfile_flush(struct outfile *out);
enum outfile_state outfile_close(struct outfile *out);

#endif
