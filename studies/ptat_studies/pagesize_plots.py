# SPDX-License-Identifier: BSD-2-Clause
"""Figures 2 to 9 of the study of page sizes, and a page with them and its tables.

They follow the paper's: the page size on a logarithmic x axis, a line for each program.
"""

from __future__ import annotations

import base64
import html
import io
import os
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size
from ptat_studies import pagesize
from ptat_studies.memory_time import FAST_HDD, HDD, NVM, SLOW_NVM
from ptat_studies.pagesize import COMMON_BYTES, COMPARED_PERCENT, Study, Workload, nearest

COLUMNS = 3
PANEL_INCHES = (3.6, 2.8)
FIRST_PERCENT = 30
"""Of the paper's curves of page fault rates."""
_MARKERS = "osD^v<>pP*"

# The same figures make the same files.
matplotlib.rcParams["svg.hashsalt"] = "ptat"
matplotlib.rcParams["font.size"] = 8


def figures(study: Study) -> dict[str, tuple[str, Figure]]:
    """Captions and figures by file name; the ninth only where there are virtual machines."""
    percent = nearest(COMPARED_PERCENT, study.settings.percents)
    made = {
        "fig2": (
            "Memory access time by page size on four kinds of storage, relative to 4 KiB;"
            f" memory {percent} % of the footprint.",
            _storages(study, percent),
        ),
        "fig3": (
            "Address translation time and data access time, averages of all programs;"
            f" memory {percent} %.",
            _parts(study, percent),
        ),
        "fig4": (
            f"TLB miss rate, {study.settings.tlb_entries} entries.",
            _tlb(study),
        ),
        "fig5": ("The TLB miss rate's functions.", _tlb_functions(study)),
        "fig6": (
            "Page fault rate by memory, in percent of the footprint.",
            _faults(study, functions=False),
        ),
        "fig7": (
            "Page fault rate, simulated (points) and the function's (lines).",
            _faults(study, functions=True),
        ),
        "fig8": (
            f"Memory access time on {study.settings.storage}, simulated and by the functions;"
            f" memory {percent} %.",
            _validation(study, percent),
        ),
    }
    if study.vms:
        made["fig9"] = (
            "Memory access time of virtual machines: with 4 KiB, with hill climbing whose changes"
            " are free, and with the advised page size (above the bar).",
            _machines(study),
        )
    return made


def write(study: Study, directory: Path) -> None:
    """Write each figure as ``NAME.svg``.

    Raises `OSError` if that is not possible; then no file is left half written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, (_, figure) in figures(study).items():
        _replace(directory / f"{name}.svg", _svg(figure))


def write_html(study: Study, target: Path) -> None:
    """Write a page with all tables and figures, which needs nothing else.

    Raises `OSError` if that is not possible; then nothing is left half written.
    """
    parts = [f"<p>{_escape(pagesize.circumstances(study.settings))}</p>"]
    parts += [f"<p>{_escape(note)}</p>" for note in study.notes]
    for numbers in pagesize.tables(study):
        head = "".join(f"<th>{_escape(column)}</th>" for column in numbers.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in row)}</tr>"
            for row in numbers.rows
        )
        parts.append(
            f"<section><h2>{_escape(numbers.title)}</h2><div class='wide'><table><thead><tr>{head}"
            f"</tr></thead><tbody>{rows}</tbody></table></div></section>"
        )
    for name, (caption, figure) in figures(study).items():
        image = base64.b64encode(_svg(figure)).decode()
        parts.append(
            f"<section><h2>Figure {name.removeprefix('fig')}</h2><figure>"
            f"<img alt='{_escape(caption)}' src='data:image/svg+xml;base64,{image}'>"
            f"<figcaption>{_escape(caption)}</figcaption></figure></section>"
        )
    style = files("ptat_host").joinpath("html_report", "page.css").read_text()
    text = files("ptat_studies").joinpath("pagesize.html").read_text()
    for mark, part in (
        ("@STYLE@", style),
        ("@BODY@", "\n".join(parts)),
    ):
        text = text.replace(mark, part.rstrip("\n"))
    _replace(target, text.encode(errors="replace"))


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _svg(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink()
        raise


# Panels -------------------------------------------------------------------------------------------


def _panels(count: int, columns: int = COLUMNS) -> tuple[Figure, list[Axes]]:
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure((PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    panels: list[Axes] = [figure.add_subplot(rows, columns, at + 1) for at in range(count)]
    return figure, panels


def _page_axis(axes: Axes, sizes: Sequence[int], title: str, quantity: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [format_size(size).removesuffix("iB") for size in sizes])
    axes.minorticks_off()
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_title(title)
    axes.set_xlabel("page size")
    axes.set_ylabel(quantity)
    axes.grid(alpha=0.3)


def _lines(axes: Axes, study: Study, values: Callable[[Workload], tuple[Any, Any]]) -> None:
    for at, one in enumerate(study.workloads):
        x, y = values(one)
        if len(x):
            axes.plot(x, y, label=printable(one.name), color=f"C{at}", marker=_MARKERS[at % 10])


def _storages(study: Study, percent: int) -> Figure:
    figure, panels = _panels(4, columns=2)
    for axes, storage in zip(panels, (HDD, FAST_HDD, SLOW_NVM, NVM), strict=True):

        def values(one: Workload, storage: str = storage.name) -> tuple[Any, Any]:
            times = np.add(*one.times_ns(percent, storage))
            sizes = one.sizes(percent)
            common = times[sizes == COMMON_BYTES]
            return sizes, times / (common[0] if common.size else 1)

        _page_axis(axes, study.settings.page_sizes, storage.name, "access time / that with 4 KiB")
        _lines(axes, study, values)
        axes.set_yscale("log")
    panels[0].legend()
    return figure


def _parts(study: Study, percent: int) -> Figure:
    figure, panels = _panels(2)
    for axes, storage in zip(panels, (HDD, NVM), strict=True):
        whole = [
            one.times_ns(percent, storage.name)
            for one in study.workloads
            if one.sizes(percent).size == len(study.settings.page_sizes)
        ]
        _page_axis(axes, study.settings.page_sizes, storage.name, "ns")
        if whole:
            for label, part in (("address translation", 0), ("data access", 1)):
                mean = np.mean([times[part] for times in whole], axis=0)
                axes.plot(study.settings.page_sizes, mean, marker=_MARKERS[part], label=label)
            axes.legend()
        axes.set_yscale("log")
    return figure


def _tlb(study: Study) -> Figure:
    figure, (axes,) = _panels(1)
    _page_axis(axes, study.settings.page_sizes, "", "TLB miss rate")
    _lines(axes, study, lambda one: (one.sizes(), one.tlb_rates()))
    axes.legend()
    return figure


def _tlb_functions(study: Study) -> Figure:
    figure, panels = _panels(len(study.workloads))
    for axes, one in zip(panels, study.workloads, strict=True):
        sizes = np.geomspace(one.sizes()[0], one.sizes()[-1], 200)
        _page_axis(axes, study.settings.page_sizes, printable(one.name), "TLB miss rate")
        axes.plot(one.sizes(), one.tlb_rates(), "ko", label="simulated")
        for name, fit in one.tlb_fits.items():
            axes.plot(sizes, fit(sizes / 1024), label=name)
        axes.legend()
    return figure


def _faults(study: Study, functions: bool) -> Figure:
    figure, panels = _panels(len(study.workloads))
    for axes, one in zip(panels, study.workloads, strict=True):
        _page_axis(axes, study.settings.page_sizes, printable(one.name), "page fault rate")
        shown = [percent for percent in one.percents if percent >= FIRST_PERCENT] or one.percents
        for at, percent in enumerate(shown):
            sizes, color = one.sizes(percent), f"C{at}"
            style = "o" if functions else "o-"
            axes.plot(sizes, one.fault_rates(percent), style, color=color, label=f"{percent} %")
            if functions:
                between = np.geomspace(sizes[0], sizes[-1], 200)
                axes.plot(between, one.fault_fit(percent)(between / 1024), color=color)
        axes.legend(fontsize=6)
    return figure


def _validation(study: Study, percent: int) -> Figure:
    figure, panels = _panels(2)
    for axes, model in zip(panels, (False, True), strict=True):

        def values(one: Workload, model: bool = model) -> tuple[Any, Any]:
            times = one.times_ns(percent, study.settings.storage, model)
            return one.sizes(percent), np.add(*times)

        title = "by the functions" if model else "simulated"
        _page_axis(axes, study.settings.page_sizes, title, "memory access time (ns)")
        _lines(axes, study, values)
        axes.legend()
    return figure


def _machines(study: Study) -> Figure:
    figure = Figure((2 + 0.6 * len(study.vms), PANEL_INCHES[1]), layout="constrained")
    axes = figure.add_subplot()
    at = np.arange(len(study.vms))
    advices = [advice for _, _, advice in study.vms]
    common = np.array([advice.common_ns or np.nan for advice in advices])
    for offset, label, times in (
        (-0.27, "4 KiB", common),
        (0.0, "hill climbing", [advice.climbed_ns or np.nan for advice in advices]),
        (0.27, "advised", [advice.access_ns for advice in advices]),
    ):
        axes.bar(at + offset, np.array(times) / common, 0.25, label=label)
    for x, advice in zip(at, advices, strict=True):
        axes.annotate(
            format_size(advice.page_bytes).removesuffix("iB"),
            (x + 0.27, advice.access_ns / (advice.common_ns or np.nan)),
            ha="center",
            va="bottom",
            fontsize=6,
        )
    axes.set_xticks(at, [printable(vm.name) for _, vm, _ in study.vms])
    axes.set_ylabel("access time / that with 4 KiB")
    axes.legend(loc="lower right")
    return figure
