# SPDX-License-Identifier: BSD-2-Clause
"""The endpoint: what is between a PHY of LitePCIe's, a memory, and the registers of a board.

::

    PHY ─► LinkGuard ─► Completer ─► AccessDecoder ─► Snooper ─► RingLink ┐
                         │     │                                          │
                         │     └─► RegionMemory ─► port of the memory     │
                         ├─► bus: the registers of all of these           │
    PHY ◄─ LinkGuard ◄───┴─ completions ◄────────── writes ◄──────────────┘

All of it runs in one clock domain, ``sys``: PCIe waits, so the domain ``snoop`` of the cores that a
DIMM's bus shares is the same.
"""

from __future__ import annotations

from typing import Any

from litepcie.common import phy_layout
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStatus
from litex.soc.interconnect.packet import Arbiter
from migen import ClockDomainsRenamer, If, Mux, Signal

from ptat_gateware.link.pcie import RingLink
from ptat_gateware.pcie.completer import QUEUE_DEPTH, Completer
from ptat_gateware.pcie.decoder import AccessDecoder
from ptat_gateware.pcie.memory import RegionMemory
from ptat_gateware.snooper import Snooper
from ptat_gateware.stream.buffer import Buffer

WINDOW_BYTES = 64 * 1024  # as LiteX's CSR region
BUFFER_WORDS = 1024  # a block: the deep buffer is the host's ring
FIFO_DEPTH = 128  # words between Encoder and Packer; half of it admits accesses

# Link -------------------------------------------------------------------------------------------


class LinkGuard(LiteXModule):
    """Keeps packets of a link that went down from the next one.

    ``up``: the link works. While it does not, what comes from either side is dropped; afterwards,
    until nothing of before is ``busy`` and no packet is cut, what the endpoint sends. Meanwhile,
    ``dropping``, the host's requests wait.
    """

    def __init__(self, data_width: int) -> None:
        self.receive_sink = receive_sink = stream.Endpoint(phy_layout(data_width))
        self.receive_source = receive_source = stream.Endpoint(phy_layout(data_width))
        self.send_sink = send_sink = stream.Endpoint(phy_layout(data_width))
        self.send_source = send_source = stream.Endpoint(phy_layout(data_width))
        self.up = Signal()
        self.busy = Signal()
        self.dropping = dropping = Signal(reset=1)

        # # #

        inside, cut = Signal(), Signal()  # of a packet to send: before this clock, after it
        self.comb += [
            receive_sink.connect(receive_source, omit={"valid", "ready"}),
            receive_source.valid.eq(receive_sink.valid & ~dropping),
            receive_sink.ready.eq(Mux(dropping, ~self.up, receive_source.ready)),
            send_sink.connect(send_source, omit={"valid", "ready"}),
            send_source.valid.eq(send_sink.valid & ~dropping),
            send_sink.ready.eq(dropping | send_source.ready),
            cut.eq(Mux(send_sink.valid & send_sink.ready, ~send_sink.last, inside)),
        ]
        self.sync += [
            inside.eq(cut),
            If(~self.up, dropping.eq(1)).Elif(~self.busy & ~cut, dropping.eq(0)),
        ]


# Endpoint ---------------------------------------------------------------------------------------


class PCIeEndpoint(LiteXModule):
    """Holds ``bar_bytes`` of page tables in a memory behind ``port``, and traces accesses to them.

    ``phy`` is one of LitePCIe's, whose BAR 0 is that large; ``link_up`` is its link's state,
    ``bus_master`` whether the host lets it write to memory. The last 64 KiB of the BAR are not the
    region but the registers, reached by ``bus`` (Wishbone; its addresses count from the window's
    start). The region is all the rest, or ``region_bytes`` from the BAR's start, if the memory
    holds no more.

    A link that goes down ends a recording: a host that comes up knows nothing of it, and must not
    wait for a ring that nobody empties.
    """

    def __init__(
        self,
        phy: Any,
        link_up: Any,
        bus_master: Any,
        port: Any,
        bar_bytes: int,
        region_bytes: int | None = None,
        queue_depth: int = QUEUE_DEPTH,
    ) -> None:
        self._region_bytes = CSRStatus(
            32, description="Size of the region, which begins where the BAR does."
        )
        decoder = AccessDecoder()  # a part of the snooper
        self.snooper = snooper = ClockDomainsRenamer({"snoop": "sys"})(
            Snooper(decoder, Buffer(BUFFER_WORDS), FIFO_DEPTH)
        )
        self.memory = memory = RegionMemory(port, region_bytes or bar_bytes)
        self.link = link = RingLink(phy.data_width, phy.id, phy.max_payload_size)

        # # #

        self.comb += self._region_bytes.status.eq(region_bytes or bar_bytes - WINDOW_BYTES)

        # Requests -------------------------------------------------------------------------------

        self.guard = guard = LinkGuard(phy.data_width)
        self.completer = completer = Completer(
            phy.data_width, bar_bytes, WINDOW_BYTES, phy.id, region_bytes, queue_depth
        )
        self.bus = completer.bus
        self.comb += [
            phy.source.connect(guard.receive_sink),
            guard.receive_source.connect(completer.sink),
            guard.up.eq(link_up),
            guard.busy.eq(completer.busy),
            completer.abort.eq(guard.dropping),
            completer.command.connect(memory.sink),
            memory.source.connect(completer.response),
        ]

        # Trace ----------------------------------------------------------------------------------

        self.comb += [
            completer.record.connect(decoder.sink),
            decoder.admit.eq(snooper.admit),
            decoder.hurry.eq(guard.dropping),
            decoder.refused.eq(completer.refused),
            decoder.empty.eq(completer.empty),
            snooper.halt.eq(guard.dropping),
            snooper.source.connect(link.sink),
            snooper.restart.eq(link.gate.start),
            link.bus_master.eq(bus_master),
        ]

        # Packets to the host --------------------------------------------------------------------

        self.arbiter = Arbiter([completer.source, link.source], guard.send_sink)
        self.comb += [guard.send_source.connect(phy.sink), link.msi.connect(phy.msi)]
