# SPDX-License-Identifier: BSD-2-Clause
"""``pages.parquet``: one row per page that was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.formats.parquet import Column, Text, Writer
from ptat_parser.order.clock import Clock
from ptat_parser.replay import page_counts
from ptat_parser.replay.page_tables import ENTRIES, ENTRY_SHIFT, Mm
from ptat_parser.replay.segments import Replay

I64 = npt.NDArray[np.int64]

PAGE_COLUMNS = {
    "page": np.uint32,
    "mm": np.uint64,
    "tgid": np.int32,
    "comm": str,
    "vaddr": np.uint64,
    "page_size_bytes": np.int64,
    "span": np.uint8,
    "misses": np.int64,
    "faulted": np.int64,
    "stores": np.int64,
    "first_ns": np.int64,
    "last_ns": np.int64,
}
"""Columns of ``pages.parquet``."""


Pages = dict[str, npt.NDArray[Any]]
"""The columns as arrays; `comm` holds the index of the address space."""


def pages_of(done: Replay, fitted: Clock, line: int) -> Pages:
    """The rows of the pages in a replay. `line`: entries that a bus address stands for."""
    rpt, columns = done.rpt, done.pages
    entry, more = np.divmod(columns[page_counts.P_PAGE], line)
    range_, entry = np.divmod(entry, ENTRIES)
    mm = np.array([r.mm for r in rpt.ranges], np.uint32)[range_]
    base = np.array([r.base for r in rpt.ranges], np.uint64)[range_]
    shift = np.array([ENTRY_SHIFT[r.level] for r in rpt.ranges], np.int64)[range_]
    return {
        "page": columns[page_counts.P_PAGE],
        "mm": _of_mm(rpt.mms, "id", np.uint64)[mm],
        "tgid": _of_mm(rpt.mms, "tgid", np.int32)[mm],
        "comm": mm,
        "vaddr": base + (entry << shift).astype(np.uint64),
        "page_size_bytes": np.int64(1) << shift,
        "span": more + 1,
        "misses": columns[page_counts.P_MISSES],
        "faulted": columns[page_counts.P_FAULTED],
        "stores": columns[page_counts.P_STORES],
        "first_ns": fitted.to_ns(columns[page_counts.P_FIRST].astype(np.uint64)),
        "last_ns": fitted.to_ns(columns[page_counts.P_LAST].astype(np.uint64)),
    }


def write_pages(pages: Pages, comms: list[str], path: Path) -> None:
    """Write ``pages.parquet``; `comms`: names of the address spaces' processes."""
    columns = [
        Text(name, comms or [""]) if dtype is str else Column(name, dtype)
        for name, dtype in PAGE_COLUMNS.items()
    ]
    with path.open("wb") as file, Writer(file, columns) as writer:
        writer.write(*pages.values())


def _of_mm(mms: list[Mm], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.array([getattr(mm, name) for mm in mms] or [0], dtype)
