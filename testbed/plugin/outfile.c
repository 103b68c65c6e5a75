/* SPDX-License-Identifier: GPL-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "outfile.h"

int outfile_open(struct outfile *out, const char *path)
{
	memset(out, 0, sizeof(*out));
	out->path = path;
	out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (out->fd < 0) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	out->buffer = malloc(OUTFILE_BUFFER_BYTES);
	if (!out->buffer)
		abort();
	return 0;
}

bool outfile_flush(struct outfile *out)
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
			return false;
		}
		done += n;
	}
	out->file_bytes += done;
	out->used_bytes = 0;
	return true;
}

bool outfile_close(struct outfile *out)
{
	bool written = outfile_flush(out);

	close(out->fd);
	free(out->buffer);
	return written;
}
