# SPDX-License-Identifier: BSD-2-Clause
"""Results of a trap-mode session, whose records name thread, address and instruction.

Nothing has to be reconstructed: a record is a miss unless its flags say that the walk ended in a
page fault, or that it repeats the previous access.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import BadInput
from ptat_parser.formats.parquet import Column, Writer
from ptat_parser.formats.session import Session
from ptat_parser.formats.traps import ACCESS, NO_MISS, Flag, access_name, page_shift, read_records
from ptat_parser.kernel.log import KernelLog, read_kernel_log
from ptat_parser.kernel.tracepoints import (
    COOKIE_STOP,
    FAULT_EVENTS,
    MARKER,
    MM_ATTACH,
    MM_EXIT,
    TGID_MAX,
)
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import Progress
from ptat_parser.replay import state as replay_state
from ptat_parser.results.pages import Pages, write_pages
from ptat_parser.results.summary import FORMAT, VERSION, incomplete_reason

RECORDS_AT_ONCE = 1 << 20
"""Records of all CPUs to process at a time."""
_MOST = {"tsc": 1 << 62, "addr": (1 << 56) - 1, "mm": 1 << 62, "tgid": TGID_MAX, "tid": TGID_MAX}
"""Largest plausible values of a record's fields: 47 years at 3 GHz, user addresses of five-level
page tables."""
_PAGE_BITS = np.uint64(56 - 12)
_SPACES_MAX = 1 << 64 - 1 - int(_PAGE_BITS)
"""Most address spaces whose pages fit into a short key."""
SIZES_BYTES = (4 << 10, 2 << 20)
MISSES = [
    Column("time", np.int64),
    Column("page", np.uint32),
    Column("thread", np.uint32),
    Column("ip", np.uint64),
    Column("access", np.uint8),
]
"""Columns of ``misses/``; `access` holds the flags `WRITE`, `FETCH` and `KERNEL`."""
OTHERS = [Column("time", np.int64), Column("page", np.uint32), Column("kind", np.uint8)]
_KEY = np.dtype([("mm", "<u8"), ("vaddr", "<u8"), ("size", "<u8")])
_WHY = {0: "on", 1: "fork", 2: "exec"}


def parse_into(
    directory: Path, session: Session, progress: Progress, *, counts_only: bool = False
) -> dict[str, Any]:
    """Write pages, misses and ``summary.json`` of a trap-mode session; return the summary.

    :param counts_only: do not write single misses.
    :raises PtatError: a file is missing or damaged.
    """
    log = read_kernel_log(session.kernel_path)
    rings = read_rings(session)
    pages = _Pages()
    total, done = sum(records.size for records in rings), 0
    clock = _clock(session, rings)
    with contextlib.ExitStack() as files:
        misses = others = None
        if not counts_only:
            misses = _writer(directory / "misses", MISSES, files)
            others = _writer(directory / "other", OTHERS, files)
        for records in in_order(rings):
            _check_values(records)
            _write(records, clock, pages, misses, others)
            done += records.size
            progress("reading trap records", done, total)
    processes = _processes(log, pages, clock)
    pages.write(processes, clock, directory / "pages.parquet")
    summary = _summary(session, log, clock, pages, processes)
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def read_rings(session: Session) -> list[npt.NDArray[Any]]:
    """The records of each CPU, in the order of `Session.traps`.

    :raises BadInput: a file is missing, or its number of records is wrong.
    """
    rings = []
    for ring in session.traps:
        path = session.path / ring.file
        records = read_records(path, end_may_be_cut=not session.ended)
        if session.ended and records.size != ring.records:
            problem = "truncated: " if records.size < ring.records else ""
            raise BadInput(
                f"{path}: {problem}it has {records.size} of {ring.records} records",
                "restore the file, or record again",
            )
        rings.append(records)
    return rings


def in_order(rings: Sequence[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """Yields batches of the records of all CPUs, sorted by time.

    :raises BadInput: the records of a CPU are not sorted by time.
    """
    at = [0] * len(rings)
    at_once = max(RECORDS_AT_ONCE // max(len(rings), 1), 1)
    while any(start < records.size for start, records in zip(at, rings, strict=True)):
        heads = [records[start : start + at_once] for start, records in zip(at, rings, strict=True)]
        unread = [
            records.size - start - head.size
            for start, head, records in zip(at, heads, rings, strict=True)
        ]
        _check_order(heads, rings, at)
        # Unread records of a CPU are no earlier than the last record of its head.
        ends = [head["tsc"][-1] for head, left in zip(heads, unread, strict=True) if left]
        if ends:
            until = min(ends)
            heads = [head[: np.searchsorted(head["tsc"], until, "right")] for head in heads]
        at = [start + head.size for start, head in zip(at, heads, strict=True)]
        found = np.concatenate(heads)
        yield found[np.argsort(found["tsc"], kind="stable")]


def _check_order(
    heads: Sequence[npt.NDArray[Any]], rings: Sequence[npt.NDArray[Any]], at: Sequence[int]
) -> None:
    """Check that each head is sorted and follows the previous records."""
    for head, records, start in zip(heads, rings, at, strict=True):
        times = records["tsc"][max(start - 1, 0) : start + head.size]
        if np.any(times[1:] < times[:-1]):
            raise BadInput(
                "records of traps are not in the order of their times: the files are damaged",
                "restore them, or record again",
            )


def _check_values(records: npt.NDArray[Any]) -> None:
    """Refuse impossible values, which would overflow later steps."""
    for field, most in _MOST.items():
        if records[field].max(initial=0) > most:
            raise BadInput(
                f"records of traps are damaged: one has the {field} {records[field].max()}",
                "restore the files, or record again",
            )


class _Pages:
    """Pages in order of their first record, with counts: the rows of ``pages.parquet``."""

    def __init__(self) -> None:
        self._known = np.empty(0, np.uint64)
        """Short keys of all pages, sorted, and the pages' numbers."""
        self._numbers = np.empty(0, np.uint32)
        self._spaces: dict[int, int] = {}
        """Index of each mm in the short keys."""
        self.key = np.empty(0, _KEY)
        self.counts = np.empty((0, 2), np.int64)
        """Misses and faulted walks of each page."""
        self.times = np.empty((0, 2), np.uint64)
        """Times of each page's first and last miss, in clock cycles; equal if there is none."""
        self.flags = dict.fromkeys(Flag, 0)
        """Number of records with each flag."""
        self.accesses: Counter[str] = Counter()
        """Misses by kind of access."""
        self.records = 0
        self.tgids: dict[int, int] = {}
        """The tgid of each mm."""

    def numbers(self, records: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
        """The page number of each record."""
        short = self._short_keys(records)
        unique, first, inverse = np.unique(short, return_index=True, return_inverse=True)
        at = np.searchsorted(self._known, unique)
        known = at < self._known.size
        known[known] = self._known[at[known]] == unique[known]
        number = np.empty(unique.size, np.uint32)
        number[known] = self._numbers[at[known]]
        (new,) = np.nonzero(~known)
        new = new[np.argsort(first[new])]
        number[new] = np.arange(self.key.size, self.key.size + new.size)
        self._add(records[first[new]], unique[new], number[new])
        return number[inverse.reshape(-1)]

    def _short_keys(self, records: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Address space, page and page size as one integer, for fast sorting."""
        spaces, at, inverse = np.unique(records["mm"], return_index=True, return_inverse=True)
        for mm, tgid in zip(spaces.tolist(), records["tgid"][at].tolist(), strict=True):
            self._spaces.setdefault(mm, len(self._spaces))
            self.tgids.setdefault(mm, tgid)
        if len(self._spaces) > _SPACES_MAX:
            raise BadInput(f"records of traps have more than {_SPACES_MAX:,} address spaces")
        index = np.array([self._spaces[mm] for mm in spaces.tolist()], np.uint64)
        huge = (records["flags"] & Flag.HUGE) != 0
        page = index[inverse.reshape(-1)] << _PAGE_BITS
        page |= records["addr"] >> page_shift(records["flags"])
        short: npt.NDArray[np.uint64] = page << np.uint64(1) | huge
        return short

    def _add(
        self,
        records: npt.NDArray[Any],
        short: npt.NDArray[np.uint64],
        number: npt.NDArray[np.uint32],
    ) -> None:
        """Add the pages of `records`."""
        key = np.empty(records.size, _KEY)
        shift = page_shift(records["flags"])
        key["mm"], key["vaddr"] = records["mm"], records["addr"] >> shift << shift
        key["size"] = np.uint64(1) << shift
        self.key = np.concatenate([self.key, key])
        self.counts = np.concatenate([self.counts, np.zeros((key.size, 2), np.int64)])
        self.times = np.concatenate([self.times, np.zeros((key.size, 2), np.uint64)])
        known = np.concatenate([self._known, short])
        order = np.argsort(known, kind="stable")
        self._known = known[order]
        self._numbers = np.concatenate([self._numbers, number])[order]

    def count_flags(self, flags: npt.NDArray[np.uint16]) -> None:
        """Count records by their flags."""
        self.records += flags.size
        values, counts = np.unique(flags, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            for flag in Flag:
                self.flags[flag] += count if value & flag else 0
            if not value & NO_MISS:
                self.accesses[access_name(value)] += count

    def count(self, number: npt.NDArray[np.uint32], time: npt.NDArray[np.uint64]) -> None:
        """Count misses, which must be sorted by time."""
        new = self.counts[number, 0] == 0
        # Write backwards, so that the first of several rows of a page remains.
        self.times[number[new][::-1], 0] = time[new][::-1]
        self.times[number, 1] = time
        np.add.at(self.counts[:, 0], number, 1)

    def write(self, processes: list[dict[str, Any]], clock: Clock, path: Path) -> None:
        """Write ``pages.parquet``."""
        of_mm = {process["mm"]: i for i, process in enumerate(processes)}
        owner = np.array([of_mm[mm] for mm in self.key["mm"].tolist()], np.uint32)
        tgids = np.array([process["tgid"] for process in processes] or [0], np.int32)
        rows: Pages = {
            "page": np.arange(self.key.size, dtype=np.uint32),
            "mm": self.key["mm"],
            "tgid": tgids[owner] if owner.size else np.empty(0, np.int32),
            "comm": owner,
            "vaddr": self.key["vaddr"],
            "page_size_bytes": self.key["size"].astype(np.int64),
            "span": np.ones(self.key.size, np.uint8),
            "misses": self.counts[:, 0],
            "faulted": self.counts[:, 1],
            "stores": np.zeros(self.key.size, np.int64),
            "first_ns": clock.to_ns(self.times[:, 0]),
            "last_ns": clock.to_ns(self.times[:, 1]),
        }
        write_pages(rows, [process["comm"] for process in processes], path)


def _writer(folder: Path, columns: Sequence[Column], files: contextlib.ExitStack) -> Writer:
    folder.mkdir()
    file = files.enter_context((folder / "part-00000.parquet").open("wb"))
    return files.enter_context(Writer(file, columns))


def _write(
    records: npt.NDArray[Any],
    clock: Clock,
    pages: _Pages,
    misses: Writer | None,
    others: Writer | None,
) -> None:
    """Count records, and write misses and faulted walks to the given files."""
    flags = records["flags"]
    number = pages.numbers(records)
    pages.count_flags(flags)
    time_ns = clock.to_ns(records["tsc"])
    faulted = (flags & Flag.FAULT) != 0
    missed = (flags & NO_MISS) == 0
    pages.count(number[missed], records["tsc"][missed])
    np.add.at(pages.counts[:, 1], number[faulted], 1)
    if misses:
        misses.write(
            time_ns[missed],
            number[missed],
            records["tid"][missed],
            records["ip"][missed],
            flags[missed] & ACCESS,
        )
    if others:
        kind = np.full(int(np.count_nonzero(faulted)), replay_state.FAULT, np.uint8)
        others.write(time_ns[faulted], number[faulted], kind)


def _clock(session: Session, rings: Sequence[npt.NDArray[Any]]) -> Clock:
    """The kernel's clock, which records and log share."""
    first = min((int(records["tsc"][0]) for records in rings if records.size), default=0)
    return Clock(
        origin_ticks=first,
        origin_cycles=first,
        cycles_per_tick=1.0,
        cycles_hz=session.kernel.tsc_hz,
        drift_ppm=0.0,
        residual_ns=0.0,
        pairs=0,
    )


def _processes(log: KernelLog, pages: _Pages, clock: Clock) -> list[dict[str, Any]]:
    """Address spaces in order of attachment, then those that only records name."""
    rows: dict[int, dict[str, Any]] = {}
    for event in log.tables[np.isin(log.tables["kind"], (MM_ATTACH, MM_EXIT))]:
        mm, time = int(event["mm"]), clock.ns(int(event["time"]))
        if event["kind"] == MM_ATTACH:
            rows[mm] = _process(mm) | {
                "tgid": int(event["tgid"]),
                "comm": event["comm"].decode(errors="replace"),
                "why": _WHY.get(int(event["why"])),
                "pgd": int(event["pgd"]),
                "attached_ns": time,
                "attached_ticks": int(event["time"]),
            }
        elif mm in rows:
            rows[mm] |= {"exited_ns": time, "exited_ticks": int(event["time"])}
    for mm in np.unique(pages.key["mm"]).tolist():
        rows.setdefault(mm, _process(mm) | {"tgid": pages.tgids[mm]})
    by_mm = np.argsort(pages.key["mm"], kind="stable")
    mms = pages.key["mm"][by_mm]
    for mm, row in rows.items():
        of = by_mm[slice(*np.searchsorted(mms, np.array([mm, mm + 1], np.uint64)))]
        counts, sizes = pages.counts[of], pages.key["size"][of]
        row["misses"], row["faulted"] = counts.sum(axis=0).tolist()
        row["pages"] = int(np.count_nonzero(counts[:, 0]))
        row["misses_by_page_size"] = {
            str(size): count
            for size in SIZES_BYTES
            if (count := int(counts[sizes == size, 0].sum()))
        }
    return list(rows.values())


def _process(mm: int) -> dict[str, Any]:
    """An empty entry of a process, with the same keys as in a bus session."""
    unknown = dict.fromkeys(
        ("why", "attached_ns", "exited_ns", "first_ticks", "attached_ticks", "exited_ticks")
    )
    tables = {"traced_bytes": 0, "untraced_bytes": 0, "untraced_tables": 0}
    return {"mm": mm, "tgid": 0, "comm": "", "pgd": 0, **unknown, **tables}


def _summary(
    session: Session,
    log: KernelLog,
    clock: Clock,
    pages: _Pages,
    processes: list[dict[str, Any]],
) -> dict[str, Any]:
    """The content of ``summary.json``: the keys of a bus session and those of trap mode."""
    misses, faulted = pages.counts.sum(axis=0).tolist()
    lost = sum(ring.lost for ring in session.traps)
    losses = {"traps": lost, "kernel_events": log.lost_events, "kernel_seqs": log.lost_seqs}
    reason = incomplete_reason(session, sum(losses.values()))
    recorded = set(session.kernel.events).issuperset(FAULT_EVENTS)
    markers = log.tables[
        (log.tables["kind"] == MARKER) & (log.tables["cookie"] > np.uint64(COOKIE_STOP))
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "complete": not reason,
        "incomplete_reason": reason,
        "sampled_one_in": 1,
        "granularity_bytes": session.board.granularity_bytes,
        "levels": session.region.levels,
        "totals": {
            "misses": misses,
            "faulted": faulted,
            "pmd_reads": 0,
            "stores": 0,
            "readbacks": 0,
            "accesses": pages.records,
            "pages": int(np.count_nonzero(pages.counts[:, 0])),
        },
        "misses_by_span": {"1": misses, "2": 0, "4": 0, "8": 0},
        "processes": processes,
        "lost": sum(losses.values()),
        "losses": losses,
        "gaps": [],
        "clock": clock.summary(),
        "faults": {
            "recorded": recorded,
            "events": log.timed.faults,
            "of_empty_entries": 0,
            "of_other_entries": faulted,
            "without_leaf_entry": 0,
            "unmatched": 0,
            "in_doubt": 0,
            "without_event": 0,
        },
        "unexplained": {"reads": 0, "stores": 0, "events": 0, "examples": []},
        "walks": {"whole": misses, "broken": 0, "ambiguous": 0},
        "traps": {
            "records": pages.records,
            "waits": sum(ring.waits for ring in session.traps),
            "misses_by_access": dict(pages.accesses.most_common()),
            **{flag.name.lower(): count for flag, count in pages.flags.items() if flag.name},
        },
        "user_markers": [
            {"cookie": int(event["cookie"]), "time_ns": clock.ns(int(event["time"]))}
            for event in markers
        ],
        "warnings": [f"the recording is incomplete: {reason}"] if reason else [],
    }
