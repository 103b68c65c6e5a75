# SPDX-License-Identifier: BSD-2-Clause
"""Decoder of the DDR4 command bus (JESD79-4).

Commands in 2T need no option: address pins are valid a CK early, but CS_n is low for one CK only,
and that is when the rank and this decoder look. At the edge connector of an RDIMM nothing is
inverted: that happens behind its register.

With CAL (command/address latency, MR4 A8:6) CS_n comes 3 to 8 CK before its command: the decoder
delays it by as much. It reads MRS: while MR3 A3 (gear-down) is set, or MR4 has another CAL than
the register ``protocol``, no access is reported, each counts as ``COMMAND``, and the register
``modes`` names the reason. Modes that were set before the decoder was attached are not known to it.
Not decoded: A17 (18 row bits), C2:0 (3D stacks) and ranks encoded in several CS_n.
"""

from __future__ import annotations

from typing import Any

from litex.soc.interconnect.csr import CSRField
from migen import Array, C, Cat, If, Mux, Signal
from migen.genlib.cdc import MultiReg

from ptat_gateware.layouts import BANK_GROUP_BITS, ROW_BITS, ddr4_command_layout
from ptat_gateware.snoop.decoder import ACT, CommandDecoder

BANK_ADDRESS_BITS = 2
GEAR_DOWN_REGISTER, GEAR_DOWN_BIT = 3, 3
CAL_REGISTER, CAL_SHIFT = 4, 6
CAL_CK = (0, 3, 4, 5, 6, 8)  # by MR4 A8:6; 6 and 7 are reserved
CAL_BITS = 3


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
    latency = CommandDecoder.latency + 1

    def _further_fields(self) -> list[Any]:
        return [
            CSRField(
                "cal",
                size=CAL_BITS,
                offset=12,
                description="Command/address latency, as in MR4 A8:6.",
                values=[(f"``{code}``", f"{ck} CK") for code, ck in enumerate(CAL_CK)],
            )
        ]

    def _mode_fields(self) -> list[Any]:
        return [
            CSRField(
                "gear_down", size=1, offset=1, description="MR3 turns gear-down on: not decoded."
            ),
            CSRField("cal", size=1, offset=2, description="MR4 has another CAL than protocol."),
        ]

    def _taken(self) -> list[Any]:
        """With CS_n delayed by CAL; all by a clock."""
        self.cal = self._protocol.fields.cal
        # The levels of CS_n from 8 CK before the first phase on.
        levels = [pins.cs_n for pins in self.commands]
        while len(levels) < self.phases + max(CAL_CK):
            clock = levels[: self.phases]
            before = [Signal(self.ranks, reset=2**self.ranks - 1) for _ in clock]
            self.sync.snoop += [old.eq(new) for old, new in zip(before, clock, strict=True)]
            levels = before + levels
        result = []
        for phase, pins in enumerate(self.commands):
            delayed = self._delayed(pins)
            delayed.cke.reset = delayed.cs_n.reset = C(2**self.ranks - 1)
            now = len(levels) - self.phases + phase
            self.sync.snoop += delayed.cs_n.eq(Array(levels[now - ck] for ck in CAL_CK)[self.cal])
            result.append(delayed)
        return result

    def _mode_refused(self, stage_a: list[Any]) -> Any:
        gear_down, other_cal = Signal(), Signal()
        bus_cal, cal_known = Signal(CAL_BITS), Signal()
        mirror = self._protocol.fields.mirror_mrs
        for command in stage_a:
            mirrored = (command.ranks & mirror) != 0
            a, bank = Signal(len(command.a)), Signal(len(command.bank))
            self.comb += [
                a.eq(self._unmirrored(mirrored, command.a, self.mirrored_address_pins)),
                bank.eq(self._unmirrored(mirrored, command.bank, self.mirrored_bank_pins)),
            ]
            # The bank group is above the bank: BG0 is bit 2 of the register's number.
            self.sync.snoop += If(
                command.mrs,
                If(bank == GEAR_DOWN_REGISTER, gear_down.eq(a[GEAR_DOWN_BIT])),
                If(
                    bank == CAL_REGISTER,
                    bus_cal.eq(a[CAL_SHIFT : CAL_SHIFT + CAL_BITS]),
                    cal_known.eq(1),
                ),
            )
        self.comb += other_cal.eq(cal_known & (bus_cal != self.cal))
        self.specials += [
            MultiReg(gear_down, self._modes.fields.gear_down, "sys"),
            MultiReg(other_cal, self._modes.fields.cal, "sys"),
        ]
        refused = gear_down | other_cal
        for _ in range(3):  # from B to E
            refused = self._delayed(refused)
        return refused
