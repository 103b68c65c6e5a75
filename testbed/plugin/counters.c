/* SPDX-License-Identifier: GPL-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "counters.h"

static const char *const event_names[CAUSES] = {
	[PTAT_TRUTH_CAUSE_LOAD] = "dtlb_load_misses",
	[PTAT_TRUTH_CAUSE_STORE] = "dtlb_store_misses",
	[PTAT_TRUTH_CAUSE_FETCH] = "itlb_misses",
};

static const char *const size_names[PAGE_SIZES] = {
	[PAGE_4K] = "4k",
	[PAGE_2M] = "2m_4m",
	[PAGE_1G] = "1g",
};

struct address_space *counters_space(struct counters *counters, uint32_t pgd_pfn)
{
	struct address_space **link = &counters->spaces;
	struct address_space *space;

	while (*link && (*link)->pgd_pfn != pgd_pfn)
		link = &(*link)->next;
	space = *link;
	if (space) {
		/* The running process is found first. */
		*link = space->next;
		space->next = counters->spaces;
		counters->spaces = space;
		return space;
	}
	space = calloc(1, sizeof(*space));
	if (!space)
		abort();
	space->pgd_pfn = pgd_pfn;
	space->next = counters->spaces;
	counters->spaces = space;
	return space;
}

/* Intel's names of the events; walk_faulted is ours: no CPU counts those apart. */
static void write_space(FILE *file, const struct address_space *space)
{
	const char *comma = "";

	for (int cause = 0; cause < CAUSES; cause++) {
		fprintf(file, "%s\"%s.walk_completed\": %" PRIu64, comma, event_names[cause],
			space->walk_completed[cause]);
		for (int size = 0; size < PAGE_SIZES; size++)
			fprintf(file, ", \"%s.walk_completed_%s\": %" PRIu64, event_names[cause],
				size_names[size], space->walk_completed_size[cause][size]);
		fprintf(file, ", \"%s.walk_faulted\": %" PRIu64, event_names[cause],
			space->walk_faulted[cause]);
		comma = ", ";
	}
}

static void add_space(struct address_space *total, const struct address_space *space)
{
	for (int cause = 0; cause < CAUSES; cause++) {
		total->walk_completed[cause] += space->walk_completed[cause];
		total->walk_faulted[cause] += space->walk_faulted[cause];
		for (int size = 0; size < PAGE_SIZES; size++)
			total->walk_completed_size[cause][size] +=
				space->walk_completed_size[cause][size];
	}
}

static bool has_walks(const struct address_space *space)
{
	for (int cause = 0; cause < CAUSES; cause++)
		if (space->walk_completed[cause] || space->walk_faulted[cause])
			return true;
	return false;
}

int counters_write(const struct counters *counters, const char *model, uint64_t bus_lost,
		   uint64_t truth_lost, const char *path)
{
	struct address_space total = { 0 };
	const char *comma = "";
	FILE *file = fopen(path, "w");
	int failed;

	if (!file) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	fprintf(file, "{\n  \"source\": \"testbed model %s\",\n  \"address_spaces\": [", model);
	for (const struct address_space *space = counters->spaces; space; space = space->next) {
		if (!has_walks(space))
			continue;
		add_space(&total, space);
		fprintf(file, "%s\n    {\"pgd_pfn\": %" PRIu32 ", ", comma, space->pgd_pfn);
		write_space(file, space);
		fputs("}", file);
		comma = ",";
	}
	fputs("\n  ],\n  \"events\": {", file);
	write_space(file, &total);
	fprintf(file,
		"},\n  \"region\": {\"walker_leaf_reads\": %" PRIu64
		", \"walker_pmd_reads\": %" PRIu64 ", \"cpu_loads\": %" PRIu64
		", \"cpu_locked\": %" PRIu64 ", \"cpu_entry_stores\": %" PRIu64
		", \"cpu_marker_stores\": %" PRIu64 ", \"walks_without_accessed_bit\": %" PRIu64
		"},\n",
		counters->walker_leaf_reads, counters->walker_pmd_reads, counters->cpu_loads,
		counters->cpu_locked, counters->cpu_entry_stores, counters->cpu_marker_stores,
		counters->walks_without_accessed_bit);
	fprintf(file,
		"  \"model\": {\"races\": %" PRIu64 ", \"bus_lost\": %" PRIu64
		", \"truth_lost\": %" PRIu64 "}\n}\n",
		counters->races, bus_lost, truth_lost);
	failed = ferror(file);
	if (fclose(file) || failed) {
		fprintf(stderr, "ptat plugin: %s: cannot write: %s\n", path, strerror(errno));
		return -1;
	}
	return 0;
}

void counters_free(struct counters *counters)
{
	while (counters->spaces) {
		struct address_space *next = counters->spaces->next;

		free(counters->spaces);
		counters->spaces = next;
	}
}
