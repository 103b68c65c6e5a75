# SPDX-License-Identifier: BSD-2-Clause
"""Benchmark of the parser: measures everything on one capture and ends with one JSON line.

    python parser/bench.py [--records N] [--granularity G] [--keep DIR] [--rounds N]
    python parser/bench.py --session DIR [--rounds N]

The capture comes from `capture_model` and has a billion records, or as many as there is room for
(see `room_for`); or it is that of a recorded session, and then there are no joins. It is archived
as ``ptat record`` does, and read from the page cache. Each figure is records per second, measured
in a process of its own:

* streaming: a plain sum of the capture's words, written with numpy
* bound: the minimum for counting by page: read each word, look up its table, add 1 to a counter; no
  checks, no times, no order
* archive: indexing and archiving the capture (``.ptb``) at the end of ``ptat record``
* counts_only: ``ptat parse --counts-only`` of the archive; counts_raw: the same of the raw capture,
  which is read twice; to_parquet: ``ptat parse`` of the archive
* bound_workers: two processes of `bound` at once, which share nothing but the machine
* workers_2: ``ptat parse --workers 2``
* numpy, duckdb, polars: from decoded reads to misses of each page, as one would first write it: a
  lookup for each stretch between two changes of a table, or an as-of join of reads and changes

bound_workers and workers_2 are measured in elapsed time, all others in CPU time of one core, which
is the same on an idle machine. `elapsed_s` has the elapsed time of all. All counts must agree. The
speed of a machine varies, so the parts of the ratios are measured one after the other in each
round, and the figures and ratios are medians of the rounds; `rounds` has all of them. `start_s` is
the time from the start of Python to the results of 100,000 records with numba's cache filled.
`peak_mib` is the largest memory of one process, for workers_2 of all together with shared memory
counted once. `ratios` are those with aims (counts to the plain sum, two workers to one) and two
workers to two processes that share nothing. `bytes_per_record`: bytes written for each read, misses
and others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import multiprocessing.pool
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser import parse, wire
from ptat_parser.capture import decode
from ptat_parser.capture.reader import BusReader
from ptat_parser.compiled.jit import Integer, jit
from ptat_parser.formats import archive
from ptat_parser.formats.session import Session
from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel import tracepoints

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

RECORDS = 1_000_000_000
"""The aims are for this size; with a tenth of it, work done once takes a sixth of the time."""

RECORDS_LEAST = 1_000_000
"""Fewer would mostly measure how long Python takes to start."""

MEMORY_LEFT_BYTES = 2 << 30
"""For parsers and joins, beside a capture in the page cache."""

DISK_BYTES = 20
"""Disk space per record: 8 bytes of the capture, and the results of two parses, old and new."""

JOIN_RECORDS = 5_000_000
"""Limit for the joins, which hold several copies of all reads."""

STREAM_BYTES = 1 << 20

STREAM_TIMES = 4
"""Makes it take about as long as what it is compared with."""

READ_BLOCKS = 64
"""Blocks that `bound` reads at a time."""

BY_ELAPSED = ("bound_workers", "workers_2")
"""Measured in elapsed time, because several cores do the work."""


def streaming(path: Path) -> int:
    """Sum a capture's words `STREAM_TIMES` times; return the number of words."""
    buffer = np.empty(STREAM_BYTES // 8, np.uint64)
    words = total = 0
    with (path / "bus.0.raw").open("rb", buffering=0) as file:
        for _ in range(STREAM_TIMES):
            file.seek(0)
            while size := file.readinto(buffer):
                total += int(buffer[: size // 8].sum())
                words += size // 8
    return words


@jit
def _count(words: U64, base: Integer, first_slots: npt.NDArray[np.uint32], counts: U32) -> None:
    last = np.uint64(first_slots.size * 512 - 1)
    for block in words:
        for word in block[decode.WORD_FIRST_RECORD : decode.WORD_CHECK]:
            place = min((word & decode.ACCESS_ADDRESS_MASK) - base, last)
            slot = np.uint64(first_slots[place >> np.uint64(9)]) + (place & np.uint64(511))
            counts[slot] += np.uint32(1)


def bound(path: Path) -> int:
    """Count the words of each slot and do nothing else; return the number of words."""
    region = Session(path).region
    first_slots = np.arange(0, region.size_bytes // 8, 512, dtype=np.uint32)
    counts = np.zeros(region.size_bytes // 8, np.uint32)
    buffer = np.empty((READ_BLOCKS, wire.BLOCK_WORDS), np.uint64)
    with (path / "bus.0.raw").open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            _count(buffer[: size // 8192], np.uint64(region.base // 8), first_slots, counts)
    return int(counts.sum())


def _archived(path: Path) -> Path:
    """Where the session with its capture archived is."""
    return path.with_name(f"{path.name}-archived")


def archived(path: Path) -> int:
    """Index and archive the capture; return the number of accesses."""
    copy = _archived(path)
    shutil.rmtree(copy, ignore_errors=True)
    _link_all(path, copy)
    index = BusReader(path / "bus.0.raw").stored_index()
    archive.pack(path / "bus.0.raw", copy / "bus.0.ptb", index)
    (copy / "bus.0.raw").unlink()
    content = json.loads((copy / "session.json").read_text())
    content["board"]["channels"][0]["file"] = "bus.0.ptb"
    content.pop("crc32", None)
    (copy / "session.json").unlink()
    (copy / "session.json").write_text(json.dumps(content))
    stored = BusReader(copy / "bus.0.ptb").index
    assert stored
    return int(stored.chunks["accesses"].sum(dtype=np.int64))


def counts_only(path: Path) -> int:
    """Parse without single misses; return the number of accesses."""
    return int(parse(path, counts_only=True).summary["totals"]["accesses"])


def workers_2(path: Path) -> int:
    """Parse with two processes; return the number of accesses."""
    return int(parse(path, workers=2).summary["totals"]["accesses"])


def to_parquet(path: Path) -> int:
    """Parse; return the number of accesses."""
    return int(parse(path).summary["totals"]["accesses"])


@cache
def _two_processes() -> multiprocessing.pool.Pool:
    return multiprocessing.get_context("spawn").Pool(2)


def _link_all(path: Path, copy: Path) -> None:
    """A copy of a session, without results."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("results"), copy_function=os.link)


def bound_workers(path: Path) -> int:
    """Parse the session and a copy of it in parallel; return the number of accesses of both."""
    copy = path.with_name(f"{path.name}-copy")
    _link_all(path, copy)
    try:
        return sum(_two_processes().map(to_parquet, [path, copy], chunksize=1))
    finally:
        shutil.rmtree(copy)


# The joins ----------------------------------------------------------------------------------------


def reads_and_tables(path: Path) -> tuple[dict[str, U64], dict[str, U64]]:
    """Reads of PTEs (time, page of the region, index), and the links of tables to these pages.

    Times are positions in the stream, known from the markers, so the joins need no clock.
    """
    session = Session(path)
    base, slots = np.uint64(session.region.base), session.region.marker_slots
    log = kernel_log.read_kernel_log(session.kernel_path).tables
    parts: list[tuple[U64, ...]] = []
    markers: list[U64] = []
    accesses = reads = 0
    for chunk in BusReader(session.bus_path):
        offset = chunk.address - base
        number = np.arange(accesses, accesses + offset.size, dtype=np.uint64)
        is_marker = chunk.write & (offset < np.uint64(slots * session.region.marker_stride_bytes))
        markers.append(number[is_marker])
        read = ~chunk.write
        parts.append(
            (number[read], offset[read] >> np.uint64(12), offset[read] >> np.uint64(3) & 511)
        )
        accesses += offset.size
        reads += int(np.count_nonzero(read))
        if reads > JOIN_RECORDS:
            break
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    position = np.concatenate(markers)
    links = log[: position.size]  # markers are in the order of the events
    is_link = links["kind"] == tracepoints.TABLE_LINK
    links, position = links[is_link], position[is_link]
    tables = {
        "time": position,
        "page": links["pa"] - base >> np.uint64(12),
        "mm": links["mm"],
        "base": links["va"],
        "level": links["level"],
    }
    return dict(zip(("time", "page", "index"), columns, strict=True)), tables


Counts = dict[tuple[int, int], int]
"""Reads of PTEs of each (mm, address)."""


def with_numpy(reads: dict[str, U64], tables: dict[str, U64]) -> Counts:
    """Look up all reads between two changes at once in a dense table."""
    pages = int(tables["page"].max()) + 1
    owner = np.full(pages, -1, np.int64)
    counts = np.zeros((tables["time"].size, 512), np.int64)
    ends = np.searchsorted(reads["time"], tables["time"])
    start = 0
    for link, end in enumerate([*ends.tolist(), reads["time"].size]):
        of = owner[reads["page"][start:end]]
        known = of >= 0
        np.add.at(counts, (of[known], reads["index"][start:end][known]), 1)
        if link < tables["time"].size:
            owner[tables["page"][link]] = link if tables["level"][link] == 1 else -1
        start = end
    found: Counts = {}
    for link, index in zip(*np.nonzero(counts), strict=True):
        key = int(tables["mm"][link]), int(tables["base"][link]) + (int(index) << 12)
        found[key] = found.get(key, 0) + int(counts[link, index])
    return found


def with_duckdb(reads: dict[str, U64], tables: dict[str, U64]) -> Counts:
    """DuckDB's as-of join."""
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(config={"threads": 1})
    connection.register("reads", pa.table(reads))
    connection.register("tables", pa.table(tables))
    rows = connection.sql("""
        SELECT mm, base + (index << 12) AS va, count(*)
        FROM reads ASOF JOIN tables ON reads.page = tables.page AND reads.time >= tables.time
        WHERE level = 1 GROUP BY ALL
    """).fetchall()
    return {(mm, va): count for mm, va, count in rows}


def with_polars(reads: dict[str, U64], tables: dict[str, U64]) -> Counts:
    """Polars' as-of join."""
    import polars as pl

    joined = pl.DataFrame(reads).join_asof(pl.DataFrame(tables), on="time", by="page")
    rows = (
        joined.filter(pl.col("level") == 1)
        .group_by("mm", (pl.col("base") + pl.col("index") * 4096).alias("va"))
        .len()
        .rows()
    )
    return {(mm, va): count for mm, va, count in rows}


# Measuring ----------------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU seconds, elapsed seconds, and the result."""
    started, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.process_time() - cpu, time.perf_counter() - started, result


def measure(what: str, path: Path) -> dict[str, Any]:
    """One figure, in this process."""
    if what not in BY_ELAPSED:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["POLARS_MAX_THREADS"] = "1"
    figures: dict[str, Any] = {}
    if what in JOINS:
        reads, tables = reads_and_tables(path)
        join = {"numpy": with_numpy, "duckdb": with_duckdb, "polars": with_polars}[what]
        cpu, elapsed, counts = timed(lambda: join(reads, tables))
        records = reads["time"].size
        digest = sum((mm * 31 + va) * count for (mm, va), count in counts.items())
        figures["digest"] = f"{len(counts)} pages, {digest % (1 << 61)}"
    else:
        parses = {
            "streaming": streaming,
            "bound": bound,
            "archive": archived,
            "counts_only": counts_only,
            "counts_raw": counts_only,
            "to_parquet": to_parquet,
            "bound_workers": bound_workers,
            "workers_2": workers_2,
        }
        path = path if what in OF_RAW else _archived(path)
        if what != "streaming":
            parses[what](path)  # compiles, or loads what was compiled before
            shutil.rmtree(path / "results", ignore_errors=True)
        cpu, elapsed, records = timed(lambda: parses[what](path))
        if what == "to_parquet":
            files = [*path.glob("results/misses/*"), *path.glob("results/other/*")]
            figures["bytes"] = sum(file.stat().st_size for file in files)
        elif what == "archive":
            figures["bytes"] = (_archived(path) / "bus.0.ptb").stat().st_size
    # Not `ru_maxrss`, which begins with that of whoever started this process.
    peak_kib = _kib(Path("/proc/self/status"), "VmHWM")
    if what == "workers_2":
        shutil.rmtree(path / "results")
        peak_kib = _peak_kib_of_all(lambda: workers_2(path))
    seconds = elapsed if what in BY_ELAPSED else cpu
    return figures | {
        "records_per_s": round(records / seconds),
        "elapsed_s": round(elapsed, 2),
        "peak_mib": peak_kib >> 10,
    }


def _peak_kib_of_all(work: Callable[[], object]) -> int:
    """Peak memory of this process and its children together; shared memory counts once."""
    ended = threading.Event()

    def watch() -> int:
        peak_kib = 0
        while not ended.wait(0.02):
            # Pss divides shared memory among the processes.
            rollups = (Path(f"/proc/{pid}/smaps_rollup") for pid in [os.getpid(), *_children()])
            peak_kib = max(peak_kib, sum(_kib(path, "Pss") for path in rollups))
        return peak_kib

    with ThreadPoolExecutor(1) as pool:
        peak_kib = pool.submit(watch)
        work()
        ended.set()
        return peak_kib.result()


def _children() -> list[int]:
    """Child processes of all threads of this process."""
    children: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return children


def _kib(path: Path, name: str) -> int:
    """A value from a file of /proc; 0 if its process has ended."""
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


JOINS = ("duckdb", "polars", "numpy")

ONCE = ("archive", "bound")
"""Measured once; the first makes the archive for the others."""

OF_RAW = ("archive", "bound", "streaming", "counts_raw")

IN_ROUNDS = (
    "streaming",
    "counts_only",
    "counts_raw",
    "bound_workers",
    "to_parquet",
    "workers_2",
)
"""The results of the last one are checked."""

RATIOS = {
    "counts_of_streaming": ("counts_only", "streaming"),
    "workers_of_one": ("workers_2", "to_parquet"),
    "workers_of_bound": ("workers_2", "bound_workers"),
}


def read_anew(path: Path) -> None:
    """Put a file into the page cache by reading it.

    Pages that were cached one by one while it was written are read at a fraction of the speed.
    """
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(STREAM_BYTES)
        while file.readinto(buffer):
            pass


def room_for(directory: Path) -> int:
    """Number of records, at most `RECORDS`, for which page cache and disk have room."""
    available_bytes = _kib(Path("/proc/meminfo"), "MemAvailable") << 10
    in_memory = (available_bytes - MEMORY_LEFT_BYTES) * wire.BLOCK_RECORDS_MAX // wire.BLOCK_BYTES
    on_disk = shutil.disk_usage(directory).free // DISK_BYTES
    return max(min(RECORDS, in_memory, on_disk), 0)


def _all_there_is_room_for(directory: Path) -> int:
    records = room_for(directory)
    if records < RECORDS_LEAST:
        raise SystemExit(
            f"bench: memory, or the disk of {directory}, has room for {records} records only:"
            " make room, or give --records"
        )
    if records < RECORDS:
        print(f"bench: memory and disk have room for {records} records only", file=sys.stderr)
    return records


def start_s(small: Path) -> float:
    """Seconds from the start of Python to the results of a session."""
    program = "import sys, pathlib, ptat_parser; ptat_parser.parse(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(small)]
    _, elapsed, _ = timed(lambda: subprocess.run(command, check=True))
    return round(elapsed, 2)


def run(path: Path, small: Path, joins: Sequence[str], rounds: int) -> dict[str, Any]:
    """All figures of a session; `small`: a tiny session, for `start_s`."""

    def measured(what: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--measure", what, str(path)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        figures: dict[str, Any] = json.loads(output)
        print(f"{what:12} {json.dumps(figures)}", file=sys.stderr)
        return figures

    found = {what: measured(what) for what in (*ONCE, *joins)}
    in_rounds = [{what: measured(what) for what in IN_ROUNDS} for _ in range(rounds)]
    for what in IN_ROUNDS:
        each = [figures[what] for figures in in_rounds]
        found[what] = {name: statistics.median(one[name] for one in each) for name in each[0]}
        found[what]["peak_mib"] = max(one["peak_mib"] for one in each)
    digests = {found[what]["digest"] for what in joins}
    if len(digests) > 1:
        raise SystemExit(f"the joins disagree: {digests}")
    summary = json.loads((_archived(path) / "results" / "summary.json").read_bytes())
    if summary["lost"] or summary["unexplained"]["reads"]:
        raise SystemExit("the capture is not explained")
    speeds = {what: round(found[what]["records_per_s"]) for what in found}
    reads = sum(summary["totals"][kind] for kind in ("misses", "faulted", "pmd_reads"))
    ratios = {
        name: [figures[a]["records_per_s"] / figures[b]["records_per_s"] for figures in in_rounds]
        for name, (a, b) in RATIOS.items()
    }
    return {
        **speeds,
        "ratios": {name: round(statistics.median(each), 2) for name, each in ratios.items()},
        "rounds": {name: [round(ratio, 2) for ratio in each] for name, each in ratios.items()},
        "bytes_per_record": round(found["to_parquet"]["bytes"] / reads, 2),
        "archive_bytes_per_record": round(
            found["archive"]["bytes"] / summary["totals"]["accesses"], 2
        ),
        "peak_mib": max(
            found[what]["peak_mib"] for what in ("counts_only", "counts_raw", "to_parquet")
        ),
        "records": summary["totals"]["accesses"],
        "misses": summary["totals"]["misses"],
        "elapsed_s": {what: found[what]["elapsed_s"] for what in found},
        "start_s": start_s(small),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, help="default: a billion, or what there is room for")
    parser.add_argument("--pages", type=int, default=500_000, help="default: 500,000")
    parser.add_argument("--granularity", type=int, default=8, help="bytes; default: 8")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--keep", type=Path, help="make the session here, or use what is here")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--session", type=Path, help="measure this one, recorded with --no-archive")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure[0], Path(arguments.measure[1]))))
        return
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if arguments.records is not None and arguments.records < 1:
        parser.error("--records must be 1 or more")
    recorded: Path | None = arguments.session
    of_model = ("records", "pages", "granularity", "seed", "keep")
    changed = [n for n in of_model if getattr(arguments, n) != parser.get_default(n)]
    if recorded and changed:
        parser.error(f"--{changed[0]} is of the model's capture, --session of a recorded one")
    if recorded and not (recorded / "bus.0.raw").is_file():
        parser.error(f"{recorded} has no bus.0.raw: record it with --no-archive")
    from capture_model import Model

    beside = recorded.parent if recorded else None
    with tempfile.TemporaryDirectory(prefix="ptat-bench-", dir=beside) as directory:
        path = arguments.keep or Path(directory) / "session"
        if recorded:
            _link_all(recorded, path)
        elif not (path / "session.json").exists():
            path.mkdir(parents=True, exist_ok=True)
            Model(
                arguments.records or _all_there_is_room_for(path),
                pages=arguments.pages,
                granularity=arguments.granularity,
                seed=arguments.seed,
            ).write(path)
        small = Model(100_000, seed=arguments.seed).write(Path(directory) / "small")
        archived(small)
        read_anew(path / "bus.0.raw")
        try:
            print(
                json.dumps(run(path, _archived(small), () if recorded else JOINS, arguments.rounds))
            )
        finally:
            shutil.rmtree(_archived(path), ignore_errors=True)


if __name__ == "__main__":
    main()
