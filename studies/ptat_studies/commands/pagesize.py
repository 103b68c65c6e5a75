# SPDX-License-Identifier: BSD-2-Clause
"""``ptat pagesize``."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from ptat_host.commands.common import (
    Commands,
    Parser,
    add_command,
    add_json,
    newest_session,
    positive_int,
)
from ptat_host.sizes import parse_size
from ptat_studies.commands.common import add_plots, need_plots

TRACE_FORMATS = {
    "session": "the misses of a session",
    "accesses": "what its program accessed, recorded in the testbed with --accesses yes",
    "text": "lines of readi, readd or write, address and size",
    "lackey": "of valgrind --tool=lackey --trace-mem=yes",
    "drmemtrace": "of DynamoRIO, trace_entry_t",
    "testbed": "a testbed's file of accesses, of all programs",
}


def add(commands: Commands[Parser]) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "pagesize", "advise a page size for traces of memory accesses")
    parser.add_argument(
        "traces",
        metavar="[NAME=]TRACE",
        nargs="*",
        help="file, also compressed, - for standard input, or session directory"
        " (default: the newest in ptat-sessions/)",
    )
    formats = "; ".join(f"{name}: {about}" for name, about in TRACE_FORMATS.items())
    parser.add_argument(
        "--format", choices=TRACE_FORMATS, help=f"{formats} (default: what the trace looks like)"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse traces with malformed rows (default: leave these out and count them)",
    )
    parser.add_argument(
        "--pages",
        metavar="A-B",
        type=_page_sizes,
        help="page sizes, powers of two (default: 512-64K; eight from 4K up for a session)",
    )
    parser.add_argument(
        "--memory",
        metavar="P,P…",
        type=_percents,
        default=tuple(range(10, 101, 10)),
        help="memory in percent of the footprint (default: 10,20,30,40,50,60,70,80,90,100)",
    )
    parser.add_argument(
        "--tlb-entries",
        metavar="N",
        type=positive_int,
        default=64,
        help="of a fully associative TLB with LRU (default: 64)",
    )
    parser.add_argument(
        "--cache",
        metavar="SIZE",
        help="leave out what hits in a cache of this size before the memory (default: nothing)",
    )
    parser.add_argument(
        "--storage",
        metavar="NAME",
        default="nvm",
        help="where pages come from: hdd, nvm, fast-hdd, slow-nvm, or one of the machines' file"
        " (default: nvm)",
    )
    parser.add_argument(
        "--machines",
        metavar="FILE",
        type=Path,
        help="virtual machines to choose page sizes for, and times of memory and storage, as"
        " docs/examples/pagesize-vms.toml (default: none)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive_int,
        default=1,
        help="threads to simulate in; the results are the same (default: 1)",
    )
    add_plots(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write tables and figures as one page for any browser (default: text to stdout)",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _page_sizes(text: str) -> tuple[int, ...]:
    least, most = (_power_of_two(part) for part in (text.split("-") * 2)[:2])
    if least > most or text.count("-") > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of page sizes: 512-64K")
    return tuple(1 << shift for shift in range(least.bit_length() - 1, most.bit_length()))


def _power_of_two(text: str) -> int:
    size_bytes = parse_size(text, "--pages")
    if size_bytes & (size_bytes - 1) or not 64 <= size_bytes <= 1 << 30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a power of two from 64 to 1G")
    return size_bytes


def _percents(text: str) -> tuple[int, ...]:
    percents = tuple(
        int(part) if part.isascii() and part.isdigit() else 0 for part in text.split(",")
    )
    if not all(1 <= percent <= 1000 for percent in percents):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of percentages from 1 to 1000: 10,50,100"
        )
    return tuple(sorted(set(percents)))


def _run(arguments: argparse.Namespace) -> int:
    from ptat_host import console, progress
    from ptat_studies.pagesize import study, tables
    from ptat_studies.pagesize.workload import Settings

    settings = Settings(
        storage=arguments.storage,
        percents=arguments.memory,
        tlb_entries=arguments.tlb_entries,
        cache_bytes=parse_size(arguments.cache, "--cache") if arguments.cache else 0,
        strict=arguments.strict,
        workers=arguments.workers,
    )
    settings, scenarios = study.with_machines(settings, arguments.machines)
    if arguments.plots or arguments.html:
        need_plots()
    with progress.bar() as show:
        named = arguments.traces or [str(newest_session())]
        traces = study.open_traces(named, arguments.format, show)
        sizes = arguments.pages or study.sizes_for(traces)
        found = study.study(traces, replace(settings, page_sizes=sizes), scenarios, show)
    if arguments.plots or arguments.html:
        from ptat_studies.pagesize import figures

        if arguments.plots:
            figures.write(found, arguments.plots)
        if arguments.html:
            figures.write_html(found, arguments.html)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    elif not arguments.html:
        console.show(tables.render(found))
    return 0
