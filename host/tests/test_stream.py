# SPDX-License-Identifier: BSD-2-Clause
"""What `tidy` makes of a stream that the link mangled."""

import io
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_host.boards.stream import StreamReport, tidy
from ptat_parser import wire
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter

BLOCKS = 12


def _blocks() -> list[bytes]:
    file = io.BytesIO()
    numbers = random.Random(3)
    with BlockWriter(file) as writer:
        ticks = 0
        while writer.blocks < BLOCKS - 1:
            ticks += numbers.randrange(100)
            writer.access(ticks, numbers.randrange(1 << 30) * 8)
    data = file.getvalue()
    return [data[at : at + wire.BLOCK_BYTES] for at in range(0, len(data), wire.BLOCK_BYTES)]


GOOD = _blocks()


def check(tmp_path, data: bytes, kept: list[int], sent: int | None, **expected: int) -> None:
    path = tmp_path / "bus.0.raw"
    path.write_bytes(data)
    assert tidy(path, sent_blocks=sent) == StreamReport(blocks=len(kept), **expected)
    assert path.read_bytes() == b"".join(GOOD[i] for i in kept)
    if kept:
        lost = sum(lost.blocks for chunk in BusReader(path) for lost in chunk.lost)
        assert lost == len(range(kept[0], kept[-1] + 1)) - len(kept)


def test_a_good_stream_is_not_touched(tmp_path):
    path = tmp_path / "bus.0.raw"
    path.write_bytes(b"".join(GOOD))
    path.chmod(0o444)
    before = path.stat().st_mtime_ns
    assert tidy(path, sent_blocks=BLOCKS) == StreamReport(blocks=BLOCKS)
    assert path.stat().st_mtime_ns == before


def test_nothing(tmp_path):
    check(tmp_path, b"", [], None)
    check(tmp_path, b"", [], 5, missing_at_end=5)
    check(tmp_path, b"PT" * 5000, [], None, other_bytes=10000)


def test_a_cut_tail(tmp_path):
    check(tmp_path, b"".join(GOOD)[:-1], list(range(BLOCKS - 1)), None, other_bytes=8191)
    check(
        tmp_path,
        b"".join(GOOD)[:-1],
        list(range(BLOCKS - 1)),
        BLOCKS,
        other_bytes=8191,
        missing_at_end=1,
    )


def test_what_is_missing_in_front(tmp_path):
    check(tmp_path, b"".join(GOOD[2:]), list(range(2, BLOCKS)), BLOCKS, missing_inside=2)


def test_a_damaged_block(tmp_path):
    data = bytearray(b"".join(GOOD))
    data[4 * wire.BLOCK_BYTES] ^= 1  # its sequence number
    kept = [i for i in range(BLOCKS) if i != 4]
    check(tmp_path, data, kept, BLOCKS, missing_inside=1, other_bytes=wire.BLOCK_BYTES)


def test_another_channel(tmp_path):
    file = io.BytesIO()
    with BlockWriter(file, channel=1) as writer:
        writer.access(0, 0)
    data = GOOD[0] + file.getvalue() + GOOD[1]
    check(tmp_path, data, [0, 1], 2, other_bytes=wire.BLOCK_BYTES)


pieces = st.lists(
    st.one_of(
        st.integers(0, BLOCKS - 1),
        # Garbage, some of which looks like the start of a block.
        st.binary(max_size=50).map(lambda data: data + GOOD[0][:8]),
        st.integers(1, wire.BLOCK_BYTES - 1).map(lambda size: GOOD[0][:size]),
    ),
    max_size=14,
)


@settings(max_examples=60)
@given(pieces)
def test_any_mixture(tmp_path_factory, mixture):
    """Against the obvious: take each whole block that is newer than the last."""
    path = tmp_path_factory.getbasetemp() / "mixture"
    path.write_bytes(b"".join(GOOD[p] if isinstance(p, int) else p for p in mixture))
    kept: list[int] = []
    duplicates = 0
    for piece in mixture:
        if isinstance(piece, int):
            if kept and piece <= kept[-1]:
                duplicates += 1
            else:
                kept.append(piece)
    report = tidy(path)
    assert path.read_bytes() == b"".join(GOOD[i] for i in kept)
    assert report.blocks == len(kept)
    assert report.duplicate_blocks == duplicates
    assert report.other_bytes == sum(len(p) for p in mixture if isinstance(p, bytes))
    assert report.missing == (kept[-1] - kept[0] + 1 - len(kept) if kept else 0)
