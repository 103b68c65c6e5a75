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
static void write_walks(FILE *file, const struct walks *walks)
{
	const char *comma = "";

	for (int cause = 0; cause < CAUSES; cause++) {
		fprintf(file, "%s\"%s.walk_completed\": %" PRIu64, comma, event_names[cause],
			walks->completed[cause]);
		for (int size = 0; size < PAGE_SIZES; size++)
			fprintf(file, ", \"%s.walk_completed_%s\": %" PRIu64, event_names[cause],
				size_names[size], walks->completed_size[cause][size]);
		fprintf(file, ", \"%s.walk_faulted\": %" PRIu64, event_names[cause],
			walks->faulted[cause]);
		comma = ", ";
	}
}

static void add_walks(struct walks *total, const struct walks *walks)
{
	for (int cause = 0; cause < CAUSES; cause++) {
		total->completed[cause] += walks->completed[cause];
		total->faulted[cause] += walks->faulted[cause];
		for (int size = 0; size < PAGE_SIZES; size++)
			total->completed_size[cause][size] += walks->completed_size[cause][size];
	}
}

static bool is_empty(const struct walks *walks)
{
	for (int cause = 0; cause < CAUSES; cause++)
		if (walks->completed[cause] || walks->faulted[cause])
			return false;
	return true;
}

int counters_write(const struct counters *counters, const char *model, uint64_t bus_lost,
		   uint64_t truth_lost, const char *path)
{
	struct walks total = { 0 };
	const char *comma = "";
	FILE *file = fopen(path, "w");
	int failed;

	if (!file) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	fprintf(file, "{\n  \"source\": \"testbed model %s\",\n  \"address_spaces\": [", model);
	for (const struct address_space *space = counters->spaces; space; space = space->next) {
		if (is_empty(&space->walks))
			continue;
		add_walks(&total, &space->walks);
		fprintf(file, "%s\n    {\"pgd_pfn\": %" PRIu32 ", ", comma, space->pgd_pfn);
		write_walks(file, &space->walks);
		fputs("}", file);
		comma = ",";
	}
	fputs("\n  ],\n  \"events\": {", file);
	write_walks(file, &total);
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

int counters_snapshot(const struct counters *counters, uint64_t label, uint64_t time_ns,
		      const uint64_t instructions[MODES], const char *path)
{
	static const char *const mode_names[MODES] = { "user", "kernel" };
	FILE *file = fopen(path, "a");
	int failed;

	if (!file) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	fprintf(file, "{\"label\": %" PRIu64 ", \"time_ns\": %" PRIu64, label, time_ns);
	for (int mode = 0; mode < MODES; mode++) {
		fprintf(file, ", \"%s\": {\"instructions\": %" PRIu64 ", ", mode_names[mode],
			instructions[mode]);
		write_walks(file, &counters->mode[mode]);
		fputs("}", file);
	}
	fputs("}\n", file);
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
