# SPDX-License-Identifier: BSD-2-Clause
"""Shows the progress of compilation, which happens once per machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener

STEP = "compiling, once"

TYPICAL_FUNCTIONS = 100
"""Approximate number of functions that a first parse compiles."""


class _Counter(Listener):
    def __init__(self, progress: Callable[[str, int, int], None]) -> None:
        self._progress, self._done = progress, 0

    def on_start(self, event: Event) -> None:
        """Ignore the start of a compilation."""

    def on_end(self, event: Event) -> None:
        """Count a compiled function."""
        self._done += 1
        self._progress(STEP, self._done, max(TYPICAL_FUNCTIONS, self._done + 1))


@contextmanager
def shown(progress: Callable[[str, int, int], None]) -> Iterator[None]:
    """Call `progress` after each function that is compiled, not loaded from the cache.

    It receives `STEP`, the number of functions compiled so far, and an estimate of the total.
    """
    with install_listener("numba:compile", _Counter(progress)):
        yield
