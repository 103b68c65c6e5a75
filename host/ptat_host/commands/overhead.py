# SPDX-License-Identifier: BSD-2-Clause
"""``ptat overhead``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_json,
    add_session,
    load_results,
    positive_number,
)


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "overhead", "estimate what recording costs on real hardware")
    add_session(parser)
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=positive_number,
        help="time of an untraced run on that hardware, to compute the slowdown (default: show only"
        " the added time)",
    )
    for name, about, default in (
        ("uncached", "an uncached read of memory", 100.0),
        ("cached", "a walk's read of an entry without tracing", 10.0),
        ("store", "an uncached store", 100.0),
        ("trap", "a page fault that counts a miss, as in BadgerTrap", 350.0),
        ("touch", "a miss in trap mode, by touch", 500.0),
        ("step", "a miss in trap mode, by step", 1000.0),
    ):
        parser.add_argument(
            f"--{name}-ns",
            metavar="NS",
            type=positive_number,
            default=default,
            help=f"{about} (default: {default:g})",
        )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.reports import recording_cost

    costs = recording_cost.Costs(
        arguments.uncached_ns,
        arguments.cached_ns,
        arguments.store_ns,
        arguments.trap_ns,
        arguments.touch_ns,
        arguments.step_ns,
    )
    results = load_results(arguments)
    found = recording_cost.estimate(results.summary["totals"], costs, arguments.seconds)
    if arguments.json:
        print(json.dumps(found.as_dict() | {"costs": asdict(costs)}))
    else:
        notes = recording_cost.notes(found, bool(results.session.traps))
        console.show(recording_cost.render(found, costs, notes))
    return 0
