// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: the arithmetic of entries, addresses and markers.
 */
#include <kunit/test.h>

#include "../internal.h"

static const struct ptat_map map = {
	.region = 0x10000000,
	.twin = 0x3de00000,
	.size = 0x2000000,
};

static void hw_val_presets_accessed_and_dirty(struct kunit *test)
{
	const unsigned long frame = 0x12345000;

	/* Not present: swap entries stay as they are. */
	KUNIT_EXPECT_EQ(test, ptat_hw_val(0), 0UL);
	KUNIT_EXPECT_EQ(test, ptat_hw_val(frame | _PAGE_RW), frame | _PAGE_RW);

	/* Where there are no rights, reclaim clears accessed nevertheless. */
	KUNIT_EXPECT_EQ(test, ptat_hw_val(frame | _PAGE_PROTNONE),
			frame | _PAGE_PROTNONE | _PAGE_ACCESSED);

	/* A store would set dirty in a writable entry, and only there. */
	KUNIT_EXPECT_EQ(test, ptat_hw_val(frame | _PAGE_PRESENT),
			frame | _PAGE_PRESENT | _PAGE_ACCESSED);
	KUNIT_EXPECT_EQ(test, ptat_hw_val(frame | _PAGE_PRESENT | _PAGE_RW),
			frame | _PAGE_PRESENT | _PAGE_RW | _PAGE_ACCESSED |
			_PAGE_DIRTY);
}

static void hw_val_is_idempotent(struct kunit *test)
{
	unsigned long flags;

	for (flags = 0; flags < PAGE_SIZE; flags++) {
		unsigned long val = ptat_hw_val(0x12345000 | flags);

		KUNIT_ASSERT_EQ(test, ptat_hw_val(val), val);
	}
}

static void translators_are_inverse(struct kunit *test)
{
	unsigned long offset;

	for (offset = 0; offset < map.size; offset += PAGE_SIZE) {
		phys_addr_t pa = __ptat_region_pa(&map, map.twin + offset);

		KUNIT_ASSERT_EQ(test, pa, map.region + offset);
		KUNIT_ASSERT_EQ(test, __ptat_twin_pa(&map, pa), map.twin + offset);
	}
}

static void translators_leave_others_alone(struct kunit *test)
{
	static const phys_addr_t others[] = {
		0, PAGE_SIZE,
		0x10000000 - PAGE_SIZE, 0x12000000,
		0x3de00000 - PAGE_SIZE, 0x3fe00000,
		PTE_PFN_MASK,
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(others); i++) {
		KUNIT_EXPECT_EQ(test, __ptat_region_pa(&map, others[i]), others[i]);
		KUNIT_EXPECT_EQ(test, __ptat_twin_pa(&map, others[i]), others[i]);
	}
	/* Each only translates its own direction. */
	KUNIT_EXPECT_EQ(test, __ptat_region_pa(&map, map.region), map.region);
	KUNIT_EXPECT_EQ(test, __ptat_twin_pa(&map, map.twin), map.twin);
}

static void tables_are_walked_uncached(struct kunit *test)
{
	unsigned long val = ptat_table_val(map.region, PTAT_TABLE_BUS);

	KUNIT_EXPECT_EQ(test, val, map.region | _PAGE_PCD | _PAGE_PWT);
	KUNIT_EXPECT_TRUE(test, ptat_val_is_marked(val));
	KUNIT_EXPECT_EQ(test, ptat_table_val(map.twin, 0), map.twin);
	KUNIT_EXPECT_FALSE(test, ptat_val_is_marked(map.twin | _PAGE_TABLE));
}

static void table_pointers_are_no_leaves(struct kunit *test)
{
	KUNIT_EXPECT_TRUE(test, ptat_val_is_table(_PAGE_TABLE));
	KUNIT_EXPECT_TRUE(test, ptat_val_is_table(_PAGE_TABLE | PTAT_TABLE_FLAGS));
	KUNIT_EXPECT_FALSE(test, ptat_val_is_table(0));
	KUNIT_EXPECT_FALSE(test, ptat_val_is_table(_PAGE_PRESENT | _PAGE_PSE));
	/* A huge page that is being split, or has no access rights. */
	KUNIT_EXPECT_FALSE(test, ptat_val_is_table(_PAGE_PSE));
	KUNIT_EXPECT_FALSE(test, ptat_val_is_table(_PAGE_PSE | _PAGE_PROTNONE));
}

static unsigned long repointed(unsigned long val, unsigned long from, unsigned long to)
{
	ptat_repoint(&val, from, to);
	return val;
}

static void entries_are_repointed(struct kunit *test)
{
	const unsigned long flags = _PAGE_TABLE & ~_PAGE_ACCESSED;
	const unsigned long twin = map.twin + 0x5000, other = map.region + 0x6000;
	const unsigned long region = ptat_table_val(map.region + 0x5000, PTAT_TABLE_BUS);

	KUNIT_EXPECT_EQ(test, repointed(region | flags, region, twin), twin | flags);
	KUNIT_EXPECT_EQ(test, repointed(region | flags | _PAGE_ACCESSED, region, twin),
			twin | flags | _PAGE_ACCESSED);
	KUNIT_EXPECT_EQ(test, repointed(twin | flags, twin, region), region | flags);
	/* It points elsewhere by now, or to nothing, or is a huge page. */
	KUNIT_EXPECT_EQ(test, repointed(region | flags, other, twin), region | flags);
	KUNIT_EXPECT_EQ(test, repointed(twin | flags, region, twin), twin | flags);
	KUNIT_EXPECT_EQ(test, repointed(0, region, twin), 0UL);
	KUNIT_EXPECT_EQ(test, repointed(region | flags | _PAGE_PSE, region, twin),
			region | flags | _PAGE_PSE);
}

static void canary_is_no_marker(struct kunit *test)
{
	KUNIT_EXPECT_LT(test, PTAT_CANARY_OFFSET, PTAT_MARKER_BYTES);
	KUNIT_EXPECT_NE(test, PTAT_CANARY_OFFSET % PTAT_MARKER_STRIDE, 0UL);
}

static void markers_stay_in_their_pages(struct kunit *test)
{
	u64 seq;

	KUNIT_EXPECT_EQ(test, PTAT_MARKER_PAGES, 16UL);
	KUNIT_EXPECT_EQ(test, ptat_marker_offset(1), 64UL);
	KUNIT_EXPECT_EQ(test, ptat_marker_offset(1023), 65472UL);
	KUNIT_EXPECT_EQ(test, ptat_marker_offset(1024), 0UL);
	KUNIT_EXPECT_EQ(test, ptat_marker_offset((1ULL << 40) + 5), 320UL);
	for (seq = 1; seq < 3 * PTAT_MARKER_SLOTS; seq++)
		KUNIT_ASSERT_NE(test, ptat_marker_offset(seq),
				ptat_marker_offset(seq + 1));
}

static void entries_serve_their_addresses(struct kunit *test)
{
	const u64 base = 0x7efe40000000, table = 0x10017000;

	KUNIT_EXPECT_EQ(test, ptat_entry_va(base, table, PTAT_LEVEL_PMD), base);
	KUNIT_EXPECT_EQ(test, ptat_entry_va(base, table, PTAT_LEVEL_PTE), base);
	KUNIT_EXPECT_EQ(test, ptat_entry_va(base, table + 0xfd0, PTAT_LEVEL_PMD),
			0x7efe7f400000ULL);
	KUNIT_EXPECT_EQ(test, ptat_entry_va(base, table + 0xff8, PTAT_LEVEL_PMD),
			base + PUD_SIZE - PMD_SIZE);
	KUNIT_EXPECT_EQ(test, ptat_entry_va(base, table + 0xff8, PTAT_LEVEL_PTE),
			base + PMD_SIZE - PAGE_SIZE);
}

static struct kunit_case ptat_cases[] = {
	KUNIT_CASE(hw_val_presets_accessed_and_dirty),
	KUNIT_CASE(hw_val_is_idempotent),
	KUNIT_CASE(translators_are_inverse),
	KUNIT_CASE(translators_leave_others_alone),
	KUNIT_CASE(tables_are_walked_uncached),
	KUNIT_CASE(table_pointers_are_no_leaves),
	KUNIT_CASE(entries_are_repointed),
	KUNIT_CASE(canary_is_no_marker),
	KUNIT_CASE(markers_stay_in_their_pages),
	KUNIT_CASE(entries_serve_their_addresses),
	{}
};

static struct kunit_suite ptat_suite = {
	.name = "ptat",
	.test_cases = ptat_cases,
};

kunit_test_suite(ptat_suite);
