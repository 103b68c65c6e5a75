# SPDX-License-Identifier: BSD-2-Clause
"""SQRL Acorn CLE-215+ (XC7A200T) in an M.2 slot: 256 MiB of page tables in its BAR, for Vivado.

    PCIe Gen2 x4 ─► PHY ─► PCIeEndpoint ─► LiteDRAM ─► 1 GiB of DDR3
                              │ registers
                              └─► CSR bus ◄─ VexRiscv with LiteX's BIOS

The CPU trains the DRAM at power-up, as LiteX's BIOS does on any board, and is idle afterwards. The
host alone sets up the endpoint, through the register window of the BAR.
"""

from __future__ import annotations

from typing import Any

from litedram.modules import MT41K512M16
from litedram.phy.s7ddrphy import A7DDRPHY
from litex.gen import LiteXModule
from litex.soc.cores.clock import S7IDELAYCTRL, S7PLL
from litex.soc.integration.soc_core import SoCCore
from litex_boards.platforms import sqrl_acorn
from migen import ClockDomain, Signal

from ptat_gateware.targets.pcie_soc import CSR_MAP, MIB, add_endpoint, make_phy, phy_state
from ptat_gateware.targets.soc import UART_BAUD

SYS_CLOCK_HZ = 125_000_000
IDELAY_CLOCK_HZ = 200_000_000
DATA_WIDTH = 128  # Gen2 x4 at 125 MHz
BAR_BYTES = 256 * MIB
ROM_BYTES = 64 * 1024  # LiteX's BIOS
SRAM_BYTES = 8 * 1024

# Clocks -------------------------------------------------------------------------------------------


class CRG(LiteXModule):
    """The board's clocks, with those of the memory; PCIe's come with its PHY."""

    def __init__(self, platform: Any) -> None:
        self.rst = Signal()
        self.cd_sys = ClockDomain()
        self.cd_sys4x = ClockDomain()
        self.cd_sys4x_dqs = ClockDomain()
        self.cd_idelay = ClockDomain()

        # # #

        self.pll = pll = S7PLL(speedgrade=-3)
        self.comb += pll.reset.eq(self.rst)
        pll.register_clkin(platform.request("clk200"), 200e6)
        pll.create_clkout(self.cd_sys, SYS_CLOCK_HZ)
        pll.create_clkout(self.cd_sys4x, 4 * SYS_CLOCK_HZ)
        pll.create_clkout(self.cd_sys4x_dqs, 4 * SYS_CLOCK_HZ, phase=90)
        pll.create_clkout(self.cd_idelay, IDELAY_CLOCK_HZ)
        platform.add_false_path_constraints(self.cd_sys.clk, pll.clkin)
        self.idelayctrl = S7IDELAYCTRL(self.cd_idelay)


# SoC ----------------------------------------------------------------------------------------------


class AcornPCIe(SoCCore):
    """The endpoint with the board's DRAM behind it. `synthesis.firmware` fills the ROM."""

    csr_map = CSR_MAP

    def __init__(self) -> None:
        platform = sqrl_acorn.Platform(variant="cle-215+")
        self.crg = CRG(platform)
        SoCCore.__init__(
            self,
            platform,
            SYS_CLOCK_HZ,
            cpu_type="vexriscv",
            cpu_variant="minimal",
            integrated_rom_size=ROM_BYTES,
            integrated_sram_size=SRAM_BYTES,
            ident="ptat on Acorn, PCIe",
            ident_version=False,
            uart_baudrate=UART_BAUD,
        )
        self.ddrphy = A7DDRPHY(
            platform.request("ddram"),
            memtype="DDR3",
            nphases=4,
            sys_clk_freq=SYS_CLOCK_HZ,
            iodelay_clk_freq=IDELAY_CLOCK_HZ,
        )
        self.add_sdram(
            "sdram", phy=self.ddrphy, module=MT41K512M16(SYS_CLOCK_HZ, "1:4"), l2_cache_size=0
        )
        # Ask the slot for its reference clock, which an M.2 host may gate otherwise.
        self.comb += platform.request("pcie_clkreq_n").eq(0)
        self.pcie_phy = phy = make_phy(platform, platform.request("pcie_x4"), DATA_WIDTH, BAR_BYTES)
        platform.add_false_path_constraints(self.crg.cd_sys.clk, phy.cd_pcie.clk)
        port = self.sdram.crossbar.get_port()
        add_endpoint(self, "Acorn-PCIe", phy, phy_state(phy), port, bar_bytes=BAR_BYTES)
