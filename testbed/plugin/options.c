/* SPDX-License-Identifier: GPL-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "options.h"

#define PAGE_MASK 4095u

static const struct {
	const char *key;
	size_t offset;
	bool is_path;
	bool required;
} keys[] = {
	{ "region_base", offsetof(struct options, region_base), false, true },
	{ "region_size", offsetof(struct options, region_size), false, true },
	{ "marker_bytes", offsetof(struct options, marker_bytes), false, false },
	{ "ram", offsetof(struct options, ram), true, true },
	{ "ram_size", offsetof(struct options, ram_size), false, true },
	{ "lowmem", offsetof(struct options, lowmem), false, true },
	{ "pf_entry", offsetof(struct options, pf_entry), false, true },
	{ "bus", offsetof(struct options, bus), true, true },
	{ "truth", offsetof(struct options, truth), true, true },
	{ "counters", offsetof(struct options, counters), true, true },
	{ "accesses", offsetof(struct options, accesses), true, false },
	{ "kernel_misses", offsetof(struct options, kernel_misses), true, false },
	{ "entry_begin", offsetof(struct options, entry_begin), false, false },
	{ "entry_end", offsetof(struct options, entry_end), false, false },
	{ "snapshots", offsetof(struct options, snapshots), true, false },
	{ "granularity", offsetof(struct options, granularity), false, false },
	{ "buffer", offsetof(struct options, buffer), false, false },
	{ "drain", offsetof(struct options, drain), false, false },
};

#define KEYS (sizeof(keys) / sizeof(keys[0]))

static const char *const psc_names[PSC_LEVELS] = { "pde", "pdpte", "pml4e" };

__attribute__((format(printf, 1, 2))) static int refuse(const char *format, ...)
{
	va_list arguments;

	fputs("ptat plugin: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	return -1;
}

static int parse_number(const char *key, const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 0);
	if (errno || end == text || *end || *text == '-')
		return refuse("%s=%s: expected a number (0x… for hexadecimal)", key, text);
	return 0;
}

/* <entries>x<ways>, a power of two of sets. */
static int parse_geometry(const char *key, const char *text, bool may_be_none, uint16_t *entries,
			  uint16_t *ways)
{
	unsigned e, w;
	char rest;

	if (may_be_none && !strcmp(text, "0x0")) {
		*entries = *ways = 0;
		return 0;
	}
	if (sscanf(text, "%ux%u%c", &e, &w, &rest) != 2 || !w || !e || e > UINT16_MAX || e % w ||
	    (e / w & (e / w - 1)))
		return refuse(
			"%s=%s: expected ENTRIESxWAYS with a power of two of sets, e.g. 64x4%s",
			key, text, may_be_none ? ", or 0x0 for none" : "");
	*entries = e;
	*ways = w;
	return 0;
}

static int parse_preset(struct options *options, const char *name)
{
	for (unsigned i = 0; i < cpu_models_count; i++) {
		if (!strcmp(cpu_models[i].name, name)) {
			options->model = cpu_models[i];
			return 0;
		}
	}
	fprintf(stderr, "ptat plugin: tlb=%s: unknown model; there are:", name);
	for (unsigned i = 0; i < cpu_models_count; i++)
		fprintf(stderr, " %s", cpu_models[i].name);
	fputc('\n', stderr);
	return -1;
}

static int parse_tlb_override(struct cpu_model *model, const char *key, const char *value)
{
	const char *name = key + strlen("tlb_");

	for (int i = 0; i < TLB_ARRAYS_MAX && model->tlb[i].name; i++)
		if (!strcmp(model->tlb[i].name, name))
			return parse_geometry(key, value, false, &model->tlb[i].entries,
					      &model->tlb[i].ways);
	fprintf(stderr, "ptat plugin: %s: model %s has no such TLB; it has:", key, model->name);
	for (int i = 0; i < TLB_ARRAYS_MAX && model->tlb[i].name; i++)
		fprintf(stderr, " tlb_%s", model->tlb[i].name);
	fputc('\n', stderr);
	return -1;
}

static int parse_psc_override(struct cpu_model *model, const char *key, const char *value)
{
	for (int i = 0; i < PSC_LEVELS; i++)
		if (!strcmp(psc_names[i], key + strlen("psc_")))
			return parse_geometry(key, value, true, &model->psc[i].entries,
					      &model->psc[i].ways);
	return refuse("%s: unknown paging-structure cache; there are psc_pde psc_pdpte psc_pml4e",
		      key);
}

static int parse_one(struct options *options, const char *key, const char *value, bool *seen)
{
	if (!strcmp(key, "tlb"))
		return 0; /* was first */
	if (!strncmp(key, "tlb_", 4))
		return parse_tlb_override(&options->model, key, value);
	if (!strncmp(key, "psc_", 4))
		return parse_psc_override(&options->model, key, value);
	for (size_t i = 0; i < KEYS; i++) {
		void *field = (char *)options + keys[i].offset;

		if (strcmp(keys[i].key, key))
			continue;
		seen[i] = true;
		if (!keys[i].is_path)
			return parse_number(key, value, field);
		*(char **)field = strdup(value);
		return *(char **)field ? 0 : refuse("out of memory");
	}
	return refuse("%s: unknown argument", key);
}

static int check(const struct options *o)
{
	uint64_t high_end = (UINT64_C(1) << 32) + o->ram_size - o->lowmem;
	uint64_t end = o->region_base + o->region_size;

	if (o->lowmem > o->ram_size || o->lowmem > UINT64_C(1) << 32)
		return refuse("lowmem is more than ram_size or 4 GiB");
	if (!o->region_size || (o->region_base | o->region_size) & PAGE_MASK)
		return refuse("region_base and region_size must be multiples of 4096, not empty");
	if (end < o->region_base ||
	    !(end <= o->lowmem || (o->region_base >= UINT64_C(1) << 32 && end <= high_end)))
		return refuse("the region does not lie in the guest's RAM");
	if (o->marker_bytes > o->region_size)
		return refuse("marker_bytes is more than region_size");
	if (o->granularity != 8 && o->granularity != 32 && o->granularity != 64)
		return refuse("granularity must be 8, 32 or 64 bytes");
	if (!o->buffer != !o->drain || o->buffer > UINT32_MAX || o->drain > UINT32_MAX)
		return refuse("buffer (records) and drain (records per second) go together");
	return 0;
}

int options_parse(struct options *options, int argc, char **argv)
{
	bool seen[KEYS] = { false };
	const char *preset = "skylake";

	memset(options, 0, sizeof(*options));
	options->marker_bytes = 64 << 10;
	options->granularity = 64;

	/* The model comes before its overrides, wherever it stands. */
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "tlb=", 4))
			preset = argv[i] + 4;
	if (parse_preset(options, preset))
		return -1;
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			return refuse("%s: expected key=value", argv[i]);
		*value = 0;
		if (parse_one(options, argv[i], value + 1, seen))
			return -1;
	}
	for (size_t i = 0; i < KEYS; i++)
		if (keys[i].required && !seen[i])
			return refuse("argument %s= is missing", keys[i].key);
	return check(options);
}
