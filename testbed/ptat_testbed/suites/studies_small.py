# SPDX-License-Identifier: BSD-2-Clause
"""``make studies-small``: each study of docs/studies.md once, at a size that takes minutes.

Page sizes of a small trace; a reduced sweep over ext4 and ext4-DAX in the testbed, with its
figures; and the kernel's functions that miss most, in the cell of each where it misses most.

Ends with one JSON line: ``{"pagesize": {"fits", "advised"}, "cells", "failed", "ext4_vs_dax",
"top_kernel_functions", "seconds"}``. `fits` are adjusted R²; `ext4_vs_dax` is by operation how many
page walks ext4-DAX has for one of ext4; `top_kernel_functions` by file system: share of the
kernel's misses. Exit status 1 if a cell failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptat_host import progress
from ptat_host.reports import kernel_profile
from ptat_parser.errors import PtatError
from ptat_studies import hunt
from ptat_studies.fs import place, plots, report, systems
from ptat_studies.fs.sweep import WALKS, Plan, Runner, Sweep
from ptat_studies.pagesize import study, workload
from ptat_studies.pagesize.figures import write as write_figures
from ptat_testbed.guest import build

TRACE = build.SOURCES / "docs" / "examples" / "ls.trace"
OUTPUT = Path("studies-small")
PMEM = "256M"
PLAN = Plan(
    systems=("ext4", "ext4-dax"),
    operations=("write", "rewrite", "read", "reread"),
    file_bytes=(256 << 10, 4 << 20),
    unit_bytes=(4 << 10, 16 << 10, 64 << 10, 256 << 10),
    repeats=2,
    where=f"testbed, {PMEM} of emulated persistent memory",
)
FUNCTIONS_SHOWN = 5


def page_sizes(directory: Path) -> dict[str, Any]:
    """Study A of the example's trace, with its figures."""
    with progress.bar() as show:
        traces = study.open_traces([f"ls={TRACE}"], None, show)
        found = study.study(traces, workload.Settings(), [], show)
    write_figures(found, directory)
    return {"fits": found.fits["ls"], "advised": found.advised["ls"]}


def file_systems(directory: Path, figures: Path) -> Sweep:
    """Study B, reduced."""
    sweep = Sweep.open(directory, PLAN)
    if sweep.left:
        with place.testbed(PMEM) as there, progress.bar() as show:
            sweep.run(Runner(there, systems.read()), show)
    sweep.write_results()
    plots.write(list(sweep.done.values()), figures)
    return sweep


def kernel_functions(sweep: Sweep) -> dict[str, dict[str, float]]:
    """Study C: shares of the kernel's misses in the cell of each file system that has most.

    Not of the worst by byte: in the smallest files that is what an interrupt happens to miss.
    """
    worst = [
        max(
            (one for one in sweep.done.values() if one.cell.system == system),
            key=lambda one: (one.value(WALKS, "kernel") or 0, one.cell),
        )
        for system in PLAN.systems
    ]
    found = hunt.name_functions(worst, systems.read(), PLAN.total_bytes, PMEM)
    return {
        one.figures.cell.system: {
            function["name"]: round(function["share"], 3)
            for function in kernel_profile.summarise(one.functions, FUNCTIONS_SHOWN)["functions"]
        }
        for one in found
        if one.functions is not None
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make studies-small", description=__doc__)
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=OUTPUT,
        help="for results and figures; a sweep that was stopped goes on (default: %(default)s)",
    )
    output = parser.parse_args(arguments).output
    begin = time.monotonic()
    of_pages = page_sizes(output / "plots" / "pagesize")
    sweep = file_systems(output / "bench-fs", output / "plots" / "bench-fs")
    summary = report.as_dict(sweep)
    for failure in summary["failed"]:
        print(f"studies-small: {failure}", file=sys.stderr)
    functions = {} if summary["failed"] else kernel_functions(sweep)
    result = {
        "pagesize": of_pages,
        "cells": summary["cells"],
        "failed": len(summary["failed"]),
        "ext4_vs_dax": {name: round(value, 3) for name, value in summary["ext4_vs_dax"].items()},
        "top_kernel_functions": functions,
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(result))
    return 1 if summary["failed"] or summary["left"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PtatError as error:
        sys.exit(f"studies-small: {error}")
