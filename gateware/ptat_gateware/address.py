# SPDX-License-Identifier: BSD-2-Clause
"""DRAM coordinate to physical address.

Each bit of the address is the parity of some bits of the coordinate (memory controllers hash
banks, ranks and channels), so the address is the XOR of what each bit of the coordinate
contributes: a matrix over GF(2). It is kept as tables. The coordinate is cut into slices of 9
bits, a block RAM tells for each slice the XOR of what its bits contribute, and the address is
the XOR of the tables' answers. Constants (the channel that this snooper sits on, inversions)
are folded into a table. So any matrix has one timing and costs one LUT a bit, and no flip-flop
holds a mask.

Above the hole that a PC leaves for devices below 4 GiB, memory appears higher by the hole's
size. That is an addition and no XOR: at and above ``remap_first``, ``remap_offset`` is added.

The host writes tables from masks: ``ptat_host.calibration.dram``.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStorage
from migen import READ_FIRST, Cat, If, Memory, Signal

from ptat_gateware.layouts import COORDINATE_BITS, access_layout, coordinate_layout
from ptat_parser import wire

SLICE_BITS = 9
SLICES = COORDINATE_BITS // SLICE_BITS
REMAP_UNIT_SHIFT = 20  # the hole is a multiple of 1 MiB
REMAP_BITS = wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT - REMAP_UNIT_SHIFT

assert COORDINATE_BITS == SLICES * SLICE_BITS


class AddressMap(LiteXModule):
    """Maps one access a lane and clock, ``latency`` clocks later, in domain ``snoop``.

    An access that comes while the tables are not declared programmed has no address: ``unmapped``
    is high in the clock in which it would have left.
    """

    latency = 3  # clocks

    def __init__(self, lanes: int = 1) -> None:
        self.sinks = [stream.Endpoint(coordinate_layout) for _ in range(lanes)]
        self.sources = [stream.Endpoint(access_layout) for _ in range(lanes)]
        self.unmapped = Signal()

        self._control = CSRStorage(
            fields=[
                CSRField(
                    "programmed",
                    size=1,
                    description="The tables hold a mapping. While 0, accesses are decode errors.",
                ),
            ],
            description="Address mapping; change tables and remap only while 0.",
        )
        self._table_index = CSRStorage(
            SLICE_BITS + (SLICES - 1).bit_length(),
            description="Where the next write to table_data goes: slice (low bits first) x 512"
            " + value of the slice. Counts up by itself.",
        )
        self._table_data = CSRStorage(
            wire.ACCESS_ADDRESS_BITS,
            description="What that value of the slice contributes to the address, in units of"
            " 8 bytes; all slices' contributions are XORed. The coordinate is, from bit 0:"
            " column (12), row (17), bank (3), bank group (2), rank (2).",
        )
        self._remap_first = CSRStorage(
            REMAP_BITS,
            description="From this address on (MiB) remap_offset is added.",
        )
        self._remap_offset = CSRStorage(
            REMAP_BITS,
            description="What is added (MiB); 0: nothing.",
        )

        # # #

        index = Signal(len(self._table_index.storage))
        self.sync += [
            If(self._table_data.re, index.eq(index + 1)),
            If(self._table_index.re, index.eq(self._table_index.storage)),
        ]

        unmapped = [
            self._add_lane(index, sink, source)
            for sink, source in zip(self.sinks, self.sources, strict=True)
        ]
        self.comb += self.unmapped.eq(reduce(or_, unmapped))

    def _add_lane(self, index: Signal, sink: stream.Endpoint, source: stream.Endpoint) -> Signal:
        coordinate = Cat(sink.column, sink.row, sink.bank, sink.bank_group, sink.rank)

        # Tables (1 clock).
        contributions = []
        for i in range(SLICES):
            table = Memory(wire.ACCESS_ADDRESS_BITS, 2**SLICE_BITS)
            write = table.get_port(write_capable=True, clock_domain="sys")
            read = table.get_port(clock_domain="snoop", mode=READ_FIRST)
            self.specials += table, write, read
            self.comb += [
                write.adr.eq(index[:SLICE_BITS]),
                write.dat_w.eq(self._table_data.storage),
                write.we.eq(self._table_data.re & (index[SLICE_BITS:] == i)),
                read.adr.eq(coordinate[i * SLICE_BITS : (i + 1) * SLICE_BITS]),
            ]
            contributions.append(read.dat_r)
        looked_up = stream.Endpoint(access_layout)

        # XOR (1 clock).
        hashed = stream.Endpoint(access_layout)
        address = contributions[0]
        for contribution in contributions[1:]:
            address = address ^ contribution

        # Remap (1 clock): sum and comparison side by side.
        low_bits = REMAP_UNIT_SHIFT - wire.ADDRESS_UNIT_SHIFT
        unit = hashed.address[low_bits:]
        moved = Signal(REMAP_BITS)
        self.comb += moved.eq(unit + self._remap_offset.storage)

        programmed = self._control.fields.programmed
        unmapped = Signal()
        self.sync.snoop += [
            looked_up.valid.eq(sink.valid),
            looked_up.write.eq(sink.write),
            looked_up.phase.eq(sink.phase),
            hashed.valid.eq(looked_up.valid),
            hashed.write.eq(looked_up.write),
            hashed.phase.eq(looked_up.phase),
            hashed.address.eq(address),
            source.valid.eq(hashed.valid & programmed),
            source.payload.eq(hashed.payload),
            If(unit >= self._remap_first.storage, source.address[low_bits:].eq(moved)),
            unmapped.eq(hashed.valid & ~programmed),
        ]
        return unmapped
