# SPDX-License-Identifier: BSD-2-Clause
"""Reads one channel's capture stream in chunks.

A reader holds one chunk of blocks at a time. A damaged block raises an error that names it or, with
`salvage`, is left out and counted as lost.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.chunks import (
    NO_STORES,
    AnyChunk,
    Chunk,
    Lost,
    PlainChunk,
    RememberedStores,
    Seen,
    join_stores,
    lost_and_marks,
)
from ptat_parser.capture.decode import (
    CHECK_CRC_MASK,
    END_OF_TIME,
    LAST_TICKS,
    MISSING_BLOCKS,
    NEXT_SEQ,
    ONE,
    OTHERS,
    SEQ_MASK,
    WRITES,
    Decoded,
    Stores,
    crcs,
    decode_blocks,
    hold_only_accesses,
    look,
    pieces_in,
    problem_of,
    sums_of,
)
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.formats.archive import ArchiveStream, open_stream

U64 = npt.NDArray[np.uint64]


STORES_REMEMBERED = 1 << 23
"""Of so many stores a reader remembers position, time and address, 12 bytes each."""


STORES_AT_ONCE = 1 << 20
"""More of a part are not given at once: 24 bytes each."""


CHUNK_BLOCKS = 512
"""Blocks decoded at a time: 4 MiB. With fewer, what Python does for each chunk takes longer: what
it needs for that has left a core's cache each time."""


APART_BLOCKS = 16
"""Fewer blocks that hold only accesses, among others, are decoded with these."""


_SALVAGE_HINT = "use --salvage to leave damaged blocks out and count them as lost, or record again"


class Foretold(Protocol):
    """What another has found in the chunks of a capture, whose blocks were good then.

    `sums` are those of its pieces (see `sums_of`): as long as they are the same, so is the rest.
    """

    @property
    def path(self) -> Path:
        """What messages name."""

    @property
    def sums(self) -> U64:
        """Shape ``(pieces, 2)``; each chunk begins with a piece."""

    def seen(self) -> Iterator[Seen]:
        """What is in all of it."""

    def stores(self, first: int, end: int) -> Stores:
        """Those of the chunks ``first … end``, positions from the first of them on."""

    def count_stores(self, first: int, end: int) -> int:
        """How many these are."""

    def is_whole(self, first: int, end: int) -> bool:
        """Whether nothing was lost in these chunks."""


@dataclass
class Known:
    """What was found in blocks from `first` on: which are `damaged`, what each chunk `holds`.

    `states` are those before each chunk and after the last, `stored` each chunk's stores, as far
    as they are remembered, of which there are `stores`. What was `foretold` nobody has looked at.
    """

    first: int
    damaged: set[int] = field(default_factory=set)
    holds: list[int] = field(default_factory=list)
    states: list[tuple[int, ...]] = field(default_factory=list)
    stored: list[RememberedStores | None] = field(default_factory=list)
    stores: int = 0
    foretold: Foretold | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"stored": [None] * len(self.stored), "stores": 0}

    def remember(self, chunk: int, stores: Stores) -> None:
        """Remember a chunk's stores, if they are not too many."""
        if self.stores + stores[0].size <= STORES_REMEMBERED:
            self.stored[chunk] = remembered = RememberedStores.packed(stores)
            self.stores += stores[0].size if remembered else 0

    def recall(self, chunk: int) -> RememberedStores | None:
        """A chunk's stores, if they are remembered, or can be told again."""
        if self.foretold:
            return RememberedStores(self.foretold.stores(chunk, chunk + 1))
        return self.stored[chunk]


class BusReader:
    """Reads one channel's stream in chunks; may be iterated again, which trusts the blocks then.

    With `salvage`, damaged blocks are left out and counted as lost instead of raising
    `ParseError`; with `tail_may_be_cut` that holds for an unfinished last block only, as a
    recording that was killed leaves it. Where `ahead` is set, of one thread, it reads a chunk
    while the one before is in use.
    """

    ahead: Executor | None = None

    def __init__(
        self, path: Path, channel: int = 0, *, salvage: bool = False, tail_may_be_cut: bool = False
    ) -> None:
        if not path.is_file():
            raise BadInput(f"{path}: no such file", "the session is incomplete: record again")
        self.path = path
        self.channel = channel
        self.chunk_blocks = CHUNK_BLOCKS
        self.since_ticks = 0  # the counter has not wrapped between then and the first block
        self.known: Known | None = None  # once all have been looked at
        self._salvage = salvage
        tail_may_be_cut = tail_may_be_cut or salvage
        self._stream = open_stream(path, salvage=salvage, tail_may_be_cut=tail_may_be_cut)
        if self._stream.size_bytes == 0:
            raise ParseError(f"{path}: empty: nothing was captured", "record again")
        self.blocks, rest_bytes = divmod(self._stream.size_bytes, wire.BLOCK_BYTES)
        if rest_bytes and not tail_may_be_cut:
            raise ParseError(
                f"{path}: truncated: block {self.blocks} at byte {self.blocks * wire.BLOCK_BYTES}"
                f" has {rest_bytes} of {wire.BLOCK_BYTES} bytes",
                _SALVAGE_HINT,
            )
        self._first = 0
        self._cut = bool(rest_bytes or self._stream.cut)
        self._to_the_end = True

    @property
    def file(self) -> int:
        """Number of the open file that has the blocks as they are; -1 where they must be got."""
        return self._stream.file

    def part(self, first: int, end: int) -> BusReader:
        """A reader of the blocks ``first … end`` only, when all have been read once.

        `first` is where a chunk begins.
        """
        other = copy.copy(self)
        other._first = first
        other._to_the_end = end == self.blocks
        other.blocks = end - first
        return other

    def window(self, start_ticks: int, end_ticks: int) -> BusReader:
        """A reader of those blocks that may hold records of ``start_ticks … end_ticks``.

        Only an archive knows which these are; of a plain file it is all of them.
        """
        if isinstance(self._stream, ArchiveStream):
            first, end, since_ticks = self._stream.window(start_ticks, end_ticks)
            part = self.part(first, end)
            part.since_ticks = since_ticks
            return part
        return self

    def stores(self) -> Stores | None:
        """Positions, times and addresses of all writes, if they are remembered and not too many.

        Not where something was lost.
        """
        if not self.known:
            return None
        if self._to_the_end and (self._cut or self.known.states[-1][MISSING_BLOCKS]):
            return None
        first = (self._first - self.known.first) // self.chunk_blocks
        end = first - (-self.blocks // self.chunk_blocks)
        if foretold := self.known.foretold:
            few = foretold.count_stores(first, end) <= STORES_AT_ONCE
            known = few and foretold.is_whole(first, end)
            return foretold.stores(first, end) if known else None
        if OTHERS in self.known.holds[first:end]:
            return None
        parts, count = [NO_STORES], 0
        for chunk in range(first, end):
            if self.known.holds[chunk] == WRITES:
                remembered = self.known.stored[chunk]
                if not remembered:
                    return None
                position, ticks, address = remembered.stores()
                count += position.size
                if count > STORES_AT_ONCE:
                    return None
                start = (chunk - first) * self.chunk_blocks * wire.BLOCK_RECORDS_MAX
                parts.append((position + start, ticks, address))
        return join_stores(parts)

    def read(self, first: int, words: U64) -> None:
        """Fill `words`, shape ``(blocks, 1024)``, with the blocks from `first` on."""
        self._stream.readinto(first * wire.BLOCK_BYTES, words.data.cast("B"))

    def __iter__(self) -> Iterator[Chunk]:
        return (chunk.decoded() for chunk in self.chunks())

    def chunks(self) -> Iterator[AnyChunk]:
        """As iterating, but chunks that hold only accesses are left undecoded."""
        return (chunk for _, chunk in self.numbered())

    def numbered(self, *, apart: bool = False) -> Iterator[tuple[int, AnyChunk]]:
        """The same with the number of each chunk.

        `apart`, once all have been looked at: a chunk that holds other words, too, is in parts, of
        which those are undecoded that do not. Their `after` is the first access of those that
        follow in it.
        """
        state = np.array((-1, 0, self.since_ticks), np.int64)
        known, found = self.known, Known(self._first)
        number = self._first // self.chunk_blocks - 1
        for first, words, fetched in self._fetched():
            number += 1
            if known:
                chunk = (first - known.first) // self.chunk_blocks
                state[:] = known.states[chunk]
                if known.holds[chunk] != OTHERS:
                    state[:] = known.states[chunk + 1]
                    recall = partial(known.recall, chunk)
                    plain = self._plain(known.holds[chunk], state, words, fetched, first, recall)
                    yield number, plain
                    continue
                if apart:
                    for part in self._apart(words, fetched(), first, state, found.damaged):
                        yield number, part
                    continue
            found.states.append(tuple(state.tolist()))
            crc = fetched()
            found.holds.append(OTHERS if known else look(words, crc, self._kind, state))
            found.stored.append(None)
            if found.holds[-1] == OTHERS:
                yield number, self._decode(words, crc, first, state, found.damaged)
            else:
                plain = self._plain(found.holds[-1], state, words)
                yield number, plain
                if plain.found:
                    found.remember(-1, plain.found)
        if not known:
            found.states.append(tuple(state.tolist()))
            if self._first == 0:
                self.known = found
        missing_blocks = int(state[MISSING_BLOCKS]) + self._cut
        if missing_blocks and self._to_the_end:
            nothing = np.empty(0, np.uint64)
            lost = Lost(0, int(state[LAST_TICKS]), END_OF_TIME, None, missing_blocks)
            yield number + 1, Chunk(nothing, nothing, np.empty(0, np.bool_), [lost])

    def _fetched(self) -> Iterator[tuple[int, U64, Callable[[], U64]]]:
        """Each chunk's first block, its words, and what fills these and returns their CRCs."""
        # One chunk may be in use while the next is read ahead.
        buffers = [room_for(self.chunk_blocks) for _ in range(2 if self.ahead else 1)]
        end = self._first + self.blocks

        def begin(first: int) -> tuple[int, U64, Callable[[], U64]]:
            buffers.append(buffers.pop(0))
            words = buffers[0][: min(self.chunk_blocks, end - first)]
            if self.ahead:
                return first, words, self.ahead.submit(self._fetch, first, words).result
            return first, words, partial(self._fetch, first, words)

        firsts = iter(range(self._first, end, self.chunk_blocks))
        begun = deque(map(begin, islice(firsts, 1)))
        while begun:
            begun.extend(map(begin, islice(firsts, 1)))
            yield begun.popleft()

    def _fetch(self, first: int, words: U64) -> U64:
        self.read(first, words)
        return self._crcs(words, first)

    def _plain(
        self,
        holds: int,
        state: npt.NDArray[np.int64],
        words: U64,
        fetched: Callable[[], object] | None = None,
        first: int = 0,
        recall: Callable[[], RememberedStores | None] = lambda: None,
    ) -> PlainChunk:
        def read() -> U64:
            if fetched:
                fetched()
            return words

        file = self.file if fetched else -1
        return PlainChunk(
            len(words), int(state[LAST_TICKS]), holds == WRITES, read, file,
            first * wire.BLOCK_BYTES,            self._sums(first, words), recall,
        )  # fmt: skip

    @property
    def _kind(self) -> np.uint64:
        """The bits of a block's header from the channel up."""
        kind = (
            wire.MAGIC << wire.HEADER_MAGIC_SHIFT
            | wire.VERSION << wire.HEADER_VERSION_SHIFT
            | self.channel << wire.HEADER_CHANNEL_SHIFT
        )
        return np.uint64(kind >> wire.HEADER_CHANNEL_SHIFT)

    def _crcs(self, words: U64, first: int) -> U64:
        """CRC of each block; once all have been looked at, what makes them good or bad again.

        Raises `ParseError` for blocks that are not as they were when others looked at them.
        """
        if self.known is None:
            return crcs(words)
        sums = self._sums(first, words)
        if sums is not None and not np.array_equal(sums_of(words), sums):
            state = self.known.states[(first - self.known.first) // self.chunk_blocks]
            self._decode(words, crcs(words), first, np.array(state, np.int64), set())
            assert self.known.foretold
            raise ParseError(
                f"{self.known.foretold.path}: is not of {self.path.name}",
                "remove it: ptat parse does without it",
            )
        crc = words[:, wire.WORD_CHECK] & CHECK_CRC_MASK
        if damaged := self.known.damaged:
            crc[[i for i in range(len(words)) if first + i in damaged]] ^= ONE
        return crc

    def _sums(self, first: int, words: U64) -> U64 | None:
        """What the sums of a chunk's pieces were when another looked at it, if one did."""
        if not self.known or not self.known.foretold:
            return None
        piece = first // self.chunk_blocks * pieces_in(self.chunk_blocks)
        return self.known.foretold.sums[piece : piece + pieces_in(len(words))]

    def _decode(
        self,
        words: U64,
        crc: U64,
        first: int,
        state: npt.NDArray[np.int64],
        damaged: set[int],
        refuse: bool = True,
    ) -> Chunk:
        into = Decoded.room(len(words))
        good, time, address, write, others = into
        expected_seq = int(state[NEXT_SEQ])
        accesses, n_others = decode_blocks(words, crc, self._kind, state, into)
        if not good.all():
            bad = np.flatnonzero(~good).tolist()
            if refuse and not self._salvage:
                self._refuse(bad[0], words, crc, first, expected_seq)
            damaged.update(first + i for i in bad)
        lost, marks = lost_and_marks(others[:n_others])
        return Chunk(time[:accesses], address[:accesses], write[:accesses], lost, marks)

    def _apart(
        self, words: U64, crc: U64, first: int, state: npt.NDArray[np.int64], damaged: set[int]
    ) -> list[AnyChunk]:
        """What some blocks hold, runs of those that hold only accesses apart from the others."""
        parts: list[AnyChunk] = []
        only = hold_only_accesses(words)
        for start, end in pairwise(_cuts(only)):
            if end - start < APART_BLOCKS:
                only[start:end] = False
        cuts = _cuts(only)
        for start, end in pairwise(cuts):
            here = words[start:end]
            holds = look(here, crc[start:end], self._kind, state) if only[start] else OTHERS
            if holds == OTHERS:
                parts.append(self._decode(here, crc[start:end], first + start, state, damaged))
            else:
                last_ticks = int(state[LAST_TICKS])
                parts.append(PlainChunk(end - start, last_ticks, holds == WRITES, here.view))
        after = None
        for part in reversed(parts):
            part.after = after
            after = part.access(0) if part.accesses else after
        return parts

    def _refuse(self, i: int, words: U64, crc: U64, first: int, expected_seq: int) -> None:
        """Say what is wrong with the first damaged block, number `i` of those given."""
        if i:
            expected_seq = (int(words[i - 1, wire.WORD_HEADER]) + 1) & SEQ_MASK
        problem = problem_of(words[i], int(crc[i]), self.channel, expected_seq)
        at = (first + i) * wire.BLOCK_BYTES
        raise ParseError(f"{self.path}: block {first + i} at byte {at}: {problem}", _SALVAGE_HINT)


def chunks_of(reader: Iterable[Chunk]) -> Iterator[AnyChunk]:
    """The chunks of a reader, undecoded where it can give them so."""
    return reader.chunks() if isinstance(reader, BusReader) else iter(reader)


def parts_of(reader: Iterable[Chunk]) -> Iterator[tuple[int, AnyChunk]]:
    """The same, or parts of them, with their numbers: see `BusReader.numbered`."""
    return reader.numbered(apart=True) if isinstance(reader, BusReader) else enumerate(reader)


_PAGE_WORDS = 512


def room_for(blocks: int) -> U64:
    """Words of so many blocks, not set, at a page's begin: some CPUs copy there twice as fast."""
    words = np.empty(blocks * wire.BLOCK_WORDS + _PAGE_WORDS, np.uint64)
    skipped = -(words.ctypes.data // words.itemsize) % _PAGE_WORDS
    return words[skipped:][: blocks * wire.BLOCK_WORDS].reshape(blocks, wire.BLOCK_WORDS)


def _cuts(values: npt.NDArray[np.bool_]) -> list[int]:
    """Where a run of equal values begins, and the end."""
    return [0, *(1 + np.flatnonzero(values[1:] != values[:-1])).tolist(), values.size]
