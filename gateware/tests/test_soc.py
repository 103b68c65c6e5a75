# SPDX-License-Identifier: BSD-2-Clause
"""The simulated device with its firmware: self test, commands on each link, health."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from litex.soc.integration.export import get_csr_json

from ptat_gateware.layouts import ddr3_command_layout
from ptat_gateware.sim import soc
from ptat_gateware.sim.device import READY, Device
from ptat_gateware.sim.geometry import BANKS, BURST_BITS, COLUMN_BITS, ROW_BITS
from ptat_gateware.sim.soc import DelayedPins
from ptat_gateware.sim.words import BANK_SHIFT
from ptat_gateware.soc import RANKS
from ptat_gateware.synthesis.firmware import FIRMWARE
from ptat_gateware.targets.ecpix5 import DDR3_800_CK_HZ
from ptat_gateware.targets.ecpix5_soc import ECPIX5SoC
from ptat_gateware.targets.ft601_soc import FT601SoC
from ptat_host.boards.client import Client
from ptat_host.boards.udp import UdpLink
from ptat_host.protocol import Command, Frame, FrameReader, Identity, State
from ptat_parser import wire
from ptat_parser.capture.chunks import MarkRecord
from ptat_parser.capture.reader import BusReader

needs_tools = pytest.mark.skipif(
    shutil.which("verilator") is None or shutil.which("riscv64-unknown-elf-gcc") is None,
    reason="no Verilator or compiler (setup/packages.sh gateware firmware)",
)

PATIENCE_S = 60.0
BUSY_REQUESTS, BUSY_TICKS = 250_000, 64
BUSY_S = 600.0
WATCHDOG = 3  # origin of a STOP


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with Device() as device:
        yield device


def marks(path: Path) -> list[MarkRecord]:
    if not path.stat().st_size:
        return []
    return [mark for chunk in BusReader(path, tail_may_be_cut=True) for mark in chunk.marks]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + BUSY_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def identity_is_right(identity: Identity) -> None:
    assert identity.git_hash == soc.GIT_HASH.hex()
    assert identity.wire_version == wire.VERSION
    assert (identity.board, identity.channels) == ("simulation", 1)
    assert identity.tick_hz == 800_000_000


@needs_tools
def test_memory_and_capture_pass_the_self_test(device: Device) -> None:
    lines = device.console.splitlines()
    assert "memory: passed" in lines
    assert "capture: passed" in lines


@needs_tools
def test_commands_over_udp(device: Device) -> None:
    with Client(UdpLink(f"127.0.0.1:{device.port}"), PATIENCE_S) as client:
        identity_is_right(client.identify())
        health = client.health()
        assert (health.state, health.fill_bytes, health.lost) == (State.IDLE, 0, 0)
        assert health.capacity_bytes > 32 << 20
        assert health.illegal == (0,) * 8


@needs_tools
def test_commands_over_the_uart_among_other_bytes(device: Device) -> None:
    request = Frame(Command.IDENTIFY, 0x1234, host=7).encode()
    device.send_to_uart(b"noise" + request[:9] + request)
    reader, seen = FrameReader(), 0
    deadline_s = time.monotonic() + BUSY_S
    frames: list[Frame] = []
    while not frames and time.monotonic() < deadline_s:
        data = device.console_bytes
        frames = reader.feed(data[seen:])
        seen = len(data)
        time.sleep(0.1)
    (answer,) = frames
    assert (answer.id, answer.host, answer.response) == (0x1234, 7, True)
    identity_is_right(Identity.decode(answer.payload))


@needs_tools
def test_calibration_finds_the_eyes_of_the_pins(device: Device) -> None:
    """While the bus is busy; pins whose errors are not against the protocol have no edges."""
    rng = np.random.default_rng(4)
    words = rng.integers(0, 1 << ROW_BITS + COLUMN_BITS - BURST_BITS, BUSY_REQUESTS, np.uint64)
    words |= rng.integers(0, RANKS * BANKS, BUSY_REQUESTS, np.uint64) << np.uint64(BANK_SHIFT)
    due_ticks = np.arange(BUSY_REQUESTS, dtype=np.uint64) * np.uint64(BUSY_TICKS)
    with Client(UdpLink(f"127.0.0.1:{device.port}"), PATIENCE_S) as client:
        asked = threading.Event()
        busy = threading.Thread(target=device.timed, args=(words, due_ticks, 0, asked.set))
        busy.start()
        asked.wait()
        client.health()  # answered after the first requests were taken
        client.command(Command.CALIBRATE, timeout_s=BUSY_S)
        assert busy.is_alive(), "the bus was idle"
        eyes = client.eyes()
        busy.join()
        found = [pin for pin, eye in enumerate(eyes) if 0 < eye.width < eye.taps]
        for pin in found:
            assert (eyes[pin].first, eyes[pin].width) == (
                DelayedPins.first_tap(pin),
                DelayedPins.eye_taps,
            )
        names = [name for name, bits in ddr3_command_layout(RANKS) for _ in range(bits)]
        assert {names[pin] for pin in found} >= {"ras_n", "cas_n", "we_n"}
        assert len(eyes) == len(names)


@needs_tools
def test_a_hang_ends_the_recording_with_a_mark(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "bus.0.raw"
    said = device.console.count(READY)
    with (
        Client(UdpLink(f"127.0.0.1:{device.port}"), PATIENCE_S) as client,
        path.open("wb", buffering=0) as file,
    ):
        capture = client.link.capture(file.fileno(), client.host)
        client.command(Command.START)
        device.hang(True)
        until(lambda: [mark.code for mark in marks(path)][-1:] == [wire.Mark.STOP])
        device.hang(False)
        until(lambda: device.console.count(READY) > said)
        assert "the firmware hung, and was restarted" in device.console
        assert client.health().state == State.EXPIRED
        stopped = client.stop(capture)
        capture.finish(stopped.blocks * wire.BLOCK_BYTES)
    assert [(mark.code, mark.argument) for mark in marks(path)] == [
        (wire.Mark.START, 0),
        (wire.Mark.STOP, WATCHDOG),
    ]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ECPIX5SoC(DDR3_800_CK_HZ, soc.GIT_HASH), id="ecpix5"),
        pytest.param(lambda: FT601SoC(soc.GIT_HASH), id="ft601"),
    ],
)
def test_boards_have_all_registers_of_the_firmware(make: Callable[[], Any]) -> None:
    board = make()
    board.finalize()
    exported = json.loads(get_csr_json(board.csr_regions, board.constants, board.mem_regions))
    code = "".join(path.read_text() for path in (FIRMWARE / "image").glob("*.c"))
    parts = "snooper|link|meter|generator|capture|identity|watchdog|timer0"
    used = set(re.findall(rf"\b((?:{parts})_\w+?)_(?:read|write)\(", code))
    assert len(used) > 30
    assert used <= set(exported["csr_registers"])
    pins = sum(bits for _, bits in ddr3_command_layout(RANKS))
    assert exported["constants"]["capture_pins"] == pins
