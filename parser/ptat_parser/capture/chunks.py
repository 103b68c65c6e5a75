# SPDX-License-Identifier: BSD-2-Clause
"""Chunks of a capture stream: consecutive blocks, decoded or not.

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
    Other records lie between accesses: their `position` is the index of the next access in the
    chunk.
    """

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    lost: list[Lost] = field(default_factory=list)
    marks: list[MarkRecord] = field(default_factory=list)

    @property
    def accesses(self) -> int:
        """Number of accesses."""
        return self.time.size

    @property
    def last_ticks(self) -> int:
        """Time of the last access, or -1 if there is none."""
        return int(self.time[-1]) if self.time.size else -1

    def access(self, position: int) -> Access:
        """The access at `position`."""
        write = bool(self.write[position])
        return Access(int(self.time[position]), int(self.address[position]), write)

    def times(self, positions: Sequence[int]) -> list[int]:
        """Times of the accesses at `positions`, in ticks."""
        ticks: list[int] = self.time[np.array(positions, np.int64)].tolist()
        return ticks

    def stores(self) -> Stores:
        """Positions, times and addresses of the writes."""
        rows = np.flatnonzero(self.write)
        return rows, self.time[rows], self.address[rows]

    def decoded(self) -> Chunk:
        """This chunk."""
        return self


class PlainChunk:
    """Undecoded blocks that hold `BLOCK_RECORDS_MAX` accesses each and nothing else.

    Has the interface of a `Chunk` without its arrays. `writes`: some accesses are writes; `known`
    may return them without reading the words. The words are read on first use, and are valid until
    the reader's next chunk.
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
        """The access at `position`."""
        block, at = divmod(position, BLOCK_RECORDS_MAX)
        return Chunk(*plain_accesses(self.words[block : block + 1])).access(at)

    def times(self, positions: Sequence[int]) -> list[int]:
        """Times of the accesses at `positions`, in ticks."""
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
        blocks = np.flatnonzero((records & WRITE_BIT).any(axis=1))  # few blocks hold writes
        time, address, write = plain_accesses(self.words[blocks])
        rows = np.flatnonzero(write)
        block, at = np.divmod(rows, BLOCK_RECORDS_MAX)
        return blocks[block] * BLOCK_RECORDS_MAX + at, time[rows], address[rows]

    def decoded(self) -> Chunk:
        """This chunk, decoded."""
        return Chunk(*plain_accesses(self.words))


AnyChunk: TypeAlias = Chunk | PlainChunk

NO_STORES: Stores = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64)


def join_stores(parts: Sequence[Stores]) -> Stores:
    """Concatenate stores."""
    position, ticks, address = (np.concatenate(column) for column in zip(*parts, strict=True))
    return position, ticks, address


class ChunkContents(NamedTuple):
    """The contents of some chunks except the reads; positions count from the first chunk.

    `firsts`: position, time, address and direction of each chunk's first access, or None;
    `last_ticks`: time of the last access, or -1 if there is none.
    """

    accesses: int
    firsts: Sequence[tuple[int, int, int, bool] | None]
    last_ticks: int
    stores: Stores
    lost: Sequence[Lost]
    marks: Sequence[MarkRecord]

    @staticmethod
    def of(chunk: AnyChunk) -> ChunkContents:
        """The contents of one chunk."""
        first = (0, *chunk.access(0)) if chunk.accesses else None
        return ChunkContents(
            chunk.accesses, [first], chunk.last_ticks, chunk.stores(), chunk.lost, chunk.marks
        )

    @staticmethod
    def joined(parts: Sequence[ChunkContents]) -> ChunkContents:
        """Concatenate `parts`."""
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
        return ChunkContents(accesses, firsts, last_ticks, join_stores(stores), lost, marks)


@dataclass(frozen=True)
class Lost:
    """Accesses that did not reach the stream; `count` is None if their number is unknown.

    They happened between `since_ticks` and `time_ticks`, or at any later time if lost at the end.
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
    """Convert rows of position, previous time, time, tag and value to losses and marks.

    Tag 0 stands for missing blocks; its value is their number.
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
    """The inverse of `lost_and_marks`: rows of shape ``(others, 5)``."""
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
