# SPDX-License-Identifier: BSD-2-Clause
"""TLB misses that trap: the boards `testbed-trap` and, in a guest that traces itself, `trap`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_parser.formats.traps import Flag, read_records
from ptat_parser.results.pipeline import parse
from ptat_testbed.boards import guest_run, trap
from ptat_testbed.guest import qemu
from ptat_testbed.guest.qemu import MachineConfig
from ptat_testbed.suites import check_trap
from ptat_testbed.suites.check_trap import Access, flip, is_poisoned, walks

PTAT = [sys.executable, "-m", "ptat_host.cli"]
POISONED = flip(0x8000_0000_1234_5067)
SMALL_S = 900
"""What the small check may take on a busy machine."""


def test_an_exchange_is_no_walk():
    valid = flip(POISONED)
    log = [
        Access(False, 0, 7, POISONED),  # the walk
        Access(False, 0, 7, POISONED),
        Access(True, 0, 7, valid),  # the handler makes the entry valid
        Access(False, 0, 7, valid),  # the walk of the access
        Access(False, 0, 7, valid),
        Access(True, 0, 7, POISONED),
        Access(False, 1, 7, 0),
    ]
    found = walks(log)
    assert [walk.value for walk in found[0]] == [POISONED, valid]
    assert [walk.value for walk in found[1]] == [0]


def test_what_looks_poisoned():
    assert is_poisoned(POISONED)
    assert not is_poisoned(flip(POISONED))
    assert not is_poisoned(0)
    assert not is_poisoned(0x120)  # PROT_NONE: accessed and global
    assert not is_poisoned(0x7FF_FFFF_FFFF_F000)  # swapped out


def test_a_walk_without_a_record_is_a_mismatch():
    read = [Access(False, 0, 7, POISONED), Access(False, 0, 8, POISONED)]
    records = np.zeros(1, [("entry", "<u4"), ("flags", "<u2")])
    records["entry"] = 7
    result = check_trap.Result()
    check_trap.compare(read, records, range(0), result)
    assert (result.records, result.walks_poisoned, result.order_mismatches) == (1, 2, 1)


def test_kvm_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(trap, "KVM", tmp_path / "kvm")
    board = trap.KvmBoard()
    missing = next(check for check in board.check() if check.name == "KVM")
    assert missing.ok is None
    assert missing.hint == trap.KVM_HINT
    with pytest.raises(BoardError, match="kvm is missing") as error:
        board.machine(None)
    assert "--board trap" in error.value.hint


def test_kvm_needs_nested_paging(monkeypatch, tmp_path):
    kvm, ept = tmp_path / "kvm", tmp_path / "ept"
    kvm.touch()
    monkeypatch.setattr(trap, "KVM", kvm)
    monkeypatch.setattr(trap, "NESTED_PAGING", (ept, tmp_path / "npt"))
    with pytest.raises(BoardError, match="nested paging"):
        trap.KvmBoard().machine(None)
    ept.write_text("N\n")
    assert not trap.nested_paging()
    ept.write_text("Y\n")
    assert trap.nested_paging()
    assert all(check.ok for check in trap.KvmBoard().check()[:2])


def test_kvm_pins_what_it_runs_on_this_cpu(monkeypatch, tmp_path):
    kvm, ept, free = tmp_path / "kvm", tmp_path / "ept", tmp_path / "free"
    kvm.touch()
    ept.write_text("Y\n")
    free.write_text("4\n")
    monkeypatch.setattr(trap, "KVM", kvm)
    monkeypatch.setattr(trap, "NESTED_PAGING", (ept,))
    monkeypatch.setattr(trap, "FREE_HUGE_PAGES", free)
    machine, begin = trap.KvmBoard().machine(MachineConfig(8 << 20, 1, append=["ptat=1M,trap"]))
    assert machine.kvm
    assert machine.hugetlb
    assert machine.append == ["ptat=1M,trap", "pti=off"]
    arguments = qemu.arguments(machine, "/ram", 3, [])
    assert arguments[arguments.index("-accel") + 1] == "kvm"
    assert arguments[arguments.index("-cpu") + 1].startswith("host")
    pinned: list[list[int]] = []
    begin(SimpleNamespace(pin=pinned.append))
    assert len(pinned[0]) == 1
    small = trap.KvmBoard().machine(MachineConfig(16 << 20, 1))[0]
    assert not small.hugetlb
    assert "memory-backend-ram,id=ram,size=16777216" in qemu.arguments(small, "/ram", 3, [])
    with pytest.raises(BoardError, match="--cpus"):
        trap.KvmBoard().machine(MachineConfig(8 << 20, 1 << 20))


def test_without_traps_the_board_says_how_to_get_them(tmp_path):
    command = ["record", "--board", "trap", "-o", str(tmp_path / "session"), "--", "true"]
    done = subprocess.run([*PTAT, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ptat" in done.stderr
    assert "kernel" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.guest
def test_a_trapped_program(tmp_path):
    session = tmp_path / "session"
    command = ["gups", "--bytes", "4M", "--updates", "12800", "--threads", "2"]
    subprocess.run(
        [*PTAT, "record", "--board", "testbed-trap", "--cpus", "2", "-o", session, "--", *command],
        check=True,
    )
    results = parse(session)
    summary = results.summary
    assert summary["complete"]
    assert not summary["lost"]
    traps = summary["traps"]
    assert traps["records"] == sum(
        read_records(path).size for path in (session / "kernel").glob("trap*.raw")
    )
    # QEMU's TLBs are one for each mode: by now, data and code are stepped.
    assert traps["step"] > traps["records"] / 2
    assert 1024 <= summary["totals"]["misses"] <= traps["records"]
    assert summary["totals"]["misses"] + summary["totals"]["faulted"] <= traps["records"]
    threads = {
        int(thread)
        for path in (session / "kernel").glob("trap*.raw")
        for thread in np.unique(read_records(path)["tid"])
    }
    assert len(threads) >= 2


SELF = """
"$1" -m ptat_host.cli record --board trap -o /tmp/inner -- gups --bytes 4M --updates 12800 >&2 &&
! "$1" -m ptat_host.cli record --board trap -o /tmp/second -- nosuchprogram >&2 &&
test "$(cat /sys/kernel/mm/ptat/stat/detached)" = 1 &&
tar c -C /tmp inner
"""


@pytest.mark.guest
def test_a_machine_traps_its_own_misses(tmp_path, capfdbinary):
    request = RecordRequest(
        argv=["bash", "-c", SELF, "-", sys.executable],
        session_dir=tmp_path / "outer",
        cwd=Path("/"),
        env=dict(os.environ),
        children=True,
        maps=False,
        region_bytes=32 << 20,
        options={"cpus": "2"},
    )
    request.session_dir.mkdir()
    recording = guest_run.Recording(request, traps=True, traced=False)
    result = recording.record(recording.machine_config(region_base=None))
    output = capfdbinary.readouterr()
    assert result.exit_status == 0, output.err.decode()
    with tarfile.open(fileobj=io.BytesIO(output.out)) as archive:
        archive.extractall(tmp_path, filter="data")
    summary = parse(tmp_path / "inner").summary
    assert summary["complete"]
    assert not summary["lost"]
    assert summary["totals"]["misses"] >= 1024
    assert any(process["comm"] == "gups" for process in summary["processes"])
    records = np.concatenate(
        [read_records(path) for path in (tmp_path / "inner" / "kernel").glob("trap*.raw")]
    )
    assert np.any(records["flags"] & Flag.KERNEL)


@pytest.mark.guest
def test_records_are_walks_in_order(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ptat_testbed.suites.check_trap", "--small"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SMALL_S,
    )
    assert done.returncode == 0, done.stderr
