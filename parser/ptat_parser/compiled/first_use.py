# SPDX-License-Identifier: BSD-2-Clause
"""Shows that functions are being compiled, which happens once on each machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener

STEP = "compiling, once"

TYPICAL_FUNCTIONS = 100
"""How many functions a first parse compiles, about."""


class _Counter(Listener):
    def __init__(self, progress: Callable[[str, int, int], None]) -> None:
        self._progress, self._done = progress, 0

    def on_start(self, event: Event) -> None:
        """Nothing is compiled yet."""

    def on_end(self, event: Event) -> None:
        """One more function is compiled."""
        self._done += 1
        self._progress(STEP, self._done, max(TYPICAL_FUNCTIONS, self._done + 1))


@contextmanager
def shown(progress: Callable[[str, int, int], None]) -> Iterator[None]:
    """Call `progress` after each function that is compiled, and not loaded from the cache.

    It gets `STEP`, the functions that are compiled, and an estimate of all.
    """
    with install_listener("numba:compile", _Counter(progress)):
        yield
