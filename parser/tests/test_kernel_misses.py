# SPDX-License-Identifier: BSD-2-Clause
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from ptat_parser.errors import BadInput
from ptat_parser.formats import kernel_misses
from ptat_parser.formats.kernel_misses import HEADER, Kind, Reader


def miss(place: int, va: int, cause: int = 0, time: int = 7, pgd_pfn: int = 5) -> bytes:
    return struct.pack("<4BI3Q", Kind.MISS, cause, 12, 1, place, time, va, pgd_pfn)


def place(number: int, caller: int, address: int) -> bytes:
    return struct.pack("<2I3Q", Kind.PLACE, number, caller, address, 0)


def end(misses: int) -> bytes:
    return struct.pack("<2IQ16x", Kind.END, 0, misses)


RECORDS = [
    *(place(1, 0, 100), place(2, 1, 200), miss(2, 0x7000, cause=1)),
    *(place(3, 0, 300), miss(3, 0xFFFF888000000000), miss(2, 0x8000, time=9)),
]


def write(path: Path, records: list[bytes], header: bytes = HEADER) -> Path:
    with gzip.open(path, "wb") as file:
        file.write(header + b"".join(records))
    return path


def test_misses_and_places(tmp_path):
    reader = Reader(write(tmp_path / "f", [*RECORDS, end(3)]))
    (found,) = reader
    assert reader.complete
    assert found["va"].tolist() == [0x7000, 0xFFFF888000000000, 0x8000]
    assert found["place"].tolist() == [2, 3, 2]
    assert found["cause"].tolist() == [1, 0, 0]
    assert found["time"].tolist() == [7, 7, 9]
    assert (found["shift"][0], found["cpu"][0], found["pgd_pfn"][0]) == (12, 1, 5)
    assert reader.callers == [0, 0, 1, 0]
    assert reader.addresses == [0, 100, 200, 300]


def test_pieces_are_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_misses, "READ_BYTES", kernel_misses.RECORD_BYTES)
    reader = Reader(write(tmp_path / "f", [*RECORDS, end(3)]))
    assert np.concatenate(list(reader))["place"].tolist() == [2, 3, 2]
    assert reader.complete


@pytest.mark.parametrize("records", [RECORDS, [*RECORDS, end(4)], [*RECORDS, end(3)[:20]], []])
def test_what_is_cut_off_is_not_complete(tmp_path, records):
    reader = Reader(write(tmp_path / "f", records))
    assert sum(found.size for found in reader) == (3 if records else 0)
    assert not reader.complete


def test_a_cut_gzip_stream_is_read_up_to_there(tmp_path):
    path = write(tmp_path / "f", [*RECORDS, end(3)])
    path.write_bytes(path.read_bytes()[:-9])
    reader = Reader(path)
    assert sum(found.size for found in reader) <= 3
    assert not reader.complete


@pytest.mark.parametrize(
    ("records", "header", "problem"),
    [
        (RECORDS, b"PTATKMI\x02", "not of this version"),
        ([place(2, 0, 1)], HEADER, "a place that nothing leads to"),
        ([place(1, 1, 1)], HEADER, "a place that nothing leads to"),
        ([miss(1, 0)], HEADER, "a miss at an unknown place"),
        ([b"\x03" + bytes(31)], HEADER, "a record of no kind"),
    ],
)
def test_damage_is_told(tmp_path, records, header, problem):
    with pytest.raises(BadInput, match=problem):
        list(Reader(write(tmp_path / "f", records, header)))


def test_no_gzip(tmp_path):
    (tmp_path / "f").write_bytes(b"hello, world")
    with pytest.raises(BadInput, match="damaged"):
        list(Reader(tmp_path / "f"))
    with pytest.raises(BadInput, match="no such file"):
        Reader(tmp_path / "g")
