# SPDX-License-Identifier: BSD-2-Clause
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser.order import clock

TICK_HZ = 1e9
CYCLES_HZ = 2.6e9
CLOCKS = clock.NominalClocks(TICK_HZ, CYCLES_HZ)


def pairs(ppm: float, delay_cycles, n: int = 500, span_ticks: float = 5e9) -> clock.Pairs:
    choose = np.random.default_rng(1)
    ticks = np.sort(choose.integers(0, int(span_ticks), n)) + 123_456_789
    exact = 4_000_000_000 + (ticks - 123_456_789) * 2.6 * (1 + ppm * 1e-6)
    cycles = exact + delay_cycles(choose, n)
    return clock.Pairs(ticks.astype(np.uint64), np.round(cycles).astype(np.uint64))


@pytest.mark.parametrize("ppm", [-570.0, 0.0, 80.0])
def test_drift_and_offset_under_delays(ppm):
    """The delay's least value is offset; its spread, far outliers too, must not matter."""

    def delays(choose, n):
        return 100 + choose.exponential(3000, n) + (choose.random(n) < 0.05) * 1e6

    ticks, cycles = found = pairs(ppm, delays)
    fitted = clock.fit(found, CLOCKS)
    assert fitted.drift_ppm == pytest.approx(ppm, abs=1)
    error = fitted.to_ticks(cycles).astype(np.int64) - ticks.astype(np.int64)
    assert error.min() >= -2
    assert 400 < fitted.residual_ns < 2000


@pytest.mark.parametrize("seed", range(20))
def test_entries_bound_the_error(seed):
    """Markers from above, entries from below: the truth is no further than `error_ns`."""
    choose = np.random.default_rng(seed)
    true_ppm = choose.uniform(-200, 200)
    true_slope = 2.6 * (1 + true_ppm * 1e-6)
    span = choose.choice([1e6, 1e8, 1e10])

    def at(n, delay):
        ticks = np.sort(choose.integers(0, int(span), n)) + 5_000_000
        cycles = 7_000_000_000 + ticks * true_slope + delay(n) * 2.6
        return clock.Pairs(ticks.astype(np.uint64), np.round(cycles).astype(np.uint64))

    few = at(choose.integers(2, 30), lambda n: choose.exponential(3000, n))
    entries = at(choose.integers(1, 300), lambda n: -200 - choose.exponential(2000, n))
    fitted = clock.fit(few, CLOCKS, entries)
    assert fitted.entry_pairs == entries.ticks.size
    both = np.concatenate([few.ticks, entries.ticks])
    ends = np.array([both.min(), both.max()], np.uint64)
    true_ns = (7_000_000_000 + ends * true_slope) / 2.6
    assert np.abs(fitted.to_ns(ends) - true_ns).max() <= fitted.error_ns + 2
    # No pair contradicts it: an event is after its marker, and before its entry's store.
    assert np.all(fitted.to_ticks(few.cycles) + np.uint64(2) >= few.ticks)
    assert np.all(fitted.to_ticks(entries.cycles) <= entries.ticks + np.uint64(2))


def test_many_entries_are_better_than_few_markers():
    errors = []
    for seed in range(20):
        choose = np.random.default_rng(seed)
        ticks = np.sort(choose.integers(0, 10**9, 330)).astype(np.uint64)
        cycles = 5_000_000_000 + ticks * 2.6
        marker = np.arange(330) % 11 == 0
        late = choose.exponential(3000, 330) * 2.6
        few = clock.Pairs(ticks[marker], np.round(cycles + late)[marker].astype(np.uint64))
        early = np.round(cycles - 300 - late).astype(np.uint64)
        entries = clock.Pairs(ticks[~marker], early[~marker])
        end = np.array([10**9], np.uint64)
        errors.append(
            [
                abs(int(clock.fit(few, CLOCKS, pairs).to_ns(end)[0]) - 2923076923)
                for pairs in (clock.NO_PAIRS, entries)
            ]
        )
    without, with_entries = np.mean(errors, axis=0)
    assert with_entries < without / 2


def test_pairs_that_contradict_each_other_are_an_error():
    ticks = np.arange(0, 10**9, 10**7, dtype=np.uint64)
    cycles = 5_000_000_000 + (ticks * 2.6).astype(np.uint64)
    entries = clock.Pairs(ticks, cycles + np.uint64(2600))
    fitted = clock.fit(clock.Pairs(ticks, cycles), CLOCKS, entries)
    assert fitted.error_ns == pytest.approx(1000, abs=2)


def test_short_recordings_keep_the_nominal_frequency():
    ticks = np.array([1000, 1010], np.uint64)
    cycles = np.array([5000, 9000], np.uint64)
    fitted = clock.fit(clock.Pairs(ticks, cycles), CLOCKS)
    assert (fitted.drift_ppm, fitted.cycles_per_tick) == (0, 2.6)


@pytest.mark.parametrize("factor", [0.035, 0.98, 1.02, 10.0])
def test_a_frequency_that_the_kernel_got_wrong(factor):
    """Seen on a busy host: 92 MHz for a TSC of 2.6 GHz."""
    ticks, cycles = found = pairs(0, lambda choose, n: choose.exponential(3000, n), 40, 3e8)
    fitted = clock.fit(found, clock.NominalClocks(TICK_HZ, CYCLES_HZ * factor))
    assert fitted.miscalibrated
    assert fitted.cycles_hz == pytest.approx(CYCLES_HZ, rel=1e-4)
    error = fitted.to_ticks(cycles).astype(np.int64) - ticks.astype(np.int64)
    assert error.min() >= -2
    assert fitted.residual_ns < 5000


def test_one_pair_and_none():
    pair = clock.Pairs(np.array([50], np.uint64), np.array([2600], np.uint64))
    one = clock.fit(pair, CLOCKS)
    assert one.to_ns(np.array([50, 150], np.uint64)).tolist() == [1000, 1100]
    none = clock.fit(clock.NO_PAIRS, CLOCKS)
    assert none.to_ns(np.array([7], np.uint64)).tolist() == [7]


@given(st.lists(st.integers(0, 1 << 44), min_size=2))
def test_order_is_kept_and_times_before_the_origin_work(ticks):
    fitted = clock.Clock(1 << 43, 1 << 50, 2.59, CYCLES_HZ, 0, 0, 1)
    ns = fitted.to_ns(np.sort(np.array(ticks, np.uint64)))
    assert np.all(np.diff(ns) >= 0)


def test_summary_gives_the_same_clock():
    found = pairs(33.3, lambda choose, n: choose.exponential(3000, n))
    fitted = clock.fit(found, CLOCKS)
    again = clock.Clock.from_summary(json.loads(json.dumps(fitted.summary())))
    np.testing.assert_array_equal(again.to_ns(found.ticks), fitted.to_ns(found.ticks))


def test_times_before_the_first_tick_are_that():
    there = clock.Clock(100, 5_000, 2.5, 2.5e9, 0.0, 0.0, 1)
    cycles = np.array([0, 4_749, 4_750, 4_753, 5_000, 5_025], np.uint64)
    assert there.to_ticks(cycles).tolist() == [0, 0, 0, 2, 100, 110]
