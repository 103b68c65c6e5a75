# SPDX-License-Identifier: BSD-2-Clause
"""Words of the simulator's files, as harness.cpp has them."""

# Requests: the rest is the address in the bank.
WRITE_SHIFT = 63
PAUSE_SHIFT = 62
CHANNEL_SHIFT = 60
BANK_SHIFT = 56  # the rank above

# Log of column commands: the rest is the time.
COLUMN_CHANNEL_SHIFT = 60
COLUMN_BANK_SHIFT = 56
PAUSE_CHANNEL = 15
