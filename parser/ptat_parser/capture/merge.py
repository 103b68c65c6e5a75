# SPDX-License-Identifier: BSD-2-Clause
"""Merges the channels of a memory system into one stream, in order of time.

A table's lines and the markers of its events are spread over all channels, so reads can be
classified only in the common order of all accesses. The channels share a clock, or pulses align
their clocks (`channel_sync`). Accesses of the same tick are in the order of their channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.channel_sync import AlignedReader, aligned
from ptat_parser.capture.chunks import AnyChunk, Chunk, ChunkContents, Lost, MarkRecord
from ptat_parser.capture.decode import COUNTER_TICKS, END_OF_TIME
from ptat_parser.capture.reader import BusReader
from ptat_parser.formats.session import Session

U64 = npt.NDArray[np.uint64]


class Reader(Protocol):
    """A capture stream in chunks; can be iterated repeatedly."""

    @property
    def path(self) -> Path:
        """The path to name in messages."""

    @property
    def blocks(self) -> int:
        """Total number of blocks, for showing progress."""

    @property
    def chunk_blocks(self) -> int:
        """Blocks decoded at a time."""

    def __iter__(self) -> Iterator[Chunk]:
        """Yields the decoded chunks."""

    def chunks(self) -> Iterator[AnyChunk]:
        """Yields the chunks; those that hold only accesses may be undecoded."""

    def contents(self) -> Iterator[ChunkContents]:
        """Yields the contents of the stream except the reads."""


def open_bus(session: Session, *, salvage: bool = False, tail_may_be_cut: bool = False) -> Reader:
    """Open a session's capture with all of its channels; for the options see `BusReader`."""
    readers = [
        BusReader(
            session.path / channel.file,
            channel.in_blocks,
            salvage=salvage,
            tail_may_be_cut=tail_may_be_cut,
        )
        for channel in session.board.channels
    ]
    if len(readers) == 1:
        return readers[0]
    if session.board.clocks == "pulses":
        return MergedReader(aligned(readers, session.board.channels, session.path))
    return MergedReader(readers)


class MergedReader:
    """Merges streams, holding about a chunk of each in memory.

    The merged stream starts when the first channel starts, and stops when all have stopped.

    Other channels may show accesses during a loss of one channel. The loss is then reported twice:
    where the channel was last seen, and, with a count of 0, where it is seen again. This separates
    accesses before the loss from those after it, on all channels.
    """

    def __init__(self, readers: Sequence[BusReader | AlignedReader]) -> None:
        self.path = readers[0].path.parent / "+".join(reader.path.name for reader in readers)
        self.blocks = sum(reader.blocks for reader in readers)
        self.chunk_blocks = readers[0].chunk_blocks
        begins = [_first_ticks(one) if isinstance(one, BusReader) else None for one in readers]
        latest = max((ticks for ticks in begins if ticks is not None), default=0)
        self._readers = list(readers)
        for i, (reader, ticks) in enumerate(zip(readers, begins, strict=True)):
            late = ticks is not None and ticks + COUNTER_TICKS // 2 < latest
            if late and isinstance(reader, BusReader):  # a shared clock: began after the wrap
                self._readers[i] = reader.since(COUNTER_TICKS)

    def __iter__(self) -> Iterator[Chunk]:
        inputs = [_Input(iter(reader)) for reader in self._readers]
        merger = _Merger(len(inputs))
        while True:
            horizon = min(each.horizon for each in inputs)
            yield merger.merged([each.take(horizon) for each in inputs])
            if horizon == END_OF_TIME:
                return
            for each in inputs:
                if each.horizon == horizon:
                    each.more()

    def chunks(self) -> Iterator[AnyChunk]:
        """Yields the decoded chunks."""
        return iter(self)

    def contents(self) -> Iterator[ChunkContents]:
        """Yields the contents of the stream except the reads."""
        return map(ChunkContents.of, self)


def _first_ticks(reader: BusReader) -> int | None:
    """Time of a channel's first mark or access, or None."""
    for chunk in reader:
        if chunk.time.size or chunk.marks:
            marks = [mark.time_ticks for mark in chunk.marks[:1]]
            return min([*map(int, chunk.time[:1]), *marks])
    return None


@dataclass(frozen=True)
class _Note:
    """A loss or mark of one channel, between its accesses ``position - 1`` and `position`.

    `loss_begin`: for the end of a loss, its beginning.
    """

    position: int
    before_next: bool
    record: Lost | MarkRecord
    loss_begin: Lost | None = None


@dataclass
class _Part:
    """Decoded accesses of one channel, and the notes between them."""

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    notes: list[_Note]


class _Input:
    """One stream, decoded up to `horizon` (ticks)."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        nothing = np.empty(0, np.uint64)
        self._held = _Part(nothing, nothing, np.empty(0, np.bool_), [])
        self.horizon = 0
        self.more()

    def more(self) -> None:
        """Decode the next chunk."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self.horizon = END_OF_TIME
            return
        held = self._held
        start = held.time.size
        for lost in chunk.lost:
            position = lost.position + start
            held.notes.append(_Note(position, False, lost))
            held.notes.append(_Note(position, True, replace(lost, count=0, blocks=0), lost))
        held.notes += [_Note(mark.position + start, False, mark) for mark in chunk.marks]
        held.time = np.concatenate([held.time, chunk.time])
        held.address = np.concatenate([held.address, chunk.address])
        held.write = np.concatenate([held.write, chunk.write])
        if held.time.size:
            self.horizon = int(held.time[-1])

    def take(self, horizon: int) -> _Part:
        """Remove and return the accesses before `horizon`, with the notes up to the next one."""
        held = self._held
        end = int(np.searchsorted(held.time, np.uint64(horizon)))
        taken: list[_Note] = []
        left: list[_Note] = []
        for note in held.notes:
            if note.position < end + (not note.before_next):
                taken.append(note)
            else:
                left.append(replace(note, position=note.position - end))
        self._held = _Part(held.time[end:], held.address[end:], held.write[end:], left)
        return _Part(held.time[:end], held.address[:end], held.write[:end], taken)


class _Merger:
    """Merges parts in order, with the state that spans parts."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._running: set[int] = set()
        self._stopped: set[int] = set()
        self._accesses = 0
        self._loss_began: dict[int, int] = {}  # from id() of the loss to its access number

    def merged(self, parts: list[_Part]) -> Chunk:
        """Accesses and notes of all parts, sorted by time."""
        time = np.concatenate([part.time for part in parts])
        order = np.argsort(time, kind="stable")
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        chunk = Chunk(
            time[order],
            np.concatenate([part.address for part in parts])[order],
            np.concatenate([part.write for part in parts])[order],
        )
        notes: list[tuple[int, int, int, _Note]] = []
        start = 0
        for channel, part in enumerate(parts):
            for note in part.notes:
                if note.before_next:
                    position = int(place[start + note.position])
                else:
                    position = int(place[start + note.position - 1]) + 1 if note.position else 0
                notes.append((position, note.record.time_ticks, channel, note))
            start += part.time.size
        for position, _, channel, note in sorted(notes, key=lambda each: each[:3]):
            self._add(chunk, position, channel, note)
        self._accesses += order.size
        return chunk

    def _add(self, chunk: Chunk, position: int, channel: int, note: _Note) -> None:
        record = note.record
        if isinstance(record, MarkRecord):
            if self._is_ours(channel, record.code):
                chunk.marks.append(replace(record, position=position))
            return
        at = self._accesses + position
        if note.loss_begin is None:
            self._loss_began[id(record)] = at
        elif self._loss_began.pop(id(note.loss_begin)) == at:
            return
        chunk.lost.append(replace(record, position=position))

    def _is_ours(self, channel: int, code: int) -> bool:
        if code == wire.Mark.START:
            self._running.add(channel)
            self._stopped.discard(channel)
            return len(self._running) == 1
        if code == wire.Mark.STOP:
            self._running.discard(channel)
            self._stopped.add(channel)
            return len(self._stopped) == self._channels
        return True
