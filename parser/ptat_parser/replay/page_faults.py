# SPDX-License-Identifier: BSD-2-Clause
"""Fault events, and the reads that they are about.

A PTE slot that was never written since its table was handed out is empty, and a PMD slot's state is
known from its events: reads of empty slots faulted, exactly. Other faults (permissions, swap) are
told by `ptat_fault` events: the walk that faulted is the last read of the slot before the event,
which is logged before the handler stores anything. Each read of an empty slot brings an event too,
which is set off against it (``owed``).

The clocks of bus and kernel agree to about a microsecond, and so near may an event be to its
read. But reads of empty slots show both how soon after its read an event comes (`LAG_LEAST`,
which clocks may make negative) and how soon the access is tried again (`RETRY_LEAST`, on the
bus alone). So an event waits a little (`HOLD_S`), and then is about the last read before it or,
where that is older than a retry takes, about one that the clocks put right behind it. Where the
clocks are worse than reads of a line are apart, the bus decides: the handler stores to the entry,
so of reads as near to the event as the clocks can tell it is about one with a store behind it.
How far the clocks are apart changes while they run: an event may come a little sooner than any did.

Where several CPUs read an entry while one faults on it, a read that is much nearer to the event
than any was is another CPU's. An event that comes long after its read (`FAULTS_LATE`) may be taken
for one about another's: such labels are in doubt, and counted. It is not about a read that saw what
another CPU's handler stored, where one that did not has no event and no store followed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, inlined, jit
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
    Tables,
    are_misses,
    first_quick,
)
from ptat_parser.replay.state import (
    EPOCH,
    FAULT,
    FAULTS_EMPTY,
    FAULTS_LATE,
    FAULTS_MATCHED,
    FAULTS_NO_LEAF,
    FAULTS_UNMATCHED,
    FIRST_ROW,
    LAG_LEAST,
    LEAST_UNKNOWN,
    LOSS_FLOOR,
    MISS,
    N_HELD,
    N_OUTPUT,
    NEVER,
    NEXT_HELD,
    NEXT_TIMED,
    NEXT_UNREAD,
    NEXT_WATCHED,
    RETRY_LEAST,
    SETTLED,
    Config,
    Held,
    Records,
    Timed,
    room_in,
)

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

PATIENCE_S = 0.05
"""Longer after a read of an empty entry, a fault event is not about that read.

Walks ahead of the program (speculation) read empty entries and never fault.
"""

HOLD_S = 50e-6
"""A fault event waits so long for reads that the clocks may have put behind it."""

LAGS_LEARNT = 1000
"""So many fault events whose reads are certain tell how soon after its read one comes at least."""

LOW_32 = np.int64(0xFFFF_FFFF)


@inlined
def _watch(range_: Integer, step: Integer, t: Tables) -> None:
    """Count a fault event about a range in (1) or out (-1): meanwhile its reads are held."""
    t.watched[range_] += step
    page = t.last_page[range_]
    if page >= 0 and t.level[page] == 1 and t.range_of_frame[t.frame[page]] == range_:
        frame = t.frame[page]
        t.quick_slot[page] = (
            NO_SLOT if t.watched[range_] else first_quick(frame, 1, t.parent[frame])
        )


@inlined
def _watch_pmds(range_: Integer, t: Tables, pages: I64, count: I64, line: Integer) -> None:
    """Count a fault event about a range of level 2: misses of its huge pages are held."""
    t.watched[range_] += 1
    page = t.last_page[range_]
    if t.watched[range_] == 1 and page >= 0 and t.parent[t.frame[page]] == WITH_LEAVES:
        epoch = np.uint64(count[EPOCH])
        first = np.int64(t.frame[page]) * ENTRIES
        for slot in range(first, first + ENTRIES, line):
            if are_misses(slot, t.parent, t.state):
                put_away(
                    slot, line, t.tally, epoch, t.counted_page, t.parent, t.state,
                    t.range_of_frame, t.row_of, pages,
                )  # fmt: skip


@inlined
def watch_until(
    time: Integer, t: Tables, timed: Timed, pages: I64, count: I64, config: Config
) -> None:
    """Hold the reads that fault events before `time` may be about."""
    while count[NEXT_WATCHED] < timed.time.size and timed.time[count[NEXT_WATCHED]] < time:
        i = count[NEXT_WATCHED]
        if timed.kind[i] == tracepoints.FAULT:
            timed.held_since[i] = count[N_OUTPUT]
            _watch(timed.range1[i], 1, t)
            _watch_pmds(timed.range2[i], t, pages, count, config.line)
        count[NEXT_WATCHED] += 1


@jit
def watch_all_until(time: Integer, memory: I64) -> None:
    """The same, where no access brings these events."""
    t, _, _, timed, pages, count, _, config, _ = room_in(memory)
    watch_until(time, t, timed, pages, count, config)


@inlined
def _number_of(link: Integer, count: I64) -> Integer:
    """Number of a held read, of which a link has the last 32 bits, plus one."""
    return count[N_HELD] - ((count[N_HELD] + 1 - np.int64(link)) & LOW_32)


@inlined
def _match_fault(
    i: Integer,
    slot: Integer,
    t: Tables,
    out: Records,
    held: Held,
    timed: Timed,
    pages: I64,
    count: I64,
    config: Config,
) -> None:
    """Turn the last miss on a slot that can have brought event `i` into a walk that faulted.

    Reads that the clocks put right behind the event are looked at where those before it are too
    old. Where accesses were lost since then, the read is left as it is, in doubt. Of reads from
    before all were held, others may have come later: these are left alone, too.
    """
    time = np.int64(timed.time[i])
    settled = max(count[SETTLED], timed.held_since[i])
    latest = time - min(count[LAG_LEAST], 0)
    behind = latest
    oldest = np.int64(0)
    lag_known = count[LAG_LEAST] != LEAST_UNKNOWN
    if count[RETRY_LEAST] != LEAST_UNKNOWN:
        oldest = time - count[RETRY_LEAST]
        if lag_known:
            behind = max(latest, time - count[LAG_LEAST] + count[RETRY_LEAST] // 4)
    found: Integer = -1
    link = np.int64(t.last_read[slot])
    while link != 0:
        number = _number_of(link, count)
        at = number - held.first[0]
        read_ticks = np.int64(held.time[at]) if at >= 0 else oldest
        if at < 0 or held.record[at] < settled or (found >= 0 and read_ticks < oldest):
            break
        if held.kind[at] == MISS and read_ticks <= behind:
            if number < count[LOSS_FLOOR]:
                if found < 0 and read_ticks + config.patience > latest:
                    timed.doubt_ticks[i] = held.time[at]
                break
            if found < 0 or read_ticks <= latest:
                found = at
            if read_ticks <= latest:
                break
        link = np.int64(held.previous[at])
    if found < 0:
        count[FAULTS_UNMATCHED] += 1
        return
    anothers = LEAST_UNKNOWN
    if config.overtaken and lag_known and count[FAULTS_EMPTY] >= LAGS_LEARNT:
        # Half of it, as the clocks' error is not the same all the time.
        anothers = time - count[LAG_LEAST] // 2 if count[LAG_LEAST] > 0 else behind
    if np.int64(held.time[found]) > anothers:
        found = _before_another(time, found, settled, held, count, config)
    if time - np.int64(held.time[found]) > config.hold:
        found = _beside_a_fault(time, slot, found, settled, t, held, count, config)
    if not held.stored[found]:
        latest = time + config.clock_error
        if np.int64(held.time[found]) <= anothers:
            latest = min(latest, anothers)
        found = _stored_near(time, latest, slot, found, settled, t, held, count, config)
    held.kind[found] = FAULT
    if config.records:
        out.kind[held.record[found] - count[FIRST_ROW]] = FAULT
    pages[held.row[found], P_MISSES] -= 1
    pages[held.row[found], P_FAULTED] += 1
    count[FAULTS_MATCHED] += 1
    count[FAULTS_LATE] += time - np.int64(held.time[found]) > config.hold


@inlined
def _before_another(
    time: Integer, near: Integer, settled: Integer, held: Held, count: I64, config: Config
) -> Integer:
    """The miss of a slot before `near`, which is too near to its event to have brought it.

    It is `near` all the same where a store came between them, or much time.
    """
    at: Integer = near
    while held.previous[at]:
        number = _number_of(held.previous[at], count)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < count[LOSS_FLOOR]:
            break
        if time - np.int64(held.time[at]) > config.overtaken or held.stored[at]:
            break
        if held.kind[at] == MISS:
            return at
    return near


@inlined
def _beside_a_fault(
    time: Integer,
    slot: Integer,
    found: Integer,
    settled: Integer,
    t: Tables,
    held: Held,
    count: I64,
    config: Config,
) -> Integer:
    """The miss that a very late event is about: `found`, or one that cannot have seen its entry.

    Where `found` is the next of the slot after one that faulted, with the handler's store between,
    it saw what the handler stored. A miss not long before that fault, with no store between, did
    not, and may be another CPU's. Not so where a store came after `found`: that is what the event's
    handler does.
    """
    at: Integer = found
    link = np.int64(t.last_read[slot])
    while link != 0:
        later = _number_of(link, count) - held.first[0]
        if held.stored[later]:
            return found
        if later == found:
            break
        link = np.int64(held.previous[later])
    faulted = False
    while held.previous[at]:
        number = _number_of(held.previous[at], count)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < count[LOSS_FLOOR]:
            break
        if time - np.int64(held.time[at]) > config.overtaken:
            break
        if held.stored[at] == faulted or (not faulted and held.kind[at] != FAULT):
            break
        if held.kind[at] == MISS:
            return at
        faulted = True
    return found


@inlined
def _stored_near(
    time: Integer,
    latest: Integer,
    slot: Integer,
    otherwise: Integer,
    settled: Integer,
    t: Tables,
    held: Held,
    count: I64,
    config: Config,
) -> Integer:
    """Of misses on a slot with a store behind them the nearest, if the clocks allow one.

    `latest`: what comes later was read by another CPU.
    """
    found = otherwise
    retry = count[RETRY_LEAST]
    oldest = time - config.clock_error - (0 if retry == LEAST_UNKNOWN else retry)
    nearest = np.int64(1) << 62
    link = np.int64(t.last_read[slot])
    while link != 0:
        number = _number_of(link, count)
        at = number - held.first[0]
        if at < 0 or held.record[at] < settled or number < count[LOSS_FLOOR]:
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


@inlined
def _take(i: Integer, line: Integer, t: Tables, timed: Timed, count: I64) -> None:
    """Fault event `i` is about the last read of an empty entry of the line."""
    read_ticks = np.int64(t.owed_ticks[line])
    if t.owed[line] == 1:  # else it may be about an earlier one
        count[LAG_LEAST] = min(count[LAG_LEAST], np.int64(timed.time[i]) - read_ticks)
    t.owed[line] -= 1
    timed.read_ticks[i] = read_ticks
    count[FAULTS_EMPTY] += 1


@inlined
def _settle(
    i: Integer, line: Integer, empty: bool, t: Tables, timed: Timed, count: I64, config: Config
) -> bool:
    """Set fault event `i` off against a read of an empty entry of this line, if one is owed.

    While the entry is still `empty` there is no other read that the event can be about.
    """
    timed.line[i] = line
    timed.was_empty[i] = empty
    if not t.owed[line]:
        return False
    read_ticks = np.int64(t.owed_ticks[line])
    lag = np.int64(timed.time[i]) - read_ticks
    count[NEXT_UNREAD] = max(count[NEXT_UNREAD], count[NEXT_HELD])
    while count[NEXT_UNREAD] < i and timed.read_ticks[count[NEXT_UNREAD]]:
        count[NEXT_UNREAD] += 1
    for earlier in range(count[NEXT_UNREAD], i):
        # An event that the clocks put before its read waits for it.
        if timed.line[earlier] == line and not timed.read_ticks[earlier]:
            nearer = abs(np.int64(timed.time[earlier]) - read_ticks) < abs(lag)
            if nearer and t.owed[line]:
                _take(earlier, line, t, timed, count)
    if lag > config.patience and not empty:
        t.owed[line] = 0
    if not t.owed[line]:
        return False
    _take(i, line, t, timed, count)
    return True


@inlined
def _fault(i: Integer, t: Tables, timed: Timed, count: I64, config: Config) -> None:
    """Find the line that the walk of a fault event ended at: the tables may change."""
    page = np.int64(t.page_of_range[timed.range2[i]])
    if page >= 0:
        slot = t.frame[page] * ENTRIES + np.int64(timed.address[i] >> np.uint64(21)) % ENTRIES
        if _settle(i, slot & -config.line, t.state[slot] == EMPTY, t, timed, count, config):
            return
        if t.state[slot] not in (TABLE, UNTRACED):
            return
    page = np.int64(t.page_of_range[timed.range1[i]])
    if page < 0:
        timed.line[i] = -1
        count[FAULTS_NO_LEAF] += 1
        return
    slot = t.frame[page] * ENTRIES + np.int64(timed.address[i] >> np.uint64(12)) % ENTRIES
    line = slot & -config.line
    _settle(i, line, t.state[line] == EMPTY, t, timed, count, config)


@inlined
def _retry_after(line: Integer, read_ticks: Integer, t: Tables, held: Held, count: I64) -> Integer:
    """Ticks from a read to the next miss of the line, if that has come, or LEAST_UNKNOWN."""
    retry: Integer = LEAST_UNKNOWN
    link = np.int64(t.last_read[line])
    while link != 0:
        at = _number_of(link, count) - held.first[0]
        if at < 0 or np.int64(held.time[at]) <= read_ticks:
            break
        retry = np.int64(held.time[at]) - read_ticks
        link = np.int64(held.previous[at])
    return retry


@inlined
def _match(
    i: Integer,
    t: Tables,
    out: Records,
    held: Held,
    timed: Timed,
    pages: I64,
    count: I64,
    config: Config,
) -> None:
    """Match fault event `i`, which has waited."""
    line = timed.line[i]
    if line < 0:
        return
    # A read so much later has an event of its own to come.
    if not timed.read_ticks[i] and t.owed_ticks[line] < timed.time[i] + config.hold // 2:
        _settle(i, line, bool(timed.was_empty[i]), t, timed, count, config)
    if timed.read_ticks[i]:
        retry = _retry_after(line, timed.read_ticks[i], t, held, count)
        count[RETRY_LEAST] = min(count[RETRY_LEAST], retry)
    else:
        _match_fault(i, line, t, out, held, timed, pages, count, config)
    timed.line[i] = -1


@inlined
def _match_held(
    until: Integer,
    t: Tables,
    out: Records,
    held: Held,
    timed: Timed,
    pages: I64,
    count: I64,
    config: Config,
) -> None:
    """Match the fault events before `until`."""
    while count[NEXT_HELD] < count[NEXT_TIMED] and timed.time[count[NEXT_HELD]] < until:
        i = count[NEXT_HELD]
        _match(i, t, out, held, timed, pages, count, config)
        if timed.kind[i] == tracepoints.FAULT:
            _watch(timed.range1[i], -1, t)
            t.watched[timed.range2[i]] -= 1
        count[NEXT_HELD] += 1


@jit
def match_frame(frame: Integer, memory: I64) -> None:
    """Match the fault events about a table whose page is used again: its reads all came."""
    t, out, held, timed, pages, count, _, config, _ = room_in(memory)
    for i in range(count[NEXT_HELD], count[NEXT_TIMED]):
        if timed.line[i] // ENTRIES == frame:
            _match(i, t, out, held, timed, pages, count, config)


@inlined
def timed_until(
    time: Integer,
    t: Tables,
    out: Records,
    held: Held,
    timed: Timed,
    pages: I64,
    count: I64,
    config: Config,
) -> None:
    """Apply the events without a marker up to a bus time."""
    while count[NEXT_TIMED] < timed.time.size and timed.time[count[NEXT_TIMED]] < time:
        i = count[NEXT_TIMED]
        if timed.kind[i] == tracepoints.FAULT:
            _fault(i, t, timed, count, config)
        else:
            entry = entry_at(timed.address[i], t.frame, config.base, config.size)
            if entry >= 0:
                if not t.mapped[entry]:
                    put_away(
                        entry & -config.line, config.line, t.tally, np.uint64(count[EPOCH]),
                        t.counted_page, t.parent, t.state, t.range_of_frame, t.row_of, pages,
                    )  # fmt: skip
                # A cleared entry may be read until the store that clears it.
                t.mapped[entry] = 1 if timed.kind[i] == tracepoints.ENTRY_SET else CLEARING
        count[NEXT_TIMED] += 1
    if time > config.hold:
        _match_held(time - config.hold, t, out, held, timed, pages, count, config)


@jit
def match_all(memory: I64) -> None:
    """Match the fault events that wait."""
    t, out, held, timed, pages, count, _, config, _ = room_in(memory)
    _match_held(NEVER, t, out, held, timed, pages, count, config)


@jit
def all_until(time: Integer, memory: I64) -> None:
    """Apply the events without a marker up to a bus time, where no access brings them."""
    t, out, held, timed, pages, count, _, config, _ = room_in(memory)
    timed_until(time, t, out, held, timed, pages, count, config)


@inlined
def mark_stored(
    slot: Integer, last_read: U32, held_first: I64, held_stored: npt.NDArray[np.bool_], count: I64
) -> None:
    """A store to the line of entries at `slot`: it is behind the last read of that, if held."""
    if last_read[slot]:
        at = _number_of(last_read[slot], count) - held_first[0]
        if at >= 0:
            held_stored[at] = True


@inlined
def timed_after(timed: Timed, count: I64, config: Config) -> Integer:
    """When an event without a marker is next, or has waited."""
    next_timed = NEVER
    if count[NEXT_TIMED] < timed.time.size:
        next_timed = timed.time[count[NEXT_TIMED]]
    if count[NEXT_HELD] < count[NEXT_TIMED]:
        next_timed = min(next_timed, timed.time[count[NEXT_HELD]] + config.hold)
    return next_timed
