# SPDX-License-Identifier: BSD-2-Clause
"""Rebuilds program order from a capture behind a memory controller, for the replay.

A controller queues stores and answers reads from its queue (`board.contract` in session.json), so
the DIMM's bus lacks some accesses, has others twice, and shows stores late. The CPUs' accesses are
rebuilt from the bus and the kernel's log::

    RD ─ scrub ─ marker loads ─ underfills (the last RD of a line before its WR) ─ walks
    WR ─ until when each logged store was in the queue (`write_windows`)
    log ─ stores, each at its event's time ─ faults ─ walks that the queue answered (inferred)

The result has a store for each entry event, a marker store for each marker load, and a read for
each walk that was seen or inferred. Uncertain cases are counted in `Found`.

The whole capture is in memory. Bus times are ticks since its first record.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.chunks import Lost, MarkRecord
from ptat_parser.capture.merge import Reader
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.errors import BadInput
from ptat_parser.formats.session import Contract, Session
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order import clock, markers
from ptat_parser.order.line_times import LineTimes
from ptat_parser.order.queue_inference import (
    Faults,
    Links,
    Queue,
    Walks,
    infer,
    nothing_inferred,
)
from ptat_parser.order.scrub import find_scrub, most_unseen
from ptat_parser.order.table_lifetimes import lifetimes, table_pages, ticks_of_events
from ptat_parser.order.write_windows import STILL_QUEUED, Stores, store_delay, underfills, windows

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LINE_BYTES = 64
"""A line of the DIMM: the unit of the controller's queue."""
WRITE_AHEAD_S = 0.2e-6
"""How far the clocks may place a WR before its store."""
SCRUB_LATE_S = 50e-6
"""Largest delay of a scrub read; the CPUs' accesses take priority."""
WITHOUT_UNDERFILL_MAX = 0.01
"""Fraction of the writes whose underfill may precede the recording."""


@dataclass
class Found:
    """Counts of what the bus showed and hid; see `controller` in docs/formats.md."""

    writes: int = 0
    stores: int = 0
    writes_without_event: int = 0
    underfills: int = 0
    writes_without_underfill: int = 0
    scrubs: int = 0
    possible_scrubs: int = 0
    inferred: int = 0
    inferred_faults: int = 0
    ptes_answered: int = 0
    in_doubt: int = 0
    possible: int = 0
    flushes: int | None = None
    """Flushes of a CPU's whole TLB; None: not recorded."""

    def summary(self, misses: int, lost: int) -> dict[str, Any]:
        """`controller` of summary.json, with the bound for the true number of `misses`.

        There is no bound if accesses or events were `lost`.
        """
        low = max(misses - self.in_doubt - self.possible_scrubs, 0)
        bound = {"low": low, "high": misses + self.in_doubt + self.possible}
        return asdict(self) | {"misses": None if lost else bound}

    @property
    def warnings(self) -> list[str]:
        """What speaks against the contract, or is missing from the bound."""
        found = []
        without = self.writes_without_underfill
        if without > WITHOUT_UNDERFILL_MAX * self.writes:
            found.append(
                f"{without:,} of {self.writes:,} writes had no underfill read: is this memory"
                " without ECC? Then its contract is no-ecc"
            )
        if self.flushes is None and self.inferred + self.inferred_faults:
            found.append(
                "recorded without tlb_flush events: the bound lacks misses after flushes of the"
                " TLB; record again with this version"
            )
        return found


class Marks(NamedTuple):
    """Times and addresses of accesses of one kind."""

    time: I64
    address: U64


class Stream(NamedTuple):
    """A capture as arrays: accesses, losses and marks."""

    time: I64
    address: U64
    write: Bools
    lost: list[Lost]
    marks: list[MarkRecord]
    start_ticks: int


def is_needed(session: Session) -> bool:
    """Whether program order must be rebuilt before the replay."""
    return not session.board.contract.is_program_order or session.region.markers != "store"


def read_stream(reader: Reader) -> Stream:
    """Read all of a capture."""
    chunks = list(reader)
    lost = [lost for chunk in chunks for lost in chunk.lost]
    marks = [mark for chunk in chunks for mark in chunk.marks]
    time = np.concatenate([np.empty(0, np.uint64), *(chunk.time for chunk in chunks)])
    starts = [*(mark.time_ticks for mark in marks), *time[:1].tolist()]
    start_ticks = min(starts, default=0)
    return Stream(
        (time - np.uint64(start_ticks)).view(np.int64),
        np.concatenate([np.empty(0, np.uint64), *(chunk.address for chunk in chunks)]),
        np.concatenate([np.empty(0, np.bool_), *(chunk.write for chunk in chunks)]),
        lost,
        marks,
        start_ticks,
    )


def in_program_order(session: Session, reader: Reader, log: KernelLog, target: BinaryIO) -> Found:
    """Write the capture in program order to the binary file `target`.

    :raises BadInput: the log lacks required events.
    """
    contract = session.board.contract
    _require_events(session)
    stream = read_stream(reader)
    if stream.time.size and stream.time[-1] >= STILL_QUEUED:
        raise BadInput(
            f"{session.path}: longer than {int(STILL_QUEUED) / session.channel.tick_hz:.0f} s",
            "behind a memory controller, record for a shorter time",
        )
    found = Found()
    kinds = _kinds(session, stream, log)
    found.scrubs, found.possible_scrubs = int(np.count_nonzero(kinds.scrub)), kinds.possible_scrubs
    marker_rows = np.flatnonzero(kinds.marker)
    marker = Marks(stream.time[marker_rows], stream.address[marker_rows])
    if contract.is_program_order:
        others = ~kinds.marker
        rest = Marks(stream.time[others], stream.address[others])
        _write(target, stream, [(rest, stream.write[others]), (marker, True)])
        return found
    fitted, placed = _clock(session, stream, marker, log)
    stores, faults, links = _of_log(session, stream, log, fitted, placed)
    flushes = fitted.to_ticks(log.flushes).view(np.int64) - stream.start_ticks
    found.stores = stores.time.size
    if set(tracepoints.FLUSH_EVENTS) <= set(session.kernel.events):
        found.flushes = flushes.size
    tick_hz = session.channel.tick_hz
    write_line, write_time = kinds.line[kinds.write], stream.time[kinds.write]
    delay = store_delay(stores, write_line, write_time, tick_hz)
    stores = stores._replace(time=stores.time + delay)
    slack = round(WRITE_AHEAD_S * tick_hz) if not delay else 0
    written = windows(stores, write_line, write_time, slack, tick_hz)
    found.writes = int(np.count_nonzero(kinds.write))
    found.writes_without_event = written.writes_without_event
    walk = kinds.walk
    if contract.ecc:
        walk = walk & ~_underfills(kinds, stream, stores, written.until, contract, found)
    inferred = nothing_inferred(int(np.count_nonzero(walk)))
    if contract.forwarding:
        queue = Queue(stores, written.until, contract.ecc)
        walks = _walks(session, kinds, stream, walk, log, placed)
        inferred = infer(walks, queue, faults, links, flushes, tick_hz, session.kernel.cpus)
    found.inferred, found.inferred_faults = inferred.retries.time.size, inferred.faults.time.size
    found.in_doubt, found.possible = inferred.in_doubt, inferred.possible
    found.ptes_answered = int(np.count_nonzero(inferred.pte_answered))
    rows = np.flatnonzero(walk)[~inferred.pte_answered]
    seen = Marks(stream.time[rows], stream.address[rows])
    line_mask = np.uint64(~(session.board.granularity_bytes - 1) & 0xFFFF_FFFF_FFFF_FFFF)
    _write(
        target,
        stream,
        [
            (seen, False),
            (marker, True),
            (Marks(stores.time + 1, stores.address & line_mask), True),
            (Marks(inferred.retries.time, inferred.retries.address & line_mask), False),
            (Marks(inferred.faults.time, inferred.faults.address & line_mask), False),
        ],
    )
    return found


def _require_events(session: Session) -> None:
    needed = {*tracepoints.ENTRY_EVENTS, *tracepoints.FAULT_EVENTS}
    if not session.board.contract.is_program_order and needed - set(session.kernel.events):
        raise BadInput(
            f"{session.path}: behind a memory controller a trace needs entry and fault events",
            "record with --entries and --faults",
        )


def _underfills(
    kinds: _KindsOf, stream: Stream, stores: Stores, until: I64, contract: Contract, found: Found
) -> Bools:
    """Which accesses are underfill reads."""
    result = np.zeros(stream.time.size, np.bool_)
    rows = np.flatnonzero(kinds.walk)
    # Reads of a line whose store was still queued at the end.
    pending = (until == STILL_QUEUED) & contract.forwarding
    result[rows], found.writes_without_underfill = underfills(
        kinds.line[rows],
        stream.time[rows],
        kinds.line[kinds.write],
        stream.time[kinds.write],
        stores.line[pending],
        stores.time[pending],
    )
    found.underfills = int(np.count_nonzero(result))
    return result


class _KindsOf(NamedTuple):
    """The line and the kind of each access; a kind is one of four masks."""

    line: I64
    scrub: Bools
    marker: Bools
    write: Bools
    walk: Bools
    possible_scrubs: int
    """How many of the walks may be scrub's."""


def _kinds(session: Session, stream: Stream, log: KernelLog) -> _KindsOf:
    region = session.region
    offset = stream.address - np.uint64(region.base)
    inside = offset < np.uint64(region.size_bytes)
    in_markers = inside & (offset < np.uint64(region.marker_slots * region.marker_stride_bytes))
    scrub, possible = np.zeros(stream.time.size, np.bool_), 0
    if session.board.contract.scrub:
        reads = np.flatnonzero(inside & ~stream.write)
        scrub[reads], possible = _scrubs(session, stream.time[reads], offset[reads], log)
    marker = in_markers & ~scrub & (stream.write == (region.markers == "store"))
    write = stream.write & ~in_markers
    walk = ~stream.write & ~scrub & ~marker
    line = (stream.address // np.uint64(LINE_BYTES)).astype(np.int64)
    return _KindsOf(line, scrub, marker, write, walk, possible)


def _scrubs(session: Session, time: I64, offset: U64, log: KernelLog) -> tuple[Bools, int]:
    """Which reads at these offsets in the region are scrub's, and how many others may be."""
    region = session.region
    line = (offset // np.uint64(LINE_BYTES)).astype(np.int64)
    tables = table_pages(log, region)
    unused = _unused(session, line, time, log)
    late = round(SCRUB_LATE_S * session.channel.tick_hz)
    # Any run of that many pages has lines of every channel: interleaving goes by pages at most.
    interleaved = 2 * len(session.board.channels) - 1
    scrub, possible = np.zeros(line.size, np.bool_), 0
    for of_channel in _lines_of_channels(session):
        place = np.searchsorted(of_channel, line)
        place = np.minimum(place, of_channel.size - 1)
        rows = np.flatnonzero(of_channel[place] == line)
        found = find_scrub(
            place[rows], time[rows], unused[rows], of_channel, late, len(session.board.channels)
        )
        if found is None:
            possible += most_unseen(np.unique(line[rows]) * LINE_BYTES >> 12, tables, interleaved)
        else:
            scrub[rows] = found
    return scrub, possible


def _unused(session: Session, line: I64, time: I64, log: KernelLog) -> Bools:
    """Mask of the reads of lines that are neither markers nor, at that time, of tables."""
    region, tick_hz = session.region, session.channel.tick_hz
    page = line * LINE_BYTES >> 12
    slot = line * LINE_BYTES // region.marker_stride_bytes
    in_markers = slot < region.marker_slots
    marker_reads = LineTimes(slot[in_markers], time[in_markers])
    ticks = ticks_of_events(log, marker_reads, region.marker_slots, tick_hz, session.kernel.tsc_hz)
    if ticks is None:
        return ~in_markers & ~np.isin(page, table_pages(log, region))
    return ~in_markers & ~lifetimes(log, region, ticks).hold(page, time, tick_hz)


def _lines_of_channels(session: Session) -> list[I64]:
    """The lines of each channel, from the region's first, ascending: it scrubs them one by one.

    Of several channels, those that were accessed.
    """
    region, channels = session.region, session.board.channels
    first, size = region.base // LINE_BYTES, region.size_bytes // LINE_BYTES
    if len(channels) == 1:
        return [np.arange(size)]
    found = []
    for channel in channels:
        # Damage was reported when all of them were read.
        reader = BusReader(
            session.path / channel.file, channel.in_blocks, salvage=True, tail_may_be_cut=True
        )
        parts = [np.unique(chunk.address // np.uint64(LINE_BYTES)) for chunk in reader]
        lines = np.unique(np.concatenate([np.empty(0, np.uint64), *parts])).astype(np.int64)
        found.append(lines[(lines >= first) & (lines < first + size)] - first)
    return [lines for lines in found if lines.size]


def _clock(
    session: Session, stream: Stream, marker: Marks, log: KernelLog
) -> tuple[clock.Clock, U64]:
    """The clock fitted to the markers, and the time of each table event's marker, or 0."""
    region = session.region
    slot = (marker.address - np.uint64(region.base)) // np.uint64(region.marker_stride_bytes)
    ticks = marker.time.view(np.uint64) + np.uint64(stream.start_ticks)
    found = markers.MarkerStores(
        np.arange(slot.size), ticks, slot.astype(np.int64), np.zeros(slot.size, np.bool_)
    )
    clocks = clock.NominalClocks.of(session)
    placed = markers.place(log.tables, found, region.marker_slots, clocks)
    fitted = clock.fit(
        clock.Pairs(found.time_ticks[placed.store], log.tables["time"][placed.event]),
        clocks,
        clock.Pairs(*markers.before_next(log.tables, placed)),
    )
    return fitted, placed.marker_ticks


def _of_log(
    session: Session, stream: Stream, log: KernelLog, fitted: clock.Clock, marker_ticks: U64
) -> tuple[Stores, Faults, Links]:
    """The log's stores, faults and links; times are the stream's."""
    region = session.region
    tables, timed = log.tables, log.timed.between()
    ticks = np.where(marker_ticks > 0, marker_ticks, fitted.to_ticks(tables["time"].copy()))
    spaces = _spaces(log)

    def since_start(of: U64) -> I64:
        return of.view(np.int64) - stream.start_ticks

    def mm_of(rows: npt.NDArray[Any]) -> I64:
        return np.searchsorted(spaces, rows["mm"])

    def page_of(rows: npt.NDArray[Any]) -> I64:
        return (rows["va"] >> np.uint64(12)).astype(np.int64)

    def table_of(rows: npt.NDArray[Any]) -> I64:
        return (rows["pa"] >> np.uint64(12)).astype(np.int64)

    is_leaf = np.isin(tables["kind"], (tracepoints.LEAF_SET, tracepoints.LEAF_CLEAR))
    is_link = tables["kind"] == tracepoints.TABLE_LINK
    is_store = is_leaf | is_link
    fault = timed["kind"] == tracepoints.FAULT
    of_table, entry = tables[is_store], timed[~fault]
    time = np.concatenate(
        [since_start(ticks[is_store]), since_start(fitted.to_ticks(entry["time"].copy()))]
    )
    address = np.concatenate([of_table["slot_pa"], entry["slot_pa"]])
    leaf_page = np.where(is_leaf[is_store], page_of(of_table), -1)
    present = np.concatenate(
        [
            is_leaf[is_store] & (of_table["entry"] & np.uint64(1) == 1),
            (entry["kind"] == tracepoints.ENTRY_SET) & (entry["entry"] & np.uint64(1) == 1),
        ]
    )
    columns = Stores(
        time,
        address,
        (address // np.uint64(LINE_BYTES)).astype(np.int64),
        np.concatenate([mm_of(of_table), mm_of(entry)]),
        np.concatenate([leaf_page, page_of(entry)]),
        np.repeat([512, 1], [of_table.size, entry.size]),
        present,
    )
    inside = address - np.uint64(region.base) < np.uint64(region.size_bytes)
    last = int(stream.time[-1]) if stream.time.size else 0
    inside &= (time >= 0) & (time <= last)
    order = np.flatnonzero(inside)[np.argsort(time[inside], kind="stable")]
    stores = Stores(*(column[order] for column in columns))  # type: ignore[arg-type]
    of_fault, link = timed[fault], tables[is_link]
    alloc = tables["kind"] == tracepoints.TABLE_ALLOC
    allocs = LineTimes(table_of(tables[alloc]), np.maximum(since_start(ticks[alloc]), 0))
    place = allocs.last_before(table_of(link), since_start(ticks[is_link]))
    fault_time = since_start(fitted.to_ticks(of_fault["time"].copy()))
    faults = Faults(
        mm_of(of_fault),
        page_of(of_fault),
        fault_time,
        of_fault["common_pid"].astype(np.int64),
        of_fault["error_code"] & tracepoints.USER_MODE != 0,
    )
    links = Links(
        mm_of(link),
        page_of(link),
        link["level"].astype(np.int64),
        since_start(ticks[is_link]),
        link["slot_pa"].copy(),
        table_of(link),
        np.where(place >= 0, allocs.time[place] if allocs.size else 0, -1),
    )
    return stores, faults, links


def _walks(
    session: Session,
    kinds: _KindsOf,
    stream: Stream,
    walk: Bools,
    log: KernelLog,
    marker_ticks: U64,
) -> Walks:
    """The walks on the bus, each with the address space of its table."""
    tables = log.tables
    spaces = _spaces(log)
    given = np.isin(tables["kind"], (tracepoints.TABLE_ALLOC, tracepoints.TABLE_LINK))
    given &= tables["pa"] - np.uint64(session.region.base) < np.uint64(session.region.size_bytes)
    rows = np.flatnonzero(given)
    pages = (tables["pa"][rows] >> np.uint64(12)).astype(np.int64)
    ticks = marker_ticks[rows].view(np.int64) - stream.start_ticks
    owned = LineTimes(pages, np.maximum(ticks, 0))
    time, line = stream.time[walk], kinds.line[walk]
    place = owned.last_before(line * LINE_BYTES >> 12, time + 1)
    event = rows[owned.order[place]] if rows.size else place
    mm = np.where(place >= 0, np.searchsorted(spaces, tables["mm"][event]), -1)
    ends = (place >= 0) & (tables["level"][event] == 1)
    linked = ends & (tables["kind"][event] == tracepoints.TABLE_LINK)
    parent = np.where(linked, (tables["slot_pa"][event] // LINE_BYTES).astype(np.int64), -1)
    return Walks(time, line, mm, ends, parent)


def _spaces(log: KernelLog) -> U64:
    """All address spaces of the log; their indices serve as numbers."""
    return np.unique(np.concatenate([log.tables["mm"], log.timed.between()["mm"]]))


def _write(target: BinaryIO, stream: Stream, parts: list[tuple[Marks, Bools | bool]]) -> None:
    """Write accesses sorted by time, with the stream's losses and marks."""
    time = np.concatenate([part.time for part, _ in parts])
    address = np.concatenate([part.address for part, _ in parts])
    write = np.concatenate([np.broadcast_to(is_write, part.time.shape) for part, is_write in parts])
    order = np.argsort(time, kind="stable")
    rows = zip(time[order].tolist(), address[order].tolist(), write[order].tolist(), strict=True)
    others: list[Lost | MarkRecord] = [*stream.lost, *stream.marks]
    others.sort(key=lambda record: record.time_ticks)
    start = stream.start_ticks
    with BlockWriter(target) as writer:
        for at, line, is_write in rows:
            while others and others[0].time_ticks <= at + start:
                _put(writer, others.pop(0))
            writer.access(at + start, line, is_write)
        for other in others:
            _put(writer, other)


def _put(writer: BlockWriter, record: Lost | MarkRecord) -> None:
    if isinstance(record, MarkRecord):
        writer.mark(record.time_ticks, wire.Mark(record.code), record.argument)
    else:
        lost = record.count or record.blocks * wire.BLOCK_RECORDS_MAX
        writer.lost(record.time_ticks, lost)
