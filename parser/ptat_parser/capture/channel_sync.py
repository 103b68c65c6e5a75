# SPDX-License-Identifier: BSD-2-Clause
"""Aligns the clocks of several boards by pulses that all of them receive.

Each board has its own clock, and crystals differ by tens of ppm. A board numbers the pulses at its
synchronisation input and records their times in SYNC marks (docs/formats.md). A pulse marks the
same moment on all clocks; between two pulses each clock is assumed to run evenly.

The boards began to count at different times. Which pulse of one is which of the other follows
from when the host started them: it knows that within a few milliseconds, so pulses must be further
apart than that. From there on numbers tell, so pulses that were lost do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.capture.chunks import Chunk
from ptat_parser.capture.decode import END_OF_TIME
from ptat_parser.capture.reader import BusReader
from ptat_parser.errors import BadInput, ParseError
from ptat_parser.formats.session import Channel

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NUMBERS = 1 << wire.MARK_ARGUMENT_BITS - wire.SYNC_NUMBER_SHIFT
AGE_UNKNOWN = (1 << wire.SYNC_NUMBER_SHIFT) - 1
DRIFT_MAX = 1e-3
"""Largest plausible difference of two crystals; beyond it the pulses are not the same ones."""
START_DRIFT_MAX = 2e-4
"""Largest difference of two working crystals, used from the start to the first pulse."""
QUANTUM_TICKS = 32
"""Uncertainty of a pulse's time: the gateware samples it once per clock of up to eight ticks."""
_HINT = "connect one source of pulses to the sync input of all boards; docs/boards.md"


@dataclass(frozen=True)
class Pulses:
    """The pulses of one channel: unwrapped `number` and `ticks`, both of shape ``(pulses,)``."""

    number: I64
    time_ticks: I64
    start_ticks: int
    """Time of the START mark."""


def read(reader: BusReader) -> Pulses:
    """Find the pulses in a stream."""
    numbers: list[int] = []
    times: list[int] = []
    start_ticks = None
    for chunk in reader:
        for mark in chunk.marks:
            if mark.code == wire.Mark.START and start_ticks is None:
                start_ticks = mark.time_ticks
            age = mark.argument & AGE_UNKNOWN
            if mark.code != wire.Mark.SYNC or age == AGE_UNKNOWN:
                continue
            number = mark.argument >> wire.SYNC_NUMBER_SHIFT
            since = (number - numbers[-1]) % NUMBERS if numbers else number
            numbers.append(numbers[-1] + since if numbers else since)
            times.append(mark.time_ticks - age)
    if start_ticks is None:
        raise ParseError(f"{reader.path}: its recording has no start", "record again")
    return Pulses(np.array(numbers, np.int64), np.array(times, np.int64), start_ticks)


@dataclass(frozen=True)
class ClockMap:
    """Maps one channel's ticks to the first channel's, linearly between pulses."""

    theirs: I64
    ours: I64

    def __call__(self, ticks: U64) -> U64:
        """Convert ticks of the channel to ticks of the first channel; monotonic."""
        x = (ticks.view(np.int64) - self.theirs[0]).astype(np.float64)
        known_x = (self.theirs - self.theirs[0]).astype(np.float64)
        known_y = (self.ours - self.ours[0]).astype(np.float64)
        rates = np.diff(known_y) / np.diff(known_x)
        y = np.interp(x, known_x, known_y)
        # Before the first and after the last pulse use the nearest rate: warming crystals drift.
        y = np.where(x < 0, x * rates[0], y)
        y = np.where(x > known_x[-1], known_y[-1] + (x - known_x[-1]) * rates[-1], y)
        mapped: U64 = np.maximum(np.floor(y).astype(np.int64) + self.ours[0], 0).astype(np.uint64)
        return mapped

    def one(self, ticks: int) -> int:
        """Convert a single time."""
        return int(self(np.array([ticks], np.uint64))[0])


def align(first: Pulses, other: Pulses, channels: tuple[Channel, Channel], where: Path) -> ClockMap:
    """The map from the other channel's clock to the first channel's.

    :raises BadInput: the channels share no pulses, or the pulses cannot be identified.
    """
    apart = _number_difference(first, other, channels, where)
    _, ours, theirs = np.intersect1d(
        first.number, other.number - apart, assume_unique=True, return_indices=True
    )
    if ours.size < 2:
        raise BadInput(f"{where}: the boards have {ours.size} pulses in common, not two", _HINT)
    found = ClockMap(other.time_ticks[theirs], first.time_ticks[ours])
    steps = np.diff(found.ours)
    if (np.abs(np.diff(found.theirs) - steps) > steps * DRIFT_MAX + QUANTUM_TICKS).any():
        raise BadInput(f"{where}: the boards did not receive the same pulses", _HINT)
    return found


def _number_difference(
    first: Pulses, other: Pulses, channels: tuple[Channel, Channel], where: Path
) -> int:
    """Difference between the other board's number of a pulse and the first board's."""
    if min(first.number.size, other.number.size) < 2:
        count = min(first.number.size, other.number.size)
        raise BadInput(f"{where}: a board got {count} pulses, not two", _HINT)
    (ours_ns, ours_error_ns), (theirs_ns, theirs_error_ns) = (
        _host_times(pulses, channel, where)
        for pulses, channel in zip((first, other), channels, strict=True)
    )
    for i, at_ns in enumerate(theirs_ns):
        nearest = int(np.abs(ours_ns - at_ns).argmin())
        since_ns = abs(other.time_ticks[i] - other.start_ticks) * 1e9 / channels[1].tick_hz
        error_ns = ours_error_ns + theirs_error_ns + START_DRIFT_MAX * since_ns
        step_ns = float(np.diff(ours_ns).min())
        if 2 * error_ns > step_ns:
            raise BadInput(
                f"{where}: pulses come every {step_ns / 1e6:.3g} ms, but the start of the boards"
                f" is known only within {error_ns / 1e6:.3g} ms",
                "use slower pulses: one to ten per second",
            )
        if abs(ours_ns[nearest] - at_ns) <= error_ns:
            return int(other.number[i] - first.number[nearest])
    raise BadInput(f"{where}: no pulse reached both boards", _HINT)


def _host_times(
    pulses: Pulses, channel: Channel, where: Path
) -> tuple[npt.NDArray[np.float64], float]:
    """Host time of each pulse and its uncertainty, in ns."""
    if channel.started_ns is None:
        raise BadInput(f"{where}: it does not say when its boards were started", "record again")
    before_ns, after_ns = channel.started_ns
    since_start = (pulses.time_ticks - pulses.start_ticks).astype(np.float64)
    return (
        (before_ns + after_ns) / 2 + since_start * 1e9 / channel.tick_hz,
        (after_ns - before_ns) / 2,
    )


class AlignedReader:
    """A channel's stream with times converted to the first channel's clock; a `merge.Reader`."""

    def __init__(self, reader: BusReader, clock: ClockMap) -> None:
        self._reader = reader
        self._clock = clock
        self.path = reader.path
        self.blocks = reader.blocks
        self.chunk_blocks = reader.chunk_blocks

    def __iter__(self) -> Iterator[Chunk]:
        clock = self._clock
        for chunk in self._reader:
            chunk.time = clock(chunk.time)
            chunk.marks = [replace(m, time_ticks=clock.one(m.time_ticks)) for m in chunk.marks]
            chunk.lost = [
                replace(
                    lost,
                    since_ticks=clock.one(lost.since_ticks),
                    time_ticks=(
                        END_OF_TIME
                        if lost.time_ticks == END_OF_TIME
                        else clock.one(lost.time_ticks)
                    ),
                )
                for lost in chunk.lost
            ]
            yield chunk


def aligned(
    readers: Sequence[BusReader], channels: Sequence[Channel], where: Path
) -> list[BusReader | AlignedReader]:
    """The streams of several boards, with times on the first board's clock.

    :raises BadInput: the pulses do not determine how the clocks relate.
    """
    first, *others = (read(reader) for reader in readers)
    result: list[BusReader | AlignedReader] = [readers[0]]
    for reader, pulses, channel in zip(readers[1:], others, channels[1:], strict=True):
        clock = align(first, pulses, (channels[0], channel), where)
        result.append(AlignedReader(reader, clock))
    return result
