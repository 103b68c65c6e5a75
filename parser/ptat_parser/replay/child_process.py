# SPDX-License-Identifier: BSD-2-Clause
"""Work in a forked process, which starts quickly and inherits all memory."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from ptat_parser.errors import PtatError

T = TypeVar("T")


class ChildProcess(Generic[T]):
    """A process that runs `work` and sends back its result or its exception.

    A context manager, which ends the process on exit. `others`: processes forked earlier that may
    still run.
    """

    def __init__(
        self, work: Callable[[], T], others: list[ChildProcess[Any]] | None = None
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe(duplex=False)
        not_theirs = [self._pipe, *(other._pipe for other in others or [])]
        self._process = context.Process(target=self._run, args=(work, theirs, not_theirs))
        gc.freeze()  # otherwise a garbage collection in either process would copy all memory
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent, when interrupted,
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # terminates its workers
        for other in not_ours:
            other.close()
        found: T | Exception
        try:
            found = work()
        except Exception as error:
            found = error
        with contextlib.suppress(BrokenPipeError):
            pipe.send(found)

    def result(self) -> T:
        """Wait for the result of the work; re-raises its exception."""
        try:
            found: T | Exception = self._pipe.recv()
        except (EOFError, OSError):  # OSError: killed while it was sending
            self._process.join()
            raise PtatError(
                f"a worker process ended with exit code {self._process.exitcode}",
                "if it ran out of memory, use fewer --workers",
            ) from None
        if isinstance(found, Exception):
            raise found
        return found

    def __enter__(self) -> ChildProcess[T]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()
        gc.unfreeze()
        self._pipe.close()
