# SPDX-License-Identifier: BSD-2-Clause
"""``ptat report``: a session's report as one JSON object, and as text from that object."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.recording import maps
from ptat_host.reports import trap_counts
from ptat_host.reports.objects import Objects
from ptat_host.sizes import format_size
from ptat_parser import Results, Trace

HOT_PERCENT = (5, 20, 25)
"""Percentages of a process's pages for which the report states their share of its misses."""

UNEXPLAINED = {
    "reads": "reads that no walk explains",
    "stores": "stores outside page tables",
    "events": "kernel events that contradict others",
}

TABLE_BYTES = 4096

PROCESSES_SHOWN = 20

NOT_TRAPPED = (
    "speculative and prefetched walks; another CPU's walk while an entry is valid for one access"
)
"""Walks that trap mode does not see."""


def summarise(results: Results, top: int, objects: bool = True) -> dict[str, Any]:
    """The report as a JSON object, with at most `top` hottest pages and, if wanted, `objects`.

    Addresses and sizes are in bytes, times in ns, shares between 0 and 1.
    """
    session, summary = results.session, results.summary
    pages = results.pages()
    pages = pages.filter(pc.greater(pages["misses"], 0))
    return {
        "session": str(session.path),
        "command": session.command.argv,
        "exit_status": session.command.exit_status,
        "children": session.command.children,
        "complete": summary["complete"],
        "incomplete_reason": summary["incomplete_reason"],
        "created_utc": session.created_utc,
        "board": session.board.name,
        "granularity_bytes": session.board.granularity_bytes,
        "levels": session.region.levels,
        "region_bytes": session.region.size_bytes,
        "kernel": session.kernel.release,
        "cpu": session.cpu,
        "totals": summary["totals"],
        "misses_by_span": summary["misses_by_span"],
        "processes": _processes(summary, pages),
        "hottest_pages": _hottest(pages, top),
        **(_objects(results, top) if objects else {"objects": None, "maps_lost": 0}),
        "lost": summary["lost"],
        "losses": summary["losses"],
        "untraced": _untraced(summary),
        "faults": summary["faults"],
        "unexplained": summary["unexplained"],
        "clock": summary["clock"],
        "warnings": summary["warnings"],
        "console_warnings": session.kernel.warnings,
        **({"controller": summary["controller"]} if "controller" in summary else {}),
        **({"traps": trap_counts.summarise(Trace(results), top)} if session.traps else {}),
    }


def hot_share(misses: npt.NDArray[np.int64], percent: int) -> float | None:
    """Share of all misses that the hottest `percent` % of the pages have, rounded up to a page.

    `misses` counts them for each page that has any, shape ``(pages,)``; None: there is none.
    """
    if not misses.size:
        return None
    hottest = np.sort(misses)[::-1][: math.ceil(misses.size * percent / 100)]
    return float(hottest.sum() / misses.sum())


def _processes(summary: dict[str, Any], pages: pa.Table) -> list[dict[str, Any]]:
    """Address spaces, those with most misses first."""
    total = summary["totals"]["misses"]
    by_mm = np.argsort(pages["mm"].to_numpy())
    mm, misses = pages["mm"].to_numpy()[by_mm], pages["misses"].to_numpy()[by_mm]
    processes = []
    for process in sorted(summary["processes"], key=lambda process: -process["misses"]):
        first, end = np.searchsorted(mm, [process["mm"], process["mm"] + 1])
        of_process = misses[first:end]
        shares = {str(percent): hot_share(of_process, percent) for percent in HOT_PERCENT}
        processes.append(
            {
                **process,
                "share": process["misses"] / total if total else 0.0,
                "hottest_percent_shares": shares,
            }
        )
    return processes


def _hottest(pages: pa.Table, top: int) -> list[dict[str, Any]]:
    columns = [
        "page",
        "comm",
        "tgid",
        "mm",
        "vaddr",
        "page_size_bytes",
        "span",
        "misses",
        "faulted",
    ]
    order = [("misses", "descending"), ("page", "ascending")]
    hottest: list[dict[str, Any]] = (
        pages.take(pc.select_k_unstable(pages, k=top, sort_keys=order)).select(columns).to_pylist()
    )
    return hottest


def _objects(results: Results, top: int) -> dict[str, Any]:
    """The hottest objects; None if mappings or single misses were not kept."""
    if not maps.path_of(results.session.path).exists() or not (results.path / "misses").is_dir():
        return {"objects": None, "maps_lost": 0}
    found = Objects(Trace(results))
    return {"objects": [one.as_dict() for one in found.count()[:top]], "maps_lost": found.lost}


def _untraced(summary: dict[str, Any]) -> dict[str, Any]:
    """Share of the used address space whose page tables lay outside of the region."""
    processes = summary["processes"]
    untraced_bytes = sum(process["untraced_bytes"] for process in processes)
    traced_bytes = sum(process["traced_bytes"] for process in processes)
    return {
        "tables": sum(process["untraced_tables"] for process in processes),
        "bytes": untraced_bytes,
        "share": untraced_bytes / (untraced_bytes + traced_bytes) if untraced_bytes else 0.0,
    }


def is_whole(report: dict[str, Any]) -> bool:
    """Whether nothing is lost, untraced or unexplained, and the recording is complete."""
    unexplained = report["unexplained"]
    return bool(
        report["complete"]
        and not report["lost"]
        and not report["untraced"]["tables"]
        and not any(unexplained[kind] for kind in UNEXPLAINED)
    )


# As text ------------------------------------------------------------------------------------------


def render(report: dict[str, Any]) -> RenderableType:
    """The report as readable text."""
    parts: list[RenderableType] = [_title(report), "", _totals(report), "", *_problems(report)]
    if seen(report):
        parts += [_process_table(report), "", _hot_table(report), ""]
    if "traps" in report:
        parts += _trap_tables(report["traps"])
    if report["hottest_pages"]:
        parts += [_page_table(report), ""]
    if report["objects"]:
        parts += [_object_table(report), ""]
    parts.append(_circumstances(report))
    return Group(*parts)


def _title(report: dict[str, Any]) -> Text:
    return Text.assemble((printable(shlex.join(report["command"])), "bold"), f"  {ended(report)}")


def ended(report: dict[str, Any]) -> str:
    """How the command ended."""
    status = report["exit_status"]
    return "did not end" if status is None else f"ended with {status}"


def _totals(report: dict[str, Any]) -> Table:
    totals = report["totals"]
    table = _table("", "")
    table.add_column()
    table.show_header = False
    table.add_row("TLB misses", _count(totals["misses"]), _places(report))
    if "controller" in report:
        table.add_row("true misses", "", hidden(report))
    if report["granularity_bytes"] > 8:
        exact, two, four, eight = (report["misses_by_span"][n] for n in ("1", "2", "4", "8"))
        others = f"one of 2: {_count(two)}, of up to 4: {_count(four)}, of up to 8: {_count(eight)}"
        table.add_row("of a known page", _count(exact), others)
    in_doubt = report["faults"]["in_doubt"]
    doubt = f"; for {_count(in_doubt)}, the match with a walk is in doubt" if in_doubt else ""
    faulted = f"ended in a page fault; not counted{doubt}"
    table.add_row("faulted walks", _count(totals["faulted"]), faulted)
    if "traps" not in report:
        table.add_row("PMD reads", _count(totals["pmd_reads"]), "on the way to a PTE; not counted")
    if totals["readbacks"]:
        table.add_row("read-backs", _count(totals["readbacks"]), "by the kernel, on purpose")
    lost = report["lost"]
    kinds = ", ".join(f"{kind} {_count(n)}" for kind, n in report["losses"].items() if n)
    table.add_row("lost", Text(_count(lost), style="bold red" if lost else ""), kinds or "nothing")
    return table


def bound(report: dict[str, Any]) -> str:
    """Bounds of the true number of misses behind a memory controller."""
    misses = report["controller"]["misses"]
    if misses is None:
        return "unknown, as accesses or events were lost"
    return f"between {_count(misses['low'])} and {_count(misses['high'])}"


def hidden(report: dict[str, Any]) -> str:
    """The bounds and their reasons: reads that a memory controller hid, and reads that it added."""
    kinds = ("inferred", "possible", "in_doubt", "possible_scrubs", "underfills", "scrubs")
    inferred, possible, in_doubt, possible_scrubs, underfills, scrubs = (
        _count(report["controller"][kind]) for kind in kinds
    )
    return (
        f"{bound(report)}: behind a memory controller, {inferred} are inferred, {possible} more may"
        f" be unseen, {in_doubt} are in doubt, {possible_scrubs} may be scrub reads; left out:"
        f" {underfills} underfill and {scrubs} scrub reads"
    )


def _places(report: dict[str, Any]) -> str:
    """Number of pages with misses; a bus with coarser addresses groups pages."""
    pages = f"in {_count(report['totals']['pages'])} pages"
    line = report["granularity_bytes"] // 8
    return pages if line == 1 else f"{pages}, or groups of up to {line} on this bus"


def _problems(report: dict[str, Any]) -> list[RenderableType]:
    lines = [Text(f"! {problem}", style="bold red") for problem in problems(report)]
    return [*lines, ""] if lines else []


def problems(report: dict[str, Any]) -> list[str]:
    """Caveats of the numbers."""
    found = list(report["warnings"])
    untraced = report["untraced"]
    if untraced["tables"]:
        found.append(
            f"the region was full: {format_size(untraced['bytes'])} of address space"
            f" ({_percent(untraced['share'])} of what was in use, {_count(untraced['tables'])} page"
            f" tables) were not traced; record with"
            f" --region {_enough(report['region_bytes'], untraced['tables'])}"
        )
    if report["maps_lost"]:
        found.append(
            f"{_count(report['maps_lost'])} changes of mappings were lost: misses around them may"
            " be attributed to the wrong object"
        )
    unexplained = report["unexplained"]
    found += [
        f"{meaning}: {_count(unexplained[kind])}"
        for kind, meaning in UNEXPLAINED.items()
        if unexplained[kind]
    ]
    found += [f"guest console: {line}" for line in report["console_warnings"]]
    return found


def seen(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes with walks, without the address space from before the command's exec."""
    return [process for process in report["processes"] if process["misses"] or process["faulted"]]


def _process_table(report: dict[str, Any]) -> Table:
    processes = seen(report)
    sizes = sorted({int(size) for p in processes for size in p["misses_by_page_size"]})
    table = _table("process", "tgid", "misses", "share", "pages")
    for size in sizes:
        table.add_column(f"in {format_size(size)}", justify="right")
    table.add_column("faulted", justify="right")
    for process in processes[:PROCESSES_SHOWN]:
        by_size = process["misses_by_page_size"]
        table.add_row(
            _name(process["comm"]),
            str(process["tgid"]),
            _count(process["misses"]),
            _percent(process["share"]),
            _count(process["pages"]),
            *(_count(by_size.get(str(size), 0)) for size in sizes),
            _count(process["faulted"]),
        )
    if len(processes) > PROCESSES_SHOWN:
        table.add_row(f"… and {len(processes) - PROCESSES_SHOWN} more")
    return table


def _hot_table(report: dict[str, Any]) -> Table:
    """Distribution of each process's misses over its pages."""
    table = _table(
        "misses in the hottest", "tgid", *(f"{percent} % of pages" for percent in HOT_PERCENT)
    )
    for process in seen(report)[:PROCESSES_SHOWN]:
        shares = process["hottest_percent_shares"]
        table.add_row(
            _name(process["comm"]),
            str(process["tgid"]),
            *(_percent(shares[str(percent)]) for percent in HOT_PERCENT),
        )
    return table


def _trap_tables(traps: dict[str, Any]) -> list[RenderableType]:
    """By thread, by function and by kind of access."""
    parts: list[RenderableType] = []
    if traps["threads"]:
        parts += [_thread_table(traps["threads"]), ""]
    if traps["functions"]:
        parts += [_function_table(traps["functions"]), ""]
    if traps["accesses"]:
        table = _table("access", "misses", "share")
        for row in traps["accesses"]:
            table.add_row(row["access"], _count(row["misses"]), _percent(row["share"]))
        parts += [table, ""]
    return parts


def _thread_table(threads: list[dict[str, Any]]) -> Table:
    table = _table("thread", "tgid", "tid", "misses", "share", "pages")
    for row in threads[:PROCESSES_SHOWN]:
        table.add_row(
            _name(row["name"]),
            str(row["tgid"]),
            str(row["tid"]),
            _count(row["misses"]),
            _percent(row["share"]),
            _count(row["pages"]),
        )
    if len(threads) > PROCESSES_SHOWN:
        table.add_row(f"… and {len(threads) - PROCESSES_SHOWN} more")
    return table


def _function_table(functions: list[dict[str, Any]]) -> Table:
    table = _table("hottest functions", "misses", "share", "reads", "writes", "fetches")
    table.add_column("object")
    for row in functions:
        table.add_row(
            _name(row["function"]),
            _count(row["misses"]),
            _percent(row["share"]),
            *(_count(row[kind]) for kind in ("reads", "writes", "fetches")),
            _name(row["object"]),
        )
    return table


def _page_table(report: dict[str, Any]) -> Table:
    total = report["totals"]["misses"]
    table = _table("hottest pages", "tgid", "address", "size", "misses", "share")
    for page in report["hottest_pages"]:
        size = format_size(page["page_size_bytes"])
        table.add_row(
            _name(page["comm"]),
            str(page["tgid"]),
            f"{page['vaddr']:#014x}",
            size if page["span"] == 1 else f"one of {page['span']} × {size}",
            _count(page["misses"]),
            _percent(page["misses"] / total),
        )
    return table


def _object_table(report: dict[str, Any]) -> Table:
    """The objects that missed."""
    total = report["totals"]["misses"]
    shared = any(one["shared"] for one in report["objects"])
    sizes = sorted({int(size) for one in report["objects"] for size in one["misses_by_page_size"]})
    table = _table("hottest objects", "kind", "tgid", "misses", "share", "pages", "size")
    for size in sizes:
        table.add_column(f"in {format_size(size)}", justify="right")
    if shared:
        table.add_column("on shared pages", justify="right")
    table.add_column("where")
    for one in report["objects"]:
        blocks = f"{_count(one['blocks'])} × " if one["blocks"] > 1 else ""
        table.add_row(
            _name(one["name"]),
            one["kind"],
            str(one["tgid"]),
            _count(one["misses"]),
            _percent(one["misses"] / total),
            _count(one["pages"]),
            f"{blocks}{format_size(one['bytes'])}",
            *(_count(one["misses_by_page_size"].get(str(size), 0)) for size in sizes),
            *([_count(one["shared"])] if shared else []),
            _name(one["detail"]) if one["detail"] else "",
        )
    return table


def circumstances(report: dict[str, Any]) -> dict[str, str]:
    """How the trace was taken."""
    return {
        "session": f"{report['session']}, {report['created_utc'] or 'undated'}",
        "taken on": _taken_on(report),
        "traced": f"{report['levels']} tables in a region of {format_size(report['region_bytes'])},"
        f" {'with' if report['children'] else 'without'} the command's children",
        **({"left out": left_out} if (left_out := "; ".join(_left_out(report))) else {}),
        **(_traps(report["traps"]) if "traps" in report else _clocks(report["clock"])),
    }


def _taken_on(report: dict[str, Any]) -> str:
    cpu = report["cpu"].get("tlb") or report["cpu"].get("name") or "unknown"
    kernel = f"kernel {report['kernel'] or 'unknown'}"
    if "traps" in report:
        return f"{report['board']}, {cpu}, {kernel}"
    return f"{report['board']}, {report['granularity_bytes']}-byte bus, TLB {cpu}, {kernel}"


def _traps(traps: dict[str, Any]) -> dict[str, str]:
    return {
        "traps": f"{_count(traps['records'])} records, {_count(traps['waits'])} waits for the"
        f" recorder, {_count(traps['retries'])} retries, {_count(traps['steps'])} steps",
        "not seen": NOT_TRAPPED,
    }


def _clocks(clock: dict[str, Any]) -> dict[str, str]:
    entries = f" and {_count(clock['entry_pairs'])} entries" if clock["entry_pairs"] else ""
    bound = "" if clock["error_ns"] is None else f", error at most {clock['error_ns']:.0f} ns"
    return {
        "clocks": f"{_count(clock['pairs'])} markers{entries},"
        f" offset {clock['offset_ns'] / 1e9:.9f} s",
        "clocks' error": f"drift {clock['drift_ppm']:.3f} ppm,"
        f" residual {clock['residual_ns']:.0f} ns{bound}",
    }


def _left_out(report: dict[str, Any]) -> list[str]:
    """Parts that options left out of the trace, which change the meaning of its figures."""
    left_out = []
    if not report["children"]:
        left_out.append("misses of processes that the command forked (--no-children)")
    if report["levels"] == "pte":
        left_out.append("misses of 2 MiB pages (--levels pte)")
    if not report["faults"]["recorded"]:
        left_out.append("which walks ended in a page fault (--no-faults)")
    return left_out


def _circumstances(report: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, style="dim")
    for name, text in circumstances(report).items():
        table.add_row("" if name == "clocks' error" else name, Text(text))
    return table


def _table(*columns: str) -> Table:
    """A table whose first column is a name and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _name(comm: str) -> Text:
    """A process's name as plain text, without interpretation of markup."""
    return Text(printable(comm) or "?")


def printable(text: str) -> str:
    """Text with unprintable characters replaced by ``?``."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _enough(region_bytes: int, missing_tables: int) -> str:
    """Size of a region with room for that many more tables, a power of two."""
    size_bytes = 1 << (region_bytes + missing_tables * TABLE_BYTES - 1).bit_length()
    return f"{size_bytes >> 20}M" if size_bytes >= 1 << 20 else f"{size_bytes >> 10}K"


def _count(number: int) -> str:
    return f"{number:,}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
