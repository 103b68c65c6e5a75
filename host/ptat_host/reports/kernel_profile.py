# SPDX-License-Identifier: BSD-2-Clause
"""``ptat report --kernel``: the TLB misses of kernel code, by function and by call chain.

From a session of the testbed, whose model sees all of them, or from ``perf script``'s text of
hardware samples: both become a `Profile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ptat_host.reports.kernel_functions import KernelFunctions
from ptat_host.reports.session_report import printable
from ptat_parser.formats import kernel_misses
from ptat_parser.formats.session import Session
from ptat_parser.kernel.log import read_kernel_log, traced_spaces

MODEL = "from the model: kernel tables are not in the region"
SAMPLES = "samples that perf took, weighted by their periods"
CAUSES = ("loads", "stores", "fetches")
"""In the order of `ptat_parser.formats.truth.Cause`."""
USER_ADDRESS = "(user address)"
"""Stands for a function's accesses to a program's memory, in folded stacks."""

Chain = tuple[str, ...]
"""Functions, the outermost first; the last one missed."""


@dataclass
class Profile:
    """Misses of kernel code."""

    name: str
    """Description of the recording, for the heading."""
    source: str
    """The source of the numbers, in words."""
    events: Sequence[str]
    misses: Counter[tuple[Chain, str, bool]] = field(default_factory=Counter)
    """Counts by chain, event, and whether the address was a user's (False if unknown)."""
    tells_addresses: bool = True
    """Whether it is known which misses were at user addresses."""
    others: int = 0
    """Misses that are left out."""
    others_are: str = ""
    problems: list[str] = field(default_factory=list)
    """Caveats of the numbers."""


# A session ----------------------------------------------------------------------------------------


def of_session(path: Path, everyone: bool = False) -> Profile:
    """The profile of a testbed session.

    Without `everyone`, only while the page tables of a traced process were in use.

    :raises BadInput: kernel misses were not recorded.
    """
    session = Session(path)
    spaces = None if everyone else traced_spaces(read_kernel_log(session.kernel_path))
    (profile,) = in_windows(path, [(0, 2**64 - 1)], spaces)
    profile.name = " ".join(session.command.argv)
    return profile


def in_windows(
    path: Path, windows: Sequence[tuple[int, int]], spaces: set[int] | None = None
) -> list[Profile]:
    """The misses of each window of time.

    :param windows: first and last tick of the bus clock (in the testbed nanoseconds, as in
        ``snapshots.jsonl``), in any order.
    :param spaces: page frames of the top page tables (CR3 >> 12) whose misses count, None: all.

    :raises BadInput: as `of_session`.
    """
    reader = kernel_misses.Reader(path / kernel_misses.FILE)
    functions = KernelFunctions(path / kernel_misses.FUNCTIONS)
    user = np.uint64(1 << kernel_misses.USER_VA_BITS)
    wanted = None if spaces is None else np.array(sorted(spaces), np.uint64)
    counts: list[Counter[int]] = [Counter() for _ in windows]
    profiles = [Profile("", MODEL, CAUSES) for _ in windows]
    for misses in reader:
        of_spaces = (
            np.ones(misses.size, bool) if wanted is None else np.isin(misses["pgd_pfn"], wanted)
        )
        keys = (misses["place"].astype(np.uint64) << np.uint64(3)) | (
            misses["cause"].astype(np.uint64) << np.uint64(1)
        )
        keys |= (misses["va"] < user).astype(np.uint64)
        for window, count, profile in zip(windows, counts, profiles, strict=True):
            inside = _between(misses["time"], window)
            values, numbers = np.unique(keys[inside & of_spaces], return_counts=True)
            count.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
            profile.others += int(np.count_nonzero(inside & ~of_spaces))
    chains = _chains(reader, functions)
    for count, profile in zip(counts, profiles, strict=True):
        for key, misses_there in count.items():
            chain, event = chains[key >> 3], CAUSES[key >> 1 & 3]
            profile.misses[chain, event, bool(key & 1)] += misses_there
        profile.others_are = "while no traced process was running"
        if not reader.complete:
            profile.problems.append("the record of misses is truncated")
    return profiles


def _between(ticks: npt.NDArray[np.uint64], window: tuple[int, int]) -> npt.NDArray[np.bool_]:
    first, last = (np.uint64(tick) for tick in window)
    inside: npt.NDArray[np.bool_] = (ticks >= first) & (ticks <= last)
    return inside


def _chains(reader: kernel_misses.Reader, functions: KernelFunctions) -> list[Chain]:
    """Chains of functions by index of the caller tree, in which callers precede callees."""
    chains: list[Chain] = [()]
    for caller, address in zip(reader.callers[1:], reader.addresses[1:], strict=True):
        chains.append((*chains[caller], functions.name(address)))
    return chains


# Numbers ------------------------------------------------------------------------------------------


def summarise(profile: Profile, top: int) -> dict[str, Any]:
    """The report as a JSON object, with at most `top` functions and chains.

    ``with_callees`` counts the misses of a function and its callees, each once.
    """
    flat: dict[str, dict[str, Any]] = {}
    chains: Counter[Chain] = Counter()
    for (chain, event, user), misses in profile.misses.items():
        chains[chain] += misses
        for name in set(chain):
            function = flat.setdefault(
                name,
                {"misses": 0, "by_event": Counter(), "at_user_addresses": 0, "with_callees": 0},
            )
            function["with_callees"] += misses
            if name == chain[-1]:
                function["misses"] += misses
                function["by_event"][event] += misses
                function["at_user_addresses"] += misses * user
    total = sum(chains.values())
    by_event: Counter[str] = Counter()
    for (_, event, _), misses in profile.misses.items():
        by_event[event] += misses
    hottest = sorted(flat.items(), key=lambda item: (-item[1]["misses"], item[0]))
    at_user = sum(misses for (_, _, user), misses in profile.misses.items() if user)
    return {
        "name": profile.name,
        "source": profile.source,
        "events": list(profile.events),
        "misses": total,
        "by_event": {event: by_event[event] for event in profile.events},
        "at_user_addresses": at_user if profile.tells_addresses else None,
        "others": profile.others,
        "others_are": profile.others_are,
        "problems": profile.problems,
        "functions": [
            {
                "name": name,
                "misses": function["misses"],
                "share": function["misses"] / total,
                "by_event": {event: function["by_event"][event] for event in profile.events},
                "at_user_addresses": (
                    function["at_user_addresses"] if profile.tells_addresses else None
                ),
                "with_callees": function["with_callees"],
            }
            for name, function in hottest[:top]
            if function["misses"]
        ],
        "chains": [
            {"functions": list(chain), "misses": misses, "share": misses / total}
            for chain, misses in sorted(chains.items(), key=lambda item: (-item[1], item[0]))[:top]
        ],
    }


def folded(profile: Profile) -> Iterator[str]:
    """Lines ``outer;…;inner MISSES``, as tools that draw flame graphs take them, sorted."""
    counts: Counter[Chain] = Counter()
    for (chain, _, user), misses in profile.misses.items():
        counts[(*chain, USER_ADDRESS) if user else chain] += misses
    for chain, misses in sorted(counts.items()):
        yield f"{';'.join(chain)} {misses}"


def write_folded(profile: Profile, file: IO[str]) -> None:
    """Write the lines of `folded`."""
    file.writelines(f"{line}\n" for line in folded(profile))


# As text ------------------------------------------------------------------------------------------


def render(report: dict[str, Any]) -> RenderableType:
    """The result of `summarise` as readable text."""
    parts: list[RenderableType] = [Text(printable(report["name"]), style="bold"), ""]
    parts += [_totals(report), ""]
    if report["problems"]:
        parts += [Text(f"! {line}", style="bold red") for line in report["problems"]]
        parts.append("")
    if report["functions"]:
        parts += [_functions(report), "", _chain_table(report)]
    return Group(*parts)


def _totals(report: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("misses of kernel code", f"{report['misses']:,}", report["source"])
    if report["at_user_addresses"] is not None:
        table.add_row(
            "at user addresses",
            f"{report['at_user_addresses']:,}",
            "the kernel in a program's memory; in the trace, too",
        )
    if report["others"]:
        table.add_row("left out", f"{report['others']:,}", report["others_are"])
    return table


def _functions(report: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("function", overflow="fold")
    tells_addresses = report["at_user_addresses"] is not None
    columns = ["misses", "share", *(report["events"] if len(report["events"]) > 1 else ())]
    columns += ["user addr."] if tells_addresses else []
    for column in (*columns, "with callees"):
        table.add_column(Text(printable(column)), justify="right")
    for function in report["functions"]:
        events = function["by_event"].values() if len(report["events"]) > 1 else ()
        table.add_row(
            Text(printable(function["name"])),
            f"{function['misses']:,}",
            f"{100 * function['share']:.1f} %",
            *(f"{count:,}" for count in events),
            *([f"{function['at_user_addresses']:,}"] if tells_addresses else []),
            f"{function['with_callees']:,}",
        )
    return table


def _chain_table(report: dict[str, Any]) -> Table:
    """The innermost function first, as a stack is printed."""
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("misses", justify="right")
    table.add_column("share", justify="right")
    table.add_column("call chain")
    for chain in report["chains"]:
        table.add_row(
            f"{chain['misses']:,}",
            f"{100 * chain['share']:.1f} %",
            Text(printable(" < ".join(reversed(chain["functions"])))),
        )
    return table
