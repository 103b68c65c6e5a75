# SPDX-License-Identifier: BSD-2-Clause
"""PCIe boards in sysfs, and the ioctls of their driver's ``/dev/ptat-pci``.

See ``include/uapi/linux/ptat_pci.h`` of the series in ``kernel-patch/``. The driver has one mapped
ring of blocks; everything else is an ``ioctl``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from ptat_host import protocol
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import LinkError
from ptat_host.protocol import Identity
from ptat_parser import wire
from ptat_parser.formats.session import BUS_BYTES

DEVICES = Path("/sys/bus/pci/devices")
DRIVERS = Path("/sys/bus/pci/drivers")
NODES = Path("/dev")
DRIVER = "ptat_pci"
PCI_ID = ("0x10ee", "0x5054")
"""Vendor and device in sysfs's notation."""

GONE = {
    errno.ENODEV: "the board is gone: it was removed, or had an error on its bus",
    errno.EIO: "the board does not answer: it was removed, or lost its power",
    errno.ECANCELED: (
        "the region was given up: the board did not answer or was reset, or the machine slept"
    ),
}
"""The driver's errors that end a recording."""

DRIVER_HINT = (
    "boot a kernel with the series in kernel-patch/ and CONFIG_PTAT_PCI;"
    " if that is a module: modprobe ptat_pci"
)
BIOS_HINT = "switch on 'Above 4G Decoding' in the BIOS, or boot with pci=realloc"

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.I)
_IDENTITY = struct.Struct("<20s16sIQIIQ")
_BLOCKS = struct.Struct("<I")
_START = struct.Struct("<Q")
_TAKE = struct.Struct("<II")
_COUNTERS = struct.Struct("<QQQQQ14I")

# Numbers of the driver's calls ------------------------------------------------------------------

_WRITE, _READ = 1, 2


def _call(direction: int, number: int, layout: struct.Struct | None) -> int:
    """As ``_IOC`` of ``linux/ioctl.h``."""
    size = layout.size if layout else 0
    return direction << 30 | size << 16 | 0xBE << 8 | number


IDENTIFY = _call(_READ, 0, _IDENTITY)
RING = _call(_READ | _WRITE, 1, _BLOCKS)
START = _call(_WRITE, 2, _START)
TAKE = _call(_READ | _WRITE, 3, _TAKE)
STOP = _call(0, 4, None)
COUNTERS = _call(_READ, 5, _COUNTERS)

# Boards in sysfs ----------------------------------------------------------------------------------


def addresses() -> list[str]:
    """PCI addresses of the boards in this machine."""
    if not DEVICES.is_dir():
        return []
    return sorted(device.name for device in DEVICES.iterdir() if _pci_id(device) == PCI_ID)


def _pci_id(device: Path) -> tuple[str, str] | None:
    try:
        vendor, number = ((device / name).read_text().strip() for name in ("vendor", "device"))
    except OSError:
        return None  # it was removed meanwhile
    return vendor, number


def find(address: str | None) -> Path:
    """The directory in sysfs of the board at that address (``01:00.0``), or of the only one.

    :raises BoardError: there is none, or no driver is bound to it; says why.
    """
    if address is None:
        there = addresses()
        if len(there) > 1:
            raise BoardError(
                f"there are {len(there)} PCIe boards",
                "choose one: " + ", ".join(f"--board pcie:{one}" for one in there),
            )
        if not there:
            raise BoardError("there is no PCIe board in this machine", "see ptat doctor")
        address = there[0]
    matched = _ADDRESS.fullmatch(address)
    if not matched:
        raise BoardError(f"{address!r} is no PCI address", "write it as pcie:0000:01:00.0")
    device = DEVICES / f"{matched[1] or '0000'}:{matched[2]}".lower()
    found = _pci_id(device)
    if found is None:
        raise BoardError(f"there is no PCI device at {device.name}", "lspci shows what there is")
    if found != PCI_ID:
        raise BoardError(
            f"the PCI device at {device.name} is {found[0][2:]}:{found[1][2:]}, no ptat board",
            f"those are {PCI_ID[0][2:]}:{PCI_ID[1][2:]}; ptat doctor shows them",
        )
    _check_driver(device)
    _check_place(device)
    return device


def _check_driver(device: Path) -> None:
    """Check that our driver is bound to the board."""
    link = device / "driver"
    driver = link.readlink().name if link.is_symlink() else None
    if driver == DRIVER:
        return
    if driver:
        raise BoardError(
            f"the PCIe board at {device.name} belongs to the driver {driver}",
            f"echo {device.name} | sudo tee {link}/unbind {DRIVERS / DRIVER}/bind",
        )
    if not (DRIVERS / DRIVER).exists():
        raise BoardError(
            f"this kernel has no driver for the PCIe board at {device.name}", DRIVER_HINT
        )
    if not _bar(device)[0]:
        raise BoardError(f"the firmware gave the PCIe board at {device.name} no address", BIOS_HINT)
    raise BoardError(
        f"the driver {DRIVER} does not take the PCIe board at {device.name}",
        "the kernel says why: sudo dmesg | grep ptat",
    )


def _bar(device: Path) -> tuple[int, int]:
    """First and last address of BAR 0."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first, last, _ = (device / "resource").read_text().splitlines()[0].split()
        return int(first, 16), int(last, 16)
    return 0, 0


def _check_place(device: Path) -> None:
    last = _bar(device)[1]
    if last >= BUS_BYTES:
        raise BoardError(
            f"the PCIe board at {device.name} is at {last:#x}, and a trace has addresses below"
            f" {BUS_BYTES:#x} only",
            "let the BIOS place 64-bit BARs lower (MMIO high base)",
        )


# The driver's device ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counters:
    """The board's counters since the start."""

    accesses: int
    matched: int
    emitted: int
    lost: int
    blocks: int
    """Blocks written to the ring."""
    counts: tuple[int, ...]
    """Indexed by the register ``decoder_count_select``."""


class Device:
    """The open device of a board. Several threads may use it."""

    def __init__(self, address: str | None) -> None:
        """Open the device of the board at `address`; None: of the only one.

        :raises BoardError: there is none, or it cannot be opened; says why.
        """
        directory = find(address)
        self.address = directory.name
        nodes = sorted(path.name for path in (directory / "misc").glob("*"))
        if not nodes:
            raise BoardError(
                f"the driver has no device for the PCIe board at {self.address}",
                "the kernel says why: sudo dmesg | grep ptat",
            )
        node = NODES / nodes[0]
        try:
            self.fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise BoardError(*_refusal(node, error)) from None

    def close(self) -> None:
        """End the recording, and release the board."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def identity(self) -> Identity:
        """Query the board's identity.

        :raises LinkError: the board is gone; this holds for all methods.
        """
        git_hash, board, version, tick_hz, granularity, channels, _ = _IDENTITY.unpack(
            self._ask(IDENTIFY, bytes(_IDENTITY.size))
        )
        return Identity(
            git_hash=git_hash.hex(),
            wire_version=version,
            channels=channels,
            granularity_bytes=granularity,
            state=protocol.State.IDLE,
            tick_hz=tick_hz,
            board=board.split(b"\0")[0].decode("ascii", errors="replace"),
            serial=self.address,
        )

    def ring(self, blocks: int) -> mmap.mmap:
        """Allocate a ring of at least `blocks` blocks, and map it.

        :raises BoardError: the machine lacks the memory.
        """
        try:
            answer = fcntl.ioctl(self.fd, RING, _BLOCKS.pack(blocks))
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.EINVAL):
                raise self._broken(error) from None
            raise BoardError(
                f"no memory for a ring of {blocks * wire.BLOCK_BYTES >> 20} MiB",
                "choose a smaller --ring, or end other programs",
            ) from None
        (there,) = _BLOCKS.unpack(answer)
        return mmap.mmap(self.fd, there * wire.BLOCK_BYTES, access=mmap.ACCESS_READ)

    def start(self, patience_ns: int) -> None:
        """Begin a recording."""
        self._ask(START, _START.pack(patience_ns))

    def take(self, tail: int) -> int:
        """Return all blocks before `tail` to the ring; return the number of blocks written so far.
        Both count from the start of the recording, modulo 2^32.
        """
        answer = self._ask(TAKE, _TAKE.pack(tail, 0))
        return int(_TAKE.unpack(answer)[1])

    def stop(self) -> bool:
        """End the recording. False: more blocks will come, call again."""
        try:
            fcntl.ioctl(self.fd, STOP)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(error) from None
        return True

    def counters(self) -> Counters:
        """Query the board's counters."""
        accesses, matched, emitted, lost, blocks, *counts = _COUNTERS.unpack(
            self._ask(COUNTERS, bytes(_COUNTERS.size))
        )
        return Counters(accesses, matched, emitted, lost, blocks, tuple(counts))

    def _ask(self, call: int, argument: bytes) -> bytes:
        try:
            return fcntl.ioctl(self.fd, call, argument)
        except OSError as error:
            raise self._broken(error) from None

    def _broken(self, error: OSError) -> LinkError:
        return LinkError(GONE.get(error.errno or 0, f"the driver of the board: {error.strerror}"))


def _refusal(node: Path, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EBUSY:
        return f"{node} is in use", "another ptat records with the board: wait for it"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to open {node}", "use sudo"
    if error.errno == errno.ENOENT:
        return f"there is no {node}", "see that devtmpfs is mounted at /dev"
    return f"{node}: {error.strerror}", "the kernel says more: sudo dmesg | grep ptat"
