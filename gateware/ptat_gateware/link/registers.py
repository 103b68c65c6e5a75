# SPDX-License-Identifier: BSD-2-Clause
"""The link that needs nothing but registers: for bringing up a board, and for slow buses.

Through a UART bridge of 1 Mbaud about 12,000 records reach the host in a second. What does not
fit waits in the buffer, and what the buffer cannot hold is counted as lost, as with any link.
"""

from __future__ import annotations

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus
from migen import If, Signal, bits_for

# Register Link ------------------------------------------------------------------------------------


class RegisterLink(LiteXModule):
    """Blocks of the capture stream, read through one register.

    ``sink`` takes the stream: 64 bits, ``last`` at a block's check word.
    """

    def __init__(self, depth: int = 512) -> None:
        self.sink = stream.Endpoint([("data", 64)])

        self.status = CSRStatus(
            description="What can be read from `data`.",
            fields=[
                CSRField(
                    "level",
                    size=bits_for(depth + 1),  # one more is in the output register
                    description="32-bit words of the capture stream that wait here.",
                ),
                CSRField(
                    "first",
                    offset=16,
                    description="The next word is the first of a block.",
                ),
            ],
        )
        self.data = CSRStatus(
            32,
            description="Next 32 bits of the capture stream, the low half of a 64-bit word first."
            " Reading takes them. Without meaning while `level` is 0.",
        )

        # # #

        self.converter = stream.Converter(64, 32)
        self.fifo = stream.SyncFIFO([("data", 32)], depth, buffered=True)
        self.submodules.pipeline = stream.Pipeline(self.sink, self.converter, self.fifo)

        first = Signal(reset=1)
        source = self.fifo.source
        self.comb += [
            self.status.fields.level.eq(self.fifo.level),
            self.status.fields.first.eq(first),
            self.data.status.eq(source.data),
            source.ready.eq(self.data.we),
        ]
        self.sync += If(source.valid & source.ready, first.eq(source.last))
