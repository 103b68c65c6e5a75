# SPDX-License-Identifier: BSD-2-Clause
"""The bank of counters alone: every event, at every rate, in the count that it belongs to."""

import functools

import numpy as np
import pytest
from litex.gen import LiteXModule
from migen import Signal
from verilated import Bench, needs_verilator

from ptat_gateware.counters import Count, CounterBank

STROBES = (4, 1, 2, 8, 1)  # of each count
LIMITED, STOPS_AT_BIT, BITS = 2, 9, 20
LATENCY = 3  # clocks from an event to `count`


class Top(LiteXModule):
    def __init__(self) -> None:
        strobes = [Signal(width, name=f"strobes{i}") for i, width in enumerate(STROBES)]
        counts = [
            Count(list(strobe), STOPS_AT_BIT if i < LIMITED else None)
            for i, strobe in enumerate(strobes)
        ]
        self.counters = counters = CounterBank(counts, BITS)
        self.inputs = {f"strobes{i}": strobe for i, strobe in enumerate(strobes)}
        self.inputs["clear"] = counters.clear
        self.outputs = {"number": counters.number, "count": counters.count}


@functools.cache
def built() -> Bench:
    top = Top()
    return Bench(top, top.inputs, top.outputs, ("snoop",))


def run(strobes: list[np.ndarray], clear: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`number` and `count` in each clock."""
    bench = built()
    bench.reset()
    columns = {f"strobes{i}": column for i, column in enumerate(strobes)}
    seen = bench.run(np.ones(len(clear), np.uint8), clear=clear, **columns)
    return seen["number"].astype(int), seen["count"].astype(int)


@needs_verilator
@pytest.mark.parametrize("density", [0.01, 0.5, 1.0])
def test_each_count_is_that_of_its_events(density):
    rng = np.random.default_rng(1)
    clocks = 20_000
    bits = [rng.random((clocks, width)) < density for width in STROBES]
    clear = np.zeros(clocks, bool)
    clear[[7_001, 7_300, 13_005]] = True
    strobes = [(bit << np.arange(bit.shape[1])).sum(axis=1) for bit in bits]
    number, count = run(strobes, clear)
    stopped = 0
    for i, events in enumerate(bit.sum(axis=1) for bit in bits):
        # What was there at the last clear does not count.
        total = np.cumsum(events)
        before = np.concatenate([[0], total[:-1]])
        total = total - np.maximum.accumulate(np.where(clear, before, 0))
        rows = np.flatnonzero(number == i)
        rows = rows[rows >= LATENCY]
        assert np.all(np.diff(rows) <= 2 * len(STROBES))
        got, want = count[rows], total[rows - LATENCY]
        fresh = clear[rows - 1] | clear[rows - 2] | clear[rows - 3]  # still says what was before
        over = want >> STOPS_AT_BIT != 0 if i < LIMITED else np.zeros(len(rows), bool)
        np.testing.assert_array_equal(got[~over & ~fresh], want[~over & ~fresh])
        # A count that stops does so at its bit and not later than a round after, for good.
        over &= ~fresh
        assert np.all(got[over] >> STOPS_AT_BIT == 1)
        since = np.maximum.accumulate(np.where(clear, np.arange(clocks), 0))[rows - LATENCY]
        for start in np.unique(since[over]):
            assert len(set(got[over & (since == start)])) == 1
            stopped += 1
    assert bool(stopped) == (density > 0.1)
