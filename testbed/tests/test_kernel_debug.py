# SPDX-License-Identifier: BSD-2-Clause
"""What counts as a report of a kernel's checker."""

from __future__ import annotations

import pytest

from ptat_testbed.suites import kernel_debug

SHOWN = [
    "[    3.141592] BUG: KASAN: slab-use-after-free in lkdtm_READ_AFTER_FREE+0xbe/0x130",
    "[    3.141592][   T42] BUG: KCSAN: data-race in ptat_mark / ptat_mark",
    "[    3.141592] BUG: KCSAN: data-race in virtqueue_get_buf_ctx / virtqueue_add_split",
    "[    3.141592] BUG: KCSAN: data-race in ptat_ring_put+0xa1/0x1d0",
    "[    3.141592] UBSAN: array-index-out-of-bounds in drivers/misc/lkdtm/bugs.c:412:16",
    "[   13.818257] [ BUG: Invalid wait context ]",
    "[   13.141592] WARNING: possible circular locking dependency detected",
    "[   13.141592] WARNING: CPU: 1 PID: 42 at mm/ptat/mirror.c:80 __ptat_mirror+0x1f/0x90",
    "[   13.141592] BUG: Bad page state in process ptat_test  pfn:0f00f",
    "[  113.141592] kernel BUG at mm/page_table_check.c:81!",
    "[  113.141592] Oops: general protection fault, 0000 [#1] SMP NOPTI",
    "[ 1113.141592] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
    "WARNING: lock held when returning to user space!",
]
SILENT = [
    "[    3.141592] BUG: KCSAN: data-race in virtqueue_get_buf_ctx+0x24a/0x520",
    "[    0.000000] ** This means that this is a DEBUG kernel and it is slow  **",
    "[    0.000000] ... MAX_LOCKDEP_SUBCLASSES:  8",
    "# BUG: is not a report of the kernel's",
    "[    3.141592] ptat: region 0x10000000, twins 0x1000000, 8192 KiB each",
    "[    3.141592] lkdtm: Performing direct entry WARNING",
]


@pytest.mark.parametrize("line", SHOWN)
def test_a_report_is_counted_once(line: str) -> None:
    console = "\n".join(["ok 1 first touch", line, "[    4.000000] Call Trace:", "ok 2 aging", ""])
    assert len(kernel_debug.reports(console)) == 1


def test_nothing_else_is_counted() -> None:
    assert kernel_debug.reports("\n".join(SILENT)) == []
