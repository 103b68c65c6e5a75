# SPDX-License-Identifier: BSD-2-Clause
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser import clock

TICK_HZ = 1e9
CYCLES_HZ = 2.6e9


def pairs(ppm: float, delay_cycles, n: int = 500, span_ticks: float = 5e9):
    choose = np.random.default_rng(1)
    ticks = np.sort(choose.integers(0, int(span_ticks), n)) + 123_456_789
    exact = 4_000_000_000 + (ticks - 123_456_789) * 2.6 * (1 + ppm * 1e-6)
    cycles = exact + delay_cycles(choose, n)
    return ticks.astype(np.uint64), np.round(cycles).astype(np.uint64)


@pytest.mark.parametrize("ppm", [-570.0, 0.0, 80.0])
def test_drift_and_offset_under_delays(ppm):
    """The delay's least value is offset; its spread, far outliers too, must not matter."""

    def delays(choose, n):
        return 100 + choose.exponential(3000, n) + (choose.random(n) < 0.05) * 1e6

    ticks, cycles = pairs(ppm, delays)
    fitted = clock.fit(ticks, cycles, TICK_HZ, CYCLES_HZ)
    assert fitted.drift_ppm == pytest.approx(ppm, abs=1)
    error = fitted.to_ticks(cycles).astype(np.int64) - ticks.astype(np.int64)
    assert error.min() >= -2
    assert 400 < fitted.residual_ns < 2000


def test_short_recordings_keep_the_nominal_frequency():
    ticks = np.array([1000, 1010], np.uint64)
    cycles = np.array([5000, 9000], np.uint64)
    fitted = clock.fit(ticks, cycles, TICK_HZ, CYCLES_HZ)
    assert (fitted.drift_ppm, fitted.cycles_per_tick) == (0, 2.6)


@pytest.mark.parametrize("factor", [0.035, 0.98, 1.02, 10.0])
def test_a_frequency_that_the_kernel_got_wrong(factor):
    """Seen on a busy host: 92 MHz for a TSC of 2.6 GHz."""
    ticks, cycles = pairs(0, lambda choose, n: choose.exponential(3000, n), 40, 3e8)
    fitted = clock.fit(ticks, cycles, TICK_HZ, CYCLES_HZ * factor)
    assert fitted.miscalibrated
    assert fitted.cycles_hz == pytest.approx(CYCLES_HZ, rel=1e-4)
    error = fitted.to_ticks(cycles).astype(np.int64) - ticks.astype(np.int64)
    assert error.min() >= -2
    assert fitted.residual_ns < 5000


def test_one_pair_and_none():
    one = clock.fit(np.array([50], np.uint64), np.array([2600], np.uint64), TICK_HZ, CYCLES_HZ)
    assert one.to_ns(np.array([50, 150], np.uint64)).tolist() == [1000, 1100]
    none = clock.fit(np.array([], np.uint64), np.array([], np.uint64), TICK_HZ, CYCLES_HZ)
    assert none.to_ns(np.array([7], np.uint64)).tolist() == [7]


@given(st.lists(st.integers(0, 1 << 44), min_size=2))
def test_order_is_kept_and_times_before_the_origin_work(ticks):
    fitted = clock.Clock(1 << 43, 1 << 50, 2.59, CYCLES_HZ, 0, 0, 1)
    ns = fitted.to_ns(np.sort(np.array(ticks, np.uint64)))
    assert np.all(np.diff(ns) >= 0)


def test_summary_gives_the_same_clock():
    ticks, cycles = pairs(33.3, lambda choose, n: choose.exponential(3000, n))
    fitted = clock.fit(ticks, cycles, TICK_HZ, CYCLES_HZ)
    again = clock.Clock.from_summary(json.loads(json.dumps(fitted.summary())))
    np.testing.assert_array_equal(again.to_ns(ticks), fitted.to_ns(ticks))
