# SPDX-License-Identifier: BSD-2-Clause
"""What `make first-report` prints, and that compiling is shown."""

import json
import subprocess
import sys
from pathlib import Path

import numba

from ptat_parser.compiled import first_use

PROGRAM = Path(__file__).parents[1] / "first_report.py"


def test_the_figures_are_printed():
    output = subprocess.run([sys.executable, PROGRAM], check=True, capture_output=True, text=True)
    figures = json.loads(output.stdout.splitlines()[-1])
    assert set(figures) == {"cold_cpu_s", "warm_s", "compiled_functions"}
    assert 0 < figures["compiled_functions"] <= first_use.TYPICAL_FUNCTIONS
    assert figures["cold_cpu_s"] > 0
    assert figures["warm_s"] > 0


def test_each_compiled_function_is_a_step():
    @numba.njit  # without the cache, which an earlier run of this test has filled
    def new(x):
        return x + 1

    seen = []
    with first_use.shown(lambda *step: seen.append(step)):
        assert new(1) == 2
        assert new(2) == 3
    assert new(1.5) == 2.5
    assert seen == [(first_use.STEP, 1, first_use.TYPICAL_FUNCTIONS)]
