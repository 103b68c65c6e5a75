# SPDX-License-Identifier: BSD-2-Clause
"""Which pages of the region hold tables at which time, before the clocks are fitted.

Patrol scrub is recognised by its reads of pages that hold nothing, and the clocks are fitted to
markers, among which are reads of scrub. So the log's times are converted roughly here: the first
event's marker is one of the first reads of its line, and the one with which the next events'
markers are where they must be gives the offset.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.formats.session import Region
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order.clock import DRIFT_MAX
from ptat_parser.order.line_times import LineTimes

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

QUEUED_S = 0.1
"""Longest time for which a store to a page waits in the controller's queue."""
MARKERS_COMPARED = 64
"""Number of the first events whose markers decide on the offset of the clocks."""
MARKERS_MATCHED = 0.9
"""Least fraction of them that must have a read within `MARKER_S`."""
MARKER_S = 0.01
"""Largest distance of an event from its marker, as the clocks are known here."""
CANDIDATES = 4
"""How many reads of the first event's line may be its marker: scrub may have read it before."""
ALWAYS = 1 << 45
"""A time after all reads, in ticks."""


class Lifetimes:
    """From when to when (ticks) pages of the region held tables; each has one at a time."""

    def __init__(self, page: I64, since: I64, until: I64) -> None:
        self._since = LineTimes(page, since)
        self._until = until[self._since.order]

    def hold(self, page: I64, time: I64, tick_hz: float) -> Bools:
        """Mask of the times at which a page may hold a table, or stores to one may be queued."""
        if not self._since.size:
            return np.zeros(page.size, np.bool_)
        margin = round(QUEUED_S * tick_hz) + (DRIFT_MAX * time).astype(np.int64)
        last = self._since.last_before(page, time + margin + 1)
        held: Bools = (last >= 0) & (self._until[last] >= time - margin)
        return held


def lifetimes(log: KernelLog, region: Region, ticks: I64) -> Lifetimes:
    """The lifetimes of the region's tables; `ticks`: the bus time of each table event.

    A page whose table's begin or end was not logged holds it from the start, or to the end.
    """
    offset = log.tables["pa"] - np.uint64(region.base)
    kind = log.tables["kind"]
    of_table = np.isin(kind, (tracepoints.TABLE_ALLOC, tracepoints.TABLE_FREE))
    rows = np.flatnonzero(of_table & (offset < np.uint64(region.size_bytes)))
    page = (offset[rows] >> np.uint64(12)).astype(np.int64)
    begun: dict[int, int] = {}
    spans: list[tuple[int, int, int]] = []
    for of, what, at in zip(
        page.tolist(), kind[rows].tolist(), np.maximum(ticks[rows], 0).tolist(), strict=True
    ):
        if what == tracepoints.TABLE_ALLOC:
            begun.setdefault(of, at)
        else:
            spans.append((of, begun.pop(of, 0), at))
    spans += [(of, at, ALWAYS) for of, at in begun.items()]
    spans += [(of, 0, ALWAYS) for of in np.setdiff1d(table_pages(log, region), page).tolist()]
    return Lifetimes(*np.array(spans, np.int64).reshape(-1, 3).T)


def table_pages(log: KernelLog, region: Region) -> I64:
    """Pages of the region that ever hold a table, ascending."""
    addresses = np.concatenate([log.tables["pa"], log.tables["slot_pa"]])
    offset = addresses - np.uint64(region.base)
    return np.unique(offset[offset < np.uint64(region.size_bytes)] >> np.uint64(12)).astype(
        np.int64
    )


def ticks_of_events(
    log: KernelLog, markers: LineTimes, slots: int, tick_hz: float, tsc_hz: float
) -> I64 | None:
    """Rough bus times of the table events; None: their markers do not tell.

    :param markers: the reads of the marker area, by number of the slot.
    :param slots: the number of slots.
    """
    events = log.tables
    if not events.size:
        return None
    cycles = (events["time"] - events["time"][0]).view(np.int64)
    since_first = (cycles * (tick_hz / tsc_hz)).astype(np.int64)
    slot = (events["seq"][:MARKERS_COMPARED] % np.uint64(slots)).astype(np.int64)
    near = round(MARKER_S * tick_hz)
    first = int(markers.first_from(slot[:1], np.zeros(1, np.int64))[0])
    found, most = None, MARKERS_MATCHED * slot.size
    for candidate in range(max(first, 0), min(first + CANDIDATES, markers.size)):
        expected = markers.time[candidate] + since_first[: slot.size]
        read = markers.first_from(slot, expected - near)
        matched = float(np.count_nonzero((read >= 0) & (markers.time[read] <= expected + near)))
        if first >= 0 and matched > most:
            found, most = since_first + markers.time[candidate], matched
    return found
