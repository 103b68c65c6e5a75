# SPDX-License-Identifier: BSD-2-Clause
"""Checks the invariants of a session and names the first place that violates one.

`ptat_parser.checks.capture` reads the capture and `ptat_parser.checks.tables` compares it with the
log. They share nothing with the decoder, the merging of channels and the replay, so that a bug
there shows as a contradiction. The invariants, in this order:

* capture: every block's magic number, version, channel, CRC, check word and padding; block numbers
  without gaps; records that exist; START and STOP; time that never runs backwards
* index: agrees with the capture
* accesses: inside the region; the marker area is only stored to
* kernel log: readable, whole pages, one event for each sequence number
* markers: one store per event and one event per store, in the order of all channels
* tables: only allocated tables are stored to, only linked tables are read
* entries: as many stores to a line as events for it (PMD entries always; PTEs if recorded)
* counts: results and summary agree with each other, with the capture and with the counters, and
  results are sorted by time

Behind a memory controller the order on the bus is not that of the CPUs, so markers, tables and
entries are left out. There:

* counts: each read and each WR is accounted for once: walk, marker, underfill, scrub
* bound: the misses found are inside the bound that the results state

A trap-mode session has no capture: `ptat_parser.checks.traps` checks it.

Counted losses are not violations. Checks that a loss makes impossible are skipped, and say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptat_parser.capture.reader import BusReader
from ptat_parser.checks import traps
from ptat_parser.checks.capture import Capture, check_channel, locate, merged
from ptat_parser.checks.report import Check, Report
from ptat_parser.checks.rows import rows_by_kind
from ptat_parser.checks.tables import Ordered, check_tables
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.formats.session import Session
from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order import clock, markers, program_order
from ptat_parser.order.first_pass import Progress, no_progress
from ptat_parser.results import pipeline
from ptat_parser.results.reader import Results

__all__ = ["Report", "check"]

Equal = Callable[[str, str, int, str, int], None]
"""Holds a count (file, what, value) against another (where, value)."""


def check(directory: Path, *, progress: Progress = no_progress) -> Report:
    """Check a session; parses it if there are no results.

    :raises SessionError: there is no readable session.
    """
    session = Session(directory)
    report = Report()
    if session.traps:
        traps.check_records(session, report)
        traps.check_against_log(session, _check_log(session, report), report, progress)
        traps.check_counts(session, report, progress)
        return report
    structure = report.begin("capture", "blocks, records and time of the capture")
    marked = "stored to" if session.region.markers == "store" else "loaded"
    accesses = report.begin("accesses", f"inside the region, markers only {marked}")
    capture = Capture()
    for channel in session.board.channels:
        check_channel(session, channel, capture, report, structure, accesses, progress)
    report.accesses = capture.accesses
    _check_index(session, report)
    log = _check_log(session, report)
    if program_order.is_needed(session):
        # The bus is not in program order, so these invariants do not apply.
        order = report.begin("order", "markers, tables and entries on the bus")
        order.skipped = "the bus is behind a memory controller, or loads mark"
        _check_counts(session, capture, report, progress)
        return report
    ordered = _check_markers(session, capture, log, report)
    check_tables(session, ordered, capture.accesses, report, progress)
    _check_counts(session, capture, report, progress)
    return report


def _check_index(session: Session, report: Report) -> None:
    if len(session.board.channels) > 1 or report.checks[0].violations or not session.ended:
        return
    about = "matches the capture"
    try:
        reader = BusReader(session.bus_path, session.channel.in_blocks)
        if not reader.index:
            return
        again = reader.without_index()
        for _ in again.contents():
            pass
        assert again.index
        chunk = reader.index.first_difference(again.index)
    except PtatError as error:
        report.violated(report.begin("index", about), error.message, session.bus_path.name)
        return
    current = report.begin("index", about)
    if chunk is not None:
        block = chunk * reader.chunk_blocks
        report.violated(current, "not of this capture", session.bus_path.name, block=block, word=0)


# Kernel log and markers ---------------------------------------------------------------------------


def _check_log(session: Session, report: Report) -> KernelLog | None:
    current = report.begin("kernel log", "whole pages, each sequence number once")
    try:
        session.check_files()
        return kernel_log.read_kernel_log(session.kernel_path)
    except PtatError as error:
        report.violated(current, error.message, session.kernel_path.name)
        return None


def _marker_stores(session: Session) -> markers.MarkerStores:
    """The marker stores of a capture without losses."""
    region = session.region
    marker_bytes = np.uint64(region.marker_slots * region.marker_stride_bytes)
    position, ticks, slot = [], [], []
    done = 0
    for found in merged(session):
        offset = found.address - np.uint64(region.base)
        rows = np.flatnonzero(found.write & (offset < marker_bytes))
        position.append(rows + done)
        ticks.append(found.time[rows])
        slot.append((offset[rows] // np.uint64(region.marker_stride_bytes)).astype(np.int64))
        done += found.time.size
    stores = sum(rows.size for rows in position)
    return markers.MarkerStores(
        np.concatenate(position),
        np.concatenate(ticks),
        np.concatenate(slot),
        np.zeros(stores, np.bool_),
    )


def _check_markers(
    session: Session, capture: Capture, log: KernelLog | None, report: Report
) -> Ordered | None:
    """Check for one store per event; None if the two streams cannot be ordered with certainty."""
    current = report.begin("markers", "one store on the bus for each table event")
    if log is None or report.checks[0].violations:
        current.skipped = "capture or kernel log is damaged"
    elif capture.gaps or log.lost_seqs or log.lost_events:
        current.skipped = "accesses or kernel events were lost"
    elif session.board.clocks != "one":
        current.skipped = "the channels have separate clocks"
    if current.skipped or log is None:
        return None
    stores = _marker_stores(session)
    slot, position = stores.slot, stores.position
    clocks = clock.NominalClocks.of(session)
    placed = markers.place(log.tables, stores, session.region.marker_slots, clocks)
    without_store = np.flatnonzero(placed.position == markers.BY_TIME)
    if without_store.size and session.ended:
        event = log.tables[without_store[0]]
        report.violated(
            current,
            f"{tracepoints.TABLE_KINDS[event['kind']]} number {event['seq']} has no marker store",
            f"{session.kernel_path.name}/cpu{event['cpu']}.raw",
            int(without_store.size),
        )
    if placed.without_event.size:
        store = int(placed.without_event[0])
        name, place = locate(session, int(position[store]))
        report.violated(
            current,
            f"a store to marker slot {slot[store]} that no event explains",
            name,
            placed.without_event.size,
            **place,
        )
    certain = placed.position != markers.BY_TIME
    order = np.argsort(placed.position[certain], kind="stable")
    return (
        None
        if current.violations
        else Ordered(log, log.tables[certain][order], placed.position[certain][order])
    )


# Counts -------------------------------------------------------------------------------------------


def _check_counts(session: Session, capture: Capture, report: Report, progress: Progress) -> None:
    """Compare the results with each other, with the capture and with the counters."""
    current = report.begin("counts", "results, summary, capture and counters agree")
    if any(check.violations for check in report.checks[:3]):
        current.skipped = "capture or kernel log is damaged"
        return
    try:
        found = pipeline.load(session.path, progress=progress)
    except PtatError as error:
        report.violated(current, error.message, session.results_path.name)
        return
    summary = found.summary
    report.lost = summary["lost"]
    totals, unexplained = summary["totals"], summary["unexplained"]
    name = f"{session.results_path.name}/summary.json"

    def equal(file: str, what: str, value: int, other: str, expected: int) -> None:
        if value != expected:
            message = f"{what}: {value}, but {other}: {expected}"
            report.violated(current, message, file)

    try:
        _check_results(found, current, report, equal)
    except PtatError as error:
        report.violated(current, error.message, session.results_path.name)
        return
    lost = summary["losses"]["accesses"]
    equal(name, "accesses lost", lost, "in the capture", capture.lost_accesses)
    rebuilt = program_order.is_needed(session)
    if unexplained["reads"] != (0 if rebuilt else capture.unexplained):
        message = f"{unexplained['reads']} reads that nothing explains"
        report.violated(current, message, name, unexplained["reads"])
    kinds = ("misses", "faulted", "pmd_reads", "readbacks")
    reads = sum(totals[kind] for kind in kinds) + unexplained["reads"]
    if rebuilt:
        _check_rebuilt(session, capture, summary, reads, report, equal)
        return
    equal(name, "accesses", totals["accesses"], "in the capture", capture.accesses)
    equal(name, "reads by kind", reads, "in the capture", capture.reads)
    stores = capture.accesses - capture.reads - capture.marker_stores
    equal(name, "stores of entries", totals["stores"], "in the capture", stores)
    _check_counters(session, capture, stores, equal)


def _check_results(found: Results, current: Check, report: Report, equal: Equal) -> None:
    """The result files and the summary, against each other."""
    totals, pages = found.summary["totals"], found.pages()
    kinds = ("misses", "faulted", "pmd_reads")
    by_kind = np.array([totals[kind] for kind in kinds])
    if (found.path / "misses").is_dir():
        by_kind = rows_by_kind(found, current, report)
    files, table = (f"{found.path.name}/{name}" for name in ("misses", "pages.parquet"))
    names = ("misses", "faulted walks", "PMD reads")
    for what, kind, rows in zip(names, kinds, by_kind.tolist(), strict=True):
        equal(files, f"{what} in files", rows, "in the summary", totals[kind])
    for what, kind in zip(names[:2], kinds[:2], strict=True):
        of_pages = int(pages[kind].to_numpy().sum())
        equal(table, f"{what} of all pages", of_pages, "in the summary", totals[kind])
        of_processes = sum(process[kind] for process in found.summary["processes"])
        equal(
            f"{found.path.name}/summary.json",
            f"{kind} of all processes",
            of_processes,
            "in total",
            totals[kind],
        )


def _check_rebuilt(
    session: Session,
    capture: Capture,
    summary: dict[str, Any],
    reads: int,
    report: Report,
    equal: Equal,
) -> None:
    """Each read and WR of the bus is accounted for once; the misses are inside their bound.

    :param reads: by kind, in the order that was rebuilt.
    """
    totals = summary["totals"]
    name = f"{session.results_path.name}/summary.json"
    markers_found = totals["accesses"] - totals["stores"] - reads
    marker_loads = markers_found if session.region.markers == "load" else 0
    writes = capture.accesses - capture.reads - capture.marker_stores
    behind = summary.get("controller")
    if behind is None:
        equal(name, "reads by kind", reads + marker_loads, "in the capture", capture.reads)
        equal(name, "stores of entries", totals["stores"], "in the capture", writes)
        return
    inferred = behind["inferred"] + behind["inferred_faults"] - behind["ptes_answered"]
    seen = reads - inferred + behind["underfills"] + behind["scrubs"] + marker_loads
    equal(name, "reads by kind", seen, "in the capture", capture.reads)
    equal(name, "WR of entries", behind["writes"], "in the capture", writes)
    if behind["misses"] is None:
        return
    low, high = behind["misses"]["low"], behind["misses"]["high"]
    bound = report.begin("bound", f"the true number of misses: {low:,} to {high:,}")
    if not 0 <= low <= totals["misses"] <= high:
        report.violated(bound, f"{totals['misses']} misses are outside of it", name)


def _check_counters(session: Session, capture: Capture, stores: int, equal: Equal) -> None:
    """Compare with a model's counters of all accesses to the region, captured or not."""
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
    equal(name, "loads of the region by the kernel", loads, "read back", capture.readbacks)
    equal(name, "accesses", counted - lost, "in the capture", capture.accesses)
    if not lost:
        equal(name, "reads", reads, "in the capture", capture.reads)
        equal(name, "stores of entries", region["cpu_entry_stores"], "in the capture", stores)
