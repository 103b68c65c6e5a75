# SPDX-License-Identifier: BSD-2-Clause
"""Replays a capture stream against the reverse page table: what was each access?

Reads of leaf entries are misses; kept apart are walks that ended in a fault and reads of PMD
entries that point to a table. Stores keep the slots' state. A read that none of these
explains is an error, counted and listed.

Walks that faulted are told from the others in `faults`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.chunks import Access, AnyChunk, Chunk, PlainChunk
from ptat_parser.capture.decode import ADDRESS_UNIT_SHIFT, WRITE_BIT
from ptat_parser.capture.merge import Reader
from ptat_parser.capture.reader import BusReader, parts_of
from ptat_parser.compiled.jit import KEPT_BYTES, bare
from ptat_parser.formats.session import Session
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.kernel.tracepoints import TableEvent
from ptat_parser.order import markers
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import FirstAccess, Progress, no_progress
from ptat_parser.replay.classify import replay_accesses
from ptat_parser.replay.entry_stores import store_all
from ptat_parser.replay.event_positions import LOSS, NOTHING, Schedule
from ptat_parser.replay.page_counts import AHEAD, PAGE_COLUMNS, add_counts, collect, in_order
from ptat_parser.replay.page_faults import (
    HOLD_S,
    PATIENCE_S,
    all_until,
    match_all,
    match_frame,
    watch_all_until,
)
from ptat_parser.replay.page_tables import ENTRIES, EPOCH_TICKS, Counts, Rpt
from ptat_parser.replay.state import (
    COUNTERS,
    EPOCH,
    EXAMPLES,
    FIRST_ROW,
    GROUP,
    LAG_LEAST,
    LAST_READ,
    LEAST_UNKNOWN,
    LOSS_FLOOR,
    MISS,
    N_HELD,
    N_OUTPUT,
    NEVER,
    NEXT_HELD,
    NEXT_TIMED,
    NO_ADDRESS,
    NO_RECORDS,
    REASONS,
    RETRY_LEAST,
    ROWS,
    SETTLED,
    UNEXPLAINED,
    WALK_PMD,
    WALK_STEP,
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
    keep_accesses,
    keep_room,
)
from ptat_parser.replay.timed_events import TimedEvents
from ptat_parser.replay.walks import steps_of_walks

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
_ZERO = np.uint64(0)

WALK_STEPS = 256
"""Of so many walks before, a segment takes what the step of one usually is: a few may mislead."""

HELD_BACK = 1 << 17
"""So many accesses before a fault event, at least, the read that it is about is looked for.

An event about an older one may find nothing (`FAULTS_UNMATCHED`). What is older, and before the
chunk that the event is in, is settled.
"""


class Replayer:
    """Classifies every access of a stream.

    `firsts`: the first access of each chunk of the stream; `faults`, `entries`: these events were
    recorded, and may be relied on; `started`, `stopped`: the stream begins and ends with the
    recording, nothing is missing there; `losses`: positions of accesses before which kernel events
    were lost.

    The reverse page table (`rpt`), the position among the table events and the usual delay of a
    walk carry over from segment to segment. So do the counts of pages, until `take_pages` takes
    them; that does not change the result of a segment.
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
        self._config = Config(
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
            bool(np.any(log.tables["kind"] == tracepoints.LEAF_SET)),
            clock.error_ticks,
            int(session.channel.tick_hz * PATIENCE_S) if session.kernel.cpus > 1 else 0,
        )
        self._firsts = firsts
        there = [first for first in firsts if first]
        self._first_numbers = np.array([first.number for first in there], np.int64)
        self._first_ticks = np.array([first.ticks for first in there], np.uint64)
        self._timed = TimedEvents(log.timed, clock, self._config, self.rpt, self._first_ticks)
        self.from_fault_ticks: I64 = np.full(len(firsts), np.iinfo(np.int64).max)
        """Of each chunk's first access, how far it is from a fault event."""
        chunks = [chunk for chunk, first in enumerate(firsts) if first]
        self.from_fault_ticks[chunks] = self._timed.from_fault_ticks
        # `_make` without what Python does for each.
        self._events = list(map(partial(tuple.__new__, TableEvent), log.tables.tolist()))
        self._ticks = clock.to_ticks(log.tables["time"])
        for i in np.flatnonzero(placement.position == markers.APPLY_FIRST).tolist():
            self.rpt.apply(self._events[i], int(self._ticks[i]))
        self._schedule = Schedule(placement, self._ticks, started, losses)
        self._marker_ticks: list[int] = placement.marker_ticks.tolist()
        self._stopped = stopped
        self._walk_steps = np.empty(0, np.int64)  # that segments began with, the last of them
        self._pages, self._rows = _no_pages(), 0

    def checkpoint(self) -> tuple[Rpt, Schedule, I64]:
        """What goes on from segment to segment, for `go_to` when it was copied."""
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

    def skip(self, reader: Reader, segment: Segment) -> None:
        """Go past a segment, doing what its stores and table events do only."""
        known = self._stores_and_steps(reader, segment)
        if known is None:
            config = self._config._replace(faults=False, skips=True)
            self._run(reader, segment, NO_RECORDS, config, no_progress)
            return
        address, steps = known
        base, size = self._config.base, self._config.size
        start = 0
        for end, event in steps:
            t = self.rpt.tables
            store_all(
                address, start, end, base, size,
                t.frame, t.store_level, t.state, t.pending, t.mapped,
            )  # fmt: skip
            start = end
            if event != NOTHING:
                self.rpt.apply(self._events[event], self._marker_ticks[event])

    def _stores_and_steps(
        self, reader: Reader, segment: Segment
    ) -> tuple[U64, list[tuple[int, int]]] | None:
        """Addresses of the stores of a segment, and table events, each before so many of them.

        None where there may be more than these: losses, lines of entries.
        """
        cut_off = segment.end_ticks is None and not self._stopped
        if self._config.line > 1 or cut_off or not self._schedule.is_placed:
            return None
        stores = reader.stores() if isinstance(reader, BusReader) else None
        if stores is None:
            return None
        position, _, address = stores
        steps = self._schedule.until(segment.end_access)
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

        The reads (`N_OUTPUT` of them) are written to `records`, which has room for all accesses of
        the segment unless `make_room` supplies more. Without `records`, reads are only counted.
        """
        config = self._config._replace(records=records is not None)
        return self._run(reader, segment, records or NO_RECORDS, config, progress, make_room)

    def _run(
        self,
        reader: Reader,
        segment: Segment,
        records: Records,
        config: Config,
        progress: Progress,
        make_room: MakeRoom | None = None,
    ) -> Part:
        timed = self._timed.of(segment, config, self.rpt)
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
        room: Room | None = None
        held = hold_none(0)
        done_accesses = segment.first_access
        cut = segment.number > 0 or segment.end_ticks is not None
        learns = cut and config.line > 1 and config.huge
        learned = False
        begun: deque[tuple[int, int]] = deque()  # chunks: first access and read of each
        last_ticks = 0

        def keep() -> None:
            """Let `memory` have what is used now: to be called when some of it was exchanged."""
            nonlocal room
            if not (
                room
                and room.t is rpt.tables
                and room.out is records
                and room.held is held
                and room.pages is pages
            ):
                room = Room(rpt.tables, records, held, timed, pages, count, examples, config, slots)
                keep_room(memory, room)

        def apply(event: TableEvent, at_ticks: int) -> None:
            if event.kind == tracepoints.TABLE_ALLOC and count[NEXT_HELD] < count[NEXT_TIMED]:
                match_frame(rpt.slot(event.pa) // ENTRIES, memory)
            elif event.kind == tracepoints.TABLE_MOVE:
                match_all(memory)
            tables = rpt.tables
            rpt.apply(event, at_ticks)
            if rpt.tables is not tables:
                keep()

        def lose() -> None:
            match_all(memory)
            last_read = int(count[LAST_READ])
            slot = rpt.slot(last_read)
            if config.line > 1 and slot >= 0 and rpt.level(last_read) == 2:
                # Which of the line's entries was read, the next access would have told.
                rpt.tables.owed[slot & -config.line] = 0
            count[LOSS_FLOOR] = count[N_HELD]
            count[WALK_PMD] = -1
            rpt.after_loss()

        keep()
        for number, chunk in parts_of(reader):
            steps = schedule.within(chunk, done_accesses)
            whole = None
            if learns and not learned:
                # Alike whether the segment is replayed or skipped: the next ones begin with it.
                whole = chunk.decoded()
            if segment.number and done_accesses == segment.first_access and self._walk_steps.size:
                count[WALK_STEP] = np.sort(self._walk_steps)[self._walk_steps.size // 2]
            before_ticks, last_ticks = last_ticks, max(last_ticks, chunk.last_ticks)
            done_accesses += chunk.accesses
            done_blocks = min((number + 1) * reader.chunk_blocks, segment.end_block)
            progress("replaying", done_blocks, segment.end_block)
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
            following = self._following(chunk.after, number + 1, done_accesses)
            keep()
            accesses = _accesses(chunk, following, map_it=True)
            keep_accesses(chunk_memory, accesses)
            start = begin = 0
            for (position, event), at_ticks, until_ticks, end in zip(
                [*steps, (size, NOTHING)], [*at, 0], [*until, 0], ends, strict=True
            ):
                if whole:
                    part = slice(begin, end)
                    seen = steps_of_walks(
                        whole.time[part], whole.address[part], whole.write[part],
                        rpt.tables, config,
                    )  # fmt: skip
                    self._walk_steps = np.append(self._walk_steps, seen)[-WALK_STEPS:]
                    learned |= seen.size > 0
                    begin = end
                while start < position:
                    stop = _before_epochs_end(chunk, start, position, rpt.epoch_ticks)
                    start = replay_accesses(start, stop, chunk_memory, memory)
                    if start < stop:
                        accesses = _accesses(chunk, following)  # which says why, if it fails again
                        keep_accesses(chunk_memory, accesses)
                    elif start < position:
                        self._collect(pages)
                        rpt.epoch_ticks = chunk.access(start)[0]
                        count[EPOCH] = rpt.epoch_ticks
                if until_ticks:
                    all_until(np.uint64(until_ticks), memory)
                if event == LOSS:
                    lose()
                elif event != NOTHING:
                    apply(events[event], at_ticks)
            _add(pages, rpt.counts())
        end_ticks = NEVER if segment.end_ticks is None else np.uint64(segment.end_ticks)
        watch_all_until(end_ticks, memory)
        if segment.end_ticks is None and (schedule.lost or not self._stopped):
            lose()
        for event in schedule.rest(end_ticks):
            all_until(ticks[event], memory)
            apply(events[event], int(ticks[event]))
        all_until(end_ticks, memory)
        match_all(memory)
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

    def _following(self, after: Access | None, chunk: int, accesses: int) -> Following:
        """What follows so many `accesses`: the access `after`, or else what a chunk begins with."""
        later = bisect_left(self._first_numbers, accesses + HELD_BACK)
        horizon = self._first_ticks[later] if later < self._first_ticks.size else NEVER
        first = after or (self._firsts[chunk] if chunk < len(self._firsts) else None)
        if first is None or first.write:
            return Following(NO_ADDRESS, 0, horizon)
        return Following(np.uint64(first.address), first.ticks, horizon)


def _doubts(timed: Timed, end: int) -> list[tuple[int, int]]:
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


def _accesses(chunk: AnyChunk, following: Following, *, map_it: bool = False) -> Accesses:
    """`map_it`: not to read words that were not read yet, if that can be done."""
    if isinstance(chunk, PlainChunk):
        if map_it and (words := chunk.mapped()) is not None:
            sums = _NO_SUMS if chunk.sums is None else chunk.sums.copy()
            return Accesses(
                words, _NO_TIME, _NO_TIME, chunk.last_ticks, following, chunk.blocks,
                np.full(1, -1), sums,
            )  # fmt: skip
        return Accesses(
            chunk.words, _NO_TIME, _NO_TIME, chunk.last_ticks, following, chunk.blocks,
            _NONE_CHECKED, _NO_SUMS,
        )  # fmt: skip
    words = np.empty(chunk.address.size, np.uint64)
    _put_words(chunk.address, chunk.write, words)
    return Accesses(
        _NO_BLOCKS, words, chunk.time, chunk.last_ticks, following, 0, _NONE_CHECKED, _NO_SUMS
    )


@bare
def _put_words(address: U64, write: npt.NDArray[np.bool_], words: U64) -> None:
    for i in range(words.size):
        words[i] = address[i] >> ADDRESS_UNIT_SHIFT | (WRITE_BIT if write[i] else _ZERO)


_NO_BLOCKS, _NO_TIME = np.empty((0, wire.BLOCK_WORDS), np.uint64), np.empty(0, np.uint64)

_NONE_CHECKED, _NO_SUMS = np.empty(0, np.int64), np.empty((0, 2), np.uint64)


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


def _make_room(held: Held, n_held: int, wanted: int) -> Held:
    """Forget all but the last `HELD_BACK` reads if there is no room for `wanted` more."""
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
