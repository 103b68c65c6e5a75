# SPDX-License-Identifier: BSD-2-Clause
"""Where a link's commands meet the firmware: 32-bit words in, 32-bit words out.

The firmware's side are registers, the same for each link::

    while (status.valid) {
            bool last = status.last;
            take the word `request`;
            if (that completes a frame) {       // of a datagram: the one that ends with `last`
                    if (there is an answer)
                            write its words to `response`;
                    control = done;
            } else if (last) {
                    control = done;             // a datagram that was none of ours
            }
    }

``status.busy`` is 0 before the first word of an answer is written.
"""

from __future__ import annotations

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from litex.soc.interconnect.csr_eventmanager import EventManager, EventSourceLevel
from migen import If, Signal

FRAME_WORDS = 256
"""Room for a frame: ``FRAME_BYTES_MAX`` of ``ptat_host.protocol`` is less."""

# Mailbox ------------------------------------------------------------------------------------------


class Mailbox(LiteXModule):
    """Requests from ``sink`` to the firmware, its answers to ``source``.

    ``sink`` has backpressure. A link of datagrams marks the last word of each with ``last``, begins
    one only while ``idle``, and drops those that come otherwise: so an answer always belongs to the
    datagram before it. A link that is a stream of bytes has no ``last``, and ignores ``idle``.

    ``source`` is valid when an answer is complete: ``words`` of them, the last with ``last``.
    """

    def __init__(self) -> None:
        self.sink = stream.Endpoint([("data", 32)])
        self.source = source = stream.Endpoint(
            stream.EndpointDescription([("data", 32)], [("words", 9)])
        )
        self.idle = Signal()

        self.status = CSRStatus(
            description="What the mailbox holds.",
            fields=[
                CSRField("valid", size=1, description="A word of a request can be taken."),
                CSRField("last", size=1, description="It is the last of its datagram."),
                CSRField("busy", size=1, description="An answer is on its way to the link."),
            ],
        )
        self.request = CSRStatus(
            32, description="The next word of a request; reading takes it. Meaningless if none is."
        )
        self.response = CSRStorage(32, description="Writing appends a word to the answer.")
        self.control = CSRStorage(
            fields=[
                CSRField(
                    "done",
                    size=1,
                    pulse=True,
                    description="The request is dealt with: send the words of the answer, if any,"
                    " and let the next request come.",
                ),
            ],
            description="Control.",
        )
        self.ev = EventManager()
        self.ev.request = EventSourceLevel(description="A word of a request can be taken.")
        self.ev.finalize()

        # # #

        self.requests = requests = stream.SyncFIFO([("data", 32)], FRAME_WORDS, buffered=True)
        self.responses = responses = stream.SyncFIFO([("data", 32)], FRAME_WORDS, buffered=True)
        pending = Signal()  # a datagram has come in, or is coming, and is not dealt with
        sending = Signal()
        done = self.control.fields.done
        self.comb += [
            self.sink.connect(requests.sink),
            requests.source.ready.eq(self.request.we),
            self.idle.eq(~pending & ~sending),
            self.request.status.eq(requests.source.data),
            self.status.fields.valid.eq(requests.source.valid),
            self.status.fields.last.eq(requests.source.last),
            self.status.fields.busy.eq(sending),
            self.ev.request.trigger.eq(requests.source.valid),
            responses.sink.valid.eq(self.response.re & ~sending),
            responses.sink.data.eq(self.response.storage),
            source.valid.eq(sending & responses.source.valid),
            source.data.eq(responses.source.data),
            source.last.eq(responses.level == 1),
            responses.source.ready.eq(source.valid & source.ready),
        ]
        self.sync += [
            If(done, pending.eq(0)),
            If(self.sink.valid & self.sink.ready, pending.eq(1)),
            If(
                done & ~sending & (responses.level != 0),
                sending.eq(1),
                source.words.eq(responses.level),
            ),
            If(source.valid & source.ready & source.last, sending.eq(0)),
        ]
