# SPDX-License-Identifier: BSD-2-Clause
"""Infers the walks that a controller answered from its queue, of which the bus shows nothing.

A walk that faults is answered there if a store of its line waits, usually a neighbour's. Else it
is the last read of the line before the fault's event.

After a fault and the handler's store to the entry, the access walks again: for certain, as the TLB
holds nothing of a walk that faulted. It is what its thread does next. So if the address space walks
more than an instruction needs, or faults again, before the line is read after its WR, the queue
answered the retry. With several CPUs, other threads may do that too: a read soon after the store
is the retry then. Where this is not certain it is counted as in doubt.

Other walks of a line in the queue leave no trace. A page can have had one if its entry was stored
since its last walk, or if its TLB entry can have been evicted: `possible`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.order.line_times import LineTimes
from ptat_parser.order.write_windows import STILL_QUEUED, Stores

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LINE_BYTES, WORD_BYTES = 64, 8
HANDLER_MAX_S = 0.05
"""A store so long after a fault is not its handler's."""
LAG_MAX_S = 50e-6
"""A fault's event, and a retry after its store, usually come sooner than this."""
WALKS_MAX = 3
"""An instruction that is retried after its thread waited needs so many walks besides: its code,
and other operands.
"""


class Pages(NamedTuple):
    """Moments in the life of pages, in order of time: whose, the number of the page, when."""

    mm: I64
    page: I64
    time: I64


class Links(NamedTuple):
    """When tables were linked, in order of time, and the addresses of the entries.

    `page`: number of the first 4 KiB page that the table serves; `level`: of the table.
    """

    mm: I64
    page: I64
    level: I64
    time: I64
    address: npt.NDArray[np.uint64]


class Walks(NamedTuple):
    """Reads by walks that were seen, in order of time.

    `mm`: whose table, -1 where unknown; `ends`: an entry of a PTE table.
    """

    time: I64
    line: I64
    mm: I64
    ends: Bools


class Reads(NamedTuple):
    """Walks that were inferred: when, about, and the address of the entry."""

    time: I64
    address: npt.NDArray[np.uint64]


NO_READS = Reads(np.empty(0, np.int64), np.empty(0, np.uint64))


@dataclass
class Inferred:
    """What `infer` found."""

    retries: Reads
    faults: Reads
    in_doubt: int
    """Retries that may have been answered, though a read of the line came soon after the WR."""
    possible: int
    """Further misses, at the most."""


class _Known(NamedTuple):
    """Faults that a store followed, in order of time: when, whose, the store's row, and the entry
    that the walk ended at.
    """

    time: I64
    mm: I64
    store: I64
    address: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Queue:
    """Stores, when each was written, and whether a queued line answers all reads of it.

    `whole_lines`: underfill makes lines in the queue whole; else only stored words are known.
    """

    stores: Stores
    until: I64
    whole_lines: bool

    def last_before(self, address: npt.NDArray[np.uint64], time: I64) -> tuple[I64, I64]:
        """When the last store before a time that may answer a read of an address came and went."""
        unit = np.uint64(LINE_BYTES if self.whole_lines else WORD_BYTES)
        stores = self.stores
        units = LineTimes((stores.address // unit).astype(np.int64), stores.time)
        place = units.last_before((address // unit).astype(np.int64), time)
        if not units.size:
            return place - STILL_QUEUED, place - STILL_QUEUED
        row = units.order[place]
        there = place >= 0
        return (
            np.where(there, stores.time[row], -STILL_QUEUED),
            np.where(there, self.until[row], -STILL_QUEUED),
        )


def infer(
    walks: Walks, queue: Queue, faults: Pages, links: Links, tick_hz: float, cpus: int
) -> Inferred:
    """Infer the walks that the queue answered."""
    if not queue.stores.time.size:
        return Inferred(NO_READS, NO_READS, 0, 0)
    known = _with_stores(faults, queue.stores, links, HANDLER_MAX_S * tick_hz)
    answered, faulted = _answered_faults(walks, queue, known, LAG_MAX_S * tick_hz)
    others = np.ones(walks.time.size, np.bool_)
    others[faulted] = False
    retries, in_doubt = _retries(walks, others, queue, known, faults, (LAG_MAX_S * tick_hz, cpus))
    possible = _possible(walks, queue, known, faults, retries)
    return Inferred(retries, answered, in_doubt, possible)


def _key(mm: I64, page: I64, shift: int) -> I64:
    return mm << 36 | page >> shift


def _with_stores(faults: Pages, stores: Stores, links: Links, longest: float) -> _Known:
    """The faults, each with the store that made its page present; the last before each store."""
    store = np.full(faults.time.size, -1, np.int64)
    for pages, shift in ((1, 0), (512, 9)):
        rows = np.flatnonzero(stores.present & (stores.pages == pages))
        sets = LineTimes(_key(stores.mm[rows], stores.page[rows], shift), stores.time[rows])
        place = sets.first_from(_key(faults.mm, faults.page, shift), faults.time)
        row = np.where(place >= 0, rows[sets.order[place]] if rows.size else -1, -1)
        sooner = (row >= 0) & ((store < 0) | (stores.time[row] < stores.time[store]))
        store = np.where(sooner, row, store)
    near = (store >= 0) & (stores.time[store] - faults.time <= longest)
    # Of several faults before one store the last is retried.
    last = np.append(store[1:] != store[:-1], True)
    chosen = np.flatnonzero(near & last)
    time, store = faults.time[chosen], store[chosen]
    address: npt.NDArray[np.uint64] = stores.address[store].copy()
    for level, shift in ((1, 9), (2, 18)):
        rows = np.flatnonzero(links.level == level)
        linked = LineTimes(_key(links.mm[rows], links.page[rows], shift), links.time[rows])
        key = _key(faults.mm[chosen], faults.page[chosen], shift)
        place = linked.first_from(key, time)
        there = (place >= 0) & ((linked.time[place] if rows.size else 0) <= stores.time[store])
        # The walk ended at the entry that the handler linked a table to.
        address[there] = links.address[rows[linked.order[place[there]]]]
    return _Known(time, faults.mm[chosen], store, address)


def _answered_faults(
    walks: Walks, queue: Queue, known: _Known, longest: float
) -> tuple[Reads, I64]:
    """The walks that faulted and were answered by the queue, and which seen walks faulted."""
    line = (known.address // np.uint64(LINE_BYTES)).astype(np.int64)
    before, written = queue.last_before(known.address, known.time)
    by_line = LineTimes(walks.line, walks.time)
    place = by_line.last_before(line, known.time)
    seen = np.where(place >= 0, by_line.time[place] if by_line.size else 0, -STILL_QUEUED)
    answered = (written > known.time - longest) & (seen < written)
    # A read before the store, which is seen late, or much too early is another's.
    usual = ~answered & (seen > np.maximum(written, before)) & (known.time - seen < longest)
    lag = np.int64(np.median((known.time - seen)[usual])) if np.any(usual) else np.int64(1)
    time = np.minimum(np.maximum(known.time - lag, before + 3), known.time - 1)
    faulted = by_line.order[place[~answered & (place >= 0)]]
    return Reads(time[answered], known.address[answered]), faulted


def _retries(
    walks: Walks,
    others: Bools,
    queue: Queue,
    known: _Known,
    faults: Pages,
    usual: tuple[float, int],
) -> tuple[Reads, int]:
    """The retries that the queue answered, and how many are in doubt.

    :param others: which walks did not fault.
    :param usual: what a retry takes at the most, in ticks; the number of CPUs.
    """
    longest, cpus = usual
    stores = queue.stores
    since, written = stores.time[known.store], queue.until[known.store]
    rows = np.flatnonzero(others)
    by_line = LineTimes(walks.line[rows], walks.time[rows])
    # While the store is in the queue, no read of it is on the bus.
    place = by_line.first_from(stores.line[known.store], np.maximum(since, written))
    read = np.where(place >= 0, by_line.time[place] if by_line.size else 0, STILL_QUEUED - 1)
    ends = walks.ends
    lived = _between(LineTimes(walks.mm[ends], walks.time[ends]), known.mm, known.time, read)
    faulted = _between(LineTimes(faults.mm, faults.time), known.mm, known.time, read)
    queued = written > since
    early = (lived <= WALKS_MAX) & (faulted == 0)
    answered = queued & ~early
    # The first walk after all, or one of another instruction.
    in_doubt = queued & early & (lived > 0)
    if cpus > 1:
        soon = read - since <= longest
        in_doubt |= queued & (soon != early)
        answered &= ~soon
    entries = stores.address[known.store[answered]]
    return Reads(since[answered] + 2, entries), int(np.count_nonzero(in_doubt))


def _between(times: LineTimes, mm: I64, since: I64, until: I64) -> I64:
    """How many of the times of each address space are after one time and before another."""
    first, last = times.first_from(mm, since + 1), times.last_before(mm, until)
    return np.where((first >= 0) & (last >= first), last - first + 1, 0)


def _possible(walks: Walks, queue: Queue, known: _Known, faults: Pages, retries: Reads) -> int:
    """How many further misses the queue may have answered.

    A page whose entry was stored without a fault, as those around a page that faulted are, may be
    walked before the entry is written, if its address space runs by then.
    """
    stores = queue.stores
    around = stores.present & (stores.page >= 0)
    around[known.store] = False
    rows = np.searchsorted(stores.time[known.store], retries.time - 2)
    retrying = known.mm[np.minimum(rows, known.mm.size - 1)] if known.mm.size else rows
    lives = LineTimes(
        np.concatenate([walks.mm, faults.mm, retrying]),
        np.concatenate([walks.time, faults.time, retries.time]),
    )
    place = lives.first_from(stores.mm[around], stores.time[around])
    lived = np.where(place >= 0, lives.time[place] if lives.size else 0, STILL_QUEUED)
    return int(np.count_nonzero(lived < queue.until[around]))
