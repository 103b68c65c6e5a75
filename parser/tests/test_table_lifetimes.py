# SPDX-License-Identifier: BSD-2-Clause
"""Which pages hold tables when, by the log and by the reads of markers."""

import random

import numpy as np
import pytest

from ptat_parser.formats.session import Region
from ptat_parser.kernel.log import KernelLog, TimedLog
from ptat_parser.kernel.tracepoints import (
    MARKER,
    TABLE_ALLOC,
    TABLE_EVENT,
    TABLE_FREE,
    TABLE_LINK,
)
from ptat_parser.order.line_times import LineTimes
from ptat_parser.order.table_lifetimes import lifetimes, ticks_of_events

BASE, SLOTS = 0x4000_0000, 1024
REGION = Region(BASE, 1 << 20, SLOTS, 64, "pte")
TICK_HZ, TSC_HZ = 1e9, 2.5e9


def logged(*rows) -> KernelLog:
    """Table events: time in s, kind, page of the table, page of the entry that points to it."""
    tables = np.zeros(len(rows), TABLE_EVENT)
    for i, (time_s, kind, page, slot_page) in enumerate(rows):
        tables[i]["time"], tables[i]["seq"] = 7e9 + time_s * TSC_HZ, i + 1
        tables[i]["kind"] = kind
        tables[i]["pa"] = BASE + (page << 12) if page else 0
        tables[i]["slot_pa"] = BASE + (slot_page << 12) if slot_page else 0
    return KernelLog(tables, TimedLog(), 0, 0, [], np.empty(0, np.uint64))


@pytest.mark.parametrize(
    ("page", "time_s", "held"),
    [
        *((20, 0.5, False), (20, 0.95, True), (20, 1.5, True), (20, 2.05, True), (20, 3, False)),
        *((20, 6, True), (20, 99, True)),  # never freed
        *((21, 0, True), (21, 3, True), (21, 3.5, False)),  # allocated before the log begins
        *((22, 0, True), (22, 99, True)),  # neither was logged
        (23, 2, False),
    ],
)
def test_a_page_holds_a_table_from_alloc_to_free(page, time_s, held):
    log = logged(
        (1, TABLE_ALLOC, 20, 0),
        (2, TABLE_FREE, 20, 0),
        (2.5, TABLE_LINK, 0, 22),
        (3, TABLE_FREE, 21, 0),
        (5, TABLE_ALLOC, 20, 0),
    )
    ticks = ((log.tables["time"] - np.uint64(7_000_000_000)) / TSC_HZ * TICK_HZ).astype(np.int64)
    found = lifetimes(log, REGION, ticks).hold(
        np.array([page]), np.array([int(time_s * TICK_HZ)]), TICK_HZ
    )
    assert found.tolist() == [held]


@pytest.mark.parametrize("first_seq", [1, 900, 5000])
@pytest.mark.parametrize("scrubbed_s", [(), (0.2,), (0.2, 40.0)])
def test_events_are_placed_by_their_markers(first_seq, scrubbed_s):
    """Whether or not scrub has read the markers before, or reads them later."""
    choose = random.Random(first_seq)
    times_s = np.cumsum([choose.expovariate(500) for _ in range(3000)])
    log = logged(*((time_s, MARKER, 0, 0) for time_s in times_s))
    log.tables["seq"] += np.uint64(first_seq - 1)
    marked = ((times_s + 1.7) * TICK_HZ).astype(np.int64)
    slot = (log.tables["seq"] % np.uint64(SLOTS)).astype(np.int64)
    scrub = [int((at_s + i * 1e-4) * TICK_HZ) for at_s in scrubbed_s for i in range(SLOTS)]
    reads = LineTimes(
        np.concatenate([slot, np.tile(np.arange(SLOTS), len(scrubbed_s))]),
        np.concatenate([marked, np.array(scrub, np.int64)]),
    )
    found = ticks_of_events(log, reads, SLOTS, TICK_HZ, TSC_HZ)
    assert found is not None
    assert np.abs(found - marked).max() < 1000


def test_without_markers_events_have_no_place():
    log = logged((1, TABLE_ALLOC, 20, 0), (2, TABLE_FREE, 20, 0))
    elsewhere = LineTimes(np.array([500]), np.array([10]))
    assert ticks_of_events(log, elsewhere, SLOTS, TICK_HZ, TSC_HZ) is None
    assert ticks_of_events(logged(), elsewhere, SLOTS, TICK_HZ, TSC_HZ) is None
