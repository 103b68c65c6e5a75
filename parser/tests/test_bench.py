# SPDX-License-Identifier: BSD-2-Clause
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench as parser_bench
from capture_model import Model

BENCH = Path(__file__).parent.parent / "bench.py"


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCH, *arguments], capture_output=True, text=True)


def test_bench_explains_what_it_made():
    """The parser's counts, and the joins' among each other, are checked by the bench itself."""
    output = bench("--records", "300000", "--pages", "4000", "--rounds", "2")
    assert output.returncode == 0, output.stderr
    figures = json.loads(output.stdout.splitlines()[-1])
    # Twice in the run, 512 pages were touched again: a walk that faults and one that does not.
    assert figures["misses"] == 300_000 + 2 * 512
    for name in (
        "streaming",
        "archive",
        "counts_only",
        "counts_raw",
        "to_parquet",
        "workers_2",
        "duckdb",
        "polars",
        "numpy",
    ):
        assert figures[name] > 0
    for name, ratio in figures["ratios"].items():
        assert ratio == pytest.approx(sum(figures["rounds"][name]) / 2, abs=0.011)
    assert 1 < figures["bytes_per_record"] < 8
    assert 1 < figures["archive_bytes_per_record"] < 8
    assert 50 < figures["peak_mib"] < 1000


def test_a_session_is_measured_and_stays_as_it_is(tmp_path):
    session = Model(100_000, pages=2000).write(tmp_path / "s")
    there = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    output = bench("--session", session, "--rounds", "1")
    assert output.returncode == 0, output.stderr
    figures = json.loads(output.stdout.splitlines()[-1])
    assert figures["records"] > figures["misses"] > 100_000
    assert figures["ratios"]["workers_of_one"] == pytest.approx(
        figures["workers_2"] / figures["to_parquet"], abs=0.01
    )
    assert "numpy" not in figures
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == there
    output = bench("--session", session, "--rounds", "0")
    assert output.returncode == 2
    assert "--rounds" in output.stderr
    output = bench("--session", session, "--keep", tmp_path / "other")
    assert output.returncode == 2
    assert "--keep" in output.stderr
    output = bench("--records", "0")
    assert output.returncode == 2
    assert "--records" in output.stderr
    (session / "bus.0.raw").unlink()
    output = bench("--session", session)
    assert output.returncode == 2
    assert "--no-archive" in output.stderr


@pytest.mark.parametrize(
    ("free_bytes", "least", "most"),
    [(0, 0, 0), (20 << 20, 1 << 20, 1 << 20), (1 << 50, 1 << 20, parser_bench.RECORDS)],
)
def test_a_capture_is_as_long_as_the_disk_allows(tmp_path, monkeypatch, free_bytes, least, most):
    monkeypatch.setattr(parser_bench, "MEMORY_LEFT_BYTES", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    assert least <= parser_bench.room_for(tmp_path) <= most


def test_without_room_for_a_capture_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(parser_bench, "MEMORY_LEFT_BYTES", 1 << 60)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--keep", str(tmp_path / "s")])
    with pytest.raises(SystemExit, match="room for 0 records only: make room, or"):
        parser_bench.main()
