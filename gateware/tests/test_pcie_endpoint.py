# SPDX-License-Identifier: BSD-2-Clause
"""The whole endpoint between a host's packets and its memory, the trace read by the parser."""

import numpy as np
import pytest
from pcie_host import BASE, LOW_RING, REGION_BYTES, RING, WINDOW, Machine
from pcie_model import CPL, MRD64, MSG, MWR64, POISONED, TYPE, UR, Tlp
from verilated import needs_verilator

from ptat_gateware.filter import BY_WATCHDOG
from ptat_gateware.pcie.decoder import (
    EMPTY_COUNT,
    HELD_COUNT,
    OVERDUE_COUNT,
    PARTIAL_COUNT,
    AccessDecoder,
)
from ptat_parser import wire
from ptat_parser.wire import Mark

pytestmark = needs_verilator

WIDTHS = (64, 128)
QWORDS = REGION_BYTES // 8


def traffic(machine: Machine, count: int, window: int = 8) -> None:
    """Walks and stores at random, ``window`` walks under way; what walks read is checked."""
    waiting: list[tuple[int, int]] = []

    def settle(left: int) -> None:
        while len(waiting) > left:
            tag, expected = waiting.pop(0)
            machine.until(lambda tag=tag: machine.answered(tag))
            assert machine.value(tag) == expected

    for _ in range(count):
        machine.collect()
        qword = machine.chance.randrange(64)
        if machine.chance.random() < 0.3:
            machine.store(qword, machine.chance.getrandbits(64))
        else:
            waiting.append((machine.walk(qword), machine.region.get(qword, 0)))
        settle(window - 1)
    settle(0)


def recorded(machine: Machine) -> list[tuple[int, int]]:
    found = machine.capture()
    return list(zip(found.write.astype(int).tolist(), found.address.tolist(), strict=True))


def finish(machine: Machine) -> None:
    """Stop, and check that each access is in the stream, once and in order, and none is lost."""
    machine.stop()
    found = machine.capture()
    assert found.lost == []
    assert recorded(machine) == machine.accesses
    assert (found.codes[0], found.codes[-1]) == (Mark.START, Mark.STOP)
    assert (np.diff(found.time.astype(np.int64)) > 0).all()
    assert (found.time % AccessDecoder.phases == found.time[0] % AccessDecoder.phases).all()
    counters = machine.counters()
    count = len(machine.accesses)
    assert counters == {
        "accesses": count,
        "matched": count,
        "packer_emitted": count,
        "packer_lost": 0,
    }


# Recording ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_width", "max_payload", "base"),
    [(64, 128, RING), (128, 256, RING), (64, 512, LOW_RING), (128, 128, LOW_RING)],
)
def test_every_access_reaches_the_ring(data_width, max_payload, base):
    machine = Machine(data_width, max_payload=max_payload)
    machine.set_up_ring(3, base)
    machine.start()
    traffic(machine, 1500)
    finish(machine)
    assert len(machine.taken) >= 2
    assert machine.read("link_ring_head") == len(machine.taken)


def test_several_recordings_in_one_ring():
    """Blocks go on where the last recording ended, numbered anew or not; nothing is left over."""
    machine = Machine()
    machine.set_up_ring(4)
    for count in (300, 1, 40):
        machine.accesses.clear()
        before = len(machine.taken)
        machine.start()
        traffic(machine, count)
        machine.stop()
        machine.write("link_gate_control", 0)
        machine.taken, earlier = machine.taken[before:], machine.taken[:before]
        assert recorded(machine) == machine.accesses
        machine.taken = earlier + machine.taken


def test_accesses_before_and_after_are_answered_and_not_recorded():
    machine = Machine()
    assert machine.read("region_bytes") == REGION_BYTES
    machine.store(3, 77)
    assert machine.load(3) == 77
    machine.set_up_ring(2)
    machine.accesses.clear()
    machine.start()
    assert machine.load(3) == 77
    finish(machine)
    assert machine.load(3) == 77


# Back-pressure ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_width", WIDTHS)
def test_a_ring_that_nobody_empties_stalls_the_walks_and_loses_nothing(data_width):
    machine = Machine(data_width, pause=0.0)
    machine.set_up_ring(1)
    machine.start()
    tag = 0
    for i in range(6000):  # more than the ring, the buffer and the FIFOs hold
        tag = machine.walk(i % QWORDS)
        for _ in range(300):
            if machine.answered(tag):
                break
            machine.step()
        else:
            break
    assert 2 * wire.BLOCK_RECORDS_MAX < len(machine.accesses) < 6000
    machine.run(5000)
    assert not machine.answered(tag)
    # Registers answer all the same, and more accesses may be on their way.
    assert machine.read("link_ring_head") == 1
    for i in range(12):
        machine.store(i, i + 1)
    later = machine.walk(5)
    machine.run(500)
    assert machine.read("link_ring_head") == 1
    assert machine.count(HELD_COUNT) > 5000
    while not machine.answered(later):
        machine.collect()
        machine.run(50)
    assert machine.value(later) == 6
    finish(machine)
    assert machine.count(OVERDUE_COUNT) == 0


def test_a_host_with_patience_is_answered_late_and_told_what_was_lost():
    machine = Machine(pause=0.0)
    machine.set_up_ring(1)
    patience = 200
    machine.start(patience)
    late = 0
    for i in range(3300):
        tag = machine.walk(i % QWORDS)
        before = machine.world.clocks
        machine.until(lambda tag=tag: machine.answered(tag), patience + 100)
        late += machine.world.clocks - before > patience
    assert late > 50
    machine.stop()
    found = machine.capture()
    counters = machine.counters()
    lost = sum(record.count for record in found.lost)
    assert lost > 0
    assert counters["accesses"] == counters["matched"] == len(machine.accesses) == 3300
    assert counters["packer_emitted"] == len(found.time)
    assert counters["packer_lost"] == lost
    assert len(found.time) + lost == 3300
    assert machine.count(OVERDUE_COUNT) == late


# Refusals -----------------------------------------------------------------------------------------


def test_what_is_refused_is_counted_and_marked():
    machine = Machine()
    machine.set_up_ring(2)
    machine.start()
    tag = machine.request(BASE, 32)
    machine.until(lambda: machine.answered(tag))
    assert (machine.completions[tag].kind, machine.completions[tag].status) == (CPL, UR)
    machine.send(Tlp(MWR64, 2, BASE, 15, 15, poisoned=1, payload=(1, 2)))
    machine.send(Tlp(MSG | 4))
    machine.send(Tlp(MRD64, 1, BASE, 0, tag=200))  # of no byte
    machine.sent[200] = Tlp(MRD64, 1, BASE, 0)
    machine.until(lambda: machine.answered(200))
    assert machine.load(0) == 0
    assert machine.load(1) == 0
    tag = machine.request(BASE + 16, 1)
    machine.accesses.append((0, BASE + 16))
    machine.until(lambda: machine.answered(tag))
    counts = {kind: machine.count(kind) for kind in range(8)}
    assert counts == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 0, 6: 1, 7: 0}
    assert (machine.count(PARTIAL_COUNT), machine.count(EMPTY_COUNT)) == (1, 1)
    finish(machine)
    errors = [mark for mark in machine.capture().marks if mark.code == Mark.DECODE_ERROR]
    kinds = 0
    for mark in errors:
        kinds |= mark.argument & 0xFFF
    assert kinds == 1 << 1 | 1 << POISONED
    assert TYPE == 0


# Interrupts, mailbox ------------------------------------------------------------------------------


def test_an_interrupt_when_as_many_blocks_are_there_as_were_wanted():
    machine = Machine(pause=0.0)
    machine.write("link_interrupts_enable", 0b01)
    machine.set_up_ring(4)
    machine.start()
    machine.write("link_ring_wake", 2)
    while machine.read("link_ring_head") < 2:
        assert machine.interrupts.count == 0
        for i in range(100):
            machine.walk(i)
        machine.run(2000)
    machine.run(10)
    assert machine.interrupts.count == 1
    for i in range(1100):
        machine.walk(i)
        machine.run(20)
    assert machine.read("link_ring_head") == 3
    assert machine.interrupts.count == 1
    machine.write("link_ring_wake", 3)  # is there already
    machine.run(50)
    assert machine.interrupts.count == 2
    machine.write("link_ring_wake", 1)  # has long been there
    machine.run(50)
    assert machine.interrupts.count == 3
    finish(machine)


def test_mailbox():
    """Words of a request reach the firmware, those of its answer the host, by writes alone."""
    machine = Machine()
    pins = machine.world.stepper.pins
    machine.write("link_interrupts_enable", 0b10)
    got = []
    for word in (11, 22, 33):
        assert machine.read("link_mailbox_status") & 1
        machine.write("link_mailbox_request", word)
        machine.until(lambda: not machine.sender.words)
        machine.run(20)
        assert not machine.read("link_mailbox_status") & 1
        machine.write("link_mailbox_request", 999)  # has no room
        machine.until(lambda: not machine.sender.words)
        machine.run(20)
        outputs = machine.world.step()
        assert outputs["request_valid"]
        got.append(outputs["request_data"])
        pins["request_ready"] = 1
        machine.step()
        pins["request_ready"] = 0
    assert got == [11, 22, 33]
    assert machine.interrupts.count == 0
    answers = []
    for i, word in enumerate((7, 8)):
        pins |= {"answer_valid": 1, "answer_data": word, "answer_last": i}
        status = machine.read("link_mailbox_status")
        assert status >> 1 == 1 | i << 1
        answers += [machine.read("link_mailbox_response"), machine.read("link_mailbox_response")]
        machine.write("link_mailbox_take", 1)
        for _ in range(100):
            if machine.world.step()["answer_ready"]:
                break
        else:
            raise AssertionError("the word is not taken")
    pins["answer_valid"] = 0
    assert answers == [7, 7, 8, 8]
    assert machine.interrupts.count == 1


# Link down ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("data_width", WIDTHS)
def test_a_link_that_goes_down_and_comes_back(data_width, stalled, seed):
    """No completion of before reaches the new link; the recording is over, its end is in sight."""
    machine = Machine(data_width, seed=seed, pause=0.0)
    machine.set_up_ring(1)
    machine.start()
    for i in range(5000 if stalled else 300):
        machine.walk(i % QWORDS)
        machine.run(12)
        if len(machine.sender.words) > 100:
            break
    assert bool(machine.sender.words) == stalled
    machine.run(machine.chance.randint(0, 40))
    machine.link_down(machine.chance.randint(1, 60))
    # The new host need not know of the ring.
    machine.store(9, 99)
    assert machine.load(9) == 99
    # The driver begins anew.
    machine.write("snooper_control", 0)
    machine.write("link_gate_control", 0)
    machine.write("link_writer_enable", 0)
    machine.run(100)
    machine.memory.clear()
    machine.set_up_ring(4)
    machine.accesses.clear()
    machine.start()
    traffic(machine, 100)
    finish(machine)


def test_a_recording_that_the_link_ended_says_so():
    """With a ring that was large enough, all before is there, and the mark STOP says why."""
    machine = Machine(pause=0.0)
    machine.set_up_ring(4)
    machine.start()
    for i in range(20):
        machine.store(i, i)
    assert machine.load(3) == 3
    machine.run(50)
    machine.link_down(1)
    machine.run(100)
    assert machine.load(4) == 4
    machine.accesses.pop()
    machine.stop()
    assert recorded(machine) == machine.accesses
    last = machine.capture().marks[-1]
    assert (last.code, last.argument) == (Mark.STOP, BY_WATCHDOG)


@pytest.mark.parametrize("data_width", WIDTHS)
@pytest.mark.parametrize("words", range(4))
def test_a_ring_that_is_turned_off_in_the_middle_of_a_block(data_width, words):
    """The rest of the block is dropped, and the next one begins at the ring's start."""
    machine = Machine(data_width, pause=0.0)
    machine.set_up_ring(2)
    machine.start()
    for i in range(20):
        machine.walk(i)
    machine.run(500)
    machine.write("snooper_control", 2)  # send what there is
    machine.until(lambda: bool(machine.memory))
    machine.run(words)
    machine.write("link_writer_enable", 0)
    machine.write("snooper_control", 0)
    machine.write("link_gate_control", 0)
    machine.run(3000)
    assert machine.read("link_ring_head") == 0
    machine.memory.clear()
    machine.accesses.clear()
    machine.set_up_ring(2)
    machine.start()
    traffic(machine, 30)
    finish(machine)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_written_by_what_is_no_bus_master(seed):
    """Packets end that have begun, the others are gone; the ring is set up anew."""
    machine = Machine(seed=seed, pause=0.0)
    machine.set_up_ring(2)
    machine.start()
    for i in range(20):
        machine.walk(i)
    machine.run(500)
    machine.write("snooper_control", 2)  # send what there is
    machine.until(lambda: bool(machine.memory))
    machine.run(machine.chance.randint(0, 60))
    machine.world.stepper.pins["bus_master"] = 0
    machine.run(40)
    written = len(machine.memory)
    assert written < wire.BLOCK_BYTES // 4
    machine.run(3000)
    assert len(machine.memory) == written
    assert machine.read("link_ring_head") == 0
    machine.world.stepper.pins["bus_master"] = 1
    machine.run(3000)
    machine.write("snooper_control", 0)
    machine.write("link_gate_control", 0)
    machine.write("link_writer_enable", 0)
    machine.quiesce()
    machine.memory.clear()
    machine.accesses.clear()
    machine.set_up_ring(2)
    machine.start()
    traffic(machine, 30)
    finish(machine)


def test_what_comes_while_the_link_is_down_is_dropped():
    machine = Machine(pause=0.0)
    machine.world.stepper.pins["link_up"] = 0
    machine.send(Tlp(MRD64, 2, BASE, 15, 15))
    machine.send(Tlp(MWR64, 1, WINDOW, payload=(1,)))
    machine.until(lambda: not machine.sender.words)
    machine.world.stepper.pins["link_up"] = 1
    machine.run(200)
    assert machine.load(0) == 0
    assert len(machine.order) == 1
