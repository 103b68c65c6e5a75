# SPDX-License-Identifier: BSD-2-Clause
"""A small session with results, for tests of what is shown of one."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ptat_parser.results.summary import VERSION

GOLDEN = Path(__file__).parent / "golden"

# page, mm, tgid, comm, vaddr, page size, span, misses, faulted
PAGES = [
    (0, 1, 4711, "gups", 0x7F0000000000, 4096, 1, 40, 1),
    (1, 1, 4711, "gups", 0x7F0000001000, 4096, 1, 30, 1),
    (2, 1, 4711, "gups", 0x7F0000200000, 2 << 20, 1, 20, 0),
    (3, 1, 4711, "gups", 0x7F0000010000, 4096, 8, 5, 1),
    (4, 1, 4711, "gups", 0x555500000000, 4096, 1, 5, 0),
    (5, 2, 4712, "my [b]sh\x1b", 0x555500000000, 4096, 2, 7, 2),
    (6, 2, 4712, "my [b]sh\x1b", 0x555500007000, 4096, 1, 0, 1),
]


def process(mm: int, comm: str, tgid: int, **values: object) -> dict:
    return {
        "mm": mm,
        "tgid": tgid,
        "comm": comm,
        "why": "exec",
        "pgd": mm << 12,
        "attached_ns": 1_000,
        "exited_ns": 9_000,
        "traced_bytes": 64 << 20,
        "untraced_bytes": 0,
        "untraced_tables": 0,
    } | values


def make_session(directory: Path) -> None:
    """A session and results as the parser leaves them, so that nothing is parsed again."""
    misses = directory / "results" / "misses"
    misses.mkdir(parents=True)
    session = {
        "format": "ptat-session",
        "version": 1,
        "complete": True,
        "incomplete_reason": None,
        "created_utc": "2026-11-21T11:22:33+00:00",
        "command": {"argv": ["gups", "--note", "a b"], "exit_status": 0, "children": True},
        "board": {
            "name": "testbed",
            "granularity_bytes": 64,
            "channels": [{"index": 0, "file": "bus.0.raw", "tick_hz": 1e9}],
        },
        "region": {
            "base": 1 << 30,
            "size_bytes": 64 << 20,
            "marker_slots": 1024,
            "marker_stride_bytes": 64,
            "levels": "pte+pmd",
        },
        "kernel": {"tsc_hz": 1e9, "cpus": 1, "release": "6.12.95"},
        "cpu": {"name": "QEMU", "tlb": "skylake"},
    }
    (directory / "session.json").write_text(json.dumps(session))

    columns = ["page", "mm", "tgid", "comm", "vaddr", "page_size_bytes", "span", "misses"]
    columns += ["faulted"]
    pages = pa.table(dict(zip(columns, zip(*PAGES, strict=True), strict=True)))
    for name, kind in (("page", pa.uint32()), ("vaddr", pa.uint64()), ("span", pa.uint8())):
        pages = pages.set_column(columns.index(name), name, pages[name].cast(kind))
    page = np.repeat(pages["page"].to_numpy(), pages["misses"].to_numpy()).astype(np.uint32)
    page = np.random.default_rng(1).permutation(page)
    time = np.arange(page.size) * 1_000_000_007 + 5
    for name, at in (("first_ns", time.min()), ("last_ns", time.max())):
        pages = pages.append_column(name, pa.array([at] * len(pages), pa.int64()))
    pq.write_table(pages, directory / "results" / "pages.parquet")
    pq.write_table(pa.table({"time": time, "page": page}), misses / "part-00000.parquet")

    sizes = {"4096": 80, "2097152": 20}
    summary = {
        "format": "ptat-results",
        "version": VERSION,
        "granularity_bytes": 64,
        "complete": True,
        "incomplete_reason": None,
        "totals": {
            "misses": 107,
            "faulted": 6,
            "pmd_reads": 12_345,
            "readbacks": 0,
            "stores": 9,
            "accesses": 12_500,
            "pages": 6,
        },
        "misses_by_span": {"1": 95, "2": 7, "4": 0, "8": 5},
        "processes": [
            process(2, "my [b]sh\x1b", 4712, misses=7, pages=1, faulted=3, misses_by_page_size={}),
            process(1, "gups", 4711, misses=100, pages=5, faulted=3, misses_by_page_size=sizes),
        ],
        "lost": 0,
        "losses": {"accesses": 0, "blocks": 0, "kernel_events": 0},
        "faults": {
            "recorded": True,
            "events": 3,
            "of_empty_entries": 1,
            "of_other_entries": 2,
            "without_leaf_entry": 0,
            "unmatched": 0,
            "in_doubt": 0,
            "without_event": 0,
        },
        "unexplained": {"reads": 0, "stores": 0, "events": 0, "examples": []},
        "clock": {
            "cycles_hz": 1e9,
            "pairs": 1234,
            "entry_pairs": 567,
            "offset_ns": 2_692_307_693,
            "drift_ppm": 0.125,
            "residual_ns": 431.5,
            "error_ns": 890.1,
        },
        "warnings": [],
    }
    write_summary(directory, summary)


def write_summary(directory: Path, summary: dict) -> None:
    (directory / "results" / "summary.json").write_text(json.dumps(summary))


def hide(session: Path) -> None:
    """Make it a session from behind a memory controller."""
    path = session / "results" / "summary.json"
    summary = json.loads(path.read_text())
    summary["controller"] = {
        "writes": 4_000,
        "stores": 5_000,
        "writes_without_event": 0,
        "underfills": 4_000,
        "writes_without_underfill": 0,
        "scrubs": 1_234,
        "possible_scrubs": 3,
        "inferred": 20,
        "inferred_faults": 3,
        "in_doubt": 2,
        "possible": 5,
        "misses": {"low": 102, "high": 114},
    }
    write_summary(session, summary)


def damage(session: Path) -> None:
    """Make it a recording in which everything that can be missing is missing."""
    path = session / "results" / "summary.json"
    summary = json.loads(path.read_text())
    summary |= {
        "complete": False,
        "incomplete_reason": "interrupted",
        "lost": 1503,
        "losses": {"accesses": 1500, "blocks": 0, "kernel_events": 3},
        "warnings": ["the recording is incomplete: interrupted"],
    }
    summary["faults"]["in_doubt"] = 2
    summary["unexplained"] |= {"reads": 2, "stores": 1, "events": 4}
    summary["processes"][1] |= {"untraced_bytes": 192 << 20, "untraced_tables": 96}
    write_summary(session, summary)
    description = json.loads((session / "session.json").read_text())
    description["command"]["exit_status"] = None
    description["kernel"]["warnings"] = ["WARNING: CPU: 0 PID: 1 at mm/memory.c:1"]
    (session / "session.json").write_text(json.dumps(description))
    path.touch()


def change(
    session: Path, pages: list[dict], misses: list[tuple[int, int]], **values: object
) -> None:
    """Give the session other results."""
    results = session / "results"
    schema = pq.read_schema(results / "pages.parquet")
    pq.write_table(pa.Table.from_pylist(pages, schema), results / "pages.parquet")
    time, page = zip(*misses, strict=True) if misses else ((), ())
    table = pa.table({"time": pa.array(time, pa.int64()), "page": pa.array(page, pa.uint32())})
    pq.write_table(table, results / "misses" / "part-00000.parquet")
    summary = json.loads((results / "summary.json").read_text())
    summary["totals"] |= {"misses": len(misses), "pages": len(pages)}
    write_summary(session, summary | values)


def page_row(number: int, mm: int, vaddr: int, misses: int) -> dict:
    row = {"page": number, "mm": mm, "tgid": mm, "comm": f"p{mm}", "vaddr": vaddr}
    row |= {"page_size_bytes": 4096, "span": 1, "misses": misses, "faulted": 0}
    return row | {"first_ns": 5, "last_ns": 9}


def expect(name: str, text: str) -> None:
    golden = GOLDEN / name
    if os.environ.get("PTAT_ACCEPT_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
