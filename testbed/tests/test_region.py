# SPDX-License-Identifier: BSD-2-Clause
"""What matters where the region is a device: read-backs, and that it goes away."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptat_parser.checks.capture import merged
from ptat_parser.formats.session import Session

pytestmark = pytest.mark.guest

PTAT = [sys.executable, "-m", "ptat_host.cli"]
ROUNDS = 500
# Takes a page's right to be written away and gives it back: a flush each round, and no page fault.
PROTECT = f"""
import ctypes, mmap
memory = mmap.mmap(-1, 4096)
memory[0] = 1
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
mprotect = ctypes.CDLL(None).mprotect
for _ in range({ROUNDS}):
    assert not mprotect(address, 4096, mmap.PROT_READ)
    assert not mprotect(address, 4096, mmap.PROT_READ | mmap.PROT_WRITE)
"""
GUPS = "gups --bytes 16M --updates 100K"
MISSES_AT_LEAST = 40_000
"""Of each: every other update misses, more or less, by where its pages happen to lie."""
DETACH = f"{GUPS} && echo 1 >/sys/kernel/mm/ptat/detach && {GUPS}"


def ptat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PTAT, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def summary_of(session: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((session / "results" / "summary.json").read_text())
    return summary


@pytest.mark.parametrize(
    "board", [("--granularity", "8"), ("--granularity", "64"), ("--board", "testbed-bar")]
)
def test_stores_are_pushed_before_each_flush(tmp_path: Path, board: tuple[str, ...]):
    path = tmp_path / "s"
    run = ptat("record", "-o", str(path), *board, "--readback", "--", sys.executable, "-c", PROTECT)
    assert run.returncode == 0, run.stderr
    verdict = json.loads(ptat("validate", str(path), "--json").stdout)
    assert verdict["ok"]
    assert verdict["exact"] in (True, None)  # the truth of testbed-bar is not known
    checked = ptat("check", str(path))
    assert checked.returncode == 0, checked.stdout

    session = Session(path)
    found = list(merged(session))
    address = np.concatenate([each.address for each in found])
    write = np.concatenate([each.write for each in found])
    readbacks = np.flatnonzero(~write & (address == session.readback_address))
    assert summary_of(path)["totals"]["readbacks"] == readbacks.size
    # The entry is that which is stored to most. After each round's first stores comes a read.
    tables = write & (address >= session.region.base + 0x10000)
    entries, times = np.unique(address[tables], return_counts=True)
    stores = np.flatnonzero(tables & (address == entries[times.argmax()]))
    assert stores.size >= 2 * ROUNDS
    assert np.unique(np.searchsorted(stores, readbacks)).size >= ROUNDS


def test_nothing_is_read_back_unasked(tmp_path: Path):
    session = tmp_path / "s"
    assert ptat("record", "-o", str(session), "--", sys.executable, "-c", PROTECT).returncode == 0
    assert ptat("check", str(session)).returncode == 0
    assert summary_of(session)["totals"]["readbacks"] == 0


def test_stores_to_a_device_are_read_back_unasked(tmp_path: Path):
    session = tmp_path / "s"
    record = ("record", "-o", str(session), "--board", "testbed-bar")
    assert ptat(*record, "--", sys.executable, "-c", PROTECT).returncode == 0
    assert ptat("check", str(session)).returncode == 0
    assert summary_of(session)["totals"]["readbacks"] > ROUNDS


def test_a_lost_region_is_reported(tmp_path: Path):
    session = tmp_path / "s"
    run = ptat("record", "-o", str(session), "--", "sh", "-c", DETACH)
    assert run.returncode == 2, run.stderr
    assert Session(session).command.exit_status == 0  # the command went on
    verdict = json.loads(ptat("validate", str(session), "--json").stdout)
    assert not verdict["ok"]
    # What came before is right all the same, and what is missing is known: it walked other tables.
    assert verdict["matched"] > MISSES_AT_LEAST
    assert MISSES_AT_LEAST < verdict["missing"] <= verdict["outside_region"]
    assert (verdict["extra"], verdict["wrong_page"], verdict["unexplained"]) == (0, 0, 0)
    assert "the region was lost" in ptat("report", str(session)).stdout
    assert ptat("report", "--strict", str(session)).returncode == 1
