# SPDX-License-Identifier: BSD-2-Clause
import random
from bisect import bisect_left

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference, classify

from ptat_parser.capture.reader import BusReader
from ptat_parser.checks.session import check
from ptat_parser.formats.session import Session
from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel import ring_buffer, tracepoints
from ptat_parser.kernel.tracepoints import TableEvent
from ptat_parser.order import clock, markers
from ptat_parser.order.first_pass import scan_capture
from ptat_parser.replay import replayer, timed_events
from ptat_parser.replay import state as replay_state
from ptat_parser.replay.page_faults import HOLD_S, LAGS_LEARNT, PATIENCE_S
from ptat_parser.replay.page_tables import Rpt
from ptat_parser.results.pipeline import parse

GIB = 1 << 30


def ready(path, chunk_blocks: int = 64, faults: bool = True, entries: bool = False):
    """A replayer of a session, how many accesses there are, and all that it was given."""
    session = Session(path)
    log = kernel_log.read_kernel_log(session.kernel_path)
    reader = BusReader(session.bus_path)
    reader.chunk_blocks = chunk_blocks
    found = scan_capture(reader, session.region)
    clocks = clock.NominalClocks.of(session)
    placement = markers.place(log.tables, found.stores, session.region.marker_slots, clocks)
    ticks = found.stores.time_ticks[placement.store]
    fitted = clock.fit(clock.Pairs(ticks, log.tables["time"][placement.event]), clocks)
    order = replayer.Order(log, placement, fitted, found.chunks)
    made = replayer.Replayer(session, order, faults=faults, entries=entries)
    return made, found.accesses, session, log, reader, placement, fitted


def replay(path, chunk_blocks: int = 64):
    """What the compiled replay says, and all that it was given."""
    replayer, accesses, *given = ready(path, chunk_blocks)
    reader = given[2]
    columns = replay_state.Records(
        *(np.empty(accesses, dtype) for dtype in (np.uint64, np.uint32, np.uint8))
    )
    done = replayer.run(reader, replay_state.Segment(0, 0, reader.blocks), columns)
    reads = int(done.tally["reads"][0])
    records = list(zip(*(column[:reads].tolist() for column in columns), strict=True))
    mms = [mm.id for mm in replayer.rpt.mms]
    rows = []
    for ticks, number, what in records:
        line = replayer.rpt.line
        index, entry = divmod(number // line, 512)
        range_ = replayer.rpt.ranges[index]
        size = 4096 if range_.level == 1 else 2 << 20
        va = range_.base + entry // line * line * size
        rows.append((ticks, what, mms[range_.mm], va, size))
    return *given, done, rows


def reference_of(session, log, reader, placement, fitted):
    region = session.region
    accesses, steps = [], []
    for chunk in reader:
        steps += [(len(accesses) + lost.position, 1, None) for lost in chunk.lost]
        accesses += zip(
            chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True
        )
    ticks = fitted.to_ticks(log.tables["time"]).tolist()
    times = [access[0] for access in accesses]
    late = []
    for row, position, at in zip(
        log.tables.tolist(), placement.position.tolist(), ticks, strict=True
    ):
        event = TableEvent._make(row)
        if position == markers.BY_TIME:
            late.append((int(np.searchsorted(times, at)), at, event))
        else:
            steps.append((position, 0, event))
    # At one position: late events by time, then losses, then events with a marker.
    steps = [(p, 2 - order, 0, event) for p, order, event in steps]
    steps += [(p, 0, at, event) for p, at, event in late]
    steps.sort(key=lambda step: step[:3])
    timed = log.timed.between()
    faults = timed[timed["kind"] == tracepoints.FAULT]
    fault_ticks = (fitted.to_ticks(faults["time"]) + np.uint64(1)).tolist()
    reference = Reference(
        region.base,
        region.size_bytes,
        region.marker_slots * region.marker_stride_bytes,
        session.board.granularity_bytes,
        int(PATIENCE_S * session.channel.tick_hz),
        int(HOLD_S * session.channel.tick_hz),
        fitted.error_ticks,
        int(PATIENCE_S * session.channel.tick_hz) if session.kernel.cpus > 1 else 0,
        session.readback_address,
    )
    return classify(
        reference,
        accesses,
        [(step[0], step[3]) for step in steps],
        list(zip(fault_ticks, faults["mm"].tolist(), faults["va"].tolist(), strict=True)),
    )


def add_losses(machine: synthetic.Machine, choose: random.Random) -> None:
    """Drop runs of accesses, markers among them."""
    kept: list = []
    rest = list(machine.bus)
    while rest:
        n = choose.randrange(1, 200)
        kept += rest[:n]
        dropped, rest = rest[n : n + choose.randrange(1, 30)], rest[n:]
        rest = rest[len(dropped) :]
        if dropped:
            kept.append((dropped[-1][0], None, len(dropped)))
    machine.bus = kept


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.integers(1, 200),
    granularity=st.sampled_from([8, 16, 32, 64]),
    levels=st.sampled_from(["pte", "pte+pmd"]),
    lossy=st.booleans(),
    untraced=st.sampled_from([0, 0.3]),
    chunk_blocks=st.sampled_from([1, 64]),
    readback=st.booleans(),
    huge=st.sampled_from([0, 0.2]),
    cut_walks=st.booleans(),
)
def test_compiled_replay_equals_the_reference(
    tmp_path_factory,
    seed,
    steps,
    granularity,
    levels,
    lossy,
    untraced,
    chunk_blocks,
    readback,
    huge,
    cut_walks,
):
    machine = synthetic.Machine(
        seed,
        granularity,
        levels=levels,
        untraced=untraced,
        readback=readback,
        huge=huge,
        cut_walks=cut_walks,
    ).run(steps, walks=300)
    if lossy:
        add_losses(machine, random.Random(seed))
    path = machine.write(tmp_path_factory.mktemp("replay") / "s")
    *given_to_it, done, rows = replay(path, chunk_blocks)
    reference = reference_of(*given_to_it)
    assert rows == [(r.ticks, r.kind, r.mm, r.va, r.size) for r in reference.records]
    assert int(done.tally["unexplained"][0]) == len(reference.unexplained)
    assert int(done.tally["readbacks"][0]) == reference.readbacks
    walks = done.tally[["walks_whole", "walks_broken", "ambiguous"]][0].tolist()
    assert walks == (reference.whole, reference.broken, reference.ambiguous)
    _, log, *_ = given_to_it
    if granularity > 8 and np.any(log.tables["kind"] == tracepoints.LEAF_SET):
        assert int(done.delays["walk_step"][0]) == reference.step_16


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.integers(1, 250),
    granularity=st.sampled_from([8, 16, 32, 64]),
    levels=st.sampled_from(["pte", "pte+pmd"]),
    cpus=st.integers(1, 4),
    readback=st.booleans(),
    huge=st.sampled_from([0, 0.2]),
)
def test_misses_are_those_that_the_machine_had(
    tmp_path_factory, seed, steps, granularity, levels, cpus, readback, huge
):
    machine = synthetic.Machine(
        seed, granularity, levels=levels, cpus=cpus, readback=readback, huge=huge
    ).run(steps, walks=300)
    path = machine.write(tmp_path_factory.mktemp("replay") / "s")
    *_, done, rows = replay(path)
    entries = granularity // 8
    assert [(t, mm, va, size) for t, kind, mm, va, size in rows if kind == replay_state.MISS] == [
        (t, mm, va // (size * entries) * size * entries, size)
        for t, mm, va, size in machine.expected
    ]
    assert done.tally["unexplained"][0] == 0
    assert done.tally["faults_unmatched"][0] == 0
    assert done.tally["readbacks"][0] == machine.readbacks


@pytest.mark.parametrize("seed", range(5))
def test_a_full_region_costs_only_what_it_could_not_hold(tmp_path, seed):
    machine = synthetic.Machine(seed, untraced=0.5).run(200)
    *_, done, rows = replay(machine.write(tmp_path / "s"))
    assert [(t, mm, va) for t, kind, mm, va, _ in rows if kind == replay_state.MISS] == [
        (t, mm, va) for t, mm, va, _ in machine.expected
    ]
    assert done.tally["faults_unmatched"][0] == 0
    faulted = sum(kind == replay_state.FAULT for _, kind, *_ in rows)
    assert faulted == done.tally["faults_empty"][0] + done.tally["faults_matched"][0]


def kinds_and_pages(path):
    rows = replay(path)[-1]
    return [(what, mm, va) for _, what, mm, va, _ in rows]


def test_a_page_of_the_region_used_again(tmp_path):
    """Reads go to the owner of their time, and a page met again keeps its number."""
    machine = synthetic.Machine(region_pages=2)
    first = machine.exec()
    machine.set_pte(first, 0x5000, True)
    machine.access(first, 0x5000)
    machine.exit(first)
    second = machine.exec()
    machine.set_pte(second, 0x40_5000, True)
    machine.access(second, 0x40_5000)
    table = machine.pte(second, 0x40_0000)
    machine.unmap(second, 0x40_0000)
    machine.set_pte(second, 0x40_5000, True)
    assert machine.pte(second, 0x40_0000).pa == table.pa
    machine.access(second, 0x40_5000)
    results = parse(machine.write(tmp_path / "s"))
    pages = results.pages()
    rows = zip(*(pages[c].to_pylist() for c in ("mm", "vaddr", "misses")), strict=True)
    assert [row for row in rows if row[2]] == [(1, 0x5000, 1), (2, 0x40_5000, 2)]


@pytest.mark.parametrize("levels", ["pte", "pte+pmd"])
def test_tables_move_with_their_parent(tmp_path, levels):
    machine = synthetic.Machine(levels=levels)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    machine.access(mm, 0x5000)
    machine.move(mm, 0, 5 * GIB)
    machine.access(mm, 5 * GIB + 0x5000)
    machine.move(mm, 5 * GIB, 0)
    machine.access(mm, 0x5000)
    results = parse(machine.write(tmp_path / "s"))
    pages = results.pages()
    misses = {
        (size, va): n
        for size, va, n in zip(
            *(pages[c].to_pylist() for c in ("page_size_bytes", "vaddr", "misses")), strict=True
        )
        if n
    }
    assert misses == {(4096, 0x5000): 2, (4096, 5 * GIB + 0x5000): 1}


def test_huge_pages_move_with_their_table(tmp_path):
    machine = synthetic.Machine(psc=False)
    mm = machine.exec()
    machine.set_huge(mm, 0, True)
    machine.move(mm, 0, 5 * GIB)
    for _ in range(3):
        machine.walk(mm, 5 * GIB, False)
    assert (
        kinds_and_pages(machine.write(tmp_path / "s")) == [(replay_state.MISS, mm.id, 5 * GIB)] * 3
    )


def test_huge_pages_of_a_table_that_is_linked_later(tmp_path):
    machine = synthetic.Machine(psc=False)
    mm = machine.exec()
    table = machine._alloc(mm, 0, 2)
    machine.event("ptat_leaf_set", mm=mm.id, slot_pa=table.pa, va=0, entry=0xE7, level=2)
    machine.store(table.pa)
    machine.event("ptat_table_link", mm=mm.id, pa=table.pa, slot_pa=0, va=0, level=2)
    for _ in range(3):
        machine.access_bus(table.pa, False)
    assert kinds_and_pages(machine.write(tmp_path / "s")) == [(replay_state.MISS, mm.id, 0)] * 3


def test_stale_reads_belong_to_the_old_owner(tmp_path):
    """Between a table's free and its page's next link, a walk through a stale entry."""
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    table = machine.pte(mm, 0)
    machine._free(mm, table)
    machine.access_bus(table.pa + 8 * 5, False)
    machine.event("ptat_table_alloc", mm=mm.id, pa=table.pa, va=0, level=1)
    machine.access_bus(table.pa + 8 * 5, False)
    assert kinds_and_pages(machine.write(tmp_path / "s")) == [
        (replay_state.MISS, mm.id, 0x5000),
        (replay_state.FAULT, mm.id, 0x5000),
    ]


def test_copy_on_write_fault(tmp_path):
    """The faulted walk is the last read before the event, not the load before nor the retry."""
    machine = synthetic.Machine(granularity=64)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, False)
    machine.access(mm, 0x5000)
    machine.access(mm, 0x5000, write=True)
    what = [kind for kind, _, va in kinds_and_pages(machine.write(tmp_path / "s")) if va == 0]
    pte_reads = [kind for kind in what if kind != replay_state.PMD_READ]
    assert pte_reads == [replay_state.MISS, replay_state.FAULT, replay_state.MISS]


def assert_misses(machine, directory):
    """Each when and of whom it is; and of which page, if the bus tells."""
    *_, rows = replay(machine.write(directory / "s"))
    known = slice(None) if machine.granularity == 8 else slice(2)  # of time, mm, address, size
    misses = [(t, *what)[known] for t, kind, *what in rows if kind == replay_state.MISS]
    assert misses == [miss[known] for miss in machine.expected]


def set_clock_wrong(monkeypatch, error_ns, known_ns=None):
    """By an error that is a function of the time; `known_ns`: as far as the pairs tell."""
    to_ticks = clock.Clock.to_ticks

    def wrong(fitted, cycles):
        ticks = to_ticks(fitted, cycles).astype(np.int64)
        return (ticks + error_ns(ticks)).clip(0).astype(np.uint64)

    monkeypatch.setattr(clock.Clock, "to_ticks", wrong)
    if known_ns is not None:
        monkeypatch.setattr(clock.Clock, "error_ticks", known_ns)


@pytest.mark.parametrize("error_ns", [-1000, -500, 0, 500])
def test_fault_labels_bear_an_error_of_the_clocks(tmp_path, monkeypatch, error_ns):
    """The clocks are fitted to about a microsecond, and so near are a fault and its read."""
    machine = synthetic.Machine(3)
    mm = machine.exec()
    for page in range(0x100, 0x140):
        machine.access(mm, page << 12, write=True)
    for page in range(0x180, 0x200):
        machine.access(mm, page << 12)
        machine.access(mm, page << 12, write=True)
        machine.idle(30_000)
    for page in range(0x180, 0x200):
        machine.walk(mm, page << 12, False)
        machine.set_pte(mm, page << 12, False)
        machine.access(mm, page << 12)
        machine.access(mm, page << 12, write=True)
    set_clock_wrong(monkeypatch, lambda _: error_ns)
    assert_misses(machine, tmp_path)


@pytest.mark.parametrize("error_ns", [-3000, 0, 3000])
def test_stores_tell_which_read_of_a_line_faulted(tmp_path, monkeypatch, error_ns):
    """The clocks are worse than a retry and the next fault on its line are apart."""
    machine = synthetic.Machine(granularity=64)
    mm = machine.exec()
    for page in range(0x40):
        machine.access(mm, page << 12, write=True)
        machine.idle(20_000)
    for page in range(0x40):
        machine.access(mm, page << 12)
    for page in range(0x40):
        machine.set_pte(mm, page << 12, False)
    for page in range(0x40):
        machine.access(mm, page << 12)
        machine.idle(1_000)
        machine.access(mm, page << 12, write=True)
        machine.idle(20_000)
    set_clock_wrong(monkeypatch, lambda _: error_ns, known_ns=5000)
    assert_misses(machine, tmp_path)


@pytest.mark.parametrize("cpus", [1, 2])
def test_an_error_of_the_clocks_that_grows(tmp_path, monkeypatch, cpus):
    """Events come sooner after their reads than any before, as it seems, and then before them."""
    machine = synthetic.Machine(granularity=64, cpus=cpus)
    mm = machine.exec()
    for page in range(10 * LAGS_LEARNT):
        machine.access(mm, page << 12, write=True)
        machine.idle(300)
    set_clock_wrong(monkeypatch, lambda ticks: -1000 * ticks // machine.now, known_ns=2000)
    assert_misses(machine, tmp_path)


def test_a_cpu_is_stopped_before_it_stores(tmp_path, monkeypatch):
    """An event that the clocks put before its read has waited for long: the store comes then."""
    machine = synthetic.Machine(granularity=64)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    machine.idle(300_000)
    for page in range(6, 8):
        machine.idle(3_000)
        assert machine.walk(mm, 0x5000, True)
        machine.idle(3_000)
        assert not machine.walk(mm, page << 12, True)
        machine.idle(300)
        machine.event("ptat_fault", mm=mm.id, va=page << 12, error_code=2)
        machine.idle(200_000)
        machine.set_pte(mm, page << 12, True)
        assert machine.walk(mm, page << 12, True)
    set_clock_wrong(monkeypatch, lambda _: -1000, known_ns=2000)
    assert_misses(machine, tmp_path)


def test_another_cpu_reads_while_a_fault_is_slow(tmp_path, monkeypatch):
    """Before the store of the handler and right behind the event, as no event ever was."""
    machine = synthetic.Machine(granularity=8, cpus=2)
    mm = machine.exec()
    first, pages = 0x40, 2 * LAGS_LEARNT
    for page in range(first, pages):
        machine.access(mm, page << 12, write=True)
    for page in range(first):
        machine.set_pte(mm, page << 12, False)
        assert not machine.walk(mm, page << 12, True)
        machine.idle(1_000)
        machine.event("ptat_fault", mm=mm.id, va=page << 12, error_code=2)
        assert machine.walk(mm, page << 12, False)
        machine.idle(1_000)
        machine.fix(mm, page << 12, True)
        assert machine.walk(mm, page << 12, True)
        machine.idle(20_000)
    monkeypatch.setattr(clock.Clock, "error_ticks", 5000)
    assert_misses(machine, tmp_path)


def late_fault(machine, mm, stopped_ns):
    """Of a CPU that is stopped between its walk and the event."""
    assert not machine.walk(mm, 0x5000, True)
    machine.idle(400 + stopped_ns)
    machine.event("ptat_fault", mm=mm.id, va=0x5000, error_code=3)


def test_two_cpus_fault_and_the_host_stops_one(tmp_path):
    """Its event comes long after the other one's handler has stored to the entry."""
    machine = synthetic.Machine(granularity=8, cpus=2)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, False)
    assert machine.walk(mm, 0x5000, False)
    machine.idle(300_000)
    assert not machine.walk(mm, 0x5000, True)  # the one that is stopped
    machine.idle(100)
    late_fault(machine, mm, 0)
    machine.set_pte(mm, 0x5000, True)
    assert machine.walk(mm, 0x5000, True)
    machine.idle(400_000)
    machine.event("ptat_fault", mm=mm.id, va=0x5000, error_code=3)
    assert machine.walk(mm, 0x5000, True)
    machine.idle(200_000)
    assert_misses(machine, tmp_path)


@pytest.mark.parametrize(
    ("cpus", "stored", "before_ns"), [(1, False, 300_000), (2, True, 300_000), (2, False, 60e6)]
)
def test_a_late_fault_on_what_a_handler_stored(tmp_path, cpus, stored, before_ns):
    """One CPU, a store since the miss before, or much time: that miss is no fault."""
    machine = synthetic.Machine(granularity=8, cpus=cpus)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, False)
    assert machine.walk(mm, 0x5000, False)
    machine.idle(int(before_ns))
    if stored:
        machine.set_pte(mm, 0x5000, False)
    late_fault(machine, mm, 0)
    machine.set_pte(mm, 0x5000, False)
    late_fault(machine, mm, 400_000)
    machine.set_pte(mm, 0x5000, True)
    assert machine.walk(mm, 0x5000, True)
    machine.idle(200_000)
    assert_misses(machine, tmp_path)


def test_a_late_fault_whose_handler_stores(tmp_path):
    """A page is read, stored to and made read-only once more, by which it faults again."""
    machine = synthetic.Machine(granularity=8, cpus=2)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, False)
    assert machine.walk(mm, 0x5000, False)
    machine.idle(40_000)
    late_fault(machine, mm, 0)
    machine.set_pte(mm, 0x5000, True)
    machine.set_pte(mm, 0x5000, False)
    machine.idle(40_000)
    late_fault(machine, mm, 80_000)
    machine.idle(4_000)
    machine.set_pte(mm, 0x5000, True)
    assert machine.walk(mm, 0x5000, True)
    machine.idle(200_000)
    assert_misses(machine, tmp_path)


@pytest.mark.parametrize("both_fault", [False, True])
def test_a_read_too_near_to_be_what_an_event_is_about(tmp_path, both_fault):
    """Another CPU reads what a slow fault's handler will store to, right before the event.

    How near is too near is not learned where two CPUs read an empty entry.
    """
    machine = synthetic.Machine(granularity=8, cpus=2)
    mm = machine.exec()
    for page in range(0x40, 2 * LAGS_LEARNT):
        machine.access(mm, page << 12, write=True)
    if both_fault:
        for idle_ns in (600, 20):
            assert not machine.walk(mm, 0x6000, True)
            machine.idle(idle_ns)
        for _ in range(2):
            machine.event("ptat_fault", mm=mm.id, va=0x6000, error_code=2)
            machine.idle(600)
        machine.set_pte(mm, 0x6000, True)
    machine.set_pte(mm, 0x5000, False)
    machine.idle(300_000)
    assert not machine.walk(mm, 0x5000, True)
    machine.idle(12_000)
    assert machine.walk(mm, 0x5000, False)
    machine.idle(20)
    machine.event("ptat_fault", mm=mm.id, va=0x5000, error_code=3)
    machine.idle(1_000)
    machine.set_pte(mm, 0x5000, True)
    assert machine.walk(mm, 0x5000, True)
    machine.idle(200_000)
    assert_misses(machine, tmp_path)


@pytest.mark.parametrize("granularity", [8, 64])
def test_reads_after_an_event_see_what_was_there_until_the_store(tmp_path, granularity):
    machine = synthetic.Machine(granularity=granularity)
    entries = granularity // 8
    mm = machine.exec()
    for index in range(entries):
        machine.set_pte(mm, index << 21, True)
    slot = machine.slot(machine.pmd(mm, 0), 0)

    def read(times: int) -> None:
        for _ in range(times):
            machine.access_bus(slot, False)

    read(3)
    for name, entry, before, after in (("set", 0xE7, 2, 4), ("clear", 0, 8, 1)):
        for index in range(entries):
            machine.event(
                f"ptat_leaf_{name}", mm=mm.id, slot_pa=slot + 8 * index, va=index << 21,
                entry=entry, level=2,
            )  # fmt: skip
        read(before)
        machine.store(slot)
        read(after)
    results = parse(machine.write(tmp_path / "s"))
    totals = results.summary["totals"]
    assert (totals["pmd_reads"], totals["misses"], totals["faulted"]) == (5, 12, 1)
    pages = results.pages().to_pylist()
    assert [page["misses"] for page in pages if page["misses"]] == [12]


def test_a_walk_that_pauses_has_a_long_step(tmp_path):
    """How long steps are is learnt of lines of tables, wherever a walk's reads are."""
    machine = synthetic.Machine(granularity=64, psc=False)
    mm = machine.exec()
    for index in range(8):
        machine.set_pte(mm, index << 21, True)
    machine.set_huge(mm, GIB, True)  # else nobody asks
    pmd = machine.pmd(mm, 0)
    table = machine.pte(mm, 0)
    found = []
    for pause in (False, True):
        for _ in range(3):
            machine.walk(mm, 0, False)
        machine.access_bus(machine.slot(pmd, 0), False)
        if pause:
            machine.store(machine.slot(table, 511))
        machine.access_bus(machine.slot(table, 0), False, range(50, 51))
        *given_to_it, done, _ = replay(machine.write(tmp_path / f"{pause}"))
        reference = reference_of(*given_to_it)
        assert int(done.tally["walks_whole"][0]) == reference.whole
        assert int(done.delays["walk_step"][0]) == reference.step_16
        found.append(reference.step_16)
    assert found[1] > found[0] + 16


@pytest.mark.parametrize("granularity", [8, 64])
def test_a_walk_of_two_groups_of_accesses(tmp_path, granularity):
    """One of these ends with the read of a PMD entry, and there is none in the other."""
    machine = synthetic.Machine(granularity=granularity)
    mm = machine.exec()
    for index in range(8):
        machine.set_pte(mm, index << 21, True)
    pmd, table = (machine.slot(table, 0) for table in (machine.pmd(mm, 0), machine.pte(mm, 0)))
    for _ in range(replay_state.GROUP):  # at each place of a group once
        machine.access_bus(pmd, False)
        for _ in range(replay_state.GROUP):
            machine.access_bus(table, False)
    *given_to_it, done, _ = replay(machine.write(tmp_path / "s"))
    reference = reference_of(*given_to_it)
    assert int(done.tally["walks_whole"][0]) == reference.whole == replay_state.GROUP
    assert int(done.tally["walks_broken"][0]) == reference.broken


def test_speculative_walks_do_not_take_later_fault_events(tmp_path):
    """They read empty entries and never fault."""
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x6000, True)
    machine.walk(mm, 0x5000, False)
    machine.idle(100_000_000)
    machine.set_pte(mm, 0x5000, False)
    machine.access(mm, 0x5000)
    machine.access(mm, 0x5000, write=True)
    rows = kinds_and_pages(machine.write(tmp_path / "s"))
    assert [kind for kind, _, va in rows if va == 0x5000] == [
        replay_state.FAULT,
        replay_state.MISS,
        replay_state.FAULT,
        replay_state.MISS,
    ]


def test_span_follows_the_mapped_entries(tmp_path):
    machine = synthetic.Machine(granularity=64, entries=True)
    mm = machine.exec()
    machine.set_pte(mm, 0xA000, True)
    machine.access(mm, 0xA000)
    machine.set_pte(mm, 0x1D000, True)
    machine.set_pte(mm, 0x1F000, True)
    machine.access(mm, 0x1F000)
    machine.set_pte(mm, 0x20000, True)
    machine.clear_pte(mm, 0x20000)
    machine.set_pte(mm, 0x22000, True)
    machine.access(mm, 0x22000)
    machine.set_huge(mm, GIB + (3 << 21), True)
    machine.access(mm, GIB + (3 << 21))
    pages = parse(machine.write(tmp_path / "s")).pages()
    columns = (pages[c].to_pylist() for c in ("vaddr", "span", "misses"))
    spans = {va: span for va, span, misses in zip(*columns, strict=True) if misses}
    assert spans == {0xA000: 1, 0x1D000: 3, 0x22000: 1, GIB + (3 << 21): 1}


def test_span_is_the_whole_line_without_entry_events(tmp_path):
    machine = synthetic.Machine(granularity=64)
    mm = machine.exec()
    machine.set_pte(mm, 0xA000, True)
    machine.access(mm, 0xA000)
    pages = parse(machine.write(tmp_path / "s")).pages()
    rows = zip(*(pages[c].to_pylist() for c in ("vaddr", "span", "misses")), strict=True)
    assert [row for row in rows if row[2]] == [(0x8000, 8, 1)]


def test_reads_that_nothing_explains(tmp_path):
    machine = synthetic.Machine(region_pages=4)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    in_markers = synthetic.REGION_BASE + 64
    of_free_page = synthetic.REGION_BASE + machine.region_bytes - 4096 * 4
    outside = synthetic.REGION_BASE + machine.region_bytes
    free = [pa for pa in machine.free if pa >= of_free_page]
    for address in (in_markers, free[0], outside):
        machine.access_bus(address, False)
    machine.access_bus(free[0], True)
    unexplained = parse(machine.write(tmp_path / "s")).summary["unexplained"]
    assert (unexplained["reads"], unexplained["stores"]) == (3, 1)
    assert [(e["address"], e["reason"]) for e in unexplained["examples"]] == [
        (in_markers, "in the marker area"),
        (free[0], "of a page that holds no table"),
        (outside, "outside the region"),
    ]


def test_a_table_that_was_moved_but_never_linked_is_none(tmp_path):
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    machine.access(mm, 0x5000)
    table = machine._alloc(mm, GIB, 2)
    machine.event("ptat_table_move", mm=mm.id, pa=table.pa, va=GIB, level=2)
    machine.event(
        "ptat_leaf_set", mm=mm.id, slot_pa=table.pa, va=GIB, entry=0xE7, level=2
    )  # fmt: skip
    machine.store(table.pa)
    machine.access_bus(table.pa, False)
    summary = parse(machine.write(tmp_path / "s")).summary
    assert (summary["totals"]["misses"], summary["unexplained"]["reads"]) == (1, 1)


@pytest.mark.parametrize("granularity", [8, 64])
def test_only_a_kernel_that_reads_back_may_read_among_the_markers(tmp_path, granularity):
    summaries = []
    for readback in (False, True):
        machine = synthetic.Machine(granularity=granularity, readback=True)
        mm = machine.exec()
        machine.set_pte(mm, 0x5000, True)
        machine.access(mm, 0x5000)
        machine.read_back()
        machine.access_bus(synthetic.REGION_BASE + 64, False)  # but nowhere else
        machine.readback = readback
        session = machine.write(tmp_path / f"{readback}")
        summaries.append(parse(session).summary)
        violation = check(session).first
        assert violation and violation.message == "a read of the marker area"
    told = [(s["totals"]["readbacks"], s["unexplained"]["reads"]) for s in summaries]
    assert told == [(0, 2), (1, 1)]


def test_untraced_tables_are_told(tmp_path):
    """The region was full: such a table has no physical address of ours."""
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    slot = machine.slot(machine.pmd(mm, 0), 7)
    machine.event("ptat_table_alloc", mm=mm.id, pa=0, va=0, level=1)
    machine.event("ptat_table_link", mm=mm.id, pa=0x1234000, slot_pa=slot, va=7 << 21, level=1)
    machine.store(slot)
    machine.access_bus(slot, False)
    machine.event("ptat_table_free", mm=mm.id, pa=0x1234000, level=1)
    results = parse(machine.write(tmp_path / "s"))
    (process,) = results.summary["processes"]
    assert process["untraced_tables"] == 1
    assert (process["untraced_bytes"], process["traced_bytes"]) == (2 << 20, 2 << 20)
    assert results.summary["totals"]["pmd_reads"] == 1


def test_held_back_records_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(replayer, "HELD_BACK", 50)
    machine = synthetic.Machine(5).run(300)
    path = machine.write(tmp_path / "s")
    *given_to_it, _, rows = replay(path, chunk_blocks=1)
    reference = reference_of(*given_to_it)
    assert [row[0] for row in rows] == [record.ticks for record in reference.records]


@pytest.mark.parametrize("huge", [False, True])
def test_each_miss_has_the_span_of_its_time(tmp_path, huge):
    """On a line that fills up, the first misses are exact and stay it."""
    machine = synthetic.Machine(granularity=64, entries=True)
    mm = machine.exec()
    shift = 21 if huge else 12
    set_entry = machine.set_huge if huge else machine.set_pte
    for index in (0, 1, 5):
        set_entry(mm, index << shift, True)
        machine.access(mm, index << shift)
        machine.access(mm, index << shift)
    machine.access(mm, 0)
    results = parse(machine.write(tmp_path / "s"))
    pages = results.pages().to_pylist()
    found = [pages[page] for _, numbers in results.misses() for page in numbers.tolist()]
    assert [(page["vaddr"], page["span"]) for page in found] == [
        (0, span) for span in (1, 1, 2, 2, 6, 6, 6)
    ]
    assert [page["misses"] for page in pages if page["misses"]] == [2, 2, 3]
    assert results.summary["misses_by_span"] == {"1": 2, "2": 2, "4": 0, "8": 3}


@pytest.mark.parametrize(("faults", "entries"), [(True, False), (True, True), (False, True)])
def test_a_span_has_the_events_of_its_time(tmp_path, monkeypatch, faults, entries):
    monkeypatch.setattr(ring_buffer, "BATCH_BYTES", 2 * 4096)
    machine = synthetic.Machine(4, cpus=2, granularity=64, entries=True).run(1500)
    replayer, *_, fitted = ready(machine.write(tmp_path / "s"), faults=faults, entries=entries)
    events = replayer.timed._log.between()
    events = events[np.where(events["kind"] == tracepoints.FAULT, faults, entries)]
    ticks = (fitted.to_ticks(events["time"]) + np.uint64(1)).tolist()
    kinds = events["kind"].tolist()
    assert len(ticks) > 500
    of_faults = [at for at, kind in zip(ticks, kinds, strict=True) if kind == tracepoints.FAULT]
    for first, distance in zip(replayer._firsts, replayer.from_fault_ticks, strict=True):
        assert distance == min(
            (abs(at - first.ticks) for at in of_faults if first), default=np.iinfo(np.int64).max
        )
    choose = random.Random(1)
    for number in range(300):
        start, end = sorted(choose.choice(ticks) + choose.randrange(-1, 2) for _ in range(2))
        last = choose.random() < 0.1
        span = replay_state.Segment(number, 0, 0, 0, 0, start, None if last else end)
        timed = replayer.timed.of(span, replayer.config, replayer.rpt)
        first = bisect_left(ticks, start) if number else 0
        until = None if last else bisect_left(ticks, end)
        assert (timed.time.tolist(), timed.kind.tolist()) == (
            ticks[first:until],
            kinds[first:until],
        )


@given(
    ticks=st.lists(st.integers(0, 60)).map(sorted),
    parts=st.lists(st.lists(st.integers(0, 60)), max_size=5),
)
def test_how_far_the_nearest_fault_is(ticks, parts):
    """However many events are seen at a time."""
    faults = sorted(tick for part in parts for tick in part)
    nearest = timed_events._Nearest(np.array(ticks, np.uint64))
    for part in parts:
        nearest.see(np.array(faults[: len(part)], np.uint64))
        del faults[: len(part)]
    every = [tick for part in parts for tick in part]
    none = np.iinfo(np.int64).max
    assert nearest.distance().tolist() == [
        min((abs(fault - tick) for fault in every), default=none) for tick in ticks
    ]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.integers(1, 250),
    cpus=st.integers(1, 3),
    granularity=st.sampled_from([32, 64]),
)
def test_narrowed_spans_hold_the_page_that_missed(tmp_path_factory, seed, steps, cpus, granularity):
    machine = synthetic.Machine(seed, granularity, entries=True, cpus=cpus).run(steps)
    results = parse(machine.write(tmp_path_factory.mktemp("span") / "s"))
    pages = results.pages().to_pylist()
    found = [pages[page] for _, numbers in results.misses() for page in numbers.tolist()]
    assert len(found) == len(machine.expected)
    for page, (_, mm, va, size) in zip(found, machine.expected, strict=True):
        assert (page["mm"], page["page_size_bytes"]) == (mm, size)
        assert page["vaddr"] <= va < page["vaddr"] + page["span"] * size
    counts = np.bincount([page["page"] for page in found], minlength=len(pages))
    assert [page["misses"] for page in pages] == counts.tolist()


def test_a_table_below_one_that_has_none_below():
    """A log that says so contradicts itself: it is counted, and addresses stay addresses."""
    base, last = GIB, (1 << 64) - (1 << 21)
    tables = Rpt(base, 1 << 20)
    link = TableEvent(0, tracepoints.TABLE_LINK, *[0] * 12, b"")
    for page, slot_pa, va in ((1, 0, last), (2, base + 4096 + 511 * 8, 1 << 21)):
        event = link._replace(mm=5, level=1, pa=base + page * 4096, slot_pa=slot_pa, va=va)
        tables.apply(event, 0)
    assert [(r.base, r.level) for r in tables.ranges] == [(last, 1), (1 << 21, 1)]
    assert tables.inconsistent == 1
