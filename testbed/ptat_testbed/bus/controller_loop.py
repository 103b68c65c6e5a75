# SPDX-License-Identifier: BSD-2-Clause
"""The compiled loop of `controller`: one access after the other, and what happens meanwhile.

Each channel has a queue and a clock of its own: one `State` and one `NOW` each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, jit
from ptat_testbed.bus.command_kinds import ELSEWHERE, NEVER_NS, RD, SCRUB, UNDERFILL, WR

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SETTLING_QUEUES = 4
"""So often other traffic fills the queue before an access comes, though nothing else happens."""


class Rules(NamedTuple):
    """`controller.Controller`, and the seed of what is random."""

    ecc: bool
    forwarding: bool
    high: int
    low: int
    burst: int
    idle_ns: int
    age_ns: int
    others_ns: int
    command_ns: int
    window_ns: int
    out_of_order: float
    early_underfill: float
    scrub_ns: int
    seed: int


class State(NamedTuple):
    """Commands so far, the queue, and the answers; see `controller.Commands`, `Answers`.

    All channels share the answers, which are in terms of the channel's own commands.

    Of each line in the queue, in order of age: when its first store came, whether its words that
    no store has are known (`queue_filled`), and which store each word is of.
    """

    time: I64
    line: I64
    kind: npt.NDArray[np.uint8]
    access: I64
    values: npt.NDArray[np.int64]
    queue_line: I64
    queue_time: I64
    queue_filled: Bools
    queue_values: npt.NDArray[np.int64]
    answer: I64
    answered: I64
    answer_value: I64
    scrub_lines: I64


class Work(NamedTuple):
    """The accesses, in program order; see `controller.Accesses`."""

    time_ns: I64
    line: I64
    word: I64
    write: Bools
    walk: I64
    channel: I64


NOW = np.dtype(
    [
        ("commands", "<i8"),  # number of commands
        ("written", "<i8"),  # of them WRs
        ("queued", "<i8"),  # lines in the queue
        ("own", "<i8"),  # of them not of other traffic
        ("writing", "<i8"),  # in write major mode
        ("here_ns", "<i8"),  # all before has happened
        ("free_ns", "<i8"),  # when the next command can be
        ("read_ns", "<i8"),  # when the last read came
        ("scrub_ns", "<i8"),  # when the next line is scrubbed
        ("scrub_line", "<i8"),  # index into `scrub_lines`
        ("others_ns", "<i8"),  # when other traffic writes next
    ]
)


@jit
def serve(rules: Rules, work: Work, states: tuple[State, ...]) -> I64:
    """Serve all accesses; how many commands there were on each channel."""
    nows = np.zeros((len(states), 1), NOW)
    np.random.seed(rules.seed)
    start_ns = work.time_ns[0] if work.time_ns.size else np.int64(0)
    for c in range(len(states)):
        _start(rules, start_ns, states[c], nows[c])
    # A CPU goes on when it has what it read, whichever channel that came from.
    read_ns: Integer = start_ns
    for i in range(work.time_ns.size):
        c = work.channel[i]
        state, now = states[c], nows[c]
        at_ns = max(work.time_ns[i], read_ns)
        _advance(rules, work.time_ns[i], state, now)
        if work.write[i]:
            _store(rules, i, at_ns, work.line[i], work.word[i], state, now)
        else:
            _read(rules, i, at_ns, work.line[i], work.word[i], state, now)
            if state.answer[i] >= 0:
                read_ns = state.time[state.answer[i]]
            _pass_by(rules, work.time_ns, work.walk, state, now)
    counts = np.zeros(len(states), np.int64)
    for c in range(len(states)):
        if work.time_ns.size:
            _advance(rules, work.time_ns[-1], states[c], nows[c])
        counts[c] = nows[c][0].commands
    return counts


@jit
def _start(rules: Rules, start_ns: Integer, state: State, now: np.ndarray) -> None:
    """Begin with an empty queue; patrol scrub is somewhere."""
    lines = state.scrub_lines.size
    now[0].free_ns = now[0].read_ns = start_ns
    now[0].scrub_ns = start_ns + rules.scrub_ns if rules.scrub_ns and lines else NEVER_NS
    now[0].scrub_line = np.random.randint(0, lines) if lines else 0
    now[0].others_ns = _later(start_ns, rules.others_ns)


@jit
def _later(time_ns: Integer, interval_ns: Integer) -> Integer:
    return NEVER_NS if interval_ns == NEVER_NS else time_ns + interval_ns


@jit
def _put(
    rules: Rules,
    earliest_ns: Integer,
    line: Integer,
    kind: Integer,
    access: Integer,
    state: State,
    now: np.ndarray,
) -> None:
    """Issue a command, as soon as the bus is free; others' commands are not recorded."""
    at_ns = max(earliest_ns, now[0].free_ns, now[0].here_ns)
    now[0].free_ns = at_ns + rules.command_ns
    if line == ELSEWHERE:
        return
    n = now[0].commands
    state.time[n] = at_ns
    state.line[n] = line
    state.kind[n] = kind
    state.access[n] = access
    now[0].commands = n + 1


@jit
def _advance(rules: Rules, until_ns: Integer, state: State, now: np.ndarray) -> None:
    """All that happens up to a time without an access."""
    while True:
        if not now[0].own and now[0].others_ns <= until_ns:
            _skip_others(rules, until_ns, state, now)
        drain_ns = _next_drain(rules, state, now)
        next_ns = min(drain_ns, now[0].scrub_ns, now[0].others_ns)
        if next_ns > until_ns:
            now[0].here_ns = max(now[0].here_ns, until_ns)
            return
        now[0].here_ns = max(now[0].here_ns, next_ns)
        if next_ns == now[0].others_ns:
            _post(rules, next_ns, ELSEWHERE, state, now)
            now[0].others_ns = _later(next_ns, rules.others_ns)
        elif next_ns == now[0].scrub_ns:
            line = state.scrub_lines[now[0].scrub_line]
            if _find(line, state, now) < 0:
                _put(rules, next_ns, line, SCRUB, -1, state, now)
            now[0].scrub_line = (now[0].scrub_line + 1) % state.scrub_lines.size
            now[0].scrub_ns = next_ns + rules.scrub_ns
        else:
            _drain_one(rules, _chosen(rules, state, now), drain_ns, state, now)
            if now[0].queued <= rules.low:
                now[0].writing = 0


@jit
def _skip_others(rules: Rules, until_ns: Integer, state: State, now: np.ndarray) -> None:
    """Leave out other traffic that only fills the queue anew while no line of ours waits."""
    settled_ns = until_ns - SETTLING_QUEUES * state.queue_line.size * rules.others_ns
    skipped = (settled_ns - now[0].others_ns) // rules.others_ns
    if skipped > 0:
        now[0].others_ns += skipped * rules.others_ns


@jit
def _next_drain(rules: Rules, state: State, now: np.ndarray) -> Integer:
    """When the next write leaves the queue, if no access comes before."""
    if not now[0].queued:
        return NEVER_NS
    free_ns = now[0].free_ns
    if now[0].writing:
        return free_ns
    at_ns: Integer = NEVER_NS
    if rules.age_ns != NEVER_NS:
        at_ns = max(free_ns, state.queue_time[0] + rules.age_ns)
    if now[0].queued > rules.low and rules.idle_ns != NEVER_NS:
        at_ns = min(at_ns, max(free_ns, now[0].read_ns + rules.idle_ns))
    return at_ns


@jit
def _chosen(rules: Rules, state: State, now: np.ndarray) -> Integer:
    """The place in the queue of the write that leaves it: the oldest, but not always."""
    if now[0].queued > 1 and np.random.random() < rules.out_of_order:
        return np.random.randint(0, now[0].queued)
    return 0


@jit
def _drain_one(
    rules: Rules, at: Integer, earliest_ns: Integer, state: State, now: np.ndarray
) -> None:
    """Write one line of the queue."""
    line = state.queue_line[at]
    if rules.ecc and not state.queue_filled[at]:
        _put(rules, earliest_ns, line, UNDERFILL, -1, state, now)
    if line != ELSEWHERE:
        state.values[now[0].written] = state.queue_values[at]
        now[0].written += 1
        now[0].own -= 1
    _put(rules, earliest_ns, line, WR, -1, state, now)
    last = now[0].queued - 1
    for i in range(at, last):
        state.queue_line[i] = state.queue_line[i + 1]
        state.queue_time[i] = state.queue_time[i + 1]
        state.queue_filled[i] = state.queue_filled[i + 1]
        state.queue_values[i] = state.queue_values[i + 1]
    now[0].queued = last


@jit
def _find(line: Integer, state: State, now: np.ndarray) -> Integer:
    """Place of a line in the queue, or -1."""
    for i in range(now[0].queued):
        if state.queue_line[i] == line:
            return i
    return -1


@jit
def _post(rules: Rules, at_ns: Integer, line: Integer, state: State, now: np.ndarray) -> Integer:
    """Queue a write of a line that is not there yet; its place."""
    if now[0].queued == state.queue_line.size:
        _drain_one(rules, _chosen(rules, state, now), at_ns, state, now)
    at = now[0].queued
    state.queue_line[at] = line
    state.queue_time[at] = at_ns
    state.queue_filled[at] = line == ELSEWHERE
    state.queue_values[at] = -1
    now[0].queued = at + 1
    if line != ELSEWHERE:
        now[0].own += 1
    if now[0].queued >= rules.high:
        now[0].writing = 1
    return at


@jit
def _store(
    rules: Rules,
    i: Integer,
    at_ns: Integer,
    line: Integer,
    word: Integer,
    state: State,
    now: np.ndarray,
) -> None:
    at = _find(line, state, now)
    if at < 0:
        at = _post(rules, at_ns, line, state, now)
        if rules.ecc and np.random.random() < rules.early_underfill:
            _put(rules, at_ns, line, UNDERFILL, -1, state, now)
            state.queue_filled[at] = True
    state.queue_values[at, word] = i


@jit
def _read(
    rules: Rules,
    i: Integer,
    at_ns: Integer,
    line: Integer,
    word: Integer,
    state: State,
    now: np.ndarray,
) -> None:
    for _ in range(rules.burst):
        if not now[0].writing:
            break
        _drain_one(rules, _chosen(rules, state, now), at_ns, state, now)
        now[0].writing = now[0].queued > rules.low
    now[0].writing = 0
    now[0].read_ns = at_ns
    at = _find(line, state, now)
    if at >= 0 and not rules.forwarding:
        _drain_one(rules, at, at_ns, state, now)
        at = -1
    if at >= 0:
        state.answer_value[i] = state.queue_values[at, word]
        if rules.ecc and not state.queue_filled[at]:
            # The line has to be whole before it is read.
            _put(rules, at_ns, line, UNDERFILL, -1, state, now)
            state.queue_filled[at] = True
        if rules.ecc or state.queue_values[at, word] >= 0:
            state.answered[i] = now[0].commands
            return
    state.answer[i] = state.answered[i] = now[0].commands
    _put(rules, at_ns, line, RD, i, state, now)


@jit
def _pass_by(rules: Rules, time_ns: I64, walk: I64, state: State, now: np.ndarray) -> None:
    """Let the last read change places with the one before it, if rules and chance allow."""
    b = now[0].commands - 1
    a = b - 1
    if a < 0 or not rules.window_ns or state.kind[a] != RD or state.kind[b] != RD:
        return
    first, second = state.access[a], state.access[b]
    if walk[first] < 0 or walk[second] < 0 or walk[first] == walk[second]:
        return
    if time_ns[second] - time_ns[first] > rules.window_ns or second != first + 1:
        return
    if state.line[a] == state.line[b] or np.random.random() >= rules.out_of_order:
        return
    state.line[a], state.line[b] = state.line[b], state.line[a]
    state.access[a], state.access[b] = second, first
    state.answer[first], state.answer[second] = b, a
    state.answered[first], state.answered[second] = b, a
