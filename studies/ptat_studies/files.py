# SPDX-License-Identifier: BSD-2-Clause
"""Files that are complete or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(target: Path, data: bytes) -> None:
    """Write a file, which takes the place of an older one once it is on the disk."""
    unfinished = target.with_name(f".{target.name}.new")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
