# SPDX-License-Identifier: BSD-2-Clause
"""Boots a kernel with a program of ours as its only process: no plugin, no file system."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import initramfs, qemu
from ptat_testbed.guest.build import INIT_FLAGS, SOURCES

MACHINE = ("-M", "q35,max-ram-below-4g=2G", "-nodefaults", "-display", "none", "-no-reboot")


def compiled(program: Path, source: Path, *flags: str) -> bytes:
    """A static program, compiled to `program`.

    :raises BoardError: it cannot be compiled.
    """
    command = ["gcc", *INIT_FLAGS, *flags, "-o", str(program), str(source)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BoardError(
            f"gcc cannot compile {source}: {done.stderr.strip()}", "install Debian's libc6-dev"
        )
    return program.read_bytes()


def test_init(directory: Path) -> bytes:
    """The init of tests that boot a kernel: see kernel-patch/tests/init.c.

    :raises BoardError: it cannot be compiled.
    """
    guest = SOURCES / "testbed" / "guest"
    source = SOURCES / "kernel-patch" / "tests" / "init.c"
    return compiled(directory / "init", source, f"-I{guest}", str(guest / "traps.c"))


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


def boot(
    image: Path,
    initrd: Path,
    parameters: str,
    *,
    cpus: int = 1,
    memory_mib: int = 1024,
    options: Sequence[str] = ("-accel", "tcg", "-cpu", "max,la57=off"),
    timeout_s: float,
) -> str:
    """What the guest wrote to its console until it powered itself off.

    :param parameters: of the kernel, beside those for the console.
    :param options: accelerator and CPU, and more.
    :raises BoardError: it did not power itself off in time.
    """
    program, _ = qemu.find()
    machine = (*MACHINE, "-m", str(memory_mib), "-smp", str(cpus), "-serial", "stdio")
    guest = ("-kernel", image, "-initrd", initrd)
    append = ("-append", f"console=ttyS0 nokaslr panic=-1 {parameters}")
    try:
        done = subprocess.run(
            [program, *options, *machine, *guest, *append],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        shown = (late.stdout or b"").decode(errors="replace")[-2000:]
        raise BoardError(f"the guest took more than {timeout_s:.0f} s: {shown}") from None
    return done.stdout.decode(errors="replace").replace("\r", "")
