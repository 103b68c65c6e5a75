# SPDX-License-Identifier: BSD-2-Clause
"""Modules that a snooper cannot decode are refused by name."""

import pytest

from ptat_host.calibration import spd
from ptat_parser.errors import BadInput


def ddr3(**changes: int) -> bytes:
    """A UDIMM of two ranks, x8, 16 row bits, with swapped wires."""
    data = bytearray(256)
    data[2], data[3], data[5], data[7], data[8], data[63] = 0x0B, 0x02, 0x21, 0x09, 0x03, 0x01
    for at, value in changes.items():
        data[int(at.removeprefix("b"))] = value
    return bytes(data)


def ddr4(**changes: int) -> bytes:
    """A UDIMM of two ranks, x8, 16 row bits, ECC, with swapped wires."""
    data = bytearray(512)
    data[2], data[3], data[5], data[12], data[13], data[131] = 0x0C, 0x02, 0x21, 0x09, 0x0B, 0x01
    for at, value in changes.items():
        data[int(at.removeprefix("b"))] = value
    return bytes(data)


def test_what_a_module_says():
    assert spd.parse(ddr3(), "x") == spd.Module("DDR3", 2, 16, 8, 0b1010)
    assert spd.parse(ddr4(), "x") == spd.Module("DDR4", 2, 16, 8, 0b1010)
    assert spd.parse(ddr4(b131=0), "x").wired_mirror == 0
    # An RDIMM says elsewhere how its register is wired.
    assert spd.parse(ddr4(b3=1), "x").wired_mirror == 0
    assert spd.parse(ddr4(b3=1, b136=1), "x").wired_mirror == 0b1010
    assert spd.parse(ddr3(b8=2), "x").bus_bytes == 4
    assert "odd ranks with swapped wires" in spd.parse(ddr4(), "x").describe()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (ddr4(b3=4), "DDR4 module with LRDIMM buffers"),
        (ddr3(b3=0xB), "DDR3 module with LRDIMM buffers"),
        (ddr4(b6=0b1001_0010), "3D stack"),
        (ddr3(b33=0b1001_0010), "3D stack"),
        (ddr4(b5=0x31), "18 row bits: A17"),
        (ddr4(b3=1, b12=0x19), "registered module of 4 ranks"),
        (ddr3(b3=1, b7=0x19), "registered module of 4 ranks"),
        (ddr4(b12=0x39), "8 ranks"),
        (ddr4(b2=0x12), "DDR5 is not decoded"),
        (ddr4(b2=0x08), "memory of type 0x08"),
        (b"\0" * 128, "128 bytes are not an SPD"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(data, why):
    with pytest.raises(BadInput, match=why):
        spd.parse(data, "x")


def test_dual_die_packages_are_no_3d_stacks():
    """Their dies have chip selects of their own."""
    assert spd.parse(ddr4(b6=0b1001_0001), "x").ranks == 2


def test_files(tmp_path):
    assert spd.installed(tmp_path) == []
    place = tmp_path / "ee1004" / "0-0050"
    place.mkdir(parents=True)
    (place / "eeprom").write_bytes(ddr4())
    (found,) = spd.installed(tmp_path)
    assert spd.read(found).standard == "DDR4"
    with pytest.raises(BadInput, match="No such file"):
        spd.read(tmp_path / "none")
