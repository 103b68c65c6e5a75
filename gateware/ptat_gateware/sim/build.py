# SPDX-License-Identifier: BSD-2-Clause
"""Builds the simulator, once for each set of inputs."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import ptat_gateware
from ptat_gateware.cache import cached, digest
from ptat_parser import wire

HARNESS = Path(__file__).with_name("harness.cpp")
DISTRIBUTIONS = ("migen", "litex", "litedram")
VERILATOR = (
    *("verilator", "--cc", "--exe", "--build", "-j", "2", "--top-module", "top"),
    # Verilator's makefile appends OPT_FAST, else -Os, to all other flags.
    *(
        "-MAKEFLAGS",
        "OPT_FAST=-O2",
        "-O3",
        "--x-assign",
        "fast",
        "--x-initial",
        "fast",
        "--noassert",
    ),
    # LiteX writes combinational processes with `<=`, and widths as Python has them.
    *("-Wno-fatal", "-Wno-lint", "-Wno-style", "-Wno-COMBDLY"),
)
CFLAGS = "-std=c++17 -Wall -Wextra -Werror"
HINT = "install Debian's verilator and build-essential (setup/packages.sh gateware)"


class SimulatorError(Exception):
    """The simulator cannot be built, or says that something is wrong. `hint`: what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def simulator(channels: int, ranks: int) -> Path:
    """Directory with ``harness`` and ``csr.json`` of a machine with so many channels and ranks.

    :raises SimulatorError: a tool is missing or fails.
    """
    if shutil.which(VERILATOR[0]) is None:
        raise SimulatorError("there is no verilator", HINT)
    return cached("sim", _key(channels, ranks), partial(_build, channels=channels, ranks=ranks))


def _key(channels: int, ranks: int) -> str:
    package = Path(ptat_gateware.__file__).parent
    ours = [HARNESS.with_name(name) for name in ("geometry.py", "top.py")]
    cores = sorted([*package.glob("*.py"), *package.glob("snoop/*.py")])
    sources = [*cores, *ours, HARNESS, Path(wire.__file__)]
    version = subprocess.run([VERILATOR[0], "--version"], capture_output=True, check=True).stdout
    try:
        tools = " ".join(f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS)
    except importlib.metadata.PackageNotFoundError as error:
        raise SimulatorError(
            f"{error.name} is not installed", "pip install --editable '.[gateware]'"
        ) from error
    options = repr((channels, ranks, VERILATOR, CFLAGS))
    return digest(
        [*(path.read_bytes() for path in sources), version, tools.encode(), options.encode()]
    )


def _build(directory: Path, channels: int, ranks: int) -> None:
    what = f"{channels} channel{'s' * (channels > 1)} of {ranks} rank{'s' * (ranks > 1)}"
    print(f"gateware: building the simulator of {what} …", file=sys.stderr, flush=True)
    objects = directory / "objects"
    objects.mkdir()
    (objects / "ptat_wire.h").write_text(wire.c_header())
    top = ["-m", "ptat_gateware.sim.top", "--channels", str(channels), "--ranks", str(ranks)]
    _run([sys.executable, *top, str(objects)], directory)
    flags = f"{CFLAGS} -DPTAT_CHANNELS={channels} -DPTAT_RANKS={ranks} -I{objects}"
    _run(
        [*VERILATOR, "-CFLAGS", flags, "--Mdir", str(objects), "-o", "harness", str(HARNESS),
         "top.v"],
        objects,
    )  # fmt: skip
    for name in ("harness", "csr.json"):
        (objects / name).rename(directory / name)
    shutil.rmtree(objects)


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SimulatorError(f"{Path(command[0]).name} failed", "its messages are above")
