# SPDX-License-Identifier: BSD-2-Clause
"""The designs that are built or measured, and the files that the tools read for each."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from litex.build.lattice.common import lattice_ecp5_trellis_special_overrides
from litex.gen.fhdl.verilog import convert
from litex.soc.integration.builder import Builder
from migen import Signal

from ptat_gateware.sim.verilog import with_contents
from ptat_gateware.synthesis import firmware
from ptat_gateware.targets.acorn import Acorn
from ptat_gateware.targets.acorn_pcie import AcornPCIe
from ptat_gateware.targets.bare import Bare
from ptat_gateware.targets.bare_pcie import SYS_CLOCK_HZ as PCIE_CLOCK_HZ
from ptat_gateware.targets.bare_pcie import CorePCIe, ScannedPCIe
from ptat_gateware.targets.butterstick import ButterStick
from ptat_gateware.targets.ecpix5 import DDR3_800_CK_HZ, DDR3_1333_CK_HZ, ECPIX5
from ptat_gateware.targets.ecpix5_soc import ECPIX5SoC
from ptat_gateware.targets.ft601_soc import FT601SoC
from ptat_gateware.targets.screamer_pcie import ScreamerPCIe

BARE = "snooper"
ACORN = "acorn"
ECPIX5_SOC = "ecpix5_soc"
FT601_SOC = "ft601_soc"
ACORN_PCIE = "acorn_pcie"
SCREAMER_PCIE = "screamer_pcie"
PCIE_CORE = "pcie_core"
PCIE_ENDPOINT = "pcie_endpoint"


@dataclass(frozen=True)
class Design:
    """A bitstream for an ECP5.

    ``generate(directory)`` writes the Yosys script ``<name>.ys``, which makes ``<name>.json``, what
    it reads, and the constraints ``<name>.lpf``. ``required_mhz`` is by clock domain.
    """

    name: str
    required_mhz: Mapping[str, float]
    generate: Callable[[Path], None]
    package: str = "CABGA554"  # ECPIX-5's


# Wide LUTs would cost more than they save: much of this is XOR. And no memory here is read at an
# address in the clock in which it is written, but where the result is of no use: Yosys need not
# build what would make the new or the old value appear.
SYNTHESIS = "-nowidelut -no-rw-check"


def generate_soc(make: Callable[[], Any], name: str, directory: Path, **options: Any) -> Any:
    """Have LiteX write a SoC's Verilog, constraints, scripts and map of registers."""
    soc = make()
    builder = Builder(
        soc, output_dir=str(directory), gateware_dir=str(directory), compile_software=False
    )
    builder.build(build_name=name, run=False, **options)
    relocate(directory)
    return soc


def generate_device(make: Callable[[], Any], name: str, directory: Path, **options: Any) -> None:
    """The same for a SoC with a CPU: with its firmware, and the CPU's Verilog."""
    soc = make()
    firmware.build(soc, directory, name, **options)
    gather_sources(soc, directory)


def gather_sources(soc: Any, directory: Path) -> None:
    """Put what a SoC's scripts read beside them."""
    for source, *_ in soc.platform.sources:
        if Path(source).parent != directory:
            shutil.copy(source, directory)
            relocate(directory, Path(source).parent)
    relocate(directory)


def relocate(directory: Path, origin: Path | None = None) -> None:
    """Let scripts that LiteX wrote for another directory (default: this one) be run anywhere."""
    for script in (*directory.glob("*.ys"), *directory.glob("*.tcl")):
        script.write_text(script.read_text().replace(f"{origin or directory}/", ""))


def generate_ecpix5(ck_hz: int, name: str, directory: Path) -> None:
    """Write the ECPIX-5 target for a memory clock."""
    generate_soc(partial(ECPIX5, ck_hz), name, directory, synth_opts=f"{SYNTHESIS} ")


def generate_module(make: Callable[[], Any], name: str, directory: Path) -> None:
    """Write the Verilog of cores with no board around them, and a script for Yosys."""
    module = make()
    overrides = lattice_ecp5_trellis_special_overrides
    verilog = convert(module, module.pins, name=name, special_overrides=overrides)
    (directory / f"{name}.v").write_text(with_contents(verilog))
    (directory / f"{name}.ys").write_text(
        f"read_verilog {name}.v\nsynth_ecp5 {SYNTHESIS} -top {name}\nwrite_json {name}.json\n"
    )


def generate_pcie_core(directory: Path) -> None:
    """Write what the budget of the PCIe cores is for."""
    core = CorePCIe()
    (directory / f"{PCIE_CORE}.v").write_text(
        with_contents(convert(core, core.pins, name=PCIE_CORE))
    )
    yosys_for_xilinx(PCIE_CORE, directory)


def generate_pcie_endpoint(directory: Path) -> None:
    """Write the PCIe endpoint with what it takes to place and route it: 4 pins of an ECPIX-5."""
    generate_module(ScannedPCIe, PCIE_ENDPOINT, directory)
    places = {"sys_clk": "K23", "scan_in": "C26", "load": "A25", "scan_out": "E26"}
    lines = [
        f'LOCATE COMP "{pin}" SITE "{site}";\nIOBUF PORT "{pin}" IO_TYPE=LVCMOS33;\n'
        for pin, site in places.items()
    ]
    clock = f'FREQUENCY PORT "sys_clk" {PCIE_CLOCK_HZ / 1e6} MHZ;\n'
    (directory / f"{PCIE_ENDPOINT}.lpf").write_text("".join(lines) + clock)


def for_xilinx(name: str, directory: Path) -> None:
    """Put a script for Yosys beside Vivado's project."""
    constraints = directory / f"{name}.xdc"
    # LiteX knows pins without a location in simulations only.
    constraints.write_text(re.sub(r"set_property LOC X .*\n", "", constraints.read_text()))
    yosys_for_xilinx(name, directory)


def yosys_for_xilinx(name: str, directory: Path) -> None:
    """Write a script that counts the cells of all Verilog of a directory."""
    sources = " ".join(sorted(path.name for path in directory.glob("*.v")))
    (directory / f"{name}.ys").write_text(
        f"read_verilog {sources}\nsynth_xilinx -family xc7 -top {name}\n"
        "tee -o stat.json stat -json\n"
    )


def generate_acorn(directory: Path) -> None:
    """Write the Verilog and Vivado's project of the Acorn target, and a script for Yosys."""
    generate_soc(Acorn, ACORN, directory)
    for_xilinx(ACORN, directory)


def generate_ecpix5_soc(directory: Path) -> None:
    """Write the ECPIX-5 device with its firmware."""
    generate_device(
        partial(ECPIX5SoC, DDR3_800_CK_HZ), ECPIX5_SOC, directory, synth_opts=f"{SYNTHESIS} "
    )


def generate_ft601_soc(directory: Path) -> None:
    """Write the FT601 device with its firmware, Vivado's project, and a script for Yosys."""
    generate_device(FT601SoC, FT601_SOC, directory)
    for_xilinx(FT601_SOC, directory)


def for_xilinx_pcie(soc: Any, name: str, directory: Path) -> None:
    """The same where Vivado makes the hard block for PCIe: to Yosys, a module without contents."""
    ports = []
    for port, value in soc.pcie_phy.pcie_phy_params.items():
        bits = len(value) if isinstance(value, Signal) else 1
        direction = {"i": "input", "o": "output"}[port[0]]
        ports.append(f"{direction} [{bits - 1}:0] {port[2:]}")
    text = ",\n    ".join(ports)
    (directory / f"{name}_black_box.v").write_text(
        f"(* blackbox *) module pcie_s7(\n    {text}\n);\nendmodule\n"
    )
    for_xilinx(name, directory)


def generate_screamer_pcie(directory: Path) -> None:
    """Write the M.2 Screamer target, Vivado's project, and a script for Yosys."""
    soc = generate_soc(ScreamerPCIe, SCREAMER_PCIE, directory)
    for_xilinx_pcie(soc, SCREAMER_PCIE, directory)


def generate_acorn_pcie(directory: Path) -> None:
    """Write the Acorn PCIe target with LiteX's BIOS, Vivado's project, and a script for Yosys."""
    soc = AcornPCIe()
    firmware.build_bios(soc, directory, ACORN_PCIE)
    gather_sources(soc, directory)
    for_xilinx_pcie(soc, ACORN_PCIE, directory)


def ecpix5_design(ck_hz: int) -> Design:
    """The ECPIX-5 target for a memory clock."""
    name = f"ecpix5_ddr3_{2 * ck_hz // 1_000_000}"
    return Design(name, ECPIX5.required_mhz(ck_hz), partial(generate_ecpix5, ck_hz, name))


def butterstick_design(ck_hz: int) -> Design:
    """The ButterStick target for a memory clock."""
    name = f"butterstick_ddr3_{2 * ck_hz // 1_000_000}"

    def generate(directory: Path) -> None:
        generate_soc(partial(ButterStick, ck_hz), name, directory, synth_opts=f"{SYNTHESIS} ")

    return Design(name, ButterStick.required_mhz(ck_hz), generate, package="CABGA381")


DESIGNS = (
    ecpix5_design(DDR3_800_CK_HZ),
    butterstick_design(DDR3_1333_CK_HZ),
    Design(PCIE_ENDPOINT, {"sys": PCIE_CLOCK_HZ / 1e6}, generate_pcie_endpoint),
)
# Counted by Yosys for the 7 series.
XILINX: dict[str, Callable[[Path], None]] = {
    ACORN: generate_acorn,
    SCREAMER_PCIE: generate_screamer_pcie,
    PCIE_CORE: generate_pcie_core,
}
DEVICE_DESIGN = Design(ECPIX5_SOC, ECPIX5SoC.required_mhz(DDR3_800_CK_HZ), generate_ecpix5_soc)
DEVICES = {
    ECPIX5_SOC: generate_ecpix5_soc,
    FT601_SOC: generate_ft601_soc,
    ACORN_PCIE: generate_acorn_pcie,
}


def generate_all(directory: Path) -> None:
    """Write the inputs of all builds, each in a directory of its own."""
    generators = {design.name: design.generate for design in DESIGNS}
    generators |= {BARE: partial(generate_module, Bare, BARE), **XILINX}
    for name, generate in generators.items():
        (directory / name).mkdir()
        with contextlib.redirect_stdout(sys.stderr):
            generate(directory / name)
