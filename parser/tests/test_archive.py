# SPDX-License-Identifier: BSD-2-Clause
import errno
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import synthetic
from conftest import flip
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_parser import parse, wire
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.checks import session as checks_session
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.formats import archive
from ptat_parser.formats.archive import END, FILE_HEADER, PIECE, ArchiveStream, ArchiveWriter
from ptat_parser.formats.storage import Source

PIECE_BLOCKS = 2


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(archive, "PIECE_BYTES", PIECE_BLOCKS * wire.BLOCK_BYTES)


def stream(records: int = 9000, gap: int = 7) -> bytes:
    file = io.BytesIO()
    with BlockWriter(file) as writer:
        for i in range(records):
            writer.access(100 + gap * i, 0x4000_0000 + i * 712 % 30_000 * 8, i % 5 == 0)
            if i == 4000:
                writer.lost(100 + gap * i, 11)
    return file.getvalue()


def write(path: Path, data: bytes, step: int = 5000) -> Path:
    with ArchiveWriter(path) as writer:
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
    return path


def contents(path: Path, **options) -> bytes:
    found = ArchiveStream(Source(path), **options)
    data = bytearray(found.size_bytes)
    found.readinto(0, memoryview(data))
    return bytes(data)


def times(path: Path, **options) -> list[int]:
    return [time for chunk in BusReader(path, **options) for time in chunk.time.tolist()]


@settings(max_examples=30)
@given(data=st.binary(max_size=3000), repeat=st.integers(1, 20), step=st.integers(1, 70_000))
def test_gives_back_the_very_bytes(tmp_path_factory, data, repeat, step):
    """Whatever they are: what is damaged must not be lost on the way."""
    path = tmp_path_factory.mktemp("ptb") / "bus.0.ptb"
    assert contents(write(path, data * repeat, step)) == data * repeat


@pytest.mark.parametrize("cut", [0, 1, 8191])
def test_an_unfinished_block_is_kept(tmp_path, cut):
    data = stream()
    data = data[: len(data) - cut]
    path = write(tmp_path / "bus.0.ptb", data)
    assert contents(path) == data
    if cut:
        with pytest.raises(ParseError, match="truncated: block 8 "):
            BusReader(path)


def test_reads_as_the_plain_file_does(tmp_path):
    (tmp_path / "raw").write_bytes(stream())
    archive.pack(tmp_path / "raw", tmp_path / "ptb")
    assert times(tmp_path / "ptb") == times(tmp_path / "raw")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ptb", "raw"]


def test_truncated_anywhere(tmp_path):
    """What was whole before the cut is read, if asked; without asking, it is refused."""
    data = stream()
    whole = write(tmp_path / "whole", data).read_bytes()
    path = tmp_path / "ptb"
    pieces = ArchiveStream(Source(tmp_path / "whole")).pieces
    ends = (pieces["offset"] + pieces["data_bytes"]).astype(int) + PIECE.itemsize
    footer = int(ends[-1])
    edges = {0, 1, FILE_HEADER.itemsize, footer, len(whole) - END.itemsize, len(whole) - 1}
    for offset in pieces["offset"].tolist():
        edges |= {offset, offset + 1, offset + PIECE.itemsize - 1, offset + PIECE.itemsize + 9}
    for size in sorted(edges):
        path.write_bytes(whole[:size])
        if size < FILE_HEADER.itemsize:
            with pytest.raises(ParseError, match=r"truncated|empty"):
                BusReader(path)
            continue
        with pytest.raises(ParseError, match=r"truncated: its footer is missing .*--salvage"):
            BusReader(path)
        kept = int(np.count_nonzero(ends <= size)) * PIECE_BLOCKS * wire.BLOCK_BYTES
        assert contents(path, tail_may_be_cut=True) == data[:kept]
        if kept:
            lost = [lost for c in BusReader(path, tail_may_be_cut=True) for lost in c.lost]
            assert lost[-1].blocks == 1


def test_every_flipped_byte_is_noticed(tmp_path):
    """In any part of the file; salvaged, it costs one piece at most."""
    data = stream(4000)
    path = write(tmp_path / "ptb", data)
    whole = path.read_bytes()
    expected = times(path)
    pieces = len(ArchiveStream(Source(path)).pieces)
    last = ArchiveStream(Source(path)).pieces[-1]
    special = [int(last["offset"]) + i for i in range(PIECE.itemsize)]
    steps = [*range(FILE_HEADER.itemsize), *special, *range(0, len(whole), 97)]
    for at in [*steps, *range(len(whole) - END.itemsize - pieces * PIECE.itemsize, len(whole))]:
        flip(path, at, 1 << at % 8)
        with pytest.raises((ParseError, BadInput)):
            times(path)
        if at >= FILE_HEADER.itemsize:
            found = times(path, salvage=True)
            missing = len(expected) - len(found)
            assert missing <= PIECE_BLOCKS * wire.BLOCK_RECORDS_MAX
            assert set(found) <= set(expected)
        path.write_bytes(whole)


def with_footer_of(path: Path, **changes) -> None:
    """Change a row in header and footer alike, with right checksums: hostile, not damaged."""
    data = bytearray(path.read_bytes())
    rows = ArchiveStream(Source(path)).pieces.copy()
    row = rows[1:2]
    at = int(row["offset"][0])
    for name, value in changes.items():
        row[name] = value
    row["crc"] = archive._header_crc(row[0])
    data[at : at + PIECE.itemsize] = row.tobytes()
    footer = len(data) - END.itemsize - rows.nbytes
    data[footer : footer + rows.nbytes] = rows.tobytes()
    end = np.frombuffer(data[-END.itemsize :], END).copy()
    end["crc"] = archive.zlib_ng.crc32(rows.tobytes())
    data[-END.itemsize :] = end.tobytes()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"raw_bytes": (1 << 32) - 1},
        {"raw_bytes": 8192},
        {"raw_bytes": 0},
        {"data_bytes": (1 << 32) - 1},
        {"data_bytes": 0},
        {"offset": (1 << 64) - 1},
        {"offset": 0},
        {"data_crc": 0},
    ],
)
def test_hostile_sizes(tmp_path, changes):
    path = write(tmp_path / "ptb", stream())
    with_footer_of(path, **changes)
    with pytest.raises(ParseError):
        times(path)


def test_hostile_piece_size(tmp_path):
    path = write(tmp_path / "ptb", stream())
    data = path.read_bytes()
    for piece_bytes in (0, 8191, (1 << 32) - 8192):
        header = np.array((archive.MAGIC, archive.VERSION, piece_bytes), FILE_HEADER)
        path.write_bytes(header.tobytes() + data[FILE_HEADER.itemsize :])
        with pytest.raises(ParseError, match="pieces of"):
            BusReader(path, salvage=True)


def test_a_bomb_is_not_inflated(tmp_path):
    """A piece whose data decompresses to more than it says."""
    path = write(tmp_path / "ptb", bytes(PIECE_BLOCKS * wire.BLOCK_BYTES * 3))
    bomb = archive.pa.Codec("zstd").compress(bytes(64 << 20))
    data = path.read_bytes()
    row = ArchiveStream(Source(path)).pieces[:1].copy()
    row["data_bytes"], row["data_crc"] = bomb.size, archive.zlib_ng.crc32(bomb)
    row["crc"] = archive._header_crc(row[0])
    path.write_bytes(data[: FILE_HEADER.itemsize] + row.tobytes() + bomb.to_pybytes())
    found = ArchiveStream(Source(path), tail_may_be_cut=True)
    with pytest.raises(ParseError, match=r"piece 0 .*damaged"):
        found.readinto(0, memoryview(bytearray(8)))


def test_future_version(tmp_path):
    path = write(tmp_path / "ptb", stream(10))
    flip(path, 8, 2)
    with pytest.raises(BadInput, match="version 3; this ptat reads version 1"):
        BusReader(path)


def test_full_disk(tmp_path, monkeypatch):
    """Nothing is left of a failed conversion; of a recording, what was written."""

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "raw").write_bytes(stream())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        archive.pack(tmp_path / "raw", tmp_path / "ptb")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_unpack(tmp_path):
    data = stream()[:-17]
    write(tmp_path / "ptb", data)
    archive.unpack(tmp_path / "ptb", tmp_path / "raw")
    assert (tmp_path / "raw").read_bytes() == data


def test_killed_while_writing(tmp_path):
    data = stream()
    writer = ArchiveWriter(tmp_path / "ptb")
    writer.write(data)
    writer._file.flush()
    shutil.copy(tmp_path / "ptb", tmp_path / "left")
    size = len(data) // (PIECE_BLOCKS * wire.BLOCK_BYTES) * PIECE_BLOCKS * wire.BLOCK_BYTES
    assert contents(tmp_path / "left", tail_may_be_cut=True) == data[:size]


def test_a_session_may_have_either(tmp_path):
    path = synthetic.Machine(5).run(400).write(tmp_path / "session")
    plain = parse(path).summary
    archive.pack(path / "bus.0.raw", path / "bus.0.ptb")
    (path / "bus.0.raw").unlink()
    fields = json.loads((path / "session.json").read_text())
    fields["board"]["channels"][0]["file"] = "bus.0.ptb"
    (path / "session.json").write_text(json.dumps(fields))
    assert parse(path).summary == plain
    assert checks_session.check(path).ok
    flip(path / "bus.0.ptb", 300)
    assert not checks_session.check(path).ok
