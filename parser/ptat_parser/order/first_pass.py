# SPDX-License-Identifier: BSD-2-Clause
"""First pass over a capture stream: finds losses, marks, stores and markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.chunks import ChunkContents, Lost, MarkRecord
from ptat_parser.capture.decode import END_OF_TIME
from ptat_parser.capture.merge import Reader
from ptat_parser.errors import ParseError
from ptat_parser.formats.session import Region
from ptat_parser.order.entry_pairs import EntryPairs
from ptat_parser.order.markers import MarkerStores

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, and the finished and total number of blocks."""

INTERVALS_MAX = 1 << 16


def no_progress(step: str, done: int, total: int) -> None:
    """Ignore progress."""


@dataclass
class Losses:
    """Accesses that did not reach the stream; lost `blocks` held an unknown number of them.

    `intervals`: start and end of each loss in ticks.
    """

    records: int = 0
    accesses: int = 0
    blocks: int = 0
    intervals: list[tuple[int, int]] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """Whether anything was lost."""
        return bool(self.records or self.blocks)

    def add_interval(self, since_ticks: int, until_ticks: int) -> None:
        """Add the interval of a loss; beyond a limit, extends the last interval instead."""
        if len(self.intervals) == INTERVALS_MAX:
            since, until = self.intervals.pop()
            since_ticks, until_ticks = min(since, since_ticks), max(until, until_ticks)
        self.intervals.append((since_ticks, until_ticks))


class FirstAccess(NamedTuple):
    """The first access of a chunk, with its number in the stream."""

    number: int
    ticks: int
    address: int
    write: bool


@dataclass
class CaptureScan:
    """Contents of the stream. Times are in ticks."""

    stores: MarkerStores
    losses: Losses = field(default_factory=Losses)
    accesses: int = 0
    first_ticks: int = 0
    last_ticks: int = 0
    started: bool = False
    stopped: bool = False
    link_errors: int = 0
    decode_errors: int = 0
    decoded_ticks: int = 0  # time of the last decode error
    sampled_one_in: int = 1
    chunks: list[FirstAccess | None] = field(default_factory=list)  # by chunk of the reader


def scan_capture(
    reader: Reader,
    region: Region,
    progress: Progress = no_progress,
    entry_stores: EntryPairs | None = None,
) -> CaptureScan:
    """Find everything in the stream except the reads, from its index or by a pass over all of it.

    `entry_stores` receives the stores.

    :raises ParseError: the stream is damaged, or its accesses are outside of `region`.
    """
    base, size_bytes = np.uint64(region.base), np.uint64(region.size_bytes)
    marker_bytes = np.uint64(region.marker_slots * region.marker_stride_bytes)
    found = CaptureScan(_no_stores())
    stores: list[tuple[npt.NDArray[Any], ...]] = []
    after_loss: list[npt.NDArray[np.bool_]] = []
    inside = False
    loss_pending = False
    for chunk in reader.contents():
        rows, ticks, address = chunk.stores
        inside |= bool(np.any(address - base < size_bytes))
        if rows.size or chunk.lost:
            is_marker = np.flatnonzero(address - base < marker_bytes)
            if entry_stores:
                entry_stores.note(ticks, address)
            rows = rows[is_marker]
            stores.append((rows + found.accesses, ticks[is_marker], address[is_marker]))
            lost_before = np.zeros(rows.size + 1, np.bool_)
            lost_before[np.searchsorted(rows, [lost.position for lost in chunk.lost])] = True
            lost_before[0] |= loss_pending
            loss_pending = bool(lost_before[-1])
            after_loss.append(lost_before[:-1])
        for first in chunk.firsts:
            at = first and FirstAccess(found.accesses + first[0], *first[1:])
            found.chunks.append(at)
        _count(chunk, found)
        done_blocks = min(len(found.chunks) * reader.chunk_blocks, reader.blocks)
        progress("reading", done_blocks, reader.blocks)
    if not found.started:
        found.losses.add_interval(0, found.first_ticks)
    if not found.stopped:
        found.losses.add_interval(found.last_ticks, END_OF_TIME)
    if found.accesses and not inside and not _any_inside(reader, region):
        raise ParseError(
            f"{reader.path}: none of {found.accesses} accesses lies in the region"
            f" {region.base:#x}+{region.size_bytes:#x}",
            "session.json and the capture are not of one recording",
        )
    if stores:
        position, time, address = (np.concatenate(column) for column in zip(*stores, strict=True))
        slot = (address - base) // np.uint64(region.marker_stride_bytes)
        after = np.concatenate(after_loss)
        found.stores = MarkerStores(position, time, slot.astype(np.int64), after)
    return found


def _any_inside(reader: Reader, region: Region) -> bool:
    base, size_bytes = np.uint64(region.base), np.uint64(region.size_bytes)
    return any(np.any(chunk.address - base < size_bytes) for chunk in reader)


def _count(chunk: ChunkContents, found: CaptureScan) -> None:
    records: list[Lost | MarkRecord] = [*chunk.lost, *chunk.marks]
    for record in sorted(records, key=attrgetter("time_ticks")):
        if isinstance(record, Lost):
            found.losses.records += 1
            found.losses.accesses += record.count or 0
            found.losses.blocks += record.blocks
            found.losses.add_interval(record.since_ticks, record.time_ticks)
        else:
            _count_mark(record, found)
    first = next(filter(None, chunk.firsts), None)
    if first:
        if not found.accesses:
            found.first_ticks = first[1]
        found.last_ticks = max(found.last_ticks, chunk.last_ticks)
    found.accesses += chunk.accesses


def _count_mark(mark: MarkRecord, found: CaptureScan) -> None:
    found.started |= mark.code == wire.Mark.START
    found.stopped |= mark.code == wire.Mark.STOP
    found.link_errors += mark.code == wire.Mark.LINK_ERROR
    if mark.code == wire.Mark.DECODE_ERROR:
        found.decode_errors += mark.argument >> wire.DECODE_ERROR_COUNT_SHIFT or 1
        found.losses.add_interval(found.decoded_ticks, mark.time_ticks)
        found.decoded_ticks = mark.time_ticks
    if mark.code == wire.Mark.SAMPLE:
        found.sampled_one_in = max(found.sampled_one_in, mark.argument)
    found.last_ticks = max(found.last_ticks, mark.time_ticks)


def _no_stores() -> MarkerStores:
    nothing = np.empty(0, np.int64)
    return MarkerStores(nothing, np.empty(0, np.uint64), nothing, np.empty(0, np.bool_))
