# SPDX-License-Identifier: BSD-2-Clause
"""FIFOs: across clocks, and through DRAM."""

import functools
import zlib

import numpy as np
import pytest
from litedram.common import LiteDRAMNativePort
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import If, Memory, Signal
from verilated import Bench, Registers, needs_verilator

from ptat_gateware.stream.buffer import Buffer, CrossingFIFO, LaneSerializer
from ptat_parser import wire

pytestmark = needs_verilator

SNOOP, SYS = 1, 2
DEPTH = 32


# Clock-domain crossing ----------------------------------------------------------------------------


class Crossing(LiteXModule):
    """A writer that hears of `room` as late as the margin allows."""

    def __init__(self) -> None:
        self.fifo = fifo = CrossingFIFO(16, DEPTH)
        self.offer, self.wrote = Signal(), Signal()
        counter = Signal(16)
        room = Signal(fifo.margin - 2, reset=0)  # and 2 clocks to `room` itself
        self.sync.snoop += [room.eq(room << 1 | fifo.room), If(fifo.we, counter.eq(counter + 1))]
        self.comb += [
            fifo.we.eq(self.offer & room[-1]),
            self.wrote.eq(fifo.we),
            fifo.din.eq(counter),
        ]
        self.inputs = {"offer": self.offer, "ready": fifo.source.ready}
        self.outputs = {
            "wrote": self.wrote,
            "valid": fifo.source.valid,
            "data": fifo.source.data,
            "half_empty": fifo.half_empty,
            "room": fifo.room,
        }


@functools.cache
def crossing() -> Bench:
    top = Crossing()
    return Bench(top, top.inputs, top.outputs, ("snoop", "sys"))


@pytest.mark.parametrize("sys_mhz", [31, 99, 100, 101, 333])
@pytest.mark.parametrize("readiness", [1.0, 0.5, 0.02])
def test_nothing_is_lost_between_clocks(sys_mhz, readiness):
    bench = crossing()
    bench.reset()
    rng = np.random.default_rng(sys_mhz)
    # Edges of both clocks, the one of 100 MHz jittering, in the order of time.
    snoop = np.cumsum(rng.uniform(9.0, 11.0, 60_000))
    sys = np.arange(0.1, snoop[-1], 1000 / sys_mhz)
    clocks = np.concatenate([np.full(len(snoop), SNOOP), np.full(len(sys), SYS)])
    clocks = clocks[np.argsort(np.concatenate([snoop, sys]), kind="stable")]
    rows = len(clocks)
    ready = rng.random(rows) < readiness
    seen = bench.run(clocks, offer=rng.random(rows) < 0.9, ready=ready)
    written = int(seen["wrote"][clocks == SNOOP].sum())
    read = seen["data"][(clocks == SYS) & ready & (seen["valid"] == 1)]
    assert len(read) > 100
    assert 0 <= written - len(read) <= DEPTH
    np.testing.assert_array_equal(read, np.arange(len(read)) % 65536)
    assert seen["room"][seen["half_empty"] == 1].all()


def test_lanes_one_by_one():
    top = LiteXModule()
    top.serializer = serializer = LaneSerializer(2)
    bench = Bench(
        top,
        _lane_pins(top, serializer),
        {
            "taken": serializer.sink.ready,
            "valid": serializer.source.valid,
            "word": serializer.source.word,
        },
    )
    bench.reset()
    rng = np.random.default_rng(1)
    clock = np.ones(1)
    sent, got = [], []
    for entry in range(1, 500):
        valids = int(rng.integers(1, 4))
        sent += [entry * 2 + lane for lane in range(2) if valids >> lane & 1]
        taken = False
        while not taken:
            ready = int(rng.integers(0, 2))
            seen = bench.run(
                clock, offer=1, valids=valids, low=entry * 2, high=entry * 2 + 1, ready=ready
            )
            if ready and seen["valid"][0]:
                got.append(int(seen["word"][0]))
            taken = bool(seen["taken"][0])
    assert got == sent


def _lane_pins(top: LiteXModule, serializer: LaneSerializer) -> dict[str, Signal]:
    low, high = Signal(64), Signal(64)
    top.comb += [serializer.sink.words[:64].eq(low), serializer.sink.words[64:].eq(high)]
    return {
        "offer": serializer.sink.valid,
        "valids": serializer.sink.valids,
        "low": low,
        "high": high,
        "ready": serializer.source.ready,
    }


# DRAM ---------------------------------------------------------------------------------------------


class Dram(LiteXModule):
    """Memory behind two native ports: commands in one order, answered when `go`."""

    def __init__(self, width: int, words: int) -> None:
        self.write_port = LiteDRAMNativePort("write", 24, width)
        self.read_port = LiteDRAMNativePort("read", 24, width)
        self.go = Signal()

        # # #

        memory = Memory(width, words)
        write = memory.get_port(write_capable=True)
        read = memory.get_port(async_read=True)
        self.specials += memory, write, read
        self.queue = queue = stream.SyncFIFO([("we", 1), ("addr", 24)], 8)
        self.answers = answers = stream.SyncFIFO([("data", width)], 4)
        writing = self.write_port.cmd.valid
        can = Signal()
        self.comb += [
            queue.sink.valid.eq(writing | self.read_port.cmd.valid),
            queue.sink.we.eq(writing),
            If(writing, queue.sink.addr.eq(self.write_port.cmd.addr)).Else(
                queue.sink.addr.eq(self.read_port.cmd.addr)
            ),
            self.write_port.cmd.ready.eq(queue.sink.ready),
            self.read_port.cmd.ready.eq(queue.sink.ready & ~writing),
            write.adr.eq(queue.source.addr),
            read.adr.eq(queue.source.addr),
            write.dat_w.eq(self.write_port.wdata.data),
            answers.sink.data.eq(read.dat_r),
            can.eq(queue.source.valid & self.go),
            If(
                queue.source.we,
                queue.source.ready.eq(can & self.write_port.wdata.valid),
                self.write_port.wdata.ready.eq(can),
                write.we.eq(can & self.write_port.wdata.valid),
            ).Else(
                queue.source.ready.eq(can & answers.sink.ready),
                answers.sink.valid.eq(can),
            ),
            answers.source.connect(self.read_port.rdata, keep={"valid", "ready", "data"}),
        ]


class Deep(LiteXModule):
    def __init__(self, width: int, dram_bytes: int, crc_bits_per_clock: int) -> None:
        if width:
            self.dram = Dram(width, dram_bytes * 8 // width)
            ports = (self.dram.write_port, self.dram.read_port)
            self.buffer = buffer = Buffer(2048, ports, 0, dram_bytes, crc_bits_per_clock)
        else:
            self.buffer = buffer = Buffer(2048, crc_bits_per_clock=crc_bits_per_clock)
        self.registers = Registers(buffer)
        bus = self.registers.bus
        self.inputs = {
            "adr": bus.adr,
            "we": bus.we,
            "dat_w": bus.dat_w,
            "offer": buffer.sink.valid,
            "word": buffer.sink.data,
            "ready": buffer.source.ready,
        }
        if width:
            self.inputs["go"] = self.dram.go
        self.outputs = {
            "dat_r": bus.dat_r,
            "taken": buffer.sink.ready,
            "valid": buffer.source.valid,
            "data": buffer.source.data,
            "last": buffer.source.last,
            "half_empty": buffer.half_empty,
        }


@functools.cache
def deep(width: int, dram_bytes: int, crc_bits_per_clock: int = 32) -> tuple[Deep, Bench]:
    top = Deep(width, dram_bytes, crc_bits_per_clock)
    return top, Bench(top, top.inputs, top.outputs)


def sealed(blocks: np.ndarray) -> np.ndarray:
    result = blocks.copy()
    for block in result:
        crc = zlib.crc32(block[: wire.WORD_CHECK].tobytes())
        block[wire.WORD_CHECK] = int(block[wire.WORD_CHECK]) >> 32 << 32 | crc
    return result


def push(bench: Bench, words: np.ndarray, rows: int, **columns) -> tuple[int, np.ndarray]:
    """Offer `words` for at most `rows` rows, one by one; how many were taken, and what left."""
    at, out = 0, []
    for row in range(rows):
        now = {name: int(column[row]) for name, column in columns.items()}
        offer = int(at < len(words))
        seen = bench.run(np.ones(1), offer=offer, word=int(words[min(at, len(words) - 1)]), **now)
        if now["ready"] and seen["valid"][0]:
            out.append((int(seen["data"][0]), int(seen["last"][0])))
        at += bool(offer and seen["taken"][0])
    return at, np.array(out, np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("width", [0, 64, 128, 256])
def test_blocks_go_through_whole(width):
    """The link stalls until all is full, then takes all; blocks come out sealed, in order."""
    dram_bytes = 4 * wire.BLOCK_BYTES
    _, bench = deep(width, dram_bytes)
    bench.reset()
    rng = np.random.default_rng(width)
    blocks = rng.integers(0, 1 << 63, (8, wire.BLOCK_WORDS)).astype(np.uint64)
    words = blocks.ravel()
    go = {"go": rng.random(40_000) < 0.7} if width else {}
    taken, nothing = push(bench, words, 15_000, ready=np.zeros(15_000), **go)
    assert not len(nothing)
    held = 2048 + bool(width) * 4 * wire.BLOCK_WORDS
    assert held <= taken < held + 200  # and what is in registers and small FIFOs on the way
    more, out = push(bench, words[taken:], 25_000, ready=rng.random(25_000) < 0.6, **go)
    assert taken + more == len(words)
    np.testing.assert_array_equal(out[:, 0].reshape(-1, wire.BLOCK_WORDS), sealed(blocks))
    assert out[:, 1].reshape(-1, wire.BLOCK_WORDS).nonzero()[1].tolist() == [1023] * 8


@pytest.mark.parametrize("width", [0, 128, 256])
def test_a_word_a_clock_for_ever(width):
    """All 64 bits of a word are sealed a clock; DRAM that takes a command a clock keeps up."""
    dram_bytes = 4 * wire.BLOCK_BYTES
    _, bench = deep(width, dram_bytes, 64)
    bench.reset()
    rows = 200 * wire.BLOCK_WORDS
    words = np.random.default_rng(width).integers(0, 1 << 63, rows).astype(np.uint64)
    seen = bench.run(np.ones(rows), offer=1, word=words, ready=1, **({"go": 1} if width else {}))
    assert seen["taken"].all()
    out = seen["data"][seen["valid"] == 1]
    assert rows - len(out) < wire.BLOCK_WORDS  # under way
    blocks = len(out) // wire.BLOCK_WORDS
    np.testing.assert_array_equal(
        out[: blocks * wire.BLOCK_WORDS].reshape(blocks, -1),
        sealed(words[: blocks * wire.BLOCK_WORDS].reshape(blocks, -1)),
    )


def test_level_and_high_water():
    top, bench = deep(0, 4 * wire.BLOCK_BYTES)
    bench.reset()

    def register(name: str, write: int | None = None) -> int:
        (adr,) = top.registers.addresses(name)
        bench.run(np.ones(1), adr=adr, we=write is not None, dat_w=write or 0)
        return int(bench.run(np.ones(1))["dat_r"][0])

    words = np.arange(1500, dtype=np.uint64)
    push(bench, words[:900], 900, ready=np.zeros(900))
    assert abs(register("level") - 900) <= 1
    push(bench, words, 3000, ready=np.ones(3000))
    bench.run(np.ones(6000), ready=1)
    assert register("level") == 0
    high = register("high_water")
    assert 900 <= high <= 2048
    register("control", 1)
    assert register("high_water") == 0
    assert register("depth") == 2048
