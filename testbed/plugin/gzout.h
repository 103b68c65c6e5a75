/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A compressed output file. Once a piece of a gzip stream is missing, nothing after it can be
 * read: after a failure nothing more is written.
 */
#ifndef PTAT_GZOUT_H
#define PTAT_GZOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <zlib.h>

struct gzout {
	gzFile file; /* NULL: nothing is written */
	const char *path;
	bool failed;
};

/* 0, or -1 after a message on stderr. @path must outlive the file; NULL: nothing is written. */
int gzout_open(struct gzout *out, const char *path);
/* False: it could not be written, or something before it. The first time there is a message. */
bool gzout_put(struct gzout *out, const void *data, size_t bytes);
void gzout_close(struct gzout *out);

#endif
