# SPDX-License-Identifier: BSD-2-Clause
"""SQRL Acorn CLE-215+ (XC7A200T), snooping one channel of DDR3: for Vivado.

The board has no connector with pins enough for a DIMM's tap. So the tap's pins have an I/O standard
and no location: Vivado can place and route the design, but writes no bitstream before someone with
a carrier board gives the pins. What it would take of the FPGA, Yosys tells: ``make bitstream``.
"""

from __future__ import annotations

from typing import Any

from litex.build.generic_platform import IOStandard, Pins, Subsignal
from litex.gen import LiteXModule
from litex.soc.cores.clock import S7IDELAYCTRL, S7PLL
from litex.soc.integration.soc_core import SoCMini
from litex_boards.platforms import sqrl_acorn
from migen import ClockDomain, Signal

from ptat_gateware.layouts import ddr3_command_layout
from ptat_gateware.snoop.capture import S7Capture
from ptat_gateware.targets.soc import PHASES, RANKS, UART_BAUD, add_snooper

SYS_CLOCK_HZ = 125_000_000
CK_HZ = 400_000_000  # DDR3-800

IO: list[Any] = [
    (
        "dimm",
        0,
        Subsignal("ck_p", Pins(1), IOStandard("DIFF_SSTL15")),
        Subsignal("ck_n", Pins(1), IOStandard("DIFF_SSTL15")),
        *(
            Subsignal(name, Pins(bits), IOStandard("SSTL15"))
            for name, bits in ddr3_command_layout(RANKS)
        ),
    ),
    (
        "aux",
        0,
        # The two pins of connector P2 that the UART leaves.
        Subsignal("sync", Pins("J5")),
        Subsignal("trigger", Pins("H5")),
        IOStandard("LVCMOS33"),
    ),
]

# Clocks -------------------------------------------------------------------------------------------


class CRG(LiteXModule):
    """The board's clocks; that of the bus comes with the capture."""

    def __init__(self, platform: Any) -> None:
        self.rst = Signal()
        self.cd_sys = ClockDomain()
        self.cd_idelay = ClockDomain()

        # # #

        self.pll = pll = S7PLL(speedgrade=-3)
        self.comb += pll.reset.eq(self.rst)
        pll.register_clkin(platform.request("clk200"), 200e6)
        pll.create_clkout(self.cd_sys, SYS_CLOCK_HZ)
        pll.create_clkout(self.cd_idelay, 200e6)
        platform.add_false_path_constraints(self.cd_sys.clk, pll.clkin)
        self.idelayctrl = S7IDELAYCTRL(self.cd_idelay)


# SoC ----------------------------------------------------------------------------------------------


class Acorn(SoCMini):
    """The capture device for a DIMM at DDR3-800."""

    def __init__(self) -> None:
        platform = sqrl_acorn.Platform(variant="cle-215+")
        platform.add_extension(IO)

        self.crg = CRG(platform)
        SoCMini.__init__(
            self, platform, SYS_CLOCK_HZ, ident="ptat on Acorn, DDR3-800", ident_version=False
        )
        self.add_uartbone(baudrate=UART_BAUD)
        self.capture = S7Capture(platform, platform.request("dimm"), CK_HZ, PHASES)
        platform.add_false_path_constraints(self.crg.cd_sys.clk, self.capture.cd_snoop.clk)
        add_snooper(self, self.capture, platform.request("aux"))
