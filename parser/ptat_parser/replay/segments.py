# SPDX-License-Identifier: BSD-2-Clause
"""Cuts a stream into segments that are replayed independently, and joins their results.

A segment depends on earlier ones only through a checkpoint of the reverse page table: which tables
exist, and which of their entries were stored to. Only stores and table events change this state, so
segments can be replayed anywhere and in any order. Fault events are matched with reads of their own
segment, so the stream is cut far from fault events; each segment learns the delays between events
and reads anew.

The cuts follow from the capture alone, and page numbers from the tables, so the results are the
same, byte for byte, however the segments are distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.merge import Reader
from ptat_parser.capture.reader import BusReader
from ptat_parser.order.first_pass import CaptureScan, FirstAccess
from ptat_parser.replay.page_counts import PAGE_COLUMNS, merge, only_read
from ptat_parser.replay.page_tables import Rpt
from ptat_parser.replay.state import EXAMPLES, TALLY, Part, Record, Records, Segment

I64 = npt.NDArray[np.int64]

SEGMENT_ACCESSES = 1 << 24
"""Target accesses per segment. The final segments shrink to 1/8 of this."""

SEGMENTS_LEFT = 8
"""Split the remaining stream into this many segments, so that the last worker finishes shortly
after the others."""

QUIET_S = 1e-3
"""Cut at least this far from a fault event, if there is such a place."""


def plan(
    reader: Reader, found: CaptureScan, from_fault_ticks: I64, tick_hz: float
) -> list[Segment]:
    """The segments of a stream; a stream merged from several channels is not cut.

    `from_fault_ticks`: distance of each chunk's first access to the nearest fault event.
    """
    chunks = [0]
    if isinstance(reader, BusReader):
        quiet_ticks = int(QUIET_S * tick_hz)
        chunks += _cuts(found.chunks, found.accesses, from_fault_ticks, quiet_ticks)
    starts = [found.chunks[chunk] for chunk in chunks]
    return [
        Segment(
            number,
            chunk * reader.chunk_blocks,
            reader.blocks if end is None else end * reader.chunk_blocks,
            first.number if first else 0,
            after.number if after else found.accesses,
            first.ticks if first and number else 0,
            after.ticks if after else None,
        )
        for number, (chunk, first, end, after) in enumerate(
            zip(chunks, starts, [*chunks[1:], None], [*starts[1:], None], strict=True)
        )
    ]


def _cuts(
    chunks: list[FirstAccess | None], accesses: int, from_fault_ticks: I64, quiet_ticks: int
) -> list[int]:
    """The chunks before which to cut."""
    cuts = []
    since, wanted = 0, _wanted(accesses)
    best: tuple[int, int] | None = None  # distance to the nearest fault event, chunk
    for number, first in enumerate(chunks):
        if first is None or first.number < since + wanted:
            continue
        distance = min(int(from_fault_ticks[number]), quiet_ticks)
        best = max(best or (-1, 0), (distance, -number))
        if distance >= quiet_ticks or first.number >= since + 3 * wanted // 2:
            cuts.append(-best[1])
            cut = chunks[cuts[-1]]
            assert cut is not None
            since, best = cut.number, None
            wanted = _wanted(accesses - since)
    return cuts


def _wanted(left: int) -> int:
    """Target number of accesses of the next segment, if `left` remain."""
    return min(SEGMENT_ACCESSES, max(left // SEGMENTS_LEFT, SEGMENT_ACCESSES // 8))


@dataclass
class Replay:
    """A finished replay: the tables at its end, and the results of its segments (see `Part`).

    `tally` has one row of `TALLY`. `pages` has a column for each page that was read, sorted by page
    number; its rows are `page_counts.P_PAGE` …
    """

    rpt: Rpt
    pages: I64
    tally: Record
    unexplained: list[tuple[int, int, str]]
    doubts: list[tuple[int, int]]


class Joined:
    """Joins the results of the segments in order."""

    def __init__(self) -> None:
        self._tally = np.zeros(1, TALLY)
        self._walk_pmd = -1  # of the last segment's cursors
        self._unexplained: list[tuple[int, int, str]] = []
        self._doubts: list[tuple[int, int]] = []
        self._pages = np.empty((PAGE_COLUMNS, 0), np.int64)

    def add(self, part: Part) -> None:
        """Join the next segment."""
        tally = self._tally
        for name in tally.dtype.names or ():
            tally[name] += part.tally[name]
        pending, first = self._walk_pmd, int(part.cursors["first_read"][0])
        if pending >= 0 and first < 0:
            tally["walks_broken"] += 1
        elif pending >= 0 and first == pending + 1:  # the cut separates the two reads of a walk
            tally["walks_whole"] += 1
            tally["walks_broken"] -= 1
        self._walk_pmd = int(part.cursors["walk_pmd"][0])
        self._unexplained += part.unexplained[: EXAMPLES - len(self._unexplained)]
        self._doubts += part.doubts

    def add_pages(self, pages: I64) -> None:
        """Add the page counts of some segments; see `Replayer.take_pages`."""
        self._pages = merge(self._pages, pages) if self._pages.size else pages

    def whole(self, rpt: Rpt) -> Replay:
        """The whole replay; `rpt`: the tables at its end."""
        return Replay(rpt, only_read(self._pages), self._tally, self._unexplained, self._doubts)


class Output(Protocol):
    """Output of one segment's reads.

    A context manager: the output is complete after leaving it without error.
    """

    @property
    def records(self) -> Records:
        """The records that the replay fills."""

    def __enter__(self) -> object:
        """Start writing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish writing."""

    def make_room(self, used: int, settled: int, wanted: int) -> Records:
        """Write the first `settled` of the `used` rows.

        Returns records that begin with the remaining rows and have room for `wanted` more.
        """

    def write(self, rows: int) -> None:
        """Write the segment's last rows, the first `rows` of the records."""


MakeOutput = Callable[[Segment], Output | None]
"""Makes the output of a segment, or None to write nothing; called in several processes."""
