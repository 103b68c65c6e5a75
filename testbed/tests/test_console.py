# SPDX-License-Identifier: BSD-2-Clause
from pathlib import Path

import pytest

from ptat_testbed.guest import kernel_messages

QUIET = [
    "[    0.000000] Kernel compiled without mitigations, ignoring 'mitigations'",
    "[    0.351631] APIC calibration not consistent with PM-Timer: 98ms instead of 100ms",
    "[    0.896759] amd_pstate: the _CPC object is not present in SBIOS or ACPI disabled",
]


def test_boot_messages_are_no_warnings():
    assert kernel_messages.warnings(QUIET) == []


@pytest.mark.parametrize(
    "line",
    [
        "[    5.1] WARNING: CPU: 0 PID: 1 at mm/ptat.c:100 ptat_free+0x10/0x20",
        "[    5.1] BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "[    5.1] BUG: Bad page map in process gups  pte:80000000 pmd:01234067",
        "[    5.1] BUG: Bad rss-counter state mm:(____ptrval____) type:MM_ANONPAGES val:1",
        "[    5.1] BUG: non-zero pgtables_bytes on freeing mm: 4096",
        "[    5.1] Oops: 0000 [#1] PREEMPT SMP",
        "[    5.1] ptat: check: entry at 0x40000000 holds 0x1, its twin 0x0",
        "[    5.1] ptat_pci 0000:01:00.0: no interrupt: blocks come later than they could",
        "[    5.1] Kernel panic - not syncing: Attempted to kill init!",
        "[    5.1] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        "[    5.1] Out of memory: Killed process 41 (python3) total-vm:1kB",
    ],
)
def test_warning(line: str):
    assert kernel_messages.warnings([*QUIET, line]) == [line]


def test_panic_and_memory():
    lines = [
        *QUIET,
        "[    5.0] Out of memory: Killed process 41 (python3) total-vm:1kB",
        "[    5.1] ptat_pci 0000:01:00.0: no interrupt: blocks come later than they could",
        "[    5.1] Kernel panic - not syncing: Out of memory: panic_on_oom is enabled",
        "[    5.2] Kernel panic - the second one",
    ]
    assert kernel_messages.panic(lines) == (
        "Kernel panic - not syncing: Out of memory: panic_on_oom is enabled"
    )
    assert kernel_messages.want_of_memory(lines) == "Out of memory: Killed process 41 (python3)"
    assert kernel_messages.panic(QUIET) is None
    assert kernel_messages.want_of_memory(QUIET) is None
    few = "HugeTLB: allocating 512 of page size 2.00 MiB failed.  Only allocated 59 hugepages."
    assert kernel_messages.want_of_memory([f"[    0.5] {few}"]) == few


def test_what_our_part_of_the_kernel_says():
    for line in (
        "[    0.0] ptat: [mem 0x40000000 +0x10000] is smaller than 256K, tracing is off",
        "[    0.0] ptat_pci 0000:01:00.0: error -ENODEV: BAR 0 is no memory",
    ):
        assert kernel_messages.ours([*QUIET, line]) == line.partition("] ")[2]
    assert kernel_messages.ours(QUIET) is None


def test_read(tmp_path: Path):
    path = tmp_path / "console.log"
    assert kernel_messages.read(path) == []
    path.write_bytes(b"one\r\ntw\xffo\r\n\r\nthr")
    assert kernel_messages.read(path) == ["one", "tw\ufffdo", "", "thr"]
