# SPDX-License-Identifier: BSD-2-Clause
"""``ptat diff``: two recordings of a program, or two sets of them, side by side.

Processes are matched by name, objects by name, kind and place. Where each side was recorded
several times, a change is *clear* if the ranges of the two sides do not touch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.objects import Objects
from ptat_host.report import printable
from ptat_host.sizes import format_size
from ptat_parser import Trace


@dataclass(frozen=True)
class Change:
    """Misses of something, in each recording of both sides."""

    what: str
    """total, process, object or page size."""
    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def change(self) -> float | None:
        """Of the medians, relative to before; None: there was nothing before."""
        before = median(self.before)
        return median(self.after) / before - 1 if before else None

    @property
    def clear(self) -> bool | None:
        """More than the spread of either side; None: not known from one recording of each."""
        if min(len(self.before), len(self.after)) < 2:
            return None
        return min(self.after) > max(self.before) or max(self.after) < min(self.before)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "change": self.change, "clear": self.clear}


def compare(before: Sequence[Trace], after: Sequence[Trace], top: int) -> list[Change]:
    """All changes: the total, then of each kind the `top` largest, in misses."""
    sides = [[_counts(trace) for trace in side] for side in (before, after)]
    changes = []
    for what in ("total", "page size", "process", "object"):
        names = {key for side in sides for counts in side for key in counts[what]}
        found = [
            Change(what, name, *(tuple(counts[what][name] for counts in side) for side in sides))
            for name in names
        ]
        found.sort(key=lambda one: (-abs(median(one.after) - median(one.before)), one.name))
        changes += found[:top]
    return changes


def warnings(before: Sequence[Trace], after: Sequence[Trace]) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    for trace in (*before, *after):
        if not trace.summary["complete"] or trace.summary["lost"]:
            found.append(f"{trace.session.path}: incomplete, or something was lost")
    for name, values in (
        ("buses", {trace.session.board.granularity_bytes for trace in (*before, *after)}),
        ("TLBs", {str(trace.session.cpu.get("tlb")) for trace in (*before, *after)}),
        ("commands", {" ".join(trace.session.command.argv) for trace in (*before, *after)}),
    ):
        if len(values) > 1:
            found.append(f"the recordings have different {name}")
    return found


def _counts(trace: Trace) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {
        "total": Counter({"misses": trace.summary["totals"]["misses"]}),
        "page size": Counter(),
        "process": Counter(),
        "object": Counter(),
    }
    for process in trace.summary["processes"]:
        if process["misses"]:
            counts["process"][process["comm"]] += process["misses"]
        for size, misses in process["misses_by_page_size"].items():
            counts["page size"][format_size(int(size))] += misses
    objects = Objects(trace)
    for one in objects.count() if objects.recorded else ():
        # Addresses differ from run to run.
        place = "" if one.detail.startswith("at 0x") else one.detail
        counts["object"][" ".join(part for part in (one.name, place) if part)] += one.misses
    return counts


def render(changes: Sequence[Change], notes: Sequence[str]) -> RenderableType:
    """A table of all changes."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for index, column in enumerate(("", "", "before", "after", "change", "clear")):
        table.add_column(column, justify="right" if index in (2, 3, 4) else "left")
    last = None
    for one in changes:
        change = "new" if one.change is None else f"{100 * one.change:+.1f} %"
        table.add_row(
            one.what if one.what != last else "",
            Text(printable(one.name)),
            _range(one.before),
            _range(one.after),
            change,
            {None: "", True: "yes", False: "no"}[one.clear],
        )
        last = one.what
    parts: list[RenderableType] = [table]
    if changes and changes[0].clear is None:
        parts += ["", Text("note: one recording a side: how much of this is chance is not known")]
    return Group(*parts, *(Text(f"note: {note}") for note in notes))


def _range(values: Sequence[int]) -> str:
    middle = f"{median(values):,.0f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,} … {max(values):,})"
