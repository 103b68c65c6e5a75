# SPDX-License-Identifier: BSD-2-Clause
"""Finds the gaps: the intervals in which the trace may be wrong.

A loss affects more than the lost records: the labels of reads near it, or after it, may be wrong.
Outside the gaps every miss is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ptat_parser.capture.decode import END_OF_TIME
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order import markers
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import CaptureScan
from ptat_parser.order.markers import MarkerStores, Placement
from ptat_parser.replay.page_faults import PATIENCE_S

GAPS_MAX = 1000
"""Most gaps to report; beyond it, gaps are joined, the nearest first."""

BUS, MARKER, KERNEL = "bus", "marker", "kernel"


@dataclass(frozen=True)
class Gap:
    """An interval in which the trace may be wrong, in ns of kernel time, both ends included.

    None stands for the start or the end of the recording. `causes`: accesses lost on the way from
    the `bus`, a `marker` without its store or its event, events lost in the `kernel`'s log.
    """

    from_ns: int | None
    to_ns: int | None
    causes: tuple[str, ...]


def find(
    found: CaptureScan,
    log: KernelLog,
    placed: Placement,
    fitted: Clock,
    doubts: list[tuple[int, int]],
) -> list[Gap]:
    """The disjoint gaps of a session, sorted by time; `doubts`: those of the replay."""
    intervals: list[tuple[int, int, str]] = [
        (since, until, BUS) for since, until in found.losses.intervals
    ]
    intervals += [(since, until, MARKER) for since, until in _of_markers(log, found.stores, placed)]
    ticks = np.array([interval[:2] for interval in intervals], np.uint64).reshape(-1, 2)
    in_ns = [
        (
            None if since == 0 else int(start),
            None if until >= END_OF_TIME else int(stop),
            cause,
        )
        for (since, until, cause), start, stop in zip(
            intervals, fitted.to_ns(ticks[:, 0]), fitted.to_ns(ticks[:, 1]), strict=True
        )
    ]
    patience_ns = round(PATIENCE_S * 1e9)
    for since_cycles, until_cycles in log.gaps:
        start, stop = (
            None if cycles is None else round(cycles * 1e9 / fitted.cycles_hz)
            for cycles in (since_cycles, until_cycles)
        )
        in_ns.append((start, None if stop is None else stop + patience_ns, KERNEL))
    return _joined(in_ns)


def first_lost_event(log: KernelLog, placed: Placement) -> int | None:
    """Marker store from which on table events are missing in the kernel's log, or None."""
    first = placed.without_event[:1].tolist()
    seqs = log.tables["seq"].astype(np.int64)
    missing = np.flatnonzero(np.diff(seqs) > 1)
    if missing.size:
        before = np.sort(placed.store[placed.event <= missing[0]])
        # Stores of several CPUs may overtake each other, so go back to the marker before the last.
        first.append(int(before[-2]) if before.size > 1 else 0)
    return min(first, default=None)


def _of_markers(log: KernelLog, stores: MarkerStores, placed: Placement) -> list[tuple[int, int]]:
    """The gaps of lost markers and table events, in ticks.

    A lost event causes a gap from its marker to the end. An event without a marker lies between the
    markers before and after it.
    """
    intervals = []
    seqs = log.tables["seq"].astype(np.int64)
    ticks = stores.time_ticks.astype(np.int64)
    matched = np.full(seqs.size, -1, np.int64)
    matched[placed.event] = placed.store
    has_store = np.flatnonzero(matched >= 0)

    lost_from = first_lost_event(log, placed)
    if lost_from is not None:
        intervals.append((int(ticks[lost_from]), END_OF_TIME))
    for event in np.flatnonzero(placed.position == markers.BY_TIME).tolist():
        before, after = has_store[has_store < event], has_store[has_store > event]
        since = ticks[matched[before[-1]]] if before.size else 0
        until = ticks[matched[after[0]]] if after.size else END_OF_TIME
        intervals.append((int(since), int(until)))
    return intervals


def _joined(intervals: list[tuple[int | None, int | None, str]]) -> list[Gap]:
    first, last = -(1 << 63), (1 << 63) - 1
    ordered = sorted(
        (first if start is None else start, last if stop is None else stop, cause)
        for start, stop, cause in intervals
    )
    joined: list[tuple[int, int, set[str]]] = []
    for start, stop, cause in ordered:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1]), joined[-1][2] | {cause}
        else:
            joined.append((start, stop, {cause}))
    if len(joined) > GAPS_MAX:
        between = np.array([b[0] - a[1] for a, b in pairwise(joined)])
        kept = set(np.sort(np.argsort(between, kind="stable")[-(GAPS_MAX - 1) :]).tolist())
        fewer = [joined[0]]
        for i, gap in enumerate(joined[1:]):
            if i in kept:
                fewer.append(gap)
            else:
                fewer[-1] = fewer[-1][0], gap[1], fewer[-1][2] | gap[2]
        joined = fewer
    return [
        Gap(
            None if start == first else start,
            None if stop == last else stop,
            tuple(sorted(causes)),
        )
        for start, stop, causes in joined
    ]
