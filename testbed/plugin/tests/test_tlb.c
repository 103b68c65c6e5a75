/* SPDX-License-Identifier: GPL-2.0 */
#include "tlb.h"
#include "test.h"

#define PAGE UINT64_C(4096)

static const struct cpu_model *model(const char *name)
{
	for (unsigned i = 0; i < cpu_models_count; i++)
		if (!strcmp(cpu_models[i].name, name))
			return &cpu_models[i];
	CHECK(!"no such model");
	return NULL;
}

/* 8 entries in 4 sets of 2 for data, 4 in 1 for instructions, 16 in 4 sets of 4 for both. */
static const struct cpu_model small = {
	.tlb = { { "l1d", SIDE_DATA, 1, SIZE_4K | SIZE_2M, 8, 2 },
		 { "l1i", SIDE_FETCH, 1, SIZE_4K, 4, 4 },
		 { "stlb", SIDE_DATA | SIDE_FETCH, 2, SIZE_4K, 16, 4 } },
};

static void test_hits_and_rights(void)
{
	struct tlb tlb;

	tlb_init(&tlb, model("skylake"));
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x7000, 0), 0);
	tlb_fill(&tlb, TLB_DATA, 0x7000, PAGE_4K, KEY_EXEC);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x7fff, 0));
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x8000, 0), 0);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x6fff, 0), 0);

	/* The STLB serves both sides. */
	CHECK(tlb_lookup(&tlb, TLB_FETCH, 0x7000, KEY_EXEC));

	/* A store needs KEY_STORE; without it the translation is gone everywhere. */
	CHECK(!tlb_hit_fast(&tlb, 0x7000, KEY_STORE));
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x7000, KEY_STORE), 0);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x7000, 0), 0);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_FETCH, 0x7000, 0), 0);
	tlb_free(&tlb);
}

static void test_page_sizes(void)
{
	struct tlb tlb;

	tlb_init(&tlb, model("skylake"));
	tlb_fill(&tlb, TLB_DATA, 0x40212345, PAGE_2M, 0);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x40200000, 0));
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x403fffff, 0));
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x40400000, 0), 0);
	tlb_fill(&tlb, TLB_DATA, 0x123456789000, PAGE_1G, 0);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x123440000000, 0));
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x12347fffffff, 0));
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x123480000000, 0), 0);

	/* Kernel addresses differ from user addresses only above bit 46. */
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0xffff923440000000, 0), 0);
	tlb_flush_page(&tlb, 0x12347fff0000, 0, true);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x123440000000, 0), 0);
	tlb_free(&tlb);

	/* Ivy Bridge's STLB has no 2 MiB pages: 32 in the first level are all there is. */
	tlb_init(&tlb, model("ivybridge-ep"));
	for (uint64_t i = 0; i < 64; i++)
		tlb_fill(&tlb, TLB_DATA, i << 21, PAGE_2M, 0);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 31 << 21, 0), 0);
	CHECK(tlb_lookup(&tlb, TLB_DATA, UINT64_C(32) << 21, 0));
	tlb_free(&tlb);
}

static void test_pcid_and_global(void)
{
	struct tlb tlb;

	tlb_init(&tlb, model("skylake"));
	tlb_set_pcid(&tlb, 1);
	tlb_fill(&tlb, TLB_DATA, 0x1000, PAGE_4K, 0);
	tlb_fill(&tlb, TLB_DATA, 0x2000, PAGE_4K, KEY_GLOBAL);
	tlb_set_pcid(&tlb, 2);
	CHECK(!tlb_hit_fast(&tlb, 0x1000, 0));
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x1000, 0), 0);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x2000, 0));
	tlb_fill(&tlb, TLB_DATA, 0x1000, PAGE_4K, 0);

	tlb_flush_pcid(&tlb, 2);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x1000, 0), 0);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x2000, 0));
	tlb_set_pcid(&tlb, 1);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x1000, 0));

	tlb_flush_page(&tlb, 0x1000, 2, true);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x1000, 0));
	tlb_flush_page(&tlb, 0x2000, 1, false);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x2000, 0));
	tlb_flush_page(&tlb, 0x2000, 1, true);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x2000, 0), 0);

	tlb_fill(&tlb, TLB_DATA, 0x2000, PAGE_4K, KEY_GLOBAL);
	tlb_flush_non_global(&tlb);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x1000, 0), 0);
	CHECK(tlb_lookup(&tlb, TLB_DATA, 0x2000, 0));
	tlb_flush_all(&tlb);
	CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, 0x2000, 0), 0);
	tlb_free(&tlb);
}

/* As many pages as the last level has entries all fit; too many of one set always miss. */
static void test_reach(const char *name, unsigned entries, unsigned ways)
{
	struct tlb tlb;

	tlb_init(&tlb, model(name));
	for (int pass = 0; pass < 2; pass++) {
		for (uint64_t i = 0; i < entries; i++) {
			bool hit = tlb_lookup(&tlb, TLB_DATA, i * PAGE, 0);

			CHECK_EQUAL(hit, pass);
			if (!hit)
				tlb_fill(&tlb, TLB_DATA, i * PAGE, PAGE_4K, 0);
		}
	}
	tlb_flush_all(&tlb);
	for (int pass = 0; pass < 3; pass++) {
		/* More than any set has ways, also in the first level. */
		for (uint64_t i = 0; i < 73; i++) {
			uint64_t va = i * (entries / ways) * PAGE;

			CHECK_EQUAL(tlb_lookup(&tlb, TLB_DATA, va, 0), 0);
			tlb_fill(&tlb, TLB_DATA, va, PAGE_4K, 0);
		}
	}
	tlb_free(&tlb);
}

/* One array of the plainest kind: time stamps, linear search. */
struct plain {
	unsigned sets, ways;
	struct {
		uint64_t page, used;
	} entry[64];
};

static bool plain_touch(struct plain *plain, uint64_t page, uint64_t now, bool insert)
{
	unsigned first = page % plain->sets * plain->ways, victim = first;

	for (unsigned i = first; i < first + plain->ways; i++) {
		if (plain->entry[i].used && plain->entry[i].page == page) {
			plain->entry[i].used = now;
			return true;
		}
		if (plain->entry[i].used < plain->entry[victim].used)
			victim = i;
	}
	if (insert) {
		plain->entry[victim].page = page;
		plain->entry[victim].used = now;
	}
	return false;
}

static void test_random_against_plain_model(void)
{
	struct plain l1[TLB_SIDES] = { { .sets = 4, .ways = 2 }, { .sets = 1, .ways = 4 } };
	struct plain stlb = { .sets = 4, .ways = 4 };
	uint64_t state = 1, walks = 0, fast = 0;
	struct tlb tlb;

	tlb_init(&tlb, &small);
	for (uint64_t now = 1; now < 200000; now++) {
		uint64_t page = test_random(&state) % (now / 100 % 2 ? 12 : 40);
		enum tlb_side side = test_random(&state) % 4 == 0;
		bool hit = plain_touch(&l1[side], page, now, true) ||
			   plain_touch(&stlb, page, now, true);

		/* The fast path must mean a hit, and that nothing would change. */
		if (side == TLB_DATA && tlb_hit_fast(&tlb, page * PAGE, 0)) {
			fast++;
			CHECK(hit);
			continue;
		}
		CHECK_EQUAL(!!tlb_lookup(&tlb, side, page * PAGE, 0), hit);
		if (!hit) {
			walks++;
			tlb_fill(&tlb, side, page * PAGE, PAGE_4K, 0);
		}
	}
	CHECK(walks > 10000 && fast > 1000);
	tlb_free(&tlb);
}

static void test_geometries(void)
{
	for (unsigned i = 0; i < cpu_models_count; i++) {
		for (int j = 0; j < TLB_ARRAYS_MAX && cpu_models[i].tlb[j].name; j++) {
			const struct tlb_geometry *tlb = &cpu_models[i].tlb[j];
			unsigned sets = tlb->entries / tlb->ways;

			CHECK_EQUAL(sets * tlb->ways, tlb->entries);
			CHECK_EQUAL(sets & (sets - 1), 0);
		}
		for (int j = 0; j < PSC_LEVELS; j++) {
			const struct psc_geometry *psc = &cpu_models[i].psc[j];
			unsigned sets = psc->ways ? psc->entries / psc->ways : 0;

			CHECK_EQUAL(sets * psc->ways, psc->entries);
			CHECK_EQUAL(sets & (sets - 1), 0);
		}
	}
}

int main(void)
{
	test_hits_and_rights();
	test_page_sizes();
	test_pcid_and_global();
	test_reach("ivybridge-ep", 512, 4);
	test_reach("skylake", 1536, 12);
	test_reach("zen4", 3072, 24);
	test_random_against_plain_model();
	test_geometries();
	return 0;
}
