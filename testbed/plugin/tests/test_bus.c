/* SPDX-License-Identifier: GPL-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "bus.h"
#include "stream.h"
#include "test.h"

#define START_NS UINT64_C(5000000000)

/* Gaps around the limits of the delta fields, and enough records for many blocks. */
static void test_random_stream(void)
{
	static const uint64_t gaps[] = { 0,	   1,	     2,	       40,
					 0x7ffffe, 0x7fffff, 0x800000, UINT64_C(1) << 40 };
	enum { COUNT = 20000 };
	static struct record expected[COUNT];
	uint64_t state = 1, now = START_NS;
	const char *path = path_of("bus_random.raw");
	FILE *text = fopen(path_of("bus_random.txt"), "w");
	struct stream stream;
	struct bus bus;

	CHECK(text);
	CHECK(!bus_open(&bus, path, 8));
	for (int i = 0; i < COUNT; i++) {
		struct record *record = &expected[i];

		now += gaps[test_random(&state) % 8];
		record->tag = 1;
		record->value = test_random(&state) & 0x7ffffffff8;
		record->write = test_random(&state) & 1;
		record->time_ns = bus_access(&bus, record->value | 3, record->write, now);
		CHECK(record->time_ns >= now);
		CHECK(!i || record->time_ns > record[-1].time_ns);
		fprintf(text, "%" PRIu64 " %#" PRIx64 " %d\n", record->time_ns, record->value,
			record->write);
	}
	bus_close(&bus);
	fclose(text);
	CHECK_EQUAL(bus.lost, 0);

	stream = read_stream(path);
	CHECK_EQUAL(stream.records, COUNT);
	CHECK(stream.blocks > COUNT / 1021);
	for (int i = 0; i < COUNT; i++) {
		CHECK_EQUAL(stream.record[i].tag, 1);
		CHECK_EQUAL(stream.record[i].time_ns, expected[i].time_ns);
		CHECK_EQUAL(stream.record[i].value, expected[i].value);
		CHECK_EQUAL(stream.record[i].write, expected[i].write);
	}
	free(stream.record);
}

/* A block takes 1021 records; a time that does not fit must not be split from its record. */
static void test_block_boundary(void)
{
	for (unsigned first = 1019; first <= 1022; first++) {
		const char *path = path_of("bus_boundary.raw");
		struct stream stream;
		struct bus bus;

		CHECK(!bus_open(&bus, path, 8));
		for (unsigned i = 0; i < first; i++)
			bus_access(&bus, 8 * i, false, START_NS + i);
		bus_access(&bus, 0x1000, true, START_NS + (UINT64_C(1) << 30));
		bus_close(&bus);
		stream = read_stream(path);
		CHECK_EQUAL(stream.records, first + 1);
		CHECK_EQUAL(stream.record[first].time_ns, START_NS + (UINT64_C(1) << 30));
		CHECK_EQUAL(stream.record[first].value, 0x1000);
		CHECK_EQUAL(stream.blocks, first > 1019 ? 2 : 1);
		free(stream.record);
	}
}

static void test_granularity_and_marks(void)
{
	const char *path = path_of("bus_marks.raw");
	struct stream stream;
	struct bus bus;

	CHECK(!bus_open(&bus, path, 64));
	bus_mark(&bus, PTAT_WIRE_MARK_START, 0, START_NS);
	bus_access(&bus, 0x12345678, false, START_NS + 10);
	CHECK_EQUAL(bus_tick(&bus, START_NS), START_NS + 11);
	bus_access(&bus, 0x40, false, START_NS);
	bus_mark(&bus, PTAT_WIRE_MARK_TRIGGER, 0xabcdef0, START_NS + 100);
	bus_flush(&bus);
	bus_mark(&bus, PTAT_WIRE_MARK_STOP, 0, START_NS + 200);
	bus_close(&bus);
	stream = read_stream(path);
	CHECK_EQUAL(stream.records, 5);
	CHECK_EQUAL(stream.blocks, 2);
	CHECK_EQUAL(stream.record[0].tag, 4);
	CHECK_EQUAL(stream.record[0].value, UINT64_C(1) << 28);
	CHECK_EQUAL(stream.record[1].value, 0x12345640);
	CHECK_EQUAL(stream.record[2].time_ns, START_NS + 12);
	CHECK_EQUAL(stream.record[3].value, UINT64_C(3) << 28 | 0xabcdef0);
	CHECK_EQUAL(stream.record[4].value, UINT64_C(2) << 28);
	free(stream.record);
}

/* Accesses 1 ns apart into a FIFO that is emptied at 1 per µs. */
static size_t run_fifo(unsigned size, unsigned accesses, struct bus *bus, struct stream *stream)
{
	const char *path = path_of("bus_fifo.raw");

	CHECK(!bus_open(bus, path, 8));
	bus_set_fifo(bus, size, 1000000);
	for (unsigned i = 0; i < accesses; i++)
		bus_access(bus, 8 * i, false, START_NS + i);
	/* Just before and just after it is half empty. */
	bus_access(bus, 0x1000, false, START_NS + 1000 * (size - size / 2) - 10);
	bus_access(bus, 0x2000, false, START_NS + 1000 * (size - size / 2) + accesses);
	bus_mark(bus, PTAT_WIRE_MARK_STOP, 0, START_NS + 1000000);
	bus_close(bus);
	*stream = read_stream(path);
	return stream->records;
}

static void test_fifo(void)
{
	struct stream stream;
	struct bus bus;

	/* Filled to the last slot: nothing is lost, and no LOST record says so. */
	CHECK_EQUAL(run_fifo(8, 8, &bus, &stream), 11);
	CHECK_EQUAL(bus.lost, 0);
	free(stream.record);

	/* One more: lost, and so is all that comes before it is half empty. */
	CHECK_EQUAL(run_fifo(8, 9, &bus, &stream), 11);
	CHECK_EQUAL(bus.lost, 2);
	CHECK_EQUAL(stream.record[7].value, 8 * 7);
	CHECK_EQUAL(stream.record[8].tag, 3);
	CHECK_EQUAL(stream.record[8].value, 2);
	CHECK_EQUAL(stream.record[9].value, 0x2000);
	CHECK(stream.record[9].time_ns > stream.record[8].time_ns);
	free(stream.record);
}

/* Losses at the very end are reported as well. */
static void test_fifo_lost_tail(void)
{
	const char *path = path_of("bus_tail.raw");
	struct stream stream;
	struct bus bus;

	CHECK(!bus_open(&bus, path, 8));
	bus_set_fifo(&bus, 2, 1);
	for (unsigned i = 0; i < 5; i++)
		bus_access(&bus, 8 * i, false, START_NS + i);
	bus_close(&bus);
	stream = read_stream(path);
	CHECK_EQUAL(stream.records, 3);
	CHECK_EQUAL(stream.record[2].tag, 3);
	CHECK_EQUAL(stream.record[2].value, 3);
	free(stream.record);
}

/* A full disk that gets room again: whole blocks only, a gap, and LOST adds up. */
static void test_full_disk(void)
{
	enum { BATCH = 1000000 };
	const char *path = path_of("bus_full.raw");
	struct rlimit limit, unlimited;
	uint64_t lost = 0, seen = 0;
	struct stream stream;
	struct bus bus;

	CHECK(!getrlimit(RLIMIT_FSIZE, &unlimited));
	signal(SIGXFSZ, SIG_IGN);
	CHECK(!bus_open(&bus, path, 8));
	limit = (struct rlimit){ .rlim_cur = 12345, .rlim_max = unlimited.rlim_max };
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
	expect_message();
	for (unsigned i = 0; i < BATCH; i++)
		bus_access(&bus, 8, false, START_NS + i);
	check_message("bus_full.raw: File too large; records are being lost\n");
	CHECK(bus.lost > BATCH / 2 && bus.lost < BATCH);
	CHECK(!setrlimit(RLIMIT_FSIZE, &unlimited));
	for (unsigned i = 0; i < BATCH; i++)
		bus_access(&bus, 16, false, START_NS + BATCH + i);
	bus_close(&bus);
	stream = read_stream(path);
	CHECK(stream.first_seq > 0);
	for (size_t i = 0; i < stream.records; i++) {
		seen += stream.record[i].tag == 1;
		lost += stream.record[i].tag == 3 ? stream.record[i].value : 0;
	}
	CHECK(seen >= BATCH);
	CHECK_EQUAL(lost, bus.lost);
	CHECK_EQUAL(seen + lost, 2 * BATCH);
	free(stream.record);
}

static void test_disk_that_stays_full(void)
{
	struct bus bus;

	CHECK(!bus_open(&bus, "/dev/full", 8));
	for (unsigned i = 0; i < 5; i++)
		bus_access(&bus, 8, false, START_NS + i);
	expect_message();
	bus_close(&bus);
	check_message("/dev/full: No space left on device; records are being lost\n");
	CHECK_EQUAL(bus.lost, 5);

	expect_message();
	CHECK(bus_open(&bus, "/nowhere/at/all", 8));
	check_message("/nowhere/at/all: No such file or directory\n");
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	test_directory = argv[1];
	test_random_stream();
	test_block_boundary();
	test_granularity_and_marks();
	test_fifo();
	test_fifo_lost_tail();
	test_full_disk();
	test_disk_that_stays_full();
	return 0;
}
