# SPDX-License-Identifier: BSD-2-Clause
"""``ptat overhead``: what recording a program would cost on real hardware, from a trace of it.

Traced, a walk reads its entries from memory where it would have found them in a cache, and the
kernel stores each changed entry a second time, uncached:

    added = (misses + faulted walks + PMD reads) × (uncached − cached) + stores × store

Trapping each miss as BadgerTrap does costs (misses + faulted walks) × trap instead. Trap mode
records each miss, which costs misses × touch where the kernel's handler can load the TLB for the
program, misses × step where the program has to take a single step. The defaults are not
measurements of a machine; `PAPER` is what was measured, and their check.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """An uncached read of memory."""
    cached_ns: float = 10.0
    """The average read of an entry by an untraced walk."""
    store_ns: float = 100.0
    """An uncached store."""
    trap_ns: float = 350.0
    """A page fault that only counts the miss and returns."""
    touch_ns: float = 500.0
    """A miss in trap mode whose handler loads the TLB: an estimate. On Haswell, by published
    figures, a page fault takes 715 cycles and iret 330: 0.3 µs at 3.5 GHz. The rest is the
    handler."""
    step_ns: float = 1000.0
    """The same with a single step, which is a second exception: an estimate."""


@dataclass(frozen=True)
class Overhead:
    """Time added to a run, and slowdown if the time of an untraced run is known."""

    walk_reads: int
    stores: int
    traps: int
    added_s: float
    trap_added_s: float
    misses: int
    touch_added_s: float
    step_added_s: float
    run_s: float | None

    def slowdown(self, added_s: float) -> float | None:
        """Slowdown of a run by an added time."""
        return 1 + added_s / self.run_s if self.run_s else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "slowdown": self.slowdown(self.added_s),
            "trap_slowdown": self.slowdown(self.trap_added_s),
            "touch_slowdown": self.slowdown(self.touch_added_s),
            "step_slowdown": self.slowdown(self.step_added_s),
        }


def estimate(totals: dict[str, int], costs: Costs, run_s: float | None) -> Overhead:
    """From the totals of a trace's summary."""
    misses = totals["misses"]
    walks = misses + totals["faulted"]
    reads = walks + totals["pmd_reads"]
    added_ns = reads * (costs.uncached_ns - costs.cached_ns) + totals["stores"] * costs.store_ns
    trap_ns = walks * costs.trap_ns
    return Overhead(
        walk_reads=reads,
        stores=totals["stores"],
        traps=walks,
        added_s=added_ns / 1e9,
        trap_added_s=trap_ns / 1e9,
        misses=misses,
        touch_added_s=misses * costs.touch_ns / 1e9,
        step_added_s=misses * costs.step_ns / 1e9,
        run_s=run_s,
    )


def notes(found: Overhead, of_traps: bool) -> list[str]:
    """Caveats of the numbers; `of_traps`: of a trap-mode session."""
    said = []
    if of_traps:
        said.append("traps show neither PMD reads nor stores of entries: a bus adds more than this")
    if found.run_s is None:
        said.append("--seconds S, the time of an untraced run, gives the slowdown")
    said.append("an estimate from latencies; measure them on the machine it is for")
    said.append(
        "trap mode's costs follow from published figures for Haswell: 715 cycles for a page fault,"
        " 330 for iret"
    )
    return said


def render(found: Overhead, costs: Costs, said: Sequence[str]) -> RenderableType:
    """All ways of counting misses side by side, the formulas, and the notes."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for index, column in enumerate(("", "adds", "slowdown", "because of")):
        table.add_column(column, justify="right" if index in (1, 2) else "left")
    for name, added_s, why in (
        (
            "ptat record",
            found.added_s,
            f"{found.walk_reads:,} reads of entries × ({costs.uncached_ns:g} − {costs.cached_ns:g})"
            f" ns + {found.stores:,} stores × {costs.store_ns:g} ns",
        ),
        (
            "trap mode, touch",
            found.touch_added_s,
            f"{found.misses:,} misses × {costs.touch_ns:g} ns",
        ),
        (
            "trap mode, step",
            found.step_added_s,
            f"{found.misses:,} misses × {costs.step_ns:g} ns",
        ),
        (
            "a trap for each miss",
            found.trap_added_s,
            f"{found.traps:,} traps × {costs.trap_ns:g} ns",
        ),
    ):
        slowdown = found.slowdown(added_s)
        shown = "–" if slowdown is None else f"{slowdown:.2f} ×"
        table.add_row(name, f"{added_s:.6f} s", shown, why)
    return Group(table, "", *(Text(f"note: {note}") for note in said))
