# SPDX-License-Identifier: BSD-2-Clause
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic

from ptat_parser.capture.reader import BusReader
from ptat_parser.formats import archive


@pytest.fixture
def session(tmp_path) -> Callable[..., Path]:
    """Makes the session of a synthetic machine; `steps` random things happen in it."""

    def make(steps: int = 150, **options) -> Path:
        machine = synthetic.Machine(**options).run(steps)
        return machine.write(tmp_path / "session")

    return make


def archived(path: Path, index: bytes | None = None) -> Path:
    """Archive a session's capture, as `ptat record` does, with its own or another index."""
    raw = path / "bus.0.raw"
    archive.pack(raw, path / "bus.0.ptb", BusReader(raw).stored_index() if index is None else index)
    raw.unlink()
    text = (path / "session.json").read_text()
    (path / "session.json").write_text(text.replace("bus.0.raw", "bus.0.ptb"))
    return path


def flip(path: Path, offset: int, bit: int = 1) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)
