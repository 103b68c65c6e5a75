# SPDX-License-Identifier: BSD-2-Clause
"""Two sessions side by side, and what recording costs."""

import json
from pathlib import Path

import pytest
from reported import change, damage, expect, make_session, page_row, process

from ptat_host.cli import main
from ptat_host.reports import recording_cost
from ptat_host.reports.comparison import Change


@pytest.fixture
def session(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_session(Path("before"))
    return Path("before")


def other(name: str, gups: int, new: int) -> str:
    """A session in which gups has so many misses, and a process `p9` these."""
    make_session(Path(name))
    row = page_row(0, 1, 0x1000, gups) | {"comm": "gups"}
    sizes = {"4096": gups}
    processes = [
        process(1, "gups", 4711, misses=gups, pages=1, faulted=0, misses_by_page_size=sizes),
        process(9, "p9", 9, misses=new, pages=1, faulted=0, misses_by_page_size={"4096": new}),
    ]
    misses = [(n, 0) for n in range(gups)] + [(n, 1) for n in range(new)]
    change(Path(name), [row, page_row(1, 9, 0x1000, new)], misses, processes=processes)
    return name


def test_diff(session, capsys):
    assert main(["diff", "before", other("after", 40, 3)]) == 0
    expect("diff.txt", capsys.readouterr().out)


def test_diff_of_repeats_tells_chance_from_change(session, capsys):
    befores = [other(f"b{n}", misses, 7 + n) for n, misses in enumerate((100, 110, 90, 95))]
    afters = [other(f"a{n}", misses, 8 + n) for n, misses in enumerate((50, 60, 55, 40))]
    assert main(["diff", *befores, "--against", *afters, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {(one["what"], one["name"]): one for one in found["changes"]}
    gups, new = by_name["process", "gups"], by_name["process", "p9"]
    assert (gups["before"], gups["after"]) == ([100, 110, 90, 95], [50, 60, 55, 40])
    assert gups["change"] == pytest.approx(52.5 / 97.5 - 1)
    # 2 of the 70 ways to divide them are as far apart; adjusted for two processes.
    assert gups["p"] == pytest.approx(min(2 * 2 / 70, max(2 * 2 / 70, new["p"])))
    assert by_name["total", "misses"]["p"] == pytest.approx(2 / 70)
    assert by_name["total", "misses"]["significant"] is True
    assert new["significant"] is False
    assert found["warnings"] == []
    assert main(["diff", *befores, "--against", *afters]) == 0
    expect("diff-repeats.txt", capsys.readouterr().out)


def test_diff_of_too_few_repeats(session, capsys):
    names = [other(f"s{n}", 10 * n, 7) for n in range(1, 7)]
    assert main(["diff", *names[:3], "--against", *names[3:]]) == 0
    assert "no change can be significant (p is at least 0.10" in capsys.readouterr().out
    assert main(["diff", names[0], "--against", *names[3:]]) == 0
    assert "significance cannot be tested" in capsys.readouterr().out


@pytest.mark.parametrize("names", [["before"], ["before"] * 3])
def test_diff_of_who_knows_what(session, capsys, names):
    assert main(["diff", *names]) == 2
    assert "which are before, and which after?" in capsys.readouterr().err


def test_diff_of_what_cannot_be_compared(session, capsys):
    other("after", 5, 5)
    damage(Path("after"))
    description = json.loads(Path("after/session.json").read_text())
    description["board"]["granularity_bytes"] = 8
    Path("after/session.json").write_text(json.dumps(description))
    Path("after/results/summary.json").touch()
    assert main(["diff", "before", "after"]) == 0
    shown = capsys.readouterr().out
    assert "after: incomplete: " in shown
    assert "different buses" in shown


def test_what_was_not_there_before_is_new():
    assert Change("object", "x", (0,), (5,)).change is None


def test_overhead(session, capsys):
    assert main(["overhead", "before"]) == 0
    expect("overhead.txt", capsys.readouterr().out)
    assert main(["overhead", "before", "--json", "--seconds", "0.001", "--uncached-ns", "210"]) == 0
    found = json.loads(capsys.readouterr().out)
    # 107 misses, 6 faulted, 12,345 PMD reads, 9 stores
    assert found["added_s"] == pytest.approx((12_458 * 200 + 9 * 100) / 1e9)
    assert found["slowdown"] == pytest.approx(1 + 2.4925)
    assert found["trap_slowdown"] == pytest.approx(1 + 113 * 350e-6)
    assert found["touch_slowdown"] == pytest.approx(1 + 107 * 500e-6)
    assert found["step_slowdown"] == pytest.approx(1 + 107 * 1000e-6)
    assert main(["overhead", "before", "--seconds", "0"]) == 2


def test_overhead_agrees_with_what_the_paper_measured():
    """To 15 %: what a miss costs with ptat, relative to a trap, with no or one PMD read each."""
    costs = recording_cost.Costs()
    totals = {"misses": 1_000_000, "faulted": 0, "stores": 0}
    least, most = (
        one.added_s / one.trap_added_s
        for one in (
            recording_cost.estimate(totals | {"pmd_reads": reads}, costs, None)
            for reads in (0, 1_000_000)
        )
    )
    for name, ptat, trap in recording_cost.PAPER:
        measured = (ptat - 1) / (trap - 1)
        assert least / 1.15 < measured < most * 1.15, name
