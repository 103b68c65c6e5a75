# SPDX-License-Identifier: BSD-2-Clause
"""One recording on this machine: requirements of the kernel, and the steps of a recording."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ptat_host.boards import recorder_programs
from ptat_host.boards.base import BoardError, Check, RecordRequest
from ptat_host.boards.buffer_fill import Fill
from ptat_host.boards.live import child
from ptat_host.boards.live.child import Run
from ptat_host.boards.live.clock import KernelMessages
from ptat_host.boards.live.kernel_files import (
    CHECK_FILE,
    CONTROL,
    MARKER_CLOCK,
    MARKER_START,
    MARKER_STOP,
    TABLES_FREE_MS,
)
from ptat_host.boards.live.lock import lock
from ptat_host.boards.live.tracing import Tracing, events_of

KERNEL_HINT = "boot a kernel with the series in kernel-patch/ and the parameter ptat=SIZE@ADDRESS"


def numbers(text: str) -> dict[str, int]:
    """The "name value" lines of a sysfs file."""
    return {name: int(value, 0) for name, value in (line.split() for line in text.splitlines())}


def directory_numbers(directory: Path) -> dict[str, int]:
    """The numbers in the files of a sysfs directory, by name."""
    return {path.name: int(path.read_text(), 0) for path in directory.iterdir()}


def checks() -> list[Check]:
    """Checks whether a command can be traced on this machine."""
    found = []
    if not CONTROL.exists():
        found.append(Check("kernel", False, f"no {CONTROL}: it lacks PTAT", KERNEL_HINT))
    elif not (CONTROL / "region").exists():
        found.append(Check("kernel", False, "PTAT has no region", KERNEL_HINT))
    else:
        found.append(Check("kernel", True, f"{os.uname().release} has PTAT with a region"))
    root = os.geteuid() == 0
    found.append(
        Check(
            "root",
            root,
            "yes" if root else "no: only root may choose what is traced",
            None if root else "use sudo",
        )
    )
    return found


def require() -> None:
    """Raise `BoardError` unless a command can be traced on this machine."""
    for check in checks():
        if not check.ok:
            raise BoardError(f"this machine cannot be traced: {check.detail}", check.hint or "")


@contextlib.contextmanager
def _set_up() -> Iterator[None]:
    """Raise a `BoardError` with a remedy if a file of sysfs or tracefs cannot be used."""
    try:
        yield
    except OSError as error:
        raise BoardError(
            f"cannot set up the kernel's log: {error.filename}: {error.strerror}",
            "check that tracefs is mounted at /sys/kernel/tracing, and that you are root",
        ) from error


def _marker_access() -> str:
    """How the kernel marks its events; kernels without this setting store."""
    file = CONTROL / "marker_access"
    return file.read_text().strip() if file.exists() else "store"


class LiveMachine:
    """Reserves this machine for one recording; a context manager that releases it."""

    def __init__(self, request: RecordRequest, tsc: str | None = None) -> None:
        """Reserve the kernel's PTAT and set up its log; nothing is traced yet.

        :param tsc: frequency of the TSC in Hz as the user gave it.
        :raises BoardError: this machine cannot be traced, or is being traced already.
        """
        require()
        if request.region_bytes is not None:
            raise BoardError("--region: this machine's region is fixed at boot", KERNEL_HINT)
        self._request = request
        self._log = request.session_dir / "kernel"
        self._failure: str | None = None
        self._cpus = sorted(os.sched_getaffinity(0))
        with contextlib.ExitStack() as taking:
            lock(taking)
            self._messages = KernelMessages(taking)
            self._tsc_hz = self._messages.frequency(tsc)
            self._marker = os.open(CONTROL / "marker", os.O_WRONLY)
            taking.callback(os.close, self._marker)
            self._choice = os.open(CONTROL / "self", os.O_WRONLY)
            taking.callback(os.close, self._choice)
            with _set_up():
                (CONTROL / "levels").write_text(request.levels)
                self._read_back(taking)
                self._choose_markers(taking)
                self._tracing = Tracing(
                    self._log, events_of(request), self._cpus, taking, self._fail
                )
            self._before = directory_numbers(CONTROL / "stat")
            self._resources = taking.pop_all()

    def __enter__(self) -> LiveMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def region(self) -> dict[str, Any]:
        """`region` of session.json."""
        region = directory_numbers(CONTROL / "region")
        return {
            "base": region["base"],
            "size_bytes": region["size"],
            "marker_slots": region["marker_slots"],
            "marker_stride_bytes": region["marker_stride"],
            "levels": self._request.levels,
            "readback": (CONTROL / "readback").read_text().strip() == "on",
            "markers": _marker_access(),
        }

    @property
    def kernel(self) -> dict[str, Any]:
        """The part of `kernel` of session.json that is known before the run."""
        return {
            "release": os.uname().release,
            "clock": "x86-tsc",
            "tsc_hz": self._tsc_hz,
            "cpus": len(self._cpus),
            "events": events_of(self._request),
        }

    @property
    def cpu(self) -> dict[str, Any]:
        """`cpu` of session.json."""
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        return {"name": found[1] if found else "unknown"}

    def run(self, tick: Callable[[], str | None]) -> Run:
        """Run the traced command, and fetch its log.

        :param tick: called ten times a second; returns the reason why the recording must end, or
            None.
        :raises BoardError: the command cannot be run.
        """
        run, request = Run(), self._request

        def beat() -> str | None:
            self._mark(MARKER_CLOCK)
            return run.failure or self._failure or tick()

        try:
            with child.adopting(request.children):
                with self._maps() as maps:
                    env = request.env
                    if maps and maps.socket and request.heap_bytes is not None:
                        env = recorder_programs.heap_environment(
                            env, request.heap_bytes, maps.socket
                        )
                    self._mark(MARKER_START)
                    child.attend(child.start(request, env, self._choice), beat, run)
                if maps and not maps.written:
                    self._fail(f"cannot write {self._log}/maps.jsonl")
                if request.children:
                    child.end_children()
                self._mark(MARKER_STOP)
        finally:
            self._tracing.finish()
        run.failure = run.failure or self._failure
        return run

    def fills(self) -> list[Fill]:
        """Fill levels of the buffers of the kernel's log."""
        return self._tracing.fills()

    def aftermath(self) -> dict[str, Any]:
        """The part of `kernel` of session.json that is known only after the run."""
        deadline = time.monotonic() + TABLES_FREE_MS / 1000
        stat = directory_numbers(CONTROL / "stat")
        while stat.get("used") and time.monotonic() < deadline:
            time.sleep(0.01)
            stat = directory_numbers(CONTROL / "stat")
        for name in ("detaches", "secureexecs"):
            stat[name] -= self._before[name]
        check = None
        # The region may be gone.
        if CHECK_FILE.exists() and not stat.get("detached"):
            check = numbers(CHECK_FILE.read_text())
        return {"stat": stat, "check": check, "warnings": self._messages.warnings()}

    def _read_back(self, taking: contextlib.ExitStack) -> None:
        """Let the kernel read the region back before it flushes TLBs, if the request says so.

        Else the kernel's default stays, which reads back if the region is a device.
        """
        if self._request.readback:
            file = CONTROL / "readback"
            taking.callback(file.write_text, file.read_text())
            file.write_text("on")

    def _choose_markers(self, taking: contextlib.ExitStack) -> None:
        """Let the kernel mark its events as the request says, or by default."""
        wanted = self._request.markers
        if wanted is None or wanted == _marker_access():
            return
        file = CONTROL / "marker_access"
        if not file.exists():
            raise BoardError(
                f"this kernel cannot mark its events by loads: it has no {file}",
                "boot one with the present series in kernel-patch/; until then, only record from"
                " a bus that keeps order (--contract program)",
            )
        taking.callback(file.write_text, file.read_text())
        file.write_text(wanted)

    def _mark(self, marker: str) -> None:
        os.write(self._marker, marker.encode())

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why

    def _maps(self) -> contextlib.AbstractContextManager[recorder_programs.Recording | None]:
        if not self._request.maps:
            return contextlib.nullcontext()
        heap = self._request.heap_bytes is not None
        return recorder_programs.Recording(self._log / "maps.jsonl", heap)
