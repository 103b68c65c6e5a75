# SPDX-License-Identifier: BSD-2-Clause
"""``make check-trap``: is each trapped TLB miss a walk, and each walk a record?

The region lies in a PCI BAR here (see `bar`), so QEMU logs each entry that its own page walker
reads there, with what it read: an oracle that knows nothing of the kernel's records. Of each CPU,
the walks that found a poisoned entry must be its records, one by one, in order.

A walk that found an entry valid is the one that a record announces: the access was let through. Any
other is *silent*: a walk of another CPU, or of the same one again, while the entry was valid. These
are counted; trap mode cannot see them.

What the program prints, and how it ends, must be the same as untraced.

Ends with one JSON line: ``{"rows": [{"workload", "cpus", "records", "walks_poisoned",
"order_mismatches", "silent_walks", "lost", "output_same"}]}``. Exit status 1 if a row is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_parser.formats.traps import Flag, read_records
from ptat_testbed.boards import bar, guest_run
from ptat_testbed.guest import build
from ptat_testbed.guest.command_output import stdout_to
from ptat_testbed.guest.qemu import Machine
from ptat_testbed.guest.steps import progress

MARKER_BYTES = guest_run.MARKER_BYTES
PRESENT = 1
ACCESSED = 1 << 5
GLOBAL = 1 << 8
FRAME = 0x000F_FFFF_FFFF_F000
"""Flags and frame of an entry (SDM vol. 3, table 4-20)."""
LINE = re.compile(bar.ACCESS)
EXPECTED_WARNING = re.compile("ptat: the region is not RAM")
"""No user should choose such a region."""


def log_arguments(path: Path) -> list[str]:
    """QEMU's, for a trace in a file: the reader of a pipe would be woken for each access."""
    return ["-msg", "timestamp=on", "-D", str(path)]


def enable(machine: Machine, on: bool) -> None:
    """Let QEMU trace accesses, or no longer."""
    for name in bar.TRACE_EVENTS:
        machine.qmp.execute("trace-event-set-state", name=name, enable=on)


@dataclass(frozen=True)
class Access:
    """A line of QEMU's log: an access to the region."""

    write: bool
    cpu: int
    entry: int
    value: int


def accesses(lines: Iterable[bytes], base: int, size_bytes: int) -> Iterator[Access]:
    """Those of tables of the region."""
    for line in lines:
        found = LINE.search(line)
        if found:
            offset = int(found["address"], 16) - base
            if MARKER_BYTES <= offset < size_bytes:
                write, value = found["kind"] == b"write", int(found["value"], 16)
                yield Access(write, int(found["cpu"]), offset // 8, value)


def flip(value: int) -> int:
    """Poison an entry, or the other way round."""
    return value ^ FRAME ^ PRESENT


def walks(log: Iterable[Access]) -> dict[int, list[Access]]:
    """The walker's reads, by CPU. The kernel never reads the region but to exchange an entry.

    An exchange is a read and, next on that CPU, a write there: of the same value if it has failed.
    """
    found: dict[int, list[Access]] = defaultdict(list)
    for access in log:
        of = found[access.cpu]
        if not access.write:
            of.append(access)
        elif (
            of
            and of[-1].entry == access.entry
            and of[-1].value in (access.value, flip(access.value))
        ):
            of.pop()
    return found


def is_poisoned(value: int) -> bool:
    """Unlike a poisoned entry, a swapped-out one has no accessed bit, and PROT_NONE is global."""
    return value & (PRESENT | ACCESSED | GLOBAL) == ACCESSED


@dataclass
class Result:
    """How the records of a run compare with QEMU's walks."""

    records: int = 0
    walks_poisoned: int = 0
    order_mismatches: int = 0
    silent_walks: int = 0
    flags: Counter[str] = field(default_factory=Counter)


def compare(
    read: Sequence[Access], records: npt.NDArray[Any], region: range, result: Result
) -> None:
    """The walks of one CPU with its records, in order."""
    entries = records["entry"].tolist()
    flags = records["flags"].tolist()
    announced: Counter[int] = Counter()
    at = 0
    for walk in read:
        if walk.value & PRESENT:
            if (walk.value & FRAME) in region:
                continue  # on the way to a table of the region
            if announced[walk.entry]:
                announced[walk.entry] -= 1
            else:
                result.silent_walks += 1
        elif is_poisoned(walk.value):
            result.walks_poisoned += 1
            if at < len(entries) and entries[at] == walk.entry:
                if not flags[at] & Flag.FAULT:
                    announced[walk.entry] = 1
                at += 1
            else:
                result.order_mismatches += 1
    result.order_mismatches += len(entries) - at
    result.records += len(entries)


@dataclass(frozen=True)
class Row:
    """A workload."""

    name: str
    argv: Sequence[str]
    cpus: int = 1
    children: bool = False
    options: Sequence[tuple[str, str]] = ()
    small: bool = True
    """Part of the run that the tests make."""


PYTHON = """
import threading, os, hashlib
def work(n): out[n] = hashlib.sha256(repr({str(i * n): [i] * 8 for i in range(6000)}).encode())
out = {}
threads = [threading.Thread(target=work, args=[n]) for n in (1, 2, 3)]
[t.start() for t in threads]; [t.join() for t in threads]
pid = os.fork()
if not pid: work(4); os._exit(out[4].digest()[0] & 1)
print(sorted((n, h.hexdigest()) for n, h in out.items()), os.waitpid(pid, 0)[1])
"""
GCC = "echo 'int f(int x){return x?f(x-1)*x:1;}' | gcc -O2 -S -o - -x c -"
REDIS = (
    "redis-server --port 7777 --save '' --daemonize yes --logfile /dev/null >/dev/null;"
    " redis-benchmark -p 7777 -q -n 2000 -r 5000 -t set,get,lpush >/dev/null;"
    " redis-cli -p 7777 eval"
    " \"for i = 1, 3000 do redis.call('set', i, i * i) end return redis.call('get', 2999)\" 0;"
    " redis-cli -p 7777 shutdown nosave"
)
ROWS = (
    Row("gups", ("gups", "--bytes", "16M", "--updates", "20480")),
    Row("gups-threads", ("gups", "--bytes", "16M", "--updates", "20480", "--threads", "2"), 2),
    Row("seqpage-4k", ("seqpage", "--bytes", "16M")),
    Row(
        "seqpage-2m",
        ("seqpage", "--bytes", "128M", "--huge"),
        options=(("hugepages", "2M:80"),),
    ),
    Row("python3", ("python3", "-c", PYTHON), 2, children=True),
    Row("fork-exec", ("forkexec",), 2, children=True),
    Row("gcc", ("sh", "-c", GCC), 2, children=True, small=False),
    Row("redis", ("sh", "-c", REDIS), 2, children=True, small=False),
    Row(
        "stress-ng",
        ("stress-ng", "--vm", "1", "--vm-bytes", "8M", "--vm-ops", "200", "--vm-keep", "-q"),
        2,
        children=True,
        small=False,
    ),
)


def request(row: Row, session: Path) -> RecordRequest:
    """What to record of a row."""
    session.mkdir()
    return RecordRequest(
        argv=row.argv,
        session_dir=session,
        cwd=Path.cwd(),
        env=dict(os.environ),
        children=row.children,
        maps=False,
        region_bytes=32 << 20,
        options={"cpus": str(row.cpus), "memory": "2G", **dict(row.options)},
    )


def stable(output: bytes) -> bytes:
    """Without what differs from run to run: addresses, times, processes, and their order."""
    lines = re.sub(rb"0x[0-9a-f]+|\d+\.\d+|pid=\d+", b"#", output).splitlines()
    return b"\n".join(sorted(lines))


def plain(row: Row, folder: Path) -> tuple[int | None, bytes]:
    """How the command ends in the same guest untraced, and what it prints."""
    recording = guest_run.Recording(request(row, folder / "plain"), traced=False)
    with stdout_to(folder / "plain.txt"):
        result = recording.record(recording.machine_config(region_base=None))
    return result.exit_status, (folder / "plain.txt").read_bytes()


def trapped(row: Row, folder: Path) -> tuple[int | None, bytes, dict[str, Any]]:
    """The same with traps, QEMU's log beside the records."""
    recording = guest_run.Recording(request(row, folder / "trapped"), traps=True)
    size_mib = recording.settings.region_bytes >> 20
    device = ["-device", f"nvme,serial=ptat,cmb_size_mb={size_mib},legacy-cmb=on"]
    base = bar.probe_bar(recording.machine_config(extra=device))
    logging = log_arguments(folder / "qemu.log")
    config = recording.machine_config(region_base=base, extra=[*device, *logging])
    with stdout_to(folder / "trapped.txt"):
        result = recording.record(
            config, lambda machine: enable(machine, True), lambda machine: enable(machine, False)
        )
    if not result.complete:
        raise BoardError(f"{row.name}: {result.incomplete_reason}")
    return result.exit_status, (folder / "trapped.txt").read_bytes(), result.metadata


def check(row: Row, folder: Path) -> dict[str, Any]:
    """One row of the result."""
    plain_status, plain_output = plain(row, folder)
    status, output, metadata = trapped(row, folder)
    base, size_bytes = metadata["region"]["base"], metadata["region"]["size_bytes"]
    with (folder / "qemu.log").open("rb") as lines:
        read = walks(accesses(lines, base, size_bytes))
    result = Result()
    for ring in metadata["traps"]:
        records = read_records(folder / "trapped" / ring["file"])
        compare(read.get(ring["cpu"], []), records, range(base, base + size_bytes), result)
    same = status == plain_status and stable(output) == stable(plain_output)
    shown = {
        "workload": row.name,
        "cpus": row.cpus,
        "records": result.records,
        "walks_poisoned": result.walks_poisoned,
        "order_mismatches": result.order_mismatches,
        "silent_walks": result.silent_walks,
        "lost": sum(ring["lost"] for ring in metadata["traps"]),
        "output_same": same,
    }
    mismatches = metadata["kernel"]["check"].get("mismatches")
    if mismatches:
        raise BoardError(f"{row.name}: region and twins differ in {mismatches} entries")
    for warning in metadata["kernel"]["warnings"]:
        if not EXPECTED_WARNING.search(warning):
            raise BoardError(f"{row.name}: the kernel warns: {warning}")
    return shown


def is_right(row: dict[str, Any]) -> bool:
    """All that must hold of a row."""
    return bool(
        row["records"]
        and row["records"] == row["walks_poisoned"]
        and not row["order_mismatches"]
        and not row["lost"]
        and row["output_same"]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make check-trap", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the rows that the tests check")
    parser.add_argument("--keep", type=Path, help="leave logs and sessions in this directory")
    parser.add_argument("rows", nargs="*", help="only these")
    options = parser.parse_args(arguments)
    build.kernel()
    rows = [
        row
        for row in ROWS
        if (row.name in options.rows if options.rows else row.small or not options.small)
    ]
    shown = []
    for row in rows:
        with contextlib.ExitStack() as stack:
            if options.keep:
                folder = options.keep / row.name
                folder.mkdir(parents=True)
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with progress(f"checking {row.name}"):
                shown.append(check(row, folder))
        print(f"{'right' if is_right(shown[-1]) else 'WRONG'} {shown[-1]}", file=sys.stderr)
    print(json.dumps({"rows": shown}))
    return 0 if all(map(is_right, shown)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BoardError, subprocess.SubprocessError) as error:
        sys.exit(f"check-trap: {error}")
