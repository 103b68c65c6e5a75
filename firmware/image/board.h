// SPDX-License-Identifier: BSD-2-Clause
/* The capture device's registers as the logic sees them: struct hardware. */
#ifndef PTAT_BOARD_H
#define PTAT_BOARD_H

#include "control.h"

/* `control` is the context of `hardware`, which must have begun with board_init(). */
extern const struct hardware board_hardware;

void board_identify(struct ptat_proto_identity *identity);

void board_watchdog_start(void);
void board_watchdog_feed(void);
/* The firmware runs because it hung before. */
bool board_watchdog_has_bitten(void);

/* A recording has not been drained yet. */
bool board_has_stream(void);
/* Waits until nothing is on its way to the link, for at most `patience_ms`. */
bool board_settle(unsigned int patience_ms);
/* Commands of the bus are forgotten: what comes is no continuation. */
void board_forget_bus(void);

#endif
