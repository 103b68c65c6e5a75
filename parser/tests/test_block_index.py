# SPDX-License-Identifier: BSD-2-Clause
import contextlib
import json
import pickle
import random
import shutil
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import archived, flip
from hypothesis import given, settings
from hypothesis import strategies as st
from test_capture import encode
from test_results import DAMAGES
from test_segments import Steady, busy, busy_machine, digests

from ptat_parser import parse, wire
from ptat_parser.capture import block_index, decode
from ptat_parser.capture import reader as capture_reader
from ptat_parser.capture.block_index import CHUNK, GROUP, HEADER
from ptat_parser.capture.chunks import ChunkContents, PlainChunk
from ptat_parser.capture.reader import BusReader
from ptat_parser.checks.session import check
from ptat_parser.errors import ParseError, PtatError
from ptat_parser.formats import archive
from ptat_parser.formats.archive import ArchiveStream
from ptat_parser.formats.session import Region
from ptat_parser.formats.storage import Source
from ptat_parser.order import entry_pairs, first_pass
from ptat_parser.replay import segments


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", 3)
    monkeypatch.setattr(block_index, "GROUP_RECORDS", 300)
    monkeypatch.setattr(segments, "SEGMENT_ACCESSES", 1500)


@pytest.fixture
def looked(monkeypatch) -> list[int]:
    """How many blocks had their CRCs computed."""
    counts = []

    def crcs(words):
        counts.append(len(words))
        return of_blocks(words)

    of_blocks = decode.crcs
    monkeypatch.setattr(capture_reader, "crcs", crcs)
    return counts


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 32),
    lossy=st.booleans(),
    granularity=st.sampled_from([8, 64]),
    entries=st.booleans(),
    chunk_blocks=st.sampled_from([1, 3, 40]),
    group_chunks=st.sampled_from([1, 5, 1 << 10]),
    workers=st.sampled_from([1, 2]),
    few=st.booleans(),
)
def test_with_and_without_it_results_are_the_same(
    tmp_path_factory, seed, lossy, granularity, entries, chunk_blocks, group_chunks, workers, few
):
    path = busy(
        tmp_path_factory.mktemp("index") / "s",
        seed, lossy=lossy, phases=4, granularity=granularity, entries=entries,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", chunk_blocks)
        patch.setattr(block_index, "GROUP_CHUNKS", group_chunks)
        if few:
            patch.setattr(entry_pairs, "STORES_MAX", 40)
            patch.setattr(first_pass, "INTERVALS_MAX", 3)
        parse(path)
        without = digests(path)
        archived(path)
        assert BusReader(path / "bus.0.ptb").index
        parse(path, workers=workers)
        assert digests(path) == without
        assert [one.violations for one in check(path).checks if one.name == "index"] == [0]
        patch.setattr(block_index, "DATA_BYTES_MAX", 100)  # there is none, nor stores in memory
        assert not BusReader(path / "bus.0.ptb").stored_index()
        parse(path, workers=workers, salvage=True)
        assert digests(path) == without


@settings(max_examples=60)
@given(
    records=st.lists(
        st.one_of(
            st.tuples(st.just("access"), st.integers(0, 1 << 24), st.just(0x1000), st.booleans()),
            st.tuples(st.just("lost"), st.integers(0, 1 << 20), st.integers(1, 99), st.none()),
            st.tuples(
                st.just("mark"),
                st.integers(0, 1 << 20),
                st.sampled_from([wire.Mark.DECODE_ERROR, wire.Mark.SAMPLE, wire.Mark.LINK_ERROR]),
                st.integers(0, 1 << 20),
            ),
        ),
        min_size=30,
        max_size=100,
    ),
    spans_max=st.sampled_from([2, 5, 1 << 16]),
)
def test_a_survey_is_the_same(tmp_path_factory, records, spans_max):
    """Also of more losses than are kept apart, all of which are covered."""
    path = tmp_path_factory.mktemp("scan") / "bus.0.raw"
    data, _ = encode([("access", 1, 0x1000, False), *records], repeat=40)
    path.write_bytes(data)
    region = Region(0x1000, 1 << 20, 16, 64, "pte")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", 1)
        patch.setattr(first_pass, "INTERVALS_MAX", spans_max)
        reader = BusReader(path)
        archive.pack(path, path.with_suffix(".ptb"), reader.stored_index())
        found = [
            first_pass.scan_capture(reader, region) for _ in range(2)
        ]  # the second by the index
        stored = BusReader(path.with_suffix(".ptb"))
        assert stored.index
        found.append(first_pass.scan_capture(stored, region))
    one, again, other = (
        {**vars(each), "stores": [c.tolist() for c in vars(each.stores).values()]} for each in found
    )
    assert one == again == other
    since, until = np.array(other["losses"].intervals).T
    chunks = list(BusReader(path))
    lost = [(each.since_ticks, each.time_ticks) for chunk in chunks for each in chunk.lost]
    errors = [0] + [
        mark.time_ticks
        for chunk in chunks
        for mark in chunk.marks
        if mark.code == wire.Mark.DECODE_ERROR
    ]
    for first, last in [*lost, *pairwise(errors)]:
        assert np.any((since <= first) & (last <= until))


@pytest.mark.parametrize("granularity", [8, 64])
def test_only_chunks_with_other_words_are_verified_again(tmp_path, looked, granularity):
    path = busy(tmp_path / "s", granularity=granularity)
    parse(path)
    blocks = BusReader(path / "bus.0.raw").blocks
    assert blocks < sum(looked) < 2 * blocks
    archived(path)
    looked.clear()
    parse(path)
    assert 0 < sum(looked) < blocks


@pytest.mark.parametrize("workers", [1, 2])
def test_damage_to_a_piece_is_told(tmp_path, workers):
    path = archived(busy(tmp_path / "s", phases=3))
    pieces = ArchiveStream(Source(path / "bus.0.ptb")).pieces
    for row in pieces:
        flip(path / "bus.0.ptb", int(row["offset"]) + 100)
        with pytest.raises(ParseError, match=r"piece \d+ .*damaged"):
            parse(path, workers=workers)
        assert not (path / "results").exists()
        flip(path / "bus.0.ptb", int(row["offset"]) + 100)
    parse(path, workers=workers)


def test_one_of_another_capture_is_told_by_check(tmp_path):
    """Also where each block is right in itself, as all CRCs are."""
    path, other = busy(tmp_path / "s", phases=3), busy(tmp_path / "other", seed=4, phases=3)
    size = min(BusReader(one / "bus.0.raw").blocks for one in (path, other))
    for one in (path, other):
        with (one / "bus.0.raw").open("r+b") as file:
            file.truncate(size * wire.BLOCK_BYTES)
    index = BusReader(other / "bus.0.raw").stored_index()
    (violation,) = [c.first for c in check(archived(path, index)).checks if c.name == "index"]
    assert violation.file == "bus.0.ptb"
    assert violation.message == "not of this capture"


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGES, ids=[m for *_, m in DAMAGES])
def test_bad_input_is_told_as_without(session, damage, error, message):
    path = session(steps=600)
    damage(path)
    with contextlib.suppress(PtatError, OSError):  # where blocks are damaged there is none
        archived(path)
    with pytest.raises(error, match=message):
        parse(path)
    assert not (path / "results").exists()


def test_one_of_other_chunks_is_left_out(session, monkeypatch):
    path = session(steps=600)
    with monkeypatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", 2)
        archived(path)
        assert BusReader(path / "bus.0.ptb").index
    assert not BusReader(path / "bus.0.ptb").index
    parse(path)


@pytest.mark.parametrize("later", [-1, 1])
def test_one_of_another_version_is_left_out(session, later):
    path = session(steps=600)
    index = bytearray(BusReader(path / "bus.0.raw").stored_index())
    index[8] += later
    archived(path, bytes(index))
    assert not BusReader(path / "bus.0.ptb").index
    parse(path)


def test_salvage_does_without(session):
    path = session(steps=600)
    index = bytearray(BusReader(path / "bus.0.raw").stored_index())
    index[-1] ^= 1
    archived(path, bytes(index))
    with pytest.raises(ParseError, match=r"index is damaged .*salvage"):
        parse(path)
    assert not check(path).ok
    parse(path, salvage=True)


def test_an_incomplete_recording_does_without(session, looked):
    path = archived(session(steps=300))
    fields = json.loads((path / "session.json").read_text())
    fields.update(complete=False, incomplete_reason="interrupted")
    (path / "session.json").write_text(json.dumps(fields))
    parse(path)
    assert sum(looked) >= BusReader(path / "bus.0.ptb").blocks


# Its bytes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = busy_machine(phases=2, entries=True, granularity=64).write(
        tmp_path_factory.mktemp("small") / "s"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", 3)
        patch.setattr(block_index, "GROUP_RECORDS", 300)
        (path / "index").write_bytes(BusReader(path / "bus.0.raw").stored_index())
    return path


def read_back(small: Path, path: Path, index: bytes) -> None:
    """Have all of an index read, of an archive of the small session's capture."""
    archive.pack(small / "bus.0.raw", path, index)
    reader = BusReader(path)
    assert reader.index
    list(reader.index.contents())


@settings(max_examples=150)
@given(data=st.data())
def test_damage_to_it_is_told(small, tmp_path_factory, data):
    """Nothing of it can be changed without being told, but its version."""
    path = tmp_path_factory.mktemp("damaged") / "bus.0.ptb"
    whole = (small / "index").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: not 8 <= at < 16))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.booleans()) and at
    with pytest.raises(ParseError, match="index is damaged"):
        read_back(small, path, whole[:at] if cut else bytes(changed))


def sealed(data: bytes, change) -> bytes:
    """With a right CRC, after `change` of header and rows of chunks and groups."""
    header = np.frombuffer(data, HEADER, 1).copy()[0]
    chunks_bytes = -(-int(header["blocks"]) // 3) * CHUNK.itemsize
    groups_at = HEADER.itemsize + chunks_bytes
    data_at = groups_at + int(header["groups"]) * GROUP.itemsize
    chunks = np.frombuffer(data[HEADER.itemsize : groups_at], CHUNK).copy()
    groups = np.frombuffer(data[groups_at:data_at], GROUP).copy()
    change(header=header, chunks=chunks, groups=groups)
    rows = chunks.tobytes() + groups.tobytes()
    header["crc"] = zlib.crc32(header.tobytes()[:-4] + rows)
    return header.tobytes() + rows + data[data_at:]


def set_to(field: str, value: int, of: str = "chunks"):
    def change(**parts):
        if of == "header":
            parts[of][field] = value
        else:
            parts[of][field][0] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_to("accesses", 3 * wire.BLOCK_RECORDS_MAX + 1),
        set_to("holds", 3),
        set_to("holds", decode.READS),
        set_to("stores", 1 << 20),
        set_to("others", 1 << 31),
        set_to("end_ticks", 1 << 63),
        set_to("next_block", -1),
        set_to("missing", 1),
        set_to("offset", 1 << 62, "groups"),
        set_to("data_bytes", 1 << 31, "groups"),
        set_to("chunks", 1 << 40, "groups"),
        set_to("chunks", 0, "groups"),
        set_to("blocks", 1 << 60, "header"),
        set_to("groups", 0, "header"),
    ],
)
def test_what_cannot_be_is_not_believed(small, tmp_path, change):
    whole = (small / "index").read_bytes()
    read_back(small, tmp_path / "right.ptb", sealed(whole, lambda **_: None))
    with pytest.raises(ParseError, match="index is damaged"):
        read_back(small, tmp_path / "wrong.ptb", sealed(whole, change))


@pytest.mark.parametrize("stored", [False, True])
def test_stores_of_a_part(tmp_path, stored):
    """Where something was lost they are not given."""
    machine = busy_machine(kind=Steady)
    at = len(machine.bus) // 2
    machine.bus[at] = machine.bus[at][0], None, 1
    path = machine.write(tmp_path / "s")
    chunks = list(BusReader(path / "bus.0.raw").chunks())
    there = [ChunkContents.of(chunk.decoded()) for chunk in BusReader(path / "bus.0.raw").chunks()]
    assert any(isinstance(chunk, PlainChunk) for chunk in chunks)
    if stored:
        archived(path)
        reader = BusReader(path / "bus.0.ptb")
    else:
        reader = BusReader(path / "bus.0.raw")
        assert reader.stores() is None
        for _ in reader.contents():
            pass
    good = [not chunk.lost for chunk in chunks]
    choose = random.Random(2)
    compared = 0
    for _ in range(200):
        first, end = sorted(choose.sample(range(len(there) + 1), 2))
        part = pickle.loads(pickle.dumps(reader)).part(3 * first, min(3 * end, reader.blocks))
        found = part.stores()
        assert (found is not None) == all(good[first:end])
        if found:
            compared += 1
            for one, other in zip(
                found, ChunkContents.joined(there[first:end]).stores, strict=True
            ):
                np.testing.assert_array_equal(one, other)
    assert 20 < compared < 200


def test_nothing_but_errors_of_ptat(small, tmp_path):
    """Whatever stands in it, and its CRCs are right."""
    choose = random.Random(5)
    whole = (small / "index").read_bytes()
    refused = 0
    for number in range(60):
        path = shutil.copytree(small, tmp_path / str(number))

        def change(chunks, **_):
            field = choose.choice(CHUNK.names)
            row = choose.randrange(len(chunks))
            chunks[field][row] ^= chunks[field].dtype.type(1 << choose.randrange(20))

        archived(path, sealed(whole, change))
        try:
            parse(path)
        except PtatError:
            refused += 1
    assert refused > 10


def test_groups_are_bounded(tmp_path, monkeypatch):
    """However many records other than reads there are, few are held at a time."""
    monkeypatch.setattr(block_index, "GROUP_RECORDS", 3000)
    raw, stored = tmp_path / "bus.0.raw", tmp_path / "bus.0.ptb"
    data, _ = encode([("access", 1, 64, True), ("lost", 1, 9, None)], repeat=20_000)
    raw.write_bytes(data)
    archive.pack(raw, stored, BusReader(raw).stored_index())
    index = BusReader(stored).index
    groups = [contents.stores[0].size + len(contents.lost) for contents in index.contents()]
    assert sum(groups) == 40_000
    assert max(groups) < 3000 + 3 * wire.BLOCK_WORDS
    monkeypatch.setattr(
        block_index, "GROUP_RECORDS", max(groups) - 3 * (wire.BLOCK_RECORDS_MAX + 1)
    )
    with pytest.raises(ParseError, match="damaged"):
        BusReader(stored)
