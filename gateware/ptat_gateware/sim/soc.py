# SPDX-License-Identifier: BSD-2-Clause
"""The whole device in simulation: a memory controller's commands, the SoC with firmware, a link.

    harness ──requests──► LiteDRAM controller ──► pins ──► CaptureSoC ──► link ──► harness
            ◄── UART ─────────────────────────────────────────┘

The buffer's DRAM is a model of a small SDRAM behind LiteDRAM's real controller.

``python3 -m ptat_gateware.sim.soc DIRECTORY`` writes ``top.v`` and the ROM's contents.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litedram.modules import MT48LC4M16
from litedram.phy.model import SDRAMPHYModel
from liteeth.common import convert_ip
from liteeth.phy.model import LiteEthPHYModel
from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from migen import Cat, ClockDomainsRenamer, If, Mux, Signal

import ptat_gateware
from ptat_gateware.cache import cached, digest
from ptat_gateware.layouts import ddr3_command_layout
from ptat_gateware.link.udp import UDP_PORT
from ptat_gateware.sim import build
from ptat_gateware.sim.geometry import DRAM_CLOCK_HZ
from ptat_gateware.sim.top import Clocks, Controller, clock_io, controller_io
from ptat_gateware.snoop.capture import Capture
from ptat_gateware.soc import RANKS, CaptureSoC, Identity
from ptat_gateware.synthesis import firmware
from ptat_parser import wire

SYS_CLOCK_HZ = 100_000_000
GIT_HASH = bytes(range(1, 21))
"""Of no commit: a simulation is not built again after each."""

DEVICE_MAC = 0x020000000001
DEVICE_IP = "192.168.1.50"
PEER_IP = "192.168.1.1"

IO: list[Any] = [
    *clock_io(),
    *controller_io(0, RANKS),
    (
        "serial",
        0,
        *(
            Subsignal(f"{end}_{name}", Pins(bits))
            for end in ("source", "sink")
            for name, bits in (("valid", 1), ("ready", 1), ("data", 8))
        ),
    ),
    (
        "eth",
        0,
        *(
            Subsignal(f"{end}_{name}", Pins(bits))
            for end in ("source", "sink")
            for name, bits in (("valid", 1), ("ready", 1), ("data", 8))
        ),
    ),
    ("hang", 0, Pins(1)),
    ("aux", 0, Subsignal("sync", Pins(1)), Subsignal("trigger", Pins(1))),
]


class DelayedPins(Capture):
    """A capture whose pins are skewed, and that has a delay line at each.

    A pin is seen right while its delay is in its eye, and otherwise one CK late. Delays begin where
    all eyes are open.
    """

    taps = 8
    eye_taps = 4
    start_tap = 4

    @classmethod
    def first_tap(cls, pin: int) -> int:
        """Where a pin's eye begins."""
        return 1 + pin % 3

    def __init__(self, commands: Sequence[Any]) -> None:
        layout = ddr3_command_layout(RANKS)
        Capture.__init__(self, layout, len(commands))

        # # #

        phases = [Cat(*(getattr(command, name) for name, _ in layout)) for command in commands]
        self.comb += self.locked.eq(1)
        for pin, word in enumerate(self.words):
            now, last = Signal(len(phases)), Signal()
            tap, good = Signal(max=self.taps, reset=self.start_tap), Signal(reset=1)
            first = self.first_tap(pin)
            self.comb += [
                now.eq(Cat(*(levels[pin] for levels in phases))),
                word.eq(Mux(good, now, Cat(last, now[:-1]))),
            ]
            self.sync.snoop += last.eq(now[-1])
            self.sync += [
                good.eq((tap >= first) & (tap < first + self.eye_taps)),
                If(self.load[pin], tap.eq(0)).Elif(
                    self.move[pin], If(self.down, tap.eq(tap - 1)).Else(tap.eq(tap + 1))
                ),
            ]


class SimulatedSoC(CaptureSoC):
    """A device on the bus of a simulated controller. While the pin ``hang`` is high, its CPU does.

    Its firmware's patience is short: a second takes minutes.
    """

    watchdog_ms = 20
    delay_sample_us = 50

    def __init__(self) -> None:
        platform = SimPlatform("SIM", IO)
        self.crg = Clocks(platform)
        identity = Identity("simulation", int(DRAM_CLOCK_HZ), GIT_HASH)
        CaptureSoC.__init__(self, platform, SYS_CLOCK_HZ, identity, uart_name="sim")
        module = MT48LC4M16(SYS_CLOCK_HZ, "1:1")
        self.sdrphy = SDRAMPHYModel(module, data_width=64, clk_freq=SYS_CLOCK_HZ, verbosity=0)
        self.add_dram(self.sdrphy, module)
        self.add_constant("MEMTEST_DATA_SIZE", 8 * 1024)
        self.add_constant("MEMTEST_ADDR_SIZE", 8 * 1024)

        self.ethphy = LiteEthPHYModel(platform.request("eth"))
        self.add_udp(self.ethphy, DEVICE_MAC, DEVICE_IP)

        self.controller = controller = ClockDomainsRenamer("snoop")(Controller(RANKS))
        self.comb += controller.connect(platform, 0)
        self.capture = capture = DelayedPins(controller.commands)
        self.add_capture(capture, DelayedPins.taps, platform.request("aux"))
        self.comb += If(platform.request("hang"), self.cpu.reset.eq(1))
        self.comb += self.snooper.advance.eq(platform.request("advance"))


# Building -----------------------------------------------------------------------------------------

HARNESS = Path(__file__).with_name("soc_harness.cpp")


def simulator() -> Path:
    """Directory with ``soc-harness``, and what it must be run in: the ROM's contents.

    :raises SimulatorError: a tool is missing or fails.
    """
    package = Path(ptat_gateware.__file__).parent
    sources = [*sorted(package.glob("**/*.py")), Path(wire.__file__)]
    inputs = [*(path.read_bytes() for path in sources), *firmware.inputs(), build.versions()]
    return cached("soc", digest(inputs), _build)


def flags() -> list[str]:
    """What the harness must know."""
    return [
        f"-DPTAT_CHANNELS=1 -DPTAT_RANKS={RANKS}",
        f"-DPTAT_DEVICE_MAC={DEVICE_MAC:#x}ull -DPTAT_DEVICE_IP={convert_ip(DEVICE_IP)}u",
        f"-DPTAT_PEER_IP={convert_ip(PEER_IP)}u -DPTAT_UDP_PORT={UDP_PORT}",
    ]


def _build(directory: Path) -> None:
    print("gateware: compiling the firmware …", file=sys.stderr, flush=True)
    try:
        build.run([sys.executable, "-m", __name__, str(directory)], directory)
    except firmware.FirmwareError as error:
        raise build.SimulatorError(str(error), firmware.HINT) from error
    verilog = re.sub(r"//.*", "", (directory / "top.v").read_text())
    parts = [HARNESS, HARNESS.with_name("bus.h")]
    key = digest(
        [verilog.encode(), *(part.read_bytes() for part in parts), " ".join(flags()).encode()]
    )

    def verilate(objects: Path) -> None:
        print("gateware: building the simulator of the device …", file=sys.stderr, flush=True)
        sources = [str(HARNESS), *(str(path) for path in directory.glob("*.v"))]
        build.verilate(objects, sources, flags())

    program = cached("soc-sim", key, verilate) / "harness"
    (directory / "soc-harness").symlink_to(program)


def generate(directory: Path) -> None:
    """Write Verilog, memory contents and the map of the registers."""
    logging.disable(logging.INFO)
    with contextlib.redirect_stdout(sys.stderr):
        soc = SimulatedSoC()
        firmware.build(soc, directory, "top")
    for source, *_ in soc.platform.sources:
        if Path(source).parent != directory:  # the CPU
            shutil.copy(source, directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="ptat_gateware.sim.soc")
    parser.add_argument("directory", type=Path)
    generate(parser.parse_args().directory)
