# SPDX-License-Identifier: BSD-2-Clause
"""``ptat script``: the trace as text, one miss a line."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from ptat_parser import Results
from ptat_parser.export import PAGE_SIZES, page_texts, seconds, write_joined

HEADER = b"#           time_s comm               tgid          vaddr page span\n"


def write(results: Results, out: BinaryIO, limit: int | None = None) -> None:
    """Write the misses in bus order to `out`, at most `limit` of them."""
    columns = ("comm", "tgid", "vaddr", "page_size_bytes", "span")
    of_page = page_texts(results.pages(), _line, *columns)
    out.write(HEADER)
    left = limit
    for time_ns, page in results.misses():
        time = pc.utf8_lpad(seconds(pa.array(time_ns[:left])), 18)
        write_joined(out, time, of_page.take(pa.array(page[:left])))
        if left is not None:
            left -= len(time)
            if left == 0:
                break


def _line(comm: str, tgid: int, vaddr: int, size: int, span: int) -> str:
    """A line's text apart from its time."""
    return f" {comm:<16} {tgid:>6} 0x{vaddr:012x} {PAGE_SIZES[size]:>4} {span:>4}\n"
