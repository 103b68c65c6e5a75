# SPDX-License-Identifier: BSD-2-Clause
"""A safe version of numba's cache of compiled code.

numba checks only whether a function's own file has changed, but compiled code also contains
constants and functions of other modules. numba numbers the code files and writes the index that
names them first, so a process that is killed in between, or that concurrently compiles the same
function for other types, leaves an index that names the wrong code. numba also fails if the cache
cannot be written or a file is truncated.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pickle import PickleError
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

PACKAGE = Path(__file__).parents[1]
DAMAGED = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, PickleError)
"""Exceptions raised by reading a damaged file."""


class CacheFile(IndexDataCacheFile):
    """A function's compiled code for each combination of types, and its index."""

    def load(self, key: object) -> Any:  # noqa: ANN401
        """The code for these types, or None if it is missing or damaged."""
        with suppress(*DAMAGED):
            return super().load(key)

    def _load_index(self) -> dict[object, str]:
        try:
            return dict(super()._load_index())
        except DAMAGED:
            return {}

    def save(self, key: object, data: object) -> None:
        """Store code in a file with a unique name, then update the index; ignores a full disk."""
        with suppress(OSError):
            overloads = self._load_index()
            base = self._index_name.removesuffix(".nbi")
            if not overloads:  # none, or only those of other sources
                for old in Path(self._cache_path).glob(f"{base}.*.nbc"):
                    old.unlink(missing_ok=True)
            name = f"{base}.{uuid.uuid4().hex}.nbc"
            self._save_data(name, data)
            self._save_index({**overloads, key: name})


class Cache(FunctionCache):
    """The cache of one function.

    :raises RuntimeError: no cache directory is writable.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = sources(Path(function.__code__.co_filename).parent)
        self._cache_file = CacheFile(self._cache_path, self._impl.filename_base, stamp)


@functools.cache
def sources(directory: Path) -> str:
    """A digest of the Python files in a directory and of all files of the parser."""
    digest = hashlib.sha256()
    for path in sorted({*directory.glob("*.py"), *PACKAGE.rglob("*.py")}):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def cached(compiled: Any) -> None:  # noqa: ANN401
    """Enable the cache for a compiled function, if a cache directory is writable."""
    if not hasattr(compiled, "py_func"):
        return  # NUMBA_DISABLE_JIT is set
    with suppress(RuntimeError):
        compiled._cache = Cache(compiled.py_func)
