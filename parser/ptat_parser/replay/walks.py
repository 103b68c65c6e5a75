# SPDX-License-Identifier: BSD-2-Clause
"""Pairs reads of PMD entries and of PTEs to walks, and classifies the reads of PMD entries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import delta_of
from ptat_parser.compiled.jit import Integer, bare, inlined, inner
from ptat_parser.replay.entry_stores import TO_ENTRY, TO_PAGE
from ptat_parser.replay.fast_path import pair_reads, put_kinds
from ptat_parser.replay.page_tables import (
    ENTRIES,
    LEAF,
    TABLE,
    UNTRACED,
    are_misses,
    holds_pmds,
)
from ptat_parser.replay.state import FAULT, MISS, PMD_READ, RoomMemory

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


@inner
def table_line(address: Integer, memory: RoomMemory) -> Integer:
    """Line of the PMD entry that points to the PTE table at `address`, or -1."""
    room = memory.room
    offset = address - room.config.base
    if offset >= room.config.size:
        return -1
    page = np.int64(offset >> TO_PAGE)
    if room.t.level[page] != 1:
        return -1
    parent = room.t.parent[room.t.frame[page]]
    return -1 if parent < 0 else parent & -room.config.line


@inner
def pmd_kind(
    slot: Integer, gap: Integer, next_line: Integer, memory: RoomMemory
) -> tuple[Integer, bool, bool]:
    """The kind of a read of a line of PMD entries.

    The next read, `gap` ticks later, is of a PTE table to which an entry of `next_line` points. If
    the line holds both huge pages and tables, the gap decides: a walk continues to the table at
    once, another walk comes later. Returns the kind, whether the entry was certainly empty, and
    whether the walk continues in the region.
    """
    room = memory.room
    state, line, tally = room.t.state, room.config.line, room.tally
    step = room.delays.walk_step
    leaves: Integer = 0
    tables: Integer = 0
    untraced: Integer = 0
    for s in range(slot, slot + line):
        leaves += state[s] == LEAF
        tables += state[s] == TABLE
        untraced += state[s] == UNTRACED
    if tables and next_line == slot:
        if leaves:
            tally.ambiguous += 1
            if step and 16 * gap > 2 * step:
                return MISS, False, False
        return PMD_READ, False, True
    if leaves:
        tally.ambiguous += untraced > 0
        return MISS, False, False
    if untraced:
        return PMD_READ, False, False
    if tables == line:
        return PMD_READ, False, True
    return FAULT, True, False


@inner
def end_walk(parent_slot: Integer, now: Integer, memory: RoomMemory) -> None:
    """Count the walk of a PTE read right after a PMD entry (`walk_pmd`) as whole or broken."""
    room = memory.room
    tally, cursors, delays = room.tally, room.cursors, room.delays
    if parent_slot < 0 or parent_slot & -room.config.line != cursors.walk_pmd:
        tally.walks_broken += 1
        return
    tally.walks_whole += 1
    step = 16 * (np.int64(now) - cursors.walk_pmd_ticks)
    delays.walk_step = _usual_step(delays.walk_step, step)


@inlined
def _usual_step(usual: Integer, step: Integer) -> Integer:
    """A moving average that is robust against outliers."""
    return usual + (min(step, 4 * usual) - usual) // 8 if usual else step


@inner
def count_walks(
    words: U64,
    time: U64,
    start: Integer,
    end: Integer,
    before: Integer,
    now: Integer,
    memory: RoomMemory,
) -> None:
    """Count the walks among the reads counted by `count_reads`, and write the reads' kinds.

    `before`: time of the access before `start`; `now`: time of the last access.
    """
    if start == end:
        return
    room = memory.room
    config, tally, cursors = room.config, room.tally, room.cursors
    if config.line == 1 or not config.huge:  # otherwise the durations of walks are needed
        done, whole, broken = pair_reads(start, end, memory)
        if done:
            if room.out.kind.size:
                put_kinds(start, end, memory)
            tally.walks_whole += whole
            tally.walks_broken += broken
            last = np.int64(room.slots[end - 1])
            cursors.walk_pmd_ticks = now
            cursors.walk_pmd = last if holds_pmds(room.t.parent[last // ENTRIES]) else -1
            return
    _count_walks_one_by_one(words, time, start, end, before, memory)
    if cursors.walk_pmd >= 0:
        cursors.walk_pmd_ticks = now


@inner
def _count_walks_one_by_one(
    words: U64, time: U64, start: Integer, end: Integer, before: Integer, memory: RoomMemory
) -> None:
    """Like `count_walks` if some reads may be of huge pages; sets `walk_pmd`, but not its time."""
    room = memory.room
    slots, parents, state, line = room.slots, room.t.parent, room.t.state, room.config.line
    tally, cursors, delays = room.tally, room.cursors, room.delays
    out_kind = room.out.kind
    first_record = tally.reads - cursors.first_row - start
    none = np.int64(1) << 62
    whole: Integer = 0
    broken: Integer = 0
    usual = delays.walk_step
    pending = np.int64(cursors.walk_pmd if cursors.walk_pmd >= 0 else none)
    for i in range(start, end):
        slot = np.int64(slots[i])
        parent = parents[slot // ENTRIES]
        if holds_pmds(parent):
            broken += pending != none
            kind = MISS if are_misses(slot, parents, state) else PMD_READ
            whole += kind == MISS
            pending = none if kind == MISS else slot
            if out_kind.size:
                out_kind[first_record + i] = kind
        elif parent & -line == pending:
            whole += 1
            pending = none
            if line > 1:
                step = np.int64(time[i] - time[i - 1] if time.size else delta_of(words[i]))
                if i == start:
                    step = np.int64(time[i] if time.size else before + delta_of(words[i]))
                    step -= cursors.walk_pmd_ticks
                usual = _usual_step(usual, 16 * step)
        else:
            broken += 1
            pending = none
    tally.walks_whole += whole
    tally.walks_broken += broken
    delays.walk_step = usual
    cursors.walk_pmd = -1 if pending == none else pending


@bare
def steps_of_walks(
    time: U64, address: U64, write: npt.NDArray[np.bool_], steps: I64, memory: RoomMemory
) -> Integer:
    """Fill `steps` with ticks × 16 from a walk's read of a PMD entry to that of its PTE.

    Uses only lines that hold tables and no pending huge page. Returns the number of steps.
    """
    room = memory.room
    t, config = room.t, room.config
    n = 0
    for i in range(time.size - 1):
        offset = address[i] - config.base
        if write[i] or write[i + 1] or offset >= config.size:
            continue
        page = np.int64(offset >> TO_PAGE)
        if t.level[page] != 2:
            continue
        slot = (t.frame[page] * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES) & -config.line
        if table_line(address[i + 1], memory) != slot:
            continue
        leaves: Integer = 0
        for s in range(slot, slot + config.line):
            leaves += t.state[s] == LEAF or t.pending[s] == LEAF + 1
        if leaves == 0:
            steps[n] = 16 * np.int64(time[i + 1] - time[i])
            n += 1
    return n
