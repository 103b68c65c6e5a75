# SPDX-License-Identifier: BSD-2-Clause
import errno
import io
import itertools
import os
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser import wire
from ptat_parser.capture.reader import BusReader
from ptat_testbed.boards import bar

BASE = 0xFC000000
REGION = range(BASE, BASE + 0x100000)


def line(time_us: int, address: int, kind: str = "read", name: str = "nvme-cmb") -> bytes:
    seconds, micros = divmod(time_us, 1_000_000)
    return (
        f"5069@{seconds}.{micros:06d}:memory_region_ops_{kind} cpu 0 mr 0x563ab6e00cd0"
        f" addr 0x{address:x} value 0x8000000001234025 size 8 name '{name}'\n"
    ).encode()


def read_back(data: bytes, tmp_path: Path) -> tuple[list[tuple[int, int, bool]], list[int]]:
    path = tmp_path / "bus.0.raw"
    path.write_bytes(data)
    accesses: list[tuple[int, int, bool]] = []
    marks: list[int] = []
    for chunk in BusReader(path):
        accesses += zip(
            chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True
        )
        marks += [mark.code for mark in chunk.marks]
    return accesses, marks


def test_trace_becomes_accesses(tmp_path: Path):
    file = io.BytesIO()
    writer = bar.TraceWriter(file, REGION)
    t = 1_795_260_985_367_658
    writer.feed(
        line(t, BASE + 0x10008)
        + line(t, 0x71, "write", "rtc")
        + line(t + 2, BASE + 0x40, "write")
        + line(t + 1, BASE - 8)  # one byte before the region
        + line(t + 1, BASE + 0x100000)  # one behind it
        + line(t + 1, BASE + 0xFFFF8)  # in it, and the clock was set back
        + line(t + 90_000_000, BASE + 0x14)
    )
    writer.finish()
    assert writer.bad_lines == 0
    accesses, marks = read_back(file.getvalue(), tmp_path)
    assert accesses == [
        (t, BASE + 0x10008, False),
        (t + 2, BASE + 0x40, True),
        (t + 2, BASE + 0xFFFF8, False),
        (t + 90_000_000, BASE + 0x10, False),
    ]
    assert marks == []


def test_both_ways_in_which_qemu_writes_the_time(tmp_path: Path):
    """QEMU 11.1.3 wrote the second line; `date -u -d` knows its seconds."""
    file = io.BytesIO()
    writer = bar.TraceWriter(file, REGION)
    rest = f"memory_region_ops_read cpu 0 mr 0x55 addr 0x{BASE:x} value 0x0 size 8 name 'x'\n"
    writer.feed(f"5069@1795746025.121991:{rest}".encode())
    writer.feed(f"2026-11-27T02:20:26.121991Z {rest}".encode())
    writer.feed(f"2026-13-27T02:20:26.121991Z {rest}".encode())  # no such month
    writer.finish()
    assert writer.bad_lines == 1
    accesses, _ = read_back(file.getvalue(), tmp_path)
    assert [time for time, _, _ in accesses] == [1795746025_121991, 1795746026_121991]


@given(st.lists(st.integers(0, 600), max_size=20))
def test_pieces_may_end_anywhere(cuts: list[int]):
    log = b"".join(line(1_000_000 + i, BASE + 8 * i) for i in range(5))
    whole, pieces = io.BytesIO(), io.BytesIO()
    writer = bar.TraceWriter(whole, REGION)
    writer.feed(log)
    writer.finish()
    writer = bar.TraceWriter(pieces, REGION)
    ends = [0, *sorted(cuts), len(log)]
    for start, end in itertools.pairwise(ends):
        writer.feed(log[start:end])
    writer.finish()
    assert writer.bad_lines == 0
    assert pieces.getvalue() == whole.getvalue() != b""


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage\n",
        b"\n",
        line(1, BASE)[:-20] + b"\n",
        line(1, BASE)[10:],
        line(1, BASE).replace(b"0x", b"0y"),
        line(1, BASE)[:-1] + line(2, BASE),
        line(1, BASE)[:-1],  # the last line has no end
    ],
)
def test_damaged_lines_are_counted(damage: bytes, tmp_path: Path):
    file = io.BytesIO()
    writer = bar.TraceWriter(file, REGION)
    writer.feed(line(5, BASE) + damage)
    writer.finish()
    assert writer.bad_lines == 1
    assert [address for _, address, _ in read_back(file.getvalue(), tmp_path)[0]] == [BASE]


def test_marks_enclose_the_trace(tmp_path: Path):
    file = io.BytesIO()
    writer = bar.TraceWriter(file, REGION)
    writer.mark(wire.Mark.START)
    writer.feed(line(5, BASE))
    writer.mark(wire.Mark.STOP)
    writer.finish()
    assert read_back(file.getvalue(), tmp_path)[1] == [wire.Mark.START, wire.Mark.STOP]


def test_bar_address():
    nvme = {
        "id": {"vendor": 0x1B36, "device": 0x10},
        "regions": [
            {"bar": 0, "size": 16384, "address": 4273963008, "type": "memory"},
            {"bar": 2, "size": 67108864, "address": -1, "type": "memory"},
        ],
    }
    other = {"id": {"vendor": 0x1AF4, "device": 0x1003}, "regions": [{"bar": 2, "address": 4096}]}
    assert bar.bar_address([]) is None
    assert bar.bar_address([{"devices": [other, nvme]}]) is None
    nvme["regions"][1]["address"] = 4160749568
    assert bar.bar_address([{"devices": [other, nvme]}]) == 4160749568


class Full(io.BytesIO):
    def write(self, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_noticed_and_the_pipe_still_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Path, "open", lambda *_: Full())
    trace = bar.Trace(tmp_path / "bus.0.raw", REGION)
    pipe = os.dup(trace.fd)
    machine = Mock()
    trace.start(machine)
    log = b"".join(line(i, BASE) for i in range(50_000))
    for start in range(0, len(log), 1 << 16):  # far more than a pipe holds
        os.write(pipe, log[start : start + (1 << 16)])
    trace.stop(machine)
    os.close(pipe)
    trace.join()
    assert trace.failure == f"cannot write {tmp_path / 'bus.0.raw'}: No space left on device"
    assert machine.qmp.execute.call_args_list == [
        call("trace-event-set-state", name=f"memory_region_ops_{kind}", enable=enable)
        for enable in (True, False)
        for kind in ("read", "write")
    ]
