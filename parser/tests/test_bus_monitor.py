# SPDX-License-Identifier: BSD-2-Clause
"""A session that is read while it grows: the totals are the same, however it was cut."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import synthetic

from ptat_parser import parse, wire
from ptat_parser.errors import PtatError
from ptat_parser.formats.session import Session
from ptat_parser.live import bus_monitor, increment
from ptat_parser.live.bus_monitor import BusMonitor
from ptat_parser.live.increment import Increment


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def merged(updates: list[Increment]) -> Increment:
    whole = Increment()
    for update in updates:
        for name, value in vars(update).items():
            setattr(whole, name, getattr(whole, name) + value)
    return whole


def by_page(monitor: BusMonitor, update: Increment) -> dict[tuple[int, int, int], int]:
    """Misses by (mm, address, page size)."""
    found: dict[tuple[int, int, int], int] = {}
    columns = increment.rows(update.pages)
    for mm, vaddr, size, misses in zip(
        *(columns[name].tolist() for name in ("mm", "vaddr", "page_size_bytes", "misses")),
        strict=True,
    ):
        key = monitor.mms[mm].id, vaddr, size
        found[key] = found.get(key, 0) + misses
    return found


def expected(path: Path) -> tuple[dict, dict[tuple[int, int, int], tuple[int, int]]]:
    """Totals, and of each page the misses, at least and at most: faults may be taken for some."""
    results = parse(path)
    pages = results.pages().to_pylist()
    return results.summary["totals"], {
        (page["mm"], page["vaddr"], page["page_size_bytes"]): (
            page["misses"],
            page["misses"] + page["faulted"],
        )
        for page in pages
    }


def agrees(monitor: BusMonitor, update: Increment, path: Path) -> None:
    totals, pages = expected(path)
    assert update.accesses == totals["accesses"] > 100
    assert update.misses + update.faulted == totals["misses"] + totals["faulted"]
    assert totals["misses"] <= update.misses
    assert (update.pmd_reads, update.unexplained) == (totals["pmd_reads"], 0)
    found = by_page(monitor, update)
    assert sum(found.values()) == update.misses
    for key, misses in found.items():
        least, most = pages.pop(key)
        assert least <= misses <= most
    assert not any(least for least, _ in pages.values())


@pytest.mark.parametrize("seed", range(6))
def test_all_at_once(session, seed):
    path = session(steps=400, seed=seed, granularity=8)
    monitor = BusMonitor(Session(path))
    update = monitor.update()
    agrees(monitor, update, path)
    assert update.stopped
    assert (monitor.waiting, update.lost_accesses, update.lost_blocks, update.lost_events) == (
        0,
    ) * 4
    assert monitor.update() == Increment()


def grow(source: Path, target: Path, numbers: random.Random) -> None:
    """Let each file have some more bytes of its own, a piece of a block or of a page, too."""
    for file in [source / "bus.0.raw", *sorted((source / "kernel").glob("cpu*.raw"))]:
        to = target / file.relative_to(source)
        have = to.stat().st_size if to.exists() else 0
        if numbers.random() < 0.7:
            to.write_bytes(file.read_bytes()[: have + numbers.randrange(9000)])


@pytest.mark.parametrize("seed", range(6))
def test_while_it_grows(session, tmp_path, seed):
    path = session(steps=1500, seed=seed, granularity=8, cpus=2)
    growing = tmp_path / "growing"
    (growing / "kernel").mkdir(parents=True)
    shutil.copytree(path / "kernel" / "formats", growing / "kernel" / "formats")
    shutil.copy(path / "session.json", growing)
    monitor, numbers = BusMonitor(Session(growing), Clock()), random.Random(seed)
    updates, waited = [], False
    while not any(update.stopped for update in updates) or monitor.waiting:
        grow(path, growing, numbers)
        updates.append(monitor.update())
        waited |= monitor.waiting > 0
        assert len(updates) < 1000
    agrees(monitor, merged(updates), path)
    assert len([update for update in updates if update.misses]) > 3
    assert waited
    times = increment.rows(merged(updates).pages)["time_ns"]
    assert times.size and (times > 0).any()


@pytest.mark.parametrize("granularity", [32, 64])
def test_lines_of_entries(session, granularity):
    path = session(steps=400, granularity=granularity)
    totals, _ = expected(path)
    monitor = BusMonitor(Session(path))
    update = monitor.update()
    assert monitor.span == granularity // 8
    reads = totals["misses"] + totals["faulted"] + totals["pmd_reads"]
    assert update.misses + update.faulted + update.pmd_reads == reads
    # The first walk of an entry whose neighbour was stored to is not known to have faulted.
    assert totals["misses"] <= update.misses <= totals["misses"] + totals["faulted"]


def test_losses_are_counted(tmp_path):
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    for _ in range(30):
        machine.access(mm, 0x5000)
    machine.lose(4)
    path = machine.write(tmp_path / "s")
    bus = path / "bus.0.raw"
    update = BusMonitor(Session(path)).update()
    assert (update.lost_accesses, update.misses) == (4, 26)
    data = bytearray(bus.read_bytes())
    data[100] ^= 1
    bus.write_bytes(data + data)  # a damaged block, then another one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bus_monitor, "READ_BLOCKS", 1)
        assert BusMonitor(Session(path)).update().misses == 0


def test_a_missing_block_is_lost(session):
    path = session(steps=4000)
    bus = path / "bus.0.raw"
    data = bus.read_bytes()
    blocks = len(data) // wire.BLOCK_BYTES
    assert blocks > 3
    bus.write_bytes(data[: wire.BLOCK_BYTES] + data[2 * wire.BLOCK_BYTES :])
    clock = Clock()
    monitor = BusMonitor(Session(path), clock)
    updates = [monitor.update()]
    while monitor.waiting:
        clock.now += bus_monitor.WAIT_S
        updates.append(monitor.update())
    whole = merged(updates)
    assert (whole.lost_blocks, whole.stopped) == (1, True)
    assert 0 < whole.misses < expected_misses(data, bus, path)


def expected_misses(data: bytes, bus: Path, path: Path) -> int:
    bus.write_bytes(data)
    return int(parse(path).summary["totals"]["misses"])


def test_an_event_that_never_comes_is_given_up(session):
    path = session(steps=400)
    for log in (path / "kernel").glob("cpu*.raw"):
        log.write_bytes(b"")
    clock = Clock()
    monitor = BusMonitor(Session(path), clock)
    assert monitor.update().misses == 0
    assert monitor.waiting > 0
    while monitor.waiting:
        clock.now += bus_monitor.WAIT_S
        update = monitor.update()
    assert update.stopped is False and monitor.waiting == 0


def test_before_there_is_anything(session):
    path = session(steps=10)
    (path / "bus.0.raw").unlink()
    shutil.rmtree(path / "kernel")
    monitor = BusMonitor(Session(path))
    assert monitor.update() == Increment()
    assert monitor.seconds == 0.0


def test_the_modelled_buffer(tmp_path):
    """Four records come in 4 µs; one leaves in 2 µs."""
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    path = machine.write(tmp_path / "s")
    monitor = BusMonitor(Session(path), drain_per_s=0.5e6)
    level = np.zeros(2)
    ticks = 10**9 + np.arange(4, dtype=np.uint64) * np.uint64(1000)
    bus_monitor._fill(ticks, 0.5e-3, level)
    assert level[0] == 2.5
    monitor.update()
    assert monitor.level > 0
    assert BusMonitor(Session(path)).level == 0


def test_clocks_of_their_own(session):
    path = session(steps=10)
    description = json.loads((path / "session.json").read_text())
    description["board"]["clocks"] = "pulses"
    (path / "session.json").write_text(json.dumps(description))
    with pytest.raises(PtatError, match="separate clocks"):
        BusMonitor(Session(path))
