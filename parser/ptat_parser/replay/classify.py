# SPDX-License-Identifier: BSD-2-Clause
"""The compiled loop that classifies a chunk's accesses.

`fast_path` counts nearly all reads. This module handles the others one at a time: stores, reads of
empty entries, reads that a fault event may match, PMD entries next to huge pages, and reads without
a table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import (
    ACCESS_ADDRESS_MASK,
    ADDRESS_UNIT_SHIFT,
    WORD_CHECK,
    WORD_FIRST_RECORD,
    WORD_TIME,
    WRITE_BIT,
    delta_of,
)
from ptat_parser.compiled.jit import Integer, bare, inlined, inner, put_passing
from ptat_parser.replay.entry_stores import TO_ENTRY, TO_PAGE, entry_at, store
from ptat_parser.replay.fast_path import count_reads, find_slots, may_count, put_reads
from ptat_parser.replay.page_counts import (
    P_FAULTED,
    P_LAST,
    P_MISSES,
    P_STORES,
    note_read,
    page_of_line,
    put_away,
    row_of_page,
)
from ptat_parser.replay.page_faults import (
    apply_until,
    hold,
    mark_stored,
    match_waited,
    next_event,
    watch_until,
)
from ptat_parser.replay.page_tables import (
    COUNT_BITS,
    COUNTED_MAX,
    EMPTY,
    ENTRIES,
    ROW_MASK,
    page_number,
)
from ptat_parser.replay.state import (
    EXAMPLES,
    FAULT,
    GROUP,
    IN_MARKERS,
    MISS,
    NO_ADDRESS,
    NO_TABLE,
    OUTSIDE_REGION,
    WATCH_GROUPS,
    AccessesMemory,
    RoomMemory,
)
from ptat_parser.replay.walks import count_walks, end_walk, pmd_kind, table_line

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ROW_MASK = np.uint32(ROW_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)


@bare
def replay_accesses(
    start: Integer, stop: Integer, chunk_memory: AccessesMemory, memory: RoomMemory
) -> None:
    """Replay the accesses ``[start, stop)``, which have no table event between them.

    `chunk_memory` holds the `Accesses`, `memory` the `Room`. This is one function, because each
    level of calls makes numba optimize all functions below it again.
    """
    room = memory.room
    slots, tally = room.slots, room.tally
    for group in range(start // GROUP, -(-stop // GROUP)):
        if room.config.faults and group * GROUP >= start and group % WATCH_GROUPS == 0:
            watch_until(_horizon(group, chunk_memory, memory), memory)
        words, time, i, end, now = _group(group, start, stop, chunk_memory)
        following = _after_group(group, chunk_memory)
        latest = following[2]
        next_timed = next_event(memory)
        fast_end = _until(words, time, i, end, now, latest, next_timed)
        pmds_here = find_slots(words, i, end, memory)
        while i < end:
            if tally.reads > 0 and i < fast_end and may_count(slots[i]):
                began, before = i, now
                i, now = count_reads(words, time, began, fast_end, before, memory)
                if room.config.records:
                    put_reads(words, time, began, i, before, memory)
                if pmds_here or room.cursors.walk_pmd >= 0:
                    count_walks(words, time, began, i, before, now, memory)
                else:
                    tally.walks_broken += i - began
                tally.reads += i - began
                if i == end:
                    break
            word, before = words[i], now
            now = time[i] if time.size else now + delta_of(word)
            i += 1
            if next_timed < now:
                _mark_early(word, memory)
                apply_until(now, memory)
                match_waited(now, memory)
                next_timed = next_event(memory)
                fast_end = _until(words, time, i, end, now, latest, next_timed)
                if tally.reads > 0 and may_count(slots[i - 1]):
                    # Only the event had interrupted the fast path.
                    i, now = i - 1, before
                    continue
            if word & WRITE_BIT:
                _replay_store(_address_of(word), now, memory)
                continue
            address, ticks = _next_read(words, time, i, now, following)
            _replay_read(_address_of(word), now, address, ticks - np.int64(now), memory)
        last, _ = _read(words[end - 1], _ZERO)
        room.cursors.last_read = np.int64(last)


@inner
def _mark_early(word: Integer, memory: RoomMemory) -> None:
    """Mark an access that is a store before the events before it: a waiting event must see it."""
    config = memory.room.config
    if config.faults and word & WRITE_BIT:
        entry = entry_at(_address_of(word), memory)
        if entry >= 0:
            mark_stored(entry & -config.line, memory)


@inner
def _replay_store(address: Integer, now: Integer, memory: RoomMemory) -> None:
    """Replay a store: update the state of its slot, and count it for its page."""
    room = memory.room
    t, config, tally = room.t, room.config, room.tally
    line = config.line
    offset = address - config.base
    if offset >= config.size:
        _unexplained(now, address, np.int64(OUTSIDE_REGION), memory)
        return
    if offset < config.marker_bytes:
        return
    tally.stores += 1
    page = np.int64(offset >> TO_PAGE)
    frame = np.int64(t.frame[page])
    if frame < 0:
        tally.stores_unowned += 1
        return
    slot = (frame * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES) & -line
    if store(np.int64(t.store_level[page]), slot, line, memory):
        put_away(slot, memory)
    if config.faults:
        mark_stored(slot, memory)
    if t.level[page] and not config.skips:
        number = page_number(t.range_of_frame[frame], slot % ENTRIES, line, line)
        row = row_of_page(number, memory)
        room.pages[row, P_STORES] += 1


@inner
def _replay_read(
    address: Integer, now: Integer, next_address: Integer, gap: Integer, memory: RoomMemory
) -> None:
    """Replay a read; the next read, `gap` ticks later, is of `next_address` (or `NO_ADDRESS`)."""
    room = memory.room
    t, config, tally, cursors = room.t, room.config, room.tally, room.cursors
    line = config.line
    offset = address - config.base
    if offset >= config.size:
        _unexplained(now, address, np.int64(OUTSIDE_REGION), memory)
        return
    page = np.int64(offset >> TO_PAGE)
    frame = np.int64(t.frame[page])
    level = np.int64(t.level[page])
    slot = (frame * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES) & -line
    if level == 1:
        empty = t.state[slot] == EMPTY
        kind = FAULT if empty else MISS
        if tally.reads == 0:
            cursors.first_read = (t.parent[frame] & -line) + 1
        if cursors.walk_pmd < 0:
            tally.walks_broken += 1
        else:
            end_walk(t.parent[frame], now, memory)
            cursors.walk_pmd = -1
    elif level == 2:
        next_line = table_line(next_address, memory)
        kind, empty, goes_on = pmd_kind(slot, gap, next_line, memory)
        if tally.reads == 0:
            cursors.first_read = -1
        tally.walks_broken += cursors.walk_pmd >= 0
        tally.walks_whole += not goes_on
        cursors.walk_pmd = slot if goes_on else -1
        cursors.walk_pmd_ticks = now
    elif address == config.readback:
        tally.readbacks += 1
        return
    else:
        reason = IN_MARKERS if offset < config.marker_bytes else NO_TABLE
        _unexplained(now, address, reason, memory)
        return
    _count_read(slot, level, kind, empty, now, memory)


@inner
def _count_read(
    slot: Integer, level: Integer, kind: Integer, empty: bool, now: Integer, memory: RoomMemory
) -> None:
    """Count a read of a known kind for its page, and append it to the records."""
    room = memory.room
    t, config, tally, pages = room.t, room.config, room.tally, room.pages
    line = config.line
    frame = slot // ENTRIES
    if kind == MISS:
        number = page_of_line(slot, level, memory)
    else:
        number = page_number(t.range_of_frame[frame], slot % ENTRIES, line, line)
    note_read(number, now, memory)
    row = np.int64(t.row_of[number] & _ROW_MASK)
    if config.records:
        at_record = np.uint64(tally.reads - room.cursors.first_row)
        put_passing(room.out.time, at_record, now)
        put_passing(room.out.page, at_record, np.uint32(number))
        room.out.kind[at_record] = kind
    if kind == MISS and level == 1:
        known: Integer = t.tally[slot] & _COUNT_MASK
        if line > 1:
            t.counted_page[slot // line] = number
        if known == COUNTED_MAX:
            pages[row, P_MISSES] += COUNTED_MAX
            known = _ZERO
        t.tally[slot] = now - np.uint64(room.cursors.epoch) << _COUNT_SHIFT | known + _ONE
    else:
        pages[row, P_LAST] = now
        pages[row, P_MISSES] += kind == MISS
    if kind == MISS:
        if config.faults:
            hold(now, row, slot, memory)
    elif kind == FAULT:
        pages[row, P_FAULTED] += 1
        if config.faults and empty and t.owed[slot] < 255:
            t.waits[frame] = True
            t.owed[slot] += 1
            t.owed_ticks[slot] = now
    tally.reads += 1


@inner
def _unexplained(now: Integer, address: Integer, reason: Integer, memory: RoomMemory) -> None:
    room = memory.room
    tally, examples = room.tally, room.examples
    if tally.unexplained < EXAMPLES:
        examples[tally.unexplained, 0] = now
        examples[tally.unexplained, 1] = address
        examples[tally.unexplained, 2] = reason
    tally.unexplained += 1


# Words --------------------------------------------------------------------------------------------


@inner
def _horizon(first: Integer, chunk_memory: AccessesMemory, memory: RoomMemory) -> Integer:
    """A time after which no fault event matches a read of `WATCH_GROUPS` groups from `first` on.

    This is an estimate; an event that comes later finds its read no longer held.
    """
    chunk = chunk_memory.accesses
    later = first + WATCH_GROUPS + memory.room.config.held_groups
    if not chunk.size:
        at = later * GROUP
        return chunk.time[at] if at < chunk.time.size else chunk.following.horizon
    if later >= chunk.size:
        return chunk.following.horizon
    return chunk.blocks[later, WORD_TIME]


@inner
def _after_group(group: Integer, chunk_memory: AccessesMemory) -> tuple[Integer, Integer, Integer]:
    """Address and time of the read right after a group, and a bound of the group's times."""
    chunk = chunk_memory.accesses
    latest = np.uint64(chunk.last_ticks)
    if chunk.size:
        if group + 1 < chunk.size:
            latest = chunk.blocks[group + 1, WORD_TIME]
            address, ticks = _read(chunk.blocks[group + 1, WORD_FIRST_RECORD], latest)
            return address, ticks, latest
    else:
        after = (group + 1) * GROUP
        if after < chunk.time.size:
            address, _ = _read(chunk.words[after], _ZERO)
            return address, np.int64(chunk.time[after]), latest
    return chunk.following.address, np.int64(chunk.following.ticks), latest


@inlined
def _address_of(word: Integer) -> Integer:
    return (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT


@inner
def _read(word: Integer, before: Integer) -> tuple[Integer, Integer]:
    """Address and time of an access if it is a read; `before`: time of the previous access."""
    if word & WRITE_BIT:
        return NO_ADDRESS, np.int64(0)
    return _address_of(word), np.int64(before + delta_of(word))


@inner
def _next_read(
    words: U64, time: U64, i: Integer, now: Integer, following: tuple[Integer, Integer, Integer]
) -> tuple[Integer, Integer]:
    """Address and time of access `i` if it is a read; `now`: time of the previous access."""
    if i == words.size:
        return following[0], following[1]
    address, ticks = _read(words[i], now)
    return address, np.int64(time[i]) if time.size else ticks


@inner
def _group(
    group: Integer, start: Integer, stop: Integer, chunk_memory: AccessesMemory
) -> tuple[U64, U64, Integer, Integer, Integer]:
    """The part of a group in ``[start, stop)``.

    Words and times of the group, first and last index of the part, and time before the first.
    """
    chunk = chunk_memory.accesses
    first = group * GROUP
    begin, end = max(start - first, 0), min(stop - first, GROUP)
    words, time, now = chunk.words[first : first + GROUP], chunk.time[first : first + GROUP], _ZERO
    if chunk.size:
        block = chunk.blocks[group]
        words, time, now = block[WORD_FIRST_RECORD:WORD_CHECK], chunk.time, block[WORD_TIME]
        for i in range(begin):
            now += delta_of(words[i])
    return words, time, begin, end, now


@inner
def _until(
    words: U64,
    time: U64,
    start: Integer,
    end: Integer,
    now: Integer,
    latest: Integer,
    next_timed: Integer,
) -> Integer:
    """The end of the accesses that precede the next event without a marker.

    `now`: time of the access before `start`; `latest`: upper bound of the accesses' times.
    """
    if latest <= next_timed:
        return end
    for i in range(start, end):
        now = time[i] if time.size else now + delta_of(words[i])
        if now > next_timed:
            return i
    return end
