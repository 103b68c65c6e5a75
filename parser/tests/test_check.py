# SPDX-License-Identifier: BSD-2-Clause
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from test_merge import in_two_channels, split

from ptat_parser import parse, wire
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import seal
from ptat_parser.checks import capture as checks_capture
from ptat_parser.checks.session import check
from ptat_parser.errors import SessionError


def first(path: Path):
    report = check(path)
    assert not report.ok
    (name,) = [c.name for c in report.checks if c.violations][:1]
    return name, report.first


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.integers(1, 250),
    granularity=st.sampled_from([8, 32, 64]),
    levels=st.sampled_from(["pte", "pte+pmd"]),
    entries=st.booleans(),
    cpus=st.integers(1, 4),
    untraced=st.sampled_from([0, 0.3]),
    channels=st.integers(1, 2),
    scan=st.sampled_from([1, 256]),
)
def test_what_a_machine_recorded_is_sound(
    tmp_path_factory,
    seed,
    steps,
    granularity,
    levels,
    entries,
    cpus,
    untraced,
    channels,
    scan,
):
    machine = synthetic.Machine(
        seed, granularity, levels=levels, entries=entries, cpus=cpus, untraced=untraced
    ).run(steps)
    path = machine.write(tmp_path_factory.mktemp("check") / "s")
    if channels == 2:
        in_two_channels(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks_capture, "SCAN_BLOCKS", scan)
        report = check(path)
    assert report.first is None
    assert [c.skipped for c in report.checks] == [None] * 7
    assert (report.accesses, report.lost) == (len(machine.bus), 0)


def edit(path: Path, block: int, word: int, value: int) -> None:
    """Change a word, and make the block's CRC right again."""
    words = np.fromfile(path, "<u8").reshape(-1, wire.BLOCK_WORDS)
    words[block, word] = value
    count = int(words[block, wire.WORD_CHECK]) >> wire.CHECK_COUNT_SHIFT & 0xFFF
    seal(words[block], count)
    words.tofile(path)


def word_of(path: Path, block: int, word: int) -> int:
    return int(np.fromfile(path, "<u8").reshape(-1, wire.BLOCK_WORDS)[block, word])


def test_damage_of_the_capture_is_placed(session):
    path = session(steps=400)
    bus = path / "bus.0.raw"
    intact = bus.read_bytes()
    assert len(intact) >= 3 * wire.BLOCK_BYTES

    def change(block: int, word: int, value: int, message: str, sealed: bool = True) -> None:
        bus.write_bytes(intact)
        if sealed:
            edit(bus, block, word, value)
        else:
            words = np.fromfile(bus, "<u8")
            words[block * wire.BLOCK_WORDS + word] = value
            words.tofile(bus)
        name, violation = first(path)
        assert (name, violation.file, violation.block) == ("capture", "bus.0.raw", block)
        assert message in violation.message
        assert violation.byte == (block * wire.BLOCK_WORDS + violation.word) * 8
        if sealed:
            assert violation.word == word

    header = word_of(bus, 1, 0)
    change(1, 700, 5, "CRC", sealed=False)
    change(1, 0, header ^ 1 << 48, "magic")
    change(1, 0, header ^ 2 << 44, "version 3")
    change(1, 0, header ^ 7 << 36, "channel 7")
    change(1, 0, header ^ 1 << 32, "flags")
    change(2, 0, header + 5, "block number 6 instead of 2")
    change(2, 1, 3, "time runs backwards")
    change(1, 500, 9 << 60, "not a record")
    change(1, 600, wire.Tag.TIME << 60 | 7, "time runs backwards")
    words = np.frombuffer(intact, "<u8").reshape(-1, wire.BLOCK_WORDS)
    used = int(words[-1, wire.WORD_CHECK]) >> wire.CHECK_COUNT_SHIFT & 0xFFF
    change(len(words) - 1, 2 + used, 1, "padding")


def test_blocks_dropped_doubled_and_cut(session):
    path = session(steps=400)
    bus = path / "bus.0.raw"
    data = bus.read_bytes()
    size = wire.BLOCK_BYTES
    for change, block, message in (
        (data[:size] + data[2 * size :], 1, "block number 2 instead of 1"),
        (data[:size] + data, 1, "block number 0 instead of 1"),
        (data[: 2 * size], 2, "no STOP mark"),
        (data[: 2 * size + 9], 2, "9 of 8192 bytes"),
    ):
        bus.write_bytes(change)
        name, violation = first(path)
        assert (name, violation.block) == ("capture", block)
        assert message in violation.message
    bus.write_bytes(b"")
    assert first(path)[1].message == "empty"
    bus.unlink()
    assert first(path)[1].message == "no such file"


def machine_with_access(address: int, write: bool, **options) -> synthetic.Machine:
    machine = synthetic.Machine(region_pages=8, **options)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    machine.access(mm, 0x5000)
    machine.access_bus(address, write)
    machine.event("ptat_marker", cookie=2)
    return machine


FREE_PAGE = synthetic.REGION_BASE + 17 * 4096


@pytest.mark.parametrize(
    ("address", "write", "name", "message"),
    [
        (synthetic.REGION_BASE - 8, False, "accesses", "outside the region"),
        (synthetic.REGION_BASE + 24 * 4096, True, "accesses", "outside the region"),
        (synthetic.REGION_BASE + 64, False, "accesses", "marker area"),
        (synthetic.REGION_BASE + 512 * 64, True, "markers", "slot 512 that no event explains"),
        (FREE_PAGE, False, "tables", "a read of a page that holds no table"),
        (FREE_PAGE, True, "tables", "a store to a page that holds no table"),
    ],
)
def test_an_access_that_should_not_be(tmp_path, address, write, name, message):
    machine = machine_with_access(address, write)
    assert FREE_PAGE in machine.free
    ticks = machine.bus[-2][0]
    found, violation = first(machine.write(tmp_path / "s"))
    assert found == name
    assert message in violation.message
    assert (violation.address, violation.time_ticks) == (address, ticks)
    # One MARK record, and all accesses before it.
    assert (violation.block, violation.word) == (0, 2 + 1 + len(machine.bus) - 2)


@pytest.mark.parametrize(
    ("address", "write", "name", "message"),
    [
        (synthetic.REGION_BASE - 8, False, "accesses", "outside the region"),
        (synthetic.REGION_BASE + 64, False, "accesses", "marker area"),
        (synthetic.REGION_BASE + 513 * 64, True, "markers", "slot 513 that no event explains"),
        (FREE_PAGE, False, "tables", "a read of a page that holds no table"),
        (FREE_PAGE + 64, True, "tables", "a store to a page that holds no table"),
    ],
)
def test_an_access_of_a_channel_that_should_not_be(tmp_path, address, write, name, message):
    machine = machine_with_access(address, write)
    path = machine.write(tmp_path / "s")
    in_two_channels(path)
    found, violation = first(path)
    assert found == name
    assert message in violation.message
    assert (violation.address, violation.time_ticks) == (address, machine.bus[-2][0])
    words = np.fromfile(path / violation.file, "<u8")
    assert int(words[violation.byte // 8]) & (1 << 36) - 1 == address >> 3


def test_channels_in_another_order(tmp_path):
    """A channel whose clock is late: tables are read before their markers say they are there."""
    path = synthetic.Machine(1).run(200).write(tmp_path / "s")
    in_two_channels(path)
    for late_ticks, good in ((0, True), (3000, False)):
        accesses = [
            [
                (time + late_ticks * channel, address, write)
                for chunk in BusReader(path / f"bus.{channel}.raw", channel)
                for time, address, write in zip(
                    chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True
                )
            ]
            for channel in (0, 1)
        ]
        of = {row: channel for channel, rows in enumerate(accesses) for row in rows}
        both = sorted(of, key=lambda row: row[0])
        channel_of = iter([of[row] for row in both])
        split(path, both, lambda _, each=channel_of: next(each))
        assert check(path).ok == good


def test_a_channel_is_damaged_or_missing(session):
    path = session(steps=300)
    in_two_channels(path)
    edit(path / "bus.1.raw", 0, 1, 1 << 59)
    name, violation = first(path)
    assert (name, violation.file) == ("capture", "bus.1.raw")
    (path / "bus.1.raw").unlink()
    assert first(path)[1].message == "no such file"


def test_a_table_read_before_it_is_linked(tmp_path):
    machine = synthetic.Machine()
    mm = machine.exec()
    pmd = machine.pmd(mm, 0)
    machine._free(mm, pmd)
    machine.access_bus(pmd.pa, False)  # a walker may still use it
    machine.event("ptat_table_alloc", mm=mm.id, pa=pmd.pa, va=0, level=1)
    machine.access_bus(pmd.pa, False)
    name, violation = first(machine.write(tmp_path / "s"))
    assert (name, violation.message) == ("tables", "a read of a table that is not linked yet")
    assert violation.time_ticks == machine.bus[-1][0]


@pytest.mark.parametrize("granularity", [8, 64])
@pytest.mark.parametrize("level", [1, 2])
def test_stores_and_events_of_entries_that_differ(tmp_path, granularity, level):
    def machine() -> tuple[synthetic.Machine, synthetic.Mm, int]:
        machine = synthetic.Machine(granularity=granularity, entries=True)
        mm = machine.exec()
        machine.set_pte(mm, 0x5000, True)
        machine.set_huge(mm, 7 << 21, True)
        table = machine.pte(mm, 0) if level == 1 else machine.pmd(mm, 0)
        return machine, mm, machine.slot(table, 5 if level == 1 else 7)

    more_stores, _, slot = machine()
    more_stores.access_bus(slot, True)
    name, violation = first(more_stores.write(tmp_path / "stores"))
    assert (name, violation.message) == ("entries", "a store to an entry that no event announced")
    assert violation.time_ticks == more_stores.bus[-1][0]
    assert violation.address == slot & -granularity

    more_events, mm, slot = machine()
    event = "ptat_pte_set" if level == 1 else "ptat_leaf_set"
    more_events.event(event, mm=mm.id, slot_pa=slot, va=0x5000, entry=0xE7, level=level)
    name, violation = first(more_events.write(tmp_path / "events"))
    assert name == "entries"
    assert violation.message == f"the entry at {slot:#x} was logged, but never stored"


def test_a_marker_without_its_store(tmp_path):
    machine = synthetic.Machine(1).run(50)
    lost = next(i for i, row in enumerate(machine.bus[20:], 20) if is_marker(row))
    seq = sum(map(is_marker, machine.bus[: lost + 1]))
    del machine.bus[lost]
    name, violation = first(machine.write(tmp_path / "s"))
    assert name == "markers"
    assert f" number {seq} has no marker store" in violation.message


def is_marker(row) -> bool:
    return row[1] is not None and row[1] < synthetic.REGION_BASE + 16 * 4096


def test_losses_are_no_violation_but_limit_what_is_checked(tmp_path):
    machine = synthetic.Machine(1).run(100)
    at = len(machine.bus) // 2
    machine.bus[at] = (machine.bus[at][0], None, 1)
    report = check(machine.write(tmp_path / "s"))
    assert report.ok
    assert report.lost >= 1
    assert [c.name for c in report.checks if c.skipped] == ["markers", "tables", "entries"]


def change_summary(path: Path, change) -> None:
    file = path / "results" / "summary.json"
    summary = json.loads(file.read_text())
    change(summary)
    file.write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["totals"].update(accesses=1), "accesses: 1, but in the capture"),
        (lambda s: s["totals"].update(misses=1), "but in the summary: 1"),
        (lambda s: s["totals"].update(stores=1), "stores of entries: 1"),
        (lambda s: s["processes"][0].update(faulted=10**6), "faulted of all processes"),
        (lambda s: s["losses"].update(accesses=3), "accesses lost: 3, but in the capture: 0"),
    ],
)
def test_results_that_contradict(session, change, message):
    path = session(steps=100)
    parse(path)
    change_summary(path, change)
    name, violation = first(path)
    assert name == "counts"
    assert message in violation.message


def test_files_that_contradict(session):
    path = session(steps=100)
    parse(path)
    (part,) = (path / "results" / "misses").glob("*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.slice(1), part)
    assert "misses in files" in first(path)[1].message
    pq.write_table(table.take([1, 0, *range(2, len(table))]), part)
    violation = first(path)[1]
    assert (violation.file, violation.message) == (
        "results/misses",
        f"row of {table['time'][0]} ns after one of a later time",
    )
    page = table["page"].to_numpy().copy()
    for unknown in (page.max() + 100_000, page.max() + 1, 1):
        assert unknown not in page
        page[0] = unknown
        pq.write_table(table.set_column(1, table.schema.field("page"), pa.array(page)), part)
        assert "does not know a page" in first(path)[1].message
    pq.write_table(table, part)
    pages = pq.read_table(path / "results" / "pages.parquet")
    misses = pages["misses"].to_pylist()
    misses[misses.index(max(misses))] -= 1
    changed = pages.set_column(pages.schema.get_field_index("misses"), "misses", pa.array(misses))
    pq.write_table(changed, path / "results" / "pages.parquet")
    assert "misses of all pages" in first(path)[1].message


def test_counters_that_contradict(session):
    path = session(steps=100)
    report = check(path)
    region = {
        "walker_leaf_reads": 0,
        "walker_pmd_reads": 0,
        "cpu_loads": 0,
        "cpu_entry_stores": 0,
        "cpu_marker_stores": report.accesses,
    }
    counters = {"region": region, "model": {"bus_lost": 0}}
    (path / "counters.json").write_text(json.dumps(counters))
    name, violation = first(path)
    assert (name, violation.file) == ("counts", "counters.json")
    assert violation.message.startswith("reads: 0, but in the capture: ")
    region["cpu_loads"] = 2
    (path / "counters.json").write_text(json.dumps(counters))
    assert first(path)[1].message == "loads of the region by the kernel: 2, but read back: 0"


def test_a_damaged_log_is_a_violation(session):
    path = session(steps=50)
    log = path / "kernel" / "cpu0.raw"
    log.write_bytes(log.read_bytes()[:-1])
    name, violation = first(path)
    assert name == "kernel log"
    assert "cpu0.raw: truncated" in violation.message


def test_no_session(tmp_path):
    with pytest.raises(SessionError, match="no such session"):
        check(tmp_path / "nothing")
