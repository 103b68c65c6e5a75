# SPDX-License-Identifier: BSD-2-Clause
"""``ptat hugepages``."""

from __future__ import annotations

import argparse
import json

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_json,
    add_session,
    load_results,
    positive_int,
)

HUGE_PAGES = {"2M": [2 << 20], "1G": [1 << 30], "both": [2 << 20, 1 << 30]}


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "hugepages", "predict what larger pages would save")
    add_session(parser)
    add_json(parser)
    parser.add_argument(
        "--pages", choices=HUGE_PAGES, default="both", help="page sizes to try (default: both)"
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive_int,
        default=8,
        help="number of hottest objects to try (default: 8)",
    )
    parser.add_argument(
        "--tlb",
        metavar="MODEL",
        help="predict for this TLB: ivybridge-ep, skylake, zen4 (default: the session's)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.reports import larger_pages
    from ptat_parser import Trace

    sizes = HUGE_PAGES[arguments.pages]
    found = larger_pages.predict(
        Trace(load_results(arguments)), arguments.tlb, arguments.top, sizes
    )
    if arguments.json:
        print(json.dumps(found.as_dict()))
    else:
        console.show(larger_pages.render(found))
    return 0
