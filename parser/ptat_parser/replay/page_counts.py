# SPDX-License-Identifier: BSD-2-Clause
"""Counts reads, misses, faults and stores of each page.

A page that was read or stored to has a row of `PAGE_COLUMNS` integers. A slot's reads are first
counted in one word of the slot (`Tables.tally`). This count moves to the page's row before the
slot serves another page.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, inner
from ptat_parser.replay.page_tables import (
    COUNT_BITS,
    COUNTED_MAX,
    ENTRIES,
    LEAF,
    ROW_MASK,
    Counts,
    are_misses,
    page_counted,
    page_number,
)
from ptat_parser.replay.state import RoomMemory

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

# Columns of the counts of a page. A page's row is little more than a cache line.
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

_ROW_MASK, _WAS_READ = np.uint32(ROW_MASK), ~np.uint32(ROW_MASK)


# In compiled code ---------------------------------------------------------------------------------


@inner
def row_of_page(number: Integer, memory: RoomMemory) -> Integer:
    """The row of a page; adds a row if the page has none."""
    room = memory.room
    row = np.int64(room.t.row_of[number] & _ROW_MASK)
    if row == 0:
        cursors = room.cursors
        cursors.rows += 1
        row = cursors.rows
        room.t.row_of[number] = row
        room.pages[row, P_PAGE] = number
        room.pages[row, P_FIRST] = NEVER_READ
    return row


@bare
def note_read(number: Integer, now: Integer, memory: RoomMemory) -> None:
    """Record the time of a page's first read; later reads do not touch its row."""
    row_of = memory.room.t.row_of
    if not row_of[number] & _WAS_READ:
        row = row_of_page(number, memory)
        row_of[number] |= _WAS_READ
        memory.room.pages[row, P_FIRST] = now


@inner
def page_of_line(slot: Integer, level: Integer, memory: RoomMemory) -> Integer:
    """Number of the page, or of the run of candidate pages, of a miss on a line.

    The candidates are the PMD entries that map huge pages and, if entry events were recorded, the
    PTEs that are mapped.
    """
    room = memory.room
    state, mapped, line = room.t.state, room.t.mapped, room.config.line
    first: Integer = line
    end: Integer = 0
    if line > 1 and (room.config.entries or level == 2):
        for i in range(line):
            candidate = state[slot + i] == LEAF if level == 2 else mapped[slot + i] != 0
            if candidate:
                first = min(first, i)
                end = i + 1
    if end == 0:
        first, end = 0, line
    range_ = room.t.range_of_frame[slot // ENTRIES]
    return page_number(range_, slot % ENTRIES + first, end - first, line)


@inner
def put_away(slot: Integer, memory: RoomMemory) -> None:
    """Move the counts of a line to the row of its page; its next reads may be of another page."""
    room = memory.room
    t, pages = room.t, room.pages
    counted = t.tally[slot]
    if not counted:
        return
    t.tally[slot] = 0
    page = page_counted(slot, room.config.line, t.counted_page, t.range_of_frame)
    row = np.int64(t.row_of[page] & _ROW_MASK)
    if are_misses(slot, t.parent, t.state):
        pages[row, P_MISSES] += np.int64(counted & np.uint64(COUNTED_MAX))
    last_ticks = room.cursors.epoch + np.int64(counted >> np.uint64(COUNT_BITS))
    pages[row, P_LAST] = max(pages[row, P_LAST], last_ticks)


# All pages ----------------------------------------------------------------------------------------


def add_counts(pages: I64, counts: Counts) -> None:
    """Add the counts of slots to the rows of their pages."""
    np.add.at(pages[:, P_MISSES], counts.row, counts.misses)
    np.maximum.at(pages[:, P_LAST], counts.row, counts.last_ticks)


def in_order(row_of: U32, pages: I64) -> I64:
    """The rows of all pages sorted by number, as an array of shape ``(PAGE_COLUMNS, n)``."""
    numbers = np.flatnonzero(row_of)
    rows = row_of[numbers] & _ROW_MASK
    return np.ascontiguousarray(pages[rows].T)


def only_read(columns: I64) -> I64:
    """The columns of the pages that were read, in the same order."""
    read = columns[P_FIRST] != NEVER_READ
    return columns if read.all() else columns[:, read]


def merge(one: I64, other: I64) -> I64:
    """Add the columns of two replays' pages, matched by page number."""
    numbers = np.union1d(one[P_PAGE], other[P_PAGE])
    merged = np.zeros((PAGE_COLUMNS, numbers.size), np.int64)
    merged[P_PAGE], merged[P_FIRST] = numbers, NEVER_READ
    for part in (one, other):
        at = np.searchsorted(numbers, part[P_PAGE])
        for column in (P_MISSES, P_FAULTED, P_STORES):
            merged[column, at] += part[column]
        merged[P_FIRST, at] = np.minimum(merged[P_FIRST, at], part[P_FIRST])
        merged[P_LAST, at] = np.maximum(merged[P_LAST, at], part[P_LAST])
    return merged
