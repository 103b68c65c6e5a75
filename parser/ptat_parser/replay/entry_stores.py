# SPDX-License-Identifier: BSD-2-Clause
"""Effects of stores on the slots of tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, inner
from ptat_parser.replay.page_tables import CLEARING, ENTRIES, NOTHING_PENDING, PAGE_SHIFT, WRITTEN
from ptat_parser.replay.state import RoomMemory

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

TO_PAGE, TO_ENTRY = np.uint64(PAGE_SHIFT), np.uint64(3)
"""Shifts from an address in bytes."""


@inner
def entry_at(address: Integer, memory: RoomMemory) -> Integer:
    """Slot index of the entry at an address, or -1 if no table is there."""
    room = memory.room
    offset = address - room.config.base
    if offset >= room.config.size:
        return -1
    frame = np.int64(room.t.frame[np.int64(offset >> TO_PAGE)])
    if frame < 0:
        return -1
    return frame * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES


@inner
def store(level: Integer, slot: Integer, line: Integer, memory: RoomMemory) -> bool:
    """Store to the `line` entries at `slot`; return whether fewer of its PTEs are mapped now."""
    t = memory.room.t
    state, pending, mapped = t.state, t.pending, t.mapped
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
def store_all(address: U64, start: Integer, end: Integer, memory: RoomMemory) -> None:
    """Store to the addresses ``address[start:end]``, each a single entry."""
    room = memory.room
    for i in range(start, end):
        entry = entry_at(address[i], memory)
        if entry >= 0:
            level = room.t.store_level[np.int64(address[i] - room.config.base >> TO_PAGE)]
            store(level, entry, 1, memory)
