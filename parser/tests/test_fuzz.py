# SPDX-License-Identifier: BSD-2-Clause
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz.py"


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed (it has no wheel for this Python): pip install 'ptat[fuzz]'",
)
@pytest.mark.parametrize("target", ["blocks", "archive", "ring-buffer"])
def test_a_few_inputs_find_nothing(target):
    done = subprocess.run(
        [sys.executable, FUZZ, "--inputs", "800", "--only", target], capture_output=True, text=True
    )
    (row,) = json.loads(done.stdout)["rows"]
    assert "bug" not in row, row
    assert row["inputs"] == 800, done.stderr
