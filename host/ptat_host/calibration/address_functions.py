# SPDX-License-Identifier: BSD-2-Clause
"""Solves for a memory controller's address functions, given reads of known addresses.

Each bit of a DRAM coordinate is the parity of some address bits, possibly inverted: a linear
function over GF(2). The coordinates observed for known addresses determine it on all XORs of these
addresses. Some observations are of foreign accesses, so we search for a solution that agrees with
nearly all of them: solve for as many random observations as there are unknowns, and count how many
others agree (RANSAC, Fischler and Bolles 1981). If 1 % are wrong, two of three tries pick only
right ones.

A recording needs only a solution for the addresses read (the region). The programmed mapping places
every coordinate of other memory outside of the region.
"""

from __future__ import annotations

import random
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptat_host import protocol
from ptat_host.calibration import dram
from ptat_parser import wire
from ptat_parser.errors import BadInput

U64 = npt.NDArray[np.uint64]

TRIES = 300
AGREEMENT_MIN = 0.9
"""Share of the observations that a solution must explain."""
CHECKS_MIN = 40
"""Observations needed beyond the number of unknowns; with fewer, any solution would agree."""

_UNITS_BITS = wire.ACCESS_ADDRESS_BITS
_UNIT_SHIFT = wire.ADDRESS_UNIT_SHIFT


@dataclass(frozen=True)
class Calibration:
    """The result of the observations.

    Masks are over physical addresses in bytes. A function's mask has only bits that distinguish the
    addresses read; it is the controller's own function if `determined` has all of its bits.
    """

    functions: dict[str, list[int]]
    """For each part of a coordinate the masks, bit 0's first."""
    inverted: dict[str, list[bool]]
    """Whether the coordinate's bit is the inverse of the parity."""
    determined: list[int]
    """Address bits whose functions are known."""
    constant: list[tuple[int, int]]
    """Masks whose parity never changed, and that parity; they explain why other bits are
    undetermined."""
    observations: int
    disagreeing: int
    """Observations of foreign accesses."""
    basis: list[tuple[int, int]]
    """Differences of the addresses read (units of 8 bytes), and of their packed coordinates."""
    base: tuple[int, int]
    """One of the addresses read, and its coordinate."""
    mirror: int = 0
    """Ranks whose pins were swapped back before."""

    @property
    def undetermined(self) -> list[int]:
        """Address bits that `constant` leaves open."""
        masks = 0
        for mask, _ in self.constant:
            masks |= mask
        return [bit for bit in _bits(masks) if bit not in self.determined]

    def program(self, channel: int = 0) -> Program:
        """The map from coordinates to addresses, for the board on a channel.

        A coordinate that belongs to none of the addresses read gets one that is no combination of
        theirs, as long as there are address bits for it.

        :raises BadInput: several of the addresses read have one coordinate.
        """
        basis, base = _on_channel(self.basis, self.base, channel)
        return replace(_invert(basis, *base), mirror=self.mirror)

    def describe(self) -> list[str]:
        """Readable lines."""
        lines = []
        for name, masks in self.functions.items():
            for i, mask in enumerate(masks):
                terms = [str(bit) for bit in _bits(mask)]
                if self.inverted[name][i]:
                    terms.append("one")
                lines.append(f"{name} {i} = {' ^ '.join(terms) or 'zero'}")
        lines.append(f"determined address bits: {_ranges(self.determined) or 'none'}")
        for parity in (0, 1):
            alone = [
                mask for mask, found in self.constant if found == parity and mask.bit_count() == 1
            ]
            bits = sorted(mask.bit_length() - 1 for mask in alone)
            if bits:
                was = "were" if len(bits) > 1 else "was"
                lines.append(f"not determined: {_ranges(bits)} {was} always {parity}")
        for mask, parity in self.constant:
            if mask.bit_count() > 1:
                together = " ^ ".join(str(bit) for bit in _bits(mask))
                lines.append(f"not determined: {together} was always {parity}")
        lines.append(
            f"{self.disagreeing} of {self.observations} observations came from other reads"
        )
        return lines


@dataclass(frozen=True)
class Program:
    """The linear map that a board applies to coordinates; in units of 8 bytes."""

    columns: list[int]
    """The contribution of each bit of a packed coordinate."""
    always: int
    """XORed with the sum of the contributions."""
    mirror: int = 0
    """Ranks (a bit each) whose pins the board swaps back before that."""

    def addresses(self, coordinates: U64) -> U64:
        """Physical addresses (bytes) of packed coordinates, as the programmed board gives them.

        Pins are not swapped back here: see `mirroring.swapped`.
        """
        result = np.full(coordinates.shape, self.always, np.uint64)
        for i, column in enumerate(self.columns):
            result ^= ((coordinates >> np.uint64(i)) & np.uint64(1)) * np.uint64(column)
        return result << np.uint64(_UNIT_SHIFT)

    def payload(self) -> bytes:
        """Of the command SET_MATRIX."""
        return protocol.MATRIX.pack(*self.columns, self.always, 0, 0)

    def mirror_payload(self) -> bytes:
        """Of the command SET_MIRROR."""
        return protocol.MIRROR_REQUEST.pack(self.mirror)

    def register_writes(self) -> list[tuple[str, int]]:
        """The same, for a snooper whose registers can be reached."""
        return dram.map_writes(dram.table_words(self.columns, self.always), dram.Remap(0, 0))


IDENTITY = Program(dram.IDENTITY, 0)
"""The mapping that makes a board report coordinates instead of addresses."""


def pack(coordinates: MappingType[str, npt.ArrayLike]) -> U64:
    """Coordinates as one number each: the fields of `dram.FIELDS` from bit 0, the channel last."""
    shape = np.broadcast_shapes(*(np.shape(values) for values in coordinates.values()))
    result = np.zeros(shape, np.uint64)
    shift = 0
    for name, bits in dram.FIELDS.items():
        if name in coordinates:
            values = np.asarray(coordinates[name], np.uint64)
            if (values >> np.uint64(bits)).any():
                raise BadInput(f"a {name} of more than {bits} bits", "see what the board reports")
            result |= values << np.uint64(shift)
        shift += bits
    return result


def solve(addresses: npt.ArrayLike, coordinates: npt.ArrayLike, seed: int = 0) -> Calibration:
    """Recover the functions from pairs.

    :param addresses: the addresses read, in bytes, shape ``(n,)``.
    :param coordinates: the coordinates observed for them, packed by `pack`, shape ``(n,)``.
    :param seed: of the choice of observations to solve for.
    :raises BadInput: nothing fits; the message says why.
    """
    address = np.asarray(addresses, np.uint64) >> np.uint64(_UNIT_SHIFT)
    coordinate = np.asarray(coordinates, np.uint64)
    if address.shape != coordinate.shape or address.ndim != 1:
        raise BadInput(f"{address.shape} addresses for {coordinate.shape} coordinates")
    if (address >> np.uint64(_UNITS_BITS)).any():
        raise BadInput("an address does not fit into a record", "read lower addresses")
    # Bit 0 is the constant: inversions are what it contributes.
    vectors = address << np.uint64(1) | np.uint64(1)
    unknowns = len(_Basis.of(vectors.tolist(), vectors.tolist()).rows)
    if len(vectors) < unknowns + CHECKS_MIN:
        raise BadInput(
            f"{len(vectors)} observations are too few for {unknowns} unknowns",
            f"read at least {2 * (unknowns + CHECKS_MIN)} addresses",
        )
    basis, agrees = _search(vectors, coordinate, unknowns, seed)
    return _conclude(basis, agrees)


class _Basis:
    """Vectors and their values under a linear function, in reduced echelon form."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}
        """By pivot (the highest bit of the vector): vector and value."""

    @classmethod
    def of(cls, vectors: list[int], values: list[int]) -> _Basis:
        basis = cls()
        for vector, value in zip(vectors, values, strict=True):
            basis.add(vector, value)
        return basis

    def reduce(self, vector: int, value: int) -> tuple[int, int]:
        """Subtract the part that the rows explain."""
        for pivot, (row, row_value) in self.rows.items():
            if vector >> pivot & 1:
                vector ^= row
                value ^= row_value
        return vector, value

    def add(self, vector: int, value: int) -> bool:
        """Add a vector if it is independent of the others."""
        vector, value = self.reduce(vector, value)
        if not vector:
            return False
        pivot = vector.bit_length() - 1
        for other, (row, row_value) in self.rows.items():
            if row >> pivot & 1:
                self.rows[other] = row ^ vector, row_value ^ value
        self.rows[pivot] = vector, value
        return True

    def values(self, vectors: U64) -> U64:
        """Values of the function for combinations of the basis."""
        result = np.zeros_like(vectors)
        rest = vectors.copy()
        for pivot, (row, value) in self.rows.items():
            # No row has another's pivot, so the order does not matter.
            chosen = (rest >> np.uint64(pivot)) & np.uint64(1)
            rest ^= chosen * np.uint64(row)
            result ^= chosen * np.uint64(value)
        return result


def _search(
    vectors: U64, coordinate: U64, unknowns: int, seed: int
) -> tuple[_Basis, npt.NDArray[np.bool_]]:
    """The function that most observations agree with."""
    choice = random.Random(seed)
    order = list(range(len(vectors)))
    pairs = list(zip(vectors.tolist(), coordinate.tolist(), strict=True))
    best: _Basis | None = None
    agrees = np.zeros(len(vectors), np.bool_)
    wrong_bits = np.full(64, len(vectors))
    for _ in range(TRIES):
        choice.shuffle(order)
        basis = _Basis()
        for index in order:
            if basis.add(*pairs[index]) and len(basis.rows) == unknowns:
                break
        difference = basis.values(vectors) ^ coordinate
        for bit in range(64):
            wrong = int(((difference >> np.uint64(bit)) & np.uint64(1)).sum())
            wrong_bits[bit] = min(wrong_bits[bit], wrong)
        fits = difference == 0
        if best is None or fits.sum() > agrees.sum():
            best, agrees = basis, fits
        if agrees.mean() > 1 - (1 - AGREEMENT_MIN) / 4:
            break
    assert best is not None
    if agrees.mean() < AGREEMENT_MIN or agrees.sum() < unknowns + CHECKS_MIN:
        raise _no_function(wrong_bits / len(vectors), float(agrees.mean()))
    return best, agrees


def _no_function(wrong: npt.NDArray[np.float64], agreement: float) -> BadInput:
    """The error for observations that no linear function fits."""
    shift = 0
    names = []
    for name, bits in dram.FIELDS.items():
        for i in range(bits):
            if wrong[shift + i] > 1 - AGREEMENT_MIN:
                names.append(f"{name} {i}")
        shift += bits
    if names:
        return BadInput(
            f"no XOR of address bits gives {', '.join(names)}",
            "the addresses may span the memory hole below 4 GiB, or three channels: read a region"
            " without; or the board captures badly: see ptat doctor",
        )
    return BadInput(
        f"each bit fits, but only {agreement:.0%} of the observations fit as a whole",
        "too many come from other accesses: calibrate on an idle machine",
    )


def _conclude(basis: _Basis, agrees: npt.NDArray[np.bool_]) -> Calibration:
    differences, base = _split(basis)
    determined = [
        bit + _UNIT_SHIFT for bit, (vector, _) in differences.rows.items() if vector == 1 << bit
    ]
    functions: dict[str, list[int]] = {}
    inverted: dict[str, list[bool]] = {}
    shift = 0
    base_address, base_value = base
    for name, bits in dram.FIELDS.items():
        masks = []
        flips = []
        for i in range(bits):
            mask = sum(
                1 << pivot
                for pivot, (_, value) in differences.rows.items()
                if value >> (shift + i) & 1
            )
            constant = base_value >> (shift + i) & 1 ^ ((base_address & mask).bit_count() & 1)
            masks.append(mask << _UNIT_SHIFT)
            flips.append(bool(constant))
        while masks and not masks[-1] and not flips[-1]:
            masks.pop()
            flips.pop()
        functions[name], inverted[name] = masks, flips
        shift += bits
    return Calibration(
        functions=functions,
        inverted=inverted,
        determined=sorted(determined),
        constant=_constant_parities(differences, base_address),
        observations=len(agrees),
        disagreeing=int((~agrees).sum()),
        basis=list(differences.rows.values()),
        base=base,
    )


def _split(basis: _Basis) -> tuple[_Basis, tuple[int, int]]:
    """Differences of the addresses read, without the constant's bit, and one such address."""
    with_constant = [(vector, value) for vector, value in basis.rows.values() if vector & 1]
    without = [(vector, value) for vector, value in basis.rows.values() if not vector & 1]
    base_vector, base_value = with_constant[0]
    differences = _Basis()
    for vector, value in without:
        differences.add(vector >> 1, value)
    for vector, value in with_constant[1:]:
        differences.add((vector ^ base_vector) >> 1, value ^ base_value)
    return differences, (base_vector >> 1, base_value)


def _constant_parities(differences: _Basis, base_address: int) -> list[tuple[int, int]]:
    """A basis of the masks that no two of the addresses differ in."""
    result = []
    for bit in range(_UNITS_BITS):
        if bit in differences.rows:
            continue
        # A free bit, and the pivots of the rows that have it.
        mask = 1 << bit
        for pivot, (vector, _) in differences.rows.items():
            if vector >> bit & 1:
                mask |= 1 << pivot
        result.append((mask << _UNIT_SHIFT, (base_address & mask).bit_count() & 1))
    return result


def _on_channel(
    basis: list[tuple[int, int]], base: tuple[int, int], channel: int
) -> tuple[_Basis, tuple[int, int]]:
    """The part of the addresses read that lies on that channel."""
    shift = dram.BUS_BITS
    changing = [row for row in basis if row[1] >> shift]
    staying = [row for row in basis if not row[1] >> shift]
    pivots: dict[int, tuple[int, int]] = {}
    for vector, value in changing:
        for bit, (pivot_vector, pivot_value) in pivots.items():
            if value >> bit & 1:
                vector, value = vector ^ pivot_vector, value ^ pivot_value
        if value >> shift:
            pivots[value.bit_length() - 1] = vector, value
        else:
            staying.append((vector, value))
    address, coordinate = base
    for bit in sorted(pivots, reverse=True):
        if (coordinate ^ channel << shift) >> bit & 1:
            address, coordinate = address ^ pivots[bit][0], coordinate ^ pivots[bit][1]
    if coordinate >> shift != channel:
        raise BadInput(
            f"none of the addresses read is on channel {channel}", "give the channel of the board"
        )
    # Again in echelon form: its pivots tell which address bits are taken.
    return _Basis.of(*map(list, zip(*staying, strict=True))), (address, coordinate)


def _invert(differences: _Basis, base_address: int, base_value: int) -> Program:
    seen = (1 << dram.BUS_BITS) - 1  # the channel is not on the bus
    backwards = _Basis()
    for vector, value in differences.rows.values():
        left, address = backwards.reduce(value & seen, vector)
        if not left:
            bits = ", ".join(str(bit + _UNIT_SHIFT) for bit in _bits(address))
            raise BadInput(
                f"addresses that differ in the bits {bits} have one coordinate",
                "the board sees only part of the memory: look for another channel or rank",
            )
        backwards.add(value & seen, vector)
    # Each direction in which none of those read differ goes to an address bit that tells it.
    free = [bit for bit in range(_UNITS_BITS) if bit not in differences.rows]
    for bit in reversed(range(dram.BUS_BITS)):
        if backwards.add(1 << bit, 1 << free[-1] if free else 0) and free:
            free.pop()
    columns = [backwards.reduce(1 << bit, 0)[1] for bit in range(dram.BUS_BITS)]
    always = base_address
    for bit in _bits(base_value & seen):
        always ^= columns[bit]
    return Program(columns, always)


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _ranges(numbers: list[int]) -> str:
    """``3-5, 7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
