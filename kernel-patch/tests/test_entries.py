# SPDX-License-Identifier: BSD-2-Clause
"""No writer of page tables is missed: Coccinelle lists what may store to an entry.

A store that no primitive syncs would be quiet. ``entries.cocci`` finds stores through pointers to
entries of PTE and PMD tables, such pointers that become others, and calls of functions that leave
it to the caller to sync, in all that can be part of a kernel for x86-64. What it finds must be what
``entries.allowed`` has, where each is explained.

``unsynced.cocci`` then follows those functions up to the caller that unlocks the table: on each way
there, it must have synced.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ptat_host.boards.program_cache import cache_root, new_directory
from ptat_testbed.guest import build

HERE = Path(__file__).parent
TARBALL = Path(f"/usr/src/linux-source-{build.VERSION}.tar.xz")
STORES = HERE / "entries.cocci"
UNSYNCED = HERE / "unsynced.cocci"
LEFT = {
    ("arch_sync_new_ptes",): (
        *("__set_pte", "__set_ptes", "__copy_present_ptes", "copy_present_ptes"),
    ),
    ("arch_sync_ptes", "ptat_sync_pte"): (
        *("__ptep_get_and_clear", "__ptep_get_and_clear_full", "__ptep_set_wrprotect"),
        *("get_and_clear_full_ptes", "clear_full_ptes", "wrprotect_ptes"),
        *("__copy_present_ptes", "copy_present_ptes"),
        *("zap_present_folio_ptes", "zap_present_ptes"),
    ),
}
"""Hooks, and the functions that leave it to their callers to call one of them."""
HOOK = re.compile(rf"^\t(?:{'|'.join(hook for hooks in LEFT for hook in hooks)})\([^;]*;\n", re.M)

SOURCES = ("arch/x86", "drivers", "fs", "include", "io_uring", "kernel", "lib", "mm", "virt")
UNUSED = ("drivers/gpu", "drivers/media", "drivers/net", "drivers/scsi", "drivers/staging")
"""Big, and without a business with entries but through the primitives."""
NAMES = "(pte|pmd)_t|set_pte_atomic"
OTHERS = re.compile(r"arch/x86/(um|xen)/|/xen/|pgtable[-_]([23]level|32)|head32\.c|drivers/parisc/")
"""Not in a kernel for x86-64, or in none with PTAT (which excludes Xen PV)."""


def _tree() -> Path:
    """The files of the patched source that have to do with entries, from the cache."""
    with tempfile.TemporaryDirectory() as temporary:
        return _patched(build.series(Path(temporary)))


def _patched(patches: Sequence[Path]) -> Path:
    key = hashlib.sha256(repr((SOURCES, UNUSED, NAMES, OTHERS.pattern)).encode())
    key.update(str(TARBALL.stat().st_mtime_ns).encode())
    for patch in patches:
        key.update(patch.read_bytes())
    tree = cache_root() / f"entries-{key.hexdigest()[:16]}"
    if tree.exists():
        return tree
    with new_directory(tree) as new, tempfile.TemporaryDirectory() as temporary:
        touched = {
            name
            for patch in patches
            for name in re.findall(r"^--- a/(\S+)", patch.read_text(), re.M)
        }
        wanted = [f"*/{name}" for name in touched]
        wanted += [f"linux-source-{build.VERSION}/{folder}/*.[ch]" for folder in SOURCES]
        excluded = [f"--exclude=linux-source-{build.VERSION}/{folder}/*" for folder in UNUSED]
        command = ["tar", "-xJf", TARBALL, "-C", temporary, "--strip-components=1", *excluded]
        # GNU tar exits with 2 for a name that the source lacks: what the series adds and changes.
        subprocess.run([*command, "--wildcards", *wanted], stderr=subprocess.DEVNULL, check=False)
        for patch in patches:
            subprocess.run(["patch", "-d", temporary, "-p1", "-s", "-f", "-i", patch], check=True)
        listed = subprocess.run(
            ["grep", "-rlwE", NAMES, "--include=*.[ch]", *SOURCES],
            cwd=temporary,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for name in listed.stdout.splitlines():
            if not OTHERS.search(name):
                target = new / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(temporary) / name, target)
    return tree


def _files(directory: Path) -> list[Path]:
    return sorted(path.relative_to(directory) for path in directory.rglob("*.[ch]"))


def _found(rules: Path, directory: Path, files: Sequence[Path]) -> Counter[str]:
    """``file: statement`` of what the rules find in files below `directory`."""
    command = ["spatch", "--very-quiet", "--no-includes", "--sp-file", rules, *files]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, text=True, check=True)
    found: Counter[str] = Counter()
    name = ""
    for line in done.stdout.splitlines():
        if line.startswith("--- "):
            name = line.split()[1].removeprefix("a/")
        elif line.startswith("-"):
            found[f"{name}: {' '.join(line[1:].split())}"] += 1
    return found


def _unsynced(directory: Path) -> Counter[str]:
    """``file: statement`` after which some way lacks the hook."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        rules = Path(temporary) / UNSYNCED.name
        for hooks, functions in LEFT.items():
            names = re.compile(rf"\b({'|'.join(functions)})\b")
            text = UNSYNCED.read_text().replace("LEFT", "|".join(functions))
            text = text.replace("when != SYNC", "when != " + "(...)\n    when != ".join(hooks))
            rules.write_text(text)
            files = [
                file for file in _files(directory) if names.search((directory / file).read_text())
            ]
            found += _found(rules, directory, files)
    return found


def _marked(text: str) -> Counter[str]:
    """The statements of a seeded file that must be found."""
    return Counter(
        " ".join(line.split()) for line in text.splitlines() if line.endswith("/* found */")
    )


def _allowed(lines: Sequence[str]) -> Counter[str]:
    """What may be there; each block of it begins with a comment that says why."""
    allowed: Counter[str] = Counter()
    explained = False
    for line in lines:
        if line.startswith("#"):
            explained = True
        elif line:
            assert explained, f"entries.allowed: {line} is not explained"
            allowed[line] += 1
        else:
            explained = False
    return allowed


@pytest.fixture(scope="module", autouse=True)
def _need_coccinelle() -> None:
    if shutil.which("spatch") is None:
        pytest.fail("no spatch: run setup/packages.sh kernel")


def test_all_stores_to_entries_are_known() -> None:
    tree = _tree()
    found = _found(STORES, tree, _files(tree))
    allowed = _allowed((HERE / "entries.allowed").read_text().splitlines())
    assert not list((found - allowed).elements()), "new: does it sync what it writes?"
    assert not list((allowed - found).elements()), "no longer there: take it from entries.allowed"


def test_what_is_left_to_callers_is_synced() -> None:
    assert not list(_unsynced(_tree()).elements())


@pytest.mark.parametrize(
    ("find", "name", "count"),
    [
        (lambda directory: _found(STORES, directory, _files(directory)), "entries-seeded.c", 15),
        (_unsynced, "unsynced-seeded.c", 7),
    ],
    ids=["stores", "unsynced"],
)
def test_what_is_seeded_is_found(
    find: Callable[[Path], Counter[str]], name: str, count: int, tmp_path: Path
) -> None:
    seeded = (HERE / name).read_text()
    (tmp_path / name).write_text(seeded)
    expected = Counter({f"{name}: {line}": number for line, number in _marked(seeded).items()})
    assert expected.total() == count
    assert find(tmp_path) == expected


def test_each_hook_is_missed(tmp_path: Path) -> None:
    tree = _tree()
    missed: dict[str, bool] = {}
    for file in _files(tree / "mm"):
        text = (tree / "mm" / file).read_text()
        for hook in HOOK.finditer(text):
            (tmp_path / file.name).write_text(text[: hook.start()] + text[hook.end() :])
            missed[f"{file}: {hook[0].strip()}"] = bool(_unsynced(tmp_path))
            (tmp_path / file.name).unlink()
    assert missed
    assert all(missed.values()), missed
