# SPDX-License-Identifier: BSD-2-Clause
"""Accesses of lines, for lookup by line and time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class LineTimes:
    """Accesses sorted by line, then time; `order` are their indices in the given arrays."""

    def __init__(self, line: I64, time: I64) -> None:
        self._lines, row = np.unique(line, return_inverse=True)
        self._times, rank = np.unique(time, return_inverse=True)
        # Ranks instead of the times themselves, as lines and times do not fit into one integer.
        key = row * (self._times.size + 1) + rank
        self.order = np.argsort(key, kind="stable")
        self._keys = key[self.order]
        self._row = row[self.order]
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
        row = np.minimum(np.searchsorted(self._lines, line), self._lines.size - 1)
        key = row * (self._times.size + 1) + np.searchsorted(self._times, time)
        place = np.searchsorted(self._keys, key) + step
        there = np.clip(place, 0, self.size - 1)
        right = (self._lines[row] == line) & (place == there) & (self._row[there] == row)
        return np.where(right, there, -1)
