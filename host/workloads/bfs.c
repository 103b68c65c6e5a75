// SPDX-License-Identifier: BSD-2-Clause
/*
 * bfs: breadth-first search of a Kronecker graph, after Graph500's specification.
 *
 * The graph is kept as compressed rows: the neighbours of v are
 * column[row[v]] … column[row[v + 1] - 1]. `column` is by far the largest object and the one that
 * the search reads at random; --huge puts it, and only it, into 2 MiB pages.
 */
#include "workload.h"

static const char usage[] =
	"usage: bfs [--scale N] [--edgefactor N] [--roots N] [--huge]\n"
	"  --scale N       2^N vertices, 1 to 31 (default: 16)\n"
	"  --edgefactor N  edges for each vertex (default: 16)\n"
	"  --roots N       searches, each from a random vertex with an edge (default: 4)\n"
	"  --huge          the column object in 2 MiB hugetlb pages (default: 4 KiB pages)\n"
	"prints: bfs vertices=N edges=N column=ADDRESS column_bytes=N\n"
	"        and for each search: bfs root=N reached=N seconds=S teps=RATE valid=yes|no\n";

#define NOBODY UINT32_MAX

struct graph {
	uint64_t vertices;
	uint64_t *row;
	uint32_t *column;
};

struct edge {
	uint32_t from;
	uint32_t to;
};

static bool random_bit(uint64_t *seed, double probability)
{
	return (next_random(seed) >> 11) * 0x1p-53 < probability;
}

/* Graph500: each level of the adjacency matrix falls into a quadrant with 57, 19, 19 or 5 %. */
static void generate(struct edge *edges, uint64_t count, unsigned int scale)
{
	uint64_t vertices = 1UL << scale, seed = 1;
	uint32_t *label = map_pages(vertices * sizeof(*label), 0);

	for (uint64_t e = 0; e < count; e++) {
		uint32_t from = 0, to = 0;

		for (unsigned int bit = 0; bit < scale; bit++) {
			bool down = random_bit(&seed, 0.19 + 0.05);
			bool right = random_bit(&seed, down ? 0.05 / 0.24 : 0.19 / 0.76);

			from |= (uint32_t)down << bit;
			to |= (uint32_t)right << bit;
		}
		edges[e] = (struct edge){ from, to };
	}
	/* Vertices get random names, or the well-connected ones would all lie together. */
	for (uint64_t v = 0; v < vertices; v++)
		label[v] = v;
	for (uint64_t v = vertices - 1; v; v--) {
		uint64_t other = random_below(&seed, v + 1);
		uint32_t swap = label[v];

		label[v] = label[other];
		label[other] = swap;
	}
	for (uint64_t e = 0; e < count; e++)
		edges[e] = (struct edge){ label[edges[e].from], label[edges[e].to] };
	munmap(label, round_up(vertices * sizeof(*label), BASE_PAGE_BYTES));
}

/* Both directions of each edge, without loops. */
static struct graph build(const struct edge *edges, uint64_t count, uint64_t vertices,
			  uint64_t huge_bytes)
{
	struct graph graph = {
		.vertices = vertices,
		.row = map_pages((vertices + 2) * sizeof(*graph.row), 0),
	};
	/* Counted two places up, so that placing the neighbours leaves each row's begin behind. */
	uint64_t *next = graph.row + 1;

	for (uint64_t e = 0; e < count; e++) {
		if (edges[e].from != edges[e].to) {
			next[edges[e].from + 1]++;
			next[edges[e].to + 1]++;
		}
	}
	for (uint64_t v = 0; v < vertices; v++)
		next[v + 1] += next[v];
	graph.column = map_pages(next[vertices] * sizeof(*graph.column) + 1, huge_bytes);
	for (uint64_t e = 0; e < count; e++) {
		if (edges[e].from != edges[e].to) {
			graph.column[next[edges[e].from]++] = edges[e].to;
			graph.column[next[edges[e].to]++] = edges[e].from;
		}
	}
	return graph;
}

/* Returns the number of vertices reached; `queue` holds them in the order of the search. */
static uint64_t search(const struct graph *graph, uint32_t root, uint32_t *parent, uint32_t *queue)
{
	uint64_t head = 0, tail = 0;

	for (uint64_t v = 0; v < graph->vertices; v++)
		parent[v] = NOBODY;
	parent[root] = root;
	queue[tail++] = root;
	while (head < tail) {
		uint32_t v = queue[head++];

		for (uint64_t i = graph->row[v]; i < graph->row[v + 1]; i++) {
			uint32_t neighbour = graph->column[i];

			if (parent[neighbour] == NOBODY) {
				parent[neighbour] = v;
				queue[tail++] = neighbour;
			}
		}
	}
	return tail;
}

/* Steps up to the root, NOBODY for vertices outside the tree; false if there is a cycle. */
static bool find_depths(const struct graph *graph, uint32_t root, const uint32_t *parent,
			uint32_t *depth)
{
	for (uint64_t v = 0; v < graph->vertices; v++)
		depth[v] = NOBODY;
	depth[root] = 0;
	for (uint64_t v = 0; v < graph->vertices; v++) {
		uint32_t steps = 0, up = v;

		if (parent[v] == NOBODY)
			continue;
		for (; depth[up] == NOBODY; up = parent[up])
			if (parent[up] >= graph->vertices || ++steps > graph->vertices)
				return false;
		steps += depth[up];
		for (up = v; depth[up] == NOBODY; up = parent[up])
			depth[up] = steps--;
	}
	return true;
}

/*
 * Graph500's checks: the parents form a tree; its edges are edges of the graph; no edge of the
 * graph leaves the tree or spans more than one level of it.
 */
static bool validate(const struct graph *graph, uint32_t root, const uint32_t *parent,
		     uint32_t *depth)
{
	if (parent[root] != root || !find_depths(graph, root, parent, depth))
		return false;
	for (uint64_t v = 0; v < graph->vertices; v++) {
		bool joined = v == root || parent[v] == NOBODY;

		for (uint64_t i = graph->row[v]; i < graph->row[v + 1]; i++) {
			uint32_t neighbour = graph->column[i];

			joined |= neighbour == parent[v];
			if ((depth[v] == NOBODY) != (depth[neighbour] == NOBODY))
				return false;
			/* The opposite direction is in the graph too. */
			if (depth[v] != NOBODY && depth[v] > depth[neighbour] + 1)
				return false;
		}
		if (!joined)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "scale", required_argument, NULL, 's' },
		{ "edgefactor", required_argument, NULL, 'e' },
		{ "roots", required_argument, NULL, 'r' },
		{ "huge", no_argument, NULL, 'H' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	uint64_t edge_factor = 16, roots = 4, vertices, count, seed = 2, vector_bytes;
	uint32_t *parent, *queue, *depth;
	unsigned int scale = 16;
	struct graph graph;
	struct edge *edges;
	uint64_t huge_bytes = 0;
	bool all_valid = true;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			scale = parse_count("--scale", optarg, 1, 31);
			break;
		case 'e':
			edge_factor = parse_count("--edgefactor", optarg, 1, 1024);
			break;
		case 'r':
			roots = parse_size("--roots", optarg);
			break;
		case 'H':
			huge_bytes = HUGE_PAGE_BYTES;
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	if (optind != argc)
		bad_usage();

	vertices = 1UL << scale;
	count = vertices * edge_factor;
	edges = map_pages(count * sizeof(*edges), 0);
	generate(edges, count, scale);
	graph = build(edges, count, vertices, huge_bytes);
	munmap(edges, round_up(count * sizeof(*edges), BASE_PAGE_BYTES));
	if (!graph.row[vertices])
		fail("the graph has no edges: try a larger --scale");
	printf("bfs vertices=%lu edges=%lu column=%p column_bytes=%lu\n", vertices, count,
	       (void *)graph.column, graph.row[vertices] * sizeof(*graph.column));

	vector_bytes = vertices * sizeof(uint32_t);
	parent = map_pages(vector_bytes, 0);
	queue = map_pages(vector_bytes, 0);
	depth = map_pages(vector_bytes, 0);
	while (roots--) {
		uint64_t reached, edges_seen = 0;
		double seconds;
		uint32_t root;
		bool valid;

		do
			root = random_below(&seed, vertices);
		while (graph.row[root] == graph.row[root + 1]);
		seconds = seconds_now();
		reached = search(&graph, root, parent, queue);
		seconds = seconds_now() - seconds;
		for (uint64_t i = 0; i < reached; i++)
			edges_seen += graph.row[queue[i] + 1] - graph.row[queue[i]];
		valid = validate(&graph, root, parent, depth);
		all_valid &= valid;
		printf("bfs root=%u reached=%lu seconds=%.6f teps=%.0f valid=%s\n", root, reached,
		       seconds, edges_seen / 2 / seconds, valid ? "yes" : "no");
	}
	return !all_valid;
}
