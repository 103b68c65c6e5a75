# SPDX-License-Identifier: BSD-2-Clause
"""Counters of the memory controllers, to check what a trace from behind them infers.

Intel's server CPUs have them (uncore PMUs ``uncore_imc_N``). Names are perf's, which adds up all
controllers; the table follows uncore-memory.json of the kernel's tools/perf/pmu-events/arch/x86
(Linux 6.12), as `pmu` does. They count the whole machine's accesses, so a trace has at most as
many.

*Ran on silicon: no.*
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptat_host.reports import perf_stat
from ptat_host.reports.perf_stat import Count, Stat
from ptat_host.reports.pmu import Cpu, Events
from ptat_parser.errors import PtatError

LINE_BYTES = 64
_UNIT_BYTES = {"": LINE_BYTES, "MiB": 1 << 20}
"""Bytes of one count, by perf's unit: sysfs' own events are scaled to MiB."""

_CAS: Mapping[str, Events] = {
    "reads": ("unc_m_cas_count.rd",),
    "writes": ("unc_m_cas_count.wr",),
    "underfills": ("unc_m_cas_count.rd_underfill",),
    "answered": ("unc_m_wpq_read_hit",),
}
_HALVES = ("unc_m_wpq_read_hit.pch0", "unc_m_wpq_read_hit.pch1")
EVENTS: Mapping[str, Mapping[str, Events]] = {
    **dict.fromkeys(
        ("ivytown", "haswellx", "broadwellx", "skylakex", "cascadelakex", "sapphirerapids"), _CAS
    ),
    "icelakex": {**_CAS, "answered": _HALVES},
}
"""Events for reads, writes, underfills, and reads answered from the write pending queue, by the
name of the CPU."""
_SYSFS = {"reads": ("cas_count_read",), "writes": ("cas_count_write",)}
"""Events that the kernel itself names in ``events/`` of a PMU."""
ABOUT = {
    "reads": "RD commands",
    "writes": "WR commands",
    "underfills": "RD commands that are underfill reads",
    "answered": "reads answered from the write queue",
}


@dataclass(frozen=True)
class Memory:
    """Counts of the memory controllers, all channels together; None: not counted."""

    reads: int | None = None
    writes: int | None = None
    underfills: int | None = None
    answered: int | None = None


@dataclass(frozen=True)
class Held:
    """A count of a trace from behind a memory controller beside the controller's own."""

    name: str
    trace: int
    counted: int
    within: bool
    """Whether the trace has at most as many."""


def units(devices: Path) -> list[Path]:
    """The PMUs of memory controllers below ``/sys/bus/event_source/devices``.

    :raises PtatError: there are none.
    """
    found = [
        path for path in devices.glob("uncore_imc*") if re.fullmatch(r"\w+_imc(_\d+)?", path.name)
    ]
    if not found:
        raise PtatError(
            f"this machine has no counters of its memory controllers: no {devices}/uncore_imc*",
            "Intel's server CPUs have them; virtual machines do not show them, and the module"
            " intel_uncore may have to be loaded",
        )
    return sorted(found)


def events(cpu: Cpu | None, devices: Path) -> list[str]:
    """The events to count, as perf names them.

    :raises PtatError: this machine has none.
    """
    pmus = units(devices)
    if cpu and cpu.name in EVENTS:
        return [name for names in EVENTS[cpu.name].values() for name in names]
    found = [
        f"{pmu.name}/{name}/"
        for pmu in pmus
        for names in _SYSFS.values()
        for name in names
        if (pmu / "events" / name).exists()
    ]
    if not found:
        listed = sorted({path.name for pmu in pmus for path in pmu.glob("events/*")})
        raise PtatError(
            f"the memory controllers' counters of this CPU are not known to ptat: {pmus[0]} lists"
            f" {', '.join(listed) or 'no events'}",
            "count with perf stat -a what perf list shows of unc_m_cas_count and"
            " unc_m_wpq_read_hit, and give its output to ptat validate --counters",
        )
    return found


def of(stat: Stat) -> Memory | None:
    """Counts of the memory controllers on any CPU model; None: perf counted none."""
    found = {role: _sum(stat.counts, role) for role in ABOUT}
    return Memory(**found) if any(value is not None for value in found.values()) else None


def _sum(counts: Sequence[Count], role: str) -> int | None:
    names = {name for table in EVENTS.values() for name in table[role]} | {*_SYSFS.get(role, ())}
    mine = [count for count in counts if _name(count.event) in names]
    lines = [
        count.value * _UNIT_BYTES[count.unit] / LINE_BYTES
        for count in mine
        if count.value is not None and count.unit in _UNIT_BYTES
    ]
    return round(sum(lines)) if mine and len(lines) == len(mine) else None


def _name(event: str) -> str:
    """The event without the PMU that `perf stat --no-merge` appends."""
    return perf_stat.plain_name(re.sub(r" \[\w+\]$", "", event))


def compare(
    memory: Memory,
    controller: Mapping[str, Any],
    walks: int,
    slack: Callable[[int], float],
) -> list[Held]:
    """Compare the work of the memory controller that a trace infers with the controller's counters.

    :param controller: `controller` of summary.json.
    :param walks: reads of the bus that were walks.
    :param slack: excess of the trace over a count to accept, because counters start and stop at
        other moments.
    """
    inferred = controller["inferred"] + controller["inferred_faults"]
    of_trace = {
        "reads": walks + controller["underfills"] + controller["scrubs"],
        "writes": controller["writes"],
        "underfills": controller["underfills"],
        "answered": inferred,
    }
    return [
        Held(ABOUT[role], mine, counted, mine <= counted + slack(counted))
        for role, mine in of_trace.items()
        if (counted := getattr(memory, role)) is not None
    ]
