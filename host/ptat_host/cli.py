# SPDX-License-Identifier: BSD-2-Clause
"""The command `ptat`.

Exit status: 0 ok; 1 the answer is no; 2 usage or environment; 130 interrupted. ``ptat record``
passes on the status of the command that it recorded.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points, version
from operator import attrgetter

from ptat_host.commands import (
    calibrate,
    check,
    diff,
    doctor,
    help,
    hugepages,
    misses,
    overhead,
    parse,
    record,
    report,
    stat,
    top,
    validate,
)
from ptat_host.commands.common import Commands, Parser
from ptat_parser.errors import PtatError


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ptat` with these arguments (None: the process's own) and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no locale is too small for our output
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = _parser(words[0] if words else "").parse_args(words)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except PtatError as error:
        return _fail(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone. Nothing may be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", "")
    except Exception as error:
        if os.environ.get("PTAT_DEBUG"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}",
            "please report it with the output of PTAT_DEBUG=1",
        )


def _fail(message: str, hint: str, status: int = 2) -> int:
    print(f"ptat: error: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return status


def _add_others(commands: Commands[Parser]) -> None:
    for command in sorted(entry_points(group="ptat.commands"), key=attrgetter("name")):
        command.load()(commands)


_COMMANDS: dict[str, Callable[[Commands[Parser]], None]] = {
    "doctor": doctor.add,
    "calibrate": calibrate.add,
    "record": record.add,
    "parse": parse.add,
    "report": report.add,
    "script": misses.add_script,
    "top": top.add,
    "hugepages": hugepages.add,
    "diff": diff.add,
    "overhead": overhead.add,
    "": _add_others,
    "validate": validate.add,
    "check": check.add,
    "export": misses.add_export,
    "stat": stat.add,
}
"""The function that adds each command, in the order of ``ptat help``; no name: those of other
packages."""


def _parser(name: str = "") -> argparse.ArgumentParser:
    """The parser of the command of that name, or of all commands if it is none of ours.

    Some commands have the options of all boards, which are slow to load.
    """
    parser = Parser(
        prog="ptat",
        description="Full, exact traces of last-level TLB misses, per process and per page.",
        epilog="Without DIR, a command uses the newest session in ptat-sessions/.",
    )
    parser.add_argument("--version", action="version", version=f"ptat {version('ptat')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    if name and name in _COMMANDS:
        _COMMANDS[name](commands)
        return parser
    for add in _COMMANDS.values():
        add(commands)
    help.add_completion(commands, parser)
    help.add(commands, parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
