# SPDX-License-Identifier: BSD-2-Clause
"""Counters of memory controllers: found in a made-up sysfs, read from what perf prints."""

import json
from pathlib import Path

import pytest
from reported import hide, make_session

from ptat_host import cli
from ptat_host.reports import counters, perf_stat, pmu, uncore
from ptat_host.reports.uncore import Memory
from ptat_parser import Validation
from ptat_parser.errors import PtatError

SKYLAKE = pmu.find("skylakex")
MERGED = """\
 Performance counter stats for 'system wide':

         1,234,567      unc_m_cas_count.rd
           234,567      unc_m_cas_count.wr
            34,567      unc_m_cas_count.rd_underfill          (49.98%)
             4,567      unc_m_wpq_read_hit                    (50.02%)

       1.002003004 seconds time elapsed
"""
SEPARATE = "".join(
    f'{{"counter-value" : "{count}.000000", "unit" : "", "event" : "{event} [uncore_imc_{unit}]",'
    ' "event-runtime" : 1002, "pcnt-running" : 100.00}\n'
    for event, count in (
        ("unc_m_cas_count.rd", 600_000),
        ("unc_m_wpq_read_hit.pch0", 5),
        ("unc_m_wpq_read_hit.pch1", 6),
    )
    for unit in range(2)
)
SCALED = """\
1.50,MiB,uncore_imc_0/cas_count_read/,1002003004,100.00,,
0.50,MiB,uncore_imc_1/cas_count_read/,1002003004,100.00,,
<not supported>,MiB,uncore_imc_0/cas_count_write/,0,100.00,,
"""


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (MERGED, Memory(1_234_567, 234_567, 34_567, 4_567)),
        (SEPARATE, Memory(reads=1_200_000, answered=22)),
        (SCALED, Memory(reads=2 << 14)),
        ("12,,cycles,1000,100.00,,\n", None),
    ],
)
def test_what_perf_prints_is_summed_up(text, memory):
    (stat,) = perf_stat.read(text, "F")
    assert uncore.of(stat) == memory


def machine(devices: Path, **pmus: list[str]) -> Path:
    """A sysfs with these PMUs and their events."""
    for name, events in pmus.items():
        (devices / name / "events").mkdir(parents=True)
        for event in events:
            (devices / name / "events" / event).write_text("event=0x04,umask=0x03\n")
    return devices


def test_the_pmus_of_memory_controllers_are_found(tmp_path):
    devices = machine(tmp_path, uncore_imc_1=[], uncore_imc_0=[], uncore_cha_0=[])
    machine(devices, uncore_imc_free_running_0=["data_read"], cpu=[])
    assert [path.name for path in uncore.units(devices)] == ["uncore_imc_0", "uncore_imc_1"]
    assert uncore.events(SKYLAKE, devices) == [
        "unc_m_cas_count.rd",
        "unc_m_cas_count.wr",
        "unc_m_cas_count.rd_underfill",
        "unc_m_wpq_read_hit",
    ]


def test_an_unknown_cpu_has_what_its_kernel_lists(tmp_path):
    listed = ["cas_count_read", "cas_count_read.scale", "clockticks"]
    devices = machine(tmp_path, uncore_imc_0=listed, uncore_imc_1=listed)
    found = ["uncore_imc_0/cas_count_read/", "uncore_imc_1/cas_count_read/"]
    assert uncore.events(None, devices) == found
    assert uncore.events(pmu.find("amdzen4"), devices) == found


@pytest.mark.parametrize(
    ("pmus", "message"),
    [
        ({}, "no counters of its memory controllers"),
        ({"uncore_imc_free_running_0": []}, "no counters of its memory controllers"),
        ({"uncore_imc": ["data_reads", "data_writes"]}, "lists data_reads, data_writes"),
        ({"uncore_imc": []}, "lists no events"),
    ],
)
def test_a_machine_without_them_says_so(tmp_path, pmus, message):
    with pytest.raises(PtatError, match=message) as error:
        uncore.events(None, machine(tmp_path, **pmus))
    assert error.value.hint


def perf_that_prints(tmp_path: Path, monkeypatch, text: str) -> None:
    (tmp_path / "printed").write_text(text)
    perf = tmp_path / "perf"
    perf.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/args; cat {tmp_path}/printed > "$5"\n')
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(counters, "PMUS", tmp_path)


def as_json(**counts: int) -> str:
    return "".join(
        json.dumps({"counter-value": f"{count}.000000", "unit": "", "event": event}) + "\n"
        for event, count in counts.items()
    )


COUNTED = {
    "unc_m_cas_count.rd": 20_000,
    "unc_m_cas_count.wr": 5_000,
    "unc_m_cas_count.rd_underfill": 4_000,
    "unc_m_wpq_read_hit": 500,
}


def test_stat_counts_for_the_whole_machine(tmp_path, monkeypatch, capsys):
    machine(tmp_path, uncore_imc_0=[])
    perf_that_prints(tmp_path, monkeypatch, as_json(**COUNTED))
    output = tmp_path / "counts.json"
    command = ["stat", "--uncore", "--cpu", "skylakex", "-o", str(output), "--", "true"]
    assert cli.main(command) == 0
    arguments = (tmp_path / "args").read_text()
    assert arguments.startswith("stat -a -j -o ")
    assert f"-e {','.join(COUNTED)} -- true" in arguments
    text = capsys.readouterr().out
    assert "20.00 %  underfill reads of all reads" in text
    assert "80.00 %  writes with an underfill read" in text
    (again,) = perf_stat.read(output.read_text(), "F")
    assert uncore.of(again) == Memory(20_000, 5_000, 4_000, 500)


def test_stat_of_a_machine_without_them(tmp_path, monkeypatch, capsys):
    perf_that_prints(tmp_path, monkeypatch, "")
    assert cli.main(["stat", "--uncore", "--", "true"]) == 2
    assert "no counters of its memory controllers" in capsys.readouterr().err
    assert cli.main(["stat", "--uncore", "--read", "x"]) == 2


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ('{"command": 1}', "line 1 is no run of ptat stat"),
        ('{"command": "x", "seconds": null, "counts": [{"event": 1}]}', "no run of ptat stat"),
        ('{"command": "x", "seconds": null, "counts": []}', "holds no counts of perf stat"),
    ],
)
def test_a_damaged_file_of_ptat_stat(text, ending):
    with pytest.raises(PtatError, match=ending):
        perf_stat.read(text, "F")


# ptat validate ------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_session(tmp_path / "s")
    found = Validation(trace_misses=107, bound=(105, 114))
    monkeypatch.setattr("ptat_parser.validate", lambda results, progress: found)
    return tmp_path / "s"


def validated(session: Path, capsys, *options: str) -> tuple[int, list[dict]]:
    status = cli.main(["validate", "--json", *options, str(session)])
    return status, json.loads(capsys.readouterr().out)["memory"]


def test_a_trace_has_at_most_what_the_controllers_counted(session, capsys):
    hide(session)
    Path("counts").write_text(as_json(**COUNTED))
    status, held = validated(session, capsys, "--counters", "counts")
    assert status == 0
    # Walks: 107 misses, 6 faulted, 12,345 PMD reads, without 23 that were inferred.
    assert [(one["trace"], one["counted"]) for one in held] == [
        (12_435 + 4_000 + 1_234, 20_000),
        (4_000, 5_000),
        (4_000, 4_000),
        (23, 500),
    ]
    assert cli.main(["validate", "--counters", "counts", str(session)]) == 0
    assert "against the memory controllers' counters" in capsys.readouterr().out


@pytest.mark.parametrize("event", COUNTED)
def test_a_trace_with_more_is_not_right(session, capsys, event):
    hide(session)
    summary = session / "results" / "summary.json"
    content = json.loads(summary.read_text())
    content["controller"]["inferred"] = 400
    summary.write_text(json.dumps(content))
    few = COUNTED | {event: COUNTED[event] // 2}
    Path("counts").write_text(as_json(**few))
    status, held = validated(session, capsys, "--counters", "counts")
    assert status == 1
    assert sum(not one["within"] for one in held) == 1


def test_a_session_may_have_them(session, capsys):
    hide(session)
    (session / "counters.json").write_text(json.dumps({"events": {}, "uncore": COUNTED}))
    status, held = validated(session, capsys)
    assert (status, len(held)) == (0, 4)
    assert cli.main(["stat", "--session", str(session)]) == 0
    assert "underfill reads of all reads" in capsys.readouterr().out


def test_a_bus_that_keeps_order_is_not_compared(session, capsys):
    Path("counts").write_text(as_json(**COUNTED))
    assert validated(session, capsys, "--counters", "counts") == (0, [])
