# SPDX-License-Identifier: BSD-2-Clause
"""A progress bar for steps that take longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PATIENCE_S = 2.0


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes a step's name, the finished part and the total. If stderr is no
    terminal, it shows nothing.
    """
    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task("")
    begin = time.monotonic()

    def show(step: str, done: int, total: int) -> None:
        progress.update(task, description=step, completed=done, total=total)
        if not progress.live.is_started and time.monotonic() - begin > PATIENCE_S:
            progress.start()

    try:
        yield show
    finally:
        progress.stop()
