# SPDX-License-Identifier: BSD-2-Clause
"""Intervals during which stores were in the controller's queue.

The first WR of a line after a store writes it together with all other queued stores of the line. An
underfill reads the rest of the line right before the WR, or earlier. While the line is queued, the
queue answers all other reads of it. So the underfill is the last RD of a line before its WR,
whenever that was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.order.line_times import LineTimes

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STILL_QUEUED = np.int64(1) << 45
"""Write time of a store whose WR was not recorded."""


class Stores(NamedTuple):
    """The kernel's stores to entries, from the log, sorted by their events' times.

    `present`: the entry becomes present. `page`: number of the 4 KiB page that the entry maps, or
    of the first one of a huge page; -1 if the store links a table. `mm`: address space.
    """

    time: I64
    address: npt.NDArray[np.uint64]
    line: I64
    mm: I64
    page: I64
    pages: I64
    present: Bools


class Windows(NamedTuple):
    """Time at which each store left the queue, and the number of WR without a store."""

    until: I64
    writes_without_event: int


DELAY_MAX_S = 10e-6
"""Upper limit of the delay from an event to its store; longer ones were not seen."""
MOVES_MAX = 8
"""Rounds: a store that is moved to a later WR may leave one that needs another store."""
DELAYS_MIN = 16
"""Fewest examples for an estimate."""


def store_delay(stores: Stores, write_line: I64, write_time: I64, tick_hz: float) -> int:
    """Lower bound of the delay from an event to its store, in ticks.

    If a WR seems to have no store, because the only recent event came slightly before the previous
    WR, then that event's store came after the previous WR.
    The result is the median of these delays. A store placed after its own WR would seem to be
    queued until the next one, with walks answered there; a store placed too early only seems to be
    written by an earlier WR.
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


def windows(
    stores: Stores, write_line: I64, write_time: I64, slack: int, tick_hz: float
) -> Windows:
    """Time at which each store was written; `slack`: how far a WR may seem to precede its store.

    A WR without a store proves that the last store before the previous WR came after that one.
    """
    writes = LineTimes(write_line, write_time)
    place = writes.first_from(stores.line, stores.time - slack)
    line = write_line[writes.order]
    for _ in range(MOVES_MAX):
        last = np.full(writes.size, -1, np.int64)  # store of each WR
        rows = np.flatnonzero(place >= 0)
        last[place[rows]] = rows
        to = np.flatnonzero((last[1:] < 0) & (last[:-1] >= 0) & (line[1:] == line[:-1])) + 1
        store, previous = last[to - 1], writes.time[to - 1]
        late = previous - stores.time[store] < DELAY_MAX_S * tick_hz
        if not np.any(late):
            break
        place[store[late]] = to[late]
    until = np.where(place >= 0, writes.time[place] if writes.size else 0, STILL_QUEUED)
    return Windows(until, writes.size - np.unique(place[place >= 0]).size)


def underfills(
    line: I64, time: I64, write_line: I64, write_time: I64, pending_line: I64, pending_time: I64
) -> tuple[Bools, int]:
    """Mask of the reads that are underfills, and the number of WR without one.

    :param pending_line: lines of stores that were still queued at the end; each may have an early
        underfill after its `pending_time`.
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
