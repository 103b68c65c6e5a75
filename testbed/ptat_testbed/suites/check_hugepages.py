# SPDX-License-Identifier: BSD-2-Clause
"""Is what ``ptat hugepages`` predicts true? By doing it: programs with and without larger pages.

Each program is recorded in pages of 4 KiB, what larger ones would save is predicted from that, and
then it is recorded with its object in larger ones. What it missed is counted by the testbed's
counters, since misses of 1 GiB pages read no traced table. Ends with one line of JSON; the exit
status is 1 if a measured saving lies outside of the predicted range.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PTAT = (sys.executable, "-m", "ptat_host.cli")


@dataclass(frozen=True)
class Case:
    """A program, an object of it, and how to get that into larger pages."""

    name: str
    command: Sequence[str]
    huge: str
    """The program's option."""
    target: str
    pages: str
    """Size as ``ptat hugepages --pages`` takes it."""
    reserve: str
    memory: str = "2G"


BFS = ("bfs", "--scale", "16", "--roots", "2")
GUPS = ("gups", "--bytes", "64M", "--updates", "200K")
GUPS_512M = ("gups", "--bytes", "512M", "--updates", "200K")
CASES = (
    Case("bfs", BFS, "--huge", "graph.column", "2M", "2M:8"),
    Case("gups", GUPS, "--huge", "table", "2M", "2M:40"),
    Case("gups-1g", GUPS_512M, "--huge=1G", "table", "1G", "1G:1", "4G"),
)


def main() -> int:
    """Run all cases."""
    with tempfile.TemporaryDirectory(prefix="ptat-hugepages-") as directory:
        found = {case.name: _run(case, Path(directory)) for case in CASES}
    print(json.dumps(found))
    return 0 if all(one["inside"] for one in found.values()) else 1


def _run(case: Case, directory: Path) -> dict[str, Any]:
    """Predicted and measured savings, as shares of the misses in small pages."""
    small, large = directory / case.name, directory / f"{case.name}-huge"
    options = ("--granularity", "8", "--memory", case.memory)
    _ptat("record", "-o", str(small), *options, "--heap", "64K", "--", *case.command)
    reserve = ("--hugepages", case.reserve)
    _ptat("record", "-o", str(large), *options, *reserve, "--", *case.command, case.huge)
    predicted = json.loads(_ptat("hugepages", "--json", "--pages", case.pages, str(small)))
    (candidate,) = (one for one in predicted["candidates"] if one["name"] == case.target)
    walks = [
        json.loads(_ptat("validate", "--json", str(session)))["counter_walks"]
        for session in (small, large)
    ]
    saved = 1 - walks[1] / walks[0]
    least, most = candidate["saved_least"], candidate["saved_most"]
    found = {
        "misses": walks[0],
        "misses_huge": walks[1],
        "predicted_percent": [round(100 * least, 2), round(100 * most, 2)],
        "measured_percent": round(100 * saved, 2),
        "inside": least <= saved <= most,
    }
    print(f"{case.name:8} {json.dumps(found)}", file=sys.stderr)
    return found


def _ptat(*arguments: str) -> str:
    done = subprocess.run(
        [*PTAT, *arguments], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
