# SPDX-License-Identifier: BSD-2-Clause
"""Misses of a trap-mode session by thread, by function and by kind of access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptat_host.reports.code_locations import CodeLocations, Location
from ptat_parser import Trace
from ptat_parser.errors import BadInput
from ptat_parser.formats.traps import Flag, access_name

_KEYS = ["mm", "thread", "ip", "access"]
_SUMS = [("misses", "sum"), ("first_ns", "min")]


@dataclass(frozen=True)
class Site:
    """One kind of access by one instruction of a thread."""

    mm: int
    tgid: int
    comm: str
    thread: int
    location: Location
    access: int
    misses: int


class TrapCounts:
    """The misses of a trace, counted in one pass."""

    def __init__(self, trace: Trace) -> None:
        """Count them.

        :raises BadInput: it is a bus session, or was parsed for counts only.
        """
        if not trace.session.traps:
            raise BadInput(
                f"{trace.session.path}: a bus trace, which has no threads and instructions",
                "record in trap mode (docs/trap.md), or use report --kernel",
            )
        sites, thread_pages = _grouped(trace)
        locations = CodeLocations(trace)
        self.functions_recorded = locations.recorded
        """Whether the mappings of the instructions are known."""
        self._thread_names = locations.thread_names
        self.sites = list(_located(trace, sites, locations))
        self._pages_of_thread = Counter(
            zip(thread_pages["mm"].to_pylist(), thread_pages["thread"].to_pylist(), strict=True)
        )

    def threads(self) -> list[dict[str, Any]]:
        """A row for each thread in each address space, those with most misses first.

        A thread without a name of its own has its process's.
        """
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for site in self.sites:
            key = site.mm, site.thread
            row = rows.setdefault(
                key,
                {
                    "comm": site.comm,
                    "tgid": site.tgid,
                    "tid": site.thread,
                    "name": self._thread_names.get((site.tgid, site.thread), site.comm),
                    "misses": 0,
                    "pages": self._pages_of_thread[key],
                },
            )
            row["misses"] += site.misses
        return _hottest(rows.values())

    def functions(self) -> list[dict[str, Any]]:
        """A row for each function, those with most misses first."""
        rows: dict[Location, dict[str, Any]] = {}
        for site in self.sites:
            row = rows.setdefault(
                site.location,
                {**site.location._asdict(), "misses": 0, "reads": 0, "writes": 0, "fetches": 0},
            )
            row["misses"] += site.misses
            row[_column(site.access)] += site.misses
        return _hottest(rows.values())

    def folded(self) -> Iterator[str]:
        """Lines ``process;thread;object;function MISSES``, sorted, as flame graphs take them."""
        counts: Counter[tuple[str, ...]] = Counter()
        for site in self.sites:
            process, thread = f"{site.comm} {site.tgid}", f"thread {site.thread}"
            counts[process, thread, *site.location] += site.misses
        for frames, misses in sorted(counts.items()):
            yield f"{';'.join(map(_frame, frames))} {misses}"

    def write_folded(self, file: IO[str]) -> None:
        """Write the lines of `folded`."""
        file.writelines(f"{line}\n" for line in self.folded())


def summarise(trace: Trace, top: int) -> dict[str, Any]:
    """The key `traps` of a report, with at most `top` functions.

    `threads` is None where single misses were not kept, `functions` also without mappings.
    """
    traps = trace.summary["traps"]
    counts = TrapCounts(trace) if (trace.results.path / "misses").is_dir() else None
    return {
        "records": traps["records"],
        "waits": traps["waits"],
        "retries": traps["retry"],
        "steps": traps["step"],
        "accesses": accesses(trace.summary),
        "threads": counts.threads() if counts else None,
        "functions": counts.functions()[:top] if counts and counts.functions_recorded else None,
    }


def accesses(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each kind of access that missed, those with most misses first."""
    by_access = summary["traps"]["misses_by_access"]
    return _hottest({"access": name, "misses": misses} for name, misses in by_access.items())


def _hottest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows sorted by misses, then by name, with their shares."""
    found = sorted(rows, key=lambda row: (-row["misses"], *map(str, row.values())))
    total = sum(row["misses"] for row in found)
    return [{**row, "share": row["misses"] / total} for row in found]


def _column(access: int) -> str:
    return {"read": "reads", "write": "writes", "fetch": "fetches"}[
        access_name(access & ~Flag.KERNEL)
    ]


def _frame(name: str) -> str:
    """A name without separators of frames or lines."""
    return "".join("_" if c == ";" or not c.isprintable() else c for c in name) or "?"


def _grouped(trace: Trace) -> tuple[pa.Table, pa.Table]:
    """Misses and first time by `_KEYS`, and the distinct pages of each thread."""
    mm = pa.array(trace.pages["mm"].to_numpy())
    sites: list[pa.Table] = []
    thread_pages: list[pa.Table] = []
    for batch in trace.misses().stored():
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["mm"] = mm.take(columns["page"])
        columns["misses"] = pa.array(np.ones(batch.num_rows, np.int64))
        columns["first_ns"] = columns.pop("time")
        rows = pa.table(columns)
        sites = [_summed([*sites, rows.select([*_KEYS, "misses", "first_ns"])])]
        thread_pages = [
            pa.concat_tables([*thread_pages, rows.select(["mm", "thread", "page"])])
            .group_by(["mm", "thread", "page"])
            .aggregate([])
        ]
    empty = pa.table({name: pa.array([], pa.uint64()) for name in (*_KEYS, "misses", "first_ns")})
    return (
        sites[0] if sites else empty,
        thread_pages[0] if thread_pages else empty,
    )


def _summed(tables: list[pa.Table]) -> pa.Table:
    found = pa.concat_tables(tables).group_by(_KEYS).aggregate(_SUMS)
    return found.rename_columns(
        [name.removesuffix("_sum").removesuffix("_min") for name in found.column_names]
    )


def _located(trace: Trace, sites: pa.Table, locations: CodeLocations) -> Iterator[Site]:
    processes = {process["mm"]: process for process in trace.summary["processes"]}
    mm = sites["mm"].to_numpy()
    thread, ip, access, misses, first_ns = (
        sites[name].to_numpy() for name in ("thread", "ip", "access", "misses", "first_ns")
    )
    for one in np.unique(mm).tolist():
        process = processes[one]
        (rows,) = np.nonzero(mm == one)
        found = _first_seen(ip[rows], first_ns[rows])
        where = locations.locate(process["tgid"], found, ip[rows])
        columns = (thread[rows].tolist(), where, access[rows].tolist(), misses[rows].tolist())
        for tid, location, kind, count in zip(*columns, strict=True):
            yield Site(one, process["tgid"], process["comm"], tid, location, kind, count)


def _first_seen(
    ip: npt.NDArray[np.uint64], time_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """First time of each row's instruction over all threads, so that it gets one function."""
    _, inverse = np.unique(ip, return_inverse=True)
    first = np.full(inverse.max(initial=0) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, time_ns)
    found: npt.NDArray[np.int64] = first[inverse]
    return found
