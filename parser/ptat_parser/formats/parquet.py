# SPDX-License-Identifier: BSD-2-Clause
"""Writes integers as Parquet, quickly: each column DELTA_BINARY_PACKED, without a compressor.

Differences of times are small, and page numbers need only as many bits as there are pages, so
bit packing already removes nearly all redundancy. Text columns have few distinct values and are
dictionary-encoded. docs/decisions/0005-parquet-writer.md says why this is not pyarrow's writer. The
format is defined by apache/parquet-format: ``Encodings.md``, and ``parquet.thrift`` in Thrift's
compact protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, bit_length, inlined, inner, put_u64

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

GROUP_ROWS = 1 << 20
"""Rows per row group; readers locate a time by the groups' statistics."""

PAGE_ROWS = 1 << 16
"""Rows per page of a column; they fit into a core's cache until they are packed."""

# DELTA_BINARY_PACKED ------------------------------------------------------------------------------

BLOCK = 128
MINIBLOCK = 32
PAGE_BYTES_MAX = 40 + (PAGE_ROWS // BLOCK + 1) * (10 + BLOCK // MINIBLOCK + 8 * BLOCK)
WIDTHS = (*range(57), 64)
"""Supported bit widths. A value of 57 bits that begins within a byte would not fit into a word."""

_SEVEN = np.uint64(7)
_SEVEN_BITS = np.uint64(0x7F)
_MORE = np.uint64(0x80)
_MOST = np.int64(np.iinfo(np.int64).max)


@inner
def _put_varint(value: Integer, out: U8, at: Integer) -> Integer:
    """Write `value` (uint64) as ULEB128 at `at`; return the end offset."""
    while value > _SEVEN_BITS:
        out[at] = value & _SEVEN_BITS | _MORE
        value >>= _SEVEN
        at += 1
    out[at] = value
    return at + 1


@inlined
def _zigzag(value: Integer) -> Integer:
    return np.uint64(value << 1) ^ np.uint64(value >> 63)


@inner
def _pack(words: U64, width: Integer, out: U8, at: Integer) -> None:
    """Pack `MINIBLOCK` values of `width` bits (one of `WIDTHS`) into `out`; overwrites `words`.

    May write up to 8 bytes past the packed values.
    """
    n: Integer = MINIBLOCK
    bits: Integer = width
    while 2 * bits <= WIDTHS[-2] and n > 1:  # merge neighbouring pairs; vectorizes
        n //= 2
        for i in range(n):
            words[i] = words[2 * i] | words[2 * i + 1] << np.uint64(bits)
        bits *= 2
    if bits == WIDTHS[-1]:
        for i in range(n):
            put_u64(out, at + 8 * i, words[i])
        return
    before = np.uint64(0)  # bits of the previous word that share the first byte
    for i in range(n):
        start = i * bits
        word = words[i] << np.uint64(start & 7) | before
        put_u64(out, at + (start >> 3), word)
        before = word >> np.uint64(8 * ((start + bits >> 3) - (start >> 3)))


@inlined
def _width(every: Integer) -> Integer:
    """Smallest width of `WIDTHS` for values whose bits are a subset of `every` (uint64)."""
    width = bit_length(every)
    return width if width <= WIDTHS[-2] else WIDTHS[-1]


@bare
def encode(values: I64, out: U8, above: I64, words: U64) -> tuple[Integer, Integer, Integer]:
    """Encode integers, at least one, as DELTA_BINARY_PACKED into `out`.

    `above` and `words` are scratch arrays of `BLOCK` and `MINIBLOCK` elements. Returns the size in
    bytes, the minimum and the maximum of the values.
    """
    n = values.size
    smallest = greatest = values[0]
    for i in range(n):  # vectorizes, unlike min()
        value = values[i]
        smallest = value if value < smallest else smallest
        greatest = value if value > greatest else greatest
    at = _put_varint(np.uint64(BLOCK), out, np.int64(0))
    at = _put_varint(np.uint64(BLOCK // MINIBLOCK), out, at)
    at = _put_varint(np.uint64(n), out, at)
    at = _put_varint(_zigzag(values[0]), out, at)
    for start in range(1, n, BLOCK):
        size = min(BLOCK, n - start)
        # Unsigned indices avoid sign checks, and indexing avoids the reference counts of slices.
        here, before = np.uint64(start), np.uint64(start - 1)
        least = _MOST
        for i in range(size):
            difference = values[here + np.uint64(i)] - values[before + np.uint64(i)]
            above[i] = difference
            least = difference if difference < least else least
        for i in range(size, BLOCK):
            above[i] = least
        at = _put_varint(_zigzag(least), out, at)
        widths = at
        at += BLOCK // MINIBLOCK
        for part in range(BLOCK // MINIBLOCK):
            first, every = np.uint64(part * MINIBLOCK), np.uint64(0)
            for i in range(MINIBLOCK):
                word = np.uint64(above[first + np.uint64(i)] - least)
                words[i] = word
                every |= word
            width = _width(every)
            out[widths + part] = width
            if width:
                _pack(words, width, out, at)
                at += MINIBLOCK // 8 * width
    return at, smallest, greatest


def encode_indices(values: npt.NDArray[np.uint32]) -> bytes:
    """Encode dictionary indices as RLE_DICTIONARY, in one bit-packed run."""
    width = max(int(values.max(initial=0)).bit_length(), 1)
    eights = -(-values.size // 8)
    bits = np.zeros((8 * eights, width), np.uint8)
    bits[: values.size] = values[:, None] >> np.arange(width, dtype=np.uint32) & np.uint32(1)
    packed = np.packbits(bits.reshape(-1), bitorder="little")
    return bytes([width]) + _varint(eights << 1 | 1) + packed.tobytes()


# The file -----------------------------------------------------------------------------------------

_MAGIC = b"PAR1"
_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6  # Type
_PLAIN, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 3, 5, 8  # Encoding
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_REQUIRED, _UNCOMPRESSED = 0, 0


class _I8(int):
    """A Thrift i8. Plain integers are i32."""


class _I64(int):
    """A Thrift i64."""


def _varint(value: int) -> bytes:
    more = bytearray()
    while value > 0x7F:
        more.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*more, value])


def _thrift(value: object) -> tuple[int, bytes]:
    """Encode a value in the compact protocol; return its type and bytes.

    A struct is a dict from field number to value; a tuple is an already encoded value.
    """
    match value:
        case (int(kind), bytes(item)):
            return kind, item
        case bool():
            return 1 if value else 2, b""
        case _I8():
            return 3, bytes([value])
        case int():
            return 6 if isinstance(value, _I64) else 5, _varint(value << 1 ^ value >> 63)
        case bytes():
            return 8, _varint(len(value)) + value
        case list():
            items = [_thrift(item) for item in value]
            size, kind = len(items), items[0][0] if items else 12
            head = [size << 4 | kind] if size < 15 else [0xF0 | kind, *_varint(size)]
            return 9, bytes(head) + b"".join(item for _, item in items)
        case dict():
            out = b""
            before = 0
            for number, field in value.items():  # field numbers ascend in steps below 16
                kind, item = _thrift(field)
                out += bytes([(number - before) << 4 | kind]) + item
                before = number
            return 12, out + b"\0"
    raise TypeError(type(value))


@cache
def _data_page(values: int, encoding: int) -> tuple[int, bytes]:
    """Encode a ``DataPageHeader``; cached, because most are identical."""
    return _thrift({1: values, 2: encoding, 3: _RLE, 4: _RLE})


class Column(NamedTuple):
    """A column of 8 to 64-bit integers; values of unsigned types up to 32 bits are below 2^31."""

    name: str
    dtype: npt.DTypeLike
    page_dtype: npt.DTypeLike = np.int64
    """Dtype of the rows in memory; the same for all columns, so that `encode` compiles once."""

    @property
    def schema(self) -> dict[int, Any]:
        """The column's ``SchemaElement``."""
        dtype = np.dtype(self.dtype)
        integer = {1: _I8(8 * dtype.itemsize), 2: self._is_signed}
        # For DuckDB.
        converted = (15 if self._is_signed else 11) + dtype.itemsize.bit_length() - 1
        return {
            1: self.type, 3: _REQUIRED, 4: self.name.encode(), 6: converted, 10: {10: integer},
        }  # fmt: skip

    @property
    def type(self) -> int:
        """The column's physical type."""
        return _INT64 if np.dtype(self.dtype).itemsize == 8 else _INT32

    @property
    def _is_signed(self) -> bool:
        return np.dtype(self.dtype).kind == "i"

    def stored(self, value: int) -> bytes:
        """A value as encoded in ``Statistics``."""
        size_bytes = 8 if self.type == _INT64 else 4
        return value.to_bytes(size_bytes, "little", signed=self._is_signed)


class Text(NamedTuple):
    """A text column, written as indices into `words`, which has at least one element."""

    name: str
    words: list[str]
    page_dtype: npt.DTypeLike = np.uint32

    @property
    def schema(self) -> dict[int, Any]:
        """The column's ``SchemaElement``."""
        return {1: _BYTE_ARRAY, 3: _REQUIRED, 4: self.name.encode(), 6: 0, 10: {1: {}}}

    @property
    def page(self) -> bytes:
        """The dictionary page, which precedes the data pages."""
        words = [word.encode() for word in self.words]
        data = b"".join(len(word).to_bytes(4, "little") + word for word in words)
        about = {1: len(words), 2: _PLAIN}
        header = {1: _DICTIONARY_PAGE, 2: len(data), 3: len(data), 7: about}
        return _thrift(header)[1] + data


class _EncodeRoom(NamedTuple):
    """Output and scratch arrays of `encode`."""

    out: U8
    above: I64
    words: U64


class _Chunk:
    """One column of the current row group."""

    def __init__(self, column: Column | Text) -> None:
        self.column = column
        self.values = 0
        self._pages = [column.page] if isinstance(column, Text) else []
        self._head_bytes = self.size_bytes = sum(map(len, self._pages))
        self._ends: list[int] = []

    def add(self, values: npt.NDArray[Any], room: _EncodeRoom) -> None:
        """Append a page."""
        if isinstance(self.column, Text):
            encoding, data = _RLE_DICTIONARY, encode_indices(values)
        else:
            encoding = _DELTA_BINARY_PACKED
            size, *ends = encode(values, *room)
            data = room.out[:size].tobytes()
            if self.column.dtype == np.uint64:
                ends = [int(values.view(np.uint64).min()), int(values.view(np.uint64).max())]
            self._ends += ends
        size = len(data)
        bytes_ = _thrift(size)
        about = _data_page(values.size, encoding)
        _, header = _thrift({1: _DATA_PAGE, 2: bytes_, 3: bytes_, 5: about})
        self._pages += [header, data]
        self.values += values.size
        self.size_bytes += len(header) + size

    def write(self, file: IO[bytes], at: int) -> dict[int, Any]:
        """Write the pages at file offset `at`; return their ``ColumnChunk``."""
        file.writelines(self._pages)
        size = _I64(self.size_bytes)
        metadata = {
            3: [self.column.name.encode()],
            4: _UNCOMPRESSED,
            5: _I64(self.values),
            6: size,
            7: size,
            9: _I64(at + self._head_bytes),
        }
        if isinstance(self.column, Text):
            metadata |= {1: _BYTE_ARRAY, 2: [_PLAIN, _RLE, _RLE_DICTIONARY], 11: _I64(at)}
        else:
            statistics = {
                3: _I64(0),
                5: self.column.stored(max(self._ends)),
                6: self.column.stored(min(self._ends)),
            }
            metadata |= {1: self.column.type, 2: [_DELTA_BINARY_PACKED, _RLE], 12: statistics}
        return {2: _I64(at), 3: dict(sorted(metadata.items()))}


class Writer:
    """Writes a Parquet file. Use as a context manager: leaving it without error writes the footer.

    The file does not depend on how many rows each call appends.
    """

    def __init__(self, file: IO[bytes], columns: Sequence[Column | Text]) -> None:
        self._file = file
        self._columns = columns
        self._chunks = list(map(_Chunk, columns))
        self._groups: list[dict[int, Any]] = []
        self._rows = 0
        self._page = [np.empty(PAGE_ROWS, column.page_dtype) for column in columns]
        self._page_rows = 0  # rows of the current page in use
        self._encode_room = _EncodeRoom(
            np.empty(PAGE_BYTES_MAX, np.uint8),
            np.empty(BLOCK, np.int64),
            np.empty(MINIBLOCK, np.uint64),
        )
        self._at = file.write(_MAGIC)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end()

    def write(self, *columns: npt.NDArray[Any]) -> None:
        """Append rows: one array per column, all of the same length."""
        start, rows = 0, columns[0].size
        while start < rows:
            end = min(rows, start + PAGE_ROWS - self._page_rows)
            page_end = self._page_rows + end - start
            for page, values in zip(self._page, columns, strict=True):
                page[self._page_rows : page_end] = values[start:end]
            start = end
            self.filled(page_end - self._page_rows)

    def room(self) -> list[npt.NDArray[Any]]:
        """Arrays of `page_dtype`, of equal length, for the next rows; see `filled`."""
        return [page[self._page_rows :] for page in self._page]

    def filled(self, rows: int) -> None:
        """Append the first `rows` rows of `room`."""
        self._page_rows += rows
        if self._page_rows == PAGE_ROWS:
            self._end_page()

    def _end_page(self) -> None:
        for chunk, page in zip(self._chunks, self._page, strict=True):
            chunk.add(page[: self._page_rows], self._encode_room)
        self._page_rows = 0
        if self._chunks[0].values >= GROUP_ROWS:
            self._end_group()

    def _end_group(self) -> None:
        start, rows = self._at, self._chunks[0].values
        written = []
        for chunk in self._chunks:
            written.append(chunk.write(self._file, self._at))
            self._at += chunk.size_bytes
        size = _I64(self._at - start)
        group = {1: written, 2: size, 3: _I64(rows), 5: _I64(start), 6: size}
        self._groups.append(group)
        self._rows += rows
        self._chunks = list(map(_Chunk, self._columns))

    def _end(self) -> None:
        if self._page_rows:
            self._end_page()
        if self._chunks[0].values:
            self._end_group()
        columns = [column.schema for column in self._columns]
        metadata = {
            1: 2,
            2: [{4: b"schema", 5: len(columns)}, *columns],
            3: _I64(self._rows),
            4: self._groups,
            6: b"ptat",
            7: [{1: {}}] * len(columns),
        }
        _, footer = _thrift(metadata)
        self._file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)
