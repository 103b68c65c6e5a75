#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Writes the patch series of a kernel version as mails for ``git am``.

A patch of the series is what ``series.toml`` lists for it: changes of the kernel's own files, from
``hooks/<version>/``, and new files, from ``src/``, which all versions share. Standard library only:
the build of the kernel uses this, too.

    series.py write VERSION DIRECTORY     the mails, with a cover letter
    series.py check VERSION [TARBALL]     do they apply to this source, and pass checkpatch?

Without TARBALL, the source is that of the installed package or, if there is none, the newest in
Debian's registry.

``check`` ends with one JSON line: ``{"version", "patches", "lines_hooks", "lines_own",
"checkpatch_errors", "applies"}``. Lines are those that the series adds to files of the kernel, and
in files of its own. Exit status 1 if the series does not apply, or checkpatch complains.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE / "src"
HOOKS = HERE / "hooks"
AUTHOR = "ptat developers <ptat-devel@localhost>"
DATE = "Thu, 26 Nov 2026 12:00:00 +0000"
OBJECT = re.compile(r"^obj-\S+ \+= (\S+)\.o\n", re.M)
"""In a Makefile of our own: one object a line."""
CHECKPATCH = ("scripts/checkpatch.pl", "scripts/spelling.txt", "scripts/const_structs.checkpatch")
TRACE_LAYOUT = "OPEN_ENDED_LINE|PARENTHESIS_ALIGNMENT"
IGNORED = re.compile(rf"FILE_PATH_CHANGES|^include/trace/events/ptat.h:.*({TRACE_LAYOUT})")
"""Whether MAINTAINERS needs a change: the last patch adds the entry for all. And the layout of
TRACE_EVENT, which is the same in all files of tracepoints."""


@dataclass(frozen=True)
class Patch:
    """One patch of the series."""

    title: str
    message: str
    hooks: str | None = None
    """Name of the file in ``hooks/<version>/`` without its suffix."""
    own: tuple[str, ...] = ()
    """Paths of the new files in the kernel's tree."""

    def hooks_diff(self, version: str) -> str:
        """Changes of the kernel's own files; empty if the patch has none."""
        return (HOOKS / version / f"{self.hooks}.diff").read_text() if self.hooks else ""


def versions() -> list[str]:
    """All versions that there are hooks for, oldest first."""
    names = (path.name for path in HOOKS.iterdir() if path.is_dir())
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def content() -> dict[str, Any]:
    """What ``series.toml`` has."""
    return tomllib.loads((HERE / "series.toml").read_text())


def load() -> tuple[str, list[Patch]]:
    """The cover letter and the patches."""
    series = content()
    patches = [Patch(**{**entry, "own": tuple(entry.get("own", ()))}) for entry in series["patch"]]
    return series["cover"], patches


def own_diff(path: str, before: str | None, after: str) -> str:
    """A file of our own that appears, or changes, as a diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True) if before else [],
        after.splitlines(keepends=True),
        f"a/{path}" if before else "/dev/null",
        f"b/{path}",
    )
    mode = "" if before else "new file mode 100644\n"
    return f"diff --git a/{path} b/{path}\n{mode}{''.join(lines)}"


def _present(path: str, files: set[str]) -> str:
    """A file of our own as it is while only `files` exist: a Makefile names no others."""
    text = (SRC / path).read_text()
    if not path.endswith("/Makefile"):
        return text
    folder = path.removesuffix("Makefile")
    return OBJECT.sub(lambda line: line[0] if f"{folder}{line[1]}.c" in files else "", text)


def own_diffs() -> Iterator[tuple[Patch, str]]:
    """Each patch, and what it changes among our own files."""
    files: dict[str, str] = {}
    for patch in load()[1]:
        there = {*files, *patch.own}
        diff = ""
        for path in sorted(there):
            text = _present(path, there)
            if text != files.get(path):
                diff += own_diff(path, files.get(path), text)
                files[path] = text
        yield patch, diff


def write(version: str, directory: Path) -> list[Path]:
    """Write the cover letter and the mails; return the paths of the mails, in order."""
    cover, patches = load()
    title, _, body = cover.strip().partition("\n")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "0000-cover-letter.txt").write_text(
        f"From: {AUTHOR}\nDate: {DATE}\nSubject: [PATCH 0/{len(patches)}] {title}\n{body}\n"
    )
    paths = []
    for number, (patch, diff) in enumerate(own_diffs(), 1):
        name = re.sub(r"[^A-Za-z0-9]+", "-", patch.title).strip("-")[:52]
        paths.append(directory / f"{number:04}-{name}.patch")
        paths[-1].write_text(
            f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR}\nDate: {DATE}\n"
            f"Subject: [PATCH {number}/{len(patches)}] {patch.title}\n\n"
            f"{patch.message.strip()}\n\nSigned-off-by: {AUTHOR}\n---\n"
            f"{patch.hooks_diff(version)}{diff}"
        )
    return paths


def _git(tree: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [
        "git",
        "-C",
        tree,
        "-c",
        "user.name=ptat",
        "-c",
        "user.email=ptat@localhost",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def _source(version: str) -> Path:
    """The tarball of the installed package, or of the newest in Debian's registry."""
    installed = Path(f"/usr/src/linux-source-{version}.tar.xz")
    if installed.is_file():
        return installed
    script = [HERE / "source.sh", version, content()["suites"][version]]
    done = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return Path(done.stdout.strip())


def _unpack(tarball: Path, names: Sequence[str], tree: Path) -> None:
    """Those files of a kernel's source that are there, as a git repository.

    Going through the tarball takes half a minute: what was taken from it is kept in the cache.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ptat"
    cache = Path(os.environ.get("PTAT_CACHE", cache))
    key = hashlib.sha256(repr((str(tarball), tarball.stat().st_mtime_ns, names)).encode())
    kept = cache / f"series-source-{key.hexdigest()[:16]}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        top = tarball.name.removesuffix(".tar.xz")
        with tempfile.TemporaryDirectory(dir=cache) as new:
            command = ["tar", "-xJf", str(tarball), "-C", new, "--strip-components=1"]
            # GNU tar exits with 2 for names that the source lacks: what the series creates.
            wanted = [f"{top}/{name}" for name in names]
            subprocess.run([*command, *wanted], capture_output=True, check=False)
            shutil.copytree(new, kept)
    shutil.copytree(kept, tree)
    _git(tree, "init", "-q")
    _git(tree, "add", "-A", "-f")
    _git(tree, "commit", "-q", "-m", "base")


def check(version: str, tarball: Path) -> int:
    """See the module's description."""
    _, patches = load()
    diffs = [patch.hooks_diff(version) for patch in patches]
    touched = {name for diff in diffs for name in re.findall(r"^--- a/(\S+)", diff, re.M)}
    own = {path for patch in patches for path in patch.own}
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        _unpack(tarball, [*sorted(touched), *CHECKPATCH], tree)
        paths = write(version, Path(temporary) / "series")
        applied = _git(tree, "am", "--quiet", *paths)
        if applied.returncode:
            print(applied.stdout, applied.stderr, file=sys.stderr)
        checkpatch: list[str | Path] = [
            "perl",
            tree / CHECKPATCH[0],
            "--strict",
            "--no-tree",
            "--no-summary",
        ]
        checkpatch += ["--terse", "--show-types", "--showfile", *paths]
        # It leaves a cache of names where it runs.
        done = subprocess.run(checkpatch, cwd=tree, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stdout.splitlines() if not IGNORED.search(line)]
    for line in complaints:
        print(line, file=sys.stderr)
    added = sum(len(re.findall(r"^\+(?!\+\+ b/)", diff, re.M)) for diff in diffs)
    result = {
        "version": version,
        "patches": len(patches),
        "lines_hooks": added,
        "lines_own": sum(len((SRC / path).read_text().splitlines()) for path in own),
        "checkpatch_errors": len(complaints),
        "applies": not applied.returncode,
    }
    print(json.dumps(result))
    return int(bool(complaints) or bool(applied.returncode))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing, checking = commands.add_parser("write"), commands.add_parser("check")
    for command in (writing, checking):
        command.add_argument("version", choices=versions())
    writing.add_argument("directory", type=Path)
    checking.add_argument("tarball", type=Path, nargs="?")
    arguments = parser.parse_args(argv)
    if arguments.command == "write":
        write(arguments.version, arguments.directory)
        return 0
    tarball = arguments.tarball or _source(arguments.version)
    if not tarball.is_file():
        parser.error(f"there is no {tarball}: run setup/packages.sh")
    return check(arguments.version, tarball)


if __name__ == "__main__":
    sys.exit(main())
