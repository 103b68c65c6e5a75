# SPDX-License-Identifier: BSD-2-Clause
"""A PCIe host's view of an endpoint: packets, and what must come back for them.

Written from the PCI Express Base Specification 3.0, apart from the gateware: what a request touches
is a set of byte addresses, and the fields of its completion are read off that set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# Table "Fmt[2:0] and Type[4:0] Field Encodings" of section 2.2.1: first byte of the header.
MRD32, MRD64, MWR32, MWR64 = 0x00, 0x20, 0x40, 0x60
MRDLK32, MRDLK64 = 0x01, 0x21
IORD, IOWR = 0x02, 0x42
CFGRD0, CFGWR0, CFGRD1, CFGWR1 = 0x04, 0x44, 0x05, 0x45
FETCHADD32, FETCHADD64 = 0x4C, 0x6C
SWAP32, SWAP64 = 0x4D, 0x6D
CAS32, CAS64 = 0x4E, 0x6E
MSG, MSGD = 0x30, 0x70  # the low 3 bits are the routing
CPL, CPLD, CPLLK, CPLDLK = 0x0A, 0x4A, 0x0B, 0x4B
PREFIX = 0x80

READS = (MRD32, MRD64)
WRITES = (MWR32, MWR64)
LOCKED = (MRDLK32, MRDLK64)
ATOMICS = (FETCHADD32, FETCHADD64, SWAP32, SWAP64, CAS32, CAS64)
OTHERS = (IORD, IOWR, CFGRD0, CFGWR0, CFGRD1, CFGWR1)
COMPLETIONS = (CPL, CPLD, CPLLK, CPLDLK)
MESSAGES = tuple(kind | routing for kind in (MSG, MSGD) for routing in range(8))
DEFINED = (*READS, *WRITES, *LOCKED, *ATOMICS, *OTHERS, *COMPLETIONS, *MESSAGES)

SC, UR = 0, 1  # completion status, section 2.2.9


@dataclass(frozen=True)
class Tlp:
    """A packet as a host sends it; ``payload`` are dwords, their first byte lowest."""

    kind: int  # fmt and type
    length: int = 1  # dwords, 1 to 1,024
    address: int = 0  # of a dword
    first_be: int = 0xF
    last_be: int = 0
    requester: int = 0x0008
    tag: int = 0
    traffic_class: int = 0
    attributes: int = 0
    poisoned: int = 0
    digest: int = 0
    payload: tuple[int, ...] = ()

    @property
    def header_dwords(self) -> int:
        return 4 if self.kind & 0x20 else 3

    @property
    def has_data(self) -> bool:
        return bool(self.kind & 0x40)

    def dwords(self) -> list[int]:
        """The packet as numbers whose highest byte is sent first (section 2.1.2)."""
        header = [
            self.kind << 24
            | self.traffic_class << 20
            | (self.attributes >> 2) << 18
            | self.digest << 15
            | self.poisoned << 14
            | (self.attributes & 3) << 12
            | self.length % 1024,
            self.requester << 16 | self.tag << 8 | self.last_be << 4 | self.first_be,
        ]
        if self.header_dwords == 4:
            header += [self.address >> 32, self.address & 0xFFFF_FFFF]
        else:
            header.append(self.address & 0xFFFF_FFFF)
        data = [int.from_bytes(dword.to_bytes(4, "little"), "big") for dword in self.payload]
        return header + data + [0xDEADBEEF] * self.digest

    def enables(self) -> list[int]:
        """Byte enables of each dword (section 2.2.5)."""
        if self.length == 1:
            return [self.first_be]
        return [self.first_be, *[0xF] * (self.length - 2), self.last_be]

    def touched(self) -> list[int]:
        """Addresses of the bytes that are enabled, ascending."""
        return [
            self.address + 4 * i + byte
            for i, enables in enumerate(self.enables())
            for byte in range(4)
            if enables >> byte & 1
        ]


@dataclass(frozen=True)
class Completion:
    """What an endpoint sends back."""

    kind: int
    status: int
    completer: int
    requester: int
    tag: int
    traffic_class: int
    attributes: int
    lower_address: int
    byte_count: int
    payload: tuple[int, ...] = ()


def decoded(dwords: list[int]) -> Completion:
    """A completion from its dwords; reserved bits must be 0, and its length what follows."""
    first, second, third, *data = dwords
    kind = first >> 24
    assert first & 0x00888C00 | third & 0x80 | second & 0x1000 == 0
    assert first >> 14 & 3 == 0  # neither poisoned nor with a digest
    assert kind in COMPLETIONS
    assert len(data) == ((first & 0x3FF or 1024) if kind & 0x40 else 0)
    if not kind & 0x40:
        assert first & 0x3FF == 0
    return Completion(
        kind=kind,
        status=second >> 13 & 7,
        completer=second >> 16,
        requester=third >> 16,
        tag=third >> 8 & 0xFF,
        traffic_class=first >> 20 & 7,
        attributes=(first >> 18 & 1) << 2 | first >> 12 & 3,
        lower_address=third & 0x7F,
        byte_count=second & 0xFFF,
        payload=tuple(int.from_bytes(dword.to_bytes(4, "big"), "little") for dword in data),
    )


def words(dwords: list[int], data_width: int, exact: bool = True) -> list[tuple[int, int, int]]:
    """Words of the PHY: data, byte enables, last. Not ``exact``: the last enables all its bytes."""
    per_word = data_width // 32
    result = []
    for start in range(0, len(dwords), per_word):
        some = dwords[start : start + per_word]
        data = sum(dword << 32 * i for i, dword in enumerate(some))
        enables = (1 << 4 * len(some)) - 1 if exact else (1 << 4 * per_word) - 1
        result.append((data, enables, int(start + per_word >= len(dwords))))
    return result


def unpacked(got: list[tuple[int, int]], data_width: int) -> list[int]:
    """Dwords of a packet's words (data, byte enables); only the last may be partly enabled."""
    result = []
    for i, (data, enables) in enumerate(got):
        count = bin(enables).count("1") // 4
        assert enables == (1 << 4 * count) - 1
        assert count == data_width // 32 or i == len(got) - 1
        result += [data >> 32 * j & 0xFFFF_FFFF for j in range(count)]
    return result


# What an endpoint must do -------------------------------------------------------------------------

TYPE, LENGTH, WINDOW, POISONED, MALFORMED, COMPLETION, MESSAGE = range(7)  # as the gateware counts

PAGE = 4096
ACCESS_BYTES = 64


@dataclass
class Reaction:
    """What follows a packet."""

    completion: Completion | None = None
    refused: int | None = None
    records: list[tuple[int, int]] = field(default_factory=list)  # (write, address // 8)
    window: bool = False


def well_formed(tlp: Tlp) -> bool:
    """Sections 2.2.2 (length), 2.2.5 (byte enables), 2.2.7 (4 KiB); not the kinds."""
    data = tlp.length if tlp.has_data else 0
    if tlp.kind not in DEFINED or len(tlp.payload) != data:
        return False
    if tlp.kind in (*READS, *WRITES, *LOCKED):
        if tlp.length == 1 and tlp.last_be:
            return False
        if tlp.length > 1 and not (tlp.first_be and tlp.last_be):
            return False
        if tlp.address % PAGE + 4 * tlp.length > PAGE:
            return False
    return True


class Endpoint:
    """A BAR with a region of bytes and a window of registers at its end."""

    def __init__(
        self, bar_bytes: int, window_bytes: int, completer: int, region_bytes: int
    ) -> None:
        self.bar_bytes, self.region_bytes = bar_bytes, region_bytes
        self.window_start = bar_bytes - window_bytes
        self.completer = completer
        self.bytes = np.zeros(bar_bytes, np.uint8)

    def react(self, tlp: Tlp) -> Reaction:
        """Take a packet; the region changes."""
        if not well_formed(tlp):
            return Reaction(refused=MALFORMED)
        if tlp.kind in MESSAGES:
            return Reaction(refused=MESSAGE)
        if tlp.kind in COMPLETIONS:
            return Reaction(refused=COMPLETION)
        if tlp.kind not in (*READS, *WRITES):
            return Reaction(self._refusal(tlp), TYPE)
        if tlp.kind in WRITES and tlp.poisoned:
            return Reaction(refused=POISONED)
        in_window = tlp.address % self.bar_bytes >= self.window_start
        if 4 * tlp.length > ACCESS_BYTES:
            return Reaction(self._refusal(tlp), LENGTH)
        nowhere = not in_window and tlp.address % self.bar_bytes >= self.region_bytes
        if nowhere or (in_window and tlp.length > 2):
            return Reaction(self._refusal(tlp), WINDOW)
        if tlp.kind in WRITES:
            return self._write(tlp, in_window)
        return self._read(tlp, in_window)

    def _write(self, tlp: Tlp, in_window: bool) -> Reaction:
        data = b"".join(dword.to_bytes(4, "little") for dword in tlp.payload)
        for address in tlp.touched():
            self.bytes[address % self.bar_bytes] = data[address - tlp.address]
        if in_window:
            return Reaction(window=True)
        return Reaction(records=[(1, q) for q in sorted({a // 8 for a in tlp.touched()})])

    def _read(self, tlp: Tlp, in_window: bool) -> Reaction:
        start = tlp.address % self.bar_bytes
        data = self.bytes[start : start + 4 * tlp.length].tobytes()
        dwords = np.frombuffer(data, "<u4").tolist()
        if in_window:  # a dword of which no byte is enabled is not read
            dwords = [d if be else 0 for d, be in zip(dwords, tlp.enables(), strict=True)]
        completion = self._completion(tlp, CPLD, SC, tuple(dwords))
        if in_window:
            return Reaction(completion, window=True)
        return Reaction(completion, records=[(0, a // 8) for a in tlp.touched()[:1]])

    def _refusal(self, tlp: Tlp) -> Completion | None:
        """Section 2.3.1: non-posted requests that are not supported complete with UR."""
        if tlp.kind in WRITES:
            return None
        return self._completion(tlp, CPLLK if tlp.kind in LOCKED else CPL, UR, ())

    def _completion(self, tlp: Tlp, kind: int, status: int, payload: tuple[int, ...]) -> Completion:
        """Section 2.3.1.1: Byte Count and Lower Address, whatever the status.

        A zero-length read counts for a byte at its dword's start. Section 2.2.9: an atomic
        operation's byte count is that of its operand, all others' that are no reads is 4.
        """
        lower_address, byte_count = 0, 4
        if tlp.kind in (*READS, *LOCKED):
            touched = tlp.touched() or [tlp.address]
            lower_address = touched[0] % 128
            byte_count = touched[-1] - touched[0] + 1
        elif tlp.kind in ATOMICS:
            byte_count = 4 * tlp.length // (2 if tlp.kind in (CAS32, CAS64) else 1)
        return Completion(
            kind=kind,
            status=status,
            completer=self.completer,
            requester=tlp.requester,
            tag=tlp.tag,
            traffic_class=tlp.traffic_class,
            attributes=tlp.attributes,
            lower_address=lower_address,
            byte_count=byte_count % 4096,
            payload=payload,
        )
