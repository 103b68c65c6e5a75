// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../calibrate.h"
#include "board.h"

static struct board board;
static struct eyes eyes;

static int setup(void **state)
{
	(void)state;
	board_init(&board);
	return 0;
}

static void test_each_pin_gets_its_middle(void **state)
{
	(void)state;
	assert_int_equal(calibrate(&board.hw, &eyes), CALIBRATED);
	assert_int_equal(eyes.pins, BOARD_PINS);
	for (unsigned int i = 0; i < BOARD_PINS; i++) {
		assert_int_equal(eyes.pin[i].first, 8 + i);
		assert_int_equal(eyes.pin[i].width, 12);
		assert_int_equal(eyes.pin[i].chosen, 14 + i);
		assert_int_equal(board.pins[i].delay, 14 + i);
	}
	assert_int_equal(eyes_closed(&eyes), 0);
}

static void test_the_table_shows_each_delay(void **state)
{
	(void)state;
	calibrate(&board.hw, &eyes);
	for (unsigned int tap = 0; tap < PTAT_PROTO_EYE_TAPS_MAX; tap++)
		assert_int_equal(eyes.pin[1].good[tap / 8] >> tap % 8 & 1, tap >= 9 && tap < 21);
}

/* At either end of the range, where the eye is cut. */
static void test_eyes_at_the_ends(void **state)
{
	(void)state;
	for (int i = 0; i < BOARD_PINS; i++) {
		board.pins[i].begin = 0;
		board.pins[i].end = 5;
	}
	calibrate(&board.hw, &eyes);
	assert_int_equal(board.pins[2].delay, 2);
	for (int i = 0; i < BOARD_PINS; i++) {
		board.pins[i].begin = 30;
		board.pins[i].end = 32;
	}
	calibrate(&board.hw, &eyes);
	assert_int_equal(board.pins[2].delay, 31);
	assert_int_equal(eyes.pin[2].width, 2);
}

/* Address pins make no command illegal: they stay where the others agree. */
static void test_a_pin_that_cannot_be_judged(void **state)
{
	(void)state;
	board.pins[3].checked = false;
	calibrate(&board.hw, &eyes);
	/* The four others agree from 12 (the last to begin) to 19. */
	assert_int_equal(eyes.pin[3].width, BOARD_TAPS);
	assert_int_equal(board.pins[3].delay, 16);
}

static void test_a_dead_pin_is_reported(void **state)
{
	(void)state;
	board.pins[0].begin = board.pins[0].end = 0;
	assert_int_equal(calibrate(&board.hw, &eyes), CALIBRATED);
	/* It spoils all commands, so nothing is good for anyone. */
	assert_int_equal(eyes_closed(&eyes), BOARD_PINS);
	assert_int_equal(board.pins[1].delay, BOARD_TAPS / 2);
}

/* No commands are no errors, but no proof either. */
static void test_an_idle_bus_proves_nothing(void **state)
{
	(void)state;
	board.busy_bus = false;
	assert_int_equal(calibrate(&board.hw, &eyes), CALIBRATION_IDLE_BUS);
	assert_int_equal(eyes.pins, 0);
	for (int i = 0; i < BOARD_PINS; i++)
		assert_int_equal(board.pins[i].delay, BOARD_TAPS / 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_each_pin_gets_its_middle, setup),
		cmocka_unit_test_setup(test_the_table_shows_each_delay, setup),
		cmocka_unit_test_setup(test_eyes_at_the_ends, setup),
		cmocka_unit_test_setup(test_a_pin_that_cannot_be_judged, setup),
		cmocka_unit_test_setup(test_a_dead_pin_is_reported, setup),
		cmocka_unit_test_setup(test_an_idle_bus_proves_nothing, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
