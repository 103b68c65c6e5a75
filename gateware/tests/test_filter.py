# SPDX-License-Identifier: BSD-2-Clause
"""Windows at their edges; everything else of the filter is tested in the whole snooper."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litex.gen import LiteXModule
from verilated import Bench, Registers, needs_verilator

from ptat_gateware import filter as filtering
from ptat_gateware.filter import WINDOWS, WindowFilter
from ptat_host.calibration import dram

pytestmark = needs_verilator

UNITS = 1 << filtering.WINDOW_BITS


class Top(LiteXModule):
    def __init__(self) -> None:
        self.filter = WindowFilter()
        self.registers = Registers(self.filter)
        bus = self.registers.bus
        (sink,), (source,) = self.filter.sinks, self.filter.sources
        self.inputs = {"adr": bus.adr, "we": bus.we, "dat_w": bus.dat_w}
        self.inputs |= {
            name: getattr(sink, name) for name in ("valid", "write", "phase", "address")
        }
        self.outputs = {
            name: getattr(source, name)
            for name in ("valid", "write", "phase", "address", "exact", "start", "stop")
        }


@functools.cache
def built() -> tuple[Top, Bench]:
    top = Top()
    return top, Bench(top, top.inputs, top.outputs, ("snoop", "sys"))


def test_one_definition_of_windows():
    assert WINDOWS == dram.WINDOWS_MAX
    assert 1 << filtering.WINDOW_UNIT_SHIFT == dram.WINDOW_UNIT_BYTES


windows = st.tuples(st.integers(0, UNITS - 1), st.integers(0, UNITS - 1), st.integers(0, 31))


@pytest.mark.parametrize("lowest", [0, UNITS - 8])
@given(st.lists(windows, min_size=WINDOWS, max_size=WINDOWS), st.integers(0, 2**32))
def test_each_access_at_the_edges(lowest, spans, seed):
    """Windows as they come, overlapping ones too, and near both ends of the address space."""
    spans = [(lowest + a % 8, lowest + b % 8, control) for a, b, control in spans]
    top, bench = built()
    bench.reset()
    words = []
    for i, (first, last, control) in enumerate(spans):
        for name, value in (("first", first), ("last", last), ("control", control)):
            words += top.registers.writes(f"window{i}_{name}", value)
    adr, data = np.array(words, np.uint64).T
    bench.run(np.full(len(words), 2), adr=adr, we=1, dat_w=data)

    rng = np.random.default_rng(seed)
    rows = 500
    unit = rng.integers(lowest, lowest + 8, rows)
    low = rng.choice([0, 1, (1 << 13) - 1], rows)
    columns = {
        "valid": rng.integers(0, 2, rows),
        "write": rng.integers(0, 2, rows),
        "phase": rng.integers(0, 8, rows),
        "address": unit << 13 | low,
    }
    seen = bench.run(np.full(rows, 1), **columns)
    late = WindowFilter.latency
    wanted = dict.fromkeys(("valid", "exact", "start", "stop"), np.zeros(rows, bool))
    for first, last, control in spans:
        kind = np.where(columns["write"] == 1, control >> 1 & 1, control & 1) == 1
        hit = (unit >= first) & (unit <= last) & kind
        wanted["valid"] = wanted["valid"] | hit & (columns["valid"] == 1)
        wanted["exact"] = wanted["exact"] | hit & (not control & 4)
        wanted["start"] = wanted["start"] | hit & bool(control & 8)
        wanted["stop"] = wanted["stop"] | hit & bool(control & 16)
    for name, values in wanted.items():
        np.testing.assert_array_equal(seen[name][late:] == 1, values[:-late], name)
    for name in ("write", "phase", "address"):
        np.testing.assert_array_equal(seen[name][late:], columns[name][:-late])
