# SPDX-License-Identifier: BSD-2-Clause
"""Notices that a clock has changed its frequency."""

from __future__ import annotations

from litex.gen import LiteXModule
from migen import If, Mux, Signal
from migen.genlib.cdc import MultiReg

DIVIDER_BITS = 4
WINDOW_BITS = 12
TOLERANCE_SHIFT = 4  # 1/16: far more than spread spectrum, less than any two speed bins differ


class RateWatch(LiteXModule):
    """``changed`` (domain ``sys``): domain ``snoop`` is faster or slower than it was.

    It is compared with ``sys``, over 4,096 of its clocks at a time. A pulse of ``arm`` (``sys``)
    takes the clock of the 4,096 after it for the right one; without any, nothing has changed.
    ``snoop`` may be up to 3 times as fast as ``sys``.
    """

    def __init__(self) -> None:
        self.arm = Signal()
        self.changed = Signal()

        # # #

        divider = Signal(DIVIDER_BITS)
        toggle, before = Signal(), Signal()
        self.sync.snoop += divider.eq(divider + 1)
        self.specials += MultiReg(divider[-1], toggle, "sys")

        window = Signal(WINDOW_BITS)
        count, right = (Signal(WINDOW_BITS - 1) for _ in range(2))
        armed, known = Signal(), Signal()
        difference = Signal(WINDOW_BITS - 1)
        self.comb += difference.eq(Mux(count > right, count - right, right - count))
        self.sync += [
            before.eq(toggle),
            window.eq(window + 1),
            count.eq(count + (toggle != before)),
            If(
                window == 2**WINDOW_BITS - 1,
                count.eq(0),
                If(armed & ~known, right.eq(count), known.eq(1)),
                If(known & (difference > right[TOLERANCE_SHIFT:]), self.changed.eq(1)),
            ),
            If(self.arm, window.eq(0), count.eq(0), armed.eq(1), known.eq(0), self.changed.eq(0)),
        ]
