# SPDX-License-Identifier: BSD-2-Clause
"""``summary.json``: totals, processes, losses, clock, and everything unexplained."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.compiled.jit import jit
from ptat_parser.formats.session import Session
from ptat_parser.kernel.log import KernelLog
from ptat_parser.order import markers
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import Survey
from ptat_parser.replay import page_counts
from ptat_parser.replay import state as replay_state
from ptat_parser.replay.page_tables import ENTRIES, ENTRY_SHIFT
from ptat_parser.replay.segments import Replay
from ptat_parser.results import gaps

if TYPE_CHECKING:  # parsing does without, and starts the sooner
    pass
from ptat_parser.results.pages import Pages

I64 = npt.NDArray[np.int64]


FORMAT = "ptat-results"


VERSION = 5


def summary_of(
    session: Session,
    found: Survey,
    log: KernelLog,
    placement: markers.Placement,
    fitted: Clock,
    done: Replay,
    pages: Pages,
    faults: bool,
) -> dict[str, Any]:
    """The content of ``summary.json``. `faults`: page faults were recorded."""
    count = done.counters
    misses = int(done.pages[page_counts.P_MISSES].sum())
    faulted = int(done.pages[page_counts.P_FAULTED].sum())
    losses = {
        "accesses": found.losses.accesses,
        "blocks": found.losses.blocks,
        "kernel_events": log.lost_events,
        "kernel_seqs": log.lost_seqs,
        "markers": placement.lost_markers,
        "markers_without_event": placement.stores_without_event,
        "link_errors": found.link_errors,
        "decode_errors": found.decode_errors,
    }
    # A lost block held at most that many accesses.
    lost = sum(losses.values()) + found.losses.blocks * (wire.BLOCK_RECORDS_MAX - 1)
    return {
        "format": FORMAT,
        "version": VERSION,
        "complete": session.complete and found.sampled_one_in == 1,
        "incomplete_reason": _incomplete_reason(session, found),
        "sampled_one_in": found.sampled_one_in,
        "granularity_bytes": session.board.granularity_bytes,
        "levels": session.region.levels,
        "totals": {
            "misses": misses,
            "faulted": faulted,
            "pmd_reads": int(count[replay_state.N_OUTPUT]) - misses - faulted,
            "stores": int(count[replay_state.STORES]),
            "readbacks": int(count[replay_state.READBACKS]),
            "accesses": found.accesses,
            "pages": int(np.count_nonzero(done.pages[page_counts.P_MISSES])),
        },
        "misses_by_span": _misses_by_span(pages),
        "processes": _processes(done, pages, fitted),
        "lost": lost,
        "losses": losses,
        "gaps": [asdict(gap) for gap in gaps.find(found, log, placement, fitted, done.doubts)],
        "clock": fitted.summary(),
        "faults": {
            "recorded": faults,
            "events": log.timed.faults,
            "of_empty_entries": int(count[replay_state.FAULTS_EMPTY]),
            "of_other_entries": int(count[replay_state.FAULTS_MATCHED]),
            "without_leaf_entry": int(count[replay_state.FAULTS_NO_LEAF]),
            "unmatched": int(count[replay_state.FAULTS_UNMATCHED]),
            "in_doubt": int(count[replay_state.FAULTS_LATE]) if session.kernel.cpus > 1 else 0,
            "without_event": faulted
            - int(count[replay_state.FAULTS_EMPTY] + count[replay_state.FAULTS_MATCHED])
            if faults
            else 0,
        },
        "unexplained": {
            "reads": int(count[replay_state.UNEXPLAINED]),
            "stores": int(count[replay_state.STORES_UNOWNED]),
            "events": done.rpt.inconsistent,
            "examples": [
                {
                    "time_ns": int(fitted.to_ns(np.array([ticks], np.uint64))[0]),
                    "address": address,
                    "reason": reason,
                }
                for ticks, address, reason in done.unexplained
            ],
        },
        "walks": {
            "whole": int(count[replay_state.WALKS_WHOLE]),
            "broken": int(count[replay_state.WALKS_BROKEN]),
            "ambiguous": int(count[replay_state.AMBIGUOUS]),
        },
        "user_markers": [
            {"cookie": cookie, "time_ns": _ns(fitted, ticks)}
            for cookie, ticks in done.rpt.user_markers
        ],
        "warnings": _warnings(session, found, faults, fitted),
    }


@jit
def _count_spans(span: npt.NDArray[np.uint8], misses: I64, found: I64) -> None:
    for i in range(span.size):
        found[span[i]] += misses[i]


def _misses_by_span(pages: Pages) -> dict[str, int]:
    """How many misses are of one known page, of one of 2, of up to 4 and of up to 8."""
    spans = np.zeros(9, np.int64)
    _count_spans(pages["span"], pages["misses"], spans)
    return {
        str(most): int(spans[least : most + 1].sum())
        for least, most in ((1, 1), (2, 2), (3, 4), (5, 8))
    }


def _ns(fitted: Clock, ticks: int | None) -> int | None:
    return None if ticks is None else int(fitted.to_ns(np.array([ticks], np.uint64))[0])


def _incomplete_reason(session: Session, found: Survey) -> str | None:
    if found.sampled_one_in > 1:
        sampled = f"1 in {found.sampled_one_in} accesses sampled"
        return f"{session.incomplete_reason}; {sampled}" if not session.complete else sampled
    return session.incomplete_reason


def _warnings(session: Session, found: Survey, faults: bool, fitted: Clock) -> list[str]:
    warnings = []
    reason = _incomplete_reason(session, found)
    if reason:
        warnings.append(f"the recording is incomplete: {reason}")
    if not faults:
        warnings.append(
            "page faults were not recorded: some walks that ended in a fault count as misses"
        )
    if fitted.miscalibrated:
        warnings.append(
            f"the kernel took its clock for {session.kernel.tsc_hz / 1e6:.0f} MHz; by the board's"
            f" it is {fitted.cycles_hz / 1e6:.0f} MHz, which times are given in"
        )
    return warnings


_SMALL_BYTES = 1 << ENTRY_SHIFT[1]


@jit
def _count_pages(
    mm: npt.NDArray[np.uint32], size_bytes: I64, misses: I64, faulted: I64, found: I64
) -> None:
    """Count by address space: walks that faulted, pages that missed, misses of each page size."""
    for i in range(mm.size):
        of = found[mm[i]]
        of[0] += faulted[i]
        of[1] += misses[i] > 0
        of[2 if size_bytes[i] == _SMALL_BYTES else 3] += misses[i]


def _processes(done: Replay, pages: Pages, fitted: Clock) -> list[dict[str, Any]]:
    """One entry for each address space that was attached, in order of attachment."""
    mms = done.rpt.mms
    found = np.zeros((len(mms), 2 + len(ENTRY_SHIFT)), np.int64)
    _count_pages(pages["comm"], pages["page_size_bytes"], pages["misses"], pages["faulted"], found)

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
