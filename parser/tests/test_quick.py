# SPDX-License-Identifier: BSD-2-Clause
"""What is counted in the quick loop, beyond what a short capture shows."""

import numpy as np
import pytest

from ptat_parser import quick
from ptat_parser.blocks import ACCESS_DELTA_SHIFT
from ptat_parser.rpt import COUNTED_MAX, EMPTY, ENTRIES, EPOCH_TICKS, NO_SLOT, WRITTEN

BASE, PAGES = 0x1000, 2
"""Of the region, in units of 8 bytes and of tables."""


def count(words, tally, state=WRITTEN, epoch=0):
    """Count reads of the second of two tables: where they end, and what is known of its pages."""
    words = np.array(words, np.uint64)
    quick_slot = np.array([NO_SLOT, ENTRIES, NO_SLOT], np.uint32)
    slots = np.zeros(words.size + quick.AHEAD, np.uint32)
    base, size = np.uint64(BASE), np.uint64(PAGES * ENTRIES)
    in_line = np.uint64(ENTRIES - 1)
    quick.find_slots(words, 0, words.size, base, size, in_line, quick_slot, slots)
    range_of_frame = np.array([-1, 0], np.int32)
    row_of = np.zeros(ENTRIES, np.uint32)
    pages = np.zeros((8, quick.PAGE_COLUMNS), np.int64)
    states = np.full(2 * ENTRIES, state, np.uint8)
    rows = 0
    for number in np.flatnonzero(tally[ENTRIES:]):  # they were read before
        rows = quick.note_read(number, epoch, row_of, pages, rows)
    no_time, no_pages = np.empty(0, np.uint64), np.empty(0, np.uint32)
    of_pmds, watched = np.zeros(2, np.uint8), np.zeros(1, np.int32)
    pending, mapped = np.zeros((2, 2 * ENTRIES), np.uint8)
    end, now, rows = quick.count_reads(
        words, no_time, slots, 0, words.size, np.uint64(epoch), 1, tally, np.uint64(epoch),
        no_pages, False, of_pmds, states, pending, mapped, range_of_frame, watched, row_of, pages,
        rows,
    )  # fmt: skip
    quick.collect(
        2 * ENTRIES, tally, epoch, no_pages, of_pmds, states, range_of_frame, row_of, 1, pages
    )
    columns = np.empty((quick.PAGE_COLUMNS, rows), np.int64)
    quick.in_order(row_of, pages, columns)
    return end, now, columns


def read(entry, delta=1):
    return BASE + ENTRIES + entry | delta << int(ACCESS_DELTA_SHIFT)


@pytest.mark.parametrize("before", [1, COUNTED_MAX - 2, COUNTED_MAX - 1, COUNTED_MAX])
def test_more_reads_than_a_slot_can_count(before):
    tally = np.zeros(2 * ENTRIES, np.uint64)
    tally[ENTRIES + 7] = before
    end, now, columns = count([read(7), read(8), read(7), read(7)], tally)
    assert (end, now) == (4, 4)
    assert columns[quick.P_PAGE].tolist() == [7, 8]
    assert columns[quick.P_MISSES].tolist() == [before + 3, 1]
    assert columns[quick.P_LAST].tolist() == [4, 2]
    assert not tally.any()


def test_the_latest_time_that_an_epoch_has():
    tally = np.zeros(2 * ENTRIES, np.uint64)
    late = EPOCH_TICKS - 1
    words = [read(3, (1 << 23) - 1)] * 5
    epoch = 1 << 50
    _, now, columns = count(words, tally, epoch=epoch)
    assert columns[quick.P_FIRST].tolist() == [epoch + (1 << 23) - 1]
    assert columns[quick.P_LAST].tolist() == [now] == [epoch + 5 * ((1 << 23) - 1)]
    tally[ENTRIES + 3] = late << 24 | 9
    *_, columns = count([], tally, epoch=epoch)
    assert columns[quick.P_LAST].tolist() == [epoch + late]
    assert columns[quick.P_MISSES].tolist() == [9]


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
    assert columns[quick.P_PAGE].tolist() == [1, 2]


def test_an_empty_entry_needs_one():
    end, _, columns = count([read(1)], np.zeros(2 * ENTRIES, np.uint64), state=EMPTY)
    assert end == 0
    assert not columns.size
