# SPDX-License-Identifier: BSD-2-Clause
"""Parses a session into ``results/`` and reads it back.

`parse` writes them, `load` opens them; a `Results` yields its misses in batches::

    results = ptat_parser.parse(directory)
    for time_ns, page in results.misses():
        ...
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ptat_parser import (
    clock,
    cluster,
    gaps,
    kernel_log,
    markers,
    outline,
    quick,
    replay_data,
    spans,
    storage,
    wire,
)
from ptat_parser.anchors import EntryStores
from ptat_parser.blocks import BusReader
from ptat_parser.clock import Clock
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.events import ENTRY_EVENTS, FAULT_EVENTS
from ptat_parser.forked import can_fork
from ptat_parser.jit import Integer, inlined, jit
from ptat_parser.kernel_log import KernelLog
from ptat_parser.merge import open_bus
from ptat_parser.parquet import Column, Text, Writer
from ptat_parser.replay import Replayer
from ptat_parser.replay_data import Records, Span
from ptat_parser.rpt import ENTRIES, ENTRY_SHIFT, Mm
from ptat_parser.session import Session
from ptat_parser.spans import Replay
from ptat_parser.survey import Progress, Survey, no_progress, survey

if TYPE_CHECKING:  # parsing does without, and starts the sooner
    import pyarrow as pa

I64 = npt.NDArray[np.int64]

FORMAT = "ptat-results"
VERSION = 5

_NO_ROW = np.iinfo(np.uint32).max
_BLOCK_BITS = np.uint32(9)
_IN_BLOCK = np.uint32((1 << 9) - 1)

WAITING = "waiting for who parses it already"

KIND_FAULT = quick.FAULT
KIND_PMD_READ = quick.PMD_READ


@dataclass(frozen=True)
class Results:
    """What a session was parsed into. `summary` is ``summary.json``."""

    session: Session
    summary: dict[str, Any]

    @property
    def path(self) -> Path:
        """The directory that holds the results."""
        return self.session.results_path

    def pages(self) -> pa.Table:
        """``pages.parquet``: one row for each page; `page` is the row's index."""
        stored = self._stored_pages(None)
        row = np.arange(len(stored), dtype=np.uint32)
        return stored.set_column(stored.schema.get_field_index("page"), "page", [row])

    def misses(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
        """Misses in bus order, in batches: time (ns of kernel time) and page: its row."""
        for batch in self._batches("misses"):
            yield batch["time"].to_numpy(), self.row_of(batch["page"].to_numpy())

    def others(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.uint8]]]:
        """Walks that faulted and reads of non-leaf entries: time, page, kind."""
        for batch in self._batches("other"):
            page = self.row_of(batch["page"].to_numpy())
            yield batch["time"].to_numpy(), page, batch["kind"].to_numpy()

    @cached_property
    def page_numbers(self) -> npt.NDArray[np.uint32]:
        """The number, in the files of reads, of each row's page; ascending."""
        numbers: npt.NDArray[np.uint32] = self._stored_pages(["page"])["page"].to_numpy()
        return numbers

    def row_of(self, number: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """The rows of pages, given their numbers in the files."""
        starts, row_at = self._rows_by_block
        rows = row_at[starts.take(number >> _BLOCK_BITS, mode="clip") + (number & _IN_BLOCK)]
        if rows.max(initial=0) == _NO_ROW:
            raise BadInput(
                f"{self.path}: pages.parquet does not know a page of the reads",
                "the results are damaged: run ptat parse again",
            )
        return rows

    @cached_property
    def _rows_by_block(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Where each block of numbers begins in the second array, and the rows of the numbers.

        Numbers have gaps, so blocks without pages all lead to one.
        """
        numbers = self.page_numbers
        block = numbers >> _BLOCK_BITS
        used = np.unique(block)
        starts = np.zeros(int(block.max(initial=0)) + 2, np.uint32)
        starts[used] = np.arange(1, used.size + 1) << _BLOCK_BITS
        row_at = np.full((used.size + 1) << _BLOCK_BITS, _NO_ROW, np.uint32)
        row_at[starts[block] + (numbers & _IN_BLOCK)] = np.arange(numbers.size)
        return starts, row_at

    def _stored_pages(self, columns: list[str] | None) -> pa.Table:
        import pyarrow.parquet as pq

        with storage.opened(self.path / "pages.parquet") as file:
            return pq.read_table(file, columns=columns)

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        directory = self.path / name
        if not directory.is_dir():
            raise BadInput(
                f"{directory}: missing: the session was parsed for counts only",
                "run ptat parse again without --counts-only",
            )
        for part in storage.parts(directory):
            with storage.opened(part) as stored, pq.ParquetFile(stored) as file:
                yield from file.iter_batches(batch_size=1 << 20)


def parse(
    directory: Path,
    *,
    salvage: bool = False,
    counts_only: bool = False,
    workers: int = 1,
    address: str | None = None,
    progress: Progress = no_progress,
) -> Results:
    """Parse a session and write its ``results/``, replacing older ones.

    `salvage` leaves damaged blocks of the capture out; `counts_only` writes no single misses,
    only ``pages.parquet`` and ``summary.json``. `workers` processes, or the workers of the Dask
    cluster whose scheduler is at `address`, share the work, which makes no difference to what is
    written. Who parses the session already is waited for. Raises `PtatError` where the input is
    missing or damaged, or the disk full.
    """
    session = Session(directory)
    try:
        with (
            storage.replacing(session.results_path, lambda: progress(WAITING, 0, 1)) as unfinished,
            contextlib.ExitStack() as threads,
        ):
            summary = _parse_into(
                unfinished, session, salvage, counts_only, workers, address, progress, threads
            )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise PtatError(
                f"{session.results_path}: cannot be written: {error.strerror}",
                "make room, or copy the session elsewhere",
            ) from error
        raise
    return Results(session, summary)


def load(directory: Path, *, progress: Progress = no_progress) -> Results:
    """The results of a session, parsing it if that has not been done yet.

    Results of another version of the parser, or older than the recording, are made again.
    """
    session = Session(directory)
    path = session.results_path / "summary.json"
    try:
        summary = json.loads(path.read_bytes())
        current = (
            summary["format"] == FORMAT
            and summary["version"] == VERSION
            and (
                storage.is_remote(path)
                or path.stat().st_mtime_ns >= (directory / "session.json").stat().st_mtime_ns
            )
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        current = False
    return Results(session, summary) if current else parse(directory, progress=progress)


def _parse_into(
    directory: Path,
    session: Session,
    salvage: bool,
    counts_only: bool,
    workers: int,
    address: str | None,
    progress: Progress,
    threads: contextlib.ExitStack,
) -> dict[str, Any]:
    session.check_files()
    channel = session.channel
    reader = open_bus(session, salvage=salvage, tail_may_be_cut=not session.complete)
    if workers > 1 and isinstance(reader, BusReader) and not can_fork(reader.path):
        reader.ahead = threads.enter_context(ThreadPoolExecutor(1))
    if isinstance(reader, BusReader) and session.complete and not salvage and not address:
        outline.use(reader, session.region)
    log = kernel_log.read_kernel_log(session.kernel_path)
    entry_stores = EntryStores(session, log)
    found = survey(reader, session.region, progress, entry_stores)
    for mark, there in (("START", found.started), ("STOP", found.stopped)):
        if session.complete and not there:
            if not salvage:
                raise BadInput(
                    f"{reader.path}: truncated: the capture's {mark} mark is missing",
                    "use --salvage to parse what is there, or record again",
                )
            found.losses.blocks = max(found.losses.blocks, 1)
    nominal = session.kernel.tsc_hz / channel.tick_hz
    placement = markers.place(log.tables, found.stores, session.region.marker_slots, nominal)
    pairs = clock.Pairs(
        found.stores.time_ticks[placement.store], log.tables["time"][placement.event]
    )
    fitted = _fit(session, pairs, entry_stores.pairs(_fit(session, pairs)))
    lost_from = gaps.first_lost_event(log, found.stores, placement)
    events = set(session.kernel.events)
    faults = events.issuperset(FAULT_EVENTS)
    # Narrowing by entries that are mapped is only right if none of their events is missing.
    entries = events.issuperset(ENTRY_EVENTS) and not log.lost_events

    replayer = Replayer(
        session,
        log,
        placement,
        fitted,
        found.chunks,
        faults=faults,
        entries=entries,
        started=found.started,
        stopped=found.stopped,
        losses=() if lost_from is None else (int(found.stores.position[lost_from]),),
    )
    cut = spans.plan(reader, found, replayer.from_fault_ticks, channel.tick_hz)
    in_turn = not address and (workers == 1 or len(cut) == 1 or not can_fork(reader.path))
    if isinstance(reader, BusReader) and not in_turn:
        reader.ahead = None
    make_output: spans.MakeOutput = _make_nothing
    if not counts_only:
        for name in ("misses", "other"):
            (directory / name).mkdir()
        behind = threads.enter_context(ThreadPoolExecutor(1)) if in_turn and workers > 1 else None
        passing = reader.blocks * wire.BLOCK_BYTES > _STAYS_BYTES
        make_output = _MakeOutput(directory, fitted, passing, behind)
    if address:
        done = cluster.replay_on_cluster(address, replayer, reader, cut, make_output, progress)
    elif in_turn:
        done = spans.replay_here(replayer, reader, cut, make_output, progress)
    else:
        done = spans.replay_in_processes(workers, replayer, reader, cut, make_output, progress)
    pages = _pages(done, fitted, session.board.granularity_bytes // 8)
    _write_pages(pages, done.rpt.mms, directory / "pages.parquet")
    summary = _summary(session, found, log, placement, fitted, done, pages, faults)
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _make_nothing(_: Span) -> None:
    """Counts need no output."""


def _fit(session: Session, pairs: clock.Pairs, entries: clock.Pairs = clock.NO_PAIRS) -> Clock:
    """The clock of a recording, which markers and their events may refute."""
    found = clock.fit(*pairs, session.channel.tick_hz, session.kernel.tsc_hz, entries)
    if not 0 <= found.origin_cycles < 1 << 64 or found.cycles_per_tick <= 0:
        problem = "the capture's first marker was stored before the kernel's clock began"
    elif found.residual_ns > clock.DELAY_MAX_NS:
        problem = f"markers and their events are {found.residual_ns / 1e6:.1f} ms apart"
    else:
        return found
    raise BadInput(
        f"{session.path}: capture and kernel log are not of one recording: {problem}",
        "restore the files, or record again",
    )


@inlined
def _to_ns(
    ticks: Integer, origin_ticks: Integer, origin_ns: Integer, ns_per_tick: float
) -> Integer:
    """`Clock.to_ns` of one time."""
    return np.int64(np.int64(ticks - origin_ticks) * ns_per_tick) + origin_ns


@jit
def _share_out(
    time: npt.NDArray[np.uint64],
    number: npt.NDArray[np.uint32],
    kind: npt.NDArray[np.uint8],
    start: Integer,
    end: Integer,
    origin_ticks: Integer,
    origin_ns: Integer,
    ns_per_tick: float,
    time_ns: npt.NDArray[np.int64],
    page: npt.NDArray[np.uint32],
    other_time_ns: npt.NDArray[np.int64],
    other_page: npt.NDArray[np.uint32],
    other_kind: npt.NDArray[np.uint8],
) -> tuple[Integer, Integer]:
    """Fill arrays with the misses among the records ``start … end``, and with the others.

    Returns how many there are of each when all are done, or one kind's arrays are full.
    """
    at_once = min(end - start, time_ns.size)
    others: Integer = 0
    for at in range(start, start + at_once):
        others += kind[at] != quick.MISS
    if not others:
        for at in range(at_once):  # many at a time
            time_ns[at] = _to_ns(time[start + at], origin_ticks, origin_ns, ns_per_tick)
        page[:at_once] = number[start : start + at_once]
        return at_once, 0
    # Unsigned indices take no check of their sign.
    i, stop = np.uint64(start), np.uint64(start)
    n, n_others, one = np.uint64(0), np.uint64(0), np.uint64(1)
    room, room_for_others = np.uint64(time_ns.size), np.uint64(other_time_ns.size)
    while i < np.uint64(end) and n < room and n_others < room_for_others:
        stop = i + min(np.uint64(end) - i, min(room - n, room_for_others - n_others))
        while i < stop:
            # To both, as branches that nobody can tell are slow.
            ns = _to_ns(time[i], origin_ticks, origin_ns, ns_per_tick)
            time_ns[n], page[n] = ns, number[i]
            other_time_ns[n_others], other_page[n_others] = ns, number[i]
            other_kind[n_others] = kind[i]
            is_miss = np.uint64(kind[i] == quick.MISS)
            n += is_miss
            n_others += one - is_miss
            i += one
    return np.int64(n), np.int64(n_others)


_ROOM = 4
"""Chunks that records have room for: with more, memory is farther from the core, and another that
writes has more left at the end.
"""

_STAYS_BYTES = 2 << 30
"""The misses of a capture up to this size, which take about half of it, stay in the page cache."""

_MISSES = [Column("time", np.int64), Column("page", np.uint32)]
_OTHERS = [*_MISSES, Column("kind", np.uint8)]


@dataclass(frozen=True)
class _MakeOutput:
    """Makes the files of a span in `directory`."""

    directory: Path
    fitted: Clock
    passing: bool
    """There is too much of it for the page cache."""
    behind: Executor | None = None
    """Writes settled reads while the replay goes on; one thread, for the files have an order."""
    free: list[Records] = field(default_factory=list)

    def __call__(self, span: Span) -> _Output:
        return _Output(self, span.number, self.records(0, 0))

    def records(self, least: int, rows: int) -> Records:
        """Records for `least` rows, used before, or new ones for `rows`."""
        # Memory that was used before is there already.
        with contextlib.suppress(IndexError):
            while True:
                records = self.free.pop()
                if records.kind.size >= least:
                    return records
        return _new_records(rows)


def _new_records(rows: int) -> Records:
    return Records(np.empty(rows, np.uint64), np.empty(rows, np.uint32), np.empty(rows, np.uint8))


class _Output:
    """The reads of a span, held in `records` and written as Parquet."""

    def __init__(self, made_by: _MakeOutput, number: int, records: Records) -> None:
        self.records = records
        self._made_by = made_by
        self._number = number
        self._files: list[Writer] = []
        self._open: contextlib.ExitStack | None = None
        self._writing: Future[Records] | None = None

    def __enter__(self) -> _Output:
        self._open = contextlib.ExitStack()
        for name, columns in (("misses", _MISSES), ("other", _OTHERS)):
            path = self._made_by.directory / name / f"part-{self._number:05}.parquet"
            opened = storage.open_passing(path) if self._made_by.passing else path.open("wb")
            stored = self._open.enter_context(opened)
            self._files.append(self._open.enter_context(Writer(stored, columns)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._open
        if self._writing:
            self._writing.exception()  # is done then
        self._open.__exit__(kind, error, traceback)
        self._made_by.free.append(self.records)

    def make_room(self, used: int, settled: int, wanted: int) -> Records:
        """Write the first `settled` rows and move the others, up to `used`, to the front."""
        left, old = used - settled, self.records
        self._hand_on(settled)
        if self._writing or left + wanted > old.kind.size:
            self.records = self._made_by.records(left + wanted, left + _ROOM * wanted)
        for name in Records._fields:
            getattr(self.records, name)[:left] = getattr(old, name)[settled:used]
        return self.records

    def write(self, rows: int) -> None:
        """Write the first so many rows, which are the last of the span."""
        self._hand_on(rows)
        self._wait()

    def _hand_on(self, rows: int) -> None:
        """Have the first `rows` written: at once, or behind, where they are used until then."""
        self._wait()
        if behind := self._made_by.behind:
            self._writing = behind.submit(self._write, self.records, rows)
        else:
            self._write(self.records, rows)

    def _wait(self) -> None:
        if self._writing:
            written, self._writing = self._writing.result(), None
            if written is not self.records:
                self._made_by.free.append(written)

    def _write(self, records: Records, rows: int) -> Records:
        fitted = self._made_by.fitted
        misses, others = self._files
        done = 0
        while done < rows:
            found, left = _share_out(
                records.time, records.page, records.kind, done, rows,
                np.uint64(fitted.origin_ticks), fitted.origin_ns, fitted.ns_per_tick,
                *misses.room(), *others.room(),
            )  # fmt: skip
            misses.filled(found)
            others.filled(left)
            done += found + left
        return records


_PAGES = {
    "page": np.uint32,
    "mm": np.uint64,
    "tgid": np.int32,
    "comm": str,
    "vaddr": np.uint64,
    "page_size_bytes": np.int64,
    "span": np.uint8,
    "misses": np.int64,
    "faulted": np.int64,
    "stores": np.int64,
    "first_ns": np.int64,
    "last_ns": np.int64,
}
"""Columns of ``pages.parquet``."""

Pages = dict[str, npt.NDArray[Any]]
"""Those columns; `comm` is the index of the address space."""


def _pages(done: Replay, fitted: Clock, line: int) -> Pages:
    rpt, columns = done.rpt, done.pages
    size = columns.shape[1]
    number, mm = np.empty(size, np.uint32), np.empty(size, np.uint32)
    vaddr, span = np.empty(size, np.uint64), np.empty(size, np.uint8)
    page_size_bytes = np.empty(size, np.int64)
    _place_pages(
        columns[quick.P_PAGE],
        line,
        np.array([r.mm for r in rpt.ranges], np.uint32),
        np.array([r.base for r in rpt.ranges], np.uint64),
        np.array([ENTRY_SHIFT[r.level] for r in rpt.ranges], np.uint64),
        number, mm, vaddr, page_size_bytes, span,
    )  # fmt: skip
    return {
        "page": number,
        "mm": _of_mm(rpt.mms, "id", np.uint64)[mm],
        "tgid": _of_mm(rpt.mms, "tgid", np.int32)[mm],
        "comm": mm,
        "vaddr": vaddr,
        "page_size_bytes": page_size_bytes,
        "span": span,
        "misses": columns[quick.P_MISSES],
        "faulted": columns[quick.P_FAULTED],
        "stores": columns[quick.P_STORES],
        "first_ns": fitted.to_ns(columns[quick.P_FIRST].astype(np.uint64)),
        "last_ns": fitted.to_ns(columns[quick.P_LAST].astype(np.uint64)),
    }


@jit
def _place_pages(
    numbers: I64,
    line: Integer,
    mm_of_range: npt.NDArray[np.uint32],
    base_of_range: npt.NDArray[np.uint64],
    shift_of_range: npt.NDArray[np.uint64],
    number: npt.NDArray[np.uint32],
    mm: npt.NDArray[np.uint32],
    vaddr: npt.NDArray[np.uint64],
    size_bytes: I64,
    span: npt.NDArray[np.uint8],
) -> None:
    """Fill the columns that follow from pages' numbers: see `quick.page_number`."""
    for i in range(numbers.size):
        entry, more = divmod(numbers[i], line)
        range_ = entry // ENTRIES
        number[i] = numbers[i]
        mm[i] = mm_of_range[range_]
        shift = shift_of_range[range_]
        vaddr[i] = base_of_range[range_] + (np.uint64(entry % ENTRIES) << shift)
        size_bytes[i] = np.int64(1) << np.int64(shift)
        span[i] = more + 1


def _write_pages(pages: Pages, mms: list[Mm], path: Path) -> None:
    comms = [mm.comm for mm in mms] or [""]
    columns = [
        Text(name, comms) if dtype is str else Column(name, dtype) for name, dtype in _PAGES.items()
    ]
    with path.open("wb") as file, Writer(file, columns) as writer:
        writer.write(*pages.values())


def _of_mm(mms: list[Mm], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.array([getattr(mm, name) for mm in mms] or [0], dtype)


def _summary(
    session: Session,
    found: Survey,
    log: KernelLog,
    placement: markers.Placement,
    fitted: Clock,
    done: Replay,
    pages: Pages,
    faults: bool,
) -> dict[str, Any]:
    count = done.counters
    misses = int(done.pages[quick.P_MISSES].sum())
    faulted = int(done.pages[quick.P_FAULTED].sum())
    losses = {
        "accesses": found.losses.accesses,
        "blocks": found.losses.blocks,
        "kernel_events": log.lost_events,
        "kernel_seqs": log.lost_seqs,
        "markers": placement.lost_markers,
        "markers_without_event": placement.stores_without_event,
        "link_errors": found.link_errors,
        "decode_errors": found.decode_errors,
    }
    # A lost block held at most that many accesses.
    lost = sum(losses.values()) + found.losses.blocks * (wire.BLOCK_RECORDS_MAX - 1)
    return {
        "format": FORMAT,
        "version": VERSION,
        "complete": session.complete and found.sampled_one_in == 1,
        "incomplete_reason": _incomplete_reason(session, found),
        "sampled_one_in": found.sampled_one_in,
        "granularity_bytes": session.board.granularity_bytes,
        "levels": session.region.levels,
        "totals": {
            "misses": misses,
            "faulted": faulted,
            "pmd_reads": int(count[replay_data.N_OUTPUT]) - misses - faulted,
            "stores": int(count[replay_data.STORES]),
            "readbacks": int(count[replay_data.READBACKS]),
            "accesses": found.accesses,
            "pages": int(np.count_nonzero(done.pages[quick.P_MISSES])),
        },
        "misses_by_span": _misses_by_span(pages),
        "processes": _processes(done, pages, fitted),
        "lost": lost,
        "losses": losses,
        "gaps": [asdict(gap) for gap in gaps.find(found, log, placement, fitted, done.doubts)],
        "clock": fitted.summary(),
        "faults": {
            "recorded": faults,
            "events": log.timed.faults,
            "of_empty_entries": int(count[replay_data.FAULTS_EMPTY]),
            "of_other_entries": int(count[replay_data.FAULTS_MATCHED]),
            "without_leaf_entry": int(count[replay_data.FAULTS_NO_LEAF]),
            "unmatched": int(count[replay_data.FAULTS_UNMATCHED]),
            "in_doubt": int(count[replay_data.FAULTS_LATE]) if session.kernel.cpus > 1 else 0,
            "without_event": faulted
            - int(count[replay_data.FAULTS_EMPTY] + count[replay_data.FAULTS_MATCHED])
            if faults
            else 0,
        },
        "unexplained": {
            "reads": int(count[replay_data.UNEXPLAINED]),
            "stores": int(count[replay_data.STORES_UNOWNED]),
            "events": done.rpt.inconsistent,
            "examples": [
                {
                    "time_ns": int(fitted.to_ns(np.array([ticks], np.uint64))[0]),
                    "address": address,
                    "reason": reason,
                }
                for ticks, address, reason in done.unexplained
            ],
        },
        "walks": {
            "whole": int(count[replay_data.WALKS_WHOLE]),
            "broken": int(count[replay_data.WALKS_BROKEN]),
            "ambiguous": int(count[replay_data.AMBIGUOUS]),
        },
        "user_markers": [
            {"cookie": cookie, "time_ns": _ns(fitted, ticks)}
            for cookie, ticks in done.rpt.user_markers
        ],
        "warnings": _warnings(session, found, faults, fitted),
    }


@jit
def _count_spans(span: npt.NDArray[np.uint8], misses: I64, found: I64) -> None:
    for i in range(span.size):
        found[span[i]] += misses[i]


def _misses_by_span(pages: Pages) -> dict[str, int]:
    """How many misses are of one known page, of one of 2, of up to 4 and of up to 8."""
    spans = np.zeros(9, np.int64)
    _count_spans(pages["span"], pages["misses"], spans)
    return {
        str(most): int(spans[least : most + 1].sum())
        for least, most in ((1, 1), (2, 2), (3, 4), (5, 8))
    }


def _ns(fitted: Clock, ticks: int | None) -> int | None:
    return None if ticks is None else int(fitted.to_ns(np.array([ticks], np.uint64))[0])


def _incomplete_reason(session: Session, found: Survey) -> str | None:
    if found.sampled_one_in > 1:
        sampled = f"1 in {found.sampled_one_in} accesses sampled"
        return f"{session.incomplete_reason}; {sampled}" if not session.complete else sampled
    return session.incomplete_reason


def _warnings(session: Session, found: Survey, faults: bool, fitted: Clock) -> list[str]:
    warnings = []
    reason = _incomplete_reason(session, found)
    if reason:
        warnings.append(f"the recording is incomplete: {reason}")
    if not faults:
        warnings.append(
            "page faults were not recorded: some walks that ended in a fault count as misses"
        )
    if fitted.miscalibrated:
        warnings.append(
            f"the kernel took its clock for {session.kernel.tsc_hz / 1e6:.0f} MHz; by the board's"
            f" it is {fitted.cycles_hz / 1e6:.0f} MHz, which times are given in"
        )
    return warnings


_SMALL_BYTES = 1 << ENTRY_SHIFT[1]


@jit
def _count_pages(
    mm: npt.NDArray[np.uint32], size_bytes: I64, misses: I64, faulted: I64, found: I64
) -> None:
    """Count by address space: walks that faulted, pages that missed, misses of each page size."""
    for i in range(mm.size):
        of = found[mm[i]]
        of[0] += faulted[i]
        of[1] += misses[i] > 0
        of[2 if size_bytes[i] == _SMALL_BYTES else 3] += misses[i]


def _processes(done: Replay, pages: Pages, fitted: Clock) -> list[dict[str, Any]]:
    """One entry for each address space that was attached, in order of attachment."""
    mms = done.rpt.mms
    found = np.zeros((len(mms), 2 + len(ENTRY_SHIFT)), np.int64)
    _count_pages(pages["comm"], pages["page_size_bytes"], pages["misses"], pages["faulted"], found)

    rows = []
    for i, mm in enumerate(mms):
        faulted, missed, *of_size = found[i].tolist()
        misses = sum(of_size)
        if mm.attached_ticks is None and not misses and not mm.tables:
            continue
        table_bytes = ENTRIES << ENTRY_SHIFT[1]
        rows.append(
            {
                "mm": mm.id,
                "tgid": mm.tgid,
                "comm": mm.comm,
                "why": {0: "on", 1: "fork", 2: "exec"}.get(mm.why),
                "pgd": mm.pgd,
                "attached_ns": _ns(fitted, mm.attached_ticks),
                "exited_ns": _ns(fitted, mm.exited_ticks),
                "first_ticks": mm.first_ticks,
                "attached_ticks": mm.attached_ticks,
                "exited_ticks": mm.exited_ticks,
                "misses": misses,
                "faulted": faulted,
                "pages": missed,
                "misses_by_page_size": {
                    str(1 << shift): count
                    for shift, count in zip(ENTRY_SHIFT.values(), of_size, strict=True)
                    if count
                },
                "traced_bytes": sum(level == 1 for level, _ in mm.traced) * table_bytes,
                "untraced_bytes": sum(level == 1 for level, _ in mm.untraced) * table_bytes,
                "untraced_tables": mm.untraced_tables,
            }
        )
    return rows
