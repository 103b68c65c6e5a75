# SPDX-License-Identifier: BSD-2-Clause
"""``ptat hunt``: where a file system has the most TLB misses per byte, and in which functions.

Operations, file sizes and unit sizes have too many combinations to try all of them. The search
takes one cell of each operation, then mostly neighbours of the worst ones: the next size up or
down of file or unit. Now and then it takes any, as a slope may lead to a hill that is not the
highest. All that was measured is kept (`ptat_studies.fs.sweep`), so a search can be resumed.

The functions are those of a second measurement of the worst cells, in the testbed, with its record
of kernel code's misses; so each figure is there twice, and shows how far they can be trusted.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports import kernel_profile
from ptat_host.reports.kernel_profile import Profile
from ptat_host.sizes import format_size
from ptat_studies.fs import place
from ptat_studies.fs.place import CellFailed
from ptat_studies.fs.sweep import Cell, Figures, Plan, Runner, Sweep
from ptat_studies.fs.systems import FileSystem

ANY_ONE_IN = 4
"""One cell in this many is drawn from all that are left, not from the neighbours of a bad one."""
FUNCTIONS_SHOWN = 3


@dataclass(frozen=True)
class Worst:
    """A bad cell. `again` and `functions` are of its second measurement, None: there was none."""

    figures: Figures
    again: Figures | None = None
    functions: Profile | None = None


def choose(sweep: Sweep, seed: int, deadline_s: float) -> Iterator[Cell]:
    """Cells to be measured next, of the file systems in turn.

    :param deadline_s: of `time.monotonic`; after it there is none, nor when all are measured.
    """
    chance = random.Random(seed)
    while True:
        left = sweep.left
        for system in sweep.plan.systems:
            of_system = [cell for cell in left if cell.system == system]
            if not of_system:
                continue
            if time.monotonic() >= deadline_s:
                return
            yield _next(sweep, system, of_system, chance)
        if not left:
            return


def _next(sweep: Sweep, system: str, left: list[Cell], chance: random.Random) -> Cell:
    tried = {cell.operation for cell in sweep.done if cell.system == system}
    for cell in left:
        if cell.operation not in tried:
            return cell
    if chance.randrange(ANY_ONE_IN):
        of_left = set(left)
        for bad in ranked(sweep, system):
            neighbours = [cell for cell in _neighbours(sweep.plan, bad.cell) if cell in of_left]
            if neighbours:
                return chance.choice(neighbours)
    return chance.choice(left)


def _neighbours(plan: Plan, cell: Cell) -> Iterator[Cell]:
    """Cells whose file or unit is the next smaller or larger one."""
    files, units = sorted(plan.file_bytes), sorted(plan.unit_bytes)
    at_file, at_unit = files.index(cell.file_bytes), units.index(cell.unit_bytes)
    for file, unit in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        if 0 <= at_file + file < len(files) and 0 <= at_unit + unit < len(units):
            yield Cell(cell.system, cell.operation, files[at_file + file], units[at_unit + unit])


def ranked(sweep: Sweep, system: str) -> list[Figures]:
    """What was measured on a file system, most misses per byte first."""
    found = [
        (misses, figures)
        for figures in sweep.done.values()
        if figures.cell.system == system and (misses := figures.misses_per_byte()) is not None
    ]
    return [figures for _, figures in sorted(found, key=lambda item: (-item[0], item[1].cell))]


def name_functions(
    found: list[Figures],
    systems: Mapping[str, FileSystem],
    total_bytes: int | None,
    pmem: str,
) -> list[Worst]:
    """Measure cells again in the testbed, and say which kernel functions missed."""
    again: list[Figures | None] = []
    windows: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(prefix="ptat-hunt-") as temporary:
        session = Path(temporary) / "session"
        with place.testbed(pmem, ("--kernel-misses", "yes"), session) as where:
            runner = Runner(where, systems, total_bytes)
            for one in found:
                try:
                    again.append(runner.run(one.cell))
                    windows.append(where.window_ns or (0, 0))
                except CellFailed:
                    again.append(None)
                    windows.append((0, 0))
        profiles = kernel_profile.in_windows(session, windows)
    return [
        Worst(figures, second, profile if second else None)
        for figures, second, profile in zip(found, again, profiles, strict=True)
    ]


def as_dict(sweep: Sweep, worst: list[Worst]) -> dict[str, Any]:
    """For JSON; misses are page walks, of the program and of the kernel."""
    return {
        "where": sweep.plan.where,
        "measured": len(sweep.done),
        "of": len(sweep.plan.cells()),
        "failed": len(sweep.failed),
        "worst": [_row(one) for one in worst],
    }


def _row(one: Worst) -> dict[str, Any]:
    cell = asdict(one.figures.cell)
    del cell["repeat"]
    profile = None
    if one.functions is not None:
        profile = kernel_profile.summarise(one.functions, FUNCTIONS_SHOWN)
    return {
        **cell,
        "misses_per_kib": _per_kib(one.figures),
        "kernel_misses_per_kib": _per_kib(one.figures, "kernel"),
        "misses_per_kib_again": None if one.again is None else _per_kib(one.again),
        "functions": None if profile is None else profile["functions"],
    }


def _per_kib(figures: Figures, mode: str = "all") -> float | None:
    misses = figures.misses_per_byte(mode)
    return None if misses is None else 1024 * misses


def render(report: dict[str, Any]) -> RenderableType:
    """What `as_dict` gives, for people."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for name in ("file system", "operation"):
        table.add_column(name)
    for name in ("file", "unit", "misses per KiB", "again", "of the kernel"):
        table.add_column(name, justify="right")
    table.add_column("functions of the kernel that missed most")
    for row in report["worst"]:
        table.add_row(
            row["system"],
            row["operation"],
            format_size(row["file_bytes"]),
            format_size(row["unit_bytes"]),
            _number(row["misses_per_kib"]),
            _number(row["misses_per_kib_again"]),
            _number(row["kernel_misses_per_kib"]),
            ", ".join(
                f"{one['name']} {100 * one['share']:.0f} %" for one in row["functions"] or ()
            ),
        )
    failed = f", {report['failed']:,} of them failed" if report["failed"] else ""
    head = f"{report['measured']:,} of {report['of']:,} cells measured{failed}; {report['where']}"
    return Group(Text(head), "", table)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
