# SPDX-License-Identifier: BSD-2-Clause
import io
import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_parser import wire
from ptat_parser.capture.chunks import Chunk, ChunkContents
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter, seal
from ptat_parser.errors import BadInput, ParseError

GAPS = st.one_of(st.integers(0, 100), st.integers(0, 1 << 40))
ADDRESSES = st.integers(0, (1 << 36) - 1).map(lambda unit: unit * 8)
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("access"), GAPS, ADDRESSES, st.booleans()),
        st.tuples(st.just("lost"), GAPS, st.integers(0, (1 << 36) - 1), st.none()),
        st.tuples(st.just("mark"), GAPS, st.sampled_from(wire.Mark), st.integers(0, 0xFFFFFFF)),
    ),
    max_size=40,
)


WRAP = 1 << 60


def encode(records, repeat: int = 1, channel: int = 0, ticks: int = 5) -> tuple[bytes, list[tuple]]:
    file = io.BytesIO()
    expected = []
    with BlockWriter(file, channel) as writer:
        for kind, gap, value, extra in records * repeat:
            ticks += gap
            if kind == "access":
                writer.access(ticks, value, extra)
            elif kind == "lost":
                writer.lost(ticks, value)
            else:
                writer.mark(ticks, value, extra)
            expected.append((kind, ticks, value, extra))
    return file.getvalue(), expected


def decode(path: Path, **options) -> list[tuple]:
    """All records as `encode` returns them: accesses and, where they stand, all others."""
    found = []
    for chunk in BusReader(path, **options):
        rows = zip(chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True)
        placed = [(position, 1, ("access", *row)) for position, row in enumerate(rows)]
        placed += [(x.position, 0, ("lost", x.time_ticks, x.count, None)) for x in chunk.lost]
        placed += [(x.position, 0, ("mark", x.time_ticks, x.code, x.argument)) for x in chunk.marks]
        found += [record for *_, record in sorted(placed, key=lambda p: (p[0], p[1], p[2][1]))]
    return found


def in_order(records: list[tuple]) -> list[tuple]:
    """LOST and MARK records between the same accesses, at the same time, in one order."""
    accesses = np.cumsum([record[0] == "access" for record in records]).tolist()
    keys = [
        (n, record[0] != "access", record[1], record[0])
        for n, record in zip(accesses, records, strict=True)
    ]
    return [record for _, record in sorted(zip(keys, records, strict=True), key=lambda p: p[0])]


def numpy_decode(data: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accesses only, block by block with whole-array operations: the oracle."""
    parts = []
    for block in np.frombuffer(data, "<u8").reshape(-1, wire.BLOCK_WORDS):
        count = int(block[-1] >> np.uint64(48) & np.uint64(0xFFF))
        words = block[2 : 2 + count]
        tag = words >> np.uint64(60)
        delta = np.where(
            tag == wire.Tag.ACCESS,
            words >> np.uint64(36) & np.uint64(0x7FFFFF),
            words >> np.uint64(36) & np.uint64(0xFFFFFF),
        )
        delta[tag == wire.Tag.TIME] = 0
        since = np.cumsum(delta, dtype=np.uint64)
        # Each absolute time replaces the sum so far.
        absolute = np.flatnonzero(tag == wire.Tag.TIME)
        base = np.full(count, block[1], np.uint64)
        for at in absolute:
            base[at:] = (words[at] & np.uint64((1 << 60) - 1)) - since[at]
        rows = tag == wire.Tag.ACCESS
        parts.append(
            (
                (base + since)[rows],
                (words[rows] & np.uint64((1 << 36) - 1)) << np.uint64(3),
                (words[rows] >> np.uint64(59) & np.uint64(1)).astype(bool),
            )
        )
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@settings(max_examples=60)
@given(
    records=RECORDS.filter(bool),
    repeat=st.sampled_from([1, 7, 80]),
    start=st.sampled_from([5, WRAP - 200, WRAP - (1 << 41)]),
)
def test_round_trip(tmp_path_factory, records, repeat, start):
    """Also where the stream's counter wraps."""
    data, expected = encode(records, repeat, ticks=start)
    first_ticks = expected[0][1]
    before = first_ticks - first_ticks % WRAP  # of which nobody knows
    expected = [(kind, ticks - before, *rest) for kind, ticks, *rest in expected]
    path = tmp_path_factory.mktemp("bus") / "bus.raw"
    path.write_bytes(data)
    assert len(data) % wire.BLOCK_BYTES == 0
    assert in_order(decode(path)) == in_order(expected)

    chunks = list(BusReader(path))
    for i, column in enumerate(numpy_decode(data)):
        got = np.concatenate([(c.time % WRAP, c.address, c.write)[i] for c in chunks])
        np.testing.assert_array_equal(got, column % WRAP if i == 0 else column)


@settings(max_examples=60)
@given(records=RECORDS.filter(bool), repeat=st.sampled_from([1, 80]))
def test_a_loss_begins_at_the_record_before(tmp_path_factory, records, repeat):
    """Wherever blocks end, and whether or not a TIME record comes between."""
    path = tmp_path_factory.mktemp("bus") / "bus.raw"
    data, expected = encode(records, repeat)
    path.write_bytes(data)
    reader = BusReader(path)
    reader.chunk_blocks = 1
    before = [0, *(ticks for _, ticks, *_ in expected)]
    assert [(lost.since_ticks, lost.time_ticks) for chunk in reader for lost in chunk.lost] == [
        (since, ticks)
        for since, (kind, ticks, *_) in zip(before, expected, strict=False)
        if kind == "lost"
    ]


def test_chunks_join(tmp_path):
    records = [("access", 1 << 22, 8 * i, False) for i in range(3000)]
    data, expected = encode(records)
    (tmp_path / "bus").write_bytes(data)
    reader = BusReader(tmp_path / "bus")
    reader.chunk_blocks = 1
    chunks = list(reader)
    assert len(chunks) == 3
    assert np.concatenate([c.time for c in chunks]).tolist() == [ticks for _, ticks, *_ in expected]


BLOCKS = {
    "reads": [("access", 3, 0x1000, False)] * wire.BLOCK_RECORDS_MAX,
    "writes": [("access", 3, 0x2000, True), ("access", 3, 0x3000, False)] * 510
    + [("access", 0, 0x4000, False)],
    "few": [("access", 7, 0x5000, False), ("access", 1, 0x6000, True)],
    "pause": [("access", 1 << 30, 0x7000, False)] + [("access", 2, 0x7008, False)] * 20,
    "lost": [("access", 2, 0x8000, False), ("lost", 5, 9, None)],
    "marks": [("mark", 4, wire.Mark.SAMPLE, 3)],
    "damaged": [("access", 3, 0x9000, False)] * wire.BLOCK_RECORDS_MAX,
    "missing": [("access", 3, 0xA000, False)] * wire.BLOCK_RECORDS_MAX,
}


def written(path: Path, kinds: list[str]) -> None:
    """A capture of blocks of these kinds."""
    file = io.BytesIO()
    ticks = 5
    with BlockWriter(file) as writer:
        for kind in kinds:
            for what, gap, value, extra in BLOCKS[kind]:
                ticks += gap
                {"access": writer.access, "lost": writer.lost, "mark": writer.mark}[what](
                    ticks, value, *[extra] * (extra is not None)
                )
            writer.flush()
    data = np.frombuffer(file.getvalue(), np.uint8).reshape(-1, wire.BLOCK_BYTES).copy()
    data[[kind == "damaged" for kind in kinds], 1000] ^= 4
    path.write_bytes(data[[kind != "missing" for kind in kinds]].tobytes())


@settings(max_examples=100)
@given(
    kinds=st.lists(
        st.one_of(st.sampled_from(["reads", "writes"]), st.sampled_from(sorted(BLOCKS))),
        min_size=1,
        max_size=14,
    ).filter(lambda kinds: set(kinds) - {"missing", "damaged"}),
    chunk_blocks=st.integers(1, 5),
    first=st.integers(0, 2),
)
def test_who_has_an_index_reads_the_same(tmp_path_factory, kinds, chunk_blocks, first):
    path = tmp_path_factory.mktemp("parts") / "bus.0.raw"
    written(path, kinds)
    reader = BusReader(path, salvage=True)
    reader.chunk_blocks = chunk_blocks
    whole = [chunk.decoded() for chunk in reader.chunks()]
    contents = list(reader.contents())
    assert reader.index
    assert told([chunk.decoded() for chunk in reader.chunks()]) == told(whole)
    again = list(reader.contents())
    if reader.index.chunks["missing"][-1:].any():  # which no chunk has
        assert contents.pop().lost
    assert told_of(ChunkContents.joined(contents)) == told_of(ChunkContents.joined(again))
    first = min(first, reader.blocks // chunk_blocks)
    part = reader.part(first * chunk_blocks, reader.blocks)
    assert told(list(part)) == told(whole[first:])
    for one, other in zip(part.chunks(), whole[first:], strict=True):
        for column, expected in zip(one.stores(), other.stores(), strict=True):
            np.testing.assert_array_equal(column, expected)


def told_of(contents: ChunkContents) -> list:
    """What is in chunks besides reads."""
    return [
        *contents[:3],
        *(column.tolist() for column in contents.stores),
        list(contents.lost),
        contents.marks,
    ]


@pytest.mark.parametrize(
    ("last", "cut_bytes", "all_there"),
    [("reads", 0, True), ("reads", 1, False), ("damaged", 0, False)],
)
def test_stores_are_told_where_nothing_is_missing(tmp_path, last, cut_bytes, all_there):
    path = tmp_path / "bus.0.raw"
    written(path, ["writes", "reads", last])
    os.truncate(path, path.stat().st_size - cut_bytes)
    reader = BusReader(path, salvage=True)
    reader.chunk_blocks = 1
    there, *_ = [contents.stores for contents in reader.contents()]
    assert (reader.stores() is not None) == all_there
    before = reader.part(0, 1).stores()
    assert before
    for one, other in zip(before, there, strict=True):
        np.testing.assert_array_equal(one, other)


def told(chunks: list[Chunk]) -> list:
    """What chunks hold, together."""
    found: list = []
    start = 0
    for chunk in chunks:
        found += zip(chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True)
    others = []
    for chunk in chunks:
        for record in (*chunk.lost, *chunk.marks):
            others.append(repr(replace(record, position=record.position + start)))
        start += chunk.accesses
    return [found, sorted(others)]


def test_a_block_may_be_ahead_by_half_the_counter(tmp_path):
    for ahead, good in ((WRAP // 2 - 1, True), (WRAP // 2, False), (-1, False)):
        data, _ = encode([("access", 0, 0, False)], ticks=WRAP - 7)
        later = np.frombuffer(data, "<u8").copy()
        later[0] += np.uint64(1)
        later[1] = (WRAP - 7 + ahead) % WRAP
        seal(later, 1)
        (tmp_path / "bus").write_bytes(data + later.tobytes())
        if good:
            assert [row[1] for row in decode(tmp_path / "bus")] == [WRAP - 7, WRAP - 7 + ahead]
        else:
            with pytest.raises(ParseError, match="time runs backwards"):
                decode(tmp_path / "bus")


def test_a_time_beyond_the_counter_is_damage(tmp_path):
    data, _ = encode([("access", 0, 0, False)])
    words = np.frombuffer(data, "<u8").copy()
    words[1] = WRAP + 5
    seal(words, 1)
    (tmp_path / "bus").write_bytes(words.tobytes())
    with pytest.raises(ParseError, match="damaged"):
        decode(tmp_path / "bus")


def test_writer_refuses_time_running_backwards():
    writer = BlockWriter(io.BytesIO())
    writer.access(10, 0)
    with pytest.raises(ValueError, match="backwards"):
        writer.access(9, 0)


@pytest.fixture
def stream(tmp_path) -> Path:
    """Three blocks, the last one partly filled."""
    data, _ = encode([("access", 3, 8 * i, i % 2 == 0) for i in range(2500)])
    path = tmp_path / "bus.0.raw"
    path.write_bytes(data)
    assert len(data) == 3 * wire.BLOCK_BYTES
    return path


def test_a_flipped_bit_of_any_word_is_noticed(stream):
    """Every word of a block; every byte of header, time, first record and check word."""
    data = bytearray(stream.read_bytes()[-wire.BLOCK_BYTES :])
    stream.write_bytes(data)
    assert sum(chunk.time.size for chunk in BusReader(stream)) > 0
    special = [*range(24), *range(wire.BLOCK_BYTES - 16, wire.BLOCK_BYTES)]
    for at in [8 * word + word % 8 for word in range(wire.BLOCK_WORDS)] + special:
        data[at] ^= 1 << at % 7
        stream.write_bytes(data)
        with pytest.raises(ParseError, match="block 0 at byte 0"):
            list(BusReader(stream))
        data[at] ^= 1 << at % 7


@pytest.mark.parametrize("offset", [0, 5, 8, 16, 4000, 8190])
def test_salvage_leaves_a_damaged_block_out(stream, offset):
    whole = decode(stream)
    data = bytearray(stream.read_bytes())
    data[wire.BLOCK_BYTES + offset] ^= 0x40
    stream.write_bytes(data)
    with pytest.raises(ParseError, match=r"block 1 at byte 8192: .*--salvage"):
        list(BusReader(stream))

    (chunk,) = BusReader(stream, salvage=True)
    (lost,) = chunk.lost
    first = lost.position
    assert (lost.count, lost.blocks) == (None, 1)
    assert 0 < first < chunk.time.size
    rows = list(zip(chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True))
    kept = [row[1:] for row in whole]
    assert rows == kept[:first] + kept[-(len(rows) - first) :]


def test_salvage_counts_a_damaged_last_block(stream):
    data = bytearray(stream.read_bytes())
    data[-100] ^= 1
    stream.write_bytes(data)
    assert sum(lost.blocks for chunk in BusReader(stream, salvage=True) for lost in chunk.lost) == 1


def test_wrong_record_count_under_a_right_checksum(stream):
    """The check word's count is not covered by the CRC."""
    words = np.frombuffer(stream.read_bytes(), "<u8").copy()
    for change in (-1, 1):
        broken = words.copy()
        broken[-1] = int(broken[-1]) + (change << 48)
        stream.write_bytes(broken.tobytes())
        with pytest.raises(ParseError, match="block 2 at byte 16384"):
            list(BusReader(stream))
        blocks = [lost.blocks for chunk in BusReader(stream, salvage=True) for lost in chunk.lost]
        assert blocks == [1]


def test_missing_block_is_counted_without_salvage(stream):
    data = stream.read_bytes()
    stream.write_bytes(data[: wire.BLOCK_BYTES] + data[2 * wire.BLOCK_BYTES :])
    (chunk,) = BusReader(stream)
    assert [(lost.count, lost.blocks) for lost in chunk.lost] == [(None, 1)]


def test_swapped_blocks(stream):
    data = stream.read_bytes()
    one, two = data[: wire.BLOCK_BYTES], data[wire.BLOCK_BYTES : 2 * wire.BLOCK_BYTES]
    stream.write_bytes(two + one)
    with pytest.raises(ParseError, match=r"block 1 .*out of order"):
        list(BusReader(stream))


def test_time_running_backwards_between_blocks(stream):
    words = np.frombuffer(stream.read_bytes(), "<u8").copy().reshape(3, -1)
    words[1, wire.WORD_TIME] = 1
    seal(words[1], wire.BLOCK_RECORDS_MAX)
    stream.write_bytes(words.tobytes())
    with pytest.raises(ParseError, match=r"block 1 .*backwards"):
        list(BusReader(stream))


def test_truncated_last_block(stream):
    stream.write_bytes(stream.read_bytes()[:-1])
    with pytest.raises(ParseError, match=r"truncated: block 2 at byte 16384 has 8191 of 8192"):
        BusReader(stream)
    for options in ({"salvage": True}, {"tail_may_be_cut": True}):
        chunks = list(BusReader(stream, **options))
        assert sum(lost.blocks for chunk in chunks for lost in chunk.lost) == 1


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (0x5055 << 48 | 1 << 44, "magic"),
        (0x5054 << 48 | 2 << 44, "version 2"),
        (0x5054 << 48 | 1 << 44 | 4 << 36, "channel 4"),
    ],
)
def test_foreign_blocks(tmp_path, header, problem):
    block = np.zeros(wire.BLOCK_WORDS, "<u8")
    block[0] = header
    seal(block, 0)
    (tmp_path / "bus").write_bytes(block.tobytes())
    with pytest.raises(ParseError, match=problem):
        list(BusReader(tmp_path / "bus"))


def test_empty_and_missing(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        BusReader(tmp_path / "bus")
    (tmp_path / "bus").touch()
    with pytest.raises(ParseError, match="empty"):
        BusReader(tmp_path / "bus")


def test_check_word_is_zlibs_crc(stream):
    block = stream.read_bytes()[: wire.BLOCK_BYTES]
    assert int.from_bytes(block[-8:-4], "little") == zlib.crc32(block[:-8])


def test_address_that_no_record_can_hold():
    with pytest.raises(ValueError, match="0x8000000000"):
        BlockWriter(io.BytesIO()).access(1, 1 << 39)
