# SPDX-License-Identifier: BSD-2-Clause
"""``ptat parse``."""

from __future__ import annotations

import argparse

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_session,
    positive_int,
    session_of,
)


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "parse", "parse a session again to recreate its results")
    add_session(parser)
    parser.add_argument(
        "--salvage",
        action="store_true",
        help="omit damaged blocks of the capture and count them as lost"
        " (default: refuse a damaged capture)",
    )
    parser.add_argument(
        "--counts-only",
        action="store_true",
        help="write only pages and totals, not single misses: enough for ptat report"
        " (default: all results)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        metavar="N",
        type=positive_int,
        default=1,
        help="number of processes; the results do not depend on it (default: 1)",
    )
    where.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="parse on the workers of this Dask scheduler; they must see DIR at the same path or"
        " in the same bucket (default: parse on this machine)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import ptat_parser
    from ptat_host import progress

    session = session_of(arguments)
    with progress.bar() as show:
        results = ptat_parser.parse(
            session,
            salvage=arguments.salvage,
            counts_only=arguments.counts_only,
            workers=arguments.workers,
            address=arguments.cluster,
            progress=show,
        )
    totals = results.summary["totals"]
    print(f"{totals['misses']} misses in {totals['pages']} pages: {results.path}")
    return 0
