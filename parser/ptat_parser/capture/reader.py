# SPDX-License-Identifier: BSD-2-Clause
"""Reads one channel's capture stream in chunks.

A reader holds one chunk of blocks at a time. A damaged block raises an error that names it; with
`salvage` it is skipped and counted as lost.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture import block_index
from ptat_parser.capture.block_index import BlockIndex, Builder
from ptat_parser.capture.chunks import (
    AnyChunk,
    Chunk,
    ChunkContents,
    Lost,
    PlainChunk,
    lost_and_marks,
)
from ptat_parser.capture.decode import (
    END_OF_TIME,
    LAST_TICKS,
    MISSING_BLOCKS,
    NEXT_SEQ,
    OTHERS,
    SEQ_MASK,
    WRITES,
    Decoded,
    Stores,
    crcs,
    decode_blocks,
    kind_of,
    problem_of,
    verify_plain,
)
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.formats.archive import ArchiveStream, open_stream

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

STORES_AT_ONCE = 1 << 20
"""Most stores that `BusReader.stores` returns at once, at 24 bytes each."""

CHUNK_BLOCKS = 512
"""Blocks decoded at a time: 4 MiB. Smaller chunks cost more Python time per chunk, because its data
leaves the core's cache between chunks."""

_SALVAGE_HINT = "use --salvage to omit damaged blocks and count them as lost, or record again"


class BusReader:
    """Reads one channel's stream in chunks; may be iterated again.

    Uses an archive's index, if it has one and neither option is set. Once there is an index, the
    blocks of chunks that hold only accesses are not verified again.

    :param salvage: skip damaged blocks and count them as lost instead of raising `ParseError`.
    :param tail_may_be_cut: the same, but only for an unfinished last block, as a killed recording
        leaves it.
    """

    def __init__(
        self, path: Path, channel: int = 0, *, salvage: bool = False, tail_may_be_cut: bool = False
    ) -> None:
        if not path.is_file():
            raise BadInput(f"{path}: no such file", "the session is incomplete: record again")
        self.path = path
        self.channel = channel
        self.chunk_blocks = CHUNK_BLOCKS
        self._since_ticks = 0
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
        self.index: BlockIndex | None = None
        if isinstance(self._stream, ArchiveStream) and not tail_may_be_cut:
            self.index = block_index.load(self._stream, self.blocks, self.chunk_blocks)

    def part(self, first: int, end: int) -> BusReader:
        """A reader of the blocks ``[first, end)``; requires an index.

        `first` must be the first block of a chunk.
        """
        other = copy.copy(self)
        other._first = first
        other._to_the_end = end == self.blocks
        other.blocks = end - first
        return other

    def since(self, ticks: int) -> BusReader:
        """The same stream, with a counter that did not wrap from `ticks` to the first block."""
        other = copy.copy(self)
        other._since_ticks = ticks
        return other

    def without_index(self) -> BusReader:
        """A reader of the same stream that ignores the index and verifies all blocks."""
        other = copy.copy(self)
        other.index = None
        return other

    def stores(self) -> Stores | None:
        """Positions, times and addresses of all writes.

        None if they are unknown or too many, or if accesses were lost.
        """
        index = self.index
        if not index or (self._cut and self._to_the_end):
            return None
        first = self._first // self.chunk_blocks
        end = first - (-self.blocks // self.chunk_blocks)
        known = index.count_stores(first, end) <= STORES_AT_ONCE and index.is_whole(first, end)
        if not known or (self._to_the_end and index.state_after(end - 1)[MISSING_BLOCKS]):
            return None
        return index.stores(first, end)

    def read(self, first: int, words: U64) -> None:
        """Fill `words`, shape ``(blocks, 1024)``, with the blocks from `first` on."""
        self._stream.readinto(first * wire.BLOCK_BYTES, words.data.cast("B"))

    def __iter__(self) -> Iterator[Chunk]:
        return (chunk.decoded() for chunk in self.chunks())

    def chunks(self) -> Iterator[AnyChunk]:
        """Yields the chunks; those that hold only accesses are undecoded."""
        return (chunk for chunk, *_ in self._looked())

    def contents(self) -> Iterator[ChunkContents]:
        """Yields the contents of the stream except the reads; builds an index if there is none."""
        return self.index.contents() if self.index else self._indexed()

    def stored_index(self) -> bytes:
        """The index as bytes, for an archive of this stream."""
        builder = Builder(self.path, self.blocks, self.chunk_blocks)
        for _ in self.without_index()._indexed(builder):
            pass
        return builder.stored()

    def _indexed(self, builder: Builder | None = None) -> Iterator[ChunkContents]:
        builder = builder or Builder(self.path, self.blocks, self.chunk_blocks)
        for chunk, holds, state in self._looked():
            contents = ChunkContents.of(chunk)
            if holds is not None:
                builder.add(contents, holds, state)
            yield contents
        self.index = builder.index()

    def _looked(self) -> Iterator[tuple[AnyChunk, int | None, I64]]:
        """Yields each chunk, its contents and the state after it; finally any loss at the end."""
        state = np.array((-1, 0, self._since_ticks), np.int64)
        buffer = np.empty((self.chunk_blocks, wire.BLOCK_WORDS), np.uint64)
        index, end = self.index, self._first + self.blocks
        for first in range(self._first, end, self.chunk_blocks):
            words = buffer[: min(self.chunk_blocks, end - first)]
            chunk = first // self.chunk_blocks
            if index and index.holds(chunk) != OTHERS:
                state[:] = index.state_after(chunk)
                yield self._plain(index, chunk, words), index.holds(chunk), state
                continue
            if index and chunk:
                state[:] = index.state_after(chunk - 1)
            self.read(first, words)
            crc = crcs(words)
            holds = OTHERS if index else int(verify_plain(words, crc, kind_of(self.channel), state))
            if holds == OTHERS:
                yield self._decode(words, crc, first, state), holds, state
            else:
                last_ticks = int(state[LAST_TICKS])
                plain = PlainChunk(len(words), last_ticks, holds == WRITES, words.view)
                yield plain, holds, state
        missing_blocks = int(state[MISSING_BLOCKS]) + self._cut
        if missing_blocks and self._to_the_end:
            nothing = np.empty(0, np.uint64)
            lost = Lost(0, int(state[LAST_TICKS]), END_OF_TIME, None, missing_blocks)
            yield Chunk(nothing, nothing, np.empty(0, np.bool_), [lost]), None, state

    def _plain(self, index: BlockIndex, chunk: int, words: U64) -> PlainChunk:
        """A chunk that holds only accesses, according to the index."""

        def read() -> U64:
            self.read(chunk * self.chunk_blocks, words)
            return words

        _, _, last_ticks = index.state_after(chunk)
        writes = index.holds(chunk) == WRITES
        return PlainChunk(
            len(words), last_ticks, writes, read, lambda: index.stores(chunk, chunk + 1)
        )

    def _decode(self, words: U64, crc: U64, first: int, state: I64) -> Chunk:
        into = Decoded.room(len(words))
        good, time, address, write, others = into
        expected_seq = int(state[NEXT_SEQ])
        accesses, n_others = decode_blocks(words, crc, kind_of(self.channel), state, into)
        if not good.all() and not self._salvage:
            self._refuse(int(np.flatnonzero(~good)[0]), words, crc, first, expected_seq)
        lost, marks = lost_and_marks(others[:n_others])
        return Chunk(time[:accesses], address[:accesses], write[:accesses], lost, marks)

    def _refuse(self, i: int, words: U64, crc: U64, first: int, expected_seq: int) -> None:
        """Raise `ParseError` for the first damaged block, number `i` of `words`."""
        if i:
            expected_seq = (int(words[i - 1, wire.WORD_HEADER]) + 1) & SEQ_MASK
        problem = problem_of(words[i], int(crc[i]), self.channel, expected_seq)
        at = (first + i) * wire.BLOCK_BYTES
        raise ParseError(f"{self.path}: block {first + i} at byte {at}: {problem}", _SALVAGE_HINT)
