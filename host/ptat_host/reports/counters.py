# SPDX-License-Identifier: BSD-2-Clause
"""``ptat stat``: hardware counters of a program, and metrics of its page walks.

The metrics of page walks are those that studies of the TLB under NVM file systems use (cycles in
page walks, walks per 1000 instructions, cycles per walk; data and instructions apart), for CPUs
from Ivy Bridge to Zen 5; the ratios below them are perf's own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports import perf_stat, pmu, uncore
from ptat_host.reports.perf_stat import Count, Stat
from ptat_host.reports.pmu import Cpu
from ptat_parser.errors import BadInput, PtatError
from ptat_parser.formats.session import Session

PMUS = Path("/sys/bus/event_source/devices")
_NO_COUNTERS = "the testbed counts page walks: ptat record -- CMD, then ptat stat --session DIR"

RUNNING_ENOUGH = 0.5
"""An event that was counted for a smaller share of the time is a rough estimate."""

GENERIC = Cpu(
    "generic",
    "any CPU",
    "",
    cycles=("cycles",),
    instructions=("instructions",),
    retired_load=("dtlb-load-misses",),
    retired_store=("dtlb-store-misses",),
    l1_misses=("l1-dcache-load-misses",),
    llc_misses=("llc-load-misses",),
    notes=("perf's generic events: what they count depends on the CPU and is not page walks",),
)
_ALIASES = {
    "cycles": (("cpu_clk_unhalted.thread_p",), ("cycles",), ("cpu-cycles",)),
    "instructions": (("inst_retired.any_p",), ("instructions",)),
}

# name, number of decimals, counted event, of which
_PERF_RATIOS = (
    ("of all cache refs", 3, "cache-misses", "cache-references"),
    ("of all branches", 2, "branch-misses", "branches"),
    ("of all L1-dcache accesses", 2, "l1-dcache-load-misses", "l1-dcache-loads"),
    ("of all LL-cache accesses", 2, "llc-load-misses", "llc-loads"),
    ("of all dTLB cache accesses", 2, "dtlb-load-misses", "dtlb-loads"),
    ("of all iTLB cache accesses", 2, "itlb-load-misses", "itlb-loads"),
)


@dataclass(frozen=True)
class Metric:
    """A derived number. `running`: the least share of time that its events were counted in."""

    name: str
    value: float
    unit: str
    decimals: int
    running: float | None

    @property
    def text(self) -> str:
        """The value as it is printed."""
        return f"{self.value:,.{self.decimals}f}"


_Sum = tuple[float, float | None] | None
"""A sum of counts, and the least share of time that one of them was counted in; None: unknown."""


class _Counts:
    """Counts of a run by role, independent of the CPU's event names."""

    def __init__(self, stat: Stat, cpus: Sequence[Cpu]) -> None:
        self._counts = {perf_stat.plain_name(count.event): count for count in stat.counts}
        self._cpus = cpus

    def of(self, names: Iterable[str]) -> _Sum:
        """The sum of events; None if one of them has no count."""
        counts = [self._counts.get(name) for name in names]
        values = [count.value for count in counts if count and count.value is not None]
        if not counts or len(values) != len(counts):
            return None
        shares = [count.running for count in counts if count and count.running is not None]
        return sum(values), min(shares, default=None)

    def role(self, *roles: str) -> _Sum:
        """The sum over roles, such as loads and stores; those that a CPU has no event for add 0."""
        for cpu in self._cpus:
            choices = [_ALIASES.get(role, ()) for role in roles]
            own = [getattr(cpu, role) for role in roles]
            if not any(own):
                continue
            parts = []
            for events, others in zip(own, choices, strict=True):
                if events:
                    found = (self.of(names) for names in (events, *others))
                    parts.append(next((part for part in found if part), None))
            whole = [part for part in parts if part]
            if len(whole) == len(parts):
                shares = [share for _, share in whole if share is not None]
                return sum(value for value, _ in whole), min(shares, default=None)
        return None


def count_of(stat: Stat, cpu: Cpu | None, *roles: str) -> int | None:
    """Sum of the counts for roles such as `walks_load`; None: not counted."""
    found = _Counts(stat, [cpu] if cpu else [*pmu.CPUS, GENERIC]).role(*roles)
    return None if found is None else round(found[0])


def metrics(stat: Stat, cpu: Cpu | None = None) -> list[Metric]:
    """All metrics of the counts; without `cpu`, by the names of the events."""
    counts = _Counts(stat, [cpu] if cpu else [*pmu.CPUS, GENERIC])
    found: list[Metric] = []

    def ratio(name: str, over: _Sum, under: _Sum, scale: float, unit: str, decimals: int) -> None:
        if over and under and under[0] > 0:
            shares = [share for _, share in (over, under) if share is not None]
            value = scale * over[0] / under[0]
            found.append(Metric(name, value, unit, decimals, min(shares, default=None)))

    cycles, instructions = counts.role("cycles"), counts.role("instructions")
    for kind, suffixes in (("data", ("load", "store")), ("instructions", ("fetch",))):
        walks, busy, duration = (
            counts.role(*(f"{role}_{suffix}" for suffix in suffixes))
            for role in ("walks", "walk_cycles", "walk_duration")
        )
        ratio(f"cycles spent in page walks ({kind})", busy, cycles, 100, "%", 2)
        ratio(f"page walks per 1000 instructions ({kind})", walks, instructions, 1000, "", 3)
        ratio(f"average cycles per page walk ({kind})", duration, walks, 1, "", 1)
    for name, roles in (
        ("retired loads and stores that missed the STLB", ("retired_load", "retired_store")),
        ("L1 misses", ("l1_misses",)),
        ("L2 misses", ("l2_misses",)),
        ("LLC misses", ("llc_misses",)),
    ):
        total = counts.role(*roles)
        if total:
            found.append(Metric(name, total[0], "", 0, total[1]))
    if memory := uncore.of(stat):
        found += _of_memory(memory)
    ratio("instructions per cycle", instructions, cycles, 1, "", 2)
    for name, decimals, event, of in _PERF_RATIOS:
        ratio(f"{event} {name}", counts.of([event]), counts.of([of]), 100, "%", decimals)
    return found


def _of_memory(memory: uncore.Memory) -> list[Metric]:
    """Metrics of the memory controllers' counts."""
    found = []
    for name, part, whole in (
        ("underfill reads of all reads", memory.underfills, memory.reads),
        ("writes with an underfill read", memory.underfills, memory.writes),
    ):
        if part is not None and whole:
            found.append(Metric(name, 100 * part / whole, "%", 2, None))
    if memory.answered is not None:
        found.append(Metric("reads answered from the write queue", memory.answered, "", 0, None))
    return found


# Running perf -------------------------------------------------------------------------------------


def run(command: Sequence[str], cpu: Cpu) -> tuple[Stat, int]:
    """Run a command under ``perf stat`` with the events of `cpu`; also its exit status.

    Raises `PtatError` where perf is missing or fails.
    """
    perf = _perf()
    if not any((PMUS / name).exists() for name in ("cpu", "cpu_core")):
        raise PtatError("this machine has no hardware counters (a virtual machine?)", _NO_COUNTERS)
    return _run([perf, "stat"], command, cpu.events())


def run_uncore(command: Sequence[str], cpu: Cpu | None) -> tuple[Stat, int]:
    """The same with the counters of the memory controllers, which count for the whole machine."""
    return _run([_perf(), "stat", "-a"], command, uncore.events(cpu, PMUS))


def _perf() -> str:
    perf = shutil.which("perf")
    if perf is None:
        raise PtatError("perf is not installed", "apt-get install linux-perf")
    return perf


def _run(perf: Sequence[str], command: Sequence[str], events: Sequence[str]) -> tuple[Stat, int]:
    if shutil.which(command[0]) is None:
        raise PtatError(f"{command[0]}: no such command", "give the program and its arguments")
    with tempfile.NamedTemporaryFile("r", prefix="ptat-stat-") as output:
        done = subprocess.run(
            [*perf, "-j", "-o", output.name, "-e", ",".join(events), "--", *command],
            check=False,
        )
        text = output.read()
    lines = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    if not lines.strip():
        raise PtatError(
            f"perf stat failed with status {done.returncode}",
            "see its message above; sysctl kernel.perf_event_paranoid=0 may be needed",
        )
    (stat,) = perf_stat.read(lines, "perf stat")
    return Stat(stat.counts, " ".join(command), stat.seconds), done.returncode


def of_session(directory: Path) -> Stat:
    """The counters of a session, as if perf had counted them.

    Raises `PtatError` if it has none.
    """
    path = Session(directory).counters_path
    try:
        content = json.loads(path.read_bytes())
        events = content["events"] | content.get("uncore", {})
        counts = tuple(Count(name, float(value)) for name, value in events.items())
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", "only the testbed's boards count walks") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: damaged: holds no events", "record again") from error
    return Stat(counts, " ".join(Session(directory).command.argv))


# Output -------------------------------------------------------------------------------------------


def as_dict(stat: Stat, cpu: Cpu | None) -> dict[str, Any]:
    """For JSON."""
    return {
        "command": stat.command,
        "seconds": stat.seconds,
        "cpu": cpu.name if cpu else None,
        "counts": [perf_stat.as_dict(count) for count in stat.counts],
        "metrics": [
            {"name": one.name, "value": one.value, "unit": one.unit, "running": one.running}
            for one in metrics(stat, cpu)
        ],
        "warnings": warnings(stat, cpu),
    }


def warnings(stat: Stat, cpu: Cpu | None) -> list[str]:
    """Caveats of the numbers."""
    found = []
    rough = [
        count.event
        for count in stat.counts
        if count.running is not None and count.running < RUNNING_ENOUGH
    ]
    if rough:
        found.append(
            f"counted less than {RUNNING_ENOUGH:.0%} of the time and scaled up:"
            f" {', '.join(rough)}; ask for fewer events at a time"
        )
    for status in (perf_stat.NOT_COUNTED, perf_stat.NOT_SUPPORTED):
        names = [count.event for count in stat.counts if count.status == status]
        if names and len(names) == len(stat.counts):
            found.append(
                f"no event was counted ({status}): a machine without such counters (a virtual"
                f" one?); {_NO_COUNTERS}"
            )
        elif names:
            found.append(f"{status}: {', '.join(names)}")
    return found + list(cpu.notes if cpu else ())


def render(stat: Stat, cpu: Cpu | None) -> RenderableType:
    """Counts, metrics and warnings."""
    title = f"counters of {stat.command or 'an unnamed run'}"
    if stat.seconds is not None:
        title += f", {stat.seconds:.3f} s"
    if cpu:
        title += f" ({cpu.title})"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    for count in stat.counts:
        table.add_row(_value(count), Text(count.event), _share(count.running))
    parts: list[RenderableType] = [Text(title, style="bold"), "", table]
    derived = metrics(stat, cpu)
    if derived:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(justify="right")
        table.add_column()
        table.add_column(justify="right")
        for one in derived:
            table.add_row(f"{one.text} {one.unit}".rstrip(), one.name, _share(one.running))
        parts += ["", table]
    parts += [Text(f"note: {text}") for text in warnings(stat, cpu)]
    return Group(*parts)


def _value(count: Count) -> str:
    if count.value is None:
        return f"<{count.status}>"
    number = f"{count.value:,.0f}" if count.value == int(count.value) else f"{count.value:,.2f}"
    return f"{number} {count.unit}".rstrip()


def _share(running: float | None) -> str:
    return "" if running is None or running >= 1 else f"({running:.0%} of the time)"
