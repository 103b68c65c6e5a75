# SPDX-License-Identifier: BSD-2-Clause
"""Where built things are kept: ``${PTAT_CACHE:-${XDG_CACHE_HOME:-~/.cache}/ptat}/<what>-<key>``."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def cache_root() -> Path:
    """The directory that built things are kept in; it need not exist."""
    if path := os.environ.get("PTAT_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ptat"


def digest(inputs: Iterable[bytes]) -> str:
    """The part of a cached directory's name that changes with what it is built from."""
    state = hashlib.sha256()
    for data in inputs:
        state.update(hashlib.sha256(data).digest())
    return state.hexdigest()[:16]


def cached(what: str, key: str, build: Callable[[Path], None]) -> Path:
    """The directory ``what-key`` of the cache, made by ``build`` in a temporary one if missing.

    What ``build`` raises goes through; nothing is left behind then.
    """
    directory = cache_root() / f"{what}-{key}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{what}-build.", dir=directory.parent))
    try:
        build(work)
        try:
            work.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another build of the same key was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return directory
