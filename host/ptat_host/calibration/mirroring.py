# SPDX-License-Identifier: BSD-2-Clause
"""Finds out whether the memory controller swaps address pins for mirrored ranks, by trying both.

Many modules wire the odd ranks with pairs of address pins swapped. For data commands this does not
matter to the DRAM: rows, columns and banks are only renumbered. So most controllers swap the pins
of MRS alone, whatever wiring the SPD describes, and some swap all. The observed coordinates reveal
it: with the right choice each bit of a coordinate is a linear function of the address; with the
wrong choice the swapped bits of odd ranks are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptat_host.calibration import dram
from ptat_host.calibration.address_functions import Calibration, solve
from ptat_parser.errors import BadInput

U64 = npt.NDArray[np.uint64]

ODD_RANKS = 0b1010
"""The ranks that JEDEC's modules mirror (JESD21-C 4.20.19, 4.20.26)."""

Pairs = tuple[tuple[str, int, int], ...]

DDR3_PAIRS: Pairs = (
    *((name, low, low + 1) for name in ("row", "column") for low in (3, 5, 7)),
    ("bank", 0, 1),
)
DDR4_PAIRS: Pairs = (*DDR3_PAIRS, ("row", 11, 13), ("bank_group", 0, 1))


@dataclass(frozen=True)
class Mirroring:
    """The choice that fits."""

    calibration: Calibration
    mirror: int
    """Ranks for which the controller swaps pins."""
    decided: bool
    """False: both fit, because all addresses read are on even ranks, or the pairs of pins never
    change."""

    def describe(self) -> str:
        """One readable line."""
        if not self.decided:
            return "mirroring of odd ranks: undecided, the addresses read fit both; assumed absent"
        how = "swapped" if self.mirror else "not swapped"
        return f"mirroring of odd ranks: the controller's data commands are {how}"


def swapped(coordinates: U64, mirror: int) -> U64:
    """Packed coordinates with the pairs of pins of the ranks in `mirror` swapped.

    Coordinates with bank groups are those of DDR4.
    """
    start = dict(zip(dram.FIELDS, np.cumsum([0, *dram.FIELDS.values()]).tolist(), strict=False))

    def field(name: str) -> U64:
        shift = np.uint64(start[name])
        return (coordinates >> shift) & np.uint64((1 << dram.FIELDS[name]) - 1)

    mirrored = (np.uint64(mirror) >> field("rank")) & np.uint64(1)
    result = coordinates.copy()
    for name, low, high in DDR4_PAIRS if field("bank_group").any() else DDR3_PAIRS:
        bits = np.uint64(start[name] + low), np.uint64(start[name] + high)
        differ = mirrored & (coordinates >> bits[0] ^ coordinates >> bits[1])
        result ^= differ << bits[0] | differ << bits[1]
    return result


def solve_either(addresses: npt.ArrayLike, coordinates: npt.ArrayLike) -> Mirroring:
    """Like `solve`, for the observations of a board that swaps nothing back.

    :raises BadInput: neither fits; the message describes the choice without swaps.
    """
    seen = np.asarray(coordinates, np.uint64)
    fits: dict[int, Calibration] = {}
    failure: BadInput | None = None
    for mirror in (0, ODD_RANKS):
        try:
            fits[mirror] = solve(addresses, swapped(seen, mirror))
        except BadInput as error:
            failure = failure or error
    if not fits:
        assert failure is not None
        raise failure
    best = min(fits, key=lambda mirror: fits[mirror].disagreeing)
    clear = len(fits) == 1 or fits[0].disagreeing != fits[ODD_RANKS].disagreeing
    return Mirroring(replace(fits[best], mirror=best), best, clear)
