# SPDX-License-Identifier: BSD-2-Clause
"""``ptat hugepages``: what larger pages would save, object by object, and what they would cost.

For each object the trace's misses are replayed through a model of the CPU's TLB (`tlb`) twice: as
they were, and with the object in larger pages. What the object misses then is at least what the
second replay counts: what hit is not in the trace, so the model has less to hold, and it is never
flushed. The kernel flushes a TLB now and then, and after that each page in use misses once. The
trace does not show when; but a page that is in use all the time misses at each flush, so there were
no more of them than the busiest page outside of the object missed.

All others miss at most what was recorded, and at the least what is left of that by the difference
between the replays and by the page faults that are spared: each had a handler in the same TLB, and
is taken to have cost them one miss.

All this is for a kernel that flushes as often as before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports import tlb
from ptat_host.reports.objects import Object, Objects
from ptat_host.reports.session_report import printable
from ptat_host.reports.tlb import Pages
from ptat_host.sizes import format_size
from ptat_parser import Trace
from ptat_parser.errors import PtatError

ALL = "all of them"
SHARE_MIN = 0.001
"""Objects with a smaller share of the misses are skipped."""

_ADVICE = {
    "allocated": "align to {size}, then madvise(MADV_HUGEPAGE); or mmap(MAP_HUGETLB)",
    "anonymous": "align to {size}, then madvise(MADV_HUGEPAGE); or mmap(MAP_HUGETLB)",
    "heap": "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (madvise) or =2 (hugetlb)",
    "static": "link with -Wl,-z,max-page-size=2097152 and copy to huge pages at start (hugectl)",
    "file": "keep the file on a file system with huge pages: tmpfs huge=always, DAX, hugetlbfs",
}


@dataclass
class Candidate:
    """An object in larger pages."""

    name: str
    kind: str
    detail: str
    page_size_bytes: int
    misses: int
    """Of the object, as recorded."""
    predicted_misses: int
    """Of the object, in larger pages, if the TLB is never flushed."""
    predicted_most: int
    """If it is flushed as often as it can have been."""
    total_least: int
    """Of the whole trace then, between this and the next."""
    total_most: int
    total: int
    """As recorded."""
    hugepages: int
    """How many it needs."""
    memory_bytes: int
    """What they take beyond the small pages that were touched."""
    advice: str

    @property
    def saved(self) -> tuple[float, float]:
        """Least and largest share of all misses that it saves."""
        return 1 - self.total_most / self.total, 1 - self.total_least / self.total

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "saved_least": self.saved[0], "saved_most": self.saved[1]}


@dataclass
class Prediction:
    """Predict for a session."""

    tlb: str
    replayed: float
    """Share of the recorded misses that the model misses with the pages as they were."""
    candidates: list[Candidate]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        candidates = [candidate.as_dict() for candidate in self.candidates]
        return {**asdict(self), "candidates": candidates}


class _Replays:
    def __init__(self, trace: Trace, arrays: tuple[tlb.Array, ...]) -> None:
        pages = trace.pages
        self.trace, self.arrays = trace, arrays
        self.start = pages["vaddr"].to_numpy()
        self.mm = pages["mm"].to_numpy()
        self.size = pages["page_size_bytes"].to_numpy().astype(np.int64)
        self.recorded = pages["misses"].to_numpy().astype(np.int64)
        self.touched = pages["span"].to_numpy().astype(np.int64)
        self.before = self.run(np.zeros(len(pages), np.bool_), 0, self.start)

    def run(
        self, huge: npt.NDArray[np.bool_], size_bytes: int, at: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """Misses of each page if the `huge` ones were in pages of that size, and lay at `at`."""
        size = np.where(huge, size_bytes, self.size)
        number = at // size.astype(np.uint64)
        keys = np.stack([self.mm, size.astype(np.uint64), number])
        _, tag = np.unique(keys, axis=1, return_inverse=True)
        pages = Pages(tag.reshape(-1).astype(np.uint64), number, size)
        return tlb.misses(self.arrays, pages, (page for _, page in self.trace.misses().raw()))

    def others(self, after: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_], faults: int) -> int:
        """Lower bound of the misses outside of `rows`, given `faults` fewer page faults."""
        before, now = int(self.before[~rows].sum()), int(after[~rows].sum())
        recorded = int(self.recorded[~rows].sum())
        left = round(recorded * now / before) if before else recorded
        return min(max(left - faults, now), recorded)


def predict(trace: Trace, model: str | None, top: int, sizes: list[int]) -> Prediction:
    """Predict the savings of pages of `sizes` (bytes) for the `top` objects, and for all of them.

    Raises `PtatError` if mappings were not recorded, or the TLB is unknown.
    """
    name, arrays = tlb.of_session(trace.session.cpu, model)
    objects = Objects(trace)
    if not objects.recorded:
        raise PtatError("what was mapped where was not recorded", "record again without --no-maps")
    total = trace.summary["totals"]["misses"]
    found = [
        one for one in objects.count() if one.kind in _ADVICE and one.misses >= SHARE_MIN * total
    ][:top]
    replays = _Replays(trace, arrays)
    of_page = _object_of_page(objects, len(trace.pages))
    notes = []
    if trace.session.board.granularity_bytes > 8:
        notes.append(
            "the bus shows groups of pages: what small pages save each other is underestimated"
        )
    if objects.lost:
        notes.append(f"{objects.lost:,} changes of mappings were lost")
    candidates = []
    for size_bytes in sizes:
        chosen = [one for one in found if one.bytes >= size_bytes // 2]
        for some in [[one] for one in chosen] + ([chosen] if len(chosen) > 1 else []):
            candidates.append(_candidate(replays, of_page, objects, some, size_bytes, total))
    candidates.sort(key=lambda candidate: candidate.total_most)
    replayed = float(replays.before.sum() / total) if total else 1.0
    return Prediction(name, replayed, candidates, notes)


def _object_of_page(objects: Objects, pages: int) -> npt.NDArray[np.int64]:
    found = np.full(pages, -1, np.int64)
    for page in range(pages):
        if counts := objects.counts_of_page(page):
            found[page] = max(counts, key=lambda one: one[1])[0]
    return found


def _candidate(
    replays: _Replays,
    of_page: npt.NDArray[np.int64],
    objects: Objects,
    some: list[Object],
    size_bytes: int,
    total: int,
) -> Candidate:
    huge = np.zeros(of_page.size, np.bool_)
    at = replays.start.copy()
    hugepages = memory_bytes = faults = 0
    for one in some:
        rows = (of_page == objects.objects.index(one)) & (replays.size < size_bytes)
        # As if it began where a huge page does: that is what aligning it will do.
        shift = np.uint64(one.start % size_bytes)
        at[rows] -= shift
        huge |= rows
        needed = np.unique(at[rows] // np.uint64(size_bytes)).size
        hugepages += needed
        touched = int(replays.touched[rows].sum())
        faults += max(touched - needed, 0)
        memory_bytes += max(
            needed * size_bytes - int((replays.size * replays.touched)[rows].sum()), 0
        )
    after = replays.run(huge, size_bytes, at)
    own, misses = int(after[huge].sum()), int(replays.recorded[huge].sum())
    flushes = int(replays.recorded[~huge].max(initial=0))
    most = max(own, min(own + hugepages * flushes, misses))
    whole = len(some) == 1
    size = format_size(size_bytes)
    return Candidate(
        name=some[0].name if whole else ALL,
        kind=some[0].kind if whole else "",
        detail=some[0].detail if whole else "",
        page_size_bytes=size_bytes,
        misses=misses,
        predicted_misses=own,
        predicted_most=most,
        total_least=own + replays.others(after, huge, faults),
        total_most=most + total - misses,
        total=total,
        hugepages=hugepages,
        memory_bytes=memory_bytes,
        advice=_ADVICE[some[0].kind].format(size=size) if whole else "",
    )


def render(found: Prediction) -> RenderableType:
    """The table and its caveats."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for index, column in enumerate(
        ("object", "kind", "pages of", "misses", "then", "saves of all misses", "memory")
    ):
        table.add_column(column, justify="right" if index > 1 else "left")
    table.add_column("how")
    for one in found.candidates:
        table.add_row(
            Text(printable(one.name)),
            one.kind,
            format_size(one.page_size_bytes),
            f"{one.misses:,}",
            f"{one.predicted_misses:,} … {one.predicted_most:,}",
            f"{100 * one.saved[0]:.1f} … {100 * one.saved[1]:.1f} %",
            f"+{format_size(one.memory_bytes)} in {one.hugepages:,}",
            one.advice,
        )
    parts: list[RenderableType] = [
        table if found.candidates else Text("no object is large enough for larger pages"),
        "",
        Text(
            f"TLB {found.tlb}; with the pages as they were the model misses"
            f" {100 * found.replayed:.1f} % of what was recorded"
        ),
    ]
    return Group(*parts, *(Text(f"note: {note}") for note in found.notes))
