# SPDX-License-Identifier: BSD-2-Clause
"""Boots the patched kernel in plain QEMU: boot parameters, its selftest, its KUnit test."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ptat_testbed import build, initramfs

HERE = Path(__file__).parent
MIB = 1 << 20
BOOT_TIMEOUT_S = 1500  # less than pytest's, for the console to be shown
TROUBLE = re.compile(r"WARNING:|BUG:|Call Trace|Oops|rcu: .*stall")

# Where SeaBIOS puts the one 16 MiB BAR of an otherwise bare q35.
BAR = 0xFD000000
BAR_DEVICE = ("-device", "nvme,serial=ptat,cmb_size_mb=16,legacy-cmb=on")

Boot = Callable[..., str]


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An initramfs with the init of these tests and the kernel's selftest."""
    directory = tmp_path_factory.mktemp("initramfs")
    init = directory / "init"
    flags = ["-O2", "-static", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", init, HERE / "init.c"], check=True)
    selftest = build.kernel().directory / "ptat_test"
    path = directory / "initramfs.cpio"
    path.write_bytes(
        initramfs.entry("dev", stat.S_IFDIR | 0o755)
        + initramfs.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
        + initramfs.entry("init", stat.S_IFREG | 0o755, init.read_bytes())
        + initramfs.entry("ptat_test", stat.S_IFREG | 0o755, selftest.read_bytes())
        + initramfs.entry(initramfs.TRAILER, 0)
    )
    return path


@pytest.fixture(scope="session")
def boot(archive: Path) -> Boot:
    """Boots with some kernel parameters and returns the console; fails on any kernel warning."""

    def run(
        parameters: str, *, cpus: int = 1, memory: str = "1G", devices: Sequence[str] = ()
    ) -> str:
        command: list[str | Path] = [
            *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max,la57=off"),
            *("-M", "q35,max-ram-below-4g=2G", "-m", memory, "-smp", str(cpus)),
            *("-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"),
            *("-kernel", build.kernel().image, "-initrd", archive),
            *("-append", f"console=ttyS0 nokaslr panic=-1 {parameters}"),
            *devices,
        ]
        try:
            output = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=BOOT_TIMEOUT_S,
                check=False,
            ).stdout
        except subprocess.TimeoutExpired as hung:
            output = hung.output or b""
        console = output.decode(errors="replace").replace("\r", "")
        assert "init: done" in console, console[-4000:]
        assert not TROUBLE.search(console), console
        return console

    return run


def numbers(console: str) -> dict[str, int]:
    """The lines "name number" that init showed of PTAT's files."""
    shown = console.partition("== /sys/kernel/mm/ptat/region")[2]
    return {name: int(value, 0) for name, value in re.findall(r"^(\w+) (\w+)$", shown, re.M)}


def assert_traces(console: str, base: int, size: int) -> None:
    """PTAT runs with this region; all tables came back, and the region agrees with its twins."""
    shown = numbers(console)
    assert (shown["base"], shown["size"]) == (base, size)
    assert shown["pages"] == size // 4096 - 16
    assert shown["used"] == 0
    assert shown["allocs"] == shown["frees"]
    assert shown["entries"] == shown["pages"] * 512
    assert shown["mismatches"] == 0


@pytest.mark.guest
@pytest.mark.parametrize("cpus", [1, 4])
def test_selftest(boot: Boot, cpus: int) -> None:
    console = boot("ptat=8M@256M -- /ptat_test", cpus=cpus)
    assert re.search(r"^# Totals: pass:\d+ fail:0 xfail:0 xpass:0 skip:0 error:0$", console, re.M)
    assert "/ptat_test: exit status 0" in console
    assert_traces(console, 256 * MIB, 8 * MIB)


@pytest.mark.guest
def test_selftest_in_a_bar(boot: Boot) -> None:
    console = boot(f"ptat=8M@{BAR:#x} -- /ptat_test", devices=BAR_DEVICE)
    assert "/ptat_test: exit status 0" in console
    assert_traces(console, BAR, 8 * MIB)
    # The claim nests below the device's.
    assert re.search(rf"^( +){BAR:x}-\w+ : 0000:.*\n\1  {BAR:x}-\w+ : ptat$", console, re.M)


@pytest.mark.guest
def test_kunit(boot: Boot) -> None:
    console = boot("kunit.enable=1")
    assert re.search(r"\] ok \d+ ptat$", console, re.M)


@pytest.mark.guest
def test_without_parameter_there_is_nothing(boot: Boot) -> None:
    console = boot("")
    assert "ptat" not in console.partition("Run /init")[2]


@pytest.mark.guest
def test_kernel_finds_a_place(boot: Boot) -> None:
    console = boot("ptat=32M")
    assert_traces(console, numbers(console)["base"], 32 * MIB)
    assert re.search(r"^\w+-\w+ : Reserved\n  \w+-\w+ : ptat$", console, re.M)


@pytest.mark.guest
def test_region_above_4g(boot: Boot) -> None:
    assert_traces(boot("ptat=64M@4G", memory="3G"), 4096 * MIB, 64 * MIB)


REFUSED = [
    ("ptat=", "want ptat=SIZE[@ADDR]"),
    ("ptat=foo", "want ptat=SIZE[@ADDR]"),
    ("ptat=8M@", "want ptat=SIZE[@ADDR]"),
    ("ptat=8M@256Mx", "want ptat=SIZE[@ADDR]"),
    ("ptat=0@256M", "want ptat=SIZE[@ADDR]"),
    ("ptat=4097K@256M", "is not a multiple of 4K"),
    ("ptat=8M@0x10000100", "is not a multiple of 4K"),
    ("ptat=64K@256M", "is smaller than 256K"),
    ("ptat=8M@0x1000000", "overlaps memory in use"),
    ("ptat=8M@1M", "is in the first 16M of RAM"),
    ("ptat=8M@0x3ff00000", "is RAM only in part"),
    ("ptat=400M@256M", "is too large for this machine's RAM"),
    ("ptat=400M", "is too large for this machine's RAM"),
    ("ptat=4G", "found no room"),
    ("ptat=8M@0xfffffffffffff000", "is beyond the physical address space"),
    ("ptat=4M@0xfe000000000000", "is beyond the physical address space"),
    ("ptat=16M@0xfec00000", "region is in use"),
    ("ptat=8M@0x80000000", "no memory answers"),
    (f"ptat=32M@{BAR:#x}", "region is in use"),
]


@pytest.mark.guest
@pytest.mark.parametrize(("parameter", "reason"), REFUSED)
def test_bad_parameter_is_refused(boot: Boot, parameter: str, reason: str) -> None:
    console = boot(parameter, devices=BAR_DEVICE)
    complaints = [line for line in console.splitlines() if "] ptat: " in line]
    assert reason in complaints[0]
    assert "tracing is off" in complaints[-1]
    assert "/sys/kernel/mm/ptat" not in console
