# SPDX-License-Identifier: BSD-2-Clause
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_parser import parse, wire
from ptat_parser.capture.chunks import Chunk, MarkRecord
from ptat_parser.capture.merge import MergedReader
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.errors import BadInput, SessionError

Access = tuple[int, int, bool]  # ticks, address, write


def split(path: Path, accesses: Sequence[Access], channel_of: Callable[[int], int]) -> list[Path]:
    """Streams of two channels, started and stopped."""
    paths = [path / "bus.0.raw", path / "bus.1.raw"]
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(BlockWriter(stack.enter_context(file.open("wb")), channel))
            for channel, file in enumerate(paths)
        ]
        for writer in writers:
            writer.mark(0, wire.Mark.START)
        for ticks, address, write in accesses:
            writers[channel_of(address)].access(ticks, address, write)
        for writer in writers:
            writer.mark(accesses[-1][0] + 1 if accesses else 1, wire.Mark.STOP)
    return paths


def merged(paths: Sequence[Path], chunk_blocks: int = 1024) -> list[Chunk]:
    readers = [BusReader(path, channel) for channel, path in enumerate(paths)]
    for reader in readers:
        reader.chunk_blocks = chunk_blocks
    return list(MergedReader(readers))


def accesses_of(chunks: Sequence[Chunk]) -> list[Access]:
    return [
        access
        for chunk in chunks
        for access in zip(
            chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True
        )
    ]


@settings(max_examples=50)
@given(
    steps=st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.booleans()), max_size=6000),
    chunk_blocks=st.integers(1, 3),
)
def test_order_is_that_of_time(tmp_path_factory, steps, chunk_blocks):
    path = tmp_path_factory.mktemp("merge")
    ticks = np.cumsum([step for step, _, _ in steps]).tolist()
    accesses = [
        (ticks[i], i << 8 | channel << 6, write) for i, (_, channel, write) in enumerate(steps)
    ]
    chunks = merged(split(path, accesses, lambda address: address >> 6 & 1), chunk_blocks)
    assert accesses_of(chunks) == accesses
    marks = [mark.code for chunk in chunks for mark in chunk.marks]
    assert marks == [wire.Mark.START, wire.Mark.STOP]


def test_ties_are_in_order_of_channels(tmp_path):
    accesses = [(5, 0x40, False), (5, 0x80, False), (5, 0xC0, True), (6, 0x100, False)]
    paths = split(tmp_path, accesses, lambda address: address >> 6 & 1)
    assert [a for _, a, _ in accesses_of(merged(paths))] == [0x80, 0x40, 0xC0, 0x100]


def test_one_channel_is_silent_for_long(tmp_path):
    accesses = [(i + 1, 0, False) for i in range(10_000)]
    accesses.insert(7000, (accesses[6999][0], 0x40, True))
    paths = split(tmp_path, accesses, lambda address: address >> 6)
    assert accesses_of(merged(paths, chunk_blocks=1)) == accesses


@pytest.mark.parametrize("first", [0, 1])
def test_a_channel_that_begins_after_the_clock_wrapped(tmp_path, first):
    wrap = 1 << 60
    paths = [tmp_path / "bus.0.raw", tmp_path / "bus.1.raw"]
    times = {first: [wrap - 30, wrap - 10, wrap + 10], 1 - first: [wrap + 5, wrap + 15]}
    for channel, path in enumerate(paths):
        with path.open("wb") as file, BlockWriter(file, channel) as writer:
            for ticks in times[channel]:
                writer.access(ticks, 0)
    assert [ticks for ticks, *_ in accesses_of(merged(paths))] == sorted(times[0] + times[1])


def write_with_loss(path: Path) -> list[Path]:
    """Channel 1 loses 3 accesses between ticks 20 and 60; channel 0 goes on."""
    paths = [path / "bus.0.raw", path / "bus.1.raw"]
    with paths[0].open("wb") as file, BlockWriter(file, 0) as writer:
        for ticks in (10, 30, 50, 70):
            writer.access(ticks, 0)
    with paths[1].open("wb") as file, BlockWriter(file, 1) as writer:
        writer.access(20, 0x40)
        writer.lost(60, 3)
        writer.access(80, 0x40)
    return paths


def test_a_loss_parts_what_was_before_from_what_comes_after(tmp_path):
    chunks = merged(write_with_loss(tmp_path))
    lost = []
    start = 0
    for chunk in chunks:
        lost += [(start + loss.position, loss.count) for loss in chunk.lost]
        start += chunk.time.size
    # Accesses are at ticks 10 20 30 50 70 80: right after 20, and right before 80.
    assert lost == [(2, 3), (5, 0)]
    since = {(loss.since_ticks, loss.time_ticks) for chunk in chunks for loss in chunk.lost}
    assert since == {(20, 60)}


def test_a_loss_that_no_other_channel_saw_is_told_once(tmp_path):
    paths = [tmp_path / "bus.0.raw", tmp_path / "bus.1.raw"]
    with paths[0].open("wb") as file, BlockWriter(file, 0) as writer:
        writer.access(10, 0)
    with paths[1].open("wb") as file, BlockWriter(file, 1) as writer:
        writer.access(20, 0x40)
        writer.lost(30, 3)
        writer.access(40, 0x40)
    lost = [loss for chunk in merged(paths) for loss in chunk.lost]
    assert [loss.count for loss in lost] == [3]


@pytest.mark.parametrize("stopped", [0, 1])
def test_not_stopped_before_all_have(tmp_path, stopped):
    paths = split(tmp_path, [(5, 0, False), (6, 0x40, False)], lambda address: address >> 6)
    with paths[stopped].open("wb") as file, BlockWriter(file, stopped) as writer:
        writer.mark(0, wire.Mark.START)
        writer.access(7, 0)
    marks: list[MarkRecord] = [mark for chunk in merged(paths) for mark in chunk.marks]
    assert [mark.code for mark in marks] == [wire.Mark.START]


# Sessions ---------------------------------------------------------------------------------------


def channel_of(address: int) -> int:
    """A hash of the address, as memory controllers have."""
    return (address >> 6 ^ address >> 8 ^ address >> 13) & 1


def in_two_channels(path: Path) -> None:
    """Divide a session's capture as interleaving memory channels would."""
    description = json.loads((path / "session.json").read_text())
    whole = path / "bus.0.raw"
    accesses = accesses_of(list(BusReader(whole)))
    whole.unlink()
    split(path, accesses, channel_of)
    (channel,) = description["board"]["channels"]
    description["board"]["channels"] = [
        {**channel, "index": index, "file": f"bus.{index}.raw"} for index in (0, 1)
    ]
    for key in ("crc32", "files"):
        description.pop(key, None)
    (path / "session.json").write_text(json.dumps(description))


@pytest.mark.parametrize("granularity_bytes", [8, 64])
def test_two_channels_give_what_one_does(session, granularity_bytes):
    path = session(steps=400, granularity=granularity_bytes)
    one = parse(path)
    misses = [(time.tolist(), page.tolist()) for time, page in one.misses()]
    pages = one.pages()
    in_two_channels(path)
    two = parse(path)
    assert [(time.tolist(), page.tolist()) for time, page in two.misses()] == misses
    assert two.pages().equals(pages)
    assert two.summary["totals"] == one.summary["totals"]
    assert two.summary["unexplained"] == one.summary["unexplained"]
    assert two.summary["lost"] == 0


def test_a_channel_is_missing(session):
    path = session(steps=50)
    in_two_channels(path)
    (path / "bus.1.raw").unlink()
    with pytest.raises(BadInput, match=r"bus\.1\.raw: no such file"):
        parse(path)


@pytest.mark.parametrize(
    ("change", "message"), [("index", "have the same number"), ("tick_hz", "clocks differ")]
)
def test_channels_that_do_not_go_together(session, change, message):
    path = session(steps=50)
    in_two_channels(path)
    description = json.loads((path / "session.json").read_text())
    channels = description["board"]["channels"]
    channels[1][change] = {"index": 0, "tick_hz": 1e6}[change]
    (path / "session.json").write_text(json.dumps(description))
    with pytest.raises(SessionError, match=message):
        parse(path)
