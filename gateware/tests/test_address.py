# SPDX-License-Identifier: BSD-2-Clause
"""The address map against the host's twin, which goes the other way by other means."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litex.gen import LiteXModule
from verilated import Bench, Registers, needs_verilator

from ptat_gateware import address, layouts
from ptat_gateware.address import AddressMap
from ptat_host.calibration import dram
from ptat_host.calibration.dram import Mapping, Remap

pytestmark = needs_verilator

COORDINATE = ("column", "row", "bank", "bank_group", "rank")


class Top(LiteXModule):
    def __init__(self, lanes: int) -> None:
        self.map = AddressMap(lanes)
        self.registers = Registers(self.map)
        bus = self.registers.bus
        self.inputs = {"adr": bus.adr, "we": bus.we, "dat_w": bus.dat_w}
        self.outputs = {"unmapped": self.map.unmapped}
        for i, (sink, source) in enumerate(zip(self.map.sinks, self.map.sources, strict=True)):
            for name in ("valid", "write", "phase", *COORDINATE):
                self.inputs[f"{name}{i}"] = getattr(sink, name)
            for name in ("valid", "write", "phase", "address"):
                self.outputs[f"{name}{i}"] = getattr(source, name)


@functools.cache
def built(lanes: int) -> tuple[Top, Bench]:
    top = Top(lanes)
    return top, Bench(top, top.inputs, top.outputs, ("snoop", "sys"))


def program(lanes: int, writes: list[tuple[str, int]]) -> Bench:
    top, bench = built(lanes)
    bench.reset()
    words = [
        pair
        for name, value in writes
        for pair in top.registers.writes(name.removeprefix("address_"), value)
    ]
    adr, data = np.array(words, np.uint64).T
    bench.run(np.full(len(words), 2), adr=adr, we=1, dat_w=data)
    return bench


def test_one_definition_of_coordinates():
    widths = {name: getattr(layouts, f"{name.upper()}_BITS") for name in dram.FIELDS}
    assert widths == dram.FIELDS
    assert (address.SLICES, address.SLICE_BITS) == (dram.SLICES, dram.SLICE_BITS)
    assert 1 << address.REMAP_UNIT_SHIFT == dram.REMAP_UNIT_BYTES


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    """Full-rank functions of up to 39 address bits, for any bus, with or without a hole."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bus_bytes = draw(st.sampled_from(dram.BUS_BYTES))
    low = bus_bytes.bit_length() - 1
    bits = {name: int(rng.integers(0, most + 1)) for name, most in dram.FIELDS.items()}
    bits["row"] = min(bits["row"], 36 - sum(bits.values()) + bits["row"])
    total = max(sum(bits.values()), 4 - low)
    bits["column"] = max(bits["column"], total - sum(bits.values()))
    masks = [1 << i for i in rng.permutation(total).tolist()]
    for _ in range(4 * total if total > 1 else 0):
        a, b = rng.choice(total, 2, replace=False)
        masks[a] ^= masks[b]
    masks = [mask << low for mask in masks]
    functions = {}
    for name, count in bits.items():
        functions[name], masks = masks[:count], masks[count:]
    remap = None
    size = 1 << total + low
    if size > 1 << 24 and draw(st.booleans()):
        unit = dram.REMAP_UNIT_BYTES
        first = int(rng.integers(0, size // unit)) * unit
        remap = Remap(first, int(rng.integers(0, ((1 << 39) - size) // unit + 1)) * unit)
    return Mapping("random", "this test", total + low, functions, remap, bus_bytes)


@settings(max_examples=40)
@given(mappings(), st.sampled_from([1, 2]), st.integers(0, 2**32))
def test_as_the_host_says(mapping, lanes, seed):
    rng = np.random.default_rng(seed)
    channel = int(rng.integers(0, 1 << len(mapping.functions["channel"])))
    bench = program(lanes, mapping.register_writes(channel))
    rows = 300
    columns = {}
    wanted = {}
    for lane in range(lanes):
        coordinates = {
            name: rng.integers(0, 1 << len(mapping.functions[name]), rows) for name in COORDINATE
        }
        wanted[lane] = mapping.addresses(coordinates | {"channel": channel}) >> np.uint64(3)
        columns |= {f"{name}{lane}": values for name, values in coordinates.items()}
        for name, most in (("valid", 2), ("write", 2), ("phase", 8)):
            columns[f"{name}{lane}"] = rng.integers(0, most, rows)
    seen = bench.run(np.full(rows, 1), **columns)
    late = AddressMap.latency
    for lane in range(lanes):
        for name in ("valid", "write", "phase"):
            np.testing.assert_array_equal(
                seen[f"{name}{lane}"][late:], columns[f"{name}{lane}"][:-late]
            )
        np.testing.assert_array_equal(seen[f"address{lane}"][late:], wanted[lane][:-late])
    assert not seen["unmapped"].any()


@pytest.mark.parametrize("lanes", [1, 2])
def test_unprogrammed(lanes):
    writes = dram.preset("ivy-bridge", 2).register_writes(1)
    bench = program(lanes, [*writes, ("address_control", 0)])
    valid = np.random.default_rng(1).integers(0, 2, (100, lanes))
    seen = bench.run(np.full(100, 1), **{f"valid{i}": valid[:, i] for i in range(lanes)})
    for lane in range(lanes):
        assert not seen[f"valid{lane}"].any()
    late = AddressMap.latency
    np.testing.assert_array_equal(seen["unmapped"][late:], valid.any(axis=1)[:-late])
