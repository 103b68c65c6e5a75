# SPDX-License-Identifier: BSD-2-Clause
"""The driver of PCIe boards with the simulated endpoint: what goes wrong while it records."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ptat_host.boards.base import RecordResult
from ptat_testbed.boards import pcie as board
from ptat_testbed.bus import pcie
from ptat_testbed.guest.qemu import Machine
from ptat_testbed.suites.pcie_driver import DrivenGuest, record_command

RECORDING_S = 600.0
"""Until a guest on a busy machine records."""
WALKS_BEFORE = 2000
PROGRAM = ("bash", "-c", "gups --bytes 16M --updates 100K >&2 && echo the program lived >&2")


@pytest.fixture
def device() -> Iterator[pcie.CoSimulation]:
    with pcie.CoSimulation(board.BAR_BYTES_MIN) as device:
        yield device


class Fault:
    """Happens to the endpoint once it has recorded some walks of the guest."""

    def __init__(
        self, device: pcie.CoSimulation, do: Callable[[pcie.CoSimulation, Machine], None]
    ) -> None:
        self._device = device
        self._do = do
        self._ended = threading.Event()
        self.happened = False

    def start(self, machine: Machine) -> None:
        self._thread = threading.Thread(target=self._run, args=[machine])
        self._thread.start()

    def join(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self, machine: Machine) -> None:
        deadline_s = time.monotonic() + RECORDING_S
        begun = None
        while not self._ended.wait(0.1) and time.monotonic() < deadline_s:
            reads = self._device.counts().reads
            if begun is None and self._device.read("endpoint_snooper_status") & 1:
                begun = reads
            if begun is not None and reads > begun + WALKS_BEFORE:
                self._do(self._device, machine)
                self.happened = True
                return


def run(
    tmp_path: Path, device: pcie.CoSimulation, fault: Fault, command: list[str], cpus: int = 1
) -> tuple[RecordResult, dict[str, Any], DrivenGuest]:
    """What became of the guest, and of what it recorded."""
    guest = DrivenGuest(command, tmp_path, device, cpus)
    try:
        result = guest.run(on_start=fault.start)
    finally:
        fault.join()
    description = json.loads((guest.session / "session.json").read_text())
    return result, description, guest


def check_of(guest: DrivenGuest) -> subprocess.CompletedProcess[str]:
    """What ptat says of the session."""
    return subprocess.run(
        [sys.executable, "-m", "ptat_host.cli", "report", str(guest.session)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.guest
@pytest.mark.parametrize(
    ("do", "said", "logged"),
    [
        (
            lambda device, machine: machine.qmp.execute("device_del", id=pcie.DEVICE),
            "the board is gone",
            "the region is being removed",
        ),
        (
            lambda device, machine: device.set_link(False),
            "the region was given up: the board did not answer",
            "tracing is off",
        ),
    ],
    ids=["removed", "all ones"],
)
def test_a_board_that_goes_leaves_the_program_alive(tmp_path, device, capfd, do, said, logged):
    fault = Fault(device, do)
    result, description, guest = run(tmp_path, device, fault, record_command(PROGRAM))
    errors = capfd.readouterr().err
    assert fault.happened
    assert "the program lived" in errors, errors
    assert result.exit_status not in (0, None), errors
    assert description["complete"] is False
    assert said in description["incomplete_reason"]
    assert logged in guest.console.read_text(errors="replace")
    reported = check_of(guest)
    assert reported.returncode == 0, reported.stderr
    assert "gups" in reported.stdout
