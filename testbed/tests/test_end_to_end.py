# SPDX-License-Identifier: BSD-2-Clause
"""Recordings that cannot be complete, and that the reports say so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.guest

PTAT = [sys.executable, "-m", "ptat_host.cli"]


def ptat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PTAT, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def recorded(session: Path, options: tuple[str, ...], *command: str) -> dict[str, Any]:
    ptat("record", "-o", str(session), "--granularity", "8", *options, "--", *command)
    validated = ptat("validate", str(session), "--json")
    assert validated.returncode == 1, validated.stderr
    verdict: dict[str, Any] = json.loads(validated.stdout)
    assert not verdict["exact"]
    # What is in the trace is right all the same.
    assert (verdict["wrong_page"], verdict["unexplained"]) == (0, 0)
    return verdict


def test_region_too_small(tmp_path):
    session = tmp_path / "s"
    verdict = recorded(session, ("--region", "256K"), "seqpage", "--bytes", "128M")
    # 48 tables' worth of region (64 pages, 16 of them markers) for 64 tables.
    assert verdict["outside_region"] > 8192
    assert (verdict["lost"], verdict["extra"]) == (0, 0)
    text = ptat("report", str(session)).stdout
    assert "the region was full" in text
    assert "record with --region 512K" in text


def test_buffer_that_overflows(tmp_path):
    session = tmp_path / "s"
    # Far less leaves the buffer than the slowest machine brings.
    verdict = recorded(
        session, ("--buffer", "256:10000"), "gups", "--bytes", "64M", "--updates", "200K"
    )
    assert verdict["lost"] > 0
    assert verdict["missing"] > 0
    # Which walks faulted is not known where the stores behind them are lost: it says where.
    assert verdict["extra"] <= verdict["fault_label_errors"]
    gaps = json.loads((session / "results" / "summary.json").read_text())["gaps"]
    for example in verdict["examples"]:
        at_ns = example["time_ns"]
        in_gap = any(gap["from_ns"] <= at_ns <= gap["to_ns"] for gap in gaps)
        assert in_gap, example
    assert not json.loads((session / "session.json").read_text())["complete"]
    assert f"{verdict['lost']:,}" in ptat("report", str(session)).stdout
    assert ptat("report", "--strict", str(session)).returncode == 1
