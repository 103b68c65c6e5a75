# SPDX-License-Identifier: BSD-2-Clause
"""Runs in cocotb: cocotbext-pcie's root complex enumerates the endpoint and uses it.

Link, flow control, enumeration and the host's view of completions are cocotbext-pcie's; here are
only the pins of the PHY. cocotb needs a simulator for its time: Icarus Verilog, with an empty
module, because with what Migen writes Icarus 11 never gets past time 0. The design is the one that
Verilator compiled. `test_pcie_root_complex.py` starts this.
"""

import os
import random
from collections import deque
from unittest.mock import patch

import cocotb
import numpy as np
from capture import decode
from cocotb.queue import Queue
from cocotb.triggers import Timer
from cocotbext.pcie.core import Device, Endpoint, RootComplex
from cocotbext.pcie.core.port import SimPort
from cocotbext.pcie.core.tlp import Tlp, TlpType
from cocotbext.pcie.core.utils import PcieId
from pcie_bench import Receiver, Sender, World
from pcie_host import BAR_BYTES, REGION_BYTES, built

from ptat_parser import wire

DATA_WIDTH = int(os.environ["PTAT_DATA_WIDTH"])
BAR_64 = bool(int(os.environ["PTAT_BAR_64"]))
PERIOD_NS = 8
MAX_PAYLOAD = 128
# Headers and payload (16 bytes) of posted, non-posted, completion: few, so that they run out.
CREDITS = [3, 8, 2, 2, 0, 0]
BLOCKS = 2
TRACE_MASK = (1 << wire.ACCESS_ADDRESS_BITS + 3) - 1

CONFIGURATION = (TlpType.CFG_READ_0, TlpType.CFG_WRITE_0)
WRITES = (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64)


class Card(Endpoint):
    """A function whose packets, but for configuration, are the design's."""

    def __init__(self) -> None:
        super().__init__()
        self.vendor_id, self.device_id = 0x1172, 0x5054
        self.configure_bar(0, BAR_BYTES, ext=BAR_64, prefetch=BAR_64)
        self.received: deque[Tlp] = deque()
        self.accesses: list[tuple[int, int]] = []  # (write, address) of each access to the region
        self.log_accesses = False

    async def handle_tlp(self, tlp: Tlp) -> None:
        if tlp.fmt_type in CONFIGURATION:
            await super().handle_tlp(tlp)
        else:
            self.received.append(tlp)  # its credits are given back when the design has taken it

    def taken(self, tlp: Tlp) -> None:
        """The design has taken a packet."""
        tlp.release_fc()
        place = tlp.address % BAR_BYTES
        if not self.log_accesses or place >= REGION_BYTES or tlp.length > 16 or tlp.ep:
            return
        first = tlp.address & TRACE_MASK
        if tlp.fmt_type in WRITES:
            end = first + 4 * tlp.length
            self.accesses += [(1, qword) for qword in range(first & ~7, end, 8)]
        else:
            self.accesses.append((0, first & ~7))


class Design:
    """The compiled endpoint, a clock of which takes 8 ns of the simulation's time."""

    def __init__(self, card: Card, chance: random.Random) -> None:
        self.card = card
        stepper, self.registers = built(DATA_WIDTH)
        self.sender = Sender(DATA_WIDTH, "rx", chance, 0.2)
        self.receiver = Receiver(DATA_WIDTH, "tx", chance, 0.2)
        self.world = World(stepper, self.sender, self.receiver)
        self.pins = stepper.pins
        self.pins |= {"link_up": 1, "msi_ready": 1, "max_payload": MAX_PAYLOAD}
        self.outgoing: Queue[Tlp] = Queue(maxsize=1)
        self.most_waiting = 0

    async def run(self) -> None:
        """Clock after clock, with the packets that the link brings and takes."""
        under_way: Tlp | None = None
        while True:
            await Timer(PERIOD_NS, "ns")
            self.pins["id"] = int(self.card.pcie_id)
            self.pins["bus_master"] = int(self.card.bus_master_enable)
            received = self.card.received
            self.most_waiting = max(self.most_waiting, len(received))
            if under_way is None and received:
                under_way = received.popleft()
                self.sender.send(dwords_of(under_way.pack()))
            # A packet that has no credits yet stops those behind it.
            self.receiver.pause = 1.0 if self.outgoing.full() else 0.2
            self.world.step()
            if under_way is not None and not self.sender.words:
                self.card.taken(under_way)
                under_way = None
            while self.receiver.packets:
                dwords = self.receiver.packets.popleft()
                packed = b"".join(dword.to_bytes(4, "big") for dword in dwords)
                await self.outgoing.put(Tlp.unpack(packed))

    async def send(self) -> None:
        """Packets to the root complex, which checks them."""
        while True:
            tlp = await self.outgoing.get()
            assert tlp.check()
            await self.card.upstream_send(tlp)


def dwords_of(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[i : i + 4], "big") for i in range(0, len(packed), 4)]


class Bus:
    """The root complex, the card, and what a driver does with its BAR."""

    def __init__(self) -> None:
        self.chance = random.Random(DATA_WIDTH)
        self.rc = RootComplex()
        self.rc.max_payload_size = 0  # 128 bytes
        self.card = Card()
        self.design = Design(self.card, self.chance)
        self.registers = self.design.registers
        # A device makes its port itself, with more credits than would ever run out.
        with patch("cocotbext.pcie.core.device.SimPort", lambda fc_init: SimPort([CREDITS] * 8)):
            self.device = Device(self.card)
        self.rc.make_port().connect(self.device)

    async def start(self) -> None:
        cocotb.start_soon(self.design.run())
        cocotb.start_soon(self.design.send())
        await self.rc.enumerate()
        device = self.rc.find_device(self.card.pcie_id)
        await device.enable_device()
        await device.set_master()
        self.bar = device.bar_window[0]

    async def write_register(self, name: str, value: int) -> None:
        for address, word in self.registers.writes(name, value):
            await self.bar.write_dword(REGION_BYTES + 4 * address, word)

    async def read_register(self, name: str) -> int:
        value = 0
        for address in self.registers.addresses(name):
            value = value << 32 | await self.bar.read_dword(REGION_BYTES + 4 * address)
        return value

    async def set_up_ring(self):
        """Memory of the root complex as a ring."""
        region = self.rc.mem_pool.alloc_region(BLOCKS * wire.BLOCK_BYTES)
        address = region.get_absolute_address(0)
        for i in range(BLOCKS):
            place = address + i * wire.BLOCK_BYTES
            await self.write_register(
                "link_writer_table_value", place & 0xFFFF_FFFF | wire.BLOCK_BYTES << 32 | 1 << 57
            )
            await self.write_register("link_writer_table_we", place >> 32)
        await self.write_register("link_writer_table_loop_prog_n", 1)
        await self.write_register("link_ring_blocks", BLOCKS)
        await self.write_register("link_writer_enable", 1)
        return region

    async def start_recording(self) -> None:
        self.trace_base = self.bar.get_absolute_address(0) & TRACE_MASK
        await self.write_register("snooper_filter_window0_first", self.trace_base >> 16)
        last = self.trace_base + REGION_BYTES - 1 >> 16
        await self.write_register("snooper_filter_window0_last", last)
        await self.write_register("snooper_filter_window0_control", 0b011)
        await self.write_register("link_gate_control", 1)
        await self.write_register("snooper_control", 1)
        while not await self.read_register("snooper_status") & 1:
            pass
        await Timer(20 * PERIOD_NS, "ns")
        self.card.log_accesses = True

    def span(self) -> tuple[int, int]:
        """Any bytes of at most 16 dwords."""
        start = self.chance.randrange(1024)
        size = self.chance.choice([1, 2, 4, 8, 8, 8, 8, self.chance.randint(1, 61)])
        return start, min(size, 1024 - start)


async def worker(bus: Bus, contents: bytearray, first: int, count: int) -> None:
    """Reads and writes of a part of the region that nobody else uses, each checked."""
    for _ in range(count):
        start, size = bus.span()
        start += first
        if bus.chance.random() < 0.4:
            data = bus.chance.randbytes(size)
            contents[start : start + size] = data
            await bus.bar.write(start, data)
        else:
            assert await bus.bar.read(start, size) == contents[start : start + size]


@cocotb.test()
async def a_host_uses_the_endpoint(_dut: object) -> None:
    bus = Bus()
    await bus.start()
    ring = await bus.set_up_ring()
    await bus.start_recording()
    contents = bytearray(REGION_BYTES)

    # Several at once, so that credits run out.
    workers = [
        cocotb.start_soon(worker(bus, contents, first, 60)) for first in range(0, 8192, 1024)
    ]
    for task in workers:
        await task
    assert bus.design.most_waiting > 1

    # Refused requests report an error to the host; a damaged write changes nothing.
    for read in (bus.bar.read(0, 128), bus.bar.read(REGION_BYTES, 12)):
        try:
            await read
        except Exception as error:
            assert "Unsuccessful completion" in str(error)
        else:
            raise AssertionError("a read that is refused was answered")
    poisoned = Tlp()
    poisoned.fmt_type = TlpType.MEM_WRITE_64 if BAR_64 else TlpType.MEM_WRITE
    poisoned.requester_id = PcieId(0, 0, 0)
    poisoned.set_addr_be_data(bus.bar.get_absolute_address(0), b"\xff" * 8)
    poisoned.ep = True
    await bus.rc.send(poisoned)
    assert await bus.bar.read(0, 8) == contents[:8]

    # The trace, from the memory that the root complex gave.
    await bus.write_register("snooper_control", 0)
    while await bus.read_register("snooper_status"):
        pass
    blocks = await bus.read_register("snooper_packer_blocks")
    while await bus.read_register("link_ring_head") != blocks:
        pass
    words = np.frombuffer(await ring.read(0, blocks * wire.BLOCK_BYTES), "<u8")
    found = decode(words)
    recorded = list(zip(found.write.astype(int).tolist(), found.address.tolist(), strict=True))
    assert recorded == bus.card.accesses
    assert len(recorded) > 400
    assert found.lost == []
