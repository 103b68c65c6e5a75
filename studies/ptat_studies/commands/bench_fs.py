# SPDX-License-Identifier: BSD-2-Clause
"""``ptat bench-fs``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ptat_host.commands.common import (
    Commands,
    Parser,
    UsageError,
    add_command,
    add_json,
    comma_names,
    comma_sizes,
    positive_int,
)
from ptat_host.sizes import parse_size
from ptat_studies.commands.common import add_plots, need_plots

if TYPE_CHECKING:
    from ptat_studies.fs.place import Place
    from ptat_studies.fs.sweep import Plan
    from ptat_studies.fs.systems import FileSystem

SWEEP = Path("ptat-bench-fs")


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(
        commands, "bench-fs", "measure what file systems on persistent memory cost in TLB misses"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=SWEEP,
        help="for results, also of a sweep that was stopped, which then goes on"
        f" (default: {SWEEP})",
    )
    add_cells(parser)
    parser.add_argument(
        "--repeats", metavar="N", type=positive_int, default=3, help="of each cell (default: 3)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=positive_int, default=1, help="of the cells' order (default: 1)"
    )
    add_place(parser)
    add_plots(parser)
    parser.add_argument(
        "--trace",
        metavar="SESSION",
        type=Path,
        help="keep the testbed's recording there, of all processes, as ptat record does (default:"
        " no process is traced, and nothing is kept)",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def add_cells(parser: argparse.ArgumentParser) -> None:
    """Options of what is measured."""
    parser.add_argument(
        "--systems",
        metavar="NAME,NAME…",
        type=comma_names,
        default=("ext4", "ext4-dax"),
        help="ext4, ext4-dax, xfs, xfs-dax, tmpfs, or of --more-systems (default: ext4,ext4-dax)",
    )
    parser.add_argument(
        "--more-systems",
        metavar="FILE",
        type=Path,
        help="file systems of one's own, as docs/studies.md describes (default: none)",
    )
    parser.add_argument(
        "--operations",
        metavar="NAME,NAME…",
        type=comma_names,
        default=("write", "rewrite", "read", "reread"),
        help="also append, fwrite, refwrite, fread, refread, random-write, random-read,"
        " smallfiles, map4k- and map2m- with write, read, random-write and random-read,"
        " map2m-write- with clwb, clflush, clflushopt and nt, fio- with write, read, randwrite and"
        " randread (default: write,rewrite,read,reread)",
    )
    parser.add_argument(
        "--files",
        metavar="SIZE,SIZE…",
        type=comma_sizes,
        default=(1 << 20, 8 << 20),
        help="file sizes (default: 1M,8M)",
    )
    parser.add_argument(
        "--units",
        metavar="SIZE,SIZE…",
        type=comma_sizes,
        default=(4 << 10, 64 << 10, 1 << 20),
        help="of one transfer; those larger than a file are left out (default: 4K,64K,1M)",
    )
    parser.add_argument(
        "--total",
        metavar="SIZE",
        help="bytes to transfer, going over the file again and again (default: the file's size)",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """Options of where it is measured."""
    parser.add_argument(
        "--pmem",
        metavar="SIZE",
        help="emulated persistent memory of the testbed (default: 512M)",
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        type=Path,
        help="measure on this machine, with perf, on file systems made on this block device; tmpfs"
        " needs none, but the option (default: in the testbed)",
    )
    parser.add_argument(
        "--format",
        metavar="DEVICE",
        type=Path,
        help="the same again: all that is on it may be lost (default: nothing is formatted)",
    )
    parser.add_argument(
        "--cpus",
        metavar="N,M",
        type=_two_cpus,
        help="for what is measured and for all else; the testbed's guest has as many as that takes"
        " (default: 0,0 in the testbed, 2,8 on this machine)",
    )


def _two_cpus(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a pair of CPUs: 2,8")
    return int(parts[0]), int(parts[1])


def planned_sweep(
    arguments: argparse.Namespace, repeats: int, trace: Path | None = None
) -> tuple[Mapping[str, FileSystem], Plan, AbstractContextManager[Place]]:
    """File systems, what to measure of them, and the place where."""
    from ptat_studies.fs import operations, place, systems
    from ptat_studies.fs.sweep import Plan

    known = systems.read(arguments.more_systems)
    for name in arguments.systems:
        if name not in known:
            raise UsageError(f"there is no file system {name!r}", f"there are {', '.join(known)}")
    for name in arguments.operations:
        operations.find(name)
    opened: AbstractContextManager[Place]
    if arguments.device:
        if trace:
            raise UsageError("--trace is of the testbed", "use ptat record on this machine")
        if arguments.pmem:
            raise UsageError("--pmem is of the testbed", "leave it or --device out")
        cpus = arguments.cpus or place.CPUS_OF_MACHINE
        where = f"this machine, {arguments.device}, CPUs {cpus}"
        opened = place.this_machine(arguments.device, arguments.format, cpus)
    else:
        if arguments.format:
            raise UsageError("--format without --device formats nothing", "add --device")
        cpus = arguments.cpus or (0, 0)
        pmem = arguments.pmem or place.PMEM
        where = f"testbed, {pmem} of emulated persistent memory"
        if max(cpus):
            where += f", CPUs {cpus}"
        opened = place.testbed(pmem, place.TRACED if trace else (), trace, cpus)
    plan = Plan(
        systems=arguments.systems,
        operations=arguments.operations,
        file_bytes=arguments.files,
        unit_bytes=arguments.units,
        repeats=repeats,
        where=where,
        total_bytes=parse_size(arguments.total, "--total") if arguments.total else None,
        seed=arguments.seed,
    )
    if not plan.cells():
        raise UsageError("no file consists of whole units", "choose other --files or --units")
    return known, plan, opened


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console, progress
    from ptat_studies.fs import report
    from ptat_studies.fs.sweep import Runner, Sweep

    if arguments.plots:
        need_plots()
    known, plan, opened = planned_sweep(arguments, arguments.repeats, arguments.trace)
    done = Sweep.open(arguments.output, plan)
    if done.left:
        with opened as there, progress.bar() as show:
            done.run(Runner(there, known, plan.total_bytes), show)
    results = done.write_results()
    if arguments.plots:
        from ptat_studies.fs import plots

        plots.write(list(done.done.values()), arguments.plots)
    if arguments.json:
        print(json.dumps(report.as_dict(done)))
    else:
        console.show(report.render(done))
    print(f"ptat: wrote {results}", file=sys.stderr)
    return 1 if done.failed else 0
