# SPDX-License-Identifier: BSD-2-Clause
"""Runs a Migen module in Verilator from arrays of stimulus: 100,000s of clocks a second.

A run is a table: each row sets the inputs, reads the outputs, and then raises the clocks that
the row names. So clocks may have any relation, and a test can work on columns with numpy.
"""

from __future__ import annotations

import ctypes
import inspect
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import migen
import numpy as np
import pytest
from litex.soc.interconnect import csr_bus
from migen import ClockDomain, Signal
from migen.fhdl import verilog

from ptat_gateware.cache import cached, digest
from ptat_gateware.sim.verilog import with_contents

needs_verilator = pytest.mark.skipif(
    shutil.which("verilator") is None or shutil.which("g++") is None,
    reason="no Verilator (setup/packages.sh gateware)",
)

RUNTIME = ("verilated", "verilated_threads")

HARNESS = r"""
#include "Vtop.h"
#include "verilated.h"
#include <cstdint>

extern "C" {

void *create() { return new Vtop; }
void destroy(void *top) { delete static_cast<Vtop *>(top); }

void run(void *handle, uint64_t rows, const uint8_t *clocks, const uint64_t *in, uint64_t *out)
{
    Vtop *top = static_cast<Vtop *>(handle);
    for (uint64_t row = 0; row < rows; row++) {
@INPUTS@
        top->eval();
@OUTPUTS@
@RISE@
        top->eval();
@FALL@
        top->eval();
    }
}
}
"""


CXXFLAGS = ["-std=c++14", "-fPIC"]


def _call(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr[-4000:]}")


@cache
def _runtime() -> Path:
    """Verilator's own library, the same for every module."""
    root = subprocess.run(
        ["verilator", "--getenv", "VERILATOR_ROOT"], capture_output=True, text=True, check=True
    ).stdout.strip()
    sources = [str(Path(root, "include", f"{name}.cpp")) for name in RUNTIME]
    command = ["g++", "-c", "-O1", *CXXFLAGS, "-I", f"{root}/include", *sources]

    def build(directory: Path) -> None:
        _call(command, directory)

    key = digest([*(Path(source).read_bytes() for source in sources), " ".join(command).encode()])
    return cached("gateware-bench-runtime", key, build)


class Bench:
    """A compiled module. `inputs` and `outputs` are its pins, of at most 64 bits."""

    def __init__(
        self,
        top: migen.Module,
        inputs: dict[str, Signal],
        outputs: dict[str, Signal],
        domains: tuple[str, ...] = ("sys",),
    ) -> None:
        self.inputs = {name: i for i, name in enumerate(inputs)}
        self.outputs = {name: i for i, name in enumerate(outputs)}
        self.domains = domains
        clocks = [ClockDomain(name, reset_less=True) for name in domains]
        top.clock_domains += clocks
        pins = [*inputs.values(), *outputs.values()]
        converted = verilog.convert(top, {*pins, *(clock.clk for clock in clocks)}, name="top")
        name = converted.ns.get_name

        def lines(pattern: str, signals: list[Signal]) -> str:
            return "\n".join(
                pattern.format(name=name(s), i=i, n=len(signals)) for i, s in enumerate(signals)
            )

        clock_pins = [clock.clk for clock in clocks]
        code = HARNESS
        for key, text in {
            "@INPUTS@": lines("top->{name} = in[row * {n} + {i}];", list(inputs.values())),
            "@OUTPUTS@": lines("out[row * {n} + {i}] = top->{name};", list(outputs.values())),
            "@RISE@": lines("top->{name} = clocks[row] >> {i} & 1;", clock_pins),
            "@FALL@": lines("top->{name} = 0;", clock_pins),
        }.items():
            code = code.replace(key, text)
        source = with_contents(converted)

        def build(directory: Path) -> None:
            (directory / "top.v").write_text(source)
            (directory / "harness.cpp").write_text(code)
            verilator = [
                "verilator",
                "--cc",
                "top.v",
                "harness.cpp",
                "--prefix",
                "Vtop",
                "-Wno-fatal",
            ]
            verilator += ["--Mdir", "obj", "-O3", "--x-assign", "0", "--x-initial", "0"]
            make = ["make", "-s", "-C", "obj", "-f", "Vtop.mk", "OPT=-O1"]
            objects = [str(_runtime() / f"{name}.o") for name in RUNTIME]
            _call([*verilator, "-CFLAGS", " ".join(CXXFLAGS), "--exe"], directory)
            _call([*make, "harness.o", "Vtop__ALL.a"], directory)
            library = ["obj/harness.o", "obj/Vtop__ALL.a", *objects, "-lpthread"]
            _call(["g++", "-shared", "-o", "bench.so", *library], directory)
            shutil.rmtree(directory / "obj")

        key = digest([source.encode(), code.encode(), inspect.getsource(build).encode()])
        self._library = ctypes.CDLL(str(cached("gateware-bench", key, build) / "bench.so"))
        self._library.create.restype = ctypes.c_void_p
        self._library.destroy.argtypes = [ctypes.c_void_p]
        self._library.run.argtypes = [ctypes.c_void_p, ctypes.c_uint64] + [ctypes.c_void_p] * 3
        self._top: int | None = None

    def reset(self) -> None:
        """Start from power-up."""
        if self._top is not None:
            self._library.destroy(self._top)
        self._top = self._library.create()

    def run(self, clocks: np.ndarray, **columns: np.ndarray | int) -> dict[str, np.ndarray]:
        """Run rows: `clocks` (uint8, bit i: `domains[i]` rises), inputs (0 where not given).

        Returns the outputs as they were before the row's clock edges.
        """
        if self._top is None:
            self.reset()
        rows = len(clocks)
        stimulus = np.zeros((rows, len(self.inputs)), np.uint64)
        for name, column in columns.items():
            stimulus[:, self.inputs[name]] = column
        seen = np.zeros((rows, len(self.outputs)), np.uint64)
        edges = np.ascontiguousarray(clocks, np.uint8)
        self._library.run(
            self._top, rows, edges.ctypes.data, stimulus.ctypes.data, seen.ctypes.data
        )
        return {name: seen[:, i] for name, i in self.outputs.items()}


class Registers:
    """Registers of a module, by name, behind a CSR bus of 32 bits."""

    def __init__(self, module: migen.Module) -> None:
        descriptions = module.get_csrs()
        self.bank = csr_bus.CSRBank(descriptions, bus=csr_bus.Interface(data_width=32))
        module.submodules += self.bank
        self.bus = self.bank.bus
        self._places: dict[str, list[int]] = {}
        names = [csr.name for csr in descriptions]
        for i, csr in enumerate(self.bank.simple_csrs):
            stem = csr.name.rstrip("0123456789")
            owner = csr.name if csr.name in names else stem
            self._places.setdefault(owner, []).append(i)

    def addresses(self, name: str) -> list[int]:
        """Word addresses of a register, the most significant word first."""
        return self._places[name]

    def writes(self, name: str, value: int) -> list[tuple[int, int]]:
        """What to write to which address, in this order."""
        places = self._places[name]
        words = [value >> 32 * i & 0xFFFF_FFFF for i in reversed(range(len(places)))]
        return list(zip(places, words, strict=True))


class Clocked:
    """A world that goes on clock by clock, `step`, around a `top` that has `registers`."""

    top: Any

    def step(self, **bus: int) -> int:
        """A clock with these pins of the bus; what the bus reads."""
        raise NotImplementedError

    def read(self, name: str) -> int:
        """A register's value."""
        value = 0
        for address in self.top.registers.addresses(name):
            self.step(adr=address, re=1)
            value = value << 32 | self.step()
        return value

    def write(self, name: str, value: int) -> None:
        """Set a register."""
        for address, word in self.top.registers.writes(name, value):
            self.step(adr=address, we=1, dat_w=word)
