# SPDX-License-Identifier: BSD-2-Clause
"""LambdaConcept ECPIX-5 as a device of its own: CPU and firmware, DDR3 as buffer, Gigabit Ethernet.

    DIMM tap ─► Capture ─► CaptureSoC ─► chunks in the board's DDR3 ─► Ethernet
     CK / 2 ─► domain "snoop": CK / 4       domain "sys": 60 MHz

The pins of the DIMM's tap are those of `ptat_gateware.targets.ecpix5`. At 60 MHz the buffer takes
an access every 6.7 CK of DDR3-800 for ever, four times what Gigabit Ethernet does; its 32 bits a
clock are 1.9 Gbit/s, and the DRAM's 16 at twice the clock, both edges, 3.8.
"""

from __future__ import annotations

from typing import Any

from litedram.modules import MT41K256M16
from litedram.phy import ECP5DDRPHY
from liteeth.phy.ecp5rgmii import LiteEthPHYRGMII
from litex.gen import LiteXModule
from litex.soc.cores.clock import ECP5PLL
from litex_boards.platforms import lambdaconcept_ecpix5
from migen import ClockDomain, Instance, Signal
from migen.genlib.resetsync import AsyncResetSynchronizer

from ptat_gateware.snoop.capture import ECP5_LVCMOS33_MAX_HZ, ECP5Capture
from ptat_gateware.soc import CaptureSoC, Identity, source_hash
from ptat_gateware.targets.ecpix5 import BOARD_CLOCK_HZ, IO
from ptat_gateware.targets.soc import PHASES

SYS_CLOCK_HZ = 60_000_000
ETHERNET_HZ = 125_000_000
MAC_ADDRESS = 0x0250_5441_5401  # locally administered
IP_ADDRESS = "192.168.1.50"
DELAY_TAPS = 128  # of DELAYF

# Clocks -------------------------------------------------------------------------------------------


class CRG(LiteXModule):
    """The board's clocks, with those that ECP5DDRPHY wants; that of the bus comes with the capture.

    ``stop`` and ``reset`` are for the memory's start-up, which halts ``sys2x``.
    """

    def __init__(self, platform: Any) -> None:
        self.rst = Signal()
        self.stop = Signal()
        self.reset = Signal()
        self.cd_init = ClockDomain()
        self.cd_sys = ClockDomain()
        self.cd_sys2x = ClockDomain()
        self.cd_sys2x_i = ClockDomain()

        # # #

        self.pll = pll = ECP5PLL()
        self.comb += pll.reset.eq(~platform.request("rst_n") | self.rst)
        pll.register_clkin(platform.request("clk100"), BOARD_CLOCK_HZ)
        pll.create_clkout(self.cd_sys2x_i, 2 * SYS_CLOCK_HZ)
        pll.create_clkout(self.cd_init, 25e6)
        self.specials += [
            Instance(
                "ECLKSYNCB",
                i_ECLKI=self.cd_sys2x_i.clk,
                i_STOP=self.stop,
                o_ECLKO=self.cd_sys2x.clk,
            ),
            Instance(
                "CLKDIVF",
                p_DIV="2.0",
                i_ALIGNWD=0,
                i_CLKI=self.cd_sys2x.clk,
                i_RST=self.reset,
                o_CDIVX=self.cd_sys.clk,
            ),
            AsyncResetSynchronizer(self.cd_sys, ~pll.locked | self.reset),
            AsyncResetSynchronizer(self.cd_sys2x, ~pll.locked | self.reset),
        ]


# SoC ----------------------------------------------------------------------------------------------


class ECPIX5SoC(CaptureSoC):
    """The capture device for a DIMM whose CK has ``ck_hz``."""

    @staticmethod
    def required_mhz(ck_hz: int) -> dict[str, float]:
        """Clocks that the domains need."""
        return {
            "sys": SYS_CLOCK_HZ / 1e6,
            "snoop": ck_hz / PHASES / 1e6,
            "eth_rx": ETHERNET_HZ / 1e6,
        }

    def __init__(self, ck_hz: int, git_hash: bytes | None = None) -> None:
        platform = lambdaconcept_ecpix5.Platform(device="85F")
        platform.add_extension(IO)

        self.crg = CRG(platform)
        identity = Identity("ECPIX-5", ck_hz, source_hash() if git_hash is None else git_hash)
        CaptureSoC.__init__(self, platform, SYS_CLOCK_HZ, identity)
        self.ddrphy = ECP5DDRPHY(platform.request("ddram"), sys_clk_freq=SYS_CLOCK_HZ)
        self.comb += [
            self.crg.stop.eq(self.ddrphy.init.stop),
            self.crg.reset.eq(self.ddrphy.init.reset),
        ]
        self.add_dram(self.ddrphy, MT41K256M16(SYS_CLOCK_HZ, "1:2"))
        self.ethphy = LiteEthPHYRGMII(
            clock_pads=platform.request("eth_clocks"), pads=platform.request("eth"), rx_delay=0
        )
        self.add_udp(self.ethphy, MAC_ADDRESS, IP_ADDRESS)
        platform.add_period_constraint(self.ethphy.crg.cd_eth_rx.clk, 1e9 / ETHERNET_HZ)
        # Else Yosys drops the names by which `ptat_gateware.synthesis.bitstream` finds the clocks.
        for domain in (self.crg.cd_sys, self.ethphy.crg.cd_eth_rx):
            domain.clk.attr.add("keep")

        self.capture = capture = ECP5Capture(
            platform,
            platform.request("dimm"),
            ck_hz,
            PHASES,
            ck_max_hz=ECP5_LVCMOS33_MAX_HZ,
        )
        self.add_capture(capture, DELAY_TAPS, platform.request("aux"))
