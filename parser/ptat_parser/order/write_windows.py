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
    """Lower bound of the delay from an event to its store, in ticks: the median of `_late_stores`.

    A store placed after its own WR would seem to be queued until the next one, with walks answered
    there; a store placed too early only seems to be written by an earlier WR.
    """
    writes = LineTimes(write_line, write_time)
    place = writes.first_from(stores.line, stores.time)
    delay = _late_stores(stores, writes, write_line, place, DELAY_MAX_S * tick_hz).delay
    return int(np.median(delay)) if delay.size >= DELAYS_MIN else 0


def windows(
    stores: Stores, write_line: I64, write_time: I64, slack: int, tick_hz: float
) -> Windows:
    """Time at which each store was written; `slack`: how far a WR may seem to precede its store."""
    writes = LineTimes(write_line, write_time)
    place = writes.first_from(stores.line, stores.time - slack)
    for _ in range(MOVES_MAX):
        late = _late_stores(stores, writes, write_line, place, DELAY_MAX_S * tick_hz)
        if not late.store.size:
            break
        place[late.store] = late.write
    until = np.where(place >= 0, writes.time[place] if writes.size else 0, STILL_QUEUED)
    return Windows(until, writes.size - np.unique(place[place >= 0]).size)


class _Late(NamedTuple):
    """Stores that came after the WR which follows their events: row, WR, and least delay."""

    store: I64
    write: I64
    delay: I64


def _late_stores(
    stores: Stores, writes: LineTimes, write_line: I64, place: I64, longest: float
) -> _Late:
    """The stores of the WR that seem to have none.

    Such a WR proves that the last store before the line's previous WR came after that one.

    :param place: the WR of each store in the order of `writes`, or -1.
    """
    line = write_line[writes.order]
    last = np.full(writes.size, -1, np.int64)  # store of each WR
    rows = np.flatnonzero(place >= 0)
    last[place[rows]] = rows
    write = np.flatnonzero((last[1:] < 0) & (last[:-1] >= 0) & (line[1:] == line[:-1])) + 1
    store = last[write - 1]
    delay = writes.time[write - 1] - stores.time[store]
    near = delay < longest
    return _Late(store[near], write[near], delay[near])


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
