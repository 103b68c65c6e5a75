/* SPDX-License-Identifier: GPL-2.0 */
/* Chains of calls, and how they are written with the misses. */
#include <signal.h>
#include <sys/resource.h>

#include "calls.h"
#include "kernel_misses.h"
#include "ptat_kernel_misses.h"
#include "stream.h"

#define STACK  UINT64_C(0xffffc90000010000) /* its end; it grows downwards from there */
#define OTHER  UINT64_C(0xffffc90000018000)
#define SIZE   (UINT64_C(1) << CALL_STACK_SHIFT)
#define PLACES 64

static struct calls calls;

static struct call_stack *stack_at(uint64_t slot)
{
	return calls_find(&calls, NULL, slot);
}

/* The chain's addresses, the innermost last; -1 ends them. */
static void check_chain(const struct call_stack *stack, const int *want)
{
	for (unsigned i = 0; i < stack->depth; i++)
		CHECK_EQUAL(stack->call[i].address, (uint64_t)want[i]);
	CHECK_EQUAL(want[stack->depth], (uint64_t)-1);
}

#define CHECK_CHAIN(stack, ...) check_chain(stack, (const int[]){ __VA_ARGS__ })

static void test_stacks_are_found_by_address(void)
{
	struct call_stack *stack = stack_at(STACK - 8);

	CHECK(stack_at(STACK - SIZE) == stack);
	CHECK(stack_at(STACK) != stack);
	CHECK(stack_at(STACK - SIZE - 8) != stack);
	/* Those of one list, too. */
	CHECK(stack_at(STACK - 8 + CALL_STACKS_LISTS * SIZE) != stack);
	CHECK(stack_at(STACK - 8) == stack);
	CHECK(calls_find(&calls, stack, STACK - 16) == stack);
	CHECK(calls_find(&calls, stack, OTHER - 16) == stack_at(OTHER - 8));
}

static void test_calls_and_returns(void)
{
	struct call_stack *stack = stack_at(STACK - 8);

	call_push(stack, STACK - 8, 1);
	call_push(stack, STACK - 40, 2);
	call_push(stack, STACK - 80, 3);
	CHECK_CHAIN(stack, 1, 2, 3, -1);
	call_pop(stack, STACK - 80);
	CHECK_CHAIN(stack, 1, 2, -1);
	/* From the same function again. */
	call_push(stack, STACK - 80, 4);
	CHECK_CHAIN(stack, 1, 2, 4, -1);
	call_pop(stack, STACK - 80);
	call_pop(stack, STACK - 40);
	call_pop(stack, STACK - 8);
	CHECK_CHAIN(stack, -1);
	call_pop(stack, STACK - 8); /* of a call that was before we looked */
	CHECK_CHAIN(stack, -1);
}

static void test_calls_that_do_not_return(void)
{
	struct call_stack *stack = stack_at(STACK - 8);

	call_push(stack, STACK - 8, 1);
	call_push(stack, STACK - 40, 2);
	call_push(stack, STACK - 80, 3);
	call_push(stack, STACK - 40, 5); /* the stack was wound up in one go */
	CHECK_CHAIN(stack, 1, 5, -1);
	call_push(stack, STACK - 80, 6);
	call_push(stack, STACK - 8, 7); /* the stack has another task */
	CHECK_CHAIN(stack, 7, -1);
	call_push(stack, STACK - 48, 8);
	call_pop(stack, STACK - 16); /* a return to what a return address was put there for */
	CHECK_CHAIN(stack, 7, -1);
}

static void test_stacks_are_apart(void)
{
	struct call_stack *stack = stack_at(STACK - 8), *other = stack_at(OTHER - 8);

	call_push(stack, STACK - 8, 1);
	call_push(other, OTHER - 8, 2);
	call_push(stack, STACK - 16, 3);
	call_pop(other, OTHER - 8);
	CHECK_CHAIN(stack, 1, 3, -1);
	CHECK_CHAIN(other, -1);
}

static void test_deep(void)
{
	struct call_stack *stack = stack_at(STACK - 8);

	for (unsigned i = 1; i <= SIZE / 8; i++)
		call_push(stack, STACK - 8 * i, i);
	CHECK_EQUAL(stack->depth, SIZE / 8);
	call_pop(stack, STACK - 8 * 3);
	CHECK_CHAIN(stack, 1, 2, -1);
}

/* The file's records; what is no PLACE or MISS ends them. */
static uint64_t read_log(const char *path, struct ptat_kernel_place *place,
			 struct ptat_kernel_miss *miss, unsigned *misses)
{
	gzFile file = gzopen(path, "rb");
	uint64_t header;
	union {
		struct ptat_kernel_place place;
		struct ptat_kernel_miss miss;
		struct ptat_kernel_end end;
	} record;
	uint64_t told = UINT64_MAX;
	unsigned places = 0;

	*misses = 0;
	CHECK(gzread(file, &header, 8) == 8);
	CHECK(!memcmp(&header, "PTATKMI\1", 8));
	while (gzread(file, &record, sizeof(record)) == sizeof(record)) {
		CHECK_EQUAL(told, UINT64_MAX);
		if (record.miss.kind == PTAT_KERNEL_MISSES_PLACE) {
			CHECK(places < PLACES);
			CHECK_EQUAL(record.place.place, places + 1);
			CHECK(record.place.caller <= places);
			place[++places] = record.place;
		} else if (record.miss.kind == PTAT_KERNEL_MISSES_MISS) {
			CHECK(record.miss.place && record.miss.place <= places);
			miss[(*misses)++ % PLACES] = record.miss;
		} else {
			CHECK_EQUAL(record.end.kind, PTAT_KERNEL_MISSES_END);
			told = record.end.misses;
		}
	}
	gzclose(file);
	return told;
}

static void put(struct kernel_misses *log, struct call_stack *stack, uint64_t address)
{
	static uint64_t time_ns;
	const struct kernel_miss miss = {
		.time_ns = ++time_ns,
		.va = 0x7000 + address,
		.pgd_pfn = 5,
		.address = address,
		.stack = stack,
		.cause = 1,
		.shift = 21,
		.cpu = 3,
	};

	kernel_misses_put(log, &miss);
}

static void test_each_chain_is_written_once(void)
{
	const char *path = path_of("kernel_misses.bin.gz");
	struct call_stack *stack = stack_at(STACK - 8);
	static struct ptat_kernel_place place[PLACES];
	static struct ptat_kernel_miss miss[PLACES];
	struct kernel_misses log;
	unsigned misses;

	CHECK(!kernel_misses_open(&log, path));
	call_pop(stack, STACK - 8);
	put(&log, NULL, 9); /* place 1 */
	put(&log, stack, 9);
	call_push(stack, STACK - 8, 100);  /* 2 */
	call_push(stack, STACK - 16, 101); /* 3 */
	put(&log, stack, 9);		   /* 4 */
	put(&log, stack, 10);		   /* 5 */
	call_push(stack, STACK - 16, 102); /* 6 */
	put(&log, stack, 9);		   /* 7 */
	call_push(stack, STACK - 16, 101);
	put(&log, stack, 10);
	kernel_misses_close(&log);

	CHECK_EQUAL(read_log(path, place, miss, &misses), 6);
	CHECK_EQUAL(misses, 6);
	CHECK_EQUAL(miss[0].place, 1);
	CHECK_EQUAL(miss[1].place, 1);
	CHECK_EQUAL(place[1].caller, 0);
	CHECK_EQUAL(place[1].address, 9);
	CHECK_EQUAL(place[2].caller, 0);
	CHECK_EQUAL(place[2].address, 100);
	CHECK_EQUAL(place[3].caller, 2);
	CHECK_EQUAL(miss[2].place, 4);
	CHECK_EQUAL(place[4].caller, 3);
	CHECK_EQUAL(place[4].address, 9);
	CHECK_EQUAL(miss[3].place, 5);
	CHECK_EQUAL(place[6].caller, 2);
	CHECK_EQUAL(place[6].address, 102);
	CHECK_EQUAL(miss[4].place, 7);
	CHECK_EQUAL(place[7].caller, 6);
	CHECK_EQUAL(miss[5].place, 5);
	CHECK_EQUAL(miss[5].va, 0x700a);
	CHECK_EQUAL(miss[5].time - miss[0].time, 5);
	CHECK_EQUAL(miss[5].pgd_pfn, 5);
	CHECK_EQUAL(miss[5].cause, 1);
	CHECK_EQUAL(miss[5].shift, 21);
	CHECK_EQUAL(miss[5].cpu, 3);
}

/* More places than the table has room for at first: each gets one number, and keeps it. */
static void test_many_places(void)
{
	enum { MANY = 20000 };
	static uint32_t number[MANY];
	const char *path = path_of("kernel_misses_many.bin.gz");
	struct kernel_misses log;
	struct ptat_kernel_miss record;
	uint64_t header;
	gzFile file;

	CHECK(!kernel_misses_open(&log, path));
	for (unsigned turn = 0; turn < 2; turn++)
		for (unsigned i = 0; i < MANY; i++)
			put(&log, NULL, 0xffffffff81000000 + i);
	CHECK_EQUAL(log.places, MANY);
	kernel_misses_close(&log);

	file = gzopen(path, "rb");
	CHECK(gzread(file, &header, 8) == 8);
	for (unsigned misses = 0; misses < 2 * MANY;) {
		CHECK(gzread(file, &record, sizeof(record)) == sizeof(record));
		if (record.kind != PTAT_KERNEL_MISSES_MISS)
			continue;
		if (misses < MANY)
			number[misses] = record.place;
		else
			CHECK_EQUAL(number[misses - MANY], record.place);
		misses++;
	}
	gzclose(file);
}

static void test_nothing_is_asked_for(void)
{
	struct kernel_misses log;

	CHECK(!kernel_misses_open(&log, NULL));
	CHECK(!log.out.file);
	kernel_misses_close(&log);
}

/* What is lost is counted, and the file does not end as a whole one does. */
static void test_full_disk(void)
{
	const char *path = path_of("kernel_misses_full.bin.gz");
	enum { PUT = 1000000 };
	struct rlimit limit, unlimited;
	struct ptat_kernel_miss record;
	struct kernel_misses log;
	uint64_t header;
	gzFile file;

	CHECK(!getrlimit(RLIMIT_FSIZE, &unlimited));
	signal(SIGXFSZ, SIG_IGN);
	limit = (struct rlimit){ .rlim_cur = 300000, .rlim_max = unlimited.rlim_max };
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
	CHECK(!kernel_misses_open(&log, path));
	expect_message();
	for (unsigned i = 0; i < PUT; i++)
		put(&log, NULL, i % 1000);
	kernel_misses_close(&log);
	check_message("kernel_misses_full.bin.gz: File too large; records are being lost\n");
	CHECK(!setrlimit(RLIMIT_FSIZE, &unlimited));
	CHECK(log.lost);
	CHECK_EQUAL(log.count + log.lost, PUT);

	file = gzopen(path, "rb");
	CHECK(gzread(file, &header, 8) == 8);
	while (gzread(file, &record, sizeof(record)) == sizeof(record))
		CHECK(record.kind != PTAT_KERNEL_MISSES_END);
	gzclose(file);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	test_directory = argv[1];
	calls_init(&calls);
	test_stacks_are_found_by_address();
	test_calls_and_returns();
	test_calls_that_do_not_return();
	test_stacks_are_apart();
	test_deep();
	test_each_chain_is_written_once();
	test_many_places();
	test_nothing_is_asked_for();
	test_full_disk();
	return 0;
}
