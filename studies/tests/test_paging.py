# SPDX-License-Identifier: BSD-2-Clause
"""LRU and CLOCK against a list that is searched, and against what follows on paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_studies.pagesize import paging
from ptat_studies.pagesize.paging import Clock, StackDistances


def brute_lru(pages, entries):
    """Misses of a TLB with so many entries."""
    held, missed = [], 0
    for page in pages:
        if page in held:
            held.remove(page)
        else:
            missed += 1
            held = held[-(entries - 1) :] if entries > 1 else []
        held.append(page)
    return missed


def brute_clock(pages, frames):
    """Faults, with [page, marked] for each frame and a hand."""
    memory, hand, faults = [], 0, 0
    for page in pages:
        found = [frame for frame in memory if frame[0] == page]
        if found:
            found[0][1] = True
            continue
        faults += 1
        if len(memory) < frames:
            memory.append([page, True])
            continue
        while memory[hand][1]:
            memory[hand][1] = False
            hand = (hand + 1) % frames
        memory[hand] = [page, True]
        hand = (hand + 1) % frames
    return faults


def without_repetition(pages):
    """As the simulators want them."""
    array = np.asarray(pages, np.uint32)
    return array[np.append(True, array[1:] != array[:-1])]


def lru(pages, count):
    """Misses by entries, in pieces of several lengths."""
    distances = StackDistances(count)
    for part in np.array_split(without_repetition(pages), 5):
        distances.run(part, 1)
    distances.histogram[1] += len(pages) - without_repetition(pages).size
    return paging.misses(distances.histogram)


def clock(pages, count, frames):
    """Faults, in pieces of several lengths."""
    memory = Clock(count, frames)
    return sum(memory.run(part) for part in np.array_split(without_repetition(pages), 5))


PAGES = st.integers(1, 40).flatmap(
    lambda count: st.tuples(
        st.just(count), st.lists(st.integers(0, count - 1), min_size=1, max_size=300)
    )
)


@given(PAGES)
def test_lru_of_every_size_is_brute_force(given):
    count, pages = given
    found = lru(pages, count)
    assert found[0] == len(pages)
    assert found[1:].tolist() == [brute_lru(pages, n) for n in range(1, count + 1)]


@given(PAGES, st.integers(1, 45))
def test_clock_is_brute_force(given, frames):
    count, pages = given
    assert clock(pages, count, frames) == brute_clock(pages, frames)


@pytest.mark.parametrize("count", [600, 5000])
def test_lru_over_many_pages_whose_times_run_out(count):
    """Far and near distances, groups of times, and several new numberings."""
    rng = np.random.default_rng(count)
    pages = np.concatenate(
        [
            rng.integers(0, count, 4 * count),
            rng.zipf(1.2, 4 * count) % count,
            np.tile(np.arange(count), 3),
        ]
    )
    found = lru(pages, count)
    for entries in (1, 2, 7, 64, 511, count // 2, count):
        assert found[entries] == brute_lru(pages.tolist(), entries)


@given(PAGES, st.integers(1, 45))
def test_misses_of_a_run_are_those_of_its_histogram(given, entries):
    count, pages = given
    distances = StackDistances(count)
    missed = distances.run(without_repetition(pages), entries)
    assert missed == paging.misses(distances.histogram)[min(entries, count)]


def test_a_sequence_misses_each_page_once():
    pages = np.repeat(np.arange(1000), 8)
    assert lru(pages, 1000)[1:].tolist() == [1000] * 1000
    assert clock(pages, 1000, 10) == 1000


@pytest.mark.parametrize("held", [1, 7, 64])
def test_a_cycle_of_one_page_more_than_is_held_always_misses(held):
    pages = np.tile(np.arange(held + 1), 50)
    found = lru(pages, held + 1)
    assert found[held] == pages.size
    assert found[held + 1] == held + 1
    assert clock(pages, held + 1, held) == pages.size
    assert clock(pages, held + 1, held + 1) == held + 1


def test_uniformly_random_pages_miss_as_often_as_they_are_not_held():
    rng = np.random.default_rng(5)
    count, references = 2000, 1_000_000
    pages = rng.integers(0, count, references)
    found = lru(pages, count)
    for held in (100, 500, 1500):
        expected = 1 - held / count
        # The standard deviation of a mean of so many; what is warming up is less than that.
        tolerance = 6 * (expected * (1 - expected) / references) ** 0.5 + count / references
        assert found[held] / references == pytest.approx(expected, abs=tolerance)
        assert clock(pages, count, held) / references == pytest.approx(expected, abs=tolerance)
