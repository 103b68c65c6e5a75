# SPDX-License-Identifier: BSD-2-Clause
"""Finds the position of each table event in the bus stream.

The kernel stores an event's sequence number to marker slot ``seq mod slots`` right before the
change that the event announces. The address of that store gives ``seq`` modulo the number of slots;
the only candidate near the next expected ``seq`` is the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.kernel import tracepoints
from ptat_parser.order.clock import NominalClocks, Pairs, fit

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

APPLY_FIRST = -1
BY_TIME = -2


@dataclass(frozen=True)
class MarkerStores:
    """Stores to the marker area, in bus order, shape ``(stores,)``.

    `position`: index among all accesses of the stream; `after_loss`: accesses were lost between
    the previous store and this one.
    """

    position: I64
    time_ticks: U64
    slot: I64
    after_loss: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Placement:
    """Positions of the table events.

    `position` (int64, per event): index among all accesses, `APPLY_FIRST` for an event
    before the recording, `BY_TIME` if the marker was lost. `marker_ticks` (uint64, per event): time
    of the marker, or 0 if it was lost. `event` and `store`: indices of the matched pairs, for the
    clocks. `without_event`: indices of the stores whose event the log lacks. Stores after that of
    the recording's STOP are not among them: the log may end there, before the capture does.
    """

    position: I64
    marker_ticks: U64
    event: I64
    store: I64
    lost_markers: int
    without_event: I64


def place(
    tables: npt.NDArray[Any],
    stores: MarkerStores,
    slots: int,
    clocks: NominalClocks,
) -> Placement:
    """Match the table events (`kernel_log.TABLE_EVENT`, sorted by seq) with marker stores.

    Events before the first match or before the recording's START get `APPLY_FIRST`.
    """
    seqs = tables["seq"].astype(np.int64)
    index_of = {seq: i for i, seq in enumerate(seqs.tolist())}
    started = _seq_of(tables, tracepoints.COOKIE_START)
    stop = index_of.get(_seq_of(tables, tracepoints.COOKIE_STOP))
    expected = started if started is not None else int(seqs[0]) if seqs.size else 1

    by_time = np.argsort(tables["time"], kind="stable")
    times = tables["time"][by_time]
    cycles_per_tick, fitted = clocks.cycles_per_tick, 0
    pairs: dict[int, int] = {}
    without_event: list[int] = []
    rows = zip(
        stores.time_ticks.tolist(), stores.slot.tolist(), stores.after_loss.tolist(), strict=True
    )
    for i, (ticks, slot, after_loss) in enumerate(rows):
        if after_loss and pairs:
            # An unknown number of markers was lost: only the clocks tell where this one is. They
            # are fitted when the pairs have doubled: many losses cost little more than one.
            if len(pairs) >= 2 * fitted:
                fitted = len(pairs)
                cycles_per_tick = _cycles_per_tick(tables, stores, pairs, clocks)
            last, store = next(reversed(pairs.items()))
            since_ticks = ticks - int(stores.time_ticks[store])
            now = int(tables["time"][last]) + since_ticks * cycles_per_tick
            near = min(int(np.searchsorted(times, now)), len(times) - 1)
            expected = int(seqs[by_time[near]])
        seq = expected - slots // 2 + (slot - expected + slots // 2) % slots
        event = index_of.get(seq)
        if event is not None and event not in pairs:
            pairs[event] = i
        elif event is not None or stop not in pairs:
            without_event.append(i)
        expected = max(expected, seq + 1)

    event_index = np.fromiter(pairs.keys(), np.int64, len(pairs))
    store_index = np.fromiter(pairs.values(), np.int64, len(pairs))
    position = np.full(tables.size, BY_TIME, np.int64)
    position[event_index] = stores.position[store_index]
    marker_ticks = np.zeros(tables.size, np.uint64)
    marker_ticks[event_index] = stores.time_ticks[store_index]
    if started is None:
        started = int(seqs[event_index].min()) if pairs else int(seqs[-1]) + 1 if seqs.size else 0
    position[seqs < started] = APPLY_FIRST
    return Placement(
        position,
        marker_ticks,
        event_index,
        store_index,
        int(np.count_nonzero(position == BY_TIME)),
        np.array(without_event, np.int64),
    )


def _cycles_per_tick(
    tables: npt.NDArray[Any], stores: MarkerStores, pairs: dict[int, int], clocks: NominalClocks
) -> float:
    """The nominal ratio, unless the pairs contradict it."""
    events, matched = list(pairs.keys()), list(pairs.values())
    found = fit(Pairs(stores.time_ticks[matched], tables["time"][events]), clocks)
    return found.cycles_per_tick if found.miscalibrated else clocks.cycles_per_tick


def _seq_of(tables: npt.NDArray[Any], cookie: int) -> int | None:
    """Number of the first user marker with this cookie, or None."""
    found = tables["seq"][(tables["kind"] == tracepoints.MARKER) & (tables["cookie"] == cookie)]
    return int(found[0]) if found.size else None


def before_next(tables: npt.NDArray[Any], placed: Placement) -> tuple[U64, U64]:
    """Bus times of markers, and kernel times of the previous event on the same CPU.

    A CPU logs an event before it stores its next marker, so the bus time of a pair is the later.
    """
    rows = np.flatnonzero(placed.marker_ticks)
    rows = rows[np.lexsort((tables["seq"][rows], tables["cpu"][rows]))]
    same = tables["cpu"][rows[1:]] == tables["cpu"][rows[:-1]]
    return placed.marker_ticks[rows[1:][same]], tables["time"][rows[:-1][same]]
