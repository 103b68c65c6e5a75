# SPDX-License-Identifier: BSD-2-Clause
"""The driver of PCIe boards with the simulated endpoint: what goes wrong around a recording."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptat_host.boards.base import BoardError, RecordResult
from ptat_parser import wire
from ptat_testbed.boards import pcie as board
from ptat_testbed.bus import pcie
from ptat_testbed.guest.qemu import Machine
from ptat_testbed.suites import sim_pcie
from ptat_testbed.suites.pcie_driver import DrivenGuest, record_command

RECORDING_S = 600.0
"""Until a guest on a busy machine records."""
WALKS_BEFORE = 20_000
"""More than the recorder's child makes before it executes the program."""
PROGRAM = ("bash", "-c", "gups --bytes 16M --updates 100K >&2 && echo the program lived >&2")
GUPS = "gups --bytes 16M --updates 2K >&2"


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
    return result, description_of(guest), guest


def description_of(guest: DrivenGuest) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((guest.session / "session.json").read_text())
    return description


def ptat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*sim_pcie.PTAT, *arguments], capture_output=True, text=True, check=False)


def is_subsequence(few: sim_pcie.Accesses, many: sim_pcie.Accesses) -> bool:
    """Whether `few` is `many` with nothing but omissions."""
    left = iter(many.tolist())
    return all(access in left for access in few.tolist())


def check_of(guest: DrivenGuest) -> subprocess.CompletedProcess[str]:
    """What ptat says of the session."""
    return ptat("report", str(guest.session))


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


@pytest.mark.guest
def test_a_second_recorder_is_refused_and_disturbs_nothing(tmp_path, device, capfd):
    second = shlex.join(record_command(["true"], session="second"))
    program = ("bash", "-c", f"{second}; echo second: $? >&2; exec {GUPS}")
    guest = DrivenGuest(record_command(program, ["--no-children"]), tmp_path, device)
    result, logged = sim_pcie.run_logged(guest, device, tmp_path)
    errors = capfd.readouterr().err
    assert "/dev/ptat-pci is in use\n  another ptat records with the board: wait for it" in errors
    assert "second: 2" in errors
    assert result.exit_status == 0, errors
    assert description_of(guest)["complete"] is True
    assert np.array_equal(sim_pcie.captured(guest.session / board.FILE), logged)
    verdict = json.loads(ptat("validate", str(guest.session), "--json").stdout)
    assert verdict["ok"], verdict
    assert (verdict["lost"], verdict["unexplained"], verdict["kernel_reads"]) == (0, 0, 0)


@pytest.mark.guest
def test_a_recorder_that_stands_still_loses_what_the_ring_does_not_hold(tmp_path, device, capfd):
    program = f"kill -STOP $PPID; {GUPS}; kill -CONT $PPID; {GUPS}; echo the program lived >&2"
    options = ["--strict", "--ring", "16K", "--patience-ms", "0.02"]
    guest = DrivenGuest(record_command(["bash", "-c", program], options), tmp_path, device)
    result, logged = sim_pcie.run_logged(guest, device, tmp_path)
    errors = capfd.readouterr().err
    assert "the program lived" in errors, errors
    description = description_of(guest)
    link = description["board"]["link"]
    recorded = sim_pcie.captured(guest.session / board.FILE)
    assert 0 < link["lost_accesses"] == len(logged) - len(recorded)
    assert is_subsequence(recorded, logged)
    assert link["overdue_accesses"] > 0
    assert f"lost {link['lost_accesses']} accesses in the board" in errors
    assert result.exit_status == 1, errors
    assert (description["ended"], description["complete"]) == (True, False)
    reported = check_of(guest)
    assert reported.returncode == 0, reported.stderr
    assert "gups" in reported.stdout
    assert "lost" in reported.stdout


# Other gateware -----------------------------------------------------------------------------------


@pytest.mark.guest
@pytest.mark.parametrize(
    ("register", "value", "said"),
    [
        ("identity_wire_version", wire.VERSION + 1, f"8 bytes in wire format {wire.VERSION + 1}"),
        ("identity_granularity", 64, f"64 bytes in wire format {wire.VERSION}"),
        ("endpoint_region_bytes", 1 << 30, "says that its region has 1073741824 bytes"),
        ("identity_wire_version", 0xFFFF_FFFF, "BAR 0 does not answer: reset the board"),
    ],
)
def test_a_driver_that_finds_other_gateware_brings_no_region(
    tmp_path, device, register, value, said
):
    guest = DrivenGuest(["true"], tmp_path, device)
    device.pretend(register, value)
    with pytest.raises(BoardError, match="no /sys/kernel/mm/ptat") as refused:
        guest.run()
    assert said in refused.value.message


@pytest.mark.guest
def test_other_gateware_is_not_recorded(tmp_path, device, capfd):
    """The gateware changes under the driver; when it is bound again, it refuses the board."""
    record = shlex.join(record_command(["true"]))
    script = f"""
        {record}; echo first: $?
        cd /sys/bus/pci/drivers/ptat_pci
        board=$(basename *:*)
        echo $board > unbind
        echo $board > bind
        {record}; echo second: $?
        echo detached: $(cat /sys/kernel/mm/ptat/stat/detached)
    """
    guest = DrivenGuest(["bash", "-c", script], tmp_path, device)
    version = wire.VERSION + 1
    guest.run(on_start=lambda _: device.pretend("identity_wire_version", version))
    errors = capfd.readouterr().err
    formats = f"captures in wire format {version}, this ptat reads format {wire.VERSION}"
    assert f"{formats}\n  load the gateware of this ptat" in errors
    assert "first: 2" in errors
    said = "the driver ptat_pci does not take the PCIe board at 0000:01:00.0\n  the kernel says why"
    assert said in errors
    assert "second: 2" in errors
    assert "detached: 1" in errors
    assert f"8 bytes in wire format {version}" in guest.console.read_text(errors="replace")
    assert not guest.session.exists()
