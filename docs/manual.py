# SPDX-License-Identifier: BSD-2-Clause
"""Manual pages, from the parsers of the command line: ptat.1 and one page for each command.

usage: manual.py OUT
"""

import argparse
import os
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from argparse_manpage.manpage import Manpage

from ptat_host.cli import _parser

EXIT_STATUS = """\
0: all is well.
1: the answer is no (not exact, losses).
2: usage or environment.
130: interrupted.
.B ptat record
exits as the command that it recorded.
"""


def synopsis(usage: str) -> str:
    """The usage of a parser; lines are broken between options, not in them."""
    text = " ".join(usage.split(":", 1)[1].split()).replace("-", r"\-")
    text = re.sub(r"\[[^][]*\]", lambda option: option[0].replace(" ", r"\ "), text)
    text = text.replace(",", r",\:")  # but a list of choices may be long
    return f".nh\n.na\n{text}\n.ad\n.hy\n"


def page(parser: argparse.ArgumentParser, name: str, about: str, others: list[str]) -> str:
    """One page in roff's man macros; `about` is for its NAME, which apropos searches."""
    made = Manpage(parser)
    made.prog, made.description = name, about
    made.date = f"{datetime.now(UTC):%B %d, %Y}"
    made.source, made.manual = f"ptat {version('ptat')}", "ptat"
    references = (rf".BR {other} (1)".replace("-", r"\-") for other in others)
    made.add_section("synopsis", "=", synopsis(parser.format_usage()))
    made.add_section("exit status", "=", EXIT_STATUS)
    made.add_section("see also", "=", ",\n".join(references))
    return str(made)


def pages() -> dict[str, str]:
    """Name of each page and its text."""
    os.environ["COLUMNS"] = "10000"  # argparse shall not break words at their hyphens
    ptat = _parser()
    (commands,) = (
        action for action in ptat._actions if isinstance(action, argparse._SubParsersAction)
    )
    overview = argparse.ArgumentParser("ptat", "ptat COMMAND …", ptat.description, ptat.epilog)
    listed = overview.add_argument_group("commands")
    found = {}
    for command in commands._choices_actions:
        name, about = f"ptat-{command.dest}", command.help or ""
        listed.add_argument(command.dest, metavar=f"{name}(1)", help=about)
        found[name] = page(commands.choices[command.dest], name, about, ["ptat"])
    about = "full, exact traces of last-level TLB misses"
    return {"ptat": page(overview, "ptat", about, list(found))} | found


def main(out: Path) -> None:
    """Write the pages where man finds them: ``man -M OUT ptat``."""
    section = out / "man1"
    section.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (section / f"{name}.1").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
