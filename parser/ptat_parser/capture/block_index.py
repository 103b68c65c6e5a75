# SPDX-License-Identifier: BSD-2-Clause
"""Outline of a capture (``bus.0.outline``): what is in it besides reads, as the recorder saw it.

How the clocks go together, and where tables change, is known at the end of a capture only, so that
its reads can be told from each other only when it is read again. The outline spares the first
time: for whoever records, the words are in a cache anyway. It is a hundredth of the capture, or
less, and holds sums of all blocks, by which who reads these sees that they are the same still.

docs/formats.md describes the layout.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.capture.chunks import (
    NO_STORES,
    AnyChunk,
    Lost,
    PlainChunk,
    RememberedStores,
    Seen,
    join_stores,
    lost_and_marks,
    rows_of,
)
from ptat_parser.capture.decode import (
    END_OF_TIME,
    OTHERS,
    PIECE_BLOCKS,
    READS,
    WRITES,
    Stores,
    pieces_in,
    sums_of,
)
from ptat_parser.capture.reader import STORES_REMEMBERED, BusReader, Known
from ptat_parser.compiled.jit import jit
from ptat_parser.errors import ParseError
from ptat_parser.formats.archive import from_planes, to_planes
from ptat_parser.formats.session import Region
from ptat_parser.formats.storage import Source

U64 = npt.NDArray[np.uint64]

MAGIC = b"PTAT-OUT"
END_MAGIC = b"OUT-END\0"
VERSION = 1

HEADER = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("zero", "<u4"), ("chunk", "<u4"), ("piece", "<u4")]
)
"""Start of the file. Blocks of the capture in each `chunk`, and in each `piece` of one."""

CHUNK = np.dtype(
    [
        ("accesses", "<u4"),
        ("holds", "<u4"),  # as `capture.decode` has it
        ("stores", "<u4"),
        ("others", "<u4"),  # records that are neither accesses nor times, and gaps between blocks
        ("first_ticks", "<u8"),  # of its first access
        ("first_address", "<u8"),  # plus 1 if that is a write
        ("last_ticks", "<u8"),  # of its last access
        ("end_ticks", "<u8"),  # of its last record
        ("next_block", "<u8"),  # sequence number that is due after it
    ]
)
"""What is known of a chunk; a row of the footer."""

GROUP = np.dtype([("offset", "<u8"), ("data_bytes", "<u4"), ("data_crc", "<u4"), ("chunks", "<u8")])
"""Where the stores and others of so many chunks are in the file; a row of the footer."""

END = np.dtype(
    [
        ("offset", "<u8"),  # of the footer
        ("blocks", "<u8"),  # of the capture
        ("groups", "<u8"),
        ("crc", "<u4"),  # of header and footer
        ("zero", "<u4"),
        ("magic", "S8"),
    ]
)
"""End of the file."""

CHUNK_BLOCKS_MAX = 1 << 14
"""More in one chunk is not believed."""

GROUP_RECORDS = 1 << 16
"""A group with so many stores and others ends."""

GROUP_CHUNKS = 1 << 10
"""A group of so many chunks ends."""

_CODEC = pa.Codec("zstd", compression_level=1)


def path_of(capture: Path) -> Path:
    """Where a capture's outline is."""
    return capture.with_suffix(".outline")


# Writing ------------------------------------------------------------------------------------------


def write(capture: Path, channel: int = 0) -> None:
    """Read a capture and write its outline beside it, which is whole or not there.

    Raises `ParseError` for a capture that is damaged, `OSError` where the disk is full.
    """
    target = path_of(capture)
    unfinished = target.with_name(target.name + ".new")
    try:
        _write(BusReader(capture, channel), unfinished)
        unfinished.rename(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _write(reader: BusReader, path: Path) -> None:
    rows, sums, groups = [], [], []
    group: list[Seen] = []
    records = 0
    with path.open("wb") as file:

        def end_group() -> None:
            row = np.zeros((), GROUP)
            row["offset"], row["chunks"] = file.tell(), len(group)
            words = _to_words(Seen.joined(group))
            if words.size:
                data = _CODEC.compress(to_planes(words.tobytes()))
                row["data_bytes"], row["data_crc"] = data.size, zlib_ng.crc32(data)
                file.write(data)
            groups.append(row)
            group.clear()

        header = np.array((MAGIC, VERSION, 0, reader.chunk_blocks, PIECE_BLOCKS), HEADER)
        file.write(header.tobytes())
        for number, chunk in enumerate(reader.chunks()):
            seen = Seen.of(chunk)
            group.append(seen)
            rows.append(_row_of(seen))
            sums.append(sums_of(_words_of(reader, number, chunk)))
            records += int(rows[-1]["stores"]) + int(rows[-1]["others"])
            if records >= GROUP_RECORDS or len(group) == GROUP_CHUNKS:
                end_group()
                records = 0
        if group:
            end_group()
        parts = _table(rows, reader), np.concatenate(sums), np.array(groups, GROUP)
        footer = b"".join(part.tobytes() for part in parts)
        crc = zlib_ng.crc32(header.tobytes() + footer)
        end = np.array((file.tell(), reader.blocks, len(groups), crc, 0, END_MAGIC), END)
        file.write(footer + end.tobytes())
        file.flush()
        os.fsync(file.fileno())


def _row_of(seen: Seen) -> npt.NDArray[np.void]:
    row = np.zeros((), CHUNK)
    row["accesses"] = seen.accesses
    row["stores"], row["others"] = seen.stores[0].size, len(seen.lost) + len(seen.marks)
    (first,) = seen.firsts
    if first:
        _, ticks, address, is_write = first
        row["first_ticks"], row["first_address"] = ticks, address | is_write
        row["last_ticks"] = seen.last_ticks
    return row


def _table(rows: list[npt.NDArray[np.void]], reader: BusReader) -> npt.NDArray[np.void]:
    """Rows of all chunks, with what a reader knows now that it has looked at them."""
    table = np.array(rows, CHUNK)
    assert reader.known
    table["holds"] = reader.known.holds
    table["next_block"], _, table["end_ticks"] = zip(*reader.known.states[1:], strict=True)
    return table


def _words_of(reader: BusReader, number: int, chunk: AnyChunk) -> U64:
    if isinstance(chunk, PlainChunk):
        return chunk.words
    first = number * reader.chunk_blocks
    words = np.empty((min(reader.chunk_blocks, reader.blocks - first), wire.BLOCK_WORDS), np.uint64)
    reader.read(first, words)
    return words


def _to_words(seen: Seen) -> U64:
    """Positions, times and addresses of stores, each less the one before, and the others' rows."""
    stores = [np.diff(column.astype(np.uint64), prepend=np.uint64(0)) for column in seen.stores]
    return np.concatenate([*stores, rows_of(seen.lost, seen.marks).ravel()])


# Reading ------------------------------------------------------------------------------------------


def use(reader: BusReader, region: Region) -> bool:
    """Let a reader know what an outline beside its capture tells, if there is one.

    Not one that is of another capture as it seems. Raises `ParseError` for one that is damaged.
    """
    path = path_of(reader.path)
    if not path.is_file():
        return False
    outline = Outline(path)
    chunks = outline.chunks
    offset = (chunks["first_address"] - np.uint64(region.base))[chunks["accesses"] > 0]
    if not outline.fits(reader) or not np.any(offset < np.uint64(region.size_bytes)):
        return False
    next_block, end_ticks = chunks["next_block"].tolist(), chunks["end_ticks"].tolist()
    reader.known = Known(
        0,
        holds=chunks["holds"].tolist(),
        states=[(-1, 0, reader.since_ticks), *zip(next_block, repeat(0), end_ticks, strict=False)],
        stored=[None] * len(chunks),
        foretold=outline,
    )
    return True


class _Told(NamedTuple):
    """What a group tells, as far as it is asked for again."""

    stores: Stores
    lost: Sequence[Lost]


class Outline:
    """An outline of a capture of so many `blocks`; `chunks` (dtype `CHUNK`) is of its chunks.

    These have `chunk_blocks`, and pieces of `piece_blocks`; `sums`, shape ``(pieces, 2)``, are
    those of `blocks.sums_of`. Raises `ParseError` for a file that is no outline, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source = Source(path)
        header = self._row(0, HEADER)
        if header["magic"] != MAGIC:
            raise self._bad("not an outline of a capture")
        if header["version"] != VERSION:
            raise self._bad(f"version {header['version']}; this ptat reads version {VERSION}")
        at = self._source.size_bytes - END.itemsize
        end = self._row(at, END)
        offset, self.blocks, groups = (int(end[name]) for name in ("offset", "blocks", "groups"))
        self.chunk_blocks, self.piece_blocks = int(header["chunk"]), int(header["piece"])
        if (
            end["magic"] != END_MAGIC.rstrip(b"\0")
            or end["zero"]
            or header["zero"]
            or not self.piece_blocks
            or not 0 < self.chunk_blocks <= CHUNK_BLOCKS_MAX
        ):
            raise self._bad("truncated, or damaged")
        whole, rest = divmod(self.blocks, self.chunk_blocks)
        chunks = (whole + (rest > 0)) * CHUNK.itemsize
        in_chunk, in_last = (-(-size // self.piece_blocks) for size in (self.chunk_blocks, rest))
        sums = chunks + (whole * in_chunk + in_last) * 16
        if offset + sums + groups * GROUP.itemsize != at:
            raise self._bad("truncated, or damaged")
        footer = self._source.read(offset, at - offset)
        if zlib_ng.crc32(header.tobytes() + footer) != end["crc"]:
            raise self._bad("damaged")
        self.chunks: npt.NDArray[np.void] = np.frombuffer(footer[:chunks], CHUNK)
        self.sums: U64 = np.frombuffer(footer[chunks:sums], np.uint64).reshape(-1, 2)
        self._groups: npt.NDArray[np.void] = np.frombuffer(footer[sums:], GROUP)
        self._ends = np.cumsum(self._groups["chunks"].astype(np.int64))  # chunk after each group
        self._firsts = self._ends - self._groups["chunks"].astype(np.int64)
        if not self._is_plausible(offset):
            raise self._bad("damaged")
        self._start = np.concatenate([[0], np.cumsum(self.chunks["accesses"], dtype=np.int64)])
        self._held: tuple[int, _Told] | None = None
        self._remembered: dict[int, tuple[RememberedStores, Sequence[Lost]]] = {}
        self._stores_remembered = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": None, "_remembered": {}, "_stores_remembered": 0}

    def fits(self, reader: BusReader) -> bool:
        """Whether it is of a capture as long as the reader's, in parts like the reader's."""
        parts = self.blocks, self.chunk_blocks, self.piece_blocks
        return parts == (reader.blocks, reader.chunk_blocks, PIECE_BLOCKS)

    def seen(self) -> Iterator[Seen]:
        """What is in the capture, some chunks at a time. Raises `ParseError` if that is damaged.

        Stores are remembered for `stores`, if they are not too many.
        """
        for group in range(len(self._groups)):
            found = self._seen(group)
            self._remember(group, found)
            yield found

    def is_whole(self, first: int, end: int) -> bool:
        """Whether nothing was lost in the chunks ``first … end``."""
        if self.chunks["others"][first:end].any():
            for start, told in self._groups_of(first, end):
                # A loss between two chunks may be noted with either.
                since, until = self._start[[first, end]] - start
                if any(since <= lost.position <= until for lost in told.lost):
                    return False
        return True

    def _groups_of(self, first: int, end: int) -> Iterator[tuple[int, _Told]]:
        """The groups that these chunks are of: number of the first access, and what is there."""
        groups = self._ends.searchsorted([first, end - 1], side="right").tolist()
        for group in range(groups[0], groups[1] + 1):
            if not self._held or self._held[0] != group:
                self._held = group, self._told(group)
            yield int(self._start[self._firsts[group]]), self._held[1]

    def stores(self, first: int, end: int) -> Stores:
        """Those of the chunks ``first … end``, positions from the first of them on."""
        parts = [NO_STORES]
        if self.count_stores(first, end):
            begins = self._start[first]
            for start, told in self._groups_of(first, end):
                position, ticks, address = told.stores
                here = slice(*position.searchsorted(self._start[[first, end]] - start))
                parts.append((position[here] + (start - begins), ticks[here], address[here]))
        return join_stores(parts)

    def _remember(self, group: int, seen: Seen) -> None:
        size = seen.stores[0].size
        if group in self._remembered or self._stores_remembered + size > STORES_REMEMBERED:
            return
        if packed := RememberedStores.packed(seen.stores):
            self._remembered[group] = packed, seen.lost
            self._stores_remembered += size

    def _told(self, group: int) -> _Told:
        if remembered := self._remembered.get(group):
            packed, lost = remembered
            return _Told(packed.stores(), lost)
        seen = self._seen(group)
        return _Told(seen.stores, seen.lost)

    def count_stores(self, first: int, end: int) -> int:
        """How many these are."""
        return int(self.chunks["stores"][first:end].sum(dtype=np.int64))

    def differs(self, reader: BusReader) -> int | None:
        """The first of some blocks that are not what is told here, if there are any.

        `reader` has not looked at the capture yet.
        """
        if not self.fits(reader):
            return 0
        chunks, rows = enumerate(reader.chunks()), []
        for group, told in enumerate(self.seen()):
            here = []
            for number, chunk in islice(chunks, int(self._groups["chunks"][group])):
                here.append(Seen.of(chunk))
                rows.append(_row_of(here[-1]))
                sums = sums_of(_words_of(reader, number, chunk))
                first = number * pieces_in(self.chunk_blocks)
                if not np.array_equal(sums, self.sums[first : first + len(sums)]):
                    return number * self.chunk_blocks
            if not _is_alike(Seen.joined(here), told):
                return int(self._firsts[group]) * self.chunk_blocks
        assert next(chunks, None) is None  # now the reader knows all
        different = np.flatnonzero(_table(rows, reader) != self.chunks)
        return int(different[0]) * self.chunk_blocks if different.size else None

    def _seen(self, group: int) -> Seen:
        first, end = int(self._firsts[group]), int(self._ends[group])
        rows = self.chunks[first:end]
        accesses = int(self._start[end] - self._start[first])
        stores, others = int(rows["stores"].sum()), int(rows["others"].sum())
        words = self._words(group, 3 * stores + 5 * others)
        columns, records = words[: 3 * stores].reshape(3, -1), words[3 * stores :].reshape(-1, 5)
        _sum_up(columns)
        position, ticks, address = columns
        if (
            np.any(position[1:] <= position[:-1])
            or np.any(position[-1:] >= accesses)
            or np.any(records[:, 0] > accesses)
            or max(ticks.max(initial=0), records[:, 1:3].max(initial=0)) > END_OF_TIME
        ):
            raise self._bad("damaged")
        starts = (self._start[first:end] - self._start[first]).tolist()
        firsts: list[tuple[int, int, int, bool] | None] = [
            (start, ticks, address & ~1, bool(address & 1)) if accesses else None
            for start, accesses, ticks, address in zip(
                starts,
                rows["accesses"].tolist(),
                rows["first_ticks"].tolist(),
                rows["first_address"].tolist(),
                strict=True,
            )
        ]
        last_ticks = rows["last_ticks"][rows["accesses"] > 0]
        return Seen(
            accesses,
            firsts,
            int(last_ticks[-1]) if last_ticks.size else -1,
            (position.view(np.int64), ticks, address),
            *lost_and_marks(records),
        )

    def _words(self, group: int, size: int) -> U64:
        row = self._groups[group]
        data = self._source.read(int(row["offset"]), int(row["data_bytes"]))
        words = np.empty(size, np.uint64)
        if not size and not data:
            return words
        if zlib_ng.crc32(data) == row["data_crc"]:
            with contextlib.suppress(OSError, pa.ArrowInvalid):
                planes = np.frombuffer(_CODEC.decompress(data, words.nbytes), np.uint8)
                if planes.size == words.nbytes:
                    from_planes(planes.reshape(8, -1), words)
                    return words
        raise self._bad("damaged")

    def _is_plausible(self, offset: int) -> bool:
        """Whether the rows may be; the footer is at `offset` in the file."""
        rows, groups = self.chunks, self._groups
        plain = rows["holds"] != OTHERS
        in_chunk = np.full(len(rows), self.chunk_blocks, np.int64)
        in_chunk[-1:] = self.blocks - (len(rows) - 1) * self.chunk_blocks
        accesses_max = in_chunk * wire.BLOCK_RECORDS_MAX
        bad_chunk = (
            (rows["stores"] > rows["accesses"])
            | (rows["accesses"] > accesses_max)
            | (rows["others"] > accesses_max + in_chunk)
            | (rows["holds"] > WRITES)
            | (rows["end_ticks"] > END_OF_TIME)
            | plain & ((rows["accesses"] != accesses_max) | (rows["others"] > 0))
            | (rows["holds"] == READS) & (rows["stores"] > 0)
        )
        bad_group = (
            (groups["offset"] > offset)
            | (groups["data_bytes"] > offset - groups["offset"].astype(np.int64))
            | (groups["chunks"] < 1)
            | (groups["chunks"] > GROUP_CHUNKS)
        )
        all_in_groups = int(self._ends[-1]) if len(groups) else 0
        if bad_chunk.any() or bad_group.any() or all_in_groups != len(rows):
            return False
        in_groups = np.add.reduceat(rows["stores"] + rows["others"].astype(np.int64), self._firsts)
        records_max = self.chunk_blocks * (wire.BLOCK_RECORDS_MAX + 1)  # of the last one's chunk
        return bool(np.all(in_groups < GROUP_RECORDS + records_max))

    def _row(self, at: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        data = self._source.read(max(at, 0), dtype.itemsize)
        if at < 0 or len(data) < dtype.itemsize:
            raise self._bad("truncated, or damaged")
        row: npt.NDArray[np.void] = np.frombuffer(data, dtype)[0]
        return row

    def _bad(self, what: str) -> ParseError:
        return ParseError(f"{self.path}: {what}", "remove it: ptat parse does without it")


def _is_alike(one: Seen, other: Seen) -> bool:
    return (
        (one.accesses, one.firsts, one.last_ticks, *one.lost, *one.marks)
        == (other.accesses, other.firsts, other.last_ticks, *other.lost, *other.marks)
    ) and all(map(np.array_equal, one.stores, other.stores))


@jit
def _sum_up(columns: U64) -> None:
    """From differences to numbers."""
    for column in columns:
        for i in range(1, column.size):
            column[i] += column[i - 1]
