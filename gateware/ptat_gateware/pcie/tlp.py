# SPDX-License-Identifier: BSD-2-Clause
"""Transaction layer packets: from the PHY's words to a request, from a completion to words.

::

    PHY word ─► DwordSplitter ─► RequestDecoder ─► request, payload
    PHY word ◄─ DwordJoiner ◄── CompletionEncoder ◄─ completion, data

A dword a clock is enough: a page walk is a request of 4 dwords and a completion of 5. In dwords,
headers of 3 and of 4 dwords and PHYs of 64 and of 128 bits are the same thing.

Layouts follow the PCI Express Base Specification 3.0: sections 2.2.1 (common fields), 2.2.5 (byte
enables), 2.2.7 (memory requests) and 2.2.9 (completions). The PHY's words are LitePCIe's: the first
dword of a packet is in the low bits, a header dword is a number whose byte 0 is the highest, and so
is a dword of payload.
"""

from __future__ import annotations

import enum
from typing import Any

from litepcie.common import phy_layout
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import Array, Case, Cat, Constant, If, Memory, Mux, Signal
from migen.genlib.fsm import FSM, NextState, NextValue

from ptat_gateware.layouts import Layout

# Numbers --------------------------------------------------------------------------------------

DWORD_BITS = 32
PAYLOAD_DWORDS = 16  # 64 bytes: the largest access of a CPU
LENGTH_BITS = 10
LENGTH_MAX = 1 << LENGTH_BITS  # dwords; encoded as 0
PADDING_DWORDS = 3  # a word of a 128-bit PHY may end with as many that belong to no packet


class Fmt(enum.IntEnum):
    """Format of a header (section 2.2.1); bit 0: 4 dwords, bit 1: data follow, bit 2: a prefix."""

    HEADER_3 = 0b000
    HEADER_4 = 0b001
    HEADER_3_DATA = 0b010
    HEADER_4_DATA = 0b011
    PREFIX = 0b100


class Type(enum.IntEnum):
    """Kind of a packet (table "Fmt[2:0] and Type[4:0] Field Encodings" of section 2.2.1)."""

    MEMORY = 0b00000
    MEMORY_LOCKED = 0b00001
    IO = 0b00010
    CONFIG_0 = 0b00100
    CONFIG_1 = 0b00101
    COMPLETION = 0b01010
    COMPLETION_LOCKED = 0b01011
    FETCH_ADD = 0b01100
    SWAP = 0b01101
    COMPARE_AND_SWAP = 0b01110
    MESSAGE = 0b10000  # the low 3 bits are the routing


class Status(enum.IntEnum):
    """Status of a completion (section 2.2.9)."""

    SUCCESS = 0b000
    UNSUPPORTED_REQUEST = 0b001


# Layouts --------------------------------------------------------------------------------------

# A dword of a packet; `present` is 0 where a word of the PHY has none.
dword_layout: Layout = [("data", DWORD_BITS), ("present", 1)]

# A packet with its header's fields by name. `malformed`: it is shorter or longer than its header
# says. Of a completion, only `fmt` and `type` have their meaning.
request_layout: Layout = [
    ("fmt", 3),
    ("type", 5),
    ("traffic_class", 3),
    ("attributes", 3),
    ("poisoned", 1),
    ("length", LENGTH_BITS),
    ("requester", 16),
    ("tag", 8),
    ("first_be", 4),
    ("last_be", 4),
    ("address", 64),
    ("malformed", 1),
]

# `length` is the number of dwords that follow; 0: the completion has no data.
completion_layout: Layout = [
    ("locked", 1),
    ("status", 3),
    ("traffic_class", 3),
    ("attributes", 3),
    ("requester", 16),
    ("tag", 8),
    ("lower_address", 7),
    ("byte_count", 12),
    ("length", 5),
]


def swapped(dword: Any) -> Any:
    """The dword with its bytes in the opposite order: payload from number to memory and back."""
    return Cat(dword[24:32], dword[16:24], dword[8:16], dword[0:8])


# Words of the PHY -----------------------------------------------------------------------------


class DwordSplitter(LiteXModule):
    """Words of the PHY (64 or 128 bits) to dwords, ``last`` at a packet's last one.

    ``abort`` begins anew with the next word.
    """

    def __init__(self, data_width: int) -> None:
        self.sink = sink = stream.Endpoint(phy_layout(data_width))
        self.source = source = stream.Endpoint(dword_layout)
        self.abort = Signal()

        # # #

        dwords = data_width // DWORD_BITS
        place = Signal(max=dwords)
        last_place = place == dwords - 1
        data = Array(sink.dat[DWORD_BITS * i : DWORD_BITS * (i + 1)] for i in range(dwords))
        present = Array(sink.be[4 * i] for i in range(dwords))
        self.comb += [
            source.valid.eq(sink.valid),
            source.data.eq(data[place]),
            source.present.eq(present[place]),
            source.last.eq(sink.last & last_place),
            sink.ready.eq(source.ready & last_place),
        ]
        self.sync += [
            If(source.valid & source.ready, place.eq(place + 1)),
            If(self.abort, place.eq(0)),
        ]


class DwordJoiner(LiteXModule):
    """Dwords to words of the PHY (64 or 128 bits); each packet begins a word.

    ``busy``: a packet has begun to leave and has not ended.
    """

    def __init__(self, data_width: int) -> None:
        self.sink = sink = stream.Endpoint([("data", DWORD_BITS)])
        self.source = source = stream.Endpoint(phy_layout(data_width))
        self.busy = Signal()

        # # #

        dwords = data_width // DWORD_BITS
        place = Signal(max=dwords)
        begun = Signal()  # a word of this packet has gone
        self.comb += [
            self.busy.eq(source.valid | begun | (place != 0)),
            sink.ready.eq(~source.valid | source.ready),
            source.first.eq(source.valid & ~begun),
        ]
        self.sync += [
            If(
                source.valid & source.ready,
                source.valid.eq(0),
                source.be.eq(0),
                begun.eq(~source.last),
            ),
            If(
                sink.valid & sink.ready,
                Case(
                    place,
                    {
                        i: [
                            source.dat[DWORD_BITS * i : DWORD_BITS * (i + 1)].eq(sink.data),
                            source.be[4 * i : 4 * (i + 1)].eq(0xF),
                        ]
                        for i in range(dwords)
                    },
                ),
                source.last.eq(sink.last),
                place.eq(place + 1),
                If(sink.last | (place == dwords - 1), source.valid.eq(1), place.eq(0)),
            ),
        ]


# Requests -------------------------------------------------------------------------------------


class RequestDecoder(LiteXModule):
    """Takes a packet and presents it whole: header on ``source``, payload by ``index``.

    ``source`` is valid once the packet's last dword has come; until it is accepted, no dword of the
    next is. ``dword`` is dword number ``index`` of the payload, its first byte in the low bits. Of
    a payload, the first 16 dwords are kept.

    ``sink`` may break off in the middle of a packet: ``abort`` forgets what has come of it, but no
    packet that is whole.
    """

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint(dword_layout)
        self.source = source = stream.Endpoint(request_layout)
        self.index = Signal(max=PAYLOAD_DWORDS)
        self.dword = Signal(DWORD_BITS)
        self.abort = Signal()

        # # #

        # Header ---------------------------------------------------------------------------------

        header = [Signal(DWORD_BITS) for _ in range(4)]
        four, has_data, digest = header[0][29], header[0][30], header[0][15]
        self.comb += [
            source.fmt.eq(header[0][29:32]),
            source.type.eq(header[0][24:29]),
            source.traffic_class.eq(header[0][20:23]),
            source.attributes.eq(Cat(header[0][12:14], header[0][18])),
            source.poisoned.eq(header[0][14]),
            source.length.eq(header[0][:LENGTH_BITS]),
            source.requester.eq(header[1][16:32]),
            source.tag.eq(header[1][8:16]),
            source.last_be.eq(header[1][4:8]),
            source.first_be.eq(header[1][0:4]),
            # The lowest 2 bits are no part of the address.
            If(four, source.address.eq(Cat(Constant(0, 2), header[3][2:], header[2]))).Else(
                source.address.eq(Cat(Constant(0, 2), header[2][2:]))
            ),
        ]

        # Length ---------------------------------------------------------------------------------

        # Of the packet, so far and as the header says; the longest has 4 + 1,024 + 1 dwords.
        count = Signal(max=2 * LENGTH_MAX)
        expected = Signal(max=2 * LENGTH_MAX)
        header_end = Signal(3)
        whole = Signal()  # all of the packet has come, `source` is valid
        take = Signal()
        self.comb += [
            header_end.eq(Mux(four, 4, 3)),
            expected.eq(
                header_end + Mux(has_data, Cat(source.length, source.length == 0), 0) + digest
            ),
            source.valid.eq(whole),
            source.malformed.eq((count < expected) | (count > expected + PADDING_DWORDS)),
            sink.ready.eq(~whole),
            take.eq(sink.valid & sink.ready & sink.present),
        ]
        self.sync += [
            If(
                take,
                *(If(count == i, header[i].eq(sink.data)) for i in range(4)),
                If(count != 2 * LENGTH_MAX - 1, count.eq(count + 1)),
            ),
            If(sink.valid & sink.ready & sink.last, whole.eq(1)),
            If(whole & source.ready | ~whole & self.abort, whole.eq(0), count.eq(0)),
        ]

        # Payload --------------------------------------------------------------------------------

        payload = Memory(DWORD_BITS, PAYLOAD_DWORDS)
        write = payload.get_port(write_capable=True)
        read = payload.get_port(async_read=True)
        self.specials += payload, write, read
        place = Signal(max=2 * LENGTH_MAX)
        self.comb += [
            place.eq(count - header_end),
            write.adr.eq(place),
            write.dat_w.eq(swapped(sink.data)),
            write.we.eq(take & (count >= header_end) & (place < PAYLOAD_DWORDS)),
            read.adr.eq(self.index),
            self.dword.eq(read.dat_r),
        ]


# Completions ----------------------------------------------------------------------------------


class CompletionEncoder(LiteXModule):
    """Sends a completion: 3 dwords of header, then as many of ``data`` as it says.

    ``sink`` is accepted with the last dword. ``data`` has its first byte in the low bits.
    ``completer`` is the bus, device and function number that the endpoint was given.
    """

    def __init__(self, completer: Any) -> None:
        self.sink = sink = stream.Endpoint(completion_layout)
        self.data = data = stream.Endpoint([("data", DWORD_BITS)])
        self.source = source = stream.Endpoint([("data", DWORD_BITS)])

        # # #

        left = Signal(max=PAYLOAD_DWORDS + 1)
        kind = Signal(5)
        has_data = sink.length != 0
        # A byte count mismatch (bit 12 of the second dword) is only for bridges to PCI-X.
        header = [
            Cat(
                sink.length,
                Constant(0, LENGTH_BITS - len(sink.length)),
                Constant(0, 2),  # address type
                sink.attributes[:2],
                Constant(0, 2),  # poisoned, digest
                Constant(0, 2),
                sink.attributes[2],
                Constant(0, 1),
                sink.traffic_class,
                Constant(0, 1),
                kind,
                Mux(has_data, Fmt.HEADER_3_DATA, Fmt.HEADER_3),
            ),
            Cat(sink.byte_count, Constant(0, 1), sink.status, completer),
            Cat(sink.lower_address, Constant(0, 1), sink.tag, sink.requester),
        ]
        self.comb += kind.eq(Mux(sink.locked, Type.COMPLETION_LOCKED, Type.COMPLETION))

        self.fsm = fsm = FSM("HEADER0")
        for i, following in enumerate(("HEADER1", "HEADER2")):
            fsm.act(
                f"HEADER{i}",
                source.valid.eq(sink.valid),
                source.data.eq(header[i]),
                If(source.valid & source.ready, NextState(following)),
            )
        fsm.act(
            "HEADER2",
            source.valid.eq(1),
            source.data.eq(header[2]),
            source.last.eq(~has_data),
            NextValue(left, sink.length),
            If(
                source.ready,
                If(has_data, NextState("DATA")).Else(sink.ready.eq(1), NextState("HEADER0")),
            ),
        )
        fsm.act(
            "DATA",
            source.valid.eq(data.valid),
            source.data.eq(swapped(data.data)),
            source.last.eq(left == 1),
            data.ready.eq(source.ready),
            If(
                source.valid & source.ready,
                NextValue(left, left - 1),
                If(source.last, sink.ready.eq(1), NextState("HEADER0")),
            ),
        )
