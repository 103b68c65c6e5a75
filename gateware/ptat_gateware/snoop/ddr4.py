# SPDX-License-Identifier: BSD-2-Clause
"""Decoder of the DDR4 command bus (JESD79-4).

Commands in 2T need no option: address pins are valid a CK early, but CS_n is low for one CK only,
and that is when the rank and this decoder look. At the edge connector of an RDIMM nothing is
inverted: that happens behind its register.
"""

from __future__ import annotations

from typing import Any

from migen import Cat, Mux

from ptat_gateware.layouts import BANK_GROUP_BITS, ROW_BITS, ddr4_command_layout
from ptat_gateware.snoop.decoder import ACT, CommandDecoder

BANK_ADDRESS_BITS = 2


def _encoding(pins: Any) -> tuple[Any, Any, Any]:
    code = Cat(pins.a[14], pins.a[15], pins.a[16])
    reserved = pins.act_n & (code == ACT)
    return Mux(pins.act_n, code, ACT), reserved, Cat(pins.ba, pins.bg)


class DDR4Decoder(CommandDecoder):
    """DDR4: 4 groups of 4 banks, 17 row bits, 10 column bits; mirroring as on UDIMM and RDIMM."""

    command_layout = staticmethod(ddr4_command_layout)
    encoding = staticmethod(_encoding)
    bank_bits = BANK_GROUP_BITS + BANK_ADDRESS_BITS
    bank_address_bits = BANK_ADDRESS_BITS
    row_bits = ROW_BITS
    column_pins = (3, 4, 5, 6, 7, 8, 9)
    mirrored_address_pins = ((3, 4), (5, 6), (7, 8), (11, 13))
    mirrored_bank_pins = ((0, 1), (2, 3))
