// SPDX-License-Identifier: BSD-2-Clause
/*
 * smallfiles: many small files, as Postmark has them: a pool of files of random sizes; each
 * transaction reads one or appends to one, and creates one or deletes one; at the end all that is
 * left is deleted.
 */
#include "counted.h"

#include <fcntl.h>
#include <sys/stat.h>

static const char usage[] =
	"usage: smallfiles [OPTIONS] DIR\n"
	"  --files N           in the pool at the begin (default: 500)\n"
	"  --transactions N    (default: 500)\n"
	"  --least SIZE        of a file, and of what is appended at most (default: 512)\n"
	"  --most SIZE         of a file when it is made (default: 16K)\n"
	"  --unit SIZE         of one read or write (default: 512)\n"
	"prints: smallfiles created=N deleted=N read=N appended=N bytes=N seconds=S\n";

#define PATH_BYTES 4096

struct pool {
	const char *directory;
	uint64_t least_bytes, most_bytes, unit_bytes;
	uint64_t random_state;
	uint64_t *file; /* names of those that are there: numbers */
	uint64_t files;
	uint64_t created, deleted, read, appended, bytes;
	char *buffer;
};

static const char *path_of(const struct pool *pool, uint64_t file)
{
	static char path[PATH_BYTES];

	if (snprintf(path, sizeof(path), "%s/%llu", pool->directory, (unsigned long long)file) >=
	    (int)sizeof(path))
		fail("%s: the name is too long", pool->directory);
	return path;
}

static void write_file(struct pool *pool, uint64_t file, int flags, uint64_t bytes)
{
	const char *path = path_of(pool, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);

	if (fd < 0)
		fail("%s: %s", path, strerror(errno));
	for (uint64_t left = bytes; left;) {
		uint64_t piece = left < pool->unit_bytes ? left : pool->unit_bytes;

		if (write(fd, pool->buffer, piece) != (ssize_t)piece)
			fail("%s: %s", path, strerror(errno ? errno : ENOSPC));
		left -= piece;
	}
	close(fd);
	pool->bytes += bytes;
}

static void create_file(struct pool *pool)
{
	uint64_t bytes = pool->least_bytes + random_below(&pool->random_state,
							  pool->most_bytes - pool->least_bytes + 1);

	write_file(pool, pool->created, O_CREAT | O_EXCL, bytes);
	pool->file[pool->files++] = pool->created++;
}

static void append_file(struct pool *pool, uint64_t file)
{
	write_file(pool, file, O_APPEND, 1 + random_below(&pool->random_state, pool->least_bytes));
	pool->appended++;
}

static void read_file(struct pool *pool, uint64_t file)
{
	const char *path = path_of(pool, file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		fail("%s: %s", path, strerror(errno));
	while ((n = read(fd, pool->buffer, pool->unit_bytes)) > 0)
		pool->bytes += n;
	if (n < 0)
		fail("%s: %s", path, strerror(errno));
	close(fd);
	pool->read++;
}

static void delete_file(struct pool *pool, uint64_t index)
{
	const char *path = path_of(pool, pool->file[index]);

	if (unlink(path))
		fail("%s: %s", path, strerror(errno));
	pool->file[index] = pool->file[--pool->files];
	pool->deleted++;
}

static uint64_t any_file(struct pool *pool)
{
	return random_below(&pool->random_state, pool->files);
}

static void run(struct pool *pool, uint64_t files, uint64_t transactions)
{
	while (pool->files < files)
		create_file(pool);
	for (uint64_t i = 0; i < transactions; i++) {
		bool create = next_random(&pool->random_state) & 1;

		if (pool->files) {
			if (next_random(&pool->random_state) & 1)
				read_file(pool, pool->file[any_file(pool)]);
			else
				append_file(pool, pool->file[any_file(pool)]);
		}
		if (create || !pool->files)
			create_file(pool);
		else
			delete_file(pool, any_file(pool));
	}
	while (pool->files)
		delete_file(pool, 0);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "files", required_argument, NULL, 'f' },
		{ "transactions", required_argument, NULL, 't' },
		{ "least", required_argument, NULL, 'l' },
		{ "most", required_argument, NULL, 'm' },
		{ "unit", required_argument, NULL, 'u' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	struct pool pool = {
		.least_bytes = 512, .most_bytes = 16384, .unit_bytes = 512, .random_state = 2
	};
	uint64_t files = 500, transactions = 500;
	double seconds;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'f':
			files = parse_count("--files", optarg, 1, 1 << 24);
			break;
		case 't':
			transactions = parse_count("--transactions", optarg, 1, 1 << 24);
			break;
		case 'l':
			pool.least_bytes = parse_size("--least", optarg);
			break;
		case 'm':
			pool.most_bytes = parse_size("--most", optarg);
			break;
		case 'u':
			pool.unit_bytes = parse_size("--unit", optarg);
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc - 1)
		bad_usage();
	if (pool.most_bytes < pool.least_bytes)
		fail("--most is less than --least");
	pool.directory = argv[optind];
	pool.file = calloc(files + transactions, sizeof(*pool.file));
	if (!pool.file)
		fail("no memory for %llu files", (unsigned long long)(files + transactions));
	pool.buffer = map_pages(pool.unit_bytes, 0);
	fill_random(pool.buffer, pool.unit_bytes);
	if (mkdir(pool.directory, 0755) && errno != EEXIST)
		fail("%s: %s", pool.directory, strerror(errno));
	seconds = counted_begin();
	run(&pool, files, transactions);
	seconds = counted_end(seconds);
	printf("smallfiles created=%llu deleted=%llu read=%llu appended=%llu bytes=%llu "
	       "seconds=%.6f\n",
	       (unsigned long long)pool.created, (unsigned long long)pool.deleted,
	       (unsigned long long)pool.read, (unsigned long long)pool.appended,
	       (unsigned long long)pool.bytes, seconds);
	return 0;
}
