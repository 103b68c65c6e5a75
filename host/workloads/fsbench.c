// SPDX-License-Identifier: BSD-2-Clause
/*
 * fsbench: one file, written or read in units, as the microbenchmark of TLB studies of file
 * systems does it; with --random as IOzone does.
 *
 * Only the transfers are measured (counted.h): neither opening the file nor the buffer.
 */
#include "counted.h"

#include <fcntl.h>
#include <sys/stat.h>

static const char usage[] =
	"usage: fsbench [OPTIONS] FILE\n"
	"  --op OP         write: a new file (default); rewrite: what is there; append: after "
	"what\n"
	"                  is there; read; reread: for the second time\n"
	"  --api API       write: write() and read(); fwrite: fwrite() and fread()\n"
	"                  (default: write)\n"
	"  --file SIZE     of the file; append: of what is there before (default: 1M)\n"
	"  --total SIZE    to transfer, going over the file again and again (default: as --file)\n"
	"  --unit SIZE     of one transfer; sizes above are multiples of it (default: 4K)\n"
	"  --random        units in random order, each perhaps more than once; not for write and\n"
	"                  append (default: one after the other)\n"
	"  --fsync         before the end of what is measured (default: no)\n"
	"prints: fsbench op=OP bytes=N units=N seconds=S\n";

enum operation { WRITE, REWRITE, APPEND, READ, REREAD, OPERATIONS };

static const char *const operation_names[] = { "write", "rewrite", "append", "read", "reread" };

struct job {
	const char *path;
	enum operation operation;
	bool stdio, random, sync;
	uint64_t file_bytes, total_bytes, unit_bytes;
	uint64_t random_state;
	char *buffer;
	int fd;
	FILE *stream; /* of fd, with --api fwrite */
};

static bool reads(const struct job *job)
{
	return job->operation == READ || job->operation == REREAD;
}

static void open_file(struct job *job)
{
	int flags = reads(job) ? O_RDONLY : O_RDWR | O_CREAT;
	struct stat status;

	if (job->operation == WRITE)
		flags |= O_TRUNC;
	if (job->operation == APPEND)
		flags |= O_APPEND;
	job->fd = open(job->path, flags | O_CLOEXEC, 0644);
	if (job->fd < 0 || fstat(job->fd, &status))
		fail("%s: %s", job->path, strerror(errno));
	if (job->operation != WRITE && (uint64_t)status.st_size < job->file_bytes)
		fail("%s: has %lld bytes, not %llu: write it first", job->path,
		     (long long)status.st_size, (unsigned long long)job->file_bytes);
	if (job->stdio) {
		job->stream = fdopen(job->fd, reads(job) ? "r" : "r+");
		if (!job->stream)
			fail("%s: %s", job->path, strerror(errno));
	}
}

static void seek(struct job *job, uint64_t offset)
{
	if (job->stdio ? fseeko(job->stream, offset, SEEK_SET)
		       : lseek(job->fd, offset, SEEK_SET) < 0)
		fail("%s: %s", job->path, strerror(errno));
}

static void transfer_unit(struct job *job)
{
	size_t bytes = job->unit_bytes;
	ssize_t done;

	if (job->stdio)
		done = reads(job) ? fread(job->buffer, 1, bytes, job->stream)
				  : fwrite(job->buffer, 1, bytes, job->stream);
	else
		done = reads(job) ? read(job->fd, job->buffer, bytes)
				  : write(job->fd, job->buffer, bytes);
	if (done == (ssize_t)bytes)
		return;
	if (done < 0 || (job->stdio && ferror(job->stream)))
		fail("%s: %s", job->path, strerror(errno));
	fail("%s: only %zd bytes of %zu: %s", job->path, done, bytes,
	     reads(job) ? "the file has shrunk" : strerror(ENOSPC));
}

/* To the file's begin; a file that is written anew loses its blocks. */
static void rewind_file(struct job *job)
{
	if (job->operation == APPEND)
		return;
	seek(job, 0);
	if (job->operation == WRITE && ftruncate(job->fd, 0))
		fail("%s: %s", job->path, strerror(errno));
}

static void transfer(struct job *job)
{
	uint64_t units = job->total_bytes / job->unit_bytes;
	uint64_t in_file = job->file_bytes / job->unit_bytes;

	for (uint64_t unit = 0; unit < units; unit++) {
		if (job->random)
			seek(job, random_below(&job->random_state, in_file) * job->unit_bytes);
		else if (unit % in_file == 0)
			rewind_file(job);
		transfer_unit(job);
	}
	if (job->stdio && !reads(job) && fflush(job->stream))
		fail("%s: %s", job->path, strerror(errno));
	if (job->sync && fsync(job->fd))
		fail("%s: %s", job->path, strerror(errno));
}

static enum operation parse_operation(const char *text)
{
	for (int i = 0; i < OPERATIONS; i++)
		if (!strcmp(text, operation_names[i]))
			return i;
	fail("--op: '%s' is none of write, rewrite, append, read, reread", text);
}

static bool parse_api(const char *text)
{
	bool stdio = !strcmp(text, "fwrite");

	if (!stdio && strcmp(text, "write"))
		fail("--api: '%s' is neither write nor fwrite", text);
	return stdio;
}

static void parse(struct job *job, int argc, char **argv)
{
	static const struct option options[] = {
		{ "op", required_argument, NULL, 'o' },
		{ "api", required_argument, NULL, 'a' },
		{ "file", required_argument, NULL, 'f' },
		{ "total", required_argument, NULL, 't' },
		{ "unit", required_argument, NULL, 'u' },
		{ "random", no_argument, NULL, 'r' },
		{ "fsync", no_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'o':
			job->operation = parse_operation(optarg);
			break;
		case 'a':
			job->stdio = parse_api(optarg);
			break;
		case 'f':
			job->file_bytes = parse_size("--file", optarg);
			break;
		case 't':
			job->total_bytes = parse_size("--total", optarg);
			break;
		case 'u':
			job->unit_bytes = parse_size("--unit", optarg);
			break;
		case 'r':
			job->random = true;
			break;
		case 's':
			job->sync = true;
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc - 1)
		bad_usage();
	job->path = argv[optind];
	if (!job->total_bytes)
		job->total_bytes = job->file_bytes;
	if (job->file_bytes % job->unit_bytes || job->total_bytes % job->unit_bytes)
		fail("--file and --total must be multiples of --unit, %llu",
		     (unsigned long long)job->unit_bytes);
	if (job->random && (job->operation == WRITE || job->operation == APPEND))
		fail("--random: a file must be there: use --op rewrite, read or reread");
}

int main(int argc, char **argv)
{
	struct job job = {
		.file_bytes = 1 << 20,
		.unit_bytes = 4096,
		.random_state = 2,
	};
	double seconds;

	parse(&job, argc, argv);
	job.buffer = map_pages(job.unit_bytes, 0);
	fill_random(job.buffer, job.unit_bytes);
	open_file(&job);
	if (job.operation == REREAD)
		transfer(&job);
	seconds = counted_begin();
	transfer(&job);
	seconds = counted_end(seconds);
	printf("fsbench op=%s bytes=%llu units=%llu seconds=%.6f\n", operation_names[job.operation],
	       (unsigned long long)job.total_bytes,
	       (unsigned long long)(job.total_bytes / job.unit_bytes), seconds);
	if (job.stdio ? fclose(job.stream) : close(job.fd))
		fail("%s: %s", job.path, strerror(errno));
	return 0;
}
