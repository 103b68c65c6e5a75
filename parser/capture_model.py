# SPDX-License-Identifier: BSD-2-Clause
"""A seeded model of a large capture: a session as the boards write it, of any length.

Processes read their pages with a popularity that falls off as a power of the rank (Zipf), at
random times. Now and then one unmaps 2 MiB and touches them again page by page: a table is freed
and another handed out, each page's first access faults, the kernel logs it and stores an entry.
Page tables, markers and the kernel's log are those of `synthetic.Machine`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent / "tests"))
import synthetic

from ptat_parser import wire
from ptat_parser.capture.writer import seal
from ptat_parser.kernel import tracepoints

U64 = npt.NDArray[np.uint64]

GAP_TICKS = 40.0
"""Mean time between reads: 25 M misses a second of a 1 GHz clock."""

EXPONENT = 0.9
RANKS = 1 << 22
"""Resolution of the popularity: equally likely draws."""

STRETCH = 1 << 18
"""Reads between two changes of the tables."""


class Encoder:
    """Writes accesses as blocks, many at a time; the array counterpart of `BlockWriter`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._seq = 0
        self._time = np.empty(0, np.uint64)
        self._words = np.empty(0, np.uint64)  # without their time

    def accesses(self, time_ticks: U64, address: U64, write: npt.NDArray[np.bool_]) -> None:
        """Append accesses, less than 2^23 ticks apart."""
        words = (
            np.uint64(wire.Tag.ACCESS << wire.TAG_SHIFT)
            | write.astype(np.uint64) << np.uint64(wire.ACCESS_WRITE_SHIFT)
            | address >> np.uint64(wire.ADDRESS_UNIT_SHIFT)
        )
        self._append(time_ticks, words)

    def mark(self, time_ticks: int, code: wire.Mark) -> None:
        """Append a MARK record."""
        word = wire.Tag.MARK << wire.TAG_SHIFT | code << wire.MARK_CODE_SHIFT
        self._append(np.array([time_ticks], np.uint64), np.array([word], np.uint64))

    def flush(self) -> None:
        """Write what is left as a last block."""
        if self._words.size:
            self._write(1, self._words.size)

    def _append(self, time_ticks: U64, words: U64) -> None:
        self._time = np.concatenate([self._time, time_ticks])
        self._words = np.concatenate([self._words, words])
        blocks = self._words.size // wire.BLOCK_RECORDS_MAX
        if blocks:
            self._write(blocks, wire.BLOCK_RECORDS_MAX)

    def _write(self, blocks: int, records: int) -> None:
        used = blocks * records
        time = self._time[:used].reshape(blocks, records)
        delta = np.diff(time, axis=1, prepend=time[:, :1])
        # ACCESS and MARK have their time since the record before in the same place.
        assert delta.max() < 1 << wire.ACCESS_DELTA_BITS
        block = np.zeros((blocks, wire.BLOCK_WORDS), np.uint64)
        block[:, wire.WORD_HEADER] = (
            wire.MAGIC << wire.HEADER_MAGIC_SHIFT | wire.VERSION << wire.HEADER_VERSION_SHIFT
        )
        block[:, wire.WORD_HEADER] |= np.arange(self._seq, self._seq + blocks, dtype=np.uint64)
        block[:, wire.WORD_TIME] = time[:, 0]
        block[:, wire.WORD_FIRST_RECORD : wire.WORD_FIRST_RECORD + records] = self._words[
            :used
        ].reshape(blocks, records) | delta << np.uint64(wire.ACCESS_DELTA_SHIFT)
        for row in block:
            seal(row, records)
        self._file.write(block.data)
        self._seq += blocks
        self._time, self._words = self._time[used:], self._words[used:]


class Model:
    """A capture of `records` reads of `pages` pages of 4 KiB in `processes` processes."""

    def __init__(
        self,
        records: int,
        pages: int = 500_000,
        processes: int = 4,
        granularity: int = 8,
        seed: int = 1,
    ) -> None:
        self.records = records
        self.rng = np.random.default_rng(seed)
        tables = -(-pages // (512 * processes))
        self.machine = synthetic.Machine(
            seed, granularity, region_pages=processes * (tables + 2) + 16
        )
        self.mms = [self.machine.exec(f"model{i}") for i in range(processes)]
        self.ranges = [(mm, table << 21) for mm in self.mms for table in range(tables)]
        self.line = np.uint64(-granularity & (1 << 64) - 1)

        # Each draw is a page; popular ones have many draws.
        weight = np.arange(1, pages + 1) ** -EXPONENT
        ranks = np.searchsorted(np.cumsum(weight / weight.sum()), self.rng.random(RANKS))
        self.draws = self.rng.permutation(pages).astype(np.uint32)[np.minimum(ranks, pages - 1)]

    def write(self, path: Path) -> Path:
        """Write the session directory."""
        machine = self.machine
        bus = path / "bus.0.new"
        path.mkdir(parents=True, exist_ok=True)
        with bus.open("wb") as file:
            encoder = Encoder(file)
            encoder.mark(900, wire.Mark.START)
            for mm, base in self.ranges:
                machine.pte(mm, base)
                self._events(encoder)
                slots = machine.slot(machine.pte(mm, base), 0) + 8 * np.arange(512)
                self._accesses(encoder, slots.astype(np.uint64), write=True)
            left = self.records
            while left:
                count = min(left, STRETCH)
                left -= count
                draws = self.draws[self.rng.integers(0, RANKS, count, np.uint32)]
                self._accesses(encoder, self._slots()[draws], write=False)
                mm, base = self.ranges[self.rng.integers(len(self.ranges))]
                self._touch_again(mm, base)
                self._events(encoder)
            machine.event("ptat_marker", cookie=tracepoints.COOKIE_STOP)
            self._events(encoder)
            encoder.mark(machine.now + 10, wire.Mark.STOP)
            encoder.flush()
        machine.write(path)  # and a stream without any access, in whose place comes ours
        bus.rename(path / "bus.0.raw")
        return path

    def _slots(self) -> U64:
        """Address of each page's entry."""
        tables = [self.machine.slot(self.machine.pte(mm, base), 0) for mm, base in self.ranges]
        return (np.array(tables, np.uint64)[:, None] + np.arange(0, 4096, 8, np.uint64)).ravel()

    def _accesses(self, encoder: Encoder, address: U64, write: bool) -> None:
        gaps = 1 + self.rng.exponential(GAP_TICKS - 1, address.size).astype(np.uint64)
        time = np.uint64(self.machine.now) + np.cumsum(gaps)
        encoder.accesses(time, address & self.line, np.full(address.size, write))
        self.machine.now = int(time[-1])

    def _events(self, encoder: Encoder) -> None:
        """Move what the machine did to the stream."""
        time, address, write = zip(*self.machine.bus, strict=True)
        encoder.accesses(
            np.array(time, np.uint64), np.array(address, np.uint64), np.array(write) != 0
        )
        self.machine.bus.clear()

    def _touch_again(self, mm: synthetic.Mm, base: int) -> None:
        machine = self.machine
        machine.unmap(mm, base)
        for page in range(base, base + (512 << 12), 1 << 12):
            machine.walk(mm, page, True)
            machine.event("ptat_fault", mm=mm.id, va=page, error_code=2)
            machine.set_pte(mm, page, True)
            machine.walk(mm, page, True)
