# SPDX-License-Identifier: BSD-2-Clause
"""No writer of page tables is missed: Coccinelle lists what may store to an entry.

A store that no primitive mirrors would be quiet. ``entries.cocci`` finds stores through pointers
to entries of PTE and PMD tables, such pointers that become others, and calls of functions that
leave it to the caller's loop to mirror, in all that can be part of a kernel for x86-64. What it
finds must be what ``entries.allowed`` has, where each is explained.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ptat_host.made import cache_root, new_directory

HERE = Path(__file__).parent
SERIES = HERE.parent / "linux-6.12"
TARBALL = Path("/usr/src/linux-source-6.12.tar.xz")
RULES = HERE / "entries.cocci"

SOURCES = ("arch/x86", "drivers", "fs", "include", "io_uring", "kernel", "lib", "mm", "virt")
UNUSED = ("drivers/gpu", "drivers/media", "drivers/net", "drivers/scsi", "drivers/staging")
"""Big, and without a business with entries but through the primitives."""
OTHERS = re.compile(r"arch/x86/(um|xen)/|/xen/|pgtable[-_]([23]level|32)|head32\.c|drivers/parisc/")
"""Not in a kernel for x86-64, or in none with PTAT (which excludes Xen PV)."""


def _tree() -> Path:
    """The files of the patched source that name the types of entries, from the cache."""
    patches = sorted(SERIES.glob("*.patch"))
    key = hashlib.sha256(repr((SOURCES, UNUSED, OTHERS.pattern)).encode())
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
        wanted += [f"linux-source-6.12/{folder}/*.[ch]" for folder in SOURCES]
        excluded = [f"--exclude=linux-source-6.12/{folder}/*" for folder in UNUSED]
        command = ["tar", "-xJf", TARBALL, "-C", temporary, "--strip-components=1", *excluded]
        # GNU tar exits with 2 for a name that the source lacks: what the series adds and changes.
        subprocess.run([*command, "--wildcards", *wanted], stderr=subprocess.DEVNULL, check=False)
        for patch in patches:
            subprocess.run(["patch", "-d", temporary, "-p1", "-s", "-f", "-i", patch], check=True)
        listed = subprocess.run(
            ["grep", "-rlwE", "(pte|pmd)_t", "--include=*.[ch]", *SOURCES],
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


def _found(directory: Path) -> Counter[str]:
    """``file: statement`` of what the rules find below `directory`."""
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.[ch]"))
    command: list[str | Path] = ["spatch", "--very-quiet", "--no-includes", "--sp-file", RULES]
    done = subprocess.run(
        [*command, *files], cwd=directory, stdout=subprocess.PIPE, text=True, check=True
    )
    found: Counter[str] = Counter()
    name = ""
    for line in done.stdout.splitlines():
        if line.startswith("--- "):
            name = line.split()[1].removeprefix("a/")
        elif line.startswith("-"):
            found[f"{name}: {' '.join(line[1:].split())}"] += 1
    return found


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
    found = _found(_tree())
    allowed = _allowed((HERE / "entries.allowed").read_text().splitlines())
    assert not list((found - allowed).elements()), "new: does it mirror what it writes?"
    assert not list((allowed - found).elements()), "no longer there: take it from entries.allowed"


def test_a_new_store_is_found(tmp_path: Path) -> None:
    seeded = HERE / "entries-seeded.c"
    shutil.copyfile(seeded, tmp_path / seeded.name)
    marked = Counter(
        f"{seeded.name}: {' '.join(line.split())}"
        for line in seeded.read_text().splitlines()
        if line.endswith("/* found */")
    )
    assert len(marked) == 13
    assert _found(tmp_path) == marked
