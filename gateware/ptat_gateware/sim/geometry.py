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
RANKS_MAX = 2
RANK_BITS = 1
BANK_BITS = 3
ROW_BITS = 16
COLUMN_BITS = 10
BURST_BITS = 3
"""A request is one burst of 8 columns: 64 bytes."""
PORTS = 4
"""Native ports of each controller; one port keeps all its requests in order."""


def native_address(rank: U64, bank: U64, row: U64, column: U64, ranks: int) -> U64:
    """LiteDRAM's address of the bursts at these coordinates (mapping ``ROW_BANK_COL``).

    :raises ValueError: a coordinate is beyond the module.
    """
    fields = (
        (column >> np.uint64(BURST_BITS), COLUMN_BITS - BURST_BITS),
        (bank, BANK_BITS),
        (rank, ranks.bit_length() - 1),
        (row, ROW_BITS),
    )
    address = np.zeros_like(row)
    shift = 0
    for value, bits in fields:
        if value.size and int(value.max()) >> bits:
            raise ValueError(f"a DRAM coordinate needs more than the {bits} bits there are")
        address |= value << np.uint64(shift)
        shift += bits
    return address


def port_of(rank: U64, bank: U64) -> U64:
    """The port that serves a bank: always the same one, to keep the bank's order."""
    return (rank << np.uint64(BANK_BITS) | bank) % np.uint64(PORTS)
