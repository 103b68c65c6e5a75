# SPDX-License-Identifier: BSD-2-Clause
"""A trace beside counters: which differences are expected. Repeats: are there two kinds of runs?"""

import json
from pathlib import Path

import numpy as np
import pytest
from reported import change, make_session, page_row, process

from ptat_host import boards
from ptat_host.boards.base import RecordResult
from ptat_host.cli import main
from ptat_host.reports import repeats, trace_validation
from ptat_host.reports.repeats import Spread
from ptat_parser.checks.validation import Compared

# compared, faulted walks that the counters may have, within 1 %, words of why
ROWS = [
    (Compared(["p"], None, 9_000, 9_000, 9_000), 0, True, "equal"),
    (Compared(["p"], None, 9_000, 9_000, 8_000), 0, True, "1,000 walks were speculative"),
    (Compared(["p"], None, 8_500, 9_000, 8_000), 0, False, "500 fewer than walks: lost"),
    (Compared(["p"], None, 9_000, 9_000, 9_500), 0, False, "500 fewer than retired: lost"),
    (Compared(["p"], None, 8_000, 9_000, 9_000, untraced=1_000), 0, True, "no traced table"),
    (Compared(["p"], None, 8_000, 9_000, 9_000, foreign=1_000), 0, True, "other processes"),
    (Compared(["p"], 4096, 8_000, 9_000), 0, False, "1,000 fewer than walks: lost"),
    (Compared(["p"], 4096, 8_000, 9_000), 990, True, "990 walks ended in a fault; 10 fewer"),
    (Compared(["p"], 4096, 9_200, 9_000), 0, False, "200 more than walks"),
    (Compared(["p"], 4096, 50_400, 50_000), 0, True, "400 more than walks"),  # of a long run
    (Compared(["p"], 4096, 40, 0), 0, True, "40 more than walks"),  # of a short one
]


@pytest.mark.parametrize(("compared", "faulted", "within", "why"), ROWS)
def test_what_is_expected(compared, faulted, within, why):
    judged = trace_validation._judge(compared, faulted, 0.01)
    assert judged.within is within
    assert why in judged.why


def test_what_a_memory_controller_hides_may_be_missing():
    counted = Compared(["p"], None, 9_000, 10_000)
    for margins, within in (((0, 999), True), ((0, 500), False), ((2_000, 0), False)):
        judged = trace_validation._judge(counted, 0, 0.0001, margins)
        assert judged.within is within
    many = Compared(["p"], None, 10_000, 9_000)
    assert trace_validation._judge(many, 0, 0.0001, (999, 0)).within
    assert not trace_validation._judge(many, 0, 0.0001, (0, 999)).within


def test_errors_are_relative_to_each_counter():
    judged = trace_validation._judge(Compared(["p"], None, 9_000, 10_000, 7_500), 0, 0.01)
    assert judged.error == pytest.approx(0.1)
    assert judged.retired_error == pytest.approx(-0.2)
    nothing = trace_validation._judge(Compared(["p"], None, 0, 0, 0), 0, 0.01)
    assert (nothing.error, nothing.retired_error, nothing.within) == (None, None, True)


# Two kinds of runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 10, 40])
def test_two_kinds_of_runs_are_seen(count):
    """7.1 s or 10.5 s, as a program on NVM took that hit the cache by luck or not."""
    numbers = np.random.default_rng(count)
    slow = count // 2
    times = np.concatenate(
        [numbers.normal(7.1, 0.05, count - slow), numbers.normal(10.5, 0.1, slow)]
    )
    found = repeats.clusters(numbers.permutation(times).tolist())
    assert found
    assert found.counts == (count - slow, slow)
    assert found.means == pytest.approx((7.1, 10.5), abs=0.2)


SHAPES = {
    "normal": lambda numbers, count: numbers.normal(100, 5, count),
    "flat": lambda numbers, count: numbers.uniform(90, 110, count),
    "skewed": lambda numbers, count: numbers.lognormal(4, 0.5, count),
    "with a tail": lambda numbers, count: 100 + numbers.exponential(5, count),
    "one outlier": lambda numbers, count: np.r_[numbers.normal(100, 1, count - 1), 200],
    "equal": lambda numbers, count: np.full(count, 7.0),
    "as good as equal": lambda numbers, count: np.r_[np.full(count - 3, 1e6), np.full(3, 1e6 + 1)],
}


@pytest.mark.parametrize("count", [5, 10, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_kind_of_runs_is_not_divided(shape, count):
    """At most as often as the test's own level promises, with room for the draw's luck."""
    numbers = np.random.default_rng(count)
    divided = sum(
        repeats.clusters(SHAPES[shape](numbers, count).tolist()) is not None for _ in range(200)
    )
    assert divided <= 200 * 3 * repeats.CLUSTERS_ALPHA


def test_few_runs_are_not_divided():
    assert repeats.clusters([1, 1, 9, 9]) is None
    assert repeats.clusters([1, 1, 9, 9, 9]) is not None


# Repeats ------------------------------------------------------------------------------------------


def run(name: str, misses: int, run_s: float) -> str:
    directory = Path(name)
    make_session(directory)
    of = process(1, "gups", 4711, misses=misses, pages=1, faulted=0)
    of |= {"misses_by_page_size": {"4096": misses}, "exited_ns": 1_000 + round(run_s * 1e9)}
    row = page_row(0, 1, 0x1000, misses)
    change(directory, [row], [(n, 0) for n in range(misses)], processes=[of])
    return name


def test_repeats(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    times = [7.10, 7.12, 7.09, 10.5, 10.52, 10.49]
    names = [run(f"r{n}", 1000 + n, time) for n, time in enumerate(times)]
    assert main(["validate", "--json", *names]) == 0
    found = json.loads(capsys.readouterr().out)
    spreads = {one["name"]: one for one in found["spreads"]}
    assert spreads["misses"]["values"] == [1000, 1001, 1002, 1003, 1004, 1005]
    assert (spreads["misses"]["median"], spreads["misses"]["clusters"]) == (1002.5, None)
    assert spreads["run time, s"]["clusters"]["counts"] == [3, 3]
    assert spreads["misses in 4 KiB"]["least"] == 1000
    assert [one["session"] for one in found["runs"]] == names
    assert main(["validate", *names]) == 0
    shown = capsys.readouterr().out
    assert "! run time, s: two kinds of runs, 3 around 7.103 and 3 around 10.503" in shown
    assert "! misses" not in shown
    assert main(["validate", *names[:3]]) == 0
    assert "show from 5 on" in capsys.readouterr().out


def test_one_bad_run_is_enough(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = [run("a", 10, 1.0), run("b", 10, 1.0)]
    summary = json.loads(Path("b/results/summary.json").read_text())
    Path("b/results/summary.json").write_text(json.dumps(summary | {"lost": 1}))
    assert main(["validate", *names]) == 1
    assert "NOT right" in capsys.readouterr().out


def test_spread():
    spread = Spread("x", (90.0, 100.0, 120.0))
    assert (spread.median, spread.spread) == (100.0, 0.3)
    assert Spread("x", (0.0, 0.0)).spread is None


class PretendBoard:
    """Records a session that is there at once."""

    name = "testbed"

    def __init__(self) -> None:
        self.options = {}
        self.requests = []
        self.complete = True

    def record(self, request):
        self.requests.append(request)
        # `ptat record` describes the session; the results are those of another one.
        own = (request.session_dir / "session.json").read_text()
        (request.session_dir / "session.json.new").unlink()
        (request.session_dir / "session.json").unlink()
        make_session(request.session_dir)
        (request.session_dir / "bus.0.raw").touch()
        metadata = json.loads((request.session_dir / "session.json").read_text())
        (request.session_dir / "session.json").write_text(own)
        (request.session_dir / "session.json.new").touch()
        os_keys = {key: metadata[key] for key in ("board", "region", "kernel", "cpu")}
        return RecordResult(0, self.complete, None if self.complete else "it broke", False, os_keys)


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretend = PretendBoard()
    monkeypatch.setattr(boards, "load_all", lambda names: pretend)
    # The results are newer than the recording.
    monkeypatch.setattr("ptat_parser.load", lambda path, progress: _results(path))
    return pretend


def _results(path):
    from ptat_parser import Results
    from ptat_parser.formats.session import Session

    return Results(Session(path), json.loads((path / "results" / "summary.json").read_text()))


def test_repeat_records_and_compares(board, capsys):
    command = ["validate", "--repeat", "3", "--json", "--granularity", "8", "--no-maps"]
    assert main([*command, "--", "gups", "--bytes", "1M", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == len({one["session"] for one in found["runs"]}) == 3
    for request in board.requests:
        assert request.argv == ["gups", "--bytes", "1M", "--json"]
        assert (request.granularity_bytes, request.maps) == (8, False)


def test_repeat_ends_with_the_first_recording_that_does(board, capsys):
    board.complete = False
    assert main(["validate", "--repeat", "3", "--no-maps", "--", "gups"]) == 2
    assert len(board.requests) == 1
    assert "no more runs are made" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeat", "2"], "no command to run"),
        (["--repeat", "0", "--", "true"], "not a whole number of at least 1"),
        (["--granularity", "8"], "--granularity is an option of recording"),
        (["--no-maps", "a"], "--maps is an option of recording"),
        (["--counters", "f", "a", "b"], "--counters belong to one run"),
        (["--counters", "f", "--repeat", "2", "--", "true"], "--counters belong to one run"),
        (["--tolerance", "-1"], "not a positive number"),
    ],
)
def test_what_makes_no_sense(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", *arguments]) == 2
    assert message in capsys.readouterr().err


PERF = """
 Performance counter stats for 'gups':

            9,900      dtlb_load_misses.walk_completed
              100      dtlb_store_misses.walk_completed
                5      itlb_misses.walk_completed
            9,800      dtlb_load_misses.walk_completed_4k
              100      dtlb_store_misses.walk_completed_4k
                5      itlb_misses.walk_completed_4k
            8,000      mem_inst_retired.stlb_miss_loads
               90      mem_inst_retired.stlb_miss_stores

       1.000000000 seconds time elapsed
"""


def test_counters_of_perf(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("s", 9_990, 1.0)
    Path("perf.txt").write_text(PERF)
    assert main(["validate", "s", "--counters", "perf.txt", "--json"]) == 0
    whole, small = json.loads(capsys.readouterr().out)["compared"]
    assert (whole["walks"], whole["retired"], whole["within"]) == (10_005, 8_090, True)
    assert "1,915 walks were speculative" in whole["why"]
    assert (small["page_size_bytes"], small["walks"], small["within"]) == (4096, 9_905, True)
    assert main(["validate", "s", "--counters", "perf.txt", "--tolerance", "0.1"]) == 0
    Path("perf.txt").write_text(PERF.replace("9,900", "19,900"))
    assert main(["validate", "s", "--counters", "perf.txt"]) == 1
    assert "fewer than walks: lost" in capsys.readouterr().out
    Path("perf.txt").write_text(PERF.replace("9,900", "900"))
    assert main(["validate", "s", "--counters", "perf.txt"]) == 1
    assert "NOT right: 1 of 2 counts differ by more than 1.0%" in capsys.readouterr().out
    others = [line for line in PERF.splitlines(keepends=True) if "walk_completed" not in line]
    Path("perf.txt").write_text("".join(others))
    assert main(["validate", "s", "--counters", "perf.txt"]) == 0
    assert "have no page walks" in capsys.readouterr().out
