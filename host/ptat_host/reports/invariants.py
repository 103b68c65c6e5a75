# SPDX-License-Identifier: BSD-2-Clause
"""``ptat check``: the invariants of a session that hold or fail, as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_parser.checks.report import Check, Report


def render(report: Report) -> RenderableType:
    """The verdict, and one line for each group of invariants."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in report.checks:
        table.add_row(check.name, _state(check), check.about)
    parts: list[RenderableType] = [_verdict(report), "", table]
    if report.lost:
        parts += ["", f"lost and accounted for: {report.lost:,}"]
    return Group(*parts)


def _verdict(report: Report) -> Text:
    if report.first is None:
        left_out = any(check.skipped for check in report.checks)
        return Text("sound, as far as it could be checked" if left_out else "sound", "bold green")
    return Text(f"NOT sound: {report.first}", "bold red")


def _state(check: Check) -> str:
    if check.skipped:
        return f"not checked: {check.skipped}"
    return f"violated {check.violations:,} times" if check.violations else "holds"
