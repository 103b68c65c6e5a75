# SPDX-License-Identifier: BSD-2-Clause
"""Bus time ↔ kernel time.

A marker store and its event are one moment seen by both clocks. The event is logged after the
store, with a delay that varies but is never negative. So the true relation is a line *below* all
pairs; the fit takes the edge of their lower convex hull that spans the middle of the recording.

An entry event is logged before the entry is stored to the region, so the true line is *above* all
of these pairs (`entry_pairs`). The gap between the two bounds is the reported error. Delays of both
kinds are modelled as exponential: the most likely line minimises the sum of delays, each in units
of its kind's median delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.formats.session import MARKER_DELAY_NS, Session

DRIFT_MAX = 1e-3
"""Largest plausible drift. Beyond it, the pairs are too few or the kernel's frequency is wrong."""

SEARCH_STEPS = 100
"""Each step leaves two thirds of the interval; this many exhaust a float's precision."""


class Pairs(NamedTuple):
    """Pairs of bus time (ticks) and kernel time (cycles) of the same moment, shape ``(pairs,)``.

    Which of the two is the earlier depends on the kind of pair: see the module.
    """

    ticks: npt.NDArray[np.uint64]
    cycles: npt.NDArray[np.uint64]


class NominalClocks(NamedTuple):
    """What a session says of its clocks; `cycles_hz` may be wrong by a factor.

    `delay_max_ns`: by which the median event is logged after its marker's store, at most.
    """

    tick_hz: float
    cycles_hz: float
    delay_max_ns: float = MARKER_DELAY_NS

    @classmethod
    def of(cls, session: Session) -> NominalClocks:
        """Those of a session."""
        return cls(session.channel.tick_hz, session.kernel.tsc_hz, session.board.marker_delay_ns)

    @property
    def cycles_per_tick(self) -> float:
        """Their ratio."""
        return self.cycles_hz / self.tick_hz


NO_PAIRS = Pairs(np.empty(0, np.uint64), np.empty(0, np.uint64))


@dataclass(frozen=True)
class Clock:
    """A linear map between the two clocks.

    `origin_ticks` of the bus corresponds to `origin_cycles` of the kernel's clock. `cycles_hz` is
    the frequency of the kernel's clock: the kernel's own value unless `miscalibrated`.
    `residual_ns` is the median delay from a marker's store to its event. `pairs` and `entry_pairs`
    count the markers and entries used. `error_ns` bounds the error at either end of the recording,
    and is None without entry pairs.
    """

    origin_ticks: int
    origin_cycles: int
    cycles_per_tick: float
    cycles_hz: float
    drift_ppm: float
    residual_ns: float
    pairs: int
    miscalibrated: bool = False
    entry_pairs: int = 0
    error_ns: float | None = None

    @property
    def origin_ns(self) -> int:
        """Kernel time of the origin."""
        return round(self.origin_cycles * 1e9 / self.cycles_hz)

    @property
    def offset_ns(self) -> int:
        """Kernel time of tick 0 of the bus."""
        return self.origin_ns - round(self.origin_ticks * self.ns_per_tick)

    @property
    def ns_per_tick(self) -> float:
        """Length of a tick in kernel time."""
        return self.cycles_per_tick * 1e9 / self.cycles_hz

    @property
    def error_ticks(self) -> int:
        """Bound of the clocks' error in bus ticks, as far as the pairs show."""
        error_ns = self.residual_ns if self.error_ns is None else self.error_ns
        return round(error_ns / self.ns_per_tick)

    def to_ns(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Bus ticks → ns of kernel time."""
        since = (ticks - np.uint64(self.origin_ticks)).view(np.int64)
        result: npt.NDArray[np.int64] = (since * self.ns_per_tick).astype(np.int64) + self.origin_ns
        return result

    def ns(self, ticks: int) -> int:
        """Convert one time."""
        return int(self.to_ns(np.array([ticks], np.uint64))[0])

    def to_ticks(self, cycles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Kernel clock cycles → bus ticks; times before tick 0 become 0."""
        since = (cycles - np.uint64(self.origin_cycles)).view(np.int64)
        ticks = (since / self.cycles_per_tick).astype(np.int64) + self.origin_ticks
        found: npt.NDArray[np.uint64] = np.maximum(ticks, 0).view(np.uint64)
        return found

    def to_cycles(self, ticks: int) -> int:
        """A bus tick → kernel clock cycles, accurate to about a tick."""
        return self.origin_cycles + math.floor((ticks - self.origin_ticks) * self.cycles_per_tick)

    @classmethod
    def from_summary(cls, summary: dict[str, Any]) -> Clock:
        """The clock that wrote `summary`; its `to_ns` returns identical values."""
        return cls(**{field.name: summary[field.name] for field in fields(cls)})

    def summary(self) -> dict[str, Any]:
        """The clock as a part of ``summary.json``."""
        return asdict(self) | {"offset_ns": self.offset_ns}


def fit(pairs: Pairs, clocks: NominalClocks, entries: Pairs = NO_PAIRS) -> Clock:
    """Fit the clock to marker pairs; without any, time starts at 0.

    `entries` are pairs of entry events and stores. If the median delay would exceed that of
    `clocks`, the pairs contradict its `cycles_hz` (the kernel measured its TSC on a busy host), and
    the fit trusts the board's `tick_hz` instead.
    """
    (ticks, cycles), cycles_hz = pairs, clocks.cycles_hz
    nominal = clocks.cycles_per_tick
    if ticks.size == 0:
        return Clock(0, 0, nominal, cycles_hz, 0.0, 0.0, 0)
    order = np.argsort(ticks)
    origin_ticks, origin_cycles = int(ticks[order[0]]), int(cycles[order[0]])

    def relative(pairs: Pairs) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        x = (pairs.ticks - np.uint64(origin_ticks)).view(np.int64).astype(np.float64)
        return x, (pairs.cycles - np.uint64(origin_cycles)).view(np.int64) - x * nominal

    x, y = relative(Pairs(ticks[order], cycles[order]))
    slope, intercept = _edge_below(x, y)
    miscalibrated = False
    if abs(slope / nominal) > DRIFT_MAX:
        flat = float(y.min())
        miscalibrated = float(np.median(y - flat)) * 1e9 / cycles_hz > clocks.delay_max_ns
        if not miscalibrated:
            slope, intercept = 0.0, flat
    error = None
    if entries.ticks.size and not miscalibrated:
        markers, stores = _Edge(x, y), _Edge(*relative(entries), above=True)
        slope, error = _between(markers, stores, slope, DRIFT_MAX * nominal)
        intercept = markers.intercept(slope)
    delay = y - (intercept + slope * x)
    if miscalibrated:
        nominal, slope = nominal + slope, 0.0
        cycles_hz = nominal * clocks.tick_hz
    return Clock(
        origin_ticks,
        origin_cycles + round(intercept),
        nominal + slope,
        cycles_hz,
        slope / nominal * 1e6,
        float(np.median(delay)) * 1e9 / cycles_hz,
        int(ticks.size),
        miscalibrated,
        0 if error is None else int(entries.ticks.size),
        None if error is None else error * 1e9 / cycles_hz,
    )


def _edge_below(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Slope and intercept of the lower hull's edge at the mean of the sorted `x`."""
    hull = _lower_hull(x, y)
    if len(hull) < 2:
        return 0.0, float(y[hull[0]])
    middle = int(np.searchsorted(x[hull], x.mean()).clip(1, len(hull) - 1))
    a, b = hull[middle - 1], hull[middle]
    slope = float((y[b] - y[a]) / (x[b] - x[a])) if x[b] > x[a] else 0.0
    return slope, float(y[a] - slope * x[a])


def _lower_hull(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Indices of the lower convex hull of the points, which are sorted by `x`."""
    xs, ys = x.tolist(), y.tolist()
    hull: list[int] = []
    for i, (at, value) in enumerate(zip(xs, ys, strict=True)):
        while len(hull) >= 2:
            a, b = hull[-2:]
            if (ys[b] - ys[a]) * (at - xs[a]) < (value - ys[a]) * (xs[b] - xs[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, np.int64)


class _Edge:
    """Points that bound the clock's line from above, or from below if `above`."""

    def __init__(
        self, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], above: bool = False
    ) -> None:
        self._sign = -1 if above else 1
        order = np.argsort(x)
        x, y = x[order], self._sign * y[order]
        hull = _lower_hull(x, y)
        self.points = x, y
        self._x, self._y = x[hull], y[hull]
        self.ends = float(x[0]), float(x[-1])

    def intercept(self, slope: float) -> float:
        """Intercept of the line of this slope that touches the points."""
        return float(self._sign * (self._y - self._sign * slope * self._x).min())

    def likelihood(self, slope: float) -> Callable[[float], float]:
        """Log-likelihood as a function of the slope; `slope` is near the true one."""
        x, y = self.points
        mean = float(x.mean())
        delay = y - self._sign * (slope * x + self.intercept(slope))
        weight = x.size / max(float(np.median(delay)), 1.0)
        return lambda s: weight * self._sign * (self.intercept(s) + s * mean)


def _between(below: _Edge, above: _Edge, near: float, most: float) -> tuple[float, float]:
    """The most likely slope, at most `most`, of a line between the two sets of points.

    Also returns the largest distance of such a line from the line that touches `below`. If no line
    fits between the sets, the slope is the most likely of all, and the distance is by how much the
    sets contradict each other.
    """

    def room(slope: float) -> float:
        return below.intercept(slope) - above.intercept(slope)

    widest = _maximum(room, -most, most)
    if room(widest) >= 0:
        least, most = (_zero(room, widest, end) for end in (-most, most))
    else:
        least = -most
    for _ in range(5):  # the median delays depend slightly on the slope
        of_below, of_above = below.likelihood(near), above.likelihood(near)
        near = _maximum(lambda s, a=of_below, b=of_above: a(s) + b(s), least, most)  # type: ignore[misc]
    if room(widest) < 0:
        return near, -room(near)
    error = 0.0
    for x in (min(below.ends[0], above.ends[0]), max(below.ends[1], above.ends[1])):
        here = below.intercept(near) + near * x
        highest = _maximum(lambda s, x=x: below.intercept(s) + s * x, least, most)  # type: ignore[misc]
        lowest = _maximum(lambda s, x=x: -above.intercept(s) - s * x, least, most)  # type: ignore[misc]
        error = max(
            error,
            below.intercept(highest) + highest * x - here,
            here - above.intercept(lowest) - lowest * x,
        )
    return near, error


def _maximum(of: Callable[[float], float], low: float, high: float) -> float:
    """Argument of the maximum of a concave function."""
    for _ in range(SEARCH_STEPS):
        third = (high - low) / 3
        if of(low + third) < of(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _zero(of: Callable[[float], float], inside: float, outside: float) -> float:
    """Where a function stops being positive between `inside` and `outside`, or `outside`."""
    if of(outside) >= 0:
        return outside
    for _ in range(SEARCH_STEPS):
        middle = (inside + outside) / 2
        if of(middle) >= 0:
            inside = middle
        else:
            outside = middle
    return inside
