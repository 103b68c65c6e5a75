# SPDX-License-Identifier: BSD-2-Clause
"""Cuts a stream into spans that are replayed apart from each other, and joins what they give.

What a span must know of those before it is which tables there are and which of their entries
were stored to: a checkpoint of the reverse page table, which stores and table events alone
bring about. So spans can be replayed anywhere and in any order. Fault events are matched with
reads of their own span, so spans are cut where no fault is near; what is learned about the
times between events and reads is learned anew in each.

Where the cuts are follows from the capture alone, and pages have the numbers that the tables give
them: the results are the same, byte by byte, whoever replays the spans.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ptat_parser import quick, replay_data
from ptat_parser.blocks import BusReader
from ptat_parser.forked import Forked
from ptat_parser.merge import Reader
from ptat_parser.replay import Replayer
from ptat_parser.replay_data import Part, Records, Span
from ptat_parser.rpt import Rpt
from ptat_parser.survey import FirstAccess, Progress, Survey, no_progress

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

I64 = npt.NDArray[np.int64]

SPAN_ACCESSES = 1 << 24
"""About so many are in a span, at the most; the last ones have down to an eighth."""

SPANS_LEFT = 8
"""So many a span is one of, of what is left: who ends last works for little longer than others."""

QUIET_S = 1e-3
"""So far from a fault event a cut should be."""

_ADDED = (
    replay_data.N_OUTPUT,
    replay_data.STORES,
    replay_data.STORES_UNOWNED,
    replay_data.UNEXPLAINED,
    replay_data.FAULTS_EMPTY,
    replay_data.FAULTS_MATCHED,
    replay_data.FAULTS_LATE,
    replay_data.FAULTS_NO_LEAF,
    replay_data.FAULTS_UNMATCHED,
    replay_data.AMBIGUOUS,
    replay_data.WALKS_WHOLE,
    replay_data.WALKS_BROKEN,
    replay_data.READBACKS,
)


def plan(reader: Reader, found: Survey, from_fault_ticks: I64, tick_hz: float) -> list[Span]:
    """The spans of a stream. One that is merged of several channels is not cut.

    `from_fault_ticks`: of each chunk's first access, how far it is from a fault event.
    """
    chunks = [0]
    if isinstance(reader, BusReader):
        quiet_ticks = int(QUIET_S * tick_hz)
        chunks += _cuts(found.chunks, found.accesses, from_fault_ticks, quiet_ticks)
    starts = [found.chunks[chunk] for chunk in chunks]
    return [
        Span(
            number,
            chunk * reader.chunk_blocks,
            reader.blocks if end is None else end * reader.chunk_blocks,
            first.number if first else 0,
            after.number if after else found.accesses,
            first.ticks if first and number else 0,
            after.ticks if after else None,
        )
        for number, (chunk, first, end, after) in enumerate(
            zip(chunks, starts, [*chunks[1:], None], [*starts[1:], None], strict=True)
        )
    ]


def _cuts(
    chunks: list[FirstAccess | None], accesses: int, from_fault_ticks: I64, quiet_ticks: int
) -> list[int]:
    """Chunks before which to cut."""
    cuts = []
    since, wanted = 0, _wanted(accesses)
    best: tuple[int, int] | None = None  # distance to the nearest fault event, chunk
    for number, first in enumerate(chunks):
        if first is None or first.number < since + wanted:
            continue
        distance = min(int(from_fault_ticks[number]), quiet_ticks)
        best = max(best or (-1, 0), (distance, -number))
        if distance >= quiet_ticks or first.number >= since + 3 * wanted // 2:
            cuts.append(-best[1])
            cut = chunks[cuts[-1]]
            assert cut is not None
            since, best = cut.number, None
            wanted = _wanted(accesses - since)
    return cuts


def _wanted(left: int) -> int:
    """How many accesses the next span should have."""
    return min(SPAN_ACCESSES, max(left // SPANS_LEFT, SPAN_ACCESSES // 8))


@dataclass
class Replay:
    """A finished replay; its columns are `replay.Part`'s.

    `pages` has a column for each page that was read, in the order of their numbers; its rows are
    `quick.P_PAGE` …
    """

    rpt: Rpt
    pages: I64
    counters: I64
    unexplained: list[tuple[int, int, str]]
    doubts: list[tuple[int, int]]


class Joined:
    """What the spans gave, joined in their order."""

    def __init__(self) -> None:
        self._spans = 0
        self._counters = np.zeros(replay_data.COUNTERS, np.int64)
        self._unexplained: list[tuple[int, int, str]] = []
        self._doubts: list[tuple[int, int]] = []
        self._pages = np.empty((quick.PAGE_COLUMNS, 0), np.int64)

    def add(self, part: Part) -> None:
        """Join the next span."""
        pending = int(self._counters[replay_data.WALK_PMD]) if self._spans else -1
        first = int(part.counters[replay_data.FIRST_READ])
        for counter in _ADDED:
            self._counters[counter] += part.counters[counter]
        if pending >= 0 and first < 0:
            self._counters[replay_data.WALKS_BROKEN] += 1
        elif pending >= 0 and first == pending + 1:  # a walk whose two reads the cut parts
            self._counters[replay_data.WALKS_WHOLE] += 1
            self._counters[replay_data.WALKS_BROKEN] -= 1
        self._counters[replay_data.WALK_PMD] = part.counters[replay_data.WALK_PMD]
        self._spans += 1
        self._unexplained += part.unexplained[: replay_data.EXAMPLES - len(self._unexplained)]
        self._doubts += part.doubts

    def add_pages(self, pages: I64) -> None:
        """Add what was counted in some spans, see `Replayer.take_pages`, which may change it."""
        if not self._pages.size:
            self._pages = pages
            return
        merged, size = self._pages, quick.count_of_both(self._pages, pages)
        if size > merged.shape[1] or not merged.flags.writeable:
            merged = np.empty((quick.PAGE_COLUMNS, size), np.int64)
        quick.merge(self._pages, pages, merged)
        self._pages = merged

    def whole(self, rpt: Rpt) -> Replay:
        """All of it, with the tables that there are at the end."""
        pages = self._pages[:, : quick.drop_unread(self._pages)]
        return Replay(rpt, pages, self._counters, self._unexplained, self._doubts)


class Output(Protocol):
    """Where the reads of one span go: to `records`.

    A context manager: what is written is whole when it is left without error.
    """

    records: Records

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
        """Write those of the `used` first rows that are `settled`.

        Returns records that have the others first, and room for `wanted` more.
        """

    def write(self, rows: int) -> None:
        """Write the first so many rows, which are the last of the span."""


MakeOutput = Callable[[Span], Output | None]
"""Makes the output of a span; None: nothing is written. Is called by many processes."""


def replay_here(
    replayer: Replayer,
    reader: Reader,
    spans: list[Span],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the spans one after the other."""
    joined = Joined()
    progress = _of_all(progress, reader)
    for span in spans:
        joined.add(_replay(replayer, _part(reader, spans, span), span, make_output, progress))
    joined.add_pages(replayer.take_pages())
    return joined.whole(replayer.rpt)


def _replay(
    replayer: Replayer,
    reader: Reader,
    span: Span,
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Part:
    output = make_output(span)
    if not output:
        return replayer.run(reader, span, None, progress)
    with output:
        part = replayer.run(reader, span, output.records, progress, output.make_room)
        output.write(
            int(part.counters[replay_data.N_OUTPUT] - part.counters[replay_data.FIRST_ROW])
        )
    return part


def _part(reader: Reader, spans: list[Span], span: Span) -> Reader:
    if len(spans) == 1 or not isinstance(reader, BusReader):
        return reader
    return reader.part(span.first_block, span.end_block)


# Side by side -------------------------------------------------------------------------------------


def replay_in_processes(
    workers: int,
    replayer: Replayer,
    reader: Reader,
    spans: list[Span],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the spans in so many processes, of which this is one.

    Forked ones start at once, and have all that is here. Threads would do, too, but for Python's
    lock, which they hand on so often that two are hardly faster than one.
    """
    claimed = multiprocessing.get_context("fork").Value("q", 0)
    pid = os.getpid()
    progress = _of_all(progress, reader)

    def work() -> tuple[dict[int, Part], I64]:
        parts = _replay_claimed(pid, claimed, replayer, reader, spans, make_output)
        return parts, replayer.take_pages()

    with contextlib.ExitStack() as stack:
        others: list[Forked[tuple[dict[int, Part], I64]]] = []
        for _ in range(min(workers, len(spans)) - 1):
            others.append(stack.enter_context(Forked(work, others)))
        parts = _replay_claimed(pid, claimed, replayer, reader, spans, make_output, progress)
        for span in spans[max(parts, default=-1) + 1 :]:
            replayer.skip(_part(reader, spans, span), span)
        joined = Joined()
        joined.add_pages(replayer.take_pages())
        for other in others:
            theirs, pages = other.result()
            parts |= theirs
            joined.add_pages(pages)
    progress("replaying", reader.blocks, reader.blocks)
    for number in range(len(spans)):
        joined.add(parts[number])
    return joined.whole(replayer.rpt)


def _replay_claimed(
    pid: int,
    claimed: Synchronized[int],
    replayer: Replayer,
    reader: Reader,
    spans: list[Span],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> dict[int, Part]:
    """Replay spans that nobody else has claimed, skip those before that others have.

    `pid`: the process that wants them; those that it forked end with it.
    """
    parts: dict[int, Part] = {}
    passed = 0
    while pid in (os.getpid(), os.getppid()):
        with claimed.get_lock():
            number = claimed.value
            claimed.value += 1
        if number >= len(spans):
            break
        for span in spans[passed:number]:
            replayer.skip(_part(reader, spans, span), span)
        passed = number + 1
        span = spans[number]
        parts[number] = _replay(replayer, _part(reader, spans, span), span, make_output, progress)
    return parts


def _of_all(progress: Progress, reader: Reader) -> Progress:
    """Says of a span how much of the whole is done."""
    return lambda step, done, _: progress(step, done, reader.blocks)


def jobs(replayer: Replayer, reader: Reader, spans: list[Span]) -> Iterator[bytes]:
    """What `replay_span` needs for each span; at the end the replayer has passed them all."""
    for span in spans:
        part = _part(reader, spans, span)
        yield pickle.dumps((span, part, replayer.checkpoint()))
        replayer.skip(part, span)


def replay_span(replayer: Replayer, make_output: MakeOutput, job: bytes) -> tuple[Part, I64]:
    """Replay the span of a job: what was found, and what was counted of pages."""
    span, reader, checkpoint = pickle.loads(job)
    replayer.go_to(checkpoint)
    part = _replay(replayer, reader, span, make_output)
    return part, replayer.take_pages()
