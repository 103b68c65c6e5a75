# SPDX-License-Identifier: BSD-2-Clause
"""The series for other kernels are that for 6.12, but for differences that are written down.

The files that the series create must be the same, and so must the hooks in each file of the
kernel's. What a kernel's own names and types force to be different is in its ``differs``: who
changes one series has to change the others, or to accept a new difference (``make golden``'s
variable PTAT_ACCEPT_GOLDEN) and have it reviewed.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
REFERENCE = FOLDER / "linux-6.12"
OTHERS = sorted(path.parent for path in FOLDER.glob("*/differs"))
OURS = (
    *("mm/ptat/", "include/linux/ptat.h", "include/trace/events/ptat.h", "arch/x86/mm/ptat.c"),
    "tools/testing/selftests/mm/ptat_test.c",
)
HOOK = re.compile(r"\b(ptat_\w+|PTAT_\w+)\b")


def created(series: Path, directory: Path) -> dict[str, str]:
    """What is in the files that a series creates, once all of it is applied."""
    only = [f"--include={path}{'*' if path.endswith('/') else ''}" for path in OURS]
    for patch in sorted(series.glob("*.patch")):
        subprocess.run(["git", "apply", *only, patch], cwd=directory, check=True)
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def hooks(series: Path) -> Counter[str]:
    """Each name of PTAT's in each line that a series adds to the kernel's own C files."""
    found: Counter[str] = Counter()
    for patch in sorted(series.glob("*.patch")):
        path = ""
        for line in patch.read_text().splitlines():
            if line.startswith("+++ b/"):
                path = line.removeprefix("+++ b/")
            elif line.startswith("+") and path.endswith((".c", ".h")) and not path.startswith(OURS):
                found.update(f"{path}: {name}" for name in HOOK.findall(line))
    return found


def differences(series: Path, directory: Path) -> str:
    """How a series differs from that for 6.12, as text."""
    files = []
    for each in (REFERENCE, series):
        (directory / each.name).mkdir()
        files.append(created(each, directory / each.name))
    lines: list[str] = []
    for path in sorted(files[0].keys() | files[1].keys()):
        before, after = (each.get(path, "").splitlines() for each in files)
        lines += difflib.unified_diff(before, after, path, path, n=0, lineterm="")
    expected, found = hooks(REFERENCE), hooks(series)
    for name in sorted(expected.keys() | found.keys()):
        if expected[name] != found[name]:
            lines.append(f"hook {name}: {expected[name]} -> {found[name]}")
    # Line numbers say nothing.
    return "".join(re.sub(r"^@@.*", "@@", line) + "\n" for line in lines)


@pytest.mark.parametrize("series", OTHERS, ids=lambda path: path.name)
def test_series_is_in_step(series: Path, tmp_path: Path) -> None:
    found = differences(series, tmp_path)
    if os.environ.get("PTAT_ACCEPT_GOLDEN"):
        (series / "differs").write_text(found)
    assert found == (series / "differs").read_text()


def test_a_change_of_one_series_is_noticed(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    for patch in REFERENCE.glob("*.patch"):
        (changed / patch.name).write_text(
            patch.read_text().replace("\n+\tptat_mirror(ptep, new_pte.pte);\n", "\n+\n")
        )
    (tmp_path / "work").mkdir()
    found = differences(changed, tmp_path / "work")
    assert found.splitlines() == ["hook arch/x86/include/asm/pgtable.h: ptat_mirror: 4 -> 3"]
