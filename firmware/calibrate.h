// SPDX-License-Identifier: BSD-2-Clause
/* When to look at each pin of the bus. */
#ifndef PTAT_CALIBRATE_H
#define PTAT_CALIBRATE_H

#include "hardware.h"

#define CALIBRATE_PINS_MAX 64

enum calibration {
	CALIBRATED,
	CALIBRATION_IDLE_BUS, /* no commands: eyes are unknown, all delays in the middle */
};

struct eyes {
	unsigned int pins;
	struct ptat_proto_eye pin[CALIBRATE_PINS_MAX];
};

/*
 * Sets each pin's delay to the middle of its eye: the widest range of delays at
 * which the front end sees commands and none that the protocol forbids.
 *
 * The front end judges commands, not pins. So at first all pins move together,
 * which finds delays that suit them all; then each moves alone while the others
 * stay there. A pin that can't make a command illegal shows no errors at any
 * delay, and stays at the common one.
 */
enum calibration calibrate(const struct hardware *hw, struct eyes *eyes);

/* Pins at which no delay was good. */
unsigned int eyes_closed(const struct eyes *eyes);

#endif
