# SPDX-License-Identifier: BSD-2-Clause
"""Boots the patched kernel in plain QEMU: boot parameters, its selftest, its KUnit test."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ptat_testbed.guest import build, plain

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
    """An initramfs with the init of these tests and the kernel's selftests."""
    directory = tmp_path_factory.mktemp("initramfs")
    kernel = build.kernel().directory
    programs = {name: (kernel / name).read_bytes() for name in ("ptat_test", "ptat_trap_test")}
    programs["init"] = plain.test_init(directory)
    return plain.archive(directory / "initramfs.cpio", programs)


@pytest.fixture(scope="session")
def boot(archive: Path) -> Boot:
    """Boots with some kernel parameters and returns the console; fails on any kernel warning."""

    def run(
        parameters: str,
        *,
        cpus: int = 1,
        memory_mib: int = 1024,
        devices: Sequence[str] = (),
        kaslr: bool = False,
        on_line: Callable[[bytes], None] = lambda line: None,
    ) -> str:
        console = plain.boot(
            build.kernel().image,
            archive,
            parameters if kaslr else f"nokaslr {parameters}",
            cpus=cpus,
            memory_mib=memory_mib,
            options=(*plain.EMULATED, *devices),
            timeout_s=BOOT_TIMEOUT_S,
            on_line=on_line,
        )
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
    # Each walk and each read-back takes QEMU's way through a device: slow, on a busy host.
    patient = "rcupdate.rcu_cpu_stall_timeout=300"
    console = boot(f"ptat=8M@{BAR:#x} {patient} -- /ptat_test", devices=BAR_DEVICE)
    assert "/ptat_test: exit status 0" in console
    assert_traces(console, BAR, 8 * MIB)
    # The claim nests below the device's.
    assert re.search(rf"^( +){BAR:x}-\w+ : 0000:.*\n\1  {BAR:x}-\w+ : ptat$", console, re.M)


@pytest.mark.guest
def test_misses_that_trap(boot: Boot) -> None:
    console = boot("ptat=32M,trap -- /ptat_trap_test", cpus=2)
    assert re.search(r"^# Totals: pass:\d+ fail:0 xfail:0 xpass:0 skip:0 error:0$", console, re.M)
    assert "/ptat_trap_test: exit status 0" in console
    # Nobody takes records any more.
    assert numbers(console)["detached"] == 1
    assert re.search(r"misses trap$", console, re.M)


@pytest.mark.guest
def test_selftest_where_misses_trap(boot: Boot) -> None:
    console = boot("ptat=8M,trap -- /ptat_test", cpus=2)
    assert "/ptat_test: exit status 0" in console
    shown = numbers(console)
    assert shown["used"] == 0
    assert shown["allocs"] == shown["frees"] > 0
    assert shown["mismatches"] == 0


DETACHED = "its page tables are in memory again, tracing is off"


def assert_goes_on(console: str, why: str) -> None:
    """The processes continued without the region, and the kernel reported it once."""
    assert "/ptat_test: exit status 0" in console
    assert [line for line in console.splitlines() if DETACHED in line] == [
        line for line in console.splitlines() if f"ptat: the region {why}: {DETACHED}" in line
    ]
    assert console.count(DETACHED) == 1
    shown = numbers(console)
    assert shown["detached"] == 1
    assert shown["used"] == 0
    assert shown["allocs"] == shown["frees"]


@pytest.mark.guest
@pytest.mark.parametrize("cpus", [1, 4])
def test_region_is_given_up_on_request(boot: Boot, cpus: int) -> None:
    console = boot("ptat=8M@256M -- /ptat_test -d /sys/kernel/mm/ptat/detach", cpus=cpus)
    assert_goes_on(console, "is detached on request")


@pytest.mark.guest
def test_device_is_removed(boot: Boot) -> None:
    """As before it is unplugged; what else uses its address may have it then."""
    remove = "/sys/bus/pci/devices/0000:00:02.0/remove"
    device = (*BAR_DEVICE[:1], f"{BAR_DEVICE[1]},addr=2")
    console = boot(f"ptat=8M@{BAR:#x} -- /ptat_test -d {remove}", cpus=2, devices=device)
    assert_goes_on(console, "is being removed")
    assert f"{BAR:x}-" not in console.partition("== /proc/iomem")[2]


@pytest.mark.guest
@pytest.mark.parametrize(
    ("word", "options"),
    [
        # A device that is gone; one that was reset, which walks alone do not tell.
        (b"\xff", "-d"),
        (b"\x00", "-r -d"),
    ],
)
def test_region_is_lost(boot: Boot, tmp_path: Path, word: bytes, options: str) -> None:
    """The region's memory, under the feet of what uses it, becomes what a lost device reads as."""
    memory = tmp_path / "memory"
    lost = b"waiting for the region to go"

    def lose(line: bytes) -> None:
        if lost in line:
            with memory.open("r+b") as file:
                file.seek(256 * MIB)
                file.write(word * (8 * MIB))

    ram = f"memory-backend-file,id=ram,size=1G,share=on,mem-path={memory}"
    console = boot(
        f"ptat=8M@256M -- /ptat_test {options}",
        cpus=2,
        devices=("-object", ram, "-machine", "memory-backend=ram"),
        on_line=lose,
    )
    assert_goes_on(console, "does not answer")


@pytest.mark.guest
def test_kunit(boot: Boot) -> None:
    console = boot("kunit.enable=1")
    assert re.search(r"\] ok \d+ ptat$", console, re.M)


@pytest.mark.guest
def test_without_parameter_there_is_nothing(boot: Boot) -> None:
    console = boot("")
    assert "ptat" not in console.partition("Run /init")[2]


@pytest.mark.guest
def test_kaslr_keeps_off_the_region(boot: Boot) -> None:
    """Without that, one kernel in four would lie in it, and refuse it."""
    places = set()
    for _ in range(6):
        console = boot("ptat=64M@96M", memory_mib=320, kaslr=True)
        assert_traces(console, 96 * MIB, 64 * MIB)
        code = re.search(r"^ +(\w+)-\w+ : Kernel code$", console, re.M)
        assert code
        places.add(code[1])
    assert len(places) > 1  # it does choose at random


@pytest.mark.guest
@pytest.mark.parametrize(
    ("parameter", "devices", "expected"),
    [("ptat=8M@256M", (), "off"), (f"ptat=8M@{BAR:#x}", BAR_DEVICE, "on")],
    ids=["RAM", "BAR"],
)
def test_stores_to_a_device_are_read_back(
    boot: Boot, parameter: str, devices: Sequence[str], expected: str
) -> None:
    console = boot(parameter, devices=devices)
    assert re.search(rf"^== /sys/kernel/mm/ptat/readback\n{expected}$", console, re.M)


@pytest.mark.guest
def test_kernel_finds_a_place(boot: Boot) -> None:
    console = boot("ptat=32M")
    assert_traces(console, numbers(console)["base"], 32 * MIB)
    assert re.search(r"^\w+-\w+ : Reserved\n  \w+-\w+ : ptat$", console, re.M)


@pytest.mark.guest
def test_region_above_4g(boot: Boot) -> None:
    assert_traces(boot("ptat=64M@4G", memory_mib=3072), 4096 * MIB, 64 * MIB)


REFUSED = [
    ("ptat=", "want ptat=SIZE[@ADDR]"),
    ("ptat=foo", "want ptat=SIZE[@ADDR]"),
    ("ptat=8M@", "want ptat=SIZE[@ADDR]"),
    ("ptat=8M@256Mx", "want ptat=SIZE[@ADDR]"),
    ("ptat=0@256M", "want ptat=SIZE[@ADDR]"),
    ("ptat=4097K@256M", "is not a multiple of 4K long"),
    ("ptat=8M@0x10100000", "does not begin at a multiple of 2M"),
    ("ptat=64K@256M", "is smaller than 256K"),
    ("ptat=8M@0x1000000", "overlaps memory in use"),
    ("ptat=8M@2M", "is in the first 16M of RAM"),
    ("ptat=8M@0x3fe00000", "is RAM only in part"),
    ("ptat=400M@256M", "is too large for this machine's RAM"),
    ("ptat=400M", "is too large for this machine's RAM"),
    ("ptat=4G", "found no room"),
    ("ptat=8M@0xffffffffffe00000", "is beyond the physical address space"),
    ("ptat=4M@0xfe000000000000", "is beyond the physical address space"),
    ("ptat=16M@0xfec00000", "region is in use"),
    ("ptat=8M@0x80000000", "no memory answers"),
    (f"ptat=32M@{BAR:#x}", "region is in use"),
    (f"ptat=8M@{BAR:#x} lockdown=integrity", "the kernel is locked down, the region must be RAM"),
    ("ptat=8M@256M elfcorehdr=0x80000000", "this is a crash kernel"),
]


@pytest.mark.guest
@pytest.mark.parametrize(("parameter", "reason"), REFUSED)
def test_bad_parameter_is_refused(boot: Boot, parameter: str, reason: str) -> None:
    console = boot(parameter, devices=BAR_DEVICE)
    complaints = [line for line in console.splitlines() if "] ptat: " in line]
    assert reason in complaints[0]
    assert "tracing is off" in complaints[-1]
    assert "/sys/kernel/mm/ptat" not in console
