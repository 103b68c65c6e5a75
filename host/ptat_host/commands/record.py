# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record``, and the options of a recording."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ptat_host import boards
from ptat_host.boards.base import (
    Board,
    BoardError,
    RecordRequest,
    RecordResult,
    ReplayingBoard,
)
from ptat_host.commands.common import SESSIONS, Commands, Parser, UsageError, add_command
from ptat_host.sizes import format_size, parse_size

_BOARD_OPTION = "board option "


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "record", "run a command and trace its TLB misses")
    parser.usage = "ptat record [OPTIONS] [--] CMD [ARG…]"
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        help=f"session directory, new or empty (default: {SESSIONS}/<UTC time>-<CMD>)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if anything was lost on the way to the disk (default: only report it)",
    )
    parser.add_argument(
        "--archive",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compress and index the capture when the recording has ended (default: --archive)",
    )
    add_recording(parser)
    parser.add_argument(
        "command", metavar="CMD", nargs=argparse.REMAINDER, help="the command to run"
    )
    parser.set_defaults(run=_run)


def add_recording(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Add the options of a recording."""
    others = len(parser._actions)
    add_board(parser)
    parser.add_argument(
        "--children",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="trace the processes that CMD forks, too (default: --children)",
    )
    parser.add_argument(
        "--levels",
        choices=("pte", "pte+pmd"),
        default="pte+pmd",
        help="page tables to trace; pte: 4 KiB pages only (default: pte+pmd)",
    )
    parser.add_argument(
        "--readback",
        action="store_true",
        help="flush TLBs only when all stores to the region have arrived; costs a read of the"
        " region per flush and page fault (default: the kernel's choice, which is yes for a region"
        " in a BAR)",
    )
    parser.add_argument(
        "--markers",
        choices=("store", "load"),
        help="how the kernel marks its events on the bus; behind a memory controller stores come"
        " late (default: as the board's bus requires)",
    )
    parser.add_argument(
        "--granularity",
        type=int,
        choices=(8, 32, 64),
        help="bytes that one bus address stands for (default: the board's, 64 on DDR)",
    )
    parser.add_argument(
        "--region",
        metavar="SIZE",
        help="memory for the traced page tables: 1/512 of the memory that CMD touches, more if that"
        " is sparse (default: the board's)",
    )
    parser.add_argument(
        "--entries",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="log each 4 KiB entry that the kernel sets or clears (default: --no-entries)",
    )
    parser.add_argument(
        "--faults",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="log page faults (default: --faults)",
    )
    parser.add_argument(
        "--maps",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="record memory mappings, for the report's objects (default: --maps)",
    )
    parser.add_argument(
        "--heap",
        metavar="SIZE",
        help="preload a library into CMD that records the call chain of each allocation of at"
        " least SIZE (default: no)",
    )
    add_board_options(parser)
    return parser._actions[others:]


def add_board(parser: argparse.ArgumentParser) -> None:
    """The option --board."""
    parser.add_argument(
        "--board",
        metavar="BOARD",
        action="append",
        help=f"{', '.join(boards.names())}; some with an address: usb:SERIAL, udp:HOST:PORT,"
        " file:DIR; repeat the option for the board of each further memory channel"
        f" (default: {boards.DEFAULT})",
    )


def chosen_board(arguments: argparse.Namespace) -> Board:
    """The board that was named."""
    return boards.load_all(arguments.board or [boards.DEFAULT])


def add_board_options(parser: argparse.ArgumentParser) -> None:
    """The options of all boards; those that the chosen board lacks are refused later."""
    known: dict[str, dict[str, list[str]]] = {}
    for name in boards.names():
        try:
            options = boards.load(name).options
        except BoardError:
            continue  # reported when it is chosen
        for option, about in options.items():
            default = f" (default: {about.default})" if about.default is not None else ""
            known.setdefault(option, {}).setdefault(about.help + default, []).append(name)
    group = parser.add_argument_group("options of boards")
    for option, texts in known.items():
        group.add_argument(
            f"--{option}",
            metavar="VALUE",
            dest=_BOARD_OPTION + option,
            help="; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items()),
        )


def board_options(arguments: argparse.Namespace, board: Board) -> Mapping[str, str]:
    """The board's own options that the user set."""
    given = {
        key.removeprefix(_BOARD_OPTION): value
        for key, value in vars(arguments).items()
        if key.startswith(_BOARD_OPTION) and value is not None
    }
    for option in given:
        if option not in board.options:
            raise UsageError(
                f"board {board.name} has no option --{option}",
                f"it has: {' '.join(f'--{known}' for known in board.options) or 'none'}",
            )
    return given


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[arguments.command[:1] == ["--"] :]
    board = chosen_board(arguments)
    if isinstance(board, ReplayingBoard):
        if command:
            raise UsageError(
                f"{board.name} replays a session and runs no command", "leave the command out"
            )
        command = board.argv
    if not command:
        raise UsageError("no command to run", "ptat record [OPTIONS] -- CMD [ARG…]")
    request = record_request(arguments, board, command)
    session = new_session(arguments.output, command)
    result = record_one(board, request, session, archive=arguments.archive)
    return recorded(session, result, arguments.strict)


def record_request(
    arguments: argparse.Namespace, board: Board, command: Sequence[str]
) -> RecordRequest:
    """The request, without a session directory yet."""
    options = board_options(arguments, board)
    region_bytes = parse_size(arguments.region, "--region") if arguments.region else None
    heap_bytes = parse_size(arguments.heap, "--heap") if arguments.heap else None
    if heap_bytes is not None and not arguments.maps:
        raise UsageError("--heap needs the mappings", "leave --no-maps out")
    return RecordRequest(
        argv=command,
        session_dir=Path(),
        cwd=Path.cwd(),
        env=dict(os.environ),
        children=arguments.children,
        levels=arguments.levels,
        readback=arguments.readback,
        markers=arguments.markers,
        granularity_bytes=arguments.granularity,
        entries=arguments.entries,
        faults=arguments.faults,
        maps=arguments.maps,
        heap_bytes=heap_bytes,
        region_bytes=region_bytes,
        options=options,
    )


def new_session(output: Path | None, command: Sequence[str]) -> Path:
    """The directory of a new session."""
    from ptat_host.recording import session_recording

    return (
        session_recording.given_session(output)
        if output
        else session_recording.new_session(SESSIONS, command)
    )


def record_one(
    board: Board,
    request: RecordRequest,
    session: Path,
    *,
    archive: bool = True,
) -> RecordResult:
    """Record into a session of one board or several."""
    from ptat_host.recording import session_recording

    request = replace(request, session_dir=session.resolve())
    return session_recording.record(board, request, archive=archive)


def recorded(session: Path, result: RecordResult, strict: bool) -> int:
    """Report how a recording ended, and return the exit status. The user who called sudo gets the
    session."""
    from ptat_host.recording.ownership import give_to_caller

    give_to_caller(session)
    size = format_size(sum(file.stat().st_size for file in session.rglob("*") if file.is_file()))
    if result.lost:
        print(f"ptat: {session} is incomplete: lost {result.lost}", file=sys.stderr)
    if result.ended:
        status = result.exit_status or 0
        ended = f"; the command ended with {status}" if status else ""
        print(f"ptat: recorded {session} ({size}){ended}", file=sys.stderr)
        return 1 if strict and result.lost else status
    print(f"ptat: {session} ({size}) is incomplete: {result.reason}", file=sys.stderr)
    return 130 if result.interrupted else 2
