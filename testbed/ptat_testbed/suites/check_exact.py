# SPDX-License-Identifier: BSD-2-Clause
"""Every kind of workload, recorded and held against the ground truth.

Each row records a program through the command line that users have, and asks three witnesses:

* the testbed's truth, miss by miss (``ptat validate``);
* what touched the region: the kernel must not have read it, and its twins must agree;
* where there is one, an oracle from outside: the sequence that a program is known to touch, and
  ``/proc/self/pagemap`` as the guest's kernel gives it.

The board ``testbed-bar`` has no truth of ours; there each read must be explained by a walk.

Ends with one JSON line: ``{"rows": [{"name", "misses", "exact", "lost", …}]}``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ptat_parser.kernel.log import read_kernel_log
from ptat_parser.kernel.tracepoints import ENTRY_SET
from ptat_testbed.guest import build
from ptat_testbed.suites import kernel_exercise

PTAT = [sys.executable, "-m", "ptat_host.cli"]
FRAME_MASK = np.uint64(0x000F_FFFF_FFFF_F000)
"""Bits 51:12 of an entry (SDM vol. 3, table 4-20)."""


class Wrong(Exception):
    """A witness disagrees."""


@dataclass(frozen=True)
class Run:
    """A recorded row: its session and what the command printed."""

    session: Path
    stdout: str

    def metadata(self) -> dict[str, Any]:
        """``session.json``."""
        return _load(self.session / "session.json")

    def counters(self) -> dict[str, Any]:
        """``counters.json``."""
        return _load(self.session / "counters.json")

    def misses(self) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """The page id of each miss, shape ``(misses,)``, and the columns of ``pages.parquet``.

        Of the pages, only those that missed: others are there for their faulted walks.
        """
        results = self.session / "results"
        page = ds.dataset(results / "misses").to_table(columns=["page"])["page"].to_numpy()
        table = pq.read_table(results / "pages.parquet", filters=[("misses", ">", 0)])
        return page, {
            name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names
        }


@dataclass(frozen=True)
class Row:
    """One workload; the sizes are those of the small and of the full run."""

    name: str
    argv: Sequence[str]
    options: Sequence[str] = ()
    sizes: tuple[str, str] | None = None
    """Replaces ``{size}`` in `argv`, as the kernel's selftest does ``{selftest}``, and
    `kernel_exercise`'s program ``{exercise}``."""
    oracle: Callable[[Run], None] | None = None
    small: bool = True
    """Part of the small run."""

    @property
    def has_truth(self) -> bool:
        """Whether our plugin takes part, with its truth and counters."""
        return "testbed-bar" not in self.options

    def command(self, size: str, work: Path) -> list[str]:
        """The command of the small or full run; programs that it needs are built in `work`."""
        chosen = self.sizes[size == "full"] if self.sizes else ""
        return [_meant(word, chosen, work) for word in self.argv]


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


# Oracles ----------------------------------------------------------------------------------------


def _seqpage_range(run: Run) -> tuple[int, int, int]:
    match = re.search(r"seqpage first=(0x[0-9a-f]+) pages=(\d+) page_bytes=(\d+)", run.stdout)
    if match is None:
        raise Wrong("seqpage did not print its range")
    return int(match[1], 16), int(match[2]), int(match[3])


def sequence_is_predicted(run: Run) -> None:
    """seqpage touches page after page: so must its misses, one by one."""
    first, pages, page_bytes = _seqpage_range(run)
    page, columns = run.misses()
    inside = (columns["vaddr"] >= first) & (columns["vaddr"] < first + pages * page_bytes)
    if not (columns["page_size_bytes"][inside] == page_bytes).all():
        raise Wrong("the trace has other page sizes in seqpage's range")
    by_id = np.zeros(int(columns["page"].max()) + 1, np.uint64)
    by_id[columns["page"][inside]] = columns["vaddr"][inside]
    sequence = by_id[page]
    sequence = sequence[sequence != 0]
    predicted = np.uint64(first) + np.arange(pages, dtype=np.uint64) * np.uint64(page_bytes)
    if not np.array_equal(sequence, predicted):
        raise Wrong(f"{len(sequence)} misses in seqpage's range, {pages} predicted, or other order")


def one_store_a_fault(run: Run) -> None:
    """Each page of seqpage's or gups's memory cost one store when touched, one when unmapped."""
    if match := re.search(r"gups first=(0x[0-9a-f]+) bytes=(\d+)", run.stdout):
        first, size_bytes = int(match[1], 16), int(match[2])
    else:
        first, pages, page_bytes = _seqpage_range(run)
        size_bytes = pages * page_bytes
    _, columns = run.misses()
    inside = (columns["vaddr"] >= first) & (columns["vaddr"] < first + size_bytes)
    if not inside.any():
        raise Wrong(f"no miss at {first:#x}+{size_bytes:#x}")
    wrong = columns["stores"][inside] != 2
    if wrong.any():
        raise Wrong(f"{np.count_nonzero(wrong)} pages took more or fewer stores than two")


def predicted_and_one_store(run: Run) -> None:
    """Both of the above."""
    sequence_is_predicted(run)
    one_store_a_fault(run)


def pagemap_agrees(run: Run) -> None:
    """The frame that the kernel logged for each missed page is the one that pagemap shows."""
    sequence_is_predicted(run)
    _, pages, _ = _seqpage_range(run)
    shown = {
        int(line.split()[0], 16): int(line.split()[1], 16)
        for line in run.stdout.splitlines()
        if line.startswith("0x")
    }
    if len(shown) != pages:
        raise Wrong(f"pagemap printed {len(shown)} pages of {pages}")
    events = read_kernel_log(run.session / "kernel").timed.between()
    entries = events[events["kind"] == ENTRY_SET]
    frames = (entries["entry"] & FRAME_MASK) >> np.uint64(12)
    logged = dict(zip(entries["va"].tolist(), frames.tolist(), strict=True))
    wrong = [hex(va) for va, frame in shown.items() if logged.get(va) != frame]
    if wrong:
        raise Wrong(f"{len(wrong)} pages have another frame in pagemap, the first at {wrong[0]}")


EXERCISED = (
    *("munmap and MAP_FIXED", "brk", "stack", "mprotect", "mremap", "madvise", "userfaultfd"),
    *("memfd", "mlock", "fork, vfork, clone and exec in all orders", "posix_spawn"),
    *("exec while threads fork", "huge pages: faults and splits", "huge pages: collapse"),
    *("huge pages: mremap", "huge pages: tmpfs"),
)
PYTHON = ("python3", "-c", "print(len({str(n): n for n in range(50_000)}))")

ROWS = (
    Row(
        "seqpage-4k",
        ("seqpage", "--bytes", "{size}"),
        ("--granularity", "8", "--memory", "2G"),
        ("64M", "1G"),
        predicted_and_one_store,
    ),
    Row(
        "seqpage-2m",
        ("seqpage", "--bytes", "{size}", "--huge"),
        ("--granularity", "8", "--memory", "4G", "--hugepages", "2M:1030"),
        ("256M", "2G"),
        sequence_is_predicted,
    ),
    Row(
        "seqpage-pagemap",
        ("seqpage", "--bytes", "{size}", "--pagemap", "-"),
        ("--granularity", "8", "--memory", "2G", "--entries"),
        ("32M", "1G"),
        pagemap_agrees,
    ),
    Row(
        "gups-64m",
        ("gups", "--bytes", "64M", "--updates", "{size}"),
        ("--granularity", "8"),
        ("200K", "2M"),
        one_store_a_fault,
    ),
    Row(
        "gups-1g",
        ("gups", "--bytes", "1G", "--updates", "2M"),
        ("--granularity", "8", "--memory", "3G"),
        oracle=one_store_a_fault,
        small=False,
    ),
    Row(
        "gups-2-threads",
        ("gups", "--bytes", "64M", "--updates", "{size}", "--threads", "2"),
        ("--granularity", "8", "--cpus", "2"),
        ("200K", "2M"),
        one_store_a_fault,
    ),
    Row(
        "gups-64-byte-bus",
        ("gups", "--bytes", "64M", "--updates", "{size}"),
        ("--granularity", "64"),
        ("200K", "2M"),
    ),
    Row(
        "bfs",
        ("bfs", "--scale", "{size}", "--edgefactor", "16"),
        ("--granularity", "8"),
        ("13", "16"),
    ),
    Row(
        "bfs-huge",
        ("bfs", "--scale", "{size}", "--edgefactor", "16", "--huge"),
        ("--granularity", "8", "--hugepages", "2M:64"),
        ("13", "16"),
    ),
    Row("chase", ("chase", "--bytes", "64M"), ("--granularity", "8"), small=False),
    Row("python3", PYTHON, ("--granularity", "8")),
    Row("python3-64-byte-bus", PYTHON, ("--granularity", "64"), small=False),
    # What the snooper sees of the commands of real memory controllers.
    Row(
        "gups-gateware",
        ("gups", "--bytes", "64M", "--updates", "{size}"),
        ("--bus", "gateware"),
        ("50K", "500K"),
    ),
    Row("python3-gateware", PYTHON, ("--bus", "gateware")),
    Row(
        "gups-gateware-2-channels",
        ("gups", "--bytes", "64M", "--updates", "{size}"),
        ("--bus", "gateware", "--channels", "2"),
        ("50K", "500K"),
    ),
    Row("fork-exec", ("forkexec",), ("--granularity", "8")),
    Row("remap-1g", ("remap", "--bytes", "1G"), ("--granularity", "8", "--memory", "3G")),
    # The kernel's selftest: splits, collapses, moves, fork storms, a full region.
    Row("selftest", ("{selftest}", "-n"), ("--granularity", "8", "--cpus", "2", "--no-children")),
    # What a process can do to page tables, as far as it takes seconds and no kernel of its own.
    Row(
        "exercise",
        ("{exercise}", "-n", *EXERCISED),
        ("--granularity", "8", "--cpus", "2"),
    ),
    Row(
        "bar-seqpage",
        ("seqpage", "--bytes", "{size}"),
        ("--board", "testbed-bar", "--memory", "2G"),
        ("16M", "256M"),
        sequence_is_predicted,
    ),
    Row(
        "bar-gups",
        ("gups", "--bytes", "32M", "--updates", "{size}"),
        ("--board", "testbed-bar"),
        ("20K", "200K"),
    ),
    Row("bar-python3", ("python3", "-c", "print(sum(range(1000)))"), ("--board", "testbed-bar")),
)


# Running ----------------------------------------------------------------------------------------


def _ptat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PTAT, *arguments], capture_output=True, text=True, check=False)


def quiet_region(run: Run, has_truth: bool) -> None:
    """Nothing but the walker read the region, and nothing was left behind."""
    kernel = run.metadata()["kernel"]
    stat, check = kernel["stat"], kernel["check"]
    found = {
        "stat.used": stat["used"],
        "stat.allocs - stat.frees": stat["allocs"] - stat["frees"],
        "check.mismatches": check["mismatches"],
        "console warnings": len(kernel["warnings"]),
    }
    if has_truth:
        totals = run.counters()
        found |= {
            name: totals["region"][name]
            for name in ("cpu_loads", "cpu_locked", "walks_without_accessed_bit")
        }
        found["bus_lost"] = totals["model"]["bus_lost"]
    wrong = {name: value for name, value in found.items() if value != 0}
    if wrong:
        raise Wrong(f"must be 0: {wrong}")


def _meant(word: str, size: str, work: Path) -> str:
    """What stands in a command for a word of `Row.argv`."""
    match word:
        case "{size}":
            return size
        case "{selftest}":
            return str(build.kernel().directory / "ptat_test")
        case "{exercise}":
            programs = work / "programs"
            programs.mkdir(parents=True, exist_ok=True)
            return str(kernel_exercise.program(programs))
    return word


def check_row(row: Row, size: str, work: Path) -> dict[str, Any]:
    """Record and validate one row; what is wrong is under ``error``."""
    argv = row.command(size, work)
    session = work / row.name
    start = time.monotonic()
    recorded = _ptat("record", "--output", str(session), *row.options, "--", *argv)
    result: dict[str, Any] = {"name": row.name, "misses": None, "exact": False, "lost": None}
    try:
        if recorded.returncode != 0:
            raise Wrong(f"ptat record: exit {recorded.returncode}: {recorded.stderr.strip()}")
        validated = _ptat("validate", str(session), "--json")
        try:
            verdict = json.loads(validated.stdout)
        except json.JSONDecodeError:
            raise Wrong(f"ptat validate: {validated.stderr.strip()}") from None
        result |= {
            "misses": verdict["trace_misses"],
            "exact": verdict["exact"],
            "lost": verdict["lost"],
            "relative_error": verdict["relative_error"],
            "explained": verdict["explained"],
        }
        if row.has_truth:
            right = verdict["exact"] is True
        else:  # the grammar of walks must explain each read
            right = verdict["ok"] and verdict["explained"] and verdict["kernel_reads"] == 0
        if not right or verdict["lost"]:
            short = {name: value for name, value in verdict.items() if name != "compared"}
            raise Wrong(f"not exact: {json.dumps(short)}")
        run = Run(session, recorded.stdout)
        quiet_region(run, row.has_truth)
        if row.oracle:
            row.oracle(run)
    except Wrong as wrong:
        result["error"] = str(wrong)
    result["seconds"] = round(time.monotonic() - start, 1)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows; exit 1 if a witness disagrees."""
    parser = argparse.ArgumentParser(prog="make check-exact", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("small", "full"), default="full", help="default: full")
    parser.add_argument("--keep", type=Path, help="keep the sessions there (default: delete them)")
    parser.add_argument("names", nargs="*", help="only these rows (default: all)")
    arguments = parser.parse_args(argv)
    rows = [row for row in ROWS if row.name in arguments.names or not arguments.names]
    unknown = set(arguments.names) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if arguments.size == "small" and not arguments.names:
        rows = [row for row in rows if row.small]

    work = arguments.keep or Path(tempfile.mkdtemp(prefix="ptat-exact."))
    results = []
    try:
        for row in rows:
            result = check_row(row, arguments.size, work)
            results.append(result)
            verdict = result.get("error") or "exact"
            print(
                f"{row.name:20} {result['misses'] or 0:>10} misses  "
                f"{result['seconds']:6.1f} s  {verdict}",
                file=sys.stderr,
                flush=True,
            )
            if arguments.keep is None:
                shutil.rmtree(work / row.name, ignore_errors=True)
    finally:
        if arguments.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    print(json.dumps({"rows": results}), flush=True)
    failed = [result["name"] for result in results if "error" in result]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
