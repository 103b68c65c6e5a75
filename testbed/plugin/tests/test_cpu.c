/* SPDX-License-Identifier: GPL-2.0 */
/* One or two vCPUs over hand-made tables: what they put on the bus and into truth and counters. */
#include "capture.h"
#include "queue.h"
#include "stream.h"

#define PAGE	    UINT64_C(4096)
#define RAM_PAGES   64
#define TABLE	    (PTE_PRESENT | PTE_WRITE | PTE_USER | PTE_ACCESSED | PTE_DIRTY)
#define REGION_PAGE 32 /* the region: pages 32 to 47, markers in the first */
#define REGION	    (REGION_PAGE * PAGE)
#define KERNEL_VA   UINT64_C(0xffff800000000000)
#define TOGGLE_PAE  (CR4_PAE | CR4_PGE)

static uint64_t memory[RAM_PAGES][512];

static const struct guest_ram ram = {
	.base = (const uint8_t *)memory,
	.size_bytes = sizeof(memory),
	.lowmem_bytes = sizeof(memory),
};

static struct options options;
static struct capture capture;
static char *kernel_misses; /* file for start(); NULL: none */
static struct cpu cpu, other;

static void set_entry(unsigned page, unsigned index, uint64_t entry)
{
	memory[page][index] = entry;
}

/*
 * PGD page 1, PUD page 2, PMD page 34 and PTE tables pages 35, 36 in the region for user
 * addresses from 0; PGD page 5 is another process with PTE table 37. Kernel: PUD 6, PMD 7,
 * PTE table 8 maps the region's 16 pages; its entry 100 is a global page.
 */
static void make_tables(void)
{
	memset(memory, 0, sizeof(memory));
	set_entry(1, 0, 2 * PAGE | TABLE);
	set_entry(2, 0, 34 * PAGE | TABLE);
	set_entry(34, 0, 35 * PAGE | TABLE);
	set_entry(34, 1, 36 * PAGE | TABLE);
	for (unsigned i = 0; i < 512; i++) {
		set_entry(35, i, (0x1000 + i) * PAGE | TABLE);
		set_entry(36, i, (0x2000 + i) * PAGE | TABLE);
	}
	set_entry(5, 0, 9 * PAGE | TABLE);
	set_entry(9, 0, 38 * PAGE | TABLE);
	set_entry(38, 0, 37 * PAGE | TABLE);
	set_entry(37, 1, 0x3001 * PAGE | TABLE);

	set_entry(1, 256, 6 * PAGE | TABLE);
	set_entry(5, 256, 6 * PAGE | TABLE);
	set_entry(6, 0, 7 * PAGE | TABLE);
	set_entry(7, 0, 8 * PAGE | TABLE);
	for (unsigned i = 0; i < 16; i++)
		set_entry(8, i, (REGION + i * PAGE) | TABLE);
	set_entry(8, 100, 0x4000 * PAGE | TABLE | PTE_GLOBAL);
}

static void start(unsigned granularity)
{
	make_tables();
	options = (struct options){
		.region_base = REGION,
		.region_size = 16 * PAGE,
		.marker_bytes = PAGE,
		.bus = strdup(path_of("cpu.raw")),
		.truth = strdup(path_of("cpu.truth")),
		.counters = strdup(path_of("cpu.json")),
		.kernel_misses = kernel_misses,
		.granularity = granularity,
		.model = cpu_models[1],
	};
	CHECK(!capture_open(&capture, &options, &ram));
	cpu_init(&cpu, 0, &options.model, &capture);
	cpu_init(&other, 1, &options.model, &capture);
	for (int i = 0; i < 2; i++) {
		struct cpu *each = i ? &other : &cpu;

		cpu_write_cr4(each, TOGGLE_PAE);
		cpu_write_cr3(each, 1 * PAGE);
		cpu_write_cr0(each, CR0_PG);
	}
	capture_start(&capture);
}

#define TRUTHS_MAX 4096

static struct truth_walk truth[TRUTHS_MAX];
static size_t truths;
static struct stream bus;
static char json[65536];

static void finish(void)
{
	FILE *file;

	capture_stop(&capture);
	capture_close(&capture);
	cpu_free(&cpu);
	cpu_free(&other);
	free(bus.record);
	bus = read_stream(options.bus);
	CHECK(bus.records >= 2);
	CHECK_EQUAL(bus.record[0].value, UINT64_C(1) << 28);
	CHECK_EQUAL(bus.record[bus.records - 1].value, UINT64_C(2) << 28);
	truths = read_truth(options.truth, truth, TRUTHS_MAX);
	file = fopen(options.counters, "r");
	CHECK(file);
	json[fread(json, 1, sizeof(json) - 1, file)] = 0;
	fclose(file);
	free(options.bus);
	free(options.truth);
	free(options.counters);
}

/* The value of the first "name": in counters.json after @section. */
static uint64_t counter(const char *section, const char *name)
{
	const char *at = strstr(json, section);
	char quoted[128];

	CHECK(at);
	snprintf(quoted, sizeof(quoted), "\"%s\": ", name);
	at = strstr(at, quoted);
	CHECK(at);
	return strtoull(at + strlen(quoted), NULL, 10);
}

static uint64_t load(uint64_t va)
{
	return cpu_translate(&cpu, va, PTAT_TRUTH_CAUSE_LOAD, false);
}

static uint64_t store(uint64_t va)
{
	return cpu_translate(&cpu, va, PTAT_TRUTH_CAUSE_STORE, false);
}

static void test_walks(void)
{
	start(8);
	CHECK(load(0x1abc));
	CHECK(load(0x1000));
	CHECK(store(0x2008));
	CHECK(cpu_translate(&other, 0x200000, PTAT_TRUTH_CAUSE_FETCH, true));
	finish();

	/* PMD and leaf, leaf (the PDE is cached), the other CPU's PMD and leaf. */
	CHECK_EQUAL(bus.records, 7);
	CHECK_EQUAL(bus.record[1].value, 34 * PAGE);
	CHECK_EQUAL(bus.record[2].value, 35 * PAGE + 8);
	CHECK_EQUAL(bus.record[3].value, 35 * PAGE + 16);
	CHECK_EQUAL(bus.record[4].value, 34 * PAGE + 8);
	CHECK_EQUAL(bus.record[5].value, 36 * PAGE);
	CHECK_EQUAL(truths, 3);
	CHECK_EQUAL(truth[0].time_ns, bus.record[2].time_ns);
	CHECK_EQUAL(truth[0].va, 0x1000);
	CHECK_EQUAL(truth[0].pgd_pfn, 1);
	CHECK_EQUAL(truth[0].shift, 12);
	CHECK_EQUAL(truth[0].cause, 0);
	CHECK_EQUAL(truth[0].flags, 2 | 8);
	CHECK_EQUAL(truth[1].time_ns, bus.record[3].time_ns);
	CHECK_EQUAL(truth[1].cause, 1);
	CHECK_EQUAL(truth[1].flags, 2);
	CHECK_EQUAL(truth[2].time_ns, bus.record[5].time_ns);
	CHECK_EQUAL(truth[2].cause, 2);
	CHECK_EQUAL(truth[2].flags, 2 | 4 | 8);
	CHECK_EQUAL(truth[2].cpu, 1);
	CHECK_EQUAL(counter("address_spaces", "pgd_pfn"), 1);
	CHECK_EQUAL(counter("address_spaces", "dtlb_load_misses.walk_completed"), 1);
	CHECK_EQUAL(counter("address_spaces", "dtlb_store_misses.walk_completed_4k"), 1);
	CHECK_EQUAL(counter("address_spaces", "itlb_misses.walk_completed"), 1);
	CHECK_EQUAL(counter("events", "itlb_misses.walk_completed_4k"), 1);
	CHECK_EQUAL(counter("region", "walker_leaf_reads"), 3);
	CHECK_EQUAL(counter("region", "walker_pmd_reads"), 2);
	CHECK_EQUAL(counter("region", "walks_without_accessed_bit"), 0);
}

static void test_large_page(void)
{
	start(64);
	set_entry(34, 1, UINT64_C(0x40000000) | TABLE | PTE_LARGE);
	load(0x200000);
	load(0x3ff000);
	finish();
	CHECK_EQUAL(bus.records, 3);
	CHECK_EQUAL(bus.record[1].value, 34 * PAGE);
	CHECK_EQUAL(truths, 1);
	CHECK_EQUAL(truth[0].shift, 21);
	CHECK_EQUAL(truth[0].flags, 2);
	CHECK_EQUAL(counter("events", "dtlb_load_misses.walk_completed_2m_4m"), 1);
	CHECK_EQUAL(counter("region", "walker_leaf_reads"), 1);
}

/* Tables outside the region: in the truth, not on the bus. Kernel addresses: in neither. */
static void test_outside_region(void)
{
	start(8);
	set_entry(2, 1, 10 * PAGE | TABLE);
	set_entry(10, 0, 11 * PAGE | TABLE);
	set_entry(11, 0, 0x5000 * PAGE | TABLE);
	load(0x40000000);
	cpu_translate(&cpu, KERNEL_VA + 100 * PAGE, PTAT_TRUTH_CAUSE_LOAD, true);
	load(0x1000);
	finish();
	CHECK_EQUAL(bus.records, 4);
	CHECK_EQUAL(truths, 2);
	CHECK_EQUAL(truth[0].flags, 0);
	CHECK(truth[0].time_ns > bus.record[0].time_ns && truth[0].time_ns < bus.record[1].time_ns);
	CHECK_EQUAL(counter("events", "dtlb_load_misses.walk_completed"), 2);
}

/* At kernel and at user addresses; neither hits nor walks that end in a fault. */
static void test_kernel_code(void)
{
	const struct kernel_misses *written = &capture.kernel_misses;

	kernel_misses = strdup(path_of("cpu.kernel_misses"));
	start(8);
	load(0x1000);
	CHECK_EQUAL(written->count, 0);
	cpu.address = 0xffffffff81000000;
	cpu_translate(&cpu, KERNEL_VA + 100 * PAGE, PTAT_TRUTH_CAUSE_LOAD, true);
	CHECK_EQUAL(written->count, 1);
	cpu_translate(&cpu, KERNEL_VA + 100 * PAGE, PTAT_TRUTH_CAUSE_LOAD, true);
	cpu_translate(&cpu, 0x1000, PTAT_TRUTH_CAUSE_LOAD, true);
	CHECK_EQUAL(written->count, 1);
	cpu_translate(&cpu, 0x2000, PTAT_TRUTH_CAUSE_STORE, true);
	CHECK_EQUAL(written->count, 2);
	set_entry(35, 3, 0);
	cpu_page_fault(&cpu, 0x3000, PTAT_TRUTH_CAUSE_LOAD, true, false);
	CHECK_EQUAL(written->count, 2);
	cpu.address = 0xffffffff81000004;
	cpu_translate(&cpu, 0x4000, PTAT_TRUTH_CAUSE_LOAD, true);
	CHECK_EQUAL(written->count, 3);
	CHECK_EQUAL(written->places, 2);
	finish();
	CHECK_EQUAL(written->count, 3); /* nothing after the end */
	CHECK_EQUAL(truths, 4);
	free(kernel_misses);
	kernel_misses = NULL;
}

/* Walks of the kernel count, too, whatever they were for; and who took them is kept apart. */
static void test_snapshots(void)
{
	const uint64_t instructions[MODES] = { 70, 30 };
	FILE *file;

	start(8);
	options.snapshots = strdup(path_of("cpu.snapshots"));
	remove(options.snapshots);
	load(0x1000);
	store(0x2000);
	cpu_translate(&cpu, 0x3000, PTAT_TRUTH_CAUSE_STORE, true);
	cpu_translate(&cpu, KERNEL_VA + 100 * PAGE, PTAT_TRUTH_CAUSE_LOAD, true);
	cpu_translate(&cpu, KERNEL_VA, PTAT_TRUTH_CAUSE_FETCH, false);
	cpu_page_fault(&cpu, 0x4000, PTAT_TRUTH_CAUSE_LOAD, false, true);
	capture_snapshot(&capture, 7, instructions);
	capture_snapshot(&capture, 8, instructions);
	finish();

	file = fopen(options.snapshots, "r");
	CHECK(file);
	CHECK(fgets(json, sizeof(json), file));
	CHECK_EQUAL(counter("", "label"), 7);
	CHECK_EQUAL(counter("user", "instructions"), 70);
	CHECK_EQUAL(counter("user", "dtlb_load_misses.walk_completed"), 1);
	CHECK_EQUAL(counter("user", "dtlb_load_misses.walk_faulted"), 1);
	CHECK_EQUAL(counter("user", "dtlb_store_misses.walk_completed_4k"), 1);
	CHECK_EQUAL(counter("user", "itlb_misses.walk_completed"), 0);
	CHECK_EQUAL(counter("kernel", "instructions"), 30);
	CHECK_EQUAL(counter("kernel", "dtlb_load_misses.walk_completed"), 1);
	CHECK_EQUAL(counter("kernel", "dtlb_store_misses.walk_completed"), 1);
	CHECK_EQUAL(counter("kernel", "itlb_misses.walk_completed"), 1);
	CHECK(fgets(json, sizeof(json), file));
	CHECK_EQUAL(counter("", "label"), 8);
	CHECK(!fgets(json, sizeof(json), file));
	fclose(file);
	free(options.snapshots);
}

static void test_faults(void)
{
	start(8);
	set_entry(35, 1, 0);
	CHECK(load(0x2000)); /* the PDE is cached from here on */
	cpu_page_fault(&cpu, 0x1004, PTAT_TRUTH_CAUSE_STORE, false, false);
	cpu_page_fault(&cpu, 0x1004, PTAT_TRUTH_CAUSE_STORE, false, false); /* not cached */
	set_entry(35, 1, 0x1001 * PAGE | TABLE);
	CHECK(store(0x1004));

	/* A table that is not there; a level above the region; a kernel address. */
	set_entry(34, 5, 0);
	cpu_page_fault(&cpu, 0xa00000, PTAT_TRUTH_CAUSE_LOAD, true, false);
	cpu_page_fault(&cpu, UINT64_C(1) << 39, PTAT_TRUTH_CAUSE_FETCH, false, false);
	cpu_page_fault(&cpu, KERNEL_VA, PTAT_TRUTH_CAUSE_LOAD, true, false);

	/* A violation drops the translation, though the tables have not changed. */
	cpu_page_fault(&cpu, 0x2000, PTAT_TRUTH_CAUSE_STORE, false, true);
	CHECK(load(0x2000));
	finish();
	CHECK_EQUAL(truths, 8);
	CHECK_EQUAL(truth[1].flags, 1 | 2);
	CHECK_EQUAL(truth[1].shift, 12);
	CHECK_EQUAL(truth[1].time_ns, bus.record[3].time_ns);
	CHECK_EQUAL(bus.record[3].value, 35 * PAGE + 8);
	CHECK_EQUAL(truth[2].flags, 1 | 2);
	CHECK_EQUAL(truth[3].flags, 2);
	CHECK_EQUAL(truth[4].flags, 1 | 2 | 4);
	CHECK_EQUAL(truth[4].shift, 21);
	CHECK_EQUAL(bus.record[6].value, 34 * PAGE + 40);
	CHECK_EQUAL(truth[5].flags, 1);
	CHECK_EQUAL(truth[5].shift, 39);
	CHECK_EQUAL(truth[5].cause, 2);
	CHECK_EQUAL(truth[6].flags, 1 | 2);
	CHECK_EQUAL(truth[7].flags, 2);
	CHECK_EQUAL(counter("events", "dtlb_store_misses.walk_faulted"), 3);
	CHECK_EQUAL(counter("events", "dtlb_store_misses.walk_completed"), 1);
	CHECK_EQUAL(counter("events", "itlb_misses.walk_faulted"), 1);
	CHECK_EQUAL(counter("model", "races"), 0);
}

/* A PMD entry that another vCPU has cleared, and that this one still has cached. */
static void test_faults_of_what_is_cached(void)
{
	start(8);
	CHECK(load(0x2000));
	set_entry(35, 1, 0);
	cpu_page_fault(&cpu, 0x1000, PTAT_TRUTH_CAUSE_LOAD, false, false); /* the cache is right */
	set_entry(34, 0, 0);
	cpu_page_fault(&cpu, 0x3000, PTAT_TRUTH_CAUSE_STORE, false, true);
	cpu_page_fault(&cpu, 0x3000, PTAT_TRUTH_CAUSE_LOAD, false, false);
	cpu_page_fault(&cpu, 0x3000, PTAT_TRUTH_CAUSE_LOAD, false, false);
	finish();
	CHECK_EQUAL(truths, 5);
	CHECK_EQUAL(truth[1].shift, 12);
	CHECK_EQUAL(truth[2].shift, 12);
	for (int i = 3; i < 5; i++) {
		CHECK_EQUAL(truth[i].flags, 1 | 2);
		CHECK_EQUAL(truth[i].shift, 21);
	}
	/* START, both tables for the first walk, then the last of each. */
	CHECK_EQUAL(bus.records, 8);
	CHECK_EQUAL(bus.record[3].value, 35 * PAGE + 8);
	CHECK_EQUAL(bus.record[4].value, 35 * PAGE + 24);
	CHECK_EQUAL(bus.record[5].value, 34 * PAGE);
	CHECK_EQUAL(bus.record[6].value, 34 * PAGE);
}

/* An access that succeeded, but the tables deny it by now. */
static void test_races(void)
{
	start(8);
	set_entry(35, 1, 0);
	CHECK_EQUAL(load(0x1000), 0);
	set_entry(35, 2, 0x1002 * PAGE | PTE_PRESENT | PTE_USER);
	store(0x2000);
	set_entry(35, 3, 0x1003 * PAGE | TABLE | PTE_NX);
	cpu_translate(&cpu, 0x3000, PTAT_TRUTH_CAUSE_FETCH, false);
	finish();
	CHECK_EQUAL(truths, 3);
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(truth[i].flags & ~8, 16 | 2);
	CHECK_EQUAL(counter("model", "races"), 3);
}

/* Rights that only grow need no flush by the kernel: the walker finds them. */
static void test_new_rights(void)
{
	start(8);
	set_entry(35, 1, 0x1001 * PAGE | PTE_PRESENT | PTE_USER | PTE_ACCESSED);
	load(0x1000);
	set_entry(35, 1, 0x1001 * PAGE | TABLE);
	CHECK(load(0x1000));
	CHECK(store(0x1000));
	CHECK(store(0x1000));
	finish();
	CHECK_EQUAL(truths, 2);
	CHECK_EQUAL(truth[1].cause, 1);
}

/* Walks that loads of the given addresses need. */
static unsigned walks_of(uint64_t first, uint64_t second)
{
	const uint64_t *count =
		&counters_space(&capture.counters, 1)->walks.completed[PTAT_TRUTH_CAUSE_LOAD];
	uint64_t before = *count;

	load(first);
	load(second);
	return *count - before;
}

static bool global_hits(void)
{
	return tlb_lookup(&cpu.tlb, TLB_DATA, KERNEL_VA + 100 * PAGE, 0);
}

static void load_global(void)
{
	cpu_translate(&cpu, KERNEL_VA + 100 * PAGE, PTAT_TRUTH_CAUSE_LOAD, true);
	CHECK(global_hits());
}

static void test_flushes_without_pcid(void)
{
	start(8);
	load_global();
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 0);
	cpu_invlpg(&cpu, 0x1000);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 1);
	CHECK(global_hits());
	cpu_invlpg(&cpu, KERNEL_VA + 100 * PAGE);
	CHECK(!global_hits());
	load_global();

	cpu_write_cr3(&cpu, 1 * PAGE);
	CHECK(global_hits());
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	/* Without PCIDs bit 63 and the low bits mean nothing. */
	cpu_write_cr3(&cpu, 1 * PAGE | CR3_KEEP | 7);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);

	cpu_write_cr4(&cpu, TOGGLE_PAE);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 0);
	cpu_write_cr4(&cpu, CR4_PAE);
	CHECK(!global_hits());
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	cpu_write_cr0(&cpu, 0);
	CHECK_EQUAL(load(0x1000), 0);
	cpu_write_cr0(&cpu, CR0_PG);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);

	/* INVLPG drops the whole PDE cache: the next walk reads the PMD entry again. */
	CHECK_EQUAL(capture.counters.walker_pmd_reads, 6);
	cpu_invlpg(&cpu, 0x7000);
	CHECK_EQUAL(walks_of(0x1000, 0x3000), 1);
	CHECK_EQUAL(capture.counters.walker_pmd_reads, 7);
	finish();
}

static void test_flushes_with_pcid(void)
{
	const uint64_t first = 1 * PAGE | 1, second = 1 * PAGE | 2;

	start(8);
	cpu_write_cr4(&cpu, TOGGLE_PAE | CR4_PCIDE);
	cpu_write_cr3(&cpu, first);
	load_global();
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	cpu_write_cr3(&cpu, second);
	CHECK(global_hits());
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);

	/* Keep, then flush the first; the second stays. */
	cpu_write_cr3(&cpu, first | CR3_KEEP);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 0);
	cpu_write_cr3(&cpu, first);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	cpu_write_cr3(&cpu, second | CR3_KEEP);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 0);

	/* One address, of another PCID and of this. */
	cpu_invpcid(&cpu, 0, 1, 0x1000);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 0);
	cpu_invpcid(&cpu, 0, 2, 0x1000);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 1);
	cpu_invlpg(&cpu, 0x2000);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 1);
	/* One PCID. */
	cpu_invpcid(&cpu, 1, 1, 0);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 0);
	cpu_invpcid(&cpu, 1, 2, 0);
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	CHECK(global_hits());
	/* All but global, then all. */
	cpu_invpcid(&cpu, 3, 0, 0);
	CHECK(global_hits());
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);
	cpu_invpcid(&cpu, 2, 0, 0);
	CHECK(!global_hits());
	CHECK_EQUAL(walks_of(0x1000, 0x2000), 2);

	/* Another process under a PCID of its own. */
	cpu_write_cr3(&cpu, 5 * PAGE | 3);
	load(0x1000);
	cpu_write_cr4(&cpu, TOGGLE_PAE);
	finish();
	CHECK_EQUAL(truth[truths - 1].pgd_pfn, 5);
	CHECK_EQUAL(bus.record[bus.records - 2].value, 37 * PAGE + 8);
}

static void cpu_to_region(uint64_t offset, unsigned bytes, bool is_store, bool locked)
{
	uint64_t va = KERNEL_VA + offset;
	uint8_t cause = is_store ? PTAT_TRUTH_CAUSE_STORE : PTAT_TRUTH_CAUSE_LOAD;

	CHECK(cpu_translate(&cpu, va, cause, true) & KEY_REGION);
	CHECK(!tlb_hit_fast(&cpu.tlb, va, 0));
	cpu_region_access(&cpu, va, bytes, is_store, locked);
}

static void test_cpu_accesses(void)
{
	start(8);
	cpu_to_region(64, 8, true, false);	      /* a marker */
	cpu_to_region(3 * PAGE + 24, 8, true, false); /* an entry */
	cpu_to_region(3 * PAGE + 32, 32, true, false);
	cpu_to_region(3 * PAGE + 44, 4, false, false);
	cpu_to_region(3 * PAGE + 48, 8, false, true); /* lock: load, then store */
	cpu_to_region(3 * PAGE + 48, 8, true, true);
	CHECK_EQUAL(cpu_translate(&cpu, KERNEL_VA + 100 * PAGE, 0, true) & KEY_REGION, 0);
	finish();
	CHECK_EQUAL(bus.records, 2 + 1 + 1 + 4 + 1 + 2);
	CHECK_EQUAL(bus.record[1].value, REGION + 64);
	CHECK(bus.record[1].write);
	CHECK_EQUAL(bus.record[2].value, REGION + 3 * PAGE + 24);
	CHECK_EQUAL(bus.record[6].value, REGION + 3 * PAGE + 56);
	CHECK_EQUAL(bus.record[7].value, REGION + 3 * PAGE + 40);
	CHECK(!bus.record[7].write && !bus.record[8].write && bus.record[9].write);
	CHECK_EQUAL(counter("region", "cpu_marker_stores"), 1);
	CHECK_EQUAL(counter("region", "cpu_entry_stores"), 2);
	CHECK_EQUAL(counter("region", "cpu_loads"), 1);
	CHECK_EQUAL(counter("region", "cpu_locked"), 1);

	/* On a bus of 64-byte bursts 32 bytes are one access. */
	start(64);
	cpu_to_region(3 * PAGE + 32, 32, true, false);
	finish();
	CHECK_EQUAL(bus.records, 3);
	CHECK_EQUAL(bus.record[1].value, REGION + 3 * PAGE);
}

/* The kernel's mirror must pre-set ACCESSED, and DIRTY where a store may come. */
static void test_hardware_writes(void)
{
	start(8);
	set_entry(35, 1, (0x1001 * PAGE | TABLE) & ~PTE_ACCESSED);
	cpu_to_region(3 * PAGE + 8, 8, true, false);
	set_entry(35, 1, 0x1001 * PAGE | TABLE); /* as QEMU's own walker does, unseen */
	load(0x1000);
	CHECK_EQUAL(capture.counters.walks_without_accessed_bit, 1);

	set_entry(35, 2, (0x1002 * PAGE | TABLE) & ~PTE_DIRTY);
	cpu_to_region(3 * PAGE + 16, 8, true, false);
	load(0x2000);
	CHECK_EQUAL(capture.counters.walks_without_accessed_bit, 1);
	store(0x2000);
	CHECK_EQUAL(capture.counters.walks_without_accessed_bit, 2);

	/* Stored again as it should be. */
	cpu_invlpg(&cpu, 0x1000);
	cpu_to_region(3 * PAGE + 8, 8, true, false);
	load(0x1000);
	finish();
	CHECK_EQUAL(counter("region", "walks_without_accessed_bit"), 2);
}

/* Before START and after STOP the model runs, but nothing is recorded. */
static void test_outside_recording(void)
{
	start(8);
	load(0x1000);
	capture_stop(&capture);
	load(0x2000);
	cpu_to_region(3 * PAGE, 8, true, false);
	capture_start(&capture);
	load(0x2000);
	load(0x3000);
	finish();
	CHECK_EQUAL(truths, 2);
	CHECK_EQUAL(truth[0].va, 0x1000);
	CHECK_EQUAL(truth[1].va, 0x3000);
	CHECK_EQUAL(bus.records, 2 + 2 + 1 + 2);
	CHECK_EQUAL(counter("region", "cpu_entry_stores"), 0);
}

enum how { DIRECT, QUEUED, THREADED };

static struct cpu *drained(struct queue *queue)
{
	queue_drain(queue);
	return &cpu;
}

static void user_access(struct queue *queue, enum how how, uint64_t va, uint8_t cause,
			uint64_t size_shift)
{
	uint64_t last = va + BIT_U64(size_shift) - 1;

	if (how == DIRECT) {
		cpu_translate(&cpu, va, cause, false);
		if (va / PAGE != last / PAGE)
			cpu_translate(&cpu, last, cause, false);
	} else if (cause == PTAT_TRUTH_CAUSE_FETCH) {
		queue_put(queue, va | BATCH_FETCH);
	} else {
		queue_put(queue,
			  va | size_shift << BATCH_SIZE_SHIFT |
				  (cause == PTAT_TRUTH_CAUSE_STORE ? BATCH_STORE : BATCH_LOAD));
	}
}

/* A load and a store there. */
static void user_modify(struct queue *queue, enum how how, uint64_t va, uint64_t size_shift)
{
	if (how == DIRECT) {
		user_access(queue, how, va, PTAT_TRUTH_CAUSE_LOAD, size_shift);
		user_access(queue, how, va, PTAT_TRUTH_CAUSE_STORE, size_shift);
	} else {
		queue_put(queue, va | size_shift << BATCH_SIZE_SHIFT | BATCH_MODIFY | BATCH_STORE);
	}
}

/* A store there would not have succeeded. */
static bool is_read_only(uint64_t va)
{
	return !(memory[35 + va / PAGE / 512][va / PAGE % 512] & PTE_WRITE);
}

#define BUSY_STEPS   5000
#define RANDOM_STEPS (BUSY_STEPS + 3 * QUEUE_BATCHES * BATCH_ACCESSES)

/*
 * Loads, stores, fetches, faults and flushes at random, then only what can be queued, more than the
 * queue can hold. Often the same page is meant again.
 */
static void random_run(enum how how)
{
	static struct queue queue;
	uint64_t state = 1, va = 0;

	start(8);
	queue_init(&queue, &cpu, how == THREADED);
	for (int i = 0; i < RANDOM_STEPS; i++) {
		uint8_t cause = test_random(&state) % 2;
		uint64_t size_shift = test_random(&state) % 7;

		if (test_random(&state) % 2)
			va = test_random(&state) % (1023 * PAGE);
		if (test_random(&state) % 16 == 0)
			va |= PAGE - 1 - test_random(&state) % 8; /* often on to the next page */
		if (is_read_only(va) || is_read_only(va + BIT_U64(size_shift) - 1))
			cause = PTAT_TRUTH_CAUSE_LOAD;
		switch (test_random(&state) % (i < BUSY_STEPS ? 64 : 16)) {
		case 0:
		case 1:
			user_access(&queue, how, va, PTAT_TRUTH_CAUSE_FETCH, 0);
			break;
		case 16:
			cpu_page_fault(drained(&queue), va, PTAT_TRUTH_CAUSE_LOAD, false, true);
			break;
		case 17:
			cpu_invlpg(drained(&queue), va);
			break;
		case 18:
			/* As the kernel does, which is fetched first. */
			cpu_translate(drained(&queue), KERNEL_VA, PTAT_TRUTH_CAUSE_FETCH, true);
			memory[35 + va / PAGE / 512][va / PAGE % 512] ^= PTE_WRITE;
			cpu_invlpg(&cpu, va);
			break;
		default:
			if (cause == PTAT_TRUTH_CAUSE_STORE && test_random(&state) % 2)
				user_modify(&queue, how, va, size_shift);
			else
				user_access(&queue, how, va, cause, size_shift);
		}
	}
	queue_drain(&queue);
	queue_free(&queue);
	finish();
}

static void test_queue(void)
{
	static struct truth_walk before[TRUTHS_MAX];
	struct stream bus_before;
	size_t count;

	random_run(DIRECT);
	count = truths;
	CHECK(count > 1000 && count < TRUTHS_MAX);
	memcpy(before, truth, sizeof(before));
	bus_before = bus;
	bus = (struct stream){ 0 };

	for (enum how how = QUEUED; how <= THREADED; how++) {
		random_run(how);
		CHECK_EQUAL(truths, count);
		for (size_t i = 0; i < count; i++) {
			CHECK_EQUAL(truth[i].va, before[i].va);
			CHECK_EQUAL(truth[i].cause, before[i].cause);
			CHECK_EQUAL(truth[i].flags, before[i].flags);
			CHECK_EQUAL(truth[i].shift, before[i].shift);
		}
		CHECK_EQUAL(bus.records, bus_before.records);
		for (size_t i = 0; i < bus.records; i++)
			CHECK_EQUAL(bus.record[i].value, bus_before.record[i].value);
	}
	free(bus_before.record);
}

/* The walks of a batch lie between its begin and its end, in proportion. */
static void test_batch_times(void)
{
	static struct batch batch;
	uint64_t begin_ns;

	start(8);
	begin_ns = capture_clock_ns();
	batch.begin_ns = begin_ns;
	batch.end_ns = begin_ns + 4000;
	batch.accesses = 4;
	for (unsigned i = 0; i < 4; i++)
		batch.access[i] = (i * 0x1000) | BATCH_LOAD;
	cpu_model_batch(&cpu, &batch);
	finish();
	CHECK_EQUAL(truths, 4);
	CHECK_EQUAL(truth[0].time_ns, begin_ns + 1); /* after the PMD entry */
	for (unsigned i = 1; i < 4; i++)
		CHECK_EQUAL(truth[i].time_ns, begin_ns + i * 1000);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	test_directory = argv[1];
	test_walks();
	test_large_page();
	test_outside_region();
	test_kernel_code();
	test_snapshots();
	test_faults();
	test_faults_of_what_is_cached();
	test_races();
	test_new_rights();
	test_flushes_without_pcid();
	test_flushes_with_pcid();
	test_cpu_accesses();
	test_hardware_writes();
	test_outside_recording();
	test_batch_times();
	test_queue();
	free(bus.record);
	return 0;
}
