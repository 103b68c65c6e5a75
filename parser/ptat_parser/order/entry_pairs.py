# SPDX-License-Identifier: BSD-2-Clause
"""Pairs of entry events and their stores, which relate the clocks in addition to the markers.

The kernel logs an entry and then stores it to the region, so the bus shows the store a little
later. A store certainly belongs to an event if the line has no other event and no other store for a
while, and no earlier event still waits for its store.
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
"""Maximum distance between an entry event and its store; other events and stores of the line must
be farther away."""

EVENTS_MAX = 1 << 14
STORES_MAX = 1 << 20
"""Most stores to keep; more do not improve the clocks."""

_NEAR_MASK = np.uint64((1 << 18) - 1)
"""Bits that index a table of candidate lines; lines that differ in them are different."""


class EntryPairs:
    """Collects the stores to lines of entry events during the first pass."""

    def __init__(self, session: Session, log: KernelLog) -> None:
        region = session.region
        base, size_bytes = np.uint64(region.base), np.uint64(region.size_bytes)
        granularity = np.uint64(session.board.granularity_bytes)

        def events() -> Iterator[tuple[U64, U64]]:
            """Yields line and time of the events in the region, in batches; table events first."""
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
        """Add stores of the stream."""
        if self._noted >= STORES_MAX or not self._lines.size:
            return
        line = address // self._granularity
        near = self._near[line & _NEAR_MASK]  # drops most stores before the search
        line, ticks = line[near], ticks[near]
        at = np.minimum(np.searchsorted(self._lines, line), self._lines.size - 1)
        wanted = np.flatnonzero(self._lines[at] == line)[: STORES_MAX - self._noted]
        self._stores.append((line[wanted], ticks[wanted]))
        self._noted += wanted.size

    def pairs(self, clock: Clock) -> Pairs:
        """The pairs that are certain; `clock` must be right to half of `ALONE_S`."""
        if not self._noted:
            return NO_PAIRS
        event_line, cycles = self._events
        store_line, store_ticks = (np.concatenate(c) for c in zip(*self._stores, strict=True))
        line = np.concatenate([event_line, store_line])
        # Place each event before its store even if the clock is off.
        event_ticks = clock.to_ticks(cycles).astype(np.float64) - self._alone_ticks / 2
        ticks = np.concatenate([event_ticks, store_ticks.astype(np.float64)])
        order = np.lexsort((ticks, line))
        line, ticks, is_event = line[order], ticks[order], order < cycles.size
        begins = np.concatenate([[True], line[1:] != line[:-1], [True]])
        gap = np.concatenate([[0], np.diff(ticks), [0]])  # time before each, and after the last
        gap[begins] = np.inf
        waits = np.concatenate([[False], is_event[:-1]]) & ~begins[:-1]  # the previous event
        found = np.flatnonzero(is_event[:-1] & ~waits[:-1] & (gap[:-2] > self._alone_ticks))
        found = found[
            ~is_event[found + 1]
            & (gap[found + 1] <= self._alone_ticks)
            & (gap[found + 2] > self._alone_ticks)
        ]
        event, store = order[found], order[found + 1] - cycles.size
        return Pairs(store_ticks[store], cycles[event])
