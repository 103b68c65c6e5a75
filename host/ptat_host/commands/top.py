# SPDX-License-Identifier: BSD-2-Clause
"""``ptat top``."""

from __future__ import annotations

import argparse
import json

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_session,
    positive_int,
    positive_number,
    session_of,
)


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "top", "show misses during a recording")
    add_session(parser)
    parser.add_argument(
        "--interval",
        metavar="S",
        type=positive_number,
        default=1.0,
        help="seconds between updates (default: 1)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive_int,
        default=10,
        help="processes and objects to list (default: 10)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="show everything recorded so far and exit (default: follow until the recording ends)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per update, one per line (default: readable text)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.reports import live_view

    follower = live_view.Follower(session_of(arguments), arguments.top)
    if not arguments.once:
        live_view.show(follower, arguments.interval, as_json=arguments.json)
    elif arguments.json:
        print(json.dumps(follower.view().as_dict()))
    else:
        console.show(live_view.render(follower.view()))
    return 0
