# SPDX-License-Identifier: BSD-2-Clause
"""Clocks and cells of a design, from the reports of nextpnr and Yosys.

nextpnr lets a missed clock pass, so each domain's clock is compared with what the target requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BuildError(Exception):
    """A tool failed, or a report does not say what it should."""


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
