# SPDX-License-Identifier: BSD-2-Clause
"""Bus time ↔ kernel time.

Each marker store and its event are one moment seen by both clocks. The event is logged after
the store, by a delay that varies but is never negative: the truth is the line *below* all
pairs, found as the edge of their lower convex hull that spans the middle of the recording.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DRIFT_MAX = 1e-3
"""No crystal drifts more: the pairs are too few to tell, or the kernel's frequency is wrong."""

DELAY_MAX_NS = 100_000.0
"""Median delay of an event after its marker that a busy machine explains."""


@dataclass(frozen=True)
class Clock:
    """A linear map between the two clocks.

    `origin_ticks` of the bus is `origin_cycles` of the kernel's clock; `cycles_hz` is that clock's
    frequency, as the kernel has it unless `miscalibrated`; `residual_ns` is the median delay
    between a marker's store and its event.
    """

    origin_ticks: int
    origin_cycles: int
    cycles_per_tick: float
    cycles_hz: float
    drift_ppm: float
    residual_ns: float
    pairs: int
    miscalibrated: bool = False

    @property
    def origin_ns(self) -> int:
        """Kernel time of the origin."""
        return round(self.origin_cycles * 1e9 / self.cycles_hz)

    @property
    def ns_per_tick(self) -> float:
        """Length of a tick in kernel time."""
        return self.cycles_per_tick * 1e9 / self.cycles_hz

    def to_ns(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Bus ticks → ns of kernel time."""
        since = (ticks - np.uint64(self.origin_ticks)).view(np.int64)
        result: npt.NDArray[np.int64] = (since * self.ns_per_tick).astype(np.int64) + self.origin_ns
        return result

    def to_ticks(self, cycles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Kernel clock cycles → bus ticks; times before tick 0 become 0."""
        since = (cycles - np.uint64(self.origin_cycles)).view(np.int64)
        ticks = (since / self.cycles_per_tick).astype(np.int64) + self.origin_ticks
        return np.maximum(ticks, 0).astype(np.uint64)

    @classmethod
    def from_summary(cls, summary: dict[str, Any]) -> Clock:
        """The clock that wrote `summary`: its `to_ns` gives the very same values."""
        return cls(**summary)

    def summary(self) -> dict[str, Any]:
        """For ``summary.json``."""
        return asdict(self)


def fit(
    ticks: npt.NDArray[np.uint64],
    cycles: npt.NDArray[np.uint64],
    tick_hz: float,
    cycles_hz: float,
) -> Clock:
    """Fit the clock to marker pairs, shape ``(pairs,)`` each; without any, time starts at 0.

    Where the pairs contradict `cycles_hz` (a kernel that measured its TSC on a busy host), the
    board's `tick_hz` is believed.
    """
    nominal = cycles_hz / tick_hz
    if ticks.size == 0:
        return Clock(0, 0, nominal, cycles_hz, 0.0, 0.0, 0)
    order = np.argsort(ticks)
    origin_ticks, origin_cycles = int(ticks[order[0]]), int(cycles[order[0]])
    x = (ticks[order] - np.uint64(origin_ticks)).astype(np.float64)
    y = (cycles[order] - np.uint64(origin_cycles)).view(np.int64) - x * nominal
    slope, intercept = _edge_below(x, y)
    miscalibrated = False
    if abs(slope / nominal) > DRIFT_MAX:
        flat = float(y.min())
        miscalibrated = float(np.median(y - flat)) * 1e9 / cycles_hz > DELAY_MAX_NS
        if not miscalibrated:
            slope, intercept = 0.0, flat
    delay = y - (intercept + slope * x)
    if miscalibrated:
        nominal, slope = nominal + slope, 0.0
        cycles_hz = nominal * tick_hz
    return Clock(
        origin_ticks,
        origin_cycles + round(intercept),
        nominal + slope,
        cycles_hz,
        slope / nominal * 1e6,
        float(np.median(delay)) * 1e9 / cycles_hz,
        int(ticks.size),
        miscalibrated,
    )


def _edge_below(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Slope and intercept of the lower hull's edge at the mean of the sorted `x`."""
    hull: list[int] = []
    for i in range(x.size):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    if len(hull) < 2:
        return 0.0, float(y[hull[0]])
    middle = int(np.searchsorted(x[hull], x.mean()).clip(1, len(hull) - 1))
    a, b = hull[middle - 1], hull[middle]
    slope = float((y[b] - y[a]) / (x[b] - x[a])) if x[b] > x[a] else 0.0
    return slope, float(y[a] - slope * x[a])
