# SPDX-License-Identifier: BSD-2-Clause
"""Index of a capture: everything in it except the reads.

A parse takes two passes, because the clocks can be fitted only when all markers are known. The
first pass finds stores, marks and losses; the second classifies the reads. The index holds the
result of the first pass. ``ptat record`` stores it in the archive's footer, which saves the first
pass; it takes a hundredth of the capture or less.

docs/formats.md describes the layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.capture.chunks import (
    NO_STORES,
    ChunkContents,
    join_stores,
    lost_and_marks,
    rows_of,
)
from ptat_parser.capture.decode import END_OF_TIME, OTHERS, READS, WRITES, Stores
from ptat_parser.errors import ParseError
from ptat_parser.formats.archive import ArchiveStream, from_planes, to_planes

U64 = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.void]

MAGIC = b"PTAT-IDX"
VERSION = 2
"""Indexes of version 1 let losses begin at a TIME record; they are ignored."""

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("chunk_blocks", "<u4"),
        ("blocks", "<u8"),
        ("groups", "<u4"),
        ("crc", "<u4"),  # of the header up to here, chunks and groups
    ]
)
"""Start of the index. `blocks`: in the capture; `chunk_blocks`: in each chunk."""

CHUNK = np.dtype(
    [
        ("accesses", "<u4"),
        ("holds", "<u4"),  # OTHERS, READS or WRITES of `capture.decode`
        ("stores", "<u4"),
        ("others", "<u4"),  # gaps between blocks, and records that are neither accesses nor times
        ("first_ticks", "<u8"),  # of its first access
        ("first_address", "<u8"),  # of its first access; plus 1 if that is a write
        ("last_ticks", "<u8"),  # of its last access
        ("end_ticks", "<u8"),  # of its last record
        ("next_block", "<i8"),  # sequence number expected after it
        ("missing", "<u8"),  # damaged blocks at its end
    ]
)
"""Summary of a chunk."""

GROUP = np.dtype([("offset", "<u8"), ("data_bytes", "<u4"), ("data_crc", "<u4"), ("chunks", "<u8")])
"""Where the index holds the stores and other records of a group of chunks."""

GROUP_RECORDS = 1 << 16
"""A group ends when it has this many stores and other records."""

GROUP_CHUNKS = 1 << 10
"""A group ends when it has this many chunks."""

DATA_BYTES_MAX = 256 << 20
"""Most bytes of groups to keep in memory; enough for some billion records."""

_CODEC = pa.Codec("zstd", compression_level=1)


class BlockIndex:
    """The index of a capture of `blocks` blocks; `chunks` (dtype `CHUNK`) describes its chunks.

    `groups` (dtype `GROUP`) and their `data` hold stores, losses and marks. `data` is None if it
    would be too large; then only `chunks` is known.
    """

    def __init__(
        self, path: Path, blocks: int, chunks: Rows, groups: Rows, data: Sequence[bytes] | None
    ) -> None:
        self.path, self.blocks, self.chunks = path, blocks, chunks
        self._groups, self._data = groups, data
        self._ends = np.cumsum(groups["chunks"].astype(np.int64))  # the chunk after each group
        self._firsts = self._ends - groups["chunks"].astype(np.int64)
        self._start = np.concatenate([[0], np.cumsum(chunks["accesses"], dtype=np.int64)])
        self._held: tuple[int, ChunkContents] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": None}

    def contents(self) -> Iterator[ChunkContents]:
        """Yields the contents of some chunks at a time; `ParseError` if they are damaged."""
        return map(self._contents, range(len(self._groups)))

    def holds(self, chunk: int) -> int:
        """Contents of a chunk: `OTHERS`, `READS` or `WRITES`."""
        return int(self.chunks["holds"][chunk])

    def state_after(self, chunk: int) -> tuple[int, int, int]:
        """Decoder state after a chunk: next sequence number, missing blocks, time."""
        row = self.chunks[chunk]
        return int(row["next_block"]), int(row["missing"]), int(row["end_ticks"])

    def count_stores(self, first: int, end: int) -> int:
        """Number of stores in the chunks ``[first, end)``."""
        return int(self.chunks["stores"][first:end].sum(dtype=np.int64))

    def stores(self, first: int, end: int) -> Stores | None:
        """Stores of the chunks ``[first, end)``, with positions from chunk `first` on.

        None if they are not known.
        """
        if not self.count_stores(first, end):
            return NO_STORES
        if self._data is None:
            return None
        parts = []
        begins = self._start[first]
        for start, contents in self._groups_of(first, end):
            position, ticks, address = contents.stores
            here = slice(*position.searchsorted(self._start[[first, end]] - start))
            parts.append((position[here] + (start - begins), ticks[here], address[here]))
        return join_stores(parts)

    def is_whole(self, first: int, end: int) -> bool:
        """Whether certainly nothing was lost in the chunks ``[first, end)``."""
        if not self.chunks["others"][first:end].any():
            return True
        if self._data is None:
            return False
        for start, contents in self._groups_of(first, end):
            # A loss between two chunks may be recorded with either.
            since, until = self._start[[first, end]] - start
            if any(since <= lost.position <= until for lost in contents.lost):
                return False
        return True

    def first_difference(self, other: BlockIndex) -> int | None:
        """The first chunk that differs between two indexes, or None."""
        if self.blocks != other.blocks or not np.array_equal(self._ends, other._ends):
            return 0
        different = np.flatnonzero(self.chunks != other.chunks).tolist()
        for group, first in enumerate(self._firsts.tolist()):
            if different and different[0] < first:
                break
            if not np.array_equal(self._words(group), other._words(group)):
                return int(min([first, *different[:1]]))
        return int(different[0]) if different else None

    def _groups_of(self, first: int, end: int) -> Iterator[tuple[int, ChunkContents]]:
        """Yields each group of these chunks: the number of its first access, and its contents."""
        groups = self._ends.searchsorted([first, end - 1], side="right").tolist()
        for group in range(groups[0], groups[1] + 1):
            if not self._held or self._held[0] != group:
                self._held = group, self._contents(group)
            yield int(self._start[self._firsts[group]]), self._held[1]

    def _contents(self, group: int) -> ChunkContents:
        first, end = int(self._firsts[group]), int(self._ends[group])
        rows = self.chunks[first:end]
        accesses = int(self._start[end] - self._start[first])
        stores = int(rows["stores"].sum())
        words = self._words(group)
        columns, records = words[: 3 * stores].reshape(3, -1), words[3 * stores :].reshape(-1, 5)
        position, ticks, address = np.cumsum(columns, axis=1, dtype=np.uint64)
        if (
            np.any(position[1:] <= position[:-1])
            or np.any(position[-1:] >= accesses)
            or np.any(records[:, 0] > accesses)
            or max(ticks.max(initial=0), records[:, 1:3].max(initial=0)) > END_OF_TIME
        ):
            raise _damaged(self.path)
        starts = (self._start[first:end] - self._start[first]).tolist()
        columns_of = (rows[name].tolist() for name in ("accesses", "first_ticks", "first_address"))
        firsts: list[tuple[int, int, int, bool] | None] = [
            (start, ticks, address & ~1, bool(address & 1)) if accesses else None
            for start, accesses, ticks, address in zip(starts, *columns_of, strict=True)
        ]
        last_ticks = rows["last_ticks"][rows["accesses"] > 0]
        return ChunkContents(
            accesses,
            firsts,
            int(last_ticks[-1]) if last_ticks.size else -1,
            (position.view(np.int64), ticks, address),
            *lost_and_marks(records),
        )

    def _words(self, group: int) -> U64:
        """Deltas of the stores' positions, times and addresses, then rows of other records."""
        row = self._groups[group]
        chunks = self.chunks[self._firsts[group] : self._ends[group]]
        size = 3 * int(chunks["stores"].sum()) + 5 * int(chunks["others"].sum())
        words = np.empty(size, np.uint64)
        data = self._data[group] if self._data is not None else b""
        if not size and not data:
            return words
        if zlib_ng.crc32(data) == row["data_crc"]:
            with contextlib.suppress(OSError, pa.ArrowInvalid):
                planes = np.frombuffer(_CODEC.decompress(data, words.nbytes), np.uint8)
                if planes.size == words.nbytes:
                    from_planes(planes.reshape(8, -1), words)
                    return words
        raise _damaged(self.path)


# Making -------------------------------------------------------------------------------------------


class Builder:
    """Builds the index of a capture from its chunks, which are added in order."""

    def __init__(self, path: Path, blocks: int, chunk_blocks: int) -> None:
        self._path, self._blocks, self._chunk_blocks = path, blocks, chunk_blocks
        self._chunks: list[Rows] = []
        self._groups: list[Rows] = []
        self._data: list[bytes] | None = []
        self._data_bytes = 0
        self._group: list[ChunkContents] = []
        self._records = 0

    def add(self, contents: ChunkContents, holds: int, state: npt.NDArray[np.int64]) -> None:
        """Add a chunk; `state` is the decoder's state after it."""
        row = np.zeros((), CHUNK)
        row["accesses"], row["holds"] = contents.accesses, holds
        row["stores"], row["others"] = (
            contents.stores[0].size,
            len(contents.lost) + len(contents.marks),
        )
        (first,) = contents.firsts
        if first:
            _, ticks, address, is_write = first
            row["first_ticks"], row["first_address"] = ticks, address | is_write
            row["last_ticks"] = contents.last_ticks
        row["next_block"], row["missing"], row["end_ticks"] = state
        self._chunks.append(row)
        self._group.append(contents)
        self._records += int(row["stores"]) + int(row["others"])
        if self._records >= GROUP_RECORDS or len(self._group) == GROUP_CHUNKS:
            self._end_group()

    def _end_group(self) -> None:
        contents = ChunkContents.joined(self._group)
        row = np.zeros((), GROUP)
        row["offset"], row["chunks"] = self._data_bytes, len(self._group)
        stores = [
            np.diff(column.astype(np.uint64), prepend=np.uint64(0)) for column in contents.stores
        ]
        words = np.concatenate([*stores, rows_of(contents.lost, contents.marks).ravel()])
        data = _CODEC.compress(to_planes(words.tobytes())).to_pybytes() if words.size else b""
        row["data_bytes"], row["data_crc"] = len(data), zlib_ng.crc32(data)
        self._data_bytes += len(data)
        if self._data_bytes > DATA_BYTES_MAX:
            self._data = None
        if self._data is not None:
            self._data.append(data)
        self._groups.append(row)
        self._group.clear()
        self._records = 0

    def index(self) -> BlockIndex:
        """The index; call after the last chunk."""
        if self._group:
            self._end_group()
        chunks, groups = np.array(self._chunks, CHUNK), np.array(self._groups, GROUP)
        return BlockIndex(self._path, self._blocks, chunks, groups, self._data)

    def stored(self) -> bytes:
        """The index as bytes for the footer of an archive; empty if it is too large."""
        index = self.index()
        if self._data is None:
            return b""
        rows = index.chunks.tobytes() + np.array(self._groups, GROUP).tobytes()
        header = np.zeros((), HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        header["chunk_blocks"], header["blocks"] = self._chunk_blocks, self._blocks
        header["groups"] = len(self._groups)
        header["crc"] = _crc(header, rows)
        return b"".join([header.tobytes(), rows, *self._data])


def _crc(header: Rows, rows: bytes) -> int:
    return zlib_ng.crc32(header.tobytes()[:-4] + rows)


# Index in an archive ------------------------------------------------------------------------------


class _StoredData(Sequence[bytes]):
    """The groups' data, read from the footer of an archive."""

    def __init__(self, stream: ArchiveStream, start_bytes: int, groups: Rows) -> None:
        self._stream, self._start_bytes, self._groups = stream, start_bytes, groups

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, group: Any) -> Any:  # noqa: ANN401 (a sequence has slices, too)
        row = self._groups[group]
        at = self._start_bytes + int(row["offset"])
        return self._stream.read_index(at, int(row["data_bytes"]))


def load(stream: ArchiveStream, blocks: int, chunk_blocks: int) -> BlockIndex | None:
    """Load the index from the footer of an archive of `blocks` blocks.

    None if there is no index, or if its chunks have another size.

    :raises ParseError: the index is damaged.
    """
    if not stream.index_bytes:
        return None
    head = stream.read_index(0, HEADER.itemsize)
    if len(head) < HEADER.itemsize:
        raise _damaged(stream.path)
    header = np.frombuffer(head, HEADER)[0]
    if header["magic"] != MAGIC:
        raise _damaged(stream.path)
    if header["version"] != VERSION or header["chunk_blocks"] != chunk_blocks:
        return None
    count = -(-blocks // chunk_blocks)
    groups_at = count * CHUNK.itemsize
    rows_bytes = groups_at + int(header["groups"]) * GROUP.itemsize
    rows = stream.read_index(HEADER.itemsize, rows_bytes)
    if header["blocks"] != blocks or len(rows) < rows_bytes or header["crc"] != _crc(header, rows):
        raise _damaged(stream.path)
    chunks: Rows = np.frombuffer(rows[:groups_at], CHUNK)
    groups: Rows = np.frombuffer(rows[groups_at:], GROUP)
    data_at = HEADER.itemsize + rows_bytes
    in_chunk = np.full(count, chunk_blocks, np.int64)
    in_chunk[-1:] = blocks - (count - 1) * chunk_blocks
    if not _is_plausible(chunks, groups, in_chunk, stream.index_bytes - data_at):
        raise _damaged(stream.path)
    return BlockIndex(stream.path, blocks, chunks, groups, _StoredData(stream, data_at, groups))


def _is_plausible(
    chunks: Rows, groups: Rows, in_chunk: npt.NDArray[np.int64], data_bytes: int
) -> bool:
    """Whether the rows of a stored index are consistent; `in_chunk`: blocks in each chunk."""
    plain = chunks["holds"] != OTHERS
    accesses_max = in_chunk * wire.BLOCK_RECORDS_MAX
    bad_chunk = (
        (chunks["stores"] > chunks["accesses"])
        | (chunks["accesses"] > accesses_max)
        | (chunks["others"] > accesses_max + in_chunk)
        | (chunks["holds"] > WRITES)
        | (chunks["end_ticks"] > END_OF_TIME)
        | (chunks["next_block"] < 0)
        | (chunks["next_block"] >> wire.HEADER_SEQ_BITS > 0)
        | (chunks["missing"] > 0)
        | plain & ((chunks["accesses"] != accesses_max) | (chunks["others"] > 0))
        | (chunks["holds"] == READS) & (chunks["stores"] > 0)
    )
    bad_group = (
        (groups["offset"] > data_bytes)
        | (groups["data_bytes"] > data_bytes - groups["offset"].astype(np.int64))
        | (groups["chunks"] < 1)
        | (groups["chunks"] > GROUP_CHUNKS)
    )
    if bad_chunk.any() or bad_group.any() or int(groups["chunks"].sum()) != len(chunks):
        return False
    ends = np.cumsum(groups["chunks"].astype(np.int64))
    firsts = ends - groups["chunks"].astype(np.int64)
    in_groups = np.add.reduceat(chunks["stores"] + chunks["others"].astype(np.int64), firsts)
    records_max = int(in_chunk.max()) * (wire.BLOCK_RECORDS_MAX + 1)  # of the last one's chunk
    return bool(np.all(in_groups < GROUP_RECORDS + records_max))


def _damaged(path: Path) -> ParseError:
    return ParseError(
        f"{path}: its index is damaged",
        "restore the file, or use --salvage, which ignores the index",
    )
