# SPDX-License-Identifier: BSD-2-Clause
"""A generic board with an XC7A200T, 1 GiB of DDR3, and an FT601 for USB 3: for Vivado.

    DIMM tap ─► Capture ─► CaptureSoC ─► buffer in the board's DDR3 ─► FT601
      CK    ─► domain "snoop": CK / 4       domain "sys": 125 MHz      domain "ft": its 100 MHz

FPGA, memory and UART are those of the SQRL Acorn CLE-215+; the FT601's pins, as the tap's, have an
I/O standard and no location; the builder of such a board adds them. To add a board, copy this file.
"""

from __future__ import annotations

from typing import Any

from litedram.modules import MT41K512M16
from litedram.phy.s7ddrphy import A7DDRPHY
from litex.build.generic_platform import IOStandard, Misc, Pins, Subsignal
from litex.gen import LiteXModule
from litex.soc.cores.clock import S7IDELAYCTRL, S7PLL
from litex.soc.cores.xadc import S7SystemMonitor
from litex_boards.platforms import sqrl_acorn
from migen import ClockDomain, Signal

from ptat_gateware.link import ft601
from ptat_gateware.snoop.capture import S7Capture
from ptat_gateware.soc import CaptureSoC, Identity, source_hash
from ptat_gateware.targets.acorn import CK_HZ
from ptat_gateware.targets.acorn import IO as TAP
from ptat_gateware.targets.soc import PHASES

SYS_CLOCK_HZ = 125_000_000
IDELAY_CLOCK_HZ = 200_000_000
DELAY_TAPS = 32  # of IDELAYE2

IO: list[Any] = [
    *TAP,
    (
        "ft601",
        0,
        Subsignal("clk", Pins(1)),
        Subsignal("data", Pins(32)),
        Subsignal("be", Pins(4)),
        *(
            Subsignal(name, Pins(1))
            for name in ("txe_n", "rxf_n", "wr_n", "rd_n", "oe_n", "siwu_n", "reset_n")
        ),
        IOStandard("LVCMOS33"),
        Misc("SLEW=FAST"),
    ),
]

# Clocks -------------------------------------------------------------------------------------------


class CRG(LiteXModule):
    """The board's clocks, with those of the memory; those of bus and FT601 come with them."""

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


def constrain_ft601(platform: Any, pads: Any) -> None:
    """Tell Vivado the chip's clock, when its pins change, and when ours must not.

    Of traces on the board nothing is known: add their delays.
    """
    platform.add_platform_command(
        f"create_clock -name ft601 -period {ft601.CLOCK_NS} [get_ports {{clock}}]", clock=pads.clk
    )
    from_chip = ("data", "be", "txe_n", "rxf_n")
    to_chip = ("data", "be", "wr_n")
    for kind, names, longest_ns, shortest_ns in (
        ("input", from_chip, ft601.DELAY_NS[1], ft601.DELAY_NS[0]),
        ("output", to_chip, ft601.SETUP_NS, -ft601.HOLD_NS),
    ):
        for name in names:
            for which, delay_ns in (("max", longest_ns), ("min", shortest_ns)):
                platform.add_platform_command(
                    f"set_{kind}_delay -clock ft601 -{which} {delay_ns} [get_ports {{pad}}*]",
                    pad=getattr(pads, name),
                )


# SoC ----------------------------------------------------------------------------------------------


class FT601SoC(CaptureSoC):
    """The capture device for a DIMM at DDR3-800."""

    def __init__(self, git_hash: bytes | None = None) -> None:
        platform = sqrl_acorn.Platform(variant="cle-215+")
        platform.add_extension(IO)

        self.crg = CRG(platform)
        identity = Identity(
            "XC7A200T-FT601", CK_HZ, source_hash() if git_hash is None else git_hash
        )
        CaptureSoC.__init__(self, platform, SYS_CLOCK_HZ, identity)
        self.xadc = S7SystemMonitor()
        self.ddrphy = A7DDRPHY(
            platform.request("ddram"),
            memtype="DDR3",
            nphases=4,
            sys_clk_freq=SYS_CLOCK_HZ,
            iodelay_clk_freq=IDELAY_CLOCK_HZ,
        )
        self.add_dram(self.ddrphy, MT41K512M16(SYS_CLOCK_HZ, "1:4"))
        pads = platform.request("ft601")
        self.add_ft601(pads)
        constrain_ft601(platform, pads)

        self.capture = capture = S7Capture(platform, platform.request("dimm"), CK_HZ, PHASES)
        platform.add_false_path_constraints(
            self.crg.cd_sys.clk, capture.cd_snoop.clk, self.ft601.cd_ft.clk
        )
        self.add_capture(capture, DELAY_TAPS, platform.request("aux"))
