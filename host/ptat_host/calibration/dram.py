# SPDX-License-Identifier: BSD-2-Clause
"""Physical addresses and DRAM coordinates, and the tables of the gateware's address map.

A memory controller computes each bit of a coordinate (channel, rank, bank group, bank, row,
column) as the parity of some bits of the physical address. A `Mapping` holds these functions as
masks. It converts both ways, and computes the gateware's tables
(``gateware/ptat_gateware/address.py``), which map coordinates to addresses.

`PRESETS` holds published mappings; a mapping found by other means (probing, timing) is given
by its masks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.errors import BadInput

U64 = npt.NDArray[np.uint64]

FIELDS = {"column": 12, "row": 17, "bank": 3, "bank_group": 2, "rank": 2, "channel": 2}
"""Bits of each part of a coordinate, in the order in which they are packed, from bit 0.

All but the channel are visible on the bus; the channel is the board's position.
"""

BUS_BITS = sum(bits for name, bits in FIELDS.items() if name != "channel")

SLICE_BITS = 9
SLICES = BUS_BITS // SLICE_BITS
BUS_BYTES = (2, 4, 8)
"""Widths of a channel's data bus; one column is as wide."""
REMAP_UNIT_BYTES = 1 << 20
WINDOW_UNIT_BYTES = 1 << 16
WINDOWS_MAX = 4
ADDRESS_BITS_MAX = wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT


@dataclass(frozen=True)
class Remap:
    """Memory at and above `first` (bytes of DRAM) appears `offset` bytes higher.

    PCs leave a hole for devices below 4 GiB, and remap the memory beneath it.
    """

    first: int
    offset: int


@dataclass(frozen=True)
class Mapping:
    """Address functions: `functions` has for each field its masks, bit 0's first.

    A mask is over the bytes' physical address (below it, where memory is remapped). `address_bits`
    is how many bits of it select a byte of DRAM. `source` says where the functions are from.
    `bus_bytes` is the width of a channel: bits of the address below it select a byte of a column.

    Raises `BadInput` where the functions do not determine the address.
    """

    name: str
    source: str
    address_bits: int
    functions: MappingType[str, Sequence[int]]
    remap: Remap | None = None
    bus_bytes: int = 8

    def __post_init__(self) -> None:
        hint = "correct the address functions"
        if self.bus_bytes not in BUS_BYTES:
            raise BadInput(
                f"{self.name}: a bus of {8 * self.bus_bytes} bits", "give 16, 32 or 64 bits"
            )
        if unknown := set(self.functions) - set(FIELDS):
            raise BadInput(f"{self.name}: no such part of a coordinate: {min(unknown)}", hint)
        if not wire.ADDRESS_UNIT_SHIFT < self.address_bits <= ADDRESS_BITS_MAX:
            raise BadInput(f"{self.name}: {self.address_bits} address bits", hint)
        for name, masks in self.functions.items():
            if len(masks) > FIELDS[name]:
                raise BadInput(
                    f"{self.name}: {len(masks)} {name} bits; there are at most {FIELDS[name]}", hint
                )
            for i, mask in enumerate(masks):
                if mask >> self.address_bits or mask & self.bus_bytes - 1:
                    raise BadInput(
                        f"{self.name}: {name} bit {i} has the mask {mask:#x}; bits"
                        f" {self._low_bit} to {self.address_bits - 1} select memory",
                        hint,
                    )
        self._check_remap()
        self._check_rank()

    @property
    def _low_bit(self) -> int:
        """The lowest bit of an address that selects a column."""
        return self.bus_bytes.bit_length() - 1

    def _check_remap(self) -> None:
        if self.remap is None:
            return
        for value in (self.remap.first, self.remap.offset):
            if value % REMAP_UNIT_BYTES or not 0 <= value < 1 << ADDRESS_BITS_MAX:
                raise BadInput(
                    f"{self.name}: {value:#x} cannot bound the memory hole",
                    "give multiples of 1 MiB",
                )

    def _check_rank(self) -> None:
        """Raise unless the functions are independent and there is one for each address bit."""
        reduced: list[tuple[int, set[int]]] = []  # mask, and which functions it is the XOR of
        names = [f"{name} bit {i}" for name, i, _ in self._bits]
        for index, (_, _, mask) in enumerate(self._bits):
            parts = {index}
            for pivot, of in reduced:
                if mask & (pivot & -pivot):
                    mask ^= pivot
                    parts ^= of
            if not mask:
                others = " ^ ".join(names[i] for i in sorted(parts - {index})) or "always 0"
                raise BadInput(
                    f"{self.name}: the address functions are singular: {names[index]} is {others}",
                    "correct the functions: several addresses would have one coordinate",
                )
            reduced.append((mask, parts))
        missing = self.address_bits - self._low_bit - len(reduced)
        if missing > 0:
            raise BadInput(
                f"{self.name}: {len(reduced)} address functions for"
                f" {self.address_bits - self._low_bit} address bits",
                f"add {missing} functions: a coordinate would have several addresses",
            )

    @cached_property
    def _bits(self) -> list[tuple[str, int, int]]:
        """Field, bit and mask of each function, in packed order."""
        return [
            (name, i, mask)
            for name in FIELDS
            for i, mask in enumerate(self.functions.get(name, ()))
        ]

    @cached_property
    def contributions(self) -> list[int]:
        """Contribution of each bit of a packed coordinate to the address (bytes).

        The inverse of the functions' matrix over GF(2), by elimination; 0 for unused bits.
        """
        rows = [[mask, 1 << index] for index, (_, _, mask) in enumerate(self._bits)]
        solved: dict[int, list[int]] = {}
        for bit in range(self._low_bit, self.address_bits):
            pivot = next(row for row in rows if row[0] >> bit & 1)
            rows.remove(pivot)
            for row in [*rows, *solved.values()]:
                if row[0] >> bit & 1:
                    row[0] ^= pivot[0]
                    row[1] ^= pivot[1]
            solved[bit] = pivot
        result = []
        index = 0
        for name, bits in FIELDS.items():
            for i in range(bits):
                if i < len(self.functions.get(name, ())):
                    result.append(
                        sum(1 << bit for bit, row in solved.items() if row[1] >> index & 1)
                    )
                    index += 1
                else:
                    result.append(0)
        return result

    # Addresses to coordinates and back --------------------------------------------------------

    def coordinates(self, addresses: npt.ArrayLike) -> dict[str, U64]:
        """Coordinates of physical addresses (bytes), one array for each field.

        The bus word of an address counts, not the byte. Raises `BadInput` for addresses outside of
        memory.
        """
        address = np.asarray(addresses, np.uint64)
        if self.remap:
            first, offset = np.uint64(self.remap.first), np.uint64(self.remap.offset)
            if np.any(hole := (address >= first) & (address < first + offset)):
                raise BadInput(
                    f"{self.name}: {int(address[hole].flat[0]):#x} lies in the memory hole",
                    "give addresses of memory",
                )
            address = np.where(address >= first + offset, address - offset, address)
        if np.any(beyond := address >> np.uint64(self.address_bits) != 0):
            raise BadInput(
                f"{self.name}: {int(address[beyond].flat[0]):#x} is beyond the memory of"
                f" 2^{self.address_bits} bytes",
                "give addresses of memory, or the mapping of a larger one",
            )
        result = {name: np.zeros(address.shape, np.uint64) for name in FIELDS}
        for name, i, mask in self._bits:
            parity = np.bitwise_count(address & np.uint64(mask)).astype(np.uint64) & np.uint64(1)
            result[name] |= parity << np.uint64(i)
        return result

    def addresses(self, coordinates: MappingType[str, npt.ArrayLike]) -> U64:
        """Physical addresses (bytes) of coordinates' bus words; missing fields are 0."""
        address = np.zeros(
            np.broadcast_shapes(*(np.shape(values) for values in coordinates.values())), np.uint64
        )
        shift = 0
        for name, bits in FIELDS.items():
            if name in coordinates:
                values = np.asarray(coordinates[name], np.uint64)
                for i in range(bits):
                    chosen = (values >> np.uint64(i)) & np.uint64(1)
                    address = address ^ chosen * np.uint64(self.contributions[shift + i])
            shift += bits
        if self.remap:
            above = address >= np.uint64(self.remap.first)
            address = address + above.astype(np.uint64) * np.uint64(self.remap.offset)
        return address

    # For the gateware -------------------------------------------------------------------------

    def tables(self, channel: int = 0) -> list[int]:
        """Words of the gateware's tables for the snooper of a channel: 36 bits each.

        Word ``slice x 512 + value``: contribution of this value of 9 bits of the coordinate, in
        units of 8 bytes. The channel's contribution is part of the first slice. Columns of narrower
        buses that lie within 8 bytes contribute nothing: no burst is shorter.
        """
        if channel >> len(self.functions.get("channel", ())):
            raise BadInput(f"{self.name}: there is no channel {channel}", "give a lower number")
        units = [value >> wire.ADDRESS_UNIT_SHIFT for value in self.contributions]
        ours = _xor(units[BUS_BITS + i] for i in range(FIELDS["channel"]) if channel >> i & 1)
        return table_words(units, ours)

    def register_writes(self, channel: int = 0) -> list[tuple[str, int]]:
        """Registers of the snooper's address map and their values, in the order of writing."""
        return map_writes(self.tables(channel), self.remap or Remap(0, 0))


IDENTITY = [1 << i for i in range(BUS_BITS)]
"""Columns (see `table_words`) that make the board report coordinates instead of addresses."""


def table_words(columns: Sequence[int], constant: int) -> list[int]:
    """The gateware's tables of a linear map; in units of 8 bytes.

    :param columns: contribution of each bit of a packed coordinate; only bits on the bus count.
    :param constant: always XORed.
    """
    words = []
    for start in range(0, BUS_BITS, SLICE_BITS):
        for value in range(1 << SLICE_BITS):
            chosen = (columns[start + i] for i in range(SLICE_BITS) if value >> i & 1)
            words.append(_xor(chosen) ^ (0 if start else constant))
    return words


def map_writes(tables: Sequence[int], remap: Remap) -> list[tuple[str, int]]:
    """Registers of a snooper's address map and their values, in the order of writing."""
    return [
        ("address_control", 0),
        ("address_table_index", 0),
        *(("address_table_data", word) for word in tables),
        ("address_remap_first", remap.first // REMAP_UNIT_BYTES),
        ("address_remap_offset", remap.offset // REMAP_UNIT_BYTES),
        ("address_control", 1),
    ]


def _xor(values: Iterable[int]) -> int:
    result = 0
    for value in values:
        result ^= value
    return result


# Windows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Addresses (bytes) whose accesses are recorded, from `first` up to, not including, `end`."""

    first: int
    end: int
    read: bool = True
    write: bool = True
    sampled: bool = False
    start: bool = False
    stop: bool = False

    @property
    def control(self) -> int:
        """The window's control register."""
        flags = (self.read, self.write, self.sampled, self.start, self.stop)
        return sum(flag << i for i, flag in enumerate(flags))


def window_writes(windows: Sequence[Window]) -> list[tuple[str, int]]:
    """Registers of the snooper's filter and their values, in the order of writing.

    Raises `BadInput` for too many windows, and for unaligned, empty or overlapping ones: an access
    in an overlap would be counted for one window and recorded by the rule of another.
    """
    if not 1 <= len(windows) <= WINDOWS_MAX:
        raise BadInput(
            f"{len(windows)} address windows; the board has {WINDOWS_MAX}",
            f"give 1 to {WINDOWS_MAX}",
        )
    for window in windows:
        if window.first % WINDOW_UNIT_BYTES or window.end % WINDOW_UNIT_BYTES:
            raise BadInput(
                f"the address window {window.first:#x}-{window.end:#x} is not aligned",
                "use multiples of 64 KiB",
            )
        if not 0 <= window.first < window.end <= 1 << ADDRESS_BITS_MAX:
            raise BadInput(
                f"the address window {window.first:#x}-{window.end:#x} is empty or too high",
                f"give first < end, up to 2^{ADDRESS_BITS_MAX}",
            )
    ordered = sorted(windows, key=lambda window: window.first)
    for below, above in itertools.pairwise(ordered):
        if above.first < below.end:
            raise BadInput(
                f"the address windows {below.first:#x}-{below.end:#x} and"
                f" {above.first:#x}-{above.end:#x} overlap",
                "make them disjoint",
            )
    writes = []
    for i in range(WINDOWS_MAX):
        name = f"filter_window{i}"
        if i < len(windows):
            writes += [
                (f"{name}_first", windows[i].first // WINDOW_UNIT_BYTES),
                (f"{name}_last", windows[i].end // WINDOW_UNIT_BYTES - 1),
                (f"{name}_control", windows[i].control),
            ]
        else:
            writes.append((f"{name}_control", 0))
    return writes


def check_ready(read: Callable[[str], int]) -> None:
    """Raise `BadInput` unless a snooper is fit to record; `read` reads its registers by name."""
    version = read("wire_version")
    if version != wire.VERSION:
        raise BadInput(
            f"the board's gateware writes stream format {version}; this ptat reads {wire.VERSION}",
            "load the bitstream of this ptat",
        )
    if not read("address_control") & 1:
        raise BadInput(
            "the board has no address mapping", "program one: all accesses would be decode errors"
        )
    if not any(read(f"filter_window{i}_control") & 0b11 for i in range(WINDOWS_MAX)):
        raise BadInput("the board has no address window", "set one: nothing would be recorded")


# Published mappings -------------------------------------------------------------------------------

# What was read, and agrees bit by bit where two are named:
_RAMSES = "VUSec's ramses (map/x86/intel.c)"
_ROWHAMMERJS = "rowhammer.js of DRAMA's authors (native/rowhammer.cc)"
_MEASURED = "heechul/drama's measurements (Found-DRAM-BankMap.md)"
_BLACKSMITH = "Blacksmith (src/Memory/DRAMAddr.cpp)"
_SB_EDAC = "Linux's drivers/edac/sb_edac.c"
# The table of the paper itself (P. Pessl et al., DRAMA: Exploiting DRAM Addressing for Cross-CPU
# Attacks, USENIX Security 2016) was not at hand; rowhammer.js holds its functions.


@dataclass(frozen=True)
class _Published:
    """Convert functions from the form of published tables: for each bit, the address bits of its
    parity.

    Most tables give no row and column bits. The usual rule: each function owns one address bit,
    which appears in no other coordinate; the row is all bits above the owned ones, and the column
    is the rest. `low_row`: row bits below owned ones.
    """

    source: str
    bank: tuple[tuple[int, ...], ...]
    rank: tuple[tuple[int, ...], ...]
    bank_group: tuple[tuple[int, ...], ...] = ()
    channel: tuple[tuple[int, ...], ...] = ()
    low_row: tuple[int, ...] = ()
    owned: frozenset[int] = field(default_factory=frozenset)

    def mapping(self, name: str, row_bits: int) -> Mapping:
        """The whole mapping for memory of `row_bits` rows."""
        fields = {
            part: [sum(1 << bit for bit in bits) for bits in getattr(self, part)]
            for part in ("bank", "bank_group", "rank", "channel")
        }
        row_start = max(self.owned) + 1
        row_end = row_start + row_bits - len(self.low_row)
        below = set(range(wire.ADDRESS_UNIT_SHIFT, row_start))
        fields["column"] = [1 << bit for bit in sorted(below - self.owned - {*self.low_row})]
        fields["row"] = [1 << bit for bit in (*self.low_row, *range(row_start, row_end))]
        return Mapping(name, self.source, row_end, fields)


_HASWELL_CHANNEL = (7, 8, 9, 12, 13, 18, 19)
_SKYLAKE_CHANNEL = (8, 9, 12, 13, 18, 19)

_SANDY_BRIDGE = (
    f"bank, channel, row and column: {_RAMSES}, which takes bit {{}} alone for the rank; rank, on"
    f" two channels: {_ROWHAMMERJS} and {_MEASURED}"
)
_SKYLAKE_NAMES = "which of them is rank, bank and bank group, rows and columns: by the usual rule"
_IVY_BRIDGE_EP = (
    f"for one socket, open pages and bank XOR. DRAMA has no Ivy Bridge-EP. Channel and rank:"
    f" {_SB_EDAC} (which doubts its own rank: by the data sheet the bit is 2 higher); banks: from"
    " memory of register MCMTR in Intel's data sheet (E5 v2, volume 2), not read; row and column:"
    " derived"
)

# One DIMM of two ranks on each channel.
_PUBLISHED = {
    ("sandy-bridge", 1): _Published(
        _SANDY_BRIDGE.format(16) + "; on one: derived, a bit lower",
        bank=((13, 17), (14, 18), (15, 19)),
        rank=((16, 20),),
        owned=frozenset({13, 14, 15, 16}),
    ),
    ("sandy-bridge", 2): _Published(
        _SANDY_BRIDGE.format(17),
        bank=((14, 18), (15, 19), (16, 20)),
        rank=((17, 21),),
        channel=((6,),),
        owned=frozenset({6, 14, 15, 16, 17}),
    ),
    ("ivy-bridge", 1): _Published(
        _RAMSES,
        bank=((13, 17), (14, 18), (16, 20)),
        rank=((15, 19),),
        owned=frozenset({13, 14, 15, 16}),
    ),
    ("ivy-bridge", 2): _Published(
        f"{_RAMSES}; {_ROWHAMMERJS} has the same functions",
        bank=((14, 18), (15, 19), (17, 21)),
        rank=((16, 20),),
        channel=(_HASWELL_CHANNEL,),
        owned=frozenset({7, 14, 15, 16, 17}),
    ),
    # Of the address in a rank, bits 12^19, 17^20 and 18^21 are the bank. The bits of channel and
    # rank are not part of it: all above them are one, then two higher in the physical address.
    ("ivy-bridge-ep", 1): _Published(
        _IVY_BRIDGE_EP,
        bank=((12, 20), (18, 21), (19, 22)),
        rank=((13,),),
        low_row=(15, 16, 17),
        owned=frozenset({12, 13, 18, 19}),
    ),
    ("ivy-bridge-ep", 2): _Published(
        _IVY_BRIDGE_EP,
        bank=((13, 21), (19, 22), (20, 23)),
        rank=((14,),),
        channel=((6,),),
        low_row=(16, 17, 18),
        owned=frozenset({6, 13, 14, 19, 20}),
    ),
    ("skylake", 1): _Published(
        f"functions: {_BLACKSMITH}; {_SKYLAKE_NAMES}",
        bank=((16, 20), (17, 21)),
        bank_group=((6, 13), (14, 18)),
        rank=((15, 19),),
        owned=frozenset({13, 14, 15, 16, 17}),
    ),
    ("skylake", 2): _Published(
        f"functions: {_ROWHAMMERJS}, {_MEASURED}; {_SKYLAKE_NAMES}",
        bank=((17, 21), (18, 22)),
        bank_group=((7, 14), (15, 19)),
        rank=((16, 20),),
        channel=(_SKYLAKE_CHANNEL,),
        owned=frozenset({8, 14, 15, 16, 17, 18}),
    ),
}
_PUBLISHED |= {("haswell", channels): _PUBLISHED["ivy-bridge", channels] for channels in (1, 2)}

PRESETS = sorted({name for name, _ in _PUBLISHED})


def preset(name: str, channels: int = 1, row_bits: int = 16) -> Mapping:
    """A published mapping for one DIMM of two ranks on each of `channels` channels.

    Raises `BadInput` for unknown names.
    """
    published = _PUBLISHED.get((name, channels))
    if published is None:
        known = ", ".join(PRESETS)
        raise BadInput(
            f"no published address mapping {name} with {channels} channels",
            f"give one of {known}, with 1 or 2 channels",
        )
    return published.mapping(f"{name}, {channels} channels", row_bits)
