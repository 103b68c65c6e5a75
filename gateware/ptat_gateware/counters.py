# SPDX-License-Identifier: BSD-2-Clause
"""Many wide counts for the price of a LUT RAM and one adder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from litex.gen import LiteXModule
from migen import Cat, If, Memory, Mux, Signal
from migen.fhdl.bitcontainer import bits_for


@dataclass(frozen=True)
class Count:
    """Counts the events of ``strobes`` (a bit each); they may all come in every clock.

    ``stops_at_bit``: once this bit of the count is set, it stays as it is. None: it wraps.
    """

    strobes: Iterable[Any]
    stops_at_bit: int | None = None


class CounterBank(LiteXModule):
    """Keeps ``counts``, of ``bits`` each, in domain ``snoop``.

    Events are summed up for each count apart, and these small sums are added to the counts in the
    RAM in turn, one a clock: a sum has room for all that may come until it has its turn. ``count``
    is that with the number ``number`` in this clock, each in turn; of what came in the last few
    clocks it does not know yet. ``clear`` (one clock) sets all to 0.
    """

    def __init__(self, counts: list[Count], bits: int) -> None:
        self.clear = Signal()
        self.number = Signal(max=len(counts))
        self.count = Signal(bits)

        # # #

        turn = Signal(len(counts), reset=1)
        index = Signal(max=len(counts))
        clearing = Signal(reset=1)  # for a round: the RAM holds nothing yet
        self.sync.snoop += [
            turn.eq(Cat(turn[-1], turn[:-1])),
            index.eq(index + 1),
            If(turn[-1], index.eq(0), clearing.eq(0)),
            If(self.clear, turn.eq(1), index.eq(0), clearing.eq(1)),
        ]

        # Sums ---------------------------------------------------------------------------------

        summed: Any = 0
        for number, count in enumerate(counts):
            strobes = list(count.strobes)
            increment = Signal(max=len(strobes) + 1)
            total = Signal(bits_for(len(counts) * len(strobes)))
            self.sync.snoop += [
                increment.eq(sum(strobes[1:], strobes[0])),
                total.eq(Mux(turn[number], 0, total) + increment),
                If(self.clear, total.eq(0)),
            ]
            summed |= Mux(turn[number], total, 0)

        # Counts -------------------------------------------------------------------------------

        memory = Memory(bits, 2 ** len(index))
        read = memory.get_port(async_read=True)
        write = memory.get_port(write_capable=True, clock_domain="snoop")
        self.specials += memory, read, write
        stored, added = Signal(bits), Signal(len(summed))
        stops: Any = 0
        for bit in {count.stops_at_bit for count in counts} - {None}:
            these = [turn[i] for i, count in enumerate(counts) if count.stops_at_bit == bit]
            stop = Signal()
            self.sync.snoop += stop.eq(reduce(or_, these))
            stops |= stop & stored[bit]
        self.comb += [
            read.adr.eq(index),
            self.count.eq(stored + Mux(stops, 0, added)),
            write.adr.eq(self.number),
            write.dat_w.eq(self.count),
            write.we.eq(1),
        ]
        self.sync.snoop += [
            self.number.eq(index),
            added.eq(summed),
            stored.eq(read.dat_r),
            If(clearing, stored.eq(0)),
        ]
