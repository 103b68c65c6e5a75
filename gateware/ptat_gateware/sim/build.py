# SPDX-License-Identifier: BSD-2-Clause
"""Builds the simulator, once for each set of inputs."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import ptat_gateware
from ptat_gateware.cache import cached, digest
from ptat_gateware.sim.geometry import BANKS, BURST_BITS, CLOCK_PS, COLUMN_BITS, ROW_BITS
from ptat_gateware.sim.words import BANK_SHIFT, CHANNEL_SHIFT, WRITE_SHIFT
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
PROFILE = "-fprofile-generate"
# What the training does not reach is compiled as without it.
PROFILED = ("-fprofile-use", "-fprofile-partial-training", "-Wno-missing-profile")
TRAINING_REQUESTS = 20_000
HINT = "install Debian's verilator and build-essential (setup/packages.sh gateware)"


class SimulatorError(Exception):
    """The simulator cannot be built, or says that something is wrong. `hint`: what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def simulator(channels: int, ranks: int) -> Path:
    """Directory with ``harness`` and ``csr.json`` of a machine with this geometry.

    :raises SimulatorError: a tool is missing or fails.
    """
    return cached("sim", _key(channels, ranks), partial(_build, channels=channels, ranks=ranks))


def versions() -> bytes:
    """Of the tools, and how they are called.

    :raises SimulatorError: one is missing.
    """
    if shutil.which(VERILATOR[0]) is None:
        raise SimulatorError("there is no verilator", HINT)
    verilator = subprocess.run([VERILATOR[0], "--version"], capture_output=True, check=True).stdout
    try:
        others = " ".join(f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS)
    except importlib.metadata.PackageNotFoundError as error:
        raise SimulatorError(
            f"{error.name} is not installed", "pip install --editable '.[gateware]'"
        ) from error
    return verilator + others.encode() + repr((VERILATOR, CFLAGS)).encode()


def verilate(
    objects: Path,
    sources: Sequence[str],
    flags: Sequence[str],
    train: Callable[[Path], None] | None = None,
) -> None:
    """Make ``harness`` of these sources, with these flags for C++, in a directory.

    With ``train``, which is to run the program that it is given, the program is compiled twice: the
    second time g++ knows which ways it goes, which makes it a third faster.

    :raises SimulatorError: that fails.
    """
    includes = [f"-I{objects}", f"-I{HARNESS.parent}"]

    def build(*more: str) -> None:
        cflags = " ".join([CFLAGS, *flags, *includes, *more])
        options = ["-CFLAGS", cflags, "--Mdir", str(objects), "-o", "harness"]
        if PROFILE in more:
            options += ["-LDFLAGS", PROFILE]
        run([*VERILATOR, *options, *sources], objects)

    if train is not None:
        build(PROFILE)
        train(objects / "harness")
        for old in (*objects.glob("*.o"), *objects.glob("*.a"), objects / "harness"):
            old.unlink()
    build(*(PROFILED if train is not None else ()))


def _key(channels: int, ranks: int) -> str:
    package = Path(ptat_gateware.__file__).parent
    ours = [
        HARNESS.with_name(name)
        for name in ("build.py", "bus.h", "geometry.py", "top.py", "verilog.py")
    ]
    cores = sorted([*package.glob("*.py"), *package.glob("snoop/*.py")])
    sources = [*cores, *ours, HARNESS, Path(wire.__file__)]
    options = repr((channels, ranks))
    return digest([*(path.read_bytes() for path in sources), versions(), options.encode()])


def _build(directory: Path, channels: int, ranks: int) -> None:
    what = f"{channels} channel{'s' * (channels > 1)} of {ranks} rank{'s' * (ranks > 1)}"
    print(f"gateware: building the simulator of {what} …", file=sys.stderr, flush=True)
    objects = directory / "objects"
    objects.mkdir()
    (objects / "ptat_wire.h").write_text(wire.c_header())
    top = ["-m", "ptat_gateware.sim.top", "--channels", str(channels), "--ranks", str(ranks)]
    run([sys.executable, *top, str(objects)], directory)
    flags = [f"-DPTAT_CHANNELS={channels}", f"-DPTAT_RANKS={ranks}"]
    verilate(objects, [str(HARNESS), "top.v"], flags, partial(_train, channels, ranks))
    for name in ("harness", "csr.json"):
        (objects / name).rename(directory / name)
    shutil.rmtree(objects)


def _train(channels: int, ranks: int, harness: Path) -> None:
    """Let a simulator do what it is for: random requests as fast as they are taken, recorded."""
    work = harness.parent
    registers = json.loads((work / "csr.json").read_text())
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << ROW_BITS + COLUMN_BITS - BURST_BITS, TRAINING_REQUESTS, np.uint64)
    for shift, values in (
        (BANK_SHIFT, ranks * BANKS),
        (CHANNEL_SHIFT, channels),
        (WRITE_SHIFT, 2),
    ):
        words |= rng.integers(0, values, words.size, np.uint64) << np.uint64(shift)
    words.tofile(work / "requests")

    def write(**values: int) -> list[str]:
        return [
            f"write {registers[f'snooper{channel}_{name}']['addr']:#x} {value:#x}"
            for name, value in values.items()
            for channel in range(channels)
        ]

    # Without tables all addresses are 0, which is all that window 0 has.
    setup = write(address_control=1, filter_window0_control=0b11, control=1)
    script = [*setup, "run 200", "flood requests", "run 200", *write(control=0), "drain 4096"]
    (work / "script").write_text("".join(f"{line}\n" for line in script))
    period = str(CLOCK_PS)
    files = ["columns", *(f"bus.{channel}" for channel in range(channels))]
    run([str(harness), period, period, *files], work, script=work / "script")


def run(command: list[str], directory: Path, script: Path = Path("/dev/null")) -> None:
    """Run a tool on the input `script`; what it says is shown if it fails.

    :raises SimulatorError: it fails.
    """
    with script.open() as commands:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=commands,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SimulatorError(f"{Path(command[0]).name} failed", "its messages are above")
