# SPDX-License-Identifier: BSD-2-Clause
"""The model of a memory controller: data always right, and each rule seen to occur."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_host.boards.base import BoardError
from ptat_testbed.bus import controller
from ptat_testbed.bus.command_kinds import NEVER_NS, RD, SCRUB, UNDERFILL, WR
from ptat_testbed.bus.controller import Accesses, Controller

SCRUBBED = 16 * controller.LINE_BYTES

controllers = st.builds(
    Controller,
    ecc=st.booleans(),
    forwarding=st.booleans(),
    capacity=st.just(8),
    high=st.integers(4, 8),
    low=st.integers(0, 3),
    burst=st.integers(1, 8),
    idle_ns=st.sampled_from([30, NEVER_NS]),
    age_ns=st.sampled_from([100, NEVER_NS]),
    others_ns=st.sampled_from([40, NEVER_NS]),
    command_ns=st.integers(1, 20),
    window_ns=st.sampled_from([0, 20]),
    out_of_order=st.sampled_from([0.0, 0.5, 1.0]),
    early_underfill=st.sampled_from([0.0, 0.5]),
    scrub_ns=st.sampled_from([0, 25]),
)
# Distance in time, line, word, store, and whether another walk may pass.
rows = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(0, 9), st.integers(0, 7), st.booleans(), st.booleans()
    ),
    max_size=200,
)


def accesses_of(rows):
    columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.empty(0, int)] * 5
    gaps, lines, words, write, passes = columns
    walk = np.where(passes.astype(bool), np.arange(len(rows)), -1)
    address = (lines * controller.LINE_BYTES + words * controller.WORDS).astype(np.uint64)
    return Accesses(np.cumsum(gaps).astype(np.int64), address, write.astype(np.bool_), walk)


def plain_memory(accesses):
    """What each read gets from memory without a controller: the last store of its word, or -1."""
    words, found = {}, []
    for i, (address, write) in enumerate(
        zip(accesses.address.tolist(), accesses.write.tolist(), strict=True)
    ):
        found.append(-1 if write else words.get(address, -1))
        if write:
            words[address] = i
    return found


def dimm(commands):
    """The DIMM's words after each number of commands."""
    words, after = {}, [{}]
    written = iter(commands.values.tolist())
    for address, kind in zip(commands.address.tolist(), commands.kind.tolist(), strict=True):
        if kind == WR:
            values = next(written)
            words = words | {
                address + 8 * word: value for word, value in enumerate(values) if value >= 0
            }
        after.append(words)
    return after


@given(controllers, rows, st.integers(0, 99))
def test_each_read_gets_what_plain_memory_has(rules, rows, seed):
    accesses = accesses_of(rows)
    commands, answers = controller.run(rules, accesses, (0, SCRUBBED), seed)
    after = dimm(commands)
    for i, expected in enumerate(plain_memory(accesses)):
        if not accesses.write[i]:
            queued = int(answers.value[i])
            at = after[int(answers.commands[i])]
            assert (queued if queued >= 0 else at.get(int(accesses.address[i]), -1)) == expected


@given(controllers, rows, st.integers(0, 99))
def test_commands_keep_the_rules(rules, rows, seed):
    accesses = accesses_of(rows)
    commands, answers = controller.run(rules, accesses, (0, SCRUBBED), seed)
    assert np.all(np.diff(commands.time_ns) >= rules.command_ns)
    reads = commands.access[commands.kind == RD]
    assert np.array_equal(np.sort(reads), np.flatnonzero(answers.command >= 0))
    assert np.all(commands.time_ns[answers.command[reads]] >= accesses.time_ns[reads])
    written_ns = commands.time_ns[commands.kind == WR].tolist()
    for at_ns, values in zip(written_ns, commands.values, strict=True):
        assert at_ns >= accesses.time_ns[values[values >= 0]].max(initial=0)
    if rules.forwarding:
        fixed = reads[accesses.walk[reads] < 0]
        assert np.all(np.diff(fixed) > 0), "an uncached load was overtaken by another"
    else:
        assert reads.size == np.count_nonzero(~accesses.write)
    underfilled = set()
    for address, kind in zip(commands.address.tolist(), commands.kind.tolist(), strict=True):
        if kind == UNDERFILL:
            assert rules.ecc and address not in underfilled
            underfilled.add(address)
        elif kind == WR:
            assert not rules.ecc or address in underfilled
            underfilled.discard(address)
    assert rules.scrub_ns or not np.any(commands.kind == SCRUB)


TWO = controller.Channels(2, lambda address: address // np.uint64(64) % np.uint64(2))


@given(controllers, rows, st.integers(0, 99))
def test_two_channels_have_the_data_and_the_order_of_one_cpu(rules, rows, seed):
    accesses = accesses_of(rows)
    commands, answers = controller.run(rules, accesses, (0, SCRUBBED), seed, TWO)
    assert np.all(np.diff(commands.time_ns) > 0)
    of_command, of_access = TWO.of(commands.address), TWO.of(accesses.address)
    after = []
    for channel in (0, 1):
        mine = of_command == channel
        writes = mine[commands.kind == WR]
        part = commands._replace(
            address=commands.address[mine], kind=commands.kind[mine], values=commands.values[writes]
        )
        after.append(dimm(part))
    for i, expected in enumerate(plain_memory(accesses)):
        if not accesses.write[i]:
            queued = int(answers.value[i])
            at = after[int(of_access[i])][int(answers.commands[i])]
            assert (queued if queued >= 0 else at.get(int(accesses.address[i]), -1)) == expected
    seen = np.flatnonzero(answers.command >= 0)
    assert np.array_equal(commands.access[answers.command[seen]], seen)
    fixed = seen[accesses.walk[seen] < 0]
    assert np.all(np.diff(answers.command[fixed]) > 0), "an uncached load was overtaken"


def test_each_channel_has_a_queue_and_a_scrub_of_its_own():
    stores = [(100, line, 0, True, True) for line in (0, 2, 4, 1)]
    rules = Controller(high=3, low=0, capacity=3, scrub_ns=90)
    rows = [*stores, (2000, 9, 0, False, True)]
    commands, _ = controller.run(rules, accesses_of(rows), (0, SCRUBBED), 1, TWO)
    lines = commands.address // np.uint64(64)
    assert sorted(lines[commands.kind == WR].tolist()) == [0, 2, 4]
    for channel in (0, 1):
        scrubbed = lines[(commands.kind == SCRUB) & (lines % np.uint64(2) == channel)]
        assert scrubbed.size > 8
        steps = np.diff(scrubbed.astype(np.int64)) % 16
        assert set(steps.tolist()) <= {2, 4}  # what is in the queue is left out


def served(rules, rows, scrubbed=0):
    return controller.run(rules, accesses_of(rows), (0, scrubbed))


STORE, READ = (100, 1, 0, True, True), (100, 1, 0, False, True)


def test_a_read_of_a_queued_line_has_no_command():
    commands, answers = served(Controller(), [STORE, READ])
    assert not commands.kind.size
    assert answers.value.tolist() == [-1, 0]


def test_without_forwarding_the_line_is_written_first():
    commands, _ = served(Controller(forwarding=False), [STORE, READ])
    assert commands.kind.tolist() == [WR, RD]


def test_a_neighbour_in_a_masked_line_is_read_from_the_dimm():
    neighbour = (100, 1, 3, False, True)
    assert served(Controller(), [STORE, neighbour])[0].kind.tolist() == [RD]
    assert served(Controller(ecc=True), [STORE, neighbour])[0].kind.tolist() == [UNDERFILL]


def test_two_stores_of_a_line_become_one_write_with_one_underfill():
    rules = Controller(ecc=True, high=2, low=0)
    commands, _ = served(rules, [STORE, (5, 1, 4, True, True), (5, 2, 0, True, True), READ])
    assert commands.kind.tolist() == [UNDERFILL, WR, UNDERFILL, WR, RD]
    assert commands.values[0].tolist() == [0, -1, -1, -1, 1, -1, -1, -1]


def test_writes_wait_for_the_watermark_and_go_down_to_the_other():
    stores = [(100, line, 0, True, True) for line in range(6)]
    far = (10_000, 9, 0, False, True)
    assert np.count_nonzero(served(Controller(high=7, low=2), [*stores, far])[0].kind == WR) == 0
    assert np.count_nonzero(served(Controller(high=6, low=2), [*stores, far])[0].kind == WR) == 4


def test_a_read_waits_for_a_burst_of_writes():
    stores = [(1, line, 0, True, True) for line in range(6)]
    reads = [(1, 9, 0, False, True), (1000, 9, 0, False, True)]
    rules = Controller(high=6, low=0, burst=2)
    # The first write goes out before the read comes.
    assert served(rules, [*stores, *reads])[0].kind.tolist() == [WR, WR, WR, RD, RD]


def test_reads_of_two_walks_change_places_and_those_of_one_do_not():
    rules = Controller(window_ns=20, out_of_order=1.0)
    two = [(100, 1, 0, False, True), (10, 2, 0, False, True)]
    assert served(rules, two)[0].access.tolist() == [1, 0]
    accesses = accesses_of(two)
    for walk in ([5, 5], [5, -1], [-1, 5]):
        same = accesses._replace(walk=np.array(walk))
        assert controller.run(rules, same, (0, 0))[0].access.tolist() == [0, 1]


def test_other_traffic_of_an_hour_costs_no_time():
    """It pushes the store out of the queue; 7 billion writes would take minutes."""
    rules = controller.preset("ecc-server,scrub_ns=0,early_underfill=0")
    hour_ns = 3_600_000_000_000
    rows = [STORE, (hour_ns, 1, 0, False, True), STORE, (hour_ns, 2, 0, False, True)]
    commands, _ = served(rules, rows)
    assert commands.kind.tolist() == [UNDERFILL, WR, RD, UNDERFILL, WR, RD]
    assert hour_ns < commands.time_ns[2] < commands.time_ns[4] < hour_ns + 1_000_000
    assert 2 * hour_ns < commands.time_ns[5] < 2 * hour_ns + 1_000_000


def test_scrub_reads_all_lines_in_order():
    commands, _ = served(Controller(scrub_ns=100), [READ, (2000, 1, 0, False, True)], SCRUBBED)
    lines = (commands.address[commands.kind == SCRUB] // np.uint64(64)).astype(np.int64)
    assert lines.size == 20
    assert np.all(np.diff(lines) % 16 == 1)


def test_presets_and_changes():
    assert controller.preset("none") is None
    assert controller.preset("ecc-server,scrub_ns=0,forwarding=no") == Controller(
        **{**vars(controller.PRESETS["ecc-server"]), "scrub_ns": 0, "forwarding": False}
    )
    for wrong in ("server", "client,capacity", "client,capacity=x", "client,low=60", "client,x=1"):
        with pytest.raises(BoardError):
            controller.preset(wrong)
