# SPDX-License-Identifier: BSD-2-Clause
import numpy as np
import pytest

from ptat_studies.pagesize.memory_time import (
    FAST_HDD,
    HDD,
    NVM,
    SLOW_NVM,
    Memory,
    Storage,
    access_ns,
    address_ns,
    climb,
    data_ns,
)


def test_equations():
    """By hand: 2 + 0.25 × 40, 40 + 0.1 × 1000."""
    memory = Memory(tlb_ns=2, access_ns=40)
    assert address_ns(memory, 0.25) == pytest.approx(12)
    assert data_ns(memory, 0.1, 1000) == pytest.approx(140)
    assert access_ns(memory, 0.25, 0.1, 1000) == pytest.approx(152)
    both = access_ns(memory, np.array([0.25, 0]), np.array([0.1, 0]), np.array([1000.0, 1000]))
    assert both == pytest.approx([152, 42])


def test_a_fault_takes_latency_seek_and_transfer():
    storage = Storage(latency_ns=100, seek_ns=1000, bytes_per_second=1e9)
    assert storage.fault_ns(4096) == pytest.approx(100 + 1000 + 4096)


def test_the_papers_storages():
    """As fast, for 4 KiB, as the one; as dependent on the size as the other."""
    assert FAST_HDD.fault_ns(4096) == pytest.approx(NVM.fault_ns(4096))
    assert SLOW_NVM.fault_ns(4096) == pytest.approx(HDD.fault_ns(4096))
    for size in (512, 65536):
        assert FAST_HDD.fault_ns(size) / NVM.fault_ns(4096) == pytest.approx(
            HDD.fault_ns(size) / HDD.fault_ns(4096)
        )
        assert SLOW_NVM.fault_ns(size) / HDD.fault_ns(4096) == pytest.approx(
            NVM.fault_ns(size) / NVM.fault_ns(4096)
        )
    # Section I: a disk is 5 to 6 orders of magnitude slower than DRAM, NVM 1 to 100 times.
    assert 1e5 <= HDD.fault_ns(4096) / Memory().access_ns <= 1e6
    assert 1 <= NVM.fault_ns(4096) / Memory().access_ns <= 100


def climbed(rows, start, change=0.0):
    times = np.array(rows, float)
    return climb(times, np.ones(len(rows)), np.full(times.shape[1], change), start)


def test_climb_finds_a_valley_on_either_side():
    assert climbed([[9, 7, 5, 3, 4]] * 10, 1).sizes == [1, 2, 3, 4, 3, 2, 3, 4, 3, 2]
    # Up is slower: back, then down, and on.
    assert climbed([[4, 3, 5, 7, 9]] * 10, 3).sizes == [3, 4, 3, 2, 1, 0, 1, 2, 1, 0]


def test_climb_turns_at_the_ends():
    assert climbed([[1, 2]] * 6, 1).sizes == [1, 0, 1, 0, 1, 0]
    assert climbed([[2, 1]] * 6, 1).sizes == [1, 0, 1, 0, 1, 0]
    assert climbed([[1]] * 3, 0).sizes == [0, 0, 0]


def test_climb_gets_stuck_in_a_hollow():
    """What the paper holds against it: it sees only neighbours."""
    assert set(climbed([[9, 3, 4, 1]] * 10, 1).sizes) == {0, 1, 2}


def test_climb_pays_for_changes_and_for_what_it_tries():
    found = climbed([[4, 2, 3]] * 5, 1, change=10)
    assert found.sizes == [1, 2, 1, 0, 1]
    assert found.access_ns == pytest.approx((2 + 3 + 2 + 4 + 2) / 5)
    assert found.change_ns == pytest.approx(4 * 10 / 5)
