# SPDX-License-Identifier: BSD-2-Clause
"""Infers the walks that a controller answered from its queue, of which the bus shows nothing.

After a fault and the handler's store to the entry, the access walks again: for certain, as the TLB
holds nothing of a walk that faulted. If no read of the line follows within the time that a retry
takes, the store was in the queue still, and so was the walk answered there. A walk that faults is
itself answered there if another store of its line, a neighbour's, waits.

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
RETRY_MAX_S = 50e-6
"""A retry comes sooner after its store than this, where recorded ones do not tell."""
RETRY_LEAST_S = 0.5e-6
"""A store that was written so soon cannot have answered its retry."""
LEARNT_MIN = 32
"""Retries that are needed to tell."""
WAYS = 4
"""A page stays in the last-level TLB until at least so many others of its set were walked."""


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


class _Fault(NamedTuple):
    """Faults that a store followed: when, the store's row, and the entry that the walk ended at."""

    time: I64
    store: I64
    address: npt.NDArray[np.uint64]


def infer(
    walks: LineTimes,
    until: I64,
    stores: Stores,
    faults: Pages,
    links: Links,
    tick_hz: float,
    whole_lines: bool,
) -> Inferred:
    """Infer the walks that the queue answered.

    :param whole_lines: underfill makes lines in the queue whole, which so answers all reads of it.

    :param walks: those that were seen, by line.
    :param until: when each store was written.
    """
    known = _with_stores(faults, stores, links, HANDLER_MAX_S * tick_hz)
    retries, in_doubt = _retries(walks, until, stores, known, RETRY_MAX_S * tick_hz)
    # A masked line has only the words that were stored.
    unit_bytes = LINE_BYTES if whole_lines else WORD_BYTES
    answered = _answered_faults(walks, until, stores, known, RETRY_MAX_S * tick_hz, unit_bytes)
    return Inferred(retries, answered, in_doubt, _possible(stores, known))


def _key(mm: I64, page: I64, shift: int) -> I64:
    return mm << 36 | page >> shift


def _with_stores(faults: Pages, stores: Stores, links: Links, longest: float) -> _Fault:
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
    address = stores.address[store].copy()
    for level, shift in ((1, 9), (2, 18)):
        rows = np.flatnonzero(links.level == level)
        linked = LineTimes(_key(links.mm[rows], links.page[rows], shift), links.time[rows])
        key = _key(faults.mm[chosen], faults.page[chosen], shift)
        place = linked.first_from(key, time)
        there = (place >= 0) & ((linked.time[place] if rows.size else 0) <= stores.time[store])
        # The walk ended at the entry that the handler linked a table to.
        address[there] = links.address[rows[linked.order[place[there]]]]
    return _Fault(time, store, address)


def _retries(
    walks: LineTimes, until: I64, stores: Stores, known: _Fault, longest: float
) -> tuple[Reads, int]:
    """The retries that the queue answered, and how many others it may have answered, or not."""
    since, line, written = stores.time[known.store], stores.line[known.store], until[known.store]
    # While the store is in the queue, no read of it is on the bus.
    place = walks.first_from(line, np.maximum(since, written))
    seen = np.where(place >= 0, walks.time[place] if walks.size else 0, 2 * STILL_QUEUED)
    delay = seen - since
    least = 0.0
    free = np.flatnonzero(
        (written - since < RETRY_LEAST_S / RETRY_MAX_S * longest) & (delay < longest)
    )
    if free.size >= LEARNT_MIN:
        least = float(np.quantile(delay[free], 0.01)) / 2
        longest = min(longest, 2 * float(np.quantile(delay[free], 0.95)))
    queued = written - since > least
    soon = delay <= longest
    answered = queued & ~soon
    in_doubt = queued & (written - since <= longest)
    rows = known.store[answered]
    return Reads(since[answered] + 2, stores.address[rows]), int(np.count_nonzero(in_doubt))


def _answered_faults(
    walks: LineTimes,
    until: I64,
    stores: Stores,
    known: _Fault,
    longest: float,
    unit_bytes: int,
) -> Reads:
    """The walks that faulted and that the queue answered."""
    line = (known.address // np.uint64(LINE_BYTES)).astype(np.int64)
    unit = np.uint64(unit_bytes)
    queued = LineTimes((stores.address // unit).astype(np.int64), stores.time)
    place = queued.last_before((known.address // unit).astype(np.int64), known.time)
    store = np.where(place >= 0, queued.order[place] if queued.size else -1, -1)
    before = np.where(store >= 0, stores.time[store], -STILL_QUEUED)
    written = np.where(store >= 0, until[store], -STILL_QUEUED)
    place = walks.last_before(line, known.time)
    seen = np.where(place >= 0, walks.time[place] if walks.size else 0, -STILL_QUEUED)
    answered = (written > known.time - longest) & (seen < written)
    lag = known.time - seen
    usual = (
        np.median(lag[~answered & (lag < longest)]) if np.any(~answered & (lag < longest)) else 0
    )
    time = np.maximum(known.time - np.int64(usual), before + 3)
    time = np.minimum(time, known.time - 1)[answered]
    return Reads(time, known.address[answered])


def _possible(stores: Stores, known: _Fault) -> int:
    """How many further misses the queue may have answered: of pages that were mapped around."""
    present = np.count_nonzero(stores.present & (stores.page >= 0))
    return int(present) - known.store.size
