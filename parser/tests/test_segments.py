# SPDX-License-Identifier: BSD-2-Clause
import copy
import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import threading
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import synthetic
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_clocks import within

from ptat_parser import parse, wire
from ptat_parser.capture import block_index, decode
from ptat_parser.capture import reader as capture_reader
from ptat_parser.capture.reader import BusReader
from ptat_parser.errors import ParseError, PtatError
from ptat_parser.formats import archive
from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel import ring_buffer
from ptat_parser.order import first_pass
from ptat_parser.order.clock import Clock
from ptat_parser.replay import replayer, segments
from ptat_parser.replay import state as replay_state
from ptat_parser.replay import workers as replay_workers
from ptat_parser.replay.page_tables import EPOCH_TICKS
from ptat_parser.results import writer as results_writer

MANY = 4
"""Workers."""


@pytest.fixture(autouse=True)
def small_spans(monkeypatch):
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", 1)
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1500)
    monkeypatch.setattr(ring_buffer, "BATCH_BYTES", 2 * 4096)


class Steady(synthetic.Machine):
    """Pauses so briefly that its stream has accesses only."""

    def idle(self, ns: int) -> None:
        super().idle(min(ns, 5_000_000))


def busy_machine(
    seed: int = 3,
    phases: int = 8,
    lossy: bool = False,
    kind: type[synthetic.Machine] = synthetic.Machine,
    **options,
) -> synthetic.Machine:
    """A machine with pauses, in which its session can be cut."""
    machine = kind(seed, region_pages=128, **options)
    machine.exec()
    for _ in range(phases):
        for _ in range(150):
            machine.step()
        machine.idle(5_000_000)
        for mm in machine.mms[:1]:
            for _ in range(700):  # reads only, over blocks
                machine.access(mm, 0x5000)
        machine.idle(5_000_000)
    if lossy:
        choose = random.Random(seed)
        for _ in range(5):
            at = choose.randrange(len(machine.bus) - 40)
            machine.bus[at : at + 30] = [(machine.bus[at + 29][0], None, 30)]
    machine.event("ptat_marker", cookie=2)
    return machine


def busy(path: Path, *arguments, **options) -> Path:
    """The session of such a machine."""
    return busy_machine(*arguments, **options).write(path)


def digests(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((path / "results").rglob("*"))
        if file.is_file()
    }


def rows(path: Path, name: str) -> list:
    return pq.read_table(path / "results" / name).to_pylist()


@settings(max_examples=6)
@given(
    seed=st.integers(0, 1 << 32),
    levels=st.sampled_from(["pte", "pte+pmd"]),
    entries=st.booleans(),
    psc=st.booleans(),
)
def test_cut_or_not_is_the_same(tmp_path_factory, seed, levels, entries, psc):
    path = busy(
        tmp_path_factory.mktemp("spans") / "s", seed,
        levels=levels, entries=entries, psc=psc,
    )  # fmt: skip
    cut = parse(path).summary
    parts = len(list((path / "results" / "misses").iterdir()))
    found = {name: rows(path, name) for name in ("misses", "other", "pages.parquet")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_ACCESSES", 1 << 40)
        assert parse(path).summary == cut
    assert parts > 1
    for name, content in found.items():
        assert content == rows(path, name), name


@pytest.mark.parametrize("seed", [5, 10, 12, 17])
@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_right_on_lines_of_tables_and_huge_pages(tmp_path, monkeypatch, seed, lossy, entries, cut):
    """What a read of such a line was, only the next read tells, which may be lost."""
    if not cut:
        monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1 << 40)
    machine = busy_machine(seed, lossy=lossy, granularity=64, entries=entries)
    results = parse(machine.write(tmp_path / "s"))
    assert (len(list((tmp_path / "s" / "results" / "misses").iterdir())) > 1) == cut
    clock, gaps = Clock.from_summary(results.summary["clock"]), results.summary["gaps"]
    assert bool(gaps) == lossy
    found = [time for times, _ in results.misses() for time in times.tolist()]
    true = clock.to_ns(np.array([row[0] for row in machine.expected], np.uint64)).tolist()
    found, true = (
        [time for time in times if not any(within(gap, time) for gap in gaps)]
        for times in (found, true)
    )
    assert found == true
    assert len(true) > 3000


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1 << 32),
    granularity=st.sampled_from([8, 16, 64]),
    levels=st.sampled_from(["pte", "pte+pmd"]),
    entries=st.booleans(),
    accesses=st.sampled_from([1000, 2500, 1 << 40]),
    huge=st.sampled_from([0, 0.2]),
)
# What the first accesses after a cut show of walks misleads, and those before it show little.
@example(seed=45015747, granularity=64, levels="pte+pmd", entries=False, accesses=1000, huge=0.2)
@example(seed=246, granularity=64, levels="pte+pmd", entries=False, accesses=1000, huge=0.2)
@example(seed=298, granularity=64, levels="pte+pmd", entries=False, accesses=1000, huge=0.2)
def test_pages_count_what_is_written(
    tmp_path_factory, seed, granularity, levels, entries, accesses, huge
):
    """Hundreds of reads between two events, long pauses, pages that hold other tables soon."""
    machine = synthetic.Machine(
        seed, granularity, region_pages=40, levels=levels, entries=entries, reuse=True, huge=huge
    )
    choose = machine.rng
    machine.exec()
    for _ in range(12):
        for _ in range(20):
            machine.step()
        if machine.mms:
            mm, va = choose.choice(machine.mms), machine.address()
            for _ in range(choose.choice((254, 255, 256, 257, 509, 510, 511, 766, 1021))):
                machine.access(mm, va)
        pauses = (0, 1000, 2_000_000, (1 << 32) - 300, EPOCH_TICKS - 300, 3 * EPOCH_TICKS)
        machine.idle(choose.choice(pauses))
    machine.event("ptat_marker", cookie=2)
    path = machine.write(tmp_path_factory.mktemp("counts") / "s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_ACCESSES", accesses)
        results = parse(path)
        reads = [read | {"kind": replay_state.MISS} for read in rows(path, "misses")]
        assert len(reads) == len(machine.expected)
        reads += rows(path, "other")
        pages = rows(path, "pages.parquet")
        assert parse(path, counts_only=True).summary == results.summary
        assert rows(path, "pages.parquet") == pages
    times, kinds = defaultdict(list), Counter()
    for read in reads:
        times[read["page"]].append(read["time"])
        kinds[read["page"], read["kind"]] += 1
    for page in pages:
        number = page["page"]
        assert page["misses"] == kinds[number, replay_state.MISS]
        assert page["faulted"] == kinds[number, replay_state.FAULT]
        assert page["first_ns"] == min(times[number])
        assert page["last_ns"] == max(times[number])
    if granularity == 8:
        names = ("mm", "vaddr", "page_size_bytes")
        counted = {tuple(page[name] for name in names): page["misses"] for page in pages}
        expected = Counter((mm, va, size) for _, mm, va, size in machine.expected)
        assert {page: misses for page, misses in counted.items() if misses} == expected


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1 << 32),
    granularity=st.sampled_from([8, 16, 64]),
    levels=st.sampled_from(["pte", "pte+pmd"]),
    entries=st.booleans(),
    lossy=st.booleans(),
    reuse=st.booleans(),
    accesses=st.sampled_from([1500, 6000]),
    held_back=st.sampled_from([300, 1 << 17]),
    kind=st.sampled_from([synthetic.Machine, Steady]),
    huge=st.sampled_from([0, 0.2]),
)
def test_who_skips_spans_finds_the_same(
    tmp_path_factory,
    seed,
    granularity,
    levels,
    entries,
    lossy,
    reuse,
    accesses,
    held_back,
    kind,
    huge,
):
    """Spans by who replays all, by who skips some between, and each by itself."""
    machine = busy_machine(
        seed,
        lossy=lossy,
        kind=kind,
        granularity=granularity,
        levels=levels,
        entries=entries,
        reuse=reuse,
        huge=huge,
    )
    path = machine.write(tmp_path_factory.mktemp("spans") / "s")

    def in_shares(count):
        """Two that skip by turns, and one that has the segments that are left."""

        def execute(work, progress):
            numbers = range(len(work.segments))
            for share in range(3):
                other = pickle.loads(pickle.dumps(work))
                yield other.replay(n for n in numbers if share == (2 if n % 5 == 4 else n % 2))

        return execute if count > 1 else in_processes(count)

    in_processes = replay_workers.in_processes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_ACCESSES", accesses)
        patch.setattr(replayer, "HELD_BACK", held_back)
        patch.setattr(results_writer, "_ROOM", 2)
        patch.setattr(replay_workers, "in_processes", in_shares)
        for counts_only in (False, True):
            found = []
            for workers in (1, 2):
                parse(path, counts_only=counts_only, workers=workers)
                found.append(digests(path))
            assert found[0] == found[1]


@pytest.mark.parametrize("what", ["", "not stopped", "event lost", "too large", "too many"])
def test_spans_of_accesses_only_are_skipped_without_their_chunks(tmp_path, monkeypatch, what):
    """If their stores are known, and nothing was lost; the tables are then as if replayed."""
    machine = busy_machine(kind=Steady, reuse=True)
    (log,) = machine.log
    if what == "event lost":
        fault = synthetic.EVENT_ID["ptat_fault"].to_bytes(2, "little")
        log[[event.startswith(fault) for _, event in log].index(False, len(log) // 2)] = 1, None
    elif what == "not stopped":
        log.pop()
    path = machine.write(tmp_path / "s")
    if what == "too large":
        monkeypatch.setattr(block_index, "DATA_BYTES_MAX", 0)
    elif what == "too many":
        monkeypatch.setattr(capture_reader, "STORES_AT_ONCE", 10)
    elif what == "not stopped":  # a block of reads, and the last event with its marker
        os.truncate(path / "bus.0.raw", (path / "bus.0.raw").stat().st_size - wire.BLOCK_BYTES)
        fields = json.loads((path / "session.json").read_text())
        fields.update(complete=False, incomplete_reason="interrupted")
        (path / "session.json").write_text(json.dumps(fields))
    read: list[BusReader] = []

    def noted(reader, chunks=BusReader.chunks):
        read.append(reader)
        return chunks(reader)

    monkeypatch.setattr(BusReader, "chunks", noted)
    without = []

    def skip_and_replay(work, progress):
        skips = copy.deepcopy(work.replayer)
        for span in work.segments:
            part = work.reader.part(span.first_block, span.end_block)
            read.clear()
            skips.skip(part, span)
            without.append(not read)
            work.replayer.run(part, span, None)
            for name in ("state", "pending", "mapped", "level", "range_of_frame"):
                one, another = (getattr(r.rpt.tables, name) for r in (skips, work.replayer))
                np.testing.assert_array_equal(one, another, name)
        raise PtatError("enough")

    monkeypatch.setattr(replay_workers, "in_processes", lambda count: skip_and_replay)
    with pytest.raises(PtatError, match="enough"):
        parse(path)
    first, *between, last = without
    assert len(between) > 2
    slow = what in ("event lost", "too large", "too many")
    assert set(between) == {not slow}
    assert first == (not slow)
    assert last == (what not in ("not stopped", "event lost", "too large"))


def test_a_table_that_is_read_after_another_took_its_place(tmp_path):
    """Its pages are those of the other, also when only the former is read first."""
    machine = synthetic.Machine(levels="pte")
    mm = machine.exec()
    for page in range(4):
        machine.set_pte(mm, page << 12, True)
    machine.access(mm, 0)
    old = machine.pte(mm, 0)
    machine._free(mm, old)
    machine.pmd(mm, 0).entries.pop(0)
    for page in range(4):
        machine.set_pte(mm, page << 12, True)
    new = machine.pte(mm, 0)
    assert new.pa != old.pa
    for table, entry in ((old, 1), (new, 1), (new, 2), (old, 2), (old, 0), (new, 3), (old, 3)):
        machine.access_bus(table.pa + 8 * entry, False)
    path = machine.write(tmp_path / "s")
    summary = parse(path).summary
    pages = [(page["vaddr"] >> 12, page["misses"]) for page in rows(path, "pages.parquet")]
    assert pages == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert summary["unexplained"]["reads"] == 0


def test_a_fault_is_not_about_a_read_before_one_that_was_not_held(tmp_path, monkeypatch):
    """The last read of its page is too long ago, and those before it are older still."""
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1 << 40)
    monkeypatch.setattr(replayer, "HELD_BACK", 2000)
    machine = synthetic.Machine(levels="pte")
    mm = machine.exec()
    other = 5 << 21
    machine.set_pte(mm, 0x5000, False)
    machine.set_pte(mm, other, False)
    machine.access(mm, 0x5000, write=True)  # a fault is near: the read that follows it is held
    for _ in range(2):
        for _ in range(8000):
            machine.access(mm, other)
        machine.access(mm, 0x5000)
    for _ in range(8000):
        machine.access(mm, other)
    machine.event("ptat_fault", mm=mm.id, va=0x5000, error_code=2)
    for _ in range(2000):
        machine.access(mm, other)
    machine.event("ptat_marker", cookie=2)
    path = machine.write(tmp_path / "s")
    summary = parse(path).summary
    misses = {page["vaddr"]: page["misses"] for page in rows(path, "pages.parquet")}
    assert misses == {0x5000: 3, other: 26_000}
    assert summary["faults"]["unmatched"] == 1


def test_reads_are_held_until_they_are_settled(tmp_path, monkeypatch):
    """So many as a fault event may be about, and no more, however many there are."""
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1 << 40)
    monkeypatch.setattr(replayer, "HELD_BACK", 2000)
    path = busy(tmp_path / "s")
    expected = parse(path, workers=MANY).summary
    whole = digests(path)
    rooms = []
    make_room = results_writer._Output.make_room

    def note(output, used, settled, wanted):
        rooms.append((used, settled))
        return make_room(output, used, settled, wanted)

    monkeypatch.setattr(results_writer._Output, "make_room", note)
    monkeypatch.setattr(results_writer, "_ROOM", 2)
    assert parse(path).summary == expected
    assert digests(path) == whole
    assert sum(settled for _, settled in rooms) > 2000
    assert max(used for used, _ in rooms) < 2000 + 6 * wire.BLOCK_RECORDS_MAX


@pytest.mark.parametrize("counts_only", [False, True])
@pytest.mark.parametrize("granularity", [8, 64])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, granularity, counts_only):
    path = busy(tmp_path / "s", granularity=granularity, lossy=True)
    parse(path, counts_only=counts_only)
    expected = digests(path)
    assert len(expected) == 2 if counts_only else len(expected) > 6
    for workers in (2, 3, MANY, MANY + 1):
        parse(path, workers=workers, counts_only=counts_only)
        assert digests(path) == expected


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("accesses", [1500, 1 << 40])
def test_a_full_disk_is_told_by_another(tmp_path, monkeypatch, at, accesses):
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", accesses)
    monkeypatch.setattr(results_writer, "_ROOM", 2)
    monkeypatch.setattr(replayer, "HELD_BACK", 2000)
    path = busy(tmp_path / "s")
    write = results_writer._Output.write
    written = iter(range(1000))

    def fail(*arguments):
        if next(written) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(results_writer._Output, "write", fail)
    with pytest.raises(PtatError, match="No space left on device"):
        parse(path, workers=2)
    assert not list(path.glob("results*"))


def test_a_capture_that_becomes_shorter_is_told(tmp_path):
    path = busy(tmp_path / "s")
    file = path / "bus.0.raw"

    def cut(step, done, total):
        if step == "replaying":
            os.truncate(file, file.stat().st_size // 2)

    with pytest.raises(ParseError, match="shorter"):
        parse(path, progress=cut)


def test_a_kernel_log_that_becomes_shorter_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "REMEMBERED", 0)
    path = busy(tmp_path / "s")
    file = path / "kernel" / "cpu0.raw"

    def cut(step, done, total):
        if step == "replaying":
            os.truncate(file, 4096)

    with pytest.raises(ParseError, match=r"cpu0\.raw: became shorter"):
        parse(path, progress=cut)
    assert not list(path.glob("results*"))


@pytest.mark.parametrize("entries", [False, True])
def test_the_kernel_log_is_read_in_pieces(tmp_path, monkeypatch, entries):
    path = busy(tmp_path / "s", cpus=2, entries=entries)
    assert sum((path / "kernel" / f"cpu{cpu}.raw").stat().st_size for cpu in (0, 1)) > 8 * 4096
    found = []
    for batch_pages in (1, 3, 1 << 20):
        monkeypatch.setattr(ring_buffer, "BATCH_BYTES", batch_pages * 4096)
        parse(path)
        found.append(digests(path))
    assert found[0] == found[1] == found[2]


def test_reads_are_held_from_before_a_fault(tmp_path, monkeypatch):
    """Of writes to pages that are there: in a long chunk, its blocks tell when."""
    monkeypatch.setattr(replayer, "HELD_BACK", 2000)
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1 << 40)
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", 2 * replay_state.WATCH_GROUPS + 10)
    machine = synthetic.Machine(levels="pte", region_pages=128)
    mm = machine.exec()
    tables = range(60)
    pages = [table << 21 | page << 12 for table in tables for page in range(8)]
    for va in pages:
        machine.access(mm, va)
    choose = random.Random(1)
    for table in tables:
        va = table << 21
        others = [page for page in pages if page != va]
        for after in range(5000):
            machine.access(mm, choose.choice(others))
            if after == 3500:  # the fault is logged late
                assert not machine.walk(mm, va, write=True)
        machine.event("ptat_fault", mm=mm.id, va=va, error_code=2)
        machine.fix(mm, va, write=True)
        machine.access(mm, va, write=True)
    path = machine.write(tmp_path / "s")

    def decoded(reader, chunks=BusReader.chunks):
        return (chunk.decoded() for chunk in chunks(reader))

    found = []
    for way in ("short chunks", "as they are", "decoded"):
        with monkeypatch.context() as patch:
            if way == "short chunks":
                patch.setattr(capture_reader, "CHUNK_BLOCKS", 1)
            elif way == "decoded":
                patch.setattr(BusReader, "chunks", decoded)
            summary = parse(path).summary
        assert summary["faults"]["of_other_entries"] == len(tables)
        # Where a table is missing, no entry is read; the first write is to an entry.
        assert summary["totals"]["faulted"] == len(pages)
        found.append([rows(path, name) for name in ("misses", "other", "pages.parquet")])
    assert all(each == found[0] for each in found)
    # The first chunk, which has the mark START, another, and the one with STOP.
    chunks = summary["totals"]["accesses"] / decode.BLOCK_RECORDS_MAX / capture_reader.CHUNK_BLOCKS
    assert 2 < chunks < 3


def test_a_late_fault_is_not_matched_with_an_older_read(tmp_path, monkeypatch):
    """Where the read that it is about was not held, as it is too long ago."""
    monkeypatch.setattr(replayer, "HELD_BACK", 2000)
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1 << 40)
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", 4 * replay_state.WATCH_GROUPS)
    late = 20_000
    machine = synthetic.Machine(levels="pte")
    mm = machine.exec()
    pages = [table << 21 | page << 12 for table in range(2) for page in range(8)]
    for va in pages:
        machine.access(mm, va)
    va = pages[0]
    elsewhere = pages[-1]  # in another table
    readings = replay_state.WATCH_GROUPS * decode.BLOCK_RECORDS_MAX
    while len(machine.bus) < 2 * readings - late // 2:
        machine.access(mm, elsewhere)
    assert not machine.walk(mm, va, write=True)
    for _ in range(late):
        machine.access(mm, elsewhere)
    machine.event("ptat_fault", mm=mm.id, va=va, error_code=2)
    machine.fix(mm, va, write=True)
    machine.access(mm, va, write=True)
    summary = parse(machine.write(tmp_path / "s")).summary
    assert summary["faults"]["unmatched"] == 1
    assert summary["faults"]["of_other_entries"] == 0


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("block", [0, -1])
def test_damage_is_told_by_any_number_of_workers(tmp_path, block, archived):
    path = busy(tmp_path / "s")
    file = path / "bus.0.raw"
    data = bytearray(file.read_bytes())
    data[block * wire.BLOCK_BYTES + 500] ^= 1
    file.write_bytes(data)
    if archived:
        archive.pack(file, path / "bus.0.ptb")
        (path / "bus.0.ptb").rename(file)
    told = []
    for workers in (1, 2, MANY):
        with pytest.raises(ParseError, match="CRC") as error:
            parse(path, workers=workers)
        told.append(str(error.value))
    assert told[0] == told[1] == told[2]


def test_reads_bring_entry_events_where_stores_are_lost(tmp_path):
    """Also in a span that is skipped: they are of the table that was there before."""
    machine = synthetic.Machine(granularity=64, entries=True, levels="pte", reuse=True)
    mm = machine.exec()
    machine.access(mm, 0x5000)
    table = machine.pte(mm, 1 << 21)
    machine.set_pte(mm, (1 << 21) + (9 << 12), True)
    machine._free(mm, table)
    machine.pmd(mm, 0).entries.pop(1)
    machine.lose(3)
    machine.access(mm, 0x5000)
    machine.set_pte(mm, (2 << 21) + (10 << 12), True)
    assert machine.pte(mm, 2 << 21).pa == table.pa
    for _ in range(2):
        machine.idle(5_000_000)
        for _ in range(1500):
            machine.access(mm, 0x5000)
        machine.access(mm, (2 << 21) + (10 << 12))
    machine.event("ptat_marker", cookie=2)
    path = machine.write(tmp_path / "s")
    parse(path)
    assert len(list((path / "results" / "misses").iterdir())) > 1
    assert [page["span"] for page in rows(path, "pages.parquet")] == [1, 1]
    expected = digests(path)
    parse(path, workers=2)
    assert digests(path) == expected


@pytest.mark.parametrize("quiet", [True, False])
def test_who_ends_last_works_for_little_longer_than_others(monkeypatch, quiet):
    """The last spans are short, however many there are; a short capture is not cut at all."""
    most, least, chunk = 1 << 16, 1 << 13, 1 << 10
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", most)
    for accesses in (least, 2 * least, most, 5 * most, 100 * most, 1000 * most):
        firsts = [first_pass.FirstAccess(at, 0, False, 0) for at in range(0, accesses, chunk)]
        distance = np.full(len(firsts), 10 if quiet else 5)
        cuts = segments._cuts(firsts, accesses, distance, quiet_ticks=10)
        sizes = chunk * np.diff([0, *cuts, len(firsts)])
        assert bool(cuts) == (accesses > least)
        assert sizes.sum() == accesses
        left = np.cumsum(sizes[::-1])[::-1]
        assert all(sizes <= np.maximum(left / segments.SEGMENTS_LEFT + chunk, 2 * least))
        assert all(sizes[:-1] >= least)
        assert sizes.max() <= most
        assert len(cuts) <= 3 * segments.SEGMENTS_LEFT + accesses // most * 2


def noted_plan(monkeypatch):
    """The spans that are planned from now on, when they are."""
    planned = []
    plan = segments.plan

    def note(*arguments):
        planned.extend(plan(*arguments))
        return list(planned)

    monkeypatch.setattr(segments, "plan", note)
    return planned


@pytest.mark.parametrize("counts_only", [False, True])
def test_workers_that_end_at_once_write_the_same_bytes(tmp_path, monkeypatch, counts_only):
    """The whole has what only the last span's events tell, though no worker is free before."""
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 16000)
    path = busy(tmp_path / "s", phases=4, lossy=True)
    parse(path, counts_only=counts_only)
    expected = digests(path)
    planned = noted_plan(monkeypatch)
    parse(path, counts_only=counts_only, workers=MANY)
    assert 2 <= len(planned) <= MANY
    assert digests(path) == expected


@pytest.mark.parametrize("workers", [2, MANY])
def test_spans_that_end_in_another_order_write_the_same_bytes(tmp_path, monkeypatch, workers):
    """Each that another process replays waits for one after it, as long as there is one."""
    path = busy(tmp_path / "s")
    parse(path)
    expected = digests(path)
    context = multiprocessing.get_context("fork")
    ended = [context.Event() for _ in range(1000)]
    order, another = context.SimpleQueue(), context.Event()
    replay_one = replay_workers.Work._replay
    parent = os.getpid()

    def wait_for_next(work, span, progress):
        if os.getpid() == parent:
            assert another.wait(60)
        another.set()
        if os.getpid() != parent and span.number + 1 < len(planned) and span.number % 2:
            assert ended[span.number + 1].wait(60)
        found = replay_one(work, span, progress)
        order.put((span.number, os.getpid()))
        ended[span.number].set()
        return found

    planned = noted_plan(monkeypatch)
    monkeypatch.setattr(replay_workers.Work, "_replay", wait_for_next)
    parse(path, workers=workers)
    found = [order.get() for _ in planned]
    assert len(planned) > workers
    assert sorted(number for number, _ in found) == list(range(len(planned)))
    assert len({process for _, process in found}) > 1
    assert digests(path) == expected


def test_an_error_of_a_worker_is_told(tmp_path, monkeypatch):
    path = busy(tmp_path / "s", phases=2)
    replay_one = replay_workers.Work._replay
    parent = os.getpid()

    def fail(*arguments):
        if os.getpid() != parent:
            raise ParseError("the other's", "its hint")
        return replay_one(*arguments)

    monkeypatch.setattr(replay_workers.Work, "_replay", fail)
    with pytest.raises(ParseError, match="the other's") as error:
        parse(path, workers=MANY)
    assert error.value.hint == "its hint"
    assert not list(path.glob("results*"))


def test_a_worker_that_is_killed_is_told(tmp_path, monkeypatch):
    path = busy(tmp_path / "s", phases=2)
    parent = os.getpid()
    run = replayer.Replayer.run

    def killed(*arguments):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(*arguments)

    monkeypatch.setattr(replayer.Replayer, "run", killed)
    with pytest.raises(PtatError, match="exit code -9") as error:
        parse(path, workers=2)
    assert "--workers" in error.value.hint
    assert not list(path.glob("results*"))


def test_who_was_forked_by_one_that_ended_claims_nothing():
    claimed = multiprocessing.Value("q", 0)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert list(replay_workers._claims(claimed, 3, ended.pid)) == []
    assert claimed.value == 0


def test_that_no_process_can_be_started_is_told(tmp_path, monkeypatch):
    def fail():
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    path = busy(tmp_path / "s", phases=2)
    monkeypatch.setattr(os, "fork", fail)
    with pytest.raises(PtatError, match=r"temporarily unavailable \(use fewer --workers"):
        parse(path, workers=2)
    assert not list(path.glob("results*"))


def test_who_is_interrupted_ends_the_others(tmp_path, monkeypatch):
    path = busy(tmp_path / "s", phases=2)
    parent = os.getpid()
    there, told = multiprocessing.Pipe(duplex=False)

    def stop(*arguments):
        if os.getpid() != parent:
            told.send(os.getpid())
            threading.Event().wait(60)
        assert there.poll(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(replayer.Replayer, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        parse(path, workers=2)
    with pytest.raises(ProcessLookupError):
        os.kill(there.recv(), 0)
    assert not list(path.glob("results*"))
