# SPDX-License-Identifier: BSD-2-Clause
"""Runs one command in the guest: the host's side of the protocol in guest/init.c."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_host.boards.live.kernel_files import TRACE_CHILDREN, TRACE_COMMAND, TRACE_NOTHING
from ptat_host.boards.live.tracing import events_of
from ptat_parser.kernel.tracepoints import folder_of
from ptat_testbed.guest.qemu import Machine, QmpError
from ptat_testbed.guest.steps import progress

PORTS = ("control", "stdin", "stdout", "stderr")
SHARE_ROOT = "root"
SHARE_KERNEL = "kernel"
HOSTNAME = "ptat"
HEAP_SOCKET = "/run/ptat-heap"
"""Where the command's libptat-heap.so reaches the guest's init."""

BOOT_TIMEOUT_S = 180.0
SILENCE_TIMEOUT_S = 90.0
WAIT_S = 1.0

HANGS = "the guest hangs: it has been silent for too long"
HANGS_AT_BOOT = "the guest hangs: it does not get ready to record"
"""The guest says that it is alive every two seconds."""
CHUNK_BYTES = 1 << 16
SIGNALS = (signal.SIGINT, signal.SIGTERM)

_RLIMITS = (
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_DATA,
    resource.RLIMIT_STACK,
    resource.RLIMIT_CORE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_AS,
)


class GuestDied(Exception):
    """The guest ended, or hangs, before it said that it was done."""


@dataclass
class Outcome:
    """Values that the guest reported."""

    exit_status: int | None = None
    interrupted: bool = False
    failure: str | None = None
    """Why the recording is not complete."""
    started: bool = False
    """The recorded time began; then `values` and the text `region` are known."""
    values: dict[str, str] = field(default_factory=dict)
    """`release`, `cpus`, `tsc_hz`."""
    texts: dict[str, str] = field(default_factory=dict)
    """Files of the guest's kernel: `region`, `stat`, `check`; and `traps`, see guest/traps.h."""


def configuration(
    request: RecordRequest, buffer_kib: int, *, traps: bool = False, traced: bool = True
) -> bytes:
    """The first message to the guest's init.

    :param buffer_kib: ring buffer of each CPU.
    :param traps: TLB misses trap, and their records are to be written.
    :param traced: whether the command is.
    """
    settings = [("arg", arg) for arg in request.argv]
    settings += [("env", f"{name}={value}") for name, value in request.env.items()]
    settings += [("cwd", str(request.cwd))]
    for limit in _RLIMITS:
        soft, hard = (value & (2**64 - 1) for value in resource.getrlimit(limit))
        settings.append(("rlimit", f"{limit} {soft} {hard}"))
    mode = TRACE_CHILDREN if request.children else TRACE_COMMAND
    settings.append(("self", mode if traced else TRACE_NOTHING))
    settings.append(("levels", request.levels))
    if request.readback:
        settings.append(("readback", "on"))
    if request.markers:
        settings.append(("marker-access", request.markers))
    settings += [("event", folder_of(name)) for name in events_of(request)]
    if traps:
        settings.append(("traps", ""))
    if request.maps:
        settings.append(("maps", "" if request.heap_bytes is None else HEAP_SOCKET))
    settings += [("buffer", str(buffer_kib)), ("hostname", HOSTNAME)]
    message = b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in settings)
    return message + b"\0"


class _Output:
    """Copies one output stream of the command to a file descriptor of ours."""

    def __init__(
        self, port: socket.socket, fd: int, broken: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        """`broken` is called when nobody reads `fd` any more, `wake` after each piece."""
        self._port = port
        self._fd = fd
        self._broken = broken
        self._wake = wake
        self._bytes = 0
        self.expected: int | None = None
        """How many bytes the command wrote, once it is known."""
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        writable = True
        with contextlib.suppress(OSError):
            while data := self._port.recv(CHUNK_BYTES):
                if writable:
                    try:
                        _write_all(self._fd, data)
                    except OSError:
                        writable = False
                        self._broken()
                self._bytes += len(data)
                self._wake()

    @property
    def complete(self) -> bool:
        """All that the command wrote went through."""
        return self._bytes == self.expected


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever gave us this descriptor wants it so
            select.select([], [fd], [])


def _send_input(port: socket.socket) -> None:
    """Pass our standard input on, unless it is a terminal: reading that would steal keys."""
    try:
        if not os.isatty(0):
            while data := os.read(0, CHUNK_BYTES):
                port.sendall(struct.pack("<I", len(data)) + data)
    except OSError:
        pass  # no standard input, or no guest any more
    with contextlib.suppress(OSError):
        port.sendall(struct.pack("<I", 0))


class _Wakeups:
    """Ends the main loop's wait: for signals, which arrive as their numbers, and for threads."""

    def __init__(self) -> None:
        self.socket, self._sender = socket.socketpair()
        self._sender.setblocking(False)

    def wake(self) -> None:
        """Make the main loop look again."""
        with contextlib.suppress(OSError):  # full: it will look anyway
            self._sender.send(b"\0")

    @contextlib.contextmanager
    def catching_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM are left to the main loop, if this thread may arrange that."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def signals(self) -> list[int]:
        """The signals caught since the last call; waits if there was no wake-up at all."""
        return [number for number in self.socket.recv(CHUNK_BYTES) if number in SIGNALS]

    def close(self) -> None:
        """To be called once the main loop is over."""
        self.socket.close()
        self._sender.close()


class Guest:
    """One run of one command in a machine that has been started."""

    def __init__(
        self,
        machine: Machine,
        settings: bytes,
        on_start: Callable[[Outcome], None],
        on_stop: Callable[[], None],
    ) -> None:
        """`on_start` and `on_stop` are called right before and after the recorded time.

        :param settings: a `configuration`.
        :param on_start: called with what the guest has reported by then.
        """
        self._machine = machine
        self._configuration = settings
        self._on_start = on_start
        self._on_stop = on_stop
        self._control = machine.ports["control"]
        self._received = bytearray()
        self._outcome = Outcome()
        self._outputs: dict[str, _Output] = {}
        self._wakeups = _Wakeups()
        self._stopped = False
        self._done = False

    def run(self) -> Outcome:
        """Boot, run the command, and take all that the guest has to tell.

        :raises BoardError: the recording did not even start.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.closing(self._wakeups), self._wakeups.catching_signals():
            try:
                self._send(self._configuration)
                with progress("booting the guest"):
                    self._serve(BOOT_TIMEOUT_S, lambda: self._outcome.started, patient=False)
                self._serve(SILENCE_TIMEOUT_S, lambda: self._stopped)
                with progress("fetching the rest of the log, checking the guest's page tables"):
                    self._serve(SILENCE_TIMEOUT_S, self._finished)
            except (GuestDied, QmpError) as death:
                if not self._outcome.started and not self._outcome.interrupted:
                    raise BoardError(str(death)) from None
                self._outcome.failure = self._outcome.failure or str(death)
        return self._outcome

    def _finished(self) -> bool:
        return self._done and all(output.complete for output in self._outputs.values())

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # that the guest is gone shows where we read
            self._control.sendall(data)

    def _serve(self, silence_s: float, until: Callable[[], bool], *, patient: bool = True) -> None:
        """Handle what comes, for `silence_s`; a sign of life renews that of the `patient`."""
        left_s = silence_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeups.socket, selectors.EVENT_READ)
            while not until():
                begun = time.monotonic()
                ready = [key.fileobj for key, _ in selector.select(WAIT_S)]
                # While this process is stopped, so may the guest be: that does not count.
                left_s -= min(time.monotonic() - begun, WAIT_S)
                if self._wakeups.socket in ready:
                    for number in self._wakeups.signals():
                        self._signal(number)
                if self._control in ready:
                    self._receive()
                    if patient:
                        left_s = silence_s
                if left_s <= 0 and not until():
                    raise GuestDied(HANGS if patient else HANGS_AT_BOOT)

    def _signal(self, number: int) -> None:
        again = self._outcome.interrupted
        self._outcome.interrupted = True
        self._outcome.failure = f"interrupted by {signal.Signals(number).name}"
        if again or not self._outcome.started:
            raise GuestDied(self._outcome.failure)
        self._send(b"signal %d\n" % number)

    def _receive(self) -> None:
        try:
            data = self._control.recv(CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            raise GuestDied(self._machine.how_it_ended())
        self._received += data
        while (end := self._received.find(b"\n")) >= 0:
            line = self._received[:end].decode(errors="replace")
            word, _, rest = line.partition(" ")
            if word == "text":
                name, size = rest.split()
                body = end + 1 + int(size)
                if len(self._received) < body:
                    return
                self._outcome.texts[name] = self._received[end + 1 : body].decode()
                del self._received[:body]
            else:
                del self._received[: end + 1]
                self._handle(word, rest)

    def _handle(self, word: str, rest: str) -> None:
        if word in ("release", "cpus", "tsc_hz"):
            self._outcome.values[word] = rest
        elif word == "start":
            self._start()
        elif word == "exited":
            self._outcome.exit_status = int(rest)
        elif word == "killed":
            self._outcome.exit_status = 128 + int(rest)
        elif word == "stop":
            self._on_stop()
            self._send(b"go\n")
            self._stopped = True
        elif word in self._outputs:
            self._outputs[word].expected = int(rest)
        elif word == "log-failed":
            self._outcome.failure = self._outcome.failure or f"cannot write {rest}"
        elif word == "exec-failed":
            raise BoardError(f"the guest cannot run {rest.partition(' ')[2]}")
        elif word == "error":
            raise GuestDied(rest)
        elif word == "done":
            self._done = True
        elif word != "alive":
            raise GuestDied(f"the guest said {word!r}: its init is not the one we know")

    def _start(self) -> None:
        ports = self._machine.ports
        threading.Thread(target=_send_input, args=[ports["stdin"]], daemon=True).start()
        for name, fd in (("stdout", 1), ("stderr", 2)):
            self._outputs[name] = _Output(ports[name], fd, self._output_broken, self._wakeups.wake)
        self._on_start(self._outcome)
        self._send(b"go\n")
        self._outcome.started = True

    def _output_broken(self) -> None:
        """The reader of our output is gone: signal the command as a pipe would."""
        self._send(b"signal %d\n" % signal.SIGPIPE)
