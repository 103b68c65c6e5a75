# SPDX-License-Identifier: BSD-2-Clause
"""``ptat hunt``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_json,
    positive_int,
    positive_number,
)
from ptat_studies.commands.bench_fs import add_cells, add_place, planned_sweep

HUNT = Path("ptat-hunt")


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(
        commands, "hunt", "search for what has the most TLB misses per byte on a file system"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=HUNT,
        help=f"for what was measured, also by a search that goes on (default: {HUNT})",
    )
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=positive_number,
        default=10.0,
        help="search so long; booting and naming functions come on top (default: 10)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive_int,
        default=3,
        help="cells to show of each file system (default: 3)",
    )
    add_cells(parser)
    parser.add_argument(
        "--seed", metavar="N", type=positive_int, default=1, help="of the choices (default: 1)"
    )
    add_place(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console, progress
    from ptat_studies import hunt
    from ptat_studies.fs import place
    from ptat_studies.fs.sweep import Runner, Sweep

    known, plan, opened = planned_sweep(arguments, repeats=1)
    found = Sweep.open(arguments.output, plan)
    if found.left:
        with opened as there, progress.bar() as show:
            deadline_s = time.monotonic() + 60 * arguments.minutes
            cells = hunt.choose(found, plan.seed, deadline_s)
            found.run(Runner(there, known, plan.total_bytes), show, cells)
    bad = [one for name in plan.systems for one in hunt.ranked(found, name)[: arguments.top]]
    if arguments.device or not bad:
        worst = [hunt.Worst(one) for one in bad]
    else:
        pmem = arguments.pmem or place.PMEM
        worst = hunt.name_functions(bad, known, plan.total_bytes, pmem)
    content = hunt.as_dict(found, worst)
    if arguments.json:
        print(json.dumps(content))
    else:
        console.show(hunt.render(content))
    return 0 if bad else 1
