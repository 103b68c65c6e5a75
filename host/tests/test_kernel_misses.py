# SPDX-License-Identifier: BSD-2-Clause
"""Kernel code's misses as they are shown: of a small session, and of perf's samples."""

import gzip
import io
import json
import struct
from pathlib import Path

import pytest
from reported import expect, make_session

from ptat_host.cli import main
from ptat_host.reports import kernel_profile, perf_script
from ptat_parser.errors import BadInput
from ptat_parser.formats import kernel_misses as log

GRAPH = Path(__file__).parent / "data" / "perf_script_graph.txt"
SYSTEM_MAP = """\
ffffffff81000000 T _stext
ffffffff81000100 T vfs_write
ffffffff81000200 t ext4_file_write_iter
ffffffff81000300 T copy_from_user
ffffffff81600040 T entry_SYSCALL_64
"""
ENTRY, WRITE, EXT4, COPY = 0xFFFFFFFF81600060, 0xFFFFFFFF81000110, 0xFFFFFFFF81000204, 0x81000300
PGD = 77


def record(kind: int, *numbers: int) -> bytes:
    if kind == log.Kind.PLACE:
        return struct.pack("<2I3Q", kind, *numbers, 0)
    place, cause, va, pgd = numbers
    return struct.pack("<4BI3Q", kind, cause, 12, 0, place, 1000 + place, va, pgd)


@pytest.fixture
def session(tmp_path, monkeypatch) -> Path:
    """Misses under entry > write > ext4, in ext4 and in the copy; another process's in write."""
    directory = tmp_path / "s"
    make_session(directory)
    monkeypatch.setattr(kernel_profile, "read_kernel_log", lambda path: None)
    monkeypatch.setattr(kernel_profile, "traced_spaces", lambda tables: {PGD})
    copy = (0xFFFFFFFF << 32) | COPY
    records = [
        *(
            record(log.Kind.PLACE, 1, 0, ENTRY),
            record(log.Kind.PLACE, 2, 1, WRITE),
        ),
        *(
            record(log.Kind.PLACE, 3, 2, EXT4),
            record(log.Kind.PLACE, 4, 3, copy + 8),
        ),
        *[record(log.Kind.MISS, 4, 0, 0x7F0000000000, PGD)] * 5,
        *[record(log.Kind.MISS, 4, 1, 0xFFFF888000000000, PGD)] * 2,
        *[record(log.Kind.MISS, 3, 2, EXT4, PGD)] * 1,
        record(log.Kind.PLACE, 5, 0, WRITE),
        *[record(log.Kind.MISS, 5, 0, 0xFFFF888000000000, PGD + 1)] * 4,
    ]
    with gzip.open(directory / log.FILE, "wb") as file:
        file.write(log.HEADER + b"".join(records))
        file.write(struct.pack("<2IQ16x", log.Kind.END, 0, 12))
    with gzip.open(directory / log.FUNCTIONS, "wt") as file:
        file.write(SYSTEM_MAP)
    return directory


def test_report(session, capsys, tmp_path):
    folded = tmp_path / "folded"
    assert main(["report", "--kernel", str(session), "--folded", str(folded)]) == 0
    expect("report-kernel.txt", capsys.readouterr().out)
    expect("report-kernel.folded", folded.read_text())


def test_report_as_json(session, capsys):
    assert main(["report", "--kernel", "--json", "--top", "1", str(session)]) == 0
    expect("report-kernel.json", json.dumps(json.loads(capsys.readouterr().out), indent=2) + "\n")


def test_everyone(session, capsys):
    assert main(["report", "--kernel", "--all", "--json", str(session)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["misses"], report["others"]) == (12, 0)
    # Of both chains that it is in, each miss once.
    by_name = {one["name"]: one for one in report["functions"]}
    assert by_name["vfs_write"]["with_callees"] == 12
    assert by_name["vfs_write"]["misses"] == 4


def test_windows(session):
    first, second = kernel_profile.in_windows(session, [(0, 1003), (1004, 1004)])
    assert sum(first.misses.values()) == 1
    assert sum(second.misses.values()) == 7


def test_a_cut_record_is_told(session, capsys):
    path = session / log.FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["report", "--kernel", "--strict", str(session)]) == 1
    assert "truncated" in capsys.readouterr().out


def test_a_session_without(session, capsys):
    (session / log.FILE).unlink()
    assert main(["report", "--kernel", str(session)]) == 2
    assert "ptat record --kernel-misses yes" in capsys.readouterr().err


def test_perf(capsys):
    assert main(["report", "--kernel", "--read", str(GRAPH)]) == 0
    expect("report-kernel-perf.txt", capsys.readouterr().out.replace(str(GRAPH), "perf.txt"))


def read(text: str) -> dict[tuple[tuple[str, ...], str], int]:
    profile = perf_script.read(io.StringIO(text, newline="\n"), "f")
    return {(chain, event): misses for (chain, event, _), misses in profile.misses.items()}


@pytest.mark.parametrize(
    "line",
    [
        "gups 42 [000] 5.123456: 7 dTLB-load-misses: ffffffff81000010 vfs_write+0x10 ([kernel])",
        "gups 42 5.123456789:  7 dTLB-load-misses:k:  ffffffff81000010 vfs_write+0x10 (/x/vmlinux)",
        "gups 42/43 [012] 5.123456: 7 dTLB-load-misses: ffffffff81000010 vfs_write ([kernel])",
        "a b 42 [000] d..1. 5.123456: 7 dTLB-load-misses:ppp: ffffffff81000010 vfs_write+0x1 (k)",
        "gups 42 7 dTLB-load-misses: 7fff00001000 ffffffff81000010 vfs_write+0x10 ([kernel])",
    ],
)
def test_versions_of_perf_script(line):
    assert read(line + "\n") == {(("vfs_write",), "dTLB-load-misses"): 7}


def test_samples_without_a_period_count_once():
    line = "gups 42 5.1: dTLB-load-misses: ffffffff81000010 vfs_write+0x10 ([kernel])\n"
    assert read(line * 3) == {(("vfs_write",), "dTLB-load-misses"): 3}


def test_samples_without_an_instruction_are_left_out_and_told():
    """As perf prints one whose stack it could not read."""
    text = "gups 42 5.1: 7 dTLB-load-misses: \n\n" + GRAPH.read_text()
    profile = perf_script.read(iter(text.splitlines(keepends=True)), "text")
    assert profile.misses == perf_script.read(iter(GRAPH.open()), "text").misses
    assert "1 samples without an instruction are left out" in profile.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GRAPH.read_text()[:-1], "line 23: cut off in the call chain of the sample in line 21"),
        (GRAPH.read_text()[:300], "line 8: cut off"),
        ("", "no sample of a TLB event"),
        ("hello\n", "line 1: not a sample"),
        ("gups 42 5.1: 7 cycles: ffffffff81000010 f+0x10 ([k])\n", "there are: cycles"),
        ("gups 42 5.1: 7 dTLB-load-misses:\n\n", "no sample has an instruction"),
        ("gups 42 5.1: 7 dTLB-load-misses:\n\tvfs_write\n\n", "line 2: not a frame"),
    ],
)
def test_what_is_no_perf_script_is_told(text, problem):
    with pytest.raises(BadInput, match=problem):
        read(text)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--all"], "add --kernel"),
        (["--kernel", "--html", "f"], "--kernel has no HTML"),
        (["--kernel", "--read", "f", "--all"], "--read does not use a session"),
    ],
)
def test_options_that_make_no_sense(options, problem, capsys):
    assert main(["report", *options]) == 2
    assert problem in capsys.readouterr().err
