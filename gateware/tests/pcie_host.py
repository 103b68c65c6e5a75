# SPDX-License-Identifier: BSD-2-Clause
"""A machine with the endpoint in it: a root port's packets, host memory, and a driver's habits."""

import functools
import random
from typing import Any

import numpy as np
from capture import Capture, decode
from litex.gen import LiteXModule
from litex.soc.interconnect import wishbone
from pcie_bench import Receiver, Sender, Stepper, World, wide
from pcie_model import MRD64, MWR32, MWR64, SC, Completion, Tlp, decoded
from verilated import Registers

from ptat_gateware.pcie.endpoint import WINDOW_BYTES, PCIeEndpoint
from ptat_gateware.pcie.memory import BlockRAMPort
from ptat_gateware.targets.bare_pcie import PHYEnds
from ptat_parser import wire

BAR_BYTES = 2 * WINDOW_BYTES
REGION_BYTES = BAR_BYTES - WINDOW_BYTES
BASE = 0x40_0000_0000
WINDOW = BASE + REGION_BYTES
COMPLETER = 0x0500
RING = 0x1_2340_0000  # above 4 GiB
LOW_RING = 0x2340_0000  # below


class Top(LiteXModule):
    """The endpoint with block RAM, its registers on its own bus."""

    def __init__(self, data_width: int) -> None:
        self.phy = phy = PHYEnds(data_width)
        self.ram = BlockRAMPort(BAR_BYTES)
        self.endpoint = endpoint = PCIeEndpoint(
            phy, phy.link_up, phy.bus_master, self.ram.port, BAR_BYTES, queue_depth=32
        )
        self.registers = Registers(endpoint)
        self.bridge = wishbone.Wishbone2CSR(endpoint.bus, self.registers.bus)
        mailbox = endpoint.link.mailbox
        self.inputs = {
            "rx_valid": phy.source.valid,
            **wide("rx_dat", phy.source.dat),
            "rx_be": phy.source.be,
            "rx_last": phy.source.last,
            "tx_ready": phy.sink.ready,
            "msi_ready": phy.msi.ready,
            "id": phy.id,
            "max_payload": phy.max_payload_size,
            "link_up": phy.link_up,
            "bus_master": phy.bus_master,
            "request_ready": mailbox.requests.ready,
            "answer_valid": mailbox.responses.valid,
            "answer_last": mailbox.responses.last,
            "answer_data": mailbox.responses.data,
        }
        self.outputs = {
            "rx_ready": phy.source.ready,
            "tx_valid": phy.sink.valid,
            **wide("tx_dat", phy.sink.dat),
            "tx_be": phy.sink.be,
            "tx_last": phy.sink.last,
            "msi_valid": phy.msi.valid,
            "request_valid": mailbox.requests.valid,
            "request_data": mailbox.requests.data,
            "answer_ready": mailbox.responses.ready,
        }


@functools.cache
def built(data_width: int) -> tuple[Stepper, Registers]:
    top = Top(data_width)
    return Stepper(top, top.inputs, top.outputs), top.registers


class Interrupts:
    """Counts MSIs."""

    def __init__(self) -> None:
        self.count = 0

    def drive(self, pins: dict[str, int]) -> None:
        pins["msi_ready"] = 1

    def seen(self, outputs: dict[str, int]) -> None:
        self.count += outputs["msi_valid"]


class Machine:
    """A host with its memory and the endpoint behind a PHY."""

    def __init__(
        self, data_width: int = 64, *, seed: int = 0, pause: float = 0.1, max_payload: int = 128
    ) -> None:
        self.chance = random.Random(seed)
        self.data_width, self.max_payload = data_width, max_payload
        stepper, self.registers = built(data_width)
        self.sender = Sender(data_width, "rx", self.chance, pause)
        self.receiver = Receiver(data_width, "tx", self.chance, pause)
        self.interrupts = Interrupts()
        self.world = World(stepper, self.sender, self.receiver, self.interrupts)
        stepper.pins |= {"id": COMPLETER, "max_payload": max_payload}
        stepper.pins |= {"link_up": 1, "bus_master": 1}
        self.memory: dict[int, int] = {}  # dwords by address
        self.completions: dict[int, Completion] = {}
        self.order: list[int] = []  # tags, as completions came
        self.sent: dict[int, Tlp] = {}
        self.region: dict[int, int] = {}  # qwords, as written
        self.accesses: list[tuple[int, int]] = []  # (write, address) of each access to the region
        self.ring_blocks = 0
        self.ring_base = RING
        self.taken: list[np.ndarray] = []
        self._tag = 0

    # Packets --------------------------------------------------------------------------------------

    def step(self) -> None:
        """A clock; what came is sorted into completions and memory."""
        self.world.step()
        while self.receiver.packets:
            dwords = self.receiver.packets.popleft()
            if dwords[0] >> 24 in (MWR32, MWR64):
                self._store(dwords)
                continue
            completion = decoded(dwords)
            assert completion.completer == COMPLETER
            assert completion.tag in self.sent, "nobody asked for this"
            assert completion.tag not in self.completions
            self.completions[completion.tag] = completion
            self.order.append(completion.tag)

    def _store(self, dwords: list[int]) -> None:
        """A write to host memory, with what section 2.2.7 demands of its address."""
        length = dwords[0] & 0x3FF
        four = dwords[0] >> 24 == MWR64
        assert dwords[1] >> 16 == COMPLETER
        assert dwords[1] & 0xFF == (0xFF if length > 1 else 0x0F)
        address = dwords[2] << 32 | dwords[3] if four else dwords[2]
        assert (address >= 1 << 32) == four
        data = dwords[4 if four else 3 :]
        assert len(data) == length and 4 * length <= self.max_payload
        assert address % 4096 + 4 * length <= 4096
        for i, dword in enumerate(data):
            self.memory[address + 4 * i] = int.from_bytes(dword.to_bytes(4, "big"), "little")

    def poll(self, condition: Any, limit: int = 2000) -> None:
        """Until ``condition``, which reads registers, is true."""
        assert any(condition() for _ in range(limit)), f"not in {limit} looks"

    def run(self, clocks: int) -> None:
        for _ in range(clocks):
            self.step()

    def until(self, condition: Any, limit: int = 50_000) -> None:
        for _ in range(limit):
            if condition():
                return
            self.step()
        raise AssertionError(f"nothing for {limit} clocks")

    def send(self, tlp: Tlp) -> None:
        self.sender.send(tlp.dwords())

    def request(self, address: int, length: int = 2) -> int:
        """Send a read; its tag."""
        self._tag = (self._tag + 1) % 256
        self.completions.pop(self._tag, None)
        tlp = Tlp(MRD64, length, address, 15, 15 if length > 1 else 0, tag=self._tag)
        self.sent[self._tag] = tlp
        self.send(tlp)
        return self._tag

    # Link -----------------------------------------------------------------------------------------

    def link_down(self, clocks: int) -> None:
        """The link goes down and comes back; packets in the PHY are gone, either way."""
        self.world.stepper.pins["link_up"] = 0
        self.sender.clear()
        self.receiver.clear()
        for _ in range(clocks):
            self.world.step()
        self.receiver.clear()
        self.sent.clear()
        self.completions.clear()
        self.world.stepper.pins["link_up"] = 1

    # Region ---------------------------------------------------------------------------------------

    def walk(self, qword: int) -> int:
        """Send a page walk's read; its tag."""
        self.accesses.append((0, BASE + 8 * qword))
        return self.request(BASE + 8 * qword)

    def store(self, qword: int, value: int) -> None:
        """Send an entry's store."""
        self.accesses.append((1, BASE + 8 * qword))
        self.region[qword] = value
        data = (value & 0xFFFF_FFFF, value >> 32)
        self.send(Tlp(MWR64, 2, BASE + 8 * qword, 15, 15, payload=data))

    def answered(self, tag: int) -> bool:
        return tag in self.completions

    def value(self, tag: int) -> int:
        completion = self.completions[tag]
        assert completion.status == SC
        low, high = completion.payload
        return high << 32 | low

    def load(self, qword: int) -> int:
        tag = self.walk(qword)
        self.until(lambda: self.answered(tag))
        return self.value(tag)

    # Registers ------------------------------------------------------------------------------------

    def write(self, name: str, value: int) -> None:
        for address, word in self.registers.writes(name, value):
            self.send(Tlp(MWR64, 1, WINDOW + 4 * address, payload=(word,)))

    def read(self, name: str) -> int:
        value = 0
        for address in self.registers.addresses(name):
            tag = self.request(WINDOW + 4 * address, 1)
            self.until(lambda tag=tag: self.answered(tag))
            completion = self.completions[tag]
            assert completion.status == SC
            value = value << 32 | completion.payload[0]
        return value

    # A driver's habits ----------------------------------------------------------------------------

    def set_up_ring(self, blocks: int, base: int = RING) -> None:
        """A ring of blocks, each with its own descriptor."""
        self.ring_blocks, self.ring_base = blocks, base
        self.write("link_writer_enable", 0)
        self.write("link_writer_table_reset", 1)
        self.write("link_writer_table_loop_prog_n", 0)
        for i in range(blocks):
            address = base + i * wire.BLOCK_BYTES
            no_last = 1 << 57
            self.write(
                "link_writer_table_value",
                address & 0xFFFF_FFFF | wire.BLOCK_BYTES << 32 | no_last,
            )
            self.write("link_writer_table_we", address >> 32)
        self.write("link_writer_table_loop_prog_n", 1)
        self.write("link_ring_tail", 0)
        self.write("link_ring_blocks", blocks)
        self.write("link_writer_enable", 1)
        self.taken = []

    def start(self, patience: int = 0, flush_timeout: int = 0) -> None:
        """Start a recording of the whole region."""
        first, last = BASE >> 16, (BASE + REGION_BYTES - 1) >> 16
        self.write("snooper_filter_window0_first", first)
        self.write("snooper_filter_window0_last", last)
        self.write("snooper_filter_window0_control", 0b011)
        self.write("snooper_packer_flush_timeout", flush_timeout)
        self.write("snooper_decoder_patience", patience)
        self.write("link_gate_control", 0)
        self.quiesce()
        self.write("link_gate_control", 1)
        self.poll(lambda: self.read("link_gate_status") & 1)
        self.write("snooper_control", 1)
        assert self.read("snooper_status") & 1
        self.run(20)

    def quiesce(self) -> None:
        """Wait until nothing of a recording is left in front of the link."""

        def quiet() -> bool:
            # In this order: the packer may still end a block while it is not idle.
            done = not self.read("snooper_status") and (
                self.read("link_gate_blocks") == self.read("snooper_packer_blocks")
            )
            if not done:
                self.collect()
            return done

        self.poll(quiet)

    def collect(self) -> int:
        """Take the blocks that have come out of the ring, by their check words; how many."""
        count = 0
        while (block := self._block(len(self.taken))) is not None:
            self.taken.append(block)
            count += 1
        if count:
            self.write("link_ring_tail", len(self.taken))
        return count

    def _block(self, number: int) -> np.ndarray | None:
        """Block ``number`` of the ring, if all of it is in memory: then it is removed."""
        start = self.ring_base + number % self.ring_blocks * wire.BLOCK_BYTES
        places = range(start, start + wire.BLOCK_BYTES, 4)
        if places[-1] not in self.memory:
            return None
        dwords = [self.memory.pop(place) for place in places]
        return np.array(dwords, "<u4").view("<u8")

    def stop(self) -> None:
        """End the recording, and let the tail of the stream come."""
        self.write("snooper_control", 0)
        self.quiesce()
        self.write("link_gate_control", 0b11)

        def drained() -> bool:
            done = self.read("link_gate_status") & 2
            self.collect()
            return bool(done)

        self.poll(drained)

    def capture(self) -> Capture:
        return decode(np.concatenate(self.taken).astype(np.uint64))

    def counters(self) -> dict[str, int]:
        self.write("snooper_control", 4)
        self.run(100)
        names = ("accesses", "matched", "packer_emitted", "packer_lost")
        return {name: self.read(f"snooper_{name}") for name in names}

    def count(self, select: int) -> int:
        """One of the decoder's counts."""
        self.write("snooper_decoder_count_select", select)
        self.poll(lambda: self.read("snooper_decoder_count") >> 28 == select)
        return self.read("snooper_decoder_count") & (1 << 28) - 1
