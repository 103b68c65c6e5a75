# SPDX-License-Identifier: BSD-2-Clause
"""Model of a CPU's last-level TLB: the misses of a trace if some pages had been larger.

The trace has only misses, no hits. They pass through a set-associative array with true LRU
replacement, of the size that the CPU's last level has for each page size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import jit
from ptat_parser.errors import PtatError

SIZES = {"4K": 1 << 12, "2M": 1 << 21, "1G": 1 << 30}


class Array(NamedTuple):
    """One array of the last level."""

    name: str
    sizes: tuple[str, ...]
    entries: int
    ways: int


MODELS = {
    "ivybridge-ep": (
        Array("stlb", ("4K",), 512, 4),
        Array("l1d_2m", ("2M",), 32, 4),
        Array("l1d_1g", ("1G",), 4, 4),
    ),
    "skylake": (Array("stlb", ("4K", "2M"), 1536, 12), Array("stlb_1g", ("1G",), 16, 4)),
    "zen4": (Array("l2d", ("4K", "2M"), 3072, 24), Array("l1d", ("1G",), 72, 72)),
}
"""For data; with the sources, testbed/plugin/presets.c."""


def of_session(cpu: dict[str, Any], wanted: str | None) -> tuple[str, tuple[Array, ...]]:
    """Name and arrays of the TLB that a session was recorded with, or of the one that is `wanted`.

    Raises `PtatError` if it is not known.
    """
    name = wanted or cpu.get("tlb")
    if name not in MODELS:
        raise PtatError(
            f"no model of the TLB {name!r}" if name else "the session does not name its TLB",
            f"choose one with --tlb: {', '.join(MODELS)}",
        )
    if wanted:
        return name, MODELS[name]
    arrays = []
    for array in MODELS[name]:
        entries, _, ways = cpu.get(f"tlb_{array.name}", "").partition("x")
        changed = entries.isdigit() and ways.isdigit() and int(ways)
        arrays.append(array._replace(entries=int(entries), ways=int(ways)) if changed else array)
    return name, tuple(arrays)


class Pages(NamedTuple):
    """Lookups for each page of the trace, shape ``(pages,)``."""

    tag: npt.NDArray[np.uint64]
    """Pages with one tag are one page, of one size."""
    number: npt.NDArray[np.uint64]
    """The address divided by the page's size, which selects the set."""
    size: npt.NDArray[np.int64]
    """In bytes."""


def misses(
    arrays: tuple[Array, ...], pages: Pages, batches: Iterable[npt.NDArray[np.uint32]]
) -> npt.NDArray[np.int64]:
    """Misses of each page, shape ``(pages,)``; `batches` are page numbers in bus order."""
    found = np.zeros(pages.tag.size, np.int64)
    first = np.zeros(pages.tag.size, np.int64)  # of the page's set
    ways = np.zeros(pages.tag.size, np.int64)
    room = 0
    for array in arrays:
        sets = max(array.entries // max(array.ways, 1), 1)
        here = np.isin(pages.size, [SIZES[size] for size in array.sizes])
        first[here] = room + (pages.number[here] % np.uint64(sets)).astype(np.int64) * array.ways
        ways[here] = array.ways
        room += sets * array.ways
    held = np.full(room, np.iinfo(np.uint64).max, np.uint64)
    for page in batches:
        _replay(page, pages.tag, first, ways, held, found)
    return found


@jit
def _replay(
    page: npt.NDArray[np.uint32],
    tags: npt.NDArray[np.uint64],
    first: npt.NDArray[np.int64],
    ways: npt.NDArray[np.int64],
    held: npt.NDArray[np.uint64],
    found: npt.NDArray[np.int64],
) -> None:
    """Each set is kept in order of use, the most recent first."""
    for i in range(page.size):
        number = page[i]
        tag, start = tags[number], first[number]
        at, end = start, start + ways[number]
        while at < end and held[at] != tag:
            at += 1
        if at == end:
            found[number] += 1
            at -= 1
        while at > start:
            held[at] = held[at - 1]
            at -= 1
        if end > start:
            held[start] = tag
