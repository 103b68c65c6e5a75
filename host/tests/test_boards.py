# SPDX-License-Identifier: BSD-2-Clause
"""Boards beyond the testbed's: the replay of a session, losses, and what this machine lacks."""

import json
import re
from pathlib import Path

import pytest

from ptat_host.boards import hardware, usb
from ptat_host.boards.base import BoardError, RecordRequest
from ptat_host.boards.live import clock
from ptat_host.boards.live import machine as live_machine
from ptat_host.boards.usb import UsbBoard
from ptat_host.cli import main
from ptat_parser import wire
from ptat_parser.formats import archive


@pytest.fixture
def recorded(synthetic, tmp_path) -> Path:
    """A session with a capture of several blocks."""
    path = tmp_path / "recorded"
    synthetic.Machine(seed=4).run(4000).write(path)
    assert (path / "bus.0.raw").stat().st_size > 5 * wire.BLOCK_BYTES
    return path


def replay(recorded: Path, *options: str) -> tuple[int, Path]:
    target = recorded.parent / "replayed"
    return main(["record", "--board", f"file:{recorded}", "-o", str(target), *options]), target


def results(session: Path, capsys) -> dict:
    capsys.readouterr()
    assert main(["report", "--json", str(session)]) == 0
    found = json.loads(capsys.readouterr().out)
    found.pop("session", None)
    return found


def test_a_replayed_session_is_the_same(recorded, capsys):
    status, target = replay(recorded)
    assert status == 0
    archive.unpack(target / "bus.0.ptb", target / "bus.0.raw")
    assert (target / "bus.0.raw").read_bytes() == (recorded / "bus.0.raw").read_bytes()
    first, second = results(recorded, capsys), results(target, capsys)
    assert first["totals"] == second["totals"]
    assert second["totals"]["misses"] > 1000


def test_a_replay_counts_what_is_damaged(recorded, capsys):
    capture = recorded / "bus.0.raw"
    data = bytearray(capture.read_bytes())
    data[3 * wire.BLOCK_BYTES + 100] ^= 1
    del data[: wire.BLOCK_BYTES // 2]  # a cut block, and nothing stands where it should
    capture.write_bytes(data)
    status, target = replay(recorded)
    assert status == 0
    assert "lost 1 blocks" in capsys.readouterr().err
    link = json.loads((target / "session.json").read_text())["board"]["link"]
    assert link["missing_inside"] == 1
    assert link["other_bytes"] == wire.BLOCK_BYTES * 3 // 2


def test_all_channels_are_replayed(recorded, tmp_path):
    described = json.loads((recorded / "session.json").read_text())
    (channel,) = described["board"]["channels"]
    second = (recorded / "bus.0.raw").read_bytes()[: 2 * wire.BLOCK_BYTES]
    (recorded / "bus.1.raw").write_bytes(second + b"garbage")
    # A board of its own, which calls its channel 0, too.
    described["board"]["channels"].append(
        {**channel, "index": 1, "file": "bus.1.raw", "stream_channel": 0}
    )
    for key in ("crc32", "files"):
        described.pop(key, None)
    (recorded / "session.json").write_text(json.dumps(described))
    status, target = replay(recorded, "--no-archive")
    assert status == 0
    assert (target / "bus.0.raw").read_bytes() == (recorded / "bus.0.raw").read_bytes()
    assert (target / "bus.1.raw").read_bytes() == second
    board = json.loads((target / "session.json").read_text())["board"]
    assert [each["link"]["other_bytes"] for each in board["channels"]] == [0, 7]
    assert board["link"]["other_bytes"] == 7


def test_strict(recorded):
    capture = recorded / "bus.0.raw"
    data = bytearray(capture.read_bytes())
    del data[3 * wire.BLOCK_BYTES : 4 * wire.BLOCK_BYTES]
    capture.write_bytes(data)
    assert replay(recorded, "--strict")[0] == 1


def test_a_replay_runs_nothing(recorded, capsys):
    assert replay(recorded, "--", "true")[0] == 2
    assert "leave the command out" in capsys.readouterr().err
    assert main(["record", "--board", "file", "--", "true"]) == 2
    assert main(["record", "--board", "file:/no/such/session"]) == 2
    assert "no such session" in capsys.readouterr().err


def test_this_machine_cannot_be_traced(tmp_path, monkeypatch):
    request = RecordRequest(["true"], tmp_path, tmp_path, {}, children=False)
    monkeypatch.setattr(live_machine, "CONTROL", tmp_path / "ptat")
    with pytest.raises(BoardError, match="lacks PTAT"):
        live_machine.LiveMachine(request)
    (tmp_path / "ptat").mkdir()
    with pytest.raises(BoardError, match="no region"):
        live_machine.LiveMachine(request)
    (tmp_path / "ptat" / "region").write_text("base 0\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(BoardError, match="only root"):
        live_machine.LiveMachine(request)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("6,1,0,-;tsc: Detected 2600.000 MHz processor", 2_600_000_000),
        (
            "tsc: Refined TSC clocksource calibration: 2599.998 MHz\n"
            "tsc: Detected 2600.000 MHz processor",
            2_599_998_000,
        ),
        ("6,1,0,-;tsc: Fast TSC calibration using PIT", None),
    ],
)
def test_frequency_in_the_kernels_messages(messages, expected):
    assert clock.tsc_hz(messages) == expected


def test_windows_are_rounded_outwards():
    assert hardware._window(0x4000_0000, 0x100_0000)[:2] == (0x4000_0000, 0x4100_0000)
    assert hardware._window(0x4000_1000, 0x1000)[:2] == (0x4000_0000, 0x4001_0000)


def test_no_board_on_usb(monkeypatch):
    monkeypatch.setattr(usb, "_boards", lambda context: iter(()))
    with pytest.raises(BoardError, match="no board on USB with the serial number A7"):
        UsbBoard("A7").open("A7")
    (check,) = UsbBoard().check()
    assert check.ok is None


def test_permission_problems_name_the_rule():
    """The rule is shipped, and is for the devices that we look for."""
    assert str(usb.UDEV_RULE) in usb.ACCESS_HINT
    rule = usb.UDEV_RULE.read_text()
    vendor, product = usb.protocol.USB_VENDOR, usb.protocol.USB_PRODUCT
    assert re.search(rf'idVendor}}=="{vendor:04x}".*idProduct}}=="{product:04x}"', rule)

    class Device:
        def open(self) -> None:
            raise usb.usb1.USBErrorAccess

    with pytest.raises(BoardError, match="udev") as caught:
        usb._open(Device(), "bus 1 device 2")
    assert "70-ptat.rules" in caught.value.hint
