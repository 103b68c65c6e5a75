# SPDX-License-Identifier: BSD-2-Clause
"""Rules of a memory controller, undone: each on a few accesses that were made up."""

import json

import numpy as np
import pytest
import synthetic
import write_queue
from hypothesis import given
from hypothesis import strategies as st
from test_merge import accesses_of, channel_of, in_two_channels

from ptat_parser import parse, validate, wire
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.checks import capture as checks_capture
from ptat_parser.checks.session import check
from ptat_parser.errors import BadInput
from ptat_parser.formats import truth
from ptat_parser.order.clock import Clock
from ptat_parser.order.line_times import LineTimes
from ptat_parser.order.queue_inference import (
    EVICTION_WALKS,
    Faults,
    Links,
    Queue,
    Walks,
    infer,
)
from ptat_parser.order.scrub import find_scrub, most_unseen
from ptat_parser.order.write_windows import (
    STILL_QUEUED,
    Stores,
    store_delay,
    underfills,
    windows,
)

TICK_HZ = 1e9
ENTRY, NEIGHBOUR, FAR = 0x1000, 0x1008, 0x2000


def integers(*values):
    return np.array(values, np.int64)


def stores_at(*rows):
    """Stores of pages present from then on: time, address and page of each."""
    time, address, page = (integers(*column) for column in zip(*rows, strict=True))
    ones = np.ones(time.size, np.int64)
    return Stores(time, address.astype(np.uint64), address // 64, 0 * ones, page, ones, ones == 1)


def walks_at(*rows):
    time, address = (integers(*column) for column in zip(*rows, strict=True))
    return Walks(time, address // 64, 0 * time, np.ones(time.size, np.bool_), 0 * time - 1)


def faults_at(*rows):
    """Faults of one thread in user mode: time and page of each."""
    time, page = (integers(*column) for column in zip(*rows, strict=True))
    return Faults(0 * time, page, time, 0 * time, np.ones(time.size, np.bool_))


def links_at(*rows):
    """Links of tables of PTEs: time, first page, address of the entry, table, time of its alloc."""
    time, page, address, table, allocated = (integers(*c) for c in zip(*rows, strict=True))
    return Links(
        0 * time, page, 0 * time + 1, time, address.astype(np.uint64), table // 4096, allocated
    )


NO_LINKS = Links(*(column[:0] for column in links_at((0, 0, 0, 0, 0))))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=20),
    st.integers(-1, 4),
    st.integers(-5, 40),
)
def test_look_ups_agree_with_a_search(accesses, line, time):
    lines, times = (integers(*(row[i] for row in accesses)) for i in range(2))
    found = LineTimes(lines, times)
    here = [at for at_line, at in accesses if at_line == line]
    first = int(found.first_from(integers(line), integers(time))[0])
    last = int(found.last_before(integers(line), integers(time))[0])
    later, earlier = [at for at in here if at >= time], [at for at in here if at < time]
    assert (found.time[first] if first >= 0 else None) == min(later, default=None)
    assert (found.time[last] if last >= 0 else None) == max(earlier, default=None)


def test_look_ups_of_many_lines_at_late_times():
    lines = np.arange(1 << 18)
    times = (1 << 45) + lines
    found = LineTimes(lines[::-1], times[::-1])
    assert np.array_equal(found.time[found.first_from(lines, times)], times)
    assert np.array_equal(found.time[found.last_before(lines, times + 1)], times)
    assert (found.first_from(lines, times + 1) == -1).all()


def test_the_last_read_before_each_write_is_its_underfill():
    found, without = underfills(
        integers(7, 7, 7, 8, 7),
        integers(10, 20, 30, 35, 50),
        integers(7, 7, 9),
        integers(40, 60, 70),
        integers(8),
        integers(33),
    )
    assert found.tolist() == [False, False, True, True, True]
    assert without == 1


def test_a_write_takes_all_stores_of_its_line_that_wait():
    stores = stores_at((10, ENTRY, 1), (20, NEIGHBOUR, 2), (40, ENTRY, 1))
    found = windows(stores, integers(64, 5), integers(30, 31), 0, TICK_HZ)
    assert found.until.tolist() == [30, 30, STILL_QUEUED]
    assert found.writes_without_event == 1


@pytest.mark.parametrize(
    ("events", "writes", "until"),
    [
        ([10, 20], [30, 40], [30, 40]),
        ([10, 20], [20_030, 20_040], [20_030, 20_030]),  # too long before the first
        ([10, 20, 35], [30, 40], [30, 30, 40]),
        ([10, 20, 25], [22, 30, 40], [22, 30, 40]),
        ([10], [30, 40], [40]),
        ([10, 20], [30, 40, 50], [40, 50]),
    ],
)
def test_a_write_without_an_event_is_of_the_store_before_the_previous_write(events, writes, until):
    stores = stores_at(*((at, ENTRY, 1) for at in events))
    found = windows(stores, integers(*(64 for _ in writes)), integers(*writes), 0, TICK_HZ)
    assert found.until.tolist() == until
    assert found.writes_without_event == len(writes) - len(set(until))


def test_the_delay_of_stores_shows_in_writes_that_seem_to_have_none():
    rows = [
        row for i in range(20) for row in ((i * 10_000, ENTRY, 1), (i * 10_000 + 500, ENTRY, 1))
    ]
    # The first store is written after the second one's event, before its store.
    times = integers(*(i * 10_000 + at for i in range(20) for at in (900, 1500)))
    assert store_delay(stores_at(*rows), np.full(40, 64), times, TICK_HZ) == 400


@pytest.mark.parametrize("rate", [100, 1000])
def test_scrub_is_found_among_walks(rate):
    """Also where it passes lines that are walked: tables are 20 to 39 and 60 to 79 of 200 lines."""
    lines = np.arange(200)
    scrub = [(line * rate + (line * 7) % 30, line, True) for line in lines.tolist()]
    walks = [(rate * (line + 57) + 3, line, False) for line in range(20, 40)]
    rows = sorted(scrub + walks)
    time, line, is_scrub = (np.array(column) for column in zip(*rows, strict=True))
    unused = ~((line >= 20) & (line < 40)) & ~((line >= 60) & (line < 80))
    found = find_scrub(line, time, unused, lines, 50)
    assert np.array_equal(found, is_scrub)


@pytest.mark.parametrize("whole", [True, False])
def test_a_round_of_scrub_may_end_before_it_reads_an_unused_line(whole):
    """Lines 0 to 39 are in use; without a `whole` sequence of reads, these are walks."""
    lines = np.arange(200)
    scrub = [(line * 100, line, True) for line in lines.tolist()]
    scrub += [
        (20_000 + line * 100 + line % 3, line, whole) for line in range(0, 30, 1 + (not whole))
    ]
    walks = [(line * 400 + 7_000, line, False) for line in range(20, 30)]
    rows = sorted(scrub + walks)
    time, line, is_scrub = (np.array(column) for column in zip(*rows, strict=True))
    assert np.array_equal(find_scrub(line, time, line >= 40, lines, 50), is_scrub)


def test_the_first_and_the_last_read_may_be_scrubs():
    """They read lines in use, the first one later than expected, the last one sooner and later."""
    lines = np.arange(100)
    line = np.concatenate([lines[10:], lines, lines[:51]])
    for jitter in (-20, 20):
        time = np.arange(line.size) * 1000
        time[0] += 20
        time[-1] += jitter
        assert find_scrub(line, time, line % 40 != 10, lines, 50).all()


def test_without_unused_lines_nothing_is_scrub():
    nine = np.arange(9)
    assert find_scrub(nine, nine, nine >= 0, nine, 1) is None


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 30), max_size=60), st.integers(1, 5))
def test_unseen_scrub_reads_no_more_than_a_run_of_tables(tables, lines, gap):
    """Against runs found one page at a time; a page has as many lines as `lines` names it."""
    most, run, unused = 0, 0, 0
    for page in range(31):
        run, unused = (run + lines.count(page), 0) if page in tables else (run, unused + 1)
        run *= unused < gap
        most = max(most, run)
    assert most_unseen(integers(*lines), integers(*sorted(tables)), gap) == most


def inferred(walks, stores, until, faults, whole_lines=True, cpus=1, links=NO_LINKS, flushes=()):
    queue = Queue(stores, integers(*until), whole_lines)
    return infer(walks, queue, faults, links, integers(*flushes), TICK_HZ, cpus)


FAULT = faults_at((1000, 1))
STORE = stores_at((2000, ENTRY, 1))
"""Page 1 faults, and the handler stores its entry."""


def test_a_retry_that_is_on_the_bus_is_not_inferred():
    walks = walks_at((900, ENTRY), (3000, ENTRY), (4000, FAR))
    found = inferred(walks, STORE, [2500], FAULT)
    assert found.retries.time.size == found.faults.time.size == found.in_doubt == 0


def test_the_event_of_a_fault_may_seem_to_precede_its_walk():
    walks = walks_at((1200, ENTRY), (3000, ENTRY), (5200, ENTRY), (7000, ENTRY), (8000, FAR))
    stores = stores_at((2000, ENTRY, 1), (6000, NEIGHBOUR, 2))
    found = inferred(walks, stores, [2500, 6500], faults_at((1000, 1), (5000, 2)))
    assert found.retries.time.size == found.faults.time.size == found.in_doubt == 0


def test_a_retry_is_inferred_where_the_process_went_on():
    walks = walks_at((900, ENTRY), *((at, FAR) for at in range(4000, 4500, 100)), (9000, ENTRY))
    found = inferred(walks, STORE, [5000], FAULT)
    assert found.retries.address.tolist() == [ENTRY]
    assert found.faults.time.size == found.in_doubt == 0


@pytest.mark.parametrize("earlier", [[], [(300, 0, 0x3000, ENTRY, 200)]])
def test_a_table_filled_in_before_its_link_is_walked_after_it(earlier):
    """As where a fault splits a huge page; its page may have held another table before."""
    walks = walks_at((1500, FAR), (7000, FAR), (7100, FAR), (7200, FAR), (7300, FAR))
    stores, faults = stores_at((2000, ENTRY, 1)), faults_at((1600, 1))
    split = links_at(*earlier, (6000, 0, 0x3000, ENTRY, 1700))
    found = inferred(walks, stores, [9000], faults, links=split)
    assert found.retries.time.tolist() == [6002]
    linked = links_at((1900, 0, 0x3000, ENTRY, 1700))
    assert inferred(walks, stores, [9000], faults, links=linked).retries.time.tolist() == [2002]
    late = links_at(*earlier, (9500, 0, 0x3000, ENTRY, 1700))
    assert not inferred(walks, stores, [9000], faults, links=late).retries.time.size


def test_of_all_faults_before_a_store_the_last_is_retried():
    """As when another process faults in between, and a huge page is stored in the end."""
    faults = faults_at((1000, 1), (1300, 700), (1600, 1))
    faults = faults._replace(mm=integers(0, 1, 0), thread=integers(0, 1, 0))
    stores = stores_at((2000, ENTRY, 1))
    walks = walks_at((900, ENTRY), (1500, ENTRY), *((at, FAR) for at in range(4000, 4500, 100)))
    assert inferred(walks, stores, [9000], faults).retries.address.tolist() == [ENTRY]


def test_one_walk_before_the_retry_leaves_a_doubt():
    found = inferred(walks_at((900, ENTRY), (2900, FAR), (3000, ENTRY)), STORE, [2500], FAULT)
    assert found.retries.time.size == 0
    assert found.in_doubt == 1


def test_a_walk_that_faults_on_a_queued_line_is_inferred():
    stores = stores_at((500, NEIGHBOUR, 2), (2000, ENTRY, 1))
    walks = walks_at((3000, ENTRY), (4000, FAR))
    assert inferred(walks, stores, [2500, 2500], FAULT).faults.address.tolist() == [ENTRY]
    masked = walks_at((900, ENTRY), (3000, ENTRY), (4000, FAR))
    assert inferred(masked, stores, [2500, 2500], FAULT, whole_lines=False).faults.time.size == 0


def test_nothing_is_inferred_without_stores():
    none = Stores(*(column[:0] for column in STORE))
    found = inferred(walks_at((900, ENTRY)), none, [], FAULT)
    assert found.retries.time.size == found.faults.time.size == found.in_doubt == 0


def test_pages_mapped_around_a_fault_may_have_been_walked():
    stores = stores_at((1990, NEIGHBOUR, 2), (2000, ENTRY, 1))
    walks = walks_at((900, ENTRY), *((at, FAR) for at in range(2100, 2600, 100)), (9000, ENTRY))
    assert inferred(walks, stores, [5000, 5000], FAULT).possible == 1
    assert inferred(walks, stores, [1995, 5000], FAULT).possible == 0


@pytest.mark.parametrize(
    ("flushes", "cpus", "missed"),
    [
        ([3000], 1, 1),
        ([1500, 4450, 9500], 1, 0),  # before the store, after the last walk, and after the WR
        ([3000, 4050], 1, 2),
        ([3000, 3500], 1, 1),
        ([3000, 3500], 2, 2),
    ],
)
@pytest.mark.parametrize(("whole_lines", "pages"), [(True, 8), (False, 1)])
def test_a_page_may_be_walked_after_a_flush(whole_lines, pages, flushes, cpus, missed):
    walks = walks_at((900, ENTRY), *((at, FAR) for at in range(4000, 4500, 100)))
    options = {"whole_lines": whole_lines, "cpus": cpus, "flushes": flushes}
    assert inferred(walks, STORE, [9000], FAULT, **options).possible == missed * pages


@pytest.mark.parametrize(("whole_lines", "pages"), [(True, 8), (False, 1)])
def test_a_page_may_be_evicted_while_its_line_is_queued(whole_lines, pages):
    others = [(3000 + number, FAR) for number in range(2 * EVICTION_WALKS)]
    walks = walks_at((900, ENTRY), *others)

    def possible(until):
        return inferred(walks, STORE, [until], FAULT, whole_lines).possible

    # The inferred retry is one of the walks.
    assert possible(3000 + EVICTION_WALKS - 1 - 1) == 0
    assert possible(3000 + EVICTION_WALKS - 1) == pages
    assert possible(9000) == 2 * pages


def test_a_walk_may_show_only_its_read_of_the_pmd_entry():
    pmd, table = 0x3000, ENTRY
    linked = links_at((800, 0, pmd, table, 700))
    # A whole walk, one before the link, one with only its PMD entry, one that ends there.
    time = integers(1000, 1001, 700, 3000, 4000)
    address = integers(pmd, table, pmd, pmd, pmd)
    order = np.argsort(time)
    parent = np.where(address == table, pmd // 64, -1)
    walks = Walks(time, address // 64, 0 * time, address == table, parent)
    walks = Walks(*(column[order] for column in walks))
    faults = faults_at((4100, 512))
    stores = stores_at((2000, ENTRY, 1), (4200, 0x4000, 512))
    second = links_at((800, 0, pmd, table, 700), (4150, 512, pmd + 8, 0x4000, 4120))
    found = inferred(walks, stores, [5000, 5000], faults, links=second)
    assert walks.time[found.pte_answered].tolist() == [3000]
    assert found.possible == 2  # its walk, and one of page 1, which was stored without a fault
    assert not inferred(walks, stores, [5000, 5000], faults).pte_answered.any()
    assert inferred(walks, stores, [5000, 5000], faults, links=linked).pte_answered.sum() == 2


def beside_a_huge_page(until, *rows, huge=True):
    """Page 1 faults and is retried, both on a line of PMD entries that may have a huge page, too.

    `until`: when its entry is written. `rows`: what is on the bus after the store, at 2000. There
    are another PMD entry's table at 0x6000, and another PTE at `OTHER` in the table of page 1.
    """
    rows = [(100, 0x5000), (101, 0x6000), (899, PMD), (900, ENTRY), *rows]
    time, address = (integers(*column) for column in zip(*rows, strict=True))
    parent = np.select([address // 4096 == 1, address == 0x6000], [PMD // 64, 0x5000 // 64], -1)
    ends = ~np.isin(address, (PMD, 0x5000))
    walks = Walks(time, address // 64, 0 * time, ends, parent)
    stores = stores_at((50, PMD + 16, 1024), (2000, ENTRY, 1))._replace(pages=integers(512, 1))
    if not huge:
        stores = Stores(*(column[1:] for column in stores))
    until = [60, until][-stores.time.size :]
    found = inferred(walks, stores, until, FAULT, links=links_at((20, 0, PMD, ENTRY, 10)))
    return found, walks.time[found.pte_answered].tolist()


PMD, OTHER = 0x3000, 0x1100
GOES_ON = [(at, FAR) for at in range(4000, 4500, 100)]


@pytest.mark.parametrize(("gap", "answered"), [(1, False), (40, True)])
def test_a_retry_beside_a_huge_page_shows_only_its_read_of_the_pmd_entry(gap, answered):
    """A walk of another page reads its PTE `gap` later."""
    found, at = beside_a_huge_page(9000, (2010, PMD), (2010 + gap, OTHER), *GOES_ON)
    assert at == [2010] * answered
    assert found.retries.time.tolist() == [2002]
    assert (found.possible, found.in_doubt) == (int(answered), 0)


@pytest.mark.parametrize(
    ("late", "between", "possible"), [(40_000, 1, 0), (400_000, 1, 1), (400_000, 0, 0)]
)
def test_a_retry_may_be_late_where_the_process_does_not_run(late, between, possible):
    """Where it does run, the read may be of one more walk that the queue answered."""
    rows = [(2000 + late, PMD), *((at + late, address) for at, address in GOES_ON)]
    found, at = beside_a_huge_page(900_000, *GOES_ON[:between], *rows, huge=False)
    assert at == [2000 + late]
    assert found.possible == possible


def test_a_walk_that_faults_beside_a_huge_page_shows_only_its_read_of_the_pmd_entry():
    stores = stores_at((50, PMD + 16, 1024), (500, NEIGHBOUR, 2), (2000, ENTRY, 1))
    stores = stores._replace(pages=integers(512, 1, 1))
    rows = [(100, 0x5000), (101, 0x6000), (990, PMD), (2010, PMD), *GOES_ON]
    time, address = (integers(*column) for column in zip(*rows, strict=True))
    parent = np.where(address == 0x6000, 0x5000 // 64, -1)
    walks = Walks(time, address // 64, 0 * time, ~np.isin(address, (PMD, 0x5000)), parent)
    links = links_at((20, 0, PMD, ENTRY, 10))
    found = inferred(walks, stores, [60, 9000, 9000], FAULT, links=links)
    assert (found.faults.time.size, found.retries.time.size) == (1, 1)
    assert walks.time[found.pte_answered].tolist() == [990, 2010]


@pytest.mark.parametrize(("until", "of_huge"), [(9000, True), (90_000, False)])
def test_a_read_is_not_certainly_of_a_huge_page_while_an_entry_below_is_queued(until, of_huge):
    found, at = beside_a_huge_page(until, (2010, PMD), *GOES_ON, (60_000, PMD))
    assert at == [2010] + [60_000] * (not of_huge)
    assert found.possible == 1 + (not of_huge)


def test_any_queued_entry_below_leaves_a_doubt_about_a_huge_page():
    """The last one that was stored has left the queue, an earlier one in another line has not."""
    rows = [(100, 0x5000), (101, 0x6000), (60_000, PMD)]
    time, address = (integers(*column) for column in zip(*rows, strict=True))
    parent = np.where(address == 0x6000, 0x5000 // 64, -1)
    walks = Walks(time, address // 64, 0 * time, address == 0x6000, parent)
    stores = stores_at((50, PMD + 16, 1024), (300, ENTRY, 1), (2000, OTHER, 33))
    stores = stores._replace(pages=integers(512, 1, 1))
    for until, left_out in (([60, 90_000, 2500], [60_000]), ([60, 3000, 2500], [])):
        found = inferred(walks, stores, until, FAULT, links=links_at((20, 0, PMD, ENTRY, 10)))
        assert walks.time[found.pte_answered].tolist() == left_out


@pytest.mark.parametrize(("gap", "of_huge"), [(1000, False), (9000, True)])
def test_a_read_is_not_certainly_of_a_huge_page_before_a_drain(gap, of_huge):
    """A PTE is read `gap` later: by the same walk, if the controller drained writes between."""
    rows = [(2010, PMD), *GOES_ON, (60_000, PMD), (60_000 + gap, OTHER)]
    found, at = beside_a_huge_page(9000, *rows)
    assert at == [2010] + [60_000] * (not of_huge)
    assert found.possible == 1 + (not of_huge)


@pytest.mark.parametrize(
    ("late", "threads", "in_doubt"), [(10, [0, 1], 0), (60_000, [0, 1], 1), (60_000, [0, 0], 0)]
)
def test_a_late_read_may_be_another_threads(late, threads, in_doubt):
    faults = faults_at((500, 9), (1000, 1))._replace(thread=integers(*threads))
    found = inferred(walks_at((900, ENTRY), (2500 + late, ENTRY)), STORE, [2400], faults)
    assert (found.retries.time.size, found.in_doubt) == (0, in_doubt)


USER, KERNEL = True, False


@pytest.mark.parametrize(
    ("later", "retried"),
    [
        ((5000, 7, 1, USER), False),
        ((5000, 7, 0, USER), True),
        ((5000, 1, 0, USER), True),
        ((90_000, 7, 0, USER), False),  # after the read that may be the retry
        ((79_000, 7, 0, USER), False),  # perhaps
        ((5000, 7, 0, KERNEL), False),
    ],
)
def test_a_thread_among_others_went_on_if_it_faults_again(later, retried):
    """`later`: time, page, thread and mode of a fault, after that of thread 0."""
    time, page, thread, user = (
        np.array(column)
        for column in zip((1000, 1, 0, USER), (1100, 9, 1, USER), later, strict=True)
    )
    faults = Faults(0 * time, page, time, thread, user)
    walks = walks_at((900, ENTRY), *GOES_ON, (80_000, ENTRY))
    found = inferred(walks, STORE, [70_000], faults)
    assert (found.retries.time.size, found.in_doubt) == (retried, not retried)


@pytest.mark.parametrize(("page", "retried"), [(1, False), (7, True)])
def test_a_retry_may_fault_where_another_thread_changed_the_entry(page, retried):
    """As when it copies the address space, and the access is a store."""
    faults = faults_at((1000, 1), (1100, 9), (5000, page))._replace(thread=integers(0, 1, 0))
    stores = stores_at((2000, ENTRY, 1), (3000, ENTRY, 1))
    walks = walks_at((900, ENTRY), *GOES_ON, (80_000, ENTRY))
    found = inferred(walks, stores, [70_000, 70_000], faults)
    assert (found.retries.time.size, found.in_doubt) == (retried, not retried)


# Whole sessions -----------------------------------------------------------------------------------

PAGES_STORED, WALKS = 100, 50


@pytest.fixture
def behind(tmp_path):
    """A session behind a controller, and the machine and queue that made it."""
    made, queue = write_queue.machine(PAGES_STORED, WALKS)
    return write_queue.write(made, tmp_path / "session"), made, queue


def test_a_session_behind_a_controller_has_all_misses(behind):
    path, made, queue = behind
    assert queue.answered
    results = parse(path)
    assert results.summary["totals"]["misses"] == write_queue.true_misses(made)
    found = results.summary["controller"]
    assert found["inferred"] == PAGES_STORED
    assert found["underfills"] == found["writes"] == sum(write for *_, write in queue.bus)
    assert found["misses"] == {"low": PAGES_STORED + WALKS, "high": PAGES_STORED + WALKS}
    assert validate(results).ok


@pytest.mark.parametrize(("low", "high"), [(0, 149), (151, 160)])
def test_a_truth_outside_of_the_bound_is_not_right(behind, low, high):
    results = parse(behind[0])
    results.summary["controller"]["misses"] = {"low": low, "high": high}
    assert not validate(results).ok


@pytest.mark.parametrize("on_bus", [False, True])
def test_an_inferred_miss_may_have_the_time_of_another_walk(tmp_path, monkeypatch, on_bus):
    """Of one that the queue answered, or of one that is on the bus and in the trace as well."""
    monkeypatch.setattr(synthetic, "TICK_HZ", 2 * synthetic.TICK_HZ)
    made, _ = write_queue.machine(PAGES_STORED, WALKS)
    path = write_queue.write(made, tmp_path / "session")
    results = parse(path)
    clock = Clock.from_summary(results.summary["clock"])
    file = path / "truth.0.bin"
    walks = truth.read(file)
    missed_ns = np.concatenate([time_ns for time_ns, _ in results.misses()])
    inferred_ns = int(np.setdiff1d(missed_ns, clock.to_ns(walks["time"]))[-1])
    ticks = np.arange(*walks["time"][[0, -1]].tolist(), dtype=np.uint64)
    at = int(ticks[np.searchsorted(clock.to_ns(ticks), inferred_ns, side="right") - 1])
    if on_bus:
        last = int(walks["time"][-1])
        made.bus = sorted((at if time == last else time, *rest) for time, *rest in made.bus)
        made.truth = [(at if time == last else time, *rest) for time, *rest in made.truth]
        results = parse(write_queue.write(made, path.with_name("again")))
    else:
        answered = np.flatnonzero(walks["flags"] & truth.Flag.FAULT == 0)[0]
        walks["time"][answered] = at
        truth.write(file, walks[np.argsort(walks["time"], kind="stable")])
    found = validate(results)
    assert (found.wrong_page, found.inferred_wrong) == (0, 0)


def test_memory_without_ecc_under_a_contract_with_ecc_is_named(behind):
    path, made, queue = behind
    assert not parse(path).summary["warnings"]
    underfills = {(time - 2, line) for time, line, write in queue.bus if write}
    made.bus = [row for row in made.bus if row[:2] not in underfills]
    (warning,) = parse(write_queue.write(made, path.with_name("masked"))).summary["warnings"]
    assert "its contract is no-ecc" in warning


def test_a_bound_without_flushes_is_named(behind):
    path, made, _ = behind
    assert parse(path).summary["controller"]["flushes"] == 0
    older = parse(write_queue.write(made, path.with_name("older"), flushes=False)).summary
    assert older["controller"]["flushes"] is None
    assert "without tlb_flush events" in older["warnings"][0]


def test_recordings_that_are_too_long_are_refused(behind):
    path, made, _ = behind
    made.bus.append((int(STILL_QUEUED) + 2000, synthetic.REGION_BASE + 64, 0))
    made.now = made.bus[-1][0]
    with pytest.raises(BadInput, match="longer than 35184 s"):
        parse(write_queue.write(made, path.with_name("long")))


def test_a_session_behind_a_controller_is_sound(behind):
    report = check(behind[0])
    assert report.ok, report.first
    assert {one.name: one.about for one in report.checks}["bound"].endswith("150 to 150")


@pytest.mark.parametrize(
    ("change", "name"),
    [({"scrubs": 1}, "counts"), ({"writes": 1}, "counts"), ({"misses": (0, 9)}, "bound")],
)
def test_what_does_not_add_up_behind_a_controller_is_seen(behind, change, name):
    path = behind[0]
    parse(path)
    file = path / "results" / "summary.json"
    summary = json.loads(file.read_text())
    if "misses" in change:
        change = {"misses": dict(zip(("low", "high"), change["misses"], strict=True))}
    summary["controller"] |= change
    file.write_text(json.dumps(summary))
    assert [one.name for one in check(path).checks if one.violations] == [name]


@pytest.mark.parametrize(
    ("contract", "markers"), [({}, "store"), ({}, "load"), (write_queue.CONTRACT, "store")]
)
def test_reads_and_stores_of_the_marker_area_are_those_of_the_contract(tmp_path, contract, markers):
    """The bus has one read and one store there; which of them is wrong?"""
    made, _ = write_queue.machine(4, 0)
    made.bus += [(made.now, synthetic.REGION_BASE, write) for write in (0, 1)]
    made.bus = [row for row in made.bus if row[1] >= write_queue.MARKERS_END or row[0] == made.now]
    path = write_queue.write(made, tmp_path / "session", contract, markers)
    found = next(one for one in check(path).checks if one.name == "accesses")
    if markers == "load":
        assert (found.violations, found.first.message) == (1, checks_capture.MARKER_STORED)
    else:
        assert found.violations == (not contract)


# Several channels ---------------------------------------------------------------------------------

SCRUB_TICKS = 300


def scrubbing(made, channels, scrub_ticks=SCRUB_TICKS):
    """Patrol scrub on each channel, as `in_two_channels` divides them; how many reads it makes."""
    end = synthetic.REGION_BASE + made.region_bytes
    reads = []
    for channel in range(channels):
        mine = [
            line
            for line in range(synthetic.REGION_BASE, end, 64)
            if channels == 1 or channel_of(line) == channel
        ]
        for i in range((made.now - 1000) // scrub_ticks):
            line = mine[(i + 777 * (channel + 1)) % len(mine)]
            reads.append((1000 + i * scrub_ticks + channel, line, 0))
    made.bus = sorted(made.bus + reads)
    return len(reads)


@pytest.mark.parametrize("channels", [1, 2])
def test_each_channel_is_scrubbed_by_itself(tmp_path, channels):
    made, _ = write_queue.machine(PAGES_STORED, WALKS)
    reads = scrubbing(made, channels)
    assert reads > 2 * channels * SCRUB_TICKS
    contract = write_queue.CONTRACT | {"scrub": True}
    path = write_queue.write(made, tmp_path / "session", contract)
    if channels == 2:
        in_two_channels(path)
    summary = parse(path).summary
    assert summary["controller"]["scrubs"] == reads
    assert summary["totals"]["misses"] == PAGES_STORED + WALKS
    assert check(path).ok


@pytest.mark.parametrize("channels", [1, 2])
def test_scrub_is_told_where_each_page_holds_a_table_at_times(tmp_path, channels):
    made = synthetic.Machine(granularity=8, entries=True, huge=0, region_pages=3, reuse=True)
    drained = []
    for _ in range(6):
        mms = [made.exec()] if made.rng.random() < 0.5 else [made.exec(), made.exec()]
        for mm in mms[:1]:
            for page in range(20):
                made.access(mm, page << 12, True)
            drained.append(len(made.bus))
            made.idle(500_000_000)
            for page in range(20):
                made.walk(mm, page << 12, False)
        for mm in mms:
            made.exit(mm)
        drained.append(len(made.bus))
        made.idle(300_000_000)
    made.event("ptat_marker", cookie=2)
    write_queue.put_behind(made, drained)
    reads = scrubbing(made, channels, 200_000)
    contract = write_queue.CONTRACT | {"scrub": True}
    path = write_queue.write(made, tmp_path / "session", contract)
    if channels == 2:
        in_two_channels(path)
    summary = parse(path).summary
    assert summary["controller"]["scrubs"] == reads
    assert summary["unexplained"]["reads"] == 0
    low, high = summary["controller"]["misses"].values()
    assert low <= write_queue.true_misses(made) <= high


@pytest.mark.parametrize("channels", [1, 2])
def test_scrub_that_reads_nothing_but_tables_is_inside_the_bound(tmp_path, channels):
    made, _ = write_queue.machine(PAGES_STORED, WALKS)
    true_misses = write_queue.true_misses(made)
    lines = {address & -64 for _, address, _ in made.bus if address >= write_queue.MARKERS_END}
    tables = sorted(lines)[: len(lines) // 2]
    written = made.now - WALKS * 1000
    scrub = [(written + i * SCRUB_TICKS, line, 0) for i, line in enumerate(tables)]
    made.bus = sorted(made.bus + scrub)
    path = write_queue.write(made, tmp_path / "session", write_queue.CONTRACT | {"scrub": True})
    if channels == 2:
        in_two_channels(path)
    summary = parse(path).summary
    behind = summary["controller"]
    assert behind["scrubs"] == 0
    assert len(tables) <= behind["possible_scrubs"] <= len(lines)
    assert true_misses < summary["totals"]["misses"] <= true_misses + len(tables)
    assert behind["misses"]["low"] <= true_misses <= behind["misses"]["high"]
    assert check(path).ok


def test_losses_of_a_channel_are_told_behind_a_controller(tmp_path):
    made, _ = write_queue.machine(PAGES_STORED, WALKS)
    made.lose(3)
    path = write_queue.write(made, tmp_path / "session")
    assert parse(path).summary["losses"]["accesses"] == 3
    in_two_channels(path)
    assert parse(path).summary["losses"]["accesses"] == 0
    second = path / "bus.1.raw"
    rows = accesses_of(list(BusReader(second, 1)))
    with second.open("wb") as file, BlockWriter(file, 1) as writer:
        writer.mark(0, wire.Mark.START)
        for i, row in enumerate(rows):
            if i == len(rows) // 2:
                writer.lost(row[0], 5)
            else:
                writer.access(*row)
        writer.mark(rows[-1][0] + 1, wire.Mark.STOP)
    results = parse(path)
    summary = results.summary
    assert summary["losses"]["accesses"] == 5
    assert summary["gaps"]
    assert summary["controller"]["misses"] is None
    assert not validate(results).ok
    assert "bound" not in {one.name for one in check(path).checks}
