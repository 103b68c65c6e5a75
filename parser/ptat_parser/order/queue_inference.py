# SPDX-License-Identifier: BSD-2-Clause
"""Infers the walks that a controller answered from its queue and the bus does not show.

The queue answers a faulting walk if a store to its line, usually to a neighbour's entry, is queued.
Otherwise the walk is the last read of the line before the fault's event.

After a fault and the handler's store to the entry, the access certainly walks again, because the
TLB caches nothing of a walk that faulted, and the thread retries it next. So the queue answered the
retry if the thread goes on before the line is read after its WR: if it faults again in user mode,
or, as the only thread of its address space, walks more than one instruction needs. Other threads'
walks show nothing, because the thread may wait or be killed meanwhile. Uncertain cases are counted
as in doubt.

Other walks of a queued line leave no trace. A page may have had one if its entry was stored since
its last walk, or if its TLB entry was evicted (`EVICTION_WALKS`) or flushed: `possible`.
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
"""Longest time from a fault to its handler's store."""
EARLY_MAX_S = 5e-6
"""How far the clocks may place a fault's event before its walk."""
LAG_MAX_S = 50e-6
"""Usual bound of the delay of a fault's event, and of a retry after its store."""
READ_DELAY_MAX_S = 5e-6
"""Longest time that a controller holds a read back while it drains writes."""
WALKS_MAX = 3
"""Further walks that a retried instruction may need after its thread waited: for its code and other
operands."""

EVICTION_WALKS = 512
"""Walks of an address space after which a page may have lost its TLB entry: the smallest last-level
TLB of a supported CPU (Ivy Bridge) has as many entries."""


class Faults(NamedTuple):
    """Fault events sorted by time: address space, page number, time, thread, and mode."""

    mm: I64
    page: I64
    time: I64
    thread: I64
    user: Bools


class Links(NamedTuple):
    """Links of tables sorted by time, with the addresses of the entries.

    `page`: number of the first 4 KiB page that the table serves; `level`: the table's level;
    `table`: the table's physical page number; `allocated`: when the table was allocated, or -1.
    """

    mm: I64
    page: I64
    level: I64
    time: I64
    address: npt.NDArray[np.uint64]
    table: I64
    allocated: I64


class Walks(NamedTuple):
    """Reads by walks on the bus, sorted by time.

    `mm`: address space of the table, or -1 if unknown; `ends`: reads of PTEs, which end a walk;
    `parent`: line of the PMD entry that leads to the table, or -1.
    """

    time: I64
    line: I64
    mm: I64
    ends: Bools
    parent: I64


class Reads(NamedTuple):
    """Inferred walks: approximate time, address of the entry, and address space.

    `limit`: earliest time of a retry's reads, or latest time of those of a walk that faulted.
    """

    time: I64
    address: npt.NDArray[np.uint64]
    mm: I64
    limit: I64

    def where(self, mask: Bools) -> Reads:
        """Some of them."""
        return Reads(self.time[mask], self.address[mask], self.mm[mask], self.limit[mask])


NO_TIMES = np.empty(0, np.int64)
NO_READS = Reads(NO_TIMES, NO_TIMES.view(np.uint64), NO_TIMES, NO_TIMES)


@dataclass
class Inferred:
    """The result of `infer`."""

    retries: Reads
    faults: Reads
    in_doubt: int
    """Retries that the queue may have answered, although the line was read soon after the WR."""
    possible: int
    """Upper bound of further misses."""
    pte_answered: Bools
    """Mask of the walks of which only the read of the PMD entry was seen."""


class _Known(NamedTuple):
    """Faults followed by a store, sorted by time: their rows, times and address spaces, the store's
    row, and the address of the entry where the walk ended.
    """

    fault: I64
    time: I64
    mm: I64
    store: I64
    address: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Queue:
    """Stores and the times at which they left the queue.

    `whole_lines`: underfill completes queued lines, so they answer reads of any word; otherwise
    they answer only reads of stored words.
    """

    stores: Stores
    until: I64
    whole_lines: bool

    @property
    def unit_bytes(self) -> int:
        """What a queued store answers reads of."""
        return LINE_BYTES if self.whole_lines else WORD_BYTES

    def last_before(self, address: npt.NDArray[np.uint64], time: I64) -> tuple[I64, I64]:
        """Time and write time of the last store before `time` that may answer a read."""
        unit = np.uint64(self.unit_bytes)
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


def nothing_inferred(walks: int) -> Inferred:
    """The result if all of this many walks are on the bus."""
    return Inferred(NO_READS, NO_READS, 0, 0, np.zeros(walks, np.bool_))


def infer(
    walks: Walks,
    queue: Queue,
    faults: Faults,
    links: Links,
    flushes: I64,
    tick_hz: float,
    cpus: int,
) -> Inferred:
    """Infer the walks that the queue answered; times are in ticks.

    :param flushes: times at which a CPU lost all of its TLB, sorted.
    """
    if not queue.stores.time.size:
        return nothing_inferred(walks.time.size)
    known = _with_stores(faults, queue.stores, links, HANDLER_MAX_S * tick_hz)
    answered, faulted = _answered_faults(walks, queue, known, tick_hz)
    others = np.ones(walks.time.size, np.bool_)
    others[faulted] = False
    retries, in_doubt = _retries(walks, others, queue, known, faults, links, tick_hz)
    possible = _mapped_around(walks, queue, known, faults, retries)
    possible += _evicted(walks, queue, retries)
    possible += _flushed(queue, flushes, _lives(walks, faults, retries), cpus)
    alone, huge, delayed = _alone(walks, others, queue.stores, links, tick_hz)
    explained = _of_inferred(walks, alone, links, retries, answered, tick_hz)
    of_huge = alone & huge & ~delayed & ~_queued_below(walks, queue, links)
    # What is left out may be a miss of a huge page or, if no inferred walk explains it, of another.
    left_out = alone & ~of_huge
    possible += int(np.count_nonzero(left_out & (huge | ~explained)))
    return Inferred(retries, answered, in_doubt, possible, left_out)


def _key(mm: I64, page: I64, shift: int) -> I64:
    return mm << 36 | page >> shift


def _with_stores(faults: Faults, stores: Stores, links: Links, longest: float) -> _Known:
    """Each fault with the store that made its page present; only the last fault per store."""
    store = np.full(faults.time.size, -1, np.int64)
    for pages, shift in ((1, 0), (512, 9)):
        rows = np.flatnonzero(stores.present & (stores.pages == pages))
        sets = LineTimes(_key(stores.mm[rows], stores.page[rows], shift), stores.time[rows])
        place = sets.first_from(_key(faults.mm, faults.page, shift), faults.time)
        row = np.where(place >= 0, rows[sets.order[place]] if rows.size else -1, -1)
        sooner = (row >= 0) & ((store < 0) | (stores.time[row] < stores.time[store]))
        store = np.where(sooner, row, store)
    near = (store >= 0) & (stores.time[store] - faults.time <= longest)
    # The last of several faults before one store is retried.
    last = np.zeros(store.size, np.bool_)
    last[store.size - 1 - np.unique(store[::-1], return_index=True)[1]] = True
    chosen = np.flatnonzero(near & last)
    time, store = faults.time[chosen], store[chosen]
    address: npt.NDArray[np.uint64] = stores.address[store].copy()
    for level, shift in ((1, 9), (2, 18)):
        rows = np.flatnonzero(links.level == level)
        linked = LineTimes(_key(links.mm[rows], links.page[rows], shift), links.time[rows])
        key = _key(faults.mm[chosen], faults.page[chosen], shift)
        place = linked.first_from(key, time)
        there = (place >= 0) & ((linked.time[place] if rows.size else 0) <= stores.time[store])
        # The walk ended at the entry to which the handler linked a table.
        address[there] = links.address[rows[linked.order[place[there]]]]
    return _Known(chosen, time, faults.mm[chosen], store, address)


def _answered_faults(
    walks: Walks, queue: Queue, known: _Known, tick_hz: float
) -> tuple[Reads, I64]:
    """The faulting walks that the queue answered, and the indices of seen walks that faulted."""
    longest = LAG_MAX_S * tick_hz
    line = (known.address // np.uint64(LINE_BYTES)).astype(np.int64)
    # The walk is over long before the handler's store.
    to_store = queue.stores.time[known.store] - known.time
    until = known.time + np.minimum(to_store // 2, round(EARLY_MAX_S * tick_hz))
    before, written = queue.last_before(known.address, known.time)
    by_line = LineTimes(walks.line, walks.time)
    place = by_line.last_before(line, until)
    seen = np.where(place >= 0, by_line.time[place] if by_line.size else 0, -STILL_QUEUED)
    answered = (written > known.time - longest) & (seen < written)
    # A read before an earlier store was written, or long before the fault, is another walk's.
    usual = ~answered & (seen > np.maximum(written, before)) & (known.time - seen < longest)
    lag = np.int64(np.median((known.time - seen)[usual])) if np.any(usual) else np.int64(1)
    time = np.minimum(np.maximum(known.time - lag, before + 3), known.time - 1)
    faulted = by_line.order[place[~answered & (place >= 0)]]
    return Reads(time, known.address, known.mm, until).where(answered), faulted


def _retries(
    walks: Walks,
    others: Bools,
    queue: Queue,
    known: _Known,
    faults: Faults,
    links: Links,
    tick_hz: float,
) -> tuple[Reads, int]:
    """The retries that the queue answered, and how many are in doubt.

    :param others: mask of the walks that did not fault.
    """
    stores = queue.stores
    since, written = _walkable(stores, known, links), queue.until[known.store]
    rows = np.flatnonzero(others)
    by_line = LineTimes(walks.line[rows], walks.time[rows])
    # The bus shows no read of the line while the store is queued.
    place = by_line.first_from(stores.line[known.store], np.maximum(since, written))
    read = np.where(place >= 0, by_line.time[place] if by_line.size else 0, STILL_QUEUED - 1)
    ends = walks.ends & others
    lived = _between(LineTimes(walks.mm[ends], walks.time[ends]), known.mm, known.time, read)
    # The event of a fault after the read may seem to precede it.
    faulted = _faulted_again(stores, known, faults, read - round(EARLY_MAX_S * tick_hz))
    threads = _has_threads(faults, known.mm)
    went_on = faulted | (lived > WALKS_MAX) & ~threads
    queued = written > since
    late = read - since > LAG_MAX_S * tick_hz
    # The read is the retry itself, or a walk of another instruction or thread.
    in_doubt = queued & ~went_on & ((lived > 0) | threads & late)
    # The clocks may place the store after the retry, but the walk that faulted is long over.
    early = np.minimum((since - known.time) // 2, round(EARLY_MAX_S * tick_hz))
    found = Reads(since + 2, stores.address[known.store], known.mm, since - early)
    return found.where(queued & went_on), int(np.count_nonzero(in_doubt))


def _walkable(stores: Stores, known: _Known, links: Links) -> I64:
    """From when on walks can read the entry that was stored after each fault.

    The kernel fills in the table of a huge page that it splits before it links the table.
    """
    time = stores.time[known.store]
    if not links.time.size:
        return time
    table = (stores.address[known.store] >> np.uint64(12)).astype(np.int64)
    linked = LineTimes(links.table, links.time)
    before, after = linked.last_before(table, time), linked.first_from(table, time)
    allocated = links.allocated[linked.order[after]]
    waits = (after >= 0) & (allocated >= 0) & (allocated <= time)
    waits &= (before < 0) | (linked.time[before] < allocated)
    return np.where(waits, linked.time[after], time)


def _alone(
    walks: Walks, others: Bools, stores: Stores, links: Links, tick_hz: float
) -> tuple[Bools, Bools, Bools]:
    """Three masks: reads of PMD entries that no read of a PTE follows; lines with huge pages; reads
    of such lines that a read of a PTE follows later than usual.

    Of the first, the queue answered the read of the PTE, or the walk ended at a huge page. The
    replay would infer that the entry was empty, and match the fault event of another walk with it.
    Lines without a table before this read are left to the replay. The late read of the PTE is that
    of another walk, or the controller drained writes before it.

    :param others: mask of the walks that did not fault.
    """
    linked = LineTimes(
        (links.address // np.uint64(LINE_BYTES)).astype(np.int64), np.maximum(links.time, 0)
    )
    leads = linked.last_before(walks.line, walks.time) >= 0
    whole = np.append(walks.parent[1:] == walks.line[:-1], False)
    huge = np.isin(walks.line, stores.line[stores.present & (stores.pages > 1)])
    step = np.diff(walks.time, append=STILL_QUEUED)
    late = np.zeros(whole.size, np.bool_)
    if np.any(whole & ~huge):
        late = whole & huge & (step > 2 * np.median(step[whole & ~huge]))
    alone: Bools = others & ~walks.ends & leads & (~whole | late)
    return alone, huge, late & (step <= READ_DELAY_MAX_S * tick_hz)


def _of_inferred(
    walks: Walks, alone: Bools, links: Links, retries: Reads, faults: Reads, tick_hz: float
) -> Bools:
    """Which reads of PMD entries are of inferred walks.

    A retry's is the first one after the store, and that of a walk that faulted the last one before
    its event. Both may be late because of an interrupt: then the process does not run meanwhile.

    :param alone: mask of the reads that no read of a PTE follows.
    :param retries: inferred ones, as are the `faults`.
    """
    rows = np.flatnonzero(alone)
    found = np.zeros(walks.time.size, np.bool_)
    reads = LineTimes(walks.line[rows], walks.time[rows])
    if not reads.size:
        return found
    lived = LineTimes(walks.mm[walks.ends], walks.time[walks.ends])
    after = reads.first_from(_parent(retries.address, retries.time, links), retries.limit)
    before = reads.last_before(_parent(faults.address, faults.time, links), faults.limit)
    for of, place in ((retries, after), (faults, before)):
        at = reads.time[place]
        apart = np.abs(at - of.time)
        others = _between(lived, of.mm, np.minimum(at, of.time), np.maximum(at, of.time))
        near = (apart <= LAG_MAX_S * tick_hz) | (others == 0) & (apart <= HANDLER_MAX_S * tick_hz)
        found[rows[reads.order[place[(place >= 0) & near]]]] = True
    return found


def _queued_below(walks: Walks, queue: Queue, links: Links) -> Bools:
    """Which walks read PMD entries while a PTE in a table below was queued."""
    stores = queue.stores
    parent = _parent(stores.address, stores.time, links)
    below = LineTimes(parent, stores.time)
    # The latest WR of all stores so far in tables below each line.
    until, rank = np.unique(queue.until, return_inverse=True)
    line = np.unique(parent, return_inverse=True)[1]
    latest = np.maximum.accumulate((line * until.size + rank)[below.order]) % until.size
    place = below.last_before(walks.line, walks.time)
    found: Bools = (place >= 0) & (until[latest[place]] > walks.time)
    return found


def _parent(address: npt.NDArray[np.uint64], time: I64, links: Links) -> I64:
    """Line of the entry that leads to the table that each address is in, or -1."""
    linked = LineTimes(links.table, np.maximum(links.time, 0))
    place = linked.last_before((address >> np.uint64(12)).astype(np.int64), time + 1)
    line = np.append(links.address // np.uint64(LINE_BYTES), np.uint64(0)).astype(np.int64)
    return np.where(place >= 0, line[np.append(linked.order, -1)[place]], -1)


def _faulted_again(stores: Stores, known: _Known, faults: Faults, until: I64) -> Bools:
    """Whether each thread faulted in user mode after its retry and before `until`.

    In kernel mode, a thread may fault because it was killed and exits. Where another thread changed
    the entry, a fault of the same page may be that of the retry.
    """
    rows = np.flatnonzero(faults.user)
    own = LineTimes(faults.thread[rows], faults.time[rows])
    place = own.first_from(faults.thread[known.fault], known.time + 1)
    again = np.append(rows[own.order], -1)[place]
    words = LineTimes((stores.address // np.uint64(WORD_BYTES)).astype(np.int64), stores.time)
    word = (stores.address[known.store] // np.uint64(WORD_BYTES)).astype(np.int64)
    next_store = words.first_from(word, stores.time[known.store] + 1)
    changed = (next_store >= 0) & (words.time[next_store] < faults.time[again])
    of_retry = changed & (faults.page[again] == faults.page[known.fault])
    faulted: Bools = (place >= 0) & (faults.time[again] < until) & ~of_retry
    return faulted


def _has_threads(faults: Faults, mm: I64) -> Bools:
    """Whether several threads of each address space faulted."""
    of_thread = np.unique(np.stack([faults.mm, faults.thread]), axis=1)[0]
    return np.isin(mm, of_thread[1:][of_thread[1:] == of_thread[:-1]])


def _between(times: LineTimes, mm: I64, since: I64, until: I64) -> I64:
    """Number of each address space's times between `since` and `until`, both excluded."""
    first, last = times.first_from(mm, since + 1), times.last_before(mm, until)
    return np.where((first >= 0) & (last >= first), last - first + 1, 0)


def _mapped_around(
    walks: Walks, queue: Queue, known: _Known, faults: Faults, retries: Reads
) -> int:
    """Upper bound of the first misses of pages whose entries were stored without a fault.

    Such a page (mapped around a fault) may be walked before its entry is written, if its address
    space runs by then.
    """
    stores = queue.stores
    around = stores.present & (stores.page >= 0)
    around[known.store] = False
    lives = _lives(walks, faults, retries)
    place = lives.first_from(stores.mm[around], stores.time[around])
    lived = np.where(place >= 0, lives.time[place] if lives.size else 0, STILL_QUEUED)
    return int(np.count_nonzero(lived < queue.until[around]))


def _lives(walks: Walks, faults: Faults, retries: Reads) -> LineTimes:
    """When each address space is known to have run."""
    return LineTimes(
        np.concatenate([walks.mm, faults.mm, retries.mm]),
        np.concatenate([walks.time, faults.time, retries.time]),
    )


def _queued_units(queue: Queue) -> I64:
    """Rows of stores to pages' entries, the first of each time that its unit was queued."""
    stores = queue.stores
    leaves = np.flatnonzero(stores.page >= 0)
    unit = (stores.address[leaves] // np.uint64(queue.unit_bytes)).astype(np.int64)
    queued = np.stack([unit, queue.until[leaves]])
    return leaves[np.unique(queued, axis=1, return_index=True)[1]]


def _flushed(queue: Queue, flushes: I64, lives: LineTimes, cpus: int) -> int:
    """Upper bound of the misses of queued pages after flushes of a TLB.

    Each page that the queue answers may miss once after each, if its address space runs before the
    unit is written, and before the next flush. That may be of another CPU's TLB.
    """
    stores, first = queue.stores, _queued_units(queue)
    if not flushes.size:
        return 0
    begin = np.searchsorted(flushes, stores.time[first])
    number = np.searchsorted(flushes, queue.until[first]) - begin
    row = np.repeat(first, number)
    flush = np.arange(row.size) - np.repeat(np.cumsum(number) - number - begin, number)
    end = queue.until[row]
    if cpus == 1:
        end = np.minimum(end, np.append(flushes, STILL_QUEUED)[flush + 1])
    place = lives.first_from(stores.mm[row], flushes[flush])
    lived = np.where(place >= 0, lives.time[place], STILL_QUEUED)
    return int(np.count_nonzero(lived < end)) * (queue.unit_bytes // WORD_BYTES)


def _evicted(walks: Walks, queue: Queue, retries: Reads) -> int:
    """Upper bound of the misses of pages that were evicted from the TLB while they were queued.

    Each `EVICTION_WALKS` of its address space may have evicted each page that the queue answers.
    """
    stores, first = queue.stores, _queued_units(queue)
    ends = walks.ends
    walked = LineTimes(
        np.concatenate([walks.mm[ends], retries.mm]),
        np.concatenate([walks.time[ends], retries.time]),
    )
    others = _between(walked, stores.mm[first], stores.time[first], queue.until[first])
    return int(np.sum(others // EVICTION_WALKS)) * (queue.unit_bytes // WORD_BYTES)
