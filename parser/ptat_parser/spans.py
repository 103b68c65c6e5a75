# SPDX-License-Identifier: BSD-2-Clause
"""Cuts a stream into spans that are replayed apart from each other, and joins what they give.

What a span must know of those before it is which tables there are and which of their entries
were stored to: a checkpoint of the reverse page table, which stores and table events alone
bring about. So spans can be replayed anywhere and in any order. Fault events are matched with
reads of their own span, so spans are cut where no fault is near; what is learned about the
times between events and reads is learned anew in each.

Where the cuts are follows from the capture alone, and pages are numbered in the order of the
spans: the results are the same, byte by byte, whoever replays the spans.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ptat_parser import quick
from ptat_parser import replay as replaying
from ptat_parser.blocks import BusReader
from ptat_parser.jit import Integer, inlined, jit
from ptat_parser.merge import Reader
from ptat_parser.replay import Records, Replay, Replayer, Span, with_room
from ptat_parser.rpt import ENTRIES, Rpt
from ptat_parser.survey import FirstAccess, Progress, Survey, no_progress

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

SPAN_ACCESSES = 1 << 24
"""About so many are in a span: its reads, 13 bytes each, are held until its pages have numbers."""

QUIET_S = 1e-3
"""So far from a fault event a cut should be."""

_ADDED = (
    replaying.N_OUTPUT,
    replaying.STORES,
    replaying.STORES_UNOWNED,
    replaying.UNEXPLAINED,
    replaying.FAULTS_EMPTY,
    replaying.FAULTS_MATCHED,
    replaying.FAULTS_LATE,
    replaying.FAULTS_NO_LEAF,
    replaying.FAULTS_UNMATCHED,
    replaying.AMBIGUOUS,
    replaying.WALKS_WHOLE,
    replaying.WALKS_BROKEN,
    replaying.READBACKS,
)


def plan(reader: Reader, found: Survey, fault_ticks: U64, tick_hz: float) -> list[Span]:
    """The spans of a stream. One that is merged of several channels is not cut."""
    chunks = [0]
    if isinstance(reader, BusReader):
        chunks += _cuts(found.chunks, fault_ticks, int(QUIET_S * tick_hz))
    starts = [found.chunks[chunk] for chunk in chunks]
    return [
        Span(
            number,
            chunk * reader.chunk_blocks,
            reader.blocks if end is None else end * reader.chunk_blocks,
            first.number if first else 0,
            first.ticks if first and number else 0,
            after.ticks if after else None,
        )
        for number, (chunk, first, end, after) in enumerate(
            zip(chunks, starts, [*chunks[1:], None], [*starts[1:], None], strict=True)
        )
    ]


def _cuts(chunks: list[FirstAccess | None], fault_ticks: U64, quiet_ticks: int) -> list[int]:
    """Chunks before which to cut."""
    cuts = []
    since = 0
    best: tuple[int, int] | None = None  # distance to the nearest fault event, chunk
    for number, first in enumerate(chunks):
        if first is None or first.number < since + SPAN_ACCESSES:
            continue
        at = int(np.searchsorted(fault_ticks, np.uint64(first.ticks)))
        near = fault_ticks[max(at - 1, 0) : at + 1].astype(np.int64) - first.ticks
        distance = int(np.abs(near).min(initial=quiet_ticks))
        best = max(best or (-1, 0), (distance, -number))
        if distance >= quiet_ticks or first.number >= since + 3 * SPAN_ACCESSES // 2:
            cuts.append(-best[1])
            cut = chunks[cuts[-1]]
            assert cut is not None
            since, best = cut.number, None
    return cuts


class Joined:
    """What the spans gave, joined in their order."""

    def __init__(self) -> None:
        self._spans = 0
        self._counters = np.zeros(replaying.COUNTERS, np.int64)
        self._unexplained: list[tuple[int, int, str]] = []
        self._doubts: list[tuple[int, int]] = []
        self._used = 0
        self._rows = np.zeros((quick.PAGE_COLUMNS, 1 << 10), np.int64)
        self._number_of = np.zeros((1 << 6, ENTRIES), np.uint32)  # of each range's entries, from 1
        # Of lines whose misses stand for several pages: number by candidates, in order of use.
        self._lines: dict[int, dict[int, int]] = {}

    def add(self, part: Replay) -> U32:
        """Join the next span; return the numbers that its pages have in the whole, from 0."""
        self._add_counters(part)
        return self._add_pages(part.pages)

    def go_on(self, part: Replay) -> None:
        """Join the next span, which went on with the pages of those before."""
        self._add_counters(part)
        self._rows, self._used = part.pages, part.pages.shape[1]

    def _add_counters(self, part: Replay) -> None:
        pending = int(self._counters[replaying.WALK_PMD]) if self._spans else -1
        first = int(part.counters[replaying.FIRST_READ])
        for counter in _ADDED:
            self._counters[counter] += part.counters[counter]
        if pending >= 0 and first < 0:
            self._counters[replaying.WALKS_BROKEN] += 1
        elif pending >= 0 and first == pending + 1:  # a walk whose two reads the cut parts
            self._counters[replaying.WALKS_WHOLE] += 1
            self._counters[replaying.WALKS_BROKEN] -= 1
        self._counters[replaying.WALK_PMD] = part.counters[replaying.WALK_PMD]
        self._spans += 1
        self._unexplained += part.unexplained[: replaying.EXAMPLES - len(self._unexplained)]
        self._doubts += part.doubts

    def _add_pages(self, pages: I64) -> U32:
        ranges, entries = pages[quick.P_RANGE], pages[quick.P_ENTRY]
        while len(self._number_of) <= ranges.max(initial=0):
            self._number_of = np.concatenate([self._number_of, np.zeros_like(self._number_of)])
        self._rows = with_room(self._rows, self._used, ranges.size)
        start = self._used
        numbers = np.full(ranges.size, -1, np.int64)

        # Most pages are all there is of a line, or of what is known of it.
        bits = pages[quick.P_CANDIDATES]
        lines = np.zeros(ranges.size, np.bool_)
        if self._lines or bits.any():
            key = ranges * ENTRIES + entries
            lines = np.isin(key, key[bits != 0]) | np.isin(key, list(self._lines))
        in_order = np.argsort(pages[quick.P_ORDER], kind="stable")
        self._used = _join(pages, in_order, lines, self._number_of, self._rows, start, numbers)
        for i in in_order[lines[in_order]].tolist():
            if pages[quick.P_FIRST, i] >= 0 or int(key[i]) in self._lines:
                numbers[i] = self._of_line(int(key[i]), int(bits[i]), pages, i)
                _add_line(self._rows, numbers[i], pages, i, numbers[i] >= start)
        return numbers.astype(np.uint32)

    def _of_line(self, key: int, bits: int, pages: I64, i: int) -> int:
        """Number of the page of a line that stands for these candidates; 0: not known which."""
        line = self._lines.get(key)
        if line is None:
            number = int(self._number_of[key // ENTRIES, key % ENTRIES])
            line = self._lines[key] = {0: number - 1} if number else {}
        if bits == 0 and line:
            return next(reversed(line.values()))
        if bits not in line:
            if 0 in line:  # the first of its misses tells
                line[bits] = line.pop(0)
                self._rows[quick.P_CANDIDATES, line[bits]] = bits
            else:
                line[bits] = self._used
                _begin(self._rows, self._used, pages, i)
                self._used += 1
        return line[bits]

    def whole(self, rpt: Rpt) -> Replay:
        """All of it, as one replay gives it."""
        return Replay(
            rpt, self._rows[:, : self._used], self._counters, self._unexplained, self._doubts
        )


@inlined
def _begin(rows: I64, number: Integer, pages: I64, i: Integer) -> None:
    """Begin a row for a span's page."""
    rows[quick.P_FIRST, number] = pages[quick.P_FIRST, i]
    rows[quick.P_RANGE, number] = pages[quick.P_RANGE, i]
    rows[quick.P_ENTRY, number] = pages[quick.P_ENTRY, i]
    rows[quick.P_CANDIDATES, number] = pages[quick.P_CANDIDATES, i]


@inlined
def _add(rows: I64, number: Integer, pages: I64, i: Integer, is_new: Integer) -> None:
    """Add what was counted of a span's page; what is not touched need not come from memory."""
    rows[quick.P_MISSES, number] += pages[quick.P_MISSES, i]
    rows[quick.P_LAST, number] = max(rows[quick.P_LAST, number], pages[quick.P_LAST, i])
    if pages[quick.P_FAULTED, i]:
        rows[quick.P_FAULTED, number] += pages[quick.P_FAULTED, i]
    stores = pages[quick.P_STORES, i] + (0 if is_new else pages[quick.P_EARLY, i])
    if stores:
        rows[quick.P_STORES, number] += stores


@jit
def _add_line(rows: I64, number: Integer, pages: I64, i: Integer, is_new: Integer) -> None:
    _add(rows, number, pages, i, is_new)


@jit
def _join(
    pages: I64,
    in_order: I64,
    lines: npt.NDArray[np.bool_],
    number_of: U32,
    rows: I64,
    start: Integer,
    numbers: I64,
) -> Integer:
    """Find the rows of a span's pages that are not `lines`, and add to them what was counted.

    Those from `start` on are new. Returns how many rows are used then.
    """
    used = start
    ranges, entries, firsts = pages[quick.P_RANGE], pages[quick.P_ENTRY], pages[quick.P_FIRST]
    for i in in_order:
        if lines[i]:
            continue
        number = np.int64(number_of[ranges[i], entries[i]]) - 1
        if number < 0:
            if firsts[i] < 0:
                continue
            number = used
            _begin(rows, used, pages, i)
            used += 1
            number_of[ranges[i], entries[i]] = used
        numbers[i] = number
        _add(rows, number, pages, i, number >= start)
    return used


class Output(Protocol):
    """Where the reads of one span go: to `records`, of which `rows` are used then.

    A context manager: what is written is whole when it is left without error.
    """

    records: Records
    rows: int

    def __enter__(self) -> object:
        """Begin to write."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the end."""

    def make_room(self, used: int, settled: int, wanted: int) -> Records:
        """Write those of the `used` first rows that are `settled`, whose pages have their numbers.

        Returns records that have the others first, and room for `wanted` more.
        """

    def write(self, numbers: U32 | None) -> None:
        """Write them, with the numbers that the span's pages have in the whole; None: the same."""


MakeOutput = Callable[[Span], Output | None]
"""Makes the output of a span; None: nothing is written. Is called by many threads, or sent."""


def replay_here(
    replayer: Replayer,
    reader: Reader,
    spans: list[Span],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the spans one after the other."""
    joined = Joined()
    go_on = replayer.goes_on
    for span in spans:
        output = make_output(span)
        with output or contextlib.nullcontext():
            part = _replay(replayer, _part(reader, spans, span), span, output, progress, go_on)
            numbers = None
            if go_on:
                joined.go_on(part)
            else:
                numbers = joined.add(part)
            if output:
                output.write(numbers)
    return joined.whole(replayer.rpt)


def _replay(
    replayer: Replayer,
    reader: Reader,
    span: Span,
    output: Output | None,
    progress: Progress = no_progress,
    go_on: bool = False,
) -> Replay:
    records = output.records if output else None
    make_room = output.make_room if output and go_on else None
    part = replayer.run(reader, span, records, progress, go_on, make_room)
    if output:
        count = part.counters
        output.rows = int(count[replaying.N_OUTPUT] - count[replaying.FIRST_ROW])
    return part


def _part(reader: Reader, spans: list[Span], span: Span) -> Reader:
    if len(spans) == 1 or not isinstance(reader, BusReader):
        return reader
    return reader.part(span.first_block, span.end_block)


# Side by side -------------------------------------------------------------------------------------


def replay_in_threads(
    threads: int,
    replayer: Replayer,
    reader: Reader,
    spans: list[Span],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay so many spans at a time, in threads: what is compiled runs side by side.

    Threads start at once, and nothing needs to be sent to them, as it needs to processes.
    """
    joined = Joined()
    waiting = jobs(replayer, reader, spans)
    replayed: deque[Future[tuple[Replay, Output | None]]] = deque()
    written: dict[Future[None], Span] = {}
    to_join = iter(spans)
    with ThreadPoolExecutor(threads) as pool:
        while True:
            # Reads are held until they are written: no span is begun before.
            while len(replayed) + len(written) < threads and (job := next(waiting, None)):
                replayed.append(pool.submit(replay_span, replayer, make_output, job))
            if not replayed and not written:
                return joined.whole(replayer.rpt)
            under_way: list[Future[Any]] = [*itertools.islice(replayed, 1), *written]
            wait(under_way, return_when=FIRST_COMPLETED)
            for future in [future for future in written if future.done()]:
                future.result()
                progress("replaying", written.pop(future).end_block, reader.blocks)
            if replayed and replayed[0].done():
                part, output = replayed.popleft().result()
                written[pool.submit(write, output, joined.add(part))] = next(to_join)


def jobs(replayer: Replayer, reader: Reader, spans: list[Span]) -> Iterator[bytes]:
    """What `replay_span` needs for each span; at the end the replayer has passed them all."""
    for span in spans:
        part = _part(reader, spans, span)
        yield pickle.dumps((span, part, replayer.checkpoint()))
        replayer.skip(part, span)


def replay_span(
    replayer: Replayer, make_output: MakeOutput, job: bytes
) -> tuple[Replay, Output | None]:
    """Replay the span of a job; what is to be joined, and what is to be written then."""
    span, reader, checkpoint = pickle.loads(job)
    output = make_output(span)
    part = _replay(replayer.at(checkpoint), reader, span, output)
    return replace(part, rpt=Rpt(0, 0)), output


def write(output: Output | None, numbers: U32) -> None:
    """Write a span's reads, whose pages have these numbers in the whole."""
    if output:
        with output:
            output.write(numbers)
