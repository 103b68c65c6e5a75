# SPDX-License-Identifier: BSD-2-Clause
"""ButterStick r1.0 with an LFE5UM5G-85F, snooping one channel of DDR3 at the bus's own levels.

    DIMM tap ─► Capture ─► DDR3 decoder ─► … ─► buffer ─► RegisterLink ─► CSR bus ─► UART bridge
      CK    ─► domain "snoop": CK / 4                     domain "sys": 110 MHz

All pins of the connector SYZYGY 0 are in bank 6 of the FPGA, whose supply the board can set: at
1.5 V they are SSTL15 inputs, with VREF on the connector's pin S17 (VREF1_6). The bank is on the
left, where input logic with a gear of 4 (IDDRX2F) is, and has the differential input of a PLL for
CK (S26, S27). Of the 32 pins, 26 and these 3 are taken. UART, sync and trigger are on SYZYGY 2.

Up to DDR3-800 CK enters as it is. Above, the tap divides it by two. Clock inputs, PLL and IDDRX2F
take 400 MHz, that is DDR3-1600; domain "snoop" is fast enough for DDR3-1333. See docs/hardware.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from litex.build.generic_platform import IOStandard, Pins, Subsignal
from litex.gen import LiteXModule
from litex.soc.cores.clock import ECP5PLL
from litex.soc.integration.soc_core import SoCMini
from litex_boards.platforms import gsd_butterstick
from migen import ClockDomain, Signal

from ptat_gateware.layouts import ddr3_command_layout
from ptat_gateware.snoop.capture import ECP5Capture
from ptat_gateware.targets.ecpix5 import SYS_CLOCK_HZ
from ptat_gateware.targets.soc import PHASES, RANKS, UART_BAUD, add_snooper

BOARD_CLOCK_HZ = 30_000_000

VREF_PIN, CK_PINS = 17, (26, 27)
COMMAND_PINS = [pin for pin in range(32) if pin not in (VREF_PIN, *CK_PINS)]


def _tap() -> Iterator[Subsignal]:
    """CK and command pins, in the order of the connector's."""
    # Of a differential input only the true pin is named.
    yield Subsignal("ck", Pins(f"SYZYGY0:S{CK_PINS[0]}"), IOStandard("SSTL15D_I"))
    left = iter(COMMAND_PINS)
    for name, bits in ddr3_command_layout(RANKS):
        pins = (f"SYZYGY0:S{next(left)}" for _ in range(bits))
        yield Subsignal(name, Pins(*pins), IOStandard("SSTL15_I"))


# Pins of the DIMM's tap, and the device's sync and trigger inputs.
IO: list[Any] = [
    ("dimm", 0, *_tap()),
    (
        "serial",
        0,
        Subsignal("tx", Pins("SYZYGY2:S0")),
        Subsignal("rx", Pins("SYZYGY2:S1")),
        IOStandard("LVCMOS33"),
    ),
    (
        "aux",
        0,
        Subsignal("sync", Pins("SYZYGY2:S2")),
        Subsignal("trigger", Pins("SYZYGY2:S3")),
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
        self.comb += pll.reset.eq(self.rst)
        pll.register_clkin(platform.request("clk30"), BOARD_CLOCK_HZ)
        pll.create_clkout(self.cd_sys, SYS_CLOCK_HZ)
        platform.add_period_constraint(self.cd_sys.clk, 1e9 / SYS_CLOCK_HZ)


# SoC ----------------------------------------------------------------------------------------------


class ButterStick(SoCMini):
    """The capture device for a DIMM whose CK has ``ck_hz``."""

    @staticmethod
    def required_mhz(ck_hz: int) -> dict[str, float]:
        """Clocks that the domains need."""
        return {"sys": SYS_CLOCK_HZ / 1e6, "snoop": ck_hz / PHASES / 1e6}

    def __init__(self, ck_hz: int) -> None:
        platform = gsd_butterstick.Platform(device="85F")
        platform.add_extension(IO)

        self.crg = CRG(platform)
        SoCMini.__init__(
            self,
            platform,
            SYS_CLOCK_HZ,
            ident=f"ptat on ButterStick, DDR3-{2 * ck_hz // 1_000_000}",
            ident_version=False,
        )
        self.add_uartbone(baudrate=UART_BAUD)

        self.capture = ECP5Capture(platform, platform.request("dimm"), ck_hz, PHASES)
        add_snooper(self, self.capture, platform.request("aux"))
