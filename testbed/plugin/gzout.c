/* SPDX-License-Identifier: GPL-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gzout.h"

#define BUFFER_BYTES (1u << 18)

int gzout_open(struct gzout *out, const char *path)
{
	memset(out, 0, sizeof(*out));
	if (!path)
		return 0;
	out->path = path;
	out->file = gzopen(path, "wbe1");
	if (!out->file) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	gzbuffer(out->file, BUFFER_BYTES);
	return 0;
}

bool gzout_put(struct gzout *out, const void *data, size_t bytes)
{
	if (!out->failed && gzwrite(out->file, data, bytes) != (int)bytes) {
		fprintf(stderr, "ptat plugin: %s: %s; records are being lost\n", out->path,
			errno ? strerror(errno) : "cannot write");
		out->failed = true;
	}
	return !out->failed;
}

void gzout_close(struct gzout *out)
{
	if (!out->file)
		return;
	if (gzclose(out->file) != Z_OK && !out->failed)
		fprintf(stderr, "ptat plugin: %s: cannot be written to its end\n", out->path);
	out->file = NULL;
}
