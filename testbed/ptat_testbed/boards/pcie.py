# SPDX-License-Identifier: BSD-2-Clause
"""The board `testbed-pcie`: the region in the BAR of the simulated PCIe endpoint.

QEMU's own page walker reads its entries from our gateware, which Verilator compiled, and the
gateware's DMA writes the trace into the guest's memory. See `bus.pcie`, which takes it from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_parser import wire
from ptat_testbed.boards import guest_run
from ptat_testbed.bus import pcie
from ptat_testbed.guest import build, layout
from ptat_testbed.guest.qemu import Machine, MachineConfig
from ptat_testbed.guest.steps import progress

REGION_BYTES = layout.MIB // 2
"""Small, for 110 tables: the kernel zeroes the region at boot and reads it at the end, some 10,000
entries a second on a quiet machine."""
BAR_BYTES_MIN = 2 * layout.MIB
"""A region that the boot parameter names begins at a multiple of this; a BAR, of its size."""
RING_BLOCKS = 512
FILE = "bus.0.raw"
FIRMWARE_TIMEOUT_S = 60.0
MARKER_DELAY_NS = 20_000_000
"""QEMU learns of a store's end through a socket; on a busy machine the scheduler takes its time."""


def find_bar(pci: object) -> int | None:
    """Where the firmware put the endpoint's BAR, from QMP's ``query-pci``."""
    for bus in pci if isinstance(pci, list) else []:
        for device in bus["devices"]:
            if (device["id"]["vendor"], device["id"]["device"]) == pcie.ENDPOINT_ID:
                for bar in device["regions"]:
                    if bar["bar"] == 0 and bar["address"] > 0:
                        address: int = bar["address"]
                        return address
    return None


def probe_bar(config: MachineConfig) -> int:
    """Let the firmware of this machine place the BAR, and say where.

    :raises BoardError: it does not.
    """
    deadline_s = time.monotonic() + FIRMWARE_TIMEOUT_S
    with Machine(replace(config, kernel=None, initramfs=None, console=None)) as machine:
        while time.monotonic() < deadline_s:
            address = find_bar(machine.qmp.execute("query-pci"))
            if address is not None:
                return address
            time.sleep(0.01)
    raise BoardError("QEMU's firmware gives the endpoint's BAR no address")


def bar_bytes(region_bytes: int) -> int:
    """The BAR for a region: a power of 2 that holds the registers, too."""
    needed = region_bytes + pcie.window_bytes()
    return max(BAR_BYTES_MIN, 1 << (needed - 1).bit_length())


class CoSimulated:
    """A recording with the endpoint beside QEMU."""

    def __init__(
        self, request: RecordRequest, device: pcie.CoSimulation, ring_blocks: int = RING_BLOCKS
    ) -> None:
        self.recording = guest_run.Recording(request)
        self.device = device
        settings = self.recording.settings
        ring_bytes = ring_blocks * wire.BLOCK_BYTES
        self._ring_base = layout.region_in_ram(ring_bytes, settings.memory_bytes)
        self.ring = pcie.Ring(device, self._ring_base, ring_blocks)
        self._ring_parameter = f"memmap={ring_bytes:#x}${self._ring_base:#x}"
        self._program = pcie.qemu()
        self.base = probe_bar(self._config(0))

    def machine_config(self, extra: Sequence[str] = ()) -> MachineConfig:
        """The machine, its region in the BAR and the ring's memory left out of use."""
        config = self._config(self.base, extra)
        return replace(config, append=[*config.append, self._ring_parameter])

    def _config(self, base: int, extra: Sequence[str] = ()) -> MachineConfig:
        config = self.recording.machine_config(
            region_base=base, extra=[*self.device.arguments(), *extra]
        )
        return replace(config, program=self._program)

    def start(self) -> None:
        """Record from now on; the guest waits."""
        path = self.recording.request.session_dir / FILE
        self.ring.start(path, self.base, self.recording.settings.region_bytes)

    def metadata(self) -> dict[str, Any]:
        """`board` and `cpu` of session.json."""
        return {
            "board": {
                "granularity_bytes": pcie.GRANULARITY_BYTES,
                "walk_reads": "all",
                "marker_delay_ns": MARKER_DELAY_NS,
                "channels": [{"index": 0, "file": FILE, "tick_hz": pcie.tick_hz()}],
            },
            "cpu": {"name": "QEMU TCG, its own soft TLB"},
        }


class PcieBoard:
    """The patched kernel in QEMU, its page tables in the simulated endpoint."""

    name = "testbed-pcie"
    ring_blocks = RING_BLOCKS
    options: Mapping[str, Option] = guest_run.OPTIONS

    def check(self) -> list[Check]:
        """What `record` needs; builds nothing."""
        return [
            *guest_run.check_common(),
            guest_run.check_built("QEMU >= 11", pcie.QEMU_SCRIPT, "bin/qemu-system-x86_64"),
        ]

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command in the guest; see `Board.record`."""
        if request.granularity_bytes not in (None, pcie.GRANULARITY_BYTES):
            raise BoardError(
                f"--granularity {request.granularity_bytes}: a BAR's bus shows"
                f" {pcie.GRANULARITY_BYTES} bytes"
            )
        region_bytes = request.region_bytes or REGION_BYTES
        build.kernel()
        with progress("building the simulated endpoint"):
            device = pcie.CoSimulation(bar_bytes(region_bytes))
        with device:
            request = replace(request, region_bytes=region_bytes)
            run = CoSimulated(request, device, self.ring_blocks)
            result = self.run(run)
        result.metadata.update(run.metadata())
        return result

    def run(self, run: CoSimulated) -> RecordResult:
        """Boot the machine and record."""
        return run.recording.record(
            run.machine_config(),
            on_start=lambda _: run.start(),
            on_stop=lambda _: run.ring.stop(),
        )
