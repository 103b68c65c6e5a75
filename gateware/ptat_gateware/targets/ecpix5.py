# SPDX-License-Identifier: BSD-2-Clause
"""LambdaConcept ECPIX-5 with an LFE5UM5G-85F, snooping one channel of DDR3.

    DIMM tap ─► Capture ─► DDR3 decoder ─► … ─► buffer ─► RegisterLink ─► CSR bus ─► UART bridge
     CK / 2 ─► domain "snoop": CK / 4                     domain "sys": 110 MHz

The board's memory chip is soldered, so the pins of a DIMM's tap are on its PMOD connectors: see
docs/hardware.md for what that means electrically. The pins below are the only ones of the PMODs
that input logic with a gear of 4 (IDDRX2F) and one edge clock can serve: banks 2 and 3, on the
right of the FPGA. They are LVCMOS33, which takes 200 MHz: CK / 2 of DDR3-800, and its commands
at the limit. `ptat_gateware.targets.butterstick` has pins of a DIMM's own levels.
"""

from __future__ import annotations

from typing import Any

from litex.build.generic_platform import IOStandard, Pins, Subsignal
from litex.gen import LiteXModule
from litex.soc.cores.clock import ECP5PLL
from litex.soc.integration.soc_core import SoCMini
from litex_boards.platforms import lambdaconcept_ecpix5
from migen import ClockDomain, Signal

from ptat_gateware.snoop.capture import ECP5_LVCMOS33_MAX_HZ, ECP5Capture
from ptat_gateware.targets.soc import PHASES, UART_BAUD, add_snooper

BOARD_CLOCK_HZ = 100_000_000
# More than 1,024 / 1,021 of CK / 4 at DDR3-800: the snooper keeps up with an access every 4 CK.
SYS_CLOCK_HZ = 110_000_000
DDR3_800_CK_HZ = 400_000_000
DDR3_1333_CK_HZ = 666_666_667

# Pins of the DIMM's tap, and the device's sync and trigger inputs.
IO: list[Any] = [
    (
        "dimm",
        0,
        Subsignal("ck", Pins("pmod4:5")),  # C25, true input of the upper right PLL
        Subsignal("cke", Pins("pmod2:0 pmod2:1")),
        Subsignal("cs_n", Pins("pmod2:4 pmod2:5")),
        Subsignal("ras_n", Pins("pmod2:6")),
        Subsignal("cas_n", Pins("pmod4:4")),
        Subsignal("we_n", Pins("pmod4:0")),
        Subsignal("ba", Pins("pmod4:1 pmod4:2 pmod4:3")),
        Subsignal(
            "a",
            Pins(
                *(f"pmod0:{i}" for i in range(8)),
                *(f"pmod1:{i}" for i in range(8)),
            ),
        ),
        IOStandard("LVCMOS33"),
    ),
    (
        "aux",
        0,
        Subsignal("sync", Pins("pmod6:0")),
        Subsignal("trigger", Pins("pmod6:1")),
        IOStandard("LVCMOS33"),
    ),
]

# Clocks -------------------------------------------------------------------------------------------


class CRG(LiteXModule):
    """The clock of the device; that of the bus comes with the capture."""

    def __init__(self, platform: Any) -> None:
        self.rst = Signal()
        self.cd_sys = ClockDomain()

        # # #

        self.pll = pll = ECP5PLL()
        self.comb += pll.reset.eq(~platform.request("rst_n") | self.rst)
        pll.register_clkin(platform.request("clk100"), BOARD_CLOCK_HZ)
        pll.create_clkout(self.cd_sys, SYS_CLOCK_HZ)
        platform.add_period_constraint(self.cd_sys.clk, 1e9 / SYS_CLOCK_HZ)


# SoC ----------------------------------------------------------------------------------------------


class ECPIX5(SoCMini):
    """The capture device for a DIMM whose CK has ``ck_hz``."""

    @staticmethod
    def required_mhz(ck_hz: int) -> dict[str, float]:
        """Clocks that the domains need."""
        return {"sys": SYS_CLOCK_HZ / 1e6, "snoop": ck_hz / PHASES / 1e6}

    def __init__(self, ck_hz: int) -> None:
        platform = lambdaconcept_ecpix5.Platform(device="85F")
        platform.add_extension(IO)

        self.crg = CRG(platform)
        SoCMini.__init__(
            self,
            platform,
            SYS_CLOCK_HZ,
            ident=f"ptat on ECPIX-5, DDR3-{2 * ck_hz // 1_000_000}",
            ident_version=False,
        )
        self.add_uartbone(baudrate=UART_BAUD)

        self.capture = ECP5Capture(
            platform,
            platform.request("dimm"),
            ck_hz,
            PHASES,
            ck_max_hz=ECP5_LVCMOS33_MAX_HZ,
        )
        add_snooper(self, self.capture, platform.request("aux"))
