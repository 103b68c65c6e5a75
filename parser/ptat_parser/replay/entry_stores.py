# SPDX-License-Identifier: BSD-2-Clause
"""What stores do to the slots of tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, inlined
from ptat_parser.replay.page_tables import CLEARING, ENTRIES, NOTHING_PENDING, PAGE_SHIFT, WRITTEN

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]

TO_PAGE, TO_ENTRY = np.uint64(PAGE_SHIFT), np.uint64(3)
"""Shifts from an address in bytes."""


@inlined
def entry_at(
    address: Integer, frames: npt.NDArray[np.int32], base: Integer, size: Integer
) -> Integer:
    """Number of the entry at an address, or -1 where no table is."""
    offset = address - base
    if offset >= size:
        return -1
    frame = np.int64(frames[np.int64(offset >> TO_PAGE)])
    if frame < 0:
        return -1
    return frame * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES


@inlined
def store(level: Integer, slot: Integer, line: Integer, state: U8, pending: U8, mapped: U8) -> bool:
    """A store to the line of entries at `slot`; whether fewer PTEs of it are mapped then."""
    cleared = False
    if level == 1:
        state[slot] = WRITTEN
        for s in range(slot, slot + line):
            if mapped[s] == CLEARING:
                mapped[s] = 0
                cleared = True
    elif level == 2:
        for s in range(slot, slot + line):
            if pending[s] != NOTHING_PENDING:
                state[s] = pending[s] - 1
                pending[s] = NOTHING_PENDING
    return cleared


@bare
def store_all(
    address: U64,
    start: Integer,
    end: Integer,
    base: Integer,
    size: Integer,
    frames: npt.NDArray[np.int32],
    store_levels: U8,
    state: U8,
    pending: U8,
    mapped: U8,
) -> None:
    """What the stores ``start … end`` do, each to an entry of its own."""
    for i in range(start, end):
        entry = entry_at(address[i], frames, base, size)
        if entry >= 0:
            level = store_levels[np.int64(address[i] - base >> TO_PAGE)]
            store(level, entry, 1, state, pending, mapped)
