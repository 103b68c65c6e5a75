# SPDX-License-Identifier: BSD-2-Clause
"""What a replay does with nearly all accesses, and therefore quickly.

These are reads of PTEs of which it is known, or plain to see, that they are misses. All that waits
for memory is a counter of two bytes and a time, and little is done besides, so that a core waits
for many of them at once; what is written of each read goes past its caches. A table's page that
needs a closer look has `rpt.NO_SLOT` as its first slot: the counters there are always 0, so that
one comparison finds all that is not plain.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.blocks import (
    ACCESS_ADDRESS_MASK,
    ACCESS_DELTA_MASK,
    ACCESS_DELTA_SHIFT,
    WRITE_BIT,
)
from ptat_parser.jit import Integer, inlined, jit, put_passing
from ptat_parser.rpt import EMPTY, ENTRIES, NO_SLOT

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

# Columns of the statistics of pages.
(
    P_MISSES,
    P_FAULTED,
    P_FIRST,  # time of the first read, -1 before there was one
    P_LAST,
    P_RANGE,
    P_ENTRY,
    P_CANDIDATES,
    P_STORES,  # since the first read
    P_EARLY,  # stores before that, of a page that a span before may have read
    P_ORDER,  # reads of all pages before the first read
    P_OTHER,  # page of the same line with other candidates: a ring; 0 where there is none
) = range(11)
PAGE_COLUMNS = 11

_PLACE = ACCESS_ADDRESS_MASK | WRITE_BIT  # a write is outside of any region
_PAGE_SHIFT = np.uint64(9)  # of addresses in units of 8 bytes
_NONE, _ONE = np.uint16(0), np.uint16(1)
_ZERO, _NEXT = np.uint64(0), np.uint64(1)


@inlined
def may_count(word: Integer, base: Integer, size: Integer, quick_slot: U32) -> bool:
    """Whether `count_reads` may count this access; asking first spares many calls for nothing."""
    return bool(quick_slot[min((word & _PLACE) - base, size) >> _PAGE_SHIFT] != NO_SLOT)


@jit
def count_reads(
    words: U64,
    time: U64,
    start: Integer,
    end: Integer,
    now: Integer,
    base: Integer,
    size: Integer,
    in_line: Integer,
    quick_slot: U32,
    counted: U16,
    carried: U32,
    recent: U32,
    epoch: Integer,
    state: U8,
    range_of_frame: npt.NDArray[np.int32],
    numbers: U32,
    number_of: U32,
    pages: I64,
    n_pages: Integer,
    order: Integer,
    keep: bool,
    out_time: U64,
    out_page: U32,
    row: Integer,
) -> tuple[Integer, Integer, Integer]:
    """Count the reads from `start` on, up to the first access that needs a closer look.

    Times are those of `time`, or where that is empty, told from `now`, the time of the access
    before `start`. `base`, `size`: of the region, in units of 8 bytes; `in_line`: bits of a slot's
    index that a bus address shows; `order`: reads before. With `keep`, time and page of each are
    written to the records, from `row` on. Returns where that access is, the time of the one before
    it, and how many pages have numbers.
    """
    timed = time.size > 0
    # Unsigned indices take no check of their sign.
    i, stop, first_row = np.uint64(start), np.uint64(end), np.uint64(row - start)
    while True:
        # The inner loop, whose one branch is that a counter is 0 or full.
        slot, known, before = _ZERO, _NONE, now
        while i < stop:
            word = words[i]
            before = now
            now = time[i] if timed else now + (word >> ACCESS_DELTA_SHIFT & ACCESS_DELTA_MASK)
            place = min((word & _PLACE) - base, size)
            slot = np.uint64(quick_slot[place >> _PAGE_SHIFT]) + (place & in_line)
            known = counted[slot]
            if np.uint16(known + _ONE) < 2:
                break
            counted[slot] = known + _ONE
            if keep:
                at = slot + slot
                recent[at] = now - epoch
                put_passing(out_time, first_row + i, now)
                put_passing(out_page, first_row + i, recent[at + _NEXT] - np.uint32(1))
            else:
                recent[slot] = now - epoch
            i += _NEXT
        if i == stop:
            return end, now, n_pages
        if known:
            carried[slot] += np.uint32(known)
        else:
            here, done = np.int64(slot), np.int64(i)
            if here < ENTRIES or numbers[slot] or state[slot] == EMPTY:
                return done, before, n_pages
            range_: Integer = range_of_frame[here // ENTRIES]
            entry = np.int64(range_) * ENTRIES + here % ENTRIES
            if in_line == ENTRIES - 1 and number_of[entry]:  # by way of another table
                return done, before, n_pages
            n_pages += 1
            numbers[slot] = number_of[entry] = n_pages
            pages[P_RANGE, n_pages] = range_
            pages[P_ENTRY, n_pages] = here % ENTRIES
            pages[P_FIRST, n_pages] = now
            pages[P_ORDER, n_pages] = order + done - start
        counted[slot] = _ONE
        if keep:
            recent[slot + slot] = now - epoch
            recent[slot + slot + _NEXT] = numbers[slot]
            put_passing(out_time, first_row + i, now)
            put_passing(out_page, first_row + i, numbers[slot] - np.uint32(1))
        else:
            recent[slot] = now - epoch
        i += _NEXT


@jit
def collect(
    slots: Integer,
    counted: U16,
    carried: U32,
    recent: U32,
    recent_each: Integer,
    epoch_ticks: Integer,
    numbers: U32,
    pages: I64,
) -> None:
    """Move what was counted of the first so many slots to their pages."""
    for slot in range(slots):
        if counted[slot]:
            number = numbers[slot]
            pages[P_MISSES, number] += np.int64(counted[slot]) + np.int64(carried[slot])
            last = epoch_ticks + np.int64(recent[slot * recent_each])
            pages[P_LAST, number] = max(pages[P_LAST, number], last)
            counted[slot] = carried[slot] = 0
