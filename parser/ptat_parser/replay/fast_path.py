# SPDX-License-Identifier: BSD-2-Clause
"""Counts the reads whose kind is plain from the state of their slot: nearly all of them.

`find_slots` looks up the slot of each access of a block; `count_reads` then counts a run of reads
and stops at the first access that `classify` must look at. A table that needs a closer look has
`page_tables.NO_SLOT` as its first slot. The counts of these slots are always 0, so that one
comparison in the inner loop finds every access that is not plain.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.decode import ACCESS_ADDRESS_MASK, PIECE_BLOCKS, WRITE_BIT, delta_of
from ptat_parser.compiled.jit import (
    Integer,
    bare,
    get_apart,
    inlined,
    ones,
    prefetch,
    prefetch_later,
    put_apart,
    put_passing,
)
from ptat_parser.replay.page_counts import AHEAD, P_MISSES, ROW_MASK_U32, note_read, page_of_line
from ptat_parser.replay.page_tables import (
    COUNT_BITS,
    COUNTED_MAX,
    EMPTY,
    ENTRIES,
    LEAF,
    NO_PARENT,
    NOTHING_PENDING,
    OF_PMDS,
    TABLE,
    UNTRACED,
    WITH_LEAVES,
    are_misses,
    holds_pmds,
    page_counted,
)
from ptat_parser.replay.state import PMD_READ

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


_PLACE = ACCESS_ADDRESS_MASK | WRITE_BIT  # a write is outside of any region


_PAGE_SHIFT = np.uint64(9)  # of addresses in units of 8 bytes


_ZERO, _ONE = np.uint64(0), np.uint64(1)


_ENTRY = np.uint64(ENTRIES - 1)


_OF_PMDS, _SLOT = np.uint32(OF_PMDS), np.uint32(OF_PMDS - 1)


_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)


WORDS_AHEAD = PIECE_BLOCKS * wire.BLOCK_WORDS
"""So many words of a capture before one, it is fetched: while it is mapped, from memory."""


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
                pages[np.int64(row_of[page] & ROW_MASK_U32), P_MISSES] += COUNTED_MAX
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
