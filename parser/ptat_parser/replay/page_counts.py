# SPDX-License-Identifier: BSD-2-Clause
"""Counts reads, misses, faults and stores of each page.

A page that was read or stored to has a row of `PAGE_COLUMNS` integers. What a slot's reads add is
first counted in one word of the slot (`Tables.tally`) and moved to the page's row when the slot's
reads come to be of another page.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, inlined, jit, prefetch
from ptat_parser.replay.page_tables import ENTRIES, LEAF, ROW_MASK, page_number, take, take_all

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


NEVER_READ = np.iinfo(np.int64).max


ROW_MASK_U32, WAS_READ = np.uint32(ROW_MASK), ~np.uint32(ROW_MASK)


AHEAD = 64
"""So many reads before one, its word is fetched."""


@inlined
def row_of_page(number: Integer, row_of: U32, pages: I64, rows: Integer) -> tuple[Integer, Integer]:
    """A page's row, which it has from now on, and how many there are then."""
    row = np.int64(row_of[number] & ROW_MASK_U32)
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
    if not row_of[number] & WAS_READ:
        row, rows = row_of_page(number, row_of, pages, rows)
        row_of[number] |= WAS_READ
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
        row = np.int64(row_of[number] & ROW_MASK_U32)
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
