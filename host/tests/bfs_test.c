// SPDX-License-Identifier: BSD-2-Clause
/* bfs's validation accepts the tree that its search finds and no damaged one. */
#define main bfs_main
#include "../workloads/bfs.c"
#undef main

static int failures;

#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("line %d: %s does not hold\n", __LINE__, #condition);               \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

int main(void)
{
	/* A path 0-1-2-3 with the short cut 0-2, and an island 4-5. */
	static const struct edge edges[] = {
		{ 0, 1 }, { 1, 2 }, { 2, 3 }, { 0, 2 }, { 4, 5 }, { 3, 3 },
	};
	struct graph graph = build(edges, sizeof(edges) / sizeof(*edges), 6, 0);
	uint32_t parent[6], queue[6], depth[6];

	EXPECT(graph.row[6] == 10); /* both directions, no loop */
	EXPECT(search(&graph, 0, parent, queue) == 4);
	EXPECT(parent[2] == 0 && parent[3] == 2 && parent[4] == NOBODY);
	EXPECT(validate(&graph, 0, parent, depth));
	EXPECT(depth[3] == 2 && depth[5] == NOBODY);

	parent[2] = 1; /* in the graph, but the short cut then spans two levels */
	EXPECT(!validate(&graph, 0, parent, depth));
	parent[2] = 0;

	parent[3] = 1; /* not an edge of the graph */
	EXPECT(!validate(&graph, 0, parent, depth));
	parent[3] = NOBODY; /* an edge leaves the tree */
	EXPECT(!validate(&graph, 0, parent, depth));
	parent[3] = 2;

	parent[1] = 2;
	parent[2] = 1; /* a cycle */
	EXPECT(!validate(&graph, 0, parent, depth));
	parent[1] = 0;
	parent[2] = 0;

	parent[4] = 5;
	parent[5] = 4; /* a cycle of its own */
	EXPECT(!validate(&graph, 0, parent, depth));
	parent[4] = NOBODY;
	parent[5] = NOBODY;

	parent[0] = 1; /* the root has a parent */
	EXPECT(!validate(&graph, 0, parent, depth));
	parent[0] = 0;

	EXPECT(validate(&graph, 0, parent, depth));
	return failures != 0;
}
