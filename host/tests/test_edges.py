# SPDX-License-Identifier: BSD-2-Clause
"""Sessions at the edge of what there can be, in every command that shows one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from reported import change, make_session, page_row, process

from ptat_host.cli import main

TOP = (1 << 56) - 4096  # of 57 bits
MANY = 10_000
ODD = "\ufffdp\x1b[31m\u202e[b]"
"""What the parser makes of a name that is no UTF-8, with what would control a terminal."""


def missed(mm: int, comm: str, misses: int) -> dict:
    sizes = {"4096": misses} if misses else {}
    counts = {"misses": misses, "pages": misses, "faulted": 0, "misses_by_page_size": sizes}
    return process(mm, comm, mm, **counts)


def empty(path: Path) -> None:
    change(path, [], [], processes=[])


def one_miss(path: Path) -> None:
    change(path, [page_row(0, 1, 0x7000, 1)], [(7, 0)], processes=[missed(1, "p1", 1)])


def never_missed(path: Path) -> None:
    processes = [missed(2, "idle", 0), missed(1, "p1", 1)]
    change(path, [page_row(0, 1, 0x7000, 1)], [(7, 0)], processes=processes)


def many(path: Path) -> None:
    processes = [missed(mm, f"p{mm}", 1) for mm in range(1, MANY + 1)]
    pages = [page_row(n, n + 1, 0x1000, 1) for n in range(MANY)]
    change(path, pages, [(n, n) for n in range(MANY)], processes=processes)


def odd_name(path: Path) -> None:
    row = page_row(0, 1, 0x7000, 3) | {"comm": ODD}
    change(path, [row], [(7, 0), (8, 0), (9, 0)], processes=[missed(1, ODD, 3)])


def high(path: Path) -> None:
    rows = [page_row(0, 1, TOP, 2), page_row(1, 1, TOP - (1 << 55), 1)]
    change(path, rows, [(7, 0), (8, 1), (9, 0)], processes=[missed(1, "p1", 3)])


EDGES = [empty, one_miss, never_missed, many, odd_name, high]


def add_maps(path: Path) -> None:
    """Memory below 2 MiB, and the last 4 MiB that there can be, with a name that is no UTF-8."""
    mapped = {"kind": "map", "pid": 1, "offset": 0, "prot": 3, "flags": 2, "ns": 1}
    lines = [
        {"kind": "clock", "tsc": 0, "ns": 0},
        mapped | {"start": 0, "bytes": 2 << 20, "name": "//anon"},
        mapped | {"start": (1 << 56) - (4 << 20), "bytes": 4 << 20, "name": "/a\xff\x1b"},
    ]
    (path / "kernel").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "kernel" / "maps.jsonl").write_text(text)


@pytest.fixture(params=EDGES, ids=lambda edge: edge.__name__)
def session(request, tmp_path, monkeypatch) -> tuple[Callable[[Path], None], int]:
    """The edge, in two sessions `s` and `t`, and how many misses these have."""
    monkeypatch.chdir(tmp_path)
    for name in ("s", "t"):
        make_session(Path(name))
        request.param(Path(name))
        add_maps(Path(name))
    summary = json.loads(Path("s/results/summary.json").read_text())
    return request.param, summary["totals"]["misses"]


def shown(capsys, *arguments: str) -> str:
    """What a command prints as text, which is safe for a terminal."""
    assert main(list(arguments)) == 0
    out: str = capsys.readouterr().out
    assert out and all(one.isprintable() or one == "\n" for one in out)
    assert "nan" not in out.split()
    return out


def parsed(capsys, *arguments: str) -> dict:
    """What it prints as JSON, as standard JSON."""
    assert main([*arguments, "--json"]) == 0

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found: dict = json.loads(capsys.readouterr().out, parse_constant=refuse)
    return found


def test_report(session, capsys):
    edge, misses = session
    assert f"{misses:,}" in shown(capsys, "report", "s")
    report = parsed(capsys, "report", "s")
    assert report["totals"]["misses"] == misses
    if edge is high:
        assert report["hottest_pages"][0]["vaddr"] == TOP
        assert f"{TOP:#x}" in shown(capsys, "report", "s")
    if edge is many:
        assert f"and {MANY - 20} more" in shown(capsys, "report", "s")
    if edge is never_missed:
        assert "idle" not in shown(capsys, "report", "s")


def test_html(session, capsys):
    """In a browser: test_html."""
    assert main(["report", "s", "--html", "s.html"]) == 0
    page = Path("s.html").read_text(encoding="utf-8")
    assert len(page) < 2 << 20
    assert "\x1b" not in page and "NaN" not in page.split("<script>")[0]


def test_validate(session, capsys):
    _, misses = session
    text = shown(capsys, "validate", "s")
    assert "right, as far as it can be checked without a truth" in text
    assert parsed(capsys, "validate", "s")["trace_misses"] == misses
    both = parsed(capsys, "validate", "s", "t")
    spreads = {one["name"]: one for one in both["spreads"]}
    assert spreads["misses"]["values"] == [misses, misses]
    assert spreads["misses"]["spread"] == (0.0 if misses else None)
    assert "misses of idle" not in spreads
    shown(capsys, "validate", "s", "t")


def test_top(session, capsys):
    edge, misses = session
    view = parsed(capsys, "top", "s", "--once")
    assert (view["state"], view["total"]) == ("ended", misses)
    assert sum(one["total"] for one in view["processes"]) == min(misses, 10 if edge is many else 9)
    shown(capsys, "top", "s", "--once")


def test_diff(session, capsys):
    _, misses = session
    found = parsed(capsys, "diff", "s", "t")
    assert found["changes"][0]["before"] == [misses]
    assert all(one["change"] in (0.0, None) for one in found["changes"])
    assert all(one["p"] is None for one in found["changes"])
    shown(capsys, "diff", "s", "t")
    repeats = parsed(capsys, "diff", "s", "t", "--against", "t", "s")["changes"]
    assert all(one["p"] in (1.0, None) for one in repeats)
    shown(capsys, "diff", "s", "t", "--against", "t", "s")


def test_hugepages(session, capsys):
    edge, _ = session
    found = parsed(capsys, "hugepages", "s")
    names = {one["name"] for one in found["candidates"]}
    # One page of 10,000 is too little to look at; the file at the end of all addresses is not.
    expected = {empty: set(), many: set(), high: {"a\udcff\x1b"}}
    assert names == expected.get(edge, {"anonymous"})
    for one in found["candidates"]:
        assert 0 <= one["saved_least"] <= one["saved_most"] <= 1
    shown(capsys, "hugepages", "s")
