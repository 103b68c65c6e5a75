# SPDX-License-Identifier: BSD-2-Clause
"""Replays segments on a Dask cluster, whose workers see the session's directory at the same path.

What a worker that dies had done is done again by others: its results are lost, and Dask runs the
tasks that made them once more.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ptat_parser.capture.merge import Reader
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.order.first_pass import Progress, no_progress
from ptat_parser.replay import page_counts
from ptat_parser.replay.replayer import Replayer
from ptat_parser.replay.segments import Joined, MakeOutput, Replay
from ptat_parser.replay.state import Part, Segment
from ptat_parser.replay.workers import jobs, replay_segment

if TYPE_CHECKING:
    from distributed import Client

I64 = npt.NDArray[np.int64]
_Packed: TypeAlias = list[tuple[int, npt.NDArray[Any]]]

CONNECT_S = 10

AHEAD = 2
"""Spans that each thread of the cluster is given at a time."""


def replay_on_cluster(
    address: str,
    replayer: Replayer,
    reader: Reader,
    segments: list[Segment],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the segments on the cluster whose scheduler is at `address`."""
    try:
        from distributed import Client
    except ImportError as error:
        raise BadInput("--cluster needs Dask", "pip install 'ptat[cluster]'") from error
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"no Dask scheduler answers at {address}", "start one: dask scheduler"
        ) from error
    with client:
        return _replay(client, replayer, reader, segments, make_output, progress)


def _replay(
    client: Client,
    replayer: Replayer,
    reader: Reader,
    segments: list[Segment],
    make_output: MakeOutput,
    progress: Progress,
) -> Replay:
    threads = sum(client.nthreads().values())
    if not threads:
        raise PtatError("the Dask cluster has no workers", "start some: dask worker ADDRESS")
    # A task's result is made again where it is lost; scattered data is not.
    setup = client.submit(bytes, pickle.dumps((replayer, make_output)), pure=False)
    joined = Joined()
    replayed: deque[Any] = deque()
    waiting = jobs(replayer, reader, segments)
    for segment in segments:
        while len(replayed) < AHEAD * threads and (job := next(waiting, None)):
            replayed.append(client.submit(_replay_segment, setup, job, pure=False))
        part, pages = replayed.popleft().result()
        joined.add(part)
        joined.add_pages(_unpacked(pages))
        progress("replaying", segment.end_block, reader.blocks)
    for _ in waiting:  # the last segment's effects on the tables
        pass
    return joined.whole(replayer.rpt)


def _replay_segment(setup: bytes, job: bytes) -> tuple[Part, _Packed]:
    replayer, make_output = pickle.loads(setup)
    part, pages = replay_segment(replayer, make_output, job)
    return part, _packed(pages)


def _packed(pages: I64) -> _Packed:
    """Columns in no more bytes than they need, each with its least value."""
    least = [int(values.min(initial=page_counts.NEVER_READ)) for values in pages]
    return [
        (low, (values - low).astype(np.min_scalar_type(int(values.max(initial=low)) - low)))
        for low, values in zip(least, pages, strict=True)
    ]


def _unpacked(columns: _Packed) -> I64:
    """What was `_packed`."""
    return np.stack([values.astype(np.int64) + low for low, values in columns])
