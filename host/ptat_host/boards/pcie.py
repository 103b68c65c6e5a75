# SPDX-License-Identifier: BSD-2-Clause
"""Boards on PCIe that hold the page tables: blocks from the driver's ring into a file.

::

    Client ── frames ──► PcieLink ── ioctl ──► driver ──► registers of the board
    file ◄── RingCapture ◄── mapped ring ◄──────────────── the board's DMA

Such a board has no firmware; the driver executes commands. So `PcieLink` answers frames itself, and
everything else works as with other boards.
"""

from __future__ import annotations

import errno
import math
import os
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ptat_host import protocol
from ptat_host.boards import pcie_driver
from ptat_host.boards.base import BoardError, ObserveRequest, Option, RecordRequest, RecordResult
from ptat_host.boards.client import Link, LinkError
from ptat_host.boards.hardware import STREAM_CHANNEL, HardwareBoard
from ptat_host.boards.pcie_driver import Device
from ptat_host.boards.stream import block_header, has_right_check
from ptat_host.protocol import Command, Frame, Health, State, Status, Stopped
from ptat_host.sizes import parse_size
from ptat_parser import wire

if TYPE_CHECKING:
    from ptat_host.calibration.observations import Observed

RING = "64M"
PATIENCE_MS = "10"
PIECE_BLOCKS = 512
"""Blocks that are written, and returned to the ring, at a time."""
POLL_MS = 50
PARTIAL_COUNT, HELD_COUNT, OVERDUE_COUNT = 8, 12, 13
"""Numbers of `Counters.counts`; the first 8 are packets that the board refused, by kind."""
_MILLISECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
NO_CALIBRATION = "a PCIe board sees addresses: it needs no calibration"


class RingCapture:
    """Writes blocks from the mapped ring into a file as they arrive."""

    def __init__(self, device: Device, fd: int, ring_blocks: int) -> None:
        """Map the ring; `begin` starts the thread."""
        self._device = device
        self._fd = fd
        self._ring = device.ring(ring_blocks)
        self._view = memoryview(self._ring)
        self.blocks = len(self._ring) // wire.BLOCK_BYTES
        """Size of the ring."""
        self._tail = 0
        self._received_bytes = 0
        self._failure: str | None = None
        self._finished = False
        self._writable = True
        self.counts: dict[str, int] = {}
        """The board's counters."""
        self._stop = os.eventfd(0)
        self._thread: threading.Thread | None = None

    @property
    def received_bytes(self) -> int:
        """See `Capture`."""
        return self._received_bytes

    @property
    def failure(self) -> str | None:
        """See `Capture`; reported at the end: the program continues without the board."""
        return self._failure if self._finished else None

    @property
    def counters(self) -> dict[str, int]:
        """The board's counters, if it could be queried."""
        return self.counts

    @property
    def taken(self) -> int:
        """Blocks taken from the ring."""
        return self._tail

    def begin(self) -> None:
        """Start the thread when the recording has begun."""
        self._thread = threading.Thread(target=self._run, name="pcie-capture", daemon=True)
        self._thread.start()

    def finish(self, expected_bytes: int | None) -> None:
        """See `Capture.finish`: a board that has stopped has all blocks in the ring."""
        os.eventfd_write(self._stop, 1)
        if self._thread:
            self._thread.join()
        self._finished = True

    def close(self) -> None:
        """Unmap the ring."""
        self.finish(None)
        self._view.release()
        self._ring.close()
        os.close(self._stop)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._device.fd, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        stopping = False
        try:
            while self._drain() or not stopping:
                stopping = stopping or any(fd == self._stop for fd, _ in poll.poll(POLL_MS))
        except LinkError as error:
            self._fail(error.message)
            self._salvage()

    def _drain(self) -> bool:
        """Write the available blocks, and return them to the ring; return whether there were
        any."""
        head = self._device.take(self._tail)
        some = head != self._tail
        while head != self._tail:
            self._write(min((head - self._tail) % 2**32, PIECE_BLOCKS))
            head = self._device.take(self._tail)
        return some

    def _write(self, count: int) -> None:
        """Write at most `count` of the next blocks, directly from the ring."""
        place = self._tail % self.blocks
        count = min(count, self.blocks - place)
        start = place * wire.BLOCK_BYTES
        left = self._view[start : start + count * wire.BLOCK_BYTES]
        # What a full disk does not take is dropped: walks must not wait for it.
        while left and self._writable:
            try:
                written = os.write(self._fd, left)
            except OSError as error:
                self._writable = False
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                self._fail("no space left for the capture" if full else str(error.strerror))
                break
            left = left[written:]
            self._received_bytes += written
        self._tail = (self._tail + count) % 2**32

    def _salvage(self) -> None:
        """Write the complete blocks that are left in the ring after an error."""
        for _ in range(self.blocks):
            start = self._tail % self.blocks * wire.BLOCK_BYTES
            block = self._view[start : start + wire.BLOCK_BYTES]
            header = int.from_bytes(block[:8], "little")
            if header != block_header(STREAM_CHANNEL, self._tail) or not has_right_check(block):
                break
            self._write(1)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = why
            print(f"ptat: {why}; the rest of the run is not recorded", file=sys.stderr)


class PcieLink(Link):
    """One board on PCIe, whose driver executes commands immediately."""

    def __init__(self, address: str | None, ring_blocks: int, patience_ns: int) -> None:
        """Open the board at that PCI address, or the only one.

        :raises BoardError: there is none, or it cannot be opened.
        """
        self._device = Device(address)
        self._ring_blocks = ring_blocks
        self._patience_ns = patience_ns
        self._capture: RingCapture | None = None
        self._state = State.IDLE
        self._answers: deque[Frame] = deque()
        self._commands: Mapping[Command, Callable[[], bytes | Status]] = {
            Command.IDENTIFY: lambda: self._device.identity().encode(),
            Command.START: self._start,
            Command.STOP: self._stop,
            Command.HEALTH: self._health,
            Command.HEARTBEAT: lambda: protocol.STATE_RESPONSE.pack(self._state),
            # The driver records all of the region, from START on.
            Command.SET_WINDOWS: lambda: b"",
            Command.TRIGGER: lambda: b"",
        }

    @property
    def name(self) -> str:
        """``pcie:`` and the address."""
        return f"pcie:{self._device.address}"

    def send(self, data: bytes) -> None:
        """See `Link.send`."""
        request = Frame.decode(data)
        execute = self._commands.get(Command(request.command))
        result = Status.UNKNOWN_COMMAND if execute is None else execute()
        status, payload = (result, b"") if isinstance(result, Status) else (Status.OK, result)
        answer = Frame(
            request.command, request.id, payload, request.host, status=status, response=True
        )
        self._answers.append(answer)

    def receive(self, timeout_s: float) -> list[Frame]:
        """See `Link.receive`."""
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def drain(self) -> int:
        """See `Link.drain`: the driver empties the ring when it is opened."""
        return 0

    def capture(self, fd: int, host: int) -> RingCapture:
        """See `Link.capture`."""
        self._capture = RingCapture(self._device, fd, self._ring_blocks)
        return self._capture

    def close(self) -> None:
        """See `Link.close`."""
        if self._capture:
            self._capture.close()
        self._device.close()

    def _start(self) -> bytes | Status:
        if self._capture is None:
            return Status.WRONG_STATE
        self._device.start(self._patience_ns)
        self._state = State.RECORDING
        self._capture.begin()
        return protocol.STATE_RESPONSE.pack(self._state)

    def _stop(self) -> bytes | Status:
        before = self._state
        if self._capture is None or before == State.IDLE:
            return Stopped(self._capture.taken if self._capture else 0, before).encode()
        if not self._device.stop():
            return Status.NOT_YET
        counters = self._device.counters()
        counts = counters.counts
        self._capture.counts = {
            "held_clocks": counts[HELD_COUNT],
            "overdue_accesses": counts[OVERDUE_COUNT],
            "partial_accesses": counts[PARTIAL_COUNT],
            "refused_packets": sum(counts[: protocol.ILLEGAL_KINDS]),
        }
        self._state = State.IDLE
        return Stopped(counters.blocks, before).encode()

    def _health(self) -> bytes:
        counters = self._device.counters()
        used, room = 0, self._ring_blocks
        if self._capture and self._state == State.RECORDING:
            room = self._capture.blocks
            # The thread may have taken more meanwhile.
            used = max(0, counters.blocks - self._capture.taken)
        return Health(
            fill_bytes=used * wire.BLOCK_BYTES,
            capacity_bytes=room * wire.BLOCK_BYTES,
            matched=counters.matched,
            lost=counters.lost,
            blocks=counters.blocks,
            illegal=counters.counts[: protocol.ILLEGAL_KINDS],
            temperature_mc=None,
            state=self._state,
        ).encode()


def _patience_ns(milliseconds: str) -> int:
    if not _MILLISECONDS.fullmatch(milliseconds):
        raise BoardError(
            f"--patience-ms {milliseconds}: not a number of milliseconds", "write it as 10 or 0.05"
        )
    # Rounded up, as 0 is for ever.
    return math.ceil(Decimal(milliseconds) * 10**6)


class PcieBoard(HardwareBoard):
    """A board on PCIe that holds this machine's page tables."""

    kind = "pcie"
    options: Mapping[str, Option] = {
        "tsc-hz": HardwareBoard.options["tsc-hz"],
        "ring": Option("memory for what the board has seen and the disk has not yet", RING),
        "patience-ms": Option(
            "how long a page walk may wait for room in the ring before its record is lost;"
            " 0: for ever, though a machine gives up after 50 us to 50 ms",
            PATIENCE_MS,
        ),
    }

    def __init__(self, address: str | None = None) -> None:
        """See `HardwareBoard`."""
        super().__init__(address)
        self._choose({})

    def _choose(self, options: Mapping[str, str]) -> None:
        size_bytes = parse_size(options.get("ring", RING), "--ring")
        self._ring_blocks = -(-size_bytes // wire.BLOCK_BYTES)
        self._patience_ns = _patience_ns(options.get("patience-ms", PATIENCE_MS))

    def discover(self) -> list[str]:
        """PCI addresses."""
        return pcie_driver.addresses()

    def open(self, address: str | None) -> PcieLink:
        """The board at that PCI address, or the only one."""
        return PcieLink(address, self._ring_blocks, self._patience_ns)

    def record(self, request: RecordRequest) -> RecordResult:
        """See `Board.record`."""
        self._choose(request.options)
        return super().record(request)

    def observe(self, request: ObserveRequest) -> Observed:
        """Refuse: these boards see addresses, so there is nothing to calibrate."""
        raise BoardError(NO_CALIBRATION, "record with it")

    def load(self, mapping: Path) -> list[str]:
        """Refuse: these boards see addresses, so there is nothing to program."""
        raise BoardError(NO_CALIBRATION, "record with it")
