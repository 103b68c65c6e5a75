# SPDX-License-Identifier: BSD-2-Clause
"""Encodes one channel's capture stream, block by block."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.capture.decode import ACCESS_DELTA_MASK, COUNTER_TICKS, EVENT_DELTA_MASK

U64 = npt.NDArray[np.uint64]

_ACCESS_DELTA_MAX = int(ACCESS_DELTA_MASK)

_EVENT_DELTA_MAX = int(EVENT_DELTA_MASK)


class BlockWriter:
    """Writes one channel's capture stream to a binary file.

    Times are absolute ticks and must not run backwards; the stream holds their low 60 bits.
    Addresses are in bytes, multiples of 8. Use as a context manager: leaving it writes the last,
    partly filled block. `blocks` is the number of blocks written so far, which is the next block's
    sequence number.
    """

    def __init__(self, file: BinaryIO, channel: int = 0) -> None:
        self._file = file
        self._channel = channel
        self.blocks = 0
        self._time_ticks = 0
        self._block_time_ticks = 0
        self._words: list[int] = []

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def access(self, time_ticks: int, address: int, write: bool = False) -> None:
        """Append a read or write of `address`; `ValueError` if it does not fit into a record."""
        if address >> (wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT):
            raise ValueError(f"bus address {address:#x} does not fit into a record")
        delta = self._advance(time_ticks, _ACCESS_DELTA_MAX)
        self._words.append(
            wire.Tag.ACCESS << wire.TAG_SHIFT
            | int(write) << wire.ACCESS_WRITE_SHIFT
            | delta << wire.ACCESS_DELTA_SHIFT
            | address >> wire.ADDRESS_UNIT_SHIFT
        )

    def lost(self, time_ticks: int, count: int) -> None:
        """Append a LOST record: `count` accesses were lost since the last access or other event."""
        delta = self._advance(time_ticks, _EVENT_DELTA_MAX)
        self._words.append(
            wire.Tag.LOST << wire.TAG_SHIFT | delta << wire.EVENT_DELTA_SHIFT | count
        )

    def mark(self, time_ticks: int, code: wire.Mark, argument: int = 0) -> None:
        """Append a MARK record."""
        delta = self._advance(time_ticks, _EVENT_DELTA_MAX)
        self._words.append(
            wire.Tag.MARK << wire.TAG_SHIFT
            | delta << wire.EVENT_DELTA_SHIFT
            | code << wire.MARK_CODE_SHIFT
            | argument
        )

    def flush(self) -> None:
        """Write the block in progress, if it holds any record."""
        if not self._words:
            return
        block = np.zeros(wire.BLOCK_WORDS, "<u8")
        block[wire.WORD_HEADER] = (
            wire.MAGIC << wire.HEADER_MAGIC_SHIFT
            | wire.VERSION << wire.HEADER_VERSION_SHIFT
            | self._channel << wire.HEADER_CHANNEL_SHIFT
            | self.blocks
        )
        block[wire.WORD_TIME] = self._block_time_ticks % COUNTER_TICKS
        block[wire.WORD_FIRST_RECORD : wire.WORD_FIRST_RECORD + len(self._words)] = self._words
        seal(block, len(self._words))
        self._file.write(block.tobytes())
        self.blocks += 1
        self._words.clear()

    def _advance(self, time_ticks: int, delta_max: int) -> int:
        if time_ticks < self._time_ticks:
            raise ValueError(f"time runs backwards: {time_ticks} after {self._time_ticks}")
        records = 1 + (time_ticks - self._time_ticks > delta_max)  # a TIME record, too
        if len(self._words) + records > wire.BLOCK_RECORDS_MAX:
            self.flush()
        if not self._words:
            self._block_time_ticks = self._time_ticks = time_ticks
        delta = time_ticks - self._time_ticks
        self._time_ticks = time_ticks
        if delta > delta_max:
            self._words.append(wire.Tag.TIME << wire.TAG_SHIFT | time_ticks % COUNTER_TICKS)
            return 0
        return delta


def seal(block: U64, records: int) -> None:
    """Write the check word of a block that has `records` record words."""
    crc = zlib_ng.crc32(block[: wire.WORD_CHECK].tobytes())
    block[wire.WORD_CHECK] = (
        wire.Tag.CHECK << wire.TAG_SHIFT | records << wire.CHECK_COUNT_SHIFT | crc
    )
