# SPDX-License-Identifier: BSD-2-Clause
"""From when until when stores were in the controller's queue.

The first WR of a store's line after the store takes it along with all others of the line that wait.
What a WR found in the DIMM (`underfill`) is read right before it, or early; while the line is in
the queue, other reads of it are answered there. So the last RD of a line before a WR of it is the
underfill, whenever that was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.order.line_times import LineTimes

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STILL_QUEUED = np.int64(1) << 45
"""When a store is written whose WR was not recorded."""


class Stores(NamedTuple):
    """Stores of the kernel to entries, in order of time: from the log, at their events' times.

    `present`: the entry is present from then on. `page`: what a PTE or huge page serves, as number
    of pages of 4 KiB; -1 where the store links a table. `mm`: whose.
    """

    time: I64
    address: npt.NDArray[np.uint64]
    line: I64
    mm: I64
    page: I64
    pages: I64
    present: Bools


class Windows(NamedTuple):
    """When each store left the queue, and how many WR no store explains."""

    until: I64
    writes_without_event: int


DELAY_MAX_S = 5e-6
"""A store comes sooner after its event."""
DELAYS_MIN = 16
"""Fewer examples do not tell."""


def store_delay(stores: Stores, write_line: I64, write_time: I64, tick_hz: float) -> int:
    """How long after its event a store comes, in ticks, at the least.

    Where a WR seems to be of no store, as the only event since the WR before it came a little
    before that one, that event's store was later than the WR before. The median of these delays: a
    store that is put behind its own WR would seem to be in the queue until the next one, and walks
    to be answered there; one that is put too early only seems to be written by a WR before.
    """
    events, writes = LineTimes(stores.line, stores.time), LineTimes(write_line, write_time)
    if not events.size or not writes.size:
        return 0
    place = writes.first_from(stores.line, stores.time)
    alone = np.setdiff1d(np.arange(writes.size), place)
    line, time = write_line[writes.order[alone]], writes.time[alone]
    before = writes.last_before(line, time)
    event = events.last_before(line, writes.time[before])
    delay = np.where((before >= 0) & (event >= 0), writes.time[before] - events.time[event], -1)
    delay = delay[(delay >= 0) & (delay < DELAY_MAX_S * tick_hz)]
    return int(np.median(delay)) if delay.size >= DELAYS_MIN else 0


def windows(stores: Stores, write_line: I64, write_time: I64, slack: int) -> Windows:
    """When each store was written; `slack`: a WR may seem to be so much before its store."""
    writes = LineTimes(write_line, write_time)
    place = writes.first_from(stores.line, stores.time - slack)
    until = np.where(place >= 0, writes.time[place] if writes.size else 0, STILL_QUEUED)
    explained = np.unique(place[place >= 0]).size
    return Windows(until, writes.size - explained)


def underfills(
    line: I64, time: I64, write_line: I64, write_time: I64, pending_line: I64, pending_time: I64
) -> tuple[Bools, int]:
    """Which reads, of those lines and times, are underfills; how many WR have none.

    :param pending_line: of stores that were not written while recording, which may have an early
        underfill since `pending_time`.
    """
    found = np.zeros(line.size, np.bool_)
    reads, writes = LineTimes(line, time), LineTimes(write_line, write_time)
    read = reads.last_before(write_line, write_time)
    before = writes.last_before(write_line, write_time)
    since = np.where(before >= 0, writes.time[before] if writes.size else 0, -1)
    has = (read >= 0) & ((reads.time[read] if reads.size else -1) > since)
    found[reads.order[read[has]]] = True
    early = reads.first_from(pending_line, pending_time)
    found[reads.order[early[early >= 0]]] = True
    return found, int(np.count_nonzero(~has))
