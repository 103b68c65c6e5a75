/* SPDX-License-Identifier: GPL-2.0 */
#include "options.h"
#include "test.h"

#define ARGUMENTS_MAX 32

/* A good set of arguments, separated by spaces; @more comes after and may override. */
static int parse(struct options *options, const char *leave_out, const char *more)
{
	char text[1024], *argument[ARGUMENTS_MAX], *save = NULL;
	int count = 0;

	snprintf(text, sizeof(text),
		 "region_base=0x10000000 region_size=0x2000000 ram=/ram ram_size=0x100000000 "
		 "lowmem=0x80000000 pf_entry=0xffffffff81601190 bus=/bus truth=/truth "
		 "counters=/counters %s",
		 more);
	for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
		if (!leave_out || strncmp(word, leave_out, strlen(leave_out)))
			argument[count++] = word;
	return options_parse(options, count, argument);
}

static void options_release(struct options *options)
{
	free(options->ram);
	free(options->bus);
	free(options->truth);
	free(options->counters);
	free(options->kernel_misses);
}

static void test_good(void)
{
	struct options options;

	CHECK(!parse(&options, NULL, ""));
	CHECK_EQUAL(options.region_base, 0x10000000);
	CHECK_EQUAL(options.region_size, 0x2000000);
	CHECK_EQUAL(options.marker_bytes, 65536);
	CHECK_EQUAL(options.granularity, 64);
	CHECK_EQUAL(options.pf_entry, 0xffffffff81601190);
	CHECK_EQUAL(options.buffer, 0);
	CHECK(!options.kernel_misses);
	CHECK(!strcmp(options.ram, "/ram") && !strcmp(options.counters, "/counters"));
	CHECK(!strcmp(options.model.name, "skylake"));
	options_release(&options);

	/* Above 4 GiB; overrides may come before the model; all caches of a level may go. */
	CHECK(!parse(&options, NULL,
		     "region_base=0x100000000 tlb_stlb=1024x8 psc_pde=0x0 tlb=ivybridge-ep "
		     "granularity=8 buffer=4096 drain=1000000"));
	CHECK(!strcmp(options.model.name, "ivybridge-ep"));
	CHECK_EQUAL(options.model.tlb[5].entries, 1024);
	CHECK_EQUAL(options.model.tlb[5].ways, 8);
	CHECK_EQUAL(options.model.psc[0].entries, 0);
	CHECK_EQUAL(options.granularity, 8);
	CHECK_EQUAL(options.drain, 1000000);
	options_release(&options);

	CHECK(!parse(&options, NULL, "kernel_misses=/misses entry_begin=0x1000 entry_end=0x2000"));
	CHECK(!strcmp(options.kernel_misses, "/misses"));
	CHECK_EQUAL(options.entry_begin, 0x1000);
	CHECK_EQUAL(options.entry_end, 0x2000);
	options_release(&options);
}

static void refused(const char *leave_out, const char *more, const char *message)
{
	struct options options;
	int result;

	expect_message();
	result = parse(&options, leave_out, more);
	check_message(message);
	CHECK_EQUAL(result, -1);
	options_release(&options);
}

static void test_bad(void)
{
	refused("truth", "", "ptat plugin: argument truth= is missing\n");
	refused(NULL, "speed=5", "ptat plugin: speed: unknown argument\n");
	refused(NULL, "speed", "ptat plugin: speed: expected key=value\n");
	refused(NULL, "ram_size=1G", "ram_size=1G: expected a number (0x… for hexadecimal)\n");
	refused(NULL, "ram_size=-1", "ram_size=-1: expected a number (0x… for hexadecimal)\n");
	refused(NULL, "ram_size=", "ram_size=: expected a number (0x… for hexadecimal)\n");
	refused(NULL, "granularity=16", "granularity must be 8, 32 or 64 bytes\n");
	refused(NULL, "region_base=0x10000001",
		"region_base and region_size must be multiples of 4096, not empty\n");
	refused(NULL, "region_size=0",
		"region_base and region_size must be multiples of 4096, not empty\n");
	/* Across the hole below 4 GiB, past the end of RAM, wrapping around. */
	refused(NULL, "region_base=0x7f000000", "the region does not lie in the guest's RAM\n");
	refused(NULL, "region_base=0x17f000000", "the region does not lie in the guest's RAM\n");
	refused(NULL, "region_base=0xfffffffffffff000",
		"the region does not lie in the guest's RAM\n");
	refused(NULL, "lowmem=0x200000000", "lowmem is more than ram_size or 4 GiB\n");
	refused(NULL, "marker_bytes=0x3000000", "marker_bytes is more than region_size\n");
	refused(NULL, "buffer=100",
		"buffer (records) and drain (records per second) go together\n");
	refused(NULL, "tlb=pentium",
		"tlb=pentium: unknown model; there are: ivybridge-ep skylake zen4\n");
	refused(NULL, "tlb_l3=64x4",
		"tlb_l3: model skylake has no such TLB; it has: tlb_l1d tlb_l1d_2m tlb_l1d_1g "
		"tlb_l1i tlb_l1i_2m tlb_stlb tlb_stlb_1g\n");
	refused(NULL, "tlb_l1d=60x4",
		"expected ENTRIESxWAYS with a power of two of sets, e.g. 64x4\n");
	refused(NULL, "tlb_l1d=64",
		"expected ENTRIESxWAYS with a power of two of sets, e.g. 64x4\n");
	refused(NULL, "tlb_l1d=0x0",
		"expected ENTRIESxWAYS with a power of two of sets, e.g. 64x4\n");
	refused(NULL, "psc_pde=3x2",
		"expected ENTRIESxWAYS with a power of two of sets, e.g. 64x4, or 0x0 for none\n");
	refused(NULL, "psc_pte=4x4",
		"psc_pte: unknown paging-structure cache; there are psc_pde psc_pdpte psc_pml4e\n");
}

int main(void)
{
	test_good();
	test_bad();
	return 0;
}
