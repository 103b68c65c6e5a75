# SPDX-License-Identifier: BSD-2-Clause
import json
import pickle
import random
import shutil
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import flip
from hypothesis import given, settings
from hypothesis import strategies as st
from test_capture import encode
from test_results import DAMAGES
from test_segments import Steady, busy, busy_machine, digests

from capture_model import Model
from ptat_parser import parse, wire
from ptat_parser.capture import block_index, decode
from ptat_parser.capture import reader as capture_reader
from ptat_parser.capture import writer as capture_writer
from ptat_parser.capture.chunks import PlainChunk, Seen
from ptat_parser.capture.reader import BusReader
from ptat_parser.checks.session import check
from ptat_parser.errors import ParseError, PtatError
from ptat_parser.formats import archive
from ptat_parser.formats.session import Region, Session
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


def outlined(path: Path) -> Path:
    block_index.write(path / "bus.0.raw")
    return path


def archived(path: Path) -> Path:
    """Like `ptat record --archive` leaves it."""
    archive.pack(path / "bus.0.raw", path / "bus.0.ptb")
    (path / "bus.0.raw").unlink()
    text = (path / "session.json").read_text()
    (path / "session.json").write_text(text.replace("bus.0.raw", "bus.0.ptb"))
    return path


def seal(data: bytearray, block: int) -> None:
    """Make a block's CRC right again."""
    whole = slice(block * wire.BLOCK_BYTES, (block + 1) * wire.BLOCK_BYTES)
    words = np.frombuffer(data[whole], "<u8").copy()
    capture_writer.seal(words, int(words[-1]) >> wire.CHECK_COUNT_SHIFT & 0xFFF)
    data[whole] = words.tobytes()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 32),
    lossy=st.booleans(),
    granularity=st.sampled_from([8, 64]),
    entries=st.booleans(),
    chunk_blocks=st.sampled_from([1, 3, 40]),
    group_chunks=st.sampled_from([1, 5, 1 << 10]),
    in_archive=st.booleans(),
    workers=st.sampled_from([1, 2]),
    few=st.booleans(),
)
def test_with_and_without_it_results_are_the_same(
    tmp_path_factory, seed, lossy, granularity, entries, chunk_blocks, group_chunks, in_archive,
    workers, few,
):  # fmt: skip
    path = busy(
        tmp_path_factory.mktemp("outline") / "s",
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
        outlined(path)
        if in_archive:
            archived(path)
        parse(path, workers=workers)
        assert digests(path) == without
        reader = BusReader(path / ("bus.0.ptb" if in_archive else "bus.0.raw"))
        assert block_index.Outline(path / "bus.0.outline").differs(reader) is None


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
    path = tmp_path_factory.mktemp("survey") / "bus.0.raw"
    data, _ = encode([("access", 1, 0x1000, False), *records], repeat=40)
    path.write_bytes(data)
    region = Region(0x1000, 1 << 20, 16, 64, "pte")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", 1)
        patch.setattr(first_pass, "INTERVALS_MAX", spans_max)
        for with_outline in (False, True):
            reader = BusReader(path)
            if with_outline:
                block_index.write(path)
                assert block_index.use(reader, region)
            found.append(first_pass.survey(reader, region))
    one, other = (
        {**vars(each), "stores": [c.tolist() for c in vars(each.stores).values()]} for each in found
    )
    assert one == other
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
def test_blocks_are_not_looked_at_twice(tmp_path, looked, granularity):
    path = busy(tmp_path / "s", granularity=granularity)
    parse(path)
    assert sum(looked) == BusReader(path / "bus.0.raw").blocks
    outlined(path)
    looked.clear()
    parse(path)
    assert not looked


@pytest.mark.parametrize("way", ["raw", "archive", "two workers"])
def test_damage_since_is_told_as_without(tmp_path, way):
    """At any block, whether it is read in pieces, at once or word by word."""
    whole = outlined(busy(tmp_path / "whole", phases=3))
    size = BusReader(whole / "bus.0.raw").blocks
    for block in range(size):
        told = []
        for with_outline in (True, False):
            path = shutil.copytree(whole, tmp_path / f"{block}{with_outline}")
            flip(path / "bus.0.raw", block * wire.BLOCK_BYTES + 500)
            if not with_outline:
                (path / "bus.0.outline").unlink()
            if way == "archive":
                archived(path)
            with pytest.raises(ParseError, match=f"block {block} .*CRC") as error:
                parse(path, workers=2 if way == "two workers" else 1)
            told.append(error.value.message.replace(str(path), ""))
            assert not (path / "results").exists()
        assert told[0] == told[1]


def test_damage_since_is_told_wherever_a_chunk_is_read(tmp_path, monkeypatch):
    """In each of the pieces in which it is checked."""
    piece = decode.PIECE_BLOCKS
    chunk = 8 * piece + 3
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", chunk)
    path = outlined(Model(400_000, pages=1000).write(tmp_path / "s"))
    assert BusReader(path / "bus.0.raw").blocks > 2 * chunk  # the second has no marks
    for block in {*range(0, chunk, piece - 1), piece, 2 * piece - 1, 8 * piece, chunk - 1}:
        at = (chunk + block) * wire.BLOCK_BYTES + 500
        flip(path / "bus.0.raw", at)
        with pytest.raises(ParseError, match=f"block {chunk + block} .*CRC"):
            parse(path, counts_only=True)
        flip(path / "bus.0.raw", at)
    parse(path)


def test_damage_after_a_chunk_was_mapped_is_told(tmp_path, monkeypatch):
    """Each piece is compared right before it is used, not when its chunk is mapped."""
    piece = decode.PIECE_BLOCKS
    chunk = 4 * piece
    monkeypatch.setattr(capture_reader, "CHUNK_BLOCKS", chunk)
    path = outlined(Model(400_000, pages=1000).write(tmp_path / "s"))
    block = chunk + piece
    maps = PlainChunk.mapped

    def mapped_then_changed(self):
        words = maps(self)
        if words is not None and self.start_bytes == chunk * wire.BLOCK_BYTES:
            with (path / "bus.0.raw").open("r+b") as file:
                file.seek(block * wire.BLOCK_BYTES + 500)
                file.write(b"\x55")
        return words

    monkeypatch.setattr(PlainChunk, "mapped", mapped_then_changed)
    with pytest.raises(ParseError, match=f"block {block} .*CRC"):
        parse(path, counts_only=True)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("in_archive", [False, True])
def test_a_capture_that_is_another_is_told(tmp_path, workers, in_archive):
    """Also where each block is right in itself."""
    whole = outlined(busy(tmp_path / "whole", phases=3))
    data = (whole / "bus.0.raw").read_bytes()
    choose = random.Random(workers)
    for block in range(len(data) // wire.BLOCK_BYTES):
        path = shutil.copytree(whole, tmp_path / str(block))
        changed = bytearray(data)
        count = int.from_bytes(data[(block + 1) * wire.BLOCK_BYTES - 2 :][:2], "little") & 0xFFF
        word = block * wire.BLOCK_BYTES + 8 * (2 + choose.randrange(max(count - 2, 1)))
        swapped = slice(word, word + 16)  # two records change places
        changed[swapped] = changed[word + 8 : word + 16] + changed[word : word + 8]
        seal(changed, block)
        if changed == data:
            continue
        (path / "bus.0.raw").write_bytes(changed)
        if in_archive:
            archived(path)
        with pytest.raises(ParseError, match=r"bus.0.outline: is not of bus.0.*remove it"):
            parse(path, workers=workers)
        (violation,) = [c.first for c in check(path).checks if c.name == "outline"]
        assert violation.file == "bus.0.outline"
        (path / "bus.0.outline").unlink()
        parse(path, workers=workers)


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGES, ids=[m for *_, m in DAMAGES])
def test_bad_input_is_told_as_without(session, damage, error, message):
    path = outlined(session(steps=600))
    damage(path)
    with pytest.raises(error, match=message):
        parse(path)
    assert not (path / "results").exists()


def test_one_of_other_chunks_is_left_out(session, looked, monkeypatch):
    path = session(steps=600)
    with monkeypatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", 2)
        outlined(path)
    looked.clear()
    parse(path)
    assert looked


def test_one_of_other_pieces_is_left_out(small, tmp_path, looked):
    path = shutil.copytree(small, tmp_path / "s")
    file = path / "bus.0.outline"
    file.write_bytes(sealed(file.read_bytes(), set_to("piece", 8, "header")))
    parse(path)
    assert looked


def test_salvage_does_without(session, looked):
    path = outlined(session(steps=600))
    flip(path / "bus.0.raw", 8192 + 100)
    looked.clear()
    assert parse(path, salvage=True).summary["losses"]["blocks"] == 1
    assert looked


def test_an_incomplete_recording_does_without(session, looked):
    path = outlined(session(steps=300))
    fields = json.loads((path / "session.json").read_text())
    fields.update(complete=False, incomplete_reason="interrupted")
    (path / "session.json").write_text(json.dumps(fields))
    looked.clear()
    parse(path)
    assert looked


# The file -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = busy_machine(phases=2, entries=True, granularity=64).write(
        tmp_path_factory.mktemp("small") / "s"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_reader, "CHUNK_BLOCKS", 3)
        patch.setattr(block_index, "GROUP_RECORDS", 300)
        outlined(path)
    return path


@settings(max_examples=150)
@given(data=st.data())
def test_damage_to_it_is_told(small, tmp_path_factory, data):
    """Nothing of it can be changed without being told."""
    path = tmp_path_factory.mktemp("damaged") / "bus.0.outline"
    whole = (small / "bus.0.outline").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:at])
    else:
        path.write_bytes(whole)
        flip(path, at, 1 << data.draw(st.integers(0, 7)))
    with pytest.raises(ParseError, match="remove it"):
        list(block_index.Outline(path).seen())


def test_damage_to_it_is_told_by_who_parses(small, tmp_path):
    for at in (0, 30, -200, -1):
        path = shutil.copytree(small, tmp_path / str(at))
        size = (path / "bus.0.outline").stat().st_size
        flip(path / "bus.0.outline", at % size)
        with pytest.raises(ParseError, match=r"bus.0.outline: .*remove it"):
            parse(path)
        assert not check(path).ok
        (path / "bus.0.outline").unlink()
        parse(path)


def sealed(data: bytes, change) -> bytes:
    """With a right CRC, after `change` of header, rows of chunks and groups, and end."""
    header = np.frombuffer(data, block_index.HEADER, 1).copy()[0]
    end = np.frombuffer(data, block_index.END, 1, len(data) - block_index.END.itemsize).copy()[0]
    at = int(end["offset"])
    footer = bytearray(data[at : -block_index.END.itemsize])
    chunks_bytes = -(-int(end["blocks"]) // 3) * block_index.CHUNK.itemsize
    groups_at = len(footer) - int(end["groups"]) * block_index.GROUP.itemsize
    chunks = np.frombuffer(memoryview(footer)[:chunks_bytes], block_index.CHUNK)
    groups = np.frombuffer(memoryview(footer)[groups_at:], block_index.GROUP)
    change(header=header, chunks=chunks, groups=groups, end=end)
    end["crc"] = zlib.crc32(header.tobytes() + footer)
    return header.tobytes() + data[block_index.HEADER.itemsize : at] + footer + end.tobytes()


def set_to(field: str, value: int, of: str = "chunks"):
    def change(**parts):
        if of in ("header", "end"):
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
        set_to("offset", 1 << 62, "groups"),
        set_to("data_bytes", 1 << 31, "groups"),
        set_to("chunks", 1 << 40, "groups"),
        set_to("chunks", 0, "groups"),
        set_to("blocks", 1 << 60, "end"),
        set_to("groups", 1 << 60, "end"),
        set_to("offset", 1 << 63, "end"),
    ],
)
def test_what_cannot_be_is_not_believed(small, tmp_path, change):
    path = tmp_path / "bus.0.outline"
    whole = (small / "bus.0.outline").read_bytes()
    path.write_bytes(sealed(whole, lambda **_: None))
    list(block_index.Outline(path).seen())
    path.write_bytes(sealed(whole, change))
    with pytest.raises(ParseError, match="remove it"):
        list(block_index.Outline(path).seen())


def test_of_another_version(small, tmp_path):
    path = tmp_path / "bus.0.outline"
    shutil.copy(small / "bus.0.outline", path)
    flip(path, 8, 2)
    with pytest.raises(ParseError, match="version 3; this ptat reads version 1"):
        block_index.Outline(path)


def test_its_stores_are_those_of_the_chunks(small):
    found = block_index.Outline(small / "bus.0.outline")
    there = [chunk.stores() for chunk in BusReader(small / "bus.0.raw")]
    assert sum(position.size for position, *_ in there) > 3 * block_index.GROUP_RECORDS
    for number in random.Random(1).sample(range(len(there)), len(there)):
        for one, other in zip(found.stores(number, number + 1), there[number], strict=True):
            np.testing.assert_array_equal(one, other)


def test_stores_are_remembered_if_they_are_not_too_many(small, monkeypatch):
    """Those of the first group, where the second's are too many."""
    groups = list(block_index.Outline(small / "bus.0.outline").seen())
    sizes = [seen.stores[0].size for seen in groups]
    assert len(groups) > 1 and sizes[1]
    whole = block_index.Outline(small / "bus.0.outline")
    for _ in range(2):
        list(whole.seen())
        assert whole._stores_remembered == sum(sizes)
    read = []
    decode = block_index.Outline._seen
    monkeypatch.setattr(
        block_index.Outline, "_seen", lambda self, group: read.append(group) or decode(self, group)
    )
    monkeypatch.setattr(block_index, "STORES_REMEMBERED", sizes[0] + sizes[1] - 1)
    found = block_index.Outline(small / "bus.0.outline")
    fresh = block_index.Outline(small / "bus.0.outline")
    list(found.seen())
    chunks = len(found.chunks)
    read.clear()
    remembered = found.stores(0, chunks)
    assert read == list(range(1, len(groups)))
    again = fresh.stores(0, chunks)
    for one, other in zip(remembered, again, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    sent = pickle.loads(pickle.dumps(found))
    assert not sent._remembered and not sent._stores_remembered


@pytest.mark.parametrize("told", [False, True])
def test_stores_of_a_part(tmp_path, told):
    """Where something was lost they are not given, nor, unless told, where there are marks."""
    machine = busy_machine(kind=Steady)
    at = len(machine.bus) // 2
    machine.bus[at] = machine.bus[at][0], None, 1
    path = outlined(machine.write(tmp_path / "s"))
    reader = BusReader(path / "bus.0.raw")
    if told:
        assert block_index.use(reader, Session(path).region)
    chunks = list(BusReader(path / "bus.0.raw").chunks())
    there = [Seen.of(chunk) for chunk in reader.chunks()]
    good = [not chunk.lost if told else isinstance(chunk, PlainChunk) for chunk in chunks]
    assert not good[-1] or told
    choose = random.Random(2)
    compared = 0
    for _ in range(200):
        first, end = sorted(choose.sample(range(len(there) + 1), 2))
        part = reader.part(3 * first, min(3 * end, reader.blocks))
        found = part.stores()
        assert (found is not None) == all(good[first:end])
        if found:
            compared += 1
            for one, other in zip(found, Seen.joined(there[first:end]).stores, strict=True):
                np.testing.assert_array_equal(one, other)
    assert 20 < compared < 200


def test_it_is_whole_or_not_there(session, monkeypatch):
    path = session(steps=200)
    flip(path / "bus.0.raw", 100)
    with pytest.raises(ParseError, match="CRC"):
        block_index.write(path / "bus.0.raw")
    assert not list(path.glob("bus.0.outline*"))


def test_no_session_is_needed_to_read_it(small):
    assert sum(
        seen.accesses for seen in block_index.Outline(small / "bus.0.outline").seen()
    ) == sum(chunk.accesses for chunk in BusReader(small / "bus.0.raw").chunks())


def test_it_can_be_sent(small):
    """To another process, as a reader that has it is."""
    found = pickle.loads(pickle.dumps(block_index.Outline(small / "bus.0.outline")))
    assert isinstance(found._source, Source)
    assert list(found.seen())


# Sums ---------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 1 << 32),
    size=st.integers(1, 40),
    changes=st.lists(
        st.tuples(st.integers(0, 40 * 1024 - 1), st.integers(1, (1 << 64) - 1)),
        min_size=1, max_size=1,
    ) | st.tuples(st.integers(0, 40 * 1024 - 1), st.integers(0, 40 * 1024 - 1)),
)  # fmt: skip
def test_sums_tell_one_change_and_two_that_change_places(seed, size, changes):
    words = np.random.default_rng(seed).integers(0, 1 << 64, (size, 1024), np.uint64)
    before = decode.sums_of(words)
    assert before.shape == (-(-size // decode.PIECE_BLOCKS), 2)
    flat = words.reshape(-1)
    if isinstance(changes, list):
        ((at, bits),) = changes
        flat[at % flat.size] ^= np.uint64(bits)
    else:
        one, other = (at % flat.size for at in changes)
        if flat[one] == flat[other]:
            return
        flat[[one, other]] = flat[[other, one]]
    assert (decode.sums_of(words) != before).any()


def test_sums_are_what_they_are_said_to_be():
    words = np.random.default_rng(1).integers(
        0, 1 << 64, (decode.PIECE_BLOCKS + 2, 1024), np.uint64
    )
    for piece, (total, by_place) in enumerate(decode.sums_of(words).tolist()):
        here = words[piece * decode.PIECE_BLOCKS :][: decode.PIECE_BLOCKS].ravel().tolist()
        assert total == sum(here) % (1 << 64)
        assert by_place == sum(i * word for i, word in enumerate(here, 1)) % (1 << 64)


def test_nothing_but_errors_of_ptat(small, tmp_path):
    """Whatever stands in it, and its CRCs are right."""
    choose = random.Random(5)
    whole = (small / "bus.0.outline").read_bytes()
    path = shutil.copytree(small, tmp_path / "s")
    refused = 0
    for _ in range(60):

        def change(chunks, **_):
            field = choose.choice(block_index.CHUNK.names)
            row = choose.randrange(len(chunks))
            chunks[field][row] ^= np.uint64(1) << np.uint64(choose.randrange(20))

        (path / "bus.0.outline").write_bytes(sealed(whole, change))
        try:
            parse(path)
        except PtatError:
            refused += 1
    assert refused > 10


def test_groups_are_bounded(tmp_path, monkeypatch):
    """However many records other than reads there are, few are held at a time."""
    monkeypatch.setattr(block_index, "GROUP_RECORDS", 3000)
    data, _ = encode([("access", 1, 64, True), ("lost", 1, 9, None)], repeat=20_000)
    (tmp_path / "bus.0.raw").write_bytes(data)
    block_index.write(tmp_path / "bus.0.raw")
    found = block_index.Outline(tmp_path / "bus.0.outline")
    groups = [seen.stores[0].size + len(seen.lost) for seen in found.seen()]
    assert sum(groups) == 40_000
    assert max(groups) < 3000 + 3 * wire.BLOCK_WORDS
    monkeypatch.setattr(
        block_index, "GROUP_RECORDS", max(groups) - 3 * (wire.BLOCK_RECORDS_MAX + 1)
    )
    with pytest.raises(ParseError, match="damaged"):
        block_index.Outline(tmp_path / "bus.0.outline")
