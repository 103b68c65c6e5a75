# SPDX-License-Identifier: BSD-2-Clause
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic


@pytest.fixture
def session(tmp_path) -> Callable[..., Path]:
    """Makes the session of a synthetic machine; `steps` random things happen in it."""

    def make(steps: int = 150, **options) -> Path:
        machine = synthetic.Machine(**options).run(steps)
        return machine.write(tmp_path / "session")

    return make


def flip(path: Path, offset: int, bit: int = 1) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)
