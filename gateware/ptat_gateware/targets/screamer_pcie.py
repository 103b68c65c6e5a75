# SPDX-License-Identifier: BSD-2-Clause
"""LambdaConcept M.2 Screamer, a board of the PCILeech kind (XC7A35T, FT601), for Vivado.

    PCIe Gen2 x1 ─► PHY ─► PCIeEndpoint ─► 128 KiB of block RAM

The board has no DRAM. Its block RAM holds 32 pages, and the first 16 are those of the markers: 16
page tables, a program of 32 MiB at most. It is enough to see, on a machine at hand, whether the
walker of its CPU reads page tables from a BAR, in what sizes, and how long that takes. The trace
leaves over PCIe, as on other boards; the FT601 is not used.
"""

from __future__ import annotations

from typing import Any

from litex.gen import LiteXModule
from litex.soc.cores.clock import S7PLL
from litex.soc.integration.soc_core import SoCMini
from litex_boards.platforms import lambdaconcept_pcie_screamer_m2
from migen import ClockDomain, Signal

from ptat_gateware.pcie.memory import BlockRAMPort
from ptat_gateware.targets.pcie_soc import CSR_MAP, add_endpoint, make_phy

SYS_CLOCK_HZ = 125_000_000
DATA_WIDTH = 64
REGION_BYTES = 128 * 1024
BAR_BYTES = 256 * 1024

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
        self.ram = BlockRAMPort(REGION_BYTES)
        self.pcie_phy = phy = make_phy(platform, platform.request("pcie_x1"), DATA_WIDTH, BAR_BYTES)
        platform.add_false_path_constraints(self.crg.cd_sys.clk, phy.cd_pcie.clk)
        add_endpoint(self, "Screamer-PCIe", phy, self.ram.port, BAR_BYTES, REGION_BYTES)
