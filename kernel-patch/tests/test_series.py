# SPDX-License-Identifier: BSD-2-Clause
"""The series of all kernel versions do the same, and have what ``src/`` has in the end.

The hooks of each version are compared with those of 6.12 hunk by hunk, without context and line
numbers, as ``git range-diff`` does. What a version's own names force to be different is in its
``differs``: whoever changes one version has to change the others, or to accept a new difference
(PTAT_ACCEPT_GOLDEN=1) and have it reviewed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
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


def hunks(diff: str) -> Counter[str]:
    """``file: changed lines`` of each hunk, without context."""
    found: Counter[str] = Counter()
    for part in re.split(r"^diff --git ", diff, flags=re.M)[1:]:
        path = part.split(" b/", 1)[1].split("\n", 1)[0]
        for hunk in re.split(r"^@@.*\n", part, flags=re.M)[1:]:
            lines = (" ".join(line.split()) for line in hunk.splitlines() if line[:1] in "+-")
            found[f"{path}: " + "\n".join(lines)] += 1
    return found


def differences(version: str) -> str:
    """How the hooks of a version differ from those of 6.12, as text."""
    text = ""
    for patch in series.load()[1]:
        expected, found = hunks(patch.hooks_diff(REFERENCE)), hunks(patch.hooks_diff(version))
        for mark, only in (("-", expected - found), ("+", found - expected)):
            for hunk in sorted(only.elements()):
                text += f"{mark}{patch.hooks}: {hunk}\n"
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
    for number, (patch, mail) in enumerate(series.mails(REFERENCE)):
        own = re.split(r"(?=^diff --git )", mail.partition("\n---\n")[2], flags=re.M)
        files = [f" b/{path}\n" for path in (*patch.own, "mm/ptat/Makefile")]
        diff = "".join(
            part
            for part in own
            if part.split("\n")[0] + "\n"
            and any(part.partition("\n")[0].endswith(name.strip("\n")) for name in files)
        )
        if not diff:
            continue
        file = tmp_path.with_suffix(f".{number}")
        file.write_text(diff)
        subprocess.run(["git", "apply", file], cwd=tmp_path, check=True)
        for makefile in tmp_path.glob("mm/ptat/Makefile"):
            for name in series.OBJECT.findall(makefile.read_text()):
                assert (makefile.parent / f"{name}.c").exists()
    made = {path.relative_to(tmp_path): path.read_bytes() for path in _files(tmp_path)}
    source = {path.relative_to(series.SRC): path.read_bytes() for path in _files(series.SRC)}
    assert made == source


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
