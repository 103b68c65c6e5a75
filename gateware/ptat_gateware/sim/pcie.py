# SPDX-License-Identifier: BSD-2-Clause
"""The PCIe endpoint in simulation: packets at a PHY's pins, the region in block RAM.

    harness ──packets──► PCIeEndpoint ──► BlockRAMPort
            ◄──packets──      │
                              └─► CSR bus, with the map of all PCIe boards

`testbed/cosim` has the harness: it attaches the endpoint to a virtual machine. ``advance`` skips
clocks of the trace's time, because a simulated endpoint is a hundred times slower than the machine.

``python3 -m ptat_gateware.sim.pcie BAR_BYTES DIRECTORY`` writes ``top.v`` and ``csr.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from litepcie.common import msi_layout, phy_layout
from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from litex.gen import LiteXModule
from litex.soc.integration.export import get_csr_json
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect import stream
from migen import ClockDomain, Signal

import ptat_gateware
from ptat_gateware.cache import cached, digest
from ptat_gateware.pcie.decoder import AccessDecoder
from ptat_gateware.pcie.endpoint import WINDOW_BYTES
from ptat_gateware.pcie.memory import BlockRAMPort
from ptat_gateware.sim import build
from ptat_gateware.sim.verilog import on_both_edges, with_contents
from ptat_gateware.targets.pcie_soc import CSR_MAP, DEVICE_ID, VENDOR_ID, add_endpoint
from ptat_parser import wire

BOARD = "simulated-PCIe"
SYS_CLOCK_HZ = 125_000_000
TICKS_PER_CLOCK = AccessDecoder.phases
DATA_WIDTH = 64


def _packets() -> tuple[Subsignal, ...]:
    """Pins of a stream of packets."""
    widths = {"valid": 1, "ready": 1, "last": 1, "dat": DATA_WIDTH, "be": DATA_WIDTH // 8}
    return tuple(Subsignal(name, Pins(bits)) for name, bits in widths.items())


IO: list[Any] = [
    ("sys_clk", 0, Pins(1)),
    ("sys_rst", 0, Pins(1)),
    ("advance", 0, Pins(32)),
    ("rx", 0, *_packets()),
    ("tx", 0, *_packets()),
    ("msi", 0, Subsignal("valid", Pins(1)), Subsignal("ready", Pins(1))),
    (
        "host",
        0,
        Subsignal("id", Pins(16)),
        Subsignal("max_payload", Pins(16)),
        Subsignal("link_up", Pins(1)),
        Subsignal("bus_master", Pins(1)),
    ),
]


class PinPHY(LiteXModule):
    """Pins in the place of one of LitePCIe's PHYs."""

    def __init__(self, platform: SimPlatform) -> None:
        self.data_width = DATA_WIDTH
        self.sink = sink = stream.Endpoint(phy_layout(DATA_WIDTH))
        self.source = source = stream.Endpoint(phy_layout(DATA_WIDTH))
        self.msi = msi = stream.Endpoint(msi_layout())
        self.id = Signal(16)
        self.max_payload_size = Signal(16)
        self.link_up = Signal()
        self.bus_master = Signal()

        # # #

        rx, tx, interrupt, host = (platform.request(name) for name in ("rx", "tx", "msi", "host"))
        self.comb += [
            *(
                getattr(source, name).eq(getattr(rx, name))
                for name in ("valid", "last", "dat", "be")
            ),
            rx.ready.eq(source.ready),
            *(getattr(tx, name).eq(getattr(sink, name)) for name in ("valid", "last", "dat", "be")),
            sink.ready.eq(tx.ready),
            interrupt.valid.eq(msi.valid),
            msi.ready.eq(interrupt.ready),
            self.id.eq(host.id),
            self.max_payload_size.eq(host.max_payload),
            self.link_up.eq(host.link_up),
            self.bus_master.eq(host.bus_master),
        ]


class Clock(LiteXModule):
    """Clock and reset of ``sys`` from pins."""

    def __init__(self, platform: SimPlatform) -> None:
        self.cd_sys = ClockDomain()
        self.comb += [
            self.cd_sys.clk.eq(platform.request("sys_clk")),
            self.cd_sys.rst.eq(platform.request("sys_rst")),
        ]


class SimulatedPCIe(SoCMini):
    """The endpoint as on a board, between pins and block RAM of the size of its BAR."""

    csr_map = CSR_MAP

    def __init__(self, bar_bytes: int) -> None:
        platform = SimPlatform("SIM", IO)
        self.crg = Clock(platform)
        SoCMini.__init__(
            self, platform, SYS_CLOCK_HZ, with_ctrl=False, ident="", ident_version=False
        )
        self.ram = BlockRAMPort(bar_bytes)
        self.phy = phy = PinPHY(platform)
        add_endpoint(
            self, BOARD, phy, (phy.link_up, phy.bus_master), self.ram.port, bar_bytes=bar_bytes
        )
        self.comb += self.endpoint.snooper.advance.eq(platform.request("advance"))


# Building -----------------------------------------------------------------------------------------


def simulator(bar_bytes: int, harness: Sequence[Path]) -> Path:
    """Directory with ``harness``, compiled from these files, and ``csr.json``.

    :param harness: the first ones are given to Verilator, headers are only part of the key.
    :raises SimulatorError: a tool is missing or fails.
    """
    package = Path(ptat_gateware.__file__).parent
    cores = [path for path in package.glob("**/*.py") if path.parent.name != "snoop"]
    inputs = [path.read_bytes() for path in (*sorted(cores), Path(wire.__file__), *harness)]
    key = digest([*inputs, build.versions(), str(bar_bytes).encode()])
    return cached("pcie", key, partial(_build, bar_bytes=bar_bytes, harness=harness))


def registers(directory: Path) -> dict[str, tuple[int, int]]:
    """Where a simulator's registers are: offset in the window, words of 32 bits."""
    found = json.loads((directory / "csr.json").read_text())
    return {name: (register["offset"], register["words"]) for name, register in found.items()}


def _build(directory: Path, bar_bytes: int, harness: Sequence[Path]) -> None:
    print("gateware: building the simulator of the PCIe endpoint …", file=sys.stderr, flush=True)
    objects = directory / "objects"
    objects.mkdir()
    build.run([sys.executable, "-m", __name__, str(bar_bytes), str(objects)], directory)
    flags = [
        f"-DPTAT_BAR_BYTES={bar_bytes}ull",
        f"-DPTAT_WINDOW_BYTES={WINDOW_BYTES}ull",
        f"-DPTAT_VENDOR_ID={VENDOR_ID:#x} -DPTAT_DEVICE_ID={DEVICE_ID:#x}",
        f"-DPTAT_CLOCK_HZ={SYS_CLOCK_HZ}ull",
    ]
    sources = [str(path) for path in harness if path.suffix == ".cpp"]
    build.verilate(objects, [*sources, "top.v"], [*flags, f"-I{harness[0].parent}"])
    for name in ("harness", "csr.json"):
        (objects / name).rename(directory / name)
    shutil.rmtree(objects)


def generate(bar_bytes: int, directory: Path) -> None:
    """Write the Verilog and the map of the registers."""
    logging.disable(logging.INFO)  # LiteX tells what it does
    soc = SimulatedPCIe(bar_bytes)
    soc.finalize()
    verilog = soc.platform.get_verilog(soc, name="top")
    (directory / "top.v").write_text(on_both_edges(with_contents(verilog)))
    exported = json.loads(get_csr_json(soc.csr_regions, soc.constants, soc.mem_regions))
    registers = exported["csr_registers"]
    base = soc.mem_map["csr"]
    offsets = {
        name: {"offset": register["addr"] - base, "words": register["size"]}
        for name, register in registers.items()
    }
    (directory / "csr.json").write_text(json.dumps(offsets, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="ptat_gateware.sim.pcie")
    parser.add_argument("bar_bytes", type=int)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    generate(options.bar_bytes, options.directory)
