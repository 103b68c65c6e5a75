# SPDX-License-Identifier: BSD-2-Clause
"""The kernel's side of a recording: a separate tracing instance, and its log in files."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ptat_host.boards.base import RecordRequest
from ptat_host.boards.buffer_fill import Fill
from ptat_host.boards.live.kernel_files import (
    BUFFER_SIZE,
    EVENTS,
    LOG_FLUSH_MS,
    PAGE_BYTES,
    PAGE_FORMATS,
    TRACE_SETTINGS,
    TRACING,
)
from ptat_parser.kernel.tracepoints import (
    ENTRY_EVENTS,
    FAULT_EVENTS,
    FLUSH_EVENTS,
    TABLE_EVENTS,
    folder_of,
)

INSTANCE = "ptat"
LOG_PAGES = 64
"""Pages of the log to write at once."""
BUFFER_MAX_KIB = 16 * 1024


def events_of(request: RecordRequest) -> list[str]:
    """The tracepoints to enable."""
    events = list(TABLE_EVENTS)
    if request.entries:
        events += ENTRY_EVENTS
    if request.faults:
        events += FAULT_EVENTS
    if request.markers == "load":  # behind a memory controller
        events += FLUSH_EVENTS
    return events


class Tracing:
    """A tracing instance that logs events to files; the user's own tracing is left alone.

    :param log: the directory of the files.
    :param taking: removes the instance at its end, after the rest of the log is written.
    :param broken: called with the reason if the log cannot be written.
    :raises OSError: tracefs cannot be used.
    """

    def __init__(
        self,
        log: Path,
        events: Sequence[str],
        cpus: Sequence[int],
        taking: contextlib.ExitStack,
        broken: Callable[[str], None],
    ) -> None:
        self._log, self._cpus, self._broken = log, cpus, broken
        self._loggers: list[_Logger] = []
        self._instance = instance = TRACING / "instances" / INSTANCE
        self._end = os.eventfd(0)
        taking.callback(os.close, self._end)
        if instance.exists():
            instance.rmdir()  # of a ptat that was killed: we have the lock
        instance.mkdir()
        taking.callback(_remove, instance)
        self._configure()
        self._enable(events)
        taking.callback(self.finish)  # also if not all loggers could be started
        for cpu in cpus:
            raw = instance / "per_cpu" / f"cpu{cpu}" / "trace_pipe_raw"
            self._loggers.append(_Logger(raw, log / f"cpu{cpu}.raw", self._end, broken))

    def _configure(self) -> None:
        instance = self._instance
        memory_kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
        buffer_kib = min(BUFFER_MAX_KIB, memory_kib // 16 // len(self._cpus))
        for name, text in TRACE_SETTINGS.items():
            (instance / name).write_text(text)
        (instance / BUFFER_SIZE).write_text(str(buffer_kib))

    def _enable(self, events: Sequence[str]) -> None:
        """Enable the events and keep their formats."""
        formats = self._log / "formats"
        formats.mkdir(parents=True)
        for name in PAGE_FORMATS:
            (formats / name).write_bytes((TRACING / "events" / name).read_bytes())
        for event in events:
            source = self._instance / EVENTS / folder_of(event)
            (formats / event).write_bytes((source / "format").read_bytes())
            (source / "enable").write_text("1")

    def fills(self) -> list[Fill]:
        """Fill levels of the buffers of the kernel's log."""
        found = []
        for cpu in self._cpus:
            directory = self._instance / "per_cpu" / f"cpu{cpu}"
            with contextlib.suppress(OSError, ValueError):
                used = re.search(r"^bytes: (\d+)", (directory / "stats").read_text(), re.M)
                kib = (directory / BUFFER_SIZE).read_text().split()[0]
                if used:
                    found.append(Fill(f"kernel log, CPU {cpu}", int(used[1]), int(kib) * 1024))
        return found

    def finish(self) -> None:
        """Write the rest of the log; may be called again."""
        if not self._loggers:
            return
        (self._instance / "tracing_on").write_text("0")
        os.eventfd_write(self._end, 1)
        for cpu, logger in zip(self._cpus, self._loggers, strict=False):
            logger.join()
            stats = self._instance / "per_cpu" / f"cpu{cpu}" / "stats"
            try:
                (self._log / f"cpu{cpu}.stats").write_bytes(stats.read_bytes())
            except OSError as error:
                self._broken(f"cannot write {self._log}: {error.strerror}")
        self._loggers = []


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
        """Write the available pages, up to the buffer's size; return whether there may be more."""
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


def _remove(instance: Path) -> None:
    with contextlib.suppress(OSError):
        (instance / "events" / "enable").write_text("0")
    with contextlib.suppress(OSError):
        instance.rmdir()
