# SPDX-License-Identifier: BSD-2-Clause
"""``ptat validate``: the parser's verdict on a trace as text."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_parser import Validation

EXAMPLES_SHOWN = 3


def render(found: Validation) -> RenderableType:
    """The verdict, the counts behind it, and what is wrong."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, count, about in _rows(found):
        if count is not None:
            table.add_row(name, f"{count:,}", about)
    if found.relative_error is not None:
        table.add_row("relative error", f"{found.relative_error:.2e}", "1 − trace/counter")
    parts: list[RenderableType] = [_verdict(found), "", table]
    parts += [Text(f"note: {note}") for note in found.notes]
    parts += [Text(f"wrong: {_example(e)}") for e in found.examples[:EXAMPLES_SHOWN]]
    return Group(*parts)


def _verdict(found: Validation) -> Text:
    if not found.ok:
        return Text("NOT exact" if found.exact is False else "NOT right", style="bold red")
    if not found.exact:
        return Text("right, as far as it can be checked without a truth", style="bold yellow")
    page = "page" if found.granularity_bytes == 8 else "page (one of those a bus address shows)"
    return Text(f"exact: each miss has the true process, {page} and page size", style="bold green")


def _rows(found: Validation) -> list[tuple[str, int | None, str]]:
    """Name, count (None: it does not apply) and meaning."""
    outside = found.outside_region - found.not_demanded
    compared = [
        ("misses in the truth", found.truth_misses, "of traced processes, not faulted"),
        ("agree", found.matched, ""),
        ("missing", found.missing, "in the truth only"),
        ("extra", found.extra, "in the trace only"),
        ("wrong page", found.wrong_page, "in both, but of another process, page or page size"),
        ("wrong label", found.fault_label_errors, "faulted walks taken for misses, or the reverse"),
        ("outside region", outside, "misses whose page table did not fit into the region"),
        ("not asked for", found.not_demanded, "on tables of before, or of a level left out"),
    ]
    return [
        ("misses in the trace", found.trace_misses, ""),
        *(compared if found.exact is not None else []),
        ("lost", found.lost, "on the way from the bus or from the kernel"),
        ("unexplained", found.unexplained, "reads that no walk explains"),
        ("walks explained", found.explained, "whole walks: level, live table, process"),
        ("reads by the kernel", found.kernel_reads, "of the region, which it should never read"),
        ("walks counted", found.counter_walks, "by the counters, of the same processes"),
    ]


def _example(example: dict[str, Any]) -> str:
    """`{"kind": …, "trace": {…}, "truth": {…}}` as one line."""
    return ", ".join(
        f"{key} {_example(value)}" if isinstance(value, dict) else f"{key} {_value(key, value)}"
        for key, value in example.items()
    )


def _value(key: str, value: object) -> str:
    return hex(value) if key in ("va", "vaddr") and isinstance(value, int) else str(value)
