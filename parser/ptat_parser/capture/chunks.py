# SPDX-License-Identifier: BSD-2-Clause
"""Chunks of a capture stream: some consecutive blocks, decoded or as they are.

A chunk that holds only accesses stays undecoded (`PlainChunk`) for readers that can use its words;
other chunks are decoded record by record (`Chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.decode import (
    BLOCK_RECORDS_MAX,
    WORD_CHECK,
    WORD_FIRST_RECORD,
    WRITE_BIT,
    Stores,
    plain_accesses,
)

U64 = npt.NDArray[np.uint64]


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
    of the first access after them.
    """

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    lost: list[Lost] = field(default_factory=list)
    marks: list[MarkRecord] = field(default_factory=list)

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

    Has what a `Chunk` has but the arrays. `writes`: some of the accesses are writes; `known` may
    give these without the words. The words are read when they are first used, and hold until the
    reader's next chunk.
    """

    lost: tuple[Lost, ...] = ()
    marks: tuple[MarkRecord, ...] = ()

    def __init__(
        self,
        blocks: int,
        last_ticks: int,
        writes: bool,
        read: Callable[[], U64],
        known: Callable[[], Stores | None] = lambda: None,
    ) -> None:
        self.blocks = blocks
        self.accesses = blocks * wire.BLOCK_RECORDS_MAX
        self.last_ticks = last_ticks
        self.writes = writes
        self._read = read
        self._known = known

    @cached_property
    def words(self) -> U64:
        """Shape ``(blocks, 1024)``."""
        return self._read()

    def access(self, position: int) -> Access:
        """An access."""
        block, at = divmod(position, BLOCK_RECORDS_MAX)
        return Chunk(*plain_accesses(self.words[block : block + 1])).access(at)

    def times(self, positions: Sequence[int]) -> list[int]:
        """Times of accesses."""
        block, at = np.divmod(np.array(positions, np.int64), BLOCK_RECORDS_MAX)
        blocks, row = np.unique(block, return_inverse=True)
        time, *_ = plain_accesses(self.words[blocks])
        found: list[int] = time[row * BLOCK_RECORDS_MAX + at].tolist()
        return found

    def stores(self) -> Stores:
        """Positions, times and addresses of the writes."""
        if not self.writes:
            return NO_STORES
        if (known := self._known()) is not None:
            return known
        records = self.words[:, WORD_FIRST_RECORD:WORD_CHECK]
        blocks = np.flatnonzero((records & WRITE_BIT).any(axis=1))  # most have none
        time, address, write = plain_accesses(self.words[blocks])
        rows = np.flatnonzero(write)
        block, at = np.divmod(rows, BLOCK_RECORDS_MAX)
        return blocks[block] * BLOCK_RECORDS_MAX + at, time[rows], address[rows]

    def decoded(self) -> Chunk:
        """The same with arrays."""
        return Chunk(*plain_accesses(self.words))


AnyChunk: TypeAlias = Chunk | PlainChunk

NO_STORES: Stores = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64)


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
        """What is in one chunk."""
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
