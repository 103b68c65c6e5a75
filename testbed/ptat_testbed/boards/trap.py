# SPDX-License-Identifier: BSD-2-Clause
"""The boards `kvm` and `testbed-trap`: the patched kernel in a guest, where TLB misses trap.

`kvm` runs the guest on this machine's CPU: its TLB, and its page walkers, are those that miss.
The guest's own page tables are walked by the hardware, and only these trap; that of the host below
them is in huge pages, so that it adds little.

`testbed-trap` is the same in QEMU's emulator, with the soft TLB that this has. QEMU keeps one for
each mode of the CPU, so that what the kernel has loaded is of no use to user space: the kernel
finds that out, and lets each miss through by a single step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_parser.formats import kernel_misses
from ptat_testbed.boards import guest_run
from ptat_testbed.guest.qemu import HUGE_PAGE_BYTES, Machine, MachineConfig

KVM = Path("/dev/kvm")
NESTED_PAGING = (
    Path("/sys/module/kvm_intel/parameters/ept"),
    Path("/sys/module/kvm_amd/parameters/npt"),
)
FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
KVM_HINT = (
    "two ways lead to this machine's TLB: enable virtualization in the firmware's setup, load"
    " kvm_intel or kvm_amd and join the group kvm; or boot the patched kernel (make kernel-deb,"
    " ptat=SIZE,trap) and record with --board trap"
)

PAGING_HINT = (
    "load kvm_intel with ept=1, or kvm_amd with npt=1; a guest of another host may not have it"
)


class TrapBoard:
    """The guest in QEMU's emulator."""

    name = "testbed-trap"
    options: Mapping[str, Option] = guest_run.OPTIONS

    def check(self) -> list[Check]:
        """What `record` needs; builds nothing."""
        return guest_run.check_common()

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command in the guest; see `Board.record`."""
        if request.granularity_bytes is not None:
            raise BoardError("--granularity: trap mode records whole addresses, there is no bus")
        recording = guest_run.Recording(request, traps=True)
        known = {"board": {"granularity_bytes": 8, "channels": []}, "cpu": self.cpu()}
        # The guest writes a file for each of its CPUs.
        empty = "".join(f"ring {cpu} 0 0 0\n" for cpu in range(recording.settings.cpus))
        config, on_start = self.machine(recording.machine_config(region_base=None))
        result = recording.record(
            config,
            on_start,
            known={**known, "traps": guest_run.rings(empty)},
        )
        result.metadata |= known
        recording.kernel.write_functions(request.session_dir / kernel_misses.FUNCTIONS)
        if lost := sum(ring["lost"] for ring in result.metadata.get("traps", [])):
            result.lost = f"{lost} trap records that did not fit into the ring"
        return result

    def machine(self, config: MachineConfig) -> tuple[MachineConfig, Callable[[Machine], None]]:
        """The machine, and what to do with it when the recorded time begins."""
        return config, lambda _: None

    def cpu(self) -> dict[str, Any]:
        """`cpu` of session.json."""
        return {"name": "QEMU TCG, its own soft TLB"}


class KvmBoard(TrapBoard):
    """The guest on this machine's CPU."""

    name = "kvm"

    def check(self) -> list[Check]:
        """What `record` needs; builds nothing. A machine may do without all of it."""
        usable = os.access(KVM, os.R_OK | os.W_OK)
        detail = f"{KVM} is there" if usable else f"{KVM} is missing, or may not be used"
        paging = nested_paging()
        free = free_huge_bytes() >> 20
        return [
            Check("KVM", usable or None, detail, None if usable else KVM_HINT),
            Check(
                "nested paging",
                paging or None,
                "on" if paging else "off, or the hardware has none",
                None if paging else PAGING_HINT,
            ),
            Check(
                "huge pages",
                None if not free else True,
                f"{free} MiB are free for the guest" if free else "none set aside",
                None if free else "sysctl vm.nr_hugepages=1024; else transparent ones are used",
            ),
            *guest_run.check_common(),
        ]

    def machine(self, config: MachineConfig) -> tuple[MachineConfig, Callable[[Machine], None]]:
        """The guest's memory in huge pages, its CPUs on CPUs of their own."""
        if not os.access(KVM, os.R_OK | os.W_OK):
            raise BoardError(f"{KVM} is missing, or may not be used", KVM_HINT)
        if not nested_paging():
            raise BoardError(
                "KVM has no nested paging: the guest's tables are not what the hardware walks",
                PAGING_HINT,
            )
        cpus = sorted(os.sched_getaffinity(0))
        if config.cpus > len(cpus):
            raise BoardError(
                f"--cpus {config.cpus}: this machine has {len(cpus)}",
                "each CPU of the guest takes one",
            )
        hugetlb = free_huge_bytes() >= config.memory_bytes
        kvm = replace(config, kvm=True, hugetlb=hugetlb, append=[*config.append, "pti=off"])

        def begin(machine: Machine) -> None:
            # Away from CPU 0, which has most interrupts, where there are enough.
            machine.pin(cpus[-config.cpus :])

        return kvm, begin

    def cpu(self) -> dict[str, Any]:
        """`cpu` of session.json."""
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        return {"name": f"{found[1] if found else 'unknown'}, in a guest (KVM)"}


def nested_paging() -> bool:
    """Whether the hardware walks the guest's own page tables."""
    return any(path.exists() and path.read_text().strip() in ("Y", "1") for path in NESTED_PAGING)


def free_huge_bytes() -> int:
    """Memory in 2 MiB pages that are set aside and free."""
    return int(FREE_HUGE_PAGES.read_text()) * HUGE_PAGE_BYTES if FREE_HUGE_PAGES.exists() else 0
