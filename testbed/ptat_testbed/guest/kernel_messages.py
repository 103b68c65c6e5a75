# SPDX-License-Identifier: BSD-2-Clause
"""Finds what the guest's kernel complains about on its console."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = r"\bptat(?:_pci [\da-f:.]+)?:"
"""Before what our part of the kernel says."""

# The console shows warnings and worse; our own kernel code prints nothing else there.
_COMPLAINT = re.compile(
    rf"WARNING:|BUG:|Oops|Kernel panic|{_NAME}|rcu: INFO:|blocked for more than|soft lockup"
    r"|general protection fault|Out of memory|oom-kill|page allocation failure|Call Trace:"
    r"|unable to handle|Bad page|Bad rss-counter|non-zero pgtables_bytes|HugeTLB: allocating"
)
_PANIC = re.compile(r"Kernel panic.*")
_OURS = re.compile(rf"{_NAME} .*")
_WANT_OF_MEMORY = re.compile(r"Out of memory: Killed process \d+ \(.*?\)|HugeTLB: .* failed.*")


def read(path: Path) -> list[str]:
    """The console's lines; none if there is no file."""
    try:
        return path.read_text(errors="replace").replace("\r", "").splitlines()
    except FileNotFoundError:
        return []


def warnings(lines: list[str]) -> list[str]:
    """The lines that show that something went wrong in the kernel."""
    return [line.strip() for line in lines if _COMPLAINT.search(line)]


def _first(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    return next((found[0] for line in lines if (found := pattern.search(line))), None)


def panic(lines: list[str]) -> str | None:
    """The kernel's last words, if it panicked."""
    return _first(_PANIC, lines)


def ours(lines: list[str]) -> str | None:
    """What our part of the kernel complained about first, if it did."""
    return _first(_OURS, lines)


def want_of_memory(lines: list[str]) -> str | None:
    """What the kernel could not do, or whom it killed, because the guest has too little memory."""
    return _first(_WANT_OF_MEMORY, lines)
