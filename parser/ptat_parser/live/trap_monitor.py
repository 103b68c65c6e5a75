# SPDX-License-Identifier: BSD-2-Clause
"""Counts the misses of a trap-mode session during its recording.

Records name address space, page and time, so each counts as soon as it is read. The kernel's log
only adds the names of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.formats.session import Session
from ptat_parser.formats.traps import NO_MISS, RECORD, Flag, page_shift
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import GrowingLog
from ptat_parser.live.increment import STEP_S, Increment, PageMisses
from ptat_parser.replay.page_tables import Mm

READ_RECORDS = 1 << 18
"""Records to read of one CPU at a time: 12 MiB."""


class TrapMonitor:
    """Follows a trap-mode session; has the interface of `bus_monitor.BusMonitor`."""

    span = 1
    """A record is of one page."""
    waiting = 0
    """Nothing waits for the kernel's log."""
    level = 0
    """No capture buffer is modelled."""

    def __init__(self, session: Session) -> None:
        """Begin at the start of the recording."""
        self.mms: list[Mm] = []
        """The address spaces known so far."""
        self._index: dict[int, int] = {}
        """Index into `mms`, by the kernel's id of the mm."""
        self._rings = [_Ring(session.path / ring.file) for ring in session.traps]
        self._log = GrowingLog(session.kernel_path)
        self._tsc_hz = session.kernel.tsc_hz
        self._first_tsc: int | None = None
        self._last_tsc = 0

    @property
    def seconds(self) -> float:
        """Time from the first record to the last, in seconds."""
        if self._first_tsc is None:
            return 0.0
        return max(self._last_tsc - self._first_tsc, 0) / self._tsc_hz

    def update(self) -> Increment:
        """Read on to the current end of the files.

        :raises PtatError: the kernel's log is damaged.
        """
        found = Increment()
        lost = self._log.lost_events
        for event in self._log.read():
            if event["kind"] == tracepoints.MM_ATTACH:
                mm = self.mms[self._space(int(event["mm"]), int(event["tgid"]))]
                mm.comm = event["comm"].decode(errors="replace")
        found.lost_events += self._log.lost_events - lost
        for ring in self._rings:
            while (records := ring.read()).size:
                self._count(records, found)
        return found

    def _space(self, mm: int, tgid: int) -> int:
        index = self._index.setdefault(mm, len(self.mms))
        if index == len(self.mms):
            self.mms.append(Mm(mm, tgid))
        return index

    def _count(self, records: npt.NDArray[Any], found: Increment) -> None:
        """Count the records of one CPU, which are sorted by time."""
        first, last = int(records["tsc"][0]), int(records["tsc"][-1])
        self._first_tsc = first if self._first_tsc is None else min(self._first_tsc, first)
        self._last_tsc = max(self._last_tsc, last)
        found.accesses += records.size
        found.faulted += int(np.count_nonzero(records["flags"] & Flag.FAULT))
        missed = records[(records["flags"] & NO_MISS) == 0]
        found.misses += missed.size
        step_tsc = max(int(STEP_S * self._tsc_hz), 1)
        while missed.size:
            begin = int(missed["tsc"][0])
            stop = np.searchsorted(missed["tsc"], np.uint64(begin + step_tsc), "right")
            middle_tsc = (begin + int(missed["tsc"][stop - 1])) // 2
            found.pages.append(self._pages(missed[:stop], middle_tsc))
            missed = missed[stop:]

    def _pages(self, missed: npt.NDArray[Any], tsc: int) -> PageMisses:
        """Misses by page at the time `tsc`."""
        shift = page_shift(missed["flags"])
        key = np.empty(missed.size, [("mm", "<u8"), ("vaddr", "<u8"), ("size", "<i8")])
        key["mm"], key["vaddr"] = missed["mm"], missed["addr"] >> shift << shift
        key["size"] = np.int64(1) << shift.astype(np.int64)
        pages, at, counts = np.unique(key, return_index=True, return_counts=True)
        mm = [
            self._space(mm, tgid)
            for mm, tgid in zip(pages["mm"].tolist(), missed["tgid"][at].tolist(), strict=True)
        ]
        return PageMisses(
            round(tsc * 1e9 / self._tsc_hz),
            np.array(mm, np.int64),
            pages["vaddr"].copy(),
            pages["size"].copy(),
            counts.astype(np.int64),
        )


class _Ring:
    """One CPU's file, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = 0

    def read(self) -> npt.NDArray[Any]:
        """The next batch of whole records that were added; empty at the file's current end."""
        try:
            found: npt.NDArray[Any] = np.fromfile(
                self._path, RECORD, READ_RECORDS, offset=self._records * RECORD.itemsize
            )
        except FileNotFoundError:
            return np.empty(0, RECORD)
        self._records += found.size
        return found
