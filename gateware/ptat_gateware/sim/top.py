# SPDX-License-Identifier: BSD-2-Clause
"""The simulated machine: for each channel LiteDRAM's controller, its DFI, and a snooper on it.

    harness ──requests of each bank──► LiteDRAM controller ──DFI command phases──► (no DRAM)
                            (domain "snoop")                        │
                                                                 Snooper
    harness ◄──CSR bus, 64-bit words of blocks (domain "sys")───────┘

Each change of a clock's pin is a cycle, be it up or down.

Nothing answers the controller: it takes data at fixed latencies and never looks at it. What it
does with commands is what a DDR3-1600 module demands: row misses, refresh, auto-precharge,
turnarounds.

``python3 -m ptat_gateware.sim.top DIRECTORY`` writes ``top.v`` and ``csr.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from litedram.common import PhySettings
from litedram.core.controller import ControllerSettings, LiteDRAMController
from litedram.modules import MT16KTF1G64HZ
from litedram.phy.model import get_sdram_phy_settings
from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from litex.gen import LiteXModule
from litex.soc.integration.export import get_csr_json
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect import wishbone
from migen import Cat, ClockDomain, ClockDomainsRenamer, If, Record, Signal

from ptat_gateware.layouts import ddr3_command_layout
from ptat_gateware.sim.geometry import (
    BANK_BITS,
    BANKS,
    DRAM_CLOCK_HZ,
    PHASES,
    RANK_BITS,
)
from ptat_gateware.sim.verilog import on_both_edges, with_contents
from ptat_gateware.snoop.ddr3 import DDR3Decoder
from ptat_gateware.snooper import Snooper
from ptat_gateware.stream.buffer import Buffer

REQUEST_BITS = 32
ADVANCE_BITS = 32


# Pins -----------------------------------------------------------------------------------------


def clock_io() -> list[Any]:
    """Clocks, and how many of them the snoopers' time skips."""
    return [
        ("sys_clk", 0, Pins(1)),
        ("sys_rst", 0, Pins(1)),
        ("snoop_clk", 0, Pins(1)),
        ("snoop_rst", 0, Pins(1)),
        ("advance", 0, Pins(ADVANCE_BITS)),
    ]


def controller_io(channel: int, ranks: int) -> list[Any]:
    """Requests of the banks of a channel, a bit or an address each, and its column commands."""
    banks = ranks * BANKS
    return [
        (
            f"banks{channel}",
            0,
            *(Subsignal(name, Pins(banks)) for name in ("valid", "ready", "we")),
            *(Subsignal(f"addr{bank}", Pins(REQUEST_BITS)) for bank in range(banks)),
        ),
        (
            f"column{channel}",
            0,
            Subsignal("phases", Pins(PHASES)),
            Subsignal("bank", Pins(RANK_BITS + BANK_BITS)),
        ),
    ]


def _io(channels: int, ranks: int) -> list[Any]:
    io: list[Any] = [
        *clock_io(),
        (
            "csr",
            0,
            Subsignal("adr", Pins(30)),
            Subsignal("dat_w", Pins(32)),
            Subsignal("dat_r", Pins(32)),
            Subsignal("we", Pins(1)),
            Subsignal("stb", Pins(1)),
            Subsignal("ack", Pins(1)),
        ),
    ]
    for channel in range(channels):
        io += controller_io(channel, ranks)
        io.append(
            (
                f"link{channel}",
                0,
                Subsignal("valid", Pins(1)),
                Subsignal("ready", Pins(1)),
                Subsignal("last", Pins(1)),
                Subsignal("data", Pins(64)),
            )
        )
    return io


# Memory controller ----------------------------------------------------------------------------


class Controller(LiteXModule):
    """LiteDRAM's controller of one channel, without the DRAM.

    ``banks``: its request queues, those of the second rank after those of the first. The
    crossbar that would share them out among masters is left out: each bank gets what it can take.
    ``commands``: the pins at each phase.
    """

    def __init__(self, ranks: int) -> None:
        module = MT16KTF1G64HZ(DRAM_CLOCK_HZ / PHASES, f"1:{PHASES}", speedgrade="1600")
        phy_settings: PhySettings = get_sdram_phy_settings(
            module.memtype, data_width=64, clk_freq=DRAM_CLOCK_HZ / PHASES
        )
        phy_settings.nranks = ranks

        self.controller = LiteDRAMController(
            phy_settings,
            module.geom_settings,
            module.timing_settings,
            DRAM_CLOCK_HZ / PHASES,
            ControllerSettings(),
        )
        interface = self.controller.interface
        self.banks = [getattr(interface, f"bank{i}") for i in range(ranks * BANKS)]
        self.commands = [
            Record(ddr3_command_layout(ranks), name=f"dfi{phase}") for phase in range(PHASES)
        ]

        # # #

        for command, phase in zip(self.commands, self.controller.dfi.phases, strict=True):
            self.comb += [
                command.cke.eq(phase.cke),
                command.cs_n.eq(phase.cs_n),
                command.ras_n.eq(phase.ras_n),
                command.cas_n.eq(phase.cas_n),
                command.we_n.eq(phase.we_n),
                command.ba.eq(phase.bank),
                command.a.eq(phase.address),
            ]

    def connect(self, platform: SimPlatform, channel: int) -> list[Any]:
        """To the pins of `controller_io`."""
        pads = platform.request(f"banks{channel}")
        statements = [pads.ready.eq(Cat(bank.ready for bank in self.banks))]
        for i, bank in enumerate(self.banks):
            statements += [
                bank.valid.eq(pads.valid[i]),
                bank.we.eq(pads.we[i]),
                bank.addr.eq(getattr(pads, f"addr{i}")),
            ]
        column = platform.request(f"column{channel}")
        for i, command in enumerate(self.commands):
            # A column command is for one rank: of two, the second unless the first is selected.
            is_column = (~command.cs_n != 0) & command.ras_n & ~command.cas_n
            statements += [
                column.phases[i].eq(is_column),
                If(is_column, column.bank.eq(Cat(command.ba, command.cs_n[0]))),
            ]
        return statements


# SoC ------------------------------------------------------------------------------------------


class Clocks(LiteXModule):
    """Domains ``sys`` and ``snoop``, from pins."""

    def __init__(self, platform: SimPlatform) -> None:
        self.cd_sys = ClockDomain()
        self.cd_snoop = ClockDomain()
        for domain in (self.cd_sys, self.cd_snoop):
            self.comb += [
                domain.clk.eq(platform.request(f"{domain.name}_clk")),
                domain.rst.eq(platform.request(f"{domain.name}_rst")),
            ]


class SimSoC(SoCMini):
    """Controllers and snoopers of all channels, driven through pins.

    ``columnN`` shows the phases on which channel N's DFI carries a column command, and its bank,
    found apart from the snooper. ``advance`` skips clocks of the snoopers' time: a bus that is
    idle for long need not be simulated for as long.
    """

    def __init__(self, channels: int, ranks: int) -> None:
        platform = SimPlatform("SIM", _io(channels, ranks))
        self.crg = Clocks(platform)
        SoCMini.__init__(
            self,
            platform,
            clk_freq=DRAM_CLOCK_HZ / PHASES,
            with_ctrl=False,
            ident="",
            ident_version=False,
        )
        pads = platform.request("csr")
        bus = wishbone.Interface()
        self.bus.add_master(name="harness", master=bus)
        self.comb += [
            bus.adr.eq(pads.adr),
            bus.dat_w.eq(pads.dat_w),
            bus.sel.eq(0xF),
            bus.we.eq(pads.we),
            bus.cyc.eq(pads.stb),
            bus.stb.eq(pads.stb),
            pads.dat_r.eq(bus.dat_r),
            pads.ack.eq(bus.ack),
        ]
        advance = platform.request("advance")
        for channel in range(channels):
            self._add_channel(platform, channel, ranks, advance)

    def _add_channel(
        self, platform: SimPlatform, channel: int, ranks: int, advance: Signal
    ) -> None:
        controller = ClockDomainsRenamer("snoop")(Controller(ranks))
        self.add_module(f"controller{channel}", controller)
        decoder = DDR3Decoder(PHASES, ranks)
        self.comb += controller.connect(platform, channel)
        for command, pins in zip(decoder.commands, controller.commands, strict=True):
            self.comb += command.eq(pins)
        snooper = Snooper(decoder, Buffer(block_ram_bits=1 << 20))
        self.add_module(f"snooper{channel}", snooper)
        link = platform.request(f"link{channel}")
        self.comb += [
            snooper.advance.eq(advance),
            link.valid.eq(snooper.source.valid),
            link.last.eq(snooper.source.last),
            link.data.eq(snooper.source.data),
            snooper.source.ready.eq(link.ready),
        ]


def generate(directory: Path, channels: int, ranks: int) -> None:
    """Write the Verilog and the map of the CSRs."""
    soc = SimSoC(channels, ranks)
    soc.finalize()
    verilog = soc.platform.get_verilog(soc, name="top")
    (directory / "top.v").write_text(on_both_edges(with_contents(verilog)))
    registers = json.loads(get_csr_json(soc.csr_regions, soc.constants, soc.mem_regions))
    (directory / "csr.json").write_text(json.dumps(registers["csr_registers"], indent=1) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="ptat_gateware.sim.top")
    parser.add_argument("--channels", type=int, choices=(1, 2), default=1)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=2)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    generate(arguments.directory, arguments.channels, arguments.ranks)


if __name__ == "__main__":
    main()
