# SPDX-License-Identifier: BSD-2-Clause
"""Memory accesses of programs, from traces of several kinds.

========== ====================================================================================
text       ``readi|readd|write 0xADDRESS BYTES`` a line, as github.com/oslab-ewha/memtrace
lackey     ``valgrind --tool=lackey --trace-mem=yes``
drmemtrace DynamoRIO's ``trace_entry_t``, clients/drcachesim/common/trace_entry.h
testbed    every access of user code in the testbed (`ptat_parser.formats.access_log`)
session    the misses of a session: which pages, not whether read or written
========== ====================================================================================

Files may be compressed with gzip, zstd or lz4; DynamoRIO's zip archives are read, too. Rows that
make no sense are left out and counted.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptat_parser.compiled.jit import Integer, jit
from ptat_parser.errors import BadInput
from ptat_parser.formats import access_log
from ptat_parser.formats.session import Session
from ptat_parser.kernel.log import read_kernel_log, traced_spaces
from ptat_parser.results.export import DRMEMTRACE
from ptat_parser.results.trace import Trace
from ptat_studies.pagesize import access_text
from ptat_studies.pagesize.access_text import FETCH, LAST

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

READ_BYTES = 1 << 21
LINE_MAX_BYTES = 1 << 16
ACCESS_MAX_BYTES = 1 << 20
"""Longer ones make no sense: the longest instructions of x86 access some kilobytes."""
SPACE_SHIFT = 48
"""Above an address of user code: which process it is of, in the order of their first access."""
SPACES_MAX = 1 << 15


class Kind(IntEnum):
    """What an access is."""

    FETCH = 0
    READ = 1
    WRITE = 2
    MISS = 3
    """A TLB miss: any of the others."""


class Batch(NamedTuple):
    """Accesses in program order; arrays of one length."""

    address: U64
    """With the process's number from bit 48 up."""
    size: U32
    """In bytes."""
    kind: U8
    """`Kind`."""


@dataclass
class Rejected:
    """Rows of the input that were left out."""

    what: str = "line"
    rows: int = 0
    first: int = 0
    """Number of the first of them, from 1 up."""

    def add(self, rows: int, first: int) -> None:
        """Count more of them, of which `first` is the first."""
        if rows and not self.rows:
            self.first = first
        self.rows += rows

    def __str__(self) -> str:
        """For users."""
        return f"{self.rows:,} malformed {self.what}s, the first is {self.what} {self.first:,}"


@dataclass
class Accesses:
    """A trace. Its batches can be taken once; then `rejected` is final."""

    name: str
    format: str
    batches: Iterator[Batch]
    rejected: Rejected = field(default_factory=Rejected)
    granularity_bytes: int = 1
    """What is known of addresses: they are multiples of this."""
    done: Callable[[], tuple[int, int]] = lambda: (0, 1)
    """How much of how much was read, as far as that can be known."""


def open_trace(where: str, kind: str | None = None) -> Accesses:
    """Open a trace file, or ``-`` for standard input.

    `kind` is a key of `FORMATS`, None: what its first bytes tell. Raises `BadInput` if there is no
    such file, or it is not a trace.
    """
    return _open(_Stream(where), kind, None)


def of_testbed(session: Session) -> Accesses:
    """What the processes that a session traced accessed, all of it.

    Raises `BadInput` if that was not recorded.
    """
    path = session.path / access_log.FILE
    if not path.is_file():
        raise BadInput(f"{path}: no such file", "ptat record --accesses yes, in the testbed")
    return _open(_Stream(str(path)), "testbed", session)


def _open(stream: _Stream, kind: str | None, session: Session | None) -> Accesses:
    kind = kind or _kind_of(stream)
    accesses = Accesses(stream.name, kind, iter(()), done=stream.done)
    accesses.rejected.what = "line" if kind in ("text", "lackey") else "record"
    accesses.batches = FORMATS[kind](stream, accesses, session)
    return accesses


# Bytes --------------------------------------------------------------------------------------------

_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}


class _Stream:
    """A file's bytes, decompressed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._buffer = memoryview(bytearray(READ_BYTES))
        file: IO[bytes] = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115
        self._file = file
        start = file.peek(4)[:4]  # type: ignore[attr-defined]
        codec = next((codec for magic, codec in _CODECS.items() if start.startswith(magic)), None)
        self._parts: Iterator[IO[bytes]] = iter([file])
        try:
            if start == b"PK\x03\x04":
                self._parts = self._members(zipfile.ZipFile(name))
            elif codec:
                self._parts = iter([pa.CompressedInputStream(pa.PythonFile(file), codec)])
            self._ahead = b""
            self._part = next(self._parts)
        except (zipfile.BadZipFile, StopIteration) as error:
            raise BadInput(f"{name}: damaged: {error}", "make the trace again") from None

    def done(self) -> tuple[int, int]:
        """Bytes read of the file, and all of them."""
        if not self._file.seekable():
            return 0, 1
        return self._file.tell(), os.fstat(self._file.fileno()).st_size

    @staticmethod
    def _members(archive: zipfile.ZipFile) -> Iterator[IO[bytes]]:
        # Pieces of one trace, in order, between files about it.
        for member in archive.namelist():
            if member.startswith("chunk"):
                yield archive.open(member)

    def peek(self) -> bytes:
        """The next bytes, which stay."""
        self._ahead = self._ahead or self.read()
        return self._ahead

    def read(self) -> bytes:
        """Some bytes, none at the end."""
        if ahead := self._ahead:
            self._ahead = b""
            return ahead
        while True:
            try:
                # Arrow's read() does not give its memory back where decompressing fails.
                if count := self._part.readinto(self._buffer):  # type: ignore[attr-defined]
                    return bytes(self._buffer[:count])
                self._part = next(self._parts)
            except StopIteration:
                return b""
            except (OSError, EOFError, zipfile.BadZipFile) as error:
                text = str(error).splitlines()[0]
                raise BadInput(f"{self.name}: cannot be read: {text}", "is it cut off?") from None


def _kind_of(stream: _Stream) -> str:
    start = stream.peek()
    if start.startswith(access_log.HEADER.to_bytes(8, "little")):
        return "testbed"
    if len(start) >= DRMEMTRACE.itemsize and start.startswith(bytes([_HEADER, 0, 0, 0])):
        return "drmemtrace"
    for line in start[:LINE_MAX_BYTES].splitlines():
        if line.startswith((b"==", b"--", b"I ", b" L ", b" S ", b" M ")):
            return "lackey"
        if line.startswith((b"readi", b"readd", b"write")):
            return "text"
    if not start:
        raise BadInput(f"{stream.name}: is empty", "a trace without accesses says nothing")
    raise BadInput(
        f"{stream.name}: not a trace of a known kind", f"see --format: {', '.join(FORMATS)}"
    )


# Text ---------------------------------------------------------------------------------------------


def _of_text(stream: _Stream, accesses: Accesses, session: Session | None) -> Iterator[Batch]:
    lines = 0
    rest = b""
    while True:
        data = stream.read()
        if not data and not rest:
            return
        whole, newline, rest = (rest + data if data else rest + b"\n").rpartition(b"\n")
        if len(rest) > LINE_MAX_BYTES:
            at = lines + whole.count(b"\n") + len(newline) + 1
            raise BadInput(f"{stream.name}: line {at:,} is longer than a trace's", "is it text?")
        rows = 2 * (whole.count(b"\n") + 1)
        batch = _empty(rows)
        found, read, bad, first = access_text.parse(
            np.frombuffer(whole + newline, np.uint8),
            accesses.format == "lackey",
            ACCESS_MAX_BYTES,
            *batch,
        )
        accesses.rejected.add(bad, lines + first)
        lines += read
        if found:
            yield _first(batch, found)


def _empty(rows: int) -> Batch:
    return Batch(np.empty(rows, np.uint64), np.empty(rows, np.uint32), np.empty(rows, np.uint8))


def _first(batch: Batch, rows: int) -> Batch:
    return Batch(batch.address[:rows], batch.size[:rows], batch.kind[:rows])


# Records ------------------------------------------------------------------------------------------


def _records(stream: _Stream, bytes_: int) -> Iterator[bytes]:
    """Pieces of whole records, and at the end what is left of one, if it was cut."""
    rest = b""
    while data := stream.read():
        data = rest + data
        end = len(data) // bytes_ * bytes_
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest


class _Spaces:
    """Numbers of address spaces, in the order of their first access."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number: dict[int, int] = {}

    def __call__(self, space: int) -> int:
        number = self._number.setdefault(space, len(self._number))
        if number >= SPACES_MAX:
            raise BadInput(
                f"{self._name}: more than {SPACES_MAX:,} processes", "is it the right kind?"
            )
        return number


_READ, _WRITE, _BUNDLE, _PID, _HEADER = 0, 1, 17, 24, 25
_KNOWN = 50
"""Types from here on are of a later DynamoRIO than we know."""
_FETCHES = (*range(10, 17), 31, 48, 49)
_KIND_OF = np.full(_KNOWN, 255, np.uint8)
_KIND_OF[[_READ, _WRITE]] = Kind.READ, Kind.WRITE
_KIND_OF[list(_FETCHES)] = Kind.FETCH


def _of_drmemtrace(stream: _Stream, accesses: Accesses, session: Session | None) -> Iterator[Batch]:
    """Also bundles: lengths of instructions that follow the one before."""
    number = _Spaces(stream.name)
    space = np.uint64(0)
    next_fetch = np.zeros(1, np.uint64)
    records = 0
    for data in _records(stream, DRMEMTRACE.itemsize):
        if len(data) < DRMEMTRACE.itemsize:
            accesses.rejected.add(1, records + 1)
            return
        entries = np.frombuffer(data, DRMEMTRACE)
        of_process = np.flatnonzero(entries["type"] == _PID)
        for part in np.split(entries, of_process):
            if part.size and part["type"][0] == _PID:
                space = np.uint64(number(int(part["addr"][0])) << SPACE_SHIFT)
            bundles = part["type"] == _BUNDLE
            batch = _empty(part.size + 7 * int(np.count_nonzero(bundles)))
            found, bad, first = _decode_drmemtrace(
                np.ascontiguousarray(part["type"]),
                np.ascontiguousarray(part["size"]),
                np.ascontiguousarray(part["addr"]),
                _KIND_OF,
                space,
                next_fetch,
                batch,
            )
            accesses.rejected.add(bad, records + first)
            records += part.size
            if found:
                yield _first(batch, found)


@jit
def _decode_drmemtrace(
    types: U16,
    sizes: U16,
    addresses: U64,
    kind_of: U8,
    space: Integer,
    next_fetch: U64,
    into: Batch,
) -> tuple[int, int, int]:
    address, size, kind = into
    found, bad, first = 0, 0, 0
    in_process = np.uint64(1) << np.uint64(SPACE_SHIFT)
    for at in range(types.size):
        what, length, where = types[at], np.uint32(sizes[at]), addresses[at]
        good = what < _KNOWN
        if what == _BUNDLE:
            good = length <= 8
            for instruction in range(length if good else 0):
                # The lengths are the bytes of the address.
                bytes_ = np.uint32(where >> np.uint64(8 * instruction) & np.uint64(255))
                begin = next_fetch[0]
                address[found] = begin | space if begin < in_process else begin
                size[found], kind[found] = max(bytes_, np.uint32(1)), FETCH
                next_fetch[0] += np.uint64(bytes_)
                found += 1
        elif good and kind_of[what] != 255:
            fetch = kind_of[what] == FETCH
            if fetch:
                next_fetch[0] = where + np.uint64(length)
            if fetch and not length:
                continue  # only says where the program is
            good = length > 0 and where <= LAST - np.uint64(length - np.uint32(1))
            if good:
                address[found] = where | space if where < in_process else where
                size[found], kind[found] = length, kind_of[what]
                found += 1
        if not good:
            if not bad:
                first = at + 1
            bad += 1
    return found, bad, first


def _of_testbed(stream: _Stream, accesses: Accesses, session: Session | None) -> Iterator[Batch]:
    wanted = None if session is None else traced_spaces(read_kernel_log(session.kernel_path))
    number = _Spaces(stream.name)
    kinds = np.array([Kind.READ, Kind.WRITE, Kind.FETCH], np.uint8)
    va_mask = np.uint64((1 << access_log.VA_BITS) - 1)
    va = np.uint64(0)
    space: int | None = None
    words = count = 0
    ended = False
    for data in _records(stream, access_log.WORD_BYTES):
        if len(data) < access_log.WORD_BYTES:
            break
        word = np.frombuffer(data, "<u8")
        if not words and int(word[0]) != access_log.HEADER:
            raise BadInput(f"{stream.name}: not accesses of this version's testbed", "record again")
        word = word[0 if words else 1 :]
        words += len(data) // access_log.WORD_BYTES
        what = word >> np.uint64(access_log.KIND_SHIFT)
        for part in np.split(word, np.flatnonzero(what == access_log.BASE)):
            if part.size and int(part[0]) >> access_log.KIND_SHIFT == access_log.BASE:
                base = int(part[0])
                part = part[1:]
                if base >> access_log.BASE_SPACE_SHIFT & 1:
                    space = base & (1 << access_log.SPACE_BITS) - 1
                else:
                    ended = base & (1 << access_log.BASE_SPACE_SHIFT) - 1 == count
            if not part.size:
                continue
            count += part.size
            steps = part & va_mask
            steps[0] += va
            address = np.cumsum(steps) & va_mask
            va = address[-1]
            if wanted is not None and space not in wanted:
                continue
            size = np.uint64(1) << (
                part >> np.uint64(access_log.SIZE_SHIFT)
                & np.uint64((1 << access_log.SIZE_BITS) - 1)
            )
            yield Batch(
                address | np.uint64(number(space or 0) << SPACE_SHIFT),
                size.astype(np.uint32),
                kinds[part >> np.uint64(access_log.KIND_SHIFT)],
            )
    if not ended:
        accesses.rejected.add(1, words + 1)  # the end is not there


# Sessions -----------------------------------------------------------------------------------------


def of_session(trace: Trace) -> Accesses:
    """The misses of a session, each as an access to where its page begins.

    What hit is not in it. Where the bus shows groups of pages, so do the addresses.
    """
    pages = trace.pages
    vaddr = pages["vaddr"].to_numpy()
    size = pages["page_size_bytes"].to_numpy().astype(np.uint64)
    group = size * pages["span"].to_numpy().astype(np.uint64)
    number = _Spaces(str(trace.session.path))
    space = np.array([number(mm) for mm in pages["mm"].to_pylist()], np.uint64)
    address = vaddr | space << np.uint64(SPACE_SHIFT)
    smallest = group[size == size.min()] if size.size else group

    read = 0

    def batches() -> Iterator[Batch]:
        nonlocal read
        for _, page in trace.misses().raw():
            read += page.size
            yield Batch(
                address[page],
                np.ones(page.size, np.uint32),
                np.full(page.size, Kind.MISS, np.uint8),
            )

    return Accesses(
        str(trace.session.path),
        "session",
        batches(),
        granularity_bytes=int(smallest.max(initial=1)),
        done=lambda: (read, int(trace.summary["totals"]["misses"])),
    )


Reader = Callable[[_Stream, Accesses, "Session | None"], Iterator[Batch]]

FORMATS: dict[str, Reader] = {
    "text": _of_text,
    "lackey": _of_text,
    "drmemtrace": _of_drmemtrace,
    "testbed": _of_testbed,
}
"""Readers of files, by what users call them."""
