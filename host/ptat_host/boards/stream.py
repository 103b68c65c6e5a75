# SPDX-License-Identifier: BSD-2-Clause
"""Turns the stream that arrived from a link into whole blocks in order.

A link that stalls or is reset can leave truncated blocks, duplicate blocks and foreign bytes in the
file, which the parser would refuse. They are removed and counted. The file is repaired in place,
because a disk that the capture filled has no room for a second one.
"""

from __future__ import annotations

import mmap
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ptat_parser import wire

_SEQ_MASK = (1 << wire.HEADER_SEQ_BITS) - 1
_CRC_MASK = (1 << wire.CHECK_CRC_BITS) - 1
_CHECK_VARIABLE = _CRC_MASK | ((1 << wire.CHECK_COUNT_BITS) - 1) << wire.CHECK_COUNT_SHIFT
"""Bits of a check word that differ between blocks."""


@dataclass
class StreamReport:
    """What a file of blocks contained."""

    blocks: int = 0
    """Good blocks, which remain in the file."""
    missing_inside: int = 0
    """Missing sequence numbers between good blocks."""
    missing_at_end: int = 0
    """Blocks after the last good one, of those that the board reports as sent."""
    duplicate_blocks: int = 0
    other_bytes: int = 0
    """Bytes outside of whole blocks."""

    @property
    def missing(self) -> int:
        """Blocks that were lost on the way."""
        return self.missing_inside + self.missing_at_end

    def as_dict(self) -> dict[str, int]:
        """For session.json."""
        return asdict(self)


def tidy(path: Path, channel: int = 0, sent_blocks: int | None = None) -> StreamReport:
    """Reduce the file to the good blocks of `channel`, each once and in order.

    A block that arrives after one with a higher sequence number counts as a duplicate. If the file
    is intact, nothing is written, and only the blocks' headers are read.

    :param sent_blocks: number of blocks that the board reports as sent; None: unknown.
    """
    report = StreamReport()
    size_bytes = path.stat().st_size
    if size_bytes and _is_tidy(path, size_bytes, channel):
        report.blocks = size_bytes // wire.BLOCK_BYTES
        first = 0
    elif size_bytes:
        first = _compact(path, channel, report)
    else:
        first = 0
    if sent_blocks is not None:
        # Numbers count from 0 at START: what is missing in front is missing inside.
        report.missing_inside += first
        found = report.blocks + report.missing_inside
        report.missing_at_end = max(0, sent_blocks - found)
    return report


def block_header(channel: int, seq: int) -> int:
    """The first word of a block."""
    return (
        wire.MAGIC << wire.HEADER_MAGIC_SHIFT
        | wire.VERSION << wire.HEADER_VERSION_SHIFT
        | channel << wire.HEADER_CHANNEL_SHIFT
        | seq
    )


def has_right_check(block: memoryview) -> bool:
    """Whether the last word of a block is its check word, with the right CRC."""
    check = int.from_bytes(block[wire.WORD_CHECK * 8 :], "little")
    tag_and_zeros = wire.Tag.CHECK << wire.TAG_SHIFT | (check & _CHECK_VARIABLE)
    return check == tag_and_zeros and check & _CRC_MASK == zlib.crc32(block[: wire.WORD_CHECK * 8])


def _is_tidy(path: Path, size_bytes: int, channel: int) -> bool:
    """Whether the file is blocks 0, 1, 2 … of the channel (the parser checks what is in them)."""
    if size_bytes % wire.BLOCK_BYTES:
        return False
    words = np.memmap(path, "<u8", "r")
    headers = words[:: wire.BLOCK_WORDS]
    seq = np.arange(len(headers), dtype=np.uint64) & np.uint64(_SEQ_MASK)
    return bool((headers == seq + np.uint64(block_header(channel, 0))).all())


def _compact(path: Path, channel: int, report: StreamReport) -> int:
    """Move the good blocks together; return the sequence number of the first."""
    # The upper half of a header is the same in each block of a channel.
    pattern = (block_header(channel, 0) >> 32).to_bytes(4, "little")
    expected: int | None = None
    first = 0
    end = 0
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size = len(data)
            at = 0
            while at < size:
                if not _is_block(data, at, pattern):
                    # The next place where one may begin.
                    following = data.find(pattern, at + 5)
                    following = size if following < 0 else following - 4
                    report.other_bytes += following - at
                    at = following
                    continue
                seq = int.from_bytes(data[at : at + 4], "little")
                gap = 0 if expected is None else (seq - expected) & _SEQ_MASK
                if gap > _SEQ_MASK // 2:
                    report.duplicate_blocks += 1
                else:
                    if expected is None:
                        first = seq
                    report.missing_inside += gap
                    report.blocks += 1
                    expected = (seq + 1) & _SEQ_MASK
                    if end != at:
                        os.pwrite(file.fileno(), data[at : at + wire.BLOCK_BYTES], end)
                    end += wire.BLOCK_BYTES
                at += wire.BLOCK_BYTES
        file.truncate(end)
    return first


def _is_block(data: mmap.mmap, at: int, pattern: bytes) -> bool:
    block = memoryview(data)[at : at + wire.BLOCK_BYTES]
    try:
        return len(block) == wire.BLOCK_BYTES and block[4:8] == pattern and has_right_check(block)
    finally:
        block.release()  # else the mapping could not be closed
