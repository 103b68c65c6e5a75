# SPDX-License-Identifier: BSD-2-Clause
"""The rings of ``/dev/ptat``, in which this machine's kernel records trapped TLB misses.

The kernel writes records, and waits for us if a ring is nearly full; see
``include/uapi/linux/ptat.h`` of the series in ``kernel-patch/``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptat_host.boards.base import BoardError
from ptat_host.boards.buffer_fill import Fill
from ptat_parser.formats import traps

DEVICE = Path("/dev/ptat")
CONTROL = Path("/sys/class/misc/ptat")
POLL_MS = 50
BOOT_HINT = "boot a kernel with the series in kernel-patch/ and the parameter ptat=SIZE,trap"

PAGE = np.dtype(
    [
        *((name, "<u8") for name in ("head", "tail", "lost", "waits")),
        *((name, "<u4") for name in ("records", "record_bytes", "data_offset", "cpu")),
    ]
)
"""The first page of each mapping, ``struct ptat_trap_ring``."""


class Ring:
    """The ring of one CPU, mapped, and the file that its records go to."""

    def __init__(self, device: int, cpu: int, ring_bytes: int, directory: Path) -> None:
        """Map it. `OSError` if the CPU has none, or the file cannot be created."""
        self._mapped = mmap.mmap(device, ring_bytes, offset=cpu * ring_bytes)
        self._page = np.frombuffer(self._mapped, PAGE, 1)[0:1]
        if int(self._page["record_bytes"][0]) != traps.RECORD.itemsize:
            raise BoardError(
                "this kernel's records have another format",
                "use ptat and kernel patches of the same version",
            )
        self._data_offset = int(self._page["data_offset"][0])
        self._records = int(self._page["records"][0])
        self.path = directory / f"trap{cpu}.raw"
        self._file = self.path.open("wb", buffering=0)

    @property
    def used(self) -> int:
        """Unread records."""
        return int(self._page["head"][0]) - int(self._page["tail"][0])

    def drain(self) -> None:
        """Write the unread records to the file. `OSError` if that fails."""
        # x86 keeps the kernel's order of the records and of the head, and that of our loads.
        head, tail = int(self._page["head"][0]), int(self._page["tail"][0])
        while tail != head:
            first = tail % self._records
            count = min(head - tail, self._records - first)
            start = self._data_offset + first * traps.RECORD.itemsize
            end = start + count * traps.RECORD.itemsize
            while start < end:
                with memoryview(self._mapped)[start:end] as left:
                    start += self._file.write(left) or 0
            tail += count
            self._page["tail"] = tail

    def described(self) -> dict[str, Any]:
        """The element of `traps` in session.json for the written records."""
        return {
            "cpu": int(self._page["cpu"][0]),
            "records": int(self._page["tail"][0]),
            "lost": int(self._page["lost"][0]),
            "waits": int(self._page["waits"][0]),
            "file": f"{self.path.parent.name}/{self.path.name}",
        }

    def fill(self) -> Fill:
        """Its fill level."""
        lost = int(self._page["lost"][0])
        return Fill(f"traps, {self.path.stem}", self.used, self._records, "records", lost)

    def close(self) -> None:
        """Unmap it."""
        self._file.close()
        del self._page
        self._mapped.close()


class Rings:
    """All rings, drained by a thread; a context manager. While it is open, misses can trap."""

    def __init__(self, directory: Path, broken: Callable[[str], None]) -> None:
        """Open the device.

        :param directory: gets the records.
        :param broken: called by the thread if records cannot be written; misses do not trap then.
        :raises BoardError: there is no such device, or another process has opened it.
        """
        self._broken = broken
        self._ending = threading.Event()
        self._in_use = threading.Lock()
        """Lock for reading and unmapping rings."""
        try:
            self._device = os.open(DEVICE, os.O_RDWR)
        except OSError as error:
            raise BoardError(*_why(error)) from None
        self._rings: list[Ring] = []
        self._last: list[dict[str, Any]] = []
        ring_bytes = int((CONTROL / "ring_bytes").read_text())
        try:
            for cpu in range(os.sysconf("SC_NPROCESSORS_CONF")):
                self._rings.append(Ring(self._device, cpu, ring_bytes, directory))
        except (OSError, BoardError) as error:
            self.close()
            if isinstance(error, BoardError):
                raise
            raise BoardError(f"cannot record traps: {error}") from None
        self._thread = threading.Thread(target=self._run, name="traps", daemon=True)
        self._thread.start()

    def __enter__(self) -> Rings:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.close()

    def finish(self) -> None:
        """Write the rest after tracing has ended; may be called again."""
        self._ending.set()
        self._thread.join()

    def close(self) -> None:
        """Give the device back: processes that are still traced continue untraced."""
        with self._in_use:
            self._last = [ring.described() for ring in self._rings] or self._last
            for ring in self._rings:
                ring.close()
            self._rings = []
            if self._device >= 0:
                os.close(self._device)
                self._device = -1

    def described(self) -> list[dict[str, Any]]:
        """`traps` of session.json."""
        with self._in_use:
            return [ring.described() for ring in self._rings] or self._last

    def fills(self) -> list[Fill]:
        """Fill levels of the rings; empty after they were released."""
        with self._in_use:
            return [ring.fill() for ring in self._rings]

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        last = False
        try:
            while not last:
                last = self._ending.is_set()
                for ring in self._rings:
                    ring.drain()
                poll.poll(POLL_MS)  # also lets threads go on that wait for room
        except OSError as error:
            with contextlib.suppress(OSError):
                self.close()
            self._broken(f"cannot write records of traps: {error.strerror}")


def _why(error: OSError) -> tuple[str, str]:
    if error.errno == errno.ENOENT:
        return f"there is no {DEVICE}: misses do not trap on this machine", BOOT_HINT
    if error.errno == errno.EBUSY:
        return f"{DEVICE} is in use", "another ptat records: wait for it"
    if error.errno == errno.EACCES:
        return f"{DEVICE} cannot be opened", "use sudo"
    return f"{DEVICE}: {error.strerror}", BOOT_HINT
