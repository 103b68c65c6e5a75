# SPDX-License-Identifier: BSD-2-Clause
"""--bus gateware: the model's accesses as commands of memory controllers, and what is seen."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ptat_host.boards.base import BoardError
from ptat_parser import wire
from ptat_parser.capture.merge import MergedReader
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.formats import truth
from ptat_testbed.boards import testbed
from ptat_testbed.bus import gateware
from ptat_testbed.bus.gateware import GatewareBus

PTAT = [sys.executable, "-m", "ptat_host.cli"]
BASE = 1 << 30
REGION_BYTES = 32 << 20

needs_verilator = pytest.mark.skipif(
    shutil.which("verilator") is None or shutil.which("g++") is None,
    reason="no Verilator (setup/packages.sh gateware)",
)
pytestmark = pytest.mark.timeout(3600)  # the first run builds simulators


def test_options():
    assert testbed.parse_bus({}, None) is None
    assert testbed.parse_bus({"bus": "model"}, 8) is None
    assert testbed.parse_bus({"bus": "gateware"}, None) == 1
    assert testbed.parse_bus({"bus": "gateware", "channels": "2"}, 64) == 2


@pytest.mark.parametrize(
    ("options", "granularity_bytes", "message"),
    [
        ({"bus": "usb"}, None, "--bus usb"),
        ({"bus": "gateware", "channels": "3"}, None, "--channels 3: must be a number from 1 to 2"),
        ({"bus": "gateware"}, 8, "--granularity 8: a DDR3 bus shows 64 bytes"),
        ({"bus": "gateware", "buffer": "1024:1000"}, None, "--buffer"),
        ({"channels": "2"}, None, "--channels: the model's bus has none"),
    ],
)
def test_options_that_make_no_sense(options, granularity_bytes, message):
    with pytest.raises(BoardError, match=message):
        testbed.parse_bus(options, granularity_bytes)


def model_recording(directory: Path, count: int) -> tuple[list[int], list[int], list[bool]]:
    """Time, address and kind of accesses, and a truth: a walk for most reads and some without."""
    rng = np.random.default_rng(1)
    # One in a nanosecond at times, nothing for a minute at others.
    steps = rng.choice([1, 1, 30, 700, 1 << 21], count)
    steps[count // 2] = 60 * 10**9
    time = (10**15 + np.cumsum(steps)).tolist()
    address = (BASE + rng.integers(0, REGION_BYTES // 8, count) * 8).tolist()
    write = (rng.random(count) < 0.2).tolist()
    with (directory / "bus.model.raw").open("wb") as file, BlockWriter(file) as writer:
        writer.mark(time[0] - 1, wire.Mark.START)
        for access in zip(time, address, write, strict=True):
            writer.access(*access)
        writer.mark(time[-1] + 1, wire.Mark.STOP)
    walks = [t for t, is_write in zip(time, write, strict=True) if not is_write]
    walks += [t + 1 for t, step in zip(time, steps[1:].tolist(), strict=False) if step > 30]
    records = np.zeros(len(walks), truth.dtype())
    records["time"] = sorted(walks)
    records["va"] = np.arange(len(walks)) << 12
    records["shift"] = 12
    truth.write(directory / "truth.0.bin", records)
    return time, address, write


@needs_verilator
@pytest.mark.parametrize("channels", [1, 2])
def test_each_access_keeps_its_place(tmp_path, channels):
    time, address, write = model_recording(tmp_path, 3000)
    before = truth.read(tmp_path / "truth.0.bin")

    bus = GatewareBus(channels, BASE, REGION_BYTES)
    bus.capture(tmp_path, tmp_path / "bus.model.raw")

    assert not (tmp_path / "bus.model.raw").exists()
    described = bus.metadata()["channels"]
    assert len(described) == channels
    readers = [BusReader(tmp_path / each["file"], each["index"]) for each in described]
    assert all(sum(chunk.time.size for chunk in reader) > 1000 for reader in readers)
    chunks = list(MergedReader(readers))
    assert [a for chunk in chunks for a in chunk.address.tolist()] == [a & -64 for a in address]
    assert [w for chunk in chunks for w in chunk.write.tolist()] == write
    stamps = np.concatenate([chunk.time for chunk in chunks])

    # Time: that of the model, and what the accesses before need.
    model = np.array(time) - time[0]
    seen = (stamps - stamps[0]).astype(np.int64) / gateware.TICKS_PER_NS
    assert np.all(np.diff(seen) >= 2)
    quiet = np.flatnonzero(np.diff(model, prepend=-1000) >= 700)
    assert np.abs(seen[quiet] - model[quiet]).max() < 10

    # Walks are where they were among the accesses, those that read nothing between them.
    after = truth.read(tmp_path / "truth.0.bin")
    assert after["va"].tolist() == before["va"].tolist()
    assert np.all(np.diff(after["time"].astype(np.int64)) > 0)
    place = np.searchsorted(np.array(time), before["time"])
    assert np.searchsorted(stamps, after["time"]).tolist() == place.tolist()
    reads = np.isin(before["time"], time)
    assert np.isin(after["time"], stamps).tolist() == reads.tolist()


@needs_verilator
def test_the_simulation_fails(tmp_path):
    model_recording(tmp_path, 10)
    (tmp_path / "bus.0.raw").mkdir()
    with pytest.raises(BoardError, match="Is a directory"):
        GatewareBus(1, BASE, REGION_BYTES).capture(tmp_path, tmp_path / "bus.model.raw")
    assert (tmp_path / "bus.model.raw").exists()


@pytest.mark.guest
@needs_verilator
@pytest.mark.parametrize("channels", [1, 2])
def test_recordings_are_exact(tmp_path, channels):
    session = tmp_path / "session"
    options = ["--bus", "gateware", "--channels", str(channels)]
    command = ["gups", "--bytes", "16M", "--updates", "20K"]
    subprocess.run([*PTAT, "record", "-o", str(session), *options, "--", *command], check=True)
    board = json.loads((session / "session.json").read_text())["board"]
    assert (board["bus"], board["granularity_bytes"]) == ("gateware", 64)
    assert len(board["channels"]) == channels
    done = subprocess.run(
        [*PTAT, "validate", str(session), "--json"], stdout=subprocess.PIPE, check=True
    )
    verdict = json.loads(done.stdout)
    assert verdict["exact"]
    assert verdict["trace_misses"] > 5000


@pytest.mark.guest
@needs_verilator
@pytest.mark.parametrize("channels", [1, 2])
def test_recordings_behind_a_memory_controller_are_inside_their_bound(tmp_path, channels):
    """Commands of the modelled controller, one queue a channel, on LiteDRAM's bus."""
    session = tmp_path / "session"
    options = ["--bus", "gateware", "--channels", str(channels)]
    options += ["--controller", "ecc-server,scrub_ns=1000000"]
    command = ["gups", "--bytes", "8M", "--updates", "20K"]
    subprocess.run([*PTAT, "record", "-o", str(session), *options, "--", *command], check=True)
    described = json.loads((session / "session.json").read_text())
    assert described["board"]["contract"]["ecc"]
    assert len(described["board"]["channels"]) == channels
    done = subprocess.run(
        [*PTAT, "validate", str(session), "--json"], stdout=subprocess.PIPE, check=True
    )
    verdict = json.loads(done.stdout)
    assert verdict["inferred"] > 1000
    # How often gups misses depends on the machine's load, but each of its 2,048 pages does; and
    # each miss that the bus shows is one of the truth.
    assert verdict["truth_misses"] > 2048
    assert verdict["matched"] >= verdict["trace_misses"] - verdict["inferred"], verdict
    assert len(verdict["memory"]) == 4
    subprocess.run([*PTAT, "check", str(session)], stdout=subprocess.DEVNULL, check=True)
