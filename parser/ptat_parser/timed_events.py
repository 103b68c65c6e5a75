# SPDX-License-Identifier: BSD-2-Clause
"""The log's events without a marker, in bus ticks, for each span of a replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser import kernel_log
from ptat_parser.clock import Clock
from ptat_parser.replay_data import NO_EVENTS, Config, Events, Span, Timed, waiting
from ptat_parser.rpt import ENTRIES, ENTRY_SHIFT, Rpt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_RANGE_SHIFT = {level: shift + (ENTRIES - 1).bit_length() for level, shift in ENTRY_SHIFT.items()}
"""Of the range that a table of each level serves."""

_MM_SHIFT = np.uint64(40)
_VA_MASK = np.uint64((1 << 61) - 1)


class TimedEvents:
    """Those that may be relied on, as a `Config` says which do.

    Their ranges are numbered in the reverse page table at once, whatever spans are replayed where.
    """

    def __init__(
        self, log: kernel_log.TimedLog, clock: Clock, config: Config, rpt: Rpt, ticks: U64
    ) -> None:
        self._log, self._clock = log, clock
        self._known: dict[tuple[bool, bool], Events] = {}  # of all spans, by what is relied on
        spaces: dict[int, int] = {}
        keys = np.empty(0, np.uint64)
        nearest = _Nearest(ticks)
        for events in log.batches():
            wanted = _wanted(events, config)
            faults = wanted["time"][wanted["kind"] == kernel_log.FAULT]
            nearest.see(_ticks_of(faults, clock))
            wanted = wanted[_begins(wanted)]
            mm = _by_value(wanted["mm"], lambda mm: spaces.setdefault(mm, len(spaces)), np.uint64)
            keys = np.union1d(keys, _keys(mm, wanted["va"], 1))
        self.from_fault_ticks = nearest.distance()
        """How far each of the times `ticks` is from a fault event; the most there is: from none."""
        index = {mm: rpt.mm_index(mm) for mm in sorted(spaces)}
        of_space = np.array([index[mm] for mm in spaces], np.uint64)
        mm, va = of_space[keys >> _MM_SHIFT], keys << np.uint64(_RANGE_SHIFT[1]) & _VA_MASK
        for level in _RANGE_SHIFT:
            for key in np.unique(_keys(mm, va, level)).tolist():
                _range_of_key(rpt, key, level)

    def of(self, span: Span, config: Config, rpt: Rpt) -> Timed:
        """Those of a span's time; none has waited yet."""
        log, clock = self._log, self._clock
        if not (config.faults * log.faults or config.entries * log.entries):
            return waiting(NO_EVENTS)
        relied_on = config.faults, config.entries
        if log.is_remembered:
            if relied_on not in self._known:
                self._known[relied_on] = _events(_wanted(log.between(), config), clock, rpt)
            events = self._known[relied_on]
        else:
            events = _events(_wanted(log.between(*self._around(span)), config), clock, rpt)
        ticks = events.time
        inside = slice(
            np.searchsorted(ticks, np.uint64(span.start_ticks)) if span.number else None,
            None if span.end_ticks is None else np.searchsorted(ticks, np.uint64(span.end_ticks)),
        )
        return waiting(Events._make(column[inside] for column in events))

    def _around(self, span: Span) -> tuple[int, int]:
        """Clock cycles of the first and last events that may be of a span's time."""
        clock = self._clock
        around = 2 + math.ceil(2 * clock.cycles_per_tick)
        since, until = 0, kernel_log.END_OF_CYCLES
        if span.number:
            since = min(max(clock.to_cycles(span.start_ticks) - around, 0), until)
        if span.end_ticks is not None:
            until = min(max(clock.to_cycles(span.end_ticks) + around, 0), until)
        return since, until

    def __getstate__(self) -> dict[str, Any]:
        """Without what the log tells again."""
        return self.__dict__ | {"_known": {}}


def _wanted(events: npt.NDArray[Any], config: Config) -> npt.NDArray[Any]:
    """Those events that may be relied on."""
    wanted = np.zeros(len(kernel_log.TIMED_KINDS), np.bool_)
    wanted[kernel_log.FAULT] = config.faults
    wanted[kernel_log.ENTRY_SET] = wanted[kernel_log.ENTRY_CLEAR] = config.entries
    found = wanted[events["kind"]]
    return events if found.all() else events[found]


def _ticks_of(cycles: U64, clock: Clock) -> U64:
    # The bus shows whole ticks: an event after an access may seem a tick before it.
    return clock.to_ticks(cycles) + np.uint64(1)


def _begins(events: npt.NDArray[Any]) -> I64:
    """The events of another range than the one before; most are of the same."""
    mm, base = events["mm"], events["va"] >> np.uint64(_RANGE_SHIFT[1])
    return np.flatnonzero(np.append(True, (mm[1:] != mm[:-1]) | (base[1:] != base[:-1]))[: mm.size])


def _events(events: npt.NDArray[Any], clock: Clock, rpt: Rpt) -> Events:
    """These events in bus ticks, with the numbers of their ranges."""
    is_fault = events["kind"] == kernel_log.FAULT
    begins = _begins(events)
    follow = np.diff(begins, append=events.size)
    mm = _by_value(events["mm"][begins], rpt.mm_index, np.uint64)
    va = events["va"][begins]
    range1, range2 = (
        _by_value(_keys(mm, va, level), partial(_range_of_key, rpt, level=level), np.int32)
        for level in _RANGE_SHIFT
    )
    return Events(
        _ticks_of(events["time"], clock),
        events["kind"].copy(),
        np.repeat(range1, follow),
        np.repeat(range2, follow),
        np.where(is_fault, events["va"], events["slot_pa"]),
    )


def _keys(mm: U64, va: U64, level: int) -> U64:
    """Numbers of the ranges that addresses belong to."""
    return mm << _MM_SHIFT | (va & _VA_MASK) >> np.uint64(_RANGE_SHIFT[level])


def _range_of_key(rpt: Rpt, key: int, level: int) -> int:
    return rpt.range_index(key >> 40, (key & ((1 << 40) - 1)) << _RANGE_SHIFT[level], level)


def _by_value(values: U64, of: Callable[[int], int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """What a function gives for each value, of which there are few."""
    unique, inverse = np.unique(values, return_inverse=True)
    found: npt.NDArray[Any] = np.array([of(value) for value in unique.tolist()], dtype)[inverse]
    return found


class _Nearest:
    """How far each of some times, which are sorted, is from the nearest of others."""

    def __init__(self, ticks: U64) -> None:
        self._ticks = ticks.astype(np.int64)
        self._distance: I64 = np.full(ticks.size, np.iinfo(np.int64).max)
        self._before = np.empty(0, np.int64)  # the last of those seen
        self._done = 0

    def see(self, others: U64) -> None:
        """More of the others, later ones."""
        if others.size:
            there = np.append(self._before, others.astype(np.int64))
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
        """When all others were seen; the most that there is where there are none."""
        if self._before.size:
            self._find(self._before, self._ticks.size)
        return self._distance
