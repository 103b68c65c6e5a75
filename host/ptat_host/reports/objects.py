# SPDX-License-Identifier: BSD-2-Clause
"""Attributes each miss to a data structure: the mapping at its page and time.

A *cell* is a page together with one mapping that it had for a while; nearly all pages have one
cell. Misses are counted by cell, and each cell belongs to one object. If several objects share a
page, or the group of pages that a miss may be of, the cell belongs to the object with the largest
part; such misses are counted as `shared`.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_host.recording import maps, symbols
from ptat_host.recording.maps import ANONYMOUS, PROT_EXEC, Mapping, Region
from ptat_host.recording.symbols import Call, Symbols
from ptat_parser import Trace

PAGE_BYTES = 4096
STACK_BYTES = 8 << 20
"""How far a stack may have grown below the first part that the kernel reported, in bytes."""

_RUNTIME = ("libc.so", "libc-", "ld-linux", "libstdc++", "libgcc_s", "libptat-heap")
"""Libraries whose calls do not show what the memory is for."""
_WRAPPERS = 4
"""Number of innermost calls that may be reported as the place of an allocation."""


@dataclass(eq=False)
class Object:
    """A data structure that a programmer can name. The counts are misses, including `shared`."""

    tgid: int
    comm: str
    kind: str
    """static, allocated, heap, stack, anonymous, huge pages, file, binary, library, kernel, or
    unknown."""
    name: str
    detail: str
    """Its location: a place in the source, a file, or an address."""
    start: int = 0
    """Lowest address."""
    bytes: int = 0
    """Size of its largest block."""
    blocks: int = 0
    misses: int = 0
    shared: int = 0
    pages: int = 0
    misses_by_page_size: dict[int, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        by_size = {str(size): count for size, count in self.misses_by_page_size.items()}
        return {**self.__dict__, "misses_by_page_size": by_size}


class Objects:
    """The objects of a trace. Nothing is counted until `count` is called."""

    def __init__(self, trace: Trace, names: Symbols | None = None) -> None:
        """Read the mappings; if they were not recorded, all objects are unknown.

        `names`: None for those that were recorded.
        """
        session = trace.session.path
        self._trace = trace
        self._symbols = names or symbols.load(session)
        try:
            cycles_hz = trace.summary["clock"]["cycles_hz"]
            self.maps = maps.read(maps.path_of(session), cycles_hz)
            self.recorded = True
        except (OSError, KeyError):
            self.maps = maps.Maps()
            self.recorded = False
        self.objects: list[Object] = []
        self._index: dict[tuple[int, str, str, str], int] = {}
        self._blocks: list[set[Mapping]] = []
        self._modules: dict[int, tuple[list[int], list[tuple[str, int, int]]]] = {}
        self._symbol_blocks: dict[tuple[int, int], Mapping] = {}
        self._wrappers = self._find_wrappers()
        self._cells()
        self._counts = np.zeros(self.object_of_cell.size, np.int64)

    @property
    def lost(self) -> int:
        """Changes of mappings that were lost: attribution around them may be wrong."""
        return self.maps.lost

    def of(
        self, time_ns: npt.NDArray[np.int64], page: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.int32]:
        """Index in `objects` of each miss."""
        found: npt.NDArray[np.int32] = self.object_of_cell[self.cell(time_ns, page)]
        return found

    def count(self, batches: Iterable[tuple[Any, Any]] | None = None) -> list[Object]:
        """The objects with misses, the one with most first; `batches` as `Misses.raw` gives."""
        counts = np.zeros(self.object_of_cell.size, np.int64)
        for time_ns, page in self._trace.misses().raw() if batches is None else batches:
            np.add.at(counts, self.cell(time_ns, page), 1)
        self._counts = counts
        (there,) = np.nonzero(counts)
        size = self._page_size[self.page_of_cell]
        for index, of in enumerate(self.objects):
            of.misses = of.shared = of.pages = 0
            of.misses_by_page_size = {}
            of.blocks = len(self._blocks[index])
        order = there[np.argsort(self.object_of_cell[there], kind="stable")]
        bounds = np.searchsorted(self.object_of_cell[order], np.arange(len(self.objects) + 1))
        for index, of in enumerate(self.objects):
            cells = order[bounds[index] : bounds[index + 1]]
            of.misses = int(counts[cells].sum())
            of.shared = int(counts[cells][self._shared[self.page_of_cell[cells]]].sum())
            of.pages = np.unique(self.page_of_cell[cells]).size
            for page_size in np.unique(size[cells]):
                of_size = counts[cells][size[cells] == page_size]
                of.misses_by_page_size[int(page_size)] = int(of_size.sum())
        return sorted((o for o in self.objects if o.misses), key=lambda o: -o.misses)

    def counts_of_page(self, page: int) -> list[tuple[int, int]]:
        """Index of each object at a page, and its counted misses there."""
        first = self._first_cell[page]
        cells = slice(first, first + self._count[self._group[page]])
        both = zip(self.object_of_cell[cells].tolist(), self._counts[cells].tolist(), strict=True)
        return [(index, count) for index, count in both if count]

    def of_page(self, page: int) -> Object | None:
        """The object with the most counted misses at a page; None: there are none."""
        counts = self.counts_of_page(page)
        return self.objects[max(counts, key=lambda one: one[1])[0]] if counts else None

    # Which cell a miss is in ----------------------------------------------------------------------

    def cell(
        self, time_ns: npt.NDArray[np.int64], page: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.int64]:
        """The cell of each miss; `object_of_cell` and `page_of_cell` have a row for each."""
        cell = self._first_cell[page]
        if not self._has_several.any():
            return cell
        (several,) = np.nonzero(self._has_several[page])
        if several.size:
            group = self._group[page[several]]
            rank = np.searchsorted(self._times, time_ns[several], "right")
            key = group * (self._times.size + 1) + rank
            segment = np.searchsorted(self._keys, key, "right") - 1
            cell[several] += segment - self._first[group]
        return cell

    def _cells(self) -> None:
        """Segments: the successive mappings of a group of pages."""
        pages = self._trace.pages
        self._page_size = pages["page_size_bytes"].to_numpy()
        start = pages["vaddr"].to_numpy()
        size = (self._page_size * pages["span"].to_numpy()).astype(np.uint64)
        tgid = pages["tgid"].to_numpy()
        self._start, self._end = start, start + size
        self._shared = np.zeros(len(pages), np.bool_)
        self._group = np.zeros(len(pages), np.int64)
        comms = dict(zip(tgid.tolist(), pages["comm"].to_pylist(), strict=True))

        counts: list[int] = []
        since: list[int] = []
        what: list[tuple[int, Mapping | None]] = []
        for one in np.unique(tgid).tolist():
            (rows,) = np.nonzero(tgid == one)
            for group_rows, segments in self._groups(one, rows):
                self._group[group_rows] = len(counts)
                counts.append(len(segments))
                since += [ns for ns, _ in segments]
                what += [(one, mapping) for _, mapping in segments]
        self._count = np.array(counts, np.int64)
        self._first = np.cumsum(self._count) - self._count
        starts = np.array(since, np.int64)
        self._times = np.unique(starts)
        owner = np.repeat(np.arange(self._count.size), self._count)
        rank = np.searchsorted(self._times, starts, "right")
        self._keys = owner * (self._times.size + 1) + rank

        of_page = self._count[self._group]
        self._has_several = of_page > 1
        self._first_cell = np.cumsum(of_page) - of_page
        self.page_of_cell = np.repeat(np.arange(len(pages)), of_page)
        cell_segment = (
            self._first[self._group[self.page_of_cell]]
            + np.arange(self.page_of_cell.size)
            - self._first_cell[self.page_of_cell]
        )
        fixed = np.array([self._fixed(one, comms[one], there) for one, there in what], np.int32)
        self.object_of_cell = fixed[cell_segment] if fixed.size else np.zeros(0, np.int32)
        for cell in np.nonzero(self.object_of_cell < 0)[0].tolist():
            one, there = what[cell_segment[cell]]
            page = self.page_of_cell[cell]
            self.object_of_cell[cell] = self._static(
                one, comms[one], there, int(self._start[page]), int(self._end[page])
            )

    def _groups(
        self, tgid: int, rows: npt.NDArray[np.intp]
    ) -> Iterable[tuple[npt.NDArray[np.intp], list[tuple[int, Mapping | None]]]]:
        """Groups of the process's pages with the same mappings, and these mappings."""
        regions = self.maps.regions.get(tgid, [])
        heap = self.maps.heap.get(tgid, [])
        edges = {edge for region in (*regions, *heap) for edge in (region.start, region.end)}
        stacks = [region.start for region in regions if region.mapping.name == "[stack]"]
        edges |= {max(start - STACK_BYTES, 0) for start in stacks}
        if not edges:
            yield rows, [(0, None)]
            return
        bounds = np.array(sorted(edges), np.uint64)
        covered = np.zeros(bounds.size + 1, np.int64)  # index 0: below all bounds
        for region in (*regions, *heap):
            covered[np.searchsorted(bounds, np.uint64(region.start)) + 1] += 1
            covered[np.searchsorted(bounds, np.uint64(region.end)) + 1] -= 1
        covered = np.cumsum(covered)
        first = np.searchsorted(bounds, self._start[rows], "right")
        last = np.searchsorted(bounds, self._end[rows] - np.uint64(1), "right")
        interval = self._widest(rows, bounds, covered, first, last)

        wanted, inverse = np.unique(interval, return_inverse=True)
        of: list[list[Region]] = [[] for _ in wanted]
        of_heap: list[list[Region]] = [[] for _ in wanted]
        for found, source in ((of, regions), (of_heap, heap)):
            for region in source:
                begin = np.searchsorted(bounds, np.uint64(region.start)) + 1
                end = np.searchsorted(bounds, np.uint64(region.end)) + 1
                for index in range(*np.searchsorted(wanted, [begin, end])):
                    found[index].append(region)
        order = np.argsort(inverse, kind="stable")
        ends = np.searchsorted(inverse[order], np.arange(wanted.size + 1))
        for index in range(wanted.size):
            segments = _segments(of[index], of_heap[index])
            if segments == [(0, None)] and stacks:
                at = int(bounds[wanted[index] - 1]) if wanted[index] else 0
                if any(start - STACK_BYTES <= at < start for start in stacks):
                    segments = [(0, Mapping("[stack]", start=at))]
            yield rows[order[ends[index] : ends[index + 1]]], segments

    def _widest(
        self,
        rows: npt.NDArray[np.intp],
        bounds: npt.NDArray[np.uint64],
        covered: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """For each page the mapped interval that covers most of it."""
        interval = first.copy()
        (several,) = np.nonzero(first != last)
        best = np.zeros(several.size, np.uint64)
        mapped = np.zeros(several.size, np.int64)
        outer = np.concatenate([[np.uint64(0)], bounds, [np.uint64(2**64 - 1)]])
        step = 0
        while several.size:
            at = first[several] + step
            inside = at <= last[several]
            at = np.minimum(at, last[several])
            begin = np.maximum(outer[at], self._start[rows[several]])
            end = np.minimum(outer[at + 1], self._end[rows[several]])
            width = np.where(inside & (covered[at] > 0), end - begin, np.uint64(0))
            mapped += width > 0
            wider = width > best
            interval[several[wider]] = at[wider]
            best = np.maximum(best, width)
            self._shared[rows[several]] = mapped > 1
            several, best, mapped = several[inside], best[inside], mapped[inside]
            step += 1
        return interval

    # What a cell is called ------------------------------------------------------------------------

    def _add(self, tgid: int, comm: str, kind: str, name: str, detail: str, what: Mapping) -> int:
        index = self._index.setdefault((tgid, kind, name, detail), len(self.objects))
        if index == len(self.objects):
            self.objects.append(Object(tgid, comm, kind, name, detail, what.start))
            self._blocks.append(set())
        found = self.objects[index]
        found.start = min(found.start, what.start)
        found.bytes = max(found.bytes, what.bytes)
        self._blocks[index].add(what)
        return index

    def _fixed(self, tgid: int, comm: str, what: Mapping | None) -> int:
        """The object of a segment; -1: it depends on the page."""
        if what is None:
            return self._add(tgid, comm, "unknown", "unknown", "", Mapping(""))
        name = what.name
        if name in ("alloc", "heap-map"):
            call = self._site(what)
            detail = call.place if call else "allocated at an unknown place"
            title = (call.variable or call.function) if call else "allocation"
            return self._add(tgid, comm, "allocated", title, detail, what)
        where = f"at {what.start:#x}"
        if name == ANONYMOUS:
            if self._module_at(tgid, what.start) is not None:
                return -1
            return self._add(tgid, comm, "anonymous", "anonymous", where, what)
        if name.startswith(("[anon:", "[anon_shmem:")):
            title = name[1:-1].partition(":")[2]
            return self._add(tgid, comm, "anonymous", title, where, what)
        if name.startswith("["):
            kind = {"[heap]": "heap", "[stack]": "stack"}.get(name, "kernel")
            return self._add(tgid, comm, kind, name[1:-1], "", what)
        if name in self._symbols.modules:
            return -1
        title = Path(name.removesuffix(" (deleted)")).name
        if "anon_hugepage" in title:
            return self._add(tgid, comm, "huge pages", "huge pages", where, what)
        return self._add(tgid, comm, "file", title, name, what)

    def _static(self, tgid: int, comm: str, what: Mapping | None, start: int, end: int) -> int:
        """The object of a page that belongs to an ELF file's image."""
        assert what is not None
        at = self._module_at(tgid, start) or self._module_at(tgid, what.start)
        file, base = at if at else (what.name, what.start)
        module = self._symbols.modules[file]
        title = Path(file).name
        kind = "library" if ".so" in title else "binary"
        if not what.prot & PROT_EXEC and (symbol := module.symbol_of(start - base, end - base)):
            name, address, size = symbol
            block = self._symbol_blocks.setdefault(
                (tgid, base + address), Mapping(name, start=base + address, bytes=size)
            )
            return self._add(tgid, comm, "static", name, title, block)
        section = module.section_of(start - base, end - base)
        return self._add(tgid, comm, kind, f"{title} {section}" if section else title, file, what)

    def _module_at(self, tgid: int, address: int) -> tuple[str, int] | None:
        """The ELF file whose image (including .bss) holds an address, and its load bias."""
        if tgid not in self._modules:
            self._modules[tgid] = self._find_modules(tgid)
        begins, found = self._modules[tgid]
        index = bisect.bisect_right(begins, address) - 1
        if index < 0 or address >= found[index][1]:
            return None
        return found[index][0], found[index][2]

    def _find_modules(self, tgid: int) -> tuple[list[int], list[tuple[str, int, int]]]:
        found = {}
        for region in self.maps.regions.get(tgid, []):
            module = self._symbols.modules.get(region.mapping.name)
            if module and module.loads and region.mapping.offset_bytes == 0:
                low = min(load[0] for load in module.loads) & -PAGE_BYTES
                high = max(load[0] + load[3] for load in module.loads)
                start = region.mapping.start
                end = start + (high - low + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
                found[start] = (region.mapping.name, end, start - low)
        return sorted(found), [found[start] for start in sorted(found)]

    # Allocations ----------------------------------------------------------------------------------

    def _calls(self, what: Mapping) -> list[Call]:
        """The calls that led to an allocation, without those of the run-time libraries."""
        calls = []
        for frame in what.frames:
            title = Path(frame.file).name
            if title.startswith(_RUNTIME):
                continue
            unknown = Call(f"{title}+{frame.offset_bytes:#x}", "", 0, "")
            calls += self._symbols.calls.get(frame, [unknown])
        return calls

    def _find_wrappers(self) -> set[str]:
        """Functions that allocate on behalf of several others, or that headers define."""
        callers = defaultdict(set)
        wrappers = set()
        for regions in self.maps.heap.values():
            for what in {region.mapping for region in regions}:
                calls = self._calls(what)
                for call, caller in itertools.pairwise(calls):
                    callers[call.function].add(caller.place)
                    if call.source.endswith((".h", ".hpp", ".hh")):
                        wrappers.add(call.function)
        return wrappers | {function for function, places in callers.items() if len(places) > 1}

    def _site(self, what: Mapping) -> Call | None:
        calls = self._calls(what)
        own = (call for call in calls[:_WRAPPERS] if call.function not in self._wrappers)
        return next(own, calls[0] if calls else None)


def _segments(regions: list[Region], heap: list[Region]) -> list[tuple[int, Mapping | None]]:
    """Mappings and their start times, sorted by time, beginning with 0.

    The kernel reports mappings late rather than early, so a miss while nothing is mapped belongs to
    the next mapping. Allocated memory lies within mappings.
    """
    found: list[tuple[int, Mapping | None]] = []
    end_ns = 0
    for region in sorted(regions, key=lambda region: region.from_ns):
        if not found or found[-1][1] is not region.mapping:
            found.append((end_ns, region.mapping))
        end_ns = region.to_ns
    found = found or [(0, None)]
    if not heap:
        return found
    below, merged = found, list[tuple[int, Mapping | None]]()
    cuts = {ns for ns, _ in below} | {r.from_ns for r in heap} | {r.to_ns for r in heap}
    ordered = sorted(heap, key=lambda region: region.from_ns)
    begins = [region.from_ns for region in ordered]
    starts = [ns for ns, _ in below]
    for ns in sorted(cuts):
        index = bisect.bisect_right(begins, ns) - 1
        if index >= 0 and ns < ordered[index].to_ns:
            mapping: Mapping | None = ordered[index].mapping
        else:
            mapping = below[bisect.bisect_right(starts, ns) - 1][1]
        if not merged or merged[-1][1] is not mapping:
            merged.append((ns, mapping))
    return merged
