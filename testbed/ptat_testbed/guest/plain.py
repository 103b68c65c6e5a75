# SPDX-License-Identifier: BSD-2-Clause
"""Boots a kernel with a program of ours as its only process: no plugin, no file system."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import stat
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import initramfs, qemu
from ptat_testbed.guest.build import SOURCES, compiled

MACHINE = ("-M", "q35,max-ram-below-4g=2G", "-nodefaults", "-display", "none", "-no-reboot")
EMULATED = ("-accel", "tcg", "-cpu", "max,la57=off")
LOOK_S = 60.0
"""Interval of the checks whether QEMU lost a timer."""
LOCAL_TIMER_VECTOR = 236
INTERRUPTS_ENABLED = 1 << 9  # of EFLAGS


def test_init(directory: Path) -> bytes:
    """The init of tests that boot a kernel: see kernel-patch/tests/init.c.

    :raises BoardError: it cannot be compiled.
    """
    guest = SOURCES / "testbed" / "guest"
    source = SOURCES / "kernel-patch" / "tests" / "init.c"
    flags = (f"-I{guest}",)
    return compiled(directory / "init", source, guest / "traps.c", flags=flags).read_bytes()


def archive(path: Path, programs: Mapping[str, bytes]) -> Path:
    """Write an initramfs with these programs (one of them ``init``) to `path`; return it."""
    members = (
        initramfs.entry("dev", stat.S_IFDIR | 0o755),
        initramfs.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
        *(initramfs.entry(name, stat.S_IFREG | 0o755, data) for name, data in programs.items()),
        initramfs.entry(initramfs.TRAILER, 0),
    )
    path.write_bytes(b"".join(members))
    return path


class LostTimer(Exception):
    """QEMU does not give a CPU the interrupts of its timer."""


def lost_timer(lapic: str, registers: str) -> bool:
    """Whether a CPU has interrupts enabled while it is to serve its timer's.

    That is QEMU's doing, on a busy host: see docs/testbed.md. Linux ends the timer's interrupt
    before it enables others.

    :param lapic: what QEMU's monitor says to "info lapic".
    :param registers: and to "info registers"; the CPU must be stopped for both.
    """
    served = re.search(r"^ISR\s(.*)$", lapic, re.M)
    flags = re.search(r"\b[RE]FL=(\w+)", registers)
    if not served or not flags:
        raise ValueError(f"QEMU's monitor shows a CPU otherwise: {lapic} {registers}")
    in_service = str(LOCAL_TIMER_VECTOR) in served[1].split()
    return in_service and bool(int(flags[1], 16) & INTERRUPTS_ENABLED)


def _look_for_lost_timer(qmp: qemu.Qmp, cpus: int) -> None:
    """
    :raises LostTimer: a CPU has lost it.
    """

    def shown(what: str, cpu: int) -> str:
        words = {"command-line": f"info {what}", "cpu-index": cpu}
        return str(qmp.execute("human-monitor-command", **words))

    qmp.execute("stop")
    lost = [cpu for cpu in range(cpus) if lost_timer(shown("lapic", cpu), shown("registers", cpu))]
    qmp.execute("cont")
    if lost:
        raise LostTimer(f"QEMU lost the timer of CPU {lost[0]}")


@contextlib.contextmanager
def _started(command: Sequence[str | Path]) -> Iterator[tuple[IO[bytes], qemu.Qmp]]:
    """QEMU's output, and its control socket; it is killed at the end."""
    ours, theirs = socket.socketpair()
    control = ("-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "qmp,mode=control")
    with ours:
        with theirs:
            machine = subprocess.Popen(
                [*command, *control],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        with machine:
            assert machine.stdout
            try:
                yield machine.stdout, qemu.Qmp(ours)
            finally:
                machine.kill()


def _run(
    command: Sequence[str | Path],
    cpus: int,
    timeout_s: float,
    on_line: Callable[[bytes], None],
) -> str:
    """The console of one boot.

    :raises LostTimer: QEMU lost a timer.
    :raises BoardError: the guest did not power itself off in time.
    """
    console, line_begin = b"", 0
    now = time.monotonic()
    end, look = now + timeout_s, now + LOOK_S
    with _started(command) as (output, qmp):
        while now < end:
            ready, *_ = select.select([output], [], [], max(0, min(end, look) - now))
            if ready:
                part = os.read(output.fileno(), 1 << 16)
                if not part:
                    return _text(console)
                console += part
                *lines, rest = console[line_begin:].split(b"\n")
                for line in lines:
                    on_line(line)
                line_begin = len(console) - len(rest)
            now = time.monotonic()
            if now >= look:
                with contextlib.suppress(qemu.QmpError):  # it may have ended
                    _look_for_lost_timer(qmp, cpus)
                look = now + LOOK_S
    raise BoardError(f"the guest took more than {timeout_s:.0f} s: {_text(console)[-4000:]}")


def _text(console: bytes) -> str:
    return console.decode(errors="replace").replace("\r", "")


def boot(
    image: Path,
    initrd: Path,
    parameters: str,
    *,
    cpus: int = 1,
    memory_mib: int = 1024,
    options: Sequence[str] = EMULATED,
    timeout_s: float,
    on_line: Callable[[bytes], None] = lambda line: None,
) -> str:
    """What the guest wrote to its console until it powered itself off.

    Boots again where QEMU lost a timer.

    :param parameters: of the kernel, beside those for the console.
    :param options: accelerator and CPU, and more.
    :param on_line: gets each line of the console.
    :raises BoardError: it did not power itself off in time.
    """
    program, _ = qemu.find()
    machine = (*MACHINE, "-m", str(memory_mib), "-smp", str(cpus), "-serial", "stdio")
    guest = ("-kernel", image, "-initrd", initrd)
    append = ("-append", f"console=ttyS0 panic=-1 {parameters}")
    command: list[str | Path] = [program, *options, *machine, *guest, *append]
    for _ in range(qemu.BOOTS):
        try:
            return _run(command, cpus, timeout_s, on_line)
        except LostTimer as lost:
            warnings.warn(f"{lost}; booting again", stacklevel=2)
    raise BoardError(f"QEMU lost a timer in {qemu.BOOTS} boots", "try again on a less busy machine")
