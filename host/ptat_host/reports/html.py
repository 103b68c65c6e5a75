# SPDX-License-Identifier: BSD-2-Clause
"""``ptat report --html``: the report as one self-contained file for any browser.

Misses are counted into bins of time, rows of addresses and objects in one pass; the page gets the
counts, so its size does not grow with the trace.
"""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ptat_host.reports import session_report
from ptat_host.reports.objects import Object, Objects
from ptat_parser import Results, Trace
from ptat_parser.compiled.jit import jit

BINS = 512
"""Bins of time."""
ROWS = 1024
"""Most rows of a map; each is a power of two of pages."""
MAPS = 4
"""Processes that get a map."""
SERIES = 7
"""Processes with a colour of their own."""
CURVE_POINTS = 201
OBJECTS = 300
PAGES = 500
PROCESSES = 1000
PAGE_SHIFT = 12

_NO_MAPS = "What was mapped where was not recorded (--no-maps)."
_NO_MISSES = "There were no misses."
_COUNTS_ONLY = "The session was parsed for counts only: run ptat parse to get all results."


def write(results: Results, target: Path) -> None:
    """Write the report of a session to `target`.

    Raises `OSError` if it cannot be written.
    """
    page = files("ptat_host").joinpath("html_report")
    data = json.dumps(content(results), separators=(",", ":")).replace("<", "\\u003c")
    text = page.joinpath("page.html").read_text()
    for name, part in (
        ("@STYLE@", page.joinpath("page.css").read_text()),
        ("@SCRIPT@", page.joinpath("page.js").read_text()),
        ("@DATA@", data),
    ):
        text = text.replace(name, part.rstrip("\n"))
    target.write_text(text, encoding="utf-8", errors="replace")


def content(results: Results) -> dict[str, Any]:
    """The data of the page."""
    trace = Trace(results)
    summary = session_report.summarise(results, PAGES, objects=False)
    pages = trace.pages
    single = (results.path / "misses").is_dir()
    counted = _count(trace, summary) if single else None
    seen = session_report.seen(summary)
    missed = summary["totals"]["misses"]
    named = counted.objects.recorded if counted else False
    objects = counted.objects if counted else None
    summary["maps_lost"] = objects.lost if objects else 0
    without = _NO_MISSES if not missed else _COUNTS_ONLY if not single else ""
    return {
        "command": session_report.printable(shlex.join(summary["command"])),
        "ended": session_report.ended(summary),
        "totals": _totals(summary),
        "problems": session_report.problems(summary),
        "misses": missed,
        "noMisses": without,
        "noObjects": without or _NO_MAPS,
        "objects": [_printable(o.as_dict()) for o in counted.found[:OBJECTS]]
        if counted and named
        else [],
        "pages": [_page(page, objects if named else None) for page in summary["hottest_pages"]],
        "processes": [_printable(process) for process in seen[:PROCESSES]],
        "moreProcesses": max(len(seen) - PROCESSES, 0),
        "sizes": [
            {"name": _label(process), "misses": process["misses_by_page_size"]}
            for process in seen[:SERIES]
            if process["misses"]
        ],
        "curves": _curves(pages, seen),
        "curveX": "of the pages"
        if summary["granularity_bytes"] == 8
        else "of the groups of pages that a bus address stands for",
        "averageCaption": _average_caption(summary),
        "time": counted.time if counted else {"bins": 0},
        "maps": counted.maps if counted else [],
        "taken": [*session_report.circumstances(summary).items()],
        **({"traps": _traps(summary["traps"])} if "traps" in summary else {}),
    }


def _traps(traps: dict[str, Any]) -> dict[str, Any]:
    """Tables of a trap-mode session; None: unknown."""
    tables = {name: traps[name] for name in ("functions", "threads", "accesses")}
    return {
        name: [_printable(row) for row in rows[:PROCESSES]] if rows is not None else None
        for name, rows in tables.items()
    }


def _label(process: dict[str, Any]) -> str:
    return f"{session_report.printable(process['comm']) or '?'} {process['tgid']}"


def _printable(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: session_report.printable(value) if isinstance(value, str) else value
        for key, value in values.items()
    }


def _totals(summary: dict[str, Any]) -> list[tuple[str, int | str, bool]]:
    totals = summary["totals"]
    behind = "controller" in summary
    return [
        ("TLB misses", totals["misses"], False),
        *([("true misses", session_report.bound(summary), False)] if behind else []),
        (
            "pages" if summary["granularity_bytes"] == 8 else "groups of pages",
            totals["pages"],
            False,
        ),
        ("faulted walks, not counted as misses", totals["faulted"], False),
        *(
            []
            if "traps" in summary
            else [("reads of PMD entries, on the way", totals["pmd_reads"], False)]
        ),
        *(
            [("read-backs by the kernel", totals["readbacks"], False)]
            if totals["readbacks"]
            else []
        ),
        ("lost", summary["lost"], bool(summary["lost"])),
    ]


def _average_caption(summary: dict[str, Any]) -> str:
    text = "In the same order: how often one page was missed, on a logarithmic axis."
    if summary["granularity_bytes"] > 8:
        text += (
            " On this bus up to eight neighbouring entries share an address: their misses are"
            " divided by those of them that were in use."
        )
    return text


def _page(page: dict[str, Any], objects: Objects | None) -> dict[str, Any]:
    """Addresses may need more bits than a JavaScript number has: sorted by, and shown as text."""
    of = objects.of_page(page["page"]) if objects else None
    return {
        **_printable(page),
        "address": f"{page['vaddr']:#014x}",
        "object": _title(of) if of else "",
    }


def _curves(pages: pa.Table, seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each process the cumulative share of misses, and the misses of a page, along its sorted
    pages."""
    mm = pages["mm"].to_numpy()
    misses = pages["misses"].to_numpy()
    span = pages["span"].to_numpy()
    curves = []
    for process in seen[:SERIES]:
        rows = (mm == process["mm"]) & (misses > 0)
        if not rows.any():
            continue
        average = misses[rows] / span[rows]
        order = np.argsort(average)
        average, share = average[order], np.cumsum(misses[rows][order])
        at = np.linspace(0, average.size, min(CURVE_POINTS, average.size + 1)).round().astype(int)
        curves.append(
            {
                "name": _label(process),
                "x": (100 * at / average.size).round(2).tolist(),
                "share": [0.0, *(100 * share[at[1:] - 1] / share[-1]).round(2).tolist()],
                "average": average[np.maximum(at - 1, 0)].round(2).tolist(),
            }
        )
    return curves


# Time and addresses -------------------------------------------------------------------------------


def _title(of: Object) -> str:
    """Its name, with its location if others have the same name."""
    where = f" {of.detail}" if of.kind in ("anonymous", "huge pages") else ""
    return session_report.printable(of.name + where)


@dataclass
class _Counted:
    objects: Objects
    found: list[Object]
    time: dict[str, Any]
    maps: list[dict[str, Any]]


class _Map:
    """Counts of one process, shape ``(rows, BINS)``; rows are of ascending addresses."""

    def __init__(self, process: dict[str, Any], pages: pa.Table) -> None:
        self.name = _label(process)
        (self.pages,) = np.nonzero(
            (pages["mm"].to_numpy() == process["mm"]) & (pages["misses"].to_numpy() > 0)
        )
        first = pages["vaddr"].to_numpy()[self.pages] >> np.uint64(PAGE_SHIFT)
        self.shift = 0
        while np.unique(first >> np.uint64(self.shift)).size > ROWS:
            self.shift += 1
        starts, row = np.unique(first >> np.uint64(self.shift), return_inverse=True)
        self.row_page = (starts << np.uint64(self.shift)).tolist()
        # A row that does not follow on the one before begins a new stretch of addresses.
        self.breaks = (np.nonzero(np.diff(starts) > 1)[0] + 1).tolist()
        self.row = row
        self.cells = np.zeros(0, np.uint32)

    def as_dict(self, objects: Objects) -> dict[str, Any]:
        names = self._names(objects) if objects.recorded else [""] * len(self.row_page)
        misses = self.cells.reshape(-1, BINS).sum(axis=1)
        of_name: dict[str, int] = {}
        for name, count in zip(names, misses.tolist(), strict=True):
            of_name[name] = of_name.get(name, 0) + count
        hottest = sorted((name for name in of_name if name), key=lambda name: -of_name[name])
        shown = hottest[: SERIES + 1]
        return {
            "name": self.name,
            "rows": len(self.row_page),
            "rowPage": self.row_page,
            "rowBytes": 1 << (PAGE_SHIFT + self.shift),
            "breaks": self.breaks,
            "rowName": names,
            "rowObject": [shown.index(name) if name in shown else -1 for name in names],
            "objects": shown,
            "cells": base64.b64encode(zlib.compress(self.cells.astype("<u4").tobytes())).decode(),
        }

    def _names(self, objects: Objects) -> list[str]:
        """The object with most misses of each row."""
        rows: list[dict[int, int]] = [{} for _ in self.row_page]
        for page, at in zip(self.pages.tolist(), self.row.tolist(), strict=True):
            for index, count in objects.counts_of_page(page):
                row = rows[at]
                row[index] = row.get(index, 0) + count
        found = [max(row, key=lambda index: row[index]) if row else None for row in rows]
        return ["" if index is None else _title(objects.objects[index]) for index in found]


@jit
def _add(
    time_ns: npt.NDArray[np.int64],
    page: npt.NDArray[np.uint32],
    start_ns: int,
    bins_per_ns: float,
    series_of_page: npt.NDArray[np.int64],
    row_of_page: npt.NDArray[np.int64],
    series: npt.NDArray[np.int64],
    cells: npt.NDArray[np.uint32],
) -> None:
    """Count misses by bin of time: in the series of their pages, and in their rows, if any."""
    for i in range(page.size):
        bin_ = min(max(int((time_ns[i] - start_ns) * bins_per_ns), 0), BINS - 1)
        of = page[i]
        series[series_of_page[of] * BINS + bin_] += 1
        if row_of_page[of] >= 0:
            cells[row_of_page[of] * BINS + bin_] += np.uint32(1)


def _count(trace: Trace, summary: dict[str, Any]) -> _Counted:
    pages = trace.pages
    seen = [process for process in session_report.seen(summary) if process["misses"]]
    missed = pages.filter(pc.greater(pages["misses"], 0))
    start = pc.min(missed["first_ns"]).as_py() or 0
    end = pc.max(missed["last_ns"]).as_py() or 0
    step = max((end - start) // BINS + 1, 1)
    maps = [_Map(process, pages) for process in seen[:MAPS]]
    mms = {process["mm"]: index for index, process in enumerate(seen[:SERIES])}
    series_of_page = np.array([mms.get(mm, SERIES) for mm in pages["mm"].to_pylist()], np.int64)
    series = np.zeros((SERIES + 1) * BINS, np.int64)

    # The maps' rows one below the other; a page is in one map, or in none.
    row_of_page = np.full(len(pages), -1, np.int64)
    ends = np.cumsum([0, *(len(one.row_page) for one in maps)])
    cells = np.zeros(int(ends[-1]) * BINS, np.uint32)
    for one, first, last in zip(maps, ends.tolist(), ends[1:].tolist(), strict=False):
        row_of_page[one.pages] = first + one.row
        one.cells = cells[first * BINS : last * BINS]

    def passing() -> Iterator[tuple[Any, Any]]:
        for time_ns, page in trace.misses().raw():
            _add(time_ns, page, start, 1 / step, series_of_page, row_of_page, series, cells)
            yield time_ns, page

    objects = Objects(trace)
    found = objects.count(passing())
    gaps = [
        [
            max(((start if gap["from_ns"] is None else gap["from_ns"]) - start) / step, 0),
            min(((end if gap["to_ns"] is None else gap["to_ns"]) - start) / step, BINS),
        ]
        for gap in trace.summary.get("gaps", [])
    ]
    by_bin = series.reshape(-1, BINS)
    shown = [
        {"name": _label(process), "misses": by_bin[mms[process["mm"]]].tolist()}
        for process in seen[:SERIES]
    ]
    if by_bin[SERIES].any():
        shown.append({"name": "others", "others": True, "misses": by_bin[SERIES].tolist()})
    time = {
        "bins": BINS if seen else 0,
        "stepNs": step,
        "startNs": start,
        "series": shown,
        "gaps": gaps,
    }
    return _Counted(objects, found, time, [one.as_dict(objects) for one in maps])
