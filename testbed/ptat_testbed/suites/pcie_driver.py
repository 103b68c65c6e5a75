# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record`` in a guest whose kernel drives the simulated PCIe endpoint.

::

    guest:  ptat record --board pcie ── /dev/ptat-pci ── drivers/misc/ptat ── BAR, DMA, MSI
                                                                                  │
    QEMU:   page walks, vfio-user-pci ◄── socket ──► the endpoint (testbed/cosim) ┘

Nothing of this machine takes part in the recording. The guest's command writes the session, as a
tar archive, to its output.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ptat_host.boards.base import RecordRequest, RecordResult
from ptat_testbed.boards import guest_run
from ptat_testbed.boards.pcie import MARKER_DELAY_NS, REGION_BYTES
from ptat_testbed.bus import pcie
from ptat_testbed.guest.command_output import stdout_to
from ptat_testbed.guest.qemu import Machine, MachineConfig

RECORD = ("-m", "ptat_host.cli", "record", "--board", "pcie", "--ring", "16M", "--no-archive")
SESSION = "session"
SCRIPT = f"""
"$@" >&2
status=$?
tar c -C /tmp --ignore-failed-read {SESSION}
exit $status
"""


def record_command(
    argv: Sequence[str], options: Sequence[str] = (), session: str = SESSION
) -> list[str]:
    """How a guest records a command; only `SESSION` leaves the guest."""
    return [sys.executable, *RECORD, *options, "-o", f"/tmp/{session}", "--", *argv]


class DrivenGuest:
    """A guest in which the driver has the endpoint.

    :param command: what it runs; `record_command`, or a script that calls it.
    :param folder: gets what this machine knows of the guest, and `SESSION`.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, device: pcie.CoSimulation, cpus: int = 1
    ) -> None:
        self._folder = folder
        outer = folder / "guest"
        outer.mkdir(parents=True)
        request = RecordRequest(
            argv=["bash", "-c", SCRIPT, "-", *command],
            session_dir=outer,
            cwd=Path("/"),
            env=dict(os.environ),
            children=True,
            maps=False,
            options={"cpus": str(cpus), "memory": "1G"},
        )
        self._recording = guest_run.Recording(request, traced=False, device=True)
        self._device = device
        # The guest's kernel compares all of a region, entry by entry, twice.
        device.pretend("endpoint_region_bytes", REGION_BYTES)
        self._program = pcie.qemu()

    @property
    def session(self) -> Path:
        """What the guest has recorded."""
        return self._folder / SESSION

    @property
    def console(self) -> Path:
        """What its kernel has written."""
        return self._folder / "guest" / "console.log"

    def run(
        self,
        on_start: Callable[[Machine], None] = lambda _: None,
        on_stop: Callable[[Machine], None] = lambda _: None,
        extra: Sequence[str] = (),
    ) -> RecordResult:
        """Boot it and run the command; its exit status is that of ``ptat record``."""
        archive = self._folder / "session.tar"
        with stdout_to(archive):
            result = self._recording.record(self._config(extra), on_start, on_stop)
        with contextlib.suppress(tarfile.ReadError), tarfile.open(archive) as sessions:
            sessions.extractall(self._folder, filter="data")
        archive.unlink()
        self._describe_machine()
        return result

    def _config(self, extra: Sequence[str]) -> MachineConfig:
        config = self._recording.machine_config(extra=[*self._device.arguments(slot=True), *extra])
        return replace(config, program=self._program)

    def _describe_machine(self) -> None:
        """State what `ptat record` cannot know: late markers, and a walker without caches."""
        path = self.session / "session.json"
        if path.exists():
            description = json.loads(path.read_text())
            description["board"].update(marker_delay_ns=MARKER_DELAY_NS, walk_reads="all")
            description.pop("crc32", None)  # that of the description without it
            path.write_text(json.dumps(description))
