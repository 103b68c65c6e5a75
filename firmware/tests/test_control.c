// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "../control.h"
#include "../frame.h"
#include "board.h"

#define ALICE 1
#define BOB   2

static struct board board;
static struct control control;
static union {
	uint8_t bytes[PTAT_PROTO_FRAME_BYTES_MAX];
	struct {
		struct ptat_proto_header header;
		union {
			uint32_t word;
			struct ptat_proto_stopped stopped;
			struct ptat_proto_health health;
			struct ptat_proto_identity identity;
			struct ptat_proto_eyes eyes;
		} payload;
	} __attribute__((packed));
} answer;

static int setup(void **state)
{
	static const struct ptat_proto_identity identity = { .channels = 1, .board = "test" };

	(void)state;
	board_init(&board);
	control_init(&control, &board.hw, &identity);
	return 0;
}

/* Sends a request; returns the answer's status, its payload being in `answer`. */
static int ask(uint32_t host, uint8_t command, const void *payload, size_t size)
{
	static uint16_t id;
	struct ptat_proto_header header = {
		.command = command,
		.id = ++id,
		.length = size,
		.host = host,
	};
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];
	size_t answered;

	answered =
		control_handle(&control, frame, frame_write(frame, header, payload), answer.bytes);
	assert_int_equal(answered, frame_check(answer.bytes, answered));
	assert_int_equal(answer.header.command, command | PTAT_PROTO_RESPONSE);
	assert_int_equal(answer.header.id, id);
	assert_int_equal(answer.header.host, host);
	if (answer.header.status)
		assert_int_equal(answer.header.length, 0);
	return answer.header.status;
}

#define ASK(host, command) ask(host, PTAT_PROTO_COMMAND_##command, NULL, 0)
#define ASK_WITH(host, command, payload)                                                           \
	ask(host, PTAT_PROTO_COMMAND_##command, &(payload), sizeof(payload))
#define assert_answer(status, asked) assert_int_equal(asked, PTAT_PROTO_STATUS_##status)

static void test_identify(void **state)
{
	(void)state;
	assert_answer(OK, ASK(ALICE, IDENTIFY));
	assert_int_equal(answer.header.length, PTAT_PROTO_IDENTITY_BYTES);
	assert_string_equal(answer.payload.identity.board, "test");
	assert_answer(OK, ASK(ALICE, START));
	assert_answer(OK, ASK(BOB, IDENTIFY));
	assert_int_equal(answer.payload.identity.state, PTAT_PROTO_STATE_RECORDING);
}

static void test_a_recording(void **state)
{
	(void)state;
	assert_answer(OK, ASK(ALICE, START));
	assert_answer(OK, ASK(ALICE, START)); /* repeated */
	assert_int_equal(board.starts, 1);
	assert_answer(OK, ASK(ALICE, FLUSH));
	assert_int_equal(board.flushes, 1);
	board.undrained = 2;
	assert_answer(NOT_YET, ASK(ALICE, STOP));
	assert_answer(WRONG_STATE, ASK(ALICE, START));
	assert_answer(NOT_YET, ASK(ALICE, STOP));
	board.blocks = 0x123456789;
	assert_answer(OK, ASK(ALICE, STOP));
	assert_int_equal(board.stops, 1);
	assert_true(answer.payload.stopped.blocks == 0x123456789);
	assert_int_equal(answer.payload.stopped.state, PTAT_PROTO_STATE_RECORDING);
	board.blocks = 0;
	assert_answer(OK, ASK(ALICE, STOP)); /* the same answer again */
	assert_true(answer.payload.stopped.blocks == 0x123456789);
	assert_int_equal(board.stops, 1);
	assert_answer(WRONG_STATE, ASK(ALICE, FLUSH));
	assert_answer(OK, ASK(BOB, START));
	assert_int_equal(board.starts, 2);
}

static void test_two_hosts(void **state)
{
	struct ptat_proto_matrix matrix = { 0 };
	uint32_t zero = 0;

	(void)state;
	assert_answer(OK, ASK(ALICE, START));
	assert_answer(BUSY, ASK(BOB, START));
	assert_answer(BUSY, ASK(BOB, STOP));
	assert_answer(BUSY, ASK(BOB, FLUSH));
	assert_answer(BUSY, ASK(BOB, HEARTBEAT));
	assert_answer(BUSY, ASK(BOB, CALIBRATE));
	assert_answer(BUSY, ASK_WITH(BOB, SET_MATRIX, matrix));
	assert_answer(WRONG_STATE, ASK_WITH(ALICE, SET_MATRIX, matrix));
	assert_answer(WRONG_STATE, ASK(ALICE, CALIBRATE));
	assert_answer(OK, ASK(BOB, HEALTH));
	assert_answer(OK, ASK_WITH(BOB, READ_EYES, zero));
	assert_true(board.recording);
}

static void test_a_host_that_dies(void **state)
{
	(void)state;
	board.now_ms = UINT32_MAX - 2000; /* the clock wraps meanwhile */
	assert_answer(OK, ASK(ALICE, START));
	for (int i = 0; i < 10; i++) {
		board.now_ms += PTAT_PROTO_HEARTBEAT_TIMEOUT_MS - 1;
		control_poll(&control);
		assert_true(board.recording);
		assert_answer(OK, ASK(ALICE, HEARTBEAT));
	}
	board.now_ms += PTAT_PROTO_HEARTBEAT_TIMEOUT_MS - 1;
	assert_answer(BUSY, ASK(BOB, HEARTBEAT)); /* is not the owner's */
	board.now_ms += 1;
	control_poll(&control);
	assert_false(board.recording);
	control_poll(&control);
	assert_int_equal(board.stops, 1);
	/* Its owner comes back and learns it. */
	assert_answer(OK, ASK(ALICE, STOP));
	assert_int_equal(answer.payload.stopped.state, PTAT_PROTO_STATE_EXPIRED);
	assert_int_equal(board.stops, 1);
}

static void test_a_dead_host_does_not_keep_the_board(void **state)
{
	(void)state;
	assert_answer(OK, ASK(ALICE, START));
	board.undrained = 1;
	assert_answer(NOT_YET, ASK(ALICE, STOP));
	board.now_ms += PTAT_PROTO_HEARTBEAT_TIMEOUT_MS;
	control_poll(&control);
	assert_int_equal(board.stops, 1);
	assert_answer(OK, ASK(BOB, START));
	assert_true(board.recording);
}

static void test_windows(void **state)
{
	struct ptat_proto_windows windows = {
		.sample_one_in = 10,
		.count = 2,
		.windows = { { 1, 5, PTAT_PROTO_WINDOW_READ | PTAT_PROTO_WINDOW_WRITE },
			     { 7, 7, PTAT_PROTO_WINDOW_SAMPLED } },
	};
	size_t size = PTAT_PROTO_WINDOWS_HEADER_BYTES + 2 * PTAT_PROTO_WINDOW_ENTRY_BYTES;
	uint8_t command = PTAT_PROTO_COMMAND_SET_WINDOWS;

	(void)state;
	board.windows[2].use = board.windows[3].use = PTAT_PROTO_WINDOW_READ;
	assert_answer(OK, ask(ALICE, command, &windows, size));
	assert_int_equal(board.sample, 10);
	assert_memory_equal(board.windows, windows.windows, sizeof(windows.windows));

	for (size_t bad = 0; bad <= sizeof(windows); bad += 4)
		if (bad != size)
			assert_answer(BAD_LENGTH, ask(ALICE, command, &windows, bad));
	windows.windows[1].last = 6;
	assert_answer(BAD_ARGUMENT, ask(ALICE, command, &windows, size));
	windows.windows[1].last = 1 << 23;
	assert_answer(BAD_ARGUMENT, ask(ALICE, command, &windows, size));
	windows.windows[1].last = 7;
	windows.windows[1].use = 32;
	assert_answer(BAD_ARGUMENT, ask(ALICE, command, &windows, size));
	windows.windows[1].use = 0;
	windows.sample_one_in = 0;
	assert_answer(BAD_ARGUMENT, ask(ALICE, command, &windows, size));
	windows.sample_one_in = 1;
	windows.count = UINT32_MAX;
	assert_answer(BAD_ARGUMENT, ask(ALICE, command, &windows, size));
	assert_int_equal(board.sample, 10); /* nothing of all that was taken */
}

static void test_trigger(void **state)
{
	uint32_t set = PTAT_PROTO_TRIGGER_START_WINDOW | PTAT_PROTO_TRIGGER_STOP_PIN;

	(void)state;
	assert_answer(OK, ASK_WITH(ALICE, TRIGGER, set));
	assert_int_equal(board.trigger, set);
	set = 16;
	assert_answer(BAD_ARGUMENT, ASK_WITH(ALICE, TRIGGER, set));
}

static void test_mirror(void **state)
{
	uint32_t ranks = 0xa;

	(void)state;
	assert_answer(OK, ASK_WITH(ALICE, SET_MIRROR, ranks));
	assert_int_equal(board.mirror, ranks);
	ranks = 0x10;
	assert_answer(BAD_ARGUMENT, ASK_WITH(ALICE, SET_MIRROR, ranks));
}

/* The tables, looked up as the gateware does, against the matrix itself. */
static void test_matrix(void **state)
{
	struct ptat_proto_matrix matrix = { .remap_first = 3072, .remap_offset = 1024 };
	const uint64_t units = UINT64_C(1) << 36;

	(void)state;
	srand(2);
	for (int i = 0; i < PTAT_PROTO_MATRIX_COLUMNS; i++)
		matrix.columns[i] = ((uint64_t)rand() << 20 ^ rand()) % units;
	matrix.constant = 0x123456789;
	board.mapped = true;
	assert_answer(OK, ASK_WITH(ALICE, SET_MATRIX, matrix));
	assert_true(board.mapped);
	assert_false(board.mapped_while_written);
	assert_int_equal(board.remap[0], 3072);
	assert_int_equal(board.remap[1], 1024);
	for (int i = 0; i < 10000; i++) {
		uint64_t coordinate = ((uint64_t)rand() << 20 ^ rand()) % units;
		uint64_t expected = matrix.constant, looked_up = 0;

		for (int bit = 0; bit < PTAT_PROTO_MATRIX_COLUMNS; bit++)
			if (coordinate >> bit & 1)
				expected ^= matrix.columns[bit];
		for (int table = 0; table < BOARD_TABLES; table++)
			looked_up ^= board.table[(coordinate >> table * BOARD_SLICE_BITS &
						  ((1 << BOARD_SLICE_BITS) - 1)) |
						 table << BOARD_SLICE_BITS];
		assert_true(looked_up == expected);
	}
	matrix.columns[7] = units;
	assert_answer(BAD_ARGUMENT, ASK_WITH(ALICE, SET_MATRIX, matrix));
}

static void test_calibrate_and_eyes(void **state)
{
	uint32_t first = 2;

	(void)state;
	assert_answer(OK, ASK(ALICE, CALIBRATE));
	assert_int_equal(answer.payload.word, 0);
	assert_answer(OK, ASK_WITH(BOB, READ_EYES, first));
	assert_int_equal(answer.payload.eyes.pins, BOARD_PINS);
	assert_int_equal(answer.payload.eyes.first, 2);
	assert_int_equal(answer.payload.eyes.count, BOARD_PINS - 2);
	assert_int_equal(answer.payload.eyes.eyes[0].chosen, 16);
	assert_int_equal(answer.header.length,
			 PTAT_PROTO_EYES_HEADER_BYTES + (BOARD_PINS - 2) * PTAT_PROTO_EYE_BYTES);
	first = BOARD_PINS + 1;
	assert_answer(BAD_ARGUMENT, ASK_WITH(ALICE, READ_EYES, first));
	board.busy_bus = false;
	assert_answer(FAILED, ASK(ALICE, CALIBRATE));
}

static void test_health(void **state)
{
	(void)state;
	assert_answer(OK, ASK(ALICE, HEALTH));
	assert_int_equal(answer.payload.health.fill_bytes, 8192);
	assert_int_equal(answer.payload.health.illegal[3], 33);
	assert_int_equal(answer.payload.health.temperature_mc, PTAT_PROTO_NO_TEMPERATURE);
}

static void test_what_is_not_a_command(void **state)
{
	struct ptat_proto_header header = { .command = PTAT_PROTO_COMMAND_IDENTIFY };
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];
	uint32_t crc;
	size_t size;

	(void)state;
	assert_answer(UNKNOWN_COMMAND, ask(ALICE, 0, NULL, 0));
	assert_answer(UNKNOWN_COMMAND, ask(ALICE, 0x7f, NULL, 0));
	assert_answer(BAD_LENGTH, ask(ALICE, PTAT_PROTO_COMMAND_START, "abc", 4));
	assert_answer(BAD_LENGTH, ask(ALICE, PTAT_PROTO_COMMAND_TRIGGER, NULL, 0));

	/* A host of another version is told ours. */
	size = frame_write(frame, header, NULL);
	frame[offsetof(struct ptat_proto_header, version)] = PTAT_PROTO_VERSION + 1;
	crc = frame_crc(0, frame, size - sizeof(crc));
	memcpy(frame + size - sizeof(crc), &crc, sizeof(crc));
	assert_true(control_handle(&control, frame, size, answer.bytes) > 0);
	assert_int_equal(answer.header.status, PTAT_PROTO_STATUS_WRONG_VERSION);
	assert_int_equal(answer.header.version, PTAT_PROTO_VERSION);

	/* No answer to an answer, and none to what is no frame. */
	header.command |= PTAT_PROTO_RESPONSE;
	size = frame_write(frame, header, NULL);
	assert_int_equal(control_handle(&control, frame, size, answer.bytes), 0);
	assert_int_equal(control.malformed, 0);
	assert_int_equal(control_handle(&control, frame, size - 1, answer.bytes), 0);
	assert_int_equal(control_handle(&control, frame, 0, answer.bytes), 0);
	assert_int_equal(control.malformed, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_identify, setup),
		cmocka_unit_test_setup(test_a_recording, setup),
		cmocka_unit_test_setup(test_two_hosts, setup),
		cmocka_unit_test_setup(test_a_host_that_dies, setup),
		cmocka_unit_test_setup(test_a_dead_host_does_not_keep_the_board, setup),
		cmocka_unit_test_setup(test_windows, setup),
		cmocka_unit_test_setup(test_trigger, setup),
		cmocka_unit_test_setup(test_mirror, setup),
		cmocka_unit_test_setup(test_matrix, setup),
		cmocka_unit_test_setup(test_calibrate_and_eyes, setup),
		cmocka_unit_test_setup(test_health, setup),
		cmocka_unit_test_setup(test_what_is_not_a_command, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
