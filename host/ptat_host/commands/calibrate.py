# SPDX-License-Identifier: BSD-2-Clause
"""``ptat calibrate``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ptat_host.boards.base import (
    CalibratingBoard,
    ObserveRequest,
)
from ptat_host.commands.common import (
    Commands,
    Parser,
    UsageError,
    add_command,
    add_json,
    positive_int,
)
from ptat_host.commands.record import add_board, add_board_options, board_options, chosen_board

MAPPING = Path("ptat-mapping.json")

ADDRESSES = 400


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(
        commands, "calibrate", "learn the memory controller's address mapping and load it"
    )
    add_board(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=MAPPING,
        help=f"mapping file, for ptat record --mapping FILE (default: {MAPPING})",
    )
    parser.add_argument(
        "--addresses",
        metavar="N",
        type=positive_int,
        default=ADDRESSES,
        help=f"number of different addresses to read (default: {ADDRESSES})",
    )
    parser.add_argument(
        "--reads", metavar="N", type=positive_int, help="reads per address (default: the board's)"
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=positive_int,
        default=1,
        help="seed for choosing the addresses (default: 1)",
    )
    add_json(parser)
    add_board_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host.boards import contract
    from ptat_host.calibration import mirroring, saved_mapping

    board = chosen_board(arguments)
    if not isinstance(board, CalibratingBoard):
        raise UsageError(f"board {board.name} cannot be calibrated", "choose another --board")
    options = board_options(arguments, board)
    stated = options.get(contract.OPTION)
    if stated is not None:
        contract.named(stated)
    observed = board.observe(
        ObserveRequest(arguments.addresses, arguments.reads, arguments.seed, options)
    )
    fit = mirroring.solve_either(observed.addresses, observed.coordinates)
    found = fit.calibration
    described = saved_mapping.content(found, observed, stated)
    saved_mapping.write(arguments.output, described)
    loaded = board.load(arguments.output)
    if arguments.json:
        print(json.dumps(described))
    else:
        print("\n".join([*found.describe(), fit.describe()]))
    where = f", and loaded it into {', '.join(loaded)}" if loaded else ""
    print(f"ptat: wrote {arguments.output}{where}", file=sys.stderr)
    return 0
