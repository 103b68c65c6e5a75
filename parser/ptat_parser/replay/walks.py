# SPDX-License-Identifier: BSD-2-Clause
"""Which reads of PMD entries and of PTEs are one walk, and what the former were."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import delta_of
from ptat_parser.compiled.jit import Integer, bare, inlined, jit
from ptat_parser.replay.entry_stores import TO_ENTRY, TO_PAGE
from ptat_parser.replay.fast_path import pair_reads, put_kinds
from ptat_parser.replay.page_tables import (
    ENTRIES,
    LEAF,
    TABLE,
    UNTRACED,
    Tables,
    are_misses,
    holds_pmds,
)
from ptat_parser.replay.state import (
    AMBIGUOUS,
    FAULT,
    MISS,
    PMD_READ,
    WALK_PMD_TICKS,
    WALK_STEP,
    WALKS_BROKEN,
    WALKS_WHOLE,
    Config,
)

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@inlined
def table_line(
    next_address: Integer,
    levels: U8,
    frames: npt.NDArray[np.int32],
    parents: I64,
    config: Config,
) -> Integer:
    """Line of the PMD entry that leads to the PTE table that holds `next_address`, or -1."""
    offset = next_address - config.base
    if offset >= config.size:
        return -1
    page = np.int64(offset >> TO_PAGE)
    if levels[page] != 1:
        return -1
    parent = parents[frames[page]]
    return -1 if parent < 0 else parent & -config.line


@inlined
def pmd_kind(
    slot: Integer, gap: Integer, next_line: Integer, state: U8, count: I64, config: Config
) -> tuple[Integer, bool, bool]:
    """What a read of a line of PMD entries was.

    What is read `gap` ticks later is a table that an entry of `next_line` leads to. Where the
    line holds both huge pages and tables, that decides: a walk goes on to the table at once, the
    next walk comes later. Returns the kind, whether the entry was certainly empty and whether the
    walk goes on in the region.
    """
    leaves: Integer = 0
    tables: Integer = 0
    untraced: Integer = 0
    for s in range(slot, slot + config.line):
        leaves += state[s] == LEAF
        tables += state[s] == TABLE
        untraced += state[s] == UNTRACED
    if tables and next_line == slot:
        if leaves:
            count[AMBIGUOUS] += 1
            if count[WALK_STEP] and 16 * gap > 2 * count[WALK_STEP]:
                return MISS, False, False
        return PMD_READ, False, True
    if leaves:
        count[AMBIGUOUS] += untraced > 0
        return MISS, False, False
    if untraced:
        return PMD_READ, False, False
    if tables == config.line:
        return PMD_READ, False, True
    return FAULT, True, False


@inlined
def end_walk(
    pmd_line: Integer, parent_slot: Integer, now: Integer, count: I64, line: Integer
) -> None:
    """A PTE was read right after an entry of `pmd_line`: did that lead to its table?"""
    if parent_slot < 0 or parent_slot & -line != pmd_line:
        count[WALKS_BROKEN] += 1
        return
    count[WALKS_WHOLE] += 1
    step = 16 * (np.int64(now) - count[WALK_PMD_TICKS])
    count[WALK_STEP] = _usual_step(count[WALK_STEP], step)


@inlined
def _usual_step(usual: Integer, step: Integer) -> Integer:
    """A moving average that outliers cannot carry away."""
    return usual + (min(step, 4 * usual) - usual) // 8 if usual else step


@bare
def count_walks(
    words: U64,
    time: U64,
    slots: U32,
    start: Integer,
    end: Integer,
    before: Integer,
    now: Integer,
    pmd_line: Integer,
    line: Integer,
    huge: bool,
    parents: I64,
    state: U8,
    out_kind: U8,
    at: Integer,
    count: I64,
) -> Integer:
    """Count walks among reads that `count_reads` counted; return `WALK_PMD` after them.

    `before`: time of the access before `start`; `now`: of the last one. Kinds are written from `at`
    on, if wanted.
    """
    if start == end:
        return pmd_line
    if line == 1 or not huge:  # else it is to be known how long the steps of walks take
        done, whole, broken = pair_reads(slots, start, end, pmd_line, line, parents)
        if done:
            if out_kind.size:
                put_kinds(slots, start, end, parents, out_kind, at)
            count[WALKS_WHOLE] += whole
            count[WALKS_BROKEN] += broken
            last = np.int64(slots[end - 1])
            count[WALK_PMD_TICKS] = now
            return last if holds_pmds(parents[last // ENTRIES]) else -1
    whole = broken = 0
    usual = count[WALK_STEP]
    none = np.int64(1) << 62
    pending = np.int64(pmd_line) if pmd_line >= 0 else none
    began_ticks = count[WALK_PMD_TICKS]
    for i in range(start, end):
        slot = np.int64(slots[i])
        parent = parents[slot // ENTRIES]
        if holds_pmds(parent):
            broken += pending != none
            kind = MISS if are_misses(slot, parents, state) else PMD_READ
            if kind == MISS:
                whole += 1
                pending = none
            else:
                pending = slot
            if out_kind.size:
                out_kind[at + i - start] = kind
        elif parent & -line == pending:
            whole += 1
            pending = none
            if line > 1:
                step = np.int64(time[i] - time[i - 1] if time.size else delta_of(words[i]))
                if i == start:
                    step = np.int64(time[i] if time.size else before + delta_of(words[i]))
                    step -= began_ticks
                usual = _usual_step(usual, 16 * step)
        else:
            broken += 1
            pending = none
    count[WALKS_WHOLE] += whole
    count[WALKS_BROKEN] += broken
    count[WALK_STEP] = usual
    if pending == none:
        return -1
    count[WALK_PMD_TICKS] = now
    return pending


@jit
def steps_of_walks(
    time: U64, address: U64, write: npt.NDArray[np.bool_], t: Tables, config: Config
) -> I64:
    """Ticks × 16 of walks' steps, as accesses show them between two table events.

    Only lines tell that hold tables, and no huge page will be stored to.
    """
    steps = np.empty(time.size, np.int64)
    n = 0
    for i in range(time.size - 1):
        offset = address[i] - config.base
        if write[i] or write[i + 1] or offset >= config.size:
            continue
        page = np.int64(offset >> TO_PAGE)
        if t.level[page] != 2:
            continue
        slot = (t.frame[page] * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES) & -config.line
        line = table_line(address[i + 1], t.level, t.frame, t.parent, config)
        if (
            line == slot
            and not np.any(t.state[slot : slot + config.line] == LEAF)
            and not np.any(t.pending[slot : slot + config.line] == LEAF + 1)
        ):
            steps[n] = 16 * np.int64(time[i + 1] - time[i])
            n += 1
    return steps[:n]
