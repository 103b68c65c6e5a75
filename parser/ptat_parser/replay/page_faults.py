# SPDX-License-Identifier: BSD-2-Clause
"""Matches fault events with the walks that faulted.

docs/theory.md explains the method ("How a fault event finds its read").

A PTE slot that was not written since its table was allocated is empty, and a PMD slot's state is
known from its events: reads of empty slots certainly faulted. Each such read is ``owed`` an event,
which cancels it. `ptat_fault` events report the other faults (permissions, swap): the walk that
faulted is the last read of the slot before the event, which the kernel logs before the handler
stores to the entry.

The clocks of bus and kernel agree to about a microsecond, and an event may be as close to its read.
Reads of empty slots show the least delay from a read to its event (`lag_least`, which the clocks'
error may make negative) and the least delay until the access is retried (`retry_least`, measured on
the bus alone). An event waits for `HOLD_S`; then it matches the last read before it or, if that
read is older than a retry takes, a read that the clocks place just after it. If the clocks' error
exceeds the distance of two reads of a line, the bus decides: the handler stores to the entry, so
among the reads within the error the event matches one that a store follows. The error varies during
a recording, so an event may come slightly sooner than `lag_least`.

If several CPUs read an entry while one of them faults on it, a read much closer to the event than
`lag_least` is another CPU's. An event long after its read (`faults_late`) may be matched with
another CPU's read; such labels count as in doubt. Such an event does not match a read that saw
another CPU's store if no store followed it, and an earlier read that did not see the store would
be left without an event.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, inner
from ptat_parser.kernel import tracepoints
from ptat_parser.replay.entry_stores import entry_at
from ptat_parser.replay.page_counts import P_FAULTED, P_MISSES, put_away
from ptat_parser.replay.page_tables import (
    CLEARING,
    EMPTY,
    ENTRIES,
    NO_SLOT,
    TABLE,
    UNTRACED,
    WITH_LEAVES,
    are_misses,
    first_fast,
)
from ptat_parser.replay.state import FAULT, LEAST_UNKNOWN, MISS, NEVER, RoomMemory

I64 = npt.NDArray[np.int64]

PATIENCE_S = 0.05
"""Longest time from a read of an empty entry to its fault event.

Speculative walks read empty entries and never fault.
"""

HOLD_S = 50e-6
"""How long a fault event waits for reads that the clocks wrongly place after it."""

LAGS_LEARNT = 1000
"""Number of certain pairs of read and event before `lag_least` is used."""

LOW_32 = np.int64(0xFFFF_FFFF)


# Watching: hold the reads that a future fault event may match -------------------------------------


@inner
def _watch(range_: Integer, step: Integer, memory: RoomMemory) -> None:
    """Add a fault event of a range (step 1) or remove it (step -1)."""
    t = memory.room.t
    t.watched[range_] += step
    page = t.last_page[range_]
    if page >= 0 and t.level[page] == 1 and t.range_of_frame[t.frame[page]] == range_:
        frame = t.frame[page]
        t.fast_slot[page] = NO_SLOT if t.watched[range_] else first_fast(frame, 1, t.parent[frame])


@inner
def _watch_pmds(range_: Integer, memory: RoomMemory) -> None:
    """Add a fault event of a level-2 range, so that misses of its huge pages are held."""
    room = memory.room
    t = room.t
    t.watched[range_] += 1
    page = t.last_page[range_]
    if t.watched[range_] == 1 and page >= 0 and t.parent[t.frame[page]] == WITH_LEAVES:
        first = np.int64(t.frame[page]) * ENTRIES
        for slot in range(first, first + ENTRIES, room.config.line):
            if are_misses(slot, t.parent, t.state):
                put_away(slot, memory)


@bare
def watch_until(time: Integer, memory: RoomMemory) -> None:
    """Watch the tables of the fault events before `time`."""
    room = memory.room
    timed, cursors = room.timed, room.cursors
    while cursors.next_watched < timed.time.size and timed.time[cursors.next_watched] < time:
        i = cursors.next_watched
        if timed.kind[i] == tracepoints.FAULT:
            timed.held_since[i] = room.tally.reads
            _watch(timed.range1[i], np.int64(1), memory)
            _watch_pmds(timed.range2[i], memory)
        cursors.next_watched += 1


@inner
def hold(now: Integer, row: Integer, slot: Integer, memory: RoomMemory) -> None:
    """Hold the miss that becomes the next read, because a fault event may match it."""
    room = memory.room
    t, held, cursors = room.t, room.held, room.cursors
    at = cursors.held - held.first[0]
    held.record[at] = room.tally.reads
    held.time[at] = now
    held.row[at] = row
    held.kind[at] = MISS
    held.previous[at] = t.last_read[slot]
    held.stored[at] = False
    t.waits[slot // ENTRIES] = True
    cursors.held += 1
    t.last_read[slot] = cursors.held & LOW_32


@inner
def mark_stored(slot: Integer, memory: RoomMemory) -> None:
    """Mark the last held read of the line at `slot` as followed by a store."""
    room = memory.room
    last_read = room.t.last_read
    if last_read[slot]:
        at = _number_of(np.int64(last_read[slot]), memory) - room.held.first[0]
        if at >= 0:
            room.held.stored[at] = True


@inner
def _number_of(link: Integer, memory: RoomMemory) -> Integer:
    """Number of the held read that a link refers to: the low 32 bits of its number plus one."""
    held = memory.room.cursors.held
    return held - ((held + 1 - link) & LOW_32)


# Matching -----------------------------------------------------------------------------------------


@inner
def _match_fault(i: Integer, slot: Integer, memory: RoomMemory) -> None:
    """Turn the last miss on a slot that may have caused event `i` into a walk that faulted.

    If accesses were lost since that miss, it stays a miss, in doubt. Misses from before the table
    was watched are not matched either, because later misses may not have been held.
    """
    room = memory.room
    held, config, tally, delays = room.held, room.config, room.tally, room.delays
    time = np.int64(room.timed.time[i])
    lag_known = delays.lag_least != LEAST_UNKNOWN
    latest = time - min(delays.lag_least, 0)
    behind = latest
    oldest = np.int64(0)
    if delays.retry_least != LEAST_UNKNOWN:
        oldest = time - delays.retry_least
        if lag_known:
            behind = max(latest, time - delays.lag_least + delays.retry_least // 4)
    found = _last_miss(i, slot, oldest, latest, behind, memory)
    if found < 0:
        tally.faults_unmatched += 1
        return
    anothers = LEAST_UNKNOWN
    if config.overtaken and lag_known and tally.faults_empty >= LAGS_LEARNT:
        # Half of the least lag, because the clocks' error varies.
        anothers = time - delays.lag_least // 2 if delays.lag_least > 0 else behind
    settled = max(room.cursors.settled, room.timed.held_since[i])
    if np.int64(held.time[found]) > anothers:
        found = _before_another(time, found, settled, memory)
    if time - np.int64(held.time[found]) > config.hold:
        found = _beside_a_fault(time, slot, found, settled, memory)
    if not held.stored[found]:
        latest = time + config.clock_error
        if np.int64(held.time[found]) <= anothers:
            latest = min(latest, anothers)
        found = _stored_near(time, latest, slot, found, settled, memory)
    held.kind[found] = FAULT
    if config.records:
        room.out.kind[held.record[found] - room.cursors.first_row] = FAULT
    room.pages[held.row[found], P_MISSES] -= 1
    room.pages[held.row[found], P_FAULTED] += 1
    tally.faults_matched += 1
    tally.faults_late += time - np.int64(held.time[found]) > config.hold


@inner
def _last_miss(
    i: Integer, slot: Integer, oldest: Integer, latest: Integer, behind: Integer, memory: RoomMemory
) -> Integer:
    """The last held miss of a slot up to `latest`, or -1.

    If it is older than `oldest`, a miss up to `behind`, which the clocks place after the event.
    """
    room = memory.room
    held, timed, cursors = room.held, room.timed, room.cursors
    settled = max(cursors.settled, timed.held_since[i])
    found: Integer = -1
    link = np.int64(room.t.last_read[slot])
    while link != 0:
        number = _number_of(link, memory)
        at = number - held.first[0]
        read_ticks = np.int64(held.time[at]) if at >= 0 else oldest
        if at < 0 or held.record[at] < settled or (found >= 0 and read_ticks < oldest):
            break
        if held.kind[at] == MISS and read_ticks <= behind:
            if number < cursors.loss_floor:
                if found < 0 and read_ticks + room.config.patience > latest:
                    timed.doubt_ticks[i] = held.time[at]
                break
            if found < 0 or read_ticks <= latest:
                found = at
            if read_ticks <= latest:
                break
        link = np.int64(held.previous[at])
    return found


@inner
def _before(at: Integer, settled: Integer, memory: RoomMemory) -> Integer:
    """The previous held read of the slot of the read at `at`; -1 if none may be matched."""
    room = memory.room
    held = room.held
    if not held.previous[at]:
        return -1
    number = _number_of(np.int64(held.previous[at]), memory)
    at = number - held.first[0]
    if at < 0 or held.record[at] < settled or number < room.cursors.loss_floor:
        return -1
    return at


@inner
def _before_another(time: Integer, near: Integer, settled: Integer, memory: RoomMemory) -> Integer:
    """The miss of a slot before `near`, which is too close to the event to have caused it.

    Returns `near` if a store or much time separates the two.
    """
    room = memory.room
    held = room.held
    at = _before(near, settled, memory)
    while at >= 0:
        if time - np.int64(held.time[at]) > room.config.overtaken or held.stored[at]:
            break
        if held.kind[at] == MISS:
            return at
        at = _before(at, settled, memory)
    return near


@inner
def _beside_a_fault(
    time: Integer, slot: Integer, found: Integer, settled: Integer, memory: RoomMemory
) -> Integer:
    """The miss that a very late event matches: `found`, or an earlier one that saw no valid entry.

    If `found` follows a read of the slot that faulted, with the handler's store between them, it
    saw what the handler stored. A miss shortly before that fault, with no store between, did not,
    and may be another CPU's. If a store follows `found`, it is the store of the event's handler,
    and `found` is returned.
    """
    room = memory.room
    held = room.held
    link = np.int64(room.t.last_read[slot])
    while link != 0:
        later = _number_of(link, memory) - held.first[0]
        if held.stored[later]:
            return found
        if later == found:
            break
        link = np.int64(held.previous[later])
    faulted = False
    at = _before(found, settled, memory)
    while at >= 0:
        if time - np.int64(held.time[at]) > room.config.overtaken:
            break
        if held.stored[at] == faulted or (not faulted and held.kind[at] != FAULT):
            break
        if held.kind[at] == MISS:
            return at
        faulted = True
        at = _before(at, settled, memory)
    return found


@inner
def _stored_near(
    time: Integer,
    latest: Integer,
    slot: Integer,
    otherwise: Integer,
    settled: Integer,
    memory: RoomMemory,
) -> Integer:
    """The miss on a slot nearest to `time` that a store follows, within the clocks' error.

    Returns `otherwise` if there is none. `latest`: later misses are another CPU's.
    """
    room = memory.room
    held = room.held
    found = otherwise
    retry = room.delays.retry_least
    oldest = time - room.config.clock_error - (0 if retry == LEAST_UNKNOWN else retry)
    nearest = np.int64(1) << 62
    link = np.int64(room.t.last_read[slot])
    while link != 0:
        number = _number_of(link, memory)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < room.cursors.loss_floor:
            break
        read_ticks = np.int64(held.time[at])
        if read_ticks < oldest:
            break
        away = abs(read_ticks - time)
        if held.kind[at] == MISS and held.stored[at] and read_ticks <= latest and away < nearest:
            found = at
            nearest = away
        link = np.int64(held.previous[at])
    return found


# Reads of empty entries ---------------------------------------------------------------------------


@inner
def _take(i: Integer, line: Integer, memory: RoomMemory) -> None:
    """Match fault event `i` with the last read of an empty entry of the line."""
    room = memory.room
    t, timed, delays = room.t, room.timed, room.delays
    read_ticks = np.int64(t.owed_ticks[line])
    if t.owed[line] == 1:  # otherwise it may belong to an earlier read
        delays.lag_least = min(delays.lag_least, np.int64(timed.time[i]) - read_ticks)
    t.owed[line] -= 1
    timed.read_ticks[i] = read_ticks
    room.tally.faults_empty += 1


@inner
def _settle(i: Integer, line: Integer, empty: bool, memory: RoomMemory) -> bool:
    """Set fault event `i` off against a read of an empty entry of this line, if one is owed.

    While the entry is still `empty`, the event cannot belong to any other read.
    """
    room = memory.room
    t, timed, cursors = room.t, room.timed, room.cursors
    timed.line[i] = line
    timed.was_empty[i] = empty
    if not t.owed[line]:
        return False
    read_ticks = np.int64(t.owed_ticks[line])
    lag = np.int64(timed.time[i]) - read_ticks
    cursors.next_unread = max(cursors.next_unread, cursors.next_held)
    while cursors.next_unread < i and timed.read_ticks[cursors.next_unread]:
        cursors.next_unread += 1
    for earlier in range(cursors.next_unread, i):
        # An earlier event may wait for this read, which the clocks place after it.
        if timed.line[earlier] == line and not timed.read_ticks[earlier]:
            nearer = abs(np.int64(timed.time[earlier]) - read_ticks) < abs(lag)
            if nearer and t.owed[line]:
                _take(earlier, line, memory)
    if lag > room.config.patience and not empty:
        t.owed[line] = 0
    if not t.owed[line]:
        return False
    _take(i, line, memory)
    return True


@inner
def _find_line(i: Integer, memory: RoomMemory) -> None:
    """Find the line where the walk of a fault event ended, before the tables change."""
    room = memory.room
    t, timed, line = room.t, room.timed, room.config.line
    page = np.int64(t.page_of_range[timed.range2[i]])
    if page >= 0:
        slot = t.frame[page] * ENTRIES + np.int64(timed.address[i] >> np.uint64(21)) % ENTRIES
        if _settle(i, slot & -line, t.state[slot] == EMPTY, memory):
            return
        if t.state[slot] not in (TABLE, UNTRACED):
            return
    page = np.int64(t.page_of_range[timed.range1[i]])
    if page < 0:
        timed.line[i] = -1
        room.tally.faults_no_leaf += 1
        return
    slot = t.frame[page] * ENTRIES + np.int64(timed.address[i] >> np.uint64(12)) % ENTRIES
    first = slot & -line
    _settle(i, first, t.state[first] == EMPTY, memory)


@inner
def _retry_after(line: Integer, read_ticks: Integer, memory: RoomMemory) -> Integer:
    """Ticks from a read to the next held miss of the line, or `LEAST_UNKNOWN`."""
    room = memory.room
    held = room.held
    retry: Integer = LEAST_UNKNOWN
    link = np.int64(room.t.last_read[line])
    while link != 0:
        at = _number_of(link, memory) - held.first[0]
        if at < 0 or np.int64(held.time[at]) <= read_ticks:
            break
        retry = np.int64(held.time[at]) - read_ticks
        link = np.int64(held.previous[at])
    return retry


# Events in order of time --------------------------------------------------------------------------


@inner
def _match(i: Integer, memory: RoomMemory) -> None:
    """Match fault event `i` after its wait."""
    room = memory.room
    timed, delays = room.timed, room.delays
    line = timed.line[i]
    if line < 0:
        return
    # A later read will get its own event.
    limit = timed.time[i] + room.config.hold // np.uint64(2)
    if not timed.read_ticks[i] and room.t.owed_ticks[line] < limit:
        _settle(i, line, bool(timed.was_empty[i]), memory)
    if timed.read_ticks[i]:
        retry = _retry_after(line, timed.read_ticks[i], memory)
        delays.retry_least = min(delays.retry_least, retry)
    else:
        _match_fault(i, line, memory)
    timed.line[i] = -1


@bare
def match_waited(now: Integer, memory: RoomMemory) -> None:
    """Match the fault events that have waited at the time `now`; all of them if it is `NEVER`."""
    room = memory.room
    timed, cursors = room.timed, room.cursors
    while (
        cursors.next_held < cursors.next_timed
        and timed.time[cursors.next_held] + room.config.hold < now
    ):
        i = cursors.next_held
        _match(i, memory)
        if timed.kind[i] == tracepoints.FAULT:
            _watch(timed.range1[i], np.int64(-1), memory)
            room.t.watched[timed.range2[i]] -= 1
        cursors.next_held += 1


@bare
def match_frame(frame: Integer, memory: RoomMemory) -> None:
    """Match the waiting fault events of a table whose page is being reused."""
    room = memory.room
    for i in range(room.cursors.next_held, room.cursors.next_timed):
        if room.timed.line[i] // ENTRIES == frame:
            _match(i, memory)


@bare
def apply_until(time: Integer, memory: RoomMemory) -> None:
    """Apply the events without a marker up to the bus time `time`."""
    room = memory.room
    timed, config, cursors, mapped = room.timed, room.config, room.cursors, room.t.mapped
    while cursors.next_timed < timed.time.size and timed.time[cursors.next_timed] < time:
        i = cursors.next_timed
        if timed.kind[i] == tracepoints.FAULT:
            _find_line(i, memory)
        else:
            entry = entry_at(timed.address[i], memory)
            if entry >= 0:
                if not mapped[entry]:
                    put_away(entry & -config.line, memory)
                # The walker may read the old entry until the store that clears it.
                mapped[entry] = 1 if timed.kind[i] == tracepoints.ENTRY_SET else CLEARING
        cursors.next_timed += 1


@inner
def next_event(memory: RoomMemory) -> Integer:
    """Time of the next event without a marker, or of the end of a fault event's wait."""
    room = memory.room
    timed, cursors = room.timed, room.cursors
    time = NEVER
    if cursors.next_timed < timed.time.size:
        time = timed.time[cursors.next_timed]
    if cursors.next_held < cursors.next_timed:
        time = min(time, timed.time[cursors.next_held] + room.config.hold)
    return time
