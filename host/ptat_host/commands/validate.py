# SPDX-License-Identifier: BSD-2-Clause
"""``ptat validate``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ptat_host.boards.base import (
    ReplayingBoard,
)
from ptat_host.commands.common import (
    Commands,
    Parser,
    UsageError,
    add_command,
    add_json,
    newest_session,
    positive_int,
    positive_number,
    session_location,
    text_of,
)
from ptat_host.commands.record import (
    add_recording,
    chosen_board,
    new_session,
    record_one,
    record_request,
    recorded,
)
from ptat_parser.errors import PtatError


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(
        commands,
        "validate",
        "compare the trace with the truth and the counters; exit with 1 if they differ",
    )
    parser.usage = (
        "ptat validate [OPTIONS] [DIR…]\n       ptat validate --repeat N [OPTIONS] -- CMD [ARG…]"
    )
    parser.add_argument(
        "what",
        metavar="DIR",
        nargs="*",
        help="session directory (default: the newest in ptat-sessions/); several sessions are"
        " compared as repeats of one run; with --repeat the command to run",
    )
    parser.add_argument(
        "--repeat",
        metavar="N",
        type=positive_int,
        help="record CMD N times, with the options of ptat record below, and compare the runs"
        " (default: validate DIR)",
    )
    parser.add_argument(
        "--tolerance",
        metavar="PERCENT",
        type=positive_number,
        default=1.0,
        help="largest allowed difference from the counters (default: 1)",
    )
    parser.add_argument(
        "--counters",
        metavar="FILE",
        help="also compare with this output of perf stat for the same run (default: only with the"
        " session's counters)",
    )
    add_json(parser)
    recording = add_recording(parser)
    parser.set_defaults(run=lambda arguments: _run(arguments, recording))


def _run(arguments: argparse.Namespace, recording: Sequence[argparse.Action]) -> int:
    from ptat_host import console, progress
    from ptat_host.reports import perf_stat, trace_validation
    from ptat_parser import load
    from ptat_parser import validate as compare

    if arguments.repeat:
        if arguments.counters:
            raise UsageError("--counters belong to one run", "leave --repeat out")
        sessions = _repeat(arguments)
    else:
        _refuse_given(arguments, recording, "--repeat")
        sessions = [session_location(name) for name in arguments.what] or [newest_session()]
        if arguments.counters and len(sessions) > 1:
            raise UsageError("--counters belong to one run", "name one session")
    counters = None
    if arguments.counters:
        counters = perf_stat.read(text_of(arguments.counters), arguments.counters)[0], None
    results, checked = [], []
    for session in sessions:
        with progress.bar() as show:
            results.append(load(session, progress=show))
        with progress.bar() as show:
            found = compare(results[-1], progress=show)
        checked.append(
            trace_validation.check(results[-1], found, arguments.tolerance / 100, counters)
        )
    ok = all(one.ok for one in checked)
    if len(checked) == 1:
        if arguments.json:
            print(json.dumps(checked[0].as_dict()))
        else:
            console.show(trace_validation.render(checked[0]))
        return 0 if ok else 1
    spreads = trace_validation.repeats(checked, results)
    if arguments.json:
        runs = [one.as_dict() for one in checked]
        print(json.dumps({"ok": ok, "runs": runs, "spreads": [one.as_dict() for one in spreads]}))
    else:
        console.show(trace_validation.render_repeats(checked, spreads))
    return 0 if ok else 1


def _repeat(arguments: argparse.Namespace) -> list[Path]:
    """Record `--repeat` sessions."""
    if not arguments.what:
        raise UsageError("no command to run", "ptat validate --repeat N [OPTIONS] -- CMD [ARG…]")
    board = chosen_board(arguments)
    if isinstance(board, ReplayingBoard):
        raise UsageError(
            f"{board.name} replays a session and runs no command", "choose another --board"
        )
    request = record_request(arguments, board, arguments.what)
    sessions = []
    for _ in range(arguments.repeat):
        session = new_session(None, arguments.what)
        result = record_one(board, request, session)
        recorded(session, result, strict=False)
        if not result.ended:
            raise PtatError(
                f"{session} is incomplete: no more runs are made", "the reason is above"
            )
        sessions.append(session)
    return sessions


def _refuse_given(
    arguments: argparse.Namespace, options: Sequence[argparse.Action], needed: str
) -> None:
    """Refuse options that have no effect without another one."""
    for option in options:
        if getattr(arguments, option.dest) != option.default:
            raise UsageError(
                f"{option.option_strings[0]} is an option of recording", f"add {needed}, or omit it"
            )
