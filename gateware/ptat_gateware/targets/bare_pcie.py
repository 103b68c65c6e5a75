# SPDX-License-Identifier: BSD-2-Clause
"""The PCIe endpoint with no board around it: for its size, and for its timing on an ECP5.

`CorePCIe` is what the budget of LUTs covers: completer to packer. `BarePCIe` is the whole endpoint,
its ends as pins. `ScannedPCIe` puts it between two shift registers, so that four pins are enough to
place and route it for a real device. Each end is then at a flip-flop, as it is at LitePCIe's PHYs
and LiteDRAM's controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from litedram.common import LiteDRAMNativePort
from litepcie.common import msi_layout, phy_layout
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import GenericBank
from migen import Cat, ClockDomain, ClockDomainsRenamer, If, Signal, log2_int

from ptat_gateware.pcie.completer import Completer
from ptat_gateware.pcie.decoder import AccessDecoder
from ptat_gateware.pcie.endpoint import BUFFER_WORDS, FIFO_DEPTH, WINDOW_BYTES, PCIeEndpoint
from ptat_gateware.snooper import Snooper
from ptat_gateware.stream.buffer import Buffer

DATA_WIDTH = 128
BAR_BYTES = 256 * 1024 * 1024
PORT_WIDTH = 128  # of the Acorn's DRAM: 16 pins, 4 clocks, both edges
SYS_CLOCK_HZ = 125_000_000


class PHYEnds(LiteXModule):
    """What an endpoint sees of a PHY of LitePCIe's."""

    def __init__(self, data_width: int) -> None:
        self.data_width = data_width
        self.sink = stream.Endpoint(phy_layout(data_width))
        self.source = stream.Endpoint(phy_layout(data_width))
        self.msi = stream.Endpoint(msi_layout())
        self.id = Signal(16)
        self.max_payload_size = Signal(16)
        self.link_up = Signal()
        self.bus_master = Signal()


class CorePCIe(LiteXModule):
    """Completer, decoder, filter, stamp, encoder, packer and a buffer, with their registers."""

    def __init__(self) -> None:
        self.cd_sys = ClockDomain()
        completer_id = Signal(16)
        self.completer = completer = Completer(DATA_WIDTH, BAR_BYTES, WINDOW_BYTES, completer_id)
        decoder = AccessDecoder()
        self.snooper = snooper = ClockDomainsRenamer({"snoop": "sys"})(
            Snooper(decoder, Buffer(BUFFER_WORDS), FIFO_DEPTH)
        )
        self.registers = registers = GenericBank(snooper.get_csrs(), 32, ordering="big")
        self.comb += [
            completer.record.connect(decoder.sink),
            decoder.admit.eq(snooper.admit),
            decoder.refused.eq(completer.refused),
            decoder.empty.eq(completer.empty),
        ]
        bus = completer.bus
        endpoints = (completer.sink, completer.source, completer.command, completer.response)
        self.pins = {
            *(signal for endpoint in endpoints for signal in endpoint.flatten()),
            *snooper.source.flatten(),
            *(bus.cyc, bus.stb, bus.we, bus.adr, bus.sel, bus.dat_w, bus.ack, bus.err, bus.dat_r),
            *(end for csr in registers.simple_csrs for end in (csr.re, csr.r, csr.we, csr.w)),
            *(completer_id, completer.abort, completer.busy, snooper.halt, snooper.restart),
            *(self.cd_sys.clk, self.cd_sys.rst, decoder.hurry),
        }


class BarePCIe(LiteXModule):
    """The endpoint and its registers; ``inputs`` and ``outputs`` are their ends."""

    def __init__(self) -> None:
        self.cd_sys = ClockDomain()
        self.phy = phy = PHYEnds(DATA_WIDTH)
        words = BAR_BYTES * 8 // PORT_WIDTH
        port = LiteDRAMNativePort("both", log2_int(words), PORT_WIDTH)
        self.endpoint = endpoint = PCIeEndpoint(phy, phy.link_up, phy.bus_master, port, BAR_BYTES)
        self.registers = registers = GenericBank(endpoint.get_csrs(), 32, ordering="big")
        mailbox = endpoint.link.mailbox
        bus = endpoint.bus
        self.inputs = [
            *_driven(phy.source),
            phy.sink.ready,
            phy.msi.ready,
            phy.id,
            phy.max_payload_size,
            phy.link_up,
            phy.bus_master,
            port.cmd.ready,
            port.wdata.ready,
            *_driven(port.rdata),
            bus.ack,
            bus.err,
            bus.dat_r,
            mailbox.requests.ready,
            *_driven(mailbox.responses),
            *(end for csr in registers.simple_csrs for end in (csr.re, csr.r, csr.we)),
        ]
        self.outputs = [
            phy.source.ready,
            *_driven(phy.sink),
            *_driven(phy.msi),
            *_driven(port.cmd),
            *_driven(port.wdata),
            *(bus.cyc, bus.stb, bus.we, bus.adr, bus.sel, bus.dat_w),
            *_driven(mailbox.requests),
            mailbox.responses.ready,
            *(csr.w for csr in registers.simple_csrs),
        ]
        self.pins = {*self.inputs, *self.outputs, self.cd_sys.clk, self.cd_sys.rst}


def _driven(endpoint: Any) -> Iterable[Any]:
    """The signals of an endpoint, without the one that goes the other way."""
    return [signal for signal in endpoint.flatten() if signal is not endpoint.ready]


class ScannedPCIe(LiteXModule):
    """`BarePCIe` between two shift registers; ``pins``: clock, what is shifted in and out."""

    def __init__(self) -> None:
        self.cores = cores = BarePCIe()
        self.scan_in = Signal()
        self.scan_out = Signal()
        self.load = Signal()

        # # #

        inputs, outputs = Cat(*cores.inputs), Cat(*cores.outputs)
        shifted, taken, seen = Signal(len(inputs)), Signal(len(outputs)), Signal(len(outputs))
        self.comb += [inputs.eq(shifted), self.scan_out.eq(seen[-1])]
        self.sync += [
            shifted.eq(Cat(self.scan_in, shifted)),
            taken.eq(outputs),
            If(self.load, seen.eq(taken)).Else(seen.eq(Cat(self.scan_in, seen))),
        ]
        self.pins = {self.scan_in, self.scan_out, self.load, cores.cd_sys.clk}
