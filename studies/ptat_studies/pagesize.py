# SPDX-License-Identifier: BSD-2-Clause
"""``ptat pagesize``: which page size suits a program, its memory and where its pages come from.

The study of Park and Bahn, Modeling and Analysis of the Page Sizing Problem for NVM Storage in
Virtualized Systems, IEEE Access 9 (2021), for traces of one's own: what TLB and memory miss with
each page size is simulated, functions of the page size are fitted to that, and the time of a memory
access follows from either. docs/studies.md says how to read it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import ptat_parser
from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size, parse_size
from ptat_parser import Trace
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.formats.session import Session
from ptat_parser.formats.storage import location
from ptat_studies import memory_time, page_fits, page_sizes
from ptat_studies.accesses import Accesses, Kind, of_session, of_testbed, open_trace
from ptat_studies.memory_time import Memory, Storage
from ptat_studies.page_fits import POWER, TLB_MODELS, TWO_EXPONENTIALS, Fit
from ptat_studies.page_sizes import Measured
from ptat_studies.references import CACHE_WAYS, FOOTPRINT_PAGE_BYTES, References

F64 = npt.NDArray[np.float64]

COMMON_BYTES = memory_time.COMMON_PAGE_BYTES
PAGE_SIZES = tuple(512 << step for step in range(8))
"""Of the paper: those that the functions are fitted to, and one of which is advised."""
LARGE_SIZES = (2 << 20, 1 << 30)
"""Also simulated, for their TLB misses."""
PERCENTS = tuple(range(10, 101, 10))
TLB_ENTRIES = 64
SHOWN_ENTRIES = (16, 64, 512, 1536)
COMPARED_PERCENT = 30
"""Memory of the paper's figure 8 and table 7."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What is simulated."""

    page_sizes: tuple[int, ...] = PAGE_SIZES
    percents: tuple[int, ...] = PERCENTS
    """Memory, of the footprint."""
    tlb_entries: int = TLB_ENTRIES
    cache_bytes: int = 0
    storage: str = memory_time.NVM.name
    """For which a page size is advised."""
    memory: Memory = field(default_factory=Memory)
    storages: Mapping[str, Storage] = field(default_factory=lambda: memory_time.STORAGES)
    strict: bool = False
    """Malformed rows of a trace are an error."""
    workers: int = 1


# What virtual machines there are ------------------------------------------------------------------

Percent = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Vm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A virtual machine."""

    name: str
    workload: str
    memory_percent: Percent
    storage: str
    paper_page_size: str = ""
    """What the paper chose, to compare with."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Virtual machines that run together."""

    name: str
    vm: list[Vm]


class _Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes_per_second: Positive
    latency_ns: NotNegative = 0.0
    seek_ns: NotNegative = 0.0


class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tlb_ns: NotNegative = Memory().tlb_ns
    access_ns: Positive = Memory().access_ns


class _Machines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scenario: list[Scenario] = []
    memory: _Memory = _Memory()
    storage: dict[str, _Storage] = {}


def read_machines(path: Path) -> tuple[list[Scenario], Memory, dict[str, Storage]]:
    """Scenarios, times and storages (also the known ones) of a file such as
    docs/examples/pagesize-vms.toml.

    :raises BadInput: it is not such a file.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), _Machines)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}", "docs/studies.md has an example") from None
    storages = dict(memory_time.STORAGES)
    for name, one in found.storage.items():
        storages[name] = Storage(name, one.latency_ns, one.seek_ns, one.bytes_per_second)
    for vm in (vm for scenario in found.scenario for vm in scenario.vm):
        if vm.storage not in storages:
            raise BadInput(
                f"{path}: {vm.name}: there is no storage {vm.storage!r}",
                f"there are {', '.join(storages)}; a table [storage.NAME] makes one",
            )
        if vm.paper_page_size:
            parse_size(vm.paper_page_size, f"{path}: {vm.name}: paper_page_size")
    return found.scenario, Memory(found.memory.tlb_ns, found.memory.access_ns), storages


# Measuring ----------------------------------------------------------------------------------------


class Workload:
    """A trace, and what was simulated for it."""

    def __init__(
        self, name: str, references: References, measured: list[Measured], settings: Settings
    ) -> None:
        self.name, self.format = name, references.format
        self.footprint_bytes = references.footprint_bytes
        self.counts = dict(references.counts)
        self.accesses, self.cached = references.accesses, references.cached
        self.rejected = references.rejected
        self.all_sizes = measured
        self.settings = settings
        self._fault_fits: dict[int, Fit] = {}

    @property
    def reads(self) -> int:
        """Instructions and data."""
        return self.counts[Kind.FETCH] + self.counts[Kind.READ]

    @property
    def density(self) -> float:
        """Accesses for each 4 KiB of the footprint."""
        return self.accesses * FOOTPRINT_PAGE_BYTES / self.footprint_bytes

    @cached_property
    def measured(self) -> list[Measured]:
        """For the page sizes that functions are fitted to."""
        return [one for one in self.all_sizes if one.page_bytes in self.settings.page_sizes]

    def sizes(self, percent: int | None = None) -> F64:
        """Page sizes in bytes; only those of which a memory holds one."""
        found = [
            one.page_bytes for one in self.measured if percent is None or percent in one.faults
        ]
        return np.array(found, np.float64)

    def tlb_rates(self, percent: int | None = None) -> F64:
        """TLB misses per reference, for `sizes`."""
        found = [one.tlb_rate for one in self.measured if percent is None or percent in one.faults]
        return np.array(found)

    def fault_rates(self, percent: int) -> F64:
        """Page faults per reference, for `sizes`."""
        rates = [one.fault_rate(percent) for one in self.measured]
        return np.array([rate for rate in rates if rate is not None])

    @cached_property
    def tlb_fits(self) -> dict[str, Fit]:
        """By the function's name."""
        kib = self.sizes() / 1024
        return {model.name: page_fits.fit(model, kib, self.tlb_rates()) for model in TLB_MODELS}

    def fault_fit(self, percent: int) -> Fit:
        """For a memory that holds a page of some size."""
        if percent not in self._fault_fits:
            self._fault_fits[percent] = page_fits.fit(
                TWO_EXPONENTIALS, self.sizes(percent) / 1024, self.fault_rates(percent)
            )
        return self._fault_fits[percent]

    @cached_property
    def percents(self) -> list[int]:
        """Memories of the settings that hold a page of some size."""
        return [percent for percent in self.settings.percents if self.sizes(percent).size]

    @cached_property
    def modelled(self) -> tuple[F64, F64]:
        """All page fault rates, as simulated and as the functions have them."""
        simulated = [self.fault_rates(percent) for percent in self.percents]
        functions = [self.fault_fit(one)(self.sizes(one) / 1024) for one in self.percents]
        return np.concatenate(simulated), np.concatenate(functions)

    @cached_property
    def t_test(self) -> tuple[float, float] | None:
        """t and p of simulated and modelled page fault rates."""
        return page_fits.paired_t_test(*self.modelled)

    def rates(self, percent: int, model: bool) -> tuple[F64, F64]:
        """TLB miss rates and page fault rates for `sizes`, simulated or of the functions."""
        if not model:
            return self.tlb_rates(percent), self.fault_rates(percent)
        kib = self.sizes(percent) / 1024
        found = self.tlb_fits[POWER.name](kib), self.fault_fit(percent)(kib)
        return np.clip(found[0], 0, 1), np.clip(found[1], 0, 1)

    def times_ns(self, percent: int, storage: str, model: bool = False) -> tuple[F64, F64]:
        """Address translation time and data access time for `sizes`."""
        tlb, fault = self.rates(percent, model)
        memory = self.settings.memory
        return (
            memory_time.address_ns(memory, tlb),
            memory_time.data_ns(memory, fault, self.fault_ns(percent, storage)),
        )

    def fault_ns(self, percent: int, storage: str) -> F64:
        """What a fault takes, for `sizes`."""
        device = self.settings.storages[storage]
        return np.array([device.fault_ns(int(size)) for size in self.sizes(percent)])

    @cached_property
    def pearson(self) -> float | None:
        """Correlation of simulated and modelled access times, as in the paper's table 7."""
        percent = nearest(COMPARED_PERCENT, self.percents)
        simulated, modelled = (
            sum(self.times_ns(percent, self.settings.storage, model)) for model in (False, True)
        )
        return page_fits.correlation(np.asarray(simulated), np.asarray(modelled))

    def advise(self, percent: int, storage: str) -> Advice:
        """The page size with the shortest access time by the functions, and what it brings."""
        sizes = self.sizes(percent)
        simulated = np.add(*self.times_ns(percent, storage))
        modelled = np.add(*self.times_ns(percent, storage, model=True))
        advised = int(np.argmin(modelled))
        common = np.flatnonzero(sizes == COMMON_BYTES)
        common_ns = float(simulated[common[0]]) if common.size else None
        climbed = None
        if common.size:
            climbed = self._climb(percent, storage, int(common[0]))
        return Advice(
            page_bytes=int(sizes[advised]),
            best_bytes=int(sizes[np.argmin(simulated)]),
            access_ns=float(simulated[advised]),
            modelled_ns=float(modelled[advised]),
            best_ns=float(simulated.min()),
            common_ns=common_ns,
            climbed_ns=climbed.access_ns if climbed else None,
            climbing_ns=climbed.change_ns if climbed else None,
            climbed_bytes=int(sizes[climbed.sizes[-1]]) if climbed else None,
        )

    def _climb(self, percent: int, storage: str, start: int) -> memory_time.Climb:
        held = [one for one in self.measured if percent in one.faults]
        count = np.stack([one.references for one in held], axis=1)
        tlb = np.stack([one.tlb_misses for one in held], axis=1)
        faults = np.stack([one.faults[percent] for one in held], axis=1)
        whole = (count > 0).all(axis=1)  # of a short trace some windows have none
        count, tlb, faults = count[whole], tlb[whole], faults[whole]
        memory = self.settings.memory
        times = memory_time.access_ns(
            memory, tlb / count, faults / count, self.fault_ns(percent, storage)
        )
        # A change fills the TLB anew, and writes an entry for each page that is in memory.
        frames = [page_sizes.frames(self.footprint_bytes, percent, one.page_bytes) for one in held]
        change = (np.array(frames) + self.settings.tlb_entries) * memory.access_ns
        return memory_time.climb(times, count[:, start].astype(np.float64), change, start)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "format": self.format,
            "footprint_bytes": self.footprint_bytes,
            "accesses_per_4k": self.density,
            "accesses": {kind.name.lower(): count for kind, count in self.counts.items()},
            "cached": self.cached,
            "malformed": self.rejected.rows,
            "sizes": [
                {
                    "page_bytes": one.page_bytes,
                    "pages": one.pages,
                    "references": int(one.references.sum()),
                    "tlb_miss_rate": one.tlb_rate,
                    "tlb_miss_rate_by_entries": {n: one.miss_rate(n) for n in SHOWN_ENTRIES},
                    "fault_rate": {percent: one.fault_rate(percent) for percent in one.faults},
                }
                for one in self.all_sizes
            ],
            "tlb_fits": [fit.as_dict() for fit in self.tlb_fits.values()],
            "fault_fits": {percent: self.fault_fit(percent).as_dict() for percent in self.percents},
            "t_test": {"sample_size": self.modelled[0].size}
            | ({"t": self.t_test[0], "p": self.t_test[1]} if self.t_test else {}),
            "pearson": self.pearson,
            "advice": {
                percent: self.advise(percent, self.settings.storage).as_dict()
                for percent in self.percents
            },
        }


def nearest(percent: int, among: Sequence[int]) -> int:
    """The percentage that was simulated and is next to another."""
    return min(among, key=lambda one: abs(one - percent))


@dataclass(frozen=True)
class Advice:
    """For a trace, a memory and a storage. Times are simulated, of an access."""

    page_bytes: int
    """By the functions."""
    best_bytes: int
    """By simulation."""
    access_ns: float
    modelled_ns: float
    best_ns: float
    common_ns: float | None
    """With 4 KiB; None: these were not simulated, or the memory holds none."""
    climbed_ns: float | None
    """With hill climbing, if changes cost nothing."""
    climbing_ns: float | None
    """What they cost."""
    climbed_bytes: int | None
    """Where hill climbing ended."""

    @property
    def improvement(self) -> float | None:
        """Share of the time with 4 KiB that the advised page size saves."""
        return 1 - self.access_ns / self.common_ns if self.common_ns else None

    @property
    def climbed_improvement(self) -> float | None:
        """The same of hill climbing, if changes cost nothing."""
        if self.common_ns is None or self.climbed_ns is None:
            return None
        return 1 - self.climbed_ns / self.common_ns

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {
            "improvement": self.improvement,
            "climbed_improvement": self.climbed_improvement,
        }


@dataclass(frozen=True)
class Study:
    """All of it."""

    settings: Settings
    workloads: list[Workload]
    vms: list[tuple[str, Vm, Advice]]
    """With the scenario's name."""
    notes: list[str]

    @property
    def fits(self) -> dict[str, dict[str, float | None]]:
        """Adjusted R² of each function of the TLB miss rate, by workload."""
        return {
            one.name: {name: fit.adjusted_r2 for name, fit in one.tlb_fits.items()}
            for one in self.workloads
        }

    @property
    def advised(self) -> dict[str, dict[int, int]]:
        """Page size in bytes, by workload and percentage."""
        return {
            one.name: {
                percent: one.advise(percent, self.settings.storage).page_bytes
                for percent in one.percents
            }
            for one in self.workloads
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        settings = self.settings
        return {
            "fits": self.fits,
            "advised": self.advised,
            "settings": {
                "page_bytes": settings.page_sizes,
                "memory_percent": settings.percents,
                "tlb_entries": settings.tlb_entries,
                "cache_bytes": settings.cache_bytes,
                "memory": asdict(settings.memory),
                "storage": settings.storage,
                "storages": [asdict(one) for one in settings.storages.values()],
            },
            "workloads": [one.as_dict() for one in self.workloads],
            "vms": [
                {"scenario": scenario, **msgspec.to_builtins(vm), **advice.as_dict()}
                for scenario, vm, advice in self.vms
            ],
            "notes": self.notes,
        }


def open_traces(
    traces: Sequence[str], kind: str | None, progress: Progress = lambda step, done, total: None
) -> dict[str, Accesses]:
    """Traces by name, from ``PATH`` or ``NAME=PATH``.

    :param kind: of all of them, as ``--format``; None: what they look like.
    :raises PtatError: there is no such trace, or two have one name.
    """
    found: dict[str, Accesses] = {}
    for trace in traces:
        name, named, where = trace.partition("=")
        if not named or "/" in name:
            name, where = Path(trace).name.partition(".")[0] or trace, trace
        if name in found:
            raise PtatError(f"two traces are named {name!r}", "name them: NAME=FILE")
        if kind == "accesses":
            found[name] = of_testbed(Session(location(where)))
        elif kind == "session" or (kind is None and is_session(where)):
            found[name] = of_session(Trace(ptat_parser.load(location(where), progress=progress)))
        else:
            found[name] = open_trace(where, kind)
    return found


def is_session(where: str) -> bool:
    """Whether it is a directory, not a file."""
    return "://" in where or Path(where).is_dir()


def sizes_for(traces: Mapping[str, Accesses]) -> tuple[int, ...]:
    """As many page sizes as the paper's, from the smallest that all traces tell."""
    least = max(PAGE_SIZES[0], *(one.granularity_bytes for one in traces.values()))
    return tuple(least << step for step in range(len(PAGE_SIZES)))


def with_machines(settings: Settings, machines: Path | None) -> tuple[Settings, list[Scenario]]:
    """Settings with the times of a file of virtual machines, and these.

    :raises PtatError: the file cannot be used, or there is no such storage.
    """
    scenarios: list[Scenario] = []
    if machines is not None:
        scenarios, memory, storages = read_machines(machines)
        settings = replace(settings, memory=memory, storages=storages)
    if settings.storage not in settings.storages:
        raise PtatError(
            f"--storage: there is no {settings.storage!r}",
            f"there are {', '.join(settings.storages)}",
        )
    if settings.cache_bytes and not cache_is_possible(settings.cache_bytes):
        raise PtatError(
            f"--cache: {format_size(settings.cache_bytes)} makes no power of two of sets",
            f"a cache of {CACHE_WAYS} ways and lines of 64 bytes has 512 bytes, 1K, 2K, …",
        )
    return settings, scenarios


def study(
    traces: Mapping[str, Accesses],
    settings: Settings,
    scenarios: Sequence[Scenario] = (),
    progress: Progress = lambda step, done, total: None,
) -> Study:
    """Simulate, fit and advise.

    :raises PtatError: a trace cannot be used, or settings make no sense for it.
    """
    if unknown := sorted(
        {vm.workload for scenario in scenarios for vm in scenario.vm} - set(traces)
    ):
        raise PtatError(
            f"there is no trace of {', '.join(unknown)}, which a virtual machine runs",
            "name traces as NAME=FILE",
        )
    percents = {vm.memory_percent for scenario in scenarios for vm in scenario.vm}
    percents |= set(settings.percents)
    workloads, notes = [], []
    for name, accesses in traces.items():
        _check_granularity(accesses, settings)
        with References(
            accesses,
            min(settings.page_sizes),
            settings.cache_bytes,
            partial(progress, f"reading {name}"),
        ) as references:
            notes += _check(name, accesses, references, settings)
            measured = page_sizes.measure(
                references,
                sorted({*settings.page_sizes, *LARGE_SIZES}),
                sorted(percents),
                settings.tlb_entries,
                settings.workers,
                partial(progress, f"simulating {name}"),
            )
        workloads.append(Workload(name, references, measured, settings))
    of_name = {one.name: one for one in workloads}
    vms = [
        (scenario.name, vm, _advise_vm(of_name[vm.workload], vm))
        for scenario in scenarios
        for vm in scenario.vm
    ]
    return Study(settings, workloads, vms, notes)


def _advise_vm(workload: Workload, vm: Vm) -> Advice:
    percent = vm.memory_percent
    if not workload.sizes(percent).size:
        raise PtatError(
            f"{vm.name}: {percent} % of {format_size(workload.footprint_bytes)} holds no page",
            "give it more memory",
        )
    return workload.advise(percent, vm.storage)


def _check(name: str, accesses: Accesses, references: References, settings: Settings) -> list[str]:
    """Notes on a trace that was read.

    :raises PtatError: it is of no use.
    """
    notes = []
    if accesses.rejected.rows:
        if settings.strict:
            raise BadInput(f"{accesses.name}: {accesses.rejected}", "leave out --strict")
        notes.append(f"{name}: {accesses.rejected}")
    if references.footprint_bytes < max(settings.page_sizes):
        raise PtatError(
            f"{accesses.name}: its footprint of {format_size(references.footprint_bytes)} is"
            f" smaller than a page of {format_size(max(settings.page_sizes))}",
            "choose smaller pages: --pages",
        )
    if accesses.format == "session":
        notes.append(f"{name}: only what missed the TLB is in it: rates are of misses")
    return notes


def _check_granularity(accesses: Accesses, settings: Settings) -> None:
    if accesses.granularity_bytes > min(settings.page_sizes):
        size = format_size(accesses.granularity_bytes)
        raise PtatError(
            f"{accesses.name}: its addresses are multiples of {size}",
            "choose no smaller pages: --pages",
        )


def cache_is_possible(size_bytes: int) -> bool:
    """Whether a cache of that size has a power of two of sets."""
    sets, rest = divmod(size_bytes, 64 * CACHE_WAYS)
    return not rest and sets > 0 and not sets & (sets - 1)


# Tables -------------------------------------------------------------------------------------------

Cell = str | float | int | None


@dataclass(frozen=True)
class Numbers:
    """A table as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def _text(value: Cell, digits: int = 3) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else value


def _with_average(rows: list[list[Cell]], digits: int) -> list[list[str]]:
    """And below it the averages of columns of numbers, the first of which is a name."""
    average: list[Cell] = ["Average"]
    for column in list(zip(*rows, strict=True))[1:]:
        values = [value for value in column if isinstance(value, float)]
        average.append(fmean(values) if values else None)
    return [[_text(value, digits) for value in row] for row in [*rows, average]]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _size(size_bytes: int | None) -> str:
    return "–" if size_bytes is None else format_size(size_bytes)


def tables(found: Study) -> list[Numbers]:
    """The paper's tables 1 to 8, and what its figure 9 shows."""
    made = [
        _characteristics(found.workloads),
        _miss_rates(found),
        _miss_rate_fits(found.workloads, 2),
        _miss_rate_fits(found.workloads, 3),
        _fault_rates(found),
        _fault_rate_fits(found, 4),
        _fault_rate_fits(found, 5),
        *_model_tests(found.workloads),
        _advice(found),
    ]
    if found.vms:
        made.append(_machines_table(found))
    return made


def _characteristics(workloads: Sequence[Workload]) -> Numbers:
    return Numbers(
        "Table 1. Workload characteristics",
        ["workload", "footprint (MiB)", "accesses per 4 KiB", "write", "read", "total"],
        [
            [
                one.name,
                f"{one.footprint_bytes / (1 << 20):.2f}",
                f"{one.density:.2f}",
                *(
                    ("–", "–")
                    if one.counts[Kind.MISS]
                    else (f"{one.counts[Kind.WRITE]:,}", f"{one.reads:,}")
                ),
                f"{one.accesses:,}",
            ]
            for one in workloads
        ],
    )


def _miss_rates(found: Study) -> Numbers:
    workloads = found.workloads
    return Numbers(
        "TLB miss rate by page size and entries",
        ["workload", "entries", *(_size(one.page_bytes) for one in workloads[0].all_sizes)],
        [
            [one.name, f"{entries:,}", *(f"{m.miss_rate(entries):.5f}" for m in one.all_sizes)]
            for one in workloads
            for entries in sorted({*SHOWN_ENTRIES, found.settings.tlb_entries})
        ],
    )


def _miss_rate_fits(workloads: Sequence[Workload], number: int) -> Numbers:
    """Table 2 or 3."""
    what, digits = ("Adjusted R²", 3) if number == 2 else ("RMSE", 4)
    functions = [model.name for model in TLB_MODELS]
    rows: list[list[Cell]] = [
        [one.name, *(_goodness(one.tlb_fits[name], number == 2) for name in functions)]
        for one in workloads
    ]
    return Numbers(
        f"Table {number}. {what} of the TLB miss rate's functions",
        ["workload", *functions],
        _with_average(rows, digits),
    )


def _goodness(fit: Fit, r2: bool) -> float | None:
    return fit.adjusted_r2 if r2 else fit.rmse


def _fault_rates(found: Study) -> Numbers:
    return Numbers(
        "Page fault rate by page size and memory",
        ["workload", "memory", *(_size(size) for size in found.settings.page_sizes)],
        [
            [one.name, f"{percent} %", *(_text(m.fault_rate(percent), 5) for m in one.measured)]
            for one in found.workloads
            for percent in found.settings.percents
        ],
    )


def _fault_rate_fits(found: Study, number: int) -> Numbers:
    """Table 4 or 5."""
    percents = list(found.settings.percents)
    rows: list[list[Cell]] = [
        [
            one.name,
            *(
                _goodness(one.fault_fit(percent), number == 4) if percent in one.percents else None
                for percent in percents
            ),
        ]
        for one in found.workloads
    ]
    what = "Adjusted R²" if number == 4 else "RMSE"
    return Numbers(
        f"Table {number}. {what} of the page fault rate's function",
        ["workload", *(f"{percent} %" for percent in percents)],
        _with_average(rows, 4),
    )


def _model_tests(workloads: Sequence[Workload]) -> list[Numbers]:
    """Tables 6 and 7."""
    return [
        Numbers(
            "Table 6. Paired t-test of simulated and modelled page fault rates",
            ["workload", "sample size", "t-value", "p-value"],
            [
                [one.name, _text(one.modelled[0].size), *map(_text, one.t_test or (None, None))]
                for one in workloads
            ],
        ),
        Numbers(
            "Table 7. Pearson correlation of simulated and modelled access times",
            ["workload", "ρ"],
            _with_average([[one.name, one.pearson] for one in workloads], 3),
        ),
    ]


def _advice(found: Study) -> Numbers:
    settings = found.settings
    return Numbers(
        f"Advised page size on {settings.storage}, and what it saves of the time with 4 KiB",
        ["workload", *(f"{percent} %" for percent in settings.percents)],
        [
            [
                one.name,
                *(
                    f"{_size(advice.page_bytes)}, {_share(advice.improvement)}"
                    if (advice := _advice_of(one, percent, settings.storage))
                    else "–"
                    for percent in settings.percents
                ),
            ]
            for one in found.workloads
        ],
    )


def _advice_of(workload: Workload, percent: int, storage: str) -> Advice | None:
    return workload.advise(percent, storage) if percent in workload.percents else None


def _machines_table(found: Study) -> Numbers:
    rows = [
        [
            scenario,
            vm.name,
            vm.workload,
            f"{vm.memory_percent} %",
            vm.storage,
            _size(advice.page_bytes),
            _size(advice.best_bytes),
            _size(parse_size(vm.paper_page_size, "")) if vm.paper_page_size else "–",
            _size(advice.climbed_bytes),
            _share(advice.improvement),
            _share(advice.climbed_improvement),
            _text(advice.climbing_ns, 1),
        ]
        for scenario, vm, advice in found.vms
    ]
    gains = [advice.improvement for _, _, advice in found.vms if advice.improvement is not None]
    climbed = [
        advice.climbed_improvement
        for _, _, advice in found.vms
        if advice.climbed_improvement is not None
    ]
    if gains and climbed:
        rows.append(["Average", *[""] * 8, _share(fmean(gains)), _share(fmean(climbed)), ""])
    return Numbers(
        "Table 8 and figure 9. Virtual machines",
        [
            *("scenario", "VM", "workload", "memory", "storage", "advised", "best by simulation"),
            *("in the paper", "hill climbing ends", "saved of 4 KiB", "hill climbing saves"),
            "its changes (ns an access)",
        ],
        rows,
    )


def render(found: Study) -> RenderableType:
    """The tables as text."""
    parts: list[RenderableType] = []
    for numbers in tables(found):
        table = Table(box=None, pad_edge=False, header_style="underline")
        for index, column in enumerate(numbers.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in numbers.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        parts += [Text(numbers.title, style="bold"), table, ""]
    parts.append(Text(circumstances(found.settings)))
    parts += [Text(f"note: {printable(note)}") for note in found.notes]
    return Group(*parts)


def circumstances(settings: Settings) -> str:
    """What was assumed, in one line."""
    cache = f", behind a cache of {format_size(settings.cache_bytes)}" * bool(settings.cache_bytes)
    return (
        f"TLB of {settings.tlb_entries} entries, LRU; memory with CLOCK{cache};"
        f" look-up {settings.memory.tlb_ns:g} ns, DRAM {settings.memory.access_ns:g} ns"
    )


# Figures ------------------------------------------------------------------------------------------


def need_plots() -> None:
    """See that figures can be drawn.

    :raises PtatError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise PtatError("figures need matplotlib", "pip install 'ptat[studies]'")
