// SPDX-License-Identifier: BSD-2-Clause
/*
 * seqpage: one store per page, in increasing order.
 *
 * The trace of this program is known beforehand: each page of the range misses exactly once, the
 * next one after it. The line it prints says which range that is.
 */
#include "workload.h"

#include <fcntl.h>
#include <unistd.h>

static const char usage[] =
	"usage: seqpage [--bytes SIZE] [--huge] [--pagemap FILE]\n"
	"  --bytes SIZE    memory to walk through (default: 1G)\n"
	"  --huge          in 2 MiB hugetlb pages (default: 4 KiB pages)\n"
	"  --pagemap FILE  then write each page's virtual address and page frame number, as\n"
	"                  /proc/self/pagemap has them, to FILE; '-' is stdout (default: none)\n"
	"prints: seqpage first=ADDRESS pages=N page_bytes=N\n";

/* Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_PRESENT (1UL << 63)
#define PAGEMAP_FRAME	((1UL << 55) - 1)

static void write_pagemap(const char *path, uint64_t first, uint64_t pages, uint64_t page_bytes)
{
	FILE *out = strcmp(path, "-") ? fopen(path, "w") : stdout;
	int pagemap = open("/proc/self/pagemap", O_RDONLY);

	if (!out)
		fail("%s: %s", path, strerror(errno));
	if (pagemap < 0)
		fail("/proc/self/pagemap: %s", strerror(errno));
	for (uint64_t page = 0; page < pages; page++) {
		uint64_t address = first + page * page_bytes;
		uint64_t entry;

		if (pread(pagemap, &entry, sizeof(entry),
			  address / BASE_PAGE_BYTES * sizeof(entry)) != sizeof(entry))
			fail("/proc/self/pagemap: %s", strerror(errno));
		if (!(entry & PAGEMAP_PRESENT))
			fail("page %#lx is not in memory: give the machine more of it", address);
		if (!(entry & PAGEMAP_FRAME))
			fail("/proc/self/pagemap hides page frames from all but root");
		fprintf(out, "%#lx %#lx\n", address, entry & PAGEMAP_FRAME);
	}
	close(pagemap);
	if (out == stdout ? fflush(out) : fclose(out))
		fail("%s: %s", path, strerror(errno));
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "bytes", required_argument, NULL, 'b' },
		{ "huge", no_argument, NULL, 'H' },
		{ "pagemap", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	const char *pagemap = NULL;
	uint64_t bytes = 1UL << 30, page_bytes, pages;
	volatile char *memory;
	bool huge = false;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'b':
			bytes = parse_size("--bytes", optarg);
			break;
		case 'H':
			huge = true;
			break;
		case 'p':
			pagemap = optarg;
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc)
		bad_usage();
	page_bytes = huge ? HUGE_PAGE_BYTES : BASE_PAGE_BYTES;
	if (bytes % page_bytes)
		fail("--bytes must be a multiple of the page size, %lu", page_bytes);

	pages = bytes / page_bytes;
	memory = map_pages(bytes, huge ? HUGE_PAGE_BYTES : 0);
	printf("seqpage first=%p pages=%lu page_bytes=%lu\n", (void *)memory, pages, page_bytes);
	fflush(stdout);
	for (uint64_t page = 0; page < pages; page++)
		memory[page * page_bytes] = 1;
	if (pagemap)
		write_pagemap(pagemap, (uint64_t)memory, pages, page_bytes);
	return 0;
}
