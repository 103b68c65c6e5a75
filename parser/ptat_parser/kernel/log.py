# SPDX-License-Identifier: BSD-2-Clause
"""The kernel's log of a recording: the raw ring-buffer pages of each CPU.

``kernel/cpuN.raw`` holds the pages read from ``per_cpu/cpuN/trace_pipe_raw``. Table events are few
and stay in memory. Fault and entry events may exceed memory: then only the first and last time of
each page are kept, and the events of an interval are read again when needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import ParseError
from ptat_parser.kernel.ring_buffer import (
    PAGE_BEGINS,
    PAGE_FIRST,
    PAGE_LAST,
    PAGE_MISSED,
    PAGE_TIMES,
    CpuPages,
    Layout,
    Scanned,
    check_tables,
    count_kinds,
    damaged,
    in_order,
    read_text,
    scan,
    table_events,
    timed_events,
    whole_flushes,
)
from ptat_parser.kernel.tracepoints import (
    END_OF_CYCLES,
    ENTRY_CLEAR,
    ENTRY_SET,
    FAULT,
    MM_ATTACH,
    TABLE_EVENT,
    TIMED_EVENT,
)

U64 = npt.NDArray[np.uint64]

REMEMBERED = 1 << 21
"""Events without a marker to keep in memory, at 55 bytes each; more are read again from disk."""


class TimedLog:
    """The events without a marker (dtype `TIMED_EVENT`), read from disk on demand if they are many.

    `faults` and `entries` count the two kinds. Can be pickled.
    """

    def __init__(self) -> None:
        self.faults = self.entries = 0
        self._cpus: list[tuple[CpuPages, U64]] = []
        # All events if they are kept in memory; their times, once sorted.
        self._few: npt.NDArray[Any] | None = np.empty(0, TIMED_EVENT)
        self._times: U64 | None = None

    def add(self, cpu: CpuPages, page_times: U64) -> None:
        """Add a CPU whose events were passed to `note`."""
        self._cpus.append((cpu, page_times))

    def note(self, scanned: Scanned, layout: Layout) -> None:
        """Count the events of some pages, and keep them unless there are too many."""
        counts = count_kinds(scanned, layout)
        before = self.faults + self.entries
        self.faults += counts[FAULT]
        self.entries += counts[ENTRY_SET] + counts[ENTRY_CLEAR]
        if self.faults + self.entries > REMEMBERED:
            self._few = None
        elif self._few is not None:
            if not self._few.size:  # untouched pages take no memory
                self._few = np.empty(REMEMBERED, TIMED_EVENT)
            self._few[before : self.faults + self.entries] = timed_events(scanned, layout)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_few": None, "_times": None}

    @property
    def is_remembered(self) -> bool:
        """Whether all events are kept in memory."""
        return self._few is not None

    def between(self, since: int = 0, until: int = END_OF_CYCLES) -> npt.NDArray[Any]:
        """The events of an interval (clock cycles, both ends included), sorted by time."""
        if self._few is not None:
            if self._times is None:
                self._few = in_order([self._few[: self.faults + self.entries]], "time")
                self._times = self._few["time"].copy()
            inside = slice(
                np.searchsorted(self._times, np.uint64(since)),
                np.searchsorted(self._times, np.uint64(until), side="right"),
            )
            return self._few[inside]
        found = []
        for cpu, times in self._cpus:
            there = (times[:, PAGE_FIRST] <= np.uint64(until)) & (
                times[:, PAGE_LAST] >= np.uint64(since)
            )
            # Usually one contiguous run of pages.
            begins = np.flatnonzero(np.diff(there, prepend=False) & there)
            ends = np.flatnonzero(np.diff(there, append=False) & there) + 1
            for first, end in zip(begins.tolist(), ends.tolist(), strict=True):
                for scanned in cpu.scan(first, end):
                    found.append(timed_events(scanned, cpu.layout, since, until))
        return in_order(found or [np.zeros(0, TIMED_EVENT)], "time")

    def batches(self) -> Iterator[npt.NDArray[Any]]:
        """Yields all events sorted by time, in batches if they are not kept in memory."""
        if not self.faults and not self.entries:
            return
        if self.is_remembered:
            yield self.between()
            return
        first = np.sort(np.concatenate([times[:, PAGE_FIRST] for _, times in self._cpus]))
        batch = self._cpus[0][0].layout.batch_pages
        cuts = np.unique(first[batch::batch]).tolist()
        for since, before in zip([0, *cuts], [*cuts, END_OF_CYCLES + 1], strict=True):
            yield self.between(since, before - 1)


@dataclass(frozen=True)
class KernelLog:
    """All events of a recording.

    `tables` (dtype `TABLE_EVENT`) is sorted by `seq`; `timed` holds the other events. `lost_events`
    counts the events that the ring buffers dropped, and `gaps` lists the intervals (clock cycles,
    None if unknown). `lost_seqs` counts the sequence numbers missing among the table events.
    """

    tables: npt.NDArray[Any]
    timed: TimedLog
    lost_events: int
    lost_seqs: int
    gaps: list[tuple[int | None, int | None]]
    flushes: U64
    """Times of flushes of any CPU's whole TLB (clock cycles, sorted), if they were recorded."""


def _read_stats(path: Path) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in re.findall(r"^([a-z ]+): (\d+)$", read_text(path), re.MULTILINE)
    }


def read_kernel_log(directory: Path) -> KernelLog:
    """Read a session's ``kernel/`` directory.

    :raises ParseError: a file is missing, truncated or damaged.
    """
    if not directory.is_dir():
        raise ParseError(f"{directory}: missing: the kernel's log was not saved", "record again")
    layout = Layout(directory / "formats")
    paths = sorted(directory.glob("cpu*.raw"))
    if not paths:
        raise ParseError(
            f"{directory}: no cpuN.raw: the kernel's log was not saved", "record again"
        )
    lost_events = 0
    gaps: list[tuple[int | None, int | None]] = []
    tables: list[npt.NDArray[Any]] = []
    flushes = [np.empty(0, np.uint64)]
    timed = TimedLog()
    for path in paths:
        lost, when = _read_cpu(CpuPages(path, layout), tables, flushes, timed)
        lost_events += lost
        gaps += when

    table = in_order(tables or [np.zeros(0, TABLE_EVENT)], "seq")
    if np.any(table["seq"][1:] == table["seq"][:-1]):
        raise ParseError(f"{directory}: two events with one sequence number", "record again")
    lost_seqs = int(table["seq"][-1] - table["seq"][0]) + 1 - table.size if table.size else 0
    return KernelLog(table, timed, lost_events, lost_seqs, gaps, np.sort(np.concatenate(flushes)))


def _read_cpu(
    cpu: CpuPages, tables: list[npt.NDArray[Any]], flushes: list[U64], timed: TimedLog
) -> tuple[int, list[tuple[int | None, int | None]]]:
    """Add a CPU's events; return the number that it lost, and the intervals of the losses."""
    path, layout = cpu.path, cpu.layout
    events = missed = uncounted = 0
    page_times = [np.zeros((0, PAGE_TIMES), np.uint64)]
    for scanned in cpu.scan(0, cpu.pages):
        events += scanned.kind.size
        missed += scanned.missed
        uncounted += scanned.missed_uncounted
        timed.note(scanned, layout)
        flushes.append(whole_flushes(scanned, layout))
        page_times.append(scanned.page_times)
        found = table_events(scanned, layout)
        if not found.size:
            continue
        check_tables(path, found)
        tables.append(found)
    stats = _read_stats(path.with_suffix(".stats"))
    read = stats.get("read events")
    if read is not None and read != events:
        raise damaged(
            path, f"truncated or damaged: {events} events, of which the kernel wrote {read}"
        )
    times = np.concatenate(page_times)
    timed.add(cpu, times)
    dropped = sum(stats.get(key, 0) for key in ("overrun", "commit overrun", "dropped events"))
    if dropped > missed and not uncounted:
        return max(dropped, missed), [(None, None)]
    began = times[:, PAGE_BEGINS].tolist()
    # Events were lost between the start of the previous page and a page that reports a loss.
    since = np.flatnonzero(times[:, PAGE_MISSED]).tolist() if missed + uncounted else []
    gaps = [(began[page - 1] if page else None, began[page]) for page in since]
    return max(dropped, missed + uncounted), gaps


class GrowingLog:
    """Reads a log that is still being written."""

    def __init__(self, directory: Path) -> None:
        """The directory may not exist yet."""
        self._directory = directory
        self._layout: Layout | None = None
        self._read_bytes: dict[Path, int] = {}
        self.lost_events = 0
        """Number of lost events that the pages report so far."""

    def read(self) -> npt.NDArray[Any]:
        """Table events (dtype `TABLE_EVENT`) of the pages added since the last call, by `seq`.

        :raises ParseError: a page is damaged.
        """
        tables = [np.zeros(0, TABLE_EVENT)]
        for path in sorted(self._directory.glob("cpu*.raw")):
            if self._layout is None:
                self._layout = Layout(self._directory / "formats")
            page_bytes = self._layout.page_bytes
            read_bytes = self._read_bytes.get(path, 0)
            with path.open("rb") as file:
                file.seek(read_bytes)
                added = file.read()
            whole = len(added) // page_bytes * page_bytes
            self._read_bytes[path] = read_bytes + whole
            data = np.frombuffer(added, np.uint8, whole)
            number = int(path.stem.removeprefix("cpu"))
            scanned = scan(path, number, data, self._layout, read_bytes // page_bytes)
            self.lost_events += scanned.missed + scanned.missed_uncounted
            tables.append(table_events(scanned, self._layout))
            check_tables(path, tables[-1])
        return in_order(tables, "seq")


def traced_spaces(log: KernelLog) -> set[int]:
    """Page frames of the top-level page tables (CR3 >> 12) of the traced processes."""
    attached = log.tables["kind"] == MM_ATTACH
    return set((log.tables["pgd"][attached] >> np.uint64(12)).tolist())
