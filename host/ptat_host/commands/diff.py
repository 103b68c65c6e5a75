# SPDX-License-Identifier: BSD-2-Clause
"""``ptat diff``."""

from __future__ import annotations

import argparse
import json

from ptat_host.commands.common import (
    Commands,
    Parser,
    UsageError,
    add_command,
    add_json,
    positive_int,
    session_location,
)


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "diff", "compare two sessions, or two sets of repeats")
    parser.usage = "ptat diff BEFORE AFTER\n       ptat diff BEFORE… --against AFTER…"
    parser.add_argument(
        "sessions", metavar="DIR", type=session_location, nargs="+", help="session directories"
    )
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=session_location,
        nargs="+",
        help="repeats of the run after the change; the sessions before this option are repeats of"
        " the run before it (default: the second of two sessions)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive_int,
        default=10,
        help="largest changes of each kind to list (default: 10)",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import ptat_parser
    from ptat_host import console
    from ptat_host.reports import comparison

    before, after = arguments.sessions, arguments.against
    if after is None:
        if len(before) != 2:
            raise UsageError(
                f"{len(before)} sessions: which are before, and which after?",
                "ptat diff BEFORE AFTER, or ptat diff BEFORE… --against AFTER…",
            )
        before, after = before[:1], before[1:]
    before, after = ([ptat_parser.open(path) for path in side] for side in (before, after))
    changes = comparison.compare(before, after, arguments.top)
    notes = comparison.warnings(before, after)
    if arguments.json:
        print(json.dumps({"changes": [one.as_dict() for one in changes], "warnings": notes}))
    else:
        console.show(comparison.render(changes, notes))
    return 0
