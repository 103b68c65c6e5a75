# SPDX-License-Identifier: BSD-2-Clause
"""Counts the reads whose kind follows from the state of their slot alone: nearly all reads.

`find_slots` looks up the slot of each access of a block; `count_reads` then counts a run of reads
and stops at the first access that `classify` must handle. A table that needs `classify` has
`page_tables.NO_SLOT` as its first slot. The counts of these slots are always 0, so a single
comparison in the inner loop finds every access that needs it.

The only cache misses of the inner loop are for the word that counts a slot's reads, which it
prefetches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import ACCESS_ADDRESS_MASK, WRITE_BIT, delta_of
from ptat_parser.compiled.jit import (
    Integer,
    bare,
    get_apart,
    inlined,
    inner,
    ones,
    prefetch,
    put_apart,
    put_passing,
)
from ptat_parser.replay.entry_stores import TO_ENTRY
from ptat_parser.replay.page_counts import P_MISSES, note_read, page_of_line
from ptat_parser.replay.page_tables import (
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
)
from ptat_parser.replay.state import PMD_READ, RoomMemory

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_PLACE = ACCESS_ADDRESS_MASK | WRITE_BIT  # a write is outside of any region
_PAGE_SHIFT = np.uint64(9)  # of addresses in units of 8 bytes
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_ENTRY = np.uint64(ENTRIES - 1)
_OF_PMDS, _SLOT = np.uint32(OF_PMDS), np.uint32(OF_PMDS - 1)
_ROW_MASK = np.uint32(ROW_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)

AHEAD = 64
"""Prefetch distance, in reads, of the word that counts a slot's reads."""


@bare
def find_slots(words: U64, start: Integer, end: Integer, memory: RoomMemory) -> bool:
    """Fill `Room.slots` for the accesses ``[start, end)``; return whether any are PMD entries."""
    room = memory.room
    config, fast_slot, slots = room.config, room.t.fast_slot, room.slots
    base, size = config.base >> TO_ENTRY, config.size >> TO_ENTRY
    in_line = np.uint64(ENTRIES - config.line)  # masks an index to the line's first entry
    i, stop = np.uint64(start), np.uint64(end)
    flags = np.uint32(0)
    while i < stop:
        place = min((get_apart(words, i) & _PLACE) - base, size)
        first = get_apart(fast_slot, place >> _PAGE_SHIFT)
        flags |= first
        put_apart(slots, i, np.uint32(np.uint64(first & _SLOT) + (place & in_line)))
        i += _ONE
    return bool(flags & _OF_PMDS)


@inlined
def may_count(slot: Integer) -> bool:
    """Whether `count_reads` may count an access to `slot`."""
    return bool(slot >= ENTRIES)


@inner
def _is_plain(slot: Integer, memory: RoomMemory) -> bool:
    """Whether the kind of a line's reads follows from its entries alone."""
    room = memory.room
    t, line = room.t, room.config.line
    state, pending = t.state, t.pending
    frame = slot // ENTRIES
    if not holds_pmds(t.parent[frame]):
        return bool(state[slot] != EMPTY)
    leaves: Integer = 0
    tables: Integer = 0
    for s in range(slot, slot + line):
        if pending[s] != NOTHING_PENDING or state[s] == UNTRACED:
            return False
        leaves += state[s] == LEAF
        tables += state[s] == TABLE
    if leaves:
        return bool(tables == 0 and t.watched[t.range_of_frame[frame]] == 0)
    return bool(tables == line)


@inner
def _begin_to_count(slot: Integer, now: Integer, memory: RoomMemory) -> None:
    """Prepare a slot whose count is 0 for its first read."""
    room = memory.room
    level = 2 if holds_pmds(room.t.parent[slot // ENTRIES]) else 1
    page = page_of_line(slot, level, memory)
    note_read(page, now, memory)
    if room.config.line > 1:
        room.t.counted_page[slot // room.config.line] = page


@inner
def _move_full_count(slot: Integer, memory: RoomMemory) -> None:
    """Move `COUNTED_MAX` reads of a slot to the row of its page."""
    room = memory.room
    t = room.t
    if are_misses(slot, t.parent, t.state):
        page = page_counted(slot, room.config.line, t.counted_page, t.range_of_frame)
        room.pages[np.int64(t.row_of[page] & _ROW_MASK), P_MISSES] += COUNTED_MAX


@bare
def count_reads(
    words: U64, time: U64, start: Integer, end: Integer, now: Integer, memory: RoomMemory
) -> tuple[Integer, Integer]:
    """Count the reads from `start` up to the first access that needs `classify`.

    `time` holds the accesses' times; if it is empty, they follow from the words' deltas and `now`,
    the time of the access before `start`. `Room.slots` must be filled by `find_slots`. Returns the
    index of the first access not counted, and the time of the access before it.
    """
    room = memory.room
    slots, tally = room.slots, room.t.tally
    epoch = np.uint64(room.cursors.epoch)
    timed = time.size > 0
    # Unsigned indices avoid sign checks.
    i, stop = np.uint64(start), np.uint64(end)
    ahead = np.uint64(AHEAD)
    while True:
        # The inner loop. Its only branch is taken if a count is 0 or full.
        slot, known, before = _ZERO, _ZERO, now
        while i < stop:
            prefetch(tally, np.uint64(slots[i + ahead]))
            slot = np.uint64(slots[i])
            before = now
            now = time[i] if timed else now + delta_of(words[i])
            known = tally[slot] + _ONE & _COUNT_MASK
            if known < 2:
                break
            tally[slot] = now - epoch << _COUNT_SHIFT | known
            i += _ONE
        if i == stop:
            return end, now
        here = np.int64(slot)
        if known == 0:
            _move_full_count(here, memory)
        elif not may_count(here) or not _is_plain(here, memory):
            return np.int64(i), before
        else:
            _begin_to_count(here, now, memory)
        tally[slot] = now - epoch << _COUNT_SHIFT | _ONE
        i += _ONE


@inner
def put_reads(
    words: U64, time: U64, start: Integer, end: Integer, now: Integer, memory: RoomMemory
) -> None:
    """Append time and page of the reads counted by `count_reads` to the records.

    `now`: time of the access before `start`. The output uses non-temporal stores.
    """
    room = memory.room
    slots, counted_page = room.slots, room.t.counted_page
    range_of_frame, line = room.t.range_of_frame, room.config.line
    out_time, out_page = room.out.time, room.out.page
    timed = time.size > 0
    at = room.tally.reads - room.cursors.first_row
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


@inner
def pair_reads(start: Integer, end: Integer, memory: RoomMemory) -> tuple[bool, Integer, Integer]:
    """Count the whole and the broken walks among the reads counted by `count_reads`.

    Returns False if some reads may be of huge pages; their tables must then be checked.
    """
    # The loop stores nothing, so a core can overlap its iterations.
    room = memory.room
    slots, parents, in_line = room.slots, room.t.parent, -room.config.line
    i, stop = np.uint64(start), np.uint64(end)
    before = room.cursors.walk_pmd
    was_pmd = np.int64(before >= 0)
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


@inner
def put_kinds(start: Integer, end: Integer, memory: RoomMemory) -> None:
    """Write the kinds of the reads counted by `count_reads`, none of which is of a huge page."""
    room = memory.room
    slots, parents, out_kind = room.slots, room.t.parent, room.out.kind
    at = room.tally.reads - room.cursors.first_row
    i, stop, first_record = np.uint64(start), np.uint64(end), np.uint64(at - start)
    while i < stop:
        parent = get_apart(parents, np.uint64(slots[i]) >> _PAGE_SHIFT)
        put_apart(out_kind, first_record + i, np.uint8(holds_pmds(parent)) * np.uint8(PMD_READ))
        i += _ONE
