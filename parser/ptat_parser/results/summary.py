# SPDX-License-Identifier: BSD-2-Clause
"""``summary.json``: totals, processes, losses, clock, and everything unexplained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.formats.session import Session
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order import markers
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import CaptureScan
from ptat_parser.replay import page_counts
from ptat_parser.replay.page_tables import ENTRIES, ENTRY_SHIFT
from ptat_parser.replay.segments import Replay
from ptat_parser.results import gaps
from ptat_parser.results.pages import Pages

I64 = npt.NDArray[np.int64]

FORMAT = "ptat-results"

VERSION = 9


def summary_of(
    session: Session,
    found: CaptureScan,
    log: KernelLog,
    placement: markers.Placement,
    fitted: Clock,
    done: Replay,
    pages: Pages,
    faults: bool,
) -> dict[str, Any]:
    """The content of ``summary.json``. `faults`: page faults were recorded."""
    count = dict(zip(done.tally.dtype.names or (), done.tally[0].tolist(), strict=True))
    misses = int(done.pages[page_counts.P_MISSES].sum())
    faulted = int(done.pages[page_counts.P_FAULTED].sum())
    losses, lost = _losses(found, log, placement)
    reason = incomplete_reason(session, lost, found.sampled_one_in)
    return {
        "format": FORMAT,
        "version": VERSION,
        "complete": not reason,
        "incomplete_reason": reason,
        "sampled_one_in": found.sampled_one_in,
        "granularity_bytes": session.board.granularity_bytes,
        "levels": session.region.levels,
        "totals": {
            "misses": misses,
            "faulted": faulted,
            "pmd_reads": count["reads"] - misses - faulted,
            "stores": count["stores"],
            "readbacks": count["readbacks"],
            "accesses": found.accesses,
            "pages": int(np.count_nonzero(done.pages[page_counts.P_MISSES])),
        },
        "misses_by_span": _misses_by_span(pages),
        "processes": _processes(done, pages, fitted),
        "lost": lost,
        "losses": losses,
        "gaps": [asdict(gap) for gap in gaps.find(found, log, placement, fitted, done.doubts)],
        "clock": fitted.summary(),
        "faults": _faults(session, log, count, faulted if faults else None),
        "unexplained": {
            "reads": count["unexplained"],
            "stores": count["stores_unowned"],
            "events": done.rpt.inconsistent,
            "examples": [
                {
                    "time_ns": fitted.ns(ticks),
                    "address": address,
                    "reason": reason,
                }
                for ticks, address, reason in done.unexplained
            ],
        },
        "walks": {
            "whole": count["walks_whole"],
            "broken": count["walks_broken"],
            "ambiguous": count["ambiguous"],
        },
        "user_markers": [
            {"cookie": cookie, "time_ns": fitted.ns(ticks)}
            for cookie, ticks in done.rpt.user_markers
        ],
        "warnings": _warnings(session, reason, faults, fitted),
    }


def _losses(
    found: CaptureScan, log: KernelLog, placement: markers.Placement
) -> tuple[dict[str, int], int]:
    """Losses by kind, and an upper bound of the lost accesses and events."""
    losses = {
        "accesses": found.losses.accesses,
        "blocks": found.losses.blocks,
        "kernel_events": log.lost_events,
        "kernel_seqs": log.lost_seqs,
        "markers": placement.lost_markers,
        "markers_without_event": placement.without_event.size,
        "link_errors": found.link_errors,
        "decode_errors": found.decode_errors,
    }
    # A lost block held at most BLOCK_RECORDS_MAX accesses.
    return losses, sum(losses.values()) + found.losses.blocks * (wire.BLOCK_RECORDS_MAX - 1)


def _faults(
    session: Session, log: KernelLog, count: dict[str, int], faulted: int | None
) -> dict[str, Any]:
    """Results of matching fault events with walks; `faulted` is None if no events were recorded."""
    matched = count["faults_empty"] + count["faults_matched"]
    return {
        "recorded": faulted is not None,
        "events": log.timed.faults,
        "of_empty_entries": count["faults_empty"],
        "of_other_entries": count["faults_matched"],
        "without_leaf_entry": count["faults_no_leaf"],
        "unmatched": count["faults_unmatched"],
        "in_doubt": count["faults_late"] if session.kernel.cpus > 1 else 0,
        "without_event": 0 if faulted is None else faulted - matched,
    }


def _misses_by_span(pages: Pages) -> dict[str, int]:
    """Misses by number of candidate pages: one, 2, up to 4 and up to 8."""
    spans = np.zeros(9, np.int64)
    np.add.at(spans, pages["span"], pages["misses"])
    return {
        str(most): int(spans[least : most + 1].sum())
        for least, most in ((1, 1), (2, 2), (3, 4), (5, 8))
    }


def _ns(fitted: Clock, ticks: int | None) -> int | None:
    return None if ticks is None else fitted.ns(ticks)


def incomplete_reason(session: Session, lost: int, sampled_one_in: int = 1) -> str | None:
    """Why the results lack something that happened, or None.

    :param lost: accesses and events that the parser found to be lost.
    """
    reasons = [] if session.complete else [session.incomplete_reason or "for an unknown reason"]
    if sampled_one_in > 1:
        reasons.append(f"1 in {sampled_one_in} accesses sampled")
    if lost and session.complete:
        reasons.append(f"lost {lost:,} records or events")
    return "; ".join(reasons) or None


def _warnings(session: Session, reason: str | None, faults: bool, fitted: Clock) -> list[str]:
    warnings = []
    if reason:
        warnings.append(f"the recording is incomplete: {reason}")
    if not faults:
        warnings.append(
            "page faults were not recorded: some walks that ended in a fault count as misses"
        )
    if fitted.miscalibrated:
        warnings.append(
            f"the kernel measured its clock as {session.kernel.tsc_hz / 1e6:.0f} MHz; by the"
            f" board's clock, which all times use, it is {fitted.cycles_hz / 1e6:.0f} MHz"
        )
    return warnings


_SMALL_BYTES = 1 << ENTRY_SHIFT[1]


def _processes(done: Replay, pages: Pages, fitted: Clock) -> list[dict[str, Any]]:
    """One entry per attached address space, in order of attachment."""
    mms = done.rpt.mms
    found = np.zeros((len(mms), 2 + len(ENTRY_SHIFT)), np.int64)
    owner, small = pages["comm"], pages["page_size_bytes"] == _SMALL_BYTES
    for column, values in enumerate(
        (
            pages["faulted"],
            pages["misses"] > 0,
            np.where(small, pages["misses"], 0),
            np.where(small, 0, pages["misses"]),
        )
    ):
        np.add.at(found[:, column], owner, values)

    rows = []
    for i, mm in enumerate(mms):
        faulted, missed, *of_size = found[i].tolist()
        misses = sum(of_size)
        if mm.attached_ticks is None and not misses and not mm.tables:
            continue
        table_bytes = ENTRIES << ENTRY_SHIFT[1]
        rows.append(
            {
                "mm": mm.id,
                "tgid": mm.tgid,
                "comm": mm.comm,
                "why": {0: "on", 1: "fork", 2: "exec"}.get(mm.why),
                "pgd": mm.pgd,
                "attached_ns": _ns(fitted, mm.attached_ticks),
                "exited_ns": _ns(fitted, mm.exited_ticks),
                "first_ticks": mm.first_ticks,
                "attached_ticks": mm.attached_ticks,
                "exited_ticks": mm.exited_ticks,
                "misses": misses,
                "faulted": faulted,
                "pages": missed,
                "misses_by_page_size": {
                    str(1 << shift): count
                    for shift, count in zip(ENTRY_SHIFT.values(), of_size, strict=True)
                    if count
                },
                "traced_bytes": sum(level == 1 for level, _ in mm.traced) * table_bytes,
                "untraced_bytes": sum(level == 1 for level, _ in mm.untraced) * table_bytes,
                "untraced_tables": mm.untraced_tables,
            }
        )
    return rows
