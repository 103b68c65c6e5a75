# SPDX-License-Identifier: BSD-2-Clause
"""Boards on PCIe: sysfs, the driver's device and its ring are made up, and so is the machine."""

import errno
import fcntl
import json
import os
import struct
import subprocess
from pathlib import Path

import pytest
from test_hardware import Machine

from ptat_host.boards import pcie, pcie_driver
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Client, LinkError
from ptat_host.boards.live import machine as live_machine
from ptat_host.boards.pcie import PcieBoard, PcieLink
from ptat_host.cli import main
from ptat_parser import wire

ADDRESS = "0000:01:00.0"
BLOCKS = 120
BLOCK = wire.BLOCK_BYTES
BASE, BAR_BYTES = 0x40_0000_0000, 256 << 20
NO_WAIT = 5 * 10**6


class FakeDriver:
    """The driver of a board that has captured `source`, and writes it as there is room."""

    def __init__(self, root: Path, source: bytes) -> None:
        self.device = root / "devices" / ADDRESS
        self.node = root / "dev" / "ptat-pci"
        (self.device / "misc" / "ptat-pci").mkdir(parents=True)
        (root / "drivers" / "ptat_pci").mkdir(parents=True)
        self.node.parent.mkdir()
        self.node.touch()
        (self.device / "vendor").write_text("0x10ee\n")
        (self.device / "device").write_text("0x5054\n")
        self.place(BASE)
        (self.device / "driver").symlink_to(root / "drivers" / "ptat_pci")
        self.source = source
        self.identity = (b"\x12\x34" * 10, b"acorn_pcie", wire.VERSION, 500_000_000, 8, 1, 0)
        self.open_error = 0
        self.ring_blocks = 0
        self.ring_max = 1 << 20
        self.patience_ns = -1
        self.head = self.tail = 0
        self.calls: list[int] = []
        self.recording = False
        self.lost = 0
        self.fail_after: tuple[int, int] | None = None
        """From that many blocks on, each call fails with that error."""
        self.written_beyond = 0
        """Blocks in the ring that the driver has not told of when it fails."""
        self.missing = 0
        """Blocks that the board says it has written, and has not."""
        self.not_yet = 0
        """How often STOP has to be asked again."""

    def place(self, base: int, flags: int = 0x14220C) -> None:
        last = base + BAR_BYTES - 1 if base else 0
        (self.device / "resource").write_text(f"{base:#018x} {last:#018x} {flags:#018x}\n")

    def ioctl(self, fd: int, call: int, argument: bytes = b"") -> bytes:
        assert os.fstat(fd).st_ino == self.node.stat().st_ino
        self.calls.append(call)
        if self.fail_after and self.recording and self.head >= self.fail_after[0]:
            self.fill(self.written_beyond)
            self.written_beyond = 0
            self.fill_half()
            raise OSError(self.fail_after[1], "it fails")
        names = {
            pcie_driver.IDENTIFY: self.identify,
            pcie_driver.RING: self.ring,
            pcie_driver.START: self.start,
            pcie_driver.TAKE: self.take,
            pcie_driver.STOP: self.stop,
            pcie_driver.COUNTERS: self.counters,
        }
        # The kernel's numbers have the size of what is copied.
        assert call >> 16 & 0x3FFF == len(argument)
        answer = names[call](argument)
        assert answer is None or len(answer) == len(argument)
        return answer or argument

    def identify(self, _: bytes) -> bytes:
        return struct.pack("<20s16sIQIIQ", *self.identity)

    def ring(self, argument: bytes) -> bytes:
        (blocks,) = struct.unpack("<I", argument)
        if blocks > self.ring_max:
            raise OSError(errno.ENOMEM, "no memory")
        assert not self.ring_blocks
        self.ring_blocks = -(-blocks // 4) * 4
        os.truncate(self.node, self.ring_blocks * BLOCK)
        return struct.pack("<I", self.ring_blocks)

    def start(self, argument: bytes) -> None:
        assert self.ring_blocks
        (self.patience_ns,) = struct.unpack("<Q", argument)
        self.recording = True

    def fill(self, count: int) -> None:
        """The board's DMA: at most `count` blocks, as far as there is room."""
        there = len(self.source) // BLOCK
        with self.node.open("r+b") as ring:
            while count and self.head < there and self.head - self.tail < self.ring_blocks:
                ring.seek(self.head % self.ring_blocks * BLOCK)
                ring.write(self.source[self.head * BLOCK : (self.head + 1) * BLOCK])
                self.head += 1
                count -= 1

    def fill_half(self) -> None:
        """The board is cut off in the middle of a block."""
        if self.head - self.tail < self.ring_blocks:
            with self.node.open("r+b") as ring:
                ring.seek(self.head % self.ring_blocks * BLOCK)
                ring.write(self.source[self.head * BLOCK :][: BLOCK // 2])

    def take(self, argument: bytes) -> bytes:
        assert self.recording
        tail, _ = struct.unpack("<II", argument)
        assert self.tail <= tail <= self.head
        self.tail = tail
        self.fill(7)
        return struct.pack("<II", tail, self.head)

    def stop(self, _: bytes) -> None:
        assert self.recording
        if self.not_yet or self.head * BLOCK < len(self.source):
            self.not_yet = max(0, self.not_yet - 1)
            raise BlockingIOError(errno.EAGAIN, "again")

    def counters(self, _: bytes) -> bytes:
        counts = [0, 3, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 1000, 4]
        blocks = self.head + self.missing
        return struct.pack("<QQQQQ14I", 5000, 4000, 3990, self.lost, blocks, *counts)


@pytest.fixture
def driver(tmp_path, source, monkeypatch) -> FakeDriver:
    fake = FakeDriver(tmp_path, source.read_bytes())
    monkeypatch.setattr(pcie_driver, "DEVICES", tmp_path / "devices")
    monkeypatch.setattr(pcie_driver, "DRIVERS", tmp_path / "drivers")
    monkeypatch.setattr(pcie_driver, "NODES", tmp_path / "dev")
    monkeypatch.setattr(fcntl, "ioctl", fake.ioctl)
    monkeypatch.setattr(live_machine, "LiveMachine", Machine)
    monkeypatch.chdir(tmp_path)
    system_open = os.open

    def opened(path, *rest, **named):
        if fake.open_error and Path(path) == fake.node:
            raise OSError(fake.open_error, os.strerror(fake.open_error))
        return system_open(path, *rest, **named)

    monkeypatch.setattr(os, "open", opened)
    return fake


def record(*options: str) -> tuple[int, dict]:
    options = ("--board", f"pcie:{ADDRESS}", "-o", "out", "--no-archive", *options)
    status = main(["record", *options, "--", "sleep", "0.3"])
    described = Path("out/session.json")
    return status, json.loads(described.read_text()) if described.exists() else {}


def captured() -> bytes:
    return Path("out/bus.0.raw").read_bytes()


def refused(address: str | None = ADDRESS) -> str:
    """What ptat says, and what to do."""
    with pytest.raises(BoardError) as raised:
        PcieBoard(address).open(address)
    return f"{raised.value.message}: {raised.value.hint}"


# Recording ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ring", ["4M", "32K", "88K"])
def test_record(driver, ring):
    status, found = record("--strict", "--ring", ring)
    assert status == 0
    assert found["complete"] is True
    assert captured() == driver.source
    board = found["board"]
    assert board["granularity_bytes"] == 8
    (channel,) = board["channels"]
    assert channel["git_hash"] == "1234" * 10
    assert (channel["board"], channel["serial"]) == ("acorn_pcie", ADDRESS)
    assert channel["tick_hz"] == 500_000_000
    assert board["link"]["blocks"] == BLOCKS
    assert board["link"]["held_clocks"] == 1000
    assert board["link"]["overdue_accesses"] == 4
    assert board["link"]["partial_accesses"] == 1
    assert board["link"]["refused_packets"] == 5
    assert driver.patience_ns == 10 * 10**6
    assert driver.ring_blocks == {"4M": 512, "32K": 4, "88K": 12}[ring]


def test_the_only_board_needs_no_address(driver):
    assert main(["record", "--board", "pcie", "-o", "out", "--no-archive", "--", "true"]) == 0
    assert captured() == driver.source


@pytest.mark.parametrize(
    ("milliseconds", "ns"), [("0", 0), ("12", 12_000_000), ("0.05", 50_000), ("0.00000001", 1)]
)
def test_patience(driver, milliseconds, ns):
    assert record("--patience-ms", milliseconds)[0] == 0
    assert driver.patience_ns == ns


def test_a_board_that_has_blocks_left_at_the_stop(driver):
    driver.not_yet = 5
    status, _ = record("--strict", "--ring", "32K")
    assert status == 0
    assert captured() == driver.source
    assert driver.calls.count(pcie_driver.STOP) > 5


def test_losses_are_said(driver, capsys):
    driver.lost = 17
    status, found = record("--strict")
    assert status == 1
    assert (found["ended"], found["complete"]) == (True, False)
    assert found["incomplete_reason"] == "lost 17 accesses in the board"
    assert "out is incomplete: lost 17 accesses in the board" in capsys.readouterr().err


def test_blocks_that_do_not_arrive_are_said(driver):
    driver.missing = 3
    status, found = record()
    assert status == 2
    assert found["incomplete_reason"] == "the last 3 blocks did not arrive"


def test_how_full_the_ring_is(driver):
    with Client(PcieLink(ADDRESS, 8, NO_WAIT)) as client, Path("raw").open("wb") as file:
        assert client.health().capacity_bytes == 8 * BLOCK
        capture = client.link.capture(file.fileno(), client.host)
        client.link._state = pcie.State.RECORDING
        driver.recording = True
        driver.fill(6)
        health = client.health()
        assert (health.fill_bytes, health.capacity_bytes) == (6 * BLOCK, 8 * BLOCK)
        assert (health.matched, health.lost, health.blocks) == (4000, 0, 6)
        assert health.illegal[:7] == (0, 3, 0, 0, 0, 0, 2)
        assert capture.received_bytes == 0


def test_the_number_of_blocks_wraps(driver, source):
    """Each is 32 bits; a block is where its number says."""
    with Client(PcieLink(ADDRESS, 8, NO_WAIT)) as client, Path("raw").open("wb") as file:
        capture = client.link.capture(file.fileno(), client.host)
        capture._tail = 2**32 - 3
        heads = iter([2, 2, 2])
        driver.node.write_bytes(b"".join(bytes([i]) * BLOCK for i in range(8)))
        capture._device.take = lambda tail: next(heads)
        assert capture._drain() is True
        assert capture.taken == 2
        found = Path("raw").read_bytes()
        assert [found[i * BLOCK] for i in range(5)] == [5, 6, 7, 0, 1]


# What goes wrong in the middle --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.ENODEV, "the board is gone"),
        (errno.EIO, "the board does not answer"),
        (errno.ECANCELED, "the region was given up"),
        (errno.ENXIO, "the driver of the board: it fails"),
    ],
)
@pytest.mark.parametrize("beyond", [0, 2])
def test_a_board_that_goes(driver, capsys, error, said, beyond):
    """Whole blocks are kept, also those that the driver did not report; the program goes on."""
    driver.fail_after = (40, error)
    driver.written_beyond = beyond
    status, found = record("--ring", "1M")
    assert status == 2
    assert found["complete"] is False
    assert found["incomplete_reason"].startswith(said)
    assert found["command"]["exit_status"] == 0
    count = len(captured()) // BLOCK
    assert count >= 40 + beyond
    assert captured() == driver.source[: count * BLOCK]
    assert "the rest of the run is not recorded" in capsys.readouterr().err


def test_a_board_that_goes_before_it_records(driver):
    driver.fail_after = (0, errno.ENODEV)
    driver.recording = True
    status, found = record()
    assert status == 2
    assert not found


def test_a_full_disk_keeps_nobody_waiting(driver, monkeypatch):
    """The ring is emptied all the same, and the program ends as it would."""
    room = 20 * BLOCK + 100
    system_write = os.write

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if len(data) < BLOCK:
            return system_write(fd, data)
        if not room:
            raise OSError(errno.ENOSPC, "no space")
        written = system_write(fd, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", write)
    status, found = record("--ring", "64K")
    assert status == 2
    assert found["incomplete_reason"] == "no space left for the capture"
    assert found["command"]["exit_status"] == 0
    assert driver.tail == BLOCKS
    assert captured() == driver.source[: 20 * BLOCK]


# What is refused ----------------------------------------------------------------------------------


def test_there_is_no_board(driver, capsys):
    (driver.device / "device").write_text("0x7024\n")
    assert PcieBoard().discover() == []
    assert "there is no PCIe board in this machine" in refused(None)
    assert "is 10ee:7024, no ptat board: those are 10ee:5054" in refused()
    assert "there is no PCI device at 0000:02:00.0" in refused("02:00.0")
    assert "is no PCI address: write it as pcie:0000:01:00.0" in refused("acorn")
    (check,) = PcieBoard().check()
    assert (check.ok, check.detail) == (None, "none found; write it as pcie:ADDRESS")


def test_no_sysfs(driver, monkeypatch):
    monkeypatch.setattr(pcie_driver, "DEVICES", Path("nowhere"))
    assert PcieBoard().discover() == []


def test_several_boards(driver):
    second = driver.device.parent / "0000:02:00.0"
    second.mkdir()
    for name in ("vendor", "device"):
        (second / name).write_bytes((driver.device / name).read_bytes())
    text = refused(None)
    assert "there are 2 PCIe boards" in text
    assert f"--board pcie:{ADDRESS}, --board pcie:0000:02:00.0" in text


def test_an_address_without_its_domain(driver):
    with Client(PcieLink("01:00.0", 8, NO_WAIT)) as client:
        assert client.link.name == f"pcie:{ADDRESS}"


def test_no_driver(driver):
    (driver.device / "driver").unlink()
    assert "the driver ptat_pci does not take the PCIe board" in refused()
    driver.place(0, 0x20_0000_0014_220C)
    assert "no address: switch on 'Above 4G Decoding'" in refused()
    (driver.device.parents[1] / "drivers" / "ptat_pci").rmdir()
    assert "this kernel has no driver for the PCIe board" in refused()
    assert "CONFIG_PTAT_PCI" in refused()


def test_another_driver(driver):
    (driver.device / "driver").unlink()
    other = driver.device.parents[1] / "drivers" / "vfio-pci"
    other.mkdir()
    (driver.device / "driver").symlink_to(other)
    assert "belongs to the driver vfio-pci" in refused()


def test_the_driver_has_no_device(driver):
    (driver.device / "misc" / "ptat-pci").rmdir()
    assert "the driver has no device" in refused()


def test_a_board_beyond_the_addresses_of_a_trace(driver):
    driver.place((1 << 39) - BAR_BYTES)
    with Client(PcieLink(ADDRESS, 8, NO_WAIT)):
        pass
    driver.place(1 << 39)
    assert "a trace has addresses below 0x8000000000 only" in refused()
    assert "MMIO high base" in refused()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.EACCES, "no permission to open"),
        (errno.EBUSY, "is in use: another ptat records with the board"),
        (errno.ENOENT, "there is no"),
        (errno.ENODEV, "No such device: the kernel says more"),
    ],
)
def test_the_device_cannot_be_opened(driver, error, said, capsys):
    driver.open_error = error
    assert said in refused()
    status, found = record()
    assert (status, found) == (2, {})
    assert said.partition(":")[0] in capsys.readouterr().err


def test_wrong_wire_version(driver, capsys):
    driver.identity = (*driver.identity[:2], wire.VERSION + 1, *driver.identity[3:])
    status, found = record()
    assert (status, found) == (2, {})
    said = capsys.readouterr().err
    assert f"captures in wire format {wire.VERSION + 1}" in said
    assert "load the gateware of this ptat" in said
    assert pcie_driver.START not in driver.calls


def test_no_memory_for_the_ring(driver, capsys):
    driver.ring_max = 100
    status, found = record("--ring", "16M")
    assert (status, found) == (2, {})
    assert "no memory for a ring of 16 MiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ("--ring", "x"),
        ("--ring", "0"),
        *(("--patience-ms", value) for value in ("-1", "", "1.", ".5", "nan", "1e3", "٣")),
    ],
)
def test_bad_options(driver, option, capsys):
    assert record(*option)[0] == 2
    assert option[0] in capsys.readouterr().err


def test_granularity_is_the_boards(driver, capsys):
    assert record("--granularity", "64")[0] == 2
    assert "shows 8 bytes" in capsys.readouterr().err


def test_it_needs_no_calibration(driver, capsys):
    assert main(["calibrate", "--board", f"pcie:{ADDRESS}"]) == 2
    assert "it needs no calibration" in capsys.readouterr().err
    with pytest.raises(BoardError, match="needs no calibration"):
        PcieBoard().load(Path("x"))


# Doctor -------------------------------------------------------------------------------------------


def test_doctor(driver):
    checks = PcieBoard().check()
    assert checks[0].ok is True
    assert checks[0].name == f"pcie:{ADDRESS}"
    assert "acorn_pcie, gateware 123412341234" in checks[0].detail
    assert "500 MHz" in checks[0].detail
    driver.open_error = errno.EBUSY
    busy = PcieBoard().check()[0]
    assert busy.ok is False
    assert "in use" in busy.detail


# The driver ---------------------------------------------------------------------------------------


HEADER = (
    Path(__file__).parents[2] / "kernel-patch" / "src" / "include" / "uapi" / "linux" / "ptat_pci.h"
)
PROGRAM = r"""
#include <stdio.h>
#include HEADER
int main(void)
{
    printf("%lu %lu %lu %lu %lu %lu %d %d\n", (unsigned long)PTAT_PCI_IDENTIFY,
           (unsigned long)PTAT_PCI_RING, (unsigned long)PTAT_PCI_START,
           (unsigned long)PTAT_PCI_TAKE, (unsigned long)PTAT_PCI_STOP,
           (unsigned long)PTAT_PCI_COUNTERS, PTAT_PCI_BLOCK_BYTES, PTAT_PCI_COUNTS);
    return 0;
}
"""


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel patch is not there")
def test_calls_are_those_of_the_kernel(tmp_path):
    (tmp_path / "calls.c").write_text(PROGRAM)
    command = ["gcc", f'-DHEADER="{HEADER}"', "-o", tmp_path / "calls", tmp_path / "calls.c"]
    subprocess.run(command, check=True)
    done = subprocess.run([tmp_path / "calls"], capture_output=True, text=True, check=True)
    calls = ("IDENTIFY", "RING", "START", "TAKE", "STOP", "COUNTERS")
    assert [int(word) for word in done.stdout.split()] == [
        *(getattr(pcie_driver, name) for name in calls),
        wire.BLOCK_BYTES,
        14,
    ]


def test_a_link_that_breaks_at_the_stop(driver):
    with Client(PcieLink(ADDRESS, 8, NO_WAIT)) as client, Path("raw").open("wb") as file:
        capture = client.link.capture(file.fileno(), client.host)
        client.command(pcie.Command.START)
        driver.fail_after = (0, errno.EIO)
        with pytest.raises(LinkError, match="does not answer"):
            client.stop(capture)
        capture.finish(None)
        assert capture.failure is not None
