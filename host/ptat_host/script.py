# SPDX-License-Identifier: BSD-2-Clause
"""``ptat script``: the trace as text, one miss a line.

Lines are put together by Arrow, column by column: a line's text apart from its time is that of
its page, made once for each page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HEADER = b"#           time_s comm               tgid          vaddr page span\n"

_PAGE_SIZES = {1 << 12: "4K", 1 << 21: "2M", 1 << 30: "1G"}


def write(results: Path, out: BinaryIO, limit: int | None = None) -> None:
    """Write the misses of a session's results to `out` in bus order, at most `limit` of them."""
    page_text = _page_text(results / "pages.parquet")
    out.write(HEADER)
    for batch in _batches(results / "misses", limit):
        lines = pc.binary_join_element_wise(
            _seconds(batch["time"]), page_text.take(batch["page"]), ""
        )
        # The text of all lines lies in one buffer, one after the other.
        _, offsets, text = lines.buffers()
        ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
        out.write(memoryview(text)[ends[0] : ends[-1]])


def _batches(misses: Path, limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for part in sorted(misses.glob("part-*.parquet")):
        for batch in pq.ParquetFile(part).iter_batches(columns=["time", "page"]):
            if left is not None:
                batch = batch.slice(0, left)
                left -= len(batch)
            if len(batch):
                yield batch
            if left == 0:
                return


def _seconds(time_ns: pa.Array) -> pa.Array:
    seconds = pc.divide(time_ns, 1_000_000_000)
    rest = pc.subtract(time_ns, pc.multiply(seconds, 1_000_000_000))
    return pc.binary_join_element_wise(
        pc.utf8_lpad(pc.cast(seconds, pa.string()), 8),
        pc.utf8_lpad(pc.cast(rest, pa.string()), 9, "0"),
        ".",
    )


def _page_text(path: Path) -> pa.Array:
    """For each page id, its part of a line."""
    columns = ["page", "comm", "tgid", "vaddr", "page_size_bytes", "span"]
    pages = pq.read_table(path, columns=columns).sort_by("page").to_pydict()
    if pages["page"] != list(range(len(pages["page"]))):
        raise AssertionError("page ids are not 0, 1, 2 …")
    names = {comm: _printable(comm) for comm in set(pages["comm"])}
    return pa.array(
        [
            f" {names[comm]:<16} {tgid:>6} 0x{vaddr:012x} {_PAGE_SIZES[size]:>4} {span:>4}\n"
            for comm, tgid, vaddr, size, span in zip(
                *(pages[column] for column in columns[1:]), strict=True
            )
        ],
        pa.string(),
    )


def _printable(comm: str) -> str:
    """A name without blanks, so that columns can be cut out of the text."""
    return re.sub(r"[^!-~]", lambda found: f"\\x{ord(found[0]):02x}", comm) or "?"
