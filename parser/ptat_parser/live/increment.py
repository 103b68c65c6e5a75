# SPDX-License-Identifier: BSD-2-Clause
"""What a monitor counted since its previous update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

STEP_S = 0.02
"""Time resolution of the misses."""


@dataclass
class Increment:
    """What arrived since the previous update."""

    accesses: int = 0
    misses: int = 0
    faulted: int = 0
    """Walks that read an empty entry."""
    pmd_reads: int = 0
    stores: int = 0
    unexplained: int = 0
    """Reads outside of known tables."""
    lost_accesses: int = 0
    lost_blocks: int = 0
    lost_events: int = 0
    """Events lost in the kernel's log."""
    stopped: bool = False
    """The capture has ended."""
    pages: list[PageMisses] = field(default_factory=list)


@dataclass
class PageMisses:
    """Misses by page up to a moment; arrays of shape ``(pages,)``."""

    time_ns: int
    """Kernel time; of a bus session estimated from the markers."""
    mm: I64
    """Index into the monitor's `mms`."""
    vaddr: U64
    page_size_bytes: I64
    misses: I64


def rows(pages: list[PageMisses]) -> dict[str, npt.NDArray[Any]]:
    """Concatenate the pages of several updates; `time_ns` becomes a column."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, dtype in (("mm", np.int64), ("vaddr", np.uint64), ("page_size_bytes", np.int64),
                        ("misses", np.int64)):  # fmt: skip
        columns[name] = np.concatenate(
            [np.zeros(0, dtype), *(getattr(one, name) for one in pages)]
        ).astype(dtype)
    columns["time_ns"] = np.repeat(
        np.array([one.time_ns for one in pages], np.int64),
        np.array([one.mm.size for one in pages], np.int64),
    )
    return columns
