/* SPDX-License-Identifier: GPL-2.0 */
/* Reads a capture stream and a truth for the tests, without the writers' macros. */
#ifndef PTAT_TEST_STREAM_H
#define PTAT_TEST_STREAM_H

#include <stdbool.h>
#include <stdio.h>
#include <zlib.h>

#include "test.h"
#include "truth.h"

static const char *test_directory;

/* Two may be in use at a time. */
static inline const char *path_of(const char *name)
{
	static char path[2][4096];
	static int turn;

	turn = !turn;
	CHECK(snprintf(path[turn], sizeof(path[turn]), "%s/%s", test_directory, name) <
	      (int)sizeof(path[turn]));
	return path[turn];
}

struct record {
	unsigned tag;
	bool write;
	uint64_t time_ns;
	uint64_t value; /* byte address, number lost, or mark code << 28 | argument */
};

struct stream {
	struct record *record;
	size_t records, blocks;
	uint32_t first_seq;
};

/* All records of a file, TIME worked in; checks every block. */
static inline struct stream read_stream(const char *path)
{
	struct stream stream = { 0 };
	FILE *file = fopen(path, "rb");
	uint64_t block[1024];
	uint32_t seq = 0;

	CHECK(file);
	while (fread(block, 8, 1024, file) == 1024) {
		uint64_t time_ns = block[1];
		unsigned words = block[1023] >> 48 & 0xfff;

		CHECK_EQUAL(block[0] >> 48, 0x5054);
		CHECK_EQUAL(block[0] >> 44 & 15, 1);
		CHECK_EQUAL(block[0] >> 32 & 0xfff, 0);
		if (stream.blocks++)
			CHECK_EQUAL((uint32_t)block[0], seq + 1);
		else
			stream.first_seq = block[0];
		seq = block[0];
		CHECK_EQUAL(block[1023] >> 60, 15);
		CHECK_EQUAL((uint32_t)block[1023], crc32(0, (void *)block, 1023 * 8));
		CHECK(words <= 1021);
		for (unsigned i = 2 + words; i < 1023; i++)
			CHECK_EQUAL(block[i], 0);
		stream.record =
			realloc(stream.record, (stream.records + words) * sizeof(struct record));
		for (unsigned i = 2; i < 2 + words; i++) {
			uint64_t word = block[i], low = word & 0xfffffffff;
			struct record *record = &stream.record[stream.records];

			record->tag = word >> 60;
			record->write = record->tag == 1 && word >> 59 & 1;
			record->value = record->tag == 1 ? low * 8 : low;
			if (record->tag == 2)
				time_ns = word << 4 >> 4;
			else
				time_ns += word >> 36 & (record->tag == 1 ? 0x7fffff : 0xffffff);
			record->time_ns = time_ns;
			if (record->tag != 2)
				stream.records++;
		}
	}
	CHECK_EQUAL(ftell(file), stream.blocks * 8192);
	fclose(file);
	return stream;
}

/* The walks of a truth file; there are @max at most. */
static inline size_t read_truth(const char *path, struct truth_walk *walk, size_t max)
{
	FILE *file = fopen(path, "rb");
	uint64_t word, time_ns = 0, space = 0;
	size_t walks = 0;

	CHECK(file);
	CHECK_EQUAL(fread(&word, 8, 1, file), 1);
	CHECK(!memcmp(&word, "PTATTRU\2", 8));
	while (fread(&word, 8, 1, file)) {
		if (word >> 61 == 6) {
			time_ns = word << 4 >> 4;
		} else if (word >> 61 == 7) {
			space = word;
		} else {
			CHECK(walks < max && time_ns && space);
			time_ns += word >> 36 & 0x3ffff;
			walk[walks++] = (struct truth_walk){
				.time_ns = time_ns,
				.va = (word & 0xfffffffff) << 12,
				.pgd_pfn = space & 0xffffffffff,
				.shift = 12 + 9 * (word >> 54 & 7),
				.cause = word >> 62,
				.flags = word >> 57 & 31,
				.cpu = space >> 40 & 255,
			};
		}
	}
	CHECK(feof(file));
	fclose(file);
	return walks;
}

#endif
