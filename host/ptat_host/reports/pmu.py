# SPDX-License-Identifier: BSD-2-Clause
"""Hardware events for TLB misses and page walks, by CPU.

Names are perf's. The tables follow the kernel's tools/perf/pmu-events/arch/x86 (Linux 6.12), where
`cpu` is a folder; notes come from there (Errata) and from Intel's and AMD's specification updates.

What such events count differs from what the bus shows: a *walk* may be speculative, and then no
instruction ever retires with it; a walk that ends in a fault is no miss of a page that is mapped.
Expect retired <= traced <= walks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

Events = tuple[str, ...]
"""The events' counts are added."""


@dataclass(frozen=True)
class Cpu:
    """The events of a family of CPUs; an empty tuple: the CPU has no such event.

    `name` is the folder of the kernel's tables, `ids` a pattern of vendor-family-model (hex) as
    in its mapfile.csv. `walks_*` are walks that completed, `walk_cycles_*` cycles with at least one
    walk in progress, `walk_duration_*` the sum of all walks' cycles (two walks may overlap).
    """

    name: str
    title: str
    ids: str
    cycles: Events
    instructions: Events
    walks_load: Events = ()
    walks_store: Events = ()
    walks_fetch: Events = ()
    walk_cycles_load: Events = ()
    walk_cycles_store: Events = ()
    walk_cycles_fetch: Events = ()
    walk_duration_load: Events = ()
    walk_duration_store: Events = ()
    walk_duration_fetch: Events = ()
    retired_load: Events = ()
    retired_store: Events = ()
    l1_misses: Events = ()
    l2_misses: Events = ()
    llc_misses: Events = ()
    notes: tuple[str, ...] = field(default=())

    def roles(self) -> dict[str, Events]:
        """What can be counted, with its events."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in ("name", "title", "ids", "notes") and getattr(self, one.name)
        }

    def events(self) -> list[str]:
        """All events, each once, in the order of the fields."""
        return list(dict.fromkeys(event for events in self.roles().values() for event in events))


def _intel(
    name: str,
    title: str,
    ids: str,
    *,
    walk_time: tuple[str, str],
    retired: str,
    loads: str,
    last_level: str,
    notes: tuple[str, ...] = (),
) -> Cpu:
    """`walk_time`: events of cycles with a walk and of its duration; `loads`: of retired loads."""
    cycles, duration = walk_time
    load, store, fetch = "dtlb_load_misses", "dtlb_store_misses", "itlb_misses"
    return Cpu(
        name,
        title,
        f"GenuineIntel-6-({ids})",
        cycles=("cpu_clk_unhalted.thread",),
        instructions=("inst_retired.any",),
        walks_load=(f"{load}.walk_completed",),
        walks_store=(f"{store}.walk_completed",),
        walks_fetch=(f"{fetch}.walk_completed",),
        walk_cycles_load=(f"{load}.{cycles}",),
        walk_cycles_store=(f"{store}.{cycles}",),
        walk_cycles_fetch=(f"{fetch}.{cycles}",),
        walk_duration_load=(f"{load}.{duration}",),
        walk_duration_store=(f"{store}.{duration}",),
        walk_duration_fetch=(f"{fetch}.{duration}",),
        retired_load=(f"{retired}.stlb_miss_loads",),
        retired_store=(f"{retired}.stlb_miss_stores",),
        l1_misses=("l1d.replacement",),
        l2_misses=(f"{loads}.l2_miss",),
        llc_misses=(f"{loads}.{last_level}_miss",),
        notes=notes,
    )


def _before_skylake(
    name: str, title: str, ids: str, last_level: str, notes: tuple[str, ...] = ()
) -> Cpu:
    return _intel(
        name,
        title,
        ids,
        walk_time=("walk_duration", "walk_duration"),  # one walker: its cycles are the time
        retired="mem_uops_retired",
        loads="mem_load_uops_retired",
        last_level=last_level,
        notes=notes,
    )


def _since_skylake(name: str, title: str, ids: str) -> Cpu:
    return _intel(
        name,
        title,
        ids,
        walk_time=("walk_active", "walk_pending"),
        retired="mem_inst_retired",
        loads="mem_load_retired",
        last_level="l3",
        notes=("two walkers: cycles per walk count each walker's",),
    )


def _amd(
    name: str, title: str, ids: str, *, data: Events, fetch: Events, notes: tuple[str, ...] = ()
) -> Cpu:
    return Cpu(
        name,
        title,
        ids,
        cycles=("ls_not_halted_cyc",),
        instructions=("ex_ret_instr",),
        walks_load=data,
        walks_fetch=fetch,
        l2_misses=("l2_cache_req_stat.ic_dc_miss_in_l2",),
        notes=("loads and stores are counted together; no event tells a walk's cycles", *notes),
    )


_ZEN_DATA = tuple(
    f"ls_l1_d_tlb_miss.tlb_reload_{size}" for size in ("4k_l2_miss", "2m_l2_miss", "1g_l2_miss")
)
_ZEN_COALESCED = "ls_l1_d_tlb_miss.tlb_reload_coalesced_page_miss"

_HASWELL_ERRATA = (
    "HSD25, HSD29: retired STLB misses may be counted wrongly with hyper-threading on",
)
_BROADWELL_ERRATA = ("BDM69: counts of page walks may be too high",)

CPUS = (
    _before_skylake("ivybridge", "Intel Ivy Bridge", "3A", "llc"),
    _before_skylake("ivytown", "Intel Ivy Bridge-EP", "3E", "llc"),
    _before_skylake("haswell", "Intel Haswell", "3C|45|46", "l3", _HASWELL_ERRATA),
    _before_skylake("haswellx", "Intel Haswell-EP", "3F", "l3", _HASWELL_ERRATA),
    _before_skylake("broadwell", "Intel Broadwell", "3D|47", "l3", _BROADWELL_ERRATA),
    _before_skylake("broadwellx", "Intel Broadwell-EP", "4F", "l3", _BROADWELL_ERRATA),
    _since_skylake("skylake", "Intel Skylake to Comet Lake", "4E|5E|8E|9E|A5|A6"),
    _since_skylake("skylakex", "Intel Skylake-SP", "55-[01234]"),
    _since_skylake("cascadelakex", "Intel Cascade Lake", "55-[56789ABCDEF]"),
    _since_skylake("icelake", "Intel Ice Lake", "7D|7E"),
    _since_skylake("icelakex", "Intel Ice Lake-SP", "6A|6C"),
    _since_skylake("sapphirerapids", "Intel Sapphire Rapids", "8F"),
    _amd(
        "amdzen2",
        "AMD Zen 2",
        "AuthenticAMD-23-[3-9A-F][0-9A-F]",
        data=(*_ZEN_DATA, _ZEN_COALESCED),
        fetch=("bp_l1_tlb_miss_l2_tlb_miss",),
    ),
    _amd(
        "amdzen3",
        "AMD Zen 3",
        "AuthenticAMD-25-([245][0-9A-F]|[0-9A-F])",
        data=(*_ZEN_DATA, _ZEN_COALESCED),
        fetch=("bp_l1_tlb_miss_l2_tlb_miss",),
    ),
    _amd(
        "amdzen4",
        "AMD Zen 4",
        "AuthenticAMD-25-[0-9A-F]+",
        data=("ls_l1_d_tlb_miss.all_l2_miss",),
        fetch=("bp_l1_tlb_miss_l2_tlb_miss.all",),
    ),
    _amd(
        "amdzen5",
        "AMD Zen 5",
        "AuthenticAMD-26-[0-9A-F]+",
        data=("ls_l1_d_tlb_miss.all_l2_miss",),
        fetch=("bp_l1_tlb_miss_l2_tlb_miss.all",),
    ),
)
"""The first entry whose `ids` match describes the CPU."""


def cpu_id(cpuinfo: str) -> str:
    """Vendor-family-model-stepping as perf writes it, from the text of /proc/cpuinfo."""
    found = dict(re.findall(r"(?m)^(vendor_id|cpu family|model|stepping)\s*:\s*(\S+)$", cpuinfo))
    try:
        model, stepping = int(found["model"]), int(found["stepping"])
        return f"{found['vendor_id']}-{int(found['cpu family'])}-{model:X}-{stepping:X}"
    except (KeyError, ValueError):
        return "unknown"


def find(identity: str) -> Cpu | None:
    """The CPU of a name as `cpu_id` gives it, or of a `Cpu.name`."""
    for cpu in CPUS:
        if identity == cpu.name or re.fullmatch(f"{cpu.ids}(-[0-9A-F]+)?", identity):
            return cpu
    return None


def this_machine(path: Path = Path("/proc/cpuinfo")) -> str:
    """`cpu_id` of the machine that runs this."""
    try:
        return cpu_id(path.read_text(errors="replace"))
    except OSError:
        return "unknown"
