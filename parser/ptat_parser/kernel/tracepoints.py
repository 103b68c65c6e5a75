# SPDX-License-Identifier: BSD-2-Clause
"""The kernel's tracepoints (docs/formats.md): names, kinds, and the dtypes of their rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TABLE_EVENTS = (
    "ptat_mm_attach",
    "ptat_mm_exit",
    "ptat_table_alloc",
    "ptat_table_link",
    "ptat_table_move",
    "ptat_table_free",
    "ptat_leaf_set",
    "ptat_leaf_clear",
    "ptat_marker",
)
"""Events with a sequence number and a marker on the bus; a trace needs all of them."""

FAULT_EVENTS = ("ptat_fault",)
ENTRY_EVENTS = ("ptat_pte_set", "ptat_pte_clear")
"""Optional events, which have neither."""
FLUSH_EVENTS = ("tlb_flush",)
"""Linux's own, optional: a CPU's TLB is flushed. They have neither, too."""
FLUSH_ALL = (1 << 64) - 1
"""Their number of pages if it is flushed as a whole (`TLB_FLUSH_ALL`)."""

TABLE_KINDS = TABLE_EVENTS
"""Index = `kind` of a row of `TABLE_EVENT`."""


(
    MM_ATTACH,
    MM_EXIT,
    TABLE_ALLOC,
    TABLE_LINK,
    TABLE_MOVE,
    TABLE_FREE,
    LEAF_SET,
    LEAF_CLEAR,
    MARKER,
) = range(len(TABLE_KINDS))

COOKIE_START = 1
COOKIE_STOP = 2


class TableEvent(NamedTuple):
    """One table event: `time` in clock cycles, then its fields; fields that it lacks are 0."""

    time: int
    kind: int
    cpu: int
    seq: int
    mm: int
    pa: int
    slot_pa: int
    va: int
    entry: int
    level: int
    pgd: int
    tgid: int
    why: int
    cookie: int
    comm: bytes


TABLE_EVENT = np.dtype([(name, "S16" if name == "comm" else "<u8") for name in TableEvent._fields])
"""`TableEvent` as a numpy structured dtype."""

INTEGER_FIELDS = frozenset(TableEvent._fields) - {"time", "kind", "cpu", "comm"}

TIMED_EVENT = np.dtype(
    [
        ("time", "<u8"),
        ("kind", "u1"),
        ("mm", "<u8"),
        ("va", "<u8"),
        ("slot_pa", "<u8"),
        ("entry", "<u8"),
        ("common_pid", "<u4"),
        ("error_code", "<u2"),
    ]
)
"""One event without a marker: a fault, or a 4 KiB entry set or cleared.

`common_pid`: the thread that ran; `error_code`: a fault's, as the CPU pushes it.
"""

USER_MODE = 1 << 2
"""Bit of a fault's error code: in user mode (SDM volume 3, page-fault error code, U/S)."""

TIMED_KINDS = FAULT_EVENTS + ENTRY_EVENTS
"""Optional events without a marker; index = `kind` of a row."""


FAULT, ENTRY_SET, ENTRY_CLEAR = range(len(TIMED_KINDS))

NOT_TIMED = 255
TIMED_FIELDS = ("mm", "va", "slot_pa", "entry", "common_pid", "error_code")
_ENTRY_FIELDS = ("mm", "slot_pa", "va", "entry")
NEEDED_FIELDS = {
    "ptat_mm_attach": ("seq", "mm", "pgd", "tgid", "why", "comm"),
    "ptat_mm_exit": ("seq", "mm"),
    "ptat_table_alloc": ("seq", "mm", "pa", "level"),
    "ptat_table_link": ("seq", "mm", "pa", "slot_pa", "va", "level"),
    "ptat_table_move": ("seq", "mm", "pa", "va", "level"),
    "ptat_table_free": ("seq", "mm", "pa"),
    "ptat_leaf_set": ("seq", *_ENTRY_FIELDS),
    "ptat_leaf_clear": ("seq", *_ENTRY_FIELDS),
    "ptat_marker": ("seq", "cookie"),
    "ptat_fault": ("mm", "va", "error_code"),
    "ptat_pte_set": _ENTRY_FIELDS,
    "ptat_pte_clear": _ENTRY_FIELDS,
    "tlb_flush": ("pages",),
}
"""Fields that each event must have; unknown fields are ignored."""

END_OF_CYCLES = (1 << 64) - 1
LEVELS = (1, 2)
TGID_MAX = 1 << 22
"""Linux's PID_MAX_LIMIT."""


def folder_of(event: str) -> str:
    """A tracepoint below ``events/`` of tracefs."""
    return f"{'tlb' if event in FLUSH_EVENTS else 'ptat'}/{event}"
