# SPDX-License-Identifier: BSD-2-Clause
"""What a replay works on and finds, and how its compiled part is handed it.

Tuples of arrays are costly to hand on: what runs for each access takes single arrays, and what
runs for each event takes bare ones (`jit.keeping`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import BLOCK_RECORDS_MAX
from ptat_parser.compiled.jit import jit, keeping
from ptat_parser.replay.page_tables import Rpt, Tables

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
_ZERO = np.uint64(0)

MISS, FAULT, PMD_READ = range(3)
"""Kinds of output records."""

# Reasons why a read is not explained.
IN_MARKERS, NO_TABLE, OUTSIDE_REGION = range(3)
REASONS = ("in the marker area", "of a page that holds no table", "outside the region")
EXAMPLES = 16

NO_ADDRESS = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
NEVER = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

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
COUNTERS = LAST_READ + 1

LEAST_UNKNOWN = np.iinfo(np.int64).max
"""Before the first was seen."""

GROUP = BLOCK_RECORDS_MAX
"""Accesses that are looked at together."""

WATCH_GROUPS = 64
"""After so many, it is looked for tables that fault events to come are about."""


class Records(NamedTuple):
    """Classified reads in bus order: time (ticks), page number and kind."""

    time: U64
    page: U32
    kind: U8


MakeRoom = Callable[[int, int, int], Records]
"""Given how many records there are, how many of these are settled and how many are to come.

Returns records that have those not settled first, and room.
"""


class Following(NamedTuple):
    """What comes after a chunk.

    The `address` read right after it, at `ticks`, or `NO_ADDRESS`; at the `horizon` or later, no
    fault event is about one of its accesses.
    """

    address: np.uint64
    ticks: int
    horizon: np.uint64


class Accesses(NamedTuple):
    """A chunk for the inner loop: if it is a `PlainChunk`, so many blocks (`size`), else, of each
    access, `words` with the address and whether it is a write, as in a block, and the time.
    `last_ticks`: time of the last access. `sums` of the blocks' pieces, if they are to be checked;
    `checked` is then the number of the piece that was checked last, or -1.
    """

    blocks: U64
    words: U64
    time: U64
    last_ticks: int
    following: Following
    size: int
    checked: I64
    sums: U64


class Held(NamedTuple):
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


class Timed(NamedTuple):
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


class Events(NamedTuple):
    """What of `Timed` the log tells."""

    time: U64
    kind: U8
    range1: npt.NDArray[np.int32]
    range2: npt.NDArray[np.int32]
    address: U64


class Config(NamedTuple):
    """What stays the same in a replay."""

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


class Room(NamedTuple):
    """What a replay works on, but the accesses; `slots` has room for those of a `GROUP`."""

    t: Tables
    out: Records
    held: Held
    timed: Timed
    pages: I64
    counters: I64
    examples: U64
    config: Config
    slots: U32


NO_RECORDS = Records(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint8))


def hold_none(capacity: int) -> Held:
    """Room for so many reads."""
    return Held(
        np.zeros(1, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.uint64),
        np.empty(capacity, np.uint32),
        np.empty(capacity, np.uint8),
        np.empty(capacity, np.uint32),
        np.empty(capacity, np.bool_),
    )


NO_EVENTS = Events(
    np.empty(0, np.uint64), np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.int32),
    np.empty(0, np.uint64),
)  # fmt: skip


def waiting(events: Events) -> Timed:
    """Events to come."""
    size = events.time.size
    return Timed(
        *events, np.full(size, -1), np.zeros(size, np.bool_), np.zeros(size, np.int64),
        np.zeros(size, np.uint64), np.zeros(size, np.int64),
    )  # fmt: skip


_NO_CONFIG = Config(
    _ZERO, _ZERO, _ZERO, _ZERO, 1, False, False, False, False, 0, 0, _ZERO, False, 0, 0,
)  # fmt: skip

_put_accesses, accesses_in = keeping(
    Accesses(
        np.empty((0, 0), np.uint64),
        np.empty(0, np.uint64),
        np.empty(0, np.uint64),
        0,
        Following(NO_ADDRESS, 0, NEVER),
        0,
        np.empty(0, np.int64),
        np.empty((0, 2), np.uint64),
    )
)

_put_room, room_in = keeping(
    Room(
        Rpt(0, 0).tables,
        NO_RECORDS,
        hold_none(0),
        waiting(NO_EVENTS),
        np.empty((0, 0), np.int64),
        np.empty(0, np.int64),
        np.empty((0, 0), np.uint64),
        _NO_CONFIG,
        np.empty(0, np.uint32),
    )
)


@jit
def keep_room(memory: I64, room: Room) -> None:
    """Keep it in memory, for `room_in`."""
    _put_room(memory, room)


@jit
def keep_accesses(memory: I64, accesses: Accesses) -> None:
    """Keep them in memory, for `accesses_in`."""
    _put_accesses(memory, accesses)


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
class Segment:
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
