# SPDX-License-Identifier: BSD-2-Clause
"""The two clocks: whatever the kernel's does, the trace stays the same."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import synthetic
from test_merge import in_two_channels
from test_replay import replay

from ptat_parser import parse, wire
from ptat_parser.capture.writer import seal
from ptat_parser.checks.session import check
from ptat_parser.errors import BadInput
from ptat_parser.formats.session import MARKER_DELAY_NS
from ptat_parser.order.clock import Clock
from ptat_parser.replay import state as replay_state

TSC_HZ = synthetic.TSC_HZ


def misses(rows):
    return [
        (ticks, mm, va, size) for ticks, kind, mm, va, size in rows if kind == replay_state.MISS
    ]


def disturb(machine, offset_s=0.0, ppm=0.0, late_share=0.0):
    """Let the kernel's clock start elsewhere and drift; a share of events is logged late."""
    choose = random.Random(5)
    for cpu, events in enumerate(machine.log):
        moved = [
            round(synthetic.TSC_START + offset_s * TSC_HZ + since * (1 + ppm * 1e-6))
            for since in (tsc - synthetic.TSC_START for tsc, _ in events)
        ]
        for i, following in enumerate(moved[1:]):
            if choose.random() < late_share:
                moved[i] += choose.randrange(max(following - moved[i], 1))
        machine.log[cpu] = [(tsc, event) for tsc, (_, event) in zip(moved, events, strict=True)]
    return machine


def busy_machine(seed: int, cpus: int = 2):
    """Faults enough to learn from, then everything else, over seconds."""
    machine = synthetic.Machine(seed, cpus=cpus, region_pages=128)
    mm = machine.exec()
    for page in range(128):
        machine.access(mm, page << 12, write=True)
        machine.event("ptat_marker", cookie=0)
        machine.idle(20_000_000)
    return machine.run(150)


@pytest.mark.parametrize("offset_s", [-2.0, 0.0, 5000.0])
@pytest.mark.parametrize("ppm", [-200.0, 0.0, 200.0])
def test_offset_and_drift(tmp_path, offset_s, ppm):
    machine = disturb(busy_machine(1), offset_s, ppm)
    *_, fitted, done, rows = replay(machine.write(tmp_path / "s"))
    assert misses(rows) == machine.expected
    assert done.tally["faults_unmatched"][0] == 0
    assert fitted.drift_ppm == pytest.approx(ppm, abs=0.5)
    assert fitted.origin_cycles / TSC_HZ == pytest.approx(
        synthetic.TSC_START / TSC_HZ + offset_s, abs=0.1
    )
    assert fitted.residual_ns < 1000


def test_a_clock_that_begins_after_the_capture_is_refused(tmp_path):
    """As where the log is of another boot: the capture's first tick would be before its clock's."""
    machine = disturb(busy_machine(1), offset_s=-0.5 - synthetic.TSC_START / TSC_HZ)
    for cpu, events in enumerate(machine.log):
        machine.log[cpu] = [(max(tsc, 0), event) for tsc, event in events]
    with pytest.raises(BadInput, match=r"not of one recording: .* before the kernel's clock began"):
        parse(machine.write(tmp_path / "s"))


def test_a_log_of_another_recording_is_refused(tmp_path):
    """Its markers are as many, but at other times."""
    machine, choose = busy_machine(1, cpus=1), random.Random(1)
    late, moved = 0, []
    for tsc, event in machine.log[0]:
        late += choose.choice([0, 0, 40_000_000])
        moved.append((tsc + late, event))
    machine.log[0] = moved
    with pytest.raises(BadInput, match=r"not of one recording: .* are \d+\.\d ms apart"):
        parse(machine.write(tmp_path / "s"))


def test_a_board_may_state_that_its_markers_are_late(tmp_path):
    """Its recording is refused otherwise; what each walk read stays as in one without delays."""
    machine, choose = busy_machine(1, cpus=1), random.Random(1)
    *_, punctual = replay(machine.write(tmp_path / "punctual"))
    at, moved = 0, []
    for tsc, event in machine.log[0]:
        at = max(at, tsc + choose.choice([0, 1_000_000, 2_000_000]))
        moved.append((at, event))
    machine.log[0] = moved
    path = machine.write(tmp_path / "late")
    with pytest.raises(BadInput, match=r"not of one recording: .* are \d+\.\d ms apart"):
        parse(path)
    description = json.loads((path / "session.json").read_text())
    description["board"]["marker_delay_ns"] = 20_000_000
    (path / "session.json").write_text(json.dumps(description))
    *_, fitted, _, rows = replay(path)
    assert fitted.residual_ns > MARKER_DELAY_NS
    assert [(ticks, *page) for ticks, _, *page in rows] == [
        (ticks, *page) for ticks, _, *page in punctual
    ]


@pytest.mark.parametrize("seed", range(3))
def test_events_logged_late(tmp_path, seed):
    """An event may be logged any time after its marker; only markers give the order."""
    machine = synthetic.Machine(seed, cpus=3, levels="pte")
    mm = machine.exec()
    for page in range(300):
        machine.access(mm, page << 12, write=True)
        machine.walk(mm, page << 12, False)
        if page % 50 == 0:
            machine.move(mm, 0, 5 << 30)
            machine.move(mm, 5 << 30, 0)
        machine.event("ptat_marker", cookie=0)
    disturb(machine, late_share=0.3)
    *_, done, rows = replay(machine.write(tmp_path / "s"))
    assert [row[1:] for row in misses(rows)] == [row[1:] for row in machine.expected]
    assert done.tally["unexplained"][0] == 0


# Whole sessions ---------------------------------------------------------------------------------


def move_bus_clock(path: Path, ticks: int) -> None:
    """Let the bus's counter start elsewhere, and wrap."""
    mask = np.uint64((1 << wire.TIME_BITS) - 1)
    for file in path.glob("bus.*.raw"):
        words = np.fromfile(file, "<u8").reshape(-1, wire.BLOCK_WORDS)
        for block in words:
            count = int(block[-1]) >> wire.CHECK_COUNT_SHIFT & 0xFFF
            block[1] = (block[1] + np.uint64(ticks)) & mask
            for i in range(2, 2 + count):
                if int(block[i]) >> wire.TAG_SHIFT == wire.Tag.TIME:
                    moved = ((block[i] & mask) + np.uint64(ticks)) & mask
                    block[i] = moved | np.uint64(wire.Tag.TIME << wire.TAG_SHIFT)
            seal(block, count)
        words.tofile(file)


def lose_marker(machine: synthetic.Machine) -> None:
    rows = [i for i, row in enumerate(machine.bus) if row[1] < synthetic.REGION_BASE + 65536]
    del machine.bus[rows[len(rows) // 2]]


def lose_events(machine: synthetic.Machine) -> None:
    log = max(machine.log, key=len)
    log[len(log) // 2 : len(log) // 2 + 4] = [(4, None)]


def outside_of_gaps(results) -> list[tuple[int, int, int, int]]:
    """Time, process, address and page size of the misses that are to be relied on."""
    pages = results.pages()
    found = []
    for time, page in results.misses():
        columns = (pages[name].to_numpy()[page] for name in ("mm", "vaddr", "page_size_bytes"))
        found += zip(time.tolist(), *(column.tolist() for column in columns), strict=True)
    return [row for row in found if not any(within(gap, row[0]) for gap in results.summary["gaps"])]


def within(gap: dict, time_ns: int) -> bool:
    after = gap["from_ns"] is None or time_ns >= gap["from_ns"]
    return after and (gap["to_ns"] is None or time_ns <= gap["to_ns"])


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("lost", [None, lose_marker, lose_events])
@pytest.mark.parametrize("ppm", [-200.0, 200.0])
@pytest.mark.parametrize("wraps", [False, True])
def test_all_of_it_together(tmp_path, channels, lost, ppm, wraps):
    """Offset, drift, jitter, a wrap, a loss, two channels: right where the summary says so."""
    machine = disturb(busy_machine(3), 17.5, ppm)
    choose = random.Random(8)
    for log in machine.log:  # logged up to 200 ns late
        log[:] = [(tsc + choose.randrange(520), event) for tsc, event in log]
        log.sort(key=lambda event: event[0])
    true = machine.expected
    if lost:
        lost(machine)
    path = machine.write(tmp_path / "s")
    if channels == 2:
        in_two_channels(path)
    middle = true[len(true) // 2][0]
    shift = (1 << wire.TIME_BITS) - middle if wraps else 0
    move_bus_clock(path, shift)
    results = parse(path)
    summary = results.summary
    clock = Clock.from_summary(summary["clock"])
    assert clock.drift_ppm == pytest.approx(ppm, abs=0.5)
    assert (summary["lost"] > 0) == bool(summary["gaps"]) == (lost is not None)

    ticks = np.array([row[0] for row in true], np.uint64)
    times = clock.to_ns(ticks + np.uint64(shift)).tolist()
    start_ns = (synthetic.TSC_START / TSC_HZ + 17.5) * 1e9
    true_ns = start_ns + ticks * (1 + ppm * 1e-6)
    assert np.abs(times - true_ns).max() < 1000
    expected = [(at, *row[1:]) for at, row in zip(times, true, strict=True)]
    if lost:
        gaps = summary["gaps"]
        expected = [row for row in expected if not any(within(gap, row[0]) for gap in gaps)]
    assert outside_of_gaps(results) == expected
    assert len(expected) > len(true) / 4 or lost
    report = check(path)
    assert report.ok or lost is not None
