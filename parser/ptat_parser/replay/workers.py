# SPDX-License-Identifier: BSD-2-Clause
"""Runs the segments of a stream: in processes of this machine, or on a cluster.

An executor distributes the segments. Each share is replayed by its own `Work`, which skips the
segments of other shares; `run` joins the results.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.merge import Reader
from ptat_parser.capture.reader import BusReader
from ptat_parser.order.first_pass import Progress, no_progress
from ptat_parser.replay.child_process import ChildProcess
from ptat_parser.replay.page_tables import Rpt
from ptat_parser.replay.replayer import Replayer
from ptat_parser.replay.segments import Joined, MakeOutput, Replay
from ptat_parser.replay.state import Part, Segment

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

I64 = npt.NDArray[np.int64]


@dataclass
class Done:
    """Results of a share of the segments: each segment's part, and the counts of pages.

    `rpt`: the tables at the end of the stream, if the share includes the last segment.
    """

    parts: dict[int, Part]
    pages: I64
    rpt: Rpt | None


@dataclass
class Work:
    """Segments, and everything needed to replay them."""

    replayer: Replayer
    reader: Reader
    segments: list[Segment]
    make_output: MakeOutput

    def replay(self, numbers: Iterable[int], progress: Progress = no_progress) -> Done:
        """Replay the segments with these ascending `numbers`, and skip those between."""
        parts: dict[int, Part] = {}
        passed = 0
        for number in numbers:
            for segment in self.segments[passed:number]:
                self.replayer.skip(self._reader(segment), segment)
            parts[number] = self._replay(self.segments[number], progress)
            passed = number + 1
        at_end = passed == len(self.segments)
        return Done(parts, self.replayer.take_pages(), self.replayer.rpt if at_end else None)

    def _replay(self, segment: Segment, progress: Progress) -> Part:
        """Replay one segment and write its reads, if `make_output` returns an output for it."""
        reader, output = self._reader(segment), self.make_output(segment)
        if not output:
            return self.replayer.run(reader, segment, None, progress)
        with output:
            part = self.replayer.run(reader, segment, output.records, progress, output.make_room)
            output.write(int(part.tally["reads"][0] - part.cursors["first_row"][0]))
        return part

    def _reader(self, segment: Segment) -> Reader:
        """A reader of the segment's blocks."""
        if len(self.segments) == 1 or not isinstance(self.reader, BusReader):
            return self.reader
        return self.reader.part(segment.first_block, segment.end_block)


Executor: TypeAlias = Callable[[Work, Progress], Generator[Done]]
"""Replays all segments of a work, each in exactly one share; shows progress in blocks."""


def run(executor: Executor, work: Work, progress: Progress = no_progress) -> Replay:
    """Replay all segments; the result does not depend on the executor."""
    joined, parts, rpt = Joined(), dict[int, Part](), None
    blocks = work.reader.blocks
    shares = executor(work, lambda step, at, _: progress(step, at, blocks))
    with contextlib.closing(shares):  # after an error, ends the other shares
        for done in shares:
            joined.add_pages(done.pages)
            parts |= done.parts
            rpt = done.rpt or rpt
    progress("replaying", blocks, blocks)
    for number in range(len(work.segments)):
        joined.add(parts[number])
    assert rpt
    return joined.whole(rpt)


def in_processes(count: int) -> Executor:
    """Replay in this process and ``count - 1`` forked ones; each claims the next free segment."""
    return partial(_in_processes, count)


def _in_processes(count: int, work: Work, progress: Progress) -> Generator[Done]:
    # Not threads: with Python's lock, two were hardly faster than one.
    claimed = multiprocessing.get_context("fork").Value("q", 0)
    claims = partial(_claims, claimed, len(work.segments), os.getpid())
    with contextlib.ExitStack() as stack:
        others: list[ChildProcess[Done]] = []
        for _ in range(min(count, len(work.segments)) - 1):
            forked = ChildProcess(lambda: work.replay(claims()), others)
            others.append(stack.enter_context(forked))
        yield work.replay(claims(), progress)
        for other in others:
            yield other.result()


def _claims(claimed: Synchronized[int], count: int, pid: int) -> Iterator[int]:
    """Yields claimed numbers below `count`.

    `pid`: the parent process; its forked processes stop if it ends.
    """
    while pid in (os.getpid(), os.getppid()):
        with claimed.get_lock():
            number = claimed.value
            claimed.value += 1
        if number >= count:
            return
        yield number
