/* SPDX-License-Identifier: GPL-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "outfile.h"

#define BUFFER_BYTES (1u << 16)

int outfile_open(struct outfile *out, const char *path)
{
	memset(out, 0, sizeof(*out));
	out->path = path;
	out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (out->fd < 0) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	out->buffer = malloc(BUFFER_BYTES);
	if (!out->buffer)
		abort();
	return 0;
}

enum outfile_state outfile_flush(struct outfile *out)
{
	size_t done = 0;

	while (done < out->used_bytes) {
		ssize_t n = pwrite(out->fd, out->buffer + done, out->used_bytes - done,
				   (off_t)(out->file_bytes + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (!out->reported)
				fprintf(stderr, "ptat plugin: %s: %s; records are being lost\n",
					out->path, n ? strerror(errno) : "cannot write");
			out->reported = 1;
			out->used_bytes = 0;
			/* Freeing space cannot fail for want of it; a tail would be overwritten. */
			(void)!ftruncate(out->fd, (off_t)out->file_bytes);
			return OUTFILE_DROPPED;
		}
		done += n;
	}
	out->file_bytes += done;
	out->used_bytes = 0;
	return OUTFILE_WRITTEN;
}

enum outfile_state outfile_write(struct outfile *out, const void *record, size_t record_bytes)
{
	memcpy(out->buffer + out->used_bytes, record, record_bytes);
	out->used_bytes += record_bytes;
	if (out->used_bytes + record_bytes <= BUFFER_BYTES)
		return OUTFILE_BUFFERED;
	return outfile_flush(out);
}

enum outfile_state outfile_close(struct outfile *out)
{
	enum outfile_state state = outfile_flush(out);

	close(out->fd);
	free(out->buffer);
	return state;
}
