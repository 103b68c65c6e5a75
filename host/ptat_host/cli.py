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
from collections.abc import Sequence
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
from ptat_host.commands.common import Parser
from ptat_parser.errors import PtatError


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ptat` with these arguments (None: the process's own) and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no locale is too small for our output
    try:
        arguments = _parser().parse_args(argv)
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
            "please report it with what PTAT_DEBUG=1 shows",
        )


def _fail(message: str, hint: str, status: int = 2) -> int:
    print(f"ptat: error: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ptat",
        description="Full, exact traces of last-level TLB misses, per process and per page.",
        epilog="Without DIR, a command takes the newest session in ptat-sessions/.",
    )
    parser.add_argument("--version", action="version", version=f"ptat {version('ptat')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    doctor.add(commands)
    calibrate.add(commands)
    record.add(commands)
    parse.add(commands)
    report.add(commands)
    misses.add_script(commands)
    top.add(commands)
    hugepages.add(commands)
    diff.add(commands)
    overhead.add(commands)
    for command in sorted(entry_points(group="ptat.commands"), key=attrgetter("name")):
        command.load()(commands)
    validate.add(commands)
    check.add(commands)
    misses.add_export(commands)
    stat.add(commands)
    help.add_completion(commands, parser)
    help.add(commands, parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
