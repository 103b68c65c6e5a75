# SPDX-License-Identifier: BSD-2-Clause
"""This machine as the one that is traced: its kernel has PTAT, and a board listens to its bus.

What the testbed's init does inside the guest, done here as root: choose the command's address
space, log the kernel's side through a tracing instance of our own, and mark begin and end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptat_host import recorder
from ptat_host.boards.base import BoardError, Check, RecordRequest
from ptat_host.fill import Fill
from ptat_parser.kernel.tracepoints import ENTRY_EVENTS, FAULT_EVENTS, TABLE_EVENTS

CONTROL = Path("/sys/kernel/mm/ptat")
TRACING = Path("/sys/kernel/tracing")
INSTANCE = "ptat"
LOCK = Path("/run/ptat.lock")
CHECK_FILE = Path("/sys/kernel/debug/ptat/check")
KERNEL_HINT = "boot a kernel with the series in kernel-patch/ and the parameter ptat=SIZE@ADDRESS"

PAGE_BYTES = 4096
LOG_PAGES = 64
"""Pages of the log written at once."""
BUFFER_MAX_KIB = 16 * 1024
LOG_FLUSH_MS = 250
TICK_S = 0.1
"""How often the clocks get a marker, and the link is looked at."""
GRACE_S = 2.0
TABLES_FREE_S = 1.0
MARKER_CLOCK, MARKER_START, MARKER_STOP = b"0", b"1", b"2"
PR_SET_CHILD_SUBREAPER = 36
KMSG_BYTES = 8192
WARNING_LEVEL = 4

_TSC = re.compile(r"tsc: (Refined TSC clocksource calibration|Detected):? ([0-9.]+) MHz")


def events_of(request: RecordRequest) -> list[str]:
    """The tracepoints to enable."""
    events = list(TABLE_EVENTS)
    if request.entries:
        events += ENTRY_EVENTS
    if request.faults:
        events += FAULT_EVENTS
    return events


def numbers(text: str) -> dict[str, int]:
    """The "name value" lines of a sysfs file."""
    return {name: int(value, 0) for name, value in (line.split() for line in text.splitlines())}


def directory_numbers(directory: Path) -> dict[str, int]:
    """The files of a directory in sysfs that hold a number each, by name."""
    return {path.name: int(path.read_text(), 0) for path in directory.iterdir()}


def checks() -> list[Check]:
    """Whether a command can be traced on this machine."""
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


def lock(taking: contextlib.ExitStack) -> None:
    """Keep other ptats from this machine's bus until `taking` ends.

    :raises BoardError: one has it.
    """
    file = taking.enter_context(LOCK.open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BoardError(
            "another ptat is tracing this machine", "wait for it: there is one bus"
        ) from None


def tsc_hz(messages: str) -> int | None:
    """The frequency of the TSC from the kernel's messages; the refined one if it is there."""
    found = {kind: float(mhz) for kind, mhz in _TSC.findall(messages)}
    mhz = found.get("Refined TSC clocksource calibration") or found.get("Detected")
    return round(mhz * 1e6) if mhz else None


@dataclass
class Run:
    """How the command ended."""

    exit_status: int | None = None
    interrupted: bool = False
    failure: str | None = None
    """Why the recording is not complete."""


class _Logger:
    """Moves one CPU's ring buffer to a file, page by page."""

    def __init__(self, raw: Path, target: Path, end: int, broken: Callable[[str], None]) -> None:
        self._end = end
        self._broken = broken
        self._target = target
        with contextlib.ExitStack() as opening:
            self._raw = os.open(raw, os.O_RDONLY | os.O_NONBLOCK)
            opening.callback(os.close, self._raw)
            self._file = opening.enter_context(target.open("wb", buffering=0))
            # Filled in at the end: the log of a ptat that is killed can be read without.
            target.with_suffix(".stats").touch()
            self._resources = opening.pop_all()
        self._thread = threading.Thread(target=self._run, name=target.name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """To be called after the end was signalled."""
        self._thread.join()
        self._resources.close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._raw, select.POLLIN)
        poll.register(self._end, select.POLLIN)
        pages = memoryview(bytearray(LOG_PAGES * PAGE_BYTES))
        ending = False
        try:
            while not ending:
                ending = any(fd == self._end for fd, _ in poll.poll(LOG_FLUSH_MS))
                while self._drain(pages):
                    pass
        except OSError as error:
            self._broken(f"cannot write {self._target}: {error.strerror}")

    def _drain(self, pages: memoryview) -> bool:
        """Write what there is, up to the buffer's size; whether there may be more."""
        size = 0
        while size < len(pages):
            page = pages[size : size + PAGE_BYTES]
            try:
                count = os.readv(self._raw, [page])
            except BlockingIOError:
                count = 0
            if not count:
                break
            # A page is written whole; what follows is unused.
            page[count:] = bytes(PAGE_BYTES - count)
            size += PAGE_BYTES
        left = pages[:size]
        while left:
            left = left[self._file.write(left) or 0 :]
        return size == len(pages)


class LiveMachine:
    """One recording's hold of this machine; a context manager that gives it back."""

    def __init__(self, request: RecordRequest, tsc: str | None = None) -> None:
        """Take hold of the kernel's PTAT and set up its log; nothing is traced yet.

        :param tsc: frequency of the TSC in Hz as the user gave it.
        :raises BoardError: this machine cannot be traced, or somebody else is doing it.
        """
        require()
        if request.region_bytes is not None:
            raise BoardError(
                "--region: the region of this machine was chosen when it booted", KERNEL_HINT
            )
        self._request = request
        self._log = request.session_dir / "kernel"
        self._failure: str | None = None
        self._loggers: list[_Logger] = []
        self._cpus = sorted(os.sched_getaffinity(0))
        with contextlib.ExitStack() as taking:
            lock(taking)
            self._kmsg = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            taking.callback(os.close, self._kmsg)
            self._tsc_hz = self._frequency(tsc)
            self._marker = os.open(CONTROL / "marker", os.O_WRONLY)
            taking.callback(os.close, self._marker)
            self._self = os.open(CONTROL / "self", os.O_WRONLY)
            taking.callback(os.close, self._self)
            self._end = os.eventfd(0)
            taking.callback(os.close, self._end)
            self._trace(taking)
            self._before = directory_numbers(CONTROL / "stat")
            self._resources = taking.pop_all()

    def __enter__(self) -> LiveMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def region(self) -> dict[str, Any]:
        """`region` of session.json."""
        told = directory_numbers(CONTROL / "region")
        return {
            "base": told["base"],
            "size_bytes": told["size"],
            "marker_slots": told["marker_slots"],
            "marker_stride_bytes": told["marker_stride"],
            "levels": self._request.levels,
            "readback": (CONTROL / "readback").read_text().strip() == "on",
        }

    @property
    def kernel(self) -> dict[str, Any]:
        """`kernel` of session.json, as far as it is known before the run."""
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
        """Run the command, traced, and take its log.

        :param tick: called ten times a second; what it returns is why the recording must end.
        :raises BoardError: the command cannot be run.
        """
        run = Run()
        children = self._request.children
        if children:
            # What it leaves behind comes to us, and ends with the recording.
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            with self._maps() as maps:
                env = self._request.env
                if maps and maps.socket and self._request.heap_bytes is not None:
                    env = recorder.heap_environment(env, self._request.heap_bytes, maps.socket)
                os.write(self._marker, MARKER_START)
                self._attend(self._start(env), tick, run)
            if maps and not maps.written:
                self._fail(f"cannot write {self._log}/maps.jsonl")
            if children:
                _end_children()
            os.write(self._marker, MARKER_STOP)
        finally:
            if children:
                ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            self._take_log()
        run.failure = run.failure or self._failure
        return run

    def _read_back(self, taking: contextlib.ExitStack) -> None:
        """Let the kernel read the region back before it flushes TLBs, if that was asked for.

        Else the kernel's own choice stays: it does so where the region is a device.
        """
        if self._request.readback:
            file = CONTROL / "readback"
            taking.callback(file.write_text, file.read_text())
            file.write_text("on")

    def fills(self) -> list[Fill]:
        """How full the buffers of the kernel's log are."""
        found = []
        for cpu in self._cpus:
            directory = self._instance / "per_cpu" / f"cpu{cpu}"
            with contextlib.suppress(OSError, ValueError):
                used = re.search(r"^bytes: (\d+)", (directory / "stats").read_text(), re.M)
                kib = (directory / "buffer_size_kb").read_text().split()[0]
                if used:
                    found.append(Fill(f"kernel log, CPU {cpu}", int(used[1]), int(kib) * 1024))
        return found

    def aftermath(self) -> dict[str, Any]:
        """`kernel` of session.json, what is only known after the run."""
        deadline = time.monotonic() + TABLES_FREE_S  # tables are given back after a grace period
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
        return {"stat": stat, "check": check, "warnings": self._warnings()}

    def _frequency(self, given: str | None) -> int:
        """The TSC's; the kernel's messages are read up to now."""
        messages = "\n".join(self._messages())
        if given is not None:
            if not (given.isascii() and given.isdigit() and int(given)):
                raise BoardError(f"--tsc-hz {given}: not a number of Hz")
            return int(given)
        if found := tsc_hz(messages):
            return found
        raise BoardError(
            "the kernel's message with the TSC's frequency is gone from its log",
            "find it (journalctl -k -b | grep tsc:) and give it as --tsc-hz 2600000000",
        )

    def _messages(self) -> Iterator[str]:
        """Records of the kernel's log that were not read yet: ``level,…;text``."""
        while True:
            try:
                yield os.read(self._kmsg, KMSG_BYTES).decode(errors="replace")
            except BrokenPipeError:
                continue  # some were overwritten
            except BlockingIOError:
                return

    def _warnings(self) -> list[str]:
        found = []
        for message in self._messages():
            prefix, _, text = message.partition(";")
            if int(prefix.split(",")[0]) & 7 <= WARNING_LEVEL:
                found.append(text.splitlines()[0])
        return found

    def _trace(self, taking: contextlib.ExitStack) -> None:
        """Set up a tracing instance: the user's own tracing is left alone."""
        instance = TRACING / "instances" / INSTANCE
        try:
            if instance.exists():
                instance.rmdir()  # of a ptat that was killed: we have the lock
            instance.mkdir()
            taking.callback(_remove, instance)
            (CONTROL / "levels").write_text(self._request.levels)
            self._read_back(taking)
            memory_kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
            buffer_kib = min(BUFFER_MAX_KIB, memory_kib // 16 // len(self._cpus))
            (instance / "trace_clock").write_text("x86-tsc")
            (instance / "buffer_size_kb").write_text(str(buffer_kib))
            (instance / "buffer_percent").write_text("10")
            # A full buffer drops new events and counts them; the rest stays whole.
            (instance / "options" / "overwrite").write_text("0")
            formats = self._log / "formats"
            formats.mkdir(parents=True)
            for name in ("header_page", "header_event"):
                (formats / name).write_bytes((TRACING / "events" / name).read_bytes())
            for event in events_of(self._request):
                source = instance / "events" / "ptat" / event
                (formats / event).write_bytes((source / "format").read_bytes())
                (source / "enable").write_text("1")
            for cpu in self._cpus:
                self._loggers.append(
                    _Logger(
                        instance / "per_cpu" / f"cpu{cpu}" / "trace_pipe_raw",
                        self._log / f"cpu{cpu}.raw",
                        self._end,
                        self._fail,
                    )
                )
        except OSError as error:
            raise BoardError(
                f"cannot set up the kernel's log: {error.filename}: {error.strerror}",
                "see that tracefs is mounted at /sys/kernel/tracing, and that you are root",
            ) from error
        taking.callback(self._take_log)
        self._instance = instance

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why

    def _maps(self) -> contextlib.AbstractContextManager[recorder.Recording | None]:
        if not self._request.maps:
            return contextlib.nullcontext()
        heap = self._request.heap_bytes is not None
        return recorder.Recording(self._log / "maps.jsonl", heap)

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        how = b"2" if self._request.children else b"1"
        command = self._request.argv[0]
        try:
            return subprocess.Popen(
                self._request.argv,
                cwd=self._request.cwd,
                env=env,
                preexec_fn=lambda: os.write(self._self, how),
            )
        except (OSError, subprocess.SubprocessError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise BoardError(f"cannot run {command}: {why}") from None

    def _attend(
        self, child: subprocess.Popen[bytes], tick: Callable[[], str | None], run: Run
    ) -> None:
        """Until the command has ended; at a second interruption it is killed."""
        pidfd = os.pidfd_open(child.pid)
        asked_s: float | None = None
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            while True:
                try:
                    if poll.poll(TICK_S * 1000):
                        break
                    # A program that changes no page table leaves no markers: the clocks need some.
                    os.write(self._marker, MARKER_CLOCK)
                    if run.failure is None:
                        run.failure = self._failure or tick()
                    if run.failure and asked_s is None:
                        asked_s = time.monotonic()
                        if not run.interrupted:
                            child.terminate()
                    elif asked_s is not None and time.monotonic() - asked_s > GRACE_S:
                        child.kill()
                except KeyboardInterrupt:
                    # A terminal has told the command, too.
                    if run.interrupted:
                        child.kill()
                    run.interrupted = True
                    run.failure = run.failure or "interrupted"
        finally:
            os.close(pidfd)
        status = child.wait()
        run.exit_status = status if status >= 0 else 128 - status

    def _take_log(self) -> None:
        """Write the rest of the log; may be called again."""
        if not self._loggers:
            return
        (self._instance / "tracing_on").write_text("0")
        os.eventfd_write(self._end, 1)
        for cpu, logger in zip(self._cpus, self._loggers, strict=True):
            logger.join()
            stats = self._instance / "per_cpu" / f"cpu{cpu}" / "stats"
            try:
                (self._log / f"cpu{cpu}.stats").write_bytes(stats.read_bytes())
            except OSError as error:
                self._fail(f"cannot write {self._log}: {error.strerror}")
        self._loggers = []


def _remove(instance: Path) -> None:
    with contextlib.suppress(OSError):
        (instance / "events" / "enable").write_text("0")
    with contextlib.suppress(OSError):
        instance.rmdir()


def _end_children() -> None:
    """Kill what has been left to us, until nothing is."""
    while True:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # pid (comm) state ppid …; comm may hold anything.
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
