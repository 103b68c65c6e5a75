# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record`` with a board that is a few lines of Python."""

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from ptat_host import boards
from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_host.cli import main
from ptat_host.recording import requirements, session_recording
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.formats import archive
from ptat_parser.formats.archive import ArchiveStream, open_stream

METADATA = {
    "board": {"granularity_bytes": 64, "walk_reads": "psc", "channels": []},
    "region": {"base": 1 << 30, "size_bytes": 64 << 20},
    "kernel": {"release": "6.12"},
    "cpu": {"tlb": "none"},
}


class FakeBoard:
    """Writes one file and says what it is told to."""

    name = "fake"
    options: ClassVar = {"memory": Option("RAM", "2G"), "cpus": Option("CPUs", "1")}
    requests: ClassVar[list[RecordRequest]] = []
    behaviour: ClassVar[Callable[[RecordRequest], RecordResult]] = lambda request: RecordResult(
        0, True, metadata=METADATA
    )
    checks: ClassVar[list[Check]] = []

    def check(self) -> list[Check]:
        return self.checks

    def record(self, request: RecordRequest) -> RecordResult:
        self.requests.append(request)
        (request.session_dir / "bus.0.raw").write_bytes(bytes(8192))
        return type(self).behaviour(request)


class BareBoard(FakeBoard):
    name = "bare"
    options: ClassVar = {}


@pytest.fixture(autouse=True)
def fake_board(monkeypatch, tmp_path):
    points = [
        EntryPoint("fake", f"{__name__}:FakeBoard", "ptat.boards"),
        EntryPoint("bare", f"{__name__}:BareBoard", "ptat.boards"),
        EntryPoint("broken", "ptat_no_such_module:Board", "ptat.boards"),
    ]
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(boards, "_entry_points", lambda: points)
    monkeypatch.setattr(boards, "DEFAULT", "fake")
    monkeypatch.setattr(FakeBoard, "requests", [])
    monkeypatch.chdir(tmp_path)


def behave(monkeypatch, behaviour: Callable[[RecordRequest], RecordResult]) -> None:
    monkeypatch.setattr(FakeBoard, "behaviour", behaviour)


def fails_with(error: BaseException) -> Callable[[RecordRequest], RecordResult]:
    def behaviour(request: RecordRequest) -> RecordResult:
        raise error

    return behaviour


def described(directory: Path | str = "out") -> dict:
    assert sorted(path.name for path in Path(directory).iterdir()) == ["bus.0.raw", "session.json"]
    return json.loads((Path(directory) / "session.json").read_text())


def test_session_says_what_was_recorded(tmp_path, capfd):
    command = ["gups", "--bytes", "64M"]
    assert main(["record", "-o", "out", "--memory", "1G", "--", *command]) == 0
    session = described()
    assert session["format"] == "ptat-session" and session["version"] == 1
    assert session["complete"] is True and session["incomplete_reason"] is None
    assert session["command"] == {
        "argv": command,
        "cwd": str(tmp_path),
        "exit_status": 0,
        "children": True,
    }
    assert session["board"] == {"name": "fake", **METADATA["board"]}
    assert session["region"] == METADATA["region"]
    assert session["kernel"] == METADATA["kernel"] and session["cpu"] == METADATA["cpu"]
    assert session["options"]["memory"] == "1G"
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"ptat: recorded out \([89]\.[0-9] KiB\)\n", err)


def test_session_is_marked_incomplete_while_recording(monkeypatch):
    seen = []

    def behaviour(request: RecordRequest) -> RecordResult:
        seen.append(json.loads((request.session_dir / "session.json").read_text()))
        return RecordResult(0, True)

    behave(monkeypatch, behaviour)
    assert main(["record", "-o", "out", "true"]) == 0
    assert seen[0]["complete"] is False
    assert "still running" in seen[0]["incomplete_reason"]


def test_board_gets_what_was_asked():
    arguments = ["--granularity", "8", "--levels", "pte", "--region", "32M", "--entries"]
    arguments += ["--no-children"]
    assert main(["record", "-o", "out", *arguments, "--no-faults", "ls", "--all", "--", "x"]) == 0
    (request,) = FakeBoard.requests
    assert request.argv == ["ls", "--all", "--", "x"]
    assert request.session_dir == Path("out").resolve()
    assert request.cwd == Path.cwd() and request.env == dict(os.environ)
    assert (request.granularity_bytes, request.levels) == (8, "pte")
    assert request.region_bytes == 32 << 20
    assert (request.entries, request.faults, request.children) == (True, False, False)
    assert request.options == {}


def test_defaults_are_the_boards():
    assert main(["record", "-o", "out", "--", "true"]) == 0
    (request,) = FakeBoard.requests
    assert request.granularity_bytes is None and request.region_bytes is None
    assert (request.entries, request.faults, request.levels) == (False, True, "pte+pmd")


@pytest.mark.parametrize("status", [0, 1, 2, 42, 139])
def test_exit_status_is_the_commands(monkeypatch, capsys, status):
    behave(monkeypatch, lambda request: RecordResult(status, True, metadata=METADATA))
    assert main(["record", "-o", "out", "false"]) == status
    assert described()["command"]["exit_status"] == status
    assert (f"; the command ended with {status}\n" in capsys.readouterr().err) == (status != 0)


def test_sessions_get_names_of_their_own(monkeypatch):
    for _ in range(3):
        assert main(["record", "/usr/bin/odd name", "x"]) == 0
    names = sorted(path.name for path in Path("ptat-sessions").iterdir())
    assert len(names) == 3
    assert all("Z-odd_name" in name for name in names)


def test_interrupt_leaves_a_readable_session(monkeypatch, capsys):
    behave(
        monkeypatch,
        lambda request: RecordResult(None, False, "interrupted", True, metadata=METADATA),
    )
    assert main(["record", "-o", "out", "sleep"]) == 130
    session = described()
    assert session["complete"] is False and session["incomplete_reason"] == "interrupted"
    assert session["board"]["granularity_bytes"] == 64
    assert capsys.readouterr().err.endswith("is incomplete: interrupted\n")


@pytest.fixture
def sigint_heard():
    """Shells let what they start in the background ignore it, and the tests may be among that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_recording_in_order(monkeypatch, sigint_heard, number):
    before = signal.getsignal(signal.SIGTERM)

    def behaviour(request: RecordRequest) -> RecordResult:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal did not arrive")

    behave(monkeypatch, behaviour)
    assert main(["record", "-o", "out", "sleep"]) == 130
    assert described()["incomplete_reason"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before


def test_dead_machine_leaves_a_readable_session(monkeypatch, capsys):
    behave(monkeypatch, lambda request: RecordResult(None, False, "QEMU died", metadata=METADATA))
    assert main(["record", "-o", "out", "true"]) == 2
    assert described()["incomplete_reason"] == "QEMU died"
    assert "is incomplete: QEMU died" in capsys.readouterr().err


def test_full_disk_is_said_and_described(monkeypatch, capsys):
    behave(monkeypatch, fails_with(OSError(errno.ENOSPC, "No space left on device")))
    assert main(["record", "-o", "out", "true"]) == 2
    reason = f"no space left in {Path('out').resolve()}"
    assert described()["incomplete_reason"] == reason
    assert reason in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_really_full_disk_can_still_be_described(monkeypatch, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(session_recording, "FREE_BYTES_MIN", 0)

    def behaviour(request: RecordRequest) -> RecordResult:
        with (request.session_dir / "bus.0.raw").open("ab", buffering=0) as bus:
            while True:
                bus.write(bytes(1 << 16))

    behave(monkeypatch, behaviour)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", disk], check=True)
    try:
        assert main(["record", "-o", str(disk / "out"), "true"]) == 2
        assert described(disk / "out")["incomplete_reason"].startswith("no space left in")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_too_full_disk_is_refused_before_recording(monkeypatch, capsys):
    monkeypatch.setattr(session_recording, "FREE_BYTES_MIN", 1 << 62)
    assert main(["record", "true"]) == 2
    assert not FakeBoard.requests
    assert "a recording needs at least" in capsys.readouterr().err
    assert not list(Path("ptat-sessions").iterdir())


def test_nothing_recorded_leaves_no_session(monkeypatch, capsys):
    def behaviour(request: RecordRequest) -> RecordResult:
        (request.session_dir / "bus.0.raw").unlink()
        raise BoardError("there is no QEMU", "install it")

    behave(monkeypatch, behaviour)
    assert main(["record", "-o", "out", "true"]) == 2
    assert not Path("out").exists()
    assert capsys.readouterr().err == "ptat: error: there is no QEMU\n  install it\n"


def test_what_explains_a_failure_is_kept(monkeypatch):
    behave(monkeypatch, fails_with(BoardError("the guest did not boot")))
    assert main(["record", "-o", "out", "true"]) == 2
    assert [path.name for path in Path("out").iterdir()] == ["bus.0.raw"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["record"], "no command to run"),
        (["record", "--"], "no command to run"),
        (["record", "--board", "nix", "true"], "there is no board 'nix'"),
        (["record", "--board", "broken", "true"], "board broken cannot be loaded"),
        (["record", "--board", "bare", "--cpus", "2", "true"], "board bare has no option --cpus"),
        (["record", "--nonsense", "--", "true"], "unrecognized arguments: --nonsense"),
        (["record", "--region", "12X", "true"], "--region: '12X' is not a size"),
        (["record", "--region", "0", "true"], "--region: '0' is not a size"),
        (["record", "--granularity", "16", "true"], "invalid choice: 16"),
        (["record", "-o", "full", "true"], "full exists and is not empty"),
        (["record", "-o", "file", "true"], "file is not a directory"),
        (["record", "-o", "file/below", "true"], "file/below is not a directory"),
    ],
)
def test_bad_requests_are_refused(arguments, message, capsys):
    Path("full").mkdir()
    Path("full/kept").touch()
    Path("file").touch()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ptat: error: ") and message in error
    assert not FakeBoard.requests
    assert Path("full/kept").exists()


def test_doctor_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(FakeBoard, "checks", [Check("qemu", True, "10.0.2")])
    assert main(["doctor", "--board", "fake"]) == 0
    out = capsys.readouterr().out
    assert "board fake" in out and "10.0.2" in out
    assert "without PTAT" in out

    monkeypatch.setattr(FakeBoard, "checks", [Check("qemu", False, "missing", "install it")])
    assert main(["doctor", "--board", "fake"]) == 1
    assert "→ install it" in capsys.readouterr().out

    assert main(["doctor", "--board", "broken"]) == 1
    assert "board broken cannot be loaded" in capsys.readouterr().out


def test_doctor_looks_at_this_machine(monkeypatch, tmp_path):
    def check(name: str) -> Check:
        return {check.name: check for check in requirements.host_checks(tmp_path, tmp_path)}[name]

    assert check("sessions").ok is True
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert check("sessions").ok is False and "not writable" in check("sessions").detail
    monkeypatch.undo()
    monkeypatch.setattr(requirements, "FREE_BYTES_MIN", 1 << 62)
    assert check("sessions").ok is False

    assert check("system").ok is (platform.machine() == "x86_64")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert check("system").ok is False and "riscv64" in check("system").detail

    assert "has PTAT without a region" in check("this kernel").detail
    (tmp_path / "region").touch()
    assert check("this kernel").ok is True


def with_channel(request: RecordRequest) -> RecordResult:
    board = {**METADATA["board"], "channels": [{"index": 0, "file": "bus.0.raw", "tick_hz": 1e9}]}
    return RecordResult(0, True, metadata={**METADATA, "board": board})


def channel_file() -> str:
    return json.loads(Path("out/session.json").read_text())["board"]["channels"][0]["file"]


def test_the_capture_is_archived(monkeypatch):
    behave(monkeypatch, with_channel)
    assert main(["record", "-o", "out", "--", "true"]) == 0
    assert channel_file() == "bus.0.ptb"
    assert sorted(path.name for path in Path("out").iterdir()) == ["bus.0.ptb", "session.json"]
    archive.unpack(Path("out/bus.0.ptb"), Path("raw"))
    assert Path("raw").read_bytes() == bytes(8192)


def test_a_capture_can_be_left_as_it_came(monkeypatch):
    behave(monkeypatch, with_channel)
    assert main(["record", "-o", "out", "--no-archive", "true"]) == 0
    assert Path("out/bus.0.raw").read_bytes() == bytes(8192)
    assert described()["board"]["channels"][0]["file"] == "bus.0.raw"


def test_recording_compiles_nothing():
    """In an emulated guest, or on a slow machine, importing numba alone outlasts a recording."""
    code = (
        "import sys; from ptat_host import boards, cli\n"
        "from ptat_host.boards.live import machine\n"
        "from ptat_host.recording import session_recording\n"
        "cli._parser(); [boards.load(name) for name in boards.names()]\n"
        "sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), KeyboardInterrupt()])
def test_a_capture_that_cannot_be_archived_stays(monkeypatch, capsys, error):
    def fail(*_):
        raise error

    behave(monkeypatch, with_channel)
    monkeypatch.setattr(archive.ArchiveWriter, "write", fail)
    assert main(["record", "-o", "out", "--", "true"]) == 0
    assert "bus.0.raw stays uncompressed: " in capsys.readouterr().err
    assert channel_file() == "bus.0.raw"
    assert sorted(path.name for path in Path("out").iterdir()) == ["bus.0.raw", "session.json"]


def valid(request: RecordRequest) -> RecordResult:
    """As `with_channel`, of a capture that is one."""
    with (request.session_dir / "bus.0.raw").open("wb") as file, BlockWriter(file, 3) as writer:
        for i in range(3000):
            writer.access(100 * i, 8 * i, write=i % 7 == 0)
    channel = {"index": 0, "file": "bus.0.raw", "tick_hz": 1e9, "stream_channel": 3}
    return RecordResult(0, True, metadata={"board": {**METADATA["board"], "channels": [channel]}})


def test_the_archive_has_an_index(monkeypatch):
    behave(monkeypatch, valid)
    assert main(["record", "-o", "out", "--", "true"]) == 0
    reader = BusReader(Path("out/bus.0.ptb"), 3)
    assert reader.index
    seen = list(reader.index.contents())
    assert sum(each.accesses for each in seen) == 3000
    assert sum(each.stores[0].size for each in seen) == 429
    assert sorted(path.name for path in Path("out").iterdir()) == ["bus.0.ptb", "session.json"]


def test_what_is_incomplete_or_damaged_has_no_index(monkeypatch, capsys):
    def damaged(request):
        result = valid(request)
        data = bytearray((request.session_dir / "bus.0.raw").read_bytes())
        data[500] ^= 1
        (request.session_dir / "bus.0.raw").write_bytes(data)
        return result

    behave(monkeypatch, lambda request: replace(valid(request), ended=False, reason="why"))
    main(["record", "-o", "incomplete", "--", "true"])
    behave(monkeypatch, damaged)
    assert main(["record", "-o", "damaged", "--", "true"]) == 0
    for name in ("incomplete", "damaged"):
        stream = open_stream(Path(name) / "bus.0.ptb")
        assert isinstance(stream, ArchiveStream)
        assert not stream.index_bytes
    assert "uncompressed" not in capsys.readouterr().err
