# SPDX-License-Identifier: BSD-2-Clause
"""The ring in host memory: what is counted when, and that nothing is overwritten."""

import functools
import random

import pytest
from litex.gen import LiteXModule
from migen import Signal
from pcie_bench import Receiver, Stepper, World, wide
from pcie_model import MWR64
from verilated import Registers, needs_verilator

from ptat_gateware.link.pcie import RingLink
from ptat_parser import wire

pytestmark = needs_verilator

BASE = 0x8_0000_0000


class Top(LiteXModule):
    """A link and its registers."""

    def __init__(self, data_width: int) -> None:
        requester = Signal(16, reset=0x0100)
        max_payload = Signal(16)
        self.link = link = RingLink(data_width, requester, max_payload)
        self.registers = Registers(link)
        bus = self.registers.bus
        self.inputs = {
            "valid": link.sink.valid,
            "last": link.sink.last,
            "data": link.sink.data,
            "tx_ready": link.source.ready,
            "max_payload": max_payload,
            "bus_master": link.bus_master,
            "msi_ready": link.msi.ready,
            "adr": bus.adr,
            "we": bus.we,
            "re": bus.re,
            "dat_w": bus.dat_w,
        }
        self.outputs = {
            "ready": link.sink.ready,
            "tx_valid": link.source.valid,
            **wide("tx_dat", link.source.dat),
            "tx_be": link.source.be,
            "tx_last": link.source.last,
            "dat_r": bus.dat_r,
            "head": link.counter.count,
        }


@functools.cache
def built(data_width: int) -> tuple[Stepper, Registers]:
    top = Top(data_width)
    return Stepper(top, top.inputs, top.outputs), top.registers


class Blocks:
    """Offers blocks of numbered words."""

    def __init__(self, chance: random.Random, pause: float) -> None:
        self.chance, self.pause = chance, pause
        self.word = 0
        self.end = 0
        self._offered = False

    def drive(self, pins: dict[str, int]) -> None:
        if not self._offered:
            self._offered = self.word < self.end and self.chance.random() >= self.pause
        pins["valid"] = int(self._offered)
        pins["data"] = self.word | 0xA5 << 56
        pins["last"] = int(self.word % wire.BLOCK_WORDS == wire.BLOCK_WORDS - 1)

    def seen(self, outputs: dict[str, int]) -> None:
        if self._offered and outputs["ready"]:
            self.word += 1
            self._offered = False


class Host:
    """Keeps what is written to its memory; the head must never be ahead of it."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.dwords: dict[int, int] = {}
        self.order: list[int] = []
        self.headers: set[tuple[int, int]] = set()
        self.watching = True

    def drive(self, pins: dict[str, int]) -> None:
        self._blocks = len(self.order) * 4 // wire.BLOCK_BYTES

    def seen(self, outputs: dict[str, int]) -> None:
        # The head goes up with the clock that ends the last packet of a block.
        assert not self.watching or outputs["head"] == self._blocks
        while self.receiver.packets:
            first, second, high, low, *data = self.receiver.packets.popleft()
            assert first >> 24 == MWR64
            self.headers.add((first & 0x3FF, second & 0xFFFF00FF))
            address = high << 32 | low
            for i, dword in enumerate(data):
                self.order.append(address + 4 * i)
                self.dwords[address + 4 * i] = int.from_bytes(dword.to_bytes(4, "big"), "little")


class Setup:
    """A link with a ring, and who fills and empties it."""

    def __init__(self, data_width: int, blocks: int, max_payload: int, pause: float) -> None:
        chance = random.Random(blocks)
        stepper, self.registers = built(data_width)
        self.source = Blocks(chance, pause)
        receiver = Receiver(data_width, "tx", chance, pause)
        self.host = Host(receiver)
        self.world = World(stepper, self.source, receiver, self.host)
        stepper.pins |= {"max_payload": max_payload, "msi_ready": 1, "bus_master": 1}
        self.set_up_ring(blocks)
        self.write("gate_control", 1)

    def set_up_ring(self, blocks: int) -> None:
        self.write("writer_table_reset", 1)
        self.write("writer_table_loop_prog_n", 0)
        for i in range(blocks):
            address = BASE + i * wire.BLOCK_BYTES
            descriptor = address & 0xFFFF_FFFF | wire.BLOCK_BYTES << 32 | 1 << 57
            self.write("writer_table_value", descriptor)
            self.write("writer_table_we", address >> 32)
        self.write("writer_table_loop_prog_n", 1)
        self.write("ring_blocks", blocks)
        self.write("writer_enable", 1)

    def write(self, name: str, value: int) -> None:
        for address, word in self.registers.writes(name, value):
            self.world.stepper.pins |= {"adr": address, "we": 1, "dat_w": word}
            self.world.step()
            self.world.stepper.pins["we"] = 0
        self.world.step()


@pytest.mark.parametrize("max_payload", [128, 256, 512])
@pytest.mark.parametrize("data_width", [64, 128])
def test_blocks_fill_the_ring_and_wait_for_the_host(data_width: int, max_payload: int) -> None:
    ring, total = 2, 5
    setup = Setup(data_width, ring, max_payload, 0.1)
    setup.source.end = total * wire.BLOCK_WORDS
    host = setup.host
    block_dwords = wire.BLOCK_BYTES // 4
    for block in range(total):
        delivered = min(block + ring, total)
        setup.world.run_until(
            lambda delivered=delivered: len(host.order) == delivered * block_dwords
        )
        for _ in range(3000 if block == 0 else 100):
            setup.world.step()
        assert len(host.order) == delivered * block_dwords  # none on top of one not yet taken
        start = BASE + block % ring * wire.BLOCK_BYTES
        words = [
            host.dwords[start + 8 * i] | host.dwords[start + 8 * i + 4] << 32
            for i in range(wire.BLOCK_WORDS)
        ]
        first = block * wire.BLOCK_WORDS
        assert words == [i | 0xA5 << 56 for i in range(first, first + wire.BLOCK_WORDS)]
        setup.write("ring_tail", block + 1)
    places = [BASE + 4 * (i % (ring * block_dwords)) for i in range(total * block_dwords)]
    assert host.order == places
    assert host.headers == {(max_payload // 4, 0x010000FF)}


def test_a_ring_that_is_set_up_again_counts_from_0() -> None:
    """Blocks of before are not counted, nor the part of one that had gone to the old ring."""
    block_dwords = wire.BLOCK_BYTES // 4
    setup = Setup(64, 2, 128, 0.0)
    host, source = setup.host, setup.source
    source.end = 2 * wire.BLOCK_WORDS
    setup.world.run_until(lambda: len(host.order) > block_dwords)
    host.watching = False
    setup.write("writer_enable", 0)
    setup.world.run_until(lambda: source.word == source.end)
    for _ in range(100):
        setup.world.step()
    assert block_dwords < len(host.order) < 2 * block_dwords
    setup.set_up_ring(2)
    host.order.clear()
    host.watching = True
    source.end += wire.BLOCK_WORDS
    setup.world.run_until(lambda: len(host.order) == block_dwords)
    assert host.order == list(range(BASE, BASE + wire.BLOCK_BYTES, 4))


def test_no_ring_no_blocks() -> None:
    setup = Setup(64, 0, 128, 0.0)
    setup.source.end = 2 * wire.BLOCK_WORDS
    for _ in range(4000):
        setup.world.step()
    assert setup.source.word == 0
    assert setup.host.order == []


def test_what_the_gate_drops_does_not_reach_the_ring() -> None:
    setup = Setup(64, 2, 128, 0.0)
    setup.write("gate_control", 0)
    setup.source.end = 3 * wire.BLOCK_WORDS
    setup.world.run_until(lambda: setup.source.word == setup.source.end)
    for _ in range(500):
        setup.world.step()
    assert setup.host.order == []
