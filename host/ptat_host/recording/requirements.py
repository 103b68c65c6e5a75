# SPDX-License-Identifier: BSD-2-Clause
"""``ptat doctor``: the requirements of a recording, which are missing, and how to fix them."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ptat_host import boards
from ptat_host.boards.base import BoardError, Check
from ptat_host.boards.live.kernel_files import CONTROL
from ptat_host.recording.session_recording import FREE_BYTES_MIN
from ptat_host.sizes import format_size


def host_checks(directory: Path, control: Path = CONTROL) -> list[Check]:
    """Requirements of every board; sessions would go into `directory`."""
    return [_system(), _room(directory), _running_kernel(control)]


def _system() -> Check:
    machine = platform.machine()
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        name = platform.system()
    known = machine == "x86_64"
    return Check(
        "system",
        known,
        f"{name}, {machine}, Python {platform.python_version()}",
        None if known else "what ptat builds runs on x86-64 only",
    )


def _room(directory: Path) -> Check:
    if not os.access(directory, os.W_OK):
        return Check(
            "sessions", False, f"{directory} is not writable", "record to another place with -o"
        )
    free_bytes = shutil.disk_usage(directory).free
    enough = free_bytes >= FREE_BYTES_MIN
    return Check(
        "sessions",
        enough,
        f"{format_size(free_bytes)} free in {directory}",
        None if enough else "make room, or record to another disk with -o",
    )


def _running_kernel(control: Path) -> Check:
    release = platform.release()
    if (control / "region").exists():
        return Check("this kernel", True, f"{release} has PTAT with a region")
    if control.exists():
        return Check(
            "this kernel",
            None,
            f"{release} has PTAT without a region",
            "boot it with ptat=SIZE@ADDRESS to trace this machine itself",
        )
    return Check(
        "this kernel",
        None,
        f"{release} is a kernel without PTAT (no {control})",
        "not needed by the testbed, which boots its own; to trace this machine itself, boot a"
        " kernel with the series in kernel-patch/",
    )


def board_checks(name: str) -> list[Check]:
    """Requirements of a board; a board that cannot be loaded is a failed one."""
    try:
        return boards.load(name).check()
    except BoardError as error:
        return [Check("load", False, error.message, error.hint)]


def render(names: Sequence[str], directory: Path) -> tuple[Table, bool]:
    """All checks for these boards as a table, and whether all passed."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    fine = True
    sections = [("ptat", host_checks(directory))]
    sections += [(f"board {name}", board_checks(name)) for name in names]
    for title, checks in sections:
        table.add_row(Text(title, style="bold"))
        for check in checks:
            mark, style = {True: ("ok", "green"), False: ("NO", "bold red"), None: ("–", "dim")}[
                check.ok
            ]
            table.add_row(f"  {check.name}", Text(mark, style=style), Text(check.detail))
            if check.hint and check.ok is not True:
                table.add_row("", "", Text(f"→ {check.hint}", style="yellow"))
            fine &= check.ok is not False
    return table, fine
