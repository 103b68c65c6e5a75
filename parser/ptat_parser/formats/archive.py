# SPDX-License-Identifier: BSD-2-Clause
"""Archive of a capture stream (``.ptb``): compressed and checksummed, with an index.

docs/formats.md describes the layout. The stream is cut into pieces of `PIECE_BLOCKS` blocks; each
is compressed alone, its words split into byte planes. The footer has an index of the capture
(`capture.block_index`) and the headers of all pieces. It is written last. If it is missing because
the writer was killed, the reader scans for the pieces. An archive reproduces the bytes of its
stream exactly, damaged or not.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.compiled.jit import jit
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.formats.storage import Source

U64 = npt.NDArray[np.uint64]

MAGIC = b"PTAT-PTB"
END_MAGIC = b"PTB-END\0"
VERSION = 1

FILE_HEADER = np.dtype([("magic", "S8"), ("version", "<u4"), ("piece_bytes", "<u4")])
"""Start of the file. `piece_bytes`: bytes of the stream in each piece except the last."""

PIECE_MAGIC = 0x50425450  # "PTBP"
PIECE = np.dtype(
    [
        ("magic", "<u4"),
        ("crc", "<u4"),  # of the rest of the header
        ("offset", "<u8"),  # of this header, from the start of the file
        ("unused", "V32"),
        ("raw_bytes", "<u4"),
        ("data_bytes", "<u4"),  # compressed, right after the header
        ("data_crc", "<u4"),
        ("zero", "<u4"),
    ]
)
"""Header of a piece, and a row of the footer."""

END = np.dtype(
    [("offset", "<u8"), ("pieces", "<u8"), ("crc", "<u4"), ("zero", "<u4"), ("magic", "S8")]
)
"""End of the file: where the footer begins, how many rows it has, their CRC."""

PIECE_BLOCKS = 64
PIECE_BYTES = PIECE_BLOCKS * wire.BLOCK_BYTES
PIECE_BYTES_MAX = 16 << 20
"""Largest plausible piece, in bytes of the stream; a larger one counts as damaged."""

_PLANES = 8
_LEVEL = 1
_HINT = "use --salvage to omit damaged blocks and count them as lost, or record again"


def is_archive(source: Source) -> bool:
    """Whether a file starts with an archive's magic number."""
    return source.read(0, len(MAGIC)) == MAGIC


# Writing ------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Appends a capture stream to an archive, and `index` at its end.

    Use as a context manager: leaving it writes the last piece and the footer, and syncs the file
    to disk. After a crash the pieces written so far are still readable.

    :raises OSError: the disk is full; the pieces written so far are still readable.
    """

    def __init__(self, path: Path, index: bytes = b"") -> None:
        self._file = path.open("xb")
        self._index = index
        self._codec = pa.Codec("zstd", compression_level=_LEVEL)
        self._held = bytearray()
        self._rows: list[npt.NDArray[np.void]] = []
        header = np.array((MAGIC, VERSION, PIECE_BYTES), FILE_HEADER)
        self._file.write(header.tobytes())
        self._offset = FILE_HEADER.itemsize

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._finish()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes of the stream, of any length."""
        self._held += data
        while len(self._held) >= PIECE_BYTES:
            self._piece(bytes(self._held[:PIECE_BYTES]))
            del self._held[:PIECE_BYTES]

    def _finish(self) -> None:
        if self._held:
            self._piece(bytes(self._held))
        rows = np.array(self._rows, PIECE).tobytes()
        end = np.zeros((), END)
        end["magic"], end["pieces"] = END_MAGIC, len(self._rows)
        end["offset"] = self._offset + len(self._index)
        end["crc"] = zlib_ng.crc32(rows)
        self._file.write(self._index + rows + end.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _piece(self, raw: bytes) -> None:
        data = self._codec.compress(to_planes(raw))
        row = np.zeros((), PIECE)
        row["magic"], row["offset"] = PIECE_MAGIC, self._offset
        row["raw_bytes"], row["data_bytes"] = len(raw), data.size
        row["data_crc"] = zlib_ng.crc32(data)
        row["crc"] = _header_crc(row)
        self._file.write(row.tobytes())
        self._file.write(data)
        self._rows.append(row)
        self._offset += PIECE.itemsize + data.size


def pack(source: Path, target: Path, index: bytes = b"") -> None:
    """Archive the stream in `source`, with its index.

    Afterwards `target` is complete and synced to disk, or does not exist.
    """
    unfinished = target.with_name(target.name + ".new")
    try:
        unfinished.unlink(missing_ok=True)
        with source.open("rb", buffering=0) as file, ArchiveWriter(unfinished, index) as writer:
            while data := file.read(PIECE_BYTES):
                writer.write(data)
        unfinished.rename(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def unpack(source: Path, target: Path) -> None:
    """Write the stream in `source`, archived or raw, to a raw file.

    Damaged pieces become zeros, which readers report as damaged blocks.
    """
    stream = open_stream(source, salvage=True)
    buffer = memoryview(bytearray(PIECE_BYTES))
    with target.open("wb") as file:
        for start in range(0, stream.size_bytes, PIECE_BYTES):
            part = buffer[: min(PIECE_BYTES, stream.size_bytes - start)]
            stream.readinto(start, part)
            file.write(part)


def _header_crc(row: npt.NDArray[np.void]) -> int:
    return zlib_ng.crc32(row.tobytes()[8:])


def to_planes(raw: bytes) -> npt.NDArray[np.uint8]:
    """The first bytes of all words, then the second bytes, …; pads the last word with zeros."""
    words = np.zeros(-(-len(raw) // _PLANES) * _PLANES, np.uint8)
    words[: len(raw)] = np.frombuffer(raw, np.uint8)
    return np.ascontiguousarray(words.reshape(-1, _PLANES).T).ravel()


_U64 = np.uint64


@jit
def from_planes(planes: npt.NDArray[np.uint8], words: U64) -> None:
    """Fill `words` from `planes`, shape ``(8, words)``."""
    p0, p1, p2, p3 = planes[0], planes[1], planes[2], planes[3]
    p4, p5, p6, p7 = planes[4], planes[5], planes[6], planes[7]
    for i in range(words.size):  # all planes in one pass over memory
        low = p0[i] | _U64(p1[i]) << _U64(8) | _U64(p2[i]) << _U64(16) | _U64(p3[i]) << _U64(24)
        high = p4[i] | _U64(p5[i]) << _U64(8) | _U64(p6[i]) << _U64(16) | _U64(p7[i]) << _U64(24)
        words[i] = low | high << _U64(32)


# Reading ------------------------------------------------------------------------------------------


class RawStream:
    """A capture stream in a raw file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.size_bytes = source.size_bytes
        self.cut = False

    def readinto(self, start_bytes: int, view: memoryview) -> None:
        """Fill `view` with the stream's bytes from `start_bytes` on."""
        self._source.readinto(start_bytes, view)


class ArchiveStream:
    """A capture stream in an archive.

    `pieces` (dtype `PIECE`) lists its pieces, `cut` is true if its end is missing, `index_bytes` is
    the size of its index.

    :param salvage: read damaged pieces as zeros.
    :param tail_may_be_cut: accept an archive without a footer.
    :raises ParseError: the archive is damaged, and neither option permits it.
    """

    def __init__(
        self, source: Source, *, salvage: bool = False, tail_may_be_cut: bool = False
    ) -> None:
        self.path = path = source.path
        self._source = source
        self._salvage = salvage
        self._file_bytes = source.size_bytes
        self._held: tuple[int, npt.NDArray[np.uint8]] | None = None
        self._piece_bytes = self._read_header()
        pieces = self._footer()
        self.cut = pieces is None
        if pieces is None and not (salvage or tail_may_be_cut):
            raise ParseError(f"{path}: truncated: its footer is missing", _HINT)
        self.pieces = self._search() if pieces is None else pieces
        ends = np.cumsum(self.pieces["raw_bytes"], dtype=np.int64)
        self.size_bytes = int(ends[-1]) if ends.size else 0
        self._index_at = FILE_HEADER.itemsize
        if self.pieces.size:
            last = self.pieces[-1]
            self._index_at = int(last["offset"]) + PIECE.itemsize + int(last["data_bytes"])
        self.index_bytes = 0 if pieces is None else self._footer_at - self._index_at
        if np.any(self.pieces["raw_bytes"][:-1] != self._piece_bytes):
            raise ParseError(f"{path}: damaged: its pieces do not fit together", "restore the file")

    def readinto(self, start_bytes: int, view: memoryview) -> None:
        """Fill `view` with the stream's bytes from `start_bytes` on."""
        while view:
            piece, start = divmod(start_bytes, self._piece_bytes)
            raw = self._piece(piece)[start : start + len(view)]
            view[: raw.size] = raw.data
            view = view[raw.size :]
            start_bytes += raw.size

    def read_index(self, start_bytes: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` bytes of the index from `start_bytes` on; fewer at its end."""
        size_bytes = max(min(size_bytes, self.index_bytes - start_bytes), 0)
        return self._source.read(self._index_at + start_bytes, size_bytes)

    def _piece(self, number: int) -> npt.NDArray[np.uint8]:
        if self._held is None or self._held[0] != number:
            self._held = number, self._decode(number)
        return self._held[1]

    def _decode(self, number: int) -> npt.NDArray[np.uint8]:
        row = self.pieces[number]
        size_bytes = int(row["raw_bytes"])
        words = np.empty(-(-size_bytes // _PLANES), np.uint64)
        stored = memoryview(bytearray(PIECE.itemsize + int(row["data_bytes"])))
        self._source.readinto(int(row["offset"]), stored)
        data = stored[PIECE.itemsize :]
        if stored[: PIECE.itemsize] == row.tobytes() and zlib_ng.crc32(data) == row["data_crc"]:
            try:
                planes = np.frombuffer(pa.Codec("zstd").decompress(data, words.nbytes), np.uint8)
            except (OSError, pa.ArrowInvalid):
                planes = np.empty(0, np.uint8)
            if planes.size == words.nbytes:
                from_planes(planes.reshape(_PLANES, -1), words)
                return words.view(np.uint8)[:size_bytes]
        if not self._salvage:
            raise ParseError(
                f"{self.path}: piece {number} at byte {int(row['offset'])}: damaged", _HINT
            )
        return np.zeros(size_bytes, np.uint8)

    def _read_header(self) -> int:
        data = self._source.read(0, FILE_HEADER.itemsize)
        if len(data) < FILE_HEADER.itemsize:
            raise ParseError(f"{self.path}: truncated in its header", "record again")
        header = np.frombuffer(data, FILE_HEADER)[0]
        if header["magic"] != MAGIC:
            raise BadInput(f"{self.path}: not an archive of a capture stream")
        if header["version"] != VERSION:
            raise BadInput(
                f"{self.path}: version {header['version']}; this ptat reads version {VERSION}",
                "use the ptat that recorded it, or record again",
            )
        piece_bytes = int(header["piece_bytes"])
        if not 0 < piece_bytes <= PIECE_BYTES_MAX or piece_bytes % wire.BLOCK_BYTES:
            raise ParseError(f"{self.path}: damaged: pieces of {piece_bytes} bytes")
        return piece_bytes

    def _footer(self) -> npt.NDArray[np.void] | None:
        """The footer's rows, or None if there is no valid footer."""
        at = self._file_bytes - END.itemsize
        if at < FILE_HEADER.itemsize:
            return None
        end = np.frombuffer(self._source.read(at, END.itemsize), END)[0]
        offset, count = int(end["offset"]), int(end["pieces"])
        self._footer_at = offset
        if end["magic"] != END_MAGIC.rstrip(b"\0") or end["zero"]:
            return None
        if offset + count * PIECE.itemsize != at:
            return None
        data = self._source.read(offset, count * PIECE.itemsize)
        if zlib_ng.crc32(data) != end["crc"]:
            return None
        rows = np.frombuffer(data, PIECE)
        return rows if all(self._plausible(row, offset) for row in rows) else None

    def _search(self) -> npt.NDArray[np.void]:
        """The pieces found by scanning the file; after damage, scan for the next piece."""
        rows = []
        at = FILE_HEADER.itemsize
        while at + PIECE.itemsize <= self._file_bytes:
            row = np.frombuffer(self._source.read(at, PIECE.itemsize), PIECE)[0]
            if row["offset"] == at and self._plausible(row, self._file_bytes):
                rows.append(row)
                at += PIECE.itemsize + int(row["data_bytes"])
            elif self._salvage:
                at = self._next_magic(at + 1)
            else:
                break
        return np.array(rows, PIECE)

    def _next_magic(self, at: int) -> int:
        magic = PIECE_MAGIC.to_bytes(4, "little")
        while at < self._file_bytes:
            data = self._source.read(at, PIECE_BYTES)
            found = data.find(magic)
            if found >= 0:
                return at + found
            at += max(len(data) - len(magic) + 1, 1)
        return at

    def _plausible(self, row: npt.NDArray[np.void], end_bytes: int) -> bool:
        return bool(
            row["magic"] == PIECE_MAGIC
            and row["crc"] == _header_crc(row)
            and 0 < row["raw_bytes"] <= self._piece_bytes
            and row["data_bytes"] <= 2 * PIECE_BYTES_MAX
            and int(row["offset"]) + PIECE.itemsize + int(row["data_bytes"]) <= end_bytes
        )


def open_stream(
    path: Path, *, salvage: bool = False, tail_may_be_cut: bool = False
) -> RawStream | ArchiveStream:
    """Open a capture stream, archived or raw; see `ArchiveStream`."""
    source = Source(path)
    if is_archive(source):
        return ArchiveStream(source, salvage=salvage, tail_may_be_cut=tail_may_be_cut)
    return RawStream(source)
