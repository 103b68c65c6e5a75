# SPDX-License-Identifier: BSD-2-Clause
"""Boards on Ethernet, whose stream comes in acknowledged datagrams (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import threading
import time
from collections import deque

import numpy as np
import numpy.typing as npt

from ptat_host import protocol
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Link, LinkError
from ptat_host.boards.hardware import HardwareBoard
from ptat_host.protocol import CHUNK_BYTES, DATA_HEADER, Frame, ProtocolError

WINDOW_CHUNKS = 8192
"""Datagrams that the host has room for: 8 MiB."""
BATCH_CHUNKS = 128
"""Most datagrams to receive at a time."""
WRITE_CHUNKS = 256
"""Most blocks to write at a time."""
SOCKET_BUFFER_BYTES = 16 << 20
ACK_EVERY_CHUNKS = 64
ACK_GAP_S = 0.001
ACK_IDLE_S = 0.01
TAIL_SILENCE_S = 2.0
DATAGRAM_BYTES = DATA_HEADER.size + CHUNK_BYTES
DATAGRAM_BYTES_MAX = 2048
_SEQ = 1 << 32
_SO_RCVBUFFORCE = 33  # Linux; the module socket does not have it


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
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES)
        except PermissionError:  # others than root get what net.core.rmem_max allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._socket.connect(where)
        self._frames: deque[Frame] = deque()
        self._arrived = threading.Condition()
        self._capture: UdpCapture | None = None

    @property
    def name(self) -> str:
        """``udp:`` and its address."""
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
        """Accept a datagram without data; called by the capture's thread."""
        with self._arrived:
            self._frames.extend(_frames(data))
            self._arrived.notify()

    def drain(self) -> int:
        """Nothing to drop, because datagrams name their host."""
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


# struct mmsghdr and struct iovec of 64-bit Linux.
_MESSAGE = np.dtype(
    [
        ("name", "<u8"),
        ("name_bytes", "<u8"),
        ("iov", "<u8"),
        ("iovs", "<u8"),
        ("control", "<u8"),
        ("control_bytes", "<u8"),
        ("flags", "<u8"),
        ("bytes", "<u4"),
        ("padding", "<u4"),
    ]
)
_IOVEC = np.dtype([("base", "<u8"), ("bytes", "<u8")])
_HEADER_WORDS = DATA_HEADER.size // 8

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.recvmmsg.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_int,
    ctypes.c_void_p,
]


class _Ring:
    """Buffers for a window of datagrams (header and chunk), many of which the kernel fills at a
    time.

    Chunk N of the stream belongs into slot N modulo the window.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        chunks = np.zeros(WINDOW_CHUNKS * CHUNK_BYTES, np.uint8)
        self.chunks = chunks.data
        self.headers = np.zeros((WINDOW_CHUNKS, _HEADER_WORDS), "<u8")
        self._iovs = np.zeros((WINDOW_CHUNKS, 2), _IOVEC)
        slots = np.arange(WINDOW_CHUNKS, dtype=np.uint64)
        for i, (array, size) in enumerate(
            ((self.headers, DATA_HEADER.size), (chunks, CHUNK_BYTES))
        ):
            self._iovs["base"][:, i] = array.ctypes.data + slots * np.uint64(size)
            self._iovs["bytes"][:, i] = size
        self._messages = np.zeros(WINDOW_CHUNKS, _MESSAGE)
        self._messages["iov"] = self._iovs.ctypes.data + slots * np.uint64(2 * _IOVEC.itemsize)
        self._messages["iovs"] = 2

    def receive(self, slot: int, count: int) -> int:
        """Receive up to `count` datagrams into the slots from `slot` on; 0: there are none.

        :raises OSError: of the socket.
        """
        at = self._messages.ctypes.data + slot * _MESSAGE.itemsize
        # With MSG_TRUNC the size reveals a datagram that is too long.
        flags = socket.MSG_DONTWAIT | socket.MSG_TRUNC
        got: int = _LIBC.recvmmsg(self._fd, at, count, flags, None)
        if got < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return 0
            raise OSError(number, os.strerror(number))
        return got

    def sizes(self, slot: int, count: int) -> npt.NDArray[np.uint32]:
        """Sizes of the datagrams received last, in bytes."""
        sizes: npt.NDArray[np.uint32] = self._messages["bytes"][slot : slot + count]
        return sizes

    def slot(self, chunk: int) -> memoryview:
        """The slot of a chunk of the stream."""
        at = chunk % WINDOW_CHUNKS * CHUNK_BYTES
        return self.chunks[at : at + CHUNK_BYTES]


class UdpCapture:
    """Orders datagrams, requests lost ones again, and writes them. Datagrams that come in order are
    received in place; others are moved.
    """

    def __init__(self, link: UdpLink, sock: socket.socket, fd: int, host: int) -> None:
        self._link = link
        self._socket = sock
        self._fd = fd
        self._host = host
        self._ring = _Ring(sock)
        self._present = bytearray(WINDOW_CHUNKS)
        """Chunks of the window that have arrived out of order."""
        self._next = 0
        """Number of chunks that have arrived without a gap; not wrapped."""
        self._highest = 0
        """One past the highest chunk that has arrived."""
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
        """Whether the capture's thread reads the socket."""
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
        """Losses, repeats and reordering on the network."""
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
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        acked, ack_s = 0, time.monotonic()
        while not self._stopping and self._failure is None:
            try:
                got = self._receive()
            except OSError as error:
                if error.errno != errno.ECONNREFUSED:
                    self._failure = str(error.strerror)
                continue
            if self._next - self._written >= WRITE_CHUNKS or not got:
                self._write()
            gap = self._highest > self._next
            if (
                not got
                or self._next - acked >= ACK_EVERY_CHUNKS
                or (gap and time.monotonic() - ack_s > ACK_GAP_S)
            ):
                self._acknowledge()
                acked, ack_s = self._next, time.monotonic()
            if not got:
                poll.poll(ACK_IDLE_S * 1000)
        self._write()

    def _receive(self) -> int:
        """Process some of the datagrams that have arrived; return their number."""
        at = self._next % WINDOW_CHUNKS
        room = min(BATCH_CHUNKS, WINDOW_CHUNKS - at)
        if self._highest > self._next:
            # Not over those that came too early.
            early = self._present.find(1, at, at + room)
            room = early - at if early >= 0 else room
        got = self._ring.receive(at, room)
        if not got:
            return 0
        headers = self._ring.headers[at : at + got]
        sizes = self._ring.sizes(at, got)
        expected = (np.arange(self._next, self._next + got) % _SEQ) << 32 | protocol.DATA_MAGIC
        if (
            (headers[:, 0] == expected.astype(np.uint64)).all()
            and (headers[:, 1] == self._host << 32).all()
            and (sizes == DATAGRAM_BYTES).all()
        ):
            self._next += got
            self._pass_present()
            return got
        # Each may belong where another one is.
        moved = memoryview(bytes(self._ring.chunks[at * CHUNK_BYTES : (at + got) * CHUNK_BYTES]))
        for i, size in enumerate(sizes.tolist()):
            chunk = moved[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES]
            self._take(headers[i].tobytes(), chunk, size)
        return got

    def _pass_present(self) -> None:
        """Advance past chunk `next`, which has arrived, and any that came before it."""
        while self._present[self._next % WINDOW_CHUNKS]:
            self._present[self._next % WINDOW_CHUNKS] = 0
            self._next += 1
        self._highest = max(self._highest, self._next)

    def _take(self, header: bytes, payload: memoryview, size: int) -> None:
        if size < DATA_HEADER.size or header[:4] != protocol.DATA_MAGIC.to_bytes(4, "little"):
            if size <= DATAGRAM_BYTES:
                self._link.deliver((header + bytes(payload))[:size])
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
            self._ring.slot(chunk)[:] = payload
            self._next += 1
            self._pass_present()
        elif chunk >= self._written + WINDOW_CHUNKS:
            self._foreign += 1  # the board does not heed the window
        elif self._present[chunk % WINDOW_CHUNKS]:
            self._repeated += 1
        else:
            self._ring.slot(chunk)[:] = payload
            self._present[chunk % WINDOW_CHUNKS] = 1
            self._highest = max(self._highest, chunk + 1)
            self._out_of_order += 1

    def _write(self) -> None:
        """Write the chunks without a gap."""
        while self._written < self._next and self._failure is None:
            at = self._written % WINDOW_CHUNKS
            count = min(self._next - self._written, WINDOW_CHUNKS - at)
            data = self._ring.chunks[at * CHUNK_BYTES : (at + count) * CHUNK_BYTES]
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
        message = protocol.encode_acknowledgement(self._host, self._next, window, ranges)
        with contextlib.suppress(OSError):  # as if it had been lost
            self._socket.send(message)


class UdpBoard(HardwareBoard):
    """A board on Ethernet and this machine."""

    kind = "udp"

    def discover(self) -> list[str]:
        """None: users must name boards on the network."""
        return []

    def open(self, address: str | None) -> UdpLink:
        """The board at ``HOST:PORT`` or ``HOST``."""
        if address is None:
            raise BoardError("the board's address is missing", "write it as --board udp:HOST:PORT")
        return UdpLink(address)
