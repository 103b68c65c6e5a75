# SPDX-License-Identifier: BSD-2-Clause
"""``make sim-pcie``: does the simulated endpoint see what QEMU's own page walker reads?

The region lies in the endpoint's BAR (see `boards.pcie`), and QEMU logs each access of it, as in
`testbed-bar`. The endpoint's trace, which its DMA wrote into the guest's memory, must be that log,
access by access. ``ptat validate`` must explain each read.

In one workload nobody empties the ring at first: its walks must come to a stop, and nothing
may be missing after the ring is emptied. Others record themselves, through the driver of their own
kernel (see `pcie_driver`); QEMU's log is cut where the driver starts and ends the recording.

Ends with one JSON line, of all workloads: ``{"walks", "records", "qemu_reads", "equal", "lost",
"unexplained", "exact", "walks_per_s"}``. `exact`: each read of the trace is a step of a walk that
the kernel's log explains. Exit status 1 if something differs, is lost or is not explained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_host.boards.base import BoardError, RecordRequest, RecordResult
from ptat_host.recording import session_recording
from ptat_parser.capture.reader import BusReader
from ptat_testbed.boards import pcie
from ptat_testbed.bus import pcie as pcie_bus
from ptat_testbed.guest.qemu import Machine
from ptat_testbed.suites import check_trap
from ptat_testbed.suites.pcie_driver import DrivenGuest, record_command

PTAT = [sys.executable, "-m", "ptat_host.cli"]
STALL_RING_BLOCKS = 2
STALL_SEEN_S = 1.0
STALL_PATIENCE_S = 600.0
Accesses = npt.NDArray[np.uint64]
"""Addresses in the region, plus 1 for a write."""


@dataclass(frozen=True)
class Row:
    """A workload; its ring is left alone at first if it is to `stall`.

    `driver`: the guest records itself.
    """

    name: str
    argv: tuple[str, ...]
    cpus: int = 1
    small: bool = False
    stall: bool = False
    driver: bool = False


ROWS = (
    Row("gups-small", ("gups", "--bytes", "16M", "--updates", "2K"), small=True),
    Row("seqpage", ("seqpage", "--bytes", "16M")),
    Row("gups", ("gups", "--bytes", "16M", "--updates", "20K")),
    Row("python3", ("python3", "-I", "-S", "-c", "print(sum(range(1000)))")),
    Row("fork-exec", ("forkexec",), cpus=2),
    Row("stall", ("gups", "--bytes", "16M", "--updates", "5K"), stall=True),
    Row("driver-gups", ("gups", "--bytes", "16M", "--updates", "20K"), driver=True),
    Row("driver-fork-exec", ("forkexec",), cpus=2, driver=True),
)


class LoggedBoard(pcie.PcieBoard):
    """The board, with QEMU's log of the BAR beside it."""

    def __init__(self, log: Path, stall: bool) -> None:
        self._log = log
        self._stall = stall
        if stall:
            self.ring_blocks = STALL_RING_BLOCKS
        self.base = self.region_bytes = self.reads = 0
        self.seconds = 0.0
        self.stalled = False

    def run(self, run: pcie.CoSimulated) -> RecordResult:
        """Both logs begin and end while the guest waits for us."""
        waiter = threading.Thread(target=self._wait_for_stall, args=[run])

        def start(machine: Machine) -> None:
            run.start()
            if self._stall:
                run.ring.leave_alone(True)
                waiter.start()
            check_trap.enable(machine, True)
            self._begun_s, self._reads_before = time.monotonic(), run.device.counts().reads

        def stop(machine: Machine) -> None:
            self.seconds = time.monotonic() - self._begun_s
            self.reads = run.device.counts().reads - self._reads_before
            check_trap.enable(machine, False)
            run.ring.stop()

        self.base, self.region_bytes = run.base, run.recording.settings.region_bytes
        result = run.recording.record(
            run.machine_config(check_trap.log_arguments(self._log)),
            on_start=start,
            on_stop=stop,
        )
        if self._stall:
            waiter.join()
        return result

    def _wait_for_stall(self, run: pcie.CoSimulated) -> None:
        """Empty the ring when a walk has waited for long and no other has been answered."""
        deadline_s = time.monotonic() + STALL_PATIENCE_S
        while time.monotonic() < deadline_s and not self.stalled:
            before = run.device.counts()
            time.sleep(STALL_SEEN_S)
            after = run.device.counts()
            self.stalled = before.waiting and after.waiting and before.reads == after.reads
        run.ring.leave_alone(False)


def logged(path: Path, base: int, region_bytes: int) -> Accesses:
    """Accesses of the region in QEMU's log."""

    def found() -> Iterator[int]:
        with path.open("rb") as lines:
            for line in lines:
                if match := check_trap.LINE.search(line):
                    address = int(match[3], 16)
                    if base <= address < base + region_bytes:
                        yield (address & -8) + (match[1] == b"write")

    return np.fromiter(found(), np.uint64)


def logged_recording(path: Path, region: range, control: int) -> Accesses:
    """The same between the driver's stores to the register `control` that start and end it all."""

    def found() -> Iterator[int]:
        recording = False
        with path.open("rb") as lines:
            for line in lines:
                if match := check_trap.LINE.search(line):
                    address, write = int(match[3], 16), match[1] == b"write"
                    if recording and address in region:
                        yield (address & -8) + write
                    elif write and address == control:
                        recording = bool(int(match[4], 16) & 1)

    return np.fromiter(found(), np.uint64)


def captured(path: Path) -> Accesses:
    """The same of the endpoint's trace."""
    chunks = [chunk.address + chunk.write.astype(np.uint64) for chunk in BusReader(path)]
    return np.concatenate(chunks) if chunks else np.empty(0, np.uint64)


@dataclass
class Recorded:
    """A recording, and QEMU's log of it."""

    session: Path
    expected: Accesses
    more: dict[str, Any]
    """What else the row's line has."""


def record_from_here(row: Row, folder: Path) -> Recorded:
    """This machine empties the ring."""
    session = folder / "session"
    session.mkdir(parents=True)
    log = folder / "qemu.log"
    board = LoggedBoard(log, row.stall)
    request = RecordRequest(
        argv=row.argv,
        session_dir=session,
        cwd=Path.cwd(),
        env=dict(os.environ),
        children=True,
        options={"cpus": str(row.cpus), "memory": "512M"},
    )
    result = session_recording.record(board, request, archive=False)
    if not result.complete:
        raise BoardError(f"{row.name}: {result.incomplete_reason}")
    return Recorded(
        session,
        logged(log, board.base, board.region_bytes),
        {
            "walks_per_s": round(board.reads / board.seconds),
            **({"stalled": board.stalled} if row.stall else {}),
        },
    )


def run_logged(
    guest: DrivenGuest, device: pcie_bus.CoSimulation, folder: Path
) -> tuple[RecordResult, Accesses]:
    """Run a guest that records itself; QEMU's log of what its driver recorded.

    :raises BoardError: it recorded nothing.
    """
    path = folder / "qemu.log"
    result = guest.run(
        on_start=lambda machine: check_trap.enable(machine, True),
        on_stop=lambda machine: check_trap.enable(machine, False),
        extra=check_trap.log_arguments(path),
    )
    description = guest.session / "session.json"
    if not description.exists():
        raise BoardError(result.incomplete_reason or "ptat record failed in the guest, see above")
    region = json.loads(description.read_text())["region"]
    base = region["base"]
    addresses = range(base, base + region["size_bytes"])
    control = base + device.register_offset("endpoint_snooper_control")
    return result, logged_recording(path, addresses, control)


def record_in_guest(row: Row, folder: Path) -> Recorded:
    """The guest's driver does."""
    folder.mkdir(parents=True)
    with pcie_bus.CoSimulation(pcie.BAR_BYTES_MIN) as device:
        guest = DrivenGuest(record_command(row.argv), folder, device, row.cpus)
        result, expected = run_logged(guest, device, folder)
    if result.exit_status or not result.complete:
        why = result.incomplete_reason or "ptat record failed, see above"
        raise BoardError(f"{row.name}: {why}")
    return Recorded(guest.session, expected, {})


def check(row: Row, folder: Path) -> dict[str, Any]:
    """Record, compare and validate a row."""
    recorded = (record_in_guest if row.driver else record_from_here)(row, folder)
    records, expected = captured(recorded.session / pcie.FILE), recorded.expected
    validated = subprocess.run(
        [*PTAT, "validate", str(recorded.session), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        verdict = json.loads(validated.stdout)
    except json.JSONDecodeError:
        raise BoardError(f"{row.name}: ptat validate: {validated.stderr.strip()}") from None
    return {
        "walks": verdict["trace_misses"],
        "records": len(records),
        "qemu_reads": int((expected % 2 == 0).sum()),
        "equal": bool(len(expected)) and np.array_equal(records, expected),
        "lost": verdict["lost"],
        "unexplained": verdict["unexplained"],
        "exact": bool(verdict["ok"] and verdict["explained"] and verdict["kernel_reads"] == 0),
        **recorded.more,
    }


def is_right(found: dict[str, Any]) -> bool:
    """All that must hold of a row."""
    return bool(
        found["records"]
        and found["equal"]
        and found["exact"]
        and found.get("stalled", True)
        and not found["lost"]
        and not found["unexplained"]
    )


def total(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last line: sums, and what holds of all rows; the speed is that of the slowest.

    A guest that records itself is as busy with that as with walks: its speed says nothing.
    """
    return {
        **{name: sum(row[name] for row in rows) for name in ("walks", "records", "qemu_reads")},
        "equal": all(row["equal"] for row in rows),
        **{name: sum(row[name] for row in rows) for name in ("lost", "unexplained")},
        "exact": all(row["exact"] for row in rows),
        "walks_per_s": min(
            (row["walks_per_s"] for row in rows if "walks_per_s" in row), default=None
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make sim-pcie", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="one short row")
    parser.add_argument("--keep", type=Path, help="leave logs and sessions in this directory")
    parser.add_argument("rows", nargs="*", help="only these")
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - {row.name for row in ROWS}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    rows = [
        row
        for row in ROWS
        if (row.name in options.rows if options.rows else row.small == options.small)
    ]
    found = []
    for row in rows:
        with tempfile.TemporaryDirectory() as temporary:
            found.append(check(row, (options.keep or Path(temporary)) / row.name))
        right = "right" if is_right(found[-1]) else "WRONG"
        print(f"{right} {row.name}: {json.dumps(found[-1])}", file=sys.stderr, flush=True)
    print(json.dumps(total(found)))
    return 0 if all(map(is_right, found)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BoardError as error:
        sys.exit(f"sim-pcie: {error}")
