# SPDX-License-Identifier: BSD-2-Clause
"""Figures of a sweep, as those of the studies that it repeats.

The thesis: a metric over the unit size, both logarithmic, a panel for each file size and a line
for each file system; and a bar for the overhead of each. The slides on superpages: the same with a
line for pages of 4 KiB and one for 2 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptat_host.sizes import format_size
from ptat_studies.fs import report, sweep
from ptat_studies.fs.sweep import Figures, Summary, summaries
from ptat_studies.svg import MARKERS, PANEL_INCHES, panels, size_axis, write_figures

COLUMNS = 2
PANELS_MAX = 4
"""As the thesis has them; of more file sizes, those spread over the range."""
OVERHEAD = (
    "cycles spent in page walks (data)",
    "page walks per 1000 instructions (data)",
    sweep.WALKS_PER_BYTE,
)
"""The first that was measured is the overhead."""
LEFT_OUT = {sweep.SECONDS, sweep.BYTES, "instructions"}
_PAGES = ("map4k-", "map2m-")


def write(figures: Sequence[Figures], directory: Path) -> list[Path]:
    """Write all figures as SVG files, and return these; raises `OSError` if it is not possible."""
    return write_figures(_figures(figures), directory)


def _figures(figures: Sequence[Figures]) -> dict[str, Figure]:
    made: dict[str, Figure] = {}
    metrics = [
        quantity
        for quantity, mode in report.quantities(figures)
        if mode == "all" and quantity not in LEFT_OUT and ".walk" not in quantity
    ]
    for quantity in metrics:
        found = summaries(figures, quantity)
        for operation in dict.fromkeys(one.cell.operation for one in found):
            if operation.startswith(_PAGES):
                continue
            chosen = [one for one in found if one.cell.operation == operation]
            made[_file_name(f"{quantity} {operation}")] = _panels(
                chosen, quantity, f"{operation}: {quantity}", lambda one: one.cell.system
            )
        for kind in _kinds(found):
            chosen = [one for one in found if one.cell.operation in {p + kind for p in _PAGES}]
            made[_file_name(f"{quantity} pages {kind}")] = _panels(
                chosen,
                quantity,
                f"mapped, {kind}: {quantity}",
                lambda one: (
                    f"{one.cell.system}, {'4 KiB' if '4k' in one.cell.operation else '2 MiB'}"
                ),
            )
    for quantity in OVERHEAD:
        if quantity in metrics:
            made["overhead"] = _bars(summaries(figures, quantity), quantity)
            break
    return made


def _kinds(found: Sequence[Summary]) -> list[str]:
    """What was measured with both page sizes."""
    names = {one.cell.operation for one in found}
    least = [name.removeprefix(_PAGES[0]) for name in names if name.startswith(_PAGES[0])]
    return sorted(kind for kind in least if _PAGES[1] + kind in names)


def _file_name(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-").lower()


def _panels(
    found: Sequence[Summary], quantity: str, title: str, line: Callable[[Summary], str]
) -> Figure:
    sizes = sorted({one.cell.file_bytes for one in found})
    if len(sizes) > PANELS_MAX:
        sizes = [sizes[at * (len(sizes) - 1) // (PANELS_MAX - 1)] for at in range(PANELS_MAX)]
    figure, all_axes = panels(len(sizes), COLUMNS)
    figure.suptitle(title)
    for axes, size in zip(all_axes, sizes, strict=True):
        axes.set_title(f"file of {format_size(size)}")
        _lines(axes, [one for one in found if one.cell.file_bytes == size], line)
        axes.set_xlabel("unit size")
        axes.set_ylabel(quantity)
    return figure


def _lines(axes: Axes, found: Sequence[Summary], line: Callable[[Summary], str]) -> None:
    """A point is a median; the shade is from the least to the most."""
    for at, name in enumerate(dict.fromkeys(line(one) for one in found)):
        own = sorted(
            (one for one in found if line(one) == name), key=lambda one: one.cell.unit_bytes
        )
        units = [one.cell.unit_bytes for one in own]
        colour = f"C{at}"
        axes.plot(
            units,
            [one.spread.median for one in own],
            label=name,
            color=colour,
            marker=MARKERS[at % len(MARKERS)],
        )
        axes.fill_between(
            units,
            [min(one.spread.values) for one in own],
            [max(one.spread.values) for one in own],
            color=colour,
            alpha=0.2,
        )
    units = sorted({one.cell.unit_bytes for one in found})
    size_axis(axes, units)
    if all(min(one.spread.values) > 0 for one in found):
        axes.set_yscale("log")
    axes.legend()


def _bars(found: Sequence[Summary], quantity: str) -> Figure:
    """The mean over all sizes, for each operation a group with a bar for each file system."""
    operations = list(dict.fromkeys(one.cell.operation for one in found))
    systems = list(dict.fromkeys(one.cell.system for one in found))
    figure = Figure((2 * PANEL_INCHES[0], PANEL_INCHES[1]), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(systems)
    for at, system in enumerate(systems):
        own = {
            operation: [
                one.spread.median
                for one in found
                if (one.cell.system, one.cell.operation) == (system, operation)
            ]
            for operation in operations
        }
        axes.bar(
            [group + at * width for group, operation in enumerate(operations) if own[operation]],
            [fmean(own[operation]) for operation in operations if own[operation]],
            width,
            label=system,
        )
    axes.set_xticks(
        [group + 0.4 - width / 2 for group in range(len(operations))], operations, rotation=30
    )
    axes.set_title(f"{quantity}, mean over all sizes")
    axes.legend()
    return figure
