# SPDX-License-Identifier: BSD-2-Clause
"""Capture stream: encoder and verifying, streaming decoder.

The layout is `ptat_parser.wire`'s. A reader holds one chunk of blocks at a time; a damaged
block is an error that names it or, when salvaging, counted and left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.jit import Integer, jit

U64 = npt.NDArray[np.uint64]

END_OF_TIME = 1 << wire.TIME_BITS
"""A time that no record can have."""

CHUNK_BLOCKS = 1024
"""Blocks decoded at a time: 8 MiB, a million records."""

# numba computes in the types of its operands: unsigned constants keep words unsigned.
WORD_TIME = wire.WORD_TIME
WORD_FIRST_RECORD = wire.WORD_FIRST_RECORD
WORD_CHECK = wire.WORD_CHECK
ONE = np.uint64(1)
TAG_SHIFT = np.uint64(wire.TAG_SHIFT)
TAG_ACCESS = np.uint64(wire.Tag.ACCESS)
TAG_TIME = np.uint64(wire.Tag.TIME)
TAG_LOST = np.uint64(wire.Tag.LOST)
TAG_MARK = np.uint64(wire.Tag.MARK)
CHECK_COUNT_SHIFT = np.uint64(wire.CHECK_COUNT_SHIFT)
COUNT_MASK = np.uint64((1 << wire.CHECK_COUNT_BITS) - 1)
ACCESS_WRITE_SHIFT = np.uint64(wire.ACCESS_WRITE_SHIFT)
ACCESS_DELTA_SHIFT = np.uint64(wire.ACCESS_DELTA_SHIFT)
ACCESS_DELTA_MASK = np.uint64((1 << wire.ACCESS_DELTA_BITS) - 1)
ACCESS_ADDRESS_MASK = np.uint64((1 << wire.ACCESS_ADDRESS_BITS) - 1)
ADDRESS_UNIT_SHIFT = np.uint64(wire.ADDRESS_UNIT_SHIFT)
TIME_MASK = np.uint64((1 << wire.TIME_BITS) - 1)
EVENT_DELTA_SHIFT = np.uint64(wire.EVENT_DELTA_SHIFT)
EVENT_DELTA_MASK = np.uint64((1 << wire.EVENT_DELTA_BITS) - 1)
EVENT_VALUE_MASK = np.uint64((1 << wire.EVENT_DELTA_SHIFT) - 1)

_SALVAGE_HINT = "use --salvage to leave damaged blocks out and count them as lost, or record again"
_ACCESS_DELTA_MAX = int(ACCESS_DELTA_MASK)
_EVENT_DELTA_MAX = int(EVENT_DELTA_MASK)


class BlockWriter:
    """Writes one channel's capture stream to a binary file.

    Times are absolute ticks and must not run backwards; addresses are bytes, multiples of 8.
    Use as a context manager: leaving it writes the last, partly filled block. `blocks` is the
    number of blocks written so far, and the sequence number of the next.
    """

    def __init__(self, file: BinaryIO, channel: int = 0) -> None:
        self._file = file
        self._channel = channel
        self.blocks = 0
        self._time_ticks = 0
        self._block_time_ticks = 0
        self._words: list[int] = []

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.flush()

    def access(self, time_ticks: int, address: int, write: bool = False) -> None:
        """Append one read or write of `address`; `ValueError` if a record cannot hold it."""
        if address >> (wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT):
            raise ValueError(f"bus address {address:#x} is beyond what a record can hold")
        delta = self._advance(time_ticks, _ACCESS_DELTA_MAX)
        self._words.append(
            wire.Tag.ACCESS << wire.TAG_SHIFT
            | int(write) << wire.ACCESS_WRITE_SHIFT
            | delta << wire.ACCESS_DELTA_SHIFT
            | address >> wire.ADDRESS_UNIT_SHIFT
        )

    def lost(self, time_ticks: int, count: int) -> None:
        """Say that `count` accesses were lost since the previous record."""
        delta = self._advance(time_ticks, _EVENT_DELTA_MAX)
        self._words.append(
            wire.Tag.LOST << wire.TAG_SHIFT | delta << wire.EVENT_DELTA_SHIFT | count
        )

    def mark(self, time_ticks: int, code: wire.Mark, argument: int = 0) -> None:
        """Append a MARK record."""
        delta = self._advance(time_ticks, _EVENT_DELTA_MAX)
        self._words.append(
            wire.Tag.MARK << wire.TAG_SHIFT
            | delta << wire.EVENT_DELTA_SHIFT
            | code << wire.MARK_CODE_SHIFT
            | argument
        )

    def flush(self) -> None:
        """Write the block in progress, if it holds any record."""
        if not self._words:
            return
        block = np.zeros(wire.BLOCK_WORDS, "<u8")
        block[wire.WORD_HEADER] = (
            wire.MAGIC << wire.HEADER_MAGIC_SHIFT
            | wire.VERSION << wire.HEADER_VERSION_SHIFT
            | self._channel << wire.HEADER_CHANNEL_SHIFT
            | self.blocks
        )
        block[wire.WORD_TIME] = self._block_time_ticks
        block[wire.WORD_FIRST_RECORD : wire.WORD_FIRST_RECORD + len(self._words)] = self._words
        seal(block, len(self._words))
        self._file.write(block.tobytes())
        self.blocks += 1
        self._words.clear()

    def _advance(self, time_ticks: int, delta_max: int) -> int:
        if len(self._words) > wire.BLOCK_RECORDS_MAX - 2:  # room for a TIME record too
            self.flush()
        if time_ticks < self._time_ticks:
            raise ValueError(f"time runs backwards: {time_ticks} after {self._time_ticks}")
        if not self._words:
            self._block_time_ticks = self._time_ticks = time_ticks
        delta = time_ticks - self._time_ticks
        self._time_ticks = time_ticks
        if delta > delta_max:
            self._words.append(wire.Tag.TIME << wire.TAG_SHIFT | time_ticks)
            return 0
        return delta


def seal(block: U64, records: int) -> None:
    """Write the check word of a block of which `records` record words are filled in."""
    crc = zlib.crc32(block[: wire.WORD_CHECK].tobytes())
    block[wire.WORD_CHECK] = (
        wire.Tag.CHECK << wire.TAG_SHIFT | records << wire.CHECK_COUNT_SHIFT | crc
    )


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


class BusReader:
    """Reads one channel's stream in chunks; may be iterated again.

    With `salvage`, damaged blocks are left out and counted as lost instead of raising
    `ParseError`; with `tail_may_be_cut` that holds for an unfinished last block only, as a
    recording that was killed leaves it.
    """

    def __init__(
        self, path: Path, channel: int = 0, *, salvage: bool = False, tail_may_be_cut: bool = False
    ) -> None:
        if not path.is_file():
            raise BadInput(f"{path}: no such file", "the session is incomplete: record again")
        self.path = path
        self.channel = channel
        self.chunk_blocks = CHUNK_BLOCKS
        self._salvage = salvage
        self._tail_may_be_cut = tail_may_be_cut or salvage
        size_bytes = path.stat().st_size
        if size_bytes == 0:
            raise ParseError(f"{path}: empty: nothing was captured", "record again")
        self.blocks, self._rest_bytes = divmod(size_bytes, wire.BLOCK_BYTES)
        if self._rest_bytes and not self._tail_may_be_cut:
            raise ParseError(
                f"{path}: truncated: block {self.blocks} at byte {self.blocks * wire.BLOCK_BYTES}"
                f" has {self._rest_bytes} of {wire.BLOCK_BYTES} bytes",
                _SALVAGE_HINT,
            )

    def __iter__(self) -> Iterator[Chunk]:
        state = _StreamState()
        with self.path.open("rb") as file:
            for first in range(0, self.blocks, self.chunk_blocks):
                count = min(self.chunk_blocks, self.blocks - first)
                data = file.read(count * wire.BLOCK_BYTES)
                if len(data) != count * wire.BLOCK_BYTES:
                    raise ParseError(f"{self.path}: became shorter while being read")
                words = np.frombuffer(data, "<u8").reshape(-1, wire.BLOCK_WORDS)
                yield self._decode(words, data, first, state)
        missing_blocks = state.missing_blocks + bool(self._rest_bytes)
        if missing_blocks:
            nothing = np.empty(0, np.uint64)
            lost = Lost(0, state.time_ticks, END_OF_TIME, None, missing_blocks)
            yield Chunk(nothing, nothing, np.empty(0, np.bool_), [lost])

    def _damaged(self, block: int, problem: str) -> None:
        if not self._salvage:
            at = block * wire.BLOCK_BYTES
            raise ParseError(f"{self.path}: block {block} at byte {at}: {problem}", _SALVAGE_HINT)

    def _decode(self, words: U64, data: bytes, first: int, state: _StreamState) -> Chunk:
        missing_before = np.zeros(len(words), np.int64)
        good = np.zeros(len(words), np.bool_)
        for i in range(len(words)):
            offset = i * wire.BLOCK_BYTES
            crc = zlib.crc32(memoryview(data)[offset : offset + wire.WORD_CHECK * 8])
            problem = _problem(words[i], crc, self.channel, state)
            if problem is None:
                good[i] = True
                missing_before[i] = state.accept(words[i])
                continue
            self._damaged(first + i, problem)
            state.missing_blocks += 1

        capacity = int(good.sum()) * wire.BLOCK_RECORDS_MAX
        chunk = Chunk(
            np.empty(capacity, np.uint64),
            np.empty(capacity, np.uint64),
            np.empty(capacity, np.bool_),
        )
        others = np.empty((capacity + len(words), 5), np.uint64)
        while True:
            accesses, n_others, last_time, bad = decode_blocks(
                words, good, missing_before, state.time_ticks,
                chunk.time, chunk.address, chunk.write, others,
            )  # fmt: skip
            if bad < 0:
                break
            # Its CRC is right, but it does not cover the number of records.
            self._damaged(first + bad, "damaged: a word that is no record, or time runs backwards")
            good[bad] = False
            following = np.flatnonzero(good[bad:])
            if following.size:
                missing_before[bad + following[0]] += missing_before[bad] + 1
            else:
                state.missing_blocks += int(missing_before[bad]) + 1
        state.time_ticks = int(last_time)
        chunk.time = chunk.time[:accesses]
        chunk.address = chunk.address[:accesses]
        chunk.write = chunk.write[:accesses]
        for position, since, ticks, tag, value in others[:n_others].tolist():
            if tag == wire.Tag.MARK:
                code, argument = divmod(value, 1 << wire.MARK_ARGUMENT_BITS)
                chunk.marks.append(MarkRecord(position, ticks, code, argument))
            elif tag == wire.Tag.LOST:
                chunk.lost.append(Lost(position, since, ticks, value))
            else:
                chunk.lost.append(Lost(position, since, ticks, None, value))
        return chunk


@dataclass
class _StreamState:
    """What one block must know of those before it."""

    expected_seq: int | None = None
    missing_blocks: int = 0
    time_ticks: int = 0

    def accept(self, block: U64) -> int:
        """Go past a good block; return how many blocks are missing before it."""
        seq = int(block[wire.WORD_HEADER]) & _SEQ_MASK
        gap = 0 if self.expected_seq is None else (seq - self.expected_seq) & _SEQ_MASK
        # Blocks that were left out here are part of the gap.
        missing = max(gap, self.missing_blocks)
        self.expected_seq = (seq + 1) & _SEQ_MASK
        self.missing_blocks = 0
        return missing


def _problem(block: U64, crc: int, channel: int, state: _StreamState) -> str | None:
    header, check = int(block[wire.WORD_HEADER]), int(block[wire.WORD_CHECK])
    if header >> wire.HEADER_MAGIC_SHIFT != wire.MAGIC:
        return "not a block of a capture stream (wrong magic number)"
    version = header >> wire.HEADER_VERSION_SHIFT & ((1 << wire.HEADER_VERSION_BITS) - 1)
    if version != wire.VERSION:
        return f"format version {version}; this ptat reads version {wire.VERSION}"
    if check & _CRC_MASK != crc:
        return f"damaged: CRC {crc:#010x}, {check & _CRC_MASK:#010x} expected"
    if check >> wire.TAG_SHIFT != wire.Tag.CHECK or check & _CHECK_ZERO_MASK:
        return "damaged: the check word is malformed"
    if check >> wire.CHECK_COUNT_SHIFT & _COUNT_MASK > wire.BLOCK_RECORDS_MAX:
        return "damaged: more records than a block can hold"
    of_channel = header >> wire.HEADER_CHANNEL_SHIFT & ((1 << wire.HEADER_CHANNEL_BITS) - 1)
    if of_channel != channel:
        return f"of channel {of_channel}, not {channel}"
    seq = header & _SEQ_MASK
    if state.expected_seq is not None and (seq - state.expected_seq) & _SEQ_MASK > _SEQ_MASK // 2:
        return f"out of order: sequence number {seq}, {state.expected_seq} expected"
    return None


_SEQ_MASK = (1 << wire.HEADER_SEQ_BITS) - 1
_CRC_MASK = (1 << wire.CHECK_CRC_BITS) - 1
_COUNT_MASK = (1 << wire.CHECK_COUNT_BITS) - 1
_CHECK_ZERO_MASK = 0xFFFF << wire.CHECK_CRC_BITS


@jit
def decode_blocks(
    words: U64,
    good: npt.NDArray[np.bool_],
    missing_before: npt.NDArray[np.int64],
    start_ticks: Integer,
    time: U64,
    address: U64,
    write: npt.NDArray[np.bool_],
    others: U64,
) -> tuple[Integer, Integer, Integer, Integer]:
    """Decode the records of the blocks marked `good`, which follow a record at `start_ticks`.

    `words` has shape ``(blocks, 1024)``. Fills `time` (ticks), `address` (bytes), `write` and
    `others`: rows of position, time before, time, tag and value, tag 0 standing for missing blocks.
    Returns the number of accesses and of others, the time after the last record, and the
    first block that holds something else than records, or -1.
    """
    n = 0
    m = 0
    now = np.uint64(start_ticks)
    for b in range(words.shape[0]):
        if not good[b]:
            continue
        if words[b, WORD_TIME] < now:
            return n, m, now, b
        if missing_before[b]:
            others[m, 0] = n
            others[m, 1] = now
            others[m, 2] = words[b, WORD_TIME]
            others[m, 3] = 0
            others[m, 4] = missing_before[b]
            m += 1
        now = words[b, WORD_TIME]
        count = np.int64(words[b, WORD_CHECK] >> CHECK_COUNT_SHIFT & COUNT_MASK)
        for i in range(WORD_FIRST_RECORD, WORD_FIRST_RECORD + count):
            word = words[b, i]
            tag = word >> TAG_SHIFT
            if tag == TAG_ACCESS:
                now += word >> ACCESS_DELTA_SHIFT & ACCESS_DELTA_MASK
                time[n] = now
                address[n] = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
                write[n] = (word >> ACCESS_WRITE_SHIFT) & ONE
                n += 1
            elif tag == TAG_TIME:
                ticks = word & TIME_MASK
                if ticks < now:
                    return n, m, now, b
                now = ticks
            elif tag in (TAG_LOST, TAG_MARK):
                others[m, 0] = n
                others[m, 1] = now
                now += word >> EVENT_DELTA_SHIFT & EVENT_DELTA_MASK
                others[m, 2] = now
                others[m, 3] = tag
                others[m, 4] = word & EVENT_VALUE_MASK
                m += 1
            else:
                return n, m, now, b
        for i in range(WORD_FIRST_RECORD + count, WORD_CHECK):
            if words[b, i]:
                return n, m, now, b
    return n, m, now, -1
