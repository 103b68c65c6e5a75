# SPDX-License-Identifier: BSD-2-Clause
"""The board `testbed-bar`: the region in a PCI BAR, its bus trace made by QEMU alone.

The BAR is the controller memory buffer of QEMU's NVMe device: memory that QEMU reaches through
functions, never directly. So each entry that the walker of its own soft TLB reads there passes a
trace event of QEMU, as do the kernel's stores. No plugin of ours takes part: the trace is an
oracle that is independent of our model.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_parser import wire
from ptat_testbed.boards import guest_run
from ptat_testbed.guest.qemu import Machine, MachineConfig

TICK_HZ = 1_000_000
"""QEMU stamps its trace in microseconds."""
GRANULARITY_BYTES = 8
TRACE_EVENTS = ("memory_region_ops_read", "memory_region_ops_write")
NVME_ID = (0x1B36, 0x0010)
CMB_BAR = 2
FIRMWARE_TIMEOUT_S = 60.0
READ_BYTES = 1 << 18

ACCESS = (
    rb"memory_region_ops_(?P<kind>read|write) cpu (?P<cpu>-?\d+) mr \S+"
    rb" addr 0x(?P<address>[0-9a-f]+) value 0x(?P<value>[0-9a-f]+)"
)
"""A line of QEMU's trace, without the time before and the size after: an access of a device."""

# The time is one of two: seconds, as QEMU 10 writes it, or date and time (UTC), as QEMU 11 does.
_LINE = re.compile(
    rb"(?:\d+@(?P<seconds>\d+)\.(?P<us>\d{6}):"
    rb"|(?P<date>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(?P<date_us>\d{6})Z )"
    + ACCESS
    + rb" size \d+ name '[^']*'"
)


@cache
def _seconds(date: bytes) -> int:
    """Of 1970, of a date and time in UTC; there are few of them."""
    when = datetime.fromisoformat(date.decode()).replace(tzinfo=UTC)
    return int(when.timestamp())


def _ticks(found: re.Match[bytes]) -> int:
    """The time of a line, in microseconds of 1970.

    :raises ValueError: there is no such date.
    """
    if found["seconds"]:
        return int(found["seconds"]) * TICK_HZ + int(found["us"])
    return _seconds(found["date"]) * TICK_HZ + int(found["date_us"])


class TraceWriter:
    """Turns QEMU's trace log into a capture stream.

    Accesses outside the region are other devices' and left out. Whatever is no line of the trace
    is counted in `bad_lines`.
    """

    def __init__(self, file: BinaryIO, region: range) -> None:
        from ptat_parser.capture.writer import (
            BlockWriter,  # imports numba, which other boards do not need
        )

        self._writer = BlockWriter(file)
        self._region = region
        self._rest = b""
        self._time_ticks = 0
        self.bad_lines = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece of the log; it may end anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            found = _LINE.fullmatch(line)
            if not found:
                self.bad_lines += 1
                continue
            address = int(found["address"], 16)
            if address not in self._region:
                continue
            try:
                ticks = self._advance(_ticks(found))
            except ValueError:
                self.bad_lines += 1
                continue
            write = found["kind"] == b"write"
            self._writer.access(ticks, address & -GRANULARITY_BYTES, write)

    def mark(self, code: wire.Mark) -> None:
        """Put a mark between what was fed before and after."""
        self._writer.mark(self._advance(time.time_ns() * TICK_HZ // 1_000_000_000), code)

    def finish(self) -> None:
        """The log has ended."""
        self.bad_lines += bool(self._rest)
        self._writer.flush()

    def _advance(self, ticks: int) -> int:
        # It is the clock of the day, which may be set back.
        self._time_ticks = max(self._time_ticks, ticks)
        return self._time_ticks


class Trace:
    """QEMU's trace of one recording: a pipe that QEMU logs to, and a thread that reads it.

    The pipe makes QEMU wait for us, so nothing is lost and no log fills the disk.
    """

    def __init__(self, path: Path, region: range) -> None:
        self._path = path
        self._file = path.open("wb")
        self._writer = TraceWriter(self._file, region)
        self._reader, self.fd = os.pipe()
        self._stopped = False
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._read)

    def arguments(self) -> list[str]:
        """QEMU's; `fd` is to be passed on to it."""
        return ["-msg", "timestamp=on", "-D", f"/proc/self/fd/{self.fd}"]

    def start(self, machine: Machine) -> None:
        """Trace from now on."""
        os.close(self.fd)  # QEMU has its own: the pipe ends with QEMU
        with self._catching():
            self._writer.mark(wire.Mark.START)
        self._thread.start()
        self._enable(machine, True)

    def stop(self, machine: Machine) -> None:
        """Trace no longer. What was traced is all in the pipe then."""
        self._enable(machine, False)
        self._stopped = True

    def join(self) -> None:
        """Once QEMU has ended: write out all that is left."""
        if self._thread.ident is None:
            os.close(self.fd)
        else:
            self._thread.join()
        os.close(self._reader)
        with self._catching():
            self._writer.finish()
        with self._catching():
            self._file.close()
        if self._writer.bad_lines and self.failure is None:
            self.failure = f"{self._writer.bad_lines} lines of QEMU's trace cannot be understood"

    def _enable(self, machine: Machine, enable: bool) -> None:
        for name in TRACE_EVENTS:
            machine.qmp.execute("trace-event-set-state", name=name, enable=enable)

    def _read(self) -> None:
        while data := os.read(self._reader, READ_BYTES):
            if self.failure is None:
                with self._catching():
                    self._writer.feed(data)
        if self._stopped and self.failure is None:
            with self._catching():
                self._writer.mark(wire.Mark.STOP)

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = self.failure or f"cannot write {self._path}: {error.strerror}"


def bar_address(pci: object) -> int | None:
    """Where the firmware put the controller memory buffer, from QMP's ``query-pci``."""
    for bus in pci if isinstance(pci, list) else []:
        for device in bus["devices"]:
            if (device["id"]["vendor"], device["id"]["device"]) == NVME_ID:
                for bar in device["regions"]:
                    if bar["bar"] == CMB_BAR and bar["address"] > 0:
                        address: int = bar["address"]
                        return address
    return None


def probe_bar(config: MachineConfig) -> int:
    """Let the firmware of this machine place the BAR, and say where.

    :raises BoardError: it does not.
    """
    deadline = time.monotonic() + FIRMWARE_TIMEOUT_S
    with Machine(replace(config, kernel=None, initramfs=None, console=None)) as machine:
        while time.monotonic() < deadline:
            address = bar_address(machine.qmp.execute("query-pci"))
            if address is not None:
                return address
            time.sleep(0.01)
    raise BoardError("QEMU's firmware gives the NVMe device's memory buffer no address")


class BarBoard:
    """The patched kernel in QEMU, its walks seen by QEMU's own trace."""

    name = "testbed-bar"
    options: Mapping[str, Option] = guest_run.OPTIONS

    def check(self) -> list[Check]:
        """What `record` needs; builds nothing."""
        return guest_run.check_common()

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command in the guest; see `Board.record`."""
        if request.granularity_bytes not in (None, GRANULARITY_BYTES):
            raise BoardError(
                f"--granularity {request.granularity_bytes}: a BAR's bus shows"
                f" {GRANULARITY_BYTES} bytes"
            )
        recording = guest_run.Recording(request)
        size_mib = 1 << (recording.settings.region_bytes - 1 >> 20).bit_length()
        device = ["-device", f"nvme,serial=ptat,cmb_size_mb={size_mib},legacy-cmb=on"]
        base = probe_bar(recording.machine_config(extra=device))
        file = "bus.0.raw"
        trace = Trace(
            request.session_dir / file, range(base, base + recording.settings.region_bytes)
        )
        try:
            result = recording.record(
                recording.machine_config(
                    region_base=base, extra=[*device, *trace.arguments()], pass_fds=[trace.fd]
                ),
                on_start=trace.start,
                on_stop=trace.stop,
            )
        finally:
            trace.join()
        if result.complete and trace.failure:
            result.ended, result.reason = False, trace.failure
        result.metadata["board"] = {
            "granularity_bytes": GRANULARITY_BYTES,
            "walk_reads": "all",
            "channels": [{"index": 0, "file": file, "tick_hz": TICK_HZ}],
        }
        result.metadata["cpu"] = {"name": "QEMU TCG, its own soft TLB"}
        return result
