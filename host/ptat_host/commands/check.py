# SPDX-License-Identifier: BSD-2-Clause
"""``ptat check``."""

from __future__ import annotations

import argparse
import json

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_json,
    add_session,
    session_of,
)


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(
        commands, "check", "check the invariants of a session; exit with 1 if one is violated"
    )
    add_session(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console, progress
    from ptat_host.reports import invariants
    from ptat_parser.checks.session import check as check_session

    with progress.bar() as show:
        report = check_session(session_of(arguments), progress=show)
    if arguments.json:
        print(json.dumps(report.as_dict()))
    else:
        console.show(invariants.render(report))
    return 0 if report.ok else 1
