# SPDX-License-Identifier: BSD-2-Clause
"""``ptat overhead``: what recording a program would cost on real hardware, from a trace of it.

Traced, a walk reads its entries from memory where it would have found them in a cache, and the
kernel stores each changed entry a second time, uncached:

    added = (misses + faulted walks + PMD reads) × (uncached − cached) + stores × store

Trapping each miss as BadgerTrap does costs (misses + faulted walks) × trap instead. The defaults
are not measurements of a machine; `PAPER` is what was measured, and their check.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

PAPER = (
    ("436.cactusADM", 7.50, 29.1),
    ("437.leslie3d", 1.16, 1.58),
    ("RandomAccess p1", 7.89, 20.3),
    ("RandomAccess serial, 1 GB", 8.67, 15.3),
    ("RandomAccess serial, 4 GB", 6.23, 11.1),
)
"""Slowdown by PTAT and by BadgerTrap, 4 KiB pages, platform B: figures 4(b) and 5 of the PTAT
paper, section 5.3. (slowdown − 1) of the two has the ratio of their costs of a miss: from
(uncached − cached) / trap, where only the last entry of a walk is read, to twice that, where the
PMD entry is read with each."""


@dataclass(frozen=True)
class Costs:
    """Latencies in ns."""

    uncached_ns: float = 100.0
    """A read of memory that no cache may keep."""
    cached_ns: float = 10.0
    """A read of an entry by an untraced walk, on average."""
    store_ns: float = 100.0
    """An uncached store."""
    trap_ns: float = 350.0
    """A page fault that only counts the miss and returns."""


@dataclass(frozen=True)
class Overhead:
    """Time added to a run, and slowdown if the time of an untraced run is known."""

    walk_reads: int
    stores: int
    traps: int
    added_s: float
    trap_added_s: float
    run_s: float | None

    @property
    def slowdown(self) -> float | None:
        """Of recording with ptat."""
        return 1 + self.added_s / self.run_s if self.run_s else None

    @property
    def trap_slowdown(self) -> float | None:
        """Of trapping each miss."""
        return 1 + self.trap_added_s / self.run_s if self.run_s else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "slowdown": self.slowdown, "trap_slowdown": self.trap_slowdown}


def estimate(totals: dict[str, int], costs: Costs, run_s: float | None) -> Overhead:
    """From the totals of a trace's summary."""
    walks = totals["misses"] + totals["faulted"]
    reads = walks + totals["pmd_reads"]
    added_ns = reads * (costs.uncached_ns - costs.cached_ns) + totals["stores"] * costs.store_ns
    trap_ns = walks * costs.trap_ns
    return Overhead(reads, totals["stores"], walks, added_ns / 1e9, trap_ns / 1e9, run_s)


def render(found: Overhead, costs: Costs) -> RenderableType:
    """Both ways of counting misses side by side, and the formula."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for index, column in enumerate(("", "adds", "slowdown", "because of")):
        table.add_column(column, justify="right" if index in (1, 2) else "left")
    for name, added_s, slowdown, why in (
        (
            "ptat record",
            found.added_s,
            found.slowdown,
            f"{found.walk_reads:,} reads of entries × ({costs.uncached_ns:g} − {costs.cached_ns:g})"
            f" ns + {found.stores:,} stores × {costs.store_ns:g} ns",
        ),
        (
            "a trap for each miss",
            found.trap_added_s,
            found.trap_slowdown,
            f"{found.traps:,} traps × {costs.trap_ns:g} ns",
        ),
    ):
        shown = "–" if slowdown is None else f"{slowdown:.2f} ×"
        table.add_row(name, f"{added_s:.6f} s", shown, why)
    parts: list[RenderableType] = [table, ""]
    if found.run_s is None:
        parts.append(Text("note: --seconds S, the time of an untraced run, gives the slowdown"))
    parts.append(Text("note: an estimate from latencies; measure them on the machine it is for"))
    return Group(*parts)
