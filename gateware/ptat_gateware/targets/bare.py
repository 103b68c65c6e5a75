# SPDX-License-Identifier: BSD-2-Clause
"""The snooper and its registers with no board, bus or link around them: for its size."""

from __future__ import annotations

from litex.gen import LiteXModule
from litex.soc.interconnect.csr import GenericBank
from migen import ClockDomain

from ptat_gateware.snoop.ddr3 import DDR3Decoder
from ptat_gateware.snooper import Snooper


class Bare(LiteXModule):
    """``pins``: command pins, the stream, and each register's ends towards the bus."""

    def __init__(self, phases: int = 4, ranks: int = 2) -> None:
        self.cd_sys = ClockDomain()
        self.cd_snoop = ClockDomain()
        decoder = DDR3Decoder(phases, ranks)
        self.snooper = snooper = Snooper(decoder)
        self.registers = registers = GenericBank(snooper.get_csrs(), 32, ordering="big")
        self.pins = {
            *(signal for pins in decoder.commands for signal in pins.flatten()),
            *snooper.source.flatten(),
            *(end for csr in registers.simple_csrs for end in (csr.re, csr.r, csr.we, csr.w)),
            *(self.cd_sys.clk, self.cd_sys.rst, self.cd_snoop.clk, self.cd_snoop.rst),
            *(decoder.forget, snooper.sync_pulse, snooper.trigger_pin),
        }
