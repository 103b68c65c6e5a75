# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record`` with boards on UDP; only the machine that is traced is made up."""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ptat_host.boards import buffer_fill, contract
from ptat_host.boards.base import BoardError, RecordRequest
from ptat_host.boards.client import Client, LinkError
from ptat_host.boards.live import machine as live_machine
from ptat_host.boards.live.child import Run
from ptat_host.boards.live.machine import LiveMachine
from ptat_host.cli import main
from ptat_host.protocol import Command
from ptat_parser.formats.session import Session

REGION = {
    "base": 0x4000_0000,
    "size_bytes": 0x100_0000,
    "marker_slots": 1024,
    "marker_stride_bytes": 64,
    "levels": "pte+pmd",
}


class Machine:
    """As `live_machine.LiveMachine`, but nothing is traced."""

    region = REGION
    kernel: ClassVar[dict[str, Any]] = {"release": "6.12", "tsc_hz": 10**9, "cpus": 1, "events": []}
    cpu: ClassVar[dict[str, Any]] = {"name": "none"}

    def __init__(self, request, tsc) -> None:
        self.request = request
        (request.session_dir / "kernel").mkdir()

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, tick: Callable[[], str | None]) -> Run:
        child = subprocess.Popen(self.request.argv)
        failure = tick()
        while child.poll() is None:
            failure = failure or tick()
            if failure:
                child.terminate()
                child.wait()
        return Run(exit_status=child.returncode, failure=failure)

    def fills(self) -> list[buffer_fill.Fill]:
        return [buffer_fill.Fill("kernel log, CPU 0", 1, 4096)]

    def aftermath(self) -> dict[str, Any]:
        return {"stat": {}, "check": None, "warnings": []}


@pytest.fixture
def boards(program, source, monkeypatch, tmp_path) -> Iterator[Callable[..., list[str]]]:
    """Starts a board for each list of faults; returns the options that name them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live_machine, "LiveMachine", Machine)
    running = []

    def start(*faults: list[str]) -> list[str]:
        options = []
        for each in faults:
            board = subprocess.Popen(
                [program, "udp", "0", source, *each], stdout=subprocess.PIPE, text=True
            )
            running.append(board)
            options += ["--board", f"udp:127.0.0.1:{board.stdout.readline().strip()}"]
        return options

    yield start
    for board in running:
        board.kill()
        board.wait()
        board.stdout.close()


def record(options: list[str], *more: str) -> tuple[int, dict[str, Any]]:
    status = main(["record", "-o", "out", "--no-archive", *options, *more, "--", "sleep", "0.3"])
    described = Path("out/session.json")
    return status, json.loads(described.read_text()) if described.exists() else {}


def test_one_board(boards, source):
    status, found = record(boards([]), "--strict")
    assert status == 0
    assert found["complete"] is True
    (channel,) = found["board"]["channels"]
    assert (channel["board"], channel["git_hash"][:4]) == ("pretend", "1234")
    assert "clocks" not in found["board"]
    assert channel["link"] == found["board"]["link"]
    assert channel["link"]["blocks"] == 120
    assert found["region"] == REGION
    assert Path("out/bus.0.raw").read_bytes() == source.read_bytes()


def test_how_full_the_buffers_are(boards, monkeypatch):
    told = []
    write = buffer_fill.write
    monkeypatch.setattr(
        buffer_fill, "write", lambda path, fills: told.append(fills) or write(path, fills)
    )
    status, _ = record(boards([]))
    assert status == 0
    board, log = told[0]
    assert board.name.startswith("udp:127.0.0.1:")
    assert 0 <= board.used <= board.size
    assert log.name == "kernel log, CPU 0"
    assert not list(Path("out").glob("buffers*"))


def test_two_boards(boards, source):
    options = boards(["lose:50"], ["slow:100"])
    begin_ns = time.monotonic_ns()
    status, found = record(options, "--strict")
    end_ns = time.monotonic_ns()
    assert status == 0
    board = found["board"]
    assert board["clocks"] == "pulses"
    assert board["name"].count("udp:127.0.0.1:") == 2
    assert [channel["index"] for channel in board["channels"]] == [0, 1]
    assert board["link"]["blocks"] == 240
    for channel in board["channels"]:
        # Both boards call their channel 0.
        assert channel["stream_channel"] == 0
        before_ns, after_ns = channel["started_ns"]
        assert begin_ns < before_ns < after_ns < end_ns
        assert Path("out", channel["file"]).read_bytes() == source.read_bytes()
    assert board["channels"][0]["link"]["out_of_order_datagrams"] > 0


def test_one_of_two_vanishes(boards, source, capsys):
    options = boards([], ["unplug:40", "slow:3000"])
    status, found = record(options)
    assert status == 2
    assert found["complete"] is False
    assert "does not answer" in found["incomplete_reason"]
    assert options[-1] in capsys.readouterr().err
    # What came is there, of both.
    assert Path("out/bus.0.raw").read_bytes() == source.read_bytes()
    rest = Path("out/bus.1.raw").read_bytes()
    assert 8 * 8192 <= len(rest) <= 40 * 8192
    assert source.read_bytes().startswith(rest)


def test_a_board_that_vanishes_before_it_has_answered(boards, source, monkeypatch):
    """Its stream has come: that is kept."""
    command = Client.command

    def cut(self, number, *rest):
        answer = command(self, number, *rest)
        if number == Command.START:
            while not self.link._capture.received_bytes:
                pass
            raise LinkError("the cable is cut")
        return answer

    monkeypatch.setattr(Client, "command", cut)
    status, found = record(boards([]))
    assert status == 2
    assert found["complete"] is False
    assert found["incomplete_reason"] == "the cable is cut"
    captured = Path("out/bus.0.raw").read_bytes()
    assert captured
    assert source.read_bytes().startswith(captured)


def test_losses_name_their_board(boards, capsys):
    options = boards([], ["lie:3"])
    status, found = record(options)
    assert status == 2
    assert found["incomplete_reason"] == f"{options[-1]}: the last 3 blocks did not arrive"
    assert f"lost {options[-1]}: 3 of 123 blocks" in capsys.readouterr().err
    assert [channel["link"]["missing_at_end"] for channel in found["board"]["channels"]] == [0, 3]


def write_mapping(**more: object) -> dict[str, Any]:
    columns = [hex(1 << i) for i in range(36)]
    mapping = {
        "format": "ptat-mapping",
        "version": 1,
        "region": {"base": REGION["base"], "size_bytes": REGION["size_bytes"]},
        "channels": [{"board": "", "columns": columns, "always": "0x0"}],
    } | more
    Path("map.json").write_text(json.dumps(mapping))
    return mapping


def test_a_mapping_is_for_its_region(boards, capsys):
    mapping = write_mapping()
    options = boards([])
    assert record(options, "--mapping", "map.json")[0] == 0
    mapping["region"]["base"] = 0x8000_0000
    Path("map.json").write_text(json.dumps(mapping))
    status = main(["record", "-o", "no", *options, "--mapping", "map.json", "--", "true"])
    assert status == 2
    assert "calibrate again with this region" in capsys.readouterr().err
    assert not Path("no").exists()


# What the bus does: --contract --------------------------------------------------------------------


@pytest.fixture
def requests(monkeypatch) -> list[RecordRequest]:
    """What the machine is asked to record."""
    made = []
    start = Machine.__init__

    def noted(self, request, tsc):
        made.append(request)
        start(self, request, tsc)

    monkeypatch.setattr(Machine, "__init__", noted)
    return made


@pytest.mark.parametrize(
    ("name", "ecc"), [("ecc", True), ("ecc-no-scrub", True), ("no-ecc", False)]
)
def test_behind_a_memory_controller_markers_are_loads(boards, requests, name, ecc):
    status, found = record(boards([]), "--contract", name)
    assert status == 0
    stated = found["board"]["contract"]
    assert (stated["order"], stated["ecc"], stated["forwarding"]) == ("controller", ecc, True)
    assert Session(Path("out")).board.contract.ecc is ecc
    assert (requests[0].markers, requests[0].entries) == ("load", True)


def test_without_a_contract_the_bus_keeps_order(boards, requests):
    status, found = record(boards([]))
    assert status == 0
    assert "contract" not in found["board"]
    assert (requests[0].markers, requests[0].entries) == (None, False)


def test_the_mapping_may_state_the_contract(boards, requests):
    write_mapping(contract="no-ecc")
    options = boards([])
    assert record(options, "--mapping", "map.json")[1]["board"]["contract"]["ecc"] is False
    shutil.rmtree("out")
    status, found = record(options, "--mapping", "map.json", "--contract", "program")
    assert status == 0
    assert "contract" not in found["board"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--contract", "amd"], "there is no such contract"),
        (["--contract", "ecc", "--no-faults"], "inferred from page faults"),
        (["--contract", "ecc", "--markers", "store"], "delays stores"),
        (["--contract", "ecc", "--readback"], "looks like a marker"),
        (["--contract", "ecc", "--granularity", "8"], "a DIMM shows 64 bytes"),
    ],
)
def test_what_a_contract_forbids(boards, capsys, options, message):
    assert record(boards([]), *options)[0] == 2
    assert message in capsys.readouterr().err


def test_a_contract_needs_a_bus_of_lines(boards, monkeypatch, capsys):
    identify = Client.identify
    monkeypatch.setattr(
        Client, "identify", lambda self: replace(identify(self), granularity_bytes=32)
    )
    assert record(boards([]), "--contract", "ecc")[0] == 2
    assert "not lines of 64" in capsys.readouterr().err


def marking(tmp_path, monkeypatch, wanted, access=None) -> LiveMachine:
    """A machine whose kernel has `access` in its marker_access (None: has no such file)."""
    monkeypatch.setattr(live_machine, "CONTROL", tmp_path)
    if access is not None:
        (tmp_path / "marker_access").write_text(f"{access}\n")
    request = RecordRequest(["true"], tmp_path, tmp_path, {}, children=False, markers=wanted)
    machine = LiveMachine.__new__(LiveMachine)
    machine._request = request
    return machine


@pytest.mark.parametrize("wanted", ["store", "load"])
@pytest.mark.parametrize("access", ["store", "load"])
def test_the_kernel_marks_as_it_did_when_the_recording_has_ended(
    tmp_path, monkeypatch, wanted, access
):
    machine = marking(tmp_path, monkeypatch, wanted, access)
    with contextlib.ExitStack() as taking:
        machine._choose_markers(taking)
        assert live_machine._marker_access() == wanted
    assert live_machine._marker_access() == access


def test_a_kernel_that_cannot_mark_by_loads(tmp_path, monkeypatch):
    with contextlib.ExitStack() as taking:
        for wanted in (None, "store"):
            marking(tmp_path, monkeypatch, wanted)._choose_markers(taking)
        assert live_machine._marker_access() == "store"
        with pytest.raises(BoardError, match="cannot mark its events by loads") as refused:
            marking(tmp_path, monkeypatch, "load")._choose_markers(taking)
    assert "--contract program" in refused.value.hint


@pytest.mark.parametrize(
    ("modes", "says"),
    [
        ([], "docs/boards.md"),
        (["Unknown"], "docs/boards.md"),
        (["None"], "--contract no-ecc"),
        (["SECDED", "SECDED"], "--contract ecc"),
        (["None", "S4ECD4ED"], "--contract ecc"),
    ],
)
def test_doctor_says_which_contract_fits(tmp_path, monkeypatch, modes, says):
    monkeypatch.setattr(contract, "EDAC", tmp_path)
    for number, mode in enumerate(modes):
        path = tmp_path / "mc0" / f"dimm{number}" / "dimm_edac_mode"
        path.parent.mkdir(parents=True)
        path.write_text(f"{mode}\n")
    found = contract.check()
    assert found.ok is (None if "docs" in says else True)
    assert says in found.detail
