# SPDX-License-Identifier: BSD-2-Clause
"""Checks of a trap-mode session, for `ptat_parser.checks.session`.

Records are compared with ``session.json``, the kernel's log and the results, in this order:

* records: the recorded number, whole, sorted by time, of their CPU
* kernel log: readable, whole pages, one event for each sequence number
** processes: a record's address space was attached, and belongs to its process
* entries: a record's entry lies in a table that maps its address, according to the log
* counts: results and summary agree with each other and with the records
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.checks.report import Check, Report
from ptat_parser.checks.rows import rows_by_kind
from ptat_parser.errors import PtatError
from ptat_parser.formats.session import Session, TrapRing
from ptat_parser.formats.traps import RECORD, Flag, read_records
from ptat_parser.kernel.log import KernelLog
from ptat_parser.kernel.tracepoints import (
    MM_ATTACH,
    TABLE_ALLOC,
    TABLE_FREE,
    TABLE_LINK,
    TABLE_MOVE,
)
from ptat_parser.order.first_pass import Progress
from ptat_parser.results import pipeline

RECORDS_AT_ONCE = 1 << 20
_ENTRIES_SHIFT = np.uint64(9)
"""log2 of a table's entries."""
_OTHER_TABLE = "its entry is not of a table that maps its address"


def check_records(session: Session, report: Report) -> None:
    """Check the files of records."""
    current = report.begin("records", "whole, counted, in order of time, of their CPU")
    for ring in session.traps:
        try:
            records = read_records(session.path / ring.file, end_may_be_cut=not session.ended)
        except PtatError as error:
            report.violated(current, error.message, ring.file)
            continue
        report.accesses += records.size
        if session.ended and records.size != ring.records:
            message = f"{records.size} records, {ring.records} were recorded"
            report.violated(current, message, ring.file)
        _check_ring(ring, records, current, report)


def _check_ring(ring: TrapRing, records: npt.NDArray[Any], current: Check, report: Report) -> None:
    last = np.uint64(0)
    for start in range(0, records.size, RECORDS_AT_ONCE):
        part = records[start : start + RECORDS_AT_ONCE]
        times = np.concatenate([[last], part["tsc"]])
        last = times[-1]
        unknown = part["flags"] & np.uint16(0xFFFF ^ sum(Flag))
        for wrong, message in (
            (times[1:] < times[:-1], "time runs backwards"),
            (part["cpu"] != ring.cpu, f"not of CPU {ring.cpu}"),
            (unknown != 0, "flags that this version does not know"),
        ):
            _violated(report, current, wrong, message, (ring.file, start))


def _violated(
    report: Report,
    current: Check,
    wrong: npt.NDArray[np.bool_],
    message: str,
    where: tuple[str, int],
) -> None:
    """Count wrong records; `where`: their file, and the number of its first record."""
    (rows,) = np.nonzero(wrong)
    if rows.size:
        file, start = where
        number = start + int(rows[0])
        report.violated(
            current,
            f"record {number}: {message}",
            file,
            int(rows.size),
            byte=number * RECORD.itemsize,
        )


# The kernel's log ---------------------------------------------------------------------------------


def check_against_log(
    session: Session, log: KernelLog | None, report: Report, progress: Progress
) -> None:
    """Check each record's address space and entry."""
    processes = report.begin("processes", "a record's address space is attached, and its process's")
    entries = report.begin("entries", "a record's entry is of a table that maps its address")
    if log is None or any(check.violations for check in report.checks):
        processes.skipped = entries.skipped = "records or kernel log are damaged"
    elif log.lost_events or log.lost_seqs:
        processes.skipped = entries.skipped = "kernel events were lost"
    if processes.skipped or log is None:
        return
    spaces = {
        int(event["mm"]): int(event["tgid"])
        for event in log.tables[log.tables["kind"] == MM_ATTACH]
    }
    tables = _Tables(log, session.region.base)
    done = 0
    for ring in session.traps:
        records = read_records(session.path / ring.file, end_may_be_cut=not session.ended)
        for start in range(0, records.size, RECORDS_AT_ONCE):
            part = records[start : start + RECORDS_AT_ONCE]
            where = ring.file, start
            _check_processes(part, spaces, report, processes, where)
            _violated(report, entries, ~tables.map(part), _OTHER_TABLE, where)
            done += part.size
            progress("checking records", done, report.accesses)


def _check_processes(
    records: npt.NDArray[Any],
    spaces: dict[int, int],
    report: Report,
    current: Check,
    where: tuple[str, int],
) -> None:
    both = np.unique(records[["mm", "tgid"]])
    for mm, tgid in both.tolist():
        if spaces.get(mm) == tgid:
            continue
        known = mm in spaces
        message = f"address space {mm} is " + (
            f"process {spaces[mm]}'s, not {tgid}'s" if known else "of no process in the log"
        )
        wrong = (records["mm"] == mm) & (records["tgid"] == tgid)
        _violated(report, current, wrong, message, where)


class _Tables:
    """The tables in each page of the region over time, from the kernel's log."""

    def __init__(self, log: KernelLog, base: int) -> None:
        """`base`: address of the region."""
        self._base = np.uint64(base)
        # Events of tables below a moved table have the address from before the move.
        self._moved = bool(np.any(log.tables["kind"] == TABLE_MOVE))
        wanted = np.isin(log.tables["kind"], (TABLE_ALLOC, TABLE_LINK, TABLE_FREE))
        events = log.tables[wanted & (log.tables["pa"] >= self._base)]
        self._times = np.unique(events["time"])
        key = self._key(events["pa"], events["time"])
        order = np.argsort(key, kind="stable")
        self._events, self._keys = events[order], key[order]

    def map(self, records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether each record's entry is in a table that maps its address."""
        if not self._events.size:
            return np.zeros(records.size, np.bool_)
        huge = (records["flags"] & Flag.HUGE) != 0
        page_shift = np.where(huge, np.uint64(21), np.uint64(12))
        table_shift = page_shift + _ENTRIES_SHIFT
        address = records["addr"]
        entry = records["entry"].astype(np.uint64)
        place = self._base + (entry << np.uint64(3))
        at = np.searchsorted(self._keys, self._key(place, records["tsc"]), "right") - 1
        table = self._events[np.maximum(at, 0)]
        found = (at >= 0) & (table["pa"] >> np.uint64(12) == place >> np.uint64(12))
        found &= (table["kind"] == TABLE_LINK) & (table["mm"] == records["mm"])
        found &= table["level"] == np.where(huge, 2, 1)
        if not self._moved:
            found &= table["va"] == address >> table_shift << table_shift
        in_table = np.uint64((1 << int(_ENTRIES_SHIFT)) - 1)
        found &= entry & in_table == address >> page_shift & in_table
        result: npt.NDArray[np.bool_] = found
        return result

    def _key(
        self, address: npt.NDArray[np.uint64], time: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint64]:
        """A key that sorts by page, then by time."""
        rank = np.searchsorted(self._times, time, "right").astype(np.uint64)
        page = (address - self._base) >> np.uint64(12)
        return page * np.uint64(self._times.size + 1) + rank


# Counts -------------------------------------------------------------------------------------------


def check_counts(session: Session, report: Report, progress: Progress) -> None:
    """Compare the results with the records."""
    current = report.begin("counts", "results, summary and records agree")
    if any(check.violations for check in report.checks):
        current.skipped = "records or kernel log are damaged"
        return
    try:
        found = pipeline.load(session.path, progress=progress)
        rows = rows_by_kind(found, current, report) if (found.path / "misses").is_dir() else None
    except PtatError as error:
        report.violated(current, error.message, session.results_path.name)
        return
    summary, pages = found.summary, found.pages()
    report.lost = summary["lost"]
    misses, faulted = _count(session)
    kinds = summary["traps"]["misses_by_access"].values()
    processes = summary["processes"]
    totals = summary["totals"]
    name, table, files = (
        f"{session.results_path.name}/{file}"
        for file in ("summary.json", "pages.parquet", "misses")
    )
    for file, what, value, expected in (
        (name, "records", totals["accesses"], report.accesses),
        (name, "misses", totals["misses"], misses),
        (name, "faulted walks", totals["faulted"], faulted),
        (name, "misses by kind of access", sum(kinds), misses),
        (name, "misses of all processes", sum(p["misses"] for p in processes), misses),
        (name, "faulted walks of all processes", sum(p["faulted"] for p in processes), faulted),
        (name, "lost records", summary["losses"]["traps"], sum(r.lost for r in session.traps)),
        (table, "misses of all pages", int(pages["misses"].to_numpy().sum()), misses),
        (table, "faulted walks of all pages", int(pages["faulted"].to_numpy().sum()), faulted),
        *([(files, "misses in files", int(rows[0]), misses)] if rows is not None else []),
        *([(files, "faulted walks in files", int(rows[1]), faulted)] if rows is not None else []),
    ):
        if value != expected:
            report.violated(current, f"{what}: {value}, but by the records: {expected}", file)


def _count(session: Session) -> tuple[int, int]:
    """Number of misses and of faulted walks among the records."""
    misses = faulted = 0
    for ring in session.traps:
        records = read_records(session.path / ring.file, end_may_be_cut=not session.ended)
        for start in range(0, records.size, RECORDS_AT_ONCE):
            flags = records["flags"][start : start + RECORDS_AT_ONCE]
            fault, retry = flags & Flag.FAULT != 0, flags & Flag.RETRY != 0
            misses += int(np.count_nonzero(~fault & ~retry))
            faulted += int(np.count_nonzero(fault))
    return misses, faulted
