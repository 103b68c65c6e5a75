# SPDX-License-Identifier: BSD-2-Clause
"""Records that the cores exchange, from command pins to time-stamped accesses.

A memory bus does not wait, so nothing up to the packer can be stalled: a source there is a
``stream.Endpoint`` whose ``ready`` is ignored. There is one endpoint per *lane*. A lane
carries at most one access a fabric clock, because column commands are at least four CK apart
(tCCD, tCCD_S); a clock of 4 command phases has one lane, one of 8 has two, the earlier first.
"""

from __future__ import annotations

import enum
from typing import Any

from ptat_parser import wire

# Widths ---------------------------------------------------------------------------------------

PHASE_BITS = 3  # command phase (CK) within a fabric clock, 0 is the earliest
RANK_BITS = 2
BANK_GROUP_BITS = 2  # DDR4; 0 on DDR3
BANK_BITS = 3  # DDR3: BA2:0. DDR4: BA1:0
ROW_BITS = 17  # DDR4: A16:0
COLUMN_BITS = 12  # DDR3: A13, A11, A9:0. DDR4: A9:0
CHANNEL_BITS = 2  # the snooper's place, not on the bus
COORDINATE_BITS = RANK_BITS + BANK_GROUP_BITS + BANK_BITS + ROW_BITS + COLUMN_BITS

PHASES_PER_LANE = 4  # tCCD of JESD79-3F, tCCD_S of JESD79-4


class Illegal(enum.IntEnum):
    """What a decoder refuses; value: bit of ``illegal_layout.code`` and index of its counter."""

    COMMAND = 0  # reserved encoding, at an edge of CKE, or in a mode that is not decoded
    RANKS = 1  # ACT, RD or WR to several ranks at once
    COLUMN_SPACING = 2  # column command within 4 CK of the previous one
    BANK_SPACING = 3  # within 4 CK of another to the bank, but for what JEDEC allows; or two ACTs
    CLOSED = 4  # RD or WR to a closed bank
    OPEN = 5  # ACT to an open bank
    REFRESH = 6  # REF to a rank with open banks
    TRCD = 7  # RD or WR sooner than tRCD after the bank's ACT


# Layouts --------------------------------------------------------------------------------------

Layout = list[tuple[str, Any]]


def lanes(phases: int) -> int:
    """Number of lanes of a core that sees ``phases`` (4 or 8) commands a fabric clock."""
    if phases not in (4, 8):
        raise ValueError(f"{phases} command phases a clock: must be 4 or 8")
    return phases // PHASES_PER_LANE


def ddr3_command_layout(ranks: int) -> Layout:
    """Levels of the DDR3 command pins at one rising edge of CK."""
    return [
        ("cke", ranks),
        ("cs_n", ranks),
        ("ras_n", 1),
        ("cas_n", 1),
        ("we_n", 1),
        ("ba", BANK_BITS),
        ("a", 16),
    ]


def ddr4_command_layout(ranks: int) -> Layout:
    """Levels of the DDR4 command pins at one rising edge of CK.

    ``a`` 16, 15 and 14 are RAS_n, CAS_n and WE_n while ``act_n`` is high.
    """
    return [
        ("cke", ranks),
        ("cs_n", ranks),
        ("act_n", 1),
        ("bg", BANK_GROUP_BITS),
        ("ba", 2),
        ("a", ROW_BITS),
    ]


# Words of the capture stream.
WORD_BITS = 64

# An access as the bus shows it. `column` is that of the burst's first word: its low 3 bits are
# zero for a burst of 8, its low 2 for a burst chopped to 4. One column is one bus word (8 bytes).
coordinate_layout: Layout = [
    ("write", 1),
    ("phase", PHASE_BITS),
    ("rank", RANK_BITS),
    ("bank_group", BANK_GROUP_BITS),
    ("bank", BANK_BITS),
    ("row", ROW_BITS),
    ("column", COLUMN_BITS),
]

# An access by physical address, in units of 8 bytes as on the wire.
access_layout: Layout = [
    ("write", 1),
    ("phase", PHASE_BITS),
    ("address", wire.ACCESS_ADDRESS_BITS),
]

# One strobe for each clock with at least one illegal command: the set of `Illegal` kinds seen.
illegal_layout: Layout = [("code", len(Illegal))]
