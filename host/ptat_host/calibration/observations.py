# SPDX-License-Identifier: BSD-2-Clause
"""Pairs of addresses and coordinates, from capture streams of known reads.

While boards report DRAM coordinates instead of addresses, each chosen address is read many times in
a row, and then the command FLUSH puts a mark into the boards' streams. The most frequent coordinate
between two marks is that of the address. Other traffic rarely repeats one line this often; a line
that it does repeat (one that all CPUs poll) shows up between many marks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptat_host.calibration import dram
from ptat_parser import wire
from ptat_parser.errors import BadInput

if TYPE_CHECKING:
    from ptat_parser.capture.chunks import Chunk

U64 = npt.NDArray[np.uint64]

SEEN_MIN = 0.5
"""Share of an address's reads that a board must have observed."""
COMMON_MAX = 0.05
"""A coordinate that is the most frequent one between more marks than this belongs to no chosen
address."""


@dataclass(frozen=True)
class Observed:
    """Chosen addresses with the coordinates that some board observed, for
    `address_functions.solve`."""

    addresses: U64
    """Bytes, shape ``(n,)``."""
    coordinates: U64
    """Packed by `address_functions.pack`, including the channel, shape ``(n,)``."""
    region_base: int
    region_bytes: int
    channels: int
    boards: list[str]
    """Serial numbers or names of the boards, channel 0 first; empty if they have no permanent
    ones."""


def between_flushes(chunks: Iterable[Chunk], count: int) -> list[U64]:
    """Coordinates of the reads in front of each FLUSH mark of a stream.

    :param count: expected number of marks.
    :raises BadInput: the number differs, so marks cannot be assigned to addresses.
    """
    found: list[U64] = []
    open_parts: list[U64] = []
    for chunk in chunks:
        start = 0
        for mark in chunk.marks:
            if mark.code != wire.Mark.FLUSH:
                continue
            open_parts.append(_reads(chunk, start, mark.position))
            found.append(np.concatenate(open_parts))
            open_parts = []
            start = mark.position
        open_parts.append(_reads(chunk, start, len(chunk.address)))
    if len(found) != count:
        raise BadInput(
            f"the board's stream has {len(found)} marks instead of {count}",
            "the link lost data or repeated a command: calibrate again",
        )
    return found


def _reads(chunk: Chunk, start: int, end: int) -> U64:
    part = slice(start, end)
    reads: U64 = chunk.address[part][~chunk.write[part]] >> np.uint64(wire.ADDRESS_UNIT_SHIFT)
    return reads


def leaders(parts: Sequence[U64], times: int) -> dict[int, int]:
    """The most frequent coordinate of each part that has a clear one, by the part's number.

    :param times: reads of an address in each part.
    """
    ranked = []
    for part in parts:
        values, counts = np.unique(part, return_counts=True)
        ranked.append(
            [int(values[i]) for i in np.argsort(-counts) if counts[i] >= SEEN_MIN * times]
        )
    often = Counter(value for values in ranked for value in values)
    common_max = max(2, int(COMMON_MAX * len(parts)))
    result = {}
    for number, candidates in enumerate(ranked):
        ours = next((value for value in candidates if often[value] <= common_max), None)
        if ours is not None:
            result[number] = ours
    return result


def pairs(
    addresses: Sequence[int], channels: Sequence[Sequence[U64]], times: int
) -> tuple[U64, U64]:
    """Addresses and packed coordinates.

    :param channels: for each the result of `between_flushes`.
    """
    found = [
        (addresses[number], coordinate | channel << dram.BUS_BITS)
        for channel, parts in enumerate(channels)
        for number, coordinate in leaders(parts, times).items()
    ]
    return (
        np.array([address for address, _ in found], np.uint64),
        np.array([coordinate for _, coordinate in found], np.uint64),
    )
