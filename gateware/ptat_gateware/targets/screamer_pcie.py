# SPDX-License-Identifier: BSD-2-Clause
"""LambdaConcept M.2 Screamer, a board of the PCILeech kind (XC7A35T, FT601), for Vivado.

    PCIe Gen2 x1 ─► PHY ─► PCIeEndpoint ─► 132 KiB of block RAM

The board has no DRAM, so the tables are in block RAM, of which the FPGA has 200 KiB: 128 KiB hold
32 page tables, PMD and PTE tables together. They map less than 64 MiB, and what a program has
beyond is not traced. That is enough to learn how the walker of a machine at hand reads tables from
a BAR, in what sizes and how fast, and too little for real programs. The markers' 64 KiB share one
page. The trace leaves over PCIe, as on other boards; the FT601 is not used.
"""

from __future__ import annotations

from typing import Any

from litex.gen import LiteXModule
from litex.soc.cores.clock import S7PLL
from litex.soc.integration.soc_core import SoCMini
from litex_boards.platforms import lambdaconcept_pcie_screamer_m2
from migen import ClockDomain, Signal

from ptat_gateware.pcie.endpoint import WINDOW_BYTES
from ptat_gateware.pcie.memory import BlockRAMPort
from ptat_gateware.targets.pcie_soc import CSR_MAP, add_endpoint, make_phy, phy_state

SYS_CLOCK_HZ = 125_000_000
DATA_WIDTH = 64
BAR_BYTES = 256 * 1024
MARKER_BYTES = 64 * 1024  # of the kernel, at the start of the region
REGION_BYTES = BAR_BYTES - WINDOW_BYTES

# Clocks -------------------------------------------------------------------------------------------


class CRG(LiteXModule):
    """The board's clock; PCIe's come with its PHY."""

    def __init__(self, platform: Any) -> None:
        self.rst = Signal()
        self.cd_sys = ClockDomain()

        # # #

        self.pll = pll = S7PLL(speedgrade=-2)
        self.comb += pll.reset.eq(self.rst)
        pll.register_clkin(platform.request("clk100"), 100e6)
        pll.create_clkout(self.cd_sys, SYS_CLOCK_HZ)
        platform.add_false_path_constraints(self.cd_sys.clk, pll.clkin)


# SoC ----------------------------------------------------------------------------------------------


class ScreamerPCIe(SoCMini):
    """The endpoint with block RAM behind it."""

    csr_map = CSR_MAP

    def __init__(self) -> None:
        platform = lambdaconcept_pcie_screamer_m2.Platform()
        self.crg = CRG(platform)
        SoCMini.__init__(
            self, platform, SYS_CLOCK_HZ, ident="ptat on M.2 Screamer", ident_version=False
        )
        self.ram = BlockRAMPort(REGION_BYTES, MARKER_BYTES)
        self.pcie_phy = phy = make_phy(platform, platform.request("pcie_x1"), DATA_WIDTH, BAR_BYTES)
        platform.add_false_path_constraints(self.crg.cd_sys.clk, phy.cd_pcie.clk)
        add_endpoint(self, "Screamer-PCIe", phy, phy_state(phy), self.ram.port, bar_bytes=BAR_BYTES)
