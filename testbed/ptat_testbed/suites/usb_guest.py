# SPDX-License-Identifier: BSD-2-Clause
"""``make usb-guest``: the real ``ptat record --board usb:…`` against a real USB stack.

In the guest, USB is a loop: a program of ours (``testbed/board``) is a board with the firmware's
own logic, by way of raw-gadget and dummy_hcd, and streams blocks that were written before. ptat
finds it with libusb, traces a command, and what it captured is held against the source, byte for
byte, while things go wrong on the way in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptat_host import boards
from ptat_host.boards import recorder_programs, stream
from ptat_host.boards.base import RecordRequest
from ptat_host.cli import main as main_of_ptat
from ptat_parser import wire
from ptat_testbed.boards import guest_run
from ptat_testbed.guest import build, layout

SERIAL = "LOOP1"
COMMAND = ("gups", "--bytes", "1M", "--updates", "1280")
BLOCKS = 120
REGION_BYTES = 4 << 20
"""Enough for small programs; all of it is compared with the kernel's tables after each of them."""
BOARD_TIMEOUT_S = 30
KILLS = 10
SLOW_US = 5000
"""Between blocks, where ptat is killed."""
CAPTURE_S = 1.2 * BLOCKS * SLOW_US / 1e6
UNPLUGGED_AT = (0, 33, 80, 119)
FULL_BLOCKS = 50
GARBAGE_BYTES = 700
"""As testbed/board/usb.c has it."""


def write_source(path: Path, blocks: int, seed: int) -> None:
    """A capture stream of full blocks with arbitrary accesses."""
    from ptat_parser.capture.writer import seal  # numba: the guest is not to wait for it

    numbers = np.random.default_rng(seed)
    with path.open("wb") as file:
        for number in range(blocks):
            block = np.zeros(wire.BLOCK_WORDS, "<u8")
            block[wire.WORD_HEADER] = (
                wire.MAGIC << wire.HEADER_MAGIC_SHIFT
                | wire.VERSION << wire.HEADER_VERSION_SHIFT
                | number
            )
            block[wire.WORD_TIME] = number << 24
            records = slice(wire.WORD_FIRST_RECORD, wire.WORD_CHECK)
            size = wire.BLOCK_RECORDS_MAX
            block[records] = (
                np.uint64(wire.Tag.ACCESS << wire.TAG_SHIFT)
                | numbers.integers(1 << 12, size=size, dtype=np.uint64)
                << np.uint64(wire.ACCESS_DELTA_SHIFT)
                | numbers.integers(1 << wire.ACCESS_ADDRESS_BITS, size=size, dtype=np.uint64)
            )
            seal(block, size)
            file.write(block.tobytes())


# In the guest -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What ``ptat record`` did."""

    status: int
    said: str
    capture: bytes
    description: dict[str, object]
    seconds: float

    @property
    def link(self) -> dict[str, int]:
        """`board.link` of session.json."""
        board = self.description.get("board")
        link = board.get("link", {}) if isinstance(board, dict) else {}
        return dict(link)


@dataclass(frozen=True)
class Case:
    """A fault, and what must come of it."""

    name: str
    faults: Sequence[str]
    expected: Callable[[list[bytes], Outcome], bool]
    """Whether the recording states exactly what became of the source's blocks."""
    options: Sequence[str] = ()
    file_bytes_max: int | None = None
    """How large files may become: a disk that gets full."""


def _whole(blocks: list[bytes], outcome: Outcome) -> bool:
    """Nothing was lost, and nothing is said to be."""
    return (
        outcome.status == 0
        and outcome.description.get("complete") is True
        and outcome.capture == b"".join(blocks)
        and outcome.link["blocks"] == len(blocks)
        and outcome.link["missing_inside"] == outcome.link["missing_at_end"] == 0
        and "lost" not in outcome.said
    )


def _with(condition: Callable[[Outcome], bool]) -> Callable[[list[bytes], Outcome], bool]:
    return lambda blocks, outcome: _whole(blocks, outcome) and condition(outcome)


def _one_missing(number: int) -> Callable[[list[bytes], Outcome], bool]:
    return (
        lambda blocks, outcome: (
            outcome.status == 1  # --strict
            and outcome.capture == b"".join(blocks[:number] + blocks[number + 1 :])
            and outcome.link["missing_inside"] == 1
            and f"lost 1 of {len(blocks)} blocks" in outcome.said
        )
    )


def _cut(number: int) -> Callable[[list[bytes], Outcome], bool]:
    return lambda blocks, outcome: (
        outcome.status == 2
        and not outcome.description.get("complete")
        and outcome.capture == b"".join(blocks[:number])
        and "unplugged" in outcome.said
    )


def _full(number: int) -> Callable[[list[bytes], Outcome], bool]:
    return lambda blocks, outcome: (
        outcome.status == 2
        and not outcome.description.get("complete")
        and outcome.capture == b"".join(blocks[:number])
        and "no space left for the capture" in outcome.said
    )


def _lied(count: int) -> Callable[[list[bytes], Outcome], bool]:
    return lambda blocks, outcome: (
        outcome.status == 2
        and outcome.capture == b"".join(blocks)
        and outcome.link["missing_at_end"] == count
        and f"the last {count} blocks did not arrive" in outcome.said
    )


def _refused(message: str) -> Callable[[list[bytes], Outcome], bool]:
    return lambda _, outcome: (
        outcome.status == 2 and message in outcome.said and not outcome.description
    )


CASES = (
    Case("nothing", (), _whole),
    Case("stall", ("stall:40",), _with(lambda outcome: outcome.link["recoveries"] > 0)),
    Case("short packets", ("short",), _whole),
    Case("slow", ("slow:3000",), _whole),
    Case(
        "garbage",
        ("garbage:50",),
        _with(lambda outcome: outcome.link["other_bytes"] == GARBAGE_BYTES),
    ),
    Case(
        "duplicate block",
        ("twice:60",),
        _with(lambda outcome: outcome.link["duplicate_blocks"] == 1),
    ),
    Case("missing block", ("drop:70",), _one_missing(70), ("--strict",)),
    *(Case(f"unplugged at {at}", (f"unplug:{at}",), _cut(at)) for at in UNPLUGGED_AT),
    Case("disk full", (), _full(FULL_BLOCKS), (), FULL_BLOCKS * wire.BLOCK_BYTES),
    Case("lies about its length", ("lie:5",), _lied(5)),
    Case("other wire version", ("wire:2",), _refused("wire format 2")),
    Case("no channel", ("channels:0",), _refused("no channel")),
)


def _devices() -> list[Path]:
    """Where the kernel shows the pretend board, while it is plugged in."""
    found = []
    for path in Path("/sys/bus/usb/devices").glob("*/serial"):
        with contextlib.suppress(OSError):  # it is being unplugged
            if path.read_text().strip() == SERIAL:
                found.append(path.parent)
    return found


def usb_node() -> Path:
    """The device file of the pretend board."""
    (device,) = _devices()
    numbers = [int((device / name).read_text()) for name in ("busnum", "devnum")]
    return Path("/dev/bus/usb") / "/".join(f"{number:03}" for number in numbers)


class UsbBoard:
    """A running pretend board that has been enumerated."""

    def __init__(self, program: Path, source: Path, faults: Sequence[str]) -> None:
        self._process = subprocess.Popen([program, "usb", SERIAL, source, *faults])
        deadline = time.monotonic() + BOARD_TIMEOUT_S
        while not _devices():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the board did not appear on USB")
            time.sleep(0.05)

    def __enter__(self) -> UsbBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        # Its device goes with it; the next one must not be mistaken for it.
        while _devices():
            time.sleep(0.05)


def _import() -> None:
    """What ``ptat record`` imports while it runs."""
    importlib.import_module("ptat_host.recording.session_recording")
    for name in boards.names():
        boards.load(name)


def _start(
    session: Path,
    options: Sequence[str],
    command: Sequence[str],
    said: Path,
    file_bytes_max: int | None = None,
) -> int:
    """Start ``ptat record`` in a process; return its id.

    It is a fork of this one, which has imported all (`_import`): in an emulator that takes longer
    than to record.
    """
    child = os.fork()
    if child:
        return child
    os.setsid()
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    if file_bytes_max is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    board = f"usb:{SERIAL}"
    command = ["--no-archive", *options, "--", *command]
    status = main_of_ptat(["record", "--board", board, "-o", str(session), *command])
    sys.stderr.flush()
    os._exit(status)


def _record(
    session: Path,
    options: Sequence[str],
    command: Sequence[str],
    file_bytes_max: int | None = None,
) -> Outcome:
    begun_s = time.monotonic()
    said = session.with_suffix(".stderr")
    _, status = os.waitpid(_start(session, options, command, said, file_bytes_max), 0)
    seconds = time.monotonic() - begun_s
    described = session / "session.json"
    capture = session / "bus.0.raw"
    return Outcome(
        os.waitstatus_to_exitcode(status),
        said.read_text(),
        capture.read_bytes() if capture.exists() else b"",
        json.loads(described.read_text()) if described.exists() else {},
        seconds,
    )


def _two_hosts(sessions: Path, program: Path, source: Path) -> bool:
    """A second ptat is refused, and the first goes on."""
    first, second, over = sessions / "first", sessions / "second", sessions / "over"
    until_over = ("sh", "-c", f"until [ -e {over} ]; do sleep 0.1; done")
    with UsbBoard(program, source, (f"slow:{SLOW_US}",)):
        ptat = _start(first, (), until_over, first.with_suffix(".stderr"))
        while not (first / "bus.0.raw").exists():
            if os.waitpid(ptat, os.WNOHANG)[0]:
                return False
            time.sleep(0.005)
        refused = _record(second, (), COMMAND)
        over.touch()
        _, status = os.waitpid(ptat, 0)
    print(refused.status, refused.said, status, first.with_suffix(".stderr").read_text())
    return (
        refused.status == 2
        and "in use by another program" in refused.said
        and not refused.description
        and status == 0
        and (first / "bus.0.raw").read_bytes() == source.read_bytes()
    )


def _kill(session: Path, program: Path, source: Path, after_s: float) -> bool:
    """Kill ptat `after_s` into its capture; the file must hold the beginning of the source."""
    with UsbBoard(program, source, (f"slow:{SLOW_US}",)):
        ptat = _start(session, (), ("sleep", "600"), session.with_suffix(".stderr"))
        capture = session / "bus.0.raw"
        while not capture.exists():
            if os.waitpid(ptat, os.WNOHANG)[0]:
                return False
            time.sleep(0.005)
        time.sleep(after_s)
        os.killpg(ptat, signal.SIGKILL)
        os.waitpid(ptat, 0)
    data = capture.read_bytes()
    # All that is whole is the source's, and can be read; what it is of is said.
    stream.tidy(capture)
    described = json.loads((session / "session.json").read_text())
    return (
        source.read_bytes().startswith(data)
        and capture.stat().st_size == len(data) // wire.BLOCK_BYTES * wire.BLOCK_BYTES
        and described["complete"] is False
    )


def inside(program: Path, directory: Path, only: str | None, kills: int) -> int:
    """All cases; the last line of stdout is a JSON object."""
    source = directory / "source.raw"
    data = source.read_bytes()
    size = wire.BLOCK_BYTES
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    sessions = Path(tempfile.mkdtemp())
    _import()
    begun_s = time.monotonic()
    equal = True
    captured = lost = 0

    def tell(name: str, fine: bool, about: str) -> None:
        nonlocal equal
        equal &= fine
        print(f"{'ok' if fine else 'WRONG':6}{name:24}{about}", flush=True)

    for number, case in enumerate(CASES):
        if only is not None and not re.search(only, case.name):
            continue
        session = sessions / str(number)
        with UsbBoard(program, source, case.faults):
            outcome = _record(session, case.options, COMMAND, case.file_bytes_max)
        fine = case.expected(blocks, outcome)
        tell(case.name, fine, f"{outcome.seconds:.1f} s  {outcome.link}")
        if not fine:
            print(outcome.status, outcome.said, outcome.description, flush=True)
        captured += len(outcome.capture) // size
        lost += outcome.link.get("missing_inside", 0) + outcome.link.get("missing_at_end", 0)
    if only is None or re.search(only, "two hosts"):
        tell("two hosts", _two_hosts(sessions, program, source), "")
    survived = 0
    if only is None or re.search(only, "killed"):
        numbers = random.Random(kills)
        for number in range(kills):
            after_s = numbers.random() * CAPTURE_S
            survived += _kill(sessions / f"k{number}", program, source, after_s)
            if (number + 1) % KILLS == 0:
                print(f"{number + 1} of {kills} kills, {survived} survived", file=sys.stderr)
        tell("killed", survived == kills, f"{survived} of {kills} sessions can be read")
    print(
        json.dumps(
            {
                "blocks": captured,
                "bytes": captured * size,
                "equal": equal,
                "lost": lost,
                "seconds": round(time.monotonic() - begun_s, 1),
            }
        )
    )
    return 0 if equal else 1


# On the host --------------------------------------------------------------------------------------


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="ptat_testbed.suites.usb_guest", description=__doc__)
    parser.add_argument("--inside", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", metavar="REGEX", help="cases whose names match (default: all)")
    parser.add_argument(
        "--kills",
        type=int,
        default=KILLS,
        help=f"how often ptat is killed, anywhere in a capture (default: {KILLS})",
    )
    arguments = parser.parse_args()
    if arguments.inside:
        program, directory = arguments.inside
        return inside(program, directory, arguments.only, arguments.kills)

    with tempfile.TemporaryDirectory(prefix="ptat-usb-") as temporary:
        directory = Path(temporary)
        write_source(directory / "source.raw", BLOCKS, seed=1)
        session = directory / "session"
        session.mkdir()
        program = build.pretend_board()
        recorder_programs.directory()  # the ptat in the guest finds it made
        only = ["--only", arguments.only] if arguments.only else []
        me = [sys.executable, "-m", "ptat_testbed.suites.usb_guest"]
        recording = guest_run.Recording(
            RecordRequest(
                argv=[
                    *(*me, "--inside", str(program), str(directory), *only),
                    *("--kills", str(arguments.kills)),
                ],
                session_dir=session,
                cwd=Path("/"),
                env=dict(os.environ),
                children=False,
                maps=False,  # the ptat inside records them
                region_bytes=REGION_BYTES,
                options={"cpus": "2"},
            ),
            build.board_kernel(),
        )
        settings = recording.settings
        base = layout.region_in_ram(settings.region_bytes, settings.memory_bytes)
        result = recording.record(recording.machine_config(base))
        if not result.complete:
            print(f"usb-guest: the guest: {result.incomplete_reason}", file=sys.stderr)
        return result.exit_status if result.exit_status is not None else 2


if __name__ == "__main__":
    sys.exit(main())
