# SPDX-License-Identifier: BSD-2-Clause
"""What a replay does with nearly all accesses, and therefore quickly.

These are reads of PTEs of which it is known, or plain to see, that they are misses. All that waits
for memory is a word with the number of a slot's reads and the time of the last. The slots are found
beforehand, so that these words are on their way to a core's cache when they are needed; what is
written of each read goes past its caches. A table's page that needs a closer look has `rpt.NO_SLOT`
as its first slot: the numbers there are always 0, so that one comparison finds all that is not
plain.
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
from ptat_parser.jit import Integer, inlined, jit, prefetch, put_passing
from ptat_parser.rpt import COUNT_BITS, COUNTED_MAX, EMPTY, ENTRIES, ROW_MASK, page_number, taken

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

# Columns of what is counted of pages. A page's row is hardly more than a cache line.
(
    P_PAGE,  # its number: see `page_number`
    P_MISSES,
    P_FAULTED,
    P_STORES,
    P_FIRST,  # time of the first read, or `NEVER_READ`
    P_LAST,
) = range(6)
PAGE_COLUMNS = 6

NEVER_READ = np.iinfo(np.int64).max

_PLACE = ACCESS_ADDRESS_MASK | WRITE_BIT  # a write is outside of any region
_PAGE_SHIFT = np.uint64(9)  # of addresses in units of 8 bytes
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_ENTRY = np.uint64(ENTRIES - 1)
_ROW_MASK, _WAS_READ = np.uint32(ROW_MASK), ~np.uint32(ROW_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)

AHEAD = 64
"""So many reads before one, its word is fetched."""


@inlined
def row_of_page(number: Integer, row_of: U32, pages: I64, rows: Integer) -> tuple[Integer, Integer]:
    """A page's row, which it has from now on, and how many there are then."""
    row = np.int64(row_of[number] & _ROW_MASK)
    if row == 0:
        rows += 1
        row = rows
        row_of[number] = row
        pages[row, P_PAGE] = number
        pages[row, P_FIRST] = NEVER_READ
    return row, rows


@inlined
def note_read(number: Integer, now: Integer, row_of: U32, pages: I64, rows: Integer) -> Integer:
    """Note the first read of a page; how many rows there are then.

    Most pages were read before, and their rows are in no cache.
    """
    if not row_of[number] & _WAS_READ:
        row, rows = row_of_page(number, row_of, pages, rows)
        row_of[number] |= _WAS_READ
        pages[row, P_FIRST] = now
    return rows


@jit
def find_slots(
    words: U64,
    start: Integer,
    end: Integer,
    base: Integer,
    size: Integer,
    in_line: Integer,
    quick_slot: U32,
    slots: U32,
) -> None:
    """The slot that each access from `start` to `end` reads, if `count_reads` may count it.

    `base`, `size`: of the region, in units of 8 bytes; `in_line`: bits of a slot's index that a bus
    address shows.
    """
    i, stop = np.uint64(start), np.uint64(end)
    while i < stop:
        place = min((words[i] & _PLACE) - base, size)
        slots[i] = quick_slot[place >> _PAGE_SHIFT] + (place & in_line)
        i += _ONE


@inlined
def may_count(slot: Integer) -> bool:
    """Whether `count_reads` may count an access; asking first spares many calls for nothing."""
    return bool(slot >= ENTRIES)


@jit
def count_reads(
    words: U64,
    time: U64,
    slots: U32,
    start: Integer,
    end: Integer,
    now: Integer,
    line: Integer,
    tally: U64,
    epoch: Integer,
    state: U8,
    range_of_frame: npt.NDArray[np.int32],
    row_of: U32,
    pages: I64,
    rows: Integer,
) -> tuple[Integer, Integer, Integer]:
    """Count the reads from `start` on, up to the first access that needs a closer look.

    Times are those of `time`, or where that is empty, told from `now`, the time of the access
    before `start`. `slots`, which has room for `AHEAD` more, is what `find_slots` found; `line`:
    entries that a bus address stands for; `rows`: how many pages have. Returns where that access
    is, the time of the one before it, and how many rows there are.
    """
    timed = time.size > 0
    # Unsigned indices take no check of their sign.
    i, stop = np.uint64(start), np.uint64(end)
    ahead = np.uint64(AHEAD)
    while True:
        # The inner loop, whose one branch is that a number is 0 or full.
        slot, known, before = _ZERO, _ZERO, now
        while i < stop:
            prefetch(tally, np.uint64(slots[i + ahead]))
            slot = np.uint64(slots[i])
            before = now
            now = time[i] if timed else now + (words[i] >> ACCESS_DELTA_SHIFT & ACCESS_DELTA_MASK)
            known = tally[slot] + _ONE & _COUNT_MASK
            if known < 2:
                break
            tally[slot] = now - epoch << _COUNT_SHIFT | known
            i += _ONE
        if i == stop:
            return end, now, rows
        here = np.int64(slot)
        page = page_number(range_of_frame[here // ENTRIES], here % ENTRIES, line, line)
        if known == 0:
            pages[np.int64(row_of[page] & _ROW_MASK), P_MISSES] += COUNTED_MAX
        else:
            if not may_count(here) or state[slot] == EMPTY:
                return np.int64(i), before, rows
            rows = note_read(page, now, row_of, pages, rows)
        tally[slot] = now - epoch << _COUNT_SHIFT | _ONE
        i += _ONE


@jit
def put_reads(
    words: U64,
    time: U64,
    slots: U32,
    start: Integer,
    end: Integer,
    now: Integer,
    line: Integer,
    range_of_frame: npt.NDArray[np.int32],
    out_time: U64,
    out_page: U32,
    at: Integer,
) -> None:
    """Write time and page of reads that `count_reads` counted to the records, from `at` on."""
    timed = time.size > 0
    i, stop, first_record = np.uint64(start), np.uint64(end), np.uint64(at - start)
    each = np.uint64(line)
    while i < stop:
        now = time[i] if timed else now + (words[i] >> ACCESS_DELTA_SHIFT & ACCESS_DELTA_MASK)
        slot = np.uint64(slots[i])
        entry = (np.uint64(range_of_frame[slot >> _PAGE_SHIFT]) << _PAGE_SHIFT) + (slot & _ENTRY)
        put_passing(out_time, first_record + i, now)
        put_passing(out_page, first_record + i, np.uint32(entry * each + each - _ONE))
        i += _ONE


@jit
def collect(
    slots: Integer,
    tally: U64,
    epoch_ticks: Integer,
    range_of_frame: npt.NDArray[np.int32],
    row_of: U32,
    line: Integer,
    pages: I64,
) -> None:
    """Move what was counted of the first so many slots to the rows of their pages."""
    for first in range(0, slots, ENTRIES):
        table, range_ = tally[first : first + ENTRIES], range_of_frame[first // ENTRIES]
        rows, misses, last_ticks = taken(table, range_, row_of, line, epoch_ticks)
        add_counts(pages, rows, misses, last_ticks)


@jit
def add_counts(pages: I64, rows: U32, misses: I64, last_ticks: I64) -> None:
    """Add `rpt.Counts` to the rows of pages."""
    flat = pages.reshape(-1)  # of memory that is in no cache
    for i in range(rows.size):
        prefetch(flat, np.uint64(rows[min(i + AHEAD, rows.size - 1)]) * np.uint64(PAGE_COLUMNS))
        row = np.int64(rows[i])
        pages[row, P_MISSES] += misses[i]
        pages[row, P_LAST] = max(pages[row, P_LAST], last_ticks[i])


@jit
def in_order(row_of: U32, pages: I64, columns: I64) -> None:
    """Fill columns with the rows of pages, in the order of their numbers."""
    flat = pages.reshape(-1)  # of memory that is in no cache
    rows = np.empty(columns.shape[1] + AHEAD, np.int64)
    n: Integer = 0
    for number in range(row_of.size):
        row = np.int64(row_of[number] & _ROW_MASK)
        if row:
            rows[n] = row
            n += 1
    rows[n:] = 0
    for i in range(n):
        prefetch(flat, np.uint64(rows[i + AHEAD] * PAGE_COLUMNS))
        for column in range(PAGE_COLUMNS):
            columns[column, i] = pages[rows[i], column]


@jit
def drop_unread(columns: I64) -> Integer:
    """Move the pages that were read to the front, in their order; how many they are."""
    n: Integer = 0
    for i in range(columns.shape[1]):
        if columns[P_FIRST, i] != NEVER_READ:
            if n < i:
                for column in range(PAGE_COLUMNS):
                    columns[column, n] = columns[column, i]
            n += 1
    return n


@jit
def merge(one: I64, other: I64, merged: I64) -> Integer:
    """Merge columns that are in order, and return how many pages there are in all."""
    i: Integer = 0
    j: Integer = 0
    n: Integer = 0
    while i < one.shape[1] and j < other.shape[1]:
        if one[P_PAGE, i] < other[P_PAGE, j]:
            merged[:, n] = one[:, i]
            i += 1
        elif one[P_PAGE, i] > other[P_PAGE, j]:
            merged[:, n] = other[:, j]
            j += 1
        else:
            merged[P_PAGE, n] = one[P_PAGE, i]
            merged[P_MISSES, n] = one[P_MISSES, i] + other[P_MISSES, j]
            merged[P_FAULTED, n] = one[P_FAULTED, i] + other[P_FAULTED, j]
            merged[P_STORES, n] = one[P_STORES, i] + other[P_STORES, j]
            merged[P_FIRST, n] = min(one[P_FIRST, i], other[P_FIRST, j])
            merged[P_LAST, n] = max(one[P_LAST, i], other[P_LAST, j])
            i += 1
            j += 1
        n += 1
    for k in range(i, one.shape[1]):
        merged[:, n] = one[:, k]
        n += 1
    for k in range(j, other.shape[1]):
        merged[:, n] = other[:, k]
        n += 1
    return n
