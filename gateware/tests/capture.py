# SPDX-License-Identifier: BSD-2-Clause
"""A snooper behind a decoder that the test plays, and its stream as the parser reads it."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import Constant, Signal
from verilated import Bench, Registers

from ptat_gateware.address import SLICE_BITS, SLICES
from ptat_gateware.counters import Count, CounterBank
from ptat_gateware.layouts import COLUMN_BITS, ROW_BITS, coordinate_layout, illegal_layout, lanes
from ptat_gateware.snoop.decoder import COUNTER_BITS, MATCHED_COUNT
from ptat_gateware.snooper import Snooper
from ptat_gateware.stream.buffer import Buffer
from ptat_parser import wire
from ptat_parser.capture.chunks import Lost, MarkRecord
from ptat_parser.capture.reader import BusReader

SNOOP, SYS = 1, 2
DOMAINS = ("snoop", "sys")
ALL = (1 << wire.ACCESS_ADDRESS_BITS >> 13) - 1  # last unit of 64 KiB


class PlayedDecoder(LiteXModule):
    """What a decoder shows to a snooper; the coordinates are pins."""

    gives_addresses = False

    def __init__(self, phases: int) -> None:
        self.phases = phases
        self.sources = [stream.Endpoint(coordinate_layout) for _ in range(lanes(phases))]
        self.illegal = stream.Endpoint(illegal_layout)
        self.clear = Signal()
        self.matched = [Signal() for _ in self.sources]
        nothing = Count([Constant(0)])
        self.counters = CounterBank(
            [
                *[nothing] * MATCHED_COUNT,
                Count(self.matched),
                Count([source.valid for source in self.sources]),
            ],
            COUNTER_BITS,
        )
        self.comb += self.counters.clear.eq(self.clear)


class Top(LiteXModule):
    """Snooper and CSR bank."""

    def __init__(
        self, phases: int, depth_words: int, fifo_depth: int, crc_bits_per_clock: int
    ) -> None:
        self.decoder = PlayedDecoder(phases)
        buffer = Buffer(depth_words, crc_bits_per_clock=crc_bits_per_clock)
        self.snooper = Snooper(self.decoder, buffer, fifo_depth)
        self.registers = Registers(self.snooper)
        bus, source = self.registers.bus, self.snooper.source
        self.inputs = {
            "adr": bus.adr,
            "we": bus.we,
            "re": bus.re,
            "dat_w": bus.dat_w,
            "ready": source.ready,
            "illegal": self.decoder.illegal.valid,
            "code": self.decoder.illegal.code,
            "pulse": self.snooper.sync_pulse,
            "pin": self.snooper.trigger_pin,
            "halt": self.snooper.halt,
            "restart": self.snooper.restart,
            "advance": self.snooper.advance,
        }
        for i, lane in enumerate(self.decoder.sources):
            for name in ("valid", "write", "phase", "row", "column", "bank", "rank", "bank_group"):
                self.inputs[f"{name}{i}"] = getattr(lane, name)
        self.outputs = {
            "dat_r": bus.dat_r,
            "valid": source.valid,
            "data": source.data,
            "last": source.last,
        }


@dataclass
class Capture:
    """A decoded stream."""

    time: np.ndarray
    address: np.ndarray
    write: np.ndarray
    lost: list[Lost] = field(default_factory=list)
    marks: list[MarkRecord] = field(default_factory=list)
    blocks: int = 0

    @property
    def codes(self) -> list[wire.Mark]:
        """Codes of the marks."""
        return [wire.Mark(mark.code) for mark in self.marks]


def decode(words: np.ndarray) -> Capture:
    """Decode a stream with the parser, which checks all that blocks promise."""
    assert len(words) % wire.BLOCK_WORDS == 0, "a torn block"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bus.raw"
        path.write_bytes(words.astype("<u8").tobytes())
        chunks = list(BusReader(path))
    found = Capture(
        np.concatenate([chunk.time for chunk in chunks]),
        np.concatenate([chunk.address for chunk in chunks]),
        np.concatenate([chunk.write for chunk in chunks]),
        blocks=len(words) // wire.BLOCK_WORDS,
    )
    position = 0
    for chunk in chunks:
        shifted = [(found.lost, lost) for lost in chunk.lost]
        shifted += [(found.marks, mark) for mark in chunk.marks]  # type: ignore[list-item]
        for into, record in shifted:
            object.__setattr__(record, "position", record.position + position)
            into.append(record)  # type: ignore[arg-type]
        position += chunk.time.size
    return found


class Board:
    """A snooper under test: two clocks, registers, a bus and a link.

    Time runs in rows; a row raises the clocks that `clocks` gives it, endlessly repeated.
    """

    def __init__(
        self,
        phases: int = 4,
        depth_words: int = 4096,
        fifo_depth: int = 64,
        crc_bits_per_clock: int = 64,
        clocks: tuple[int, ...] = (SNOOP | SYS,),
    ) -> None:
        self.phases = phases
        self.lanes = lanes(phases)
        self.top, self.bench = _built(phases, depth_words, fifo_depth, crc_bits_per_clock)
        self.bench.reset()
        self.pattern = np.array(clocks, np.uint8)
        rises = min(np.count_nonzero(self.pattern & clock) for clock in (SNOOP, SYS))
        self.slow = -(-len(self.pattern) // rises)  # rows for a clock of the slower domain
        self.row = 0
        self.clock = 0  # clocks of the bus so far
        self.words: list[np.ndarray] = []
        self.played: list[tuple[int, np.ndarray]] = []
        self.running = 0

    # Time -------------------------------------------------------------------------------------

    def clocks(self, rows: int) -> np.ndarray:
        """The clocks of the next rows."""
        at = (self.row + np.arange(rows)) % len(self.pattern)
        return self.pattern[at]

    def run(self, rows: int, ready: Any = 1, **columns: Any) -> dict[str, np.ndarray]:
        """Run `rows` rows; words that the link takes are kept."""
        clocks = self.clocks(rows)
        seen = self.bench.run(clocks, ready=ready, **columns)
        taken = (clocks & SYS != 0) & (seen["valid"] == 1)
        taken &= np.broadcast_to(np.asarray(ready, bool), rows)
        self.words.append(seen["data"][taken])
        self.row += rows
        self.clock += int(np.count_nonzero(clocks & SNOOP)) + int(np.sum(columns.get("advance", 0)))
        return seen

    def snoop_rows(self, clocks: int) -> np.ndarray:
        """The next rows in which the bus's clock rises, `clocks` of them."""
        rows = np.flatnonzero(self.pattern & SNOOP)
        rounds = -(-clocks // len(rows)) + 2
        every = (np.arange(rounds)[:, None] * len(self.pattern) + rows[None]).ravel()
        start = self.row % len(self.pattern)
        return every[every >= start][:clocks] - start

    def play(self, accesses: np.ndarray, **more: Any) -> dict[str, np.ndarray]:
        """Play accesses at the decoder: shape ``(clocks, lanes)``, fields of ACCESS."""
        at = self.snoop_rows(len(accesses))
        self.played.append((self.clock, accesses))
        rows = int(at[-1]) + 1 if len(at) else 0
        columns: dict[str, Any] = {}
        for lane in range(self.lanes):
            for name in ("valid", "write", "phase", "row", "column", "bank"):
                column = np.zeros(rows, np.uint64)
                column[at] = accesses[name][:, lane]
                columns[f"{name}{lane}"] = column
        for name in ("illegal", "code", "pulse", "pin", "advance"):
            if name in more:
                column = np.zeros(rows, np.uint64)
                column[at] = more.pop(name)
                columns[name] = column
        ready = more.pop("ready", 1)
        if callable(ready):
            ready = ready(rows)
        return self.run(rows, ready=ready, **columns, **more)

    # Registers --------------------------------------------------------------------------------

    def write(self, name: str, value: int, ready: Any = 1) -> None:
        """Write a register."""
        self.write_all([(name, value)], ready)

    def write_all(self, writes: list[tuple[str, int]], ready: Any = 1) -> None:
        """Write registers one after the other, in as many clocks of sys as there are words."""
        words = [pair for write in writes for pair in self.top.registers.writes(*write)]
        rises = np.flatnonzero(self.clocks((len(words) + 1) * self.slow) & SYS)[: len(words)]
        columns = {name: np.zeros(rises[-1] + 1, np.uint64) for name in ("adr", "dat_w", "we")}
        columns["adr"][rises], columns["dat_w"][rises] = np.array(words, np.uint64).T
        columns["we"][rises] = 1
        self.run(int(rises[-1]) + 1, ready=ready, **columns)

    def read(self, name: str, ready: Any = 1) -> int:
        """Read a register."""
        value = 0
        for address in self.top.registers.addresses(name):
            self._cycle(ready, adr=address, re=1)
            value = value << 32 | int(self._cycle(ready)["dat_r"][0])
        return value

    def _cycle(self, ready: Any, **columns: int) -> dict[str, np.ndarray]:
        # Up to the next rise of sys; its row alone carries the access.
        rows = np.flatnonzero(self.clocks(len(self.pattern)) & SYS)
        if rows[0]:
            self.run(int(rows[0]), ready=ready)
        return self.run(1, ready=ready, **columns)

    def program(self) -> None:
        """Make addresses the coordinates themselves, and let window 0 want them all."""
        self.write("address_table_index", 0)
        words = [value << i * SLICE_BITS for i in range(SLICES) for value in range(1 << SLICE_BITS)]
        self.write_all([("address_table_data", word) for word in words])
        self.write("address_control", 1)
        self.window(0, 0, ALL, 0b011)

    def window(self, index: int, first: int, last: int, control: int) -> None:
        """Set up a window."""
        self.write(f"filter_window{index}_first", first)
        self.write(f"filter_window{index}_last", last)
        self.write(f"filter_window{index}_control", control)

    def control(self, run: int, flush: int = 0, latch: int = 0, ready: Any = 1) -> None:
        """Write the control register."""
        self.write("control", run | flush << 1 | latch << 2, ready=ready)

    def counters(self, ready: Any = 1) -> dict[str, int]:
        """All counters, latched now."""
        self.control(self.running, latch=1, ready=ready)
        self.run(48 * self.slow, ready=ready)
        names = {
            "accesses": "accesses",
            "matched": "matched",
            "emitted": "packer_emitted",
            "lost": "packer_lost",
            "level": "buffer_level",
            "high_water": "buffer_high_water",
        }
        return {short: self.read(name, ready=ready) for short, name in names.items()}

    def start(self, ready: Any = 1) -> None:
        """Start recording, and wait until accesses are taken."""
        self.running = 1
        self.control(1, ready=ready)
        self.run(24 * self.slow, ready=ready)

    def stop(self, ready: Any = 1) -> None:
        """Stop recording."""
        self.running = 0
        self.control(0, ready=ready)

    def drain(self) -> None:
        """Let the link take all there is."""
        while True:
            before = sum(map(len, self.words))
            self.run(5000 * self.slow)
            if sum(map(len, self.words)) == before:
                return

    def capture(self) -> Capture:
        """What the link has got so far."""
        words = np.concatenate(self.words) if self.words else np.empty(0, np.uint64)
        return decode(words)

    def expected(self) -> Capture:
        """The accesses played so far, with times that are right up to a constant."""
        parts = []
        for start, accesses in self.played:
            valid = accesses[accesses["valid"] == 1]
            clock, lane = np.nonzero(accesses["valid"])
            time = (start + clock) * self.phases + accesses["phase"][clock, lane]
            address = (
                valid["column"].astype(np.uint64)
                | valid["row"].astype(np.uint64) << np.uint64(COLUMN_BITS)
                | valid["bank"].astype(np.uint64) << np.uint64(COLUMN_BITS + ROW_BITS)
            )
            parts.append((time, address << np.uint64(3), valid["write"].astype(bool)))
        return Capture(*map(np.concatenate, zip(*parts, strict=True)))


@functools.cache
def _built(*options: int) -> tuple[Top, Bench]:
    top = Top(*options)
    return top, Bench(top, top.inputs, top.outputs, DOMAINS)


def assert_accounted(found: Capture, expected: Capture) -> int:
    """Each expected access is in the capture or in the LOST record at its place; how many lost.

    Order, address, direction and the time between any two must be right.
    """
    kept = np.ones(len(expected.time), bool)
    behind = 0
    for record in found.lost:
        assert record.count
        start = record.position + behind
        kept[start : start + record.count] = False
        behind += record.count
    assert len(found.time) + behind == len(expected.time)
    np.testing.assert_array_equal(found.address, expected.address[kept])
    np.testing.assert_array_equal(found.write, expected.write[kept])
    since = expected.time[kept]
    if len(since):
        np.testing.assert_array_equal(found.time - found.time[0], since - since[0])
    return behind


ACCESS = np.dtype(
    [
        ("valid", "u1"),
        ("write", "u1"),
        ("phase", "u1"),
        ("bank", "u1"),
        ("row", "u4"),
        ("column", "u2"),
    ]
)


def traffic(
    rng: np.random.Generator, clocks: int, lanes: int = 1, density: float = 1.0
) -> np.ndarray:
    """Random accesses, shape ``(clocks, lanes)``; a lane's phases are its own."""
    accesses = np.zeros((clocks, lanes), ACCESS)
    accesses["valid"] = rng.random((clocks, lanes)) < density
    accesses["write"] = rng.integers(0, 2, (clocks, lanes))
    accesses["phase"] = rng.integers(0, 4, (clocks, lanes)) + 4 * np.arange(lanes)
    accesses["bank"] = rng.integers(0, 8, (clocks, lanes))
    accesses["row"] = rng.integers(0, 1 << ROW_BITS, (clocks, lanes))
    accesses["column"] = rng.integers(0, 1 << COLUMN_BITS, (clocks, lanes))
    return accesses
