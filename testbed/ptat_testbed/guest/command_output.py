# SPDX-License-Identifier: BSD-2-Clause
"""Redirects the output of a guest's command, which goes to this process's standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def stdout_to(path: Path) -> Iterator[None]:
    """Redirect the standard output of this process and its children to a file."""
    sys.stdout.flush()
    kept = os.dup(1)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
