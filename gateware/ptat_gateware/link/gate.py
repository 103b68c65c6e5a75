# SPDX-License-Identifier: BSD-2-Clause
"""The capture stream's way into a link: between recordings nothing passes, and nothing waits."""

from __future__ import annotations

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import If, Signal

from ptat_gateware.layouts import WORD_BITS
from ptat_parser import wire

# Gate ---------------------------------------------------------------------------------------------


class Gate(LiteXModule):
    """Lets whole blocks through while ``running``, and drops them otherwise.

    What it has let in, the link has to get rid of: sent, or dropped once ``running`` is 0. When
    nothing is left of it, the link says ``quiet``; before that no new stream starts.

    ``start`` is 1 for a clock when one does. ``ended`` tells that no more of it will come, ``done``
    comes from the link: all has been sent.
    """

    def __init__(self) -> None:
        self.sink = stream.Endpoint([("data", WORD_BITS)])
        self.source = stream.Endpoint([("data", WORD_BITS)])
        self.quiet = Signal()
        self.done = Signal()
        self.running = running = Signal()
        self.start = Signal()
        self.ended = Signal()
        self.closed = Signal()

        self.control = CSRStorage(
            fields=[
                CSRField(
                    "run",
                    size=1,
                    description="Pass the stream on. A change to 0 drops what the link holds.",
                ),
                CSRField(
                    "end",
                    size=1,
                    pulse=True,
                    description="The stream is complete: no more blocks will come until `run` is"
                    " set again.",
                ),
            ],
            description="Control of the stream.",
        )
        self.status = CSRStatus(
            fields=[
                CSRField("running", size=1, description="The stream is passed on."),
                CSRField(
                    "done", size=1, description="It is complete, and all of it has been sent."
                ),
            ],
            description="State of the stream.",
        )
        self.blocks = CSRStatus(
            32,
            description="Blocks that came from the buffer since the stream started, passed or not.",
        )

        # # #

        index = Signal(max=wire.BLOCK_WORDS)
        inside = Signal()  # of a block that is let through to its end
        first = index == 0
        opened = Signal()
        blocks = self.blocks.status
        self.comb += [
            opened.eq(inside | (first & running)),
            self.sink.connect(self.source, keep={"data", "last"}),
            self.source.valid.eq(self.sink.valid & opened),
            self.sink.ready.eq(self.source.ready | ~opened),
            self.closed.eq(~running & ~inside),
            self.start.eq(
                self.control.fields.run & self.closed & self.quiet & first & ~self.sink.valid
            ),
            self.status.fields.running.eq(running),
            self.status.fields.done.eq(self.ended & self.done),
        ]
        self.sync += [
            If(
                self.sink.valid & self.sink.ready,
                index.eq(index + 1),
                inside.eq(opened & (index != wire.BLOCK_WORDS - 1)),
                If(index == wire.BLOCK_WORDS - 1, blocks.eq(blocks + 1)),
            ),
            If(self.control.fields.end, self.ended.eq(1)),
            If(self.start, running.eq(1), blocks.eq(0)),
            If(~self.control.fields.run, running.eq(0), self.ended.eq(0)),
        ]
