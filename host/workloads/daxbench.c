// SPDX-License-Identifier: BSD-2-Clause
/*
 * daxbench: a mapped file, copied to or from in blocks, as on persistent memory.
 *
 * With --page 2M the mapping lies so that the kernel can map 2 MiB at once, where the file's
 * blocks lie so, too; with --page 4K it lies so that it cannot.
 */
#include "counted.h"

#include <cpuid.h>
#include <fcntl.h>
#include <immintrin.h>
#include <sys/stat.h>

static const char usage[] =
	"usage: daxbench [OPTIONS] FILE\n"
	"  --op OP         write (default) or read\n"
	"  --bytes SIZE    of the file, which must have that many (default: 1G)\n"
	"  --block SIZE    copied at a time (default: 4K)\n"
	"  --passes N      over the file (default: 1)\n"
	"  --random        blocks in random order, each perhaps more than once (default: one "
	"after\n"
	"                  the other)\n"
	"  --flush HOW     after each block written: clwb, clflush or clflushopt of its lines, "
	"with\n"
	"                  a fence; nt: written past the caches; none (default: none)\n"
	"  --page SIZE     2M: mapped so that large entries are possible; 4K: so that they are "
	"not\n"
	"                  (default: 2M)\n"
	"  --msync         before the end of what is measured (default: no)\n"
	"prints: daxbench op=OP bytes=N blocks=N seconds=S\n";

#define LINE_BYTES 64

typedef void copy_block(char *to, const char *from, uint64_t bytes);

struct flush {
	const char *name;
	copy_block *copy;
	unsigned int leaf, edx, ebx; /* CPUID bits that say that there is such an instruction */
};

static void copy_plain(char *to, const char *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

__attribute__((target("clwb"))) static void copy_clwb(char *to, const char *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
	for (uint64_t at = 0; at < bytes; at += LINE_BYTES)
		_mm_clwb(to + at);
	_mm_sfence();
}

static void copy_clflush(char *to, const char *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
	for (uint64_t at = 0; at < bytes; at += LINE_BYTES)
		_mm_clflush(to + at);
	_mm_sfence();
}

__attribute__((target("clflushopt"))) static void copy_clflushopt(char *to, const char *from,
								  uint64_t bytes)
{
	memcpy(to, from, bytes);
	for (uint64_t at = 0; at < bytes; at += LINE_BYTES)
		_mm_clflushopt(to + at);
	_mm_sfence();
}

/* Blocks are multiples of a line and so aligned. */
static void copy_nt(char *to, const char *from, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(to + at),
				 _mm_load_si128((const __m128i *)(from + at)));
	_mm_sfence();
}

/* Intel SDM vol. 2A, CPUID: leaf 1 EDX 19 CLFSH, leaf 7 EBX 23 CLFLUSHOPT and 24 CLWB. */
static const struct flush flushes[] = {
	{ "none", copy_plain, 0, 0, 0 },
	{ "clwb", copy_clwb, 7, 0, 1u << 24 },
	{ "clflush", copy_clflush, 1, 1u << 19, 0 },
	{ "clflushopt", copy_clflushopt, 7, 0, 1u << 23 },
	{ "nt", copy_nt, 0, 0, 0 },
};

static const struct flush *parse_flush(const char *text)
{
	unsigned int eax, ebx, ecx, edx;

	for (size_t i = 0; i < sizeof(flushes) / sizeof(flushes[0]); i++) {
		const struct flush *flush = &flushes[i];

		if (strcmp(text, flush->name))
			continue;
		if (!flush->leaf)
			return flush;
		if (!__get_cpuid_count(flush->leaf, 0, &eax, &ebx, &ecx, &edx) ||
		    (edx & flush->edx) != flush->edx || (ebx & flush->ebx) != flush->ebx)
			fail("--flush %s: this CPU has no such instruction", text);
		return flush;
	}
	fail("--flush: '%s' is none of none, clwb, clflush, clflushopt, nt", text);
}

/* At a multiple of 2 MiB, or at half of one past it. */
static char *map_file(const char *path, uint64_t bytes, bool writes, bool large)
{
	int fd = open(path, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	int protection = writes ? PROT_READ | PROT_WRITE : PROT_READ;
	struct stat status;
	char *space, *at;

	if (fd < 0 || fstat(fd, &status))
		fail("%s: %s", path, strerror(errno));
	if ((uint64_t)status.st_size < bytes)
		fail("%s: has %lld bytes, not %llu: write it first", path,
		     (long long)status.st_size, (unsigned long long)bytes);
	space = mmap(NULL, bytes + 2 * HUGE_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		     0);
	if (space == MAP_FAILED)
		fail("cannot map %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
	at = (char *)round_up((uint64_t)space, HUGE_PAGE_BYTES);
	if (!large)
		at += HUGE_PAGE_BYTES / 2;
	if (mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		fail("cannot map %s: %s", path, strerror(errno));
	close(fd);
	return at;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "op", required_argument, NULL, 'o' },
		{ "bytes", required_argument, NULL, 'b' },
		{ "block", required_argument, NULL, 'k' },
		{ "passes", required_argument, NULL, 'n' },
		{ "random", no_argument, NULL, 'r' },
		{ "flush", required_argument, NULL, 'f' },
		{ "page", required_argument, NULL, 'p' },
		{ "msync", no_argument, NULL, 'm' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	uint64_t bytes = 1UL << 30, block_bytes = 4096, passes = 1, random_state = 2, in_file;
	bool writes = true, random = false, sync = false, large = true;
	const struct flush *flush = &flushes[0];
	char *map, *buffer;
	double seconds;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'o':
			writes = !strcmp(optarg, "write");
			if (!writes && strcmp(optarg, "read"))
				fail("--op: '%s' is neither write nor read", optarg);
			break;
		case 'b':
			bytes = parse_size("--bytes", optarg);
			break;
		case 'k':
			block_bytes = parse_size("--block", optarg);
			break;
		case 'n':
			passes = parse_count("--passes", optarg, 1, 1 << 30);
			break;
		case 'r':
			random = true;
			break;
		case 'f':
			flush = parse_flush(optarg);
			break;
		case 'p':
			large = !strcmp(optarg, "2M");
			if (!large && strcmp(optarg, "4K"))
				fail("--page: '%s' is neither 2M nor 4K", optarg);
			break;
		case 'm':
			sync = true;
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc - 1)
		bad_usage();
	if (block_bytes % LINE_BYTES || bytes % block_bytes)
		fail("--block must be a multiple of %d, and --bytes of --block", LINE_BYTES);

	buffer = map_pages(block_bytes, 0);
	fill_random(buffer, block_bytes);
	map = map_file(argv[optind], bytes, writes, large);
	in_file = bytes / block_bytes;
	seconds = counted_begin();
	for (uint64_t block = 0; block < passes * in_file; block++) {
		uint64_t index = random ? random_below(&random_state, in_file) : block % in_file;
		char *at = map + index * block_bytes;

		if (writes)
			flush->copy(at, buffer, block_bytes);
		else
			memcpy(buffer, at, block_bytes);
		asm volatile("" ::: "memory"); /* each copy counts, also one that none reads */
	}
	if (sync && msync(map, bytes, MS_SYNC))
		fail("msync: %s", strerror(errno));
	seconds = counted_end(seconds);
	printf("daxbench op=%s bytes=%llu blocks=%llu seconds=%.6f\n", writes ? "write" : "read",
	       (unsigned long long)(passes * bytes), (unsigned long long)(passes * in_file),
	       seconds);
	return 0;
}
