# SPDX-License-Identifier: BSD-2-Clause
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

PARSER = Path(__file__).parents[1]
DOCS = PARSER.parent / "docs"


def load_faults():
    spec = importlib.util.spec_from_file_location("faults", PARSER / "faults.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


faults = load_faults()
DOCUMENTED = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (DOCS / "faults.md").read_text(), re.M))


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_verdict_is_the_documented_one(fault):
    (row,) = faults.run((fault,), 1)
    assert row["rounds"] == len(faults.MACHINES)
    assert set(row["verdict"].split(" or ")) <= set(DOCUMENTED[fault.name].split(" or "))


def test_every_documented_fault_is_inflicted():
    assert {"fault"} | {fault.name for fault in faults.FAULTS} == set(DOCUMENTED)


@pytest.mark.parametrize("what", ["missing", "extra", "page", "tgid", "time"])
def test_a_wrong_result_is_noticed(tmp_path, monkeypatch, what):
    """The oracle has to be one: results that are wrong in one miss."""
    base = faults.synthetic_base(tmp_path / "s", 3, {})
    true = {name: getattr(base, name) for name in ("ticks", "mm", "va", "end", "size", "tgid")}
    assert faults.judge(base, base.path, salvage=False).verdict == faults.EXACT
    if what == "missing":
        for name, column in true.items():
            setattr(base, name, np.concatenate([column[:1], column]))
    elif what == "extra":
        for name, column in true.items():
            setattr(base, name, column[1:])
    elif what == "page":
        base.end = base.end + (base.ticks == base.ticks[5]) * base.va.dtype.type(4096)
        base.va = base.va + (base.ticks == base.ticks[5]) * base.va.dtype.type(4096)
    elif what == "tgid":
        base.tgid = base.tgid + (base.ticks == base.ticks[5])
    else:
        base.ticks = base.ticks + base.ticks.dtype.type(1) * (base.ticks == base.ticks[5])
    assert faults.judge(base, base.path, salvage=False).verdict == faults.WRONG
