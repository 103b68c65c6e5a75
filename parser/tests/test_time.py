# SPDX-License-Identifier: BSD-2-Clause
"""The two clocks: whatever the kernel's does, the trace stays the same."""

import random

import pytest
import synthetic
from test_replay import replay

from ptat_parser import replay as replaying

TSC_HZ = synthetic.TSC_HZ


def misses(rows):
    return [(ticks, mm, va, size) for ticks, kind, mm, va, size in rows if kind == replaying.MISS]


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
    assert done.counters[replaying.FAULTS_UNMATCHED] == 0
    assert fitted.drift_ppm == pytest.approx(ppm, abs=0.5)
    assert fitted.origin_cycles / TSC_HZ == pytest.approx(
        synthetic.TSC_START / TSC_HZ + offset_s, abs=0.1
    )
    assert fitted.residual_ns < 1000


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
    assert done.counters[replaying.UNEXPLAINED] == 0
