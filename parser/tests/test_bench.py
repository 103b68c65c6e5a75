# SPDX-License-Identifier: BSD-2-Clause
import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench.py"


def test_bench_reports_what_it_made():
    command = [sys.executable, BENCH, "--records", "5000", "--megabytes", "4"]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    pages = 4 << 20 >> 12
    assert figures["misses"] == 5000 + pages
    assert (figures["lost"], figures["unexplained"]) == (0, 0)
    assert figures["records_per_s"] > 0
    assert figures["peak_rss_bytes"] < 2 << 30
