# SPDX-License-Identifier: BSD-2-Clause
"""C programs that are compiled on first use and kept in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptat_host.boards.base import BoardError


def cache_root() -> Path:
    """The directory of compiled programs; it need not exist."""
    if path := os.environ.get("PTAT_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ptat"


@contextlib.contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A directory that is renamed into place once it is complete, so that no partial one is
    found."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{final.name}-") as temporary:
        filled = Path(temporary) / "new"
        filled.mkdir()
        yield filled
        # Another run may have been faster: then its directory is as good.
        with contextlib.suppress(OSError):
            filled.rename(final)


def made(name: str, folder: Path, sources: Sequence[Path], out: str) -> Path:
    """The directory with the output of `folder`'s Makefile for `sources`; `out` is its variable for
    the directory. The variable `KEPT` holds the directory's final name.

    :raises BoardError: compiling fails.
    """
    key = hashlib.sha256()
    for source in sorted(sources):
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    directory = cache_root() / f"{name}-{key.hexdigest()[:16]}"
    if directory.exists():
        return directory
    with new_directory(directory) as new:
        command = ["make", "-s", "-C", str(folder), f"{out}={new}", f"KEPT={directory}"]
        hint = "install Debian's build-essential"
        try:
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        except FileNotFoundError:
            raise BoardError(f"there is no make to compile the {name}", hint) from None
        if done.returncode:
            raise BoardError(
                f"the {name.replace('-', ' ')} cannot be compiled: {done.stderr.strip()}", hint
            )
    return directory
