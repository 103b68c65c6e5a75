# SPDX-License-Identifier: BSD-2-Clause
"""A trace as references to pages of any size.

The addresses of a trace are read once, cut into units of the smallest page size, and the units
numbered in the order of their first access; the numbers go to a temporary file. Memory is bounded
by the number of units. References to larger pages follow from those to units by a table.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, jit
from ptat_parser.errors import BadInput, PtatError
from ptat_studies.pagesize.accesses import Accesses, Batch, Kind, Rejected

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

FOOTPRINT_PAGE_BYTES = 4096
"""The footprint is what the pages of this size that are touched take."""
UNITS_MAX = 1 << 30
CHUNK = 1 << 20
_CONTINUED = np.uint32(1 << 31)
"""The same access as the one before, which went over a unit's end."""
_NONE = np.uint32(0xFFFF_FFFF)
_LINE_SHIFT = 6
CACHE_WAYS = 8


@dataclass(frozen=True)
class PageSequence:
    """References to pages of one size."""

    page_bytes: int
    pages: int
    """How many there are."""
    of_unit: U32
    """Page of each unit."""


class References(AbstractContextManager["References"]):
    """What a trace references. Leaving the context removes the temporary file."""

    def __init__(
        self,
        accesses: Accesses,
        unit_bytes: int,
        cache_bytes: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Read a trace to its end.

        :param unit_bytes: the smallest page size, a power of two.
        :param cache_bytes: leave out what hits in a cache of this size before the memory, with
            lines of 64 bytes and 8 ways, replaced by LRU; 0: nothing. As Cachegrind's, it does not
            tell loads from stores.
        :param progress: called with the bytes read and the size of the trace.
        :raises PtatError: the trace cannot be read, or has no accesses.
        """
        self.name, self.format = accesses.name, accesses.format
        self.unit_bytes = unit_bytes
        self.counts = dict.fromkeys(Kind, 0)
        """Accesses of each kind that reach the memory."""
        self.cached = 0
        """Accesses that hit in the cache."""
        self.touches = 0
        """Units touched, one after the other."""
        self._units = _Units()
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="ptat-pagesize-")  # noqa: SIM115
        try:
            self._read(accesses, cache_bytes, progress)
        except BaseException:
            self._file.close()
            raise
        self.rejected: Rejected = accesses.rejected
        if not self.accesses:
            self._file.close()
            hint = str(self.rejected) if self.rejected.rows else "is it the trace you mean?"
            raise BadInput(f"{self.name}: a trace without accesses", hint)
        self.units: U64 = self._units.in_order()
        """Number of each unit: its address divided by `unit_bytes`."""
        pages = self.units // np.uint64(max(FOOTPRINT_PAGE_BYTES // unit_bytes, 1))
        self.footprint_bytes = np.unique(pages).size * max(FOOTPRINT_PAGE_BYTES, unit_bytes)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def accesses(self) -> int:
        """How many reach the memory."""
        return sum(self.counts.values())

    def _read(
        self, accesses: Accesses, cache_bytes: int, progress: Callable[[int, int], None]
    ) -> None:
        cache = _Cache(cache_bytes) if cache_bytes else None
        shift = self.unit_bytes.bit_length() - 1
        for batch in accesses.batches:
            if cache:
                missed = cache.misses(batch)
                self.cached += missed.size - int(np.count_nonzero(missed))
                batch = Batch(batch.address[missed], batch.size[missed], batch.kind[missed])
            found = np.bincount(batch.kind, minlength=len(Kind))
            for kind in Kind:
                self.counts[kind] += int(found[kind])
            for touched in self._units.number(batch, shift):
                try:
                    self._file.write(touched.tobytes())
                except OSError as error:
                    raise PtatError(
                        f"{tempfile.gettempdir()}: {error.strerror}",
                        "a reference takes 4 bytes there: set TMPDIR to where there is room",
                    ) from None
                self.touches += touched.size
            progress(*accesses.done())
        self._file.flush()

    def sequence(self, page_bytes: int) -> PageSequence:
        """Pages of this size, a power of two, at least `unit_bytes`."""
        numbers = self.units // np.uint64(page_bytes // self.unit_bytes)
        pages, of_unit = np.unique(numbers, return_inverse=True)
        return PageSequence(page_bytes, pages.size, of_unit.astype(np.uint32))

    def walk(self, sequence: PageSequence, windows: int) -> Iterator[tuple[int, U32, int]]:
        """The references in order: window, pages without immediate repetition, references.

        The trace is cut into `windows` windows with the same number of touches.
        """
        out = np.empty(min(CHUNK, self.touches), np.uint32)
        last = np.full(1, _NONE, np.uint32)
        ends = [self.touches * (window + 1) // windows for window in range(windows)]
        at = 0
        for window, end in enumerate(ends):
            while at < end:
                size = min(CHUNK, end - at)
                data = os.pread(self._file.fileno(), 4 * size, 4 * at)
                touched = np.frombuffer(data, np.uint32)
                pages, references = _collapse(touched, sequence.of_unit, last, out)
                yield window, out[:pages], references
                at += touched.size


class _Units:
    """Numbers of units, from 0 up, in the order of their first touch."""

    def __init__(self) -> None:
        self._units = np.zeros(1 << 12, np.uint64)
        self._numbers = np.full(1 << 12, _NONE, np.uint32)
        self._count = np.zeros(1, np.int64)

    def in_order(self) -> U64:
        """All units, by number."""
        there = self._numbers != _NONE
        units = np.empty(int(self._count[0]), np.uint64)
        units[self._numbers[there]] = self._units[there]
        return units

    def number(self, batch: Batch, shift: int) -> Iterator[U32]:
        """Numbers of the units that a batch touches, with `_CONTINUED` set in all but the first of
        an access."""
        out = np.empty(2 * batch.address.size + 1, np.uint32)
        position = np.zeros(2, np.int64)  # access, and unit in it
        while position[0] < batch.address.size:
            size = _number(
                batch.address,
                batch.size,
                np.uint64(shift),
                self._units,
                self._numbers,
                self._count,
                position,
                out,
            )
            yield out[:size]
            if 2 * self._count[0] >= self._units.size:
                self._grow()

    def _grow(self) -> None:
        if self._count[0] >= UNITS_MAX:
            raise PtatError("more pages than can be numbered", "choose larger pages: --pages")
        units, numbers = self._units, self._numbers
        self._units = np.zeros(4 * units.size, np.uint64)
        self._numbers = np.full(4 * units.size, _NONE, np.uint32)
        _rehash(units, numbers, self._units, self._numbers)


@jit
def _slot(unit: Integer, units: U64, numbers: U32) -> Integer:
    """Where a unit is in the table, or would be."""
    # Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
    mask = np.uint64(units.size - 1)
    slot = (unit * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
    while numbers[slot] != _NONE and units[slot] != unit:
        slot = slot + np.uint64(1) & mask
    return slot


@jit
def _rehash(units: U64, numbers: U32, new_units: U64, new_numbers: U32) -> None:
    for old in range(units.size):
        if numbers[old] != _NONE:
            slot = _slot(units[old], new_units, new_numbers)
            new_units[slot], new_numbers[slot] = units[old], numbers[old]


@jit
def _number(
    address: U64,
    size: U32,
    shift: Integer,
    units: U64,
    numbers: U32,
    count: I64,
    position: I64,
    out: U32,
) -> int:
    """Stops when the table is half full, or `out` is; `position` tells where."""
    access, part = position
    done = 0
    last_unit = np.uint64(0)
    last_number: Integer = _NONE
    while access < address.size:
        first = address[access] >> shift
        parts = np.int64((address[access] + np.uint64(size[access] - 1) >> shift) - first) + 1
        while part < parts:
            unit = first + np.uint64(part)
            if last_number == _NONE or unit != last_unit:
                slot = _slot(unit, units, numbers)
                if numbers[slot] == _NONE:
                    if 2 * count[0] >= units.size or done == out.size:
                        position[0], position[1] = access, part
                        return done
                    units[slot], numbers[slot] = unit, np.uint32(count[0])
                    count[0] += 1
                last_unit, last_number = unit, numbers[slot]
            if done == out.size:
                position[0], position[1] = access, part
                return done
            out[done] = last_number | (_CONTINUED if part else np.uint32(0))
            done += 1
            part += 1
        access, part = access + 1, 0
    position[0], position[1] = access, part
    return done


@jit
def _collapse(touched: U32, of_unit: U32, last: U32, out: U32) -> tuple[int, int]:
    """Pages without immediate repetition, and how many references they are made of.

    An access that stays in a page is one reference to it.
    """
    before = last[0]
    done, references = 0, 0
    for touch in touched:
        page = of_unit[touch & ~_CONTINUED]
        if page != before:
            out[done] = page
            done += 1
            references += 1
            before = page
        elif not touch & _CONTINUED:
            references += 1
    last[0] = before
    return done, references


class _Cache:
    def __init__(self, size_bytes: int) -> None:
        sets = size_bytes >> _LINE_SHIFT
        sets //= CACHE_WAYS
        self._lines = np.zeros((sets, CACHE_WAYS), np.uint64)

    def misses(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which accesses miss, and have their lines loaded."""
        missed = np.zeros(batch.address.size, np.bool_)
        _filter(batch.address, batch.size, self._lines, missed)
        return missed


@jit
def _filter(address: U64, size: U32, lines: U64, missed: npt.NDArray[np.bool_]) -> None:
    """Each set is kept in order of use; a line is held as its number plus one."""
    mask = np.uint64(lines.shape[0] - 1)
    for access in range(address.size):
        line = address[access] >> np.uint64(_LINE_SHIFT)
        last = address[access] + np.uint64(size[access] - 1) >> np.uint64(_LINE_SHIFT)
        while line <= last:
            held = lines[line & mask]
            line += np.uint64(1)
            way = 0
            while way < held.size and held[way] != line:
                way += 1
            if way == held.size:
                missed[access] = True
                way -= 1
            while way:
                held[way] = held[way - 1]
                way -= 1
            held[0] = line
