# SPDX-License-Identifier: BSD-2-Clause
"""Replays spans on a Dask cluster, whose workers see the session's directory at the same path.

What a worker that dies had done is done again by others: its results are lost, and Dask runs the
tasks that made them once more.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ptat_parser import quick
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.merge import Reader
from ptat_parser.replay import Replayer
from ptat_parser.replay_data import Part, Span
from ptat_parser.spans import Joined, MakeOutput, Replay, jobs, replay_span
from ptat_parser.survey import Progress, no_progress

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
    spans: list[Span],
    make_output: MakeOutput,
    progress: Progress = no_progress,
) -> Replay:
    """Replay the spans on the cluster whose scheduler is at `address`."""
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
        return _replay(client, replayer, reader, spans, make_output, progress)


def _replay(
    client: Client,
    replayer: Replayer,
    reader: Reader,
    spans: list[Span],
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
    waiting = jobs(replayer, reader, spans)
    for span in spans:
        while len(replayed) < AHEAD * threads and (job := next(waiting, None)):
            replayed.append(client.submit(_replay_span, setup, job, pure=False))
        part, pages = replayed.popleft().result()
        joined.add(part)
        joined.add_pages(_unpacked(pages))
        progress("replaying", span.end_block, reader.blocks)
    for _ in waiting:  # the last span's effects on the tables
        pass
    return joined.whole(replayer.rpt)


def _replay_span(setup: bytes, job: bytes) -> tuple[Part, _Packed]:
    replayer, make_output = pickle.loads(setup)
    part, pages = replay_span(replayer, make_output, job)
    return part, _packed(pages)


def _packed(pages: I64) -> _Packed:
    """Columns in no more bytes than they need, each with its least value."""
    least = [int(values.min(initial=quick.NEVER_READ)) for values in pages]
    return [
        (low, (values - low).astype(np.min_scalar_type(int(values.max(initial=low)) - low)))
        for low, values in zip(least, pages, strict=True)
    ]


def _unpacked(columns: _Packed) -> I64:
    """What was `_packed`."""
    return np.stack([values.astype(np.int64) + low for low, values in columns])
