# SPDX-License-Identifier: BSD-2-Clause
"""``make bench-boards``: how fast ptat moves a board's stream to a file.

A board without hardware (``testbed/board``) streams a file as fast as it is taken: over UDP on
loopback here, over USB (raw-gadget and dummy_hcd) in the testbed's guest. What ptat's capture path
makes of it is held against a plain receiver in C, from the same board in the same run, and against
dd of the same file. Each is run several times in turn; the figures are the medians.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ptat_host.boards.base import RecordRequest
from ptat_host.boards.client import Client, Link
from ptat_host.boards.udp import UdpLink
from ptat_host.boards.usb import UsbLink
from ptat_host.protocol import Command
from ptat_parser import wire
from ptat_testbed.boards import guest_run
from ptat_testbed.guest import build, layout
from ptat_testbed.guest.command_output import stdout_to
from ptat_testbed.suites.usb_guest import SERIAL, UsbBoard, usb_node, write_source

UDP_BLOCKS = 32768
USB_BLOCKS = 16384
"""Enough to make the start and end of a capture, some tenths of a second, negligible."""
RUNS = 5
MEMORY = Path("/dev/shm")
MB = 1_000_000


@dataclass(frozen=True)
class Cost:
    """Of one transfer."""

    seconds: float
    cpu_seconds: float


def _cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _timed(function: Callable[[], None], who: int) -> Cost:
    cpu, begun = _cpu_seconds(who), time.perf_counter()
    function()
    return Cost(time.perf_counter() - begun, _cpu_seconds(who) - cpu)


def _program(*command: str | Path) -> Cost:
    def call() -> None:
        subprocess.run(command, check=True, stderr=subprocess.PIPE)

    return _timed(call, resource.RUSAGE_CHILDREN)


def _ptat(link: Link, target: Path) -> Cost:
    """The capture path of ``ptat record``, from START until all is in the file."""
    with Client(link) as client, target.open("wb", buffering=0) as file:
        client.identify()
        client.stop()
        client.link.drain()

        def capture() -> None:
            running = client.link.capture(file.fileno(), client.host)
            client.command(Command.START)
            running.finish(client.stop(running).blocks * wire.BLOCK_BYTES)
            if running.failure:
                raise RuntimeError(running.failure)

        return _timed(capture, resource.RUSAGE_SELF)


def _compare(
    source: Path,
    target: Path,
    plain: Callable[[Path], Cost],
    ptat: Callable[[Path], Cost],
) -> dict[str, float]:
    costs: dict[str, list[Cost]] = {"dd": [], "plain": [], "ptat": []}
    ways: dict[str, Callable[[], Cost]] = {
        "dd": lambda: _program("dd", f"if={source}", f"of={target}", "bs=1M"),
        "plain": lambda: plain(target),
        "ptat": lambda: ptat(target),
    }
    for _ in range(RUNS):
        for name, way in ways.items():
            target.unlink(missing_ok=True)
            os.sync()
            costs[name].append(way())
            if not filecmp.cmp(source, target, shallow=False):
                raise RuntimeError(f"what {name} wrote is not what was sent")
    target.unlink()
    size_mb = source.stat().st_size / MB
    figures = {}
    for name, found in costs.items():
        figures[f"{name}_mb_s"] = size_mb / statistics.median(cost.seconds for cost in found)
        figures[f"{name}_cpu_s_per_gb"] = (
            statistics.median(cost.cpu_seconds for cost in found) / size_mb * 1000
        )
    figures["ratio"] = figures["ptat_mb_s"] / figures["plain_mb_s"]
    figures["ratio_to_dd"] = figures["ptat_mb_s"] / figures["dd_mb_s"]
    return {name: round(value, 3) for name, value in figures.items()}


def udp(board: Path, target: Path) -> dict[str, float]:
    """Over loopback, into a file in the directory `target`."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as temporary:
        source = Path(temporary) / "source"
        write_source(source, UDP_BLOCKS, seed=1)
        size_bytes = source.stat().st_size
        running = subprocess.Popen([board, "udp", "0", source], stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        try:
            port = running.stdout.readline().strip()
            with tempfile.TemporaryDirectory(dir=target) as directory:
                return _compare(
                    source,
                    Path(directory) / "target",
                    lambda file: _program(
                        board.with_name("receive"), "udp", port, str(size_bytes), file
                    ),
                    lambda file: _ptat(UdpLink(f"127.0.0.1:{port}"), file),
                )
        finally:
            running.kill()
            running.wait()
            running.stdout.close()


def usb_inside(board: Path, given: Path) -> dict[str, float]:
    """In the guest, into its memory."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        source = directory / "source"
        shutil.copyfile(given, source)
        size_bytes = source.stat().st_size
        with UsbBoard(board, source, ()):
            return _compare(
                source,
                directory / "target",
                lambda file: _program(
                    board.with_name("receive"), "usb", usb_node(), str(size_bytes), file
                ),
                lambda file: _ptat(UsbLink(SERIAL), file),
            )


def usb(board: Path) -> dict[str, float]:
    """Over the guest's USB."""
    with tempfile.TemporaryDirectory(prefix="ptat-bench-") as temporary:
        session = Path(temporary)
        figures_file, source = session / "figures", session / "source"
        write_source(source, USB_BLOCKS, seed=1)
        recording = guest_run.Recording(
            RecordRequest(
                argv=[
                    *(sys.executable, "-m", "ptat_testbed.suites.bench_boards"),
                    *("--inside", str(board), str(source)),
                ],
                session_dir=session,
                cwd=Path("/"),
                env=dict(os.environ),
                children=False,
                options={"cpus": "2"},
            ),
            build.board_kernel(),
        )
        settings = recording.settings
        base = layout.region_in_ram(settings.region_bytes, settings.memory_bytes)
        with stdout_to(figures_file):
            result = recording.record(recording.machine_config(base))
        if not result.complete or result.exit_status:
            raise RuntimeError(f"the guest: {result.incomplete_reason or result.exit_status}")
        figures: dict[str, float] = json.loads(figures_file.read_text())
        return figures


def main() -> int:
    """Command line; the last line is a JSON object."""
    parser = argparse.ArgumentParser(prog="ptat_testbed.suites.bench_boards", description=__doc__)
    parser.add_argument("--inside", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=("udp", "usb"), help="one kind of link (default: both)")
    parser.add_argument(
        "--disk", type=Path, default=Path("/var/tmp"), help="where the disk is (default: /var/tmp)"
    )
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(usb_inside(*arguments.inside)))
        return 0
    board = build.pretend_board()
    figures = {}
    if arguments.only != "usb":
        figures["udp_to_tmpfs"] = udp(board, MEMORY)
        figures["udp_to_disk"] = udp(board, arguments.disk)
    if arguments.only != "udp":
        figures["usb_to_tmpfs"] = usb(board)
    for name, found in figures.items():
        for figure, value in found.items():
            print(f"{name:14}{figure:24}{value:10.2f}")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
