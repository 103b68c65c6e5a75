# SPDX-License-Identifier: BSD-2-Clause
import itertools
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import qemu
from ptat_testbed.guest.qemu import MachineConfig, Qmp, QmpError


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)", (10, 0)),
        ("QEMU emulator version 7.2.17 (Debian 1:7.2+dfsg-7)\nCopyright", (7, 2)),
    ],
)
def test_version(text: str, version: tuple[int, int]):
    assert qemu.parse_version(text) == version


def fake_qemu(directory: Path, version_line: str) -> None:
    program = directory / qemu.PROGRAM
    program.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    program.chmod(0o755)


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BoardError, match="there is no qemu-system-x86_64") as error:
        qemu.find()
    assert "bookworm-backports" in error.value.hint

    fake_qemu(tmp_path, "QEMU emulator version 7.2.17")
    with pytest.raises(BoardError, match=r"version 7\.2, the testbed needs 10\.0") as error:
        qemu.find()
    assert "bookworm-backports" in error.value.hint

    fake_qemu(tmp_path, "no such thing")
    with pytest.raises(BoardError, match="no such thing"):
        qemu.find()

    fake_qemu(tmp_path, "QEMU emulator version 11.1.0")
    assert qemu.find() == (str(tmp_path / qemu.PROGRAM), "11.1")


def options(args: list[str], name: str) -> list[str]:
    return [value for key, value in itertools.pairwise(args) if key == name]


def test_arguments():
    config = MachineConfig(
        memory_bytes=3 << 30,
        cpus=2,
        kernel=Path("/k/bzImage"),
        initramfs=Path("/k/initramfs.cpio"),
        append=["nokaslr", "ptat=0x100000@0x200000"],
        console=Path("/a,b/console.log"),
        ports=("control", "stdout"),
        shares=(("root", Path("/"), False), ("kernel", Path("/a,b/kernel"), True)),
        plugin="/p/ptat.so,ram={ram}",
        extra=["-msg", "timestamp=on"],
    )
    args = qemu.arguments(config, "/proc/self/fd/9", 5, [6, 7])
    assert options(args, "-m") == ["3145728K"]
    assert options(args, "-smp") == ["2"]
    assert options(args, "-object") == [
        "memory-backend-file,id=ram,size=3221225472,mem-path=/proc/self/fd/9,share=on"
    ]
    assert "memory-backend=ram" in options(args, "-machine")[0].split(",")
    assert options(args, "-append") == ["nokaslr ptat=0x100000@0x200000"]
    assert options(args, "-plugin") == ["/p/ptat.so,ram=/proc/self/fd/9"]
    assert "file,id=console,path=/a,,b/console.log" in options(args, "-chardev")
    assert "socket,id=control,fd=6" in options(args, "-chardev")
    assert "socket,id=stdout,fd=7" in options(args, "-chardev")
    root, kernel = options(args, "-virtfs")
    assert "readonly=on" in root.split(",")
    assert "readonly=on" not in kernel.split(",")
    assert "path=/a,,b/kernel" in kernel
    assert args[-2:] == ["-msg", "timestamp=on"]


def test_firmware_alone():
    args = qemu.arguments(MachineConfig(memory_bytes=1 << 30, cpus=1), "/ram", 5, [])
    assert not {"-kernel", "-initrd", "-append", "-serial", "-plugin", "-virtfs"} & set(args)


class FakeMonitor:
    """The other end of a QMP socket: answers each command with the next of some messages."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.ours, self._theirs = socket.socketpair()
        self._answers = answers
        self.commands: list[dict[str, object]] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._theirs, self._theirs.makefile("rw") as lines:
            for answer in ({"QMP": {}}, {"return": {}}, *self._answers):
                if "return" in answer or "error" in answer:
                    self.commands.append(json.loads(lines.readline()))
                lines.write(json.dumps(answer) + "\n")
                lines.flush()

    def __enter__(self) -> Qmp:
        return Qmp(self.ours)

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.ours.close()


def test_qmp_skips_events():
    monitor = FakeMonitor({"event": "RESUME"}, {"return": {"status": "running"}})
    with monitor as qmp:
        assert qmp.execute("query-status", all=True) == {"status": "running"}
    assert monitor.commands == [
        {"execute": "qmp_capabilities", "arguments": {}},
        {"execute": "query-status", "arguments": {"all": True}},
    ]


def test_qmp_errors():
    with FakeMonitor({"error": {"class": "GenericError", "desc": "no such event"}}) as qmp:
        with pytest.raises(QmpError, match="trace-event-set-state: no such event"):
            qmp.execute("trace-event-set-state", name="x", enable=True)
        with pytest.raises(QmpError, match="QEMU"):
            qmp.execute("quit")


def test_failure_of_qemu_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / qemu.PROGRAM
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) echo QEMU emulator version 10.0.2; exit;; esac\n'
        "echo 'ptat plugin: tlb=x: unknown model' >&2\n"
        "echo 'qemu: Could not load plugin' >&2\n"
        "exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with qemu.Machine(MachineConfig(memory_bytes=1 << 30, cpus=1)) as machine:
        assert machine.how_it_ended() == "tlb=x: unknown model"
        assert machine.complaints() == ["tlb=x: unknown model"]
    program.write_text(program.read_text().replace("ptat plugin", "other"))
    with qemu.Machine(MachineConfig(memory_bytes=1 << 30, cpus=1)) as machine:
        assert machine.how_it_ended() == (
            "QEMU ended with exit code 1: qemu: Could not load plugin"
        )
