# SPDX-License-Identifier: BSD-2-Clause
"""Words to blocks."""

from __future__ import annotations

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStatus, CSRStorage
from migen import Array, Case, Cat, Constant, If, Mux, Signal

from ptat_gateware.layouts import WORD_BITS
from ptat_parser import wire

AGE_BITS = 24


class Packer(LiteXModule):
    """Puts words into blocks, one word a clock.

    Header, time and check word of a block take 3 clocks in which no record is taken: records may
    come at 1,021 in 1,024 clocks for ever. The CRC is left to `Seal`.

    A block ends when it is full, after a STOP or FLUSH mark, or when it has been open for
    ``flush_timeout``; what is missing is padding. After a pulse of ``restart`` the next one, which
    must not have begun, is number 0.
    """

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint([("word", WORD_BITS)])
        self.source = source = stream.Endpoint([("data", WORD_BITS)])
        self.restart = Signal()
        self.open = Signal()  # a block has begun and is not whole

        self._channel = CSRStorage(
            wire.HEADER_CHANNEL_BITS,
            description="Channel, as the headers of blocks say it.",
        )
        self._flush_timeout = CSRStorage(
            5,
            description="A block that has been open for 2^N sys clocks is padded and sent; 0:"
            f" never, at most {AGE_BITS - 1}.",
        )
        self._blocks = CSRStatus(
            wire.HEADER_SEQ_BITS,
            description="Blocks sent; the sequence number of the next.",
        )
        self._emitted = CSRStatus(40, description="Accesses in blocks since the START mark.")
        self._lost = CSRStatus(
            40, description="Accesses lost since the START mark, as LOST records in blocks tell."
        )

        # # #

        # Where the next word goes, counted from the first record.
        index = Signal(max=wire.BLOCK_WORDS, reset=wire.BLOCK_WORDS - wire.WORD_FIRST_RECORD)
        following = Signal(max=wire.BLOCK_WORDS)
        opening = index == wire.BLOCK_WORDS - wire.WORD_FIRST_RECORD
        timing = index == wire.BLOCK_WORDS - wire.WORD_FIRST_RECORD + wire.WORD_TIME
        ending = index == wire.BLOCK_RECORDS_MAX
        inside = Signal()
        records = Signal(max=wire.BLOCK_WORDS)
        padding, accept = Signal(), Signal()
        word = sink.word
        tag = word[wire.TAG_SHIFT :]
        code = word[wire.MARK_CODE_SHIFT : wire.EVENT_DELTA_SHIFT]
        starting, closing = Signal(), Signal()  # this word is START; the last of its block

        # Words --------------------------------------------------------------------------------

        now = Signal(wire.TIME_BITS)  # after the last accepted record
        delta = word[wire.ACCESS_DELTA_SHIFT : wire.ACCESS_DELTA_SHIFT + wire.ACCESS_DELTA_BITS]
        header = Cat(
            self._blocks.status,
            Constant(0, wire.HEADER_FLAGS_BITS),
            self._channel.storage,
            Constant(wire.MAGIC << wire.HEADER_VERSION_BITS | wire.VERSION, 20),
        )
        check = Cat(
            Constant(0, wire.CHECK_COUNT_SHIFT),
            records,
            Constant(0, wire.CHECK_COUNT_BITS - len(records)),
            Constant(wire.Tag.CHECK, WORD_BITS - wire.TAG_SHIFT),
        )
        self.comb += [
            self.open.eq(~opening),
            inside.eq(~(opening | timing | ending)),
            source.valid.eq(Mux(inside, padding | sink.valid, ~opening | sink.valid)),
            sink.ready.eq(inside & ~padding & source.ready),
            accept.eq(sink.valid & sink.ready),
            If(opening, source.data.eq(header))
            .Elif(timing, source.data.eq(now))
            .Elif(ending, source.data.eq(check))
            .Elif(~padding, source.data.eq(word)),
        ]

        # Blocks -------------------------------------------------------------------------------

        age = Signal(AGE_BITS)
        expired = Signal()
        self.comb += [
            following.eq(index + 1),
            If(
                tag == wire.Tag.MARK,
                starting.eq(code == wire.Mark.START),
                closing.eq((code == wire.Mark.STOP) | (code == wire.Mark.FLUSH)),
            ),
        ]
        self.sync += [
            If(source.valid & source.ready, index.eq(following)),
            If(
                accept,
                records.eq(following),
                now.eq(Mux(tag == wire.Tag.TIME, word[: wire.TIME_BITS], now + delta)),
            ),
            If(inside & (accept & closing | expired & ~accept), padding.eq(1)),
            If(
                ending & source.ready,
                padding.eq(0),
                self._blocks.status.eq(self._blocks.status + 1),
            ),
            If(self.restart, self._blocks.status.eq(0)),
        ]

        # Timeout and counters -----------------------------------------------------------------

        timeout = self._flush_timeout.storage
        self.sync += [
            expired.eq(Array(age)[timeout] & (timeout != 0)),
            age.eq(age + 1),
            If(opening | timing, age.eq(0), expired.eq(0)),
            If(
                accept,
                Case(
                    tag,
                    {
                        wire.Tag.ACCESS: self._emitted.status.eq(self._emitted.status + 1),
                        wire.Tag.LOST: self._lost.status.eq(
                            self._lost.status + word[: wire.LOST_COUNT_BITS]
                        ),
                    },
                ),
                If(starting, self._emitted.status.eq(0), self._lost.status.eq(0)),
            ),
        ]
