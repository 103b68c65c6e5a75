# SPDX-License-Identifier: BSD-2-Clause
"""Sessions whose TLB misses trapped, from records to results."""

import contextlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import trapping
from conftest import flip
from hypothesis import given, settings
from hypothesis import strategies as st

import ptat_parser
from ptat_parser.checks.session import check
from ptat_parser.errors import BadInput, PtatError, SessionError
from ptat_parser.formats.traps import RECORD, access_name, read_records
from ptat_parser.results import trap_pipeline
from ptat_parser.results.export import FORMATS, export


@pytest.fixture
def machine() -> trapping.TrapMachine:
    return trapping.TrapMachine(1, cpus=2).run(150)


@pytest.fixture
def directory(machine, tmp_path) -> Path:
    return machine.write(tmp_path / "session")


def rewrite(directory: Path, **changes) -> None:
    """Change keys of session.json."""
    path = directory / "session.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def damage(directory: Path, ring: int, row: int, **fields: int) -> None:
    """Change fields of a record."""
    path = directory / "kernel" / f"trap{ring}.raw"
    records = np.fromfile(path, RECORD)
    for name, value in fields.items():
        records[name][row] = value
    records.tofile(path)


def failed(directory: Path) -> dict[str, str]:
    """The checks that do not hold, and the first violation of each."""
    return {one.name: one.first.message for one in check(directory).checks if one.first}


# Order --------------------------------------------------------------------------------------------

TIMES = st.lists(st.lists(st.integers(0, 12), max_size=30).map(sorted), max_size=4)


@given(TIMES, st.integers(1, 8))
def test_records_come_in_the_order_of_a_plain_sort(times, at_once):
    rings = []
    for cpu, of_cpu in enumerate(times):
        records = np.zeros(len(of_cpu), RECORD)
        records["tsc"], records["cpu"], records["entry"] = of_cpu, cpu, np.arange(len(of_cpu))
        rings.append(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trap_pipeline, "RECORDS_AT_ONCE", at_once)
        found = [record.item() for part in trap_pipeline.in_order(rings) for record in part]
    everything = [record.item() for ring in rings for record in ring]
    assert sorted(found) == sorted(everything)
    names = list(RECORD.names)
    tsc, cpu, entry = (names.index(name) for name in ("tsc", "cpu", "entry"))
    assert [one[tsc] for one in found] == sorted(one[tsc] for one in everything)
    for n, ring in enumerate(rings):
        assert [one[entry] for one in found if one[cpu] == n] == ring["entry"].tolist()


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_records_out_of_order_are_refused(monkeypatch, at_once):
    monkeypatch.setattr(trap_pipeline, "RECORDS_AT_ONCE", at_once)
    records = np.zeros(4, RECORD)
    records["tsc"] = [1, 2, 1, 3]
    with pytest.raises(BadInput, match="not in the order"):
        list(trap_pipeline.in_order([records]))


# Results ------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), at_once=st.sampled_from([1, 7, 1 << 20]))
def test_pages_and_misses_are_what_the_machine_did(tmp_path_factory, seed, at_once):
    machine = trapping.TrapMachine(seed, cpus=2).run(60)
    directory = machine.write(tmp_path_factory.mktemp("s") / "session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trap_pipeline, "RECORDS_AT_ONCE", at_once)
        trace = ptat_parser.open(directory)
    misses = trace.misses().to_arrow().to_pylist()
    columns = ("mm", "vaddr", "page_size_bytes", "thread", "ip", "access")
    assert [tuple(miss[name] for name in columns) for miss in misses] == machine.misses

    pages = trace.pages.to_pylist()
    counts = {(p["mm"], p["vaddr"], p["page_size_bytes"]): p["misses"] for p in pages}
    assert {key: count for key, count in counts.items() if count} == Counter(
        miss[:3] for miss in machine.misses
    )
    for page in pages:
        times = [miss["time"] for miss in misses if miss["page"] == page["page"]]
        if times:
            assert (page["first_ns"], page["last_ns"]) == (times[0], times[-1])
    summary = trace.summary
    assert summary["totals"]["misses"] == len(machine.misses)
    assert summary["totals"]["faulted"] == machine.faulted
    assert summary["traps"]["misses_by_access"] == Counter(
        access_name(miss[5]) for miss in machine.misses
    )


def test_retries_and_faults_are_no_misses(directory, machine):
    summary = ptat_parser.parse(directory).summary
    traps = summary["traps"]
    assert traps["retry"] and traps["fault"] == machine.faulted
    assert traps["records"] == len(machine.misses) + traps["retry"] + traps["fault"]
    assert traps["waits"] == 1
    assert sum(process["misses"] for process in summary["processes"]) == len(machine.misses)


def test_counts_only(directory, machine):
    results = ptat_parser.parse(directory, counts_only=True)
    assert not (results.path / "misses").exists()
    assert results.pages()["misses"].to_numpy().sum() == len(machine.misses)
    assert check(directory).ok


def test_a_process_that_only_records_name_has_their_tgid(directory):
    damage(directory, 0, 0, mm=77, tgid=4711)
    summary = ptat_parser.parse(directory).summary
    assert [p["tgid"] for p in summary["processes"] if p["mm"] == 77] == [4711]


# The API and exports ------------------------------------------------------------------------------


def test_extra_columns_of_the_api(directory, machine):
    trace = ptat_parser.open(directory)
    pid = trace.summary["processes"][0]["tgid"]
    wanted = [miss for miss in machine.misses if 40 + miss[0] == pid]
    of_process = trace.misses(pid=pid)
    assert of_process.to_numpy()["thread"].tolist() == [miss[3] for miss in wanted]
    assert of_process.to_polars().collect()["ip"].to_list() == [miss[4] for miss in wanted]


def test_a_bus_has_no_extra_columns(session):
    trace = ptat_parser.open(session())
    names = ["time", "tgid", "comm", "vaddr", "page_size_bytes", "span", "mm", "page"]
    assert trace.misses().to_arrow().schema.names == names


@pytest.mark.parametrize("name", FORMATS)
def test_exports(directory, machine, tmp_path, name):
    target = tmp_path / "out"
    export(ptat_parser.open(directory).misses(), name, target)
    assert target.stat().st_size
    if name == "wide-parquet":
        table = pq.read_table(target)
        assert table["access"].to_pylist() == [miss[5] for miss in machine.misses]
    if name == "csv":
        head, first = target.read_text().splitlines()[:2]
        assert head.endswith('"page","thread","ip","access"')
        assert first.endswith(",".join(str(value) for value in machine.misses[0][3:]))


def test_results_of_before_have_no_columns_of_traps(directory):
    trace = ptat_parser.open(directory)
    path = trace.results.path / "misses" / "part-00000.parquet"
    pq.write_table(pq.read_table(path).select(["time", "page"]), path)
    with pytest.raises(BadInput, match="another version"):
        trace.misses().to_arrow()
    assert sum(page.size for _, page in trace.misses().raw())


# Bad input ----------------------------------------------------------------------------------------


def test_files_that_end_early(directory):
    path = directory / "kernel" / "trap0.raw"
    data = path.read_bytes()
    for cut, message in ((1, "ends within a record"), (RECORD.itemsize, "truncated: it has")):
        path.write_bytes(data[:-cut])
        with pytest.raises(BadInput, match=message):
            ptat_parser.parse(directory)
        assert "records" in failed(directory)
    path.unlink()
    with pytest.raises(BadInput, match="No such file"):
        ptat_parser.parse(directory)


def test_more_records_than_were_recorded(directory):
    path = directory / "kernel" / "trap0.raw"
    path.write_bytes(path.read_bytes() + path.read_bytes()[-RECORD.itemsize :])
    with pytest.raises(BadInput, match=r": it has \d+ of \d+ records"):
        ptat_parser.parse(directory)


def test_the_end_of_an_incomplete_recording_may_be_cut(directory, machine):
    path = directory / "kernel" / "trap0.raw"
    path.write_bytes(path.read_bytes()[:-1])
    rewrite(directory, complete=False, incomplete_reason="killed")
    summary = ptat_parser.parse(directory).summary
    records = sum(map(len, machine.records))
    assert summary["totals"]["accesses"] == records - 1
    assert summary["warnings"] == ["the recording is incomplete: killed"]


def test_lost_records_are_shown_and_no_violation(directory, machine):
    rings = machine.description()["traps"]
    rings[0]["lost"] = 3
    rewrite(directory, traps=rings)
    summary = ptat_parser.parse(directory).summary
    assert (summary["lost"], summary["losses"]["traps"]) == (3, 3)
    report = check(directory)
    assert report.ok and report.lost == 3
    assert not ptat_parser.validate(ptat_parser.load(directory)).ok


@pytest.mark.parametrize(
    "fields",
    [
        {"tsc": 1 << 63},
        {"tsc": 0},
        {"addr": 0xFFFF_8000_0000_0000},
        {"mm": (1 << 64) - 1},
        {"tgid": 1 << 31},
        {"tid": (1 << 32) - 1},
    ],
)
def test_values_that_no_kernel_writes_are_refused(directory, fields):
    damage(directory, 0, -1, **fields)
    with pytest.raises(BadInput, match="damaged"):
        ptat_parser.parse(directory)


def test_two_files_of_one_cpu_are_refused(directory, machine):
    rings = machine.description()["traps"]
    rewrite(directory, traps=[rings[0], rings[0]])
    with pytest.raises(SessionError, match="one CPU"):
        ptat_parser.parse(directory)


def test_a_damaged_file_of_a_sealed_session(machine, tmp_path):
    directory = machine.write(tmp_path / "sealed", sealed=True)
    flip(directory / "kernel" / "trap1.raw", 10)
    with pytest.raises(SessionError, match="damaged: its CRC"):
        ptat_parser.parse(directory)


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=20 * RECORD.itemsize), complete=st.booleans())
def test_any_bytes_are_parsed_or_refused(tmp_path_factory, data, complete):
    machine = trapping.TrapMachine(3, cpus=1).run(5)
    directory = machine.write(tmp_path_factory.mktemp("s") / "session")
    (directory / "kernel" / "trap0.raw").write_bytes(data)
    ring = {"cpu": 0, "file": "kernel/trap0.raw", "records": len(data) // RECORD.itemsize}
    rewrite(directory, traps=[ring], complete=complete, incomplete_reason="test")
    with contextlib.suppress(PtatError):
        ptat_parser.open(directory).misses().to_arrow()
    check(directory)


@settings(max_examples=30, deadline=None)
@given(row=st.integers(0, 20), field=st.sampled_from(RECORD.names), value=st.integers(0, 1 << 64))
def test_any_field_is_parsed_or_refused(tmp_path_factory, row, field, value):
    directory = trapping.trap_session(tmp_path_factory.mktemp("s") / "session", 3, steps=20)
    damage(directory, 0, row, **{field: value % (1 << 8 * RECORD[field].itemsize)})
    with contextlib.suppress(PtatError):
        ptat_parser.open(directory).misses().to_arrow()
    check(directory)


def test_an_empty_file_has_no_records(tmp_path):
    (tmp_path / "trap0.raw").touch()
    assert read_records(tmp_path / "trap0.raw").size == 0


# Checks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_sound_sessions(tmp_path, seed):
    directory = trapping.trap_session(tmp_path / "session", seed)
    report = check(directory)
    assert report.ok, report.first
    assert [one.name for one in report.checks] == [
        "records",
        "kernel log",
        "processes",
        "entries",
        "counts",
    ]
    assert not any(one.skipped for one in report.checks)


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({"cpu": 1}, "records", "record 5: not of CPU 0"),
        ({"flags": 1 << 15}, "records", "record 5: flags that this version does not know"),
        ({"tsc": 1}, "records", "record 5: time runs backwards"),
        ({"mm": 99}, "processes", "record 5: address space 99 is of no process in the log"),
        ({"tgid": 7}, "processes", "record 5: address space"),
        ({"entry": 16 * 512}, "entries", "record 5: its entry is not of a table"),
        ({"addr": 0x7000}, "entries", "record 5: its entry is not of a table"),
    ],
)
def test_what_does_not_hold_is_found(directory, fields, name, message):
    damage(directory, 0, 5, **fields)
    assert failed(directory)[name].startswith(message)


def test_results_that_differ_from_the_records(directory):
    path = ptat_parser.parse(directory).path / "summary.json"
    summary = json.loads(path.read_text())
    summary["totals"]["misses"] += 1
    path.write_text(json.dumps(summary))
    assert "but by the records" in failed(directory)["counts"]
