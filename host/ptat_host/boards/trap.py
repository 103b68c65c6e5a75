# SPDX-License-Identifier: BSD-2-Clause
"""The board `trap`: this machine's own kernel, in which each TLB miss of the command traps."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_host.boards.buffer_fill import Reporter
from ptat_host.boards.live import machine as live_machine
from ptat_host.boards.trap_rings import BOOT_HINT, DEVICE, Rings
from ptat_parser.formats.kernel_misses import FUNCTIONS

SYMBOLS = Path("/proc/kallsyms")


class TrapBoard:
    """Trap mode: no device, the kernel sees the misses."""

    name = "trap"
    options: Mapping[str, Option] = {
        "tsc-hz": Option("frequency of this machine's TSC (default: from the kernel's log)", None),
    }

    def check(self) -> list[Check]:
        """The requirements of `record`."""
        if not DEVICE.exists():
            return [Check("traps", None, f"no {DEVICE}: misses do not trap here", BOOT_HINT)]
        usable = os.access(DEVICE, os.R_OK | os.W_OK)
        hint = None if usable else "use sudo"
        return [Check("traps", usable, f"{DEVICE} is there", hint), *live_machine.checks()]

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command on this machine; see `Board.record`."""
        if request.granularity_bytes is not None:
            raise BoardError("--granularity: trap mode records whole addresses, there is no bus")
        failures: list[str] = []
        with (
            live_machine.LiveMachine(request, request.options.get("tsc-hz")) as machine,
            Rings(request.session_dir / "kernel", failures.append) as rings,
            Reporter(request.session_dir, lambda: [*rings.fills(), *machine.fills()]) as buffers,
        ):

            def tick() -> str | None:
                buffers.tick()
                return failures[0] if failures else None

            metadata: dict[str, Any] = {
                "board": {"granularity_bytes": 8, "channels": []},
                "region": machine.region,
                "kernel": machine.kernel,
                "cpu": machine.cpu,
            }
            request.describe({**metadata, "traps": rings.described()})
            run = machine.run(tick)
            rings.finish()
            # The last records may not have fitted on the disk.
            run.failure = run.failure or next(iter(failures), None)
            metadata["kernel"].update(machine.aftermath())
            metadata["traps"] = rings.described()
        with SYMBOLS.open() as lines, gzip.open(request.session_dir / FUNCTIONS, "wt") as file:
            file.writelines(functions(lines))
        lost = sum(ring["lost"] for ring in metadata["traps"])
        return RecordResult(
            exit_status=run.exit_status,
            ended=run.failure is None,
            reason=run.failure,
            interrupted=run.interrupted,
            metadata=metadata,
            lost=f"{lost} trap records that did not fit into the ring" if lost else None,
        )


def functions(lines: Iterable[str]) -> list[str]:
    """The lines of ``/proc/kallsyms`` that name code, as System.map has them.

    None if the kernel hides its addresses.
    """
    found = [line.split()[:3] for line in lines]
    code = [(int(address, 16), kind, name) for address, kind, name in found if kind in "tTwW"]
    return [f"{address:016x} {kind} {name}\n" for address, kind, name in sorted(code) if address]
