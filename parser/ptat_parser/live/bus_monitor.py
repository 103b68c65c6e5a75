# SPDX-License-Identifier: BSD-2-Clause
"""Counts the misses of a session during its recording.

The capture and the kernel's log are read as they grow, and joined as in the replay: a marker on the
bus gives the position of its event. Reads after a marker wait until its event is in the log.

The counts are preliminary. Only reads of empty entries are recognised as faulted walks, reads of a
line that holds huge pages and tables are classified by the next read, and channels are merged by
what has arrived. The parser has the whole capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture import decode
from ptat_parser.capture.decode import Decoded, decode_blocks
from ptat_parser.compiled.jit import Integer, bare, jit
from ptat_parser.errors import PtatError
from ptat_parser.formats.session import Session
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import GrowingLog
from ptat_parser.kernel.tracepoints import TableEvent
from ptat_parser.live.increment import STEP_S, Increment, PageMisses
from ptat_parser.replay.entry_stores import TO_PAGE, entry_at, store
from ptat_parser.replay.page_tables import EMPTY, ENTRIES, ENTRY_SHIFT, Mm, Rpt
from ptat_parser.replay.state import (
    EMPTY_ROOM,
    FAULT,
    MISS,
    NO_ADDRESS,
    PMD_READ,
    ROOM,
    TALLY,
    Config,
    RoomMemory,
)
from ptat_parser.replay.walks import pmd_kind, table_line

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

READ_BLOCKS = 2048
"""Blocks to read at a time: 16 MiB."""
WAIT_S = 5.0
"""How long to wait after a marker for its event in the log before it counts as lost."""
LATE_SEQS = 64
"""Largest disorder of markers, which several CPUs store concurrently."""

_OWNERS = (tracepoints.TABLE_ALLOC, tracepoints.TABLE_LINK, tracepoints.TABLE_MOVE)
"""Kinds of events that may change the owner of a table."""

_STORES, _UNEXPLAINED, _TOUCHED = range(3, 6)
"""Further counters after the kinds of reads `MISS`, `FAULT` and `PMD_READ`."""


class BusMonitor:
    """Follows a bus session; `waiting` accesses wait for the kernel's log."""

    def __init__(
        self,
        session: Session,
        clock: Callable[[], float] = time.monotonic,
        drain_per_s: float | None = None,
    ) -> None:
        """Begin at the start of the recording.

        :param clock: returns seconds.
        :param drain_per_s: records per second that leave the modelled capture buffer.
        :raises PtatError: the session's boards have separate clocks.
        """
        if session.board.clocks != "one":
            raise PtatError(
                f"{session.path}: boards with separate clocks are ordered only after the recording",
                "wait until it ends",
            )
        region = session.region
        self.span = max(session.board.granularity_bytes // 8, 1)
        """Number of neighbouring pages that a miss may be of."""
        self.first_ticks: int | None = None
        self.last_ticks = 0
        self._session = session
        self._streams = [
            _Stream(session.path / channel.file, channel.in_blocks)
            for channel in session.board.channels
        ]
        self._log = GrowingLog(session.kernel_path)
        self._events: dict[int, TableEvent] = {}
        self._newest_seq = 0
        self._start_seq: int | None = None
        self._last_seq: int | None = None
        self._given_up_seq: int | None = None
        self._rpt = Rpt(region.base, region.size_bytes)
        self._config = Config(
            base=np.uint64(region.base),
            size=np.uint64(region.size_bytes),
            marker_bytes=np.uint64(region.marker_slots * region.marker_stride_bytes),
            readback=np.uint64(session.readback_address),
            line=self.span,
        )
        self._tally = np.zeros(1, TALLY)
        self._held = _nothing()
        self._clock = clock
        self._waiting_since: float | None = None
        self._marker: tuple[int, int] | None = None  # ticks, ns of one moment
        self._counts = np.zeros(0, np.uint32)
        self._touched = np.zeros(0, np.int64)
        self._sums = np.zeros(6, np.int64)
        self._memory = ROOM.memory()
        self._drain_per_tick = drain_per_s and drain_per_s / session.channel.tick_hz
        self._level = np.zeros(2)  # level of the buffer, and its time (ticks)

    @property
    def level(self) -> int:
        """Records in the modelled capture buffer at the last record; 0 without a model."""
        return round(float(self._level[0]))

    @property
    def waiting(self) -> int:
        """Accesses that wait for the kernel's log."""
        return self._held[0].size

    @property
    def mms(self) -> list[Mm]:
        """The address spaces known so far."""
        return self._rpt.mms

    @property
    def seconds(self) -> float:
        """Bus time from the first record to the last counted one, in seconds."""
        if self.first_ticks is None:
            return 0.0
        return (self.last_ticks - self.first_ticks) / self._session.channel.tick_hz

    def update(self) -> Increment:
        """Read on to the current end of the files. Damaged blocks count as lost.

        :raises PtatError: the kernel's log is damaged.
        """
        found = Increment()
        more = True
        while more:
            more = self._read(found)
            self._replay(found)
        return found

    def _read(self, found: Increment) -> bool:
        """Read what was added to the files; return whether there may be more."""
        # Read the log first: the event of a marker read afterwards is in no earlier page.
        lost = self._log.lost_events
        for row in self._log.read().tolist():
            event = TableEvent(*row)
            self._events[event.seq] = event
            self._newest_seq = max(self._newest_seq, event.seq)
            if event.kind == tracepoints.MARKER and event.cookie == tracepoints.COOKIE_START:
                self._start_seq = event.seq
        found.lost_events += self._log.lost_events - lost
        parts = [self._held]
        more = False
        for stream in self._streams:
            part, full = stream.read(found)
            parts.append(part)
            more |= full
        held = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        if len(self._streams) > 1:
            order = np.argsort(held[0], kind="stable")
            held = tuple(column[order] for column in held)
        ticks, address, write = held
        old = self._held[0].size
        found.accesses += ticks.size - old
        if self._drain_per_tick:
            _fill(ticks[old:], self._drain_per_tick, self._level)
        if ticks.size and self.first_ticks is None:
            self.first_ticks = self.last_ticks = int(ticks[0])
        self._held = ticks, address, write
        return more

    def _replay(self, found: Increment) -> None:
        ticks, address, write = self._held
        region, at = self._session.region, 0
        step_ticks = max(int(STEP_S * self._session.channel.tick_hz), 1)
        while at < ticks.size:
            begin = int(ticks[at])
            stop = int(np.searchsorted(ticks, np.uint64(begin + step_ticks), "right"))
            at = self._walk(address[:stop], write[:stop], at)
            if at == stop:
                self._harvest(found, (begin + int(ticks[at - 1])) // 2)
                continue
            slot = (int(address[at]) - region.base) // region.marker_stride_bytes
            seq = self._seq(slot, region.marker_slots)
            if not self._has(seq):
                if self._may_come(seq):
                    break
                found.lost_events += 1
            self._waiting_since = None
            self._apply(seq, int(ticks[at]), found)
            at += 1
        if at:
            self.last_ticks = max(self.last_ticks, int(ticks[at - 1]))
            self._harvest(found, self.last_ticks)
        self._held = ticks[at:], address[at:], write[at:]
        sums = self._sums
        found.misses += int(sums[MISS])
        found.faulted += int(sums[FAULT])
        found.pmd_reads += int(sums[PMD_READ])
        found.stores += int(sums[_STORES])
        found.unexplained += int(sums[_UNEXPLAINED])
        sums[:] = 0

    def _seq(self, slot: int, slots: int) -> int | None:
        """Sequence number of the event that a marker in `slot` announces, or None if unknown."""
        if self._last_seq is None:
            # Another CPU's log may be ahead by more events than there are slots.
            first = self._start_seq
            if first is None and self._given_up_seq is not None:
                first = min(self._events, default=None)
                return None if first is None else first + (slot - first) % slots
            return None if first is None else first - (first - slot) % slots
        ahead = (slot - self._last_seq) % slots
        return self._last_seq + ahead - (slots if ahead > slots - LATE_SEQS else 0)

    def _may_come(self, seq: int | None) -> bool:
        """Whether an event that is not in the log may still arrive."""
        if self._given_up_seq is not None and (seq or 0) <= self._given_up_seq:
            return False  # lost, together with others
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < WAIT_S:
            return True
        self._given_up_seq = max(seq or 0, self._newest_seq)
        return False

    def _has(self, seq: int | None) -> bool:
        """Whether the event is in the log, or was applied before."""
        return seq is not None and (
            seq in self._events or (self._last_seq is not None and seq <= self._last_seq)
        )

    def _apply(self, seq: int | None, ticks: int, found: Increment) -> None:
        """Apply the event of a marker, and older events whose markers were not seen."""
        if seq is None:
            return
        before = seq - LATE_SEQS if self._last_seq is not None else seq - 1
        for one in [*sorted(s for s in self._events if s <= before), seq]:
            event = self._events.pop(one, None)
            if event is None:
                continue
            if event.kind in _OWNERS:
                self._harvest(found, ticks)
            self._rpt.apply(event, ticks)
            self._marker = ticks, round(event.time * 1e9 / self._session.kernel.tsc_hz)
        self._last_seq = max(seq, self._last_seq or 0)

    def _walk(self, address: U64, write: npt.NDArray[np.bool_], start: int) -> int:
        """Count reads from `start` up to the next marker; return its index, or the array's size."""
        t = self._rpt.tables
        if self._counts.size < t.state.size:
            for name, dtype in (("_counts", np.uint32), ("_touched", np.int64)):
                grown = np.zeros(t.state.size, dtype)
                old = getattr(self, name)
                grown[: old.size] = old
                setattr(self, name, grown)
        room = EMPTY_ROOM._replace(t=t, config=self._config, tally=self._tally)
        ROOM.put(self._memory, room)
        at = _walk(address, write, start, self._counts, self._touched, self._sums, self._memory)
        return int(at)

    def _harvest(self, found: Increment, ticks: int) -> None:
        """Attribute the counted slots to pages, before their tables change."""
        n = int(self._sums[_TOUCHED])
        self._sums[_TOUCHED] = 0
        if not n:
            return
        slots = self._touched[:n].copy()
        misses = self._counts[slots].astype(np.int64)
        self._counts[slots] = 0
        owner = self._rpt.tables.range_of_frame[slots // ENTRIES]
        known = owner >= 0
        found.unexplained += int(misses[~known].sum())
        slots, misses, owner = slots[known], misses[known], owner[known]
        owners, row = np.unique(owner, return_inverse=True)
        ranges = [self._rpt.ranges[index] for index in owners.tolist()]
        mm, level = (np.array([one[i] for one in ranges], np.int64)[row] for i in (0, 2))
        base = np.array([one.base for one in ranges], np.uint64)[row]
        shift = np.where(level == 1, ENTRY_SHIFT[1], ENTRY_SHIFT[2])
        found.pages.append(
            PageMisses(
                self._kernel_ns(ticks),
                mm,
                base + (slots % ENTRIES << shift).astype(np.uint64),
                np.int64(1) << shift,
                misses,
            )
        )

    def _kernel_ns(self, ticks: int) -> int:
        if self._marker is None:
            return 0
        since, ns = self._marker
        return ns + round((ticks - since) * 1e9 / self._session.channel.tick_hz)


Accesses = tuple[U64, U64, npt.NDArray[np.bool_]]
"""Time (ticks), address (bytes), and direction (True: write)."""


def _nothing() -> Accesses:
    return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.bool_)


class _Stream:
    """One channel's file, which may not exist yet, or not any more."""

    def __init__(self, path: Path, channel: int) -> None:
        self._path = path
        self._kind = decode.kind_of(channel)
        self._blocks = 0
        self._state = np.array([-1, 0, 0], np.int64)  # see `blocks`

    def read(self, found: Increment) -> tuple[Accesses, bool]:
        """Accesses of the whole blocks that were added, and whether there may be more."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._blocks * wire.BLOCK_BYTES)
                data = file.read(READ_BLOCKS * wire.BLOCK_BYTES)
        except FileNotFoundError:
            return _nothing(), False
        whole = len(data) // wire.BLOCK_BYTES
        if not whole:
            return _nothing(), False
        words = np.frombuffer(data, np.uint64, whole * wire.BLOCK_WORDS)
        words = words.reshape(whole, wire.BLOCK_WORDS)
        self._blocks += whole
        into = Decoded.room(whole)
        _, ticks, address, write, others = into
        n, m = decode_blocks(words, decode.crcs(words), self._kind, self._state, into)
        for _, _, _, tag, value in others[:m].tolist():
            if tag == wire.Tag.LOST:
                found.lost_accesses += value
            elif tag == wire.Tag.MARK:
                found.stopped |= value >> wire.MARK_ARGUMENT_BITS == wire.Mark.STOP
            else:
                found.lost_blocks += value
        return (ticks[:n], address[:n], write[:n]), whole == READ_BLOCKS


@jit
def _fill(ticks: U64, drain_per_tick: float, level: npt.NDArray[np.float64]) -> None:
    """Pass records through a buffer that drains at a constant rate."""
    for now in ticks:
        level[0] = max(level[0] - (now - level[1]) * drain_per_tick, 0.0) + 1.0
        level[1] = now


@bare
def _walk(
    address: U64,
    write: npt.NDArray[np.bool_],
    start: Integer,
    counts: U32,
    touched: I64,
    sums: I64,
    memory: RoomMemory,
) -> Integer:
    """Count misses by slot up to the next marker, and return its index.

    `touched` lists the slots with counts; `sums` is indexed by the kind of a read, `_STORES` etc.
    """
    room = memory.room
    t, config = room.t, room.config
    for i in range(start, address.size):
        offset = address[i] - config.base
        if offset < config.marker_bytes:
            if write[i]:
                return i
            sums[_UNEXPLAINED] += address[i] != config.readback
            continue
        entry = entry_at(address[i], memory)
        if entry < 0:
            sums[_UNEXPLAINED] += not write[i]
            continue
        slot, page = entry & -config.line, np.int64(offset >> TO_PAGE)
        if write[i]:
            sums[_STORES] += 1
            store(np.int64(t.store_level[page]), slot, config.line, memory)
            continue
        kind = np.int64(_UNEXPLAINED)
        if t.level[page] == 1:
            kind = np.int64(FAULT if t.state[slot] == EMPTY else MISS)
        elif t.level[page] == 2:
            following = address[i + 1] if i + 1 < address.size else NO_ADDRESS
            found, _, _ = pmd_kind(slot, np.int64(0), table_line(following, memory), memory)
            kind = np.int64(found)
        sums[kind] += 1
        if kind == MISS:
            if counts[slot] == 0:
                touched[sums[_TOUCHED]] = slot
                sums[_TOUCHED] += 1
            counts[slot] += np.uint32(1)
    return address.size
