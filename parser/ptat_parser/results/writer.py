# SPDX-License-Identifier: BSD-2-Clause
"""Writes the reads of a segment as Parquet files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, inlined, jit
from ptat_parser.formats import storage
from ptat_parser.formats.parquet import Column, Writer
from ptat_parser.order.clock import Clock
from ptat_parser.replay import state as replay_state
from ptat_parser.replay.state import Records, Segment

_Columns: TypeAlias = tuple[npt.NDArray[np.int64], ...]
"""One array per column of a file."""


@inlined
def _to_ns(
    ticks: Integer, origin_ticks: Integer, origin_ns: Integer, ns_per_tick: float
) -> Integer:
    """`Clock.to_ns` for one time."""
    return np.int64(np.int64(ticks - origin_ticks) * ns_per_tick) + origin_ns


class _Line(NamedTuple):
    """The line from bus ticks to nanoseconds of kernel time."""

    origin_ticks: np.uint64
    origin_ns: int
    ns_per_tick: float


@jit
def _share_out(
    records: Records, start: Integer, end: Integer, line: _Line, misses: _Columns, others: _Columns
) -> tuple[Integer, Integer]:
    """Split the records ``[start, end)`` into misses and others.

    Stops when one kind's arrays are full; returns the number of rows of each kind.
    """
    time, number, kind = records
    time_ns, page = misses
    other_time_ns, other_page, other_kind = others
    origin_ticks, origin_ns, ns_per_tick = line
    # Unsigned indices avoid sign checks.
    i, stop = np.uint64(start), np.uint64(start)
    n, n_others, one = np.uint64(0), np.uint64(0), np.uint64(1)
    room, room_for_others = np.uint64(time_ns.size), np.uint64(other_time_ns.size)
    while i < np.uint64(end) and n < room and n_others < room_for_others:
        stop = i + min(np.uint64(end) - i, min(room - n, room_for_others - n_others))
        while i < stop:
            # Store to both, because unpredictable branches are slow.
            ns = _to_ns(time[i], origin_ticks, origin_ns, ns_per_tick)
            time_ns[n], page[n] = ns, number[i]
            other_time_ns[n_others], other_page[n_others] = ns, number[i]
            other_kind[n_others] = kind[i]
            is_miss = np.uint64(kind[i] == replay_state.MISS)
            n += is_miss
            n_others += one - is_miss
            i += one
    return np.int64(n), np.int64(n_others)


_ROOM = 4
"""Chunks that fit into the records. More would leave the cache, and leave more for the writing
thread at the end."""

_MISSES = [Column("time", np.int64), Column("page", np.uint32)]

_OTHERS = [*_MISSES, Column("kind", np.uint8)]


def _new_records(rows: int) -> Records:
    return Records(np.empty(rows, np.uint64), np.empty(rows, np.uint32), np.empty(rows, np.uint8))


@dataclass
class MakeSegmentFiles:
    """Makes the files of a segment in `directory`."""

    directory: Path
    fitted: Clock
    passing: bool
    """The misses are too many for the page cache."""
    records: Records = field(default_factory=lambda: _new_records(0))
    """Reused by each segment."""

    def __call__(self, segment: Segment) -> _Output:
        """The files of one segment, which are opened on entering it."""
        return _Output(self, segment.number)


class _Output:
    """The reads of a segment, held in `records` and written as Parquet."""

    def __init__(self, made_by: MakeSegmentFiles, number: int) -> None:
        self._made_by = made_by
        self._number = number
        self._files: list[Writer] = []
        self._open: contextlib.ExitStack | None = None

    @property
    def records(self) -> Records:
        """The records that the replay fills."""
        return self._made_by.records

    def __enter__(self) -> _Output:
        self._open = contextlib.ExitStack()
        for name, columns in (("misses", _MISSES), ("other", _OTHERS)):
            path = self._made_by.directory / name / f"part-{self._number:05}.parquet"
            opened = storage.open_passing(path) if self._made_by.passing else path.open("wb")
            stored = self._open.enter_context(opened)
            self._files.append(self._open.enter_context(Writer(stored, columns)))
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401 (as of an ExitStack)
        assert self._open
        self._open.__exit__(*error)

    def make_room(self, used: int, settled: int, wanted: int) -> Records:
        """Write the first `settled` rows, and move the rows up to `used` to the front."""
        left, old = used - settled, self.records
        self.write(settled)
        if left + wanted > old.kind.size:
            self._made_by.records = _new_records(left + _ROOM * wanted)
        for name in Records._fields:
            getattr(self.records, name)[:left] = getattr(old, name)[settled:used]
        return self.records

    def write(self, rows: int) -> None:
        """Write the first `rows` rows."""
        fitted = self._made_by.fitted
        misses, others = self._files
        line = _Line(np.uint64(fitted.origin_ticks), fitted.origin_ns, fitted.ns_per_tick)
        done = 0
        while done < rows:
            found, left = _share_out(
                self.records, done, rows, line, tuple(misses.room()), tuple(others.room()),
            )  # fmt: skip
            misses.filled(found)
            others.filled(left)
            done += found + left
