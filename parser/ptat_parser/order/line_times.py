# SPDX-License-Identifier: BSD-2-Clause
"""Accesses of lines, for lookup by line and time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

_TIME_BITS = 46
_TIME_MASK = (1 << _TIME_BITS) - 1


class LineTimes:
    """Accesses sorted by line, then time; `order` are their indices in the given arrays.

    Times are less than 2^46 ticks; the times of lookups may be larger.
    """

    def __init__(self, line: I64, time: I64) -> None:
        self._lines = np.unique(line)
        key = np.searchsorted(self._lines, line) << _TIME_BITS | time
        self.order = np.argsort(key, kind="stable")
        self._keys = key[self.order]
        self.size = self._keys.size
        self.time = time[self.order]

    def first_from(self, line: I64, time: I64) -> I64:
        """Index in the sorted order of each line's first access at or after a time, or -1."""
        return self._place(line, time, 0)

    def last_before(self, line: I64, time: I64) -> I64:
        """Index in the sorted order of each line's last access before a time, or -1."""
        return self._place(line, time, -1)

    def _place(self, line: I64, time: I64, step: int) -> I64:
        if not self.size:
            return np.full(line.size, -1, np.int64)
        rank = np.searchsorted(self._lines, line)
        inside = np.minimum(rank, self._lines.size - 1)
        known = self._lines[inside] == line
        key = inside << _TIME_BITS | np.clip(time, 0, _TIME_MASK)
        place = np.searchsorted(self._keys, key) + step
        there = np.clip(place, 0, self.size - 1)
        right = known & (place == there) & (self._keys[there] >> _TIME_BITS == inside)
        return np.where(right, there, -1)
