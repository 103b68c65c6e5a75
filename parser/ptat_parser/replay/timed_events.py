# SPDX-License-Identifier: BSD-2-Clause
"""The log's events without a marker, in bus ticks, for each segment of a replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel import tracepoints
from ptat_parser.order.clock import Clock
from ptat_parser.replay.page_tables import ENTRIES, ENTRY_SHIFT, Rpt
from ptat_parser.replay.state import NO_EVENTS, Config, Events, Segment, Timed, waiting

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_RANGE_SHIFT = {level: shift + (ENTRIES - 1).bit_length() for level, shift in ENTRY_SHIFT.items()}
"""log2 of the bytes that a table of each level serves."""

_LEAST_SHIFT = np.uint64(_RANGE_SHIFT[1])

_MM_SHIFT = np.uint64(40)
_VA_MASK = np.uint64((1 << 61) - 1)


class TimedEvents:
    """The fault and entry events, if they were recorded (`Config.faults`, `Config.entries`).

    Their ranges are numbered in the reverse page table in advance, so that the numbers do not
    depend on where segments are replayed.
    """

    def __init__(
        self, log: kernel_log.TimedLog, clock: Clock, config: Config, rpt: Rpt, ticks: U64
    ) -> None:
        self._log, self._clock = log, clock
        self._known: dict[tuple[bool, bool], Events] = {}  # of all segments, by (faults, entries)
        spaces: dict[int, int] = {}
        keys = np.empty(0, np.uint64)
        nearest = _Nearest(ticks)
        found: _InTicks | None = None
        for events in log.batches():
            found = _in_ticks(self._wanted(events, config), clock)
            nearest.see(found.time[found.kind == tracepoints.FAULT])
            mm = _by_value(found.mm, lambda mm: spaces.setdefault(mm, len(spaces)), np.uint64)
            keys = np.union1d(keys, _keys(mm, found.va, 1))
        self.from_fault_ticks = nearest.distance()
        """Distance of each of `ticks` to the nearest fault event; int64 maximum if none."""
        index = {mm: rpt.mm_index(mm) for mm in sorted(spaces)}
        of_space = np.array([index[mm] for mm in spaces], np.uint64)
        mm, va = of_space[keys >> _MM_SHIFT], keys << np.uint64(_RANGE_SHIFT[1]) & _VA_MASK
        for level in _RANGE_SHIFT:
            for key in np.unique(_keys(mm, va, level)).tolist():
                _range_of_key(rpt, key, level)
        if found and log.is_remembered:
            self._known[config.faults, config.entries] = _events(found, rpt)

    def of(self, segment: Segment, config: Config, rpt: Rpt) -> Timed:
        """The events of a segment's interval, not applied yet."""
        log, clock = self._log, self._clock
        if not (config.faults * log.faults or config.entries * log.entries):
            return waiting(NO_EVENTS)
        relied_on = config.faults, config.entries
        if log.is_remembered:
            if relied_on not in self._known:
                found = _in_ticks(self._wanted(log.between(), config), clock)
                self._known[relied_on] = _events(found, rpt)
            events = self._known[relied_on]
        else:
            around = log.between(*self._around(segment))
            events = _events(_in_ticks(self._wanted(around, config), clock), rpt)
        ticks = events.time
        inside = slice(
            np.searchsorted(ticks, np.uint64(segment.start_ticks)) if segment.number else None,
            None
            if segment.end_ticks is None
            else np.searchsorted(ticks, np.uint64(segment.end_ticks)),
        )
        return waiting(Events._make(column[inside] for column in events))

    def _wanted(self, events: npt.NDArray[Any], config: Config) -> npt.NDArray[Any]:
        """The events whose kinds were recorded completely."""
        faults, entries = config.faults, config.entries
        if (faults or not self._log.faults) and (entries or not self._log.entries):
            return events
        return events[np.where(events["kind"] == tracepoints.FAULT, faults, entries)]

    def _around(self, segment: Segment) -> tuple[int, int]:
        """Interval in clock cycles that covers the events of a segment."""
        clock = self._clock
        around = 2 + math.ceil(2 * clock.cycles_per_tick)
        since, until = 0, tracepoints.END_OF_CYCLES
        if segment.number:
            since = min(max(clock.to_cycles(segment.start_ticks) - around, 0), until)
        if segment.end_ticks is not None:
            until = min(max(clock.to_cycles(segment.end_ticks) + around, 0), until)
        return since, until

    def __getstate__(self) -> dict[str, Any]:
        """Drop what can be read from the log again."""
        return self.__dict__ | {"_known": {}}


class _InTicks(NamedTuple):
    """Events in bus ticks, in runs of one level-1 range each.

    `begins`: first event of each run; for each run its address space and an address.
    """

    time: U64
    kind: U8
    address: U64
    begins: I64
    mm: U64
    va: U64


def _in_ticks(events: npt.NDArray[Any], clock: Clock) -> _InTicks:
    time = clock.to_ticks(events["time"])
    time += np.uint64(
        1
    )  # the bus rounds down to ticks: an event after an access may seem before it
    kind = events["kind"].copy()
    address = np.where(kind == tracepoints.FAULT, events["va"], events["slot_pa"])
    base = events["va"] >> _LEAST_SHIFT
    changes = (events["mm"][1:] != events["mm"][:-1]) | (base[1:] != base[:-1])
    begins = np.flatnonzero(np.concatenate([np.ones(min(events.size, 1), np.bool_), changes]))
    return _InTicks(time, kind, address, begins, events["mm"][begins], events["va"][begins])


def _events(found: _InTicks, rpt: Rpt) -> Events:
    """The events, with the numbers of their ranges."""
    follow = np.diff(found.begins, append=found.time.size)
    mm = _by_value(found.mm, rpt.mm_index, np.uint64)
    range1, range2 = (
        _by_value(_keys(mm, found.va, level), partial(_range_of_key, rpt, level=level), np.int32)
        for level in _RANGE_SHIFT
    )
    return Events(
        found.time, found.kind, np.repeat(range1, follow), np.repeat(range2, follow), found.address
    )


def _keys(mm: U64, va: U64, level: int) -> U64:
    """Keys of the ranges that addresses belong to."""
    return mm << _MM_SHIFT | (va & _VA_MASK) >> np.uint64(_RANGE_SHIFT[level])


def _range_of_key(rpt: Rpt, key: int, level: int) -> int:
    return rpt.range_index(key >> 40, (key & ((1 << 40) - 1)) << _RANGE_SHIFT[level], level)


def _by_value(values: U64, of: Callable[[int], int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Apply `of` to each value; calls it once per distinct value."""
    unique, inverse = np.unique(values, return_inverse=True)
    found: npt.NDArray[Any] = np.array([of(value) for value in unique.tolist()], dtype)[inverse]
    return found


class _Nearest:
    """Distances of sorted times to the nearest of other times."""

    def __init__(self, ticks: U64) -> None:
        self._ticks = ticks.astype(np.int64)
        self._distance: I64 = np.full(ticks.size, np.iinfo(np.int64).max)
        self._before = np.empty(0, np.int64)  # the last of the other times so far
        self._done = 0

    def see(self, others: U64) -> None:
        """Add later ones of the other times."""
        if others.size:
            there = np.append(self._before, others.view(np.int64))
            self._find(there, int(np.searchsorted(self._ticks, there[-1])))
            self._before = there[-1:]

    def _find(self, there: I64, end: int) -> None:
        ticks = self._ticks[self._done : end]
        at = np.searchsorted(there, ticks)
        last = there.size - 1
        self._distance[self._done : end] = np.minimum(
            np.abs(there[np.minimum(at, last)] - ticks),
            np.abs(there[np.maximum(at - 1, 0)] - ticks),
        )
        self._done = max(self._done, end)

    def distance(self) -> I64:
        """The distances, after the last `see`; int64 maximum if there were no other times."""
        if self._before.size:
            self._find(self._before, self._ticks.size)
        return self._distance
