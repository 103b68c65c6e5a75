# SPDX-License-Identifier: BSD-2-Clause
"""How fast are we? The parser on long captures, and what the plugin costs the guest.

The parser gets a capture of a model (parser/capture_model.py), and two that are recorded here.

For the plugin, the same program runs in the same guest with and without it, and with three plugins
that do the least that any can: one is called for each access and does nothing, one keeps the
address, one has a thread look its page up in a TLB (testbed/plugin/floor.c). All alternate in one
run, since machines drift; ratios of medians are what counts. Times are those that the program
itself measures inside the guest, so that booting is left out.

With one vCPU the plugin's model runs beside it: ratios hold for a host with a second CPU free,
which `host_load` (the load average, of which ours is about 2) lets a reader judge.

Ends with one JSON line: ``{"parser": {"model": {…}, "gups": {…}, …}, "plugin_cost": {"gups-64m":
{…}, …}}``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptat_host.boards.base import RecordRequest
from ptat_testbed.boards import guest_run
from ptat_testbed.boards.testbed import TestbedBoard
from ptat_testbed.guest import build, layout

PROGRAMS = {
    # Miss the STLB with nearly every update. What QEMU alone takes depends on whether its own soft
    # TLB, which grows, can hold the table.
    "gups-64m": ("gups", "--bytes", "64M", "--updates", "4M"),
    "gups-1g": ("gups", "--bytes", "1G", "--updates", "4M"),
    # Hardly misses at all: what each instruction and access costs.
    "instructions": (
        "python3",
        "-c",
        "import time; start = time.perf_counter(); sum(i * i for i in range(1_500_000));"
        " print(f'seconds={time.perf_counter() - start}')",
    ),
}
RECORDED = {"gups": "8", "gups-64-byte-bus": "64"}
"""Granularity of the captures that are recorded for the parser."""

FLOOR = {"called": "", "kept": ",keep=on", "looked_up": ",look=on"}
MODES = ("plain", *FLOOR, "plugin")
"""Without a plugin, with those that do next to nothing, and with ours."""


def run_once(mode: str, argv: Sequence[str]) -> int:
    """Run a program in the guest; its output goes to ours."""
    with tempfile.TemporaryDirectory(prefix="ptat-bench.") as directory:
        request = RecordRequest(
            argv=argv,
            session_dir=Path(directory),
            cwd=Path.cwd(),
            env=os.environ,
            children=False,
            options={"memory": "3G"},
            maps=False,  # it runs in the guest, and is not what is measured
        )
        if mode == "plugin":
            result = TestbedBoard().record(request)
        else:
            recording = guest_run.Recording(request)
            settings = recording.settings
            base = layout.region_in_ram(settings.region_bytes, settings.memory_bytes)
            floor = f"{build.floor_plugin()}{FLOOR[mode]}" if mode in FLOOR else None
            result = recording.record(recording.machine_config(base, plugin=floor))
    return result.exit_status if result.exit_status is not None else 1


def seconds_of(mode: str, argv: Sequence[str]) -> float:
    """Seconds that the program says it took."""
    command = [sys.executable, "-m", "ptat_testbed.suites.bench", "--once", mode, *argv]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    match = re.search(r"seconds=([0-9.]+)", done.stdout)
    if match is None:
        raise SystemExit(f"bench: {argv[0]} did not say how long it took: {done.stdout!r}")
    return float(match[1])


def compare(argv: Sequence[str], runs: int) -> dict[str, Any]:
    """Median seconds of each mode, and their ratios to those without a plugin."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(runs):
        for mode in MODES:
            seconds[mode].append(seconds_of(mode, argv))
    medians = {mode: statistics.median(values) for mode, values in seconds.items()}
    pairs = [b / a for a, b in zip(seconds["plain"], seconds["plugin"], strict=True)]
    ratios = {mode: round(medians[mode] / medians["plain"], 3) for mode in MODES}
    return {
        **{f"{mode}_seconds": round(value, 4) for mode, value in medians.items()},
        **{f"{mode}_ratio": ratios[mode] for mode in FLOOR},
        "ratio": ratios["plugin"],
        "ratio_min": round(min(pairs), 3),
        "ratio_max": round(max(pairs), 3),
        "host_load": round(os.getloadavg()[0], 1),
    }


def parser_speeds(records: int | None, updates: str) -> dict[str, dict[str, Any]]:
    """What parser/bench.py measures of a model's capture, and of a program's."""
    length = [] if records is None else ["--records", str(records)]
    found = {"model": _parser_speed(*length)}
    for name, granularity in RECORDED.items():
        with tempfile.TemporaryDirectory(prefix="ptat-bench.") as directory:
            session = f"{directory}/{name}"
            command = [
                *(sys.executable, "-m", "ptat_host.cli", "record", "--output", session),
                *("--no-archive", "--granularity", granularity, "--memory", "3G", "--"),
                *("gups", "--bytes", "1G", "--updates", updates),
            ]
            subprocess.run(command, stdout=sys.stderr, check=True)
            found[name] = _parser_speed("--session", session)
    return found


def _parser_speed(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(build.SOURCES / "parser/bench.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)  # it has said why
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison, or (``--once``) one program."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--runs", type=int, default=3, help="of each mode (default: 3)")
    parser.add_argument("--records", type=int, help="of the model (default: parser/bench.py's)")
    parser.add_argument("--updates", default="128M", help="of gups, for the parser (default: 128M)")
    parser.add_argument("--once", choices=MODES, help="only run CMD in this mode")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    arguments = parser.parse_args(argv)
    if arguments.once:
        return run_once(arguments.once, arguments.command)
    speeds = parser_speeds(arguments.records, arguments.updates)
    for name, speed in speeds.items():
        print(f"parser, {name}: {json.dumps(speed)}", file=sys.stderr)
    cost = {}
    for name, command in PROGRAMS.items():
        cost[name] = compare(command, arguments.runs)
        print(
            f"{name:13} with the plugin {cost[name]['ratio']} times as long; with one that is only"
            f" called {cost[name]['called_ratio']}, keeps addresses {cost[name]['kept_ratio']},"
            f" looks them up {cost[name]['looked_up_ratio']}",
            file=sys.stderr,
        )
    print(json.dumps({"parser": speeds, "plugin_cost": cost}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
