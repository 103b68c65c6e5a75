# SPDX-License-Identifier: BSD-2-Clause
"""What a TLB and a main memory would miss with pages of some size: LRU and CLOCK.

LRU is simulated for every number of entries at once: a reference hits in a TLB of n entries if no
more than n - 1 other pages were used since its page was last (Mattson et al., Evaluation
techniques for storage hierarchies, IBM Systems Journal 9(2), 1970). That number, the stack
distance, is counted in a tree over the times of last use (Bennett and Kruskal, LRU stack
processing, IBM J. Res. Dev. 19(4), 1975). Times are numbered anew when they run out, so memory is
bounded by the number of pages, not by that of references.

Both take page numbers from 0 up, without a reference that repeats the one before: such a reference
is a hit at distance 1, and changes nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, inlined, jit, ones

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_NEVER = -1
_GROUP = 3
"""log2 of the words of times that the tree counts as one."""
_NEAR_WORDS = 8
"""Number of the newest words that are counted without the tree."""


class StackDistances:
    """LRU over `pages` pages."""

    def __init__(self, pages: int) -> None:
        # Twice as many times as pages: numbering anew is needed once in `pages` references.
        groups = (pages >> 5 + _GROUP) + 2
        words = groups << _GROUP
        self._last = np.full(pages, _NEVER, np.int32)  # time of last use of each page
        self._page = np.zeros(words * 64, np.uint32)  # that was used at each time
        self._used = np.zeros(words, np.uint64)  # a bit for each time that is some page's last
        self._tree = np.zeros(groups + 1, np.int32)  # Fenwick tree over groups but the newest
        self._state = np.zeros(2, np.int64)  # next time, pages seen
        self.histogram = np.zeros(pages + 1, np.int64)
        """References at each stack distance, the first use of a page at 0; shape ``(pages + 1,)``.
        A reference that repeats the one before is the caller's to add, at 1."""

    def run(self, pages: U32, entries: int) -> int:
        """Add references; return how many of them a TLB with `entries` entries misses."""
        return int(
            _distances(
                pages,
                np.int64(entries),
                self._last,
                self._page,
                self._used,
                self._tree,
                self._state,
                self.histogram,
            )
        )


def misses(histogram: I64) -> I64:
    """Misses with each number of entries from 0 up, from a histogram of stack distances."""
    within = np.cumsum(histogram)  # first uses, and what hits
    found: I64 = histogram.sum() + histogram[0] - within
    return found


@inlined
def _change(tree: I32, group: Integer, by: Integer) -> None:
    at = group + 1
    while at < tree.size:
        tree[at] += by
        at += at & -at


@jit
def _count(used: U64, first: Integer, end: Integer) -> Integer:
    """Bits of the words from `first` up to `end`."""
    count = np.int64(0)
    for word in range(first, end):
        count += np.int64(ones(used[word]))
    return count


@jit
def _number_anew(last: I32, page: U32, used: U64, tree: I32) -> int:
    """Times from 0 up without gaps, in the same order; returns the next one."""
    time = 0
    for old in range(page.size):
        if used[old >> 6] >> np.uint64(old & 63) & np.uint64(1):
            page[time] = page[old]
            last[page[time]] = time
            time += 1
    used[:] = 0
    tree[:] = 0
    for old in range(time):
        used[old >> 6] |= np.uint64(1) << np.uint64(old & 63)
    for group in range(time >> 6 + _GROUP):
        _change(tree, group, np.int32(64 << _GROUP))
    return time


@jit
def _distances(
    pages: U32,
    entries: Integer,
    last: I32,
    page: U32,
    used: U64,
    tree: I32,
    state: I64,
    histogram: I64,
) -> int:
    time, seen = state
    missed = 0
    for number in pages:
        if time == page.size:
            time = _number_anew(last, page, used, tree)
        newest = time >> 6
        before = np.int64(last[number])
        if before == _NEVER:
            seen += 1
            histogram[0] += 1
            missed += 1
        else:
            word = before >> 6
            group = word >> _GROUP
            bit = np.uint64(1) << np.uint64(before & 63)
            if newest - word <= _NEAR_WORDS:
                distance = np.int64(ones(used[word] & ~(bit - np.uint64(1))))
                distance += _count(used, word + 1, newest + 1)
            else:
                distance = seen - np.int64(ones(used[word] & bit - np.uint64(1)))
                distance -= _count(used, group << _GROUP, word)
                at = group
                while at:
                    distance -= tree[at]
                    at &= at - 1
            histogram[distance] += 1
            missed += distance > entries
            used[word] &= ~bit
            if group != newest >> _GROUP:
                _change(tree, group, -1)
        used[newest] |= np.uint64(1) << np.uint64(time & 63)
        last[number] = time
        page[time] = number
        time += 1
        if not time & (64 << _GROUP) - 1:
            full = (time >> 6) - (1 << _GROUP)
            _change(tree, full >> _GROUP, _count(used, full, time >> 6))
    state[0], state[1] = time, seen
    return missed


class Clock:
    """Main memory of `frames` frames whose pages are replaced by CLOCK.

    A page is marked as used when it is loaded and at each use. To make room, the hand goes round,
    unmarks what is marked, and takes the first frame whose page is not.
    """

    def __init__(self, pages: int, frames: int) -> None:
        self._mark = np.zeros(pages, np.uint8)
        self._frame = np.zeros(frames, np.uint32)
        self._state = np.zeros(2, np.int64)  # hand, frames in use

    def run(self, pages: U32) -> int:
        """Add references; return how many of them fault."""
        return int(_clock(pages, self._mark, self._frame, self._state))


_ABSENT, _IDLE, _MARKED = 0, 1, 2


@jit
def _clock(pages: U32, mark: U8, frame: U32, state: I64) -> int:
    hand, in_use = state
    faults = 0
    for page in pages:
        if mark[page] == _ABSENT:
            faults += 1
            if in_use < frame.size:
                frame[in_use] = page
                in_use += 1
            else:
                while mark[frame[hand]] == _MARKED:
                    mark[frame[hand]] = _IDLE
                    hand = hand + 1 if hand + 1 < frame.size else 0
                mark[frame[hand]] = _ABSENT
                frame[hand] = page
                hand = hand + 1 if hand + 1 < frame.size else 0
        mark[page] = _MARKED
    state[0], state[1] = hand, in_use
    return faults
