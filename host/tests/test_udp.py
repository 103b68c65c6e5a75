# SPDX-License-Identifier: BSD-2-Clause
"""Boards on Ethernet: the firmware's own logic behind a socket, and a network that loses some."""

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptat_host import boards, protocol
from ptat_host.boards import stream
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Client, LinkError
from ptat_host.boards.udp import UdpBoard, UdpLink
from ptat_host.protocol import Command, Window
from ptat_parser import wire
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter

BLOCKS = 120
"""Of the fixture `source`."""

Start = Callable[..., str]


@pytest.fixture
def start(program, source) -> Iterator[Start]:
    """Starts a board with these faults, ending the one before; returns its address."""
    running = []

    def end() -> None:
        for board in running:
            board.kill()
            board.wait()
            board.stdout.close()
        running.clear()

    def run(*faults: str, file: Path = source) -> str:
        end()
        board = subprocess.Popen(
            [program, "udp", "0", file, *faults], stdout=subprocess.PIPE, text=True
        )
        running.append(board)
        return f"127.0.0.1:{board.stdout.readline().strip()}"

    yield run
    end()


def capture(address: str, path: Path) -> tuple[stream.StreamReport, dict[str, int]]:
    """A recording without a machine."""
    with Client(UdpLink(address)) as client, path.open("wb", buffering=0) as file:
        client.identify()
        client.set_windows([(0, 1 << 16, Window.READ)])
        running = client.link.capture(file.fileno(), client.host)
        client.command(Command.START)
        sent_blocks = client.stop(running).blocks
        running.finish(sent_blocks * wire.BLOCK_BYTES)
        assert running.failure is None
    return stream.tidy(path, sent_blocks=sent_blocks), running.counters


@pytest.mark.parametrize(
    ("faults", "counter"),
    [
        ([], None),
        (["lose:100"], "out_of_order_datagrams"),
        (["repeat:200"], "repeated_datagrams"),
        (["swap:200"], "out_of_order_datagrams"),
        (["lose:50", "repeat:50", "swap:50"], "repeated_datagrams"),
        (["slow:500"], None),
        (["tail:3"], None),
    ],
)
def test_no_network_loses_a_byte(start, source, tmp_path, faults, counter):
    path = tmp_path / "bus.0.raw"
    report, counters = capture(start(*faults), path)
    assert path.read_bytes() == source.read_bytes()
    assert report == stream.StreamReport(blocks=BLOCKS)
    if counter:
        assert counters[counter] > 0


def test_an_empty_stream_ends(start, tmp_path):
    one = tmp_path / "one"
    with one.open("wb") as file, BlockWriter(file) as writer:
        writer.mark(0, wire.Mark.START)
    report, _ = capture(start(file=one), tmp_path / "bus.0.raw")
    assert report.blocks == 1


def test_a_block_that_was_damaged_on_the_way_is_one_lost(start, source, tmp_path):
    path = tmp_path / "bus.0.raw"
    capture(start("damage:7"), path)
    # Aligned and numbered as it should be: the parser finds its checksum wrong.
    assert stream.tidy(path).blocks == BLOCKS
    expected = bytearray(source.read_bytes())
    expected[7 * wire.BLOCK_BYTES + 3 * protocol.CHUNK_BYTES + 100] ^= 4
    assert path.read_bytes() == expected


def test_a_board_that_says_it_sent_more(start, tmp_path):
    report, _ = capture(start("lie:3"), tmp_path / "bus.0.raw")
    assert (report.blocks, report.missing_at_end) == (BLOCKS, 3)


def test_a_board_that_vanishes(start, source, tmp_path):
    address = start("unplug:40", "slow:200")
    path = tmp_path / "bus.0.raw"
    with Client(UdpLink(address)) as client, path.open("wb", buffering=0) as file:
        running = client.link.capture(file.fileno(), client.host)
        client.command(Command.START)
        with pytest.raises(LinkError, match="does not answer"):
            while True:
                client.stop(running)
        running.finish(None)
    report = stream.tidy(path)
    # All that had come, which is at least what the board sends before it hears of us.
    assert report.blocks == running.received_bytes // wire.BLOCK_BYTES
    assert 8 <= report.blocks <= 40
    assert source.read_bytes().startswith(path.read_bytes())


def test_two_hosts(start, tmp_path):
    address = start("slow:20000")
    with (
        Client(UdpLink(address)) as first,
        Client(UdpLink(address)) as second,
        (tmp_path / "bus.0.raw").open("wb") as file,
    ):
        running = first.link.capture(file.fileno(), first.host)
        first.command(Command.START)
        with pytest.raises(BoardError, match="another host is recording"):
            second.command(Command.START)
        with pytest.raises(BoardError, match="another host is recording"):
            second.stop()
        assert second.health().state == protocol.State.RECORDING
        running.finish(0)


def test_a_host_that_was_killed_leaves_the_board_free(start, source, tmp_path):
    """Killed anywhere in the capture, it leaves a prefix of the stream."""
    address = start("slow:300")
    path = tmp_path / "bus.0.raw"
    code = (
        "import sys, time; from ptat_host.boards.client import *;"
        "from ptat_host.boards.udp import *; client = Client(UdpLink(sys.argv[1]));"
        "file = open(sys.argv[2], 'wb', buffering=0);"
        "capture = client.link.capture(file.fileno(), client.host);"
        "client.command(Command.START); time.sleep(60)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, address, path])
    while not path.exists() or path.stat().st_size < 20 * wire.BLOCK_BYTES:
        assert killed.poll() is None
        time.sleep(0.001)
    killed.kill()
    killed.wait()
    assert stream.tidy(path).blocks >= 20
    assert source.read_bytes().startswith(path.read_bytes())
    report = None
    while report is None:
        try:
            report, _ = capture(address, path)
        except BoardError as error:
            assert "another host is recording" in error.message
            time.sleep(0.1)
    assert report.blocks == BLOCKS


def test_a_full_disk_is_said(start, tmp_path):
    address = start()
    limit = 20 * wire.BLOCK_BYTES
    with Client(UdpLink(address)) as client, (tmp_path / "bus.0.raw").open("wb") as file:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            running = client.link.capture(file.fileno(), client.host)
            client.command(Command.START)
            running.finish(None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert running.failure == "no space left for the capture"
        assert os.fstat(file.fileno()).st_size == limit


@pytest.mark.parametrize(
    ("fault", "message"), [("wire:2", "wire format 2"), ("channels:0", "no channel")]
)
def test_boards_that_we_cannot_read(start, fault, message):
    address = start(fault)
    with Client(UdpLink(address)) as client, pytest.raises(BoardError, match=message):
        client.identify()
    (check,) = UdpBoard(address).check()[:1]
    assert check.ok is False
    assert message in check.detail


def test_doctor_describes_the_board(start):
    (check,) = UdpBoard(start()).check()[:1]
    assert check.ok is True
    assert "pretend, gateware 1234" in check.detail
    assert "41.5 °C" in check.detail


def test_addresses(monkeypatch):
    for address, message in [
        ("localhost:x", "no port"),
        ("localhost:0", "no port"),
        ("no.such.host.invalid", "there is no host"),
    ]:
        with pytest.raises(BoardError, match=message):
            UdpLink(address)
    with pytest.raises(BoardError, match="address is missing"):
        UdpBoard().open(None)
    assert boards.load("udp:here:5").name == "udp:here:5"
    with pytest.raises(BoardError, match="takes no address"):
        boards.load("testbed:5")


def test_nobody_there(monkeypatch):
    monkeypatch.setattr("ptat_host.boards.client.ANSWER_TIMEOUT_S", 0.02)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with (
            Client(UdpLink(f"127.0.0.1:{silent.getsockname()[1]}")) as client,
            pytest.raises(LinkError, match="does not answer"),
        ):
            client.ask(Command.IDENTIFY, timeout_s=0.02)


def test_datagrams_of_others_do_no_harm(start, source, tmp_path):
    """A peer that is the board's address but talks nonsense: each kind is dropped, and counted."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        link = UdpLink(f"127.0.0.1:{peer.getsockname()[1]}")
        path = tmp_path / "bus.0.raw"
        with path.open("wb", buffering=0) as file:
            running = link.capture(file.fileno(), 7)
            _, host = peer.recvfrom(2000)
            data = source.read_bytes()[: wire.BLOCK_BYTES]
            header = protocol.DATA_HEADER
            magic = protocol.DATA_MAGIC
            size = protocol.CHUNK_BYTES
            nonsense = [
                b"",
                b"PT",
                bytes(2000),
                header.pack(magic, 0, 0, 0, 0, 8) + bytes(size),  # another host's
                header.pack(magic, 0, 1, 0, 0, 7) + bytes(size),  # another channel
                header.pack(magic, 0, 0, 0, 0, 7) + bytes(size - 1),
                header.pack(magic, 0, 0, 0, 0, 7) + bytes(size + 1),
                header.pack(magic, 0, 0, 0, 0, 7),
                header.pack(magic, 1 << 20, 0, 0, 0, 7) + bytes(size),  # beyond the window
                header.pack(magic, (1 << 32) - 1, 0, 0, 0, 7) + bytes(size),  # long past
            ]
            for number in range(8):
                for datagram in nonsense:
                    peer.sendto(datagram, host)
                flags = protocol.DATA_LAST if number == 7 else 0
                peer.sendto(
                    header.pack(magic, number, 0, flags, 0, 7)
                    + data[number * size : (number + 1) * size],
                    host,
                )
                while running.received_bytes == number * size:  # no more than a socket holds
                    time.sleep(0.001)
            running.finish(None)
        link.close()
    assert running.failure is None
    assert path.read_bytes() == data
    assert running.counters["foreign_datagrams"] == 8 * 6
    assert running.counters["repeated_datagrams"] == 8


def test_killed_at_200_random_points(start, source, tmp_path):
    """What is in the file can be read, up to the last complete block, and is the source's."""
    numbers = random.Random(8)
    path = tmp_path / "bus.0.raw"
    data = source.read_bytes()
    for number in range(200):
        path.unlink(missing_ok=True)
        # At some time, which may be before the first byte or after the last; or at some byte.
        size = numbers.randrange(1, len(data)) if number % 2 else None
        address = start("slow:200")
        ready, done = os.pipe()
        child = os.fork()
        if not child:
            try:
                if size:
                    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
                file = os.open(path, os.O_WRONLY | os.O_CREAT)
                client = Client(UdpLink(address))
                client.link.capture(file, client.host)
                client.command(Command.START)
                os.write(done, b"x")
                signal.pause()
            finally:  # whatever happens, it is no second run of the tests
                os._exit(1)
        os.close(done)
        if not size:
            assert os.read(ready, 1)
            time.sleep(numbers.random() * 0.04)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == (signal.SIGXFSZ if size else signal.SIGKILL)
        os.close(ready)
        captured = path.read_bytes()
        assert data.startswith(captured)
        assert not size or len(captured) == size
        if captured:
            reader = BusReader(path, tail_may_be_cut=True)
            assert reader.blocks == len(captured) // wire.BLOCK_BYTES
            lost = [lost.blocks for chunk in reader for lost in chunk.lost]
            assert sum(lost) == (len(captured) % wire.BLOCK_BYTES != 0)
