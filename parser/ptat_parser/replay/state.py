# SPDX-License-Identifier: BSD-2-Clause
"""The data of the replay's compiled functions.

Each function takes `memory`, which holds a `Room` (see `compiled.shared`): ``room = memory.room``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import BLOCK_RECORDS_MAX
from ptat_parser.compiled.shared import Shared
from ptat_parser.replay.page_tables import Rpt, Tables

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Record = npt.NDArray[Any]
"""A structured array of one row."""

_ZERO = np.uint64(0)
MISS, FAULT, PMD_READ = range(3)
"""Kinds of output records."""

# Reasons why a read is unexplained.
IN_MARKERS, NO_TABLE, OUTSIDE_REGION = range(3)
REASONS = ("in the marker area", "of a page that holds no table", "outside the region")
EXAMPLES = 16

NO_ADDRESS = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
NEVER = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def _record(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names])


TALLY = _record(
    "reads",  # classified: misses, walks that faulted, reads of PMD entries on the way to a PTE
    "stores",
    "stores_unowned",  # … to pages that were never allocated as a table
    "unexplained",
    "readbacks",  # reads by the kernel, before it flushed TLBs
    "faults_empty",  # fault events set off against reads of empty slots
    "faults_matched",  # … that turned a miss into a walk that faulted
    "faults_late",  # … more than `HOLD_S` after it
    "faults_no_leaf",  # … of addresses without a table: their walks read no leaf entry
    "faults_unmatched",
    "walks_whole",
    "walks_broken",
    "ambiguous",  # reads of lines of PMD entries, classified by the time to the next read
)
"""Counters of a replay; those of segments add up."""

CURSORS = _record(
    "rows",  # pages that have a row of counts, from 1
    "held",  # reads that a fault event may be about
    "next_timed",  # the next event without a marker
    "next_held",  # the next fault event to be matched; it and those up to next_timed wait
    "next_watched",  # the next fault event whose table is not yet watched for reads
    "next_unread",  # events before this one that wait have the time of their read
    "loss_floor",  # held reads before this one are separated from now by a loss
    "settled",  # reads before this one are too old for a fault event to be about
    "first_row",  # the read that is the first of the records
    "epoch",  # `Rpt.epoch_ticks`
    "last_read",  # address of the last access if it was a read, or -1
    "walk_pmd",  # line of the last read if that was of a PMD entry pointing to a table, or -1
    "walk_pmd_ticks",  # its time
    "first_read",  # parent line, plus one, if the first read is of a PTE; -1: of a PMD entry; or 0
)
"""Position of a replay."""

DELAYS = _record(
    "walk_step",  # ticks from a walk's read of a PMD entry to that of the PTE, usually, × 16
    "lag_least",  # least ticks from a read of an empty entry to its fault event
    "retry_least",  # … to the next read of the slot, with that event between
)
"""Delays between events and reads that a replay has learned."""

LEAST_UNKNOWN = np.iinfo(np.int64).max
"""Value before the first measurement."""

GROUP = BLOCK_RECORDS_MAX
"""Accesses per group of the compiled loop."""

WATCH_GROUPS = 64
"""Number of groups after which to watch the tables of further fault events."""


class Records(NamedTuple):
    """Classified reads in bus order: time (ticks), page number and kind."""

    time: U64
    page: U32
    kind: U8


MakeRoom = Callable[[int, int, int], Records]
"""Called with the numbers of used, settled and wanted records.

Returns records that begin with the unsettled ones and have room for the wanted ones.
"""


class Following(NamedTuple):
    """What follows a chunk.

    `address` is read right after it, at `ticks`, or `NO_ADDRESS`. No fault event at or after
    `horizon` matches one of the chunk's accesses.
    """

    address: np.uint64
    ticks: int
    horizon: np.uint64


class Accesses(NamedTuple):
    """A chunk for the compiled loop.

    A `PlainChunk` has `size` undecoded `blocks`. Any other chunk has for each access its `time`,
    and in `words` its address and write bit as in a block. `last_ticks`: time of the last access.
    """

    blocks: U64
    words: U64
    time: U64
    last_ticks: int
    following: Following
    size: int


class Held(NamedTuple):
    """The latest reads that a fault event may match.

    `first` (shape ``(1,)``): number of the held read in element 0. Per read: `record`, its number
    among all reads; `row`, the row of its page; `previous`, number plus one of the previous held
    read of the slot (low 32 bits); `stored`, a store to the slot came before the slot's next read.
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

    For waiting fault events: `line`, the slot of the line where the walk ended, or -1; `was_empty`;
    `read_ticks`, the time of the read if it is already certain, or 0; `doubt_ticks`, the time of a
    read before a loss that may have caused the event, or 0; `held_since`, the first read from which
    on all reads that may match were held.
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
    """The columns of `Timed` that come from the log."""

    time: U64
    kind: U8
    range1: npt.NDArray[np.int32]
    range2: npt.NDArray[np.int32]
    address: U64


class Config(NamedTuple):
    """Constants of a replay."""

    base: np.uint64 = _ZERO
    size: np.uint64 = _ZERO
    marker_bytes: np.uint64 = _ZERO
    readback: np.uint64 = _ZERO
    """Address that the kernel reads back, or `NO_ADDRESS`."""
    line: int = 1
    """Entries that one bus address stands for."""
    faults: bool = False
    entries: bool = False
    records: bool = False
    """Write reads as records, not only count them."""
    skips: bool = False
    """The segment is skipped: only stores matter."""
    held_groups: int = 0
    """Number of groups that cover the `HELD_BACK` accesses before an event."""
    patience: int = 0
    """Ticks that a read of an empty entry waits for its fault event."""
    hold: np.uint64 = _ZERO
    """Ticks that a fault event waits."""
    huge: bool = False
    """Reads of PMD entries may be of huge pages."""
    clock_error: int = 0
    """Bound of the clocks' error in ticks."""
    overtaken: int = 0
    """How long before its event a read may be that another CPU's followed, in ticks; 0: one CPU."""


class Room(NamedTuple):
    """All data of a replay except the accesses; `slots` has room for one `GROUP`."""

    t: Tables
    out: Records
    held: Held
    timed: Timed
    pages: I64
    tally: Any
    cursors: Any
    delays: Any
    examples: U64
    config: Config
    slots: U32


NO_RECORDS = Records(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint8))


def hold_none(capacity: int) -> Held:
    """An empty `Held` for `capacity` reads."""
    return Held(
        first=np.zeros(1, np.int64),
        record=np.empty(capacity, np.int64),
        time=np.empty(capacity, np.uint64),
        row=np.empty(capacity, np.uint32),
        kind=np.empty(capacity, np.uint8),
        previous=np.empty(capacity, np.uint32),
        stored=np.empty(capacity, np.bool_),
    )


NO_EVENTS = Events(
    np.empty(0, np.uint64), np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.int32),
    np.empty(0, np.uint64),
)  # fmt: skip


def waiting(events: Events) -> Timed:
    """A `Timed` of events that have not been applied."""
    size = events.time.size
    return Timed(
        *events,
        line=np.full(size, -1),
        was_empty=np.zeros(size, np.bool_),
        read_ticks=np.zeros(size, np.int64),
        doubt_ticks=np.zeros(size, np.uint64),
        held_since=np.zeros(size, np.int64),
    )


ACCESSES = Shared(
    Accesses(
        blocks=np.empty((0, 0), np.uint64),
        words=np.empty(0, np.uint64),
        time=np.empty(0, np.uint64),
        last_ticks=0,
        following=Following(NO_ADDRESS, 0, NEVER),
        size=0,
    ),
    sliced=True,
)
ACCESSES.attach("accesses")


class AccessesMemory(Protocol):
    """Type of the memory that holds `Accesses`, in compiled code."""

    accesses: Accesses


EMPTY_ROOM = Room(
    t=Rpt(0, 0).tables,
    out=NO_RECORDS,
    held=hold_none(0),
    timed=waiting(NO_EVENTS),
    pages=np.empty((0, 0), np.int64),
    tally=np.zeros(1, TALLY),
    cursors=np.zeros(1, CURSORS),
    delays=np.zeros(1, DELAYS),
    examples=np.empty((0, 0), np.uint64),
    config=Config(),
    slots=np.empty(0, np.uint32),
)

ROOM = Shared(EMPTY_ROOM)
ROOM.attach("room")


class RoomMemory(Protocol):
    """Type of the memory that holds a `Room`, in compiled code."""

    room: Room


@dataclass
class Part:
    """Results of a segment, except the counts of pages.

    `tally`, `cursors` and `delays` have one row of `TALLY` etc. `unexplained` lists ticks, address
    and reason of the first unexplained reads. `doubts` lists intervals in ticks from a read to a
    fault event that belongs either to it or to a lost read.
    """

    tally: Record
    cursors: Record
    delays: Record
    unexplained: list[tuple[int, int, str]]
    doubts: list[tuple[int, int]]


@dataclass(frozen=True)
class Segment:
    """A part of the stream that is replayed independently: see `ptat_parser.replay.segments`.

    Blocks ``[first_block, end_block)``, and the numbers and times of the first access and of the
    first access after the segment (None at the end of the stream).
    """

    number: int
    first_block: int
    end_block: int
    first_access: int = 0
    end_access: int = 0
    start_ticks: int = 0
    end_ticks: int | None = None
