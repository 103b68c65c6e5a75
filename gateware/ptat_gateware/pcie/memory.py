# SPDX-License-Identifier: BSD-2-Clause
"""The memory that holds the region, behind a port of LiteDRAM's.

::

    sink ────────┐
                 ├─► PortCommands ─► port.cmd, port.wdata ─► controller ─► port.rdata
    ClearEngine ─┘                                                             │
    source ◄──────────────────────────────── PortResponses ◄───────────────────┘

One port carries reads and writes, so LiteDRAM keeps their order: what a write stored, every later
read sees, and reads answer in the order of their commands. Several are under way at a time; a read
is sent only when there is room for what it brings, because LiteDRAM does not wait for that.
"""

from __future__ import annotations

from typing import Any

from litedram.common import LiteDRAMNativePort
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import Array, Cat, If, Memory, Mux, Replicate, Signal, log2_int

from ptat_gateware.layouts import Layout
from ptat_gateware.pcie.layouts import (
    QWORD_BITS,
    QWORD_BYTES,
    READS,
    data_layout,
    memory_layout,
)

WRITES = 16  # whose data wait for the controller
CLEAR_UNIT_SHIFT = 16  # ranges to clear are multiples of 64 KiB
PAGE_WORDS = 4096 // QWORD_BYTES


def _port_layout(port: Any) -> Layout:
    """A command to a port: an address in its words, the 8 bytes of the word, and their data."""
    return [
        ("write", 1),
        ("address", port.address_width),
        ("lane", _lane_bits(port)),
        ("data", QWORD_BITS),
        ("mask", port.data_width // 8),
    ]


def _lane_bits(port: Any) -> int:
    bits: int = log2_int(port.data_width // QWORD_BITS)
    return max(bits, 1)  # there are no signals of 0 bits


# Clearing ---------------------------------------------------------------------------------------


class ClearEngine(LiteXModule):
    """Writes zeros to a range of the region, a word of the port at a time."""

    def __init__(self, port: Any, region_bytes: int) -> None:
        self.source = source = stream.Endpoint(_port_layout(port))

        units = region_bytes >> CLEAR_UNIT_SHIFT
        self._first = CSRStorage(
            log2_int(units), description="First 64 KiB of the region to clear."
        )
        self._last = CSRStorage(
            log2_int(units),
            reset=units - 1,
            description="Last 64 KiB of the region to clear, inclusive.",
        )
        self._control = CSRStorage(
            fields=[
                CSRField(
                    "start",
                    size=1,
                    pulse=True,
                    description="Fill the range with zeros. Until that is done, a write to it may"
                    " or may not remain.",
                )
            ],
            description="Control of clearing.",
        )
        self._status = CSRStatus(
            fields=[CSRField("busy", size=1, description="Zeros are being written.")],
            description="State of clearing.",
        )

        # # #

        unit_bits = CLEAR_UNIT_SHIFT - log2_int(port.data_width // 8)
        address, end = Signal(port.address_width), Signal(port.address_width)
        busy = self._status.fields.busy
        self.comb += [
            source.valid.eq(busy),
            source.write.eq(1),
            source.address.eq(address),
            source.mask.eq(2 ** len(source.mask) - 1),
        ]
        self.sync += [
            If(
                self._control.fields.start & ~busy,
                address.eq(self._first.storage << unit_bits),
                end.eq(Cat(Replicate(1, unit_bits), self._last.storage)),
                busy.eq(self._last.storage >= self._first.storage),
            ),
            If(
                source.valid & source.ready,
                address.eq(address + 1),
                busy.eq(address != end),
            ),
        ]


# Port -------------------------------------------------------------------------------------------


class PortCommands(LiteXModule):
    """Sends commands to a port; ``room``: there is room for what one more read brings."""

    def __init__(self, port: Any) -> None:
        self.sink = sink = stream.Endpoint(_port_layout(port))
        self.lane = lane = stream.Endpoint([("lane", _lane_bits(port))])
        self.room = Signal()

        # # #

        writes = stream.SyncFIFO([("data", QWORD_BITS), ("mask", port.data_width // 8)], WRITES)
        self.writes = writes
        possible = Signal()
        self.comb += [
            possible.eq(Mux(sink.write, writes.sink.ready, self.room)),
            port.cmd.valid.eq(sink.valid & possible),
            port.cmd.we.eq(sink.write),
            port.cmd.addr.eq(sink.address),
            port.cmd.last.eq(1),
            sink.ready.eq(port.cmd.ready & possible),
            # What a write brings is there when the controller asks for it.
            writes.sink.valid.eq(sink.valid & sink.ready & sink.write),
            writes.sink.data.eq(sink.data),
            writes.sink.mask.eq(sink.mask),
            port.wdata.valid.eq(writes.source.valid),
            port.wdata.data.eq(Cat(*[writes.source.data] * (port.data_width // QWORD_BITS))),
            port.wdata.we.eq(writes.source.mask),
            writes.source.ready.eq(port.wdata.ready),
            lane.valid.eq(sink.valid & sink.ready & ~sink.write),
            lane.lane.eq(sink.lane),
        ]


class PortResponses(LiteXModule):
    """Takes what reads bring, at once, and gives the 8 bytes that were wanted."""

    def __init__(self, port: Any, depth: int = READS) -> None:
        self.lane = stream.Endpoint([("lane", _lane_bits(port))])
        self.source = source = stream.Endpoint(data_layout)
        self.room = Signal()

        # # #

        self.lanes = lanes = stream.SyncFIFO([("lane", _lane_bits(port))], depth)
        self.words = words = stream.SyncFIFO(data_layout, depth)
        qwords = Array(
            port.rdata.data[low : low + QWORD_BITS] for low in range(0, port.data_width, QWORD_BITS)
        )
        under_way = Signal(max=depth + 1)  # reads sent and not yet given
        done = source.valid & source.ready
        self.comb += [
            self.room.eq(under_way != depth),
            self.lane.connect(lanes.sink),
            port.rdata.ready.eq(1),
            words.sink.valid.eq(port.rdata.valid),
            words.sink.data.eq(qwords[lanes.source.lane]),
            lanes.source.ready.eq(port.rdata.valid),
            words.source.connect(source),
        ]
        self.sync += [
            If(self.lane.valid & ~done, under_way.eq(under_way + 1)),
            If(~self.lane.valid & done, under_way.eq(under_way - 1)),
        ]


# Memory -----------------------------------------------------------------------------------------


class RegionMemory(LiteXModule):
    """The region in the first ``region_bytes`` behind a port of mode ``both``.

    Accesses go before clearing, which takes what they leave.
    """

    def __init__(self, port: Any, region_bytes: int) -> None:
        self.sink = sink = stream.Endpoint(memory_layout)
        self.source = stream.Endpoint(data_layout)

        # # #

        self.clear = clear = ClearEngine(port, region_bytes)
        self.chosen = chosen = stream.PipeValid(_port_layout(port))
        self.commands = commands = PortCommands(port)
        self.responses = responses = PortResponses(port)

        lanes = port.data_width // QWORD_BITS
        lane_bits = log2_int(lanes)
        region_bits = log2_int(region_bytes // QWORD_BYTES)
        lane = sink.address[:lane_bits] if lanes > 1 else 0
        self.comb += [
            If(
                sink.valid,
                chosen.sink.valid.eq(1),
                chosen.sink.write.eq(sink.write),
                chosen.sink.address.eq(sink.address[lane_bits:region_bits]),
                chosen.sink.lane.eq(lane),
                chosen.sink.data.eq(sink.data),
                chosen.sink.mask.eq(sink.be << QWORD_BYTES * lane),
                sink.ready.eq(chosen.sink.ready),
            ).Else(clear.source.connect(chosen.sink)),
            chosen.source.connect(commands.sink),
            commands.lane.connect(responses.lane),
            commands.room.eq(responses.room),
            responses.source.connect(self.source),
        ]


# Block RAM --------------------------------------------------------------------------------------


class BlockRAMPort(LiteXModule):
    """Block RAM behind a port of LiteDRAM's kind, for boards without DRAM.

    The first ``shared_bytes`` of its addresses share one page. The kernel has its markers there:
    what tells one from another is the address, and only the first 16 bytes are ever read back.
    """

    def __init__(self, size_bytes: int, shared_bytes: int = 0) -> None:
        words, shared = size_bytes // QWORD_BYTES, shared_bytes // QWORD_BYTES
        address_bits = log2_int(words, need_pow2=False)
        self.port = port = LiteDRAMNativePort("both", address_bits, QWORD_BITS)

        # # #

        writing = Signal()  # a write's data come after its command
        place, written = Signal(address_bits), Signal(address_bits)
        self.comb += [
            port.cmd.ready.eq(~writing),
            port.wdata.ready.eq(writing),
            place.eq(Mux(writing, written, port.cmd.addr)),
        ]
        self.sync += [
            port.rdata.valid.eq(port.cmd.valid & port.cmd.ready & ~port.cmd.we),
            If(port.cmd.valid & port.cmd.ready, written.eq(port.cmd.addr)),
            If(writing, writing.eq(~port.wdata.valid)).Else(
                writing.eq(port.cmd.valid & port.cmd.we)
            ),
        ]

        store = writing & port.wdata.valid
        own = (place >= shared) & (place < words)  # of a word with a place of its own
        data = self._ram(words - shared, place - shared, store & own)
        if shared:
            read_shared = Signal()
            self.sync += read_shared.eq(place < shared)
            page = self._ram(PAGE_WORDS, place, store & (place < shared))
            data = Mux(read_shared, page, data)
        self.comb += port.rdata.data.eq(data)

    def _ram(self, depth: int, address: Any, store: Any) -> Any:
        """A memory of ``depth`` words; returns what is at ``address``, a clock later."""
        memory = Memory(QWORD_BITS, depth)
        ram = memory.get_port(write_capable=True, we_granularity=8)
        self.specials += memory, ram
        wdata = self.port.wdata
        self.comb += [ram.adr.eq(address), ram.dat_w.eq(wdata.data), If(store, ram.we.eq(wdata.we))]
        return ram.dat_r
