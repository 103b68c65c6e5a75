# SPDX-License-Identifier: BSD-2-Clause
"""Where compiled code is kept for later runs: numba's cache, made safe.

numba asks whether a function's own file has changed, but code that was compiled holds constants
and functions of other modules, too. It numbers the files with code, and writes the index that
names them first: whoever is killed in between, or compiles the same function for other types at
the same time, leaves an index that names the wrong code. And it fails where nothing can be
written, or where a file was cut off.
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
"""What reading a file raises that is not what was written."""


class CacheFile(IndexDataCacheFile):
    """A function's compiled code, for each combination of types, and the index of it."""

    def load(self, key: object) -> Any:  # noqa: ANN401
        """The code for these types, if it is there and whole."""
        with suppress(*DAMAGED):
            return super().load(key)

    def _load_index(self) -> dict[object, str]:
        try:
            return dict(super()._load_index())
        except DAMAGED:
            return {}

    def save(self, key: object, data: object) -> None:
        """Keep code under a name of its own, then say so; on a full disk, don't."""
        with suppress(OSError):
            overloads = self._load_index()
            base = self._index_name.removesuffix(".nbi")
            if not overloads:  # or only those of another source
                for old in Path(self._cache_path).glob(f"{base}.*.nbc"):
                    old.unlink(missing_ok=True)
            name = f"{base}.{uuid.uuid4().hex}.nbc"
            self._save_data(name, data)
            self._save_index({**overloads, key: name})


class Cache(FunctionCache):
    """The cache of one function.

    :raises RuntimeError: there is no directory for it that can be written.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = sources(Path(function.__code__.co_filename).parent)
        self._cache_file = CacheFile(self._cache_path, self._impl.filename_base, stamp)


@functools.cache
def sources(directory: Path) -> str:
    """A digest of the Python files in a directory and of all those of the parser."""
    digest = hashlib.sha256()
    for path in sorted({*directory.glob("*.py"), *PACKAGE.rglob("*.py")}):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def cached(compiled: Any) -> None:  # noqa: ANN401
    """Keep what a function is compiled to, if there is a place for it."""
    if not hasattr(compiled, "py_func"):
        return  # NUMBA_DISABLE_JIT is set
    with suppress(RuntimeError):
        compiled._cache = Cache(compiled.py_func)
