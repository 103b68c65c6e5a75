# SPDX-License-Identifier: BSD-2-Clause
"""TLB misses and page faults of a trace for each of several page sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import PtatError
from ptat_studies.pagesize import paging
from ptat_studies.pagesize.paging import Clock, StackDistances
from ptat_studies.pagesize.references import References

I64 = npt.NDArray[np.int64]

WINDOWS = 64
"""Stretches of a trace with the same number of references that are also counted alone."""


@dataclass(frozen=True)
class Measured:
    """What a trace takes with pages of one size. Arrays of shape ``(WINDOWS,)`` are by window."""

    page_bytes: int
    pages: int
    """That were touched."""
    references: I64
    tlb_misses: I64
    """TLB misses with the given number of entries."""
    misses_by_entries: I64
    """Of the whole trace, with 0, 1, 2 … entries up to one for each page."""
    faults: dict[int, I64]
    """By the memory's percentage of the footprint; without those that hold no page of this size."""

    def miss_rate(self, entries: int) -> float:
        """TLB misses per reference with a number of entries."""
        at = min(entries, self.misses_by_entries.size - 1)
        return float(self.misses_by_entries[at] / self.references.sum())

    @property
    def tlb_rate(self) -> float:
        """TLB misses per reference."""
        return float(self.tlb_misses.sum() / self.references.sum())

    def fault_rate(self, percent: int) -> float | None:
        """Faults per reference; None: the memory holds no page."""
        if percent not in self.faults:
            return None
        return float(self.faults[percent].sum() / self.references.sum())


def frames(footprint_bytes: int, percent: int, page_bytes: int) -> int:
    """Number of pages in a memory of `percent` of the footprint."""
    return footprint_bytes * percent // (100 * page_bytes)


def measure(
    references: References,
    page_sizes: Sequence[int],
    percents: Sequence[int],
    entries: int,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Measured]:
    """Simulate a TLB with LRU, and main memories with CLOCK.

    :param page_sizes: in bytes, powers of two from `references.unit_bytes` up.
    :param percents: memory sizes in percent of the footprint.
    :param entries: of the TLB, fully associative.
    :param progress: called with the number of page sizes that are done, and of all.
    :raises PtatError: no memory holds a page of any size.
    """
    if not any(
        frames(references.footprint_bytes, percent, page_bytes)
        for percent in percents
        for page_bytes in page_sizes
    ):
        raise PtatError(
            f"{references.name}: a memory of {max(percents)} % of {references.footprint_bytes}"
            f" bytes holds no page of {min(page_sizes)} bytes",
            "choose more memory or smaller pages: --memory, --pages",
        )
    found = []
    # The loops leave other threads running.
    with ThreadPoolExecutor(workers) as pool:
        for one in pool.map(
            lambda page_bytes: _measure(references, page_bytes, percents, entries), page_sizes
        ):
            found.append(one)
            progress(len(found), len(page_sizes))
    return found


def _measure(
    references: References, page_bytes: int, percents: Sequence[int], entries: int
) -> Measured:
    sequence = references.sequence(page_bytes)
    distances = StackDistances(sequence.pages)
    clocks = {
        percent: Clock(sequence.pages, held)
        for percent in percents
        if (held := frames(references.footprint_bytes, percent, page_bytes))
    }
    count = np.zeros(WINDOWS, np.int64)
    missed = np.zeros(WINDOWS, np.int64)
    faults = {percent: np.zeros(WINDOWS, np.int64) for percent in clocks}
    repeated = 0
    for window, pages, made_of in references.walk(sequence, WINDOWS):
        count[window] += made_of
        repeated += made_of - pages.size
        missed[window] += distances.run(pages, entries)
        for percent, clock in clocks.items():
            faults[percent][window] += clock.run(pages)
    distances.histogram[1] += repeated
    return Measured(
        page_bytes,
        sequence.pages,
        count,
        missed,
        paging.misses(distances.histogram),
        faults,
    )
