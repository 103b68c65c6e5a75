# SPDX-License-Identifier: BSD-2-Clause
"""Between the bus's clock and the link: a FIFO that crosses clocks, and deep buffers of blocks."""

from __future__ import annotations

import itertools
from typing import Any

from litedram.frontend.fifo import LiteDRAMFIFO
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import READ_FIRST, Cat, ClockDomainsRenamer, If, Memory, Mux, Signal, log2_int
from migen.genlib.cdc import GrayCounter, MultiReg

from ptat_gateware.layouts import WORD_BITS
from ptat_gateware.stream.seal import Seal
from ptat_parser import wire

# Clock-domain crossing ------------------------------------------------------------------------


def _binary(gray: Signal) -> Any:
    """Each bit is the XOR of all from it up: in steps that double, for timing."""
    bits, step = list(gray), 1
    while step < len(bits):
        bits = [bit ^ higher for bit, higher in zip(bits, bits[step:], strict=False)] + bits[-step:]
        step *= 2
    return Cat(*bits)


class CrossingFIFO(LiteXModule):
    """Asynchronous FIFO from domain ``snoop`` to ``sys`` whose writer knows how full it is.

    What is written on a clock with ``we`` is stored: the writer stops by ``room``, which falls
    ``margin`` entries before the end (what it may still write before it sees that), and resumes by
    ``half_empty``. Both err on the full side: they see a read some clocks later, writes at once.
    """

    margin = 8  # entries

    def __init__(self, width: int, depth: int) -> None:
        self.din = Signal(width)
        self.we = Signal()
        self.room = Signal()
        self.half_empty = Signal()

        self.source = stream.Endpoint([("data", width)])

        # # #

        bits = log2_int(depth) + 1
        self.produce = produce = ClockDomainsRenamer("snoop")(GrayCounter(bits))
        self.consume = consume = GrayCounter(bits)
        storage = Memory(width, depth)
        write = storage.get_port(write_capable=True, clock_domain="snoop")
        read = storage.get_port(clock_domain="sys", mode=READ_FIRST)
        self.specials += storage, write, read

        # Write side.
        consumed, consumed_binary = Signal(bits), Signal(bits)
        level = Signal(bits)
        self.specials += MultiReg(consume.q, consumed, "snoop")
        self.comb += [
            produce.ce.eq(self.we),
            write.adr.eq(produce.q_binary[:-1]),
            write.dat_w.eq(self.din),
            write.we.eq(self.we),
        ]
        self.sync.snoop += [
            consumed_binary.eq(_binary(consumed)),
            level.eq(produce.q_binary - consumed_binary),
            self.room.eq(level < depth - self.margin),
            self.half_empty.eq(level < depth // 2),
        ]

        # Read side.
        produced = Signal(bits)
        self.specials += MultiReg(produce.q, produced, "sys")
        self.comb += [
            self.source.valid.eq(consume.q != produced),
            self.source.data.eq(read.dat_r),
            consume.ce.eq(self.source.valid & self.source.ready),
            read.adr.eq(consume.q_next_binary[:-1]),
        ]


class LaneSerializer(LiteXModule):
    """Words of a clock, one by one: the first lane's, then the second's."""

    def __init__(self, lanes: int) -> None:
        self.sink = sink = stream.Endpoint([("words", lanes * WORD_BITS), ("valids", lanes)])
        self.source = source = stream.Endpoint([("word", WORD_BITS)])

        # # #

        if lanes == 1:
            self.comb += [
                source.valid.eq(sink.valid),
                source.word.eq(sink.words),
                sink.ready.eq(source.ready),
            ]
            return
        first_done = Signal()
        second = ~sink.valids[0] | first_done
        last = second | ~sink.valids[1]
        self.comb += [
            source.valid.eq(sink.valid),
            source.word.eq(Mux(second, sink.words[WORD_BITS:], sink.words[:WORD_BITS])),
            sink.ready.eq(source.ready & last),
        ]
        self.sync += If(source.valid & source.ready, first_done.eq(~last))


# Buffer ---------------------------------------------------------------------------------------


BLOCK_RAM_BITS = 16384  # of an ECP5, and of half a 7-series one, without parity


class BlockRAMFIFO(LiteXModule):
    """Synchronous FIFO of 64-bit words in columns as narrow as a block RAM of ``depth`` words is.

    As one memory, Yosys would stack wider RAMs and put a multiplexer behind them. In simulations,
    which many memories make slower, ``block_ram_bits`` may be as large as it likes.
    """

    def __init__(self, depth: int, block_ram_bits: int = BLOCK_RAM_BITS) -> None:
        self.sink = sink = stream.Endpoint([("data", WORD_BITS)])
        self.source = source = stream.Endpoint([("data", WORD_BITS)])
        self.depth = depth
        self.level = Signal(max=depth + 2)  # one more is in the output registers

        # # #

        stored = Signal(max=depth + 1)
        produce, consume = Signal(max=depth), Signal(max=depth)
        write, read = Signal(), Signal()
        self.comb += [
            sink.ready.eq(stored != depth),
            write.eq(sink.valid & sink.ready),
            read.eq((stored != 0) & (source.ready | ~source.valid)),
            self.level.eq(stored + source.valid),
        ]
        self.sync += [
            If(write, produce.eq(produce + 1)),
            If(read, consume.eq(consume + 1)),
            If(write & ~read, stored.eq(stored + 1)).Elif(read & ~write, stored.eq(stored - 1)),
            If(read, source.valid.eq(1)).Elif(source.ready, source.valid.eq(0)),
        ]
        column = min(max(block_ram_bits // depth, 1), WORD_BITS)
        for low in range(0, WORD_BITS, column):
            bits = slice(low, min(low + column, WORD_BITS))
            memory = Memory(bits.stop - bits.start, depth)
            write_port = memory.get_port(write_capable=True)
            read_port = memory.get_port(has_re=True, mode=READ_FIRST)
            self.specials += memory, write_port, read_port
            self.comb += [
                write_port.adr.eq(produce),
                write_port.dat_w.eq(sink.data[bits]),
                write_port.we.eq(write),
                read_port.adr.eq(consume),
                read_port.re.eq(read),
                source.data[bits].eq(read_port.dat_r),
            ]


class Buffer(LiteXModule):
    """Holds blocks for a link that is slower than the bus, in block RAM and, if there, in DRAM.

    ``depth_words`` are kept in block RAM. With ``dram_ports`` (write and read port of one width),
    ``dram_bytes`` from ``dram_base`` on follow. ``source`` are the blocks word by word, ``last``
    with each block's last; see `Seal` for their rate.
    """

    def __init__(
        self,
        depth_words: int = 8192,
        dram_ports: tuple[Any, Any] | None = None,
        dram_base: int = 0,
        dram_bytes: int = 0,
        crc_bits_per_clock: int = 32,
        block_ram_bits: int = BLOCK_RAM_BITS,
    ) -> None:
        self.sink = stream.Endpoint([("data", WORD_BITS)])
        self.source = stream.Endpoint([("data", WORD_BITS)])
        self.half_empty = Signal()

        self._level = CSRStatus(32, description="Words in the block RAM buffer.")
        self._high_water = CSRStatus(32, description="Highest level since it was cleared.")
        self._depth = CSRStatus(32, description="Words that the block RAM buffer holds.")
        self._control = CSRStorage(
            fields=[CSRField("clear", size=1, pulse=True, description="Clear high_water.")],
            description="Control of the buffer.",
        )

        # # #

        self.fifo = fifo = BlockRAMFIFO(depth_words, block_ram_bits)
        self.seal = Seal(crc_bits_per_clock)
        high_water = Signal(len(fifo.level))
        self.comb += [
            self.sink.connect(fifo.sink),
            self.half_empty.eq(fifo.level < fifo.depth // 2),
            self._level.status.eq(fifo.level),
            self._high_water.status.eq(high_water),
            self._depth.status.eq(depth_words),
        ]
        self.sync += [
            If(fifo.level > high_water, high_water.eq(fifo.level)),
            If(self._control.fields.clear, high_water.eq(0)),
        ]

        stages: list[Any] = [fifo, self.seal]
        if dram_ports is not None:
            write_port, read_port = dram_ports
            width = write_port.data_width
            # A block is a whole number of DRAM words: none is left half filled.
            self.to_dram = stream.Converter(WORD_BITS, width)
            self.dram = LiteDRAMFIFO(width, dram_base, dram_bytes, write_port, read_port)
            self.from_dram = stream.Converter(width, WORD_BITS)
            stages += [self.to_dram, self.dram, self.from_dram]
        for before, after in itertools.pairwise(stages):
            self.comb += before.source.connect(after.sink, keep={"valid", "ready", "data"})
        self.comb += stages[-1].source.connect(self.source, keep={"valid", "ready", "data"})

        # Blocks are whole: counting words finds their ends, whatever way they took.
        index = Signal(max=wire.BLOCK_WORDS)
        self.comb += self.source.last.eq(index == wire.BLOCK_WORDS - 1)
        self.sync += If(self.source.valid & self.source.ready, index.eq(index + 1))
