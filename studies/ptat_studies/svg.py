# SPDX-License-Identifier: BSD-2-Clause
"""Figures of the studies: panels with sizes on a logarithmic x axis, as SVG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptat_host.sizes import format_size
from ptat_studies.files import write_whole

PANEL_INCHES = (3.6, 2.8)
MARKERS = "osD^v<>pP*"

matplotlib.rcParams["svg.hashsalt"] = "ptat"  # the same figures make the same files
matplotlib.rcParams["font.size"] = 8


def panels(count: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows of up to `columns`."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure((PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, at + 1) for at in range(count)]


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Put sizes in bytes on the x axis."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [format_size(size).removesuffix("iB") for size in sizes])
    axes.minorticks_off()
    axes.tick_params(axis="x", labelrotation=45)
    axes.grid(alpha=0.3)


def svg(figure: Figure) -> bytes:
    """The content of an SVG file."""
    data = io.BytesIO()
    figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()


def write_figures(figures: Mapping[str, Figure], directory: Path) -> list[Path]:
    """Write each figure as ``NAME.svg``; return the files.

    :raises OSError: that is not possible; then no file is left half written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.svg" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        write_whole(path, svg(figure))
    return paths
