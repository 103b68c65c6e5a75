// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "../frame.h"

#define FRAMES 200

/* CRC-32's published check value, and the frame of host/tests/test_protocol.py. */
static void test_known_values(void **state)
{
	static const uint8_t expected[20] = "PTAC\x01\x09\0\0\x34\x12\x04\0\xef\xbe\xad\xde\x07";
	struct ptat_proto_header header = {
		.command = PTAT_PROTO_COMMAND_READ_EYES,
		.id = 0x1234,
		.length = 4,
		.host = 0xdeadbeef,
	};
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];

	(void)state;
	assert_int_equal(frame_crc(0, "123456789", 9), 0xcbf43926);
	assert_int_equal(frame_crc(frame_crc(0, "1234", 4), "56789", 5), 0xcbf43926);
	assert_int_equal(frame_write(frame, header, "\x07\0\0"), 24);
	assert_memory_equal(frame, expected, sizeof(expected));
	assert_int_equal(frame_check(frame, 24), 24);
	assert_int_equal(frame_check(frame, sizeof(frame)), 24);
}

static void test_damage_is_noticed(void **state)
{
	struct ptat_proto_header header = { .command = 1, .length = 8 };
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];
	size_t size = frame_write(frame, header, "payload");

	(void)state;
	for (size_t bit = 0; bit < size * 8; bit++) {
		frame[bit / 8] ^= 1 << bit % 8;
		assert_int_equal(frame_check(frame, size), 0);
		frame[bit / 8] ^= 1 << bit % 8;
	}
	for (size_t cut = 0; cut < size; cut++)
		assert_int_equal(frame_check(frame, cut), 0);
}

/* Frames of all lengths, the gaps between them filled with bytes that resemble frames. */
static void test_reader_finds_frames_among_garbage(void **state)
{
	static struct frame_reader reader;
	uint8_t payload[PTAT_PROTO_PAYLOAD_BYTES_MAX], frame[PTAT_PROTO_FRAME_BYTES_MAX];
	uint8_t found[PTAT_PROTO_FRAME_BYTES_MAX];
	static const char garbage[] = "PPTPTAPTA?\x02PTAC\x01\x01PT";
	unsigned int got = 0;

	(void)state;
	srand(1);
	memset(&reader, 0, sizeof(reader));
	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = rand();
	for (int i = 0; i < FRAMES; i++) {
		struct ptat_proto_header header = {
			.command = 1,
			.id = i,
			.length = rand() % (PTAT_PROTO_PAYLOAD_BYTES_MAX / 4 + 1) * 4,
		};
		size_t size = frame_write(frame, header, payload);
		size_t noise = rand() % sizeof(garbage);

		for (size_t j = 0; j < noise; j++)
			got += !!frame_read(&reader, garbage[j], found);
		for (size_t j = 0; j < size; j++) {
			size_t whole = frame_read(&reader, frame[j], found);

			if (!whole)
				continue;
			got++;
			assert_int_equal(whole, size);
			assert_memory_equal(found, frame, size);
		}
	}
	assert_int_equal(got, FRAMES);
	assert_true(reader.skipped > 0);
}

static void test_reader_survives_a_lying_length(void **state)
{
	static struct frame_reader reader;
	struct ptat_proto_header liar = { .command = 1, .length = 0 }, good = liar;
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX], found[PTAT_PROTO_FRAME_BYTES_MAX];
	unsigned int got = 0;
	size_t size;

	(void)state;
	memset(&reader, 0, sizeof(reader));
	size = frame_write(frame, liar, NULL);
	frame[offsetof(struct ptat_proto_header, length)] = 200;
	for (size_t i = 0; i < size; i++)
		assert_int_equal(frame_read(&reader, frame[i], found), 0);
	size = frame_write(frame, good, NULL);
	/* Until the lie is found out, whole frames wait; none is forgotten. */
	for (int i = 0; i < 20; i++)
		for (size_t j = 0; j < size; j++)
			for (size_t whole = frame_read(&reader, frame[j], found); whole; whole = 0)
				got++;
	assert_true(got >= 10);
	assert_int_equal(reader.skipped, size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_values),
		cmocka_unit_test(test_damage_is_noticed),
		cmocka_unit_test(test_reader_finds_frames_among_garbage),
		cmocka_unit_test(test_reader_survives_a_lying_length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
