# SPDX-License-Identifier: BSD-2-Clause
"""What the cores of the PCIe endpoint exchange behind the packets."""

from __future__ import annotations

import enum

from ptat_gateware.layouts import Layout
from ptat_parser import wire

QWORD_BYTES = 8
QWORD_BITS = 64
READS = 16  # under way in the memory at a time


class Refused(enum.IntEnum):
    """Why a packet was refused; value: its bit in ``refused``, and the index of its counter."""

    TYPE = 0  # a request that this endpoint does not serve
    LENGTH = 1  # a memory request of more than 64 bytes
    WINDOW = 2  # an access to the registers of more than 8 bytes, or to where none are
    POISONED = 3  # a write whose data are marked as damaged
    MALFORMED = 4  # against the rules of the specification
    COMPLETION = 5  # a completion, though nothing was requested
    MESSAGE = 6  # a message; the rules say to ignore it


# An access of 8 bytes of the region, by its address on the bus in units of 8 bytes.
memory_layout: Layout = [
    ("write", 1),
    ("address", wire.ACCESS_ADDRESS_BITS),
    ("be", QWORD_BYTES),
    ("data", QWORD_BITS),
]

data_layout: Layout = [("data", QWORD_BITS)]

# An access as the trace shows it. `partial`: not just these 8 bytes, and all of them.
record_layout: Layout = [
    ("write", 1),
    ("partial", 1),
    ("address", wire.ACCESS_ADDRESS_BITS),
]
