# SPDX-License-Identifier: BSD-2-Clause
"""Recognises the reads of patrol scrub, which reads all lines in ascending order.

Only scrub reads lines that hold neither a table nor a marker. From these reads follows the time at
which scrub reads every other line of the region; the read of a line nearest to that time is
scrub's. Without such reads, scrub can only have read tables that are next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ptat_parser.order.line_times import LineTimes

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SEEDS_MIN = 16
"""Fewest reads of unused lines that show a sequence."""
GAP_MAX = 0.5
"""Relative deviation of the time between two lines that marks another round of scrub."""
WHOLE_MIN = 0.9
"""Fewest lines, as a fraction of those that are due, that are read in a round without seeds."""
TOLERANCE_LINES = 8
"""Largest distance, in intervals of scrub, of a scrub read from its line's time."""


def find_scrub(
    line: I64, time: I64, unused: Bools, lines: I64, late: int, spacing: int = 1
) -> Bools | None:
    """Mask of the reads, which are sorted by time, that belong to scrub; None: cannot be told.

    :param line: index into `lines` of the line of each read.
    :param unused: mask of the reads of lines that hold nothing.
    :param lines: numbers of the channel's lines, ascending; lines without reads may be missing.
    :param late: largest delay of a scrub read behind its line's time, in ticks.
    :param spacing: average distance of the channel's lines: the number of channels.
    """
    seed = np.flatnonzero(unused)
    at, when = line[seed], time[seed]
    steps, waits = np.diff(at), np.diff(when)
    next_line = waits[steps == 1]
    if seed.size < SEEDS_MIN or not next_line.size:
        return None
    found = unused.copy()
    interval = float(np.median(next_line))
    tolerance = max(late, int(TOLERANCE_LINES * interval))
    due = steps * interval
    breaks = (steps < 1) | (np.abs(waits - due) > GAP_MAX * due + tolerance)
    reads = LineTimes(line, time)
    for part in np.split(np.arange(seed.size), np.flatnonzero(breaks) + 1):
        expected = _expected(at[part], when[part], interval / spacing, lines)
        others = np.setdiff1d(np.arange(lines.size), at[part])
        found[_due_reads(reads, others, expected[others], late, tolerance)] = True
    numbers = (lines - lines[0]) / spacing
    for expected in _rounds_without_seeds(at, when, breaks, numbers, interval, time[[0, -1]]):
        inside = np.flatnonzero((expected >= time[0]) & (expected <= time[-1]))
        rows = _nearest(reads, inside, expected[inside], tolerance)
        if rows.size >= WHOLE_MIN * inside.size:
            found[rows] = True
    return found


def most_unseen(line_page: I64, table_pages: I64, gap_pages: int) -> int:
    """The most reads that scrub can have made of tables if it made none that shows it.

    It has read each line once, and within one run of pages that hold tables: between two runs it
    would have read unused lines.

    :param line_page: the page of each line that was read.
    :param table_pages: pages that hold tables, ascending.
    :param gap_pages: unused pages that are sure to have lines of the channel.
    """
    if not table_pages.size:
        return 0
    begins = np.diff(table_pages, prepend=-gap_pages - 1) > gap_pages
    run = np.cumsum(begins) - 1
    row = np.searchsorted(table_pages, line_page)
    row = np.minimum(row, table_pages.size - 1)
    in_table = table_pages[row] == line_page
    return int(np.bincount(run[row[in_table]]).max(initial=0))


def _rounds_without_seeds(
    at: I64, when: I64, breaks: Bools, numbers: F64, interval: float, recorded: I64
) -> Iterator[F64]:
    """When scrub reads each line in the rounds in which it reads only lines in use.

    :param breaks: mask of the seeds that another round follows.
    :param numbers: distance of each line from the first, in lines of the channel.
    :param recorded: time of the recording's first and last read.
    """
    round_lines = numbers[-1] + 1
    place = numbers[at]
    for last in np.flatnonzero(breaks):
        lines, waited = place[last + 1] - place[last], when[last + 1] - when[last]
        rounds = round((waited / interval - lines) / round_lines)
        each = waited / max(rounds * round_lines + lines, 1)
        for later in range(1, rounds):
            yield when[last] + (numbers - place[last] + later * round_lines) * each
    for seed, step, until in ((0, -1, recorded[0]), (-1, 1, recorded[1])):
        apart = step * round_lines * interval
        for later in range(1, int((until - when[seed]) // apart) + 2):
            yield when[seed] + (numbers - place[seed]) * interval + later * apart


def _expected(at: I64, when: I64, each: float, lines: I64) -> F64:
    """When scrub reads each line in the round in which it reads the lines `at` at times `when`.

    :param each: average time from one line of the region to the next.
    """
    between = np.interp(np.arange(lines.size), at, when)
    # Beyond them, lines may lack: count how far it is by their numbers.
    beyond = np.minimum(lines - lines[at[0]], 0) + np.maximum(lines - lines[at[-1]], 0)
    expected: F64 = between + beyond * each
    return expected


def _due_reads(reads: LineTimes, due: I64, expected: F64, late: int, tolerance: int) -> I64:
    """Indices of the scrub reads of the lines `due` that are in the recording.

    Its first and last read may be scrub's, and then not exactly at their lines' times.
    """
    outside = np.maximum(reads.time.min() - expected, expected - reads.time.max())
    near = outside <= late
    return _nearest(reads, due[near], expected[near], np.where(outside[near] > 0, late, tolerance))


def _nearest(reads: LineTimes, due: I64, expected: F64, tolerance: I64 | int) -> I64:
    """Indices of the reads of the lines `due` that are nearest to their expected times.

    `tolerance`: largest distance from it, in ticks; of all lines or of each.
    """
    time = expected.astype(np.int64)
    later, earlier = reads.first_from(due, time), reads.last_before(due, time)
    far = np.int64(1) << 62
    ahead = np.where(later >= 0, reads.time[later] - time, far)
    behind = np.where(earlier >= 0, time - reads.time[earlier], far)
    nearest = np.where(ahead < behind, later, earlier)
    near = np.minimum(ahead, behind) <= tolerance
    rows: I64 = reads.order[nearest[near]]
    return rows
