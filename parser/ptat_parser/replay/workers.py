# SPDX-License-Identifier: BSD-2-Clause
"""Replays segments here, in forked processes, or one at a time for a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.merge import Reader
from ptat_parser.capture.reader import BusReader
from ptat_parser.order.first_pass import Progress, no_progress
from ptat_parser.replay.forked import Forked
from ptat_parser.replay.replayer import Replayer
from ptat_parser.replay.state import Part, Segment

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
from ptat_parser.replay.segments import Joined, MakeOutput, Replay

I64 = npt.NDArray[np.int64]


def replay_here(
    replayer: Replayer,
    reader: Reader,
    segments: list[Segment],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the segments one after the other."""
    joined = Joined()
    progress = _of_all(progress, reader)
    for segment in segments:
        joined.add(
            replay_one(replayer, part_of(reader, segments, segment), segment, make_output, progress)
        )
    joined.add_pages(replayer.take_pages())
    return joined.whole(replayer.rpt)


def replay_one(
    replayer: Replayer,
    reader: Reader,
    segment: Segment,
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Part:
    """Replay one segment and write its reads, if `make_output` returns an output for it."""
    output = make_output(segment)
    if not output:
        return replayer.run(reader, segment, None, progress)
    with output:
        part = replayer.run(reader, segment, output.records, progress, output.make_room)
        output.write(int(part.tally["reads"][0] - part.cursors["first_row"][0]))
    return part


def part_of(reader: Reader, segments: list[Segment], segment: Segment) -> Reader:
    """A reader of one segment's blocks only."""
    if len(segments) == 1 or not isinstance(reader, BusReader):
        return reader
    return reader.part(segment.first_block, segment.end_block)


def replay_in_processes(
    workers: int,
    replayer: Replayer,
    reader: Reader,
    segments: list[Segment],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the segments in so many processes, of which this is one.

    Forked ones start at once, and have all that is here. Threads would do, too, but for Python's
    lock, which they hand on so often that two are hardly faster than one.
    """
    claimed = multiprocessing.get_context("fork").Value("q", 0)
    pid = os.getpid()
    progress = _of_all(progress, reader)

    def work() -> tuple[dict[int, Part], I64]:
        parts = _replay_claimed(pid, claimed, replayer, reader, segments, make_output)
        return parts, replayer.take_pages()

    with contextlib.ExitStack() as stack:
        others: list[Forked[tuple[dict[int, Part], I64]]] = []
        for _ in range(min(workers, len(segments)) - 1):
            others.append(stack.enter_context(Forked(work, others)))
        parts = _replay_claimed(pid, claimed, replayer, reader, segments, make_output, progress)
        for segment in segments[max(parts, default=-1) + 1 :]:
            replayer.skip(part_of(reader, segments, segment), segment)
        joined = Joined()
        joined.add_pages(replayer.take_pages())
        for other in others:
            theirs, pages = other.result()
            parts |= theirs
            joined.add_pages(pages)
    progress("replaying", reader.blocks, reader.blocks)
    for number in range(len(segments)):
        joined.add(parts[number])
    return joined.whole(replayer.rpt)


def _replay_claimed(
    pid: int,
    claimed: Synchronized[int],
    replayer: Replayer,
    reader: Reader,
    segments: list[Segment],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> dict[int, Part]:
    """Replay segments that nobody else has claimed, skip those before that others have.

    `pid`: the process that wants them; those that it forked end with it.
    """
    parts: dict[int, Part] = {}
    passed = 0
    while pid in (os.getpid(), os.getppid()):
        with claimed.get_lock():
            number = claimed.value
            claimed.value += 1
        if number >= len(segments):
            break
        for segment in segments[passed:number]:
            replayer.skip(part_of(reader, segments, segment), segment)
        passed = number + 1
        segment = segments[number]
        parts[number] = replay_one(
            replayer, part_of(reader, segments, segment), segment, make_output, progress
        )
    return parts


def _of_all(progress: Progress, reader: Reader) -> Progress:
    """Says of a segment how much of the whole is done."""
    return lambda step, done, _: progress(step, done, reader.blocks)


def jobs(replayer: Replayer, reader: Reader, segments: list[Segment]) -> Iterator[bytes]:
    """What `replay_segment` needs for each segment; at the end the replayer has passed them all."""
    for segment in segments:
        part = part_of(reader, segments, segment)
        yield pickle.dumps((segment, part, replayer.checkpoint()))
        replayer.skip(part, segment)


def replay_segment(replayer: Replayer, make_output: MakeOutput, job: bytes) -> tuple[Part, I64]:
    """Replay the segment of a job: what was found, and what was counted of pages."""
    segment, reader, checkpoint = pickle.loads(job)
    replayer.go_to(checkpoint)
    part = replay_one(replayer, reader, segment, make_output)
    return part, replayer.take_pages()
