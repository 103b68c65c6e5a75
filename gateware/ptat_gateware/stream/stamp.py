# SPDX-License-Identifier: BSD-2-Clause
"""Time: a free-running counter, and an external pulse by which several boards share it."""

from __future__ import annotations

from litex.gen import LiteXModule
from migen import Cat, Constant, If, Signal, log2_int
from migen.genlib.cdc import MultiReg

from ptat_parser import wire

SYNC_NUMBER_BITS = wire.MARK_ARGUMENT_BITS - wire.SYNC_NUMBER_SHIFT


class Stamp(LiteXModule):
    """Counts the clocks of domain ``snoop``; one clock is ``phases`` ticks (CK).

    ``clocks`` is the time now, in clocks; ``time``, in ticks, that of phase 0. Accesses of a
    clock are stamped some clocks after they were on the bus, always the same number: an offset
    that all boards share.

    A rising edge at ``pulse``, which may be asynchronous, is numbered, and is ``pending`` until
    ``done``; ``age`` (ticks, all ones if it is more) then tells how long ago it was.

    ``advance`` skips clocks, for simulations; tied to zero it costs nothing.
    """

    def __init__(self, phases: int) -> None:
        phase_bits = log2_int(phases)
        self.clocks = Signal(wire.TIME_BITS - phase_bits)
        self.time = Signal(wire.TIME_BITS)
        self.advance = Signal(32)

        self.pulse = Signal()
        self.pending = Signal()
        self.done = Signal()
        self.number = Signal(SYNC_NUMBER_BITS)
        self.age = Signal(wire.SYNC_NUMBER_SHIFT)

        # # #

        self.sync.snoop += self.clocks.eq(self.clocks + 1 + self.advance)
        self.comb += self.time.eq(Cat(Constant(0, phase_bits), self.clocks))

        pulse, before = Signal(), Signal()
        age_clocks = Signal(wire.SYNC_NUMBER_SHIFT - phase_bits)
        self.specials += MultiReg(self.pulse, pulse, "snoop")
        self.sync.snoop += [
            before.eq(pulse),
            If(age_clocks != 2 ** len(age_clocks) - 1, age_clocks.eq(age_clocks + 1)),
            If(self.done, self.pending.eq(0)),
            If(
                pulse & ~before,
                self.pending.eq(1),
                self.number.eq(self.number + 1),
                age_clocks.eq(1),
            ),
        ]
        self.comb += [
            self.age[phase_bits:].eq(age_clocks),
            If(age_clocks == 2 ** len(age_clocks) - 1, self.age.eq(2 ** len(self.age) - 1)),
        ]
