# SPDX-License-Identifier: BSD-2-Clause
"""``ptat validate``: compares a trace with truth and counters, and repeats of it with each other.

Counters count walks, the trace holds those that read a traced table and did not end in a fault.
So, for each process and page size,

    retired − elsewhere  ≤  trace  ≈  walks − elsewhere

where *elsewhere* are walks that read no table in the region, or were another process's. A trace
has speculative walks, which no retired instruction accounts for, and so have counters of walks;
Intel's also have walks that ended in a fault. What is left over may be as large as a tolerance.

Behind a memory controller the number of misses is an interval (`controller.misses` of
summary.json), and a row is right if some number in it fits. How far the interval reaches beyond the
trace is known for all processes together: no process can be off by more than that.

A trace of traps has demand misses only, which counters of retired loads and stores count:

    data misses of the trace  ≈  retired

A miss that traps does not retire as one, so these counters are of a run that is not traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports import uncore
from ptat_host.reports.counters import count_of, of_session
from ptat_host.reports.perf_stat import Stat
from ptat_host.reports.pmu import Cpu
from ptat_host.reports.repeats import REPEATS_MIN, Spread
from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size
from ptat_parser import Results, Validation
from ptat_parser.checks.validation import Compared

EXAMPLES_SHOWN = 3
ROWS_SHOWN = 30
TOLERANCE = 0.01
COUNT_RETIRED = (
    "perf stat -e mem_inst_retired.stlb_miss_loads:u,mem_inst_retired.stlb_miss_stores:u of a run"
    " that is not traced, then ptat validate --counters FILE"
)
EDGE_WALKS = 100
"""A counter starts and stops some instructions before or after the trace. Differences up to this
number are accepted, even if they are a large share of a short run."""


@dataclass(frozen=True)
class Judged:
    """A row of the comparison with counters."""

    compared: Compared
    within: bool
    """Whether the difference has the expected sign, or is small."""
    why: str
    """Causes of the difference."""

    @property
    def error(self) -> float | None:
        """1 − trace/walks; None: there were no walks."""
        walks = self.compared.walks
        return 1 - self.compared.trace / walks if walks else None

    @property
    def retired_error(self) -> float | None:
        """1 − trace/retired; None: none were counted."""
        retired = self.compared.retired
        return 1 - self.compared.trace / retired if retired else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self.compared),
            "error": self.error,
            "retired_error": self.retired_error,
            "within": self.within,
            "why": self.why,
        }


@dataclass(frozen=True)
class Checked:
    """A session's validation with its comparison to counters judged."""

    session: Path
    found: Validation
    judged: list[Judged]
    tolerance: float
    run_s: float | None
    """Time from the first process's begin to the last one's end; None: unknown."""
    of_traps: bool = False
    held: list[uncore.Held] = field(default_factory=list)
    """Comparison with the counters of the memory controllers."""

    @property
    def ok(self) -> bool:
        """Whether all available checks hold."""
        return self.found.ok and self.outside == 0

    @property
    def outside(self) -> int:
        """Number of counts that do not fit."""
        return sum(not one.within for one in self.judged) + sum(not one.within for one in self.held)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the validation's own keys, and more."""
        return {
            **asdict(self.found),
            "session": str(self.session),
            "ok": self.ok,
            "tolerance": self.tolerance,
            "run_s": self.run_s,
            "compared": [one.as_dict() for one in self.judged],
            "memory": [asdict(one) for one in self.held],
        }


def check(
    results: Results,
    found: Validation,
    tolerance: float = TOLERANCE,
    counters: tuple[Stat, Cpu | None] | None = None,
) -> Checked:
    """Judge a validation; `counters`: of another program's, all processes together."""
    rows = [(one, 0) for one in found.compared]
    if results.session.traps:
        judged = [_judge_traps(one, tolerance) for one in _of_retired(counters, found, results)]
        return Checked(
            results.session.path, found, judged, tolerance, _run_s(results), of_traps=True
        )
    if counters:
        # Intel's events of completed walks include those whose page was not there.
        rows += [(one, found.trace_faulted) for one in _of_perf(*counters, found, results)]
    margins = _margins(found)
    judged = [_judge(one, faulted, tolerance, margins) for one, faulted in rows]
    held = _held(results, found, tolerance, counters[0] if counters else None)
    return Checked(results.session.path, found, judged, tolerance, _run_s(results), held=held)


def _held(
    results: Results, found: Validation, tolerance: float, stat: Stat | None
) -> list[uncore.Held]:
    """Compares the inferred work of the memory controller with its counters, if there are any."""
    memory = uncore.of(stat) if stat else None
    if memory is None and results.session.counters_path.exists():
        memory = uncore.of(of_session(results.session.path))
    summary = results.summary
    if memory is None or "controller" not in summary:
        if memory is not None:
            found.notes.append("the bus keeps order: its memory controller's counters say nothing")
        return []
    totals, behind = summary["totals"], summary["controller"]
    walks = sum(totals[kind] for kind in ("misses", "faulted", "pmd_reads"))
    walks -= behind["inferred"] + behind["inferred_faults"]
    return uncore.compare(memory, behind, walks, lambda counted: _slack(counted, tolerance))


def _slack(counted: int, tolerance: float) -> float:
    return max(tolerance * counted, EDGE_WALKS)


def _margins(found: Validation) -> tuple[int, int]:
    """Number of misses by which the trace may be too high and too low behind a memory
    controller."""
    if found.bound is None:
        return 0, 0
    low, high = found.bound
    return found.trace_misses - low, high - found.trace_misses


def _judge(
    one: Compared, faulted: int, tolerance: float, margins: tuple[int, int] = (0, 0)
) -> Judged:
    walks = one.walks or 0
    elsewhere = one.untraced + one.foreign
    most = walks - elsewhere
    least = max(most - faulted, (one.retired or 0) - elsewhere)
    slack = _slack(walks, tolerance)
    why = []
    if one.untraced:
        why.append(f"{one.untraced:,} walks read no traced table")
    if one.foreign:
        why.append(f"{one.foreign:,} walks of other processes")
    if one.trace > most:
        why.append(f"{one.trace - most:,} more than walks: the counter missed some")
    elif one.trace < most:
        missing = most - one.trace
        of_faults = min(missing, faulted)
        if of_faults:
            why.append(f"{of_faults:,} walks ended in a fault")
        if missing > of_faults:
            why.append(f"{missing - of_faults:,} fewer than walks: lost or unexplained")
    if one.retired is not None:
        if one.trace < one.retired - elsewhere:
            why.append(f"{one.retired - elsewhere - one.trace:,} fewer than retired: lost")
        elif one.retired < walks:
            why.append(f"{walks - one.retired:,} walks were speculative")
    within = least - slack <= one.trace <= most + slack
    if not within:
        too_many, too_few = margins
        within = one.trace + too_few >= least - slack and one.trace - too_many <= most + slack
        if within:
            difference = one.trace - most
            direction = "more" if difference > 0 else "fewer"
            why = [f"{abs(difference):,} {direction} than walks, inside the bound"]
    return Judged(one, within, "; ".join(why) or "equal")


def _judge_traps(one: Compared, tolerance: float) -> Judged:
    retired = one.retired or 0
    difference = one.trace - retired
    within = abs(difference) <= max(tolerance * retired, EDGE_WALKS)
    why = "equal"
    if difference > 0:
        why = f"{difference:,} more than retired"
    elif difference < 0:
        why = f"{-difference:,} fewer than retired: not seen while an entry was valid, or lost"
    return Judged(one, within, why)


def _of_retired(
    counters: tuple[Stat, Cpu | None] | None, found: Validation, results: Results
) -> list[Compared]:
    """Compares perf's counts of retired loads and stores with the data misses of traps."""
    if counters is None:
        found.notes.append(f"counters can be compared with: {COUNT_RETIRED}")
        return []
    stat, cpu = counters
    retired = count_of(stat, cpu, "retired_load", "retired_store")
    if retired is None:
        found.notes.append(
            f"the counters given have no loads and stores that missed: {COUNT_RETIRED}"
        )
        return []
    by_access = results.summary["traps"]["misses_by_access"]
    modes = ("",) if _user_only(stat) else ("", "kernel ")
    trace = sum(by_access.get(mode + kind, 0) for mode in modes for kind in ("read", "write"))
    found.notes.append("instruction misses are omitted: no counter counts the retired ones")
    if len(modes) > 1:
        found.notes.append(
            "the counters have misses of the kernel at its own addresses, the trace does not:"
            " count with :u"
        )
    return [Compared(["all processes"], None, trace, None, retired)]


def _user_only(stat: Stat) -> bool:
    """Whether all events were counted in user mode only."""
    return all(count.event.endswith((":u", "/u")) for count in stat.counts if "miss" in count.event)


def _of_perf(stat: Stat, cpu: Cpu | None, found: Validation, results: Results) -> list[Compared]:
    """perf's counts over all processes, and by page size if available."""
    walks = count_of(stat, cpu, "walks_load", "walks_store", "walks_fetch")
    retired = count_of(stat, cpu, "retired_load", "retired_store")
    if walks is None:
        if uncore.of(stat) is None:
            found.notes.append("the counters given have no page walks")
        return []
    names = ["all processes"]
    rows = [Compared(names, None, found.trace_misses, walks, retired)]
    sizes = [process["misses_by_page_size"] for process in results.summary["processes"]]
    for suffix, size in (("_4k", 1 << 12), ("_2m_4m", 1 << 21)):
        events = [
            f"{event}.walk_completed{suffix}"
            for event in ("dtlb_load_misses", "dtlb_store_misses", "itlb_misses")
        ]
        values = [stat.value(event) for event in events]
        if None not in values:
            trace = sum(by_size.get(str(size), 0) for by_size in sizes)
            rows.append(Compared(names, size, trace, round(sum(v or 0 for v in values))))
    return rows


def _run_s(results: Results) -> float | None:
    whole = [
        (process["attached_ns"], process["exited_ns"])
        for process in results.summary["processes"]
        if process["attached_ns"] is not None and process["exited_ns"] is not None
    ]
    if not whole:
        return None
    return float(max(end for _, end in whole) - min(begin for begin, _ in whole)) / 1e9


# Repeats ------------------------------------------------------------------------------------------


def repeats(checked: Sequence[Checked], results: Sequence[Results]) -> list[Spread]:
    """Times and counts that all runs have."""
    quantities: dict[str, list[float]] = {}
    for one, of in zip(checked, results, strict=True):
        values = {"misses": of.summary["totals"]["misses"], **_named(of.summary["processes"])}
        if one.found.counter_walks is not None:
            values["walks counted"] = one.found.counter_walks
        if one.run_s is not None:
            values["run time, s"] = one.run_s
        for name, value in values.items():
            quantities.setdefault(name, []).append(value)
    return [
        Spread(name, tuple(values))
        for name, values in quantities.items()
        if len(values) == len(checked)
    ]


def _named(processes: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Misses by process name, and by page size."""
    found: dict[str, int] = {}
    for process in processes:
        if process["misses"]:
            name = f"misses of {printable(process['comm'])}"
            found[name] = found.get(name, 0) + process["misses"]
        for size, misses in process["misses_by_page_size"].items():
            name = f"misses in {format_size(int(size))}"
            found[name] = found.get(name, 0) + misses
    return found


def render_repeats(checked: Sequence[Checked], spreads: Sequence[Spread]) -> RenderableType:
    """A line for each run, then the statistics of all."""
    runs = _table("run", "misses", "walks", "error", "time", "verdict")
    for one in checked:
        error = one.found.relative_error
        runs.add_row(
            Text(printable(str(one.session))),
            f"{one.found.trace_misses:,}",
            "–" if one.found.counter_walks is None else f"{one.found.counter_walks:,}",
            "–" if error is None else f"{error:.2%}",
            "–" if one.run_s is None else f"{one.run_s:.3f} s",
            _verdict(one),
        )
    table = _table("over all runs", "median", "least", "most", "spread")
    warnings: list[RenderableType] = []
    for spread in spreads:
        share = spread.spread
        table.add_row(
            Text(spread.name),
            _number(spread.median),
            _number(min(spread.values)),
            _number(max(spread.values)),
            "–" if share is None else f"{share:.1%}",
        )
        if found := spread.clusters:
            (few, many), (low, high) = found.counts, found.means
            warnings.append(
                Text(
                    f"! {spread.name}: two kinds of runs, {few} around {_number(low)} and {many}"
                    f" around {_number(high)} (p {found.p:.4f}): no average describes them",
                    style="bold red",
                )
            )
    if len(checked) < REPEATS_MIN:
        warnings.append(
            Text(f"note: {len(checked)} runs; two kinds of runs show from {REPEATS_MIN} on")
        )
    return Group(runs, "", table, *(["", *warnings] if warnings else []))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


# One session --------------------------------------------------------------------------------------


def render(checked: Checked) -> RenderableType:
    """The verdict, its counts, and the problems found."""
    found = checked.found
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, count, about in _rows(found):
        if count is not None and not (checked.of_traps and name == "unexplained"):
            table.add_row(name, f"{count:,}", about)
    if found.relative_error is not None:
        table.add_row("relative error", f"{found.relative_error:.2e}", "1 − trace/counter")
    parts: list[RenderableType] = [_verdict(checked), "", table]
    if checked.judged:
        parts += ["", _comparison(checked)]
    if checked.held:
        parts += ["", _memory_table(checked)]
    parts += [Text(f"note: {note}") for note in found.notes]
    # Inside a bound, walks that are missing and misses that are inferred are as they must be.
    examples = found.examples if found.bound is None or not found.ok else []
    parts += [Text(f"wrong: {_example(e)}") for e in examples[:EXAMPLES_SHOWN]]
    return Group(*parts)


def _verdict(checked: Checked) -> Text:
    found = checked.found
    if not found.ok:
        if found.bound is not None:
            return Text(_outside(found), style="bold red")
        return Text("NOT exact" if found.exact is False else "NOT right", style="bold red")
    if not checked.ok:
        of = len(checked.judged) + len(checked.held)
        return Text(
            f"NOT right: {checked.outside} of {of} counts differ by more than"
            f" {checked.tolerance:.1%}",
            style="bold red",
        )
    if found.bound is not None and found.truth_misses is not None:
        low, high = found.bound
        return Text(
            f"right: {found.truth_misses:,} misses, inside the bound of {low:,} to {high:,}",
            style="bold green",
        )
    if not found.exact:
        return Text("right, as far as it can be checked without a truth", style="bold yellow")
    page = "page" if found.granularity_bytes == 8 else "page (one of those a bus address shows)"
    return Text(f"exact: each miss has the true process, {page} and page size", style="bold green")


def _outside(found: Validation) -> str:
    """Problems of a trace from behind a memory controller."""
    low, high = found.bound or (0, 0)
    if found.truth_misses is not None and not low <= found.truth_misses <= high:
        return f"NOT right: {found.truth_misses:,} misses, outside the bound of {low:,} to {high:,}"
    if wrong := found.wrong_page + (found.inferred_wrong or 0):
        return f"NOT right: {wrong:,} misses of another process or page"
    return "NOT right"


def _comparison(checked: Checked) -> RenderableType:
    """Trace and counters: rows outside of the tolerance first, then by number of walks."""
    table = _table("against the counters", "pages", "trace", "walks", "error", "retired", "error")
    table.add_column(f"within {checked.tolerance:.1%}")
    table.add_column("why")
    rows = sorted(
        enumerate(checked.judged),
        key=lambda row: (
            row[1].within,
            -max(row[1].compared.walks or 0, row[1].compared.trace),
            row[0],
        ),
    )
    for _, row in rows[:ROWS_SHOWN]:
        one = row.compared
        more = f" and {len(one.processes) - 1} more" if len(one.processes) > 1 else ""
        table.add_row(
            Text(f"{printable(one.processes[0])}{more}"),
            "all" if one.page_size_bytes is None else format_size(one.page_size_bytes),
            f"{one.trace:,}",
            "–" if one.walks is None else f"{one.walks:,}",
            _error(row.error),
            "–" if one.retired is None else f"{one.retired:,}",
            _error(row.retired_error),
            "yes" if row.within else "NO",
            row.why,
        )
    if len(rows) > ROWS_SHOWN:
        rest = [row for _, row in rows[ROWS_SHOWN:]]
        far = sum(not row.within for row in rest)
        table.add_row(f"… and {len(rest):,} more, {far or 'none'} outside")
    return table


def _memory_table(checked: Checked) -> Table:
    """Counts of the memory controllers, which must be at least those inferred from the trace."""
    table = _table(
        "against the memory controllers' counters", "trace", "counted", "at most as many"
    )
    for one in checked.held:
        counts = f"{one.trace:,}", f"{one.counted:,}"
        table.add_row(one.name, *counts, "yes" if one.within else "NO")
    return table


def _error(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


def _table(*columns: str) -> Table:
    """A table whose first column is a name and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _rows(found: Validation) -> list[tuple[str, int | None, str]]:
    """Name, count (None: it does not apply) and meaning."""
    outside = found.outside_region - found.not_demanded
    swapped = ("of them swapped", 2 * found.swapped, "of two CPUs that walked one page at once")
    compared = [
        ("misses in the truth", found.truth_misses, "of traced processes, not faulted"),
        ("agree", found.matched, ""),
        ("missing", found.missing, "in the truth only"),
        ("extra", found.extra, "in the trace only"),
        ("wrong page", found.wrong_page, "in both, but of another process, page or page size"),
        (
            "wrong label",
            found.fault_label_errors,
            "faulted walks labelled as misses, or the reverse",
        ),
        *([swapped] if found.swapped else []),
        ("outside region", outside, "misses whose page table did not fit into the region"),
        ("out of scope", found.not_demanded, "on tables allocated before, or of an untraced level"),
    ]
    if found.bound is not None:
        # Of an answered walk the truth has the time, and the trace a guess.
        compared = [
            ("misses in the truth", found.truth_misses, "of traced processes, not faulted"),
            ("agree", found.matched, "of those that the bus shows"),
            ("wrong page", found.wrong_page, "in both, but of another process, page or page size"),
            ("wrong inferred", found.inferred_wrong, "of entries that the process did not miss in"),
            compared[-2],
            compared[-1],
        ]
    low, high = found.bound or (None, None)
    return [
        ("misses in the trace", found.trace_misses, ""),
        ("of them inferred", found.inferred, "answered from the controller's queue, not seen"),
        ("at least", low, "true misses, by what the bus and the kernel's log show"),
        ("at most", high, ""),
        *(compared if found.exact is not None else []),
        ("lost", found.lost, "on the way from the bus or from the kernel"),
        ("unexplained", found.unexplained, "reads that no walk explains"),
        ("walks explained", found.explained, "whole walks: level, live table, process"),
        ("reads by the kernel", found.kernel_reads, "of the region, which it should never read"),
        ("walks counted", found.counter_walks, "by the counters, of the same processes"),
    ]


def _example(example: dict[str, Any]) -> str:
    """`{"kind": …, "trace": {…}, "truth": {…}}` as one line."""
    return ", ".join(
        f"{key} {_example(value)}" if isinstance(value, dict) else f"{key} {_value(key, value)}"
        for key, value in example.items()
    )


def _value(key: str, value: object) -> str:
    return hex(value) if key in ("va", "vaddr") and isinstance(value, int) else str(value)
