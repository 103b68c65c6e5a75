# SPDX-License-Identifier: BSD-2-Clause
"""When is the trace not to be relied on?

A loss is not only so many records: what is said about reads near it, or from it on, may be wrong.
Outside of the gaps that are found here, every miss is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ptat_parser.capture.decode import END_OF_TIME
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order import markers
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import Survey
from ptat_parser.order.markers import MarkerStores, Placement
from ptat_parser.replay.page_faults import PATIENCE_S

GAPS_MAX = 1000
"""More of them are joined, the nearest first."""

BUS, MARKER, KERNEL = "bus", "marker", "kernel"


@dataclass(frozen=True)
class Gap:
    """A time in which the trace is not to be relied on, in ns of kernel time, both included.

    None: from the start, or to the end. `causes`: accesses lost on the way from the `bus`, a
    `marker` without its store or its event, events lost in the `kernel`'s log.
    """

    from_ns: int | None
    to_ns: int | None
    causes: tuple[str, ...]


def find(
    found: Survey,
    log: KernelLog,
    placed: Placement,
    fitted: Clock,
    doubts: list[tuple[int, int]],
) -> list[Gap]:
    """The gaps of a session, in order, none touching another. `doubts` are those of the replay."""
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


def first_lost_event(log: KernelLog, stores: MarkerStores, placed: Placement) -> int | None:
    """From which marker store on table events are missing in the kernel's log; None: of none."""
    without_event = np.setdiff1d(np.arange(stores.slot.size), placed.store)
    first = [int(without_event[0])] if without_event.size else []
    seqs = log.tables["seq"].astype(np.int64)
    missing = np.flatnonzero(np.diff(seqs) > 1)
    if missing.size:
        before = np.sort(placed.store[placed.event <= missing[0]])
        # Stores of several CPUs may pass each other: since the marker before the last.
        first.append(int(before[-2]) if before.size > 1 else 0)
    return min(first, default=None)


def _of_markers(log: KernelLog, stores: MarkerStores, placed: Placement) -> list[tuple[int, int]]:
    """In ticks. An event that was lost is missed from its marker on, to the end.

    An event without a marker is somewhere between the markers before and after it.
    """
    intervals = []
    seqs = log.tables["seq"].astype(np.int64)
    ticks = stores.time_ticks.astype(np.int64)
    matched = np.full(seqs.size, -1, np.int64)
    matched[placed.event] = placed.store
    has_store = np.flatnonzero(matched >= 0)

    lost_from = first_lost_event(log, stores, placed)
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
