# SPDX-License-Identifier: BSD-2-Clause
import errno
import json
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from conftest import flip
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_parser import load, parse, validate, wire
from ptat_parser.capture import reader as capture_reader
from ptat_parser.errors import BadInput, ParseError, PtatError, SessionError
from ptat_parser.formats.parquet import Writer
from ptat_parser.replay import segments
from ptat_parser.results import pipeline
from ptat_parser.results import reader as results_reader


def test_files_and_columns(session):
    path = session(steps=200)
    found = parse(path)
    misses = pq.read_table(path / "results" / "misses")
    columns = [("time", pa.int64()), ("page", pa.uint32())]
    assert misses.schema.equals(pa.schema([pa.field(*c, nullable=False) for c in columns]))
    other = pq.read_table(path / "results" / "other")
    assert other.schema.names == ["time", "page", "kind"]
    assert set(other["kind"].to_pylist()) == {1, 2}
    pages = pq.read_table(path / "results" / "pages.parquet")
    assert pages.schema.names == [
        "page",
        "mm",
        "tgid",
        "comm",
        "vaddr",
        "page_size_bytes",
        "span",
        "misses",
        "faulted",
        "stores",
        "first_ns",
        "last_ns",
    ]
    assert json.loads((path / "results" / "summary.json").read_text()) == found.summary

    numbers = pages["page"].to_numpy()
    assert (np.diff(numbers.astype(np.int64)) > 0).all()
    by_page = np.bincount(misses["page"].to_numpy(), minlength=numbers[-1] + 1)[numbers]
    assert pages["misses"].to_pylist() == by_page.tolist()
    faulted = other["page"].to_numpy()[other["kind"].to_numpy() == 1]
    by_page = np.bincount(faulted, minlength=numbers[-1] + 1)[numbers]
    assert pages["faulted"].to_pylist() == by_page.tolist()
    assert found.summary["totals"]["misses"] == len(misses)
    assert sum(p["misses"] for p in found.summary["processes"]) == len(misses)
    assert np.all(np.diff(misses["time"].to_numpy()) > 0)


def test_times_are_the_kernels(tmp_path):
    machine = synthetic.Machine(4).run(100)
    found = parse(machine.write(tmp_path / "s"))
    (time, _), *_ = found.misses()
    start_ns = synthetic.TSC_START * 1e9 / synthetic.TSC_HZ
    expected = [start_ns + ticks for ticks, *_ in machine.expected]
    # The clocks are tied by events that are logged at least 100 ns after their stores.
    assert np.abs(time - expected - 100).max() < 30


def test_encodings(session):
    path = session(steps=200)
    parse(path)
    columns = pq.ParquetFile(path / "results" / "misses" / "part-00000.parquet").metadata.row_group(
        0
    )
    assert "DELTA_BINARY_PACKED" in columns.column(0).encodings
    assert "DELTA_BINARY_PACKED" in columns.column(1).encodings


def test_parts(session, monkeypatch):
    monkeypatch.setattr("ptat_parser.formats.parquet.GROUP_ROWS", 20)
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 500)
    monkeypatch.setattr("ptat_parser.replay.replayer.HELD_BACK", 20)
    monkeypatch.setattr("ptat_parser.capture.reader.CHUNK_BLOCKS", 1)
    path = session(steps=2000)
    found = parse(path)
    assert len(list((path / "results" / "misses").iterdir())) > 3
    assert sum(time.size for time, _ in found.misses()) == found.summary["totals"]["misses"]


@settings(max_examples=100)
@given(
    known=st.sets(st.integers(0, 1 << 20) | st.integers((1 << 32) - 600, (1 << 32) - 1)),
    asked=st.lists(st.integers(0, (1 << 32) - 1)),
)
def test_rows_of_numbers(known, asked):
    """Also far apart, in little memory; a number that no page has is told."""
    numbers = np.array(sorted(known), np.uint32)
    found = results_reader.Results(SimpleNamespace(results_path=Path("results")), {})
    found.__dict__["page_numbers"] = numbers
    row_of = {number: row for row, number in enumerate(numbers.tolist())}
    assert found.row_of(numbers[::-1]).tolist() == list(reversed(row_of.values()))
    near = {number + step for number in known for step in (-1, 1, 512)} | set(asked)
    for number in near - known:
        if 0 <= number < 1 << 32:
            with pytest.raises(BadInput, match="run ptat parse again"):
                found.row_of(np.array([number], np.uint32))
    taken = sum(array.nbytes for array in found._rows_by_block)
    assert taken <= (4 << 23) + 2048 * (numbers.size + 2)


def test_counts_only(session):
    path = session(steps=100)
    counted = parse(path, counts_only=True)
    assert sorted(p.name for p in (path / "results").iterdir()) == ["pages.parquet", "summary.json"]
    with pytest.raises(BadInput, match="counts only"):
        list(counted.misses())
    assert counted.summary == parse(path).summary


def test_load_parses_once(session):
    path = session(steps=20)
    first = load(path)
    made = (path / "results" / "summary.json").stat().st_mtime_ns
    assert load(path).summary == first.summary
    assert (path / "results" / "summary.json").stat().st_mtime_ns == made


@pytest.mark.parametrize("content", ["", "{}", '{"format": "ptat-results", "version": 0}'])
def test_load_makes_unusable_results_again(session, content):
    path = session(steps=20)
    whole = load(path).summary
    (path / "results" / "summary.json").write_text(content)
    assert load(path).summary == whole


def test_load_notices_a_newer_recording(session):
    path = session(steps=20)
    load(path)
    made = (path / "results" / "summary.json").stat().st_mtime_ns
    os.utime(path / "session.json", ns=(made + 1, made + 1))
    (path / "bus.0.raw").unlink()
    with pytest.raises(BadInput):
        load(path)


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_reaches_the_end(session, monkeypatch, workers):
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", 1)
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1500)
    seen = []
    path = session(steps=3000)
    parse(path, progress=lambda *step: seen.append(step), workers=workers)
    assert len(list((path / "results" / "misses").iterdir())) > 1
    assert {step for step, done, total in seen if done == total} == {"reading", "replaying"}
    for name in ("reading", "replaying"):
        done = [share for step, *share in seen if step == name]
        assert done == sorted(done)
        assert len({total for _, total in done}) == 1


def test_stores_are_counted(tmp_path):
    """Also those before the first read, and of no page that was not read."""
    machine = synthetic.Machine(1)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    machine.set_pte(mm, 0x6000, True)
    machine.access(mm, 0x5000)
    for present in (False, True, False):
        machine.set_pte(mm, 0x5000, present)
    path = machine.write(tmp_path / "s")
    parse(path)
    pages = pq.read_table(path / "results" / "pages.parquet").to_pylist()
    assert [row["stores"] for row in pages if row["vaddr"] == 0x5000] == [4]
    assert 0x6000 not in [row["vaddr"] for row in pages]


def test_losses_are_summed(tmp_path):
    machine = synthetic.Machine(1)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    for _ in range(50):
        machine.access(mm, 0x5000)
    machine.lose(7)
    summary = parse(machine.write(tmp_path / "s")).summary
    assert (summary["lost"], summary["losses"]["accesses"]) == (7, 7)


def test_decode_errors_are_losses(tmp_path):
    machine = synthetic.Machine(1).run(20)
    errors = [
        (wire.Mark.DECODE_ERROR, 3 << wire.DECODE_ERROR_COUNT_SHIFT | 1),
        (wire.Mark.DECODE_ERROR, 0),
        (wire.Mark.SYNC, 1 << wire.SYNC_NUMBER_SHIFT | 7),
    ]
    summary = parse(machine.write(tmp_path / "s", errors)).summary
    assert (summary["lost"], summary["losses"]["decode_errors"]) == (4, 4)
    assert (summary["complete"], summary["incomplete_reason"]) == (
        False,
        "lost 4 records or events",
    )


def test_a_sampled_stream_is_never_complete(tmp_path):
    machine = synthetic.Machine(1).run(20)
    marks = [(wire.Mark.SAMPLE, 1), (wire.Mark.SAMPLE, 8), (wire.Mark.SAMPLE, 1)]
    found = parse(machine.write(tmp_path / "s", marks))
    summary = found.summary
    assert (summary["complete"], summary["sampled_one_in"]) == (False, 8)
    assert summary["incomplete_reason"] == "1 in 8 accesses sampled"
    assert "1 in 8 accesses sampled" in summary["warnings"][0]
    assert not validate(found).ok

    summary = parse(machine.write(tmp_path / "all", marks[:1])).summary
    assert (summary["complete"], summary["sampled_one_in"]) == (True, 1)
    assert not summary["warnings"]


def damage_bus(offset: int):
    return lambda path: flip(path / "bus.0.raw", offset)


def cut_bus(size: int):
    def cut(path: Path) -> None:
        data = (path / "bus.0.raw").read_bytes()
        (path / "bus.0.raw").write_bytes(data[:size])

    return cut


def move_region(path: Path) -> None:
    text = (path / "session.json").read_text()
    (path / "session.json").write_text(text.replace(str(0x4000_0000), str(0x8000_0000)))


def shrink_region(path: Path) -> None:
    fields = json.loads((path / "session.json").read_text())
    fields["region"]["size_bytes"] = 17 * 4096
    (path / "session.json").write_text(json.dumps(fields))


DAMAGES = [
    (cut_bus(8192 + 17), ParseError, r"truncated: block 1 at byte 8192 .*--salvage"),
    (cut_bus(8192), BadInput, "STOP mark is missing.*--salvage"),
    (cut_bus(0), ParseError, "empty"),
    (damage_bus(100), ParseError, r"block 0 at byte 0: damaged: CRC .*--salvage"),
    (damage_bus(7), ParseError, "magic"),
    (lambda p: (p / "bus.0.raw").unlink(), BadInput, "no such file"),
    (lambda p: (p / "kernel").rename(p / "k"), ParseError, "kernel: missing"),
    (lambda p: (p / "session.json").unlink(), SessionError, "not a session"),
    (move_region, ParseError, "none of .* accesses lies in the region"),
    (shrink_region, ParseError, "outside the region"),
]


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGES, ids=[m for *_, m in DAMAGES])
def test_bad_input(session, damage, error, message):
    path = session(steps=600)
    damage(path)
    with pytest.raises(error, match=message):
        parse(path)
    assert not (path / "results").exists()
    assert not (path / "results.new").exists()


def test_salvage(session):
    path = session(steps=600)
    whole = parse(path).summary["totals"]["misses"]
    flip(path / "bus.0.raw", 8192 + 100)
    summary = parse(path, salvage=True).summary
    assert summary["losses"]["blocks"] == 1
    assert summary["lost"] > 0
    assert 0 < summary["totals"]["misses"] < whole


def test_an_incomplete_recording_may_end_anywhere(session):
    path = session(steps=600)
    cut_bus(8192 + 17)(path)
    fields = json.loads((path / "session.json").read_text())
    fields.update(complete=False, incomplete_reason="interrupted")
    (path / "session.json").write_text(json.dumps(fields))
    summary = parse(path).summary
    assert summary["complete"] is False
    assert "interrupted" in summary["warnings"][0]
    assert summary["losses"]["blocks"] == 1


def test_faults_not_recorded_is_said(session):
    path = session(steps=100)
    text = (path / "session.json").read_text()
    (path / "session.json").write_text(text.replace('"ptat_fault"', '"ptat_none"'))
    summary = parse(path).summary
    assert summary["faults"]["recorded"] is False
    assert any("page faults were not recorded" in warning for warning in summary["warnings"])


def test_full_disk(session, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = session(steps=50)
    monkeypatch.setattr(Writer, "write", full)
    with pytest.raises(PtatError, match="cannot be written: No space left"):
        parse(path)
    assert not (path / "results.new").exists()


def test_two_at_once_take_turns(session, monkeypatch):
    path = session(steps=200)
    begun, go_on = [threading.Event() for _ in range(2)], threading.Event()
    waiting = iter(begun)
    parse_into = pipeline._parse_into

    def note(*arguments):
        next(waiting).set()
        assert go_on.wait(60)
        return parse_into(*arguments)

    monkeypatch.setattr(pipeline, "_parse_into", note)
    with ThreadPoolExecutor(2) as pool:
        steps = queue.SimpleQueue()
        both = [pool.submit(parse, path, progress=lambda *step: steps.put(step)) for _ in begun]
        assert begun[0].wait(60)
        assert steps.get(timeout=60) == (pipeline.WAITING, 0, 1)
        assert not begun[1].wait(0.3)
        go_on.set()
        first, second = (future.result().summary for future in both)
    assert begun[1].is_set()
    assert first == second == load(path).summary
    assert not (path / "results.new").exists()


def test_processes_at_once(session):
    """Some of them while another one renames what they wait for."""
    path = session(steps=200)
    program = "import sys, pathlib, ptat_parser; ptat_parser.parse(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(300) for process in processes] == [0] * 4
    whole = {file.name for file in (path / "results").iterdir()}
    assert whole == {"misses", "other", "pages.parquet", "summary.json"}


def test_what_a_killed_process_left_is_removed(session):
    path = session(steps=50)
    (path / "results.new" / "misses").mkdir(parents=True)
    (path / "results.new" / "misses" / "part-00099.parquet").write_bytes(b"PAR1")
    (path / "results.new" / "stray").write_text("")
    parse(path)
    assert not (path / "results" / "stray").exists()
    assert not (path / "results" / "misses" / "part-00099.parquet").exists()


def test_nothing_captured_but_markers(tmp_path):
    machine = synthetic.Machine()
    machine.event("ptat_marker", cookie=2)
    found = parse(machine.write(tmp_path / "s"))
    assert found.summary["totals"]["misses"] == 0
    assert list(found.misses()) == []
    assert len(found.pages()) == 0
