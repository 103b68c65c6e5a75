# SPDX-License-Identifier: BSD-2-Clause
"""The board `testbed`: our QEMU plugin models TLBs, page walker and memory bus."""

from __future__ import annotations

from collections.abc import Mapping

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_testbed import build, run, sizes
from ptat_testbed.qemu import escape

TLB_PRESETS = ("skylake", "ivybridge-ep", "zen4")
GRANULARITIES_BYTES = (8, 32, 64)
GRANULARITY_BYTES = 64
TICK_HZ = 1_000_000_000
"""The plugin's bus clock counts nanoseconds."""


class TestbedBoard:
    """The patched kernel in QEMU, its walks seen by our plugin."""

    name = "testbed"
    options: Mapping[str, Option] = {
        **run.OPTIONS,
        "tlb": Option(
            f"TLB model: {', '.join(TLB_PRESETS)}; its parts can be changed, as"
            " skylake,l1d=32x4,psc_pde=0x0",
            TLB_PRESETS[0],
        ),
        "buffer": Option(
            "capture through a buffer that can overflow: how many records it holds, and how many"
            " leave it in a second, as 1024:1000000",
            "unlimited",
        ),
    }

    def check(self) -> list[Check]:
        """What `record` needs; builds nothing."""
        return [*run.check_common(), run.check_built("QEMU plugin", build.PLUGIN_SCRIPT, "")]

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command in the guest; see `Board.record`."""
        granularity = request.granularity_bytes or GRANULARITY_BYTES
        if granularity not in GRANULARITIES_BYTES:
            raise BoardError(
                f"--granularity {granularity}: the bus shows"
                f" {', '.join(map(str, GRANULARITIES_BYTES))} bytes"
            )
        tlb = parse_tlb(request.options.get("tlb", TLB_PRESETS[0]))
        recording = run.Recording(request)
        settings = recording.settings
        base = sizes.region_in_ram(settings.region_bytes, settings.memory_bytes)
        session = request.session_dir
        bus_file = "bus.0.raw"
        plugin = {
            "region_base": hex(base),
            "region_size": hex(settings.region_bytes),
            "marker_bytes": run.MARKER_BYTES,
            "ram": "{ram}",
            "ram_size": settings.memory_bytes,
            "lowmem": sizes.lowmem(settings.memory_bytes),
            "bus": session / bus_file,
            "truth": session / "truth.0.bin",
            "counters": session / "counters.json",
            "granularity": granularity,
            "pf_entry": hex(recording.kernel.symbol("asm_exc_page_fault")),
            **tlb,
        }
        if "buffer" in request.options:
            plugin |= parse_buffer(request.options["buffer"])
        arguments = ",".join(f"{key}={escape(value)}" for key, value in plugin.items())
        result = recording.record(
            recording.machine_config(base, plugin=f"{escape(build.plugin())},{arguments}")
        )
        result.metadata["board"] = {
            "granularity_bytes": granularity,
            "walk_reads": "psc",
            "channels": [{"index": 0, "file": bus_file, "tick_hz": TICK_HZ}],
        }
        result.metadata["cpu"] = {"name": "QEMU TCG with ptat's TLB model", **tlb}
        return result


def parse_tlb(text: str) -> dict[str, str]:
    """The plugin's arguments for ``skylake`` or ``skylake,l1d=32x4,stlb=1024x8``.

    :raises BoardError: it is no such list.
    """
    preset, *changes = text.split(",")
    if preset not in TLB_PRESETS:
        raise BoardError(
            f"--tlb {text}: there is no model {preset!r}", f"use {', '.join(TLB_PRESETS)}"
        )
    parameters = {"tlb": preset}
    for change in changes:
        part, separator, value = change.partition("=")
        if not part or not separator or not value:
            raise BoardError(f"--tlb {text}: {change!r} is no change", "write it as l1d=32x4")
        parameters[part if part.startswith("psc_") else f"tlb_{part}"] = value
    return parameters


def parse_buffer(text: str) -> dict[str, int]:
    """The plugin's arguments for ``RECORDS:RECORDS_PER_SECOND``.

    :raises BoardError: it is not that.
    """
    records, separator, rate = text.partition(":")
    if not separator:
        raise BoardError(f"--buffer {text}: no rate", "write it as 1024:1000000")
    maximum = 2**32 - 1
    return {
        "buffer": sizes.parse_count(records, "--buffer", maximum),
        "drain": sizes.parse_count(rate, "--buffer", maximum),
    }
