# SPDX-License-Identifier: BSD-2-Clause
"""Traces behind modelled memory controllers, held against the ground truth.

Each workload is recorded with each preset of ``ptat record --controller``. Every walk that the
trace has must be of the right process and page, each inferred one of a line of entries that the
process missed in, and the true number of misses must lie inside the stated bound.
Without a controller the trace must be exact. `MUTATION` is what must not pass: markers that are
stores.

Ends with one JSON line: ``{"rows": [{"preset", "workload", "attribution_exact", "misses_true",
"misses_trace", "inferred", "bound_low", "bound_high", "inside"}]}``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptat_testbed.bus.controller import PRESETS
from ptat_testbed.suites import check_exact
from ptat_testbed.suites.check_exact import Row

PTAT = [sys.executable, "-m", "ptat_host.cli"]
MUTATION = ("--markers", "store")
WIDTH_MAX = 0.02
"""Of the bound, as a share of the misses, with `WIDTH_PRESET` and `WIDTH_WORKLOADS`."""
WIDTH_PRESET = "ecc-server"
WIDTH_WORKLOADS = ("gups", "bfs", "python3", "gcc")
WRONG = ("wrong_page", "inferred_wrong", "unexplained", "lost")
"""Of the verdict of ``ptat validate --json``: what there must be none of."""
SOURCE = Path(__file__).parents[2] / "plugin" / "tlb.c"
GCC = ("gcc", "-O2", "-S", "-o", "/dev/null", "-x", "c", str(SOURCE))
_EXACT = {row.name: row for row in check_exact.ROWS}
WORKLOADS = {
    "gups": _EXACT["gups-64m"],
    "gups-2-threads": _EXACT["gups-2-threads"],
    "bfs": _EXACT["bfs"],
    "python3": _EXACT["python3"],
    "gcc": Row("gcc", GCC),
    "seqpage": Row("seqpage", ("seqpage", "--bytes", "{size}"), sizes=("32M", "256M")),
    "fork-exec": _EXACT["fork-exec"],
    "seqpage-2m": _EXACT["seqpage-2m"],
    "bfs-huge": _EXACT["bfs-huge"],
    "chase": _EXACT["chase"],
    "remap-1g": _EXACT["remap-1g"],
    "selftest": _EXACT["selftest"],
    "exercise": _EXACT["exercise"],
}
SMALL_PRESETS = ("ecc-server", "adversarial")
SMALL_WORKLOADS = ("gups", "gups-2-threads", "python3", "seqpage", "fork-exec")


class NotRecorded(Exception):
    """`ptat record` or `ptat validate` failed."""


def check(preset: str, argv: Sequence[str], session: Path, *more: str) -> dict[str, Any]:
    """Record and judge one workload with one preset.

    :raises NotRecorded: there is nothing to judge.
    """
    options = (*more, "--granularity", "64", "--controller", preset)
    done = _ptat("record", "-o", str(session), *options, "--", *argv)
    if done.returncode:
        raise NotRecorded(done.stderr.strip())
    validated = _ptat("validate", "--json", str(session))
    try:
        verdict = json.loads(validated.stdout)
    except json.JSONDecodeError:
        raise NotRecorded(validated.stderr.strip()) from None
    low, high = verdict["bound"] or [verdict["trace_misses"]] * 2
    true = verdict["truth_misses"]
    wrong = {kind: verdict[kind] for kind in WRONG if verdict[kind]}
    if wrong:
        print(f"{session.name}: {wrong}", file=sys.stderr)
    return {
        "attribution_exact": not wrong and (preset != "none" or verdict["exact"]),
        "misses_true": true,
        "misses_trace": verdict["trace_misses"],
        "inferred": verdict["inferred"] or 0,
        "bound_low": low,
        "bound_high": high,
        "inside": low <= true <= high,
    }


def is_right(row: dict[str, Any]) -> bool:
    """Whether a row is as it must be."""
    width = (row["bound_high"] - row["bound_low"]) / max(row["misses_true"], 1)
    narrowed = row["preset"] == WIDTH_PRESET and row["workload"] in WIDTH_WORKLOADS
    narrow = not narrowed or width <= WIDTH_MAX
    return bool(row["attribution_exact"] and row["inside"] and narrow)


def _ptat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PTAT, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run all rows; exit 1 if one is wrong, 2 if one could not be recorded."""
    parser = argparse.ArgumentParser(prog="make check-controller")
    parser.add_argument("--size", choices=("small", "full"), default="full", help="default: full")
    parser.add_argument("--presets", default="", help="only these, with commas (default: all)")
    parser.add_argument("--keep", type=Path, help="keep the sessions there (default: delete them)")
    parser.add_argument("workloads", nargs="*", help="only these (default: all)")
    arguments = parser.parse_args(argv)
    small = arguments.size == "small"
    presets = arguments.presets.split(",") if arguments.presets else None
    presets = presets or (SMALL_PRESETS if small else PRESETS)
    names = arguments.workloads or (SMALL_WORKLOADS if small else WORKLOADS)
    work = arguments.keep or Path(tempfile.mkdtemp(prefix="ptat-controller."))
    rows = []
    try:
        for preset in presets:
            for name in names:
                workload = WORKLOADS[name]
                command = workload.command(arguments.size, work)
                session = work / f"{preset}-{name}"
                row = {
                    "preset": preset,
                    "workload": name,
                    **check(preset, command, session, *workload.options),
                }
                rows.append(row)
                print(f"{json.dumps(row)}", file=sys.stderr, flush=True)
                if arguments.keep is None:
                    shutil.rmtree(session, ignore_errors=True)
    except NotRecorded as error:
        print(f"check-controller: {session.name}: {error}", file=sys.stderr)
        return 2
    finally:
        if arguments.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    print(json.dumps({"rows": rows}), flush=True)
    return int(not all(is_right(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
