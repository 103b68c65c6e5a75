# SPDX-License-Identifier: BSD-2-Clause
import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench.py"


def test_bench_explains_what_it_made():
    """The parser's counts, and the joins' among each other, are checked by the bench itself."""
    command = [sys.executable, BENCH, "--records", "300000", "--pages", "4000"]
    output = subprocess.run(command, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    figures = json.loads(output.stdout.splitlines()[-1])
    # Twice in the run, 512 pages were touched again: a walk that faults and one that does not.
    assert figures["misses"] == 300_000 + 2 * 512
    for name in (
        "streaming",
        "streaming_aligned",
        "archive",
        "outline",
        "without_outline",
        "bound_counts",
        "counts_only",
        "bound_parquet",
        "to_parquet",
        "workers_2",
        "duckdb",
        "polars",
        "numpy",
    ):
        assert figures[name] > 0
    assert 1 < figures["bytes_per_record"] < 8
    assert 1 < figures["archive_bytes_per_record"] < 8
