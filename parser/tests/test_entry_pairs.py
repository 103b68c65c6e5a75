# SPDX-License-Identifier: BSD-2-Clause
import random

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_parser import parse
from ptat_parser.capture.merge import open_bus
from ptat_parser.formats.session import Session
from ptat_parser.kernel import log as kernel_log
from ptat_parser.order import entry_pairs
from ptat_parser.order.clock import Clock
from ptat_parser.order.entry_pairs import EntryPairs
from ptat_parser.order.first_pass import scan_capture


def found_in(path, error_ticks: int = 0):
    """Pairs as ticks of the event and of the store, both by the bus's clock, and the slots."""
    session = Session(path)
    log = kernel_log.read_kernel_log(session.kernel_path)
    stores = EntryPairs(session, log)
    scan_capture(open_bus(session), session.region, entry_stores=stores)
    ratio = synthetic.TSC_HZ / synthetic.TICK_HZ
    fitted = Clock(0, synthetic.TSC_START, ratio, synthetic.TSC_HZ, 0, 0, 1)
    wrong = Clock(error_ticks, synthetic.TSC_START, ratio, synthetic.TSC_HZ, 0, 0, 1)
    pairs = stores.pairs(wrong)
    timed = log.timed.between()
    slots = dict(zip(timed["time"].tolist(), timed["slot_pa"].tolist(), strict=True))
    slots |= dict(zip(log.tables["time"].tolist(), log.tables["slot_pa"].tolist(), strict=True))
    slot = [slots[cycles] for cycles in pairs.cycles.tolist()]
    return fitted.to_ticks(pairs.cycles).astype(np.int64), pairs.ticks.astype(np.int64), slot


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 32),
    granularity=st.sampled_from([8, 64]),
    entries=st.booleans(),
    cpus=st.integers(1, 3),
    error_us=st.integers(-20, 20),
    lossy=st.booleans(),
)
def test_a_store_is_that_of_its_event(
    tmp_path_factory, seed, granularity, entries, cpus, error_us, lossy
):
    """The machine stores at most 451 ns after it logged, and nothing in between."""
    machine = synthetic.Machine(seed, granularity, entries=entries, cpus=cpus).run(150)
    if lossy:
        choose = random.Random(seed)
        for _ in range(40):
            at = choose.randrange(len(machine.bus) - 10)
            machine.bus[at : at + 9] = [(machine.bus[at + 8][0], None, 9)]
    path = machine.write(tmp_path_factory.mktemp("anchors") / "s")
    event, store, slot = found_in(path, 1000 * error_us)
    assert event.size > 0 or lossy
    address = {ticks: where for ticks, where, _ in machine.bus if where is not None}
    for at, stored_at, where in zip(event.tolist(), store.tolist(), slot, strict=True):
        assert 0 <= stored_at - at <= 451
        assert address[stored_at] == where & -granularity


def test_few_events_and_stores_are_enough(tmp_path, monkeypatch):
    machine = synthetic.Machine(1, entries=True).run(800)
    path = machine.write(tmp_path / "s")
    most = len(found_in(path)[0])
    monkeypatch.setattr(entry_pairs, "EVENTS_MAX", 40)
    fewer = len(found_in(path)[0])
    assert 10 < fewer < most / 2
    monkeypatch.setattr(entry_pairs, "STORES_MAX", 30)
    monkeypatch.setattr("ptat_parser.capture.reader.CHUNK_BLOCKS", 1)
    assert 0 < len(found_in(path)[0]) < fewer


@pytest.mark.parametrize("ppm", [-200, 0, 200])
def test_a_short_session_with_few_markers(tmp_path, ppm):
    """A tenth of a second, seven markers that were logged late, and entries."""
    machine = synthetic.Machine(2, entries=True)
    mm = machine.exec()
    for page in range(300):
        machine.set_pte(mm, page << 12, True)
        machine.access(mm, page << 12)
        machine.idle(300_000)
    machine.event("ptat_marker", cookie=2)
    choose = random.Random(1)
    at_once = {synthetic.EVENT_ID[name] for name in ("ptat_pte_set", "ptat_table_link")}
    (log,) = machine.log
    for i, (tsc, payload) in enumerate(log):
        since = (tsc - synthetic.TSC_START) * (1 + ppm * 1e-6)
        if int.from_bytes(payload[:2], "little") not in at_once:
            since += choose.expovariate(1 / 5e-6) * synthetic.TSC_HZ
        log[i] = synthetic.TSC_START + round(since), payload
    log.sort(key=lambda event: event[0])
    path = machine.write(tmp_path / "s")
    fitted = Clock.from_summary(parse(path).summary["clock"])
    assert (fitted.pairs, fitted.entry_pairs) == (7, 301)
    assert fitted.drift_ppm == pytest.approx(ppm, abs=3)
    ticks = np.array([row[0] for row in machine.bus], np.uint64)
    true = (synthetic.TSC_START + ticks * 2.6 * (1 + ppm * 1e-6)) / 2.6
    error_ns = np.abs(fitted.to_ns(ticks) - true).max()
    assert error_ns <= fitted.error_ns < 6_000


@pytest.mark.parametrize("stores_max", [1, 37, 1 << 20])
def test_how_many_are_shown_at_a_time_makes_no_difference(tmp_path, monkeypatch, stores_max):
    monkeypatch.setattr(entry_pairs, "STORES_MAX", stores_max)
    machine = synthetic.Machine(3, entries=True, cpus=2).run(300)
    session = Session(machine.write(tmp_path / "s"))
    log = kernel_log.read_kernel_log(session.kernel_path)
    ticks, address = np.array([row[:2] for row in machine.bus if row[2]], np.uint64).T
    noted = []
    for at_a_time in (1, 50, ticks.size):
        stores = EntryPairs(session, log)
        for start in range(0, ticks.size, at_a_time):
            part = slice(start, start + at_a_time)
            stores.note(ticks[part], address[part])
        noted.append(
            [np.concatenate(column).tolist() for column in zip(*stores._stores, strict=True)]
        )
    assert noted[0] == noted[1] == noted[2]
    assert 0 < len(noted[0][0]) <= stores_max
