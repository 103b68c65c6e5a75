# SPDX-License-Identifier: BSD-2-Clause
"""Decoder of the DDR3 command bus (JESD79-3F)."""

from __future__ import annotations

from typing import Any

from migen import Cat

from ptat_gateware.layouts import BANK_BITS, ddr3_command_layout
from ptat_gateware.snoop.decoder import MRS, CommandDecoder


def _encoding(pins: Any) -> tuple[Any, Any, Any]:
    code = Cat(pins.we_n, pins.cas_n, pins.ras_n)
    no_such_register = (code == MRS) & pins.ba[2]
    return code, no_such_register, pins.ba


class DDR3Decoder(CommandDecoder):
    """DDR3: 8 banks, 16 row bits, columns of up to 12 bits; mirroring as on UDIMM and SO-DIMM."""

    command_layout = staticmethod(ddr3_command_layout)
    encoding = staticmethod(_encoding)
    bank_bits = BANK_BITS
    bank_address_bits = BANK_BITS
    row_bits = 16
    column_pins = (3, 4, 5, 6, 7, 8, 9, 11, 13)
    mirrored_address_pins = ((3, 4), (5, 6), (7, 8))
    mirrored_bank_pins = ((0, 1),)
