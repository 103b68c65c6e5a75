// SPDX-License-Identifier: BSD-2-Clause
/*
 * remap: move touched memory with mremap() and touch it again at its new place.
 *
 * Both places begin at a multiple of 1 GiB, so for each whole GiB the kernel moves one entry, with
 * all page tables below it, and says nothing of the tables that move along.
 */
#include "workload.h"

static const char usage[] = "usage: remap [--bytes SIZE] [--stride SIZE]\n"
			    "  --bytes SIZE   memory to move (default: 1G)\n"
			    "  --stride SIZE  from one touched page to the next (default: 64K)\n"
			    "prints: remap from=ADDRESS to=ADDRESS pages=N wrong=N\n";

#define ALIGNMENT (1UL << 30)

/* Address space for `bytes` from a multiple of ALIGNMENT on; memory only where it is touched. */
static char *map_aligned(uint64_t bytes)
{
	char *space = mmap(NULL, bytes + ALIGNMENT, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *aligned;

	if (space == MAP_FAILED)
		fail("cannot map %lu bytes: %s", bytes, strerror(errno));
	aligned = (char *)round_up((uint64_t)space, ALIGNMENT);
	if (madvise(aligned, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		fail("cannot ask for 4 KiB pages: %s", strerror(errno));
	return aligned;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "bytes", required_argument, NULL, 'b' },
		{ "stride", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	uint64_t bytes = 1UL << 30, stride = 64UL << 10, pages = 0, wrong = 0;
	char *from, *to;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'b':
			bytes = parse_size("--bytes", optarg);
			break;
		case 's':
			stride = parse_size("--stride", optarg);
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc)
		bad_usage();
	if (bytes % BASE_PAGE_BYTES || stride % BASE_PAGE_BYTES)
		fail("--bytes and --stride must be multiples of %lu", BASE_PAGE_BYTES);

	from = map_aligned(bytes);
	to = map_aligned(bytes);
	for (uint64_t at = 0; at < bytes; at += stride, pages++)
		*(volatile uint64_t *)(from + at) = at + 1;
	if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		fail("mremap: %s", strerror(errno));
	for (uint64_t at = 0; at < bytes; at += stride)
		wrong += *(volatile uint64_t *)(to + at) != at + 1;
	printf("remap from=%p to=%p pages=%lu wrong=%lu\n", (void *)from, (void *)to, pages, wrong);
	return wrong != 0;
}
