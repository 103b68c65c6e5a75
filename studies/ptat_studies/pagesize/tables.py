# SPDX-License-Identifier: BSD-2-Clause
"""The tables of a study: those of the paper, and what its figures show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size, parse_size
from ptat_studies.pagesize.accesses import Kind
from ptat_studies.pagesize.fits import TLB_MODELS, Fit
from ptat_studies.pagesize.study import Study
from ptat_studies.pagesize.workload import SHOWN_ENTRIES, Settings, Workload

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
    functions = [model.name for model in TLB_MODELS]
    tlb_fits = {one.name: list(one.tlb_fits.values()) for one in found.workloads}
    percents = found.settings.percents
    fault_fits = {
        one.name: [one.fault_fit(each) if each in one.percents else None for each in percents]
        for one in found.workloads
    }
    memories = [f"{percent} %" for percent in percents]
    made = [
        _characteristics(found.workloads),
        _miss_rates(found),
        *(_fits(n, "the TLB miss rate's functions", functions, tlb_fits) for n in (2, 3)),
        _fault_rates(found),
        *(_fits(n, "the page fault rate's function", memories, fault_fits) for n in (4, 5)),
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


def _fits(
    number: int, what: str, columns: Sequence[str], fits: Mapping[str, Sequence[Fit | None]]
) -> Numbers:
    """Table 2 to 5: how well functions fit; `fits`: those of each workload, a column each."""
    quantity, field = ("RMSE", "rmse") if number % 2 else ("Adjusted R²", "adjusted_r2")
    rows: list[list[Cell]] = [
        [name, *(getattr(fit, field, None) for fit in of_workload)]
        for name, of_workload in fits.items()
    ]
    return Numbers(
        f"Table {number}. {quantity} of {what}",
        ["workload", *columns],
        _with_average(rows, 3 if number == 2 else 4),
    )


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
                *(_advised(one, percent, settings.storage) for percent in settings.percents),
            ]
            for one in found.workloads
        ],
    )


def _advised(workload: Workload, percent: int, storage: str) -> str:
    if percent not in workload.percents:
        return "–"
    advice = workload.advise(percent, storage)
    return f"{_size(advice.page_bytes)}, {_share(advice.improvement)}"


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
