# SPDX-License-Identifier: BSD-2-Clause
"""Matches fault events with the reads that they are about.

A PTE slot that was never written since its table was handed out is empty, and a PMD slot's state is
known from its events: reads of empty slots faulted, exactly. `ptat_fault` events report the other
faults (permissions, swap): the walk that faulted is the last read of the slot before the event,
which is logged before the handler stores anything. Each read of an empty slot brings an event too,
which is set off against it (``owed``).

The clocks of bus and kernel agree to about a microsecond, and an event may be as near to its read.
But reads of empty slots show both how soon after its read an event comes (`lag_least`, which clocks
may make negative) and how soon the access is tried again (`retry_least`, on the bus alone). So an
event waits (`HOLD_S`); then it is about the last read before it or, where that is older than a
retry takes, about one that the clocks put right behind it. Where the clocks are worse than the
distance of two reads of a line, the bus decides: the handler stores to the entry, so among the
reads within the clocks' error the event is about one with a store behind it. The clocks' error
changes while they run: an event may come a little sooner than any did.

Where several CPUs read an entry while one faults on it, a read that is much nearer to the event
than any was is another CPU's. An event that comes long after its read (`faults_late`) may be
matched with another CPU's read: such labels are in doubt, and counted. The event is not about a
read that saw what another CPU's handler stored, where one that did not see it has no event and no
store followed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare
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
    first_quick,
)
from ptat_parser.replay.state import FAULT, LEAST_UNKNOWN, MISS, NEVER, RoomMemory

I64 = npt.NDArray[np.int64]

PATIENCE_S = 0.05
"""A fault event more than this after a read of an empty entry is not about that read.

Walks ahead of the program (speculation) read empty entries and never fault.
"""

HOLD_S = 50e-6
"""How long a fault event waits for reads that the clocks may have put behind it."""

LAGS_LEARNT = 1000
"""Fault events with certain reads that are needed to learn `lag_least`."""

LOW_32 = np.int64(0xFFFF_FFFF)


# Watching: reads that a fault event to come may be about are held --------------------------------


@bare
def _watch(range_: Integer, step: Integer, memory: RoomMemory) -> None:
    """Count a fault event about a range in (1) or out (-1)."""
    t = memory.room.t
    t.watched[range_] += step
    page = t.last_page[range_]
    if page >= 0 and t.level[page] == 1 and t.range_of_frame[t.frame[page]] == range_:
        frame = t.frame[page]
        t.quick_slot[page] = (
            NO_SLOT if t.watched[range_] else first_quick(frame, 1, t.parent[frame])
        )


@bare
def _watch_pmds(range_: Integer, memory: RoomMemory) -> None:
    """Count a fault event about a range of level 2 in: misses of its huge pages are held."""
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
    """Hold the reads that fault events before `time` may be about."""
    room = memory.room
    timed, cursors = room.timed, room.cursors
    while cursors.next_watched < timed.time.size and timed.time[cursors.next_watched] < time:
        i = cursors.next_watched
        if timed.kind[i] == tracepoints.FAULT:
            timed.held_since[i] = room.tally.reads
            _watch(timed.range1[i], np.int64(1), memory)
            _watch_pmds(timed.range2[i], memory)
        cursors.next_watched += 1


@bare
def hold(now: Integer, row: Integer, slot: Integer, memory: RoomMemory) -> None:
    """Hold the miss that is the next read: a fault event may be about it."""
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


@bare
def mark_stored(slot: Integer, memory: RoomMemory) -> None:
    """Note a store to the line at `slot` behind the last read of the line, if that is held."""
    room = memory.room
    last_read = room.t.last_read
    if last_read[slot]:
        at = _number_of(np.int64(last_read[slot]), memory) - room.held.first[0]
        if at >= 0:
            room.held.stored[at] = True


@bare
def _number_of(link: Integer, memory: RoomMemory) -> Integer:
    """Number of a held read, of which a link has the last 32 bits, plus one."""
    held = memory.room.cursors.held
    return held - ((held + 1 - link) & LOW_32)


# Matching -----------------------------------------------------------------------------------------


@bare
def _match_fault(i: Integer, slot: Integer, memory: RoomMemory) -> None:
    """Turn the last miss on a slot that can have brought event `i` into a walk that faulted.

    Where accesses were lost since then, the read is left as it is, in doubt. Of reads from before
    all were held, others may have come later: these are left alone, too.
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
        # Half of it, as the clocks' error is not the same all the time.
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


@bare
def _last_miss(
    i: Integer, slot: Integer, oldest: Integer, latest: Integer, behind: Integer, memory: RoomMemory
) -> Integer:
    """The last held miss of a slot up to `latest`, or -1.

    Where that is older than `oldest`, one up to `behind`, which the clocks put after the event.
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


@bare
def _before(at: Integer, settled: Integer, memory: RoomMemory) -> Integer:
    """The held read of the same slot before the one at `at`; -1 if none may be matched."""
    room = memory.room
    held = room.held
    if not held.previous[at]:
        return -1
    number = _number_of(np.int64(held.previous[at]), memory)
    at = number - held.first[0]
    if at < 0 or held.record[at] < settled or number < room.cursors.loss_floor:
        return -1
    return at


@bare
def _before_another(time: Integer, near: Integer, settled: Integer, memory: RoomMemory) -> Integer:
    """The miss of a slot before `near`, which is too near to its event to have brought it.

    It is `near` all the same where a store came between them, or much time.
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


@bare
def _beside_a_fault(
    time: Integer, slot: Integer, found: Integer, settled: Integer, memory: RoomMemory
) -> Integer:
    """The miss that a very late event is about: `found`, or one that cannot have seen its entry.

    Where `found` is the next of the slot after one that faulted, with the handler's store between,
    it saw what the handler stored. A miss not long before that fault, with no store between, did
    not, and may be another CPU's. Not so where a store came after `found`: that is what the event's
    handler does.
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


@bare
def _stored_near(
    time: Integer,
    latest: Integer,
    slot: Integer,
    otherwise: Integer,
    settled: Integer,
    memory: RoomMemory,
) -> Integer:
    """Of misses on a slot with a store behind them the nearest, if the clocks allow one.

    `latest`: what comes later was read by another CPU.
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


@bare
def _take(i: Integer, line: Integer, memory: RoomMemory) -> None:
    """Fault event `i` is about the last read of an empty entry of the line."""
    room = memory.room
    t, timed, delays = room.t, room.timed, room.delays
    read_ticks = np.int64(t.owed_ticks[line])
    if t.owed[line] == 1:  # else it may be about an earlier one
        delays.lag_least = min(delays.lag_least, np.int64(timed.time[i]) - read_ticks)
    t.owed[line] -= 1
    timed.read_ticks[i] = read_ticks
    room.tally.faults_empty += 1


@bare
def _settle(i: Integer, line: Integer, empty: bool, memory: RoomMemory) -> bool:
    """Set fault event `i` off against a read of an empty entry of this line, if one is owed.

    While the entry is still `empty` there is no other read that the event can be about.
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
        # An event that the clocks put before its read waits for it.
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


@bare
def _find_line(i: Integer, memory: RoomMemory) -> None:
    """Find the line that the walk of a fault event ended at: the tables may change."""
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


@bare
def _retry_after(line: Integer, read_ticks: Integer, memory: RoomMemory) -> Integer:
    """Ticks from a read to the next miss of the line, if that has come, or LEAST_UNKNOWN."""
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


@bare
def _match(i: Integer, memory: RoomMemory) -> None:
    """Match fault event `i`, which has waited."""
    room = memory.room
    timed, delays = room.timed, room.delays
    line = timed.line[i]
    if line < 0:
        return
    # A read so much later has an event of its own to come.
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
def match_until(time: Integer, memory: RoomMemory) -> None:
    """Match the fault events before `time`; all that wait with `NEVER`."""
    room = memory.room
    timed, cursors = room.timed, room.cursors
    while cursors.next_held < cursors.next_timed and timed.time[cursors.next_held] < time:
        i = cursors.next_held
        _match(i, memory)
        if timed.kind[i] == tracepoints.FAULT:
            _watch(timed.range1[i], np.int64(-1), memory)
            room.t.watched[timed.range2[i]] -= 1
        cursors.next_held += 1


@bare
def match_frame(frame: Integer, memory: RoomMemory) -> None:
    """Match the fault events about a table whose page is used again: its reads all came."""
    room = memory.room
    for i in range(room.cursors.next_held, room.cursors.next_timed):
        if room.timed.line[i] // ENTRIES == frame:
            _match(i, memory)


@bare
def apply_until(time: Integer, memory: RoomMemory) -> None:
    """Apply the events without a marker up to a bus time."""
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
                # A cleared entry may be read until the store that clears it.
                mapped[entry] = 1 if timed.kind[i] == tracepoints.ENTRY_SET else CLEARING
        cursors.next_timed += 1
    if time > config.hold:
        match_until(time - config.hold, memory)


@bare
def next_event(memory: RoomMemory) -> Integer:
    """When an event without a marker is next, or has waited."""
    room = memory.room
    timed, cursors = room.timed, room.cursors
    time = NEVER
    if cursors.next_timed < timed.time.size:
        time = timed.time[cursors.next_timed]
    if cursors.next_held < cursors.next_timed:
        time = min(time, timed.time[cursors.next_held] + room.config.hold)
    return time
