# SPDX-License-Identifier: BSD-2-Clause
"""Work that a forked process does meanwhile: it starts at once, and has all that is here."""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from ptat_parser.errors import PtatError
from ptat_parser.formats.storage import is_remote

T = TypeVar("T")

_ALIGNED = 64


def can_fork(path: Path) -> bool:
    """Whether a forked process may go on with a file: not if it is in an object store."""
    return hasattr(os, "memfd_create") and not is_remote(path)


class Forked(Generic[T]):
    """A process that does `work` and hands over what it returns, or raises.

    A context manager, at whose end the process is no more. Among the `others` are those that were
    forked before and may still run.
    """

    def __init__(self, work: Callable[[], T], others: list[Forked[Any]] | None = None) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe(duplex=False)
        # What is handed over may be too much for a pipe.
        self._memory = os.fdopen(os.memfd_create("ptat"), "r+b")
        not_theirs = [self._pipe, *(other._pipe for other in others or [])]
        self._process = context.Process(target=self._run, args=(work, theirs, not_theirs))
        gc.freeze()  # else collecting garbage, in either process, would copy all memory
        try:
            self._process.start()
        except OSError as error:
            gc.unfreeze()
            raise PtatError(
                f"cannot start a worker process: {error.strerror}", "use fewer --workers"
            ) from error
        finally:
            theirs.close()

    def _run(self, work: Callable[[], T], pipe: Connection, not_ours: list[Connection]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is interrupted ends the others,
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # so
        for other in not_ours:
            other.close()
        failed: Exception | None = None
        sizes: list[int] = []
        try:
            sizes = self._write(work())
        except Exception as error:
            failed = error
        with contextlib.suppress(BrokenPipeError):
            pipe.send((failed, sizes))

    def _write(self, found: T) -> list[int]:
        """Write what is handed over to memory that both have: arrays as they are."""
        arrays: list[pickle.PickleBuffer] = []
        text = pickle.dumps(found, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
        sizes = []
        for part in (memoryview(text), *(array.raw() for array in arrays)):
            sizes.append(len(part))
            self._memory.write(part)
            self._memory.write(bytes(-len(part) % _ALIGNED))
        self._memory.flush()
        return sizes

    def _read(self, sizes: list[int]) -> T:
        memory = memoryview(mmap.mmap(self._memory.fileno(), 0))
        ends = itertools.accumulate(size + -size % _ALIGNED for size in sizes)
        parts = [
            memory[start : start + size] for start, size in zip((0, *ends), sizes, strict=False)
        ]
        found: T = pickle.loads(parts[0], buffers=parts[1:])
        return found

    def result(self) -> T:
        """What the work returned, when that is done. Raises what it raised."""
        try:
            failed, sizes = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise PtatError(
                f"a worker process ended with exit code {self._process.exitcode}",
                "if it was killed for want of memory, use fewer --workers",
            ) from None
        if failed:
            raise failed
        return self._read(sizes)

    def __enter__(self) -> Forked[T]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()
        gc.unfreeze()
        self._pipe.close()
        self._memory.close()
