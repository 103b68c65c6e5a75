# SPDX-License-Identifier: BSD-2-Clause
"""Records of trapped TLB misses, a file for each CPU: ``kernel/trapN.raw`` of a session.

They are stored as the kernel wrote them: see ``include/uapi/linux/ptat.h`` of the series.
"""

from __future__ import annotations

from enum import IntFlag
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import BadInput

RECORD = np.dtype(
    [
        ("tsc", "<u8"),
        ("addr", "<u8"),
        ("ip", "<u8"),
        ("mm", "<u8"),
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("entry", "<u4"),
        ("cpu", "<u2"),
        ("flags", "<u2"),
    ]
)


class Flag(IntFlag):
    """What a record's `flags` say."""

    WRITE = 1 << 0
    FETCH = 1 << 1
    KERNEL = 1 << 2
    HUGE = 1 << 3
    RETRY = 1 << 4
    """The access that was let through before, again: no miss of its own."""
    FAULT = 1 << 5
    """The walk ended in a page fault: no miss."""
    STEP = 1 << 6
    LEFT = 1 << 7
    SHARED = 1 << 8


def read_records(path: Path) -> npt.NDArray[Any]:
    """The records of one CPU in order, shape ``(records,)``, dtype `RECORD`, mapped read-only.

    :raises BadInput: the file is missing or ends within a record.
    """
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "restore the file, or record again") from None
    if size_bytes % RECORD.itemsize:
        raise BadInput(f"{path}: truncated: ends within a record", "restore it, or record again")
    if not size_bytes:
        return np.empty(0, RECORD)
    return np.memmap(path, RECORD, "r")
