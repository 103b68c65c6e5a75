# SPDX-License-Identifier: BSD-2-Clause
"""``ptat stat``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ptat_host.commands.common import Commands, Parser, UsageError, add_command, add_json, text_of


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(
        commands, "stat", "count TLB misses and page walks with the CPU's own counters"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--read",
        metavar="FILE",
        help="explain output of perf stat: text, -x or -j; - is stdin (default: run CMD)",
    )
    source.add_argument(
        "--session",
        metavar="DIR",
        type=Path,
        help="show the counters of a testbed session (default: run CMD)",
    )
    parser.add_argument(
        "--cpu",
        metavar="CPU",
        help="name or vendor-family-model of the CPU (default: this machine's; with --read, by the"
        " events' names)",
    )
    parser.add_argument(
        "--uncore",
        action="store_true",
        help="count what the memory controllers do, for the whole machine: reads, writes, underfill"
        " reads, reads answered from the write queue (default: TLB misses and page walks of CMD)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="also write the counts as JSON, for ptat validate --counters (default: no)",
    )
    add_json(parser)
    parser.add_argument(
        "command", metavar="CMD", nargs=argparse.REMAINDER, help="the command to run"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console
    from ptat_host.reports import counters, perf_stat, pmu

    command = arguments.command[arguments.command[:1] == ["--"] :]
    given = arguments.read is not None or arguments.session is not None
    if bool(command) == given:
        raise UsageError(
            "no command to count" if not given else "--read and --session run no command",
            "ptat stat -- CMD [ARG…], or ptat stat --read FILE, or ptat stat --session DIR",
        )
    if arguments.uncore and given:
        raise UsageError("--uncore says what to count", "ptat stat --uncore -- CMD [ARG…]")
    cpu = None
    if arguments.cpu is not None:
        cpu = pmu.find(arguments.cpu)
        if cpu is None:
            known = ", ".join(one.name for one in pmu.CPUS)
            raise UsageError(f"no table of events for the CPU {arguments.cpu!r}", f"known: {known}")
    status = 0
    if arguments.read is not None:
        stats = perf_stat.read(text_of(arguments.read), arguments.read)
    elif arguments.session is not None:
        stats = [counters.of_session(arguments.session)]
    elif arguments.uncore:
        cpu = cpu or pmu.find(pmu.this_machine())
        counted, status = counters.run_uncore(command, cpu)
        stats = [counted]
    else:
        cpu = cpu or pmu.find(pmu.this_machine()) or counters.GENERIC
        counted, status = counters.run(command, cpu)
        stats = [counted]
    if arguments.output:
        content = [counters.as_dict(one, cpu) for one in stats]
        arguments.output.write_text("".join(f"{json.dumps(one)}\n" for one in content))
    for one in stats:
        if arguments.json:
            print(json.dumps(counters.as_dict(one, cpu)))
        else:
            console.show(counters.render(one, cpu))
    return status
