# SPDX-License-Identifier: BSD-2-Clause
"""Compares the use of tables with the kernel's log, for `ptat_parser.checks.session`.

Shares no code with the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.checks.capture import merged
from ptat_parser.checks.report import Report
from ptat_parser.compiled.jit import Integer, jit
from ptat_parser.formats.session import Session
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.log import KernelLog
from ptat_parser.kernel.tracepoints import ENTRY_EVENTS
from ptat_parser.order.first_pass import Progress
from ptat_parser.replay.page_tables import PAGE_SHIFT

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ordered:
    """Table events with their positions among the accesses, and the rest of the log.

    `position` (int64): index of the next access, negative for events before the first one.
    """

    log: KernelLog
    events: npt.NDArray[Any]
    position: I64


_NEVER, _HANDED_OUT, _LINKED = range(3)

_BAD_ACCESS = (
    "a store to a page that holds no table",
    "a read of a page that holds no table",
    "a read of a table that is not linked yet",
    "a store to an entry that no event announced",
)
NOT_ANNOUNCED = 3


class _Region(NamedTuple):
    """The region; `line_shift`: log2 of the bytes that a bus address stands for."""

    base: np.uint64
    marker_bytes: np.uint64
    line_shift: int


class _Use(NamedTuple):
    """The state of each page that events name, and the stores of each line.

    `counted`: the stores of a page's lines are compared with the expected number, `due`. `wrong`:
    count and first row of each kind of `_BAD_ACCESS`.
    """

    frame_of_page: npt.NDArray[np.int32]
    state: npt.NDArray[np.uint8]
    counted: npt.NDArray[np.bool_]
    stores: npt.NDArray[np.int32]
    due: npt.NDArray[np.int32]
    wrong: I64


@jit
def _check_use(
    address: U64,
    write: npt.NDArray[np.bool_],
    start: Integer,
    stop: Integer,
    region: _Region,
    use: _Use,
) -> None:
    """Compare accesses with the state of their page and the stores expected for their line."""
    line_shift, state, stores, wrong = region.line_shift, use.state, use.stores, use.wrong
    for i in range(start, stop):
        offset = address[i] - region.base
        if offset < region.marker_bytes:
            continue
        page = np.int64(use.frame_of_page[np.int64(offset >> np.uint64(12))])
        kind = -1
        if write[i]:
            in_page = np.int64(offset & np.uint64(4095)) >> line_shift
            line = (page << 12 - line_shift) + in_page
            if state[page] == _NEVER:
                kind = 0
            elif use.counted[page]:
                stores[line] += 1
                if stores[line] > use.due[line]:
                    kind = NOT_ANNOUNCED
        elif state[page] != _LINKED:
            kind = 1 if state[page] == _NEVER else 2
        if kind >= 0:
            if wrong[kind, 0] == 0:
                wrong[kind, 1] = i
            wrong[kind, 0] += 1


def check_tables(
    session: Session, ordered: Ordered | None, accesses: int, report: Report, progress: Progress
) -> None:
    """Check the tables and entries that the accesses read and store to."""
    tables = report.begin("tables", "reads of linked tables, stores to tables handed out")
    entries = report.begin("entries", "one store for each event of an entry")
    if ordered is None or any(check.violations for check in report.checks):
        tables.skipped = entries.skipped = "an earlier check failed, or could not be made"
        return
    region = session.region
    base, marker_bytes = np.uint64(region.base), region.marker_slots * region.marker_stride_bytes
    line_shift = session.board.granularity_bytes.bit_length() - 1
    # The kernel logs stores of PMD entries, and with --entries those of PTEs.
    counted_level = 1 if set(session.kernel.events).issuperset(ENTRY_EVENTS) else 2
    if counted_level == 2:
        entries.about += ", PMD entries only"
    logged = _entry_events(session, ordered, counted_level)
    frame_of_page, frames = _frames(session, ordered, logged)
    offset = (logged["slot_pa"] - base).astype(np.int64)
    lines_shift = PAGE_SHIFT - line_shift
    line = (frame_of_page[offset >> PAGE_SHIFT].astype(np.int64) << lines_shift) + (
        offset % 4096 >> line_shift
    )
    due = np.bincount(line, minlength=frames << lines_shift).astype(np.int32)
    state, counted = np.zeros(frames, np.uint8), np.zeros(frames, np.bool_)
    stores = np.zeros_like(due)
    in_region = _Region(base, np.uint64(marker_bytes), line_shift)
    events, position = ordered.events, ordered.position
    applied = done = 0
    for found in merged(session):
        wrong = np.zeros((len(_BAD_ACCESS), 2), np.int64)
        use = _Use(frame_of_page, state, counted, stores, due, wrong)
        start = 0
        end = int(np.searchsorted(position, done + found.time.size))
        for event in range(applied, end + 1):
            stop = max(int(position[event]) - done, 0) if event < end else found.time.size
            _check_use(found.address, found.write, start, stop, in_region, use)
            start = stop
            if event < end:
                _apply(events[event], region.base, counted_level, frame_of_page, state, counted)
        applied = end
        for kind in np.argsort(wrong[:, 1], kind="stable").tolist():
            times, row = wrong[kind].tolist()
            if times:
                name, place = found.where(session, row)
                current = tables if kind < NOT_ANNOUNCED else entries
                report.violated(current, _BAD_ACCESS[kind], name, times, **place)
        done += found.time.size
        progress("checking tables", done, accesses)

    missing = due - np.minimum(stores, due)
    if session.ended and missing.any():
        # If a line has too few stores, its last events are the ones without a store.
        newest_first = np.argsort(logged["time"], kind="stable")[::-1]
        rank = _rank(line[newest_first])
        unmet = newest_first[rank < missing[line[newest_first]]]
        event = logged[unmet[-1]]
        report.violated(
            entries,
            f"the entry at {event['slot_pa']:#x} was logged, but never stored",
            session.kernel_path.name,
            int(missing.sum()),
            address=int(event["slot_pa"]),
        )


def _frames(
    session: Session, ordered: Ordered, logged: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int32], int]:
    """Number the pages of the region that events name from 1 (0: others); also the count."""
    base, size_bytes = np.uint64(session.region.base), np.uint64(session.region.size_bytes)
    offset = np.concatenate([ordered.events["pa"], logged["slot_pa"]]) - base
    used = np.unique((offset[offset < size_bytes] >> np.uint64(PAGE_SHIFT)).astype(np.int64))
    frame_of_page = np.zeros(session.region.size_bytes >> PAGE_SHIFT, np.int32)
    frame_of_page[used] = np.arange(1, used.size + 1)
    return frame_of_page, used.size + 1


def _rank(values: I64) -> I64:
    """Number of equal elements before each element."""
    order = np.argsort(values, kind="stable")
    ranked = np.empty_like(values)
    sorted_values = values[order]
    ranked[order] = np.arange(values.size) - np.searchsorted(sorted_values, sorted_values)
    return ranked


def _entry_events(session: Session, ordered: Ordered, level: int) -> npt.NDArray[Any]:
    """Time and `slot_pa` of the recording's entry events of `level` and above."""
    events = ordered.events[ordered.position >= 0]
    kinds = (tracepoints.TABLE_LINK, tracepoints.LEAF_SET, tracepoints.LEAF_CLEAR)
    found = [events[np.isin(events["kind"], kinds)][["time", "slot_pa"]]]
    if level == 1:
        since = int(events["time"].min()) if events.size else 0
        timed = ordered.log.timed.between(since)
        found.append(timed[timed["kind"] != tracepoints.FAULT][["time", "slot_pa"]])
    entries = np.concatenate([part.astype([("time", "<u8"), ("slot_pa", "<u8")]) for part in found])
    offset = entries["slot_pa"] - np.uint64(session.region.base)
    inside: npt.NDArray[Any] = entries[offset < np.uint64(session.region.size_bytes)]
    return inside


def _apply(
    event: npt.NDArray[Any],
    base: int,
    counted_level: int,
    frame_of_page: npt.NDArray[np.int32],
    state: npt.NDArray[np.uint8],
    counted: npt.NDArray[np.bool_],
) -> None:
    """Apply a table event. A freed table stays linked: walkers may use it until its reuse."""
    offset = int(event["pa"]) - base
    if not 0 <= offset < frame_of_page.size << PAGE_SHIFT:
        return
    page = frame_of_page[offset >> PAGE_SHIFT]
    if event["kind"] in (tracepoints.TABLE_ALLOC, tracepoints.TABLE_LINK):
        state[page] = _HANDED_OUT if event["kind"] == tracepoints.TABLE_ALLOC else _LINKED
        counted[page] = event["level"] >= counted_level
