# SPDX-License-Identifier: BSD-2-Clause
"""Boards on Ethernet: the stream comes in datagrams that are acknowledged (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections import deque

from ptat_host import protocol
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Link, LinkError
from ptat_host.boards.hardware import HardwareBoard
from ptat_host.protocol import CHUNK_BYTES, DATA_HEADER, Frame, ProtocolError

WINDOW_CHUNKS = 8192
"""What the host has room for, in datagrams: 8 MiB."""
WRITE_CHUNKS = 256
"""Written at once, if there are so many."""
SOCKET_BUFFER_BYTES = 16 << 20
ACK_EVERY_CHUNKS = 64
ACK_GAP_S = 0.001
ACK_IDLE_S = 0.01
TAIL_SILENCE_S = 2.0
DATAGRAM_BYTES_MAX = 2048
_SEQ = 1 << 32


class UdpLink(Link):
    """One board at a host and port; one socket for commands and stream."""

    def __init__(self, address: str) -> None:
        """Nothing is sent yet.

        :raises BoardError: there is no such host.
        """
        host, separator, port = address.rpartition(":")
        if not separator:
            host, port = address, str(protocol.UDP_PORT)
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise BoardError(f"{port!r} is no port", "write it as --board udp:HOST:PORT")
        self._address = f"{host}:{port}"
        try:
            family, kind, number, _, where = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_DGRAM
            )[0]
        except OSError as error:
            raise BoardError(f"there is no host {host}: {error.strerror}") from None
        self._socket = socket.socket(family, kind, number)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._socket.connect(where)
        self._frames: deque[Frame] = deque()
        self._arrived = threading.Condition()
        self._capture: UdpCapture | None = None

    @property
    def name(self) -> str:
        """``udp:`` and where it is."""
        return f"udp:{self._address}"

    def send(self, data: bytes) -> None:
        """See `Link.send`. An unreachable board looks like one that does not answer."""
        try:
            self._socket.send(data)
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOBUFS):
                raise LinkError(f"{self.name}: {error.strerror}") from None

    def receive(self, timeout_s: float) -> list[Frame]:
        """See `Link.receive`."""
        if self._capture is not None and self._capture.is_running:
            # The capture reads the socket, and hands over what is no data.
            with self._arrived:
                self._arrived.wait_for(lambda: self._frames, timeout_s)
                frames = list(self._frames)
                self._frames.clear()
                return frames
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        try:
            data = self._socket.recv(DATAGRAM_BYTES_MAX)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                time.sleep(min(timeout_s, 0.05))  # it may be about to start
                return []
            raise LinkError(f"{self.name}: {error.strerror}") from None
        return _frames(data)

    def deliver(self, data: bytes | memoryview) -> None:
        """Take a datagram that is no data; called by the capture's thread."""
        with self._arrived:
            self._frames.extend(_frames(data))
            self._arrived.notify()

    def drain(self) -> int:
        """Nothing to drop: datagrams bear the host they are for."""
        return 0

    def capture(self, fd: int, host: int) -> UdpCapture:
        """See `Link.capture`."""
        self._capture = UdpCapture(self, self._socket, fd, host)
        return self._capture

    def close(self) -> None:
        """See `Link.close`."""
        self._socket.close()


def _frames(data: bytes | memoryview) -> list[Frame]:
    try:
        return [Frame.decode(data)]
    except ProtocolError:
        return []  # as if it had been lost


class UdpCapture:
    """Puts datagrams in order, has those repeated that were lost, and writes them.

    Each is received to where it belongs if it is the next one; only others are moved.
    """

    def __init__(self, link: UdpLink, sock: socket.socket, fd: int, host: int) -> None:
        self._link = link
        self._socket = sock
        self._fd = fd
        self._host = host
        self._ring = memoryview(bytearray(WINDOW_CHUNKS * CHUNK_BYTES))
        self._present = bytearray(WINDOW_CHUNKS)
        """Which chunks of the window have arrived out of order."""
        self._next = 0
        """Chunks that have arrived without a gap; not wrapped."""
        self._highest = 0
        """One past the highest that has arrived."""
        self._written = 0
        self._last: int | None = None
        """Length of the stream in chunks, once it is known."""
        self._repeated = 0
        self._out_of_order = 0
        self._foreign = 0
        self._failure: str | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="udp-capture", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it reads the socket."""
        return self._thread.is_alive()

    @property
    def received_bytes(self) -> int:
        """See `Capture`."""
        return self._next * CHUNK_BYTES

    @property
    def failure(self) -> str | None:
        """See `Capture`."""
        return self._failure

    @property
    def counters(self) -> dict[str, int]:
        """What the network did to the stream."""
        return {
            "repeated_datagrams": self._repeated,
            "out_of_order_datagrams": self._out_of_order,
            "foreign_datagrams": self._foreign,
        }

    def finish(self, expected_bytes: int | None) -> None:
        """See `Capture.finish`."""
        before, since_s = -1, time.monotonic()
        while self._failure is None and time.monotonic() - since_s < TAIL_SILENCE_S:
            if self._next != before:
                before, since_s = self._next, time.monotonic()
            if self._next == self._last:
                break
            if expected_bytes is not None and self.received_bytes >= expected_bytes:
                break
            time.sleep(0.002)
        self._stopping = True
        self._thread.join()

    def _run(self) -> None:
        header = bytearray(DATA_HEADER.size)
        # Behind a chunk there may be more, where the datagram is none of ours.
        rest = bytearray(DATAGRAM_BYTES_MAX)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        self._socket.setblocking(False)
        acked, ack_s = 0, time.monotonic()
        while not self._stopping and self._failure is None:
            slot = self._slot(self._next)
            try:
                size = self._socket.recvmsg_into([header, slot, rest])[0]
            except BlockingIOError:
                self._write()
                self._acknowledge()
                acked, ack_s = self._next, time.monotonic()
                poll.poll(ACK_IDLE_S * 1000)
                continue
            except OSError as error:
                if error.errno != errno.ECONNREFUSED:
                    self._failure = str(error.strerror)
                continue
            self._take(header, slot, size)
            if self._next - self._written >= WRITE_CHUNKS:
                self._write()
            gap = self._highest > self._next
            if self._next - acked >= ACK_EVERY_CHUNKS or (
                gap and time.monotonic() - ack_s > ACK_GAP_S
            ):
                self._acknowledge()
                acked, ack_s = self._next, time.monotonic()
        self._write()
        self._socket.setblocking(True)

    def _slot(self, chunk: int) -> memoryview:
        at = chunk % WINDOW_CHUNKS * CHUNK_BYTES
        return self._ring[at : at + CHUNK_BYTES]

    def _take(self, header: bytearray, slot: memoryview, size: int) -> None:
        if size < DATA_HEADER.size or header[:4] != protocol.DATA_MAGIC.to_bytes(4, "little"):
            if size <= DATA_HEADER.size + CHUNK_BYTES:
                self._link.deliver(bytes(header) + bytes(slot[: size - DATA_HEADER.size]))
            return
        _, seq, channel, flags, _, host = DATA_HEADER.unpack(header)
        payload_bytes = size - DATA_HEADER.size
        is_end = bool(flags & protocol.DATA_LAST)
        if host != self._host or channel or payload_bytes not in (CHUNK_BYTES, 0):
            self._foreign += 1
            return
        if not payload_bytes and not is_end:
            self._foreign += 1
            return
        chunk = self._next + (seq - self._next) % _SEQ
        if chunk - self._next >= _SEQ // 2:
            self._repeated += 1
            return
        if is_end:
            self._last = chunk + (payload_bytes != 0)
        if not payload_bytes:
            return
        if chunk == self._next:
            self._next += 1
            while self._present[self._next % WINDOW_CHUNKS]:
                self._present[self._next % WINDOW_CHUNKS] = 0
                self._next += 1
            self._highest = max(self._highest, self._next)
        elif chunk >= self._written + WINDOW_CHUNKS:
            self._foreign += 1  # the board does not heed the window
        elif self._present[chunk % WINDOW_CHUNKS]:
            self._repeated += 1
        else:
            self._slot(chunk)[:] = slot
            self._present[chunk % WINDOW_CHUNKS] = 1
            self._highest = max(self._highest, chunk + 1)
            self._out_of_order += 1

    def _write(self) -> None:
        """Write what is there without a gap."""
        while self._written < self._next and self._failure is None:
            at = self._written % WINDOW_CHUNKS
            count = min(self._next - self._written, WINDOW_CHUNKS - at)
            data = self._ring[at * CHUNK_BYTES : (at + count) * CHUNK_BYTES]
            while data and self._failure is None:
                try:
                    data = data[os.write(self._fd, data) :]
                except OSError as error:
                    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                    self._failure = "no space left for the capture" if full else error.strerror
            self._written += count

    def _acknowledge(self) -> None:
        ranges: list[tuple[int, int]] = []
        chunk = self._next
        while chunk < self._highest and len(ranges) < protocol.ACK_RANGES_MAX:
            first = chunk
            while chunk < self._highest and not self._present[chunk % WINDOW_CHUNKS]:
                chunk += 1
            if chunk > first:
                ranges.append((first, chunk - first))
            while chunk < self._highest and self._present[chunk % WINDOW_CHUNKS]:
                chunk += 1
        # The slot of the next datagram must be free of what is not yet written.
        window = WINDOW_CHUNKS - (self._next - self._written) - 1
        message = protocol.ACK_HEADER.pack(
            protocol.ACK_MAGIC, self._host, self._next % _SEQ, window, len(ranges)
        )
        for first, count in ranges:
            message += protocol.ACK_RANGE.pack(first % _SEQ, count)
        with contextlib.suppress(OSError):  # as if it had been lost
            self._socket.send(message)


class UdpBoard(HardwareBoard):
    """A board on Ethernet and this machine."""

    kind = "udp"

    def discover(self) -> list[str]:
        """None: a board on the network must be named."""
        return []

    def open(self, address: str | None) -> UdpLink:
        """The board at ``HOST:PORT`` or ``HOST``."""
        if address is None:
            raise BoardError("where is the board?", "write it as --board udp:HOST:PORT")
        return UdpLink(address)
