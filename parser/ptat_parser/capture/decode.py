# SPDX-License-Identifier: BSD-2-Clause
"""Verifies the blocks of a capture stream and decodes their records.

The layout is `ptat_parser.wire`'s. Nearly all words of a capture are accesses, so there is
one compiled loop for blocks that hold nothing else (`verify_plain`), and one for any block
(`decode_blocks`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.compiled.jit import Integer, inlined, inner, jit

U64 = npt.NDArray[np.uint64]


Stores: TypeAlias = tuple[npt.NDArray[np.int64], U64, U64]
"""Positions, times and addresses of writes."""

COUNTER_TICKS = 1 << wire.TIME_BITS
"""Ticks after which the stream's counter wraps; decoded times continue across the wrap."""

END_OF_TIME = 4 * COUNTER_TICKS
"""Later than any record's time."""


# numba computes in the types of its operands: unsigned constants keep words unsigned.
WORD_HEADER = wire.WORD_HEADER
WORD_TIME = wire.WORD_TIME
WORD_FIRST_RECORD = wire.WORD_FIRST_RECORD
WORD_CHECK = wire.WORD_CHECK
BLOCK_RECORDS_MAX = wire.BLOCK_RECORDS_MAX
ONE = np.uint64(1)
TAG_SHIFT = np.uint64(wire.TAG_SHIFT)
TAG_CHECK = np.uint64(wire.Tag.CHECK)
TAG_ACCESS = np.uint64(wire.Tag.ACCESS)
TAG_TIME = np.uint64(wire.Tag.TIME)
TAG_LOST = np.uint64(wire.Tag.LOST)
TAG_MARK = np.uint64(wire.Tag.MARK)
CHECK_COUNT_SHIFT = np.uint64(wire.CHECK_COUNT_SHIFT)
COUNT_MASK = np.uint64((1 << wire.CHECK_COUNT_BITS) - 1)
ACCESS_WRITE_SHIFT = np.uint64(wire.ACCESS_WRITE_SHIFT)
ACCESS_DELTA_SHIFT = np.uint64(wire.ACCESS_DELTA_SHIFT)
ACCESS_DELTA_MASK = np.uint64((1 << wire.ACCESS_DELTA_BITS) - 1)
ACCESS_ADDRESS_MASK = np.uint64((1 << wire.ACCESS_ADDRESS_BITS) - 1)
ADDRESS_UNIT_SHIFT = np.uint64(wire.ADDRESS_UNIT_SHIFT)
TIME_MASK = np.uint64(COUNTER_TICKS - 1)
AHEAD_MAX = np.uint64(COUNTER_TICKS // 2)
EVENT_DELTA_SHIFT = np.uint64(wire.EVENT_DELTA_SHIFT)
EVENT_DELTA_MASK = np.uint64((1 << wire.EVENT_DELTA_BITS) - 1)
EVENT_VALUE_MASK = np.uint64((1 << wire.EVENT_DELTA_SHIFT) - 1)
HEADER_KIND_SHIFT = np.uint64(wire.HEADER_CHANNEL_SHIFT)
HEADER_SEQ_MASK = np.uint64((1 << wire.HEADER_SEQ_BITS) - 1)
CHECK_CRC_MASK = np.uint64((1 << wire.CHECK_CRC_BITS) - 1)
CHECK_ZERO_MASK = np.uint64(0xFFFF << wire.CHECK_CRC_BITS)
ACCESS_TAG_BITS = TAG_ACCESS << TAG_SHIFT
TAG_MASK = ~((ONE << TAG_SHIFT) - ONE)
WRITE_BIT = ONE << ACCESS_WRITE_SHIFT


def crcs(words: U64) -> U64:
    """CRC of each block, without its last word."""
    view = words.data.cast("B")
    crc32, checked_bytes = zlib_ng.crc32, wire.WORD_CHECK * 8
    return np.array(
        [crc32(view[at : at + checked_bytes]) for at in range(0, len(view), wire.BLOCK_BYTES)],
        np.uint64,
    )


def kind_of(channel: int) -> np.uint64:
    """The bits of a block's header from the channel field up."""
    kind = (
        wire.MAGIC << wire.HEADER_MAGIC_SHIFT
        | wire.VERSION << wire.HEADER_VERSION_SHIFT
        | channel << wire.HEADER_CHANNEL_SHIFT
    )
    return np.uint64(kind >> wire.HEADER_CHANNEL_SHIFT)


def problem_of(block: U64, crc: int, channel: int, expected_seq: int) -> str:
    """Describe what is wrong with a damaged block; `expected_seq` is -1 for the first block."""
    header, check = int(block[wire.WORD_HEADER]), int(block[wire.WORD_CHECK])
    if header >> wire.HEADER_MAGIC_SHIFT != wire.MAGIC:
        return "not a block of a capture stream (wrong magic number)"
    version = header >> wire.HEADER_VERSION_SHIFT & ((1 << wire.HEADER_VERSION_BITS) - 1)
    if version != wire.VERSION:
        return f"format version {version}; this ptat reads version {wire.VERSION}"
    if check & int(CHECK_CRC_MASK) != crc:
        return f"damaged: CRC {crc:#010x}, {check & int(CHECK_CRC_MASK):#010x} expected"
    if check >> wire.TAG_SHIFT != wire.Tag.CHECK or check & int(CHECK_ZERO_MASK):
        return "damaged: the check word is malformed"
    if check >> wire.CHECK_COUNT_SHIFT & int(COUNT_MASK) > wire.BLOCK_RECORDS_MAX:
        return "damaged: more records than a block can hold"
    of_channel = header >> wire.HEADER_CHANNEL_SHIFT & ((1 << wire.HEADER_CHANNEL_BITS) - 1)
    if of_channel != channel:
        return f"of channel {of_channel}, not {channel}"
    seq = header & SEQ_MASK
    if expected_seq >= 0 and (seq - expected_seq) & SEQ_MASK > SEQ_MASK // 2:
        return f"out of order: sequence number {seq}, {expected_seq} expected"
    # The CRC is right, but it does not cover the number of records.
    return "damaged: a word that is not a record, or time runs backwards"


SEQ_MASK = (1 << wire.HEADER_SEQ_BITS) - 1


# The decoder's state between blocks; all int64.
(
    NEXT_SEQ,  # the sequence number expected next, -1 before the first block
    MISSING_BLOCKS,  # damaged blocks since the last good one
    LAST_TICKS,  # time of the last record other than TIME
) = range(3)


OTHERS, READS, WRITES = range(3)
"""Contents of a chunk: words other than accesses, reads only, or accesses with some writes."""


@inner
def _is_good(words: U64, crc: Integer, kind: Integer, seq: Integer, last: Integer) -> bool:
    """Whether a block agrees with its header and check word, and may follow the previous block.

    `seq`: expected sequence number, or -1 for any; `last`: the state's `LAST_TICKS`.
    """
    header, check = words[WORD_HEADER], words[WORD_CHECK]
    return bool(
        header >> HEADER_KIND_SHIFT == kind
        and check & CHECK_CRC_MASK == crc
        and check >> TAG_SHIFT == TAG_CHECK
        and check & CHECK_ZERO_MASK == 0
        and check >> CHECK_COUNT_SHIFT & COUNT_MASK <= BLOCK_RECORDS_MAX
        and _gap(words, seq) <= SEQ_MASK // 2
        and words[WORD_TIME] <= TIME_MASK
        and (_ahead(words, last) < AHEAD_MAX or seq < 0)
    )


@inner
def _ahead(words: U64, last: Integer) -> Integer:
    """Ticks from `last` to the block's time."""
    return (words[WORD_TIME] - last) & TIME_MASK


@inner
def _gap(words: U64, seq: Integer) -> Integer:
    """Number of blocks missing before this one."""
    return (np.int64(words[WORD_HEADER] & HEADER_SEQ_MASK) - seq) & SEQ_MASK if seq >= 0 else 0


@inlined
def delta_of(word: Integer) -> Integer:
    """Ticks from the previous access to this one."""
    return word >> ACCESS_DELTA_SHIFT & ACCESS_DELTA_MASK


@jit
def verify_plain(words: U64, crc: U64, kind: Integer, state: npt.NDArray[np.int64]) -> Integer:
    """Verify blocks and return their contents; does not change `state` if that is `OTHERS`."""
    writes = np.uint64(0)
    seq = state[NEXT_SEQ]
    last = np.uint64(state[LAST_TICKS])
    if state[MISSING_BLOCKS]:
        return OTHERS
    for b in range(words.shape[0]):
        block = words[b]
        if (
            not _is_good(block, crc[b], kind, seq, last)
            or _gap(block, seq)
            or block[WORD_CHECK] >> CHECK_COUNT_SHIFT & COUNT_MASK != BLOCK_RECORDS_MAX
            or last + _ahead(block, last) != block[WORD_TIME]  # the counter has wrapped
        ):
            return OTHERS
        seq = (np.int64(block[WORD_HEADER] & HEADER_SEQ_MASK) + 1) & SEQ_MASK
        last = block[WORD_TIME]
        others = np.uint64(0)
        for i in range(WORD_FIRST_RECORD, WORD_CHECK):
            word = block[i]
            others |= word ^ ACCESS_TAG_BITS
            last += delta_of(word)
        if others & TAG_MASK:
            return OTHERS
        writes |= others
    state[NEXT_SEQ] = seq
    state[LAST_TICKS] = np.int64(last)
    return WRITES if writes & WRITE_BIT else READS


def plain_accesses(words: U64) -> tuple[U64, U64, npt.NDArray[np.bool_]]:
    """Times (ticks), addresses (bytes) and directions in blocks that hold only accesses."""
    records = words[:, WORD_FIRST_RECORD:WORD_CHECK]
    time = np.cumsum(delta_of(records), axis=1, dtype=np.uint64)
    time += words[:, WORD_TIME, np.newaxis]
    address = (records & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
    return time.ravel(), address.ravel(), (records & WRITE_BIT != 0).ravel()


class Decoded(NamedTuple):
    """The output arrays of `decode_blocks`.

    `good`: which blocks are undamaged; of these the accesses' `time` (ticks), `address` (bytes) and
    `write`, and `others`: rows for `chunks.lost_and_marks`.
    """

    good: npt.NDArray[np.bool_]
    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    others: U64

    @staticmethod
    def room(blocks: int) -> Decoded:
        """Arrays that are large enough for this number of blocks."""
        capacity = blocks * wire.BLOCK_RECORDS_MAX
        return Decoded(
            np.empty(blocks, np.bool_),
            np.empty(capacity, np.uint64),
            np.empty(capacity, np.uint64),
            np.empty(capacity, np.bool_),
            np.empty((capacity + blocks, 5), np.uint64),
        )


@jit
def decode_blocks(
    words: U64, crc: U64, kind: Integer, state: npt.NDArray[np.int64], into: Decoded
) -> tuple[Integer, Integer]:
    """Verify and decode blocks, `words` of shape ``(blocks, 1024)``.

    `crc` holds the blocks' expected CRCs, `kind` the expected bits of their headers from the
    channel field up. Returns the number of accesses and of other records.
    """
    n, m = np.int64(0), np.int64(0)  # numba gives literals other types
    good, others = into.good, into.others
    last = np.uint64(state[LAST_TICKS])
    for b in range(words.shape[0]):
        good[b] = _is_good(words[b], crc[b], kind, state[NEXT_SEQ], last)
        if not good[b]:
            state[MISSING_BLOCKS] += 1
            continue
        count: Integer = np.int64(words[b, WORD_CHECK] >> CHECK_COUNT_SHIFT & COUNT_MASK)
        gap = _gap(words[b], state[NEXT_SEQ])
        ahead = _ahead(words[b], last)
        now = last + ahead
        # Damaged blocks that were skipped are part of the gap.
        missing = max(gap, state[MISSING_BLOCKS])
        first_other = m
        if missing:
            others[m, 0], others[m, 1], others[m, 2] = n, last, now
            others[m, 3], others[m, 4] = 0, missing
            m += 1
        end_n, end_m, end_ticks = _decode_records(words[b], count, n, m, (last, now), into)
        if end_n < 0:
            m = first_other
            state[MISSING_BLOCKS] += 1
            good[b] = False
            continue
        n, m, last = end_n, end_m, end_ticks
        state[NEXT_SEQ] = (np.int64(words[b, WORD_HEADER] & HEADER_SEQ_MASK) + 1) & SEQ_MASK
        state[MISSING_BLOCKS] = 0
    state[LAST_TICKS] = np.int64(last)
    return n, m


@inner
def _decode_records(
    block: U64,
    count: Integer,
    n: Integer,
    m: Integer,
    times: tuple[Integer, Integer],
    into: Decoded,
) -> tuple[Integer, Integer, Integer]:
    """Decode the records of a block; `times`: the state's `LAST_TICKS` and the block's time.

    Writes accesses to the rows from `n` on, and other records to the rows of `others` from `m` on.
    Returns the next free row of each, and the new `LAST_TICKS`. The first is -1 if a word is not a
    record. A TIME record may be written just before a LOST record, so accesses may have been lost
    before it: a loss began at the last record of another kind.
    """
    last, now = times
    _, time, address, write, others = into
    end: Integer = WORD_FIRST_RECORD + count
    valid = True
    for j in range(WORD_FIRST_RECORD, end):
        word = block[j]
        tag = word >> TAG_SHIFT
        if tag == TAG_ACCESS:
            now += delta_of(word)
            time[n] = now
            address[n] = (word & ACCESS_ADDRESS_MASK) << ADDRESS_UNIT_SHIFT
            write[n] = word >> ACCESS_WRITE_SHIFT & ONE
            n += 1
            last = now
        elif tag == TAG_TIME:
            ahead = (word - now) & TIME_MASK
            valid &= ahead < AHEAD_MAX
            now += ahead
        elif tag in (TAG_LOST, TAG_MARK):
            others[m, 0], others[m, 1] = n, last
            now += word >> EVENT_DELTA_SHIFT & EVENT_DELTA_MASK
            others[m, 2], others[m, 3], others[m, 4] = now, tag, word & EVENT_VALUE_MASK
            m += 1
            last = now
        else:
            valid = False
    padding = np.uint64(0)
    for j in range(end, WORD_CHECK):
        padding |= block[j]
    return n if valid and padding == 0 else -1, m, last
