# SPDX-License-Identifier: BSD-2-Clause
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fuzz

FUZZ = Path(__file__).parents[1] / "fuzz.py"


def test_edits_of_a_log_change_fields_only(tmp_path):
    target = fuzz.LogFields(lambda _: None)
    target.prepare(tmp_path)
    log = target.edited(b"")
    assert log == (target.path / target.file).read_bytes()
    one, other = target.place(2, 1), target.place(3, 0)
    number = int.from_bytes(log[other], "little")
    edits = np.array([(2, 1, 3, 0, 5), (3, 0, 0, 0, -1)], fuzz.EDIT).tobytes()
    edited = bytearray(target.edited(edits + b"rest"))
    assert edited[one] == (number + 5).to_bytes(one.stop - one.start, "little")
    assert set(edited[other]) == {255}
    edited[one], edited[other] = log[one], log[other]
    assert edited == log


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
