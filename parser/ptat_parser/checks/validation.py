# SPDX-License-Identifier: BSD-2-Clause
"""Compares a trace with independent evidence: truth, counters, the structure of walks.

The testbed's walker stamps each walk with the time of its leaf read on the bus, so trace and truth
are joined walk by walk: a miss is right if process, virtual page and page size agree. Their order
then agrees as well. Boards without a truth must meet less: every read is explained and, if the
machine reads the whole path at each walk, every walk is whole.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptat_parser.capture.merge import open_bus
from ptat_parser.checks.walk_pairs import overlapping_walks
from ptat_parser.errors import BadInput
from ptat_parser.formats import truth
from ptat_parser.formats.session import Session
from ptat_parser.order.clock import Clock
from ptat_parser.order.first_pass import Progress, no_progress
from ptat_parser.results.reader import KIND_FAULT, Results

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

BLOCK_WORDS = truth.BLOCK_WORDS
EXAMPLES_MAX = 10
AT_ONCE_NS = 50_000_000
"""Longest stop of a CPU between its walk and the fault's event."""

_COUNTERS = tuple(
    f"{name}.walk_completed" for name in ("dtlb_load_misses", "dtlb_store_misses", "itlb_misses")
)
_RETIRED = ("mem_inst_retired.stlb_miss_loads", "mem_inst_retired.stlb_miss_stores")
_BY_SIZE = {12: "_4k", 21: "_2m_4m", 30: "_1g"}
"""Suffix of perf's event names for a page size, by log2 of its bytes."""


@dataclass
class Compared:
    """A process's misses and its counters, for one page size or all.

    There are counters for each page directory. Processes that used the same frame for it one after
    another are compared together.
    """

    processes: list[str]
    """``comm tgid`` of each."""
    page_size_bytes: int | None
    """Page size, or None for all sizes."""
    trace: int
    walks: int | None
    """Completed walks, speculative or not; None: not counted."""
    retired: int | None = None
    """Retired loads and stores that needed a walk; None: not counted."""
    untraced: int = 0
    """Walks that read no table in the region, if a truth is known."""
    foreign: int = 0
    """Walks of other processes with the same page directory, if a truth is known."""


@dataclass
class Validation:
    """The outcome; ``ptat validate --json`` prints `asdict` of it.

    - `exact`: None if no truth was recorded. `ok`: everything that could be checked holds.
    - `missing`: misses of the truth that the trace lacks. `extra`: misses of the trace that the
      truth lacks. `wrong_page`: in both, but of another process, page or page size.
    - `fault_label_errors`: walks wrongly labelled as faulted, or as misses (also counted in
      `missing` or `extra`). `swapped`: pairs of them that are concurrent walks of one page by two
      CPUs, one of which faulted; the bus alone does not show whose walk faulted.
    - `outside_region`: misses of traced processes whose leaf entry lay outside the region.
      `not_demanded`: those of them that the trace need not contain.
    - `bound`: behind a memory controller, the parser's bound for the true number of misses, which
      decides `ok`. `inferred`: misses without a read on the bus. `inferred_wrong`: those of them in
      a line of entries in which no walk of the process missed.
    - `foreign_walks`: completed walks of untraced processes in page directories of traced ones.
    - `relative_error`: 1 − trace/counter over the processes that were traced from their start.
      `compared`: the same per process, one row for all pages and one for each page size.
    """

    ok: bool = True
    exact: bool | None = None
    truth_misses: int | None = None
    trace_misses: int = 0
    matched: int = 0
    missing: int = 0
    extra: int = 0
    wrong_page: int = 0
    lost: int = 0
    counter_walks: int | None = None
    relative_error: float | None = None
    fault_label_errors: int = 0
    swapped: int = 0
    outside_region: int = 0
    not_demanded: int = 0
    unexplained: int = 0
    truth_faulted: int | None = None
    trace_faulted: int = 0
    foreign_walks: int = 0
    races: int = 0
    explained: int | None = None
    kernel_reads: int | None = None
    inferred: int | None = None
    inferred_wrong: int | None = None
    bound: tuple[int, int] | None = None
    granularity_bytes: int = 8
    compared: list[Compared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)


def validate(results: Results, *, progress: Progress = no_progress) -> Validation:
    """Compare a parsed session with all evidence in its recording."""
    summary = results.summary
    found = Validation(
        trace_misses=summary["totals"]["misses"],
        trace_faulted=summary["totals"]["faulted"],
        lost=summary["lost"],
        unexplained=summary["unexplained"]["reads"] + summary["unexplained"]["events"],
        granularity_bytes=summary["granularity_bytes"],
    )
    if behind := summary.get("controller"):
        found.inferred = behind["inferred"]
        if bound := behind["misses"]:
            found.bound = bound["low"], bound["high"]
    unseen = _Unseen()
    if results.session.truth_path.exists():
        _compare_with_truth(results, found, unseen, progress)
    elif results.session.traps:
        found.notes.append("each record is a miss: ptat check compares them with the log")
    else:
        found.notes.append("no truth was recorded: misses cannot be compared one by one")
    if results.session.counters_path.exists():
        _compare_with_counters(results, found, unseen)
    elif not results.session.traps:
        found.notes.append("no counters were recorded")
    if results.session.board.walk_reads == "all":
        _check_walks(results, found)
    one_in = results.summary.get("sampled_one_in", 1)
    if one_in > 1:
        found.notes.append(f"1 in {one_in} accesses sampled: the trace cannot be complete")
    found.ok = (
        _is_right(found)
        and one_in == 1
        and not found.lost
        and not found.unexplained
        and not found.kernel_reads
    )
    return found


def _is_right(found: Validation) -> bool:
    """Whether a trace is what its truth, if there is one, and its contract demand."""
    if found.bound is None or found.truth_misses is None:
        return found.exact is not False
    # What a memory controller hides cannot be exact, walk by walk.
    low, high = found.bound
    inside = low <= found.truth_misses <= high
    return inside and not found.wrong_page and not found.inferred_wrong


class _Swaps:
    """Finds pairs of concurrent walks of one page by two CPUs whose labels are swapped."""

    def __init__(self) -> None:
        self.pairs = 0
        # CPUs and times, by label, process, page and page size.
        self._alone: defaultdict[tuple[bool, int, int, int], list[tuple[int, int]]]
        self._alone = defaultdict(list)

    def add(self, owner: I64, time_ns: I64, walks: npt.NDArray[Any], *, as_miss: bool) -> None:
        """Add walks labelled as misses or as faulted; `owner`: process of each row of `walks`."""
        pages = walks["va"] >> walks["shift"].astype(np.uint64)
        columns = (owner, pages, walks["shift"], walks["cpu"], time_ns)
        for *page, cpu, at_ns in zip(*(column.tolist() for column in columns), strict=True):
            others = self._alone[not as_miss, *page]
            for i, (other, other_ns) in enumerate(others):
                if other != cpu and abs(other_ns - at_ns) <= AT_ONCE_NS:
                    del others[i]
                    self.pairs += 1
                    break
            else:
                self._alone[as_miss, *page].append((cpu, at_ns))


class _Inferred:
    """Inferred misses, and the lines of entries in which walks missed."""

    def __init__(self) -> None:
        self._missed: Counter[tuple[int, int, int]] = Counter()
        self._walked: set[tuple[int, int, int]] = set()

    @staticmethod
    def _keys(owner: I64, va: U64, size: U64) -> Iterator[tuple[int, int, int]]:
        """Yields process, line number and page size of each miss."""
        line = va // (size * np.uint64(_LINE_ENTRIES))
        yield from zip(owner.tolist(), line.tolist(), size.tolist(), strict=True)

    def add_misses(self, owner: I64, va: U64, size: U64) -> None:
        """Add misses of the trace."""
        self._missed.update(self._keys(owner, va, size))

    def add_walks(self, owner: I64, va: U64, size: U64) -> None:
        """Add walks of the truth."""
        self._walked.update(self._keys(owner, va, size))

    @property
    def wrong(self) -> int:
        """Number of misses in lines in which no walk of the process missed."""
        return sum(count for key, count in self._missed.items() if key not in self._walked)


_LINE_ENTRIES = 8


def _check_walks(results: Results, found: Validation) -> None:
    walks = results.summary["walks"]
    if results.session.region.levels != "pte+pmd":
        found.notes.append("PMD tables were not traced: the walks' grammar cannot be checked")
        return
    whole, broken = walks["whole"], walks["broken"]
    cpus = results.session.kernel.cpus
    if broken and cpus > 1 and found.granularity_bytes == 8:
        whole, broken = overlapping_walks(results, cpus)
    found.explained = whole
    found.kernel_reads = broken + found.unexplained


class _Unseen:
    """Completed walks that counters count and the trace lacks, by page directory and size."""

    def __init__(self) -> None:
        self.untraced: Counter[tuple[int, int]] = Counter()
        self.foreign: Counter[tuple[int, int]] = Counter()

    @staticmethod
    def add(to: Counter[tuple[int, int]], walks: npt.NDArray[Any]) -> None:
        """Count walks, rows of a truth."""
        both = walks["pgd_pfn"].astype(np.uint64) << np.uint64(8) | walks["shift"]
        values, counts = np.unique(both, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            to[value >> 8, value & 255] += count


def _compare_with_counters(results: Results, found: Validation, unseen: _Unseen) -> None:
    path = results.session.counters_path
    try:
        content = json.loads(path.read_bytes())
        spaces = {space["pgd_pfn"]: space for space in content["address_spaces"]}
        # The model does not speculate.
        all_retire = str(content.get("source", "")).startswith("testbed model")
        for pfn, processes in _by_directory(results.summary["processes"]).items():
            if pfn in spaces:
                found.compared += _compare_space(pfn, processes, spaces[pfn], all_retire, unseen)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: damaged: {error}", "restore the file, or record again") from None
    found.counter_walks = sum(
        one.walks or 0 for one in found.compared if one.page_size_bytes is None
    )
    if found.foreign_walks:
        # Unlike a CPU's counters, these are per page directory, and its frame may serve several
        # processes one after another.
        found.counter_walks -= found.foreign_walks
        found.notes.append(
            f"{found.foreign_walks} walks of untraced processes that used the same page"
            " directories are subtracted from the counters"
        )
    if found.counter_walks:
        trace = sum(p["misses"] for p in results.summary["processes"] if _is_whole(p))
        found.relative_error = 1 - trace / found.counter_walks


def _is_whole(process: dict[str, Any]) -> bool:
    """Whether a process was traced from its start."""
    return process["why"] in ("fork", "exec")


def _by_directory(processes: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """The whole processes by their page directory's frame."""
    found: dict[int, list[dict[str, Any]]] = {}
    for process in processes:
        if _is_whole(process):
            found.setdefault(process["pgd"] >> 12, []).append(process)
    return found


def _compare_space(
    pfn: int,
    processes: list[dict[str, Any]],
    space: dict[str, int],
    all_retire: bool,
    unseen: _Unseen,
) -> Iterator[Compared]:
    """Yields a row for all pages, then one per page size with walks; `space`: counts by event."""
    names = [f"{process['comm']} {process['tgid']}" for process in processes]
    walks = sum(space[name] for name in _COUNTERS)
    retired: int | None = walks if all_retire else None
    if _RETIRED[0] in space:
        retired = sum(space[name] for name in _RETIRED)
    sizes = list(_BY_SIZE)
    yield Compared(
        names,
        None,
        sum(process["misses"] for process in processes),
        walks,
        retired,
        sum(unseen.untraced[pfn, size] for size in sizes),
        sum(unseen.foreign[pfn, size] for size in sizes),
    )
    for size, suffix in _BY_SIZE.items():
        if _COUNTERS[0] + suffix not in space:
            continue
        of_size = sum(space[name + suffix] for name in _COUNTERS)
        trace = sum(p["misses_by_page_size"].get(str(1 << size), 0) for p in processes)
        if of_size or trace:
            yield Compared(
                names,
                1 << size,
                trace,
                of_size,
                of_size if all_retire else None,
                unseen.untraced[pfn, size],
                unseen.foreign[pfn, size],
            )


class _Processes:
    """The traced address spaces of each page-directory frame over time."""

    def __init__(self, processes: list[dict[str, Any]]) -> None:
        self._lives: dict[int, list[tuple[int, int, int]]] = {}
        self.from_start = np.array([p["why"] in ("fork", "exec") for p in processes], np.bool_)
        self.pgds_from_start = np.unique(
            [p["pgd"] >> 12 for p in processes if p["why"] in ("fork", "exec")]
        )
        for i, process in enumerate(processes):
            if process["attached_ticks"] is None:
                continue
            end = process["exited_ticks"]
            life = (process["first_ticks"], (1 << 63) if end is None else end, i)
            self._lives.setdefault(process["pgd"] >> 12, []).append(life)

    def of(self, pgd_pfn: U64, time: U64) -> I64:
        """Index of the process of each walk, or -1 if it was not traced."""
        found = np.full(time.size, -1, np.int64)
        for pfn in np.unique(pgd_pfn).tolist():
            rows = np.flatnonzero(pgd_pfn == pfn)
            at = time[rows].astype(np.int64)
            for start, end, i in self._lives.get(pfn, []):
                found[rows[(at >= start) & (at < end)]] = i
        return found


class _Trace:
    """Iterates over the records of one kind of results file, up to given times."""

    def __init__(self, batches: Iterator[tuple[npt.NDArray[Any], ...]]) -> None:
        self._batches = batches
        self._held: tuple[npt.NDArray[Any], ...] | None = next(batches, None)

    def until(self, time_ns: int | None) -> tuple[I64, npt.NDArray[np.uint32]]:
        """Time and page of the next records, up to `time_ns` (None: all)."""
        times, pages = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
        while self._held is not None:
            time, page = self._held
            end = (
                time.size if time_ns is None else int(np.searchsorted(time, time_ns, side="right"))
            )
            times.append(time[:end])
            pages.append(page[:end])
            if end < time.size:
                self._held = time[end:], page[end:]
                break
            self._held = next(self._batches, None)
        return np.concatenate(times), np.concatenate(pages)


def _read_ticks(session: Session) -> U64:
    """Times of all reads in a capture."""
    reader = open_bus(session, salvage=True, tail_may_be_cut=not session.ended)
    none = np.empty(0, np.uint64)
    return np.concatenate([none, *(chunk.time[~chunk.write] for chunk in reader)])


def _faults(results: Results) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    for time, page, kind in results.others():
        rows = kind == KIND_FAULT
        yield time[rows], page[rows]


def _join(time: I64, of: I64) -> I64:
    """Index of each element of `time` in `of`, or -1; both are sorted.

    Equal times are paired in order.
    """
    if not time.size or not of.size:
        return np.full(time.size, -1, np.int64)
    rank = np.arange(time.size) - np.searchsorted(time, time)
    at = np.searchsorted(of, time) + rank
    inside = np.minimum(at, of.size - 1)
    return np.where((at < of.size) & (of[inside] == time), inside, -1)


def _compare_with_truth(
    results: Results, found: Validation, unseen: _Unseen, progress: Progress
) -> None:
    """Join misses and faulted walks with the truth, block by block."""
    walks = truth.Reader(results.session.truth_path, BLOCK_WORDS)
    comparison = _Comparison(results, found, unseen)
    any_walks = False
    for block, time_ns, more in _blocks(walks, Clock.from_summary(results.summary["clock"])):
        any_walks = True
        comparison.add(block, time_ns, int(time_ns[-1]) if more else None)
        progress("comparing", walks.words_read, walks.words)
    if not any_walks:
        found.extra = found.trace_misses
    found.swapped = comparison.swaps.pairs
    if found.bound is not None:
        found.inferred_wrong = comparison.inferred.wrong
    found.exact = not (found.missing or found.extra or found.wrong_page or found.unexplained)


class _Comparison:
    """Compares a trace with the walks of a truth, in the order of time."""

    def __init__(self, results: Results, found: Validation, unseen: _Unseen) -> None:
        summary = results.summary
        self._found, self._unseen = found, unseen
        self._processes = _Processes(summary["processes"])
        index_of = {process["mm"]: i for i, process in enumerate(summary["processes"])}
        self._pages = pages = results.pages()
        self._page_mm = np.array([index_of[mm] for mm in pages["mm"].to_pylist()], np.int64)
        self._page_va = pages["vaddr"].to_numpy()
        self._page_size = pages["page_size_bytes"].to_numpy().astype(np.uint64)
        self._page_end = self._page_va + self._page_size * pages["span"].to_numpy()
        self._pmd_visible = results.session.region.levels == "pte+pmd"
        self._misses, self._faults = _Trace(results.misses()), _Trace(_faults(results))
        self._in_doubt = summary["faults"]["in_doubt"]
        self.swaps = _Swaps()
        self._has_inferred = "controller" in summary
        self._reads = _read_ticks(results.session) if self._has_inferred else None
        self.inferred = _Inferred()
        found.truth_misses = found.truth_faulted = 0

    def add(self, block: npt.NDArray[Any], time_ns: I64, last_ns: int | None) -> None:
        """Compare a block of walks with the trace up to `last_ns` (None: to its end)."""
        found = self._found
        owner = self._processes.of(block["pgd_pfn"], block["time"])
        demanded = self._demanded(block, owner)
        trace_ns, page = self._misses.until(last_ns)
        walk = self._walks_of(trace_ns, page, block, owner, time_ns)
        known = walk >= 0
        right = known & demanded[walk] & self._agrees(block, owner, walk, page)
        wrong = known & demanded[walk] & ~right
        extra = ~known | ~demanded[walk]
        hit = np.zeros(len(block), np.bool_)
        hit[walk[known]] = True
        missing = demanded & ~hit
        found.matched += int(np.count_nonzero(right))
        found.wrong_page += int(np.count_nonzero(wrong))
        found.extra += int(np.count_nonzero(extra))
        found.missing += int(np.count_nonzero(missing))
        if self._has_inferred:
            at = page[~known]
            mm, va, size = self._page_mm[at], self._page_va[at], self._page_size[at]
            self.inferred.add_misses(mm, va, size)
            shift = block["shift"][demanded].astype(np.uint64)
            self.inferred.add_walks(owner[demanded], block["va"][demanded], np.uint64(1) << shift)
        fault_walk = self._labels(block, owner, time_ns, demanded, walk, last_ns)
        for kind, rows in (("wrong_page", wrong), ("extra", extra)):
            for i in np.flatnonzero(rows)[: EXAMPLES_MAX - len(found.examples)].tolist():
                found.examples.append(
                    {"kind": kind}
                    | _of_trace(self._pages, trace_ns, page, i)
                    | (_of_truth(block, int(walk[i])) if known[i] else {})
                )
        for i in np.flatnonzero(missing)[: EXAMPLES_MAX - len(found.examples)].tolist():
            as_fault = np.flatnonzero(fault_walk == i)[:1].tolist()
            found.examples.append(
                {"kind": "missing", "labelled_faulted": bool(as_fault), "time_ns": int(time_ns[i])}
                | _of_truth(block, i)
            )

    def _walks_of(
        self,
        trace_ns: I64,
        page: npt.NDArray[np.uint32],
        block: npt.NDArray[Any],
        owner: I64,
        time_ns: I64,
    ) -> I64:
        """The walk of each miss, or -1 if there is none at its time."""
        if self._reads is None:
            return _join(trace_ns, time_ns)
        # The times of other walks mean nothing, and inferred misses may be at any time.
        seen = np.flatnonzero(np.isin(block["time"], self._reads))
        at = _join(trace_ns, time_ns[seen])
        walk = np.where(at >= 0, np.append(seen, -1)[at], -1)
        # Of two misses at one time, the walk is of the one that agrees.
        first = np.flatnonzero((walk[:-1] >= 0) & (walk[1:] < 0) & (np.diff(trace_ns) == 0))
        agrees = [self._agrees(block, owner, walk[first], page[first + i]) for i in (0, 1)]
        swapped = first[~agrees[0] & agrees[1]]
        walk[swapped + 1], walk[swapped] = walk[swapped], -1
        return walk

    def _demanded(self, block: npt.NDArray[Any], owner: I64) -> npt.NDArray[np.bool_]:
        """Mask of the walks that the trace must contain as misses; also counts walks by kind."""
        found, unseen, processes = self._found, self._unseen, self._processes
        flags, shift = block["flags"], block["shift"]
        faulted = flags & truth.Flag.FAULT != 0
        in_region = flags & truth.Flag.LEAF_IN_REGION != 0
        traced = owner >= 0
        visible = (shift == 12) | (self._pmd_visible & (shift == 21))
        demanded: npt.NDArray[np.bool_] = (
            traced & ~faulted & (in_region | (processes.from_start[owner] & visible))
        )
        outside = traced & ~faulted & ~in_region
        found.truth_misses = (found.truth_misses or 0) + int(np.count_nonzero(demanded))
        found.truth_faulted = (found.truth_faulted or 0) + int(
            np.count_nonzero(traced & faulted & in_region)
        )
        found.outside_region += int(np.count_nonzero(outside))
        found.not_demanded += int(np.count_nonzero(outside & ~demanded))
        foreign = ~faulted & ~(traced & processes.from_start[owner])
        foreign &= np.isin(block["pgd_pfn"], processes.pgds_from_start)
        found.foreign_walks += int(np.count_nonzero(foreign))
        unseen.add(unseen.untraced, block[outside & processes.from_start[owner]])
        unseen.add(unseen.foreign, block[foreign])
        found.races += int(np.count_nonzero(traced & (flags & truth.Flag.RACE != 0)))
        return demanded

    def _agrees(
        self, block: npt.NDArray[Any], owner: I64, walk: I64, page: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.bool_]:
        """Mask of the misses that agree with their walk in process, page and page size."""
        va, shift = block["va"][walk], block["shift"][walk].astype(np.uint64)
        agrees: npt.NDArray[np.bool_] = (
            (self._page_mm[page] == owner[walk])
            & (self._page_va[page] <= va)
            & (va < self._page_end[page])
            & (self._page_size[page] == np.uint64(1) << shift)
        )
        return agrees

    def _labels(
        self,
        block: npt.NDArray[Any],
        owner: I64,
        time_ns: I64,
        demanded: npt.NDArray[np.bool_],
        walk: I64,
        last_ns: int | None,
    ) -> I64:
        """Count the walks that are wrongly labelled as faulted, or as misses.

        Returns the walk of each faulted record of the trace, or -1.
        """
        faulted = block["flags"] & truth.Flag.FAULT != 0
        as_misses = (walk >= 0) & (faulted & (owner >= 0))[walk]
        fault_ns, _ = self._faults.until(last_ns)
        fault_walk = _join(fault_ns, time_ns)
        as_faulted = (fault_walk >= 0) & demanded[fault_walk]
        for rows, as_miss in ((walk[as_misses], True), (fault_walk[as_faulted], False)):
            self._found.fault_label_errors += rows.size
            if self._in_doubt:
                self.swaps.add(owner[rows], time_ns[rows], block[rows], as_miss=as_miss)
        return fault_walk


def _blocks(walks: truth.Reader, clock: Clock) -> Iterator[tuple[npt.NDArray[Any], I64, bool]]:
    """Yields blocks of walks, their times in nanoseconds, and whether more follow.

    Walks of the same nanosecond stay in one block.
    """
    held = np.empty(0, truth.dtype())
    for walk in walks:
        block = np.concatenate([held, walk])
        time_ns = clock.to_ns(block["time"].copy())
        whole = int(np.searchsorted(time_ns, time_ns[-1]))
        held = block[whole:]
        if whole:
            yield block[:whole], time_ns[:whole], True
    if held.size:
        yield held, clock.to_ns(held["time"].copy()), False


def _of_trace(
    pages: pa.Table, time_ns: I64, page: npt.NDArray[np.uint32], i: int
) -> dict[str, Any]:
    row = pages.slice(int(page[i]), 1).to_pylist()[0]
    return {
        "time_ns": int(time_ns[i]),
        "trace": {name: row[name] for name in ("mm", "vaddr", "page_size_bytes", "span")},
    }


def _of_truth(block: npt.NDArray[Any], i: int) -> dict[str, Any]:
    row = block[i]
    return {"truth": {name: int(row[name]) for name, _, _ in truth.FIELDS}}
