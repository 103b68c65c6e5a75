# SPDX-License-Identifier: BSD-2-Clause
"""Parses a session into ``results/``.

`parse` writes the results; `load` opens them, and parses the session first if needed::

    results = ptat_parser.parse(directory)
    for time_ns, page in results.misses():
        ...
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from ptat_parser import wire
from ptat_parser.capture.merge import Reader, open_bus
from ptat_parser.capture.reader import BusReader
from ptat_parser.compiled import first_use
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.formats import storage
from ptat_parser.formats.session import Session
from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel.tracepoints import ENTRY_EVENTS, FAULT_EVENTS
from ptat_parser.order import clock, markers, program_order
from ptat_parser.order.clock import Clock
from ptat_parser.order.entry_pairs import EntryPairs
from ptat_parser.order.first_pass import Progress, no_progress, scan_capture
from ptat_parser.replay import segments
from ptat_parser.replay import workers as replay_workers
from ptat_parser.replay.cluster import on_cluster
from ptat_parser.replay.replayer import Order, Replayer
from ptat_parser.replay.state import Segment
from ptat_parser.results import gaps, trap_pipeline
from ptat_parser.results.pages import pages_of, write_pages
from ptat_parser.results.reader import Results
from ptat_parser.results.summary import FORMAT, VERSION, summary_of
from ptat_parser.results.writer import MakeSegmentFiles

ORDERED_FILE = "program-order.raw"
WAITING = "waiting for another parse of this session"


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

    Waits if another process is parsing the same session.

    :param salvage: skip damaged blocks of the capture.
    :param counts_only: write only ``pages.parquet`` and ``summary.json``, not single misses.
    :param workers: number of processes; the results do not depend on it.
    :param address: Dask scheduler whose workers parse the session instead.
    :raises PtatError: the input is missing or damaged, or the disk is full.
    """
    session = Session(directory)
    try:
        with (
            storage.replacing(session.results_path, lambda: progress(WAITING, 0, 1)) as unfinished,
            first_use.shown(progress),
        ):
            if storage.is_remote(session.path):
                workers = 1  # connections cannot be forked
            executor = on_cluster(address) if address else replay_workers.in_processes(workers)
            summary = _parse_into(unfinished, session, salvage, counts_only, executor, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise PtatError(
                f"{session.results_path}: cannot be written: {error.strerror}",
                "make room, or copy the session elsewhere",
            ) from error
        raise
    return Results(session, summary)


def load(directory: Path, *, progress: Progress = no_progress) -> Results:
    """The results of a session; parses it if there are none.

    Results that are older than the recording or of another version of the parser are replaced.
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
    executor: replay_workers.Executor,
    progress: Progress,
) -> dict[str, Any]:
    session.check_files()
    if session.traps:
        return trap_pipeline.parse_into(directory, session, progress, counts_only=counts_only)
    channel = session.channel
    reader = open_bus(session, salvage=salvage, tail_may_be_cut=not session.ended)
    log = kernel_log.read_kernel_log(session.kernel_path)
    # Stores placed at their events' times say nothing about the clocks.
    entry_stores = None
    behind = None
    if program_order.is_needed(session):
        reader, behind = _ordered(directory, session, reader, log)
    else:
        entry_stores = EntryPairs(session, log)
    found = scan_capture(reader, session.region, progress, entry_stores)
    for mark, there in (("START", found.started), ("STOP", found.stopped)):
        if session.ended and not there:
            if not salvage:
                raise BadInput(
                    f"{reader.path}: truncated: the capture's {mark} mark is missing",
                    "use --salvage to parse what is there, or record again",
                )
            found.losses.blocks = max(found.losses.blocks, 1)
    clocks = clock.NominalClocks.of(session)
    placement = markers.place(log.tables, found.stores, session.region.marker_slots, clocks)
    pairs = clock.Pairs(
        found.stores.time_ticks[placement.store], log.tables["time"][placement.event]
    )
    if entry_stores:
        fitted = _fit(session, pairs, entry_stores.pairs(_fit(session, pairs)))
    else:
        fitted = _fit(session, pairs, clock.Pairs(*markers.before_next(log.tables, placement)))
    lost_from = gaps.first_lost_event(log, placement)
    events = set(session.kernel.events)
    faults = events.issuperset(FAULT_EVENTS)
    # Entry events may narrow the candidates of a miss only if none of them is missing.
    entries = events.issuperset(ENTRY_EVENTS) and not log.lost_events

    order = Order(
        log,
        placement,
        fitted,
        found.chunks,
        started=found.started,
        stopped=found.stopped,
        losses=() if lost_from is None else (int(found.stores.position[lost_from]),),
    )
    replayer = Replayer(session, order, faults=faults, entries=entries)
    cut = segments.plan(reader, found, replayer.from_fault_ticks, channel.tick_hz)
    make_output: segments.MakeOutput = _make_nothing
    if not counts_only:
        for name in ("misses", "other"):
            (directory / name).mkdir()
        passing = reader.blocks * wire.BLOCK_BYTES > _STAYS_BYTES
        make_output = MakeSegmentFiles(directory, fitted, passing)
    work = replay_workers.Work(replayer, reader, cut, make_output)
    done = replay_workers.run(executor, work, progress)
    pages = pages_of(done, fitted, session.board.granularity_bytes // 8)
    write_pages(pages, [mm.comm for mm in done.rpt.mms], directory / "pages.parquet")
    summary = summary_of(session, found, log, placement, fitted, done, pages, faults)
    if behind:
        (directory / ORDERED_FILE).unlink()
    if behind and not session.board.contract.is_program_order:
        summary["controller"] = behind.summary(summary["totals"]["misses"], summary["lost"])
        summary["warnings"] += behind.warnings
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _ordered(
    directory: Path, session: Session, reader: Reader, log: kernel_log.KernelLog
) -> tuple[Reader, program_order.Found]:
    """The capture, rebuilt in program order."""
    path = directory / ORDERED_FILE
    with path.open("wb") as file:
        found = program_order.in_program_order(session, reader, log, file)
    return BusReader(path), found


def _make_nothing(_: Segment) -> None:
    """No output: only counts are wanted."""


def _fit(session: Session, pairs: clock.Pairs, entries: clock.Pairs = clock.NO_PAIRS) -> Clock:
    """Fit the clock of a recording; `ParseError` if markers and events do not match."""
    clocks = clock.NominalClocks.of(session)
    found = clock.fit(pairs, clocks, entries)
    if not 0 <= found.origin_cycles < 1 << 64 or found.cycles_per_tick <= 0:
        problem = "the capture's first marker was stored before the kernel's clock began"
    elif found.residual_ns > clocks.delay_max_ns:
        problem = f"markers and their events are {found.residual_ns / 1e6:.1f} ms apart"
    else:
        return found
    raise BadInput(
        f"{session.path}: capture and kernel log are not of one recording: {problem}",
        "restore the files, or record again",
    )


_STAYS_BYTES = 2 << 30
"""Largest capture whose misses, about half its size, stay in the page cache."""
