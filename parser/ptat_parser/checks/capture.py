# SPDX-License-Identifier: BSD-2-Clause
"""A second reader of the capture, for `ptat_parser.checks.session`.

It scans word by word and has its own merging of channels. It shares only the definition of the
format with `ptat_parser.capture`, so that a mistake there shows as a contradiction.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.checks.report import Check, Report
from ptat_parser.compiled.jit import Integer, jit
from ptat_parser.formats.archive import ArchiveStream, RawStream, open_stream
from ptat_parser.formats.session import Channel, Session
from ptat_parser.order.first_pass import Progress

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

SCAN_BLOCKS = 256
"""Blocks of a channel held in memory at a time: 2 MiB."""
MARKER_STORED = "a store to the marker area, where markers are loads"


@dataclass
class Capture:
    """Contents of the words of all channels.

    `gaps` counts the signs of missing accesses: LOST records, some marks, and missing or unreadable
    blocks.
    """

    accesses: int = 0
    reads: int = 0
    readbacks: int = 0
    unexplained: int = 0
    gaps: int = 0
    lost_accesses: int = 0
    marker_stores: int = 0


class Accesses(NamedTuple):
    """Accesses: time (ticks), address (bytes), write, channel index, and word index there."""

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    channel: npt.NDArray[np.uint8]
    word: I64

    def where(self, session: Session, row: int) -> tuple[str, dict[str, int]]:
        """File and position of the access in `row`."""
        ticks, address = int(self.time[row]), int(self.address[row])
        place = {**_at(int(self.word[row])), "time_ticks": ticks, "address": address}
        return session.board.channels[self.channel[row]].file, place


def _words(stream: RawStream | ArchiveStream, at_a_time: int) -> Iterator[tuple[int, U64]]:
    """Yields the number of a first block, and whole blocks as words, shape ``(blocks, 1024)``."""
    blocks = stream.size_bytes // wire.BLOCK_BYTES
    for first in range(0, blocks, at_a_time):
        words = np.empty((min(at_a_time, blocks - first), wire.BLOCK_WORDS), np.uint64)
        stream.readinto(first * wire.BLOCK_BYTES, words.data.cast("B"))
        yield first, words


def _at(word: int) -> dict[str, int]:
    block, in_block = divmod(word, wire.BLOCK_WORDS)
    return {"block": block, "word": in_block, "byte": word * 8}


def check_channel(
    session: Session,
    channel: Channel,
    capture: Capture,
    report: Report,
    structure: Check,
    accesses: Check,
    progress: Progress,
) -> None:
    """Check the structure of a channel's file, and each access against the region."""
    name, path = channel.file, session.path / channel.file
    if not path.is_file() or not path.stat().st_size:
        report.violated(structure, "empty" if path.is_file() else "no such file", name)
        return
    stream = open_stream(path, salvage=True)
    blocks, rest_bytes = divmod(stream.size_bytes, wire.BLOCK_BYTES)
    due: int | None = None  # number of the next block
    now: int | None = None
    marks: set[int] = set()
    gaps_before = capture.gaps
    for first, words in _words(stream, SCAN_BLOCKS):
        wrong: list[tuple[int, str]] = []
        readable = np.ones(len(words), np.bool_)
        for i in range(len(words)):
            problem = _block_problem(words[i], channel.in_blocks)
            if problem:
                wrong.append(((first + i) * wire.BLOCK_WORDS + problem[1], problem[0]))
                readable[i] = False
                capture.gaps += 1
                continue
            number = int(words[i, wire.WORD_HEADER]) & _mask(wire.HEADER_SEQ_BITS)
            if due is not None and number != due:
                wrong.append(
                    ((first + i) * wire.BLOCK_WORDS, f"block number {number} instead of {due}")
                )
                capture.gaps += 1
            due = (number + 1) & _mask(wire.HEADER_SEQ_BITS)
        found, others, now, bad = _decode(words, readable, first, now)
        wrong += [(word, _BAD_RECORD[what]) for word, what in bad]
        for word, message in sorted(wrong):
            report.violated(structure, message, name, **_at(word))

        lost = others[others[:, 0] == wire.Tag.LOST, 1]
        capture.gaps += lost.size
        capture.lost_accesses += int(lost.sum())
        code, argument = np.divmod(
            others[others[:, 0] == wire.Tag.MARK, 1], 1 << wire.MARK_CODE_SHIFT
        )
        marks.update(code.tolist())
        capture.gaps += int(np.isin(code, _MARKS_OF_LOSS).sum())
        capture.gaps += int(np.count_nonzero((code == wire.Mark.SAMPLE) & (argument > 1)))

        _check_accesses(session, name, found, capture, (report, accesses))
        progress("checking blocks", first + len(words), blocks)
    end = _at(blocks * wire.BLOCK_WORDS)
    if session.ended and stream.cut:
        report.violated(structure, "the archive's footer is missing or damaged", name, **end)
    if session.ended and rest_bytes:
        message = f"the last block has {rest_bytes} of {wire.BLOCK_BYTES} bytes"
        report.violated(structure, message, name, **end)
    whole = capture.gaps == gaps_before
    if whole and wire.Mark.START not in marks:
        report.violated(structure, "no START mark", name, **_at(0))
    if whole and session.ended and wire.Mark.STOP not in marks:
        report.violated(structure, "no STOP mark: the end is missing", name, **end)


def _check_accesses(
    session: Session, name: str, found: Accesses, capture: Capture, to: tuple[Report, Check]
) -> None:
    """Check each access of a channel against the region."""
    report, accesses = to
    region = session.region
    marker_bytes = np.uint64(region.marker_slots * region.marker_stride_bytes)
    offset = found.address - np.uint64(region.base)
    outside = offset >= np.uint64(region.size_bytes)
    marker = offset < marker_bytes
    readback = ~found.write & (found.address == np.uint64(session.readback_address))
    # Patrol scrub and underfills read markers that are stores, too.
    may_read = region.markers == "load" or not session.board.contract.is_program_order
    unmarked = marker & ~found.write & ~readback & (not may_read)
    for rows, message in (
        (np.flatnonzero(outside), "an access outside the region"),
        (np.flatnonzero(unmarked), "a read of the marker area"),
        (np.flatnonzero(marker & found.write & (region.markers == "load")), MARKER_STORED),
    ):
        if rows.size:
            _, place = found.where(session, int(rows[0]))
            report.violated(accesses, message, name, int(rows.size), **place)
    capture.marker_stores += int(np.count_nonzero(marker & found.write))
    capture.accesses += found.time.size
    capture.reads += int(np.count_nonzero(~found.write))
    capture.readbacks += int(np.count_nonzero(readback))
    capture.unexplained += int(np.count_nonzero((outside & ~found.write & ~readback) | unmarked))


def _mask(bits: int) -> int:
    return (1 << bits) - 1


def _block_problem(block: U64, channel: int) -> tuple[str, int] | None:
    """Why a block cannot be read, and at which word; None if it can."""
    header, last = int(block[wire.WORD_HEADER]), int(block[wire.WORD_CHECK])
    version = header >> wire.HEADER_VERSION_SHIFT & _mask(wire.HEADER_VERSION_BITS)
    of_channel = header >> wire.HEADER_CHANNEL_SHIFT & _mask(wire.HEADER_CHANNEL_BITS)
    if header >> wire.HEADER_MAGIC_SHIFT != wire.MAGIC:
        return "not a block of a capture stream (wrong magic number)", wire.WORD_HEADER
    if version != wire.VERSION:
        return f"format version {version}, not {wire.VERSION}", wire.WORD_HEADER
    crc = zlib.crc32(block[: wire.WORD_CHECK].tobytes())
    if last & _mask(wire.CHECK_CRC_BITS) != crc:
        return f"the block's CRC is {crc:#010x}, not as written", wire.WORD_CHECK
    if last >> wire.TAG_SHIFT != wire.Tag.CHECK or last >> wire.CHECK_CRC_BITS & 0xFFFF:
        return "a malformed check word", wire.WORD_CHECK
    if last >> wire.CHECK_COUNT_SHIFT & _mask(wire.CHECK_COUNT_BITS) > wire.BLOCK_RECORDS_MAX:
        return "more records than a block can hold", wire.WORD_CHECK
    if header >> wire.HEADER_FLAGS_SHIFT & _mask(wire.HEADER_FLAGS_BITS):
        return "flags that this version does not know", wire.WORD_HEADER
    if of_channel != channel:
        return f"of channel {of_channel}, not {channel}", wire.WORD_HEADER
    return None


_MARKS_OF_LOSS = (wire.Mark.LINK_ERROR, wire.Mark.DECODE_ERROR)

_BAD_RECORD = (
    "time runs backwards",
    "a word that is not a record",
    "something other than padding after the last record",
)


def _decode(
    words: U64, readable: npt.NDArray[np.bool_], first: int, now: int | None, channel: int = 0
) -> tuple[Accesses, I64, int | None, list[tuple[int, int]]]:
    """Decode blocks; `now` is the time of the previous record, or None.

    Returns the accesses, the other records (rows of tag and value), the time after the last record,
    and the wrong words, with an index into `_BAD_RECORD`.
    """
    capacity = len(words) * wire.BLOCK_RECORDS_MAX
    found = _Found(
        time=np.empty(capacity, np.uint64),
        address=np.empty(capacity, np.uint64),
        write=np.empty(capacity, np.bool_),
        word=np.empty(capacity, np.int64),
        others=np.empty((capacity, 2), np.int64),
        bad=np.empty((len(words), 2), np.int64),
    )
    n, m, k, last = _scan(words, readable, np.int64(-1 if now is None else now), found)
    found.word[:n] += first * wire.BLOCK_WORDS
    found.bad[:k, 0] += first * wire.BLOCK_WORDS
    return (
        Accesses(
            found.time[:n],
            found.address[:n],
            found.write[:n],
            np.full(n, channel, np.uint8),
            found.word[:n],
        ),
        found.others[:m],
        None if last < 0 else int(last),
        [(at, what) for at, what in found.bad[:k].tolist()],
    )


class _Found(NamedTuple):
    """Output of `_scan`: columns of accesses, rows of tag and value, rows of word and error."""

    time: U64
    address: U64
    write: npt.NDArray[np.bool_]
    word: I64
    others: I64
    bad: I64


# numba computes in the types of its operands: unsigned constants keep words unsigned.
_TAG_SHIFT = np.uint64(wire.TAG_SHIFT)
_COUNT_SHIFT = np.uint64(wire.CHECK_COUNT_SHIFT)
_COUNT_MASK = np.uint64(_mask(wire.CHECK_COUNT_BITS))
_DELTA_SHIFT = np.uint64(wire.ACCESS_DELTA_SHIFT)
_ACCESS_DELTA_MASK = np.uint64(_mask(wire.ACCESS_DELTA_BITS))
_EVENT_DELTA_MASK = np.uint64(_mask(wire.EVENT_DELTA_BITS))
_ADDRESS_MASK = np.uint64(_mask(wire.ACCESS_ADDRESS_BITS))
_WRITE = np.uint64(1 << wire.ACCESS_WRITE_SHIFT)
_UNIT = np.uint64(wire.ADDRESS_UNIT_SHIFT)
_TIME_MASK = np.uint64(_mask(wire.TIME_BITS))
_BACKWARDS = np.uint64(
    1 << wire.TIME_BITS - 1
)  # a difference this large is negative, modulo the counter
_VALUE_MASK = np.uint64(_mask(wire.EVENT_DELTA_SHIFT))
_ACCESS, _TIME, _LOST, _MARK = (
    np.uint64(tag) for tag in (wire.Tag.ACCESS, wire.Tag.TIME, wire.Tag.LOST, wire.Tag.MARK)
)
_WORD_TIME, _FIRST, _LAST = wire.WORD_TIME, wire.WORD_FIRST_RECORD, wire.WORD_CHECK
_BLOCK_WORDS = wire.BLOCK_WORDS


@jit
def _scan(
    words: U64, readable: npt.NDArray[np.bool_], before: Integer, found: _Found
) -> tuple[Integer, Integer, Integer, Integer]:
    """Scan blocks; `before`: time of the previous record, or -1.

    Returns the number of accesses, of other records and of bad blocks, and the time at the end.
    """
    n: Integer = 0
    m: Integer = 0
    k: Integer = 0
    begun = before >= 0
    now = np.uint64(max(before, 0))
    for b in range(words.shape[0]):
        if not readable[b]:
            continue
        at = words[b, _WORD_TIME]
        ahead = (at - now) & _TIME_MASK
        wrong, where = 0, _WORD_TIME
        if at <= _TIME_MASK and not (begun and ahead >= _BACKWARDS):
            begun = True
            n, m, now, wrong, where = _scan_records(words[b], b, n, m, now + ahead, found)
        if wrong >= 0:
            found.bad[k, 0] = b * _BLOCK_WORDS + where
            found.bad[k, 1] = wrong
            k += 1
    return n, m, k, np.int64(now) if begun else np.int64(-1)


@jit
def _scan_records(
    block: U64, b: Integer, n: Integer, m: Integer, now: Integer, found: _Found
) -> tuple[Integer, Integer, Integer, Integer, Integer]:
    """Scan the records of block `b` up to the first wrong one.

    Returns the number of accesses and of other records so far, the time, the error (an index into
    `_BAD_RECORD`, or -1) and its word.
    """
    end = _FIRST + np.int64(block[_LAST] >> _COUNT_SHIFT & _COUNT_MASK)
    for w in range(_FIRST, _LAST):
        word = block[w]
        tag = word >> _TAG_SHIFT
        if w >= end:
            if word:
                return n, m, now, 2, w
        elif tag == _ACCESS:
            now += word >> _DELTA_SHIFT & _ACCESS_DELTA_MASK
            found.time[n] = now
            found.address[n] = (word & _ADDRESS_MASK) << _UNIT
            found.write[n] = word & _WRITE != 0
            found.word[n] = b * _BLOCK_WORDS + w
            n += 1
        elif tag == _TIME:
            ahead = (word - now) & _TIME_MASK
            if ahead >= _BACKWARDS:
                return n, m, now, 0, w
            now += ahead
        elif tag in (_LOST, _MARK):
            now += word >> _DELTA_SHIFT & _EVENT_DELTA_MASK
            found.others[m, 0] = tag
            found.others[m, 1] = word & _VALUE_MASK
            m += 1
        else:
            return n, m, now, 1, w
    return n, m, now, -1, 0


# All channels -------------------------------------------------------------------------------------


def merged(session: Session) -> Iterator[Accesses]:
    """Yields the accesses of all channels, which must be sound, in bus order.

    Bus order is by time, then by channel.
    """
    streams = [open_stream(session.path / c.file, salvage=True) for c in session.board.channels]
    begins = [int(next(_words(s, 1))[1][0, wire.WORD_TIME]) for s in streams]
    channels = [
        # The clock is shared: a channel that begins this much earlier begins after a wrap.
        _accesses(stream, i, max(begins) - begin >= int(_BACKWARDS))
        for i, (stream, begin) in enumerate(zip(streams, begins, strict=True))
    ]
    held = [_NOTHING] * len(channels)
    decoding = set(range(len(channels)))
    until = -1
    while until != _END:
        for i in sorted(decoding):
            if until < 0 or held[i].time[-1] == until:
                more = next(channels[i], None)
                if more is None:
                    decoding.discard(i)
                else:
                    held[i] = _joined([held[i], more])
        # The undecoded rest of a channel is not before its last decoded access.
        until = min((int(held[i].time[-1]) for i in decoding), default=_END)
        ends = [int(np.searchsorted(part.time, np.uint64(until))) for part in held]
        taken = _joined([_rows(part, slice(end)) for part, end in zip(held, ends, strict=True)])
        held = [_rows(part, slice(end, None)) for part, end in zip(held, ends, strict=True)]
        yield _rows(taken, np.lexsort((taken.channel, taken.time)))


_END = 1 << wire.TIME_BITS + 2


def _accesses(stream: RawStream | ArchiveStream, channel: int, wrapped: bool) -> Iterator[Accesses]:
    now = 1 << wire.TIME_BITS if wrapped else None
    for first, words in _words(stream, SCAN_BLOCKS):
        found, _, now, _ = _decode(words, np.ones(len(words), np.bool_), first, now, channel)
        if found.time.size:
            yield found


def _rows(part: Accesses, rows: slice | I64) -> Accesses:
    time, address, write, channel, word = part
    return Accesses(time[rows], address[rows], write[rows], channel[rows], word[rows])


def _joined(parts: list[Accesses]) -> Accesses:
    time, address, write, channel, word = map(np.concatenate, zip(*parts, strict=True))
    return Accesses(time, address, write, channel, word)


_NOTHING = Accesses(
    np.empty(0, np.uint64),
    np.empty(0, np.uint64),
    np.empty(0, np.bool_),
    np.empty(0, np.uint8),
    np.empty(0, np.int64),
)


def locate(session: Session, position: int) -> tuple[str, dict[str, int]]:
    """File and position of the access with this index."""
    for found in merged(session):
        if position < found.time.size:
            return found.where(session, position)
        position -= found.time.size
    raise AssertionError("the capture became shorter")
