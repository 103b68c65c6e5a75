// SPDX-License-Identifier: BSD-2-Clause
/*
 * gups: HPC Challenge's RandomAccess, T[r mod size] ^= r over its random stream r.
 *
 * The stream is that of a 64-bit shift register with the polynomial x^64 + x^2 + x + 1: r starts
 * as 1 and is multiplied by x at each step. As in HPCC, 128 lanes each run through 1/128 of the
 * stream, side by side; a thread takes its share of the lanes. Threads update without locks, so
 * a few updates may be lost: HPCC allows 1 % of the table.
 */
#include "workload.h"

#include <omp.h>

static const char usage[] =
	"usage: gups [--bytes SIZE] [--updates N] [--threads N] [--verify] [--huge[=1G]]\n"
	"  --bytes SIZE   the table, a power of two (default: 64M)\n"
	"  --updates N    a multiple of 128 (default: 4 for each 8-byte entry, as in HPCC)\n"
	"  --threads N    1 to 128 (default: 1)\n"
	"  --huge         the table in 2 MiB hugetlb pages (default: 4 KiB pages)\n"
	"  --huge=1G      in 1 GiB ones\n"
	"  --verify       undo the updates and count the entries that are wrong (default: no)\n"
	"prints: gups first=ADDRESS bytes=N updates=N threads=N seconds=S gups=RATE\n"
	"        and with --verify: gups checksum=N wrong=N\n";

#define LANES	   128
#define POLYNOMIAL 7

static uint64_t times_x(uint64_t r)
{
	return r << 1 ^ (r >> 63 ? POLYNOMIAL : 0);
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (; b; b >>= 1, a = times_x(a))
		if (b & 1)
			product ^= a;
	return product;
}

/* The stream's element n: x^n. */
static uint64_t stream_at(uint64_t n)
{
	uint64_t result = 1;

	for (uint64_t power = 2; n; n >>= 1, power = times(power, power))
		if (n & 1)
			result = times(result, power);
	return result;
}

static void update(uint64_t *table, uint64_t entries, uint64_t updates, unsigned int threads)
{
#pragma omp parallel num_threads(threads)
	{
		unsigned int first = LANES * omp_get_thread_num() / omp_get_num_threads();
		unsigned int end = LANES * (omp_get_thread_num() + 1) / omp_get_num_threads();
		uint64_t r[LANES];

		for (unsigned int lane = first; lane < end; lane++)
			r[lane] = stream_at(updates / LANES * lane);
		for (uint64_t step = 0; step < updates / LANES; step++) {
			for (unsigned int lane = first; lane < end; lane++) {
				r[lane] = times_x(r[lane]);
				table[r[lane] & (entries - 1)] ^= r[lane];
			}
		}
	}
}

static uint64_t checksum(const uint64_t *table, uint64_t entries)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < entries; i++)
		sum += (i + 1) * table[i];
	return sum;
}

static uint64_t count_wrong(uint64_t *table, uint64_t entries, uint64_t updates)
{
	uint64_t wrong = 0, r = 1;

	for (uint64_t i = 0; i < updates; i++) {
		r = times_x(r);
		table[r & (entries - 1)] ^= r;
	}
	for (uint64_t i = 0; i < entries; i++)
		wrong += table[i] != i;
	return wrong;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "bytes", required_argument, NULL, 'b' },
		{ "updates", required_argument, NULL, 'u' },
		{ "threads", required_argument, NULL, 't' },
		{ "verify", no_argument, NULL, 'v' },
		{ "huge", optional_argument, NULL, 'H' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	uint64_t bytes = 64UL << 20, updates = 0, entries;
	unsigned int threads = 1;
	uint64_t huge_bytes = 0;
	bool verify = false;
	uint64_t *table;
	double seconds;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'b':
			bytes = parse_size("--bytes", optarg);
			break;
		case 'u':
			updates = parse_size("--updates", optarg);
			break;
		case 't':
			threads = parse_count("--threads", optarg, 1, LANES);
			break;
		case 'v':
			verify = true;
			break;
		case 'H':
			huge_bytes = optarg ? parse_size("--huge", optarg) : HUGE_PAGE_BYTES;
			if (huge_bytes != HUGE_PAGE_BYTES && huge_bytes != GIGANTIC_PAGE_BYTES)
				fail("--huge: %s is not 2M or 1G", optarg);
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc)
		bad_usage();
	if (bytes & (bytes - 1) || bytes < 1024)
		fail("--bytes must be a power of two, at least 1K");
	entries = bytes / sizeof(*table);
	if (!updates)
		updates = 4 * entries;
	if (updates % LANES)
		fail("--updates must be a multiple of %d", LANES);

	table = map_pages(bytes, huge_bytes);
	for (uint64_t i = 0; i < entries; i++)
		table[i] = i;
	omp_set_dynamic(0);
	seconds = seconds_now();
	update(table, entries, updates, threads);
	seconds = seconds_now() - seconds;
	printf("gups first=%p bytes=%lu updates=%lu threads=%u seconds=%.6f gups=%.6f\n",
	       (void *)table, bytes, updates, threads, seconds, updates / seconds / 1e9);
	if (verify) {
		uint64_t sum = checksum(table, entries);
		uint64_t wrong = count_wrong(table, entries, updates);

		printf("gups checksum=%#lx wrong=%lu\n", sum, wrong);
		if (wrong > (threads > 1 ? entries / 100 : 0))
			return 1;
	}
	return 0;
}
