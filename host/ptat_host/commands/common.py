# SPDX-License-Identifier: BSD-2-Clause
"""Common parts of the commands: parser of options, sessions, numbers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Never

from ptat_host.sizes import parse_size
from ptat_parser.errors import PtatError

if TYPE_CHECKING:
    from ptat_parser import Results

SESSIONS = Path("ptat-sessions")


class UsageError(PtatError):
    """The command line is wrong."""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of ending the process; takes no abbreviations."""

    def __init__(self, **settings: object) -> None:
        settings["allow_abbrev"] = False
        super().__init__(**settings)  # type: ignore[arg-type]

    def error(self, message: str) -> Never:
        """See `argparse.ArgumentParser.error`."""
        raise UsageError(message, f"see {self.prog} --help")


Commands = argparse._SubParsersAction  # the type has no public name


def add_command(commands: Commands[Parser], name: str, text: str) -> Parser:
    """Add a command; `text` is its line in the list and the first sentence of its help."""
    return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")


def add_session(parser: argparse.ArgumentParser) -> None:
    """The argument DIR."""
    parser.add_argument(
        "session",
        metavar="DIR",
        nargs="?",
        type=session_location,
        help="session directory, also s3://BUCKET/DIR (default: the newest in ptat-sessions/)",
    )


def session_location(name: str) -> Path:
    """An argument: a session here or in an object store."""
    if "://" not in name:
        return Path(name)
    from ptat_parser.formats.storage import location

    return location(name)


def positive_int(text: str) -> int:
    """An argument: 1 or more."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option --json."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (default: readable text)"
    )


def session_of(arguments: argparse.Namespace) -> Path:
    """The directory that was named, or that of the newest session."""
    named: Path | None = arguments.session
    return named if named is not None else newest_session()


def newest_session() -> Path:
    """The newest session in ``ptat-sessions``."""
    sessions = list(SESSIONS.glob("*/session.json"))
    if not sessions:
        raise UsageError(f"there is no session in {SESSIONS}/", "record one: ptat record -- CMD")
    return max(sessions, key=lambda path: path.stat().st_mtime_ns).parent


def comma_names(text: str) -> tuple[str, ...]:
    """An argument: comma-separated names."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def comma_sizes(text: str) -> tuple[int, ...]:
    """An argument: comma-separated sizes."""
    return tuple(sorted({parse_size(part, "a size") for part in text.split(",")}))


def positive_number(text: str) -> float:
    """An argument: more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def load_results(arguments: argparse.Namespace) -> Results:
    """The results of the session that was named."""
    import ptat_parser
    from ptat_host import progress

    with progress.bar() as show:
        return ptat_parser.load(session_of(arguments), progress=show)


def text_of(name: str) -> str:
    """A file, or standard input, as text."""
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode(errors="replace")
