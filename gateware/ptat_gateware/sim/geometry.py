# SPDX-License-Identifier: BSD-2-Clause
"""The simulated memory channel, and how its controller numbers what is in it.

DDR3-1600 SO-DIMM with ranks of 4 GiB: 8 banks x 65,536 rows x 1,024 columns of 8 bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

PHASES = 4
DRAM_CLOCK_HZ = 800e6
"""CK: one tick of the snooper's time."""
CLOCK_PS = int(1e12 * PHASES / DRAM_CLOCK_HZ)
"""Period of the snooper's clock."""
RANK_BITS = 1
RANKS_MAX = 1 << RANK_BITS
BANK_BITS = 3
BANKS = 1 << BANK_BITS
"""Banks of a rank."""
ROW_BITS = 16
COLUMN_BITS = 10
BURST_BITS = 3
"""A request is one burst of 8 columns: 64 bytes."""


def bank_number(rank: U64, bank: U64) -> U64:
    """The controller's number of a bank."""
    return rank << np.uint64(BANK_BITS) | bank


def bank_address(row: U64, column: U64) -> U64:
    """The controller's address of a burst in its bank.

    :raises ValueError: a coordinate is beyond the module.
    """
    for value, bits in ((row, ROW_BITS), (column, COLUMN_BITS)):
        if value.size and int(value.max()) >> bits:
            raise ValueError(f"a DRAM coordinate needs more than the {bits} bits there are")
    return row << np.uint64(COLUMN_BITS - BURST_BITS) | column >> np.uint64(BURST_BITS)
