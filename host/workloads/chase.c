// SPDX-License-Identifier: BSD-2-Clause
/*
 * chase: follow pointers around one random cycle through all nodes.
 *
 * Each step depends on the one before it, so nothing hides the cost of a TLB miss.
 */
#include "workload.h"

static const char usage[] =
	"usage: chase [--bytes SIZE] [--stride SIZE] [--steps N]\n"
	"  --bytes SIZE   memory that the nodes lie in (default: 64M)\n"
	"  --stride SIZE  from node to node; 4K gives one per page (default: 64)\n"
	"  --steps N      pointers to follow (default: once around)\n"
	"prints: chase first=ADDRESS nodes=N steps=N end=NODE seconds=S ns_per_step=T\n";

static char *memory;
static uint64_t stride = 64;

static void **node_at(uint64_t index)
{
	return (void **)(memory + index * stride);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "bytes", required_argument, NULL, 'b' },
		{ "stride", required_argument, NULL, 's' },
		{ "steps", required_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	uint64_t bytes = 64UL << 20, steps = 0, nodes, seed = 1;
	double seconds;
	void **node;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'b':
			bytes = parse_size("--bytes", optarg);
			break;
		case 's':
			stride = parse_size("--stride", optarg);
			break;
		case 'n':
			steps = parse_size("--steps", optarg);
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc)
		bad_usage();
	if (stride % sizeof(*node))
		fail("--stride must be a multiple of %zu", sizeof(*node));
	nodes = bytes / stride;
	if (nodes < 2)
		fail("--bytes must hold two nodes of --stride bytes");
	if (!steps)
		steps = nodes;

	memory = map_pages(bytes, 0);
	for (uint64_t i = 0; i < nodes; i++)
		*node_at(i) = node_at(i);
	/* Sattolo's shuffle: a permutation that is one single cycle. */
	for (uint64_t i = nodes - 1; i; i--) {
		uint64_t j = random_below(&seed, i);
		void *next = *node_at(i);

		*node_at(i) = *node_at(j);
		*node_at(j) = next;
	}

	seconds = seconds_now();
	node = node_at(0);
	for (uint64_t i = 0; i < steps; i++)
		node = *(void *volatile *)node;
	seconds = seconds_now() - seconds;
	printf("chase first=%p nodes=%lu steps=%lu end=%lu seconds=%.6f ns_per_step=%.2f\n",
	       (void *)memory, nodes, steps, ((char *)node - memory) / stride, seconds,
	       seconds / steps * 1e9);
	return 0;
}
