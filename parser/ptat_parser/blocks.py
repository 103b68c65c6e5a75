# SPDX-License-Identifier: BSD-2-Clause
"""Capture stream: encoder and verifying, streaming decoder.

The layout is `ptat_parser.wire`'s. A reader holds one chunk of blocks at a time; a damaged
block is an error that names it or, when salvaging, counted and left out.

Nearly all words of a capture are accesses. Chunks that hold nothing else stay as they are
(`PlainChunk`) for whoever can use them so; the others are decoded word by word (`Chunk`).
"""

from __future__ import annotations

import copy
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.archive import ArchiveStream, open_stream
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.jit import Integer, bare, inlined, jit

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

Stores: TypeAlias = tuple[npt.NDArray[np.int64], U64, U64]
"""Positions, times and addresses of writes."""

COUNTER_TICKS = 1 << wire.TIME_BITS
"""The stream's counter wraps after so many; times are told on across it."""

END_OF_TIME = 4 * COUNTER_TICKS
"""A time that no record can have."""

STORES_REMEMBERED = 1 << 23
"""Of so many stores a reader remembers position, time and address, 12 bytes each."""

STORES_AT_ONCE = 1 << 20
"""More of a part are not given at once: 24 bytes each."""

CHUNK_BLOCKS = 512
"""Blocks decoded at a time: 4 MiB. With fewer, what Python does for each chunk takes longer: what
it needs for that has left a core's cache each time."""

APART_BLOCKS = 16
"""Fewer blocks that hold only accesses, among others, are decoded with these."""

PIECE_BLOCKS = 16
"""Blocks that are still in a core's caches when they are looked at again."""

# numba computes in the types of its operands: unsigned constants keep words unsigned.
WORD_HEADER = wire.WORD_HEADER
WORD_TIME = wire.WORD_TIME
WORD_FIRST_RECORD = wire.WORD_FIRST_RECORD
WORD_CHECK = wire.WORD_CHECK
BLOCK_RECORDS_MAX = wire.BLOCK_RECORDS_MAX
ONE = np.uint64(1)
_U32_MAX = np.iinfo(np.uint32).max
TAG_SHIFT = np.uint64(wire.TAG_SHIFT)
TAG_CHECK = np.uint64(wire.Tag.CHECK)
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
TIME_MASK = np.uint64(COUNTER_TICKS - 1)
AHEAD_MAX = np.uint64(COUNTER_TICKS // 2)
EVENT_DELTA_SHIFT = np.uint64(wire.EVENT_DELTA_SHIFT)
EVENT_DELTA_MASK = np.uint64((1 << wire.EVENT_DELTA_BITS) - 1)
EVENT_VALUE_MASK = np.uint64((1 << wire.EVENT_DELTA_SHIFT) - 1)

HEADER_KIND_SHIFT = np.uint64(wire.HEADER_CHANNEL_SHIFT)
HEADER_SEQ_MASK = np.uint64((1 << wire.HEADER_SEQ_BITS) - 1)
CHECK_CRC_MASK = np.uint64((1 << wire.CHECK_CRC_BITS) - 1)
CHECK_ZERO_MASK = np.uint64(0xFFFF << wire.CHECK_CRC_BITS)
ACCESS_TAG_BITS = TAG_ACCESS << TAG_SHIFT
TAG_MASK = ~((ONE << TAG_SHIFT) - ONE)
WRITE_BIT = ONE << ACCESS_WRITE_SHIFT

_SALVAGE_HINT = "use --salvage to leave damaged blocks out and count them as lost, or record again"
_ACCESS_DELTA_MAX = int(ACCESS_DELTA_MASK)
_EVENT_DELTA_MAX = int(EVENT_DELTA_MASK)


class BlockWriter:
    """Writes one channel's capture stream to a binary file.

    Times are absolute ticks, of which the stream has the low 60 bits, and must not run backwards;
    addresses are bytes, multiples of 8.
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
        block[wire.WORD_TIME] = self._block_time_ticks % COUNTER_TICKS
        block[wire.WORD_FIRST_RECORD : wire.WORD_FIRST_RECORD + len(self._words)] = self._words
        seal(block, len(self._words))
        self._file.write(block.tobytes())
        self.blocks += 1
        self._words.clear()

    def _advance(self, time_ticks: int, delta_max: int) -> int:
        if time_ticks < self._time_ticks:
            raise ValueError(f"time runs backwards: {time_ticks} after {self._time_ticks}")
        records = 1 + (time_ticks - self._time_ticks > delta_max)  # a TIME record, too
        if len(self._words) + records > wire.BLOCK_RECORDS_MAX:
            self.flush()
        if not self._words:
            self._block_time_ticks = self._time_ticks = time_ticks
        delta = time_ticks - self._time_ticks
        self._time_ticks = time_ticks
        if delta > delta_max:
            self._words.append(wire.Tag.TIME << wire.TAG_SHIFT | time_ticks % COUNTER_TICKS)
            return 0
        return delta


def seal(block: U64, records: int) -> None:
    """Write the check word of a block of which `records` record words are filled in."""
    crc = zlib_ng.crc32(block[: wire.WORD_CHECK].tobytes())
    block[wire.WORD_CHECK] = (
        wire.Tag.CHECK << wire.TAG_SHIFT | records << wire.CHECK_COUNT_SHIFT | crc
    )


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
        ticks, address, write = _access(self.words, position)
        return Access(int(ticks), int(address), bool(write))

    def times(self, positions: Sequence[int]) -> list[int]:
        """Times of accesses."""
        wanted = np.array(positions, np.int64)
        known = self._recall()
        ticks = known.times(wanted) if known else None
        if ticks is None:
            ticks = _times(self.words, wanted)
        found: list[int] = ticks.tolist()
        return found

    def stores(self) -> Stores:
        """Positions, times and addresses of the writes."""
        if self.found is None:
            if known := self._recall():
                self.found = known.stores()
            else:
                self.found = _writes(self.words) if self.writes else NO_STORES
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
        if self._to_the_end and (self._cut or self.known.states[-1][_MISSING]):
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
        missing_blocks = int(state[_MISSING]) + self._cut
        if missing_blocks and self._to_the_end:
            nothing = np.empty(0, np.uint64)
            lost = Lost(0, int(state[_TICKS]), END_OF_TIME, None, missing_blocks)
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
            len(words), int(state[_TICKS]), holds == WRITES, read, file, first * wire.BLOCK_BYTES,
            self._sums(first, words), recall,
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
        capacity = len(words) * wire.BLOCK_RECORDS_MAX
        time, address = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
        write = np.empty(capacity, np.bool_)
        others = np.empty((capacity + len(words), 5), np.uint64)
        good = np.empty(len(words), np.bool_)
        expected_seq = int(state[_SEQ])
        accesses, n_others = decode_blocks(
            words, crc, self._kind, state, good, time, address, write, others
        )
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
                last_ticks = int(state[_TICKS])
                parts.append(PlainChunk(end - start, last_ticks, holds == WRITES, here.view))
        after = None
        for part in reversed(parts):
            part.after = after
            after = part.access(0) if part.accesses else after
        return parts

    def _refuse(self, i: int, words: U64, crc: U64, first: int, expected_seq: int) -> None:
        """Say what is wrong with the first damaged block, number `i` of those given."""
        if i:
            expected_seq = (int(words[i - 1, wire.WORD_HEADER]) + 1) & _SEQ_MASK
        problem = _problem(words[i], int(crc[i]), self.channel, expected_seq)
        at = (first + i) * wire.BLOCK_BYTES
        raise ParseError(f"{self.path}: block {first + i} at byte {at}: {problem}", _SALVAGE_HINT)


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


def crcs(words: U64) -> U64:
    """CRC of each block's words but the last."""
    view = words.data.cast("B")
    crc32, checked_bytes = zlib_ng.crc32, wire.WORD_CHECK * 8
    return np.array(
        [crc32(view[at : at + checked_bytes]) for at in range(0, len(view), wire.BLOCK_BYTES)],
        np.uint64,
    )


@jit
def pieces_in(blocks: Integer) -> Integer:
    """How many pieces so many blocks of a chunk are."""
    return -(-blocks // PIECE_BLOCKS)


@jit
def sums_of(words: U64) -> U64:
    """Two sums for each piece of some blocks, modulo 2^64, shape ``(pieces, 2)``.

    Of all its words, which no change of one word leaves as it is, and of each times its place.
    """
    sums = np.empty((pieces_in(words.shape[0]), 2), np.uint64)
    for piece in range(sums.shape[0]):
        start = piece * PIECE_BLOCKS
        sums[piece] = sum_up(words[start : start + PIECE_BLOCKS])
    return sums


@bare
def sum_up(words: U64) -> tuple[Integer, Integer]:
    """Those of one piece."""
    total = by_place = np.uint64(0)
    for b in range(words.shape[0]):
        block = words[b]
        for i in range(wire.BLOCK_WORDS):
            total += block[i]
            by_place += block[i] * np.uint64(b * wire.BLOCK_WORDS + i + 1)
    return total, by_place


def _problem(block: U64, crc: int, channel: int, expected_seq: int) -> str:
    """What is wrong with a damaged block. `expected_seq`: -1 if it is the first."""
    header, check = int(block[wire.WORD_HEADER]), int(block[wire.WORD_CHECK])
    if header >> wire.HEADER_MAGIC_SHIFT != wire.MAGIC:
        return "not a block of a capture stream (wrong magic number)"
    version = header >> wire.HEADER_VERSION_SHIFT & ((1 << wire.HEADER_VERSION_BITS) - 1)
    if version != wire.VERSION:
        return f"format version {version}; this ptat reads version {wire.VERSION}"
    if check & int(CHECK_CRC_MASK) != crc:
        return f"damaged: CRC {crc:#010x}, {check & int(CHECK_CRC_MASK):#010x} expected"
    if check >> wire.TAG_SHIFT != wire.Tag.CHECK or check & int(CHECK_ZERO_MASK):
        return "damaged: the check word is malformed"
    if check >> wire.CHECK_COUNT_SHIFT & int(COUNT_MASK) > wire.BLOCK_RECORDS_MAX:
        return "damaged: more records than a block can hold"
    of_channel = header >> wire.HEADER_CHANNEL_SHIFT & ((1 << wire.HEADER_CHANNEL_BITS) - 1)
    if of_channel != channel:
        return f"of channel {of_channel}, not {channel}"
    seq = header & _SEQ_MASK
    if expected_seq >= 0 and (seq - expected_seq) & _SEQ_MASK > _SEQ_MASK // 2:
        return f"out of order: sequence number {seq}, {expected_seq} expected"
    # Its CRC is right, but it does not cover the number of records.
    return "damaged: a word that is no record, or time runs backwards"


_SEQ_MASK = (1 << wire.HEADER_SEQ_BITS) - 1

# What a block must know of those before it; all int64.
(
    _SEQ,  # the sequence number expected next, -1 before the first block
    _MISSING,  # damaged blocks since the last good one
    _TICKS,  # time of the last record
) = range(3)
_STATE = 3


OTHERS, READS, WRITES = range(3)
"""What a chunk holds: other words than accesses, reads only, or some writes."""


@jit
def _is_good(words: U64, crc: Integer, kind: Integer, seq: Integer, last: Integer) -> bool:
    """Whether a block is what its header and its check word say, and may follow.

    `seq`: the sequence number expected, -1 if none is; `last`: time of the last record.
    """
    header, check = words[WORD_HEADER], words[WORD_CHECK]
    return bool(
        header >> HEADER_KIND_SHIFT == kind
        and check & CHECK_CRC_MASK == crc
        and check >> TAG_SHIFT == TAG_CHECK
        and check & CHECK_ZERO_MASK == 0
        and check >> CHECK_COUNT_SHIFT & COUNT_MASK <= BLOCK_RECORDS_MAX
        and _gap(words, seq) <= _SEQ_MASK // 2
        and words[WORD_TIME] <= TIME_MASK
        and (_ahead(words, last) < AHEAD_MAX or seq < 0)
    )


@jit
def _ahead(words: U64, last: Integer) -> Integer:
    """Ticks from `last` to a block's time."""
    return (words[WORD_TIME] - last) & TIME_MASK


@jit
def _gap(words: U64, seq: Integer) -> Integer:
    """Blocks missing before this one."""
    return (np.int64(words[WORD_HEADER] & HEADER_SEQ_MASK) - seq) & _SEQ_MASK if seq >= 0 else 0


@inlined
def delta_of(word: Integer) -> Integer:
    """Ticks from the access before to this one."""
    return word >> ACCESS_DELTA_SHIFT & ACCESS_DELTA_MASK


@jit
def look(words: U64, crc: U64, kind: Integer, state: npt.NDArray[np.int64]) -> Integer:
    """Verify blocks, and say what they hold; `state` stays as it was if that is `OTHERS`."""
    writes = np.uint64(0)
    seq = state[_SEQ]
    last = np.uint64(state[_TICKS])
    if state[_MISSING]:
        return OTHERS
    for b in range(words.shape[0]):
        block = words[b]
        if (
            not _is_good(block, crc[b], kind, seq, last)
            or _gap(block, seq)
            or block[WORD_CHECK] >> CHECK_COUNT_SHIFT & COUNT_MASK != BLOCK_RECORDS_MAX
            or last + _ahead(block, last) != block[WORD_TIME]  # the counter has wrapped
        ):
            return OTHERS
        seq = (np.int64(block[WORD_HEADER] & HEADER_SEQ_MASK) + 1) & _SEQ_MASK
        last = block[WORD_TIME]
        others = np.uint64(0)
        for i in range(WORD_FIRST_RECORD, WORD_CHECK):
            word = block[i]
            others |= word ^ ACCESS_TAG_BITS
            last += delta_of(word)
        if others & TAG_MASK:
            return OTHERS
        writes |= others
    state[_SEQ] = seq
    state[_TICKS] = np.int64(last)
    return WRITES if writes & WRITE_BIT else READS


def _cuts(values: npt.NDArray[np.bool_]) -> list[int]:
    """Where a run of equal values begins, and the end."""
    return [0, *(1 + np.flatnonzero(values[1:] != values[:-1])).tolist(), values.size]


@jit
def hold_only_accesses(words: U64) -> npt.NDArray[np.bool_]:
    """Which blocks hold `BLOCK_RECORDS_MAX` accesses and nothing else; they may be damaged."""
    only = np.empty(words.shape[0], np.bool_)
    for b in range(words.shape[0]):
        block = words[b]
        others = np.uint64(0)
        for i in range(WORD_FIRST_RECORD, WORD_CHECK):
            others |= block[i] ^ ACCESS_TAG_BITS
        only[b] = not others & TAG_MASK
    return only


@jit
def decode_plain(block: U64, time: U64, address: U64, write: npt.NDArray[np.bool_]) -> None:
    """Decode the words of a block that holds only accesses: times (ticks), addresses (bytes)."""
    now = block[WORD_TIME]
    for i in range(BLOCK_RECORDS_MAX):
        word = block[WORD_FIRST_RECORD + i]
        now += delta_of(word)
        time[i] = now
        address[i] = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
        write[i] = word & WRITE_BIT != 0


@jit
def _access(words: U64, position: Integer) -> tuple[Integer, Integer, Integer]:
    """Time, address and direction of an access in blocks that hold only accesses."""
    block = words[position // BLOCK_RECORDS_MAX]
    records = block[WORD_FIRST_RECORD : WORD_FIRST_RECORD + position % BLOCK_RECORDS_MAX + 1]
    now = block[WORD_TIME]
    for word in records:
        now += delta_of(word)
    address = (records[-1] & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
    return now, address, records[-1] & WRITE_BIT


@jit
def _times(words: U64, positions: npt.NDArray[np.int64]) -> U64:
    """Times of accesses in blocks that hold only accesses."""
    times = np.empty(positions.size, np.uint64)
    for i in range(positions.size):
        times[i], _, _ = _access(words, positions[i])
    return times


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


@jit
def _writes(words: U64) -> Stores:
    """Positions, times and addresses of the writes in blocks that hold only accesses."""
    n: Integer = 0
    of_block = np.zeros(words.shape[0], np.int64)  # most have none
    for b in range(words.shape[0]):
        for i in range(WORD_FIRST_RECORD, WORD_CHECK):
            of_block[b] += np.int64(words[b, i] >> ACCESS_WRITE_SHIFT & ONE)
        n += of_block[b]
    position, time, address = np.empty(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.uint64)
    n = 0
    for b in range(words.shape[0]):
        if not of_block[b]:
            continue
        now = words[b, WORD_TIME]
        for i in range(BLOCK_RECORDS_MAX):
            word = words[b, WORD_FIRST_RECORD + i]
            now += delta_of(word)
            if word & WRITE_BIT:
                position[n] = b * BLOCK_RECORDS_MAX + i
                time[n] = now
                address[n] = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
                n += 1
    return position, time, address


@jit
def decode_blocks(
    words: U64,
    crc: U64,
    kind: Integer,
    state: npt.NDArray[np.int64],
    good: npt.NDArray[np.bool_],
    time: U64,
    address: U64,
    write: npt.NDArray[np.bool_],
    others: U64,
) -> tuple[Integer, Integer]:
    """Verify and decode blocks, `words` of shape ``(blocks, 1024)``.

    `crc` is what each block's CRC should be, `kind` what the bits of its header from the channel
    up. Says which blocks are `good`, and fills of these `time` (ticks), `address` (bytes), `write`
    and `others`, rows for `lost_and_marks`. Returns the number of accesses and of others.
    """
    n = 0
    m = 0
    last = np.uint64(state[_TICKS])
    for b in range(words.shape[0]):
        good[b] = _is_good(words[b], crc[b], kind, state[_SEQ], last)
        if not good[b]:
            state[_MISSING] += 1
            continue
        count: Integer = np.int64(words[b, WORD_CHECK] >> CHECK_COUNT_SHIFT & COUNT_MASK)
        gap = _gap(words[b], state[_SEQ])
        ahead = _ahead(words[b], last)
        accesses, n_others = n, m
        now = last + ahead
        # Blocks that were left out here are part of the gap.
        missing = max(gap, state[_MISSING])
        if missing:
            others[m, 0] = n
            others[m, 1] = last
            others[m, 2] = now
            others[m, 3] = 0
            others[m, 4] = missing
            m += 1
        valid = True
        end: Integer = WORD_FIRST_RECORD + count
        for j in range(WORD_FIRST_RECORD, end):
            word = words[b, j]
            tag = word >> TAG_SHIFT
            if tag == TAG_ACCESS:
                now += delta_of(word)
                time[n] = now
                address[n] = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
                write[n] = word >> ACCESS_WRITE_SHIFT & ONE
                n += 1
            elif tag == TAG_TIME:
                ahead = (word - now) & TIME_MASK
                valid &= ahead < AHEAD_MAX
                now += ahead
            elif tag in (TAG_LOST, TAG_MARK):
                others[m, 0] = n
                others[m, 1] = now
                now += word >> EVENT_DELTA_SHIFT & EVENT_DELTA_MASK
                others[m, 2] = now
                others[m, 3] = tag
                others[m, 4] = word & EVENT_VALUE_MASK
                m += 1
            else:
                valid = False
        padding = np.uint64(0)
        for j in range(end, WORD_CHECK):
            padding |= words[b, j]
        if not valid or padding != 0:
            n, m = accesses, n_others
            state[_MISSING] += 1
            good[b] = False
            continue
        last = now
        state[_SEQ] = (np.int64(words[b, WORD_HEADER] & HEADER_SEQ_MASK) + 1) & _SEQ_MASK
        state[_MISSING] = 0
    state[_TICKS] = np.int64(last)
    return n, m
