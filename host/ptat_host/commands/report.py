# SPDX-License-Identifier: BSD-2-Clause
"""``ptat report``."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ptat_host.commands.common import (
    Commands,
    Parser,
    UsageError,
    add_command,
    add_json,
    add_session,
    load_results,
    positive_int,
    session_of,
    text_of,
)

if TYPE_CHECKING:
    from ptat_parser import Trace


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "report", "summarise a session")
    add_session(parser)
    add_json(parser)
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive_int,
        default=10,
        help="hottest pages, objects, functions to list (default: 10)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write the report with charts, as one page for any browser (default: text to stdout)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if anything is lost, untraced or unexplained (default: with 0)",
    )
    kernel = parser.add_argument_group("misses of kernel code")
    kernel.add_argument(
        "--kernel",
        action="store_true",
        help="show them by function and call chain; the session must have been recorded with"
        " --kernel-misses yes (default: show the trace)",
    )
    kernel.add_argument(
        "--read",
        metavar="FILE",
        help="with --kernel: show the output of perf script for perf record -g -e dTLB-load-misses;"
        " - is stdin (default: show a session)",
    )
    kernel.add_argument(
        "--all",
        action="store_true",
        help="with --kernel: include processes that are not traced (default: traced ones only)",
    )
    parser.add_argument(
        "--folded",
        metavar="FILE",
        type=Path,
        help="also write folded stacks, for flame graphs: of kernel code with --kernel, else"
        " process;thread;object;function of a trap-mode session (default: no)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.reports import session_report
    from ptat_parser import Trace

    if arguments.kernel:
        return _report_kernel(arguments)
    for option in ("read", "all"):
        if getattr(arguments, option):
            raise UsageError(f"--{option} applies only to misses of kernel code", "add --kernel")
    if arguments.html and arguments.json:
        raise UsageError("--html and --json exclude each other", "choose one of them")
    results = load_results(arguments)
    if arguments.folded:
        _write_folded(Trace(results), arguments.folded)
    content = session_report.summarise(results, arguments.top, objects=not arguments.html)
    if arguments.html:
        from ptat_host.reports import html

        html.write(results, arguments.html)
        print(f"ptat: wrote {arguments.html}", file=sys.stderr)
    elif arguments.json:
        print(json.dumps(content))
    else:
        console.show(session_report.render(content))
    return 1 if arguments.strict and not session_report.is_whole(content) else 0


def _write_folded(trace: Trace, target: Path) -> None:
    from ptat_host.reports.trap_counts import TrapCounts

    counts = TrapCounts(trace)
    with target.open("w") as file:
        counts.write_folded(file)
    print(f"ptat: wrote {target}", file=sys.stderr)


def _report_kernel(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.reports import kernel_profile, perf_script

    if arguments.html:
        raise UsageError("--kernel has no HTML report", "leave --html out, or use --folded")
    if arguments.read is None:
        profile = kernel_profile.of_session(session_of(arguments), everyone=arguments.all)
    elif arguments.session or arguments.all:
        raise UsageError("--read does not use a session", "omit DIR and --all")
    else:
        text = io.StringIO(text_of(arguments.read), newline="\n")
        profile = perf_script.read(text, arguments.read)
    if arguments.folded:
        with arguments.folded.open("w") as file:
            kernel_profile.write_folded(profile, file)
    content = kernel_profile.summarise(profile, arguments.top)
    if arguments.json:
        print(json.dumps(content))
    else:
        console.show(kernel_profile.render(content))
    return 1 if arguments.strict and content["problems"] else 0
