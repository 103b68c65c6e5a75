# SPDX-License-Identifier: BSD-2-Clause
"""Fill levels of buffers during a recording: ``buffers.json``, which is removed at its end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "buffers.json"
INTERVAL_S = 1.0
"""Interval of the reports."""


@dataclass(frozen=True)
class Fill:
    """A buffer, which loses what does not fit."""

    name: str
    used: int
    size: int
    unit: str = "bytes"
    lost: int = 0
    """Records lost so far, if they are counted."""


class Reporter:
    """Writes the file periodically; a context manager, which removes it on exit."""

    def __init__(self, session: Path, fills: Callable[[], Sequence[Fill]]) -> None:
        """`fills`: returns the buffers' current fill levels."""
        self._session = session
        self._fills = fills
        self._written_s = 0.0

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        remove(self._session)

    def tick(self) -> None:
        """To be called often."""
        if time.monotonic() - self._written_s >= INTERVAL_S:
            self._written_s = time.monotonic()
            write(self._session, self._fills())


def write(session: Path, fills: Sequence[Fill]) -> None:
    """Write the fill levels for ``ptat top``. A full disk is no reason to stop the recording."""
    with contextlib.suppress(OSError):
        new = session / f"{FILE}.new"
        new.write_text(json.dumps([asdict(fill) for fill in fills]))
        new.replace(session / FILE)


def read(session: Path) -> list[Fill]:
    """The last fill levels written; empty if nothing writes them."""
    try:
        return [Fill(**fill) for fill in json.loads((session / FILE).read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def remove(session: Path) -> None:
    """Remove the file at the end of the recording."""
    for name in (FILE, f"{FILE}.new"):
        (session / name).unlink(missing_ok=True)
