# SPDX-License-Identifier: BSD-2-Clause
"""A sweep as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.sizes import format_size
from ptat_studies.fs import sweep
from ptat_studies.fs.sweep import Figures, Summary, Sweep, summaries


@dataclass(frozen=True)
class Column:
    """A quantity in the table, times `scale`."""

    head: str
    quantity: str
    mode: str = "all"
    scale: float = 1


COLUMNS = (
    Column("data walks per 1000 instr.", "page walks per 1000 instructions (data)"),
    Column("walks per KiB", sweep.WALKS_PER_BYTE, scale=1024),
    Column("by the program", sweep.WALKS_PER_BYTE, "user", 1024),
    Column("by the kernel", sweep.WALKS_PER_BYTE, "kernel", 1024),
    Column("cycles in data walks (%)", "cycles spent in page walks (data)"),
    Column("MiB/s", sweep.THROUGHPUT, scale=1 / (1 << 20)),
)
BASE, COMPARED = "ext4", "ext4-dax"


def quantities(figures: Sequence[Figures]) -> list[tuple[str, str]]:
    """Each quantity and mode that a cell has, in the order of their first appearance."""
    found = ((value.quantity, value.mode) for one in figures for value in one.values)
    return list(dict.fromkeys(found))


def as_dict(done: Sweep) -> dict[str, Any]:
    """For JSON: the median, spread and kinds of runs of each quantity of each cell."""
    figures = list(done.done.values())
    return {
        "where": done.plan.where,
        "cells": len(figures),
        "left": len(done.left),
        "failed": [{**asdict(one.cell), "error": one.error} for one in done.failed],
        "summaries": [
            {**_cell(one), "mode": mode, **one.spread.as_dict()}
            for quantity, mode in quantities(figures)
            for one in summaries(figures, quantity, mode)
        ],
        "ext4_vs_dax": sweep.ratios(figures, COMPARED, BASE, sweep.WALKS),
    }


def _cell(one: Summary) -> dict[str, Any]:
    cell = asdict(one.cell)
    del cell["repeat"]
    return cell


def render(done: Sweep) -> RenderableType:
    """A row for each cell: medians, and how far the repeats of the walks are apart."""
    figures = list(done.done.values())
    cells = {
        column: {
            one.cell: one.spread.median for one in summaries(figures, column.quantity, column.mode)
        }
        for column in COLUMNS
    }
    present = [column for column in COLUMNS if cells[column]]
    table = Table(box=None, pad_edge=False)
    for name in ("file system", "operation"):
        table.add_column(name)
    for name in ("file", "unit", *(column.head for column in present), "repeats", "spread"):
        table.add_column(name, justify="right")
    for one in summaries(figures, sweep.WALKS):
        row = [(cells[column].get(one.cell), column.scale) for column in present]
        spread = one.spread.spread
        table.add_row(
            one.cell.system,
            one.cell.operation,
            format_size(one.cell.file_bytes),
            format_size(one.cell.unit_bytes),
            *("" if median is None else f"{median * scale:,.4g}" for median, scale in row),
            str(len(one.spread.values)) + (" (two kinds)" if one.spread.clusters else ""),
            "" if spread is None else f"{spread:.1%}",
        )
    notes = [Text(f"taken on  {done.plan.where}")]
    notes += [Text(f"failed    {_name(one)}: {one.error}") for one in done.failed]
    if done.left:
        notes.append(Text(f"left      {len(done.left)} cells: the same command continues"))
    return Group(table, "", *notes)


def _name(one: Figures) -> str:
    cell = one.cell
    sizes = f"{format_size(cell.file_bytes)} by {format_size(cell.unit_bytes)}"
    return f"{cell.system} {cell.operation} {sizes}"
