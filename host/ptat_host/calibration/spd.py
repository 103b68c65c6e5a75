# SPDX-License-Identifier: BSD-2-Clause
"""Parses a memory module's SPD, and decides whether a snooper can decode its bus.

JESD21-C, annex K (DDR3) and annex L (DDR4). Undecodable modules are refused by name: a tap that
lacks a pin would otherwise silently report two rows or ranks as one.

Linux shows the SPD as ``/sys/bus/i2c/devices/*/eeprom`` (drivers ee1004, spd5118 and at24).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ptat_parser.errors import BadInput

I2C = Path("/sys/bus/i2c/drivers")
DRIVERS = ("ee1004", "spd5118", "at24")

BYTES_MIN = 256
DDR3, DDR4, DDR5 = 0x0B, 0x0C, 0x12
NAMES = {DDR3: "DDR3", DDR4: "DDR4"}
REGISTERED = {DDR3: {0x1, 0x5, 0x9}, DDR4: {0x1, 0x5, 0x8}}
LOAD_REDUCED = {DDR3: 0xB, DDR4: 0x4}
SINGLE_LOAD_STACK = 0b10
ROW_BITS_MAX = 17
HINT = "put the tap on a module that can be decoded: docs/hardware.md"


@dataclass(frozen=True)
class Module:
    """A module whose bus can be decoded."""

    standard: str
    ranks: int
    row_bits: int
    bus_bytes: int
    """Width of the data bus without ECC."""
    wired_mirror: int
    """Ranks (a bit each) whose address wires are swapped, whether or not the controller
    compensates."""

    def describe(self) -> str:
        """One readable line."""
        mirrored = ", odd ranks with swapped wires" if self.wired_mirror else ""
        return (
            f"{self.standard}, {self.ranks} rank(s), {self.row_bits} row bits,"
            f" {8 * self.bus_bytes} bits wide{mirrored}"
        )


def parse(data: bytes, name: str) -> Module:
    """Parse an SPD.

    :param data: its first 256 bytes or more.
    :param name: of the file, for errors.
    :raises BadInput: it is no SPD, or of a module that cannot be decoded; the message says why.
    """
    if len(data) < BYTES_MIN:
        raise BadInput(f"{name}: {len(data)} bytes are not an SPD", "give all of the SPD's bytes")
    kind, form = data[2], data[3] & 0xF
    if kind not in NAMES:
        what = "DDR5" if kind == DDR5 else f"memory of type {kind:#04x}"
        raise BadInput(f"{name}: {what} is not decoded", "use DDR3 or DDR4")
    ddr4 = kind == DDR4
    organization = data[12] if ddr4 else data[7]
    width = data[13] if ddr4 else data[8]
    registered = form in REGISTERED[kind]
    module = Module(
        standard=NAMES[kind],
        ranks=(organization >> 3 & 7) + 1,
        row_bits=(data[5] >> 3 & 7) + 12,
        bus_bytes=1 << (width & 3),
        wired_mirror=0b1010 if _mirrored(data, ddr4, registered) else 0,
    )
    stacked = data[6] if ddr4 else data[33]
    refused = {
        "LRDIMM buffers, which drive ranks that differ from those on the tap": form
        == LOAD_REDUCED[kind],
        "a 3D stack (3DS): chip IDs C0 to C2 are not decoded": (
            bool(stacked & 0x80) and stacked & 3 == SINGLE_LOAD_STACK
        ),
        f"{module.row_bits} row bits: A17 is not decoded": module.row_bits > ROW_BITS_MAX,
        "a registered module of 4 ranks: ranks encoded in several chip selects are not decoded": (
            registered and module.ranks > 2
        ),
        f"{module.ranks} ranks: at most 4 are decoded": module.ranks > 4,
    }
    for why, applies in refused.items():
        if applies:
            raise BadInput(f"{name}: {module.standard} module with {why}", HINT)
    return module


def _mirrored(data: bytes, ddr4: bool, registered: bool) -> bool:
    if not ddr4:
        return not registered and bool(data[63] & 1)
    return bool(data[136 if registered else 131] & 1)


def read(path: Path) -> Module:
    """Parse the SPD in a file.

    :raises BadInput: see `parse`; or it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "give a file with the SPD's bytes") from None
    return parse(data, str(path))


def installed(root: Path = I2C) -> list[Path]:
    """The SPDs of this machine that Linux shows."""
    found = [path for driver in DRIVERS for path in root.glob(f"{driver}/*-005[0-7]/eeprom")]
    return sorted(found)
