# SPDX-License-Identifier: BSD-2-Clause
"""Replays segments on a Dask cluster, whose workers see the session's directory at the same path.

If a worker dies, its results are lost, and Dask runs its tasks again.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from ptat_parser.errors import BadInput, PtatError
from ptat_parser.order.first_pass import Progress
from ptat_parser.replay.workers import Done, Executor, Work

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 10

SHARES = 4
"""Shares per thread of the cluster. A share is a run of segments; its worker first skips all
earlier segments."""


def on_cluster(address: str) -> Executor:
    """Replay on the cluster whose scheduler is at `address`."""
    return partial(_on_cluster, address)


def _on_cluster(address: str, work: Work, progress: Progress) -> Generator[Done]:
    with _connected(address) as client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise PtatError("the Dask cluster has no workers", "start some: dask worker ADDRESS")
        count = len(work.segments)
        shares = min(SHARES * threads, count)
        ends = [count * (share + 1) // shares for share in range(shares)]
        # Dask recomputes a lost result of a task, but not lost scattered data.
        packed = client.submit(bytes, pickle.dumps(work), pure=False)
        waiting = [
            client.submit(_replay, packed, range(first, end), pure=False)
            for first, end in zip([0, *ends], ends, strict=False)
        ]
        for end in ends:
            yield waiting.pop(0).result()
            progress("replaying", work.segments[end - 1].end_block, 0)


def _connected(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError as error:
        raise BadInput("--cluster needs Dask", "pip install 'ptat[cluster]'") from error
    try:
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"no Dask scheduler answers at {address}", "start one: dask scheduler"
        ) from error


def _replay(packed: bytes, numbers: range) -> Done:
    work: Work = pickle.loads(packed)
    return work.replay(numbers)
