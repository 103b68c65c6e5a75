# SPDX-License-Identifier: BSD-2-Clause
"""The region behind a port that behaves as LiteDRAM's, and behind block RAM."""

import functools
import random
from collections import deque

import pytest
from litedram.common import LiteDRAMNativePort
from litex.gen import LiteXModule
from pcie_bench import Stepper, World, parts, wide
from verilated import Registers, needs_verilator

from ptat_gateware.pcie.layouts import READS, memory_layout
from ptat_gateware.pcie.memory import CLEAR_UNIT_SHIFT, BlockRAMPort, RegionMemory

pytestmark = needs_verilator

REGION_BYTES = 4 << CLEAR_UNIT_SHIFT
WIDTHS = (64, 128)
SHARING = -1
SHARED_BYTES = 1 << CLEAR_UNIT_SHIFT
SIZE_BYTES = 3 << CLEAR_UNIT_SHIFT  # what is above has no memory, as under a window of registers
PAGE_QWORDS = 4096 // 8


class Behind(LiteXModule):
    """A region and its registers, with the port as pins or with block RAM (``data_width`` 0).

    `SHARING`: with block RAM that has a shared page.
    """

    def __init__(self, data_width: int) -> None:
        if data_width == SHARING:
            self.ram = BlockRAMPort(SIZE_BYTES, SHARED_BYTES)
            port = self.ram.port
        elif data_width:
            words = REGION_BYTES * 8 // data_width
            self.port = port = LiteDRAMNativePort("both", (words - 1).bit_length(), data_width)
        else:
            self.ram = BlockRAMPort(REGION_BYTES)
            port = self.ram.port
        self.memory = memory = RegionMemory(port, REGION_BYTES)
        self.registers = Registers(memory)
        bus = self.registers.bus
        self.inputs = {
            "valid": memory.sink.valid,
            **{name: getattr(memory.sink, name) for name, _ in memory_layout},
            "response_ready": memory.source.ready,
            "adr": bus.adr,
            "we": bus.we,
            "re": bus.re,
            "dat_w": bus.dat_w,
        }
        self.outputs = {
            "ready": memory.sink.ready,
            "response_valid": memory.source.valid,
            "response_data": memory.source.data,
            "dat_r": bus.dat_r,
        }
        if data_width > 0:
            self.inputs |= {
                "cmd_ready": port.cmd.ready,
                "wdata_ready": port.wdata.ready,
                "rdata_valid": port.rdata.valid,
                **wide("rdata", port.rdata.data),
            }
            self.outputs |= {
                "cmd_valid": port.cmd.valid,
                "cmd_we": port.cmd.we,
                "cmd_addr": port.cmd.addr,
                "wdata_valid": port.wdata.valid,
                **wide("wdata", port.wdata.data),
                "wdata_we": port.wdata.we,
            }


@functools.cache
def built(data_width: int) -> tuple[Stepper, Registers]:
    top = Behind(data_width)
    return Stepper(top, top.inputs, top.outputs), top.registers


class Controller:
    """LiteDRAM's side of a port: takes data and brings data when it likes, asking nobody.

    Commands act in their order. A write's data are taken some clocks after its command, at once
    and for good; what a read brings comes once.
    """

    def __init__(self, data_width: int, chance: random.Random, latency: int, pause: float) -> None:
        self.width, self.chance = data_width, chance
        self.latency, self.pause = latency, pause
        self.bytes = bytearray(b"\xa5" * REGION_BYTES)
        self.queue: deque[tuple[int, int, int]] = deque()  # due, write, address
        self.now = 0
        self.most_reads = 0
        self.commands = 0

    def drive(self, pins: dict[str, int]) -> None:
        pins["cmd_ready"] = int(self.chance.random() >= self.pause)
        due = self.queue[0] if self.queue and self.queue[0][0] <= self.now else None
        self._due = due
        pins["wdata_ready"] = int(due is not None and due[1])
        pins["rdata_valid"] = int(due is not None and not due[1])
        word = 0xBAD
        if pins["rdata_valid"]:
            assert due is not None
            size = self.width // 8
            word = int.from_bytes(self.bytes[due[2] * size : (due[2] + 1) * size], "little")
        pins |= parts("rdata", word, self.width // 64)
        self._ready = pins["cmd_ready"]

    def seen(self, outputs: dict[str, int]) -> None:
        self.now += 1
        if self._due is not None:
            _, write, address = self.queue.popleft()
            if write:
                assert outputs["wdata_valid"], "the controller asks for data once"
                start = address * self.width // 8
                for i in range(self.width // 8):
                    if outputs["wdata_we"] >> i & 1:
                        word = outputs[f"wdata{i // 8}"]
                        self.bytes[start + i] = word >> 8 * (i % 8) & 0xFF
        if outputs["cmd_valid"] and self._ready:
            self.commands += 1
            after = self.queue[-1][0] if self.queue else self.now
            due = max(self.now + self.chance.randint(0, self.latency), after + 1)
            self.queue.append((due, outputs["cmd_we"], outputs["cmd_addr"]))
            self.most_reads = max(self.most_reads, sum(not write for _, write, _ in self.queue))


class Accesses:
    """Sends accesses, (write, qword, enables, data), and takes what reads answer."""

    def __init__(self, chance: random.Random, pause: float) -> None:
        self.chance, self.pause = chance, pause
        self.left: deque[tuple[int, int, int, int]] = deque()
        self.answers: list[int] = []
        self.taking = True
        self._offered = False

    def drive(self, pins: dict[str, int]) -> None:
        self._offered = bool(self.left) and (self._offered or self.chance.random() >= self.pause)
        pins["valid"] = int(self._offered)
        fields = self.left[0] if self._offered else (1, 0, 0xFF, 0xBAD)
        pins |= dict(zip(("write", "address", "be", "data"), fields, strict=True))
        pins["response_ready"] = int(self.taking and self.chance.random() >= self.pause)
        self._ready = pins["response_ready"]

    def seen(self, outputs: dict[str, int]) -> None:
        if self._offered and outputs["ready"]:
            self.left.popleft()
            self._offered = False
        if outputs["response_valid"] and self._ready:
            self.answers.append(outputs["response_data"])


class Setup:
    """A region, who uses it, and what it must hold."""

    def __init__(
        self, data_width: int, seed: int = 0, latency: int = 20, pause: float = 0.2
    ) -> None:
        chance = random.Random(seed)
        stepper, self.registers = built(data_width)
        self.accesses = Accesses(chance, pause)
        self.controller = Controller(max(data_width, 64), chance, latency, pause)
        agents = (self.accesses, self.controller) if data_width > 0 else (self.accesses,)
        self.world = World(stepper, *agents)
        initial = b"\xa5" if data_width > 0 else b"\0"
        self.expected = bytearray(initial * REGION_BYTES)
        self.answers: list[int] = []

    def access(self, write: int, qword: int, enables: int = 0xFF, data: int = 0) -> None:
        # Bits above the region are the BAR's place.
        self.accesses.left.append((write, qword | 0xAB << 24, enables, data))
        start = 8 * qword
        if not write:
            self.answers.append(int.from_bytes(self.expected[start : start + 8], "little"))
            return
        for i in range(8):
            if enables >> i & 1:
                self.expected[start + i] = data >> 8 * i & 0xFF

    def write(self, name: str, value: int) -> None:
        for address, word in self.registers.writes(name, value):
            self.world.stepper.pins |= {"adr": address, "we": 1, "dat_w": word}
            self.world.step()
            self.world.stepper.pins["we"] = 0
        self.world.step()

    def read(self, name: str) -> int:
        (address,) = self.registers.addresses(name)
        self.world.stepper.pins |= {"adr": address, "re": 1}
        self.world.step()
        self.world.stepper.pins["re"] = 0
        return self.world.step()["dat_r"]

    def finish(self) -> None:
        self.world.run_until(
            lambda: not self.accesses.left and len(self.accesses.answers) >= len(self.answers),
            100_000,
        )
        for _ in range(100):
            self.world.step()
        assert self.accesses.answers == self.answers


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("data_width", [*WIDTHS, 0])
def test_reads_see_all_writes_before_them(data_width, seed):
    chance = random.Random(seed)
    setup = Setup(data_width, seed, chance.choice([0, 5, 60]), chance.choice([0.0, 0.2, 0.7]))
    for _ in range(400):
        qword = chance.choice([0, 1, 2, 3, REGION_BYTES // 8 - 1])
        if chance.random() < 0.5:
            setup.access(0, qword)
        else:
            setup.access(
                1,
                qword,
                chance.choice([0xFF, 0xFF, 0, chance.getrandbits(8)]),
                chance.getrandbits(64),
            )
    setup.finish()
    if data_width:
        assert setup.controller.bytes == setup.expected


def test_reads_under_way_have_room_for_what_they_bring():
    """While nobody takes answers, no more is asked than is kept; the rest comes afterwards."""
    setup = Setup(128, latency=100, pause=0.0)
    setup.accesses.taking = False
    for i in range(100):
        setup.access(1, i, 0xFF, i)
    for i in range(100):
        setup.access(0, i)
    for _ in range(2000):
        setup.world.step()
    assert setup.controller.commands == 100 + READS
    assert setup.controller.most_reads > READS // 2
    setup.accesses.taking = True
    setup.finish()


# Clearing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_width", WIDTHS)
@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 2), (3, 3)])
def test_clearing_clears_just_the_range(data_width, first, last):
    setup = Setup(data_width, latency=0, pause=0.0)
    setup.write("clear_first", first)
    setup.write("clear_last", last)
    setup.write("clear_control", 1)
    words = (last - first + 1 << CLEAR_UNIT_SHIFT) * 8 // data_width
    assert setup.read("clear_status") == 1
    # Meanwhile accesses go first, and clearing loses nothing by it.
    if first:
        for _ in range(50):
            setup.access(0, 0)
        setup.finish()
    before = setup.world.clocks
    setup.world.run_until(lambda: setup.controller.commands - len(setup.answers) == words, 200_000)
    assert setup.world.clocks - before < 1.1 * words
    for _ in range(10):
        setup.world.step()
    assert setup.read("clear_status") == 0
    start, end = first << CLEAR_UNIT_SHIFT, last + 1 << CLEAR_UNIT_SHIFT
    setup.expected[start:end] = bytes(end - start)
    assert setup.controller.bytes == setup.expected


def test_clearing_what_ends_before_it_begins_does_nothing():
    setup = Setup(64, latency=0, pause=0.0)
    setup.write("clear_first", 3)
    setup.write("clear_last", 2)
    setup.write("clear_control", 1)
    for _ in range(100):
        setup.world.step()
    assert setup.read("clear_status") == 0
    assert setup.controller.commands == 0


def test_what_is_written_after_clearing_stays():
    setup = Setup(128, latency=3)
    setup.write("clear_last", 0)
    setup.write("clear_first", 0)
    setup.write("clear_control", 1)
    setup.world.run_until(lambda: setup.controller.commands == (1 << CLEAR_UNIT_SHIFT) // 16)
    while setup.read("clear_status"):
        pass
    setup.expected[: 1 << CLEAR_UNIT_SHIFT] = bytes(1 << CLEAR_UNIT_SHIFT)
    setup.access(1, 5, 0xFF, 0x1234)
    setup.access(0, 5)
    setup.access(0, 6)
    setup.finish()
    assert setup.controller.bytes == setup.expected


# Block RAM with a shared page ---------------------------------------------------------------------


def shared() -> Setup:
    return Setup(SHARING, latency=0)


def at(setup: Setup, qword: int) -> int:
    """What a read there answers."""
    setup.accesses.answers.clear()
    setup.accesses.left.append((0, qword, 0xFF, 0))
    setup.world.run_until(lambda: bool(setup.accesses.answers))
    return setup.accesses.answers[0]


def put(setup: Setup, qword: int, data: int) -> None:
    setup.accesses.left.append((1, qword, 0xFF, data))
    setup.world.run_until(lambda: not setup.accesses.left)


def test_the_pages_of_the_markers_are_one():
    setup = shared()
    last = SHARED_BYTES // 8 - 1
    put(setup, 1, 0x1111)  # the kernel's canary
    for slot in range(8, SHARED_BYTES // 8, 8 * 37):
        put(setup, slot, slot)
    assert at(setup, 1) == 0x1111
    put(setup, last, 0x2222)
    assert at(setup, PAGE_QWORDS - 1) == at(setup, last) == 0x2222


def test_every_other_page_has_a_place_of_its_own():
    setup = shared()
    qwords = [
        page * PAGE_QWORDS + offset
        for page in range(SHARED_BYTES // 4096, SIZE_BYTES // 4096)
        for offset in (0, 1, PAGE_QWORDS - 1)
    ]
    put(setup, 0, 0xAAAA)
    for qword in qwords:
        put(setup, qword, qword << 8 | 1)
    for marker in range(1, SHARED_BYTES // 8, PAGE_QWORDS):
        put(setup, marker, 0xBAD)
    assert [at(setup, qword) for qword in qwords] == [qword << 8 | 1 for qword in qwords]
    assert at(setup, 0) == 0xAAAA


def test_what_is_beyond_the_memory_changes_nothing_in_it():
    setup = shared()
    put(setup, 0, 0xAAAA)
    put(setup, SHARED_BYTES // 8, 0xBBBB)
    for page in range(SIZE_BYTES // 4096, REGION_BYTES // 4096):
        put(setup, page * PAGE_QWORDS, 0xBAD)
    assert (at(setup, 0), at(setup, SHARED_BYTES // 8)) == (0xAAAA, 0xBBBB)
