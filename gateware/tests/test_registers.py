# SPDX-License-Identifier: BSD-2-Clause
"""Every register of ours is explained, and none shares an address."""

import pytest

from ptat_gateware.synthesis.regmap import Register, markdown, registers
from ptat_gateware.targets.ecpix5 import DDR3_800_CK_HZ, ECPIX5


@pytest.fixture(scope="module")
def soc() -> ECPIX5:
    soc = ECPIX5(DDR3_800_CK_HZ)
    soc.finalize()
    return soc


@pytest.fixture(scope="module")
def ours(soc: ECPIX5) -> list[Register]:
    return [register for register in registers(soc) if not register.name.startswith("ctrl_")]


def test_each_register_and_field_has_a_description(ours: list[Register]) -> None:
    assert len(ours) > 30
    for register in ours:
        assert register.description, register.name
        for field in register.fields:
            assert field.description, f"{register.name}.{field.name}"


def test_addresses_do_not_overlap(ours: list[Register]) -> None:
    end = 0
    for register in ours:
        assert register.address >= end, register.name
        end = register.address + 4 * ((register.bits + 31) // 32)


def test_page_shows_all(soc: ECPIX5, ours: list[Register]) -> None:
    page = "\n".join(markdown(soc))
    for register in ours:
        assert f"| `0x{register.address:04x}` | `{register.name}` |" in page
