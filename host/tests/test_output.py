# SPDX-License-Identifier: BSD-2-Clause
"""What the commands print for a small session, word by word.

``make golden`` accepts the present output.
"""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reported import PAGES, damage, expect, hide, make_session, write_summary

from ptat_host import cli, console
from ptat_host.cli import main
from ptat_host.commands.misses import EXPORT_FORMATS
from ptat_host.reports import session_report, trace_text
from ptat_parser import Misses, Results, Trace, Validation
from ptat_parser.checks.validation import Compared
from ptat_parser.formats.session import Session
from ptat_parser.results.export import FORMATS


@pytest.fixture
def session(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_session(Path("ptat-sessions/20261121T112233Z-gups"))
    return Path("ptat-sessions/20261121T112233Z-gups")


def test_report(session, capsys):
    assert main(["report"]) == 0
    expect("report.txt", capsys.readouterr().out)


def test_report_of_a_damaged_session(session, capsys):
    damage(session)
    assert main(["report", str(session), "--top", "1"]) == 0
    expect("report-damaged.txt", capsys.readouterr().out)


def test_report_of_a_session_behind_a_memory_controller(session, capsys):
    hide(session)
    assert main(["report", str(session)]) == 0
    text = capsys.readouterr().out
    expect("report-controller.txt", text)
    assert max(map(len, text.splitlines())) <= 200
    assert main(["report", "--json", str(session)]) == 0
    assert json.loads(capsys.readouterr().out)["controller"]["misses"] == {"low": 102, "high": 114}


def test_report_as_json(session, capsys):
    assert main(["report", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    expect("report.json", json.dumps(content, indent=2) + "\n")
    assert session_report.is_whole(content)


def test_output_survives_a_small_locale(session):
    """What the locale cannot encode is escaped."""
    shown = subprocess.run(
        [sys.executable, "-m", "ptat_host.cli", "report", session],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert r"one of 2 \xd7 4 KiB" in shown.stdout


def test_strict_report_fails_on_each_kind_of_loss(session, capsys):
    path = session / "results" / "summary.json"
    whole = json.loads(path.read_text())
    assert main(["report", "--strict"]) == 0
    untraced = [whole["processes"][0], whole["processes"][1] | {"untraced_tables": 1}]
    for change in (
        {"complete": False},
        {"lost": 1},
        {"processes": untraced},
        {"unexplained": whole["unexplained"] | {"reads": 1}},
    ):
        write_summary(session, whole | change)
        assert main(["report", "--strict"]) == 1
        assert main(["report"]) == 0
    capsys.readouterr()


def test_report_fits_a_terminal(session):
    """80 columns cut nothing off."""
    content = session_report.summarise(Results(Session(session), summary_of(session)), top=10)
    lines = console.plain(session_report.render(content)).splitlines()
    assert max(map(len, lines)) <= 80


def summary_of(session: Path) -> dict:
    return json.loads((session / "results" / "summary.json").read_text())


def test_hot_share():
    misses = np.array([1, 1, 1, 1, 96])
    assert session_report.hot_share(misses, 5) == 0.96
    assert session_report.hot_share(misses, 20) == 0.96
    assert session_report.hot_share(misses, 25) == 0.97
    assert session_report.hot_share(misses, 100) == 1.0
    assert session_report.hot_share(misses[:0], 5) is None


def test_script(session, capfdbinary):
    assert main(["script", "--limit", "12"]) == 0
    expect("script.txt", capfdbinary.readouterr().out.decode())


def test_script_prints_every_miss_once(session, capfdbinary):
    assert main(["script"]) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()[1:]
    by_page: dict[tuple[str, str], int] = {}
    for line in lines:
        _, _, tgid, vaddr, _, _, _ = line.split()
        by_page[tgid, vaddr] = by_page.get((tgid, vaddr), 0) + 1
    assert by_page == {(str(p[2]), f"0x{p[4]:012x}"): p[7] for p in PAGES if p[7]}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 107, 1000])
def test_script_stops_at_the_limit_in_any_batch(session, limit):
    class Batched(Misses):
        def stored(self):
            for batch in super().stored():
                for start in range(0, batch.num_rows, 2):
                    yield batch.slice(start, 2)

    out = io.BytesIO()
    misses = Trace(Results(Session(session), summary_of(session))).misses()
    trace_text.write(Batched(**vars(misses)), out, limit=limit)
    assert out.getvalue().count(b"\n") == 1 + min(limit, 107)


def test_script_as_json_of_a_process_a_time_and_addresses(session, capfdbinary):
    (session / "kernel").mkdir()
    mapped = {"kind": "map", "ns": 1, "pid": 4711, "start": 0x555500000000, "bytes": 4096}
    mapped |= {"offset": 0, "prot": 3, "flags": 2, "name": '/a\xff"b'}
    clock = {"kind": "clock", "tsc": 0, "ns": 0}
    text = json.dumps(clock) + "\n" + json.dumps(mapped) + "\n"
    (session / "kernel" / "maps.jsonl").write_text(text)
    wanted = ["--pid", "4711", "--address", "555500000000-600000000000"]
    assert main(["script", "--json", *wanted]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line.keys() for line in lines] == [lines[0].keys()] * 5
    same = {key: value for key, value in lines[0].items() if key != "time_ns"}
    assert same == {
        "comm": "gups",
        "tgid": 4711,
        "vaddr": 0x555500000000,
        "page_size_bytes": 4096,
        "span": 1,
        "object": 'a\udcff"b',
    }
    times = [line["time_ns"] for line in lines]
    start, stop = (f"{time / 1e9:.9f}" for time in (times[1], times[3]))
    arguments = ["--pid", "4711", "--object", 'a?"b', "--from", start, "--to", stop]
    assert main(["script", *arguments]) == 0
    shown = capfdbinary.readouterr().out.decode().splitlines()
    assert [line.split()[0] for line in shown[1:]] == [f"{t / 1e9:.9f}" for t in times[1:3]]
    assert shown[1].endswith(' a?"b')
    assert main(["script", "--json", "--pid", "4712", "--limit", "1"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["comm"] == "my [b]sh\x1b"


def test_script_ends_quietly_when_its_reader_has_enough(session, tmp_path):
    """More than a pipe holds, to a reader that takes one line."""
    misses = session / "results" / "misses" / "part-00000.parquet"
    count = 1 << 16
    columns = {"time": np.arange(count), "page": np.zeros(count, np.uint32)}
    pq.write_table(pa.table(columns), misses)
    script_process = subprocess.Popen(
        [sys.executable, "-m", "ptat_host.cli", "script", session],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert script_process.stdout.readline().startswith(b"#")
    script_process.stdout.close()
    assert script_process.stderr.read() == b""
    assert script_process.wait() == 141


EXACT = Validation(
    exact=True,
    truth_misses=107,
    trace_misses=107,
    matched=107,
    counter_walks=107,
    relative_error=0.0,
    compared=[
        Compared(["gups 4711"], None, 100, 103, 103, untraced=2, foreign=1),
        Compared(["gups 4711"], 4096, 80, 80, 80),
        Compared(["my [b]sh\x1b 4712", "sh 4713"], None, 7, 7),
    ],
)
WRONG = Validation(
    ok=False,
    exact=False,
    truth_misses=107,
    trace_misses=106,
    matched=105,
    missing=2,
    wrong_page=1,
    lost=1,
    counter_walks=30_108,
    relative_error=1 - 106 / 30_108,
    compared=[Compared(["gups 4711"], None, 106, 30_108, 90)],
    notes=["a note"],
    examples=[
        {
            "kind": "wrong_page",
            "time_ns": 5,
            "trace": {"mm": 1, "vaddr": 4096},
            "truth": {"va": 8192, "shift": 12},
        }
    ],
)
SWAPPED = replace(
    EXACT, ok=False, exact=False, matched=106, missing=1, extra=1, fault_label_errors=2, swapped=1
)
BOUNDED = replace(
    EXACT,
    exact=False,
    truth_misses=110,
    matched=87,
    missing=23,
    extra=20,
    inferred=20,
    inferred_wrong=0,
    bound=(105, 114),
    compared=[Compared(["gups 4711"], None, 107, 110, 110)],
    examples=WRONG.examples,
)
OUTSIDE = replace(BOUNDED, ok=False, truth_misses=115)
UNTOLD = Validation(trace_misses=107, explained=107, kernel_reads=0, notes=["no truth"])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("exact", EXACT),
        ("wrong", WRONG),
        ("swapped", SWAPPED),
        ("untold", UNTOLD),
        ("bounded", BOUNDED),
        ("outside", OUTSIDE),
    ],
)
def test_validate(session, monkeypatch, capsys, name, found):
    monkeypatch.setattr("ptat_parser.validate", lambda results, progress: found)
    assert main(["validate"]) == (0 if found.ok else 1)
    expect(f"validate-{name}.txt", capsys.readouterr().out)
    assert main(["validate", "--json"]) == (0 if found.ok else 1)
    assert json.loads(capsys.readouterr().out)["matched"] == found.matched


def test_export(session, capfdbinary, tmp_path):
    assert main(["export", "--format", "csv", "--from", "2", "--to", "4.5", "--pid", "4711"]) == 0
    header, *rows = capfdbinary.readouterr().out.splitlines()
    assert header == b'"time","tgid","comm","vaddr","page_size_bytes","span","mm","page"'
    assert [row.split(b",")[0] for row in rows] == [b"2000000019", b"3000000026", b"4000000033"]
    address = ["--address", "7f0000000fff-7f0000001001"]
    assert main(["export", "--format", "lackey", *address, "-o", str(tmp_path / "f")]) == 0
    found = set((tmp_path / "f").read_text().splitlines())
    assert found == {"==4711== Command: gups", " L 7f0000000000,1", " L 7f0000001000,1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "arrow"], "arrow cannot go to stdout here"),
        (["--format", "xls"], "invalid choice: 'xls'"),
        (["--from", "nan"], "'nan' is not a time"),
        (["--address", "7f00"], "'7f00' is not a range of addresses"),
        (["-o", "no/such/file"], "no/such/file: cannot be written"),
    ],
)
def test_export_that_cannot_be(session, capsys, arguments, message):
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_every_export_format_is_offered():
    assert list(EXPORT_FORMATS) == list(FORMATS)


def test_newest_session_is_the_default(session, capsys):
    newer = Path("ptat-sessions/20200101T000000Z-older-name")
    make_session(newer)
    os.utime(session / "session.json", ns=(1, 1))
    assert main(["report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["session"] == str(newer)


def test_help_is_that_of_the_command(capsys):
    assert main(["help"]) == 0
    assert "hugepages" in capsys.readouterr().out
    assert main(["help", "script"]) == 0
    assert "--object GLOB" in capsys.readouterr().out
    assert main(["help", "scribble"]) == 2
    assert "hugepages" in capsys.readouterr().err


def test_completion_in_bash(tmp_path, capsys):
    """Bash itself is asked what it would offer."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "ptat.bash"
    script.write_text(capsys.readouterr().out)
    ask = """
    source "$1"; shift
    COMP_WORDS=(ptat "$@"); COMP_CWORD=$#
    $(complete -p ptat | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    for words, expected in ((["hug"], "hugepages"), (["report", "--ht"], "--html")):
        command = ["bash", "-c", ask, "-", script, *words]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout.split() == [expected]


def test_the_commands_are_these():
    """Defaults of their options: test_defaults.py."""
    (commands,) = (a.choices for a in cli._parser()._actions if isinstance(a.choices, dict))
    assert set(commands) == {
        "doctor",
        "record",
        "parse",
        "report",
        "script",
        "top",
        "hugepages",
        "diff",
        "overhead",
        "pagesize",
        "bench-fs",
        "hunt",
        "validate",
        "check",
        "stat",
        "export",
        "calibrate",
        "completion",
        "help",
    }


def test_what_options_left_out_is_named():
    whole = {"children": True, "levels": "pte+pmd", "faults": {"recorded": True}}
    assert session_report._left_out(whole) == []
    part = {"children": False, "levels": "pte", "faults": {"recorded": False}}
    named = session_report._left_out(part)
    assert [option for one in named for option in re.findall(r"--[a-z-]+", one)] == [
        "--no-children",
        "--levels",
        "--no-faults",
    ]
