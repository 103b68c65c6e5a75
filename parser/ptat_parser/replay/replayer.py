# SPDX-License-Identifier: BSD-2-Clause
"""Replays a capture stream against the reverse page table and classifies each access.

Reads of leaf entries are misses. Walks that ended in a fault and reads of PMD entries that point to
a table are counted separately. Stores update the slots' state. A read that none of these explains
is an error, which is counted and listed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.chunks import AnyChunk, Chunk, PlainChunk
from ptat_parser.capture.decode import ADDRESS_UNIT_SHIFT, WRITE_BIT
from ptat_parser.capture.merge import Reader
from ptat_parser.capture.reader import BusReader
from ptat_parser.formats.session import Session
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.kernel.tracepoints import TableEvent
from ptat_parser.order import markers
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import FirstAccess, Progress, no_progress
from ptat_parser.replay.classify import replay_accesses
from ptat_parser.replay.entry_stores import store_all
from ptat_parser.replay.event_positions import LOSS, NOTHING, EventPositions
from ptat_parser.replay.fast_path import AHEAD
from ptat_parser.replay.page_counts import PAGE_COLUMNS, add_counts, in_order
from ptat_parser.replay.page_faults import (
    HOLD_S,
    PATIENCE_S,
    apply_until,
    match_frame,
    match_waited,
    watch_until,
)
from ptat_parser.replay.page_tables import ENTRIES, EPOCH_TICKS, Rpt
from ptat_parser.replay.state import (
    ACCESSES,
    CURSORS,
    DELAYS,
    EMPTY_ROOM,
    EXAMPLES,
    GROUP,
    LEAST_UNKNOWN,
    MISS,
    NEVER,
    NO_ADDRESS,
    NO_RECORDS,
    REASONS,
    ROOM,
    TALLY,
    Accesses,
    Config,
    Following,
    Held,
    MakeRoom,
    Part,
    Records,
    Room,
    Segment,
    Timed,
    hold_none,
)
from ptat_parser.replay.timed_events import TimedEvents
from ptat_parser.replay.walks import steps_of_walks

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
_ZERO = np.uint64(0)

WALK_STEPS = 256
"""Number of recent walks used to estimate the PMD-to-PTE delay at the start of a segment."""

HELD_BACK = 1 << 17
"""How far back, in accesses, to search at least for the walk that a fault event reports.

An event of an older walk may find no match (`faults_unmatched`). Reads that are older and precede
the event's chunk are settled.
"""

SLOTS_AT_ONCE = 1 << 16
"""Number of slots whose counts move to the rows of their pages at a time."""


@dataclass(frozen=True)
class Order:
    """How the capture and the kernel's log relate.

    `firsts`: the first access of each chunk of the stream; `started`, `stopped`: the stream begins
    and ends with the recording, so nothing is missing there; `losses`: positions of accesses before
    which kernel events were lost.
    """

    log: KernelLog
    placement: markers.Placement
    clock: Clock
    firsts: Sequence[FirstAccess | None]
    started: bool = True
    stopped: bool = True
    losses: tuple[int, ...] = ()


class Replayer:
    """Classifies every access of a stream, segment by segment.

    `faults`, `entries`: these events were recorded completely.

    The reverse page table (`rpt`), the position among the table events and the usual delay of a
    walk carry over from segment to segment. The counts of pages accumulate until `take_pages`; they
    do not affect the result of a segment.
    """

    def __init__(self, session: Session, order: Order, *, faults: bool, entries: bool) -> None:
        log = order.log
        region = session.region
        line = session.board.granularity_bytes // 8
        tables = np.unique(log.tables["pa"]).size
        self.rpt = Rpt(region.base, region.size_bytes, line, min(tables, region.size_bytes >> 12))
        self.config = _config(session, order, faults, entries)
        self._firsts = order.firsts
        there = [first for first in order.firsts if first]
        self._first_numbers = np.array([first.number for first in there], np.int64)
        self._first_ticks = np.array([first.ticks for first in there], np.uint64)
        self.timed = TimedEvents(log.timed, order.clock, self.config, self.rpt, self._first_ticks)
        self.from_fault_ticks: I64 = np.full(len(order.firsts), np.iinfo(np.int64).max)
        """Distance of each chunk's first access to the nearest fault event."""
        chunks = [chunk for chunk, first in enumerate(order.firsts) if first]
        self.from_fault_ticks[chunks] = self.timed.from_fault_ticks
        # Faster than `_make`, which is a Python call per event.
        self.events = list(map(partial(tuple.__new__, TableEvent), log.tables.tolist()))
        self.ticks = order.clock.to_ticks(log.tables["time"])
        placement = order.placement
        for i in np.flatnonzero(placement.position == markers.APPLY_FIRST).tolist():
            self.rpt.apply(self.events[i], int(self.ticks[i]))
        self.event_positions = EventPositions(placement, self.ticks, order.started, order.losses)
        self._marker_ticks: list[int] = placement.marker_ticks.tolist()
        self.stopped = order.stopped
        self.walk_steps = np.empty(0, np.int64)  # that segments began with, the last of them
        self.pages, self.rows = no_pages(), 0

    def take_pages(self) -> I64:
        """The counts of pages since the last call, sorted by page number.

        Shape ``(PAGE_COLUMNS, n)``; includes pages that were only stored to.
        """
        self.collect(self.pages)
        row_of = self.rpt.tables.row_of
        columns = in_order(row_of, self.pages)
        row_of[:] = 0
        self.pages, self.rows = no_pages(), 0
        return columns

    def collect(self, pages: I64) -> None:
        """Move the counts of all slots to the rows of their pages."""
        self.add_retired(pages)
        for first in range(0, self.rpt.slots, SLOTS_AT_ONCE):
            counts = self.rpt.take_counts(first, min(first + SLOTS_AT_ONCE, self.rpt.slots))
            if counts:
                add_counts(pages, counts)

    def add_retired(self, pages: I64) -> None:
        """Add the counts of slots that have changed their page."""
        for counts in self.rpt.counts():
            add_counts(pages, counts)

    def skip(self, reader: Reader, segment: Segment) -> None:
        """Skip a segment: apply only its stores and table events."""
        known = self._stores_and_steps(reader, segment)
        if known is None:
            config = self.config._replace(faults=False, skips=True)
            _SegmentReplay(self, reader, segment, NO_RECORDS, config).run(no_progress)
            return
        address, steps = known
        memory = ROOM.memory()
        tables = None
        start = 0
        for end, event in steps:
            if self.rpt.tables is not tables:
                tables = self.rpt.tables
                ROOM.put(memory, EMPTY_ROOM._replace(t=tables, config=self.config))
            store_all(address, start, end, memory)
            start = end
            if event != NOTHING:
                self.rpt.apply(self.events[event], self._marker_ticks[event])

    def _stores_and_steps(
        self, reader: Reader, segment: Segment
    ) -> tuple[U64, list[tuple[int, int]]] | None:
        """Addresses of a segment's stores, and pairs of a table event and the stores before it.

        None if other things may matter: losses, or bus addresses that stand for several entries.
        """
        cut_off = segment.end_ticks is None and not self.stopped
        if self.config.line > 1 or cut_off or not self.event_positions.is_placed:
            return None
        stores = reader.stores() if isinstance(reader, BusReader) else None
        if stores is None:
            return None
        position, _, address = stores
        steps = self.event_positions.until(segment.end_access)
        places = position.searchsorted([at - segment.first_access for at, _ in steps]).tolist()
        events = [event for _, event in steps]
        return address, [*zip(places, events, strict=True), (address.size, NOTHING)]

    def run(
        self,
        reader: Reader,
        segment: Segment,
        records: Records | None,
        progress: Progress = no_progress,
        make_room: MakeRoom | None = None,
    ) -> Part:
        """Classify the accesses of a segment.

        The reads (``tally["reads"]`` of them) are written to `records`, which has room for all
        accesses of the segment unless `make_room` supplies more. Without `records`, reads are only
        counted.
        """
        config = self.config._replace(records=records is not None)
        run = _SegmentReplay(self, reader, segment, records or NO_RECORDS, config, make_room)
        return run.run(progress)

    def ticks_of(self, steps: list[tuple[int, int]], chunk: AnyChunk) -> list[int]:
        """Time of each step: that of its marker, or else of the access after it."""
        at = [0 if event == LOSS else self._marker_ticks[event] for _, event in steps]
        if not all(at):
            there = chunk.times([position for position, _ in steps])
            at = [ticks or access for ticks, access in zip(at, there, strict=True)]
        return at

    def following(self, chunk: int, accesses: int) -> Following:
        """What follows after `accesses`: the first access of a chunk, if it has one."""
        later = bisect_left(self._first_numbers, accesses + HELD_BACK)
        horizon = self._first_ticks[later] if later < self._first_ticks.size else NEVER
        first = self._firsts[chunk] if chunk < len(self._firsts) else None
        if first is None or first.write:
            return Following(NO_ADDRESS, 0, horizon)
        return Following(np.uint64(first.address), first.ticks, horizon)


def _config(session: Session, order: Order, faults: bool, entries: bool) -> Config:
    region = session.region
    line = session.board.granularity_bytes // 8
    tick_hz = session.channel.tick_hz
    return Config(
        base=np.uint64(region.base),
        size=np.uint64(region.size_bytes),
        marker_bytes=np.uint64(region.marker_slots * region.marker_stride_bytes),
        readback=np.uint64(session.readback_address),
        line=line,
        faults=faults,
        entries=entries and line > 1,
        held_groups=-(-HELD_BACK // GROUP),
        patience=int(tick_hz * PATIENCE_S),
        hold=np.uint64(tick_hz * HOLD_S),
        huge=bool(np.any(order.log.tables["kind"] == tracepoints.LEAF_SET)),
        clock_error=order.clock.error_ticks,
        overtaken=int(tick_hz * PATIENCE_S) if session.kernel.cpus > 1 else 0,
    )


class _SegmentReplay:
    """The replay of one segment."""

    def __init__(
        self,
        replayer: Replayer,
        reader: Reader,
        segment: Segment,
        records: Records,
        config: Config,
        make_room: MakeRoom | None = None,
    ) -> None:
        self._replayer, self._reader, self._segment = replayer, reader, segment
        self._config, self._make_room = config, make_room
        self._timed = replayer.timed.of(segment, config, replayer.rpt)
        replayer.rpt.restart()
        self._tally = np.zeros(1, TALLY)
        self._cursors = cursors = np.zeros(1, CURSORS)
        self._delays = delays = np.zeros(1, DELAYS)
        cursors["epoch"] = replayer.rpt.epoch_ticks
        cursors["walk_pmd"] = cursors["last_read"] = -1
        cursors["rows"] = replayer.rows
        delays["lag_least"] = delays["retry_least"] = LEAST_UNKNOWN
        self._records, self._held = records, hold_none(0)
        replayer.pages = with_room(replayer.pages, replayer.rows + 1, 0)
        self._examples = np.zeros((EXAMPLES, 3), np.uint64)
        self._slots = np.zeros(GROUP + AHEAD, np.uint32)
        self._memory, self._chunk_memory = ROOM.memory(), ACCESSES.memory()
        self._shared: Room | None = None
        self._accesses: Accesses | None = None
        self._done_accesses = segment.first_access
        self._last_ticks = 0
        self._begun: deque[tuple[int, int]] = deque()  # first access and read of each chunk
        cut = segment.number > 0 or segment.end_ticks is not None
        self._learns = cut and config.line > 1 and config.huge

    def run(self, progress: Progress) -> Part:
        """Replay the chunks, then the events after the last access."""
        replayer, segment, memory = self._replayer, self._segment, self._memory
        positions = replayer.event_positions
        self._share()
        chunk_blocks = self._reader.chunk_blocks
        for number, chunk in enumerate(self._reader.chunks(), segment.first_block // chunk_blocks):
            steps = positions.within(chunk, self._done_accesses)
            blocks = min((number + 1) * chunk_blocks, segment.end_block)
            self._replay_chunk(number, chunk, steps, partial(progress, "replaying", blocks))
        end_ticks = NEVER if segment.end_ticks is None else np.uint64(segment.end_ticks)
        watch_until(end_ticks, memory)
        if segment.end_ticks is None and (positions.lost or not replayer.stopped):
            self._lose()
        for event in positions.rest(end_ticks):
            self._apply_until(replayer.ticks[event])
            self._apply(event, int(replayer.ticks[event]))
        apply_until(end_ticks, memory)
        match_waited(NEVER, memory)
        replayer.add_retired(replayer.pages)
        replayer.rows = int(self._cursors["rows"][0])
        shown = self._examples[: min(int(self._tally["unexplained"][0]), EXAMPLES)].tolist()
        return Part(
            self._tally,
            self._cursors,
            self._delays,
            [(at, address, REASONS[reason]) for at, address, reason in shown],
            _doubts(self._timed, int(self._cursors["next_timed"][0])),
        )

    def _replay_chunk(
        self,
        number: int,
        chunk: AnyChunk,
        steps: list[tuple[int, int]],
        progress: partial[None],
    ) -> None:
        replayer, config = self._replayer, self._config
        # Learn the same whether the segment is replayed or skipped: later segments use the result.
        whole = chunk.decoded() if self._learns else None
        if self._segment.number and self._done_accesses == self._segment.first_access:
            known = replayer.walk_steps
            if known.size:
                self._delays["walk_step"] = np.sort(known)[known.size // 2]
        before_ticks = self._last_ticks
        self._last_ticks = max(before_ticks, chunk.last_ticks)
        self._done_accesses += chunk.accesses
        progress(self._segment.end_block)
        plain = isinstance(chunk, PlainChunk) and not (steps or chunk.writes)
        if config.skips and plain and not whole:
            return
        at = replayer.ticks_of(steps, chunk)
        ends = [*(position for position, _ in steps), chunk.accesses]
        until = [0] * len(steps)
        if config.skips:
            chunk, steps, until = self._stores_only(chunk, steps, before_ticks)
        self._make_room_for(chunk.accesses)
        following = replayer.following(number + 1, self._done_accesses)
        self._share()
        self._share_accesses(_accesses(chunk, following))
        start = begin = 0
        for (position, event), at_ticks, until_ticks, end in zip(
            [*steps, (chunk.accesses, NOTHING)], [*at, 0], [*until, 0], ends, strict=True
        ):
            if whole:
                self._learn_steps(whole, begin, end)
                begin = end
            self._replay_accesses(chunk, start, position)
            start = position
            if until_ticks:
                self._apply_until(np.uint64(until_ticks))
            if event == LOSS:
                self._lose()
            elif event != NOTHING:
                self._apply(event, at_ticks)
        replayer.add_retired(replayer.pages)

    def _stores_only(
        self, chunk: AnyChunk, steps: list[tuple[int, int]], before_ticks: int
    ) -> tuple[Chunk, list[tuple[int, int]], list[int]]:
        """The stores of a chunk, the steps between them, and the time of events before each step.

        The omitted reads would have applied the events before them.
        """
        positions = [position for position, _ in steps]
        until = [0] * len(steps)
        if self._timed.time.size:
            before = chunk.times([max(position - 1, 0) for position in positions])
            until = [
                ticks if position else before_ticks
                for ticks, position in zip(before, positions, strict=True)
            ]
        rows, times, addresses = chunk.stores()
        places = rows.searchsorted(positions).tolist()
        steps = [(place, event) for place, (_, event) in zip(places, steps, strict=True)]
        return Chunk(times, addresses, np.ones(rows.size, np.bool_)), steps, until

    def _make_room_for(self, accesses: int) -> None:
        """Make room for the pages, records and held reads of a number of accesses."""
        replayer, cursors = self._replayer, self._cursors
        reads = int(self._tally["reads"][0])
        replayer.pages = with_room(replayer.pages, int(cursors["rows"][0]) + 1, accesses)
        begun = self._begun
        begun.append((self._done_accesses - accesses, reads))
        while len(begun) > 1 and begun[1][0] <= begun[-1][0] - HELD_BACK:
            begun.popleft()
        if begun[0][0] <= begun[-1][0] - HELD_BACK:
            cursors["settled"] = begun[0][1]
        if self._config.records:
            first = int(cursors["first_row"][0])
            row = reads - first
            if self._make_room and row + accesses > self._records.kind.size:
                settled = int(cursors["settled"][0]) - first
                self._records = self._make_room(row, settled, accesses)
                cursors["first_row"] = cursors["settled"]
                row -= settled
            self._records.kind[row : row + accesses] = MISS
        if self._config.faults:
            self._held = _room_to_hold(self._held, int(cursors["held"][0]), accesses)

    def _share(self) -> None:
        """Update the memory block of the compiled functions if an array was replaced."""
        shared, tables, pages = self._shared, self._replayer.rpt.tables, self._replayer.pages
        if (
            shared
            and shared.t is tables
            and shared.out is self._records
            and shared.held is self._held
            and shared.pages is pages
        ):
            return
        self._shared = Room(
            tables, self._records, self._held, self._timed, pages, self._tally, self._cursors,
            self._delays, self._examples, self._config, self._slots,
        )  # fmt: skip
        ROOM.put(self._memory, self._shared)

    def _share_accesses(self, accesses: Accesses) -> None:
        self._accesses = accesses  # keeps its arrays alive
        ACCESSES.put(self._chunk_memory, accesses)

    def _replay_accesses(self, chunk: AnyChunk, start: int, end: int) -> None:
        """Replay accesses of a chunk that have no table event between them."""
        rpt = self._replayer.rpt
        while start < end:
            stop = _before_epochs_end(chunk, start, end, rpt.epoch_ticks)
            replay_accesses(start, stop, self._chunk_memory, self._memory)
            start = stop
            if start < end:
                self._replayer.collect(self._replayer.pages)
                rpt.epoch_ticks = chunk.access(start)[0]
                self._cursors["epoch"] = rpt.epoch_ticks

    def _learn_steps(self, whole: Chunk, begin: int, end: int) -> None:
        """Learn the duration of walks from the first chunks that show it."""
        part = slice(begin, end)
        steps = np.empty(end - begin, np.int64)
        found = steps_of_walks(
            whole.time[part], whole.address[part], whole.write[part], steps, self._memory
        )
        replayer = self._replayer
        replayer.walk_steps = np.append(replayer.walk_steps, steps[:found])[-WALK_STEPS:]
        self._learns &= not found

    def _apply(self, event: int, at_ticks: int) -> None:
        """Apply a table event."""
        rpt, applied, cursors = self._replayer.rpt, self._replayer.events[event], self._cursors
        if applied.kind == tracepoints.TABLE_ALLOC:
            if cursors["next_held"][0] < cursors["next_timed"][0]:
                match_frame(rpt.slot(applied.pa) // ENTRIES, self._memory)
        elif applied.kind == tracepoints.TABLE_MOVE:
            match_waited(NEVER, self._memory)
        rpt.apply(applied, at_ticks)
        self._share()

    def _apply_until(self, ticks: np.uint64) -> None:
        """Apply the events without a marker up to a bus time, and match those that have waited."""
        apply_until(ticks, self._memory)
        match_waited(ticks, self._memory)

    def _lose(self) -> None:
        """Separate the accesses after a loss from those before it."""
        match_waited(NEVER, self._memory)
        rpt, cursors = self._replayer.rpt, self._cursors
        last_read = int(cursors["last_read"][0])
        slot = rpt.slot(last_read)
        if self._config.line > 1 and slot >= 0 and rpt.level(last_read) == 2:
            # Only the lost next access could have shown which entry of the line was read.
            rpt.tables.owed[slot & -self._config.line] = 0
        cursors["loss_floor"] = cursors["held"]
        cursors["walk_pmd"] = -1
        rpt.after_loss()


def _doubts(timed: Timed, end: int) -> list[tuple[int, int]]:
    rows = np.flatnonzero(timed.doubt_ticks[:end])
    return list(zip(timed.doubt_ticks[rows].tolist(), timed.time[rows].tolist(), strict=True))


def no_pages() -> I64:
    """An empty array of page rows."""
    return np.zeros((1 << 10, PAGE_COLUMNS), np.int64)


_ROWS = 1 << 20
"""Initial number of page rows."""


def with_room(pages: I64, used: int, wanted: int) -> I64:
    """Rows with room for `wanted` more, which are 0; unused rows take no memory."""
    if used + wanted <= pages.shape[0]:
        return pages
    new = np.zeros((max(4 * pages.shape[0], _ROWS) + wanted, PAGE_COLUMNS), np.int64)
    new[:used] = pages[:used]
    return new


def _accesses(chunk: AnyChunk, following: Following) -> Accesses:
    """The accesses of a chunk for the compiled loop."""
    found = Accesses(
        blocks=_NO_BLOCKS,
        words=_NO_TIME,
        time=_NO_TIME,
        last_ticks=chunk.last_ticks,
        following=following,
        size=0,
    )
    if isinstance(chunk, PlainChunk):
        return found._replace(blocks=chunk.words, size=chunk.blocks)
    words = chunk.address >> ADDRESS_UNIT_SHIFT
    words[chunk.write] |= WRITE_BIT
    return found._replace(words=words, time=chunk.time)


_NO_BLOCKS, _NO_TIME = np.empty((0, wire.BLOCK_WORDS), np.uint64), np.empty(0, np.uint64)


def _before_epochs_end(chunk: AnyChunk, start: int, stop: int, epoch_ticks: int) -> int:
    """The end of the accesses in ``[start, stop)`` whose times `Tables.tally` can hold."""
    end_ticks = epoch_ticks + EPOCH_TICKS
    if chunk.last_ticks < end_ticks:
        return stop
    time = chunk.decoded().time[start:stop]
    return start + int(np.searchsorted(time, np.uint64(end_ticks)))


def _room_to_hold(held: Held, n_held: int, wanted: int) -> Held:
    """Drop all but the last `HELD_BACK` reads if there is no room for `wanted` more."""
    used = n_held - int(held.first[0])
    if used + wanted <= held.time.size:
        return held
    keep = min(HELD_BACK, used)
    leaving = used - keep
    new = held if keep + wanted <= held.time.size else hold_none(2 * HELD_BACK + 2 * wanted)
    for name in ("record", "time", "row", "kind", "previous", "stored"):
        getattr(new, name)[:keep] = getattr(held, name)[leaving:used]
    new.first[0] = held.first[0] + leaving
    return new
