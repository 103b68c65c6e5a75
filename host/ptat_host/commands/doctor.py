# SPDX-License-Identifier: BSD-2-Clause
"""``ptat doctor``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ptat_host import boards
from ptat_host.commands.common import Commands, Parser, add_command


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "doctor", "show what a recording needs and what is missing")
    parser.add_argument(
        "--board", metavar="BOARD", help="check only this board (default: all of them)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.recording import requirements

    names = [arguments.board] if arguments.board else boards.names()
    table, fine = requirements.render(names, Path.cwd())
    console.show(table)
    return 0 if fine else 1
