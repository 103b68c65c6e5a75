# SPDX-License-Identifier: BSD-2-Clause
"""``ptat script``: the trace as text, one miss a line.

Lines are put together by Arrow, column by column: a line's text apart from its time is that of
its page, made once for each page.
"""

from __future__ import annotations

import re
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ptat_parser import Results

HEADER = b"#           time_s comm               tgid          vaddr page span\n"

_PAGE_SIZES = {1 << 12: "4K", 1 << 21: "2M", 1 << 30: "1G"}


def write(results: Results, out: BinaryIO, limit: int | None = None) -> None:
    """Write the misses in bus order to `out`, at most `limit` of them."""
    page_text = _page_text(results.pages())
    out.write(HEADER)
    left = limit
    for time_ns, page in results.misses():
        lines = pc.binary_join_element_wise(
            _seconds(pa.array(time_ns[:left])), page_text.take(pa.array(page[:left])), ""
        )
        # The text of all lines lies in one buffer, one after the other.
        _, offsets, text = lines.buffers()
        ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
        out.write(memoryview(text)[ends[0] : ends[-1]])
        if left is not None:
            left -= len(lines)
            if left == 0:
                break


def _seconds(time_ns: pa.Array) -> pa.Array:
    seconds = pc.divide(time_ns, 1_000_000_000)
    rest = pc.subtract(time_ns, pc.multiply(seconds, 1_000_000_000))
    return pc.binary_join_element_wise(
        pc.utf8_lpad(pc.cast(seconds, pa.string()), 8),
        pc.utf8_lpad(pc.cast(rest, pa.string()), 9, "0"),
        ".",
    )


def _page_text(pages: pa.Table) -> pa.Array:
    """For each page, its part of a line."""
    columns = ("comm", "tgid", "vaddr", "page_size_bytes", "span")
    comm, *numbers = (pages[column].to_pylist() for column in columns)
    names = {name: _printable(name) for name in set(comm)}
    return pa.array(
        [
            f" {names[name]:<16} {tgid:>6} 0x{vaddr:012x} {_PAGE_SIZES[size]:>4} {span:>4}\n"
            for name, tgid, vaddr, size, span in zip(comm, *numbers, strict=True)
        ],
        pa.string(),
    )


def _printable(comm: str) -> str:
    """A name without blanks, so that columns can be cut out of the text."""
    return re.sub(r"[^!-~]", lambda found: f"\\x{ord(found[0]):02x}", comm) or "?"
