/* SPDX-License-Identifier: GPL-2.0 */
#include "walk.h"
#include "test.h"

#define PAGE  4096
#define PAGES 64
#define TABLE (PTE_PRESENT | PTE_WRITE | PTE_USER)

static uint64_t memory[PAGES][512];

/* Half of it below 4 GiB. */
static const struct guest_ram ram = {
	.base = (const uint8_t *)memory,
	.size_bytes = sizeof(memory),
	.lowmem_bytes = sizeof(memory) / 2,
};

static const struct cpu_model model = { .psc = { { 4, 2 }, { 2, 2 }, { 2, 2 } } };

static void set_entry(unsigned page, unsigned index, uint64_t entry)
{
	memory[page][index] = entry;
}

/* PGD page 1, PUD page 2, PMD page 3, PTE tables pages 4 and 5; va = 1:2:3:4:offset. */
static const uint64_t va = 1ull << 39 | 2ull << 30 | 3ull << 21 | 4ull << 12 | 0x123;

static void make_tables(void)
{
	memset(memory, 0, sizeof(memory));
	set_entry(1, 1, 2 * PAGE | TABLE);
	set_entry(2, 2, 3 * PAGE | TABLE);
	set_entry(3, 3, 4 * PAGE | TABLE);
	set_entry(3, 4, 5 * PAGE | TABLE);
	set_entry(4, 4, UINT64_C(0x7654000) | TABLE | PTE_DIRTY);
	set_entry(4, 5, UINT64_C(0x8888000) | TABLE);
	set_entry(5, 4, UINT64_C(0x9999000) | TABLE);
}

static void test_ram(void)
{
	CHECK(ram_entry(&ram, 0) == &memory[0][0]);
	CHECK(ram_entry(&ram, 32 * PAGE - 1) == &memory[31][511]);
	CHECK(!ram_entry(&ram, 32 * PAGE));
	CHECK(!ram_entry(&ram, BIT_U64(32) - 8));
	CHECK(ram_entry(&ram, BIT_U64(32)) == &memory[32][0]);
	CHECK(ram_entry(&ram, BIT_U64(32) + 32 * PAGE - 8) == &memory[63][511]);
	CHECK(!ram_entry(&ram, BIT_U64(32) + 32 * PAGE));
	CHECK(!ram_entry(&ram, ~UINT64_C(0)));
}

static void test_full_walk(void)
{
	struct walk walk;

	make_tables();
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK(walk.completed);
	CHECK_EQUAL(walk.reads, 4);
	CHECK_EQUAL(walk.read[0], 1 * PAGE + 8);
	CHECK_EQUAL(walk.read[1], 2 * PAGE + 16);
	CHECK_EQUAL(walk.read[2], 3 * PAGE + 24);
	CHECK_EQUAL(walk.read[3], 4 * PAGE + 32);
	CHECK_EQUAL(walk.shift, 12);
	CHECK_EQUAL(walk_address(&walk, va), 0x7654123);
	CHECK_EQUAL(walk.grants, PTE_WRITE | PTE_USER | PTE_NX);

	/* CR3's low bits are no address; tables may lie above 4 GiB. */
	set_entry(2, 2, (BIT_U64(32) + 8 * PAGE) | TABLE);
	set_entry(40, 3, 4 * PAGE | TABLE);
	walk_tables(&ram, NULL, (1 * PAGE) | 0xfff, KEY_VALID, va, &walk);
	CHECK(walk.completed);
	CHECK_EQUAL(walk.read[2], BIT_U64(32) + 8 * PAGE + 24);
}

static void test_rights_of_all_levels(void)
{
	struct walk walk;

	make_tables();
	set_entry(2, 2, 3 * PAGE | PTE_PRESENT | PTE_USER);
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK_EQUAL(walk.grants, PTE_USER | PTE_NX);
	set_entry(3, 3, 4 * PAGE | TABLE | PTE_NX);
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK_EQUAL(walk.grants, PTE_USER);
}

static void test_large_pages(void)
{
	struct walk walk;

	make_tables();
	set_entry(3, 3, UINT64_C(0x40000000) | TABLE | PTE_LARGE | BIT_U64(12));
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK(walk.completed);
	CHECK_EQUAL(walk.shift, 21);
	CHECK_EQUAL(walk_page_size(&walk), PAGE_2M);
	CHECK_EQUAL(walk.reads, 3);
	CHECK_EQUAL(walk_address(&walk, va), 0x40004123);

	set_entry(2, 2, UINT64_C(0x80000000) | TABLE | PTE_LARGE);
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK_EQUAL(walk.shift, 30);
	CHECK_EQUAL(walk_address(&walk, va), 0x80604123);

	set_entry(1, 1, 2 * PAGE | TABLE | PTE_LARGE);
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK(!walk.completed);
	CHECK_EQUAL(walk.shift, 39);
}

static void test_walks_that_end_early(void)
{
	struct walk walk;

	for (unsigned level = 0; level < 4; level++) {
		make_tables();
		set_entry(1 + level, 1 + level, 0);
		walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
		CHECK(!walk.completed);
		CHECK_EQUAL(walk.reads, level + 1);
		CHECK_EQUAL(walk.shift, 39 - 9 * level);
	}
	/* Garbage: the table is nowhere. */
	make_tables();
	set_entry(3, 3, PTE_FRAME | TABLE);
	walk_tables(&ram, NULL, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK(!walk.completed);
	CHECK_EQUAL(walk.reads, 3);
	walk_tables(&ram, NULL, PTE_FRAME, KEY_VALID, va, &walk);
	CHECK(!walk.completed);
	CHECK_EQUAL(walk.reads, 0);
}

static void test_psc(void)
{
	uint64_t context = KEY_VALID | UINT64_C(7) << KEY_PCID_SHIFT;
	uint64_t other = KEY_VALID | UINT64_C(8) << KEY_PCID_SHIFT;
	struct psc psc;
	struct walk walk;

	make_tables();
	psc_init(&psc, &model);
	set_entry(2, 2, 3 * PAGE | PTE_PRESENT | PTE_USER);
	walk_tables(&ram, &psc, 1 * PAGE, context, va, &walk);
	CHECK_EQUAL(walk.reads, 4);

	/* Same 2 MiB: only the leaf is read, upper levels' rights still count. */
	walk_tables(&ram, &psc, 1 * PAGE, context, va + PAGE, &walk);
	CHECK_EQUAL(walk.reads, 1);
	CHECK_EQUAL(walk.read[0], 4 * PAGE + 40);
	CHECK_EQUAL(walk.shift, 12);
	CHECK_EQUAL(walk.grants, PTE_USER | PTE_NX);

	/* Same 1 GiB: the PDE and the leaf. */
	walk_tables(&ram, &psc, 1 * PAGE, context, va + (1 << 21), &walk);
	CHECK_EQUAL(walk.reads, 2);
	CHECK_EQUAL(walk.read[0], 3 * PAGE + 32);

	/* Another PCID shares nothing; a flush of one leaves the other. */
	walk_tables(&ram, &psc, 1 * PAGE, other, va, &walk);
	CHECK_EQUAL(walk.reads, 4);
	psc_flush_pcid(&psc, 7);
	walk_tables(&ram, &psc, 1 * PAGE, other, va, &walk);
	CHECK_EQUAL(walk.reads, 1);
	walk_tables(&ram, &psc, 1 * PAGE, context, va, &walk);
	CHECK_EQUAL(walk.reads, 4);
	psc_flush_all(&psc);
	walk_tables(&ram, &psc, 1 * PAGE, other, va, &walk);
	CHECK_EQUAL(walk.reads, 4);

	/* An entry that is not present or maps a page is not cached, those above it are. */
	psc_flush_all(&psc);
	set_entry(3, 3, 0);
	for (int i = 0; i < 2; i++) {
		walk_tables(&ram, &psc, 1 * PAGE, context, va, &walk);
		CHECK_EQUAL(walk.reads, i ? 1 : 3);
		CHECK_EQUAL(walk.shift, 21);
	}
	set_entry(3, 3, UINT64_C(0x40000000) | TABLE | PTE_LARGE);
	for (int i = 0; i < 2; i++) {
		walk_tables(&ram, &psc, 1 * PAGE, context, va, &walk);
		CHECK_EQUAL(walk.reads, 1);
		CHECK_EQUAL(walk.read[0], 3 * PAGE + 24);
	}
	psc_free(&psc);
}

static void test_psc_capacity(void)
{
	static const struct cpu_model none = { .psc = { { 0, 0 }, { 2, 2 }, { 0, 0 } } };
	struct psc psc;
	struct walk walk;

	/* 4 PDEs in 2 sets of 2: a third of the same set drives out the oldest. */
	make_tables();
	for (unsigned i = 0; i < 8; i++)
		set_entry(3, i, 4 * PAGE | TABLE);
	psc_init(&psc, &model);
	for (unsigned i = 0; i < 6; i += 2)
		walk_tables(&ram, &psc, 1 * PAGE, KEY_VALID, (va & ~(511ull << 21)) + (i << 21),
			    &walk);
	walk_tables(&ram, &psc, 1 * PAGE, KEY_VALID, (va & ~(511ull << 21)) + (4 << 21), &walk);
	CHECK_EQUAL(walk.reads, 1);
	walk_tables(&ram, &psc, 1 * PAGE, KEY_VALID, va & ~(511ull << 21), &walk);
	CHECK_EQUAL(walk.reads, 2);
	psc_free(&psc);

	/* Without a PDE cache each walk reads the PDE. */
	psc_init(&psc, &none);
	walk_tables(&ram, &psc, 1 * PAGE, KEY_VALID, va, &walk);
	walk_tables(&ram, &psc, 1 * PAGE, KEY_VALID, va, &walk);
	CHECK_EQUAL(walk.reads, 2);
	psc_free(&psc);
}

int main(void)
{
	test_ram();
	test_full_walk();
	test_rights_of_all_levels();
	test_large_pages();
	test_walks_that_end_early();
	test_psc();
	test_psc_capacity();
	return 0;
}
