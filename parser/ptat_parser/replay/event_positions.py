# SPDX-License-Identifier: BSD-2-Clause
"""The positions at which to apply table events, and the positions of losses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.chunks import AnyChunk
from ptat_parser.order import markers

U64 = npt.NDArray[np.uint64]

LOSS, NOTHING = -1, -2
"""Steps that are not events."""


class EventPositions:
    """Applies table events by position, or by time (`ticks`) where the marker was lost.

    `started`: nothing is missing before the first access; `losses`: positions of accesses before
    which kernel events were lost; `lost`: something was lost right before the next access.
    """

    def __init__(
        self, placement: markers.Placement, ticks: U64, started: bool, losses: tuple[int, ...]
    ) -> None:
        self._losses = losses
        self.lost = not started
        placed = np.flatnonzero(placement.position >= 0)
        placed = placed[np.argsort(placement.position[placed], kind="stable")]
        self._placed: list[int] = placed.tolist()
        self._position: list[int] = placement.position[placed].tolist()
        late = np.flatnonzero(placement.position == markers.BY_TIME)
        late = late[np.argsort(ticks[late], kind="stable")]
        self._late: list[int] = late.tolist()
        self._late_ticks: list[int] = ticks[late].tolist()
        self._next_placed = 0
        self._next_late = 0

    def within(self, chunk: AnyChunk, first: int) -> list[tuple[int, int]]:
        """The steps in a chunk whose first access has the number `first`.

        Pairs of a position in the chunk and an event or `LOSS`, sorted by position.
        """
        size = chunk.accesses
        if not size:
            self.lost |= bool(chunk.lost)
            return []
        # Events whose markers were lost in a gap come first in it. The gap ends at the next marker
        # that was not lost.
        end = bisect_right(self._late_ticks, chunk.last_ticks, lo=self._next_late)
        steps: list[tuple[int, int]] = []
        if end > self._next_late:
            here = slice(self._next_late, end)
            at = np.searchsorted(chunk.decoded().time, np.array(self._late_ticks[here], np.uint64))
            steps += zip(at.tolist(), self._late[here], strict=True)
            self._next_late = end
        positions = [0] * self.lost + [lost.position for lost in chunk.lost]
        positions = sorted(
            [*positions, *(p - first for p in self._losses if 0 <= p - first < size)]
        )
        steps += [(position, LOSS) for position in positions if position < size]
        self.lost = positions[-1:] == [size]
        steps += [(position - first, event) for position, event in self.until(first + size)]
        return sorted(steps, key=lambda step: step[0])

    @property
    def is_placed(self) -> bool:
        """Whether nothing was lost and each event has its marker."""
        return not (self.lost or self._late or self._losses)

    def until(self, end: int) -> list[tuple[int, int]]:
        """Position and event of the remaining events before the access `end`."""
        here = slice(self._next_placed, bisect_left(self._position, end, lo=self._next_placed))
        self._next_placed = here.stop
        return list(zip(self._position[here], self._placed[here], strict=True))

    def rest(self, end_ticks: np.uint64) -> list[int]:
        """The remaining events after the last access and before `end_ticks`."""
        end = bisect_left(self._late_ticks, int(end_ticks))
        late = self._late[self._next_late : end]
        self._next_late = max(end, self._next_late)
        return late
