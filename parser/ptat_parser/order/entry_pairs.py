# SPDX-License-Identifier: BSD-2-Clause
"""Pairs of entry events and stores, which tie the clocks together besides the markers.

The kernel logs an entry and then stores it to the region: the bus sees the store of that slot a
little later. Which store is an event's is certain where nothing else happens to the line for a
while, no other event, no other store, and no event before still waits for its store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ptat_parser.formats.session import Session
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order.clock import NO_PAIRS, Clock, Pairs

U64 = npt.NDArray[np.uint64]

ALONE_S = 50e-6
"""An event and its store are not further from each other, and other ones of the line are."""

EVENTS_MAX = 1 << 14
STORES_MAX = 1 << 20
"""More of them would not make the clocks any better."""

_NEAR_MASK = np.uint64((1 << 18) - 1)
"""Lines that are alike in these bits may be the same."""


class EntryPairs:
    """The stores of lines that entry events name, noted while the stream goes by."""

    def __init__(self, session: Session, log: KernelLog) -> None:
        region = session.region
        base, size_bytes = np.uint64(region.base), np.uint64(region.size_bytes)
        granularity = np.uint64(session.board.granularity_bytes)

        def events() -> Iterator[tuple[U64, U64]]:
            """Line and time of all in the region, some at a time; those of tables first."""
            tables = log.tables[np.argsort(log.tables["time"], kind="stable")]
            entries = log.timed.batches() if log.timed.entries else ()
            for some in itertools.chain([tables], entries):
                inside = some["slot_pa"] - base < size_bytes
                if some is not tables:
                    inside &= some["kind"] != tracepoints.FAULT
                yield some["slot_pa"][inside] // granularity, some["time"][inside]

        step = max((log.tables.size + log.timed.entries) // EVENTS_MAX, 1)
        seen = 0
        lines = []
        for line, _ in events():
            lines.append(line[-seen % step :: step])
            seen += line.size
        self._lines = np.unique(np.concatenate(lines))
        self._near = np.zeros(_NEAR_MASK + np.uint64(1), np.bool_)
        self._near[self._lines & _NEAR_MASK] = True
        kept = []
        for line, cycles in events():
            wanted = np.isin(line, self._lines)
            kept.append((line[wanted], cycles[wanted]))
        self._events = tuple(np.concatenate(column) for column in zip(*kept, strict=True))
        self._granularity = granularity
        self._alone_ticks = ALONE_S * session.channel.tick_hz
        self._stores: list[tuple[U64, U64]] = []
        self._noted = 0

    def note(self, ticks: U64, address: U64) -> None:
        """Stores of the stream."""
        if self._noted >= STORES_MAX or not self._lines.size:
            return
        line = address // self._granularity
        near = self._near[line & _NEAR_MASK]  # few are; the others need not be searched for
        line, ticks = line[near], ticks[near]
        at = np.minimum(np.searchsorted(self._lines, line), self._lines.size - 1)
        wanted = np.flatnonzero(self._lines[at] == line)[: STORES_MAX - self._noted]
        self._stores.append((line[wanted], ticks[wanted]))
        self._noted += wanted.size

    def pairs(self, clock: Clock) -> Pairs:
        """Those that are certain; `clock` is right to half of `ALONE_S`."""
        if not self._noted:
            return NO_PAIRS
        event_line, cycles = self._events
        store_line, store_ticks = (np.concatenate(c) for c in zip(*self._stores, strict=True))
        line = np.concatenate([event_line, store_line])
        # An event comes before its store, also where the clock is wrong.
        event_ticks = clock.to_ticks(cycles).astype(np.float64) - self._alone_ticks / 2
        ticks = np.concatenate([event_ticks, store_ticks.astype(np.float64)])
        order = np.lexsort((ticks, line))
        line, ticks, is_event = line[order], ticks[order], order < cycles.size
        begins = np.concatenate([[True], line[1:] != line[:-1], [True]])
        gap = np.concatenate([[0], np.diff(ticks), [0]])  # before each, and after the last
        gap[begins] = np.inf
        waits = np.concatenate([[False], is_event[:-1]]) & ~begins[:-1]  # the one before it
        found = np.flatnonzero(is_event[:-1] & ~waits[:-1] & (gap[:-2] > self._alone_ticks))
        found = found[
            ~is_event[found + 1]
            & (gap[found + 1] <= self._alone_ticks)
            & (gap[found + 2] > self._alone_ticks)
        ]
        event, store = order[found], order[found + 1] - cycles.size
        return Pairs(store_ticks[store], cycles[event])
