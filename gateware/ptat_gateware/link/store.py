# SPDX-License-Identifier: BSD-2-Clause
"""Where a link keeps what the other end has not yet acknowledged: a ring of chunks in DRAM.

Without DRAM, `BlockRAMPorts` are a memory that looks like LiteDRAM's.
"""

from __future__ import annotations

from typing import Any

from litedram.common import LiteDRAMNativePort
from litedram.frontend.dma import LiteDRAMDMAReader, LiteDRAMDMAWriter
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import If, Memory, Signal, log2_int

from ptat_gateware.layouts import WORD_BITS

CHUNK_BYTES = 1024
CHUNK_WORDS = CHUNK_BYTES * 8 // WORD_BITS

# Block RAM ----------------------------------------------------------------------------------------


class BlockRAMPorts(LiteXModule):
    """Block RAM behind a write and a read port of LiteDRAM's kind."""

    def __init__(self, chunks: int) -> None:
        words = chunks * CHUNK_WORDS
        self.write = LiteDRAMNativePort("write", log2_int(words), WORD_BITS)
        self.read = LiteDRAMNativePort("read", log2_int(words), WORD_BITS)

        # # #

        memory = Memory(WORD_BITS, words)
        write = memory.get_port(write_capable=True)
        read = memory.get_port(has_re=True)
        self.specials += memory, write, read

        # A write's data come after its command.
        self.commands = commands = stream.SyncFIFO([("addr", log2_int(words))], 4)
        self.comb += [
            self.write.cmd.connect(commands.sink, keep={"valid", "ready", "addr"}),
            write.adr.eq(commands.source.addr),
            write.dat_w.eq(self.write.wdata.data),
            self.write.wdata.ready.eq(commands.source.valid),
            commands.source.ready.eq(self.write.wdata.valid),
            write.we.eq(self.write.wdata.valid & commands.source.valid),
        ]

        # A reader takes what it has requested.
        self.comb += [
            self.read.cmd.ready.eq(1),
            read.adr.eq(self.read.cmd.addr),
            read.re.eq(self.read.cmd.valid),
            self.read.rdata.data.eq(read.dat_r),
        ]
        self.sync += self.read.rdata.valid.eq(self.read.cmd.valid)


# Chunk Store --------------------------------------------------------------------------------------


class ChunkStore(LiteXModule):
    """A ring of ``chunks`` (a power of 2) of 1 KiB from byte ``base`` on.

    ``sink`` fills them one after the other, whatever was there; ``stored`` is 1 for a clock when
    one more can be read. ``read`` names one, and ``source`` gives it, with ``last``. ``restart``,
    at a time when nothing is under way, makes the next chunk number 0.

    The ports are LiteDRAM's native ones as the controller has them, in domain ``sys`` and with its
    width: behind a converter or a clock-domain crossing, data taken are not yet data written.
    """

    def __init__(self, write_port: Any, read_port: Any, chunks: int, base: int = 0) -> None:
        self.chunks = chunks
        self.sink = stream.Endpoint([("data", WORD_BITS)])
        self.stored = Signal()
        self.restart = Signal()
        self.read = stream.Endpoint([("chunk", log2_int(chunks))])
        self.source = stream.Endpoint([("data", WORD_BITS)])

        # # #

        width = write_port.data_width
        per_chunk = CHUNK_BYTES * 8 // width
        first = base * 8 // width

        # Write --------------------------------------------------------------------------------

        self.to_port = to_port = stream.Converter(WORD_BITS, width)
        self.writer = writer = LiteDRAMDMAWriter(write_port)
        place = Signal(max=chunks * per_chunk)
        written = Signal(max=per_chunk)
        self.comb += [
            self.sink.connect(to_port.sink, keep={"valid", "ready", "data"}),
            to_port.source.connect(writer.sink, keep={"valid", "ready", "data"}),
            writer.sink.address.eq(first + place),
        ]
        self.sync += [
            self.stored.eq(0),
            If(writer.sink.valid & writer.sink.ready, place.eq(place + 1)),
            If(self.restart, place.eq(0)),
            # Once the controller has the data, a read that comes later sees them.
            If(
                write_port.wdata.valid & write_port.wdata.ready,
                written.eq(written + 1),
                self.stored.eq(written == per_chunk - 1),
            ),
        ]

        # Read ---------------------------------------------------------------------------------

        self.reader = reader = LiteDRAMDMAReader(read_port)
        self.from_port = from_port = stream.Converter(width, WORD_BITS)
        offset = Signal(max=per_chunk)
        index = Signal(max=CHUNK_WORDS)
        source = self.source
        self.comb += [
            reader.sink.valid.eq(self.read.valid),
            reader.sink.address.eq(first + self.read.chunk * per_chunk + offset),
            self.read.ready.eq(reader.sink.ready & (offset == per_chunk - 1)),
            reader.source.connect(from_port.sink, keep={"valid", "ready", "data"}),
            from_port.source.connect(source, keep={"valid", "ready", "data"}),
            source.last.eq(index == CHUNK_WORDS - 1),
        ]
        self.sync += [
            If(reader.sink.valid & reader.sink.ready, offset.eq(offset + 1)),
            If(source.valid & source.ready, index.eq(index + 1)),
        ]
