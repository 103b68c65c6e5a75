# SPDX-License-Identifier: BSD-2-Clause
"""Records of trapped TLB misses, one file per CPU: ``kernel/trapN.raw`` of a session.

The kernel's format, unchanged: see ``include/uapi/linux/ptat.h`` of the patch series.
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
    """Bits of a record's `flags`."""

    WRITE = 1 << 0
    FETCH = 1 << 1
    KERNEL = 1 << 2
    HUGE = 1 << 3
    RETRY = 1 << 4
    """A repetition of the previous access, which was let through: not a miss of its own."""
    FAULT = 1 << 5
    """The walk ended in a page fault: not a miss."""
    STEP = 1 << 6
    LEFT = 1 << 7
    SHARED = 1 << 8


ACCESS = Flag.WRITE | Flag.FETCH | Flag.KERNEL
"""Flags that describe the kind of access."""

NO_MISS = Flag.RETRY | Flag.FAULT
"""A record with one of these flags is not a miss."""


def page_shift(flags: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
    """log2 of the page size in bytes, for each record."""
    huge = (flags & Flag.HUGE) != 0
    return np.where(huge, np.uint64(21), np.uint64(12))


def access_name(access: int) -> str:
    """Name of an access from its flags in `ACCESS`: ``read``, ``kernel write``, …"""
    kind = "fetch" if access & Flag.FETCH else "write" if access & Flag.WRITE else "read"
    return f"kernel {kind}" if access & Flag.KERNEL else kind


def read_records(path: Path, *, end_may_be_cut: bool = False) -> npt.NDArray[Any]:
    """The records of one CPU in order, shape ``(records,)``, dtype `RECORD`, mapped read-only.

    :param end_may_be_cut: drop an incomplete record at the end, left by a killed recorder.
    :raises BadInput: the file is missing, or ends within a record.
    """
    try:
        size_bytes = path.stat().st_size
        records, rest_bytes = divmod(size_bytes, RECORD.itemsize)
        if rest_bytes and not end_may_be_cut:
            raise BadInput(
                f"{path}: truncated: ends within a record", "restore it, or record again"
            )
        if not records:
            return np.empty(0, RECORD)
        return np.memmap(path, RECORD, "r", shape=(records,))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "restore the file, or record again") from None
