# SPDX-License-Identifier: BSD-2-Clause
"""``ptat script`` and ``ptat export``: misses one by one."""

from __future__ import annotations

import argparse
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ptat_host.commands.common import (
    Commands,
    Parser,
    UsageError,
    add_command,
    add_session,
    load_results,
    positive_int,
)

if TYPE_CHECKING:
    from ptat_parser import Misses


def add_script(commands: Commands[Parser]) -> None:
    """Add ``ptat script``."""
    parser = add_command(commands, "script", "print one miss per line")
    add_session(parser)
    parser.add_argument(
        "--limit", metavar="N", type=positive_int, help="stop after N misses (default: all of them)"
    )
    _add_filters(parser)
    parser.add_argument(
        "--object",
        metavar="GLOB",
        help="only objects whose name matches, such as 'libc*' (default: all)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line (default: columns)"
    )
    parser.set_defaults(run=_script)


EXPORT_FORMATS = {
    "wide-parquet": "Parquet, all columns in each row",
    "arrow": "Arrow IPC file, the same columns",
    "csv": "comma-separated, the same columns",
    "perf": "lines like those of perf script",
    "lackey": "lines like those of valgrind --tool=lackey --trace-mem=yes",
    "cachegrind": "misses of each page, for cg_annotate",
    "drmemtrace": "DynamoRIO's trace_entry_t, for TLB simulators",
}


def add_export(commands: Commands[Parser]) -> None:
    """Add ``ptat export``."""
    parser = add_command(commands, "export", "export the misses in another tool's format")
    add_session(parser)
    formats = "; ".join(f"{name}: {about}" for name, about in EXPORT_FORMATS.items())
    parser.add_argument(
        "--format", choices=EXPORT_FORMATS, default="csv", help=f"{formats} (default: csv)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="file to write (default: stdout)"
    )
    _add_filters(parser)
    parser.set_defaults(run=_export)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="start",
        metavar="S",
        type=_seconds,
        help="start time, in seconds as in ptat script (default: the recording's start)",
    )
    parser.add_argument(
        "--to", dest="stop", metavar="S", type=_seconds, help="end time (default: none)"
    )
    parser.add_argument(
        "--pid", metavar="N", type=positive_int, help="only this process (default: all)"
    )
    parser.add_argument(
        "--address",
        metavar="A-B",
        type=_addresses,
        default=(None, None),
        help="only pages that overlap A to B (B excluded); hexadecimal (default: all)",
    )


def _filtered(arguments: argparse.Namespace) -> Misses:
    from ptat_parser import Trace

    return Trace(load_results(arguments)).misses(
        pid=arguments.pid, time=(arguments.start, arguments.stop), address=arguments.address
    )


def _seconds(text: str) -> int:
    """Convert seconds to ns exactly."""
    try:
        return int(Decimal(text) * 1_000_000_000)
    except (ArithmeticError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds") from None


def _addresses(text: str) -> tuple[int, int]:
    try:
        first, last = (int(part, 16) for part in text.split("-"))
    except ValueError:
        first = last = 0
    if not 0 <= first < last <= 1 << 64:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of addresses: 7f00000000-7fffffffff"
        )
    return first, last


def _script(arguments: argparse.Namespace) -> int:
    from ptat_host.reports import trace_text

    trace_text.write(
        _filtered(arguments),
        sys.stdout.buffer,
        limit=arguments.limit,
        pattern=arguments.object,
        as_json=arguments.json,
    )
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ptat_parser.results.export import FORMATS, export

    chosen = FORMATS[arguments.format]
    to_stdout = arguments.output is None
    if to_stdout and (chosen.seekable or (chosen.binary and sys.stdout.isatty())):
        raise UsageError(f"{arguments.format} cannot go to stdout here", "name a file: -o FILE")
    misses = _filtered(arguments)
    if to_stdout:
        chosen.write(misses, sys.stdout.buffer)
    else:
        export(misses, arguments.format, arguments.output)
    return 0
