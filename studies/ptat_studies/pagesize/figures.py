# SPDX-License-Identifier: BSD-2-Clause
"""Figures 2 to 9 of the study of page sizes, and a page with them and its tables.

They follow the paper's: the page size on a logarithmic x axis, a line for each program.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size
from ptat_studies.files import write_whole
from ptat_studies.pagesize import tables
from ptat_studies.pagesize.memory_time import STORAGES
from ptat_studies.pagesize.study import Study
from ptat_studies.pagesize.workload import COMMON_BYTES, COMPARED_PERCENT, Workload, nearest
from ptat_studies.svg import MARKERS, PANEL_INCHES, panels, size_axis, svg, write_figures

COLUMNS = 3
FIRST_PERCENT = 30
"""Of the paper's curves of page fault rates."""


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
    """Write each figure as ``NAME.svg``; raises `OSError` if that is not possible."""
    write_figures({name: figure for name, (_, figure) in figures(study).items()}, directory)


def write_html(study: Study, target: Path) -> None:
    """Write a page with all tables and figures, which needs nothing else.

    Raises `OSError` if that is not possible; then nothing is left half written.
    """
    parts = [f"<p>{_escape(tables.circumstances(study.settings))}</p>"]
    parts += [f"<p>{_escape(note)}</p>" for note in study.notes]
    for numbers in tables.tables(study):
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
        image = base64.b64encode(svg(figure)).decode()
        parts.append(
            f"<section><h2>Figure {name.removeprefix('fig')}</h2><figure>"
            f"<img alt='{_escape(caption)}' src='data:image/svg+xml;base64,{image}'>"
            f"<figcaption>{_escape(caption)}</figcaption></figure></section>"
        )
    style = files("ptat_host").joinpath("html_report", "page.css").read_text()
    text = files("ptat_studies").joinpath("pagesize/page.html").read_text()
    text = text.replace("@STYLE@", style.rstrip("\n")).replace("@BODY@", "\n".join(parts))
    write_whole(target, text.encode(errors="replace"))


def _escape(text: str) -> str:
    return html.escape(printable(text))


# Panels -------------------------------------------------------------------------------------------


def _page_axis(axes: Axes, study: Study, title: str, quantity: str) -> None:
    size_axis(axes, study.settings.page_sizes)
    axes.set_title(title)
    axes.set_xlabel("page size")
    axes.set_ylabel(quantity)


def _lines(axes: Axes, study: Study, values: Callable[[Workload], tuple[Any, Any]]) -> None:
    for at, one in enumerate(study.workloads):
        x, y = values(one)
        if len(x):
            axes.plot(
                x, y, label=printable(one.name), color=f"C{at}", marker=MARKERS[at % len(MARKERS)]
            )


def _storages(study: Study, percent: int) -> Figure:
    figure, all_axes = panels(4, columns=2)
    for axes, storage in zip(all_axes, STORAGES, strict=True):

        def values(one: Workload, storage: str = storage) -> tuple[Any, Any]:
            times = np.add(*one.times_ns(percent, storage))
            sizes = one.sizes(percent)
            common = times[sizes == COMMON_BYTES]
            return sizes, times / (common[0] if common.size else 1)

        _page_axis(axes, study, storage, "access time / that with 4 KiB")
        _lines(axes, study, values)
        axes.set_yscale("log")
    all_axes[0].legend()
    return figure


def _parts(study: Study, percent: int) -> Figure:
    figure, all_axes = panels(2, COLUMNS)
    for axes, storage in zip(all_axes, ("hdd", "nvm"), strict=True):
        whole = [
            one.times_ns(percent, storage)
            for one in study.workloads
            if one.sizes(percent).size == len(study.settings.page_sizes)
        ]
        _page_axis(axes, study, storage, "ns")
        if whole:
            for label, part in (("address translation", 0), ("data access", 1)):
                mean = np.mean([times[part] for times in whole], axis=0)
                axes.plot(study.settings.page_sizes, mean, marker=MARKERS[part], label=label)
            axes.legend()
        axes.set_yscale("log")
    return figure


def _tlb(study: Study) -> Figure:
    figure, (axes,) = panels(1, COLUMNS)
    _page_axis(axes, study, "", "TLB miss rate")
    _lines(axes, study, lambda one: (one.sizes(), one.tlb_rates()))
    axes.legend()
    return figure


def _tlb_functions(study: Study) -> Figure:
    figure, all_axes = panels(len(study.workloads), COLUMNS)
    for axes, one in zip(all_axes, study.workloads, strict=True):
        sizes = np.geomspace(one.sizes()[0], one.sizes()[-1], 200)
        _page_axis(axes, study, printable(one.name), "TLB miss rate")
        axes.plot(one.sizes(), one.tlb_rates(), "ko", label="simulated")
        for name, fit in one.tlb_fits.items():
            axes.plot(sizes, fit(sizes / 1024), label=name)
        axes.legend()
    return figure


def _faults(study: Study, functions: bool) -> Figure:
    figure, all_axes = panels(len(study.workloads), COLUMNS)
    for axes, one in zip(all_axes, study.workloads, strict=True):
        _page_axis(axes, study, printable(one.name), "page fault rate")
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
    figure, all_axes = panels(2, COLUMNS)
    for axes, model in zip(all_axes, (False, True), strict=True):

        def values(one: Workload, model: bool = model) -> tuple[Any, Any]:
            times = one.times_ns(percent, study.settings.storage, model)
            return one.sizes(percent), np.add(*times)

        title = "by the functions" if model else "simulated"
        _page_axis(axes, study, title, "memory access time (ns)")
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
