# SPDX-License-Identifier: BSD-2-Clause
"""What a replay does with nearly all accesses, and therefore quickly.

These are reads of which it is known, or plain to see, what they are: misses, or reads of PMD
entries that point to a table. All that waits for memory is a word with the number of a slot's reads
and the time of the last. The slots are found beforehand, so that these words are on their way to a
core's cache when they are needed; what is written of each read goes past its caches. A table's page
that needs a closer look has `rpt.NO_SLOT` as its first slot: the numbers there are always 0, so
that one comparison finds all that is not plain. What is counted of a slot is put away when its
reads come to be of another page, or no misses any more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.blocks import ACCESS_ADDRESS_MASK, PIECE_BLOCKS, WRITE_BIT, delta_of
from ptat_parser.jit import (
    Integer,
    bare,
    get_apart,
    inlined,
    jit,
    ones,
    prefetch,
    prefetch_later,
    put_apart,
    put_passing,
)
from ptat_parser.rpt import (
    COUNT_BITS,
    COUNTED_MAX,
    EMPTY,
    ENTRIES,
    LEAF,
    NO_PARENT,
    NOTHING_PENDING,
    OF_PMDS,
    ROW_MASK,
    TABLE,
    UNTRACED,
    WITH_LEAVES,
    are_misses,
    holds_pmds,
    page_counted,
    page_number,
    take,
    take_all,
)

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
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

MISS, FAULT, PMD_READ = range(3)
"""Kinds of output records."""

NEVER_READ = np.iinfo(np.int64).max

_PLACE = ACCESS_ADDRESS_MASK | WRITE_BIT  # a write is outside of any region
_PAGE_SHIFT = np.uint64(9)  # of addresses in units of 8 bytes
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_ENTRY = np.uint64(ENTRIES - 1)
_OF_PMDS, _SLOT = np.uint32(OF_PMDS), np.uint32(OF_PMDS - 1)
_ROW_MASK, _WAS_READ = np.uint32(ROW_MASK), ~np.uint32(ROW_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)

AHEAD = 64
"""So many reads before one, its word is fetched."""

WORDS_AHEAD = PIECE_BLOCKS * wire.BLOCK_WORDS
"""So many words of a capture before one, it is fetched: while it is mapped, from memory."""


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


@inlined
def page_of_line(
    slot: Integer,
    line: Integer,
    level: Integer,
    narrows: bool,
    range_of_frame: I32,
    state: U8,
    mapped: U8,
) -> Integer:
    """Number of the page, or pages, that a miss of a line may be of, from what is known of it.

    `narrows`: which entries of a table of PTEs are mapped is known.
    """
    first: Integer = line
    end: Integer = 0
    if line > 1 and (narrows or level == 2):
        for i in range(line):
            candidate = state[slot + i] == LEAF if level == 2 else mapped[slot + i] != 0
            if candidate:
                first = min(first, i)
                end = i + 1
    if end == 0:
        first, end = 0, line
    return page_number(range_of_frame[slot // ENTRIES], slot % ENTRIES + first, end - first, line)


@inlined
def _is_plain(
    slot: Integer,
    line: Integer,
    parents: I64,
    state: U8,
    pending: U8,
    range_of_frame: I32,
    watched: I32,
) -> bool:
    """Whether what reads of a line are follows from what its entries are, until these change."""
    frame = slot // ENTRIES
    if not holds_pmds(parents[frame]):
        return bool(state[slot] != EMPTY)
    leaves: Integer = 0
    tables: Integer = 0
    for s in range(slot, slot + line):
        if pending[s] != NOTHING_PENDING or state[s] == UNTRACED:
            return False
        leaves += state[s] == LEAF
        tables += state[s] == TABLE
    if leaves:
        return bool(tables == 0 and watched[range_of_frame[frame]] == 0)
    return bool(tables == line)


@inlined
def put_away(
    slot: Integer,
    line: Integer,
    tally: U64,
    epoch: Integer,
    counted_page: U32,
    parents: I64,
    state: U8,
    range_of_frame: I32,
    row_of: U32,
    pages: I64,
) -> None:
    """Move what was counted of a line to the row of its page: what comes may be of another."""
    if tally[slot]:
        row, misses, last_ticks = take(
            slot, line, tally, epoch, counted_page, parents, state, range_of_frame, row_of
        )
        pages[row, P_MISSES] += misses
        pages[row, P_LAST] = max(pages[row, P_LAST], last_ticks)


@bare
def find_slots(
    words: U64,
    start: Integer,
    end: Integer,
    base: Integer,
    size: Integer,
    in_line: Integer,
    quick_slot: U32,
    slots: U32,
) -> bool:
    """The slot that each access from `start` to `end` reads, if `count_reads` may count it.

    `base`, `size`: of the region, in units of 8 bytes; `in_line`: bits of a slot's index that a bus
    address shows. Returns whether PMD entries are among the slots.
    """
    i, stop = np.uint64(start), np.uint64(end)
    flags = np.uint32(0)
    while i < stop:
        place = min((get_apart(words, i) & _PLACE) - base, size)
        first = get_apart(quick_slot, place >> _PAGE_SHIFT)
        flags |= first
        put_apart(slots, i, np.uint32(np.uint64(first & _SLOT) + (place & in_line)))
        i += _ONE
    return bool(flags & _OF_PMDS)


@inlined
def may_count(slot: Integer) -> bool:
    """Whether `count_reads` may count an access; asking first spares many calls for nothing."""
    return bool(slot >= ENTRIES)


@bare
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
    counted_page: U32,
    narrows: bool,
    parents: I64,
    state: U8,
    pending: U8,
    mapped: U8,
    range_of_frame: I32,
    watched: I32,
    row_of: U32,
    pages: I64,
    rows: Integer,
) -> tuple[Integer, Integer, Integer]:
    """Count the reads from `start` on, up to the first access that needs a closer look.

    Times are those of `time`, or where that is empty, told from `now`, the time of the access
    before `start`. `slots`, which has room for `AHEAD` more, is what `find_slots` found; `line`:
    entries that a bus address stands for; `narrows`: see `page_of_line`; `rows`: how many pages
    have. Returns where that access is, the time of the one before it, and how many rows there are.
    """
    timed = time.size > 0
    # Unsigned indices take no check of their sign.
    i, stop = np.uint64(start), np.uint64(end)
    ahead = np.uint64(AHEAD)
    later = np.uint64(WORDS_AHEAD)
    while True:
        # The inner loop, whose one branch is that a number is 0 or full.
        slot, known, before = _ZERO, _ZERO, now
        while i < stop:
            prefetch(tally, np.uint64(slots[i + ahead]))
            prefetch_later(words, i + later)
            slot = np.uint64(slots[i])
            before = now
            now = time[i] if timed else now + delta_of(words[i])
            known = tally[slot] + _ONE & _COUNT_MASK
            if known < 2:
                break
            tally[slot] = now - epoch << _COUNT_SHIFT | known
            i += _ONE
        if i == stop:
            return end, now, rows
        here = np.int64(slot)
        if known == 0:
            if are_misses(here, parents, state):
                page = page_counted(here, line, counted_page, range_of_frame)
                pages[np.int64(row_of[page] & _ROW_MASK), P_MISSES] += COUNTED_MAX
        else:
            if not may_count(here) or not _is_plain(
                here, line, parents, state, pending, range_of_frame, watched
            ):
                return np.int64(i), before, rows
            level = 2 if holds_pmds(parents[here // ENTRIES]) else 1
            page = page_of_line(here, line, level, narrows, range_of_frame, state, mapped)
            rows = note_read(page, now, row_of, pages, rows)
            if line > 1:
                counted_page[here // line] = page
        tally[slot] = now - epoch << _COUNT_SHIFT | _ONE
        i += _ONE


@bare
def put_reads(
    words: U64,
    time: U64,
    slots: U32,
    start: Integer,
    end: Integer,
    now: Integer,
    line: Integer,
    counted_page: U32,
    range_of_frame: I32,
    out_time: U64,
    out_page: U32,
    at: Integer,
) -> None:
    """Write time and page of reads that `count_reads` counted to the records, from `at` on."""
    timed = time.size > 0
    i, stop, first_record = np.uint64(start), np.uint64(end), np.uint64(at - start)
    line_shift = np.uint64(ones(np.uint64(line - 1)))
    while i < stop:
        now = time[i] if timed else now + delta_of(words[i])
        slot = np.uint64(slots[i])
        if line > 1:
            page = counted_page[slot >> line_shift]
        else:
            first = np.uint64(range_of_frame[slot >> _PAGE_SHIFT]) << _PAGE_SHIFT
            page = np.uint32(first + (slot & _ENTRY))
        put_passing(out_time, first_record + i, now)
        put_passing(out_page, first_record + i, page)
        i += _ONE


@bare
def pair_reads(
    slots: U32,
    start: Integer,
    end: Integer,
    pmd_slot: Integer,
    line: Integer,
    parents: I64,
) -> tuple[bool, Integer, Integer]:
    """Count walks, whole and broken ones, among reads that `count_reads` counted.

    False where huge pages may be among them: these are to be told from tables, then. `pmd_slot`:
    the read before `start`, if that was of a PMD entry, or -1.
    """
    # Several at a time where a core has instructions for that: nothing is stored here.
    i, stop, in_line = np.uint64(start), np.uint64(end), -line
    before, was_pmd = np.int64(pmd_slot), np.int64(pmd_slot >= 0)
    least = np.int64(NO_PARENT)
    pmds: Integer = 0
    pmds_of_pmds: Integer = 0
    whole: Integer = 0
    while i < stop:
        slot = np.uint64(slots[i])
        parent = parents[slot >> _PAGE_SHIFT]
        is_pmd = np.int64(holds_pmds(parent))
        least = min(least, parent)
        pmds += is_pmd
        pmds_of_pmds += is_pmd & was_pmd
        whole += was_pmd & np.int64(parent & in_line == before)
        before, was_pmd = np.int64(slot), is_pmd
        i += _ONE
    return bool(least > WITH_LEAVES), whole, end - start - pmds - whole + pmds_of_pmds


@bare
def put_kinds(
    slots: U32, start: Integer, end: Integer, parents: I64, out_kind: U8, at: Integer
) -> None:
    """Write the kinds of reads that `count_reads` counted, none of which is of a huge page."""
    i, stop, first_record = np.uint64(start), np.uint64(end), np.uint64(at - start)
    while i < stop:
        parent = get_apart(parents, np.uint64(slots[i]) >> _PAGE_SHIFT)
        put_apart(out_kind, first_record + i, np.uint8(holds_pmds(parent)) * np.uint8(PMD_READ))
        i += _ONE


@jit
def collect(
    slots: Integer,
    tally: U64,
    epoch_ticks: Integer,
    counted_page: U32,
    parents: I64,
    state: U8,
    range_of_frame: I32,
    row_of: U32,
    line: Integer,
    pages: I64,
) -> None:
    """Move what was counted of the first so many slots to the rows of their pages."""
    rows = np.empty(ENTRIES, np.uint32)
    misses, last_ticks = np.empty(ENTRIES, np.int64), np.empty(ENTRIES, np.int64)
    for first in range(0, slots, ENTRIES):
        n = take_all(
            first, first + ENTRIES, tally, counted_page, state, parents, range_of_frame, row_of,
            line, epoch_ticks, rows, misses, last_ticks, 0,
        )  # fmt: skip
        add_counts(pages, rows[:n], misses[:n], last_ticks[:n])


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


@bare
def count_of_both(one: I64, other: I64) -> Integer:
    """How many pages there are in columns that are in order."""
    alike, i = 0, 0
    for j in range(other.shape[1]):
        while i < one.shape[1] and one[P_PAGE, i] < other[P_PAGE, j]:
            i += 1
        alike += i < one.shape[1] and one[P_PAGE, i] == other[P_PAGE, j]
    return one.shape[1] + other.shape[1] - alike


@jit
def merge(one: I64, other: I64, merged: I64) -> None:
    """Merge columns that are in order, to as many as `count_of_both` says.

    To `one` itself if these are no more.
    """
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
