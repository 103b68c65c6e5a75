# SPDX-License-Identifier: BSD-2-Clause
"""Chunks of a capture stream: some consecutive blocks, decoded or as they are.

A chunk that holds only accesses stays undecoded (`PlainChunk`) for readers that can use its words;
other chunks are decoded record by record (`Chunk`).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.decode import (
    BLOCK_RECORDS_MAX,
    Stores,
    access_at,
    decode_plain,
    times_at,
    writes_of,
)
from ptat_parser.compiled.jit import Integer, jit

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]


_U32_MAX = np.iinfo(np.uint32).max


class Access(NamedTuple):
    """An access: time, address in bytes, and direction."""

    ticks: int
    address: int
    write: bool


@dataclass
class Chunk:
    """Decoded records of some consecutive blocks, in bus order.

    `time` (ticks), `address` (bytes) and `write` describe the accesses, shape ``(accesses,)``.
    Other records stand between accesses: `position` is the index into the chunk's accesses
    of the first access after them. `after`: see `BusReader.numbered`.
    """

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    lost: list[Lost] = field(default_factory=list)
    marks: list[MarkRecord] = field(default_factory=list)
    after: Access | None = None

    @property
    def accesses(self) -> int:
        """How many there are."""
        return self.time.size

    @property
    def last_ticks(self) -> int:
        """Time of the last access, -1 if there is none."""
        return int(self.time[-1]) if self.time.size else -1

    def access(self, position: int) -> Access:
        """An access."""
        write = bool(self.write[position])
        return Access(int(self.time[position]), int(self.address[position]), write)

    def times(self, positions: Sequence[int]) -> list[int]:
        """Times of accesses."""
        ticks: list[int] = self.time[np.array(positions, np.int64)].tolist()
        return ticks

    def stores(self) -> Stores:
        """Positions, times and addresses of the writes."""
        rows = np.flatnonzero(self.write)
        return rows, self.time[rows], self.address[rows]

    def decoded(self) -> Chunk:
        """Itself."""
        return self


class PlainChunk:
    """Blocks that hold `BLOCK_RECORDS_MAX` accesses each and nothing else, undecoded.

    Has what a `Chunk` has but the arrays. `writes`: some of the accesses are writes. The words
    are read when they are asked for, and hold until the reader's next chunk. They are also in the
    open `file`, if that is not -1, from `start_bytes` on; `sums` (see `sums_of`): what they must
    be. `recall` gives what `stores` does, if it is known.
    """

    lost: tuple[Lost, ...] = ()
    marks: tuple[MarkRecord, ...] = ()

    def __init__(
        self,
        blocks: int,
        last_ticks: int,
        writes: bool,
        read: Callable[[], U64],
        file: int = -1,
        start_bytes: int = 0,
        sums: U64 | None = None,
        recall: Callable[[], RememberedStores | None] = lambda: None,
    ) -> None:
        self.blocks = blocks
        self.file = file
        self.start_bytes = start_bytes
        self.sums = sums
        self.accesses = blocks * wire.BLOCK_RECORDS_MAX
        self.last_ticks = last_ticks
        self.writes = writes
        self.found: Stores | None = None  # by `stores`
        self.after: Access | None = None
        self._recall = recall
        self._read = read

    @cached_property
    def words(self) -> U64:
        """Shape ``(blocks, 1024)``."""
        return self._read()

    def mapped(self) -> U64 | None:
        """The words where the page cache has them; None if that cannot be done.

        They are not compared with `sums`. A file that becomes shorter while they are in use kills
        the process.
        """
        if self.file < 0 or self.is_read:
            return None
        try:
            memory = mmap.mmap(
                self.file, self.blocks * wire.BLOCK_BYTES, mmap.MAP_PRIVATE, _READ_AND_WRITE,
                offset=self.start_bytes,
            )  # fmt: skip
            memory.madvise(_MADV_POPULATE_READ)
        except (OSError, ValueError):
            return None
        return np.frombuffer(memory, np.uint64).reshape(-1, wire.BLOCK_WORDS)

    @property
    def is_read(self) -> bool:
        """Whether the words were asked for."""
        return "words" in self.__dict__

    def access(self, position: int) -> Access:
        """An access."""
        ticks, address, write = access_at(self.words, position)
        return Access(int(ticks), int(address), bool(write))

    def times(self, positions: Sequence[int]) -> list[int]:
        """Times of accesses."""
        wanted = np.array(positions, np.int64)
        known = self._recall()
        ticks = known.times(wanted) if known else None
        if ticks is None:
            ticks = times_at(self.words, wanted)
        found: list[int] = ticks.tolist()
        return found

    def stores(self) -> Stores:
        """Positions, times and addresses of the writes."""
        if self.found is None:
            if known := self._recall():
                self.found = known.stores()
            else:
                self.found = writes_of(self.words) if self.writes else NO_STORES
        return self.found

    def decoded(self) -> Chunk:
        """The same with arrays."""
        time, address = np.empty(self.accesses, np.uint64), np.empty(self.accesses, np.uint64)
        write = np.empty(self.accesses, np.bool_)
        for block, start in enumerate(range(0, self.accesses, BLOCK_RECORDS_MAX)):
            part = slice(start, start + BLOCK_RECORDS_MAX)
            decode_plain(self.words[block], time[part], address[part], write[part])
        return Chunk(time, address, write)


_READ_AND_WRITE = mmap.PROT_READ | mmap.PROT_WRITE  # nobody writes: it is what numpy's arrays are


_MADV_POPULATE_READ = 22  # fails where touching a page would kill; Linux 5.14


AnyChunk: TypeAlias = Chunk | PlainChunk


class RememberedStores:
    """Stores of a chunk."""

    def __init__(self, stores: Stores) -> None:
        self._ticks_first = self._address_first = np.uint64(0)
        self._rows: npt.NDArray[np.int64] | U32
        self._ticks: U64 | U32
        self._address: U64 | U32
        self._rows, self._ticks, self._address = stores

    @classmethod
    def packed(cls, stores: Stores) -> RememberedStores | None:
        """In half the memory, if their times and addresses are less than 2^32 apart."""
        rows, ticks, address = stores
        if not rows.size:
            return _NONE_REMEMBERED
        if ticks[-1] - ticks[0] > _U32_MAX or np.ptp(address) > _U32_MAX:
            return None
        found = cls(stores)
        found._ticks_first, found._address_first = ticks[0], address.min()
        found._rows = rows.astype(np.uint32)
        found._ticks = (ticks - found._ticks_first).astype(np.uint32)
        found._address = (address - found._address_first).astype(np.uint32)
        return found

    def stores(self) -> Stores:
        """The stores."""
        return (
            self._rows.astype(np.int64, copy=False),
            self._ticks + self._ticks_first,
            self._address + self._address_first,
        )

    def times(self, positions: npt.NDArray[np.int64]) -> U64 | None:
        """Times of the accesses at some positions, if all of them are stores."""
        ticks = np.empty(positions.size, np.uint64)
        found = _times_of(self._rows, self._ticks, self._ticks_first, positions, ticks)
        return ticks if found else None


NO_STORES: Stores = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64)


_NONE_REMEMBERED = RememberedStores(NO_STORES)


def join_stores(parts: Sequence[Stores]) -> Stores:
    """Stores, one after the other."""
    position, ticks, address = (np.concatenate(column) for column in zip(*parts, strict=True))
    return position, ticks, address


class Seen(NamedTuple):
    """What is in some chunks besides reads; positions are from the first of them on.

    `firsts`: position, time, address and direction of each chunk's first access, or None;
    `last_ticks`: time of the last access, -1 if there is none.
    """

    accesses: int
    firsts: Sequence[tuple[int, int, int, bool] | None]
    last_ticks: int
    stores: Stores
    lost: Sequence[Lost]
    marks: Sequence[MarkRecord]

    @staticmethod
    def of(chunk: AnyChunk) -> Seen:
        """Look at a chunk."""
        first = (0, *chunk.access(0)) if chunk.accesses else None
        return Seen(
            chunk.accesses, [first], chunk.last_ticks, chunk.stores(), chunk.lost, chunk.marks
        )

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        """One after the other."""
        firsts: list[tuple[int, int, int, bool] | None] = []
        stores: list[Stores] = []
        lost: list[Lost] = []
        marks: list[MarkRecord] = []
        accesses = 0
        for part in parts:
            firsts += [first and (first[0] + accesses, *first[1:]) for first in part.firsts]
            position, ticks, address = part.stores
            stores.append((position + accesses, ticks, address))
            lost += [replace(each, position=each.position + accesses) for each in part.lost]
            marks += [replace(each, position=each.position + accesses) for each in part.marks]
            accesses += part.accesses
        last_ticks = max(part.last_ticks for part in parts)
        return Seen(accesses, firsts, last_ticks, join_stores(stores), lost, marks)


@dataclass(frozen=True)
class Lost:
    """Accesses that did not reach the stream. `count` is None where nobody knows how many.

    They were between `since_ticks` and `time_ticks`; those lost at the end, at any time after.
    """

    position: int
    since_ticks: int
    time_ticks: int
    count: int | None
    blocks: int = 0


@dataclass(frozen=True)
class MarkRecord:
    """A MARK record."""

    position: int
    time_ticks: int
    code: int
    argument: int


def lost_and_marks(rows: U64) -> tuple[list[Lost], list[MarkRecord]]:
    """Those among rows of position, time before, time, tag and value.

    The tag 0 stands for missing blocks, of which the value is the number.
    """
    lost, marks = [], []
    for position, since, ticks, tag, value in rows.tolist():
        if tag == wire.Tag.MARK:
            code, argument = divmod(value, 1 << wire.MARK_ARGUMENT_BITS)
            marks.append(MarkRecord(position, ticks, code, argument))
        elif tag == wire.Tag.LOST:
            lost.append(Lost(position, since, ticks, value))
        else:
            lost.append(Lost(position, since, ticks, None, value))
    return lost, marks


def rows_of(lost: Iterable[Lost], marks: Iterable[MarkRecord]) -> U64:
    """Rows of which `lost_and_marks` gives these; shape ``(others, 5)``."""
    rows = [
        (each.position, each.since_ticks, each.time_ticks, 0, each.blocks)
        if each.count is None
        else (each.position, each.since_ticks, each.time_ticks, int(wire.Tag.LOST), each.count)
        for each in lost
    ]
    for mark in marks:
        value = mark.code << wire.MARK_ARGUMENT_BITS | mark.argument
        rows.append((mark.position, 0, mark.time_ticks, int(wire.Tag.MARK), value))
    return np.array(rows, np.uint64).reshape(-1, 5)


@jit
def _times_of(
    rows: U32 | npt.NDArray[np.int64],
    ticks: U32 | U64,
    first: Integer,
    positions: npt.NDArray[np.int64],
    times: U64,
) -> bool:
    """Find sorted `positions` in `rows`, and fill `times`; whether they are all there."""
    at: Integer = 0
    for i in range(positions.size):
        at += np.searchsorted(rows[at:], positions[i])
        if at == rows.size or rows[at] != positions[i]:
            return False
        times[i] = first + np.uint64(ticks[at])
    return True
