# SPDX-License-Identifier: BSD-2-Clause
import pickle
import random
import struct
from contextlib import nullcontext

import numpy as np
import pytest
import synthetic
from conftest import flip
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_parser.errors import ParseError
from ptat_parser.kernel import log as kernel_log
from ptat_parser.kernel import ring_buffer, tracepoints
from ptat_parser.kernel.log import read_kernel_log

PAGE = 4096


def marker(seq: int, cookie: int = 9) -> bytes:
    return synthetic.event_bytes("ptat_marker", {"seq": seq, "cookie": cookie})


def record(payload: bytes, delta: int = 0) -> bytes:
    return struct.pack("<I", len(payload) // 4 | delta << 5) + payload


def page(data: bytes, time: int = 1000, flags: int = 0) -> bytes:
    return (struct.pack("<QQ", time, len(data) | flags) + data).ljust(PAGE, b"\0")


@pytest.fixture
def log(session):
    """A kernel directory whose cpu0.raw a test replaces; the counters fit any content."""
    directory = session(steps=1) / "kernel"

    def replace(data: bytes, **stats: int):
        (directory / "cpu0.raw").write_bytes(data)
        text = "".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in stats.items())
        (directory / "cpu0.stats").write_text(text)
        return read_kernel_log(directory)

    return replace


@pytest.mark.parametrize("cpus", [1, 4])
def test_everything_logged_is_read(tmp_path, cpus):
    machine = synthetic.Machine(3, cpus=cpus, granularity=64, entries=True).run(400)
    log = read_kernel_log(machine.write(tmp_path / "s") / "kernel")
    assert len(log.tables) + len(log.timed.between()) == sum(map(len, machine.log))
    assert log.tables["seq"].tolist() == list(range(1, machine.seq + 1))
    assert (log.lost_events, log.lost_seqs) == (0, 0)
    assert np.all(np.diff(log.timed.between()["time"].astype(np.int64)) >= 0)

    names = {synthetic.EVENT_ID[name]: name for name in synthetic.EVENTS}
    by_seq = {row["seq"]: row for row in log.tables}
    for cpu, events in enumerate(machine.log):
        for time, payload in events:
            name = names[struct.unpack_from("<H", payload)[0]]
            if name in synthetic.UNMARKED:
                continue
            row = by_seq[struct.unpack_from("<Q", payload, 8)[0]]
            assert (row["time"], row["cpu"]) == (time, cpu)
            assert tracepoints.TABLE_KINDS[row["kind"]] == name
            for field, _, offset, size, _ in synthetic.EVENTS[name]:
                if field == "comm[16]":
                    assert row["comm"] == payload[offset : offset + size].rstrip(b"\0")
                else:
                    value = int.from_bytes(payload[offset : offset + size], "little")
                    assert row[field] == value


def test_faults_and_entries(tmp_path):
    machine = synthetic.Machine(granularity=64, entries=True)
    mm = machine.exec()
    machine.access(mm, 0x5000, write=True)
    log = read_kernel_log(machine.write(tmp_path / "s") / "kernel")
    fault, entry = log.timed.between()
    assert (fault["kind"], fault["mm"], fault["va"]) == (tracepoints.FAULT, mm.id, 0x5000)
    assert (entry["kind"], entry["va"], entry["entry"]) == (tracepoints.ENTRY_SET, 0x5000, 0x67)
    assert entry["slot_pa"] == machine.slot(machine.pte(mm, 0), 5)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 32),
    cpus=st.integers(1, 3),
    batch_pages=st.integers(1, 5),
    remembered=st.sampled_from([0, 300, kernel_log.REMEMBERED]),
    sent=st.booleans(),
)
def test_events_of_a_time_are_read(tmp_path_factory, seed, cpus, batch_pages, remembered, sent):
    """However many pages are read at a time; those of one time in the order of the CPUs."""
    choose = random.Random(seed)
    machine = synthetic.Machine(cpus=cpus)
    machine.log = [[] for _ in range(cpus)]
    expected = []
    time = 1000
    for seq in range(1, choose.randrange(2, 2000)):
        time += choose.choice([0, 0, 1, 900])
        cpu = choose.randrange(cpus)
        name = choose.choice([*tracepoints.TIMED_KINDS, "ptat_marker"])
        values = dict.fromkeys(["cookie", "mm", "error_code", "slot_pa", "entry", "level"], 1)
        payload = synthetic.event_bytes(name, values | {"seq": seq, "va": seq << 12})
        machine.log[cpu].append((time, payload))
        if name != "ptat_marker":
            expected.append((time, cpu, tracepoints.TIMED_KINDS.index(name), seq << 12))
    expected.sort(key=lambda event: event[:2])
    directory = machine.write(tmp_path_factory.mktemp("log") / "s") / "kernel"

    def rows(events) -> list:
        return [(row["time"], row["kind"], row["va"]) for row in events]

    def between(since: int, until: int) -> list:
        return [(at, kind, va) for at, _, kind, va in expected if since <= at <= until]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring_buffer, "BATCH_BYTES", batch_pages * PAGE)
        patch.setattr(kernel_log, "REMEMBERED", remembered)
        log = read_kernel_log(directory).timed
        if sent:
            log = pickle.loads(pickle.dumps(log))
        assert rows(log.between()) == between(0, time)
        assert log.faults == sum(kind == tracepoints.FAULT for _, _, kind, _ in expected)
        assert log.faults + log.entries == len(expected)
        assert [row for events in log.batches() for row in rows(events)] == between(0, time)
        for _ in range(5):
            since, until = (choose.randrange(900, time + 100) for _ in range(2))
            assert rows(log.between(since, until)) == between(since, until)
        for at, *_ in choose.sample(expected, min(5, len(expected))):
            assert rows(log.between(at, at)) == between(at, at)


def test_flushes_of_a_whole_tlb_are_read(tmp_path):
    machine = synthetic.Machine(cpus=2)
    for pages in (tracepoints.FLUSH_ALL, 1, 0, tracepoints.FLUSH_ALL):
        machine.event("tlb_flush", reason=0, pages=pages)
        machine.exec()
    flushes = read_kernel_log(machine.write(tmp_path / "s") / "kernel").flushes
    times = sorted(time for events in machine.log for time, _ in events)
    assert flushes.tolist() == [times[1], times[7]]  # the first one is the START marker


def test_neither_faults_nor_entries_were_asked_for(tmp_path):
    """As with --no-faults: then there are no formats of theirs."""
    machine = synthetic.Machine(granularity=64)
    machine.exec()
    directory = machine.write(tmp_path / "s") / "kernel"
    for name in tracepoints.TIMED_KINDS:
        (directory / "formats" / name).unlink(missing_ok=True)
    log = read_kernel_log(directory)
    assert len(log.tables) and not len(log.timed.between())


def test_times(log):
    """Deltas, extended deltas, absolute times, their highest bits; padding ends the page."""
    start = (3 << 59) + 1000
    data = record(marker(1), 5)
    data += struct.pack("<II", 30 | 7 << 5, 2) + record(marker(2), 1)
    absolute = 1 << 58 | 12345
    data += struct.pack("<II", 31 | (absolute & (1 << 27) - 1) << 5, absolute >> 27)
    data += record(marker(3), 2)
    wrapped = 77  # less than before: the low 59 bits have overflowed
    data += struct.pack("<II", 31 | wrapped << 5, 0) + record(marker(4))
    data += struct.pack("<I", 29) + record(marker(5))
    found = log(page(data, start), read_events=4).tables
    assert found["seq"].tolist() == [1, 2, 3, 4]
    high = 3 << 59
    assert found["time"].tolist() == [
        start + 5,
        start + 5 + (2 << 27) + 7 + 1,
        high + absolute + 2,
        (4 << 59) + 77,
    ]


def test_discarded_and_long_events(log):
    discarded = struct.pack("<II", 29 | 1 << 5, 8) + b"\xff" * 4
    payload = marker(2).ljust(200, b"\0")
    long = struct.pack("<II", 3 << 5, len(payload) + 4) + payload
    found = log(page(record(marker(1)) + discarded + long), read_events=2).tables
    assert found["seq"].tolist() == [1, 2]
    assert found["time"].tolist() == [1000, 1003]


def test_missed_events_are_counted(log):
    stored = page(record(marker(1)), flags=3 << 30)
    at = 16 + len(record(marker(1)))
    stored = stored[:at] + struct.pack("<Q", 41) + stored[at + 8 :]
    uncounted = page(record(marker(9)), flags=1 << 31)
    found = log(stored + uncounted, read_events=2)
    assert found.lost_events == 42
    assert found.lost_seqs == 7
    assert found.tables["seq"].tolist() == [1, 9]


def test_overrun_counters(log):
    found = log(page(record(marker(1))), read_events=1, overrun=5, dropped_events=2)
    assert found.lost_events == 7


def test_dynamic_comm(log, tmp_path):
    formats = tmp_path / "session" / "kernel" / "formats" / "ptat_mm_attach"
    text = formats.read_text()
    fixed = "field:char comm[16];\toffset:37;\tsize:16;"
    assert fixed in text
    formats.write_text(text.replace(fixed, "field:__data_loc char[] comm;\toffset:40;\tsize:4;"))
    payload = bytearray(60)
    payload[:40] = synthetic.event_bytes(
        "ptat_mm_attach", {"seq": 1, "mm": 1, "pgd": 0, "tgid": 7, "why": 2, "comm": ""}
    )[:40]
    struct.pack_into("<I", payload, 40, 6 << 16 | 48)
    payload[48:54] = b"hello\0"
    (row,) = log(page(record(bytes(payload))), read_events=1).tables
    assert (row["comm"], row["tgid"]) == (b"hello", 7)


def test_offsets_come_from_the_formats(log, tmp_path):
    formats = tmp_path / "session" / "kernel" / "formats" / "ptat_marker"
    formats.write_text(
        formats.read_text()
        .replace("u64 seq;\toffset:8;\tsize:8;", "u32 seq;\toffset:16;\tsize:4;")
        .replace("u64 cookie;\toffset:16;", "u64 cookie;\toffset:8;")
    )
    payload = marker(0)[:8] + struct.pack("<QII", 4, 6, 0xDEAD)
    (row,) = log(page(record(payload)), read_events=1).tables
    assert (row["seq"], row["cookie"]) == (6, 4)


def test_repeated_seq(log):
    with pytest.raises(ParseError, match="one sequence number"):
        log(page(record(marker(1)) + record(marker(1), 4)), read_events=2)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ptat_mm_attach", {"tgid": -1}, "an impossible process number"),
        ("ptat_mm_attach", {"tgid": (1 << 22) + 1}, "an impossible process number"),
        ("ptat_table_alloc", {"level": 0}, "a table of an unknown level"),
        ("ptat_table_link", {"level": 3}, "a table of an unknown level"),
    ],
)
def test_what_no_kernel_logs(log, tmp_path, name, fields, message):
    good = dict.fromkeys(("mm", "pgd", "why", "pa", "va", "slot_pa"), 0)
    good |= {"seq": 1, "tgid": 1 << 22, "level": 2, "comm": "gups"}
    for wrong, expected in (({}, None), (fields, f"cpu0.raw: damaged: {message}")):
        raises = pytest.raises(ParseError, match=expected) if expected else nullcontext()
        event = synthetic.event_bytes(name, good | wrong)
        with raises:
            log(page(record(event + bytes(-len(event) % 4))), read_events=1)
        with raises:
            kernel_log.GrowingLog(tmp_path / "session" / "kernel").read()


def test_empty_log(log):
    found = log(b"", read_events=0)
    assert (len(found.tables), found.lost_events) == (0, 0)


def test_truncated(session):
    directory = session(steps=300) / "kernel"
    raw = directory / "cpu0.raw"
    data = raw.read_bytes()
    raw.write_bytes(data[:-100])
    with pytest.raises(ParseError, match=r"cpu0.raw: truncated: \d+ bytes are not a multiple"):
        read_kernel_log(directory)
    raw.write_bytes(data[:-PAGE])
    with pytest.raises(ParseError, match=r"cpu0.raw: truncated or damaged: \d+ events, of"):
        read_kernel_log(directory)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "kernel: missing"),
        ("cpu0.raw", "no cpuN.raw"),
        ("cpu0.stats", "cpu0.stats: missing"),
        ("formats/header_page", "header_page: missing"),
        ("formats/header_event", "header_event: missing"),
        ("formats/ptat_table_link", "no format of ptat_table_link"),
    ],
)
def test_missing_files(session, name, message):
    directory = session(steps=5) / "kernel"
    (directory / name).rename(directory.parent / "away")
    with pytest.raises(ParseError, match=message):
        read_kernel_log(directory)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ptat_marker", "not the format of a trace event"),
        ("header_page", "no field"),
        ("header_event", "cannot read"),
    ],
)
def test_damaged_formats(session, name, message):
    directory = session(steps=5) / "kernel"
    (directory / "formats" / name).write_text("garbage\n")
    with pytest.raises(ParseError, match=message):
        read_kernel_log(directory)


@pytest.mark.parametrize(
    ("name", "was", "damaged", "message"),
    [
        ("header_page", "local_t commit;", " ;", "no field 'commit'"),
        ("header_page", "offset:16;", "offset:" + "9" * 5000 + ";", "no field 'data'"),
        ("ptat_fault", "u64 va;\toffset:16;", "u64 va;\toffset:1" + "0" * 20 + ";", "no field va"),
        ("ptat_fault", "ID: ", "ID: 9999999999", "not the format of a trace event"),
    ],
)
def test_hostile_formats(session, name, was, damaged, message):
    file = session(steps=5) / "kernel" / "formats" / name
    assert was in file.read_text()
    file.write_text(file.read_text().replace(was, damaged))
    with pytest.raises(ParseError, match=message):
        read_kernel_log(file.parent.parent)


def test_another_ring_buffer(session):
    directory = session(steps=5) / "kernel"
    file = directory / "formats" / "header_event"
    file.write_text(file.read_text().replace("== 30", "== 28"))
    with pytest.raises(ParseError, match="cannot read"):
        read_kernel_log(directory)


def test_flipped_bytes_never_crash(session):
    """A damaged page is an error or other events, never a traceback or an endless loop."""
    raw = session(steps=200) / "kernel" / "cpu0.raw"
    whole = raw.read_bytes()
    choose = random.Random(1)
    errors = 0
    for _ in range(300):
        flip(raw, choose.randrange(len(whole)), 1 << choose.randrange(8))
        try:
            read_kernel_log(raw.parent)
        except ParseError as error:
            assert "cpu0.raw" in str(error) or "sequence number" in str(error)
            errors += 1
        raw.write_bytes(whole)
    assert errors > 3


def test_damage_is_told_of_the_page_where_it_is(log, monkeypatch):
    monkeypatch.setattr(ring_buffer, "BATCH_BYTES", 2 * PAGE)
    pages = [page(record(marker(seq))) for seq in range(1, 6)]
    other = struct.pack("<H", 9) + marker(4)[2:]
    with pytest.raises(ParseError, match="event 1 from page 2 on has type 9 and"):
        log(b"".join([*pages[:3], page(record(other)), pages[4]]), read_events=5)
    pages[4] = struct.pack("<QQ", 1, 4081).ljust(PAGE, b"\0")
    with pytest.raises(ParseError, match=f"page 4 at byte {4 * PAGE}: damaged"):
        log(b"".join(pages), read_events=4)


def test_commit_beyond_the_page(log):
    with pytest.raises(ParseError, match="page 0 at byte 0: damaged"):
        log(struct.pack("<QQ", 1, 4081).ljust(PAGE, b"\0"), read_events=0)
