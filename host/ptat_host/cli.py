# SPDX-License-Identifier: BSD-2-Clause
"""The command `ptat`.

Exit status: 0 ok; 1 the answer is no; 2 usage or environment; 130 interrupted. ``ptat record``
passes on the status of the command that it recorded.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Never

from ptat_host import boards
from ptat_host.boards.base import (
    Board,
    BoardError,
    CalibratingBoard,
    ObserveRequest,
    RecordRequest,
    RecordResult,
    ReplayingBoard,
)
from ptat_host.sizes import format_size, parse_size
from ptat_parser.errors import PtatError

if TYPE_CHECKING:
    from ptat_host.fs.place import Place
    from ptat_host.fs.sweep import Plan
    from ptat_host.fs.systems import FileSystem
    from ptat_parser import Misses, Results

SESSIONS = Path("ptat-sessions")
MAPPING = Path("ptat-mapping.json")
ADDRESSES = 400


class UsageError(PtatError):
    """The command line makes no sense."""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: object) -> None:
        settings["allow_abbrev"] = False
        super().__init__(**settings)  # type: ignore[arg-type]

    def error(self, message: str) -> Never:
        raise UsageError(message, f"see {self.prog} --help")


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


# The command line ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ptat",
        description="Full, exact traces of last-level TLB misses, per process and per page.",
        epilog="Without DIR, a command takes the newest session in ptat-sessions/.",
    )
    parser.add_argument("--version", action="version", version=f"ptat {version('ptat')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_doctor(commands)
    _add_calibrate(commands)
    _add_record(commands)
    _add_parse(commands)
    _add_report(commands)
    _add_script(commands)
    _add_top(commands)
    _add_hugepages(commands)
    _add_diff(commands)
    _add_overhead(commands)
    _add_pagesize(commands)
    _add_bench_fs(commands)
    _add_hunt(commands)
    _add_validate(commands)
    _add_check(commands)
    _add_export(commands)
    _add_stat(commands)
    _add_completion(commands, parser)
    _add_help(commands, parser)
    return parser


_Commands = argparse._SubParsersAction  # the type has no public name


def _add_command(commands: _Commands[_Parser], name: str, text: str) -> _Parser:
    return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")


def _add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session",
        metavar="DIR",
        nargs="?",
        type=_location,
        help="session directory, also s3://BUCKET/DIR (default: the newest in ptat-sessions/)",
    )


def _location(name: str) -> Path:
    if "://" not in name:
        return Path(name)
    from ptat_parser.storage import location

    return location(name)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (default: text for people)"
    )


# ptat doctor --------------------------------------------------------------------------------------


def _add_doctor(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "doctor", "say what a recording needs and what is missing")
    parser.add_argument(
        "--board", metavar="BOARD", help="look at this board only (default: at all of them)"
    )
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from ptat_host import console, doctor

    names = [arguments.board] if arguments.board else boards.names()
    table, fine = doctor.render(names, Path.cwd())
    console.show(table)
    return 0 if fine else 1


# ptat record --------------------------------------------------------------------------------------

_BOARD_OPTION = "board option "


def _add_record(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "record", "run a command and trace its TLB misses")
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
        help="exit with 1 if anything was lost on the way to the disk (default: only say it)",
    )
    parser.add_argument(
        "--archive",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compress the capture when the recording has ended (default: --archive)",
    )
    _add_recording(parser)
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="what to run")
    parser.set_defaults(run=_record)


def _add_recording(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Options of what is to be recorded, and how."""
    others = len(parser._actions)
    _add_board(parser)
    parser.add_argument(
        "--children",
        action="store_true",
        help="trace the processes that CMD forks, too (default: only CMD)",
    )
    parser.add_argument(
        "--levels",
        choices=("pte", "pte+pmd"),
        default="pte+pmd",
        help="page tables that the trace sees: pte is 4 KiB pages only (default: pte+pmd)",
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
        help="memory for the traced page tables; 1/512 of what CMD touches, and more if it is"
        " sparse (default: the board's)",
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
        help="record what is mapped where, for the report's objects (default: --maps)",
    )
    parser.add_argument(
        "--heap",
        metavar="SIZE",
        help="preload a library into CMD that records which calls led to the memory it asks for,"
        " pieces of at least SIZE (default: no)",
    )
    _add_board_options(parser)
    return parser._actions[others:]


def _add_board(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--board",
        metavar="BOARD",
        action="append",
        help=f"{', '.join(boards.names())}; some with an address: usb:SERIAL, udp:HOST:PORT,"
        " file:DIR; again for the board of each further memory channel"
        f" (default: {boards.DEFAULT})",
    )


def _chosen_board(arguments: argparse.Namespace) -> Board:
    return boards.load_all(arguments.board or [boards.DEFAULT])


def _add_board_options(parser: argparse.ArgumentParser) -> None:
    """The options of all boards; which of them the chosen one has is seen when it is known."""
    known: dict[str, dict[str, list[str]]] = {}
    for name in boards.names():
        try:
            options = boards.load(name).options
        except BoardError:
            continue  # whoever chooses it is told
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


def _board_options(arguments: argparse.Namespace, board: Board) -> Mapping[str, str]:
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


def _record(arguments: argparse.Namespace) -> int:
    command = arguments.command[arguments.command[:1] == ["--"] :]
    board = _chosen_board(arguments)
    if isinstance(board, ReplayingBoard):
        if command:
            raise UsageError(f"{board.name} replays, it runs nothing", "leave the command out")
        command = board.argv
    if not command:
        raise UsageError("nothing to run", "ptat record [OPTIONS] -- CMD [ARG…]")
    request = _request(arguments, board, command)
    session = _new_session(arguments.output, command)
    result = _record_one(board, request, session, archive=arguments.archive)
    return _recorded(session, result, arguments.strict)


def _request(arguments: argparse.Namespace, board: Board, command: Sequence[str]) -> RecordRequest:
    """What was asked for, without a session directory yet."""
    options = _board_options(arguments, board)
    region_bytes = parse_size(arguments.region, "--region") if arguments.region else None
    heap_bytes = parse_size(arguments.heap, "--heap") if arguments.heap else None
    if heap_bytes is not None and not arguments.maps:
        raise UsageError("--heap without mappings says nothing", "leave --no-maps out")
    return RecordRequest(
        argv=command,
        session_dir=Path(),
        cwd=Path.cwd(),
        env=dict(os.environ),
        children=arguments.children,
        levels=arguments.levels,
        granularity_bytes=arguments.granularity,
        entries=arguments.entries,
        faults=arguments.faults,
        maps=arguments.maps,
        heap_bytes=heap_bytes,
        region_bytes=region_bytes,
        options=options,
    )


def _new_session(output: Path | None, command: Sequence[str]) -> Path:
    from ptat_host import record

    return record.given_session(output) if output else record.new_session(SESSIONS, command)


def _record_one(
    board: Board, request: RecordRequest, session: Path, *, archive: bool = True
) -> RecordResult:
    from ptat_host import record

    request = replace(request, session_dir=session.resolve())
    return record.record(board, request, archive=archive)


def _recorded(session: Path, result: RecordResult, strict: bool) -> int:
    """Say how a recording ended; the exit status."""
    size = format_size(sum(file.stat().st_size for file in session.rglob("*") if file.is_file()))
    if result.lost:
        print(f"ptat: {session}: lost {result.lost}", file=sys.stderr)
    if result.complete:
        status = result.exit_status or 0
        if strict and result.lost:
            status = 1
        ended = f"; the command ended with {status}" if status else ""
        print(f"ptat: recorded {session} ({size}){ended}", file=sys.stderr)
        return status
    print(f"ptat: {session} ({size}) is incomplete: {result.reason}", file=sys.stderr)
    return 130 if result.interrupted else 2


# ptat calibrate -----------------------------------------------------------------------------------


def _add_calibrate(commands: _Commands[_Parser]) -> None:
    parser = _add_command(
        commands, "calibrate", "learn the memory controller's address mapping and load it"
    )
    _add_board(parser)
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
        type=_positive,
        default=ADDRESSES,
        help=f"different addresses to read (default: {ADDRESSES})",
    )
    parser.add_argument(
        "--reads", metavar="N", type=_positive, help="reads of each (default: the board's)"
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=_positive,
        default=1,
        help="choose other addresses (default: 1)",
    )
    _add_json(parser)
    _add_board_options(parser)
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    from ptat_host import calibrate, mapping

    board = _chosen_board(arguments)
    if not isinstance(board, CalibratingBoard):
        raise UsageError(f"board {board.name} cannot be calibrated", "choose another --board")
    options = _board_options(arguments, board)
    observed = board.observe(
        ObserveRequest(arguments.addresses, arguments.reads, arguments.seed, options)
    )
    found = calibrate.solve(observed.addresses, observed.coordinates)
    described = mapping.content(found, observed)
    mapping.write(arguments.output, described)
    loaded = board.load(arguments.output)
    if arguments.json:
        print(json.dumps(described))
    else:
        print("\n".join(found.describe()))
    where = f", and loaded it into {', '.join(loaded)}" if loaded else ""
    print(f"ptat: wrote {arguments.output}{where}", file=sys.stderr)
    return 0


# The commands that read a session -----------------------------------------------------------------


def _session(arguments: argparse.Namespace) -> Path:
    """The directory that was named, or that of the newest session."""
    named: Path | None = arguments.session
    return named if named is not None else _newest()


def _newest() -> Path:
    sessions = list(SESSIONS.glob("*/session.json"))
    if not sessions:
        raise UsageError(f"there is no session in {SESSIONS}/", "record one: ptat record -- CMD")
    return max(sessions, key=lambda path: path.stat().st_mtime_ns).parent


def _add_parse(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "parse", "make the results of a session again")
    _add_session(parser)
    parser.add_argument(
        "--salvage",
        action="store_true",
        help="leave damaged blocks of the capture out and count them as lost"
        " (default: refuse a damaged capture)",
    )
    parser.add_argument(
        "--counts-only",
        action="store_true",
        help="no single misses, only pages and totals: enough for ptat report"
        " (default: all results)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        metavar="N",
        type=_positive,
        default=1,
        help="processes to share the work; the results are the same (default: 1)",
    )
    where.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="Dask scheduler whose workers, which see DIR at the same path or in the same bucket,"
        " share the work (default: none)",
    )
    parser.set_defaults(run=_parse)


def _add_report(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "report", "summarise a session")
    _add_session(parser)
    _add_json(parser)
    parser.add_argument(
        "--top",
        metavar="N",
        type=_positive,
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
        help="show them by function and call chain, of a session that was recorded with"
        " --kernel-misses yes (default: what the trace shows)",
    )
    kernel.add_argument(
        "--read",
        metavar="FILE",
        help="with --kernel: show what perf script printed of perf record -g -e dTLB-load-misses;"
        " - is stdin (default: a session)",
    )
    kernel.add_argument(
        "--all",
        action="store_true",
        help="with --kernel: also of processes that are not traced (default: only of those that"
        " are)",
    )
    kernel.add_argument(
        "--folded",
        metavar="FILE",
        type=Path,
        help="with --kernel: also write folded stacks, for flame graphs (default: no)",
    )
    parser.set_defaults(run=_report)


def _add_script(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "script", "print one miss a line")
    _add_session(parser)
    parser.add_argument(
        "--limit", metavar="N", type=_positive, help="stop after N misses (default: all of them)"
    )
    _add_filters(parser)
    parser.add_argument(
        "--object",
        metavar="GLOB",
        help="only objects whose name matches, such as 'libc*' (default: all)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object a line (default: columns)"
    )
    parser.set_defaults(run=_script)


def _add_top(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "top", "show what misses while it is being recorded")
    _add_session(parser)
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_duration,
        default=1.0,
        help="seconds between two looks (default: 1)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=_positive,
        default=10,
        help="processes and objects to list (default: 10)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="look once, over all that is recorded so far (default: until the recording ends)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object for each look, a line each (default: text for people)",
    )
    parser.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    from ptat_host import console, top

    follower = top.Follower(_session(arguments), arguments.top)
    if not arguments.once:
        top.show(follower, arguments.interval, as_json=arguments.json)
    elif arguments.json:
        print(json.dumps(follower.view().as_dict()))
    else:
        console.show(top.render(follower.view()))
    return 0


HUGE_PAGES = {"2M": [2 << 20], "1G": [1 << 30], "both": [2 << 20, 1 << 30]}


def _add_hugepages(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "hugepages", "predict what larger pages would save")
    _add_session(parser)
    _add_json(parser)
    parser.add_argument(
        "--pages", choices=HUGE_PAGES, default="both", help="their sizes (default: both)"
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=_positive,
        default=8,
        help="hottest objects to look at (default: 8)",
    )
    parser.add_argument(
        "--tlb",
        metavar="MODEL",
        help="predict for this TLB: ivybridge-ep, skylake, zen4 (default: the session's)",
    )
    parser.set_defaults(run=_hugepages)


def _hugepages(arguments: argparse.Namespace) -> int:
    from ptat_host import console, hugepages
    from ptat_parser import Trace

    sizes = HUGE_PAGES[arguments.pages]
    found = hugepages.predict(Trace(_load(arguments)), arguments.tlb, arguments.top, sizes)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    else:
        console.show(hugepages.render(found))
    return 0


def _add_diff(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "diff", "compare two sessions, or two sets of repeats")
    parser.usage = "ptat diff BEFORE AFTER\n       ptat diff BEFORE… --against AFTER…"
    parser.add_argument(
        "sessions", metavar="DIR", type=_location, nargs="+", help="session directories"
    )
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=_location,
        nargs="+",
        help="sessions of after; those before are repeats of one run, and so are these (default:"
        " the second of two)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=_positive,
        default=10,
        help="largest changes of each kind to list (default: 10)",
    )
    _add_json(parser)
    parser.set_defaults(run=_diff)


def _diff(arguments: argparse.Namespace) -> int:
    import ptat_parser
    from ptat_host import console, diff

    before, after = arguments.sessions, arguments.against
    if after is None:
        if len(before) != 2:
            raise UsageError(
                f"{len(before)} sessions: which are before, and which after?",
                "ptat diff BEFORE AFTER, or ptat diff BEFORE… --against AFTER…",
            )
        before, after = before[:1], before[1:]
    before, after = ([ptat_parser.open(path) for path in side] for side in (before, after))
    changes = diff.compare(before, after, arguments.top)
    notes = diff.warnings(before, after)
    if arguments.json:
        print(json.dumps({"changes": [one.as_dict() for one in changes], "warnings": notes}))
    else:
        console.show(diff.render(changes, notes))
    return 0


def _add_overhead(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "overhead", "estimate what recording costs on real hardware")
    _add_session(parser)
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=_duration,
        help="time of an untraced run there, for the slowdown (default: none, only the time added)",
    )
    for name, about, default in (
        ("uncached", "a read of memory that no cache may keep", 100.0),
        ("cached", "a read of an entry by an untraced walk", 10.0),
        ("store", "an uncached store", 100.0),
        ("trap", "a page fault that counts a miss, as BadgerTrap's", 350.0),
    ):
        parser.add_argument(
            f"--{name}-ns",
            metavar="NS",
            type=_duration,
            default=default,
            help=f"{about} (default: {default:g})",
        )
    _add_json(parser)
    parser.set_defaults(run=_overhead)


def _overhead(arguments: argparse.Namespace) -> int:
    from ptat_host import console, overhead

    costs = overhead.Costs(
        arguments.uncached_ns, arguments.cached_ns, arguments.store_ns, arguments.trap_ns
    )
    totals = _load(arguments).summary["totals"]
    found = overhead.estimate(totals, costs, arguments.seconds)
    if arguments.json:
        print(json.dumps(found.as_dict() | {"costs": asdict(costs)}))
    else:
        console.show(overhead.render(found, costs))
    return 0


# ptat pagesize ------------------------------------------------------------------------------------

TRACE_FORMATS = {
    "session": "the misses of a session",
    "accesses": "what its program accessed, recorded in the testbed with --accesses yes",
    "text": "lines of readi, readd or write, address and size",
    "lackey": "of valgrind --tool=lackey --trace-mem=yes",
    "drmemtrace": "of DynamoRIO, trace_entry_t",
    "testbed": "a testbed's file of accesses, of all programs",
}


def _add_pagesize(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "pagesize", "advise a page size for traces of memory accesses")
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
        type=_positive,
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
        type=_positive,
        default=1,
        help="threads to simulate in; the results are the same (default: 1)",
    )
    parser.add_argument(
        "--plots",
        metavar="DIR",
        type=Path,
        help="write figures there, as SVG, in place of older ones (default: none)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write tables and figures as one page for any browser (default: text to stdout)",
    )
    _add_json(parser)
    parser.set_defaults(run=_pagesize)


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


def _pagesize(arguments: argparse.Namespace) -> int:
    from ptat_host import console, pagesize, progress

    settings = pagesize.Settings(
        storage=arguments.storage,
        percents=arguments.memory,
        tlb_entries=arguments.tlb_entries,
        cache_bytes=parse_size(arguments.cache, "--cache") if arguments.cache else 0,
        strict=arguments.strict,
        workers=arguments.workers,
    )
    settings, scenarios = pagesize.with_machines(settings, arguments.machines)
    if arguments.plots or arguments.html:
        pagesize.need_plots()
    with progress.bar() as show:
        named = arguments.traces or [str(_newest())]
        traces = pagesize.open_traces(named, arguments.format, show)
        sizes = arguments.pages or pagesize.sizes_for(traces)
        found = pagesize.study(traces, replace(settings, page_sizes=sizes), scenarios, show)
    if arguments.plots:
        pagesize.write_plots(found, arguments.plots)
    if arguments.html:
        pagesize.write_html(found, arguments.html)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    elif not arguments.html:
        console.show(pagesize.render(found))
    return 0


# ptat bench-fs ------------------------------------------------------------------------------------

SWEEP = Path("ptat-bench-fs")


def _add_bench_fs(commands: _Commands[_Parser]) -> None:
    parser = _add_command(
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
    _add_cells(parser)
    parser.add_argument(
        "--repeats", metavar="N", type=_positive, default=3, help="of each cell (default: 3)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=_positive, default=1, help="of the cells' order (default: 1)"
    )
    _add_place(parser)
    parser.add_argument(
        "--plots",
        metavar="DIR",
        type=Path,
        help="write figures there, as SVG, in place of older ones (default: none)",
    )
    parser.add_argument(
        "--trace",
        metavar="SESSION",
        type=Path,
        help="keep the testbed's recording there, of all processes, as ptat record does (default:"
        " no process is traced, and nothing is kept)",
    )
    _add_json(parser)
    parser.set_defaults(run=_bench_fs)


def _add_cells(parser: argparse.ArgumentParser) -> None:
    """Options of what is measured."""
    parser.add_argument(
        "--systems",
        metavar="NAME,NAME…",
        type=_names,
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
        type=_names,
        default=("write", "rewrite", "read", "reread"),
        help="also append, fwrite, refwrite, fread, refread, random-write, random-read,"
        " smallfiles, map4k- and map2m- with write, read, random-write and random-read,"
        " map2m-write- with clwb, clflush, clflushopt and nt, fio- with write, read, randwrite and"
        " randread (default: write,rewrite,read,reread)",
    )
    parser.add_argument(
        "--files",
        metavar="SIZE,SIZE…",
        type=_sizes,
        default=(1 << 20, 8 << 20),
        help="file sizes (default: 1M,8M)",
    )
    parser.add_argument(
        "--units",
        metavar="SIZE,SIZE…",
        type=_sizes,
        default=(4 << 10, 64 << 10, 1 << 20),
        help="of one transfer; those larger than a file are left out (default: 4K,64K,1M)",
    )
    parser.add_argument(
        "--total",
        metavar="SIZE",
        help="bytes to transfer, going over the file again and again (default: the file's size)",
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    """Options of where it is measured."""
    parser.add_argument(
        "--pmem",
        metavar="SIZE",
        default="512M",
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
        default=(2, 8),
        help="of this machine, for what is measured and for all else (default: 2,8)",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({parse_size(part, "a size") for part in text.split(",")}))


def _two_cpus(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a pair of CPUs: 2,8")
    return int(parts[0]), int(parts[1])


def _planned(
    arguments: argparse.Namespace, repeats: int, trace: Path | None = None
) -> tuple[Mapping[str, FileSystem], Plan, AbstractContextManager[Place]]:
    """File systems, what to measure of them, and the place where."""
    from ptat_host.fs import operations, place, systems
    from ptat_host.fs.sweep import Plan

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
        where = f"this machine, {arguments.device}, CPUs {arguments.cpus}"
        opened = place.this_machine(arguments.device, arguments.format, arguments.cpus)
    else:
        if arguments.format:
            raise UsageError("--format without --device formats nothing", "add --device")
        where = f"testbed, {arguments.pmem} of emulated persistent memory"
        opened = place.testbed(arguments.pmem, place.TRACED if trace else (), trace)
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


def _bench_fs(arguments: argparse.Namespace) -> int:
    from ptat_host import console, pagesize, progress
    from ptat_host.fs import report
    from ptat_host.fs.sweep import Runner, Sweep

    if arguments.plots:
        pagesize.need_plots()
    known, plan, opened = _planned(arguments, arguments.repeats, arguments.trace)
    done = Sweep.open(arguments.output, plan)
    if done.left:
        with opened as there, progress.bar() as show:
            done.run(Runner(there, known, plan.total_bytes), show)
    results = done.write_results()
    if arguments.plots:
        from ptat_host.fs import plots

        plots.write(list(done.done.values()), arguments.plots)
    if arguments.json:
        print(json.dumps(report.as_dict(done)))
    else:
        console.show(report.render(done))
    print(f"ptat: wrote {results}", file=sys.stderr)
    return 1 if done.failed else 0


# ptat hunt ----------------------------------------------------------------------------------------

HUNT = Path("ptat-hunt")


def _add_hunt(commands: _Commands[_Parser]) -> None:
    parser = _add_command(
        commands, "hunt", "search for what has the most TLB misses per byte on a file system"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=HUNT,
        help=f"for what was measured, also by a search that goes on (default: {HUNT})",
    )
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=_duration,
        default=10.0,
        help="search so long; booting and naming functions come on top (default: 10)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=_positive,
        default=3,
        help="cells to show of each file system (default: 3)",
    )
    _add_cells(parser)
    parser.add_argument(
        "--seed", metavar="N", type=_positive, default=1, help="of the choices (default: 1)"
    )
    _add_place(parser)
    _add_json(parser)
    parser.set_defaults(run=_hunt)


def _hunt(arguments: argparse.Namespace) -> int:
    from ptat_host import console, hunt, progress
    from ptat_host.fs.sweep import Runner, Sweep

    known, plan, opened = _planned(arguments, repeats=1)
    found = Sweep.open(arguments.output, plan)
    if found.left:
        with opened as there, progress.bar() as show:
            deadline_s = time.monotonic() + 60 * arguments.minutes
            cells = hunt.choose(found, plan.seed, deadline_s)
            found.run(Runner(there, known, plan.total_bytes), show, cells)
    bad = [one for name in plan.systems for one in hunt.ranked(found, name)[: arguments.top]]
    if arguments.device or not bad:
        worst = [hunt.Worst(one) for one in bad]
    else:
        worst = hunt.name_functions(bad, known, plan.total_bytes, arguments.pmem)
    content = hunt.as_dict(found, worst)
    if arguments.json:
        print(json.dumps(content))
    else:
        console.show(hunt.render(content))
    return 0 if bad else 1


def _duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def _add_validate(commands: _Commands[_Parser]) -> None:
    parser = _add_command(
        commands, "validate", "hold the trace against the truth and the counters; 1 if not exact"
    )
    parser.usage = (
        "ptat validate [OPTIONS] [DIR…]\n       ptat validate --repeat N [OPTIONS] -- CMD [ARG…]"
    )
    parser.add_argument(
        "what",
        metavar="DIR",
        nargs="*",
        help="session directory (default: the newest in ptat-sessions/); several are taken for"
        " repeats of one run; with --repeat the command to run",
    )
    parser.add_argument(
        "--repeat",
        metavar="N",
        type=_positive,
        help="record CMD so many times, with the options of ptat record below, and compare the"
        " runs (default: look at DIR)",
    )
    parser.add_argument(
        "--tolerance",
        metavar="PERCENT",
        type=_duration,
        default=1.0,
        help="how far counts may be from the counters' (default: 1)",
    )
    parser.add_argument(
        "--counters",
        metavar="FILE",
        help="what perf stat printed of the same run, to compare with, too (default: only what the"
        " session has)",
    )
    _add_json(parser)
    recording = _add_recording(parser)
    parser.set_defaults(run=lambda arguments: _validate(arguments, recording))


def _add_check(commands: _Commands[_Parser]) -> None:
    parser = _add_command(
        commands, "check", "check the invariants of a session; 1 if one does not hold"
    )
    _add_session(parser)
    _add_json(parser)
    parser.set_defaults(run=_check)


EXPORT_FORMATS = {
    "wide-parquet": "Parquet, all columns in each row",
    "arrow": "Arrow IPC file, the same columns",
    "csv": "comma-separated, the same columns",
    "perf": "lines like those of perf script",
    "lackey": "lines like those of valgrind --tool=lackey --trace-mem=yes",
    "cachegrind": "misses of each page, for cg_annotate",
    "drmemtrace": "DynamoRIO's trace_entry_t, for TLB simulators",
}


def _add_export(commands: _Commands[_Parser]) -> None:
    parser = _add_command(commands, "export", "write the misses in a format of other tools")
    _add_session(parser)
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
        help="first time, in seconds as ptat script shows them (default: the recording's start)",
    )
    parser.add_argument(
        "--to", dest="stop", metavar="S", type=_seconds, help="end of the time (default: none)"
    )
    parser.add_argument(
        "--pid", metavar="N", type=_positive, help="only this process (default: all)"
    )
    parser.add_argument(
        "--address",
        metavar="A-B",
        type=_addresses,
        default=(None, None),
        help="only pages that touch these addresses, B excluded; hexadecimal (default: all)",
    )


def _filtered(arguments: argparse.Namespace) -> Misses:
    from ptat_parser import Trace

    return Trace(_load(arguments)).misses(
        pid=arguments.pid, time=(arguments.start, arguments.stop), address=arguments.address
    )


def _seconds(text: str) -> int:
    """Seconds → ns, without rounding what can be written."""
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


def _parse(arguments: argparse.Namespace) -> int:
    import ptat_parser
    from ptat_host import progress

    session = _session(arguments)
    with progress.bar() as show:
        results = ptat_parser.parse(
            session,
            salvage=arguments.salvage,
            counts_only=arguments.counts_only,
            workers=arguments.workers,
            address=arguments.cluster,
            progress=show,
        )
    totals = results.summary["totals"]
    print(f"{totals['misses']} misses in {totals['pages']} pages: {results.path}")
    return 0


def _load(arguments: argparse.Namespace) -> Results:
    import ptat_parser
    from ptat_host import progress

    with progress.bar() as show:
        return ptat_parser.load(_session(arguments), progress=show)


def _report(arguments: argparse.Namespace) -> int:
    from ptat_host import console, html, report

    if arguments.kernel:
        return _report_kernel(arguments)
    for option in ("read", "all", "folded"):
        if getattr(arguments, option):
            raise UsageError(f"--{option} is of kernel code's misses", "add --kernel")
    if arguments.html and arguments.json:
        raise UsageError("--html and --json are two reports", "ask for one of them")
    results = _load(arguments)
    content = report.summarise(results, arguments.top, objects=not arguments.html)
    if arguments.html:
        html.write(results, arguments.html)
        print(f"ptat: wrote {arguments.html}", file=sys.stderr)
    elif arguments.json:
        print(json.dumps(content))
    else:
        console.show(report.render(content))
    return 1 if arguments.strict and not report.is_whole(content) else 0


def _report_kernel(arguments: argparse.Namespace) -> int:
    from ptat_host import console, kernel_misses, perf_script

    if arguments.html:
        raise UsageError("--kernel has no HTML report", "leave --html out, or take --folded")
    if arguments.read is None:
        profile = kernel_misses.of_session(_session(arguments), everyone=arguments.all)
    elif arguments.session or arguments.all:
        raise UsageError("--read shows no session", "leave DIR and --all out")
    else:
        text = io.StringIO(_text_of(arguments.read), newline="\n")
        profile = perf_script.read(text, arguments.read)
    if arguments.folded:
        with arguments.folded.open("w") as file:
            kernel_misses.write_folded(profile, file)
    content = kernel_misses.summarise(profile, arguments.top)
    if arguments.json:
        print(json.dumps(content))
    else:
        console.show(kernel_misses.render(content))
    return 1 if arguments.strict and content["problems"] else 0


def _script(arguments: argparse.Namespace) -> int:
    from ptat_host import script

    script.write(
        _filtered(arguments),
        sys.stdout.buffer,
        limit=arguments.limit,
        pattern=arguments.object,
        as_json=arguments.json,
    )
    return 0


def _validate(arguments: argparse.Namespace, recording: Sequence[argparse.Action]) -> int:
    from ptat_host import console, perf_stat, progress, validate
    from ptat_parser import load
    from ptat_parser import validate as compare

    if arguments.repeat:
        if arguments.counters:
            raise UsageError("--counters are those of one run", "leave --repeat out")
        sessions = _repeat(arguments)
    else:
        _refuse_given(arguments, recording, "--repeat")
        sessions = [_location(name) for name in arguments.what] or [_newest()]
        if arguments.counters and len(sessions) > 1:
            raise UsageError("--counters are those of one run", "name one session")
    counters = None
    if arguments.counters:
        counters = perf_stat.read(_text_of(arguments.counters), arguments.counters)[0], None
    results, checked = [], []
    for session in sessions:
        with progress.bar() as show:
            results.append(load(session, progress=show))
        with progress.bar() as show:
            found = compare(results[-1], progress=show)
        checked.append(validate.check(results[-1], found, arguments.tolerance / 100, counters))
    ok = all(one.ok for one in checked)
    if len(checked) == 1:
        if arguments.json:
            print(json.dumps(checked[0].as_dict()))
        else:
            console.show(validate.render(checked[0]))
        return 0 if ok else 1
    spreads = validate.repeats(checked, results)
    if arguments.json:
        runs = [one.as_dict() for one in checked]
        print(json.dumps({"ok": ok, "runs": runs, "spreads": [one.as_dict() for one in spreads]}))
    else:
        console.show(validate.render_repeats(checked, spreads))
    return 0 if ok else 1


def _repeat(arguments: argparse.Namespace) -> list[Path]:
    """Record so many times as were asked for."""
    if not arguments.what:
        raise UsageError("nothing to run", "ptat validate --repeat N [OPTIONS] -- CMD [ARG…]")
    board = _chosen_board(arguments)
    if isinstance(board, ReplayingBoard):
        raise UsageError(f"{board.name} replays, it runs nothing", "choose another --board")
    request = _request(arguments, board, arguments.what)
    sessions = []
    for _ in range(arguments.repeat):
        session = _new_session(None, arguments.what)
        result = _record_one(board, request, session)
        _recorded(session, result, strict=False)
        if not result.complete:
            raise PtatError(f"{session} is incomplete: no more runs are made", "see above why")
        sessions.append(session)
    return sessions


def _refuse_given(
    arguments: argparse.Namespace, options: Sequence[argparse.Action], needed: str
) -> None:
    """Options that would be ignored without another are a mistake."""
    for option in options:
        if getattr(arguments, option.dest) != option.default:
            raise UsageError(
                f"{option.option_strings[0]} says how to record", f"add {needed}, or leave it out"
            )


def _check(arguments: argparse.Namespace) -> int:
    from ptat_host import check, console, progress
    from ptat_parser.check import check as check_session

    with progress.bar() as show:
        report = check_session(_session(arguments), progress=show)
    if arguments.json:
        print(json.dumps(report.as_dict()))
    else:
        console.show(check.render(report))
    return 0 if report.ok else 1


def _export(arguments: argparse.Namespace) -> int:
    from ptat_parser.export import FORMATS, export

    chosen = FORMATS[arguments.format]
    to_stdout = arguments.output is None
    if to_stdout and (chosen.seekable or (chosen.binary and sys.stdout.isatty())):
        raise UsageError(f"{arguments.format} cannot be shown here", "name a file: -o FILE")
    misses = _filtered(arguments)
    if to_stdout:
        chosen.write(misses, sys.stdout.buffer)
    else:
        export(misses, arguments.format, arguments.output)
    return 0


# ptat stat ----------------------------------------------------------------------------------------


def _add_stat(commands: _Commands[_Parser]) -> None:
    parser = _add_command(
        commands, "stat", "count TLB misses and page walks with the CPU's own counters"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--read",
        metavar="FILE",
        help="explain what perf stat printed: text, -x or -j; - is stdin (default: run CMD)",
    )
    source.add_argument(
        "--session",
        metavar="DIR",
        type=Path,
        help="show the counters of a session of the testbed (default: run CMD)",
    )
    parser.add_argument(
        "--cpu",
        metavar="CPU",
        help="name or vendor-family-model of the CPU (default: this machine's; with --read, by the"
        " events' names)",
    )
    _add_json(parser)
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="what to run")
    parser.set_defaults(run=_stat)


def _stat(arguments: argparse.Namespace) -> int:
    from ptat_host import console, perf_stat, pmu, stat

    command = arguments.command[arguments.command[:1] == ["--"] :]
    given = arguments.read is not None or arguments.session is not None
    if bool(command) == given:
        raise UsageError(
            "nothing to count" if not given else "--read and --session run nothing",
            "ptat stat -- CMD [ARG…], or ptat stat --read FILE, or ptat stat --session DIR",
        )
    cpu = None
    if arguments.cpu is not None:
        cpu = pmu.find(arguments.cpu)
        if cpu is None:
            known = ", ".join(one.name for one in pmu.CPUS)
            raise UsageError(f"no table of events for the CPU {arguments.cpu!r}", f"known: {known}")
    status = 0
    if arguments.read is not None:
        stats = perf_stat.read(_text_of(arguments.read), arguments.read)
    elif arguments.session is not None:
        stats = [stat.of_session(arguments.session)]
    else:
        cpu = cpu or pmu.find(pmu.this_machine()) or stat.GENERIC
        counted, status = stat.run(command, cpu)
        stats = [counted]
    for one in stats:
        if arguments.json:
            print(json.dumps(stat.as_dict(one, cpu)))
        else:
            console.show(stat.render(one, cpu))
    return status


def _text_of(name: str) -> str:
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode(errors="replace")


# ptat completion, ptat help -----------------------------------------------------------------------


def _add_completion(commands: _Commands[_Parser], ptat: _Parser) -> None:
    parser = _add_command(commands, "completion", "print what makes a shell complete ptat's words")
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    parser.set_defaults(run=lambda arguments: _completion(commands, ptat, arguments.shell))


def _completion(commands: _Commands[_Parser], ptat: _Parser, shell: str) -> int:
    import shtab

    paths = dict.fromkeys(("DIR", "BEFORE", "AFTER"), shtab.DIRECTORY)
    paths |= dict.fromkeys(("FILE", "CMD"), shtab.FILE)
    for command in commands.choices.values():
        for action in command._actions:
            if kind := paths.get(str(action.metavar)):
                action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(ptat, shell))
    return 0


def _add_help(commands: _Commands[_Parser], ptat: _Parser) -> None:
    parser = _add_command(commands, "help", "explain a command and its options")
    parser.add_argument(
        "command", metavar="COMMAND", nargs="?", help="what to explain (default: all in short)"
    )
    parser.set_defaults(run=lambda arguments: _help(commands, ptat, arguments.command))


def _help(commands: _Commands[_Parser], ptat: _Parser, name: str | None) -> int:
    if name is not None and name not in commands.choices:
        raise UsageError(f"there is no command {name!r}", f"there are {' '.join(commands.choices)}")
    (commands.choices[name] if name else ptat).print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
