// SPDX-License-Identifier: BSD-2-Clause
#include "calibrate.h"

#include <string.h>

#define ALL_PINS UINT32_MAX

static bool is_good(const struct ptat_proto_eye *eye, unsigned int tap)
{
	return eye->good[tap / 8] >> tap % 8 & 1;
}

static void set_delay(const struct hardware *hw, unsigned int pin, unsigned int tap)
{
	if (pin != ALL_PINS) {
		hw->set_delay(hw->context, pin, tap);
		return;
	}
	for (pin = 0; pin < hw->pins; pin++)
		hw->set_delay(hw->context, pin, tap);
}

/* The widest range of good delays, and its middle. */
static void find_eye(struct ptat_proto_eye *eye, unsigned int otherwise)
{
	unsigned int begin = 0;

	eye->chosen = otherwise;
	for (unsigned int tap = 0; tap < eye->taps; tap++) {
		if (!is_good(eye, tap)) {
			begin = tap + 1;
			continue;
		}
		if (tap + 1 - begin > eye->width) {
			eye->first = begin;
			eye->width = tap + 1 - begin;
		}
	}
	if (eye->width && eye->width < eye->taps)
		eye->chosen = eye->first + eye->width / 2;
}

/* Tries all delays of a pin, or of all pins; returns the number of commands seen. */
static uint64_t sweep(const struct hardware *hw, unsigned int pin, unsigned int otherwise,
		      struct ptat_proto_eye *eye)
{
	uint64_t commands = 0;

	memset(eye, 0, sizeof(*eye));
	eye->taps = hw->taps;
	for (unsigned int tap = 0; tap < hw->taps; tap++) {
		struct bus_sample sample;

		set_delay(hw, pin, tap);
		sample = hw->sample_bus(hw->context);
		commands += sample.commands;
		if (sample.commands && !sample.illegal)
			eye->good[tap / 8] |= 1 << tap % 8;
	}
	find_eye(eye, otherwise);
	set_delay(hw, pin, eye->chosen);
	return commands;
}

enum calibration calibrate(const struct hardware *hw, struct eyes *eyes)
{
	struct ptat_proto_eye common;

	memset(eyes, 0, sizeof(*eyes));
	if (!sweep(hw, ALL_PINS, hw->taps / 2, &common))
		return CALIBRATION_IDLE_BUS;
	eyes->pins = hw->pins;
	for (unsigned int pin = 0; pin < hw->pins; pin++)
		sweep(hw, pin, common.chosen, &eyes->pin[pin]);
	return CALIBRATED;
}

unsigned int eyes_closed(const struct eyes *eyes)
{
	unsigned int closed = 0;

	for (unsigned int pin = 0; pin < eyes->pins; pin++)
		closed += !eyes->pin[pin].width;
	return closed;
}
