# SPDX-License-Identifier: BSD-2-Clause
"""A session looked at while it grows: the same in the end, whatever was there at each look."""

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
from ptat_parser.live import follow
from ptat_parser.live.follow import Look, Tail


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def merged(looks: list[Look]) -> Look:
    whole = Look()
    for look in looks:
        for name, value in vars(look).items():
            setattr(whole, name, getattr(whole, name) + value)
    return whole


def by_page(tail_: Tail, look: Look) -> dict[tuple[int, int, int], int]:
    """Misses by (mm, address, page size)."""
    found: dict[tuple[int, int, int], int] = {}
    columns = follow.rows(look.pages)
    for mm, vaddr, size, misses in zip(
        *(columns[name].tolist() for name in ("mm", "vaddr", "page_size_bytes", "misses")),
        strict=True,
    ):
        key = tail_.mms[mm].id, vaddr, size
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


def agrees(tail_: Tail, look: Look, path: Path) -> None:
    totals, pages = expected(path)
    assert look.accesses == totals["accesses"] > 100
    assert look.misses + look.faulted == totals["misses"] + totals["faulted"]
    assert totals["misses"] <= look.misses
    assert (look.pmd_reads, look.unexplained) == (totals["pmd_reads"], 0)
    found = by_page(tail_, look)
    assert sum(found.values()) == look.misses
    for key, misses in found.items():
        least, most = pages.pop(key)
        assert least <= misses <= most
    assert not any(least for least, _ in pages.values())


@pytest.mark.parametrize("seed", range(6))
def test_all_at_once(session, seed):
    path = session(steps=400, seed=seed, granularity=8)
    follower = Tail(Session(path))
    look = follower.look()
    agrees(follower, look, path)
    assert look.stopped
    assert (follower.waiting, look.lost_accesses, look.lost_blocks, look.lost_events) == (0,) * 4
    assert follower.look() == Look()


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
    follower, numbers = Tail(Session(growing), Clock()), random.Random(seed)
    looks, waited = [], False
    while not any(look.stopped for look in looks) or follower.waiting:
        grow(path, growing, numbers)
        looks.append(follower.look())
        waited |= follower.waiting > 0
        assert len(looks) < 1000
    agrees(follower, merged(looks), path)
    assert len([look for look in looks if look.misses]) > 3
    assert waited
    times = follow.rows(merged(looks).pages)["time_ns"]
    assert times.size and (times > 0).any()


@pytest.mark.parametrize("granularity", [32, 64])
def test_lines_of_entries(session, granularity):
    path = session(steps=400, granularity=granularity)
    totals, _ = expected(path)
    follower = Tail(Session(path))
    look = follower.look()
    assert follower.span == granularity // 8
    reads = totals["misses"] + totals["faulted"] + totals["pmd_reads"]
    assert look.misses + look.faulted + look.pmd_reads == reads
    # The first walk of an entry whose neighbour was stored to is not known to have faulted.
    assert totals["misses"] <= look.misses <= totals["misses"] + totals["faulted"]


def test_losses_are_counted(tmp_path):
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    for _ in range(30):
        machine.access(mm, 0x5000)
    machine.lose(4)
    path = machine.write(tmp_path / "s")
    bus = path / "bus.0.raw"
    look = Tail(Session(path)).look()
    assert (look.lost_accesses, look.misses) == (4, 26)
    data = bytearray(bus.read_bytes())
    data[100] ^= 1
    bus.write_bytes(data + data)  # a damaged block, then another one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "READ_BLOCKS", 1)
        assert Tail(Session(path)).look().misses == 0


def test_a_missing_block_is_lost(session):
    path = session(steps=4000)
    bus = path / "bus.0.raw"
    data = bus.read_bytes()
    blocks = len(data) // wire.BLOCK_BYTES
    assert blocks > 3
    bus.write_bytes(data[: wire.BLOCK_BYTES] + data[2 * wire.BLOCK_BYTES :])
    clock = Clock()
    follower = Tail(Session(path), clock)
    looks = [follower.look()]
    while follower.waiting:
        clock.now += follow.WAIT_S
        looks.append(follower.look())
    whole = merged(looks)
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
    follower = Tail(Session(path), clock)
    assert follower.look().misses == 0
    assert follower.waiting > 0
    while follower.waiting:
        clock.now += follow.WAIT_S
        look = follower.look()
    assert look.stopped is False and follower.waiting == 0


def test_before_there_is_anything(session):
    path = session(steps=10)
    (path / "bus.0.raw").unlink()
    shutil.rmtree(path / "kernel")
    follower = Tail(Session(path))
    assert follower.look() == Look()
    assert follower.seconds == 0.0


def test_the_modelled_buffer(tmp_path):
    """Four records come in 4 µs; one leaves in 2 µs."""
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    path = machine.write(tmp_path / "s")
    follower = Tail(Session(path), drain_per_s=0.5e6)
    level = np.zeros(2)
    ticks = 10**9 + np.arange(4, dtype=np.uint64) * np.uint64(1000)
    follow._fill(ticks, 0.5e-3, level)
    assert level[0] == 2.5
    follower.look()
    assert follower.level > 0
    assert Tail(Session(path)).level == 0


def test_clocks_of_their_own(session):
    path = session(steps=10)
    description = json.loads((path / "session.json").read_text())
    description["board"]["clocks"] = "pulses"
    (path / "session.json").write_text(json.dumps(description))
    with pytest.raises(PtatError, match="separate clocks"):
        Tail(Session(path))
