# SPDX-License-Identifier: BSD-2-Clause
"""Link over PCIe: blocks into a ring of host memory, interrupts, and a mailbox in the BAR.

::

    sink ─► Gate ─► RingGate ─► LitePCIe's DMA writer ─► PacketGate ─► words of the PHY
                       ▲ one block more                                  │
                       └──────── delivered ◄─ DeliveryCounter ◄──────────┘

The ring is as many blocks as `ring_blocks` says, where the descriptors of the DMA writer put them
(in its mode *loop*). `ring_head` counts the blocks whose last word has left for the host,
`ring_tail` those that the host is done with; a block begins only while there is a free place. A
completion never passes a write that was sent before (section 2.4.1 of the PCI Express Base
Specification 3.0), so a host that reads `ring_head` finds the blocks in its memory. It need not: a
block's sequence number and check word tell that it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litepcie.common import phy_layout
from litepcie.core.common import LitePCIeMasterInternalPort, LitePCIeMasterPort
from litepcie.core.msi import LitePCIeMSI
from litepcie.frontend.dma import LitePCIeDMAWriter
from litepcie.tlp.packetizer import LitePCIeTLPPacketizer
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import If, Mux, ResetInserter, Signal

from ptat_gateware.layouts import WORD_BITS
from ptat_gateware.link.gate import Gate
from ptat_parser import wire

COUNT_BITS = 32
ADDRESS_BITS = 64  # of host memory
BLOCK_DWORDS = wire.BLOCK_BYTES // 4

# Interrupts, by their bit in `msi_enable` and `msi_vector`.
IRQ_RING, IRQ_MAILBOX = range(2)

# Ring -------------------------------------------------------------------------------------------


class DeliveryCounter(LiteXModule):
    """Counts blocks as their words leave for the host: watches packets that only write blocks.

    ``dat`` of the first word of a packet has its length in the low 10 bits, in dwords. ``count``
    goes up with the last word of the packet that completes a block.
    """

    def __init__(self, data_width: int) -> None:
        self.watch = watch = stream.Endpoint(phy_layout(data_width))  # nothing drives `ready` here
        self.count = Signal(COUNT_BITS)
        self.restart = Signal()

        # # #

        first = Signal(reset=1)
        length, dwords = Signal(10), Signal(max=2 * BLOCK_DWORDS)
        now = Signal(10)
        passes = watch.valid & watch.ready
        total = Signal(max=2 * BLOCK_DWORDS)
        self.comb += [
            If(first, now.eq(watch.dat[:10])).Else(now.eq(length)),
            total.eq(dwords + now),
        ]
        self.sync += [
            If(
                passes,
                first.eq(watch.last),
                length.eq(now),
                If(
                    watch.last,
                    dwords.eq(total[: (BLOCK_DWORDS - 1).bit_length()]),
                    If(total >= BLOCK_DWORDS, self.count.eq(self.count + 1)),
                ),
            ),
            If(self.restart, dwords.eq(0), self.count.eq(0)),
        ]


class PacketGate(LiteXModule):
    """Passes packets that begin while ``open``, and drops the others."""

    def __init__(self, data_width: int) -> None:
        self.sink = sink = stream.Endpoint(phy_layout(data_width))
        self.source = source = stream.Endpoint(phy_layout(data_width))
        self.open = Signal()

        # # #

        first = Signal(reset=1)
        passing, passes = Signal(), Signal()  # this packet: as it began, and now
        self.comb += [
            passes.eq(Mux(first, self.open, passing)),
            sink.connect(source, omit={"valid", "ready"}),
            source.valid.eq(sink.valid & passes),
            sink.ready.eq(source.ready | ~passes),
        ]
        self.sync += [
            # A word that was offered stays: the packet has begun.
            If(sink.valid, passing.eq(passes), first.eq(sink.ready & sink.last)),
        ]


class RingGate(LiteXModule):
    """Lets a block begin while the ring has a free place; ``delivered`` are blocks in the ring.

    ``enable``: the DMA writer works. While it does not, the ring is empty; the rest of a block that
    was on its way is dropped. ``irq`` is 1 for a clock when ``delivered`` reaches the number that
    the host waits for.
    """

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint([("data", WORD_BITS)])
        self.source = source = stream.Endpoint([("data", WORD_BITS)])
        self.delivered = Signal(COUNT_BITS)
        self.enable = Signal()
        self.empty = Signal()  # all that has begun is delivered
        self.irq = Signal()

        self._blocks = CSRStorage(
            COUNT_BITS, description="Blocks that the ring holds; 0: the host has none."
        )
        self._head = CSRStatus(
            COUNT_BITS, description="Blocks that are in the ring or were, modulo 2^32."
        )
        self._tail = CSRStorage(
            COUNT_BITS, description="Blocks that the host is done with, modulo 2^32."
        )
        self._wake = CSRStorage(
            COUNT_BITS,
            description="Interrupt once, when head has reached this or is beyond; writing arms it.",
        )

        # # #

        begun = Signal(COUNT_BITS)  # blocks that have begun to go into the ring
        inside, torn = Signal(), Signal()  # of a block that goes into the ring; of its lost rest
        free, armed, wake = Signal(), Signal(), Signal()
        ahead = Signal(COUNT_BITS)
        passing = inside | free & ~torn
        self.comb += [
            sink.connect(source, omit={"valid", "ready"}),
            source.valid.eq(sink.valid & passing & self.enable),
            sink.ready.eq(source.ready & passing & self.enable | torn),
            self._head.status.eq(self.delivered),
            ahead.eq(self.delivered - self._wake.storage),
            wake.eq(armed & ~ahead[-1]),
            self.irq.eq(wake),
            self.empty.eq((begun == self.delivered) & ~inside & ~torn),
        ]
        self.sync += [
            # A register, for timing. It is stale for a clock after a block has begun, and no block
            # is so short.
            free.eq(self.enable & (begun - self._tail.storage < self._blocks.storage)),
            If(
                source.valid & source.ready,
                inside.eq(~sink.last),
                If(~inside, begun.eq(begun + 1)),
            ),
            If(sink.valid & sink.last, torn.eq(0)),
            If(~self.enable, begun.eq(0), inside.eq(0)),
            If(~self.enable & inside, torn.eq(1)),
            If(wake | ~self.enable, armed.eq(0)),
            If(self._wake.re, armed.eq(1)),
        ]


# Mailbox ----------------------------------------------------------------------------------------


class HostMailbox(LiteXModule):
    """The host's side of a `Mailbox`: frames word by word, through registers of the BAR.

    Reading has no effect, as the BAR is prefetchable: a word of an answer is taken by a write.
    ``requests`` and ``responses`` are the mailbox's. ``irq`` is 1 for a clock when an answer has
    come.
    """

    def __init__(self) -> None:
        self.requests = requests = stream.Endpoint([("data", 32)])
        self.responses = responses = stream.Endpoint(
            stream.EndpointDescription([("data", 32)], [("words", 9)])
        )
        self.irq = Signal()

        self._status = CSRStatus(
            fields=[
                CSRField("room", size=1, description="A word of a request can be written."),
                CSRField("valid", size=1, description="`response` is a word of an answer."),
                CSRField("last", size=1, description="It is the last of the answer."),
            ],
            description="State of the mailbox.",
        )
        self._request = CSRStorage(
            32, description="Writing appends a word to the request, if there is room for one."
        )
        self._response = CSRStatus(32, description="The next word of the answer.")
        self._take = CSRStorage(description="Writing takes the word of the answer.")

        # # #

        before = Signal()
        waiting, word = Signal(), Signal(32)
        self.comb += [
            requests.valid.eq(waiting),
            requests.data.eq(word),
            self._status.fields.room.eq(~waiting),
            self._status.fields.valid.eq(responses.valid),
            self._status.fields.last.eq(responses.last),
            self._response.status.eq(responses.data),
            responses.ready.eq(self._take.re),
            self.irq.eq(responses.valid & ~before),
        ]
        self.sync += [
            before.eq(responses.valid),
            If(requests.ready, waiting.eq(0)),
            If(self._request.re & ~waiting, waiting.eq(1), word.eq(self._request.storage)),
        ]


# Link -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PHY:
    """What LitePCIe's DMA writer wants to know of the endpoint that it belongs to."""

    data_width: int
    max_payload_size: Any
    id: Any


@dataclass(frozen=True)
class _Endpoint:
    phy: _PHY


class RingLink(LiteXModule):
    """Blocks from ``sink`` to a ring in host memory, as packets on ``source``; see `Gate`.

    ``requester`` and ``max_payload_bytes`` are what the host gave the endpoint. While it is no bus
    master, nothing is sent, and the ring is empty. ``mailbox`` is the host's side of a `Mailbox`,
    of which a board with firmware has the other. ``msi`` are interrupts for the PHY.
    """

    def __init__(self, data_width: int, requester: Any, max_payload_bytes: Any) -> None:
        self.source = source = stream.Endpoint(phy_layout(data_width))
        self.bus_master = Signal()

        # # #

        self.gate = gate = Gate()
        self.ring = ring = RingGate()
        endpoint = _Endpoint(_PHY(data_width, max_payload_bytes, requester))
        port = LitePCIeMasterPort(
            LitePCIeMasterInternalPort(data_width, ADDRESS_BITS, channel=0, write_only=True)
        )
        self.writer = writer = LitePCIeDMAWriter(endpoint, port, address_width=ADDRESS_BITS)
        # Half a word must not be left in it when the writer is turned off.
        self.converter = converter = ResetInserter()(stream.Converter(WORD_BITS, data_width))
        # For timing: from the writer's table through both and back is too long for 125 MHz.
        self.stage = stage = stream.PipeValid(port.source.description)
        self.packetizer = packetizer = LitePCIeTLPPacketizer(
            data_width, endianness="big", address_width=ADDRESS_BITS, capabilities=["REQUEST"]
        )
        self.packets = packets = PacketGate(data_width)
        self.counter = counter = DeliveryCounter(data_width)
        self.mailbox = mailbox = HostMailbox()
        self.interrupts = interrupts = LitePCIeMSI(width=2)
        self.sink = gate.sink
        self.msi = interrupts.source

        self.comb += [
            gate.source.connect(ring.sink),
            ring.source.connect(converter.sink, keep={"valid", "ready", "data"}),
            converter.source.connect(writer.sink, keep={"valid", "ready", "data"}),
            converter.reset.eq(~ring.enable),
            port.source.connect(stage.sink),
            stage.source.connect(packetizer.req_sink),
            packetizer.source.connect(packets.sink),
            packets.open.eq(self.bus_master),
            packets.source.connect(source),
            counter.watch.valid.eq(source.valid),
            counter.watch.ready.eq(source.ready),
            counter.watch.last.eq(source.last),
            counter.watch.dat.eq(source.dat),
            counter.restart.eq(~ring.enable),
            ring.enable.eq(writer.enable & self.bus_master),
            ring.delivered.eq(counter.count),
            gate.quiet.eq(ring.empty),
            gate.done.eq(ring.empty),
            interrupts.irqs[IRQ_RING].eq(ring.irq),
            interrupts.irqs[IRQ_MAILBOX].eq(mailbox.irq),
        ]
