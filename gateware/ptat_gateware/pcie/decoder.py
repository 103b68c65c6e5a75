# SPDX-License-Identifier: BSD-2-Clause
"""Accesses of the endpoint, as the decoders of a DIMM's command bus give theirs.

::

    record ─► AccessDecoder ─► WindowFilter ─► Trigger ─► Encoder ─► … (snooper.py)
                   ▲                                                  │
                   └──────────────────── admit ◄──────────────────────┘

A memory bus does not wait, so behind a decoder nothing can be stalled. PCIe does wait: an access is
let through only while what follows has room for it and for all that is already on the way. So no
record is ever lost, unless the host limits the wait.
"""

from __future__ import annotations

from typing import ClassVar

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import If, Signal

from ptat_gateware.counters import Count, CounterBank
from ptat_gateware.layouts import Illegal, access_layout, illegal_layout
from ptat_gateware.pcie.layouts import Refused, record_layout
from ptat_gateware.snoop.decoder import (
    ACCESS_COUNT,
    COUNT_BITS,
    COUNTER_BITS,
    NO_COUNT,
)

# Counts, by number: those of refused packets by kind, then these.
PARTIAL_COUNT = len(Illegal)  # accesses of other than 8 aligned bytes
EMPTY_COUNT = ACCESS_COUNT + 1  # requests that touch no byte
HELD_COUNT = EMPTY_COUNT + 1  # clocks in which an access waited
OVERDUE_COUNT = HELD_COUNT + 1  # accesses let through because they waited too long

PATIENCE_BITS = 24  # 134 ms at 125 MHz


class AccessDecoder(LiteXModule):
    """Lets accesses through while there is room; in domain ``snoop``, as all behind it.

    ``sink`` are the records of the completer, ``sources`` their accesses a clock later (``ready``
    is ignored). ``admit``: an access that enters now is not lost. ``hurry``: nobody waits for the
    accesses any more, so they go through, room or not.

    A clock counts as 4 ticks, as of a DIMM's 4 commands a clock. ``refused`` and ``empty`` are
    strobes of the completer's, in the same clock domain.
    """

    phases: ClassVar[int] = 4
    gives_addresses: ClassVar[bool] = True

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint(record_layout)
        self.sources = [stream.Endpoint(access_layout)]
        self.admit = Signal()
        self.hurry = Signal()
        self.refused = Signal(len(Refused))
        self.empty = Signal()

        # As of all decoders.
        self.illegal = stream.Endpoint(illegal_layout)
        self.clear = Signal()
        self.matched = [Signal()]

        self._patience = CSRStorage(
            PATIENCE_BITS,
            description="Clocks for which an access waits for room at the most; then it is answered"
            " without, and a record that finds no room is counted as lost. 0: it waits for ever. A"
            " root port gives a read up after its completion timeout (50 us to 50 ms by default).",
        )
        self._count_select = CSRStorage(
            4,
            description="Which count the next register shows: "
            + ", ".join(f"{kind.value} {kind.name}" for kind in Refused)
            + f" (refused packets by kind), {PARTIAL_COUNT} (accesses of other than 8 aligned"
            f" bytes), {EMPTY_COUNT} (requests that touch no byte), {HELD_COUNT} (clocks in which"
            f" an access waited), {OVERDUE_COUNT} (accesses that waited too long).",
        )
        self._count = CSRStatus(
            description="The selected count since recording started, as it was soon after it was"
            " selected.",
            fields=[
                CSRField(
                    "count",
                    size=COUNT_BITS,
                    description="How many. Stays where it is from half of its range on.",
                ),
                CSRField(
                    "kind",
                    size=4,
                    description=f"Whose count it is; {NO_COUNT}: of none, it is still on its way.",
                ),
            ],
        )

        # # #

        # Holding --------------------------------------------------------------------------------

        patience = self._patience.storage
        waited = Signal(PATIENCE_BITS)
        overdue = Signal()
        taken = Signal()
        source = self.sources[0]
        self.comb += [
            sink.ready.eq(self.admit | self.hurry | overdue),
            taken.eq(sink.valid & sink.ready),
        ]
        self.sync.snoop += [
            overdue.eq((waited >= patience) & (patience != 0)),
            waited.eq(waited + 1),
            If(~sink.valid | taken, waited.eq(0), overdue.eq(0)),
            source.valid.eq(taken),
            source.write.eq(sink.write),
            source.address.eq(sink.address),
        ]

        # The stream marks refused packets: what they were to store is not in the region.
        self.sync.snoop += [
            self.illegal.code.eq(self.refused),
            self.illegal.code[Refused.MESSAGE].eq(0),
        ]
        self.comb += self.illegal.valid.eq(self.illegal.code != 0)

        # Counters -------------------------------------------------------------------------------

        stops = COUNT_BITS - 1
        unused = len(Illegal) - len(Refused)
        self.counters = counters = CounterBank(
            [
                *(Count([self.refused[kind]], stops) for kind in Refused),
                *(Count([0], stops) for _ in range(unused)),
                Count([taken & sink.partial], stops),
                Count(self.matched),
                Count([taken]),
                Count([self.empty], stops),
                Count([sink.valid & ~sink.ready], stops),
                Count([taken & ~self.admit], stops),
            ],
            COUNTER_BITS,
        )
        self.comb += counters.clear.eq(self.clear)
        select = self._count_select
        asking = Signal()
        count = self._count.fields
        count.kind.reset = NO_COUNT
        self.sync.snoop += [
            If(
                asking & (counters.number == select.storage),
                asking.eq(0),
                count.count.eq(counters.count[:COUNT_BITS]),
                count.kind.eq(select.storage),
            ),
            If(select.re, asking.eq(1), count.kind.eq(NO_COUNT)),
        ]
