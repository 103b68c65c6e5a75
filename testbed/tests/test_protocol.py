# SPDX-License-Identifier: BSD-2-Clause
"""The host's side of the protocol with the guest's init, which a thread plays here."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_testbed.guest import session
from ptat_testbed.guest.session import Guest, Outcome, configuration

REQUEST = RecordRequest(
    ["echo", "a b", "\udcff"],
    Path("/session"),
    Path("/home"),
    {"PATH": "/bin", "EMPTY": ""},
    children=True,
    levels="pte",
    faults=False,
)
UP = b"release 6.12\ncpus 2\ntsc_hz 5\ntext region 7\nbase 1\nstart\n"


class FakeInit:
    """The guest's ends of the ports."""

    def __init__(self, ports: dict[str, socket.socket]) -> None:
        self.control = ports["control"]
        self.ports = ports
        self.commands = self.control.makefile("rb")
        self.configuration = b""

    def configure(self) -> None:
        while not self.configuration.endswith(b"\0\0"):
            self.configuration += self.control.recv(1)

    def boot(self) -> None:
        self.configure()
        self.control.sendall(UP)
        assert self.commands.readline() == b"go\n"

    def die(self) -> None:
        self.commands.close()
        self.control.close()

    def end(self, exit_line: bytes = b"exited 0\n", stdout: int = 0) -> None:
        self.control.sendall(exit_line + b"stop\n")
        assert self.commands.readline() == b"go\n"
        self.control.sendall(b"stdout %d\nstderr 0\ntsc_hz 7\n" % stdout)
        self.control.sendall(b"text stat 7\nused 0\ndone\n")


@contextmanager
def machine(play: Callable[[FakeInit], None]) -> Iterator[Mock]:
    pairs = {name: socket.socketpair() for name in session.PORTS}
    init = FakeInit({name: theirs for name, (_, theirs) in pairs.items()})
    failures = []

    def run() -> None:
        try:
            play(init)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    fake = Mock(ports={name: ours for name, (ours, _) in pairs.items()})
    fake.how_it_ended.return_value = "QEMU ended with exit code 0"
    try:
        yield fake
    finally:
        thread.join()
        init.commands.close()
        for pair in pairs.values():
            for sock in pair:
                sock.close()
    assert not failures


def run(play: Callable[[FakeInit], None], calls: list[str] | None = None) -> Outcome:
    seen = calls if calls is not None else []
    with machine(play) as fake:
        return Guest(
            fake,
            configuration(REQUEST, 4096),
            lambda _: seen.append("on"),
            lambda: seen.append("off"),
        ).run()


def test_a_recording():
    inits = []
    calls: list[str] = []

    def play(init: FakeInit) -> None:
        inits.append(init)
        init.boot()
        assert calls == ["on"]
        init.control.sendall(b"alive\n")
        init.end(b"exited 3\n")
        assert calls == ["on", "off"]

    outcome = run(play, calls)
    assert outcome == Outcome(
        exit_status=3,
        started=True,
        values={"release": "6.12", "cpus": "2", "tsc_hz": "7"},
        texts={"region": "base 1\n", "stat": "used 0\n"},
    )
    settings = inits[0].configuration.split(b"\0")
    assert settings[:6] == [
        b"arg=echo",
        b"arg=a b",
        b"arg=\xff",
        b"env=PATH=/bin",
        b"env=EMPTY=",
        b"cwd=/home",
    ]
    assert {b"self=2", b"levels=pte", b"event=ptat/ptat_leaf_set", b"buffer=4096"} < set(settings)
    assert b"event=ptat/ptat_fault" not in settings
    assert b"event=ptat/ptat_pte_set" not in settings


def test_text_may_arrive_in_pieces():
    def play(init: FakeInit) -> None:
        init.boot()
        for byte in b"text check 12\none 1\ntwo 2\n":
            init.control.sendall(bytes([byte]))
        init.end()

    assert run(play).texts["check"] == "one 1\ntwo 2\n"


def test_end_by_signal():
    def play(init: FakeInit) -> None:
        init.boot()
        init.end(b"killed 11\n")

    assert run(play).exit_status == 139


def test_output_is_waited_for(capfd: pytest.CaptureFixture[str]):
    late = b"x" * 300_000

    def play(init: FakeInit) -> None:
        init.boot()
        init.end(stdout=len(late))
        init.ports["stdout"].sendall(late)

    assert run(play).failure is None
    assert capfd.readouterr().out == late.decode()


def test_output_that_does_not_block():
    """A pipe that is full for the moment is no reader that has gone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    sent = b"x" * 1_000_000
    stdout = os.dup(1)
    os.dup2(writer, 1)
    got = bytearray()

    def read() -> None:
        time.sleep(0.2)
        while len(got) < len(sent):
            got.extend(os.read(reader, 1 << 20))

    def play(init: FakeInit) -> None:
        init.boot()
        init.ports["stdout"].sendall(sent)
        init.end(stdout=len(sent))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert run(play).failure is None
    finally:
        os.dup2(stdout, 1)
        for fd in (stdout, writer):
            os.close(fd)
        thread.join()
        os.close(reader)
    assert got == sent


def test_guest_that_cannot_start():
    def play(init: FakeInit) -> None:
        init.control.sendall(b"error mount 9p on /lower: No such device\n")

    with pytest.raises(BoardError, match="mount 9p on /lower: No such device"):
        run(play)


def test_command_that_cannot_run():
    def play(init: FakeInit) -> None:
        init.boot()
        init.control.sendall(b"exec-failed 2 nosuch: No such file or directory\n")

    with pytest.raises(BoardError, match="the guest cannot run nosuch: No such file"):
        run(play)


def test_qemu_that_ends_early():
    with pytest.raises(BoardError, match="QEMU ended with exit code 0"):
        run(FakeInit.die)


def test_guest_that_dies_while_recording():
    def play(init: FakeInit) -> None:
        init.boot()
        init.die()

    outcome = run(play)
    assert outcome.failure == "QEMU ended with exit code 0"
    assert outcome.exit_status is None
    assert outcome.started


def test_guest_that_hangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "SILENCE_TIMEOUT_S", 0.5)
    assert run(FakeInit.boot).failure == "the guest hangs: it has been silent for too long"


def test_guest_of_a_recorder_that_was_stopped(monkeypatch: pytest.MonkeyPatch):
    """The clock went on and neither of them did, as under ^Z: that is no silence."""
    stopped = threading.Event()

    def play(init: FakeInit) -> None:
        init.boot()
        stopped.set()
        time.sleep(0.3)
        init.end()

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * stopped.is_set())
    monkeypatch.setattr(session, "time", clock)
    monkeypatch.setattr(session, "WAIT_S", 0.1)
    assert run(play).failure is None


def test_guest_that_lives_but_does_not_get_ready(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "BOOT_TIMEOUT_S", 0.5)

    def play(init: FakeInit) -> None:
        init.configure()
        while not done.wait(0.05):
            init.control.sendall(b"alive\n")

    done = threading.Event()
    with machine(play) as fake:
        try:
            with pytest.raises(BoardError, match="does not get ready to record"):
                Guest(fake, configuration(REQUEST, 4096), lambda _: None, lambda: None).run()
        finally:
            done.set()


def test_log_that_cannot_be_written():
    def play(init: FakeInit) -> None:
        init.boot()
        init.control.sendall(b"log-failed kernel/cpu0.raw: No space left on device\n")
        init.control.sendall(b"log-failed kernel/cpu0.stats: No space left on device\n")
        init.end(b"killed 9\n")

    outcome = run(play)
    assert outcome.failure == "cannot write kernel/cpu0.raw: No space left on device"
    assert outcome.exit_status == 137


def test_first_interrupt_is_the_commands():
    def play(init: FakeInit) -> None:
        init.boot()
        signal.raise_signal(signal.SIGINT)
        assert init.commands.readline() == b"signal 2\n"
        init.end(b"killed 2\n")

    before = signal.getsignal(signal.SIGINT)
    outcome = run(play)
    assert outcome.interrupted
    assert outcome.exit_status == 130
    assert outcome.failure == "interrupted by SIGINT"
    assert outcome.texts["stat"] == "used 0\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_ends_the_guest():
    def play(init: FakeInit) -> None:
        init.boot()
        signal.raise_signal(signal.SIGTERM)
        assert init.commands.readline() == b"signal 15\n"
        signal.raise_signal(signal.SIGTERM)

    outcome = run(play)
    assert outcome.interrupted
    assert outcome.failure == "interrupted by SIGTERM"
    assert outcome.exit_status is None


def test_interrupt_while_booting():
    def play(init: FakeInit) -> None:
        init.configure()
        signal.raise_signal(signal.SIGINT)

    outcome = run(play)
    assert outcome.interrupted
    assert not outcome.started
