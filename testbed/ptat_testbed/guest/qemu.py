# SPDX-License-Identifier: BSD-2-Clause
"""QEMU: its version, its command line, its process and its control socket (QMP)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptat_host.boards.base import BoardError
from ptat_parser import wire
from ptat_testbed.guest.layout import LOWMEM_MAX_BYTES

PROGRAM = "qemu-system-x86_64"
VERSION_MIN = (10, 0)
INSTALL_HINT = (
    "install qemu-system-x86 10 or newer; Debian 12 has it in bookworm-backports:"
    " apt install -t bookworm-backports qemu-system-x86"
)
# No BAR may lie where the capture stream cannot name it.
PHYSICAL_ADDRESS_BITS = wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT
CPU = f"max,la57=off,phys-bits={PHYSICAL_ADDRESS_BITS}"
# Devices that the guest would only lose time with.
LEAN = ",i8042=off,sata=off,smbus=off,vmport=off"
PLUGIN_SAYS = "ptat plugin: "
HUGE_PAGE_BYTES = 2 << 20
QMP_TIMEOUT_S = 30.0
EXIT_TIMEOUT_S = 120.0
"""For QEMU to write out what its plugin still holds."""
BOOTS = 3
"""How often a guest is booted at most, where QEMU fails by itself: see docs/testbed.md."""


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor version from the output of ``--version``.

    :raises BoardError: there is none in it.
    """
    found = re.search(r"version (\d+)\.(\d+)", text)
    if not found:
        raise BoardError(f"{PROGRAM} --version says {text.strip()!r}", INSTALL_HINT)
    return int(found[1]), int(found[2])


def find() -> tuple[str, str]:
    """Path and version of a QEMU that can run the testbed.

    :raises BoardError: there is none, or it is too old.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise BoardError(f"there is no {PROGRAM}", INSTALL_HINT)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    version = parse_version(done.stdout)
    shown = f"{version[0]}.{version[1]}"
    if version < VERSION_MIN:
        needed = f"{VERSION_MIN[0]}.{VERSION_MIN[1]}"
        raise BoardError(f"{path} is version {shown}, the testbed needs {needed}", INSTALL_HINT)
    return path, shown


def escape(value: object) -> str:
    """A value as part of a QEMU option, where a comma separates."""
    return str(value).replace(",", ",,")


@dataclass
class MachineConfig:
    """A machine to start."""

    memory_bytes: int
    cpus: int
    kernel: Path | None = None
    """None: only the firmware runs."""
    initramfs: Path | None = None
    append: Sequence[str] = ()
    """The kernel's parameters."""
    console: Path | None = None
    """File that gets what the guest writes to its serial port."""
    ports: Sequence[str] = ()
    """Names of virtio serial ports, each a socket in `Machine.ports`."""
    shares: Sequence[tuple[str, Path, bool]] = ()
    """9p shares: tag, directory, writable."""
    plugin: str | None = None
    """Plugin and its arguments; ``{ram}`` stands for the file that is the guest's RAM."""
    extra: Sequence[str] = ()
    """More arguments."""
    pass_fds: Sequence[int] = ()
    kvm: bool = False
    """The guest runs on this machine's CPU, each of its CPUs on one of ours; without a plugin."""
    program: Path | None = None
    """Another QEMU than the installed one."""
    hugetlb: bool = False
    """The guest's memory is in 2 MiB pages that this machine has set aside."""


def arguments(
    config: MachineConfig, ram_path: str, qmp_fd: int, port_fds: Sequence[int]
) -> list[str]:
    """QEMU's arguments, without the program."""
    args = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    args += ["-machine", f"q35,max-ram-below-4g={LOWMEM_MAX_BYTES},memory-backend=ram{LEAN}"]
    args += ["-accel", "kvm" if config.kvm else "tcg,thread=multi"]
    args += ["-cpu", "host,migratable=off" if config.kvm else CPU]
    args += ["-smp", str(config.cpus), "-m", f"{config.memory_bytes // 1024}K"]
    if config.kvm and not config.hugetlb:
        # Anonymous memory, for which QEMU asks for transparent huge pages.
        args += ["-object", f"memory-backend-ram,id=ram,size={config.memory_bytes}"]
    else:
        args += [
            "-object",
            f"memory-backend-file,id=ram,size={config.memory_bytes},mem-path={ram_path},share=on",
        ]
    args += ["-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control"]
    if config.kernel:
        args += ["-kernel", str(config.kernel), "-append", " ".join(config.append)]
    if config.initramfs:
        args += ["-initrd", str(config.initramfs)]
    if config.console:
        args += ["-chardev", f"file,id=console,path={escape(config.console)}"]
        args += ["-serial", "chardev:console"]
    if config.ports:
        args += ["-device", "virtio-serial-pci"]
    for name, fd in zip(config.ports, port_fds, strict=True):
        args += ["-chardev", f"socket,id={name},fd={fd}"]
        args += ["-device", f"virtserialport,chardev={name},name={name}"]
    for tag, directory, writable in config.shares:
        access = "" if writable else ",readonly=on"
        args += [
            "-virtfs",
            f"local,path={escape(directory)},mount_tag={tag},security_model=none"
            f",multidevs=remap{access}",
        ]
    if config.plugin:
        args += ["-plugin", config.plugin.replace("{ram}", ram_path)]
    return args + list(config.extra)


class QmpError(Exception):
    """QEMU refused a command, or is gone."""


class Qmp:
    """QEMU's control socket; each call waits for its answer."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(QMP_TIMEOUT_S)
        self._socket = sock
        self._lines = sock.makefile("r", encoding="utf-8")
        self._ready = False

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise QmpError(f"QEMU does not answer: {error}") from error
        if not line:
            raise QmpError("QEMU has ended")
        message: dict[str, Any] = json.loads(line)
        return message

    def execute(self, command: str, **arguments: object) -> object:
        """Run one command and return its result.

        :raises QmpError: it failed.
        """
        if not self._ready:
            self._receive()  # the greeting
            self._ready = True
            self.execute("qmp_capabilities")
        message = json.dumps({"execute": command, "arguments": arguments})
        try:
            self._socket.sendall(message.encode() + b"\n")
        except OSError as error:
            raise QmpError(f"QEMU does not listen: {error}") from error
        while True:
            answer = self._receive()
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                result: object = answer["return"]
                return result


class Machine(contextlib.AbstractContextManager["Machine"]):
    """A running QEMU, its guest's RAM in memory that it shares with its plugin."""

    def __init__(self, config: MachineConfig) -> None:
        """Start it. Leaving the context ends it.

        :raises BoardError: there is no suitable QEMU.
        """
        program = config.program or find()[0]
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            pairs = [socket.socketpair() for _ in range(1 + len(config.ports))]
            for ours, theirs in pairs:
                kept.enter_context(ours)
                given.enter_context(theirs)
            fds = [theirs.fileno() for _, theirs in pairs]
            flags = os.MFD_HUGETLB | os.MFD_HUGE_2MB if config.hugetlb else 0
            ram = os.memfd_create("ptat-guest-ram", os.MFD_CLOEXEC | flags)
            given.callback(os.close, ram)
            os.ftruncate(ram, config.memory_bytes)
            self._output = kept.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [program, *arguments(config, f"/proc/self/fd/{ram}", fds[0], fds[1:])],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[ram, *fds, *config.pass_fds],
                start_new_session=True,  # Ctrl-C is ours to handle
            )
            self.qmp = Qmp(pairs[0][0])
            self.ports = {
                name: ours for name, (ours, _) in zip(config.ports, pairs[1:], strict=True)
            }
            self._resources = kept.pop_all()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._resources.close()

    def pin(self, cpus: Sequence[int]) -> None:
        """Let each CPU of the guest run on one of ours.

        :param cpus: as many as the guest has, or more.
        :raises QmpError: QEMU does not tell its threads.
        """
        guests = self.qmp.execute("query-cpus-fast")
        assert isinstance(guests, list)
        for guest, cpu in zip(guests, cpus, strict=False):
            os.sched_setaffinity(guest["thread-id"], {cpu})

    def stop(self) -> None:
        """End QEMU, letting it write out what it holds; by force if it does not."""
        with contextlib.suppress(QmpError):
            self.qmp.execute("quit")
        try:
            self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def messages(self) -> list[str]:
        """The lines that QEMU has written to its stdout and stderr."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace").splitlines()

    def how_it_ended(self) -> str:
        """Why QEMU is no longer there, in one line."""
        status = self.process.wait(EXIT_TIMEOUT_S)
        if complaints := self.complaints():
            return complaints[0]
        end = f"signal {-status}" if status < 0 else f"exit code {status}"
        return ": ".join([f"QEMU ended with {end}", *self.messages()[-1:]])

    def aborted(self) -> bool:
        """Whether QEMU, and not our plugin, has ended itself: an assertion of its own failed."""
        return self.process.poll() == -signal.SIGABRT and not self.complaints()

    def complaints(self) -> list[str]:
        """What our plugin says that went wrong."""
        return [line.partition(PLUGIN_SAYS)[2] for line in self.messages() if PLUGIN_SAYS in line]
