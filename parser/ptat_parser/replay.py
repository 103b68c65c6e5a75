# SPDX-License-Identifier: BSD-2-Clause
"""Replays a capture stream against the reverse page table: what was each access?

Reads of leaf entries are misses; kept apart are walks that ended in a fault and reads of PMD
entries that point to a table. Stores keep the slots' state. A read that none of these
explains is an error, counted and listed.

**Walks that faulted.** A PTE slot that was never written since its table was handed out is
empty, and a PMD slot's state is known from its events: reads of empty slots faulted, exactly.
Other faults (permissions, swap) are told by `ptat_fault` events: the walk that faulted is the
last read of the slot before the event, which is logged before the handler stores anything. Each
read of an empty slot brings an event too, which is set off against it (``owed``).

The clocks of bus and kernel agree to about a microsecond, and so near may an event be to its
read. But reads of empty slots show both how soon after its read an event comes (`LAG_LEAST`,
which clocks may make negative) and how soon the access is tried again (`RETRY_LEAST`, on the
bus alone). So an event waits a little (`HOLD_S`), and then is about the last read before it or,
where that is older than a retry takes, about one that the clocks put right behind it. Where the
clocks are worse than reads of a line are apart, the bus decides: the handler stores to the entry,
so of reads as near to the event as the clocks can tell it is about one with a store behind it.
How far the clocks are apart changes while they run: an event may come a little sooner than any did.

Where several CPUs read an entry while one faults on it, a read that is much nearer to the event
than any was is another CPU's. An event that comes long after its read (`FAULTS_LATE`) may be taken
for one about another's: such labels are in doubt, and counted. It is not about a read that saw what
another CPU's handler stored, where one that did not has no event and no store followed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser import kernel_log, markers, wire
from ptat_parser.blocks import (
    ACCESS_ADDRESS_MASK,
    ADDRESS_UNIT_SHIFT,
    BLOCK_RECORDS_MAX,
    PIECE_BLOCKS,
    READ_BLOCKS,
    WORD_CHECK,
    WORD_FIRST_RECORD,
    WORD_TIME,
    WRITE_BIT,
    AnyChunk,
    BusReader,
    Chunk,
    PlainChunk,
    chunks_of,
    delta_of,
    room_for,
    sum_up,
)
from ptat_parser.clock import Clock
from ptat_parser.jit import KEPT_BYTES, Integer, bare, inlined, jit, keeping, put_passing, read_file
from ptat_parser.kernel_log import KernelLog, TableEvent
from ptat_parser.merge import Reader
from ptat_parser.quick import (
    AHEAD,
    FAULT,
    MISS,
    P_FAULTED,
    P_LAST,
    P_MISSES,
    P_STORES,
    PAGE_COLUMNS,
    PMD_READ,
    add_counts,
    collect,
    count_reads,
    find_slots,
    in_order,
    may_count,
    note_read,
    page_of_line,
    pair_reads,
    put_away,
    put_kinds,
    put_reads,
    row_of_page,
)
from ptat_parser.rpt import (
    CLEARING,
    COUNT_BITS,
    COUNTED_MAX,
    EMPTY,
    ENTRIES,
    EPOCH_TICKS,
    LEAF,
    NO_SLOT,
    NOTHING_PENDING,
    ROW_MASK,
    TABLE,
    UNTRACED,
    WITH_LEAVES,
    WRITTEN,
    Counts,
    Rpt,
    Tables,
    are_misses,
    first_quick,
    holds_pmds,
    page_number,
)
from ptat_parser.schedule import LOSS, NOTHING, Schedule
from ptat_parser.session import Session
from ptat_parser.survey import FirstAccess, Progress, no_progress

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

# Reasons why a read is not explained.
IN_MARKERS, NO_TABLE, OUTSIDE_REGION = range(3)
REASONS = ("in the marker area", "of a page that holds no table", "outside the region")
EXAMPLES = 16

PATIENCE_S = 0.05
"""Longer after a read of an empty entry, a fault event is not about that read.

Walks ahead of the program (speculation) read empty entries and never fault.
"""

HOLD_S = 50e-6
"""A fault event waits so long for reads that the clocks may have put behind it."""

WALK_STEPS = 256
"""Of so many walks before, a span takes what the step of one usually is: a few may mislead."""

LAGS_LEARNT = 1000
"""So many fault events whose reads are certain tell how soon after its read one comes at least."""

HELD_BACK = 1 << 17
"""So many accesses before a fault event, at least, the read that it is about is looked for.

An event about an older one may find nothing (`FAULTS_UNMATCHED`). What is older, and before the
chunk that the event is in, is settled.
"""

_NO_ADDRESS = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_NEVER = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ZERO = np.uint64(0)
_U32 = np.int64(0xFFFF_FFFF)
_PAGE_SHIFT = np.uint64(12)
_ENTRY_SHIFT = np.uint64(3)
_ONE = np.uint64(1)
_ROW_MASK = np.uint32(ROW_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)

# Elements of the vector of counters that segments of a replay hand on.
(
    N_OUTPUT,  # reads classified
    N_HELD,  # those of them that a fault event may be about
    ROWS,  # pages that have one, from 1
    NEXT_TIMED,  # the next event without a marker
    STORES,
    STORES_UNOWNED,
    UNEXPLAINED,
    FAULTS_EMPTY,  # fault events set off against reads of empty slots
    FAULTS_MATCHED,  # … that turned a miss into a walk that faulted
    FAULTS_LATE,  # … more than `HOLD_S` after it
    FAULTS_NO_LEAF,  # … of addresses without a table: their walks read no leaf entry
    FAULTS_UNMATCHED,
    WALK_PMD,  # line of the last read if that was of a PMD entry pointing to a table, or -1
    WALK_PMD_TICKS,  # its time
    WALK_STEP,  # ticks from a walk's read of a PMD entry to that of the PTE, usually, × 16
    AMBIGUOUS,  # reads of lines of PMD entries whose kind had to be told from the time between
    WALKS_WHOLE,
    WALKS_BROKEN,
    NEXT_HELD,  # the next fault event to be matched; it and those up to NEXT_TIMED wait
    LAG_LEAST,  # least ticks from a read of an empty entry to its fault event
    RETRY_LEAST,  # … to the next read of the slot, with that event between
    NEXT_WATCHED,  # the next fault event whose table is not yet watched for reads
    NEXT_UNREAD,  # events before this one that wait have the time of their read
    LOSS_FLOOR,  # held reads before this one are separated from now by a loss
    EPOCH,  # `Rpt.epoch_ticks`
    FIRST_READ,  # parent line, plus one, if the first read is of a PTE; -1: of a PMD entry; or 0
    FIRST_ROW,  # the read that is the first of the records
    SETTLED,  # reads before this one are too old for a fault event to be about
    READBACKS,  # reads by the kernel, before it flushed TLBs
    LAST_READ,  # address of the last access if it was a read, or -1
) = range(30)
COUNTERS = 30
LEAST_UNKNOWN = np.iinfo(np.int64).max
"""Before the first was seen."""

GROUP = BLOCK_RECORDS_MAX
"""Accesses that are looked at together."""


class Records(NamedTuple):
    """Classified reads in bus order: time (ticks), page number and kind."""

    time: U64
    page: U32
    kind: U8


MakeRoom = Callable[[int, int, int], Records]
"""Given how many records there are, how many of these are settled and how many are to come.

Returns records that have those not settled first, and room.
"""


class _Following(NamedTuple):
    """What comes after a chunk.

    The `address` read right after it, at `ticks`, or `_NO_ADDRESS`; at the `horizon` or later, no
    fault event is about one of its accesses.
    """

    address: np.uint64
    ticks: int
    horizon: np.uint64


class _Accesses(NamedTuple):
    """A chunk for the inner loop: if it is a `PlainChunk`, so many blocks (`size`), else, of each
    access, `words` with the address and whether it is a write, as in a block, and the time.
    `last_ticks`: time of the last access.

    `blocks` are these blocks, or has room for `READ_BLOCKS` and one more, if they are to be read
    from `file`, where they are from `start_bytes` on; `held` are then the numbers of those that it
    has, in units of `READ_BLOCKS`, and of the piece that was checked last, or -1, and room for one
    word. `sums` of the pieces, if they are to be checked.
    """

    blocks: U64
    words: U64
    time: U64
    last_ticks: int
    following: _Following
    size: int
    file: int
    start_bytes: int
    held: I64
    sums: U64


class _Held(NamedTuple):
    """Reads that a fault event may be about, the last ones of them.

    `first` is the number of the one in element 0 (0-d array), `record` its number among all reads;
    `row` is its page's; `previous` is the number, plus one, of the read before of the same slot.
    `stored`: before the next of the slot came a store to it.
    """

    first: I64
    record: I64
    time: U64
    row: U32
    kind: U8
    previous: U32
    stored: npt.NDArray[np.bool_]


class _Timed(NamedTuple):
    """Events without a marker, in bus ticks: kind, ranges of levels 1 and 2, address.

    Fault events that wait: the line they are about, or -1, whether it was empty, and the time of
    the read if that is certain already, or 0. `doubt_ticks`: the time of a read before a loss
    that the event may be about, or 0. `held_since`: the first read that was certainly held if it
    may be about it.
    """

    time: U64
    kind: U8
    range1: npt.NDArray[np.int32]
    range2: npt.NDArray[np.int32]
    address: U64
    line: I64
    was_empty: npt.NDArray[np.bool_]
    read_ticks: I64
    doubt_ticks: U64
    held_since: I64


class _Events(NamedTuple):
    """What of `_Timed` the log tells."""

    time: U64
    kind: U8
    range1: npt.NDArray[np.int32]
    range2: npt.NDArray[np.int32]
    address: U64


class _Config(NamedTuple):
    base: np.uint64
    size: np.uint64
    marker_bytes: np.uint64
    readback: np.uint64  # address that the kernel reads; or no address
    line: int  # entries that one bus address stands for
    faults: bool
    entries: bool
    records: bool  # are wanted, not only counted
    skips: bool  # only what stores do is of interest
    held_groups: int  # so many groups have the `HELD_BACK` accesses before an event
    patience: int  # ticks that a read of an empty entry waits for its fault event
    hold: np.uint64  # ticks that a fault event waits
    huge: bool  # reads of PMD entries may be of huge pages
    clock_error: int  # ticks that the clocks may be apart
    overtaken: int  # ticks after its read that a CPU's event may come behind another's; 0: one CPU


class _Room(NamedTuple):
    """What a replay works on, but the accesses; `slots` has room for those of a `GROUP`."""

    t: Tables
    out: Records
    held: _Held
    timed: _Timed
    pages: I64
    counters: I64
    examples: U64
    config: _Config
    slots: U32


_NO_RECORDS = Records(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint8))


def _hold_none(capacity: int) -> _Held:
    return _Held(
        np.zeros(1, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.uint64),
        np.empty(capacity, np.uint32),
        np.empty(capacity, np.uint8),
        np.empty(capacity, np.uint32),
        np.empty(capacity, np.bool_),
    )


_NO_EVENTS = _Events(
    np.empty(0, np.uint64), np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.int32),
    np.empty(0, np.uint64),
)  # fmt: skip


def _timed(events: _Events) -> _Timed:
    size = events.time.size
    return _Timed(
        *events, np.full(size, -1), np.zeros(size, np.bool_), np.zeros(size, np.int64),
        np.zeros(size, np.uint64), np.zeros(size, np.int64),
    )  # fmt: skip


_NO_CONFIG = _Config(
    _ZERO, _ZERO, _ZERO, _ZERO, 1, False, False, False, False, 0, 0, _ZERO, False, 0, 0,
)  # fmt: skip

_put_accesses, _accesses_in = keeping(
    _Accesses(
        np.empty((0, 0), np.uint64),
        np.empty(0, np.uint64),
        np.empty(0, np.uint64),
        0,
        _Following(_NO_ADDRESS, 0, _NEVER),
        0,
        -1,
        0,
        np.empty(0, np.int64),
        np.empty((0, 2), np.uint64),
    )
)
_put_room, _room_in = keeping(
    _Room(
        Rpt(0, 0).tables,
        _NO_RECORDS,
        _hold_none(0),
        _timed(_NO_EVENTS),
        np.empty((0, 0), np.int64),
        np.empty(0, np.int64),
        np.empty((0, 0), np.uint64),
        _NO_CONFIG,
        np.empty(0, np.uint32),
    )
)


# Tuples of arrays are costly to hand on: what runs for each access takes single arrays, and what
# runs for each event takes bare ones (`jit.keeping`).


@inlined
def _entry_at(
    address: Integer, frames: npt.NDArray[np.int32], base: Integer, size: Integer
) -> Integer:
    """Number of the entry at an address, or -1 where no table is."""
    offset = address - base
    if offset >= size:
        return -1
    frame = np.int64(frames[np.int64(offset >> _PAGE_SHIFT)])
    if frame < 0:
        return -1
    return frame * ENTRIES + np.int64(offset >> _ENTRY_SHIFT) % ENTRIES


@inlined
def _store(
    level: Integer, slot: Integer, line: Integer, state: U8, pending: U8, mapped: U8
) -> bool:
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


@inlined
def _table_line(
    next_address: Integer,
    levels: U8,
    frames: npt.NDArray[np.int32],
    parents: I64,
    config: _Config,
) -> Integer:
    """Line of the PMD entry that leads to the PTE table that holds `next_address`, or -1."""
    offset = next_address - config.base
    if offset >= config.size:
        return -1
    page = np.int64(offset >> np.uint64(12))
    if levels[page] != 1:
        return -1
    parent = parents[frames[page]]
    return -1 if parent < 0 else parent & -config.line


@bare
def _store_all(
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
        entry = _entry_at(address[i], frames, base, size)
        if entry >= 0:
            level = store_levels[np.int64(address[i] - base >> _PAGE_SHIFT)]
            _store(level, entry, 1, state, pending, mapped)


@inlined
def _pmd_kind(
    slot: Integer, gap: Integer, next_line: Integer, state: U8, count: I64, config: _Config
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
def _end_walk(
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
def _count_walks(
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
def _steps_of_walks(
    time: U64, address: U64, write: npt.NDArray[np.bool_], t: Tables, config: _Config
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
        page = np.int64(offset >> np.uint64(12))
        if t.level[page] != 2:
            continue
        slot = (t.frame[page] * ENTRIES + np.int64(offset >> np.uint64(3)) % ENTRIES) & -config.line
        line = _table_line(address[i + 1], t.level, t.frame, t.parent, config)
        if (
            line == slot
            and not np.any(t.state[slot : slot + config.line] == LEAF)
            and not np.any(t.pending[slot : slot + config.line] == LEAF + 1)
        ):
            steps[n] = 16 * np.int64(time[i + 1] - time[i])
            n += 1
    return steps[:n]


@inlined
def _watch(range_: Integer, step: Integer, t: Tables) -> None:
    """Count a fault event about a range in (1) or out (-1): meanwhile its reads are held."""
    t.watched[range_] += step
    page = t.last_page[range_]
    if page >= 0 and t.level[page] == 1 and t.range_of_frame[t.frame[page]] == range_:
        frame = t.frame[page]
        t.quick_slot[page] = (
            NO_SLOT if t.watched[range_] else first_quick(frame, 1, t.parent[frame])
        )


@inlined
def _watch_pmds(range_: Integer, t: Tables, pages: I64, count: I64, line: Integer) -> None:
    """Count a fault event about a range of level 2: misses of its huge pages are held."""
    t.watched[range_] += 1
    page = t.last_page[range_]
    if t.watched[range_] == 1 and page >= 0 and t.parent[t.frame[page]] == WITH_LEAVES:
        epoch = np.uint64(count[EPOCH])
        first = np.int64(t.frame[page]) * ENTRIES
        for slot in range(first, first + ENTRIES, line):
            if are_misses(slot, t.parent, t.state):
                put_away(
                    slot, line, t.tally, epoch, t.counted_page, t.parent, t.state,
                    t.range_of_frame, t.row_of, pages,
                )  # fmt: skip


@inlined
def _watch_until(
    time: Integer, t: Tables, timed: _Timed, pages: I64, count: I64, config: _Config
) -> None:
    """Hold the reads that fault events before `time` may be about."""
    while count[NEXT_WATCHED] < timed.time.size and timed.time[count[NEXT_WATCHED]] < time:
        i = count[NEXT_WATCHED]
        if timed.kind[i] == kernel_log.FAULT:
            timed.held_since[i] = count[N_OUTPUT]
            _watch(timed.range1[i], 1, t)
            _watch_pmds(timed.range2[i], t, pages, count, config.line)
        count[NEXT_WATCHED] += 1


@jit
def _watch_all_until(time: Integer, memory: I64) -> None:
    """The same, where no access brings these events."""
    t, _, _, timed, pages, count, _, config, _ = _room_in(memory)
    _watch_until(time, t, timed, pages, count, config)


@inlined
def _number_of(link: Integer, count: I64) -> Integer:
    """Number of a held read, of which a link has the last 32 bits, plus one."""
    return count[N_HELD] - ((count[N_HELD] + 1 - np.int64(link)) & _U32)


@inlined
def _match_fault(
    i: Integer,
    slot: Integer,
    t: Tables,
    out: Records,
    held: _Held,
    timed: _Timed,
    pages: I64,
    count: I64,
    config: _Config,
) -> None:
    """Turn the last miss on a slot that can have brought event `i` into a walk that faulted.

    Reads that the clocks put right behind the event are looked at where those before it are too
    old. Where accesses were lost since then, the read is left as it is, in doubt. Of reads from
    before all were held, others may have come later: these are left alone, too.
    """
    time = np.int64(timed.time[i])
    settled = max(count[SETTLED], timed.held_since[i])
    latest = time - min(count[LAG_LEAST], 0)
    behind = latest
    oldest = np.int64(0)
    lag_known = count[LAG_LEAST] != LEAST_UNKNOWN
    if count[RETRY_LEAST] != LEAST_UNKNOWN:
        oldest = time - count[RETRY_LEAST]
        if lag_known:
            behind = max(latest, time - count[LAG_LEAST] + count[RETRY_LEAST] // 4)
    found: Integer = -1
    link = np.int64(t.last_read[slot])
    while link != 0:
        number = _number_of(link, count)
        at = number - held.first[0]
        read_ticks = np.int64(held.time[at]) if at >= 0 else oldest
        if at < 0 or held.record[at] < settled or (found >= 0 and read_ticks < oldest):
            break
        if held.kind[at] == MISS and read_ticks <= behind:
            if number < count[LOSS_FLOOR]:
                if found < 0 and read_ticks + config.patience > latest:
                    timed.doubt_ticks[i] = held.time[at]
                break
            if found < 0 or read_ticks <= latest:
                found = at
            if read_ticks <= latest:
                break
        link = np.int64(held.previous[at])
    if found < 0:
        count[FAULTS_UNMATCHED] += 1
        return
    anothers = LEAST_UNKNOWN
    if config.overtaken and lag_known and count[FAULTS_EMPTY] >= LAGS_LEARNT:
        # Half of it, as the clocks' error is not the same all the time.
        anothers = time - count[LAG_LEAST] // 2 if count[LAG_LEAST] > 0 else behind
    if np.int64(held.time[found]) > anothers:
        found = _before_another(time, found, settled, held, count, config)
    if time - np.int64(held.time[found]) > config.hold:
        found = _beside_a_fault(time, slot, found, settled, t, held, count, config)
    if not held.stored[found]:
        latest = time + config.clock_error
        if np.int64(held.time[found]) <= anothers:
            latest = min(latest, anothers)
        found = _stored_near(time, latest, slot, found, settled, t, held, count, config)
    held.kind[found] = FAULT
    if config.records:
        out.kind[held.record[found] - count[FIRST_ROW]] = FAULT
    pages[held.row[found], P_MISSES] -= 1
    pages[held.row[found], P_FAULTED] += 1
    count[FAULTS_MATCHED] += 1
    count[FAULTS_LATE] += time - np.int64(held.time[found]) > config.hold


@inlined
def _before_another(
    time: Integer, near: Integer, settled: Integer, held: _Held, count: I64, config: _Config
) -> Integer:
    """The miss of a slot before `near`, which is too near to its event to have brought it.

    It is `near` all the same where a store came between them, or much time.
    """
    at: Integer = near
    while held.previous[at]:
        number = _number_of(held.previous[at], count)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < count[LOSS_FLOOR]:
            break
        if time - np.int64(held.time[at]) > config.overtaken or held.stored[at]:
            break
        if held.kind[at] == MISS:
            return at
    return near


@inlined
def _beside_a_fault(
    time: Integer,
    slot: Integer,
    found: Integer,
    settled: Integer,
    t: Tables,
    held: _Held,
    count: I64,
    config: _Config,
) -> Integer:
    """The miss that a very late event is about: `found`, or one that cannot have seen its entry.

    Where `found` is the next of the slot after one that faulted, with the handler's store between,
    it saw what the handler stored. A miss not long before that fault, with no store between, did
    not, and may be another CPU's. Not so where a store came after `found`: that is what the event's
    handler does.
    """
    at: Integer = found
    link = np.int64(t.last_read[slot])
    while link != 0:
        later = _number_of(link, count) - held.first[0]
        if held.stored[later]:
            return found
        if later == found:
            break
        link = np.int64(held.previous[later])
    faulted = False
    while held.previous[at]:
        number = _number_of(held.previous[at], count)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < count[LOSS_FLOOR]:
            break
        if time - np.int64(held.time[at]) > config.overtaken:
            break
        if held.stored[at] == faulted or (not faulted and held.kind[at] != FAULT):
            break
        if held.kind[at] == MISS:
            return at
        faulted = True
    return found


@inlined
def _stored_near(
    time: Integer,
    latest: Integer,
    slot: Integer,
    otherwise: Integer,
    settled: Integer,
    t: Tables,
    held: _Held,
    count: I64,
    config: _Config,
) -> Integer:
    """Of misses on a slot with a store behind them the nearest, if the clocks allow one.

    `latest`: what comes later was read by another CPU.
    """
    found = otherwise
    retry = count[RETRY_LEAST]
    oldest = time - config.clock_error - (0 if retry == LEAST_UNKNOWN else retry)
    nearest = np.int64(1) << 62
    link = np.int64(t.last_read[slot])
    while link != 0:
        number = _number_of(link, count)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < count[LOSS_FLOOR]:
            break
        read_ticks = np.int64(held.time[at])
        if read_ticks < oldest:
            break
        away = abs(read_ticks - time)
        if held.kind[at] == MISS and held.stored[at] and read_ticks <= latest and away < nearest:
            found = at
            nearest = away
        link = np.int64(held.previous[at])
    return found


@inlined
def _take(i: Integer, line: Integer, t: Tables, timed: _Timed, count: I64) -> None:
    """Fault event `i` is about the last read of an empty entry of the line."""
    read_ticks = np.int64(t.owed_ticks[line])
    if t.owed[line] == 1:  # else it may be about an earlier one
        count[LAG_LEAST] = min(count[LAG_LEAST], np.int64(timed.time[i]) - read_ticks)
    t.owed[line] -= 1
    timed.read_ticks[i] = read_ticks
    count[FAULTS_EMPTY] += 1


@inlined
def _settle(
    i: Integer, line: Integer, empty: bool, t: Tables, timed: _Timed, count: I64, config: _Config
) -> bool:
    """Set fault event `i` off against a read of an empty entry of this line, if one is owed.

    While the entry is still `empty` there is no other read that the event can be about.
    """
    timed.line[i] = line
    timed.was_empty[i] = empty
    if not t.owed[line]:
        return False
    read_ticks = np.int64(t.owed_ticks[line])
    lag = np.int64(timed.time[i]) - read_ticks
    count[NEXT_UNREAD] = max(count[NEXT_UNREAD], count[NEXT_HELD])
    while count[NEXT_UNREAD] < i and timed.read_ticks[count[NEXT_UNREAD]]:
        count[NEXT_UNREAD] += 1
    for earlier in range(count[NEXT_UNREAD], i):
        # An event that the clocks put before its read waits for it.
        if timed.line[earlier] == line and not timed.read_ticks[earlier]:
            nearer = abs(np.int64(timed.time[earlier]) - read_ticks) < abs(lag)
            if nearer and t.owed[line]:
                _take(earlier, line, t, timed, count)
    if lag > config.patience and not empty:
        t.owed[line] = 0
    if not t.owed[line]:
        return False
    _take(i, line, t, timed, count)
    return True


@inlined
def _fault(i: Integer, t: Tables, timed: _Timed, count: I64, config: _Config) -> None:
    """Find the line that the walk of a fault event ended at: the tables may change."""
    page = np.int64(t.page_of_range[timed.range2[i]])
    if page >= 0:
        slot = t.frame[page] * ENTRIES + np.int64(timed.address[i] >> np.uint64(21)) % ENTRIES
        if _settle(i, slot & -config.line, t.state[slot] == EMPTY, t, timed, count, config):
            return
        if t.state[slot] not in (TABLE, UNTRACED):
            return
    page = np.int64(t.page_of_range[timed.range1[i]])
    if page < 0:
        timed.line[i] = -1
        count[FAULTS_NO_LEAF] += 1
        return
    slot = t.frame[page] * ENTRIES + np.int64(timed.address[i] >> np.uint64(12)) % ENTRIES
    line = slot & -config.line
    _settle(i, line, t.state[line] == EMPTY, t, timed, count, config)


@inlined
def _retry_after(line: Integer, read_ticks: Integer, t: Tables, held: _Held, count: I64) -> Integer:
    """Ticks from a read to the next miss of the line, if that has come, or LEAST_UNKNOWN."""
    retry: Integer = LEAST_UNKNOWN
    link = np.int64(t.last_read[line])
    while link != 0:
        at = _number_of(link, count) - held.first[0]
        if at < 0 or np.int64(held.time[at]) <= read_ticks:
            break
        retry = np.int64(held.time[at]) - read_ticks
        link = np.int64(held.previous[at])
    return retry


@inlined
def _match(
    i: Integer,
    t: Tables,
    out: Records,
    held: _Held,
    timed: _Timed,
    pages: I64,
    count: I64,
    config: _Config,
) -> None:
    """Match fault event `i`, which has waited."""
    line = timed.line[i]
    if line < 0:
        return
    # A read so much later has an event of its own to come.
    if not timed.read_ticks[i] and t.owed_ticks[line] < timed.time[i] + config.hold // 2:
        _settle(i, line, bool(timed.was_empty[i]), t, timed, count, config)
    if timed.read_ticks[i]:
        retry = _retry_after(line, timed.read_ticks[i], t, held, count)
        count[RETRY_LEAST] = min(count[RETRY_LEAST], retry)
    else:
        _match_fault(i, line, t, out, held, timed, pages, count, config)
    timed.line[i] = -1


@inlined
def _match_held(
    until: Integer,
    t: Tables,
    out: Records,
    held: _Held,
    timed: _Timed,
    pages: I64,
    count: I64,
    config: _Config,
) -> None:
    """Match the fault events before `until`."""
    while count[NEXT_HELD] < count[NEXT_TIMED] and timed.time[count[NEXT_HELD]] < until:
        i = count[NEXT_HELD]
        _match(i, t, out, held, timed, pages, count, config)
        if timed.kind[i] == kernel_log.FAULT:
            _watch(timed.range1[i], -1, t)
            t.watched[timed.range2[i]] -= 1
        count[NEXT_HELD] += 1


@jit
def _match_frame(frame: Integer, memory: I64) -> None:
    """Match the fault events about a table whose page is used again: its reads all came."""
    t, out, held, timed, pages, count, _, config, _ = _room_in(memory)
    for i in range(count[NEXT_HELD], count[NEXT_TIMED]):
        if timed.line[i] // ENTRIES == frame:
            _match(i, t, out, held, timed, pages, count, config)


@inlined
def _timed_until(
    time: Integer,
    t: Tables,
    out: Records,
    held: _Held,
    timed: _Timed,
    pages: I64,
    count: I64,
    config: _Config,
) -> None:
    """Apply the events without a marker up to a bus time."""
    while count[NEXT_TIMED] < timed.time.size and timed.time[count[NEXT_TIMED]] < time:
        i = count[NEXT_TIMED]
        if timed.kind[i] == kernel_log.FAULT:
            _fault(i, t, timed, count, config)
        else:
            entry = _entry_at(timed.address[i], t.frame, config.base, config.size)
            if entry >= 0:
                if not t.mapped[entry]:
                    put_away(
                        entry & -config.line, config.line, t.tally, np.uint64(count[EPOCH]),
                        t.counted_page, t.parent, t.state, t.range_of_frame, t.row_of, pages,
                    )  # fmt: skip
                # A cleared entry may be read until the store that clears it.
                t.mapped[entry] = 1 if timed.kind[i] == kernel_log.ENTRY_SET else CLEARING
        count[NEXT_TIMED] += 1
    if time > config.hold:
        _match_held(time - config.hold, t, out, held, timed, pages, count, config)


@jit
def _match_all(memory: I64) -> None:
    """Match the fault events that wait."""
    t, out, held, timed, pages, count, _, config, _ = _room_in(memory)
    _match_held(_NEVER, t, out, held, timed, pages, count, config)


@jit
def _all_until(time: Integer, memory: I64) -> None:
    """Apply the events without a marker up to a bus time, where no access brings them."""
    t, out, held, timed, pages, count, _, config, _ = _room_in(memory)
    _timed_until(time, t, out, held, timed, pages, count, config)


@inlined
def _mark_stored(
    slot: Integer, last_read: U32, held_first: I64, held_stored: npt.NDArray[np.bool_], count: I64
) -> None:
    """A store to the line of entries at `slot`: it is behind the last read of that, if held."""
    if last_read[slot]:
        at = _number_of(last_read[slot], count) - held_first[0]
        if at >= 0:
            held_stored[at] = True


@inlined
def _timed_after(timed: _Timed, count: I64, config: _Config) -> Integer:
    """When an event without a marker is next, or has waited."""
    next_timed = _NEVER
    if count[NEXT_TIMED] < timed.time.size:
        next_timed = timed.time[count[NEXT_TIMED]]
    if count[NEXT_HELD] < count[NEXT_TIMED]:
        next_timed = min(next_timed, timed.time[count[NEXT_HELD]] + config.hold)
    return next_timed


@inlined
def _unexplained(
    time: Integer, address: Integer, reason: Integer, count: I64, examples: U64
) -> None:
    if count[UNEXPLAINED] < EXAMPLES:
        examples[count[UNEXPLAINED], 0] = time
        examples[count[UNEXPLAINED], 1] = address
        examples[count[UNEXPLAINED], 2] = reason
    count[UNEXPLAINED] += 1


@jit
def _keep(memory: I64, room: _Room) -> None:
    _put_room(memory, room)


@jit
def _keep_accesses(memory: I64, accesses: _Accesses) -> None:
    _put_accesses(memory, accesses)


@bare
def _replay(start: Integer, stop: Integer, chunk_memory: I64, memory: I64) -> Integer:
    """Replay the accesses ``start … stop``, between which no table event stands.

    `chunk_memory` keeps the `_Accesses`, `memory` the `_Room`. Returns where it came to, which is
    not `stop` if reading failed.

    Nearly all of them are left to `quick`.
    """
    chunk = _accesses_in(chunk_memory)
    t, out, held, timed, pages, count, examples, config, slots = _room_in(memory)
    base, size, marker_bytes = config.base, config.size, config.marker_bytes
    first_place, places = base >> _ENTRY_SHIFT, size >> _ENTRY_SHIFT
    line, faults, entries, records = config.line, config.faults, config.entries, config.records
    levels, store_levels, frames = t.level, t.store_level, t.frame
    parents, ranges, quick_slot = t.parent, t.range_of_frame, t.quick_slot
    state, pending, mapped, owed, owed_ticks = t.state, t.pending, t.mapped, t.owed, t.owed_ticks
    tally, counted_page, row_of = t.tally, t.counted_page, t.row_of
    watched, waits, last_read = t.watched, t.waits, t.last_read
    held_first, held_record, held_time = held.first, held.record, held.time
    held_row, held_kind = held.row, held.kind
    held_previous, held_stored = held.previous, held.stored
    epoch = np.uint64(count[EPOCH])
    in_line = np.uint64(ENTRIES - line)  # of an index: the line's first entry
    out_time, out_page, out_kind = out.time, out.page, out.kind
    n_output, first_row = count[N_OUTPUT], count[FIRST_ROW]
    next_timed = _timed_after(timed, count, config)
    pmd_line = count[WALK_PMD]
    lone_reads = 0  # of PTEs, without one of a PMD entry right before
    blocks = chunk.size
    block: Integer = -1
    time = chunk.time
    done: Integer = stop

    for group in range(start // GROUP, -(-stop // GROUP)):
        first = group * GROUP
        following, following_ticks = chunk.following.address, np.int64(chunk.following.ticks)
        latest = np.uint64(chunk.last_ticks)  # no access of the group is later
        now = _ZERO
        i = max(start - first, 0)
        end = min(stop - first, GROUP)
        if faults and i == 0 and group % READ_BLOCKS == 0:
            count[N_OUTPUT] = n_output
            _watch_until(_horizon(chunk, group, config), t, timed, pages, count, config)
        if blocks:
            if chunk.file < 0:
                block = group
            else:
                block = group % READ_BLOCKS
                if not _is_here(chunk, group):
                    done = max(first, start)
                    break
            words = chunk.blocks[block, WORD_FIRST_RECORD:WORD_CHECK]
            now = _time_at(words, 0, i, chunk.blocks[block, WORD_TIME])
            if group + 1 < blocks:
                latest = chunk.blocks[block + 1, WORD_TIME]
                following, following_ticks = _read(
                    chunk.blocks[block + 1, WORD_FIRST_RECORD], latest
                )
        else:
            words = chunk.words[first : first + GROUP]
            time = chunk.time[first : first + GROUP]
            if first + GROUP < chunk.time.size:
                following, _ = _read(chunk.words[first + GROUP], _ZERO)
                following_ticks = np.int64(chunk.time[first + GROUP])
        quick_end = _until(words, time, i, end, now, latest, next_timed)
        pmds_here = find_slots(words, i, end, first_place, places, in_line, quick_slot, slots)
        while i < end:
            if n_output > 0 and i < quick_end and may_count(slots[i]):
                began, before = i, now
                i, now, count[ROWS] = count_reads(
                    words, time, slots, began, quick_end, now, line, tally, epoch, counted_page,
                    entries, parents, state, pending, mapped, ranges, watched, row_of, pages,
                    count[ROWS],
                )  # fmt: skip
                if records:
                    put_reads(
                        words, time, slots, began, i, before, line, counted_page, ranges,
                        out_time, out_page, n_output - first_row,
                    )  # fmt: skip
                if pmds_here or pmd_line >= 0:
                    pmd_line = _count_walks(
                        words, time, slots, began, i, before, now, pmd_line, line, config.huge,
                        parents, state, out_kind, n_output - first_row, count,
                    )  # fmt: skip
                else:
                    lone_reads += i - began
                n_output += i - began
                if i == end:
                    break

            word = words[i]
            now = now + delta_of(word) if blocks else time[i]
            address = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
            i += 1
            if next_timed < now:
                count[N_OUTPUT] = n_output
                if faults and word & WRITE_BIT:
                    # An event that has waited for so long is to know of this store, too.
                    entry = _entry_at(address, frames, base, size)
                    if entry >= 0:
                        _mark_stored(entry & -line, last_read, held_first, held_stored, count)
                _timed_until(now, t, out, held, timed, pages, count, config)
                next_timed = _timed_after(timed, count, config)
                quick_end = _until(words, time, i, end, now, latest, next_timed)
            offset = address - base
            if offset >= size:
                _unexplained(now, address, OUTSIDE_REGION, count, examples)
                continue
            page = np.int64(offset >> _PAGE_SHIFT)
            frame = np.int64(frames[page])
            level = levels[page]
            slot = (frame * ENTRIES + np.int64(offset >> _ENTRY_SHIFT) % ENTRIES) & -line
            if word & WRITE_BIT:
                if offset < marker_bytes:
                    continue
                count[STORES] += 1
                if frame < 0:
                    count[STORES_UNOWNED] += 1
                else:
                    if _store(store_levels[page], slot, line, state, pending, mapped):
                        put_away(
                            slot, line, tally, epoch, counted_page, parents, state, ranges, row_of,
                            pages,
                        )  # fmt: skip
                    if faults:
                        _mark_stored(slot, last_read, held_first, held_stored, count)
                    if level and not config.skips:
                        number = page_number(ranges[frame], slot % ENTRIES, line, line)
                        row, count[ROWS] = row_of_page(number, row_of, pages, count[ROWS])
                        pages[row, P_STORES] += 1
                continue

            if level == 1:
                empty = state[slot] == EMPTY
                kind = FAULT if empty else MISS
                if n_output == 0:
                    count[FIRST_READ] = (parents[frame] & -line) + 1
                if pmd_line < 0:
                    lone_reads += 1
                else:
                    _end_walk(pmd_line, parents[frame], now, count, line)
                    pmd_line = -1
            elif level == 2:
                if i < words.size:
                    next_address, next_ticks = _read(words[i], now)
                    gap = (next_ticks if blocks else np.int64(time[i])) - np.int64(now)
                else:
                    next_address, gap = following, following_ticks - np.int64(now)
                next_line = _table_line(next_address, levels, frames, parents, config)
                kind, empty, goes_on = _pmd_kind(slot, gap, next_line, state, count, config)
                if n_output == 0:
                    count[FIRST_READ] = -1
                count[WALKS_BROKEN] += pmd_line >= 0
                count[WALKS_WHOLE] += not goes_on
                pmd_line = slot if goes_on else -1
                count[WALK_PMD_TICKS] = now
            else:
                if address == config.readback:
                    count[READBACKS] += 1
                    continue
                reason = IN_MARKERS if offset < marker_bytes else NO_TABLE
                _unexplained(now, address, reason, count, examples)
                continue

            if kind == MISS:
                number = page_of_line(slot, line, level, entries, ranges, state, mapped)
            else:
                number = page_number(ranges[frame], slot % ENTRIES, line, line)
            count[ROWS] = note_read(number, now, row_of, pages, count[ROWS])
            row = np.int64(row_of[number] & _ROW_MASK)
            if records:
                at_record = np.uint64(n_output - first_row)
                put_passing(out_time, at_record, now)
                put_passing(out_page, at_record, np.uint32(number))
                out_kind[at_record] = kind
            if kind == MISS and level == 1:
                known = tally[slot] & _COUNT_MASK
                if line > 1:
                    counted_page[slot // line] = number
                if known == COUNTED_MAX:
                    pages[row, P_MISSES] += COUNTED_MAX
                    known = _ZERO
                tally[slot] = now - epoch << _COUNT_SHIFT | known + _ONE
            else:
                pages[row, P_LAST] = now
                pages[row, P_MISSES] += kind == MISS
            n_output += 1
            if kind == MISS:
                if faults:
                    at = count[N_HELD] - held_first[0]
                    held_record[at] = n_output - 1
                    held_time[at] = now
                    held_row[at] = row
                    held_kind[at] = MISS
                    held_previous[at] = last_read[slot]
                    held_stored[at] = False
                    waits[frame] = True
                    count[N_HELD] += 1
                    last_read[slot] = count[N_HELD] & _U32
            elif kind == FAULT:
                pages[row, P_FAULTED] += 1
                if faults and empty and owed[slot] < 255:
                    waits[frame] = True
                    owed[slot] += 1
                    owed_ticks[slot] = now
        last, _ = _read(words[end - 1], _ZERO)
        count[LAST_READ] = np.int64(last)
    count[N_OUTPUT] = n_output
    count[WALK_PMD] = pmd_line
    count[WALKS_BROKEN] += lone_reads
    return done


@inlined
def _horizon(chunk: _Accesses, first: Integer, config: _Config) -> Integer:
    """When no fault event is about one of the `READ_BLOCKS` groups from `first` on any more.

    As near as can be told: reads that an event to come may be about take longer.
    """
    later = first + READ_BLOCKS + config.held_groups
    if not chunk.size:
        at = later * GROUP
        return chunk.time[at] if at < chunk.time.size else chunk.following.horizon
    if later >= chunk.size:
        return chunk.following.horizon
    if chunk.file < 0:
        return chunk.blocks[later, WORD_TIME]
    begins = chunk.held[2:3]
    start_bytes = chunk.start_bytes + later * wire.BLOCK_BYTES + 8 * WORD_TIME
    if not read_file(chunk.file, start_bytes, begins):
        return chunk.following.horizon
    return np.uint64(begins[0])


@inlined
def _is_here(chunk: _Accesses, block: Integer) -> bool:
    """Whether a block that is to be read from a file is here, and as it was."""
    reading, piece = block // READ_BLOCKS, block // PIECE_BLOCKS
    if reading != chunk.held[0]:
        there = chunk.blocks[: min(READ_BLOCKS + 1, chunk.size - reading * READ_BLOCKS)]
        chunk.held[0] = -1
        start_bytes = chunk.start_bytes + reading * READ_BLOCKS * wire.BLOCK_BYTES
        if not read_file(chunk.file, start_bytes, there):
            return False
        chunk.held[0] = reading
    if piece != chunk.held[1] and chunk.sums.size:
        first = piece * PIECE_BLOCKS
        words = chunk.blocks[first % READ_BLOCKS :][: min(PIECE_BLOCKS, chunk.size - first)]
        if sum_up(words) != (chunk.sums[piece, 0], chunk.sums[piece, 1]):
            return False
        chunk.held[1] = piece
    return True


@inlined
def _read(word: Integer, before: Integer) -> tuple[Integer, Integer]:
    """Address of an access if it is a read, and its time if `before` is that of the one before."""
    if word & WRITE_BIT:
        return _NO_ADDRESS, 0
    return (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT, np.int64(before + delta_of(word))


@bare
def _time_at(words: U64, start: Integer, end: Integer, now: Integer) -> Integer:
    """Time of the access before `end` of a block; `now`: of the one before `start`."""
    for i in range(start, end):
        now += delta_of(words[i])
    return now


@bare
def _until(
    words: U64,
    time: U64,
    start: Integer,
    end: Integer,
    now: Integer,
    latest: Integer,
    next_timed: Integer,
) -> Integer:
    """The end of those accesses that are not after the next event without a marker.

    `now`: time of the access before `start`; `latest`: no access is later.
    """
    if latest <= next_timed:
        return end
    for i in range(start, end):
        now = time[i] if time.size else now + delta_of(words[i])
        if now > next_timed:
            return i
    return end


@dataclass
class Part:
    """What a replay found in a span, besides what it counted of pages.

    `counters` is indexed by `STORES` … `unexplained` lists the first reads that nothing
    explains, as ticks, address and reason, `doubts` from a read to a fault event that may be
    about it, if it is not about one that was lost (ticks).
    """

    counters: I64
    unexplained: list[tuple[int, int, str]]
    doubts: list[tuple[int, int]]


@dataclass(frozen=True)
class Span:
    """A part of the stream that is replayed alone: see `ptat_parser.spans`.

    Blocks ``first_block … end_block``; the number of the first access, and of the first one after;
    the time of the first access, and of the first one after, None at the end of the stream.
    """

    number: int
    first_block: int
    end_block: int
    first_access: int = 0
    end_access: int = 0
    start_ticks: int = 0
    end_ticks: int | None = None


class Replayer:
    """Classifies every access of a stream.

    `firsts`: the first access of each chunk of the stream; `faults`, `entries`: these events were
    recorded, and may be relied on; `started`, `stopped`: the stream begins and ends with the
    recording, nothing is missing there; `losses`: positions of accesses before which kernel events
    were lost.

    The reverse page table (`rpt`), how far the table events are applied and what a walk's step is
    go on from span to span. So does what is counted of pages, until it is taken (`take_pages`),
    which makes no difference to what is found in a span.
    """

    def __init__(
        self,
        session: Session,
        log: KernelLog,
        placement: markers.Placement,
        clock: Clock,
        firsts: Sequence[FirstAccess | None],
        *,
        faults: bool,
        entries: bool,
        started: bool = True,
        stopped: bool = True,
        losses: tuple[int, ...] = (),
    ) -> None:
        region = session.region
        line = session.board.granularity_bytes // 8
        tables = np.unique(log.tables["pa"]).size
        self.rpt = Rpt(region.base, region.size_bytes, line, min(tables, region.size_bytes >> 12))
        self._config = _Config(
            np.uint64(region.base),
            np.uint64(region.size_bytes),
            np.uint64(region.marker_slots * region.marker_stride_bytes),
            np.uint64(session.readback_address),
            line,
            faults,
            entries and line > 1,
            False,
            False,
            -(-HELD_BACK // GROUP),
            int(session.channel.tick_hz * PATIENCE_S),
            np.uint64(session.channel.tick_hz * HOLD_S),
            bool(np.any(log.tables["kind"] == kernel_log.LEAF_SET)),
            clock.error_ticks,
            int(session.channel.tick_hz * PATIENCE_S) if session.kernel.cpus > 1 else 0,
        )
        self._log, self._clock = log.timed, clock
        self._known: dict[tuple[bool, bool], _Events] = {}  # of all spans, by `_wanted`
        self._firsts = firsts
        there = [first for first in firsts if first]
        self._first_numbers = np.array([first.number for first in there], np.int64)
        self._first_ticks = np.array([first.ticks for first in there], np.uint64)
        self.from_fault_ticks: I64 = np.full(len(firsts), np.iinfo(np.int64).max)
        """Of each chunk's first access, how far it is from a fault event."""
        self._know_timed()
        # `_make` without what Python does for each.
        self._events = list(map(partial(tuple.__new__, TableEvent), log.tables.tolist()))
        self._ticks = clock.to_ticks(log.tables["time"])
        for i in np.flatnonzero(placement.position == markers.APPLY_FIRST).tolist():
            self.rpt.apply(self._events[i], int(self._ticks[i]))
        self._schedule = Schedule(placement, self._ticks, started, losses)
        self._marker_ticks: list[int] = placement.marker_ticks.tolist()
        self._stopped = stopped
        self._walk_steps = np.empty(0, np.int64)  # that spans began with, the last of them
        self._pages, self._rows = _no_pages(), 0

    def _know_timed(self) -> None:
        """Number the ranges of events without a marker, whatever spans are replayed where."""
        spaces: dict[int, int] = {}
        keys = np.empty(0, np.uint64)
        nearest = _Nearest(self._first_ticks)
        for events in self._log.batches():
            wanted = _wanted(events, self._config)
            faults = wanted["time"][wanted["kind"] == kernel_log.FAULT]
            nearest.see(_ticks_of_events(faults, self._clock))
            wanted = wanted[_begins(wanted)]
            mm = _by_value(wanted["mm"], lambda mm: spaces.setdefault(mm, len(spaces)), np.uint64)
            keys = np.union1d(keys, _keys(mm, wanted["va"], 1))
        there = [chunk for chunk, first in enumerate(self._firsts) if first]
        self.from_fault_ticks[there] = nearest.distance()
        index = {mm: self.rpt.mm_index(mm) for mm in sorted(spaces)}
        of_space = np.array([index[mm] for mm in spaces], np.uint64)
        mm, va = of_space[keys >> _MM_SHIFT], keys << np.uint64(_RANGE_SHIFT[1]) & _VA_MASK
        for level in _RANGE_SHIFT:
            for key in np.unique(_keys(mm, va, level)).tolist():
                _range_of_key(self.rpt, key, level)

    def _timed_of(self, span: Span, config: _Config) -> _Timed:
        """The events without a marker of a span's time."""
        log, clock = self._log, self._clock
        if not (config.faults * log.faults or config.entries * log.entries):
            return _timed(_NO_EVENTS)
        around = 2 + math.ceil(2 * clock.cycles_per_tick)
        since, until = 0, kernel_log.END_OF_CYCLES
        if span.number:
            since = min(max(clock.to_cycles(span.start_ticks) - around, 0), until)
        if span.end_ticks is not None:
            until = min(max(clock.to_cycles(span.end_ticks) + around, 0), until)
        wanted = config.faults, config.entries
        if log.is_remembered and wanted not in self._known:
            self._known[wanted] = _events(_wanted(log.between(), config), clock, self.rpt)
        events = self._known.get(wanted) or _events(
            _wanted(log.between(since, until), config), clock, self.rpt
        )
        ticks = events.time
        inside = slice(
            np.searchsorted(ticks, np.uint64(span.start_ticks)) if span.number else None,
            None if span.end_ticks is None else np.searchsorted(ticks, np.uint64(span.end_ticks)),
        )
        return _timed(_Events._make(column[inside] for column in events))

    def __getstate__(self) -> dict[str, Any]:
        """Without what the log tells again."""
        return self.__dict__ | {"_known": {}}

    def checkpoint(self) -> tuple[Rpt, Schedule, I64]:
        """What goes on from span to span, for `go_to` when it was copied."""
        return self.rpt, self._schedule, self._walk_steps

    def go_to(self, checkpoint: tuple[Rpt, Schedule, I64]) -> None:
        """Go on from a checkpoint; what was counted of pages must have been taken."""
        self.rpt, self._schedule, self._walk_steps = checkpoint

    def take_pages(self) -> I64:
        """What was counted of pages since this was called: columns, in the order of their numbers.

        Shape ``(PAGE_COLUMNS, n)``. Among them are pages that were stored to only.
        """
        _add(self._pages, self.rpt.counts())
        self._collect(self._pages)
        row_of = self.rpt.tables.row_of
        columns = np.empty((PAGE_COLUMNS, self._rows), np.int64)
        in_order(row_of, self._pages, columns)
        row_of[:] = 0
        self._pages, self._rows = _no_pages(), 0
        return columns

    def _collect(self, pages: I64) -> None:
        rpt, t = self.rpt, self.rpt.tables
        collect(
            rpt.slots, t.tally, rpt.epoch_ticks, t.counted_page, t.parent, t.state,
            t.range_of_frame, t.row_of, rpt.line, pages,
        )  # fmt: skip

    def skip(self, reader: Reader, span: Span) -> None:
        """Go past a span, doing what its stores and table events do only."""
        known = self._stores_and_steps(reader, span)
        if known is None:
            config = self._config._replace(faults=False, skips=True)
            self._run(reader, span, _NO_RECORDS, config, no_progress)
            return
        address, steps = known
        base, size = self._config.base, self._config.size
        start = 0
        for end, event in steps:
            t = self.rpt.tables
            _store_all(
                address, start, end, base, size,
                t.frame, t.store_level, t.state, t.pending, t.mapped,
            )  # fmt: skip
            start = end
            if event != NOTHING:
                self.rpt.apply(self._events[event], self._marker_ticks[event])

    def _stores_and_steps(
        self, reader: Reader, span: Span
    ) -> tuple[U64, list[tuple[int, int]]] | None:
        """Addresses of the stores of a span, and table events, each before so many of them.

        None where there may be more than these: losses, lines of entries, the capture's end.
        """
        is_last = span.end_ticks is None
        if self._config.line > 1 or is_last or not self._schedule.is_placed:
            return None
        stores = reader.stores() if isinstance(reader, BusReader) else None
        if stores is None:
            return None
        position, _, address = stores
        steps = self._schedule.until(span.end_access)
        places = position.searchsorted([at - span.first_access for at, _ in steps]).tolist()
        events = [event for _, event in steps]
        return address, [*zip(places, events, strict=True), (address.size, NOTHING)]

    def run(
        self,
        reader: Reader,
        span: Span,
        records: Records | None,
        progress: Progress = no_progress,
        make_room: MakeRoom | None = None,
    ) -> Part:
        """Classify the accesses of a span.

        The reads, of which there are `N_OUTPUT`, are written to `records`, whose arrays hold as
        many as the span has accesses, or are given others by `make_room`; without `records`, they
        are only counted.
        """
        config = self._config._replace(records=records is not None)
        return self._run(reader, span, records or _NO_RECORDS, config, progress, make_room)

    def _run(
        self,
        reader: Reader,
        span: Span,
        records: Records,
        config: _Config,
        progress: Progress,
        make_room: MakeRoom | None = None,
    ) -> Part:
        timed = self._timed_of(span, config)
        rpt, schedule, events, ticks = self.rpt, self._schedule, self._events, self._ticks
        rpt.restart()
        count = np.zeros(COUNTERS, np.int64)
        count[EPOCH] = rpt.epoch_ticks
        count[WALK_PMD] = count[LAST_READ] = -1
        count[LAG_LEAST] = count[RETRY_LEAST] = LEAST_UNKNOWN
        count[ROWS] = self._rows
        pages = self._pages = with_room(self._pages, self._rows + 1, 0)
        examples = np.zeros((EXAMPLES, 3), np.uint64)
        memory: I64 = np.empty(KEPT_BYTES // 8, np.int64)
        chunk_memory = np.empty_like(memory)
        slots = np.zeros(GROUP + AHEAD, np.uint32)
        read_here = room_for(READ_BLOCKS + 1)
        room: _Room | None = None
        held = _hold_none(0)
        done_accesses = span.first_access
        done_blocks = span.first_block
        cut = span.number > 0 or span.end_ticks is not None
        learns = cut and config.line > 1 and config.huge
        learned = False
        begun: deque[tuple[int, int]] = deque()  # chunks: first access and read of each
        last_ticks = 0

        def kept() -> I64:
            nonlocal room
            if not (
                room
                and room.t is rpt.tables
                and room.out is records
                and room.held is held
                and room.pages is pages
            ):
                room = _Room(
                    rpt.tables, records, held, timed, pages, count, examples, config, slots
                )
                _keep(memory, room)
            return memory

        def apply(event: TableEvent, at_ticks: int) -> None:
            if event.kind == kernel_log.TABLE_ALLOC and count[NEXT_HELD] < count[NEXT_TIMED]:
                _match_frame(rpt.slot(event.pa) // ENTRIES, kept())
            elif event.kind == kernel_log.TABLE_MOVE:
                _match_all(kept())
            rpt.apply(event, at_ticks)

        def lose() -> None:
            _match_all(kept())
            last_read = int(count[LAST_READ])
            slot = rpt.slot(last_read)
            if config.line > 1 and slot >= 0 and rpt.level(last_read) == 2:
                # Which of the line's entries was read, the next access would have told.
                rpt.tables.owed[slot & -config.line] = 0
            count[LOSS_FLOOR] = count[N_HELD]
            count[WALK_PMD] = -1
            rpt.after_loss()

        for number, chunk in enumerate(chunks_of(reader), span.first_block // reader.chunk_blocks):
            steps = schedule.within(chunk, done_accesses)
            whole = None
            if learns and not learned:
                # Alike whether the span is replayed or skipped: the next ones begin with it.
                whole = chunk.decoded()
            if span.number and done_accesses == span.first_access and self._walk_steps.size:
                count[WALK_STEP] = np.sort(self._walk_steps)[self._walk_steps.size // 2]
            before_ticks, last_ticks = last_ticks, max(last_ticks, chunk.last_ticks)
            done_accesses += chunk.accesses
            done_blocks = min(done_blocks + reader.chunk_blocks, span.end_block)
            progress("replaying", done_blocks, span.end_block)
            plain = isinstance(chunk, PlainChunk) and not (steps or chunk.writes)
            if config.skips and plain and not whole:
                continue
            positions = [position for position, _ in steps]
            at = self._ticks_of(steps, chunk)
            ends = [*positions, chunk.accesses]
            until = [0] * len(steps)
            if config.skips:
                if timed.time.size:  # the reads that are left out bring these events, too
                    before = chunk.times([max(position - 1, 0) for position in positions])
                    until = [
                        ticks if position else before_ticks
                        for ticks, position in zip(before, positions, strict=True)
                    ]
                rows, times, addresses = chunk.stores()
                places = rows.searchsorted(positions).tolist()
                steps = [(place, event) for place, (_, event) in zip(places, steps, strict=True)]
                chunk = Chunk(times, addresses, np.ones(rows.size, np.bool_))
            size = chunk.accesses
            pages = self._pages = with_room(pages, int(count[ROWS]) + 1, size)
            begun.append((done_accesses - chunk.accesses, int(count[N_OUTPUT])))
            while len(begun) > 1 and begun[1][0] <= begun[-1][0] - HELD_BACK:
                begun.popleft()
            if begun[0][0] <= begun[-1][0] - HELD_BACK:
                count[SETTLED] = begun[0][1]
            if config.records:
                row = int(count[N_OUTPUT] - count[FIRST_ROW])
                if make_room and row + size > records.kind.size:
                    settled = int(count[SETTLED] - count[FIRST_ROW])
                    records = make_room(row, settled, size)
                    count[FIRST_ROW] = count[SETTLED]
                    row -= settled
                records.kind[row : row + size] = MISS
            if config.faults:
                held = _make_room(held, int(count[N_HELD]), size)
            following = self._following(number + 1, done_accesses)
            accesses = _accesses(chunk, following, read_here)
            _keep_accesses(chunk_memory, accesses)
            start = begin = 0
            for (position, event), at_ticks, until_ticks, end in zip(
                [*steps, (size, NOTHING)], [*at, 0], [*until, 0], ends, strict=True
            ):
                if whole:
                    part = slice(begin, end)
                    seen = _steps_of_walks(
                        whole.time[part], whole.address[part], whole.write[part],
                        rpt.tables, config,
                    )  # fmt: skip
                    self._walk_steps = np.append(self._walk_steps, seen)[-WALK_STEPS:]
                    learned |= seen.size > 0
                    begin = end
                while start < position:
                    stop = _before_epochs_end(chunk, start, position, rpt.epoch_ticks)
                    start = _replay(start, stop, chunk_memory, kept())
                    if start < stop:
                        accesses = _accesses(chunk, following)  # which says why, if it fails again
                        _keep_accesses(chunk_memory, accesses)
                    elif start < position:
                        self._collect(pages)
                        rpt.epoch_ticks = chunk.access(start)[0]
                        count[EPOCH] = rpt.epoch_ticks
                if until_ticks:
                    _all_until(np.uint64(until_ticks), kept())
                if event == LOSS:
                    lose()
                elif event != NOTHING:
                    apply(events[event], at_ticks)
            _add(pages, rpt.counts())
        end_ticks = _NEVER if span.end_ticks is None else np.uint64(span.end_ticks)
        _watch_all_until(end_ticks, kept())
        if span.end_ticks is None and (schedule.lost or not self._stopped):
            lose()
        for event in schedule.rest(end_ticks):
            _all_until(ticks[event], kept())
            apply(events[event], int(ticks[event]))
        _all_until(end_ticks, kept())
        _match_all(kept())
        _add(pages, rpt.counts())
        self._rows = int(count[ROWS])
        shown = examples[: min(int(count[UNEXPLAINED]), EXAMPLES)].tolist()
        return Part(
            count,
            [(at, address, REASONS[reason]) for at, address, reason in shown],
            _doubts(timed, int(count[NEXT_TIMED])),
        )

    def _ticks_of(self, steps: list[tuple[int, int]], chunk: AnyChunk) -> list[int]:
        """When each step is: at its marker, or else at the access that it is before."""
        at = [0 if event == LOSS else self._marker_ticks[event] for _, event in steps]
        if not all(at):
            there = chunk.times([position for position, _ in steps])
            at = [ticks or access for ticks, access in zip(at, there, strict=True)]
        return at

    def _following(self, chunk: int, accesses: int) -> _Following:
        """What follows the chunks before one, which have so many `accesses`."""
        later = bisect_left(self._first_numbers, accesses + HELD_BACK)
        horizon = self._first_ticks[later] if later < self._first_ticks.size else _NEVER
        first = self._firsts[chunk] if chunk < len(self._firsts) else None
        if first is None or first.write:
            return _Following(_NO_ADDRESS, 0, horizon)
        return _Following(np.uint64(first.address), first.ticks, horizon)


def _doubts(timed: _Timed, end: int) -> list[tuple[int, int]]:
    rows = np.flatnonzero(timed.doubt_ticks[:end])
    return list(zip(timed.doubt_ticks[rows].tolist(), timed.time[rows].tolist(), strict=True))


def _no_pages() -> I64:
    return np.zeros((1 << 10, PAGE_COLUMNS), np.int64)


_ROWS = 1 << 20
"""Rows of pages that need not be moved."""


def with_room(pages: I64, used: int, wanted: int) -> I64:
    """Rows that have room for more, which are 0; what was never used costs nothing."""
    if used + wanted <= pages.shape[0]:
        return pages
    new = np.zeros((max(4 * pages.shape[0], _ROWS) + wanted, PAGE_COLUMNS), np.int64)
    new[:used] = pages[:used]
    return new


def _accesses(chunk: AnyChunk, following: _Following, read_here: U64 | None = None) -> _Accesses:
    """`read_here`: room to read blocks into as they are looked at, if that was not done before."""
    if isinstance(chunk, PlainChunk):
        if read_here is not None and chunk.file >= 0 and not chunk.is_read:
            sums = _NO_SUMS if chunk.sums is None else chunk.sums.copy()
            return _Accesses(
                read_here, _NO_TIME, _NO_TIME, chunk.last_ticks, following, chunk.blocks,
                chunk.file, chunk.start_bytes, np.full(3, -1), sums,
            )  # fmt: skip
        return _Accesses(
            chunk.words, _NO_TIME, _NO_TIME, chunk.last_ticks, following, chunk.blocks, -1, 0,
            _NO_HELD, _NO_SUMS,
        )  # fmt: skip
    words = np.empty(chunk.address.size, np.uint64)
    _put_words(chunk.address, chunk.write, words)
    return _Accesses(
        _NO_BLOCKS, words, chunk.time, chunk.last_ticks, following, 0, -1, 0, _NO_HELD, _NO_SUMS
    )


@bare
def _put_words(address: U64, write: npt.NDArray[np.bool_], words: U64) -> None:
    for i in range(words.size):
        words[i] = address[i] >> ADDRESS_UNIT_SHIFT | (WRITE_BIT if write[i] else _ZERO)


_NO_BLOCKS, _NO_TIME = np.empty((0, wire.BLOCK_WORDS), np.uint64), np.empty(0, np.uint64)
_NO_HELD, _NO_SUMS = np.empty(0, np.int64), np.empty((0, 2), np.uint64)


def _before_epochs_end(chunk: AnyChunk, start: int, stop: int, epoch_ticks: int) -> int:
    """The end of those accesses in ``start … stop`` that `epoch_ticks` is not too long before."""
    end_ticks = epoch_ticks + EPOCH_TICKS
    if chunk.last_ticks < end_ticks:
        return stop
    time = chunk.decoded().time[start:stop]
    return start + int(np.searchsorted(time, np.uint64(end_ticks)))


def _add(pages: I64, counts: Counts) -> None:
    if counts.row.size:
        add_counts(pages, *counts)


def _make_room(held: _Held, n_held: int, wanted: int) -> _Held:
    """Forget all but the last `HELD_BACK` reads if there is no room for `wanted` more."""
    used = n_held - int(held.first[0])
    if used + wanted <= held.time.size:
        return held
    keep = min(HELD_BACK, used)
    leaving = used - keep
    new = held if keep + wanted <= held.time.size else _hold_none(2 * HELD_BACK + 2 * wanted)
    for name in ("record", "time", "row", "kind", "previous", "stored"):
        getattr(new, name)[:keep] = getattr(held, name)[leaving:used]
    new.first[0] = held.first[0] + leaving
    return new


class _Nearest:
    """How far each of some times, which are sorted, is from the nearest of others."""

    def __init__(self, ticks: U64) -> None:
        self._ticks = ticks.astype(np.int64)
        self._distance: I64 = np.full(ticks.size, np.iinfo(np.int64).max)
        self._before = np.empty(0, np.int64)  # the last of those seen
        self._done = 0

    def see(self, others: U64) -> None:
        """More of the others, later ones."""
        if others.size:
            there = np.append(self._before, others.astype(np.int64))
            self._find(there, int(np.searchsorted(self._ticks, there[-1])))
            self._before = there[-1:]

    def _find(self, there: I64, end: int) -> None:
        ticks = self._ticks[self._done : end]
        at = np.searchsorted(there, ticks)
        last = there.size - 1
        self._distance[self._done : end] = np.minimum(
            np.abs(there[np.minimum(at, last)] - ticks),
            np.abs(there[np.maximum(at - 1, 0)] - ticks),
        )
        self._done = max(self._done, end)

    def distance(self) -> I64:
        """When all others were seen; the most that there is where there are none."""
        if self._before.size:
            self._find(self._before, self._ticks.size)
        return self._distance


def _wanted(events: npt.NDArray[Any], config: _Config) -> npt.NDArray[Any]:
    """Those events without a marker that may be relied on."""
    wanted = np.zeros(len(kernel_log.TIMED_KINDS), np.bool_)
    wanted[kernel_log.FAULT] = config.faults
    wanted[kernel_log.ENTRY_SET] = wanted[kernel_log.ENTRY_CLEAR] = config.entries
    found = wanted[events["kind"]]
    return events if found.all() else events[found]


def _ticks_of_events(cycles: U64, clock: Clock) -> U64:
    # The bus shows whole ticks: an event after an access may seem a tick before it.
    return clock.to_ticks(cycles) + np.uint64(1)


def _begins(events: npt.NDArray[Any]) -> I64:
    """The events of another range than the one before; most are of the same."""
    mm, base = events["mm"], events["va"] >> np.uint64(_RANGE_SHIFT[1])
    return np.flatnonzero(np.append(True, (mm[1:] != mm[:-1]) | (base[1:] != base[:-1]))[: mm.size])


def _events(events: npt.NDArray[Any], clock: Clock, rpt: Rpt) -> _Events:
    is_fault = events["kind"] == kernel_log.FAULT
    begins = _begins(events)
    follow = np.diff(begins, append=events.size)
    mm = _by_value(events["mm"][begins], rpt.mm_index, np.uint64)
    va = events["va"][begins]
    range1, range2 = (
        _by_value(_keys(mm, va, level), partial(_range_of_key, rpt, level=level), np.int32)
        for level in _RANGE_SHIFT
    )
    return _Events(
        _ticks_of_events(events["time"], clock),
        events["kind"].copy(),
        np.repeat(range1, follow),
        np.repeat(range2, follow),
        np.where(is_fault, events["va"], events["slot_pa"]),
    )


_RANGE_SHIFT = {1: 21, 2: 30}
"""Of the range that a table of each level serves."""

_MM_SHIFT = np.uint64(40)
_VA_MASK = np.uint64((1 << 61) - 1)


def _keys(mm: U64, va: U64, level: int) -> U64:
    """Numbers of the ranges that addresses belong to."""
    return mm << _MM_SHIFT | (va & _VA_MASK) >> np.uint64(_RANGE_SHIFT[level])


def _range_of_key(rpt: Rpt, key: int, level: int) -> int:
    return rpt.range_index(key >> 40, (key & ((1 << 40) - 1)) << _RANGE_SHIFT[level], level)


def _by_value(values: U64, of: Callable[[int], int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """What a function gives for each value, of which there are few."""
    unique, inverse = np.unique(values, return_inverse=True)
    found: npt.NDArray[Any] = np.array([of(value) for value in unique.tolist()], dtype)[inverse]
    return found
