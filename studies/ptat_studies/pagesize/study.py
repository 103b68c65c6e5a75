# SPDX-License-Identifier: BSD-2-Clause
"""A study of several traces: opened, simulated, fitted and advised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import ptat_parser
from ptat_host.sizes import format_size
from ptat_parser import Trace
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.formats.session import Session
from ptat_parser.formats.storage import location
from ptat_studies.pagesize import simulation
from ptat_studies.pagesize.accesses import Accesses, of_session, of_testbed, open_trace
from ptat_studies.pagesize.machines import Scenario, Vm, read_machines
from ptat_studies.pagesize.references import CACHE_WAYS, References
from ptat_studies.pagesize.workload import (
    LARGE_SIZES,
    PAGE_SIZES,
    Advice,
    Progress,
    Settings,
    Workload,
)


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
                "memory": msgspec.to_builtins(settings.memory),
                "storage": settings.storage,
                "storages": [
                    {"name": name, **msgspec.to_builtins(one)}
                    for name, one in settings.storages.items()
                ],
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
            measured = simulation.measure(
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
