# SPDX-License-Identifier: BSD-2-Clause
"""Records are taken from rings, here in a file where the kernel's device would be."""

import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ptat_host.boards import trap_rings
from ptat_host.boards.base import BoardError
from ptat_host.boards.trap_rings import PAGE, Rings
from ptat_parser.formats import traps

CPUS = 2
RECORDS = 64
RING_BYTES = mmap.PAGESIZE * 2
WAIT_S = 10.0


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_first_page_is_what_the_kernel_writes():
    header = Path(__file__).parents[2] / "kernel-patch/src/include/uapi/linux/ptat.h"
    body = re.search(r"struct ptat_trap_ring \{\n(.*?)\n\};", header.read_text(), re.S)
    assert body
    fields = re.findall(r"__u(\d+) (\w+);", body[1])
    assert [(name, int(bits) // 8) for bits, name in fields] == [
        (name, PAGE[name].itemsize) for name in PAGE.names
    ]


class Kernel:
    """Writes records as the kernel does, where there is room."""

    def __init__(self, device: Path) -> None:
        device.write_bytes(bytes(CPUS * RING_BYTES))
        with device.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), CPUS * RING_BYTES)
        self.pages = [np.frombuffer(self._mapped, PAGE, 1, c * RING_BYTES) for c in range(CPUS)]
        self._records = [
            np.frombuffer(self._mapped, traps.RECORD, RECORDS, c * RING_BYTES + mmap.PAGESIZE)
            for c in range(CPUS)
        ]
        for cpu, page in enumerate(self.pages):
            page["records"], page["cpu"] = RECORDS, cpu
            page["record_bytes"], page["data_offset"] = traps.RECORD.itemsize, mmap.PAGESIZE

    def record(self, cpu: int, number: int) -> None:
        page = self.pages[cpu]
        wait_until(lambda: page["head"][0] - page["tail"][0] < RECORDS)
        at = int(page["head"][0]) % RECORDS
        self._records[cpu][at]["tsc"], self._records[cpu][at]["cpu"] = number, cpu
        page["head"] += 1


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Iterator[Kernel]:
    device = tmp_path / "device"
    monkeypatch.setattr(trap_rings, "DEVICE", device)
    monkeypatch.setattr(trap_rings, "CONTROL", tmp_path)
    (tmp_path / "ring_bytes").write_text(f"{RING_BYTES}\n")
    monkeypatch.setattr(os, "sysconf", {"SC_NPROCESSORS_CONF": CPUS}.__getitem__)
    (tmp_path / "kernel").mkdir()
    return Kernel(device)


def test_each_record_reaches_its_file(kernel, tmp_path):
    failures: list[str] = []
    count = 5 * RECORDS + 7
    with Rings(tmp_path / "kernel", failures.append) as rings:
        for number in range(count):
            for cpu in range(CPUS):
                kernel.record(cpu, number * CPUS + cpu)
        kernel.pages[1]["lost"], kernel.pages[1]["waits"] = 3, 2
        rings.finish()
        described = rings.described()
        fills = rings.fills()
    assert not failures
    assert described == [
        {"cpu": 0, "records": count, "lost": 0, "waits": 0, "file": "kernel/trap0.raw"},
        {"cpu": 1, "records": count, "lost": 3, "waits": 2, "file": "kernel/trap1.raw"},
    ]
    assert [(fill.used, fill.size, fill.lost) for fill in fills] == [(0, 64, 0), (0, 64, 3)]
    for cpu in range(CPUS):
        records = traps.read_records(tmp_path / "kernel" / f"trap{cpu}.raw")
        assert records["tsc"].tolist() == list(range(cpu, count * CPUS, CPUS))
        assert set(records["cpu"].tolist()) == {cpu}


def test_disk_that_is_full(kernel, tmp_path):
    """What was not written is not counted, and misses do not trap any more."""
    (tmp_path / "kernel" / "trap1.raw").symlink_to("/dev/full")
    failures: list[str] = []
    with Rings(tmp_path / "kernel", failures.append) as rings:
        kernel.record(0, 1)
        wait_until(lambda: kernel.pages[0]["tail"][0] == 1)
        kernel.record(1, 2)
        wait_until(lambda: failures)
        assert failures == ["cannot write records of traps: No space left on device"]
        described = rings.described()
    assert [ring["records"] for ring in described] == [1, 0]


def test_kernel_of_another_version(kernel, tmp_path):
    kernel.pages[1]["record_bytes"] = 40
    with pytest.raises(BoardError, match="another format"):
        Rings(tmp_path / "kernel", pytest.fail)


def test_machine_where_misses_do_not_trap(kernel, tmp_path):
    trap_rings.DEVICE.unlink()
    with pytest.raises(BoardError, match="do not trap") as refused:
        Rings(tmp_path / "kernel", pytest.fail)
    assert "ptat=SIZE,trap" in refused.value.hint
