# SPDX-License-Identifier: BSD-2-Clause
"""``ptat script``: the trace as text, one miss a line."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ptat_host.reports.objects import Objects
from ptat_host.reports.session_report import printable
from ptat_parser import Misses
from ptat_parser.formats.traps import access_name
from ptat_parser.results.export import PAGE_SIZES, page_texts, seconds, write_joined

HEADER = b"#           time_s comm               tgid          vaddr page span object\n"
TRAP_HEADER = (
    b"#           time_s comm               tgid          vaddr page span"
    b"    tid       access                 ip object\n"
)
"""Header of a trap-mode session."""
_COLUMNS = ("comm", "tgid", "vaddr", "page_size_bytes", "span")


def write(
    misses: Misses,
    out: BinaryIO,
    *,
    limit: int | None = None,
    pattern: str | None = None,
    as_json: bool = False,
) -> None:
    """Write misses in bus order to `out`, at most `limit` of them.

    `pattern`: shell pattern of object names; others are skipped. `as_json`: each line is a
    JSON object.
    """
    pages = misses.trace.pages
    objects = Objects(misses.trace)
    page_of_cell = pa.array(objects.page_of_cell)
    if as_json:
        values = zip(*(pages[column].to_pylist() for column in _COLUMNS), strict=True)
        start = pa.array([_json(*row) for row in values], pa.string()).take(page_of_cell)
    else:
        start = page_texts(pages, _line, *_COLUMNS).take(page_of_cell)
    names = [one.name if objects.recorded else None for one in objects.objects]
    end = pa.array([_end_json(n) if as_json else _end(n) for n in names], pa.string())
    end = end.take(pa.array(objects.object_of_cell))
    wanted = None
    if pattern is not None:
        matches = [name is not None and fnmatchcase(name, pattern) for name in names]
        wanted = np.array(matches, np.bool_)[objects.object_of_cell]
    left = limit
    traps = bool(misses.trace.session.traps)
    if not as_json:
        out.write(TRAP_HEADER if traps else HEADER)
    for batch in misses.stored():
        cell = objects.cell(batch["time"].to_numpy(), batch["page"].to_numpy())
        if wanted is not None:
            rows = wanted[cell]
            batch, cell = batch.filter(pa.array(rows)), cell[rows]
        batch, of_cell = batch.slice(0, left), pa.array(cell[:left])
        time = batch["time"]
        parts = [start.take(of_cell), end.take(of_cell)]
        if traps:
            parts.insert(1, _trap_json(batch) if as_json else _trap_text(batch))
        if as_json:
            write_joined(out, _OPENING, time.cast(pa.string()), *parts)
        else:
            write_joined(out, pc.utf8_lpad(seconds(time), 18), *parts)
        if left is not None:
            left -= len(time)
            if left == 0:
                break


_OPENING = pa.scalar('{"time_ns":')


def _line(comm: str, tgid: int, vaddr: int, size: int, span: int) -> str:
    """A line's text between its time and its object."""
    return f" {comm:<16} {tgid:>6} 0x{vaddr:012x} {PAGE_SIZES[size]:>4} {span:>4} "


def _end(name: str | None) -> str:
    """The last column, so it may contain blanks."""
    return f"{'-' if name is None else printable(name)}\n"


def _json(comm: str, tgid: int, vaddr: int, size: int, span: int) -> str:
    values = {"comm": comm, "tgid": tgid, "vaddr": vaddr, "page_size_bytes": size, "span": span}
    return f",{json.dumps(values, separators=(',', ':'))[1:-1]}"


def _end_json(name: str | None) -> str:
    return f',"object":{json.dumps(name)}}}\n'


# What traps add -----------------------------------------------------------------------------------

_ACCESSES = pa.array([access_name(flags).replace(" ", "-") for flags in range(8)])
"""By the flags of a miss."""


def _trap_text(batch: pa.RecordBatch) -> pa.Array:
    """Thread, kind of access and instruction of each miss."""
    ip = [f" 0x{ip:016x} " for ip in batch["ip"].to_pylist()]
    return pc.binary_join_element_wise(
        pc.utf8_lpad(batch["thread"].cast(pa.string()), 6),
        pc.utf8_lpad(_ACCESSES.take(batch["access"]), 13),
        pa.array(ip, pa.string()),
        "",
    )


def _trap_json(batch: pa.RecordBatch) -> pa.Array:
    return pc.binary_join_element_wise(
        ',"tid":',
        batch["thread"].cast(pa.string()),
        ',"access":"',
        _ACCESSES.take(batch["access"]),
        '","ip":',
        batch["ip"].cast(pa.string()),
        "",
    )
