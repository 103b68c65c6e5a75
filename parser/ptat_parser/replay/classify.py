# SPDX-License-Identifier: BSD-2-Clause
"""The loop over a chunk's accesses: what was each of them?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.decode import (
    ACCESS_ADDRESS_MASK,
    ADDRESS_UNIT_SHIFT,
    PIECE_BLOCKS,
    WORD_CHECK,
    WORD_FIRST_RECORD,
    WORD_TIME,
    WRITE_BIT,
    delta_of,
    sum_up,
)
from ptat_parser.compiled.jit import Integer, bare, inlined, put_passing
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
    LOW_32,
    mark_stored,
    timed_after,
    timed_until,
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
    EPOCH,
    EXAMPLES,
    FAULT,
    FIRST_READ,
    FIRST_ROW,
    GROUP,
    IN_MARKERS,
    LAST_READ,
    MISS,
    N_HELD,
    N_OUTPUT,
    NO_ADDRESS,
    NO_TABLE,
    OUTSIDE_REGION,
    READBACKS,
    ROWS,
    STORES,
    STORES_UNOWNED,
    UNEXPLAINED,
    WALK_PMD,
    WALK_PMD_TICKS,
    WALKS_BROKEN,
    WALKS_WHOLE,
    WATCH_GROUPS,
    Accesses,
    Config,
    accesses_in,
    room_in,
)
from ptat_parser.replay.walks import count_walks, end_walk, pmd_kind, table_line

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ROW_MASK = np.uint32(ROW_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(COUNT_BITS), np.uint64(COUNTED_MAX)


@inlined
def _unexplained(
    time: Integer, address: Integer, reason: Integer, count: I64, examples: U64
) -> None:
    if count[UNEXPLAINED] < EXAMPLES:
        examples[count[UNEXPLAINED], 0] = time
        examples[count[UNEXPLAINED], 1] = address
        examples[count[UNEXPLAINED], 2] = reason
    count[UNEXPLAINED] += 1


@bare
def replay_accesses(start: Integer, stop: Integer, chunk_memory: I64, memory: I64) -> Integer:
    """Replay the accesses ``start … stop``, between which no table event stands.

    `chunk_memory` keeps the `Accesses`, `memory` the `Room`. Returns where it came to, which is
    not `stop` if reading failed.

    Nearly all of them are left to `quick`.
    """
    chunk = accesses_in(chunk_memory)
    t, out, held, timed, pages, count, examples, config, slots = room_in(memory)
    base, size, marker_bytes = config.base, config.size, config.marker_bytes
    first_place, places = base >> TO_ENTRY, size >> TO_ENTRY
    line, faults, entries, records = config.line, config.faults, config.entries, config.records
    levels, store_levels, frames = t.level, t.store_level, t.frame
    parents, ranges, quick_slot = t.parent, t.range_of_frame, t.quick_slot
    state, pending, mapped, owed, owed_ticks = t.state, t.pending, t.mapped, t.owed, t.owed_ticks
    tally, counted_page, row_of = t.tally, t.counted_page, t.row_of
    watched, waits, last_read = t.watched, t.waits, t.last_read
    held_first, held_record, held_time = held.first, held.record, held.time
    held_row, held_kind = held.row, held.kind
    held_previous, held_stored = held.previous, held.stored
    epoch = np.uint64(count[EPOCH])
    in_line = np.uint64(ENTRIES - line)  # of an index: the line's first entry
    out_time, out_page, out_kind = out.time, out.page, out.kind
    n_output, first_row = count[N_OUTPUT], count[FIRST_ROW]
    next_timed = timed_after(timed, count, config)
    pmd_line = count[WALK_PMD]
    lone_reads = 0  # of PTEs, without one of a PMD entry right before
    blocks = chunk.size
    time = chunk.time
    done: Integer = stop

    for group in range(start // GROUP, -(-stop // GROUP)):
        first = group * GROUP
        following, following_ticks = chunk.following.address, np.int64(chunk.following.ticks)
        latest = np.uint64(chunk.last_ticks)  # no access of the group is later
        now = _ZERO
        i = max(start - first, 0)
        end = min(stop - first, GROUP)
        if faults and i == 0 and group % WATCH_GROUPS == 0:
            count[N_OUTPUT] = n_output
            watch_until(_horizon(chunk, group, config), t, timed, pages, count, config)
        if blocks:
            if not _is_as_it_was(chunk, group):
                done = max(first, start)
                break
            words = chunk.blocks[group, WORD_FIRST_RECORD:WORD_CHECK]
            now = _time_at(words, 0, i, chunk.blocks[group, WORD_TIME])
            if group + 1 < blocks:
                latest = chunk.blocks[group + 1, WORD_TIME]
                following, following_ticks = _read(
                    chunk.blocks[group + 1, WORD_FIRST_RECORD], latest
                )
        else:
            words = chunk.words[first : first + GROUP]
            time = chunk.time[first : first + GROUP]
            if first + GROUP < chunk.time.size:
                following, _ = _read(chunk.words[first + GROUP], _ZERO)
                following_ticks = np.int64(chunk.time[first + GROUP])
        quick_end = _until(words, time, i, end, now, latest, next_timed)
        pmds_here = find_slots(words, i, end, first_place, places, in_line, quick_slot, slots)
        while i < end:
            if n_output > 0 and i < quick_end and may_count(slots[i]):
                began, before = i, now
                i, now, count[ROWS] = count_reads(
                    words, time, slots, began, quick_end, now, line, tally, epoch, counted_page,
                    entries, parents, state, pending, mapped, ranges, watched, row_of, pages,
                    count[ROWS],
                )  # fmt: skip
                if records:
                    put_reads(
                        words, time, slots, began, i, before, line, counted_page, ranges,
                        out_time, out_page, n_output - first_row,
                    )  # fmt: skip
                if pmds_here or pmd_line >= 0:
                    pmd_line = count_walks(
                        words, time, slots, began, i, before, now, pmd_line, line, config.huge,
                        parents, state, out_kind, n_output - first_row, count,
                    )  # fmt: skip
                else:
                    lone_reads += i - began
                n_output += i - began
                if i == end:
                    break

            word = words[i]
            before = now
            now = now + delta_of(word) if blocks else time[i]
            address = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
            i += 1
            if next_timed < now:
                count[N_OUTPUT] = n_output
                if faults and word & WRITE_BIT:
                    # An event that has waited for so long is to know of this store, too.
                    entry = entry_at(address, frames, base, size)
                    if entry >= 0:
                        mark_stored(entry & -line, last_read, held_first, held_stored, count)
                timed_until(now, t, out, held, timed, pages, count, config)
                next_timed = timed_after(timed, count, config)
                quick_end = _until(words, time, i, end, now, latest, next_timed)
                if n_output > 0 and may_count(slots[i - 1]):
                    # Nothing but the event was in the way.
                    i, now = i - 1, before
                    continue
            offset = address - base
            if offset >= size:
                _unexplained(now, address, OUTSIDE_REGION, count, examples)
                continue
            page = np.int64(offset >> TO_PAGE)
            frame = np.int64(frames[page])
            level = levels[page]
            slot = (frame * ENTRIES + np.int64(offset >> TO_ENTRY) % ENTRIES) & -line
            if word & WRITE_BIT:
                if offset < marker_bytes:
                    continue
                count[STORES] += 1
                if frame < 0:
                    count[STORES_UNOWNED] += 1
                else:
                    if store(store_levels[page], slot, line, state, pending, mapped):
                        put_away(
                            slot, line, tally, epoch, counted_page, parents, state, ranges, row_of,
                            pages,
                        )  # fmt: skip
                    if faults:
                        mark_stored(slot, last_read, held_first, held_stored, count)
                    if level and not config.skips:
                        number = page_number(ranges[frame], slot % ENTRIES, line, line)
                        row, count[ROWS] = row_of_page(number, row_of, pages, count[ROWS])
                        pages[row, P_STORES] += 1
                continue

            if level == 1:
                empty = state[slot] == EMPTY
                kind = FAULT if empty else MISS
                if n_output == 0:
                    count[FIRST_READ] = (parents[frame] & -line) + 1
                if pmd_line < 0:
                    lone_reads += 1
                else:
                    end_walk(pmd_line, parents[frame], now, count, line)
                    pmd_line = -1
            elif level == 2:
                if i < words.size:
                    next_address, next_ticks = _read(words[i], now)
                    gap = (next_ticks if blocks else np.int64(time[i])) - np.int64(now)
                else:
                    next_address, gap = following, following_ticks - np.int64(now)
                next_line = table_line(next_address, levels, frames, parents, config)
                kind, empty, goes_on = pmd_kind(slot, gap, next_line, state, count, config)
                if n_output == 0:
                    count[FIRST_READ] = -1
                count[WALKS_BROKEN] += pmd_line >= 0
                count[WALKS_WHOLE] += not goes_on
                pmd_line = slot if goes_on else -1
                count[WALK_PMD_TICKS] = now
            else:
                if address == config.readback:
                    count[READBACKS] += 1
                    continue
                reason = IN_MARKERS if offset < marker_bytes else NO_TABLE
                _unexplained(now, address, reason, count, examples)
                continue

            if kind == MISS:
                number = page_of_line(slot, line, level, entries, ranges, state, mapped)
            else:
                number = page_number(ranges[frame], slot % ENTRIES, line, line)
            count[ROWS] = note_read(number, now, row_of, pages, count[ROWS])
            row = np.int64(row_of[number] & _ROW_MASK)
            if records:
                at_record = np.uint64(n_output - first_row)
                put_passing(out_time, at_record, now)
                put_passing(out_page, at_record, np.uint32(number))
                out_kind[at_record] = kind
            if kind == MISS and level == 1:
                known = tally[slot] & _COUNT_MASK
                if line > 1:
                    counted_page[slot // line] = number
                if known == COUNTED_MAX:
                    pages[row, P_MISSES] += COUNTED_MAX
                    known = _ZERO
                tally[slot] = now - epoch << _COUNT_SHIFT | known + _ONE
            else:
                pages[row, P_LAST] = now
                pages[row, P_MISSES] += kind == MISS
            n_output += 1
            if kind == MISS:
                if faults:
                    at = count[N_HELD] - held_first[0]
                    held_record[at] = n_output - 1
                    held_time[at] = now
                    held_row[at] = row
                    held_kind[at] = MISS
                    held_previous[at] = last_read[slot]
                    held_stored[at] = False
                    waits[frame] = True
                    count[N_HELD] += 1
                    last_read[slot] = count[N_HELD] & LOW_32
            elif kind == FAULT:
                pages[row, P_FAULTED] += 1
                if faults and empty and owed[slot] < 255:
                    waits[frame] = True
                    owed[slot] += 1
                    owed_ticks[slot] = now
        last, _ = _read(words[end - 1], _ZERO)
        count[LAST_READ] = np.int64(last)
    count[N_OUTPUT] = n_output
    count[WALK_PMD] = pmd_line
    count[WALKS_BROKEN] += lone_reads
    return done


@inlined
def _horizon(chunk: Accesses, first: Integer, config: Config) -> Integer:
    """When no fault event is about one of the `WATCH_GROUPS` groups from `first` on any more.

    As near as can be told: reads that an event to come may be about take longer.
    """
    later = first + WATCH_GROUPS + config.held_groups
    if not chunk.size:
        at = later * GROUP
        return chunk.time[at] if at < chunk.time.size else chunk.following.horizon
    if later >= chunk.size:
        return chunk.following.horizon
    return chunk.blocks[later, WORD_TIME]


@inlined
def _is_as_it_was(chunk: Accesses, block: Integer) -> bool:
    """Whether a block's piece has the sums that it must have, if any are known."""
    piece = block // PIECE_BLOCKS
    if chunk.sums.size and piece != chunk.checked[0]:
        first = piece * PIECE_BLOCKS
        words = chunk.blocks[first : min(first + PIECE_BLOCKS, chunk.size)]
        if sum_up(words) != (chunk.sums[piece, 0], chunk.sums[piece, 1]):
            return False
        chunk.checked[0] = piece
    return True


@inlined
def _read(word: Integer, before: Integer) -> tuple[Integer, Integer]:
    """Address of an access if it is a read, and its time if `before` is that of the one before."""
    if word & WRITE_BIT:
        return NO_ADDRESS, 0
    return (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT, np.int64(before + delta_of(word))


@bare
def _time_at(words: U64, start: Integer, end: Integer, now: Integer) -> Integer:
    """Time of the access before `end` of a block; `now`: of the one before `start`."""
    for i in range(start, end):
        now += delta_of(words[i])
    return now


@bare
def _until(
    words: U64,
    time: U64,
    start: Integer,
    end: Integer,
    now: Integer,
    latest: Integer,
    next_timed: Integer,
) -> Integer:
    """The end of those accesses that are not after the next event without a marker.

    `now`: time of the access before `start`; `latest`: no access is later.
    """
    if latest <= next_timed:
        return end
    for i in range(start, end):
        now = time[i] if time.size else now + delta_of(words[i])
        if now > next_timed:
            return i
    return end
