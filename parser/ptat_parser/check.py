# SPDX-License-Identifier: BSD-2-Clause
"""Checks the invariants of a session and names the first place where one does not hold.

The capture is scanned here word by word, sharing nothing with the decoder of `blocks` and the
replay but the definition of the format, so that a fault of theirs shows as a contradiction. What is
checked, in this order:

* capture: every block's magic number, version, channel, CRC, check word and padding; block numbers
  without gaps; records that exist; START and STOP; time that never runs backwards
* accesses: inside the region; the marker area only stored to
* kernel log: readable, whole pages, one event for each sequence number
* markers: one store for each event, and the other way round
* tables: only tables that were handed out are stored to, only tables that were linked are read
* entries: as many stores to a line as events for it (PMD entries always; PTEs if recorded)
* counts: results and summary agree with each other, with the capture and with the counters

What was lost is no violation as long as it is counted; checks that need what was lost are left
out and say so.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser import kernel_log, markers, results, wire
from ptat_parser.archive import ArchiveStream, RawStream, open_stream
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.events import ENTRY_EVENTS
from ptat_parser.jit import Integer, jit
from ptat_parser.kernel_log import KernelLog
from ptat_parser.rpt import PAGE_SHIFT
from ptat_parser.session import Channel, Session
from ptat_parser.survey import Progress, no_progress

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

SCAN_BLOCKS = 256
"""Blocks held in memory at a time: 2 MiB."""


@dataclass(frozen=True)
class Violation:
    """Where an invariant does not hold.

    `file` is relative to the session. For captures `block`, `word` (in the block) and `byte` (in
    the file) say where, `time_ticks` when by the bus clock; `address` is the access's. Each is
    None where it says nothing.
    """

    message: str
    file: str
    block: int | None = None
    word: int | None = None
    byte: int | None = None
    time_ticks: int | None = None
    address: int | None = None

    def __str__(self) -> str:
        place = [self.file]
        if self.block is not None:
            place.append(f"block {self.block} word {self.word} (byte {self.byte})")
        if self.time_ticks is not None:
            place.append(f"at {self.time_ticks} ticks")
        if self.address is not None:
            place.append(f"address {self.address:#x}")
        return f"{', '.join(place)}: {self.message}"


@dataclass
class Check:
    """One group of invariants: how often one is violated and where first, or why not checked."""

    name: str
    about: str
    violations: int = 0
    first: Violation | None = None
    skipped: str | None = None


@dataclass
class Report:
    """The outcome; `as_dict` of it is what ``ptat check --json`` prints.

    `lost` is what the session itself counts as lost, None if it cannot be parsed.
    """

    checks: list[Check] = field(default_factory=list)
    accesses: int = 0
    lost: int | None = None

    @property
    def first(self) -> Violation | None:
        """Of the first group that has any, the violation that comes first."""
        return next((check.first for check in self.checks if check.first), None)

    @property
    def ok(self) -> bool:
        """No invariant is violated."""
        return self.first is None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        first = asdict(self.first) if self.first else None
        return {"ok": self.ok, "first": first, **asdict(self)}

    def begin(self, name: str, about: str) -> Check:
        """Start a group of checks."""
        self.checks.append(Check(name, about))
        return self.checks[-1]

    def violated(
        self, current: Check, message: str, file: str, times: int = 1, **place: int
    ) -> None:
        """Count violations of one kind; `place` is that of the first of them."""
        current.violations += times
        if current.first is None:
            current.first = Violation(message, file, **place)


def check(directory: Path, *, progress: Progress = no_progress) -> Report:
    """Check a session, parsing it if that has not been done yet.

    Raises `SessionError` if there is no session that could be checked.
    """
    session = Session(directory)
    report = Report()
    structure = report.begin("capture", "blocks, records and time of the capture")
    accesses = report.begin("accesses", "inside the region, markers only stored to")
    capture = _Capture()
    for channel in session.board.channels:
        _check_capture(session, channel, capture, report, structure, accesses, progress)
    report.accesses = capture.accesses
    log = _check_log(session, report)
    ordered = _check_markers(session, capture, log, report)
    _check_tables(session, ordered, report, progress)
    _check_counts(session, capture, report, progress)
    return report


# The capture --------------------------------------------------------------------------------------


@dataclass
class _Capture:
    """What the words of a capture say.

    `marker_stores` has rows of position among all accesses, ticks and slot. `gaps` counts what
    says that accesses are missing: LOST records, some marks, missing and unreadable blocks.
    """

    accesses: int = 0
    reads: int = 0
    unexplained: int = 0
    gaps: int = 0
    lost_accesses: int = 0
    marker_stores: I64 = field(default_factory=lambda: np.empty((0, 3), np.int64))


class _Accesses(NamedTuple):
    """Accesses of some blocks: time (ticks), address (bytes), write, and index of their word."""

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    word: I64

    def place(self, row: int) -> dict[str, int]:
        """Where one of them stands."""
        ticks, address = int(self.time[row]), int(self.address[row])
        return {**_at(int(self.word[row])), "time_ticks": ticks, "address": address}


def _words(stream: RawStream | ArchiveStream) -> Iterator[tuple[int, U64]]:
    """Whole blocks of a stream as words, shape ``(blocks, 1024)``, and the first one's number."""
    blocks = stream.size_bytes // wire.BLOCK_BYTES
    for first in range(0, blocks, SCAN_BLOCKS):
        words = np.empty((min(SCAN_BLOCKS, blocks - first), wire.BLOCK_WORDS), np.uint64)
        stream.readinto(first * wire.BLOCK_BYTES, words.data.cast("B"))
        yield first, words


def _at(word: int) -> dict[str, int]:
    block, in_block = divmod(word, wire.BLOCK_WORDS)
    return {"block": block, "word": in_block, "byte": word * 8}


def _check_capture(
    session: Session,
    channel: Channel,
    capture: _Capture,
    report: Report,
    structure: Check,
    accesses: Check,
    progress: Progress,
) -> None:
    """The structure of a channel's file, and every access against the region."""
    name, path = channel.file, session.path / channel.file
    if not path.is_file() or not path.stat().st_size:
        report.violated(structure, "empty" if path.is_file() else "no such file", name)
        return
    stream = open_stream(path, salvage=True)
    blocks, rest_bytes = divmod(stream.size_bytes, wire.BLOCK_BYTES)
    region = session.region
    marker_bytes = np.uint64(region.marker_slots * region.marker_stride_bytes)
    due: int | None = None  # number of the next block
    now = 0
    marks: set[int] = set()
    gaps_before = capture.gaps
    marker_stores = [capture.marker_stores]
    for first, words in _words(stream):
        wrong: list[tuple[int, str]] = []
        readable = np.ones(len(words), np.bool_)
        for i in range(len(words)):
            problem = _block_problem(words[i], channel.index)
            if problem:
                wrong.append(((first + i) * wire.BLOCK_WORDS + problem[1], problem[0]))
                readable[i] = False
                capture.gaps += 1
                continue
            number = int(words[i, wire.WORD_HEADER]) & _mask(wire.HEADER_SEQ_BITS)
            if due is not None and number != due:
                wrong.append(
                    ((first + i) * wire.BLOCK_WORDS, f"block number {number} where {due} is due")
                )
                capture.gaps += 1
            due = (number + 1) & _mask(wire.HEADER_SEQ_BITS)
        found, others, now, bad = _decode(words, readable, first, now)
        wrong += [(word, _BAD_RECORD[what]) for word, what in bad]
        for word, message in sorted(wrong):
            report.violated(structure, message, name, **_at(word))

        lost = others[others[:, 0] == wire.Tag.LOST, 1]
        capture.gaps += lost.size
        capture.lost_accesses += int(lost.sum())
        code, argument = np.divmod(
            others[others[:, 0] == wire.Tag.MARK, 1], 1 << wire.MARK_CODE_SHIFT
        )
        marks.update(code.tolist())
        capture.gaps += int(np.isin(code, _MARKS_OF_LOSS).sum())
        capture.gaps += int(np.count_nonzero((code == wire.Mark.SAMPLE) & (argument > 1)))

        offset = found.address - np.uint64(region.base)
        outside = offset >= np.uint64(region.size_bytes)
        marker = offset < marker_bytes
        for rows, message in (
            (np.flatnonzero(outside), "an access outside the region"),
            (np.flatnonzero(marker & ~found.write), "a read of the marker area"),
        ):
            if rows.size:
                place = found.place(int(rows[0]))
                report.violated(accesses, message, name, int(rows.size), **place)
        rows = np.flatnonzero(marker & found.write)
        slot = offset[rows] // np.uint64(region.marker_stride_bytes)
        columns = (rows + capture.accesses, found.time[rows], slot)
        marker_stores.append(np.stack([column.astype(np.int64) for column in columns], axis=1))
        capture.accesses += found.time.size
        capture.reads += int(np.count_nonzero(~found.write))
        capture.unexplained += int(np.count_nonzero((outside | marker) & ~found.write))
        progress("checking blocks", first + len(words), blocks)
    capture.marker_stores = np.concatenate(marker_stores)
    end = _at(blocks * wire.BLOCK_WORDS)
    if session.complete and stream.cut:
        report.violated(structure, "the archive's footer is missing or damaged", name, **end)
    if session.complete and rest_bytes:
        message = f"the last block has {rest_bytes} of {wire.BLOCK_BYTES} bytes"
        report.violated(structure, message, name, **end)
    whole = capture.gaps == gaps_before
    if whole and wire.Mark.START not in marks:
        report.violated(structure, "no START mark", name, **_at(0))
    if whole and session.complete and wire.Mark.STOP not in marks:
        report.violated(structure, "no STOP mark: the end is missing", name, **end)


def _mask(bits: int) -> int:
    return (1 << bits) - 1


def _block_problem(block: U64, channel: int) -> tuple[str, int] | None:
    """Why a block cannot be read, and at which word."""
    header, last = int(block[wire.WORD_HEADER]), int(block[wire.WORD_CHECK])
    version = header >> wire.HEADER_VERSION_SHIFT & _mask(wire.HEADER_VERSION_BITS)
    of_channel = header >> wire.HEADER_CHANNEL_SHIFT & _mask(wire.HEADER_CHANNEL_BITS)
    if header >> wire.HEADER_MAGIC_SHIFT != wire.MAGIC:
        return "not a block of a capture stream (wrong magic number)", wire.WORD_HEADER
    if version != wire.VERSION:
        return f"format version {version}, not {wire.VERSION}", wire.WORD_HEADER
    crc = zlib.crc32(block[: wire.WORD_CHECK].tobytes())
    if last & _mask(wire.CHECK_CRC_BITS) != crc:
        return f"the block's CRC is {crc:#010x}, not as written", wire.WORD_CHECK
    if last >> wire.TAG_SHIFT != wire.Tag.CHECK or last >> wire.CHECK_CRC_BITS & 0xFFFF:
        return "a malformed check word", wire.WORD_CHECK
    if last >> wire.CHECK_COUNT_SHIFT & _mask(wire.CHECK_COUNT_BITS) > wire.BLOCK_RECORDS_MAX:
        return "more records than a block can hold", wire.WORD_CHECK
    if header >> wire.HEADER_FLAGS_SHIFT & _mask(wire.HEADER_FLAGS_BITS):
        return "flags that this version does not know", wire.WORD_HEADER
    if of_channel != channel:
        return f"of channel {of_channel}, not {channel}", wire.WORD_HEADER
    return None


_MARKS_OF_LOSS = (wire.Mark.LINK_ERROR, wire.Mark.DECODE_ERROR)

_BAD_RECORD = (
    "time runs backwards",
    "a word that is no record",
    "something else than padding after the last record",
)


def _decode(
    words: U64, readable: npt.NDArray[np.bool_], first: int, now: int
) -> tuple[_Accesses, I64, int, list[tuple[int, int]]]:
    """Decode blocks.

    Also returns what is no access (rows of tag and value), the time after the last record, and
    the words that are wrong, with an index into `_BAD_RECORD`.
    """
    capacity = len(words) * wire.BLOCK_RECORDS_MAX
    time, address = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
    write, word = np.empty(capacity, np.bool_), np.empty(capacity, np.int64)
    others, bad = np.empty((capacity, 2), np.int64), np.empty((len(words), 2), np.int64)
    n, m, k, last = _scan(words, readable, np.uint64(now), time, address, write, word, others, bad)
    word += first * wire.BLOCK_WORDS
    bad[:, 0] += first * wire.BLOCK_WORDS
    return (
        _Accesses(time[:n], address[:n], write[:n], word[:n]),
        others[:m],
        int(last),
        [(at, what) for at, what in bad[:k].tolist()],
    )


# numba computes in the types of its operands: unsigned constants keep words unsigned.
_TAG_SHIFT = np.uint64(wire.TAG_SHIFT)
_COUNT_SHIFT = np.uint64(wire.CHECK_COUNT_SHIFT)
_COUNT_MASK = np.uint64(_mask(wire.CHECK_COUNT_BITS))
_DELTA_SHIFT = np.uint64(wire.ACCESS_DELTA_SHIFT)
_ACCESS_DELTA_MASK = np.uint64(_mask(wire.ACCESS_DELTA_BITS))
_EVENT_DELTA_MASK = np.uint64(_mask(wire.EVENT_DELTA_BITS))
_ADDRESS_MASK = np.uint64(_mask(wire.ACCESS_ADDRESS_BITS))
_WRITE = np.uint64(1 << wire.ACCESS_WRITE_SHIFT)
_UNIT = np.uint64(wire.ADDRESS_UNIT_SHIFT)
_TIME_MASK = np.uint64(_mask(wire.TIME_BITS))
_VALUE_MASK = np.uint64(_mask(wire.EVENT_DELTA_SHIFT))
_ACCESS, _TIME, _LOST, _MARK = (
    np.uint64(tag) for tag in (wire.Tag.ACCESS, wire.Tag.TIME, wire.Tag.LOST, wire.Tag.MARK)
)
_WORD_TIME, _FIRST, _LAST = wire.WORD_TIME, wire.WORD_FIRST_RECORD, wire.WORD_CHECK
_BLOCK_WORDS = wire.BLOCK_WORDS


@jit
def _scan(
    words: U64,
    readable: npt.NDArray[np.bool_],
    now: Integer,
    time: U64,
    address: U64,
    write: npt.NDArray[np.bool_],
    at: I64,
    others: I64,
    bad: I64,
) -> tuple[Integer, Integer, Integer, Integer]:
    n = 0
    m = 0
    k = 0
    for b in range(words.shape[0]):
        if not readable[b]:
            continue
        wrong = -1
        where = _WORD_TIME
        if words[b, where] < now:
            wrong = 0
        now = max(now, words[b, where])
        end = _FIRST + np.int64(words[b, _LAST] >> _COUNT_SHIFT & _COUNT_MASK)
        for w in range(_FIRST, _LAST if wrong < 0 else _FIRST):
            word = words[b, w]
            tag = word >> _TAG_SHIFT
            if w >= end:
                if word:
                    wrong = 2
            elif tag == _ACCESS:
                now += word >> _DELTA_SHIFT & _ACCESS_DELTA_MASK
                time[n] = now
                address[n] = (word & _ADDRESS_MASK) << _UNIT
                write[n] = word & _WRITE != 0
                at[n] = b * _BLOCK_WORDS + w
                n += 1
            elif tag == _TIME:
                if word & _TIME_MASK < now:
                    wrong = 0
                now = max(now, word & _TIME_MASK)
            elif tag in (_LOST, _MARK):
                now += word >> _DELTA_SHIFT & _EVENT_DELTA_MASK
                others[m, 0] = tag
                others[m, 1] = word & _VALUE_MASK
                m += 1
            else:
                wrong = 1
            if wrong >= 0:
                where = w
                break
        if wrong >= 0:
            bad[k, 0] = b * _BLOCK_WORDS + where
            bad[k, 1] = wrong
            k += 1
    return n, m, k, now


# Kernel log and markers ---------------------------------------------------------------------------


def _check_log(session: Session, report: Report) -> KernelLog | None:
    current = report.begin("kernel log", "whole pages, each sequence number once")
    try:
        session.check_files()
        return kernel_log.read_kernel_log(session.kernel_path)
    except PtatError as error:
        report.violated(current, error.message, session.kernel_path.name)
        return None


@dataclass(frozen=True)
class _Ordered:
    """Table events before the accesses that they precede, and what of the log needs no order.

    `position` (int64): index among the accesses, negative for events before the first.
    """

    log: KernelLog
    events: npt.NDArray[Any]
    position: I64


def _check_markers(
    session: Session, capture: _Capture, log: KernelLog | None, report: Report
) -> _Ordered | None:
    """One store for each event; None where the two streams cannot be ordered for certain."""
    current = report.begin("markers", "one store on the bus for each table event")
    if log is None or report.checks[0].violations:
        current.skipped = "capture or kernel log is damaged"
    elif len(session.board.channels) > 1:
        current.skipped = "the capture has several channels"
    elif capture.gaps or log.lost_seqs or log.lost_events:
        current.skipped = "accesses or kernel events were lost"
    if current.skipped or log is None:
        return None
    position, ticks, slot = capture.marker_stores.T
    stores = markers.MarkerStores(
        position, ticks.astype(np.uint64), slot, np.zeros(slot.size, np.bool_)
    )
    cycles_per_tick = session.kernel.tsc_hz / session.channel.tick_hz
    placed = markers.place(log.tables, stores, session.region.marker_slots, cycles_per_tick)
    without_store = np.flatnonzero(placed.position == markers.BY_TIME)
    if without_store.size and session.complete:
        event = log.tables[without_store[0]]
        report.violated(
            current,
            f"{kernel_log.TABLE_KINDS[event['kind']]} number {event['seq']} has no marker store",
            f"{session.kernel_path.name}/cpu{event['cpu']}.raw",
            int(without_store.size),
        )
    if placed.stores_without_event:
        store = int(np.setdiff1d(np.arange(slot.size), placed.store)[0])
        report.violated(
            current,
            f"a store to marker slot {slot[store]} that no event explains",
            session.channel.file,
            placed.stores_without_event,
            **_locate(session, int(position[store])),
        )
    certain = placed.position != markers.BY_TIME
    order = np.argsort(placed.position[certain], kind="stable")
    return (
        None
        if current.violations
        else _Ordered(log, log.tables[certain][order], placed.position[certain][order])
    )


def _locate(session: Session, position: int) -> dict[str, int]:
    """Where the access with this index stands in the capture."""
    for _, found in _scan_again(session):
        if position < found.time.size:
            return found.place(position)
        position -= found.time.size
    raise AssertionError("the capture became shorter")


def _scan_again(session: Session) -> Iterator[tuple[int, _Accesses]]:
    """The accesses of a capture that is known to be sound, with the number of their block."""
    now = 0
    for first, words in _words(open_stream(session.bus_path, salvage=True)):
        found, _, now, _ = _decode(words, np.ones(len(words), np.bool_), first, now)
        yield first, found


# Tables and entries -------------------------------------------------------------------------------

_NEVER, _HANDED_OUT, _LINKED = range(3)

_BAD_ACCESS = (
    "a store to a page that holds no table",
    "a read of a page that holds no table",
    "a read of a table that is not linked yet",
)


@jit
def _use(
    address: U64,
    write: npt.NDArray[np.bool_],
    start: Integer,
    stop: Integer,
    base: Integer,
    marker_bytes: Integer,
    line_shift: Integer,
    frame_of_page: npt.NDArray[np.int32],
    state: npt.NDArray[np.uint8],
    counted: npt.NDArray[np.bool_],
    stores: npt.NDArray[np.int32],
    due: npt.NDArray[np.int32],
    wrong: I64,
) -> None:
    """Hold accesses against the state of their page and the stores that are due to their line.

    `wrong`: count and first row of each kind of `_BAD_ACCESS`, then of stores beyond those due.
    """
    for i in range(start, stop):
        offset = address[i] - base
        if offset < marker_bytes:
            continue
        page = np.int64(frame_of_page[np.int64(offset >> np.uint64(12))])
        kind = -1
        if write[i]:
            in_page = np.int64(offset & np.uint64(4095)) >> line_shift
            line = (page << 12 - line_shift) + in_page
            if state[page] == _NEVER:
                kind = 0
            elif counted[page]:
                stores[line] += 1
                if stores[line] > due[line]:
                    kind = 3
        elif state[page] != _LINKED:
            kind = 1 if state[page] == _NEVER else 2
        if kind >= 0:
            if wrong[kind, 0] == 0:
                wrong[kind, 1] = i
            wrong[kind, 0] += 1


def _check_tables(
    session: Session, ordered: _Ordered | None, report: Report, progress: Progress
) -> None:
    """Which tables are read and stored to, and how often."""
    tables = report.begin("tables", "reads of linked tables, stores to tables handed out")
    entries = report.begin("entries", "one store for each event of an entry")
    if ordered is None or any(check.violations for check in report.checks):
        tables.skipped = entries.skipped = "an earlier check failed, or could not be made"
        return
    region, name = session.region, session.channel.file
    base, marker_bytes = np.uint64(region.base), region.marker_slots * region.marker_stride_bytes
    line_shift = session.board.granularity_bytes.bit_length() - 1
    # Which of its entries the kernel stored is logged for tables of PMDs, and if asked for PTEs.
    counted_level = 1 if set(session.kernel.events).issuperset(ENTRY_EVENTS) else 2
    if counted_level == 2:
        entries.about += ", PMD entries only"
    logged = _entry_events(session, ordered, counted_level)
    frame_of_page, frames = _frames(session, ordered, logged)
    offset = (logged["slot_pa"] - base).astype(np.int64)
    lines_shift = PAGE_SHIFT - line_shift
    line = (frame_of_page[offset >> PAGE_SHIFT].astype(np.int64) << lines_shift) + (
        offset % 4096 >> line_shift
    )
    due = np.bincount(line, minlength=frames << lines_shift).astype(np.int32)
    state, counted = np.zeros(frames, np.uint8), np.zeros(frames, np.bool_)
    stores = np.zeros_like(due)
    events, position = ordered.events, ordered.position
    applied = done = 0
    blocks = open_stream(session.bus_path, salvage=True).size_bytes // wire.BLOCK_BYTES
    for first, found in _scan_again(session):
        wrong = np.zeros((len(_BAD_ACCESS) + 1, 2), np.int64)
        start = 0
        end = int(np.searchsorted(position, done + found.time.size))
        for event in range(applied, end + 1):
            stop = max(int(position[event]) - done, 0) if event < end else found.time.size
            _use(found.address, found.write, start, stop, base, np.uint64(marker_bytes),
                 line_shift, frame_of_page, state, counted, stores, due, wrong)  # fmt: skip
            start = stop
            if event < end:
                _apply(events[event], region.base, counted_level, frame_of_page, state, counted)
        applied = end
        for kind in np.argsort(wrong[:, 1], kind="stable").tolist():
            times, row = wrong[kind].tolist()
            if times and kind < len(_BAD_ACCESS):
                report.violated(tables, _BAD_ACCESS[kind], name, times, **found.place(row))
            elif times:
                message = "a store to an entry that no event announced"
                report.violated(entries, message, name, times, **found.place(row))
        done += found.time.size
        progress("checking tables", min(first + SCAN_BLOCKS, blocks), blocks)

    missing = due - np.minimum(stores, due)
    if session.complete and missing.any():
        # Of each line the last events are those that no store is left for.
        newest_first = np.argsort(logged["time"], kind="stable")[::-1]
        rank = _rank(line[newest_first])
        unmet = newest_first[rank < missing[line[newest_first]]]
        event = logged[unmet[-1]]
        report.violated(
            entries,
            f"the entry at {event['slot_pa']:#x} was logged, but never stored",
            session.kernel_path.name,
            int(missing.sum()),
            address=int(event["slot_pa"]),
        )


def _frames(
    session: Session, ordered: _Ordered, logged: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int32], int]:
    """Number the pages of the region that events name, from 1; 0: all others. How many, with 0."""
    base, size_bytes = np.uint64(session.region.base), np.uint64(session.region.size_bytes)
    offset = np.concatenate([ordered.events["pa"], logged["slot_pa"]]) - base
    used = np.unique((offset[offset < size_bytes] >> np.uint64(PAGE_SHIFT)).astype(np.int64))
    frame_of_page = np.zeros(session.region.size_bytes >> PAGE_SHIFT, np.int32)
    frame_of_page[used] = np.arange(1, used.size + 1)
    return frame_of_page, used.size + 1


def _rank(values: I64) -> I64:
    """How many equal elements come before each."""
    order = np.argsort(values, kind="stable")
    ranked = np.empty_like(values)
    sorted_values = values[order]
    ranked[order] = np.arange(values.size) - np.searchsorted(sorted_values, sorted_values)
    return ranked


def _entry_events(session: Session, ordered: _Ordered, level: int) -> npt.NDArray[Any]:
    """Time and `slot_pa` of the recording's events of entries of `level` and above."""
    events = ordered.events[ordered.position >= 0]
    kinds = (kernel_log.TABLE_LINK, kernel_log.LEAF_SET, kernel_log.LEAF_CLEAR)
    found = [events[np.isin(events["kind"], kinds)][["time", "slot_pa"]]]
    if level == 1:
        timed = ordered.log.timed
        timed_kinds = (kernel_log.ENTRY_SET, kernel_log.ENTRY_CLEAR)
        since = events["time"].min() if events.size else 0
        found.append(
            timed[np.isin(timed["kind"], timed_kinds) & (timed["time"] >= since)][
                ["time", "slot_pa"]
            ]
        )
    entries = np.concatenate([part.astype([("time", "<u8"), ("slot_pa", "<u8")]) for part in found])
    offset = entries["slot_pa"] - np.uint64(session.region.base)
    inside: npt.NDArray[Any] = entries[offset < np.uint64(session.region.size_bytes)]
    return inside


def _apply(
    event: npt.NDArray[Any],
    base: int,
    counted_level: int,
    frame_of_page: npt.NDArray[np.int32],
    state: npt.NDArray[np.uint8],
    counted: npt.NDArray[np.bool_],
) -> None:
    """A table freed is still linked: walkers may use it until it is handed out again."""
    offset = int(event["pa"]) - base
    if not 0 <= offset < frame_of_page.size << PAGE_SHIFT:
        return
    page = frame_of_page[offset >> PAGE_SHIFT]
    if event["kind"] in (kernel_log.TABLE_ALLOC, kernel_log.TABLE_LINK):
        state[page] = _HANDED_OUT if event["kind"] == kernel_log.TABLE_ALLOC else _LINKED
        counted[page] = event["level"] >= counted_level


# Counts -------------------------------------------------------------------------------------------


def _check_counts(session: Session, capture: _Capture, report: Report, progress: Progress) -> None:
    """What the results say against each other, the capture and the counters."""
    current = report.begin("counts", "results, summary, capture and counters agree")
    if any(check.violations for check in report.checks[:3]):
        current.skipped = "capture or kernel log is damaged"
        return
    try:
        found = results.load(session.path, progress=progress)
    except PtatError as error:
        report.violated(current, error.message, session.results_path.name)
        return
    summary = found.summary
    report.lost = summary["lost"]
    totals, unexplained = summary["totals"], summary["unexplained"]
    pages = found.pages()
    processes = summary["processes"]
    by_kind = np.zeros(3, np.int64)
    if (found.path / "misses").is_dir():
        by_kind[0] = sum(time.size for time, _ in found.misses())
        for _, _, kind in found.others():
            by_kind += np.bincount(kind, minlength=3)
    else:
        by_kind[:] = totals["misses"], totals["faulted"], totals["pmd_reads"]
    name = f"{session.results_path.name}/summary.json"
    table = f"{session.results_path.name}/pages.parquet"
    files = f"{session.results_path.name}/misses"

    def equal(file: str, what: str, value: int, other: str, expected: int) -> None:
        if value != expected:
            message = f"{what}: {value}, but {other}: {expected}"
            report.violated(current, message, file)

    def column(column: str) -> int:
        return int(pages[column].to_numpy().sum())

    equal(name, "accesses", totals["accesses"], "in the capture", capture.accesses)
    equal(files, "misses in files", int(by_kind[0]), "in the summary", totals["misses"])
    equal(files, "faulted walks in files", int(by_kind[1]), "in the summary", totals["faulted"])
    equal(files, "PMD reads in files", int(by_kind[2]), "in the summary", totals["pmd_reads"])
    equal(table, "misses of all pages", column("misses"), "in the summary", totals["misses"])
    equal(
        table, "faulted walks of all pages", column("faulted"), "in the summary", totals["faulted"]
    )
    for what in ("misses", "faulted"):
        of_processes = sum(process[what] for process in processes)
        equal(name, f"{what} of all processes", of_processes, "in total", totals[what])
    reads = totals["misses"] + totals["faulted"] + totals["pmd_reads"] + unexplained["reads"]
    equal(name, "reads by kind", reads, "in the capture", capture.reads)
    equal(
        name,
        "accesses lost",
        summary["losses"]["accesses"],
        "in the capture",
        capture.lost_accesses,
    )
    if unexplained["reads"] != capture.unexplained:
        report.violated(
            current,
            f"{unexplained['reads']} reads that nothing explains",
            name,
            unexplained["reads"],
        )
    stores = capture.accesses - capture.reads - len(capture.marker_stores)
    equal(name, "stores of entries", totals["stores"], "in the capture", stores)
    _check_counters(session, capture, stores, equal)


def _check_counters(
    session: Session,
    capture: _Capture,
    stores: int,
    equal: Callable[[str, str, int, str, int], None],
) -> None:
    """A model's counters say what touched the region, whether or not it reached the capture."""
    if not session.counters_path.is_file():
        return
    try:
        counters = json.loads(session.counters_path.read_bytes())
        region = counters.get("region")
        if region is None:
            return
        reads = region["walker_leaf_reads"] + region["walker_pmd_reads"] + region["cpu_loads"]
        lost = counters["model"]["bus_lost"]
        counted = reads + region["cpu_entry_stores"] + region["cpu_marker_stores"]
        loads = region["cpu_loads"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{session.counters_path}: damaged: {error}", "restore the file") from None
    name = session.counters_path.name
    equal(name, "loads of the region by the kernel", loads, "allowed", 0)
    equal(name, "accesses", counted - lost, "in the capture", capture.accesses)
    if not lost:
        equal(name, "reads", reads, "in the capture", capture.reads)
        equal(name, "stores of entries", region["cpu_entry_stores"], "in the capture", stores)
