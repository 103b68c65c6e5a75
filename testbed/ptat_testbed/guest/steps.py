# SPDX-License-Identifier: BSD-2-Clause
"""Tells the user what takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

PATIENCE_S = 2.0


def _say(text: str) -> None:
    print(f"ptat: {text} …", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Say what is being done, once it has taken two seconds."""
    timer = threading.Timer(PATIENCE_S, _say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
