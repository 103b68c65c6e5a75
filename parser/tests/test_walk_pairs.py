# SPDX-License-Identifier: BSD-2-Clause
"""Walks whose reads overlap on the bus, by hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser.checks.walk_pairs import count_pairs

CPUS = 3
WALKS = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4)), max_size=12)
"""Process and 2 MiB range of each walk of a CPU."""
NOWHERE = 99
"""A range that no walk reads."""
Read = tuple[int, int, bool]


@st.composite
def buses(draw: st.DrawFn) -> list[Read]:
    """The reads of several CPUs' walks; each CPU finishes a walk before it begins another."""
    of_cpus = [
        [(*walk, opens) for walk in draw(WALKS) for opens in (True, False)] for _ in range(CPUS)
    ]
    bus: list[Read] = []
    while any(of_cpus):
        cpu = draw(st.sampled_from([cpu for cpu in range(CPUS) if of_cpus[cpu]]))
        bus.append(of_cpus[cpu].pop(0))
    return bus


def counted(bus: list[Read], cpus: int) -> tuple[int, int]:
    owner, range_number, opens = np.array(bus, np.int64).reshape(-1, 3).T
    return count_pairs(owner, range_number, opens.astype(np.bool_), cpus)


@given(buses())
def test_all_walks_are_whole(bus: list[Read]):
    assert counted(bus, CPUS) == (len(bus) // 2, 0)


@given(buses(), st.data())
def test_another_read_is_found(bus: list[Read], data: st.DataObject):
    at = data.draw(st.integers(0, len(bus)))
    assert counted([*bus[:at], (1, NOWHERE, False), *bus[at:]], CPUS) == (len(bus) // 2, 1)


def test_fewer_cpus_cannot_have_so_many_walks_open():
    bus = [(1, number, True) for number in range(3)] + [(1, number, False) for number in range(3)]
    assert counted(bus, 3) == (3, 0)
    assert counted(bus, 2) == (2, 2)
