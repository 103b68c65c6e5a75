# SPDX-License-Identifier: BSD-2-Clause
"""``ptat diff``: two recordings of a program, or two sets of them, side by side.

Processes are matched by name, objects by name and place. Where each side was recorded several
times, a change is *significant* if chance alone would seldom bring it about: see
`repeats.difference`. Changes of one kind are many comparisons, for which p is adjusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports import repeats
from ptat_host.reports.objects import Objects
from ptat_host.reports.repeats import ALPHA, difference
from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size
from ptat_parser import Trace

ENOUGH = 4
"""With this many recordings on each side, the smallest possible p is 0.029."""

SHARE_MIN = 0.001
"""Items with a smaller share of all misses of all recordings are not tested."""


@dataclass(frozen=True)
class Change:
    """Misses of one item in each recording of both sides."""

    what: str
    """total, process, object or page size."""
    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    p: float | None = None
    """How often chance produces such a change (p, adjusted for all changes of its kind); None:
    unknown with one recording of a side, or too small to test."""

    @property
    def change(self) -> float | None:
        """Change of the medians relative to before; None: there were no misses before."""
        before = median(self.before)
        return median(self.after) / before - 1 if before else None

    @property
    def significant(self) -> bool | None:
        """None: unknown with one recording of a side."""
        return None if self.p is None else self.p < ALPHA

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "change": self.change, "significant": self.significant}


def compare(before: Sequence[Trace], after: Sequence[Trace], top: int) -> list[Change]:
    """All changes: the total, then of each kind the `top` largest, in misses."""
    sides = [[_counts(trace) for trace in side] for side in (before, after)]

    def of(side: list[dict[str, Counter[str]]], what: str, name: str) -> tuple[int, ...]:
        return tuple(counts[what][name] for counts in side)

    least = SHARE_MIN * sum(counts["total"].total() for side in sides for counts in side)
    changes = []
    for what in ("total", "page size", "process", "object"):
        names = {key for side in sides for counts in side for key in counts[what]}
        found = [
            Change(what, name, of(sides[0], what, name), of(sides[1], what, name)) for name in names
        ]
        if min(len(before), len(after)) > 1:
            tested = [one for one in found if sum(one.before) + sum(one.after) >= least]
            rest = [one for one in found if sum(one.before) + sum(one.after) < least]
            chances = repeats.adjusted([difference(one.before, one.after) for one in tested])
            found = [replace(one, p=p) for one, p in zip(tested, chances, strict=True)] + rest
        found.sort(key=lambda one: (-abs(median(one.after) - median(one.before)), one.name))
        changes += found[:top]
    return changes


def warnings(before: Sequence[Trace], after: Sequence[Trace]) -> list[str]:
    """Caveats of the numbers."""
    found = []
    for trace in (*before, *after):
        if not trace.summary["complete"]:
            found.append(f"{trace.session.path}: incomplete: {trace.summary['incomplete_reason']}")
    for name, values in (
        ("buses", {trace.session.board.granularity_bytes for trace in (*before, *after)}),
        ("TLBs", {str(trace.session.cpu.get("tlb")) for trace in (*before, *after)}),
        ("commands", {" ".join(trace.session.command.argv) for trace in (*before, *after)}),
    ):
        if len(values) > 1:
            found.append(f"the recordings have different {name}")
    if len({bool(trace.session.traps) for trace in (*before, *after)}) > 1:
        found.append(
            "some recordings are of a bus, others of traps: a bus also shows speculative and"
            " prefetched walks, traps only demand misses"
        )
    return found + _about_chance(len(before), len(after))


def _about_chance(before: int, after: int) -> list[str]:
    """Whether the number of recordings is enough to separate chance from change."""
    if min(before, after) < 2:
        return [
            "one recording of a side: significance cannot be tested; give repeats of both:"
            " ptat diff A1 A2 … --against B1 B2 …"
        ]
    least = repeats.least_p(before, after)
    if least >= ALPHA:
        return [
            f"{before} and {after} recordings: no change can be significant (p is at least"
            f" {least:.2f}, {ALPHA:g} is needed); record each {ENOUGH} times"
        ]
    return []


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
    for index, column in enumerate(("", "", "before", "after", "change", "p", "significant")):
        table.add_column(column, justify="right" if index in (2, 3, 4, 5) else "left")
    last = None
    for one in changes:
        change = "new" if one.change is None else f"{100 * one.change:+.1f} %"
        table.add_row(
            one.what if one.what != last else "",
            Text(printable(one.name)),
            _range(one.before),
            _range(one.after),
            change,
            "" if one.p is None else f"{one.p:.3f}",
            {None: "", True: "yes", False: "no"}[one.significant],
        )
        last = one.what
    return Group(table, "", *(Text(f"note: {note}") for note in notes))


def _range(values: Sequence[int]) -> str:
    middle = f"{median(values):,.0f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,} … {max(values):,})"
