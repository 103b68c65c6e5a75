# SPDX-License-Identifier: BSD-2-Clause
"""How full buffers are while a recording goes on: ``buffers.json``, gone when it has ended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "buffers.json"


@dataclass(frozen=True)
class Fill:
    """One buffer. What does not fit into it is lost."""

    name: str
    used: int
    size: int
    unit: str = "bytes"


def write(session: Path, fills: Sequence[Fill]) -> None:
    """Tell whoever looks. Nothing depends on it: a full disk is no reason to stop."""
    with contextlib.suppress(OSError):
        new = session / f"{FILE}.new"
        new.write_text(json.dumps([asdict(fill) for fill in fills]))
        new.replace(session / FILE)


def read(session: Path) -> list[Fill]:
    """What was told last; nothing where nobody tells."""
    try:
        return [Fill(**fill) for fill in json.loads((session / FILE).read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def remove(session: Path) -> None:
    """The recording has ended."""
    for name in (FILE, f"{FILE}.new"):
        (session / name).unlink(missing_ok=True)
