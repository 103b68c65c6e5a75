# SPDX-License-Identifier: BSD-2-Clause
"""The stream over UDP through a network that loses, repeats and swaps datagrams, both ways."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
import struct
import zlib
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from litex.gen import LiteXModule
from verilated import Bench, Clocked, Registers, needs_verilator

from ptat_gateware.link import store, udp
from ptat_gateware.link.store import BlockRAMPorts, ChunkStore
from ptat_gateware.link.udp import UDPLink
from ptat_host import protocol
from ptat_host.protocol import Command, Frame
from ptat_host.protocol import encode_acknowledgement as acknowledgement
from ptat_parser import wire

pytestmark = needs_verilator

REPEAT_CLOCKS, MISSING_CLOCKS = 6000, 1500
CLOCKS_MAX = 300_000
CHUNKS_PER_BLOCK = wire.BLOCK_BYTES // protocol.CHUNK_BYTES
BOARD = (0x0A000002, protocol.UDP_PORT)
HOST = (0x0A000001, 40_000)
OTHER = (0x0A000009, 50_000)
ETHERNET_MIN = 20  # bytes of a datagram with padding in words: 60 less headers of 42, rounded up


class Top(LiteXModule):
    """The link over block RAM, with its pins."""

    def __init__(self, chunks: int) -> None:
        self.ports = ports = BlockRAMPorts(chunks)
        self.link = link = UDPLink(
            ChunkStore(ports.write, ports.read, chunks), 1.0, REPEAT_CLOCKS, MISSING_CLOCKS
        )
        self.registers = Registers(link)
        bus, rx, tx = self.registers.bus, link.datagrams, link.source
        self.inputs = {
            "adr": bus.adr,
            "we": bus.we,
            "re": bus.re,
            "dat_w": bus.dat_w,
            "offer": link.sink.valid,
            "word": link.sink.data,
            "rx_valid": rx.valid,
            "rx_data": rx.data,
            "rx_last": rx.last,
            "rx_length": rx.length,
            "rx_ip": rx.ip_address,
            "rx_port": rx.src_port,
            "tx_ready": tx.ready,
        }
        self.outputs = {
            "dat_r": bus.dat_r,
            "taken": link.sink.ready,
            "rx_ready": rx.ready,
            "tx_valid": tx.valid,
            "tx_data": tx.data,
            "tx_last": tx.last,
            "tx_last_be": tx.last_be,
            "tx_length": tx.length,
            "tx_ip": tx.ip_address,
            "tx_port": tx.dst_port,
            "tx_from": tx.src_port,
        }


@functools.cache
def build(chunks: int) -> tuple[Top, Bench]:
    top = Top(chunks)
    return top, Bench(top, top.inputs, top.outputs)


class Network:
    """Datagrams on their way: late, in another order, and but for commands lost or twice."""

    def __init__(self, chance: random.Random, lose: float, twice: float, swap: float) -> None:
        self.chance, self.lose, self.twice, self.swap = chance, lose, twice, swap
        self.under_way: list[tuple[int, int, tuple[int, int], bytes]] = []
        self.lost = 0
        self.number = itertools.count()

    def send(self, now: int, where: tuple[int, int], data: bytes) -> None:
        is_frame = data.startswith(struct.pack("<I", protocol.MAGIC))
        if not is_frame and self.chance.random() < self.lose:
            self.lost += 1
            return
        for _ in range(2 if not is_frame and self.chance.random() < self.twice else 1):
            late = self.chance.randrange(3000) if self.chance.random() < self.swap else 0
            heapq.heappush(self.under_way, (now + 200 + late, next(self.number), where, data))

    def arrived(self, now: int) -> Iterator[tuple[tuple[int, int], bytes]]:
        while self.under_way and self.under_way[0][0] <= now:
            _, _, where, data = heapq.heappop(self.under_way)
            yield where, data


class Host:
    """What docs/protocol.md asks of the host: keeps what comes, acknowledges."""

    def __init__(self, number: int, room: int, pace: int) -> None:
        self.number, self.room, self.pace = number, room, pace
        self.chunks: dict[int, bytes] = {}
        self.next = 0
        self.total: int | None = None
        self.foreign: list[bytes] = []
        self.due, self.since_ack = 0, 0
        self.limit = udp.BURST_CHUNKS

    def take(self, data: bytes) -> None:
        magic, seq, channel, flags, zero, host = protocol.DATA_HEADER.unpack_from(data)
        payload = data[protocol.DATA_HEADER.size :]
        if magic != protocol.DATA_MAGIC or host != self.number:
            self.foreign.append(data)
            return
        assert (channel, zero) == (0, 0)
        if flags & protocol.DATA_LAST:
            self.total = seq + bool(payload)
        if not payload:
            assert flags & protocol.DATA_LAST
            return
        assert len(payload) == protocol.CHUNK_BYTES
        assert seq < self.limit  # the window is heeded
        assert self.chunks.setdefault(seq, payload) == payload
        while self.next in self.chunks:
            self.next += 1
        self.since_ack += 1

    def acknowledgement(self, now: int) -> bytes | None:
        if now < self.due and self.since_ack < 16:
            return None
        self.due, self.since_ack = now + self.pace, 0
        self.limit = max(self.limit, self.next + self.room)
        ranges: list[tuple[int, int]] = []
        for seq in range(self.next, max(self.chunks, default=-1)):
            if seq not in self.chunks:
                if ranges and sum(ranges[-1]) == seq:
                    ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
                else:
                    ranges.append((seq, 1))
        del ranges[protocol.ACK_RANGES_MAX :]
        return acknowledgement(self.number, self.next, self.room, ranges)

    @property
    def stream(self) -> bytes:
        return b"".join(self.chunks[seq] for seq in range(self.next))


class World(Clocked):
    """The link, clock by clock, between its buffer, its firmware and a network."""

    def __init__(
        self,
        seed: int,
        chunks: int = 32,
        lose: float = 0.0,
        twice: float = 0.0,
        swap: float = 0.0,
        supply: float = 1.0,
        ready: float = 1.0,
    ) -> None:
        self.top, self.bench = build(chunks)
        self.bench.reset()
        self.chance = random.Random(seed)
        self.supply, self.ready = supply, ready
        self.up = Network(self.chance, lose, twice, swap)
        self.down = Network(self.chance, lose, twice, swap)
        self.hosts: dict[tuple[int, int], Host] = {}
        self.answers: list[tuple[tuple[int, int], bytes]] = []
        self.words: deque[int] = deque()
        self.now = 0
        self._in: deque[tuple[int, int, int, int, int]] = deque()
        self._out = bytearray()
        self._clock = np.ones(1, np.uint8)
        self.sent_blocks = 0

    def step(self, **bus: int) -> int:
        """A clock; what the CSR bus reads."""
        pins = dict(bus)
        if self.words and self.chance.random() < self.supply:
            pins |= {"offer": 1, "word": self.words[0]}
        if self._in:
            data, last, length, ip, port = self._in[0]
            pins |= {"rx_valid": 1, "rx_data": data, "rx_last": last}
            pins |= {"rx_length": length, "rx_ip": ip, "rx_port": port}
        pins["tx_ready"] = self.chance.random() < self.ready
        seen = {k: int(v[0]) for k, v in self.bench.run(self._clock, **pins).items()}
        if "offer" in pins and seen["taken"]:
            self.words.popleft()
        if self._in:
            assert seen["rx_ready"]  # or others of LiteEth's users would wait
            self._in.popleft()
        if pins["tx_ready"] and self._out:
            assert seen["tx_valid"]  # no pause within a datagram
        if seen["tx_valid"] and pins["tx_ready"]:
            self._out += struct.pack("<I", seen["tx_data"])
            assert seen["tx_from"] == protocol.UDP_PORT
            if seen["tx_last"]:
                assert seen["tx_last_be"] == 8
                # A short datagram is followed by Ethernet's padding: its frame has 60 bytes.
                padding = len(self._out) - seen["tx_length"]
                assert padding == 0 or (padding == 4 and len(self._out) == ETHERNET_MIN)
                assert len(self._out) >= ETHERNET_MIN
                data = bytes(self._out[: seen["tx_length"]])
                self.up.send(self.now, (seen["tx_ip"], seen["tx_port"]), data)
                self._out.clear()
        self._network()
        self.now += 1
        assert self.now < CLOCKS_MAX, "it hangs"
        return seen["dat_r"]

    def _network(self) -> None:
        for where, data in self.up.arrived(self.now):
            if data.startswith(struct.pack("<I", protocol.MAGIC)):
                self.answers.append((where, data))
            else:
                self.hosts[where].take(data)
        for where, host in self.hosts.items():
            if message := host.acknowledgement(self.now):
                self.down.send(self.now, where, message)
        for where, data in self.down.arrived(self.now):
            self.receive(where, data)

    def receive(self, where: tuple[int, int], data: bytes) -> None:
        """A datagram reaches the board."""
        padded = data + bytes(-len(data) % 4)
        words = struct.unpack(f"<{len(padded) // 4}I", padded)
        for i, word in enumerate(words):
            last = i == len(words) - 1
            self._in.append((word, int(last), len(data), *where))

    # Firmware ---------------------------------------------------------------------------------

    def request(self) -> bytes:
        """Take a request from the mailbox."""
        data, last = b"", 0
        while not last:
            while not (status := self.read("mailbox_status")) & 1:
                pass
            last = status & 2
            data += struct.pack("<I", self.read("mailbox_request"))
        return data

    def answer(self, data: bytes) -> None:
        for (word,) in struct.iter_unpack("<I", data):
            self.write("mailbox_response", word)
        self.write("mailbox_control", 1)

    def start(self, where: tuple[int, int], host: int) -> None:
        """START comes from a host, and is obeyed."""
        frame = Frame(Command.START, 7, b"", host).encode()
        self.receive(where, frame)
        assert self.request() == frame
        self.write("gate_control", 0)
        while self.read("gate_blocks") != self.sent_blocks:
            pass
        self.write("gate_control", 1)
        while not self.read("gate_status") & 1:
            pass
        self.sent_blocks = 0
        answer = Frame(Command.START, 7, bytes(4), host, response=True).encode()
        self.answer(answer)
        while not self.answers:
            self.step()
        assert self.answers.pop() == (where, answer)

    def feed(self, blocks: int) -> bytes:
        """Put blocks in front of the link; what they are."""
        rng = np.random.default_rng(self.chance.getrandbits(32))
        words = rng.integers(0, 1 << 63, blocks * wire.BLOCK_WORDS).astype("<u8")
        self.words.extend(words.tolist())
        self.sent_blocks += blocks
        return words.tobytes()

    def finish(self, host: Host) -> None:
        """STOP: all that was fed is given to the link, and arrives."""
        while self.read("gate_blocks") != self.sent_blocks:
            pass
        self.write("gate_control", 3)
        while not self.read("gate_status") & 2:
            pass
        while host.total is None or host.next < host.total:
            self.step()


def connect(world: World, room: int = 64, pace: int = 500, host: int = 0xC0FFEE) -> Host:
    host_ = world.hosts[HOST] = Host(host, room, pace)
    world.start(HOST, host)
    return host_


def test_numbers_are_the_protocols() -> None:
    for name in ("UDP_PORT", "DATA_MAGIC", "DATA_LAST", "ACK_MAGIC", "ACK_RANGES_MAX"):
        assert getattr(udp, name) == getattr(protocol, name)
    assert store.CHUNK_BYTES == protocol.CHUNK_BYTES
    assert protocol.DATA_HEADER.size == udp.DATA_HEADER_WORDS * 4
    assert protocol.ACK_HEADER.size == udp.ACK_HEADER_WORDS * 4
    assert udp.FRAME_WORDS * 4 >= protocol.FRAME_BYTES_MAX


@pytest.mark.parametrize(("lose", "twice", "swap"), [(0, 0, 0), (0.05, 0.05, 0.1), (0.3, 0.1, 0.3)])
@pytest.mark.parametrize(("supply", "ready"), [(1.0, 1.0), (0.3, 0.7)])
def test_all_arrives(lose: float, twice: float, swap: float, supply: float, ready: float) -> None:
    world = World(1, lose=lose, twice=twice, swap=swap, supply=supply, ready=ready)
    host = connect(world)
    stream = world.feed(12)
    world.finish(host)
    assert host.stream == stream
    assert host.total == 12 * CHUNKS_PER_BLOCK
    assert not host.foreign
    assert world.up.lost > 0 if lose else world.read("repeated") == 0


@pytest.mark.parametrize("seed", range(4))
def test_chunks_are_whole_and_right_however_often_they_are_asked_for(seed: int) -> None:
    """A small store, and a host that asks for what it has, too: repeats race with new data."""
    world = World(seed, chunks=8, lose=0.05, swap=0.5, ready=0.9)
    host = connect(world, pace=100)
    right: dict[int, bytes] = {}
    stream = world.feed(10)
    for seq in range(len(stream) // 1024):
        right[seq] = stream[seq * 1024 :][:1024]
    host.chunks = _Checked(right)
    plain = host.acknowledgement

    def greedy(now: int) -> bytes | None:
        message = plain(now)
        return message and acknowledgement(host.number, host.next, 64, [(host.next, 3)])

    host.acknowledgement = greedy  # type: ignore[method-assign]
    world.finish(host)
    assert host.stream == stream
    assert world.read("repeated") > 20


class _Checked(dict[int, bytes]):
    """Chunks by number, each of which must be the right one, even if it is no longer needed."""

    def __init__(self, right: dict[int, bytes]) -> None:
        super().__init__()
        self.right = right

    def setdefault(self, seq: int, data: bytes = b"") -> bytes:
        assert self.right[seq] == data
        return super().setdefault(seq, data)


def test_a_host_without_room_stops_the_stream_and_nothing_is_lost() -> None:
    world = World(3, chunks=16)
    host = connect(world, room=16)
    stream = world.feed(16)
    for _ in range(12_000):
        world.step()
    host.room = 0  # its disk is slow
    for _ in range(3000):
        world.step()
    before, held = len(host.chunks), len(world.words)
    assert 16 < before < 64
    for _ in range(40_000):
        world.step()
    assert len(host.chunks) == before
    # The store is full, and the stream waits.
    assert held - len(world.words) <= 16 * store.CHUNK_WORDS
    assert world.read("level") == 16
    assert world.words
    host.room = 64
    world.finish(host)
    assert host.stream == stream


def test_what_is_lost_at_the_tail_is_repeated() -> None:
    """No gap tells the host of it, and its acknowledgements go on."""
    world = World(4)
    host = connect(world)
    stream = world.feed(2)
    plain = host.take
    lost: list[int] = []

    def lossy(data: bytes) -> None:
        seq = int.from_bytes(data[4:8], "little")
        if seq in (14, 15) and lost.count(seq) < 2:
            lost.append(seq)
        elif seq < 16 or host.next == 16:  # the end, too, only once all is there
            plain(data)

    host.take = lossy  # type: ignore[method-assign]
    world.finish(host)
    assert sorted(lost) == [14, 14, 15, 15]
    assert host.stream == stream
    assert host.total == 16


def test_an_empty_stream_has_an_end() -> None:
    world = World(5, lose=0.2)
    host = connect(world)
    world.finish(host)
    assert host.total == 0
    assert not host.chunks


def test_commands_are_answered_to_who_asks_while_the_stream_flows() -> None:
    world = World(6, ready=0.8)
    host = connect(world)
    stream = world.feed(6)
    for i, size in enumerate([0, 4, 1000, 500]):
        asking = OTHER if i % 2 else HOST
        frame = Frame(Command.HEALTH, i, bytes(range(250)) * 4, 99 + i)
        frame = Frame(Command.HEALTH, i, frame.payload[:size], 99 + i)
        world.receive(asking, frame.encode())
        # One that comes before the answer is dropped, as if the network had lost it.
        world.receive(OTHER, Frame(Command.IDENTIFY, 77).encode())
        assert world.request() == frame.encode()
        answer = Frame(Command.HEALTH, i, frame.payload[::-1], 99 + i, response=True).encode()
        world.answer(answer)
        while len(world.answers) <= i:
            world.step()
        assert world.answers[i] == (asking, answer)
    world.finish(host)
    assert host.stream == stream
    assert not world.read("mailbox_status") & 1


def test_what_is_no_frame_leaves_the_mailbox_usable() -> None:
    world = World(7)
    for junk in (b"\0" * 4, b"abcde", bytes(2000), b"PTAC" * 257, b"x" * 1024):
        world.receive(OTHER, junk)
        for _ in range(600):
            world.step()
        if world.read("mailbox_status") & 1:
            assert world.request() == junk  # for the firmware to judge
            world.answer(b"")
    world.step()
    world.step()
    frame = Frame(Command.IDENTIFY, 5).encode()
    world.receive(HOST, frame)
    assert world.request() == frame


def sealed(data: bytes) -> bytes:
    """With the right CRC behind it."""
    return data + protocol.CRC.pack(zlib.crc32(data))


def test_acknowledgements_that_lie_do_no_harm() -> None:
    """Any numbers in them, cut, of another host, or damaged on the way."""
    world = World(8, chunks=16, lose=0.1)
    host = connect(world, pace=2000)
    chance = random.Random(8)
    stream = world.feed(8)
    good = host.number
    while world.words:
        numbers = [0, 1, host.next, host.next + 40, 1 << 31, (1 << 32) - 1]
        some = [(chance.choice(numbers), chance.choice(numbers)) for _ in range(3)]
        kind = chance.randrange(6)
        if kind == 0:  # of another host
            lie = acknowledgement(good ^ 1, host.next + chance.randrange(60), 64, some)
        elif kind == 1:  # of what was never sent, or long ago
            ahead = chance.choice([200, 1 << 31, (1 << 32) - 5])
            lie = acknowledgement(good, (host.next + ahead) % (1 << 32), 64, some)
        elif kind == 2:  # ranges that are none
            lie = acknowledgement(good, host.next, 64, some)
        elif kind == 3:  # cut
            lie = acknowledgement(good, host.next + 5, 64, some)
            lie = sealed(lie[: chance.randrange(4, len(lie) - 4, 4)])
        elif kind == 4:  # longer than it says, or than anything
            lie = acknowledgement(good, host.next + 5, 64, some * chance.choice([2, 100]))
            number = struct.pack("<I", chance.choice([0, 1, 65, 128, 1 << 30]))
            lie = sealed(lie[:16] + number + lie[20:-4])
        else:  # damaged on the way
            lie = acknowledgement(good, host.next, 64, some)
            bit = chance.randrange(64, 8 * len(lie))
            lie = (int.from_bytes(lie, "little") ^ 1 << bit).to_bytes(len(lie), "little")
        world.receive(OTHER, lie)
        for _ in range(chance.randrange(900)):
            world.step()
    world.finish(host)
    assert host.stream == stream


@pytest.mark.parametrize("seed", range(3))
def test_a_new_host_in_the_middle_of_a_stream(seed: int) -> None:
    """The first is gone, the store and what is before it are full of its blocks."""
    world = World(seed, chunks=16, lose=0.02, swap=0.05, ready=0.9)
    first = connect(world, room=40)
    world.feed(12)
    for _ in range(5000 + 3001 * seed):
        world.step()
    first.acknowledgement = lambda now: None  # type: ignore[method-assign]
    for _ in range(12_000):
        world.step()
    assert world.words
    world.hosts[OTHER] = second = Host(0x5EC0_4D, 64, 500)
    frame = Frame(Command.START, 1, b"", second.number).encode()
    world.receive(OTHER, frame)
    assert world.request() == frame
    world.write("gate_control", 0)
    while world.read("gate_blocks") != world.sent_blocks:  # all that was captured is dropped
        pass
    world.write("gate_control", 1)
    while not world.read("gate_status") & 1:
        pass
    world.sent_blocks = 0
    world.answer(b"")
    stream = world.feed(5)
    world.finish(second)
    assert second.stream == stream
    assert not second.foreign
    assert not first.foreign
