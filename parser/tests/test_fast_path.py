# SPDX-License-Identifier: BSD-2-Clause
"""What is counted in the quick loop, beyond what a short capture shows."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptat_parser.capture.decode import ACCESS_DELTA_SHIFT
from ptat_parser.replay import fast_path, page_counts
from ptat_parser.replay.page_tables import (
    COUNTED_MAX,
    EMPTY,
    ENTRIES,
    EPOCH_TICKS,
    LEAF,
    NO_PARENT,
    NO_SLOT,
    NOTHING_PENDING,
    OF_PMDS,
    TABLE,
    TABLES_ONLY,
    UNTRACED,
    WITH_LEAVES,
    WRITTEN,
    Rpt,
    first_fast,
)
from ptat_parser.replay.state import CURSORS, EMPTY_ROOM, ROOM, Config

BASE, PAGES = 0x1000, 2
"""Of the region, in units of 8 bytes and of tables."""


def count(
    words, tally, state=WRITTEN, epoch=0, line=1, parent=NO_PARENT, pending=0, watched=0, times=()
):
    """Count reads of the second of two tables: where they end, and what is known of its pages.

    `state`, `pending`: of all its entries, or a list of that of each; `times`: of the reads, if
    not to be told from their words.
    """
    words = np.array(words, np.uint64)
    rpt = Rpt(BASE * 8, PAGES * 4096, line)
    states, pendings, mapped = np.zeros((3, 2 * ENTRIES), np.uint8)
    states[ENTRIES:], pendings[ENTRIES:] = state, pending
    rpt.epoch_ticks = epoch
    rpt.tables = rpt.tables._replace(
        fast_slot=np.array([NO_SLOT, ENTRIES, NO_SLOT], np.uint32),
        range_of_frame=np.array([-1, 0], np.int32),
        parent=np.array([NO_PARENT, parent]),
        watched=np.array([watched], np.int32),
        row_of=np.zeros(ENTRIES * line, np.uint32),
        pending=pendings,
        mapped=mapped,
        state=states,
        tally=tally,
        counted_page=np.zeros(2 * ENTRIES // line if line > 1 else 0, np.uint32),
    )
    room = EMPTY_ROOM._replace(
        t=rpt.tables,
        pages=np.zeros((8, page_counts.PAGE_COLUMNS), np.int64),
        cursors=np.zeros(1, CURSORS),
        config=Config(base=np.uint64(BASE * 8), size=np.uint64(PAGES * 4096), line=line),
        slots=np.zeros(words.size + fast_path.AHEAD, np.uint32),
    )
    room.cursors["epoch"] = epoch
    memory = ROOM.memory()
    ROOM.put(memory, room)
    assert not fast_path.find_slots(words, 0, words.size, memory)
    for number in np.flatnonzero(tally[ENTRIES:]).tolist():  # they were read before
        page_counts.note_read(number, np.uint64(epoch), memory)
    before = np.uint64(0 if times else epoch)
    times = np.array(times, np.uint64)
    end, now = fast_path.count_reads(words, times, 0, words.size, before, memory)
    if counts := rpt.take_counts(0, 2 * ENTRIES):
        page_counts.add_counts(room.pages, counts)
    return end, now, page_counts.in_order(rpt.tables.row_of, room.pages)


def read(entry, delta=1):
    return BASE + ENTRIES + entry | delta << int(ACCESS_DELTA_SHIFT)


def test_whether_pmd_entries_are_among_the_slots():
    slots = np.zeros(2, np.uint32)
    rpt = Rpt(BASE * 8, PAGES * 4096)
    fast_slot = np.array([ENTRIES | OF_PMDS, 2 * ENTRIES, NO_SLOT], np.uint32)
    config = Config(base=np.uint64(BASE * 8), size=np.uint64(PAGES * 4096))
    memory = ROOM.memory()
    tables = rpt.tables._replace(fast_slot=fast_slot)
    ROOM.put(memory, EMPTY_ROOM._replace(t=tables, config=config, slots=slots))

    def found(*entries):
        words = np.array([BASE + entry for entry in entries], np.uint64)
        return fast_path.find_slots(words, 0, 2, memory)

    assert found(3, ENTRIES + 5)
    assert slots.tolist() == [ENTRIES + 3, 2 * ENTRIES + 5]
    assert not found(ENTRIES, 2 * ENTRIES)
    assert slots.tolist() == [2 * ENTRIES, NO_SLOT]


@pytest.mark.parametrize(
    ("frame", "level", "parent", "first"),
    [
        (7, 1, ENTRIES, 7 * ENTRIES),
        (7, 2, TABLES_ONLY, 7 * ENTRIES | OF_PMDS),
        (7, 2, WITH_LEAVES, 7 * ENTRIES | OF_PMDS),
        (7, 0, NO_PARENT, NO_SLOT),
        (7, 2, ENTRIES, NO_SLOT),
        (7, 1, TABLES_ONLY, NO_SLOT),
        ((1 << 22) - 1, 1, NO_PARENT, (1 << 31) - ENTRIES),
        (1 << 22, 1, NO_PARENT, NO_SLOT),  # would be taken for one of PMDs
        (1 << 22, 2, TABLES_ONLY, NO_SLOT),
    ],
)
def test_the_first_slot_of_a_table(frame, level, parent, first):
    assert first_fast(frame, level, parent) == first


@pytest.mark.parametrize("before", [1, COUNTED_MAX - 2, COUNTED_MAX - 1, COUNTED_MAX])
def test_more_reads_than_a_slot_can_count(before):
    tally = np.zeros(2 * ENTRIES, np.uint64)
    tally[ENTRIES + 7] = before
    end, now, columns = count([read(7), read(8), read(7), read(7)], tally)
    assert (end, now) == (4, 4)
    assert columns[page_counts.P_PAGE].tolist() == [7, 8]
    assert columns[page_counts.P_MISSES].tolist() == [before + 3, 1]
    assert columns[page_counts.P_LAST].tolist() == [4, 2]
    assert not tally.any()


def test_the_latest_time_that_an_epoch_has():
    tally = np.zeros(2 * ENTRIES, np.uint64)
    late = EPOCH_TICKS - 1
    words = [read(3, (1 << 23) - 1)] * 5
    epoch = 1 << 50
    _, now, columns = count(words, tally, epoch=epoch)
    assert columns[page_counts.P_FIRST].tolist() == [epoch + (1 << 23) - 1]
    assert columns[page_counts.P_LAST].tolist() == [now] == [epoch + 5 * ((1 << 23) - 1)]
    tally[ENTRIES + 3] = late << 24 | 9
    *_, columns = count([], tally, epoch=epoch)
    assert columns[page_counts.P_LAST].tolist() == [epoch + late]
    assert columns[page_counts.P_MISSES].tolist() == [9]


def test_times_that_words_do_not_tell():
    """The one before them is not known then, and may be more than an epoch before."""
    tally = np.zeros(2 * ENTRIES, np.uint64)
    epoch = 3 * EPOCH_TICKS
    times = [epoch, epoch + 5, epoch + EPOCH_TICKS, epoch + EPOCH_TICKS]
    words = [read(3), read(3), read(4), BASE]
    end, now, columns = count(words, tally, epoch=epoch, times=times)
    assert (end, now) == (3, times[2])
    assert columns[page_counts.P_FIRST].tolist() == [times[0], times[2]]
    assert columns[page_counts.P_LAST].tolist() == [times[1], times[2]]
    end, now, _ = count([BASE], tally, epoch=epoch, times=times)
    assert (end, now) == (0, 0)


@pytest.mark.parametrize(
    "word",
    [
        BASE + 5,  # of the first table, which needs a closer look
        BASE - 1,
        BASE + PAGES * ENTRIES,
        read(0) | 1 << 59,  # a write
    ],
)
def test_what_needs_a_closer_look_ends_it(word):
    tally = np.zeros(2 * ENTRIES, np.uint64)
    end, now, columns = count([read(1), read(2, 3), word, read(3)], tally)
    assert (end, now) == (2, 4)
    assert columns[page_counts.P_PAGE].tolist() == [1, 2]


def test_an_empty_entry_needs_one():
    end, _, columns = count([read(1)], np.zeros(2 * ENTRIES, np.uint64), state=EMPTY)
    assert end == 0
    assert not columns.size


@pytest.mark.parametrize("before", [1, COUNTED_MAX - 1, COUNTED_MAX])
@pytest.mark.parametrize(("state", "misses"), [(TABLE, 0), (LEAF, 1)])
def test_reads_of_pmd_entries_are_misses_where_these_are_huge_pages(state, misses, before):
    tally = np.zeros(2 * ENTRIES, np.uint64)
    tally[ENTRIES + 7] = before
    end, now, columns = count([read(7), read(8), read(7)], tally, state, parent=WITH_LEAVES)
    assert (end, now) == (3, 3)
    assert columns[page_counts.P_PAGE].tolist() == [7, 8]
    assert columns[page_counts.P_MISSES].tolist() == [misses * (before + 2), misses]
    assert columns[page_counts.P_LAST].tolist() == [3, 2]


@pytest.mark.parametrize(
    ("line", "more", "first_page"),
    [
        ([TABLE] * 8, {}, 7),  # the whole line
        ([LEAF, EMPTY, LEAF] + [EMPTY] * 5, {}, 2),
        ([TABLE] * 7 + [EMPTY], {}, None),  # what comes next tells
        ([TABLE] * 7 + [LEAF], {}, None),
        ([TABLE] * 7 + [UNTRACED], {}, None),
        ([UNTRACED] * 8, {}, None),
        ([LEAF] * 7 + [UNTRACED], {}, None),
        ([EMPTY] * 8, {}, None),
        ([TABLE] * 8, {"pending": [NOTHING_PENDING] * 7 + [LEAF + 1]}, None),
        ([LEAF] * 8, {"pending": [EMPTY + 1] + [NOTHING_PENDING] * 7}, None),
        ([LEAF] * 8, {"watched": 1}, None),  # a fault event may be about it
        ([TABLE] * 8, {"watched": 1}, 7),
    ],
)
def test_which_lines_of_pmd_entries_need_a_closer_look(line, more, first_page):
    entries = np.array(line + [TABLE] * (ENTRIES - 8), np.uint8)
    if "pending" in more:
        more = {"pending": more["pending"] + [NOTHING_PENDING] * (ENTRIES - 8)}
    tally = np.zeros(2 * ENTRIES, np.uint64)
    end, _, columns = count([read(0), read(8)], tally, entries, line=8, parent=WITH_LEAVES, **more)
    if first_page is None:
        assert end == 0
    else:
        assert end == 2
        assert columns[page_counts.P_PAGE].tolist() == [first_page, 8 * 8 + 7]


PAGE = st.integers(0, 30)


@given(one=st.sets(PAGE), other=st.sets(PAGE), seed=st.integers(0, 99))
@example(one={1, 2, 3}, other={2}, seed=0)
@example(one={2}, other={1, 2, 3}, seed=0)
@example(one=set(), other=set(), seed=0)
def test_pages_of_two_are_merged(one, other, seed):
    """Those of both are added up; into the first if that has all pages."""
    rng = np.random.default_rng(seed)
    both = []
    for pages in (one, other):
        columns = rng.integers(0, 100, (page_counts.PAGE_COLUMNS, len(pages)))
        columns[page_counts.P_PAGE] = sorted(pages)
        both.append(columns)
    expected = {}
    for column in np.concatenate(both, axis=1).T.tolist():
        known = expected.setdefault(column[page_counts.P_PAGE], column)
        if known is not column:
            for kind in (page_counts.P_MISSES, page_counts.P_FAULTED, page_counts.P_STORES):
                known[kind] += column[kind]
            known[page_counts.P_FIRST] = min(
                known[page_counts.P_FIRST], column[page_counts.P_FIRST]
            )
            known[page_counts.P_LAST] = max(known[page_counts.P_LAST], column[page_counts.P_LAST])
    rows = [expected[page] for page in sorted(expected)]
    assert page_counts.merge(*both).T.tolist() == rows
