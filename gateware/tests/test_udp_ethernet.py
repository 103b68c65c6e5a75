# SPDX-License-Identifier: BSD-2-Clause
"""The UDP link behind LiteEth, from the bytes of Ethernet frames: what LiteEth's users rely on."""

from __future__ import annotations

import functools
import random
import struct
import zlib
from collections import deque

import numpy as np
import pytest
from liteeth.common import eth_phy_description
from liteeth.core import LiteEthUDPIPCore
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from verilated import Bench, Clocked, Registers, needs_verilator

from ptat_gateware.link.store import BlockRAMPorts, ChunkStore
from ptat_gateware.link.udp import UDPLink
from ptat_host import protocol
from ptat_host.protocol import Command, Frame
from ptat_host.protocol import encode_acknowledgement as acknowledgement
from ptat_parser import wire

pytestmark = needs_verilator

SYS, ETH = 1, 6
CLOCKS_MAX = 60_000
BOARD_MAC, HOST_MAC = 0x02_00_00_00_00_02, 0x02_00_00_00_00_01
BOARD_IP, HOST_IP = 0x0A000002, 0x0A000001
HOST_PORT, HOST = 40_000, 0xC0FFEE
PREAMBLE = b"\x55" * 7 + b"\xd5"
GAP = 12
ETHERNET_MIN = 60
HEADERS = len(PREAMBLE) + 14 + 20 + 8  # bytes in front of a datagram's


class Phy(LiteXModule):
    dw = 8

    def __init__(self) -> None:
        self.sink = stream.Endpoint(eth_phy_description(8))
        self.source = stream.Endpoint(eth_phy_description(8))


class Top(LiteXModule):
    def __init__(self) -> None:
        self.phy = phy = Phy()
        self.core = LiteEthUDPIPCore(
            phy, BOARD_MAC, BOARD_IP, 1e6, dw=32, with_icmp=False, with_sys_datapath=True
        )
        self.ports = ports = BlockRAMPorts(32)
        self.link = link = UDPLink(ChunkStore(ports.write, ports.read, 32), 1.0, 9000, 2000)
        port = self.core.udp.crossbar.get_port(protocol.UDP_PORT, dw=32)
        self.comb += [
            link.source.connect(port.sink),
            port.source.connect(link.datagrams),
            phy.sink.ready.eq(1),
        ]
        self.registers = Registers(link)
        bus = self.registers.bus
        self.inputs = {
            "adr": bus.adr,
            "we": bus.we,
            "re": bus.re,
            "dat_w": bus.dat_w,
            "offer": link.sink.valid,
            "word": link.sink.data,
            "rx_valid": phy.source.valid,
            "rx_data": phy.source.data,
            "rx_last": phy.source.last,
        }
        self.outputs = {
            "dat_r": bus.dat_r,
            "taken": link.sink.ready,
            "tx_valid": phy.sink.valid,
            "tx_data": phy.sink.data,
            "tx_last": phy.sink.last,
        }


@functools.cache
def build() -> tuple[Top, Bench]:
    top = Top()
    return top, Bench(top, top.inputs, top.outputs, ("sys", "eth_tx", "eth_rx"))


def ethernet(kind: int, payload: bytes) -> bytes:
    """A frame to the board, from its preamble to its checksum."""
    head = BOARD_MAC.to_bytes(6, "big") + HOST_MAC.to_bytes(6, "big") + struct.pack(">H", kind)
    frame = (head + payload).ljust(ETHERNET_MIN, b"\0")
    return PREAMBLE + frame + struct.pack("<I", zlib.crc32(frame))


def datagram(data: bytes) -> bytes:
    """An Ethernet frame with a UDP datagram for the board."""
    udp = struct.pack(">HHHH", HOST_PORT, protocol.UDP_PORT, 8 + len(data), 0) + data
    head = struct.pack(
        ">BBHHHBBHII", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0, HOST_IP, BOARD_IP
    )
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return ethernet(0x800, head[:10] + struct.pack(">H", total ^ 0xFFFF) + head[12:] + udp)


class World(Clocked):
    """The board on a cable, and a host at its other end."""

    def __init__(self) -> None:
        self.top, self.bench = build()
        self.bench.reset()
        self.words: deque[int] = deque()
        self.to_board: deque[tuple[int, int]] = deque()  # byte and whether it is the last; gaps
        self.from_board = bytearray()
        self.datagrams: list[bytes] = []
        self.now = 0
        self.edges = np.zeros(1, np.uint8)

    def step(self, **bus: int) -> int:
        """A clock of `sys` at 100 MHz, and those of 125 MHz that come with it."""
        offer = bool(self.words)
        pins = {"offer": 1, "word": self.words[0]} if offer else {}
        for extra in range(2 if self.now % 4 == 0 else 1):
            rx = {}
            if self.to_board:
                byte, last = self.to_board.popleft()
                rx = {"rx_valid": 1, "rx_data": byte, "rx_last": last} if byte >= 0 else {}
            self.edges[0] = ETH if extra else ETH | SYS
            seen_now = self.bench.run(self.edges, **({} if extra else pins | bus), **rx)
            if not extra:
                seen = {name: int(column[0]) for name, column in seen_now.items()}
            self._transmitted(
                *(int(seen_now[name][0]) for name in ("tx_valid", "tx_data", "tx_last"))
            )
        if offer and seen["taken"]:
            self.words.popleft()
        self.now += 1
        assert self.now < CLOCKS_MAX, "it hangs"
        return seen["dat_r"]

    def _transmitted(self, valid: int, data: int, last: int) -> None:
        assert valid or not self.from_board, "a pause within a frame"
        if valid:
            self.from_board.append(data)
        if valid and last:
            self._frame(bytes(self.from_board))
            self.from_board.clear()

    def _frame(self, frame: bytes) -> None:
        assert frame.startswith(PREAMBLE)
        body, check = frame[8:-4], frame[-4:]
        assert len(body) >= ETHERNET_MIN, "a runt reaches nobody"
        assert struct.pack("<I", zlib.crc32(body)) == check
        (kind,) = struct.unpack_from(">H", body, 12)
        if kind == 0x806:  # who has?
            answer = struct.pack(">HHBBH", 1, 0x800, 6, 4, 2) + HOST_MAC.to_bytes(6, "big")
            answer += struct.pack(">I", HOST_IP) + BOARD_MAC.to_bytes(6, "big")
            self.send(ethernet(0x806, answer + struct.pack(">I", BOARD_IP)))
            return
        assert kind == 0x800
        assert struct.unpack_from(">II", body, 26) == (BOARD_IP, HOST_IP)
        source, destination, length = struct.unpack_from(">HHH", body, 34)
        assert (source, destination) == (protocol.UDP_PORT, HOST_PORT)
        self.datagrams.append(body[42 : 34 + length])

    def send(self, frame: bytes) -> None:
        self.to_board.extend((byte, i == len(frame) - 1) for i, byte in enumerate(frame))
        self.to_board.extend([(-1, 0)] * GAP)

    def start(self) -> None:
        frame = Frame(Command.START, 3, b"", HOST).encode()
        self.send(datagram(frame))
        got = b""
        while len(got) < len(frame):
            while not self.read("mailbox_status") & 1:
                pass
            got += struct.pack("<I", self.read("mailbox_request"))
        assert got == frame
        self.write("gate_control", 1)
        for (word,) in struct.iter_unpack("<I", frame):
            self.write("mailbox_response", word)
        self.write("mailbox_control", 1)
        while frame not in self.datagrams:
            self.step()
        self.datagrams.clear()

    def feed(self, blocks: int) -> bytes:
        rng = np.random.default_rng(blocks)
        words = rng.integers(0, 1 << 63, blocks * wire.BLOCK_WORDS).astype("<u8")
        self.words.extend(words.tolist())
        return words.tobytes()


def payloads(datagrams: list[bytes]) -> dict[int, bytes]:
    result = {}
    for data in datagrams:
        magic, seq, _, _, _, host = protocol.DATA_HEADER.unpack_from(data)
        assert (magic, host) == (protocol.DATA_MAGIC, HOST)
        result[seq] = data[protocol.DATA_HEADER.size :]
    return result


def test_a_stream_over_ethernet() -> None:
    world = World()
    world.start()
    stream_ = world.feed(6)
    chunks: dict[int, bytes] = {}
    count = len(stream_) // protocol.CHUNK_BYTES
    while len(chunks) < count:
        for _ in range(700):
            world.step()
        chunks |= payloads(world.datagrams)
        world.datagrams.clear()
        next_ = next(seq for seq in range(count + 1) if seq not in chunks)
        world.send(datagram(acknowledgement(HOST, next_, 64, [])))
    assert b"".join(chunks[seq] for seq in range(count)) == stream_
    for _ in range(500):
        world.step()
    assert world.read("level") == 0
    world.write("gate_control", 3)
    for _ in range(3):  # the end is said again to a host that goes on asking
        while not world.datagrams:
            world.step()
        assert payloads(world.datagrams) == {count: b""}
        world.datagrams.clear()
        world.send(datagram(acknowledgement(HOST, count, 64, [])))


@pytest.mark.parametrize("ranges", range(5))
def test_a_damaged_acknowledgement_is_none(ranges: int) -> None:
    """LiteEth looks at no checksum of UDP's, and passes on what Ethernet's says is damaged."""
    world = World()
    world.start()
    world.feed(3)
    for _ in range(4000):
        world.step()
    assert world.read("level") == 24
    chance = random.Random(ranges)
    for _ in range(10):
        frame = bytearray(datagram(acknowledgement(HOST, 3, 64, [(1, 1)] * ranges)))
        frame[chance.randrange(HEADERS, len(frame) - 4)] ^= 1 << chance.randrange(8)
        world.send(bytes(frame))
        while world.to_board:
            world.step()
        for _ in range(50):
            world.step()
        assert world.read("level") == 24
    world.send(datagram(acknowledgement(HOST, 3, 64, [(1, 1)] * ranges)))
    for _ in range(300):
        world.step()
    assert world.read("level") == 21
