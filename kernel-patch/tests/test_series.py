# SPDX-License-Identifier: BSD-2-Clause
"""The series of all kernel versions do the same, and have what ``src/`` has in the end.

The hooks of each version are compared with those of 6.12, without context and line numbers. What a
version's own names force to be different is in its ``differs``: whoever changes one version has to
change the others, or to accept a new difference (PTAT_ACCEPT_GOLDEN=1) and have it reviewed.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1]
REFERENCE = "6.12"


def _load() -> ModuleType:
    """``series.py``, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("series", FOLDER / "series.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


series = _load()
OTHERS = [version for version in series.versions() if version != REFERENCE]


def changes(diff: str) -> dict[str, list[str]]:
    """The changed lines of each file, without context and white space."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            lines = found.setdefault(line.removeprefix("+++ b/"), [])
        elif line[:1] in "+-" and not line.startswith("--- a/"):
            lines.append(" ".join(line.split()))
    return found


def differences(version: str) -> str:
    """How the hooks of a version differ from those of 6.12, as text."""
    text = ""
    for patch in series.load()[1]:
        expected, found = (changes(patch.hooks_diff(each)) for each in (REFERENCE, version))
        for path in sorted({*expected, *found}):
            lines = difflib.ndiff(expected.get(path, []), found.get(path, []))
            if differing := [f"{line[0]}{line[2:]}" for line in lines if line[0] in "-+"]:
                text += "\n".join((f"{patch.hooks}: {path}", *differing, ""))
    return text


@pytest.mark.parametrize("version", OTHERS)
def test_versions_are_in_step(version: str) -> None:
    golden = FOLDER / "hooks" / version / "differs"
    found = differences(version)
    if os.environ.get("PTAT_ACCEPT_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("version", OTHERS)
def test_a_change_of_one_version_is_noticed(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = differences(version)
    subprocess.run(["cp", "-r", FOLDER / "hooks", tmp_path], check=True)
    changed = tmp_path / "hooks" / version / "12-x86-fault.diff"
    changed.write_text(changed.read_text().replace("+\t\treturn;\n", "+\t\tbreak;\n"))
    monkeypatch.setattr(series, "HOOKS", tmp_path / "hooks")
    assert differences(version) != before


def test_all_topics_have_hooks_in_all_versions() -> None:
    topics = {patch.hooks for patch in series.load()[1] if patch.hooks}
    for version in series.versions():
        files = {path.stem for path in (FOLDER / "hooks" / version).glob("*.diff")}
        assert files == topics


def test_the_series_adds_all_of_src(tmp_path: Path) -> None:
    """Patch by patch, with a Makefile that never names a file that is not there."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for _patch, diff in series.own_diffs():
        if diff:
            (tmp_path / "diff").write_text(diff)
            subprocess.run(["git", "apply", tmp_path / "diff"], cwd=tree, check=True)
        for makefile in tree.glob("mm/ptat/Makefile"):
            names = series.OBJECT.findall(makefile.read_text())
            assert all((makefile.parent / f"{name}.c").exists() for name in names)
    made = {path.relative_to(tree): path.read_bytes() for path in _files(tree)}
    source = {path.relative_to(series.SRC): path.read_bytes() for path in _files(series.SRC)}
    assert made == source


def test_the_race_that_kcsan_must_report_applies() -> None:
    race = Path(__file__).with_name("kcsan-race.patch")
    command = ["patch", "--dry-run", "--fuzz=0", "-p1", "-d", series.SRC, "-i", race]
    subprocess.run(command, check=True)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
