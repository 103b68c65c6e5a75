# SPDX-License-Identifier: BSD-2-Clause
"""Accesses to words, words to blocks: the wire format of `ptat_parser.wire`.

`Encoder` works at the pace of the bus, in domain ``snoop``: it decides what is lost, and all
that it lets go reaches the stream. `Packer` works at the pace of the buffer, in domain ``sys``, can
be stalled anywhere, and never tears a block.
"""

from __future__ import annotations

from functools import reduce
from operator import or_, xor
from typing import Any

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStatus, CSRStorage
from migen import (
    READ_FIRST,
    Array,
    Case,
    Cat,
    ClockDomainsRenamer,
    Constant,
    If,
    Memory,
    Mux,
    Signal,
    log2_int,
)
from migen.genlib.fsm import FSM, NextState

from ptat_gateware.filter import SAMPLE_BITS
from ptat_gateware.layouts import Illegal, access_layout
from ptat_gateware.stamp import SYNC_NUMBER_BITS
from ptat_parser import wire

WORD_BITS = 64
AGE_BITS = 24

# Kinds of decode errors: those of the decoder, and accesses without an address mapping.
ERROR_UNMAPPED = len(Illegal)
ERROR_KINDS = len(Illegal) + 1
ERROR_COUNT_BITS = wire.MARK_ARGUMENT_BITS - wire.DECODE_ERROR_COUNT_SHIFT


# Words ----------------------------------------------------------------------------------------


class Encoder(LiteXModule):
    """Encodes up to one access a lane and clock into words, marks and losses into idle clocks.

    ``words`` with ``valids`` leave for a FIFO that cannot say no: ``room`` must fall while it can
    still take what is under way (`in_flight` clocks). From then on accesses are counted as lost
    until ``resume`` is high too; then a LOST word tells how many.

    A mark waits for a clock without an access, at the latest the bus's next refresh. ``soon``
    announces that the next clock may bring an access, so that a TIME word, where a delta would
    overflow, is always written in the clock before and costs an access nothing.

    ``run`` starts and stops a recording; ``flush`` (a pulse) has all that is buffered sent.
    """

    in_flight = 3  # clocks from ``room`` to the FIFO

    def __init__(self, phases: int, lanes: int) -> None:
        self.sinks = [stream.Endpoint(access_layout) for _ in range(lanes)]
        self.soon = Signal()
        self.words = [Signal(WORD_BITS) for _ in range(lanes)]
        self.valids = Signal(lanes)
        self.room = Signal()
        self.resume = Signal()

        # Control.
        self.run = Signal()
        self.flush = Signal()
        self.enable = Signal()  # of the trigger
        self.starting = Signal()  # for one clock
        self.recording = Signal()
        self.closed = Signal()  # what enters the trigger now is no part of a recording

        # From the stamp.
        self.time = Signal(wire.TIME_BITS)
        self.skip = Signal()  # the stamp skips clocks
        self.sync_pending = Signal()
        self.sync_done = Signal()
        self.sync_number = Signal(SYNC_NUMBER_BITS)
        self.sync_age = Signal(wire.SYNC_NUMBER_SHIFT)

        # From trigger, decoder and address map.
        self.started = Signal()
        self.stopped = Signal()
        self.by = Signal(2)
        self.one_in = Signal(SAMPLE_BITS)
        self.errors = Signal(ERROR_KINDS)  # of this clock

        # Accesses of this clock that are part of the recording.
        self.matched = Signal(max=lanes + 1)

        # # #

        taken = Signal()
        self.comb += taken.eq(reduce(or_, [sink.valid for sink in self.sinks]))

        phase_bits = log2_int(phases)
        running, losing = Signal(), Signal()  # states of the control below

        # Time since the last word -------------------------------------------------------------

        # Ticks from the last word to phase 0 of this clock. Stops when its top bit is set: then a
        # TIME word is due, and from the next clock on nothing else can be told. So a delta is at
        # most half of what a record can hold, and some ticks.
        # Whether there was a word is known late, so both outcomes are kept for the next clock.
        elapsed = Signal(wire.ACCESS_DELTA_BITS)
        without_word = Signal(wire.ACCESS_DELTA_BITS)
        with_word = Signal(phase_bits + 1)
        had_word = Signal()
        stale = Signal()
        time_due = Signal()
        last_phase = Signal(phase_bits)
        send_accesses, send_time, send_lost, send_mark = (Signal() for _ in range(4))
        any_word = Signal()
        self.comb += [
            any_word.eq(send_accesses | send_time | send_lost | send_mark),
            last_phase.eq(0),
            *(If(sink.valid, last_phase.eq(sink.phase[:phase_bits])) for sink in self.sinks),
            elapsed.eq(Mux(had_word, with_word, without_word)),
            time_due.eq(without_word[-1] & ~had_word),
        ]
        self.sync.snoop += [
            stale.eq(time_due & ~any_word | self.skip),
            had_word.eq(any_word & ~self.skip),
            with_word.eq(Mux(running & taken, phases - last_phase, phases)),
            without_word.eq(elapsed + Mux(time_due, 0, phases)),
            If(self.skip, without_word[-1].eq(1)),
        ]

        # Marks --------------------------------------------------------------------------------

        fsm = ClockDomainsRenamer("snoop")(FSM("IDLE"))
        self.fsm = fsm
        idle = fsm.ongoing("IDLE")

        error_kinds = Signal(ERROR_KINDS)
        error_count = Signal(ERROR_COUNT_BITS)
        error_done = Signal()
        trigger_pending, trigger_by, trigger_done = Signal(), Signal(2), Signal()
        flush_pending, flush_done = Signal(), Signal()
        stop_pending, stop_by = Signal(), Signal(2)
        self.sync.snoop += [
            If(
                error_done | idle,
                error_kinds.eq(self.errors),
                error_count.eq(self.errors != 0),
            ).Else(
                error_kinds.eq(error_kinds | self.errors),
                If(
                    (self.errors != 0) & (error_count != 2**ERROR_COUNT_BITS - 1),
                    error_count.eq(error_count + 1),
                ),
            ),
            If(trigger_done | idle, trigger_pending.eq(0)),
            If(self.started, trigger_pending.eq(1), trigger_by.eq(self.by)),
            If(flush_done | idle, flush_pending.eq(0)),
            If(self.flush & ~idle, flush_pending.eq(1)),
            If(idle, stop_pending.eq(0), stop_by.eq(0)),
            If(self.stopped, stop_pending.eq(1), stop_by.eq(self.by)),
        ]
        self.comb += If(idle, self.sync_done.eq(1))

        mark_code = Signal(wire.MARK_CODE_BITS)
        mark_argument = Signal(wire.MARK_ARGUMENT_BITS)
        mark_pending, send_pending, settled = Signal(), Signal(), Signal()
        error_argument = Cat(
            error_kinds,
            Constant(0, wire.DECODE_ERROR_COUNT_SHIFT - ERROR_KINDS),
            error_count,
        )
        marks = [
            (error_kinds != 0, wire.Mark.DECODE_ERROR, error_argument, error_done),
            (
                self.sync_pending,
                wire.Mark.SYNC,
                Cat(self.sync_age, self.sync_number),
                self.sync_done,
            ),
            (trigger_pending, wire.Mark.TRIGGER, trigger_by, trigger_done),
            (flush_pending, wire.Mark.FLUSH, 0, flush_done),
        ]
        # For timing, a mark is chosen a clock before it may be sent. So `mark_pending` says nothing
        # after one was sent, and STOP waits until it is `settled` that none is left.
        waiting = Cat(*(pending for pending, _, _, _ in marks))
        choice = Signal(max=len(marks))
        self.sync.snoop += [
            mark_pending.eq((waiting != 0) & ~send_pending),
            settled.eq(fsm.ongoing("STOPPING") & ~send_pending),
            *(If(marks[i][0], choice.eq(i)) for i in reversed(range(len(marks)))),
        ]
        chosen = {
            i: [mark_code.eq(code), mark_argument.eq(argument), If(send_pending, done.eq(1))]
            for i, (_, code, argument, done) in enumerate(marks)
        }
        # START, SAMPLE and STOP override them.
        force_code = Signal(wire.MARK_CODE_BITS)
        force_argument = Signal(wire.MARK_ARGUMENT_BITS)
        self.comb += [
            Case(choice, chosen),
            If(force_code != 0, mark_code.eq(force_code), mark_argument.eq(force_argument)),
        ]

        # Words --------------------------------------------------------------------------------

        # What a word would be is chosen by what is known early in the clock; whether there is
        # one, by `send_…`. The low half of a mark comes later.
        lost, lost_now = Signal(wire.LOST_COUNT_BITS), Signal(wire.LOST_COUNT_BITS)
        count_lost = Signal()
        first = self.sinks[0]
        payload = Signal(wire.TAG_SHIFT)
        tag = Signal(WORD_BITS - wire.TAG_SHIFT)
        self.comb += [
            # Stays where it is from half of its range on.
            lost_now.eq(lost + Mux(lost[-1], 0, self.matched)),
            If(
                running & taken,
                payload.eq(Cat(first.address, elapsed, first.write)),
                tag.eq(wire.Tag.ACCESS),
            )
            .Elif(
                time_due | fsm.ongoing("TIME"),
                payload.eq(self.time),
                tag.eq(wire.Tag.TIME),
            )
            .Else(
                payload.eq(Cat(lost_now, elapsed)),
                tag.eq(Mux(losing, wire.Tag.LOST, wire.Tag.MARK)),
            ),
        ]
        # What a mark says is found late, so it joins one clock later, as does an access's phase.
        word, mark = Signal(WORD_BITS), Signal(wire.EVENT_DELTA_SHIFT)
        phase = Signal(len(first.phase))
        valids = Signal(lanes)
        delta_end = wire.ACCESS_DELTA_SHIFT + wire.ACCESS_DELTA_BITS
        delta = word[wire.ACCESS_DELTA_SHIFT : delta_end]
        self.sync.snoop += [
            word.eq(Cat(payload, tag)),
            mark.eq(Cat(mark_argument, mark_code)),
            phase.eq(Mux(running & first.valid, first.phase, 0)),
            valids.eq(Mux(send_accesses, Cat(*(s.valid for s in self.sinks)), any_word)),
            self.words[0].eq(word),
            self.words[0][wire.ACCESS_DELTA_SHIFT : delta_end].eq(delta + phase),
            If(
                word[wire.TAG_SHIFT :] == wire.Tag.MARK,
                self.words[0][: wire.EVENT_DELTA_SHIFT].eq(mark),
            ),
            self.valids.eq(valids),
            If(count_lost, lost.eq(lost_now)),
            If(send_lost, lost.eq(0)),
        ]
        if lanes > 1:
            second = self.sinks[1]
            since = Signal(wire.ACCESS_DELTA_BITS)
            self.comb += since.eq(
                Mux(first.valid, second.phase - first.phase, elapsed + second.phase)
            )
            second_word = Signal(WORD_BITS)
            self.sync.snoop += [
                second_word.eq(
                    Cat(second.address, since, second.write, Constant(wire.Tag.ACCESS, 4))
                ),
                self.words[1].eq(second_word),
            ]

        # Control ------------------------------------------------------------------------------

        over = Signal()
        self.sync.snoop += over.eq(~self.run | stop_pending)
        self.comb += [
            running.eq(fsm.ongoing("RUN")),
            losing.eq(fsm.ongoing("LOSING")),
            self.starting.eq(idle & self.run),
            self.recording.eq(~idle),
            self.closed.eq(idle & ~self.run | fsm.ongoing("STOPPING") | fsm.ongoing("STOPPED")),
            self.enable.eq((running | losing) & ~over),
            self.matched.eq(reduce(lambda total, sink: total + sink.valid, self.sinks, 0)),
        ]

        def forced(code: wire.Mark, argument: Any, following: str) -> Any:
            """Send this mark when there is room, and the time before it if that is due."""
            return If(
                self.room,
                If(time_due, send_time.eq(1)).Else(
                    send_mark.eq(1),
                    force_code.eq(code),
                    force_argument.eq(argument),
                    NextState(following),
                ),
            )

        fsm.act("IDLE", If(self.run, NextState("TIME")))
        fsm.act("TIME", If(self.room, send_time.eq(1), NextState("START")))
        fsm.act("START", forced(wire.Mark.START, 0, "SAMPLE"))
        fsm.act(
            "SAMPLE",
            If(self.one_in == 1, NextState("RUN")).Else(
                forced(wire.Mark.SAMPLE, self.one_in, "RUN"),
            ),
        )
        idle_clock = [
            If(
                time_due & (self.soon | mark_pending),
                send_time.eq(1),
            ).Elif(
                mark_pending,
                send_mark.eq(1),
                send_pending.eq(1),
            ),
        ]
        fsm.act(
            "RUN",
            If(
                taken,
                If(self.room & ~stale, send_accesses.eq(1)).Else(
                    count_lost.eq(1),
                    NextState("LOSING"),
                ),
            )
            .Elif(over, NextState("STOPPING"))
            .Elif(self.room, *idle_clock),
        )
        fsm.act(
            "LOSING",
            count_lost.eq(1),
            If(
                self.room & self.resume,
                If(time_due, send_time.eq(1)).Else(
                    send_lost.eq(1),
                    NextState("RUN"),
                ),
            ),
        )
        fsm.act(
            "STOPPING",
            If(mark_pending, If(self.room, *idle_clock)).Elif(
                settled,
                forced(wire.Mark.STOP, stop_by, "STOPPED"),
            ),
        )
        fsm.act("STOPPED", If(~self.run, NextState("IDLE")))


# CRC ------------------------------------------------------------------------------------------

CRC_BITS = wire.CHECK_CRC_BITS
CRC_POLYNOMIAL = 0xEDB88320  # IEEE 802.3, least significant bit first
CRC_ONES = 2**CRC_BITS - 1


def _crc_after(state: int, data: int, bits: int) -> int:
    for i in range(bits):
        feedback = (state ^ data >> i) & 1
        state = state >> 1 ^ (CRC_POLYNOMIAL if feedback else 0)
    return state


def crc_next(state: Any, data: Any) -> list[Any]:
    """The bits of the CRC after the bits of ``data`` (at least 32), the lowest first.

    The CRC is linear: each of its bits is the parity of some bits of state and data, and the
    state counts for as much as the first 32 bits of data.
    """
    bits = len(data)
    inputs = [data[i] ^ state[i] if i < CRC_BITS else data[i] for i in range(bits)]
    columns = [_crc_after(0, 1 << i, bits) for i in range(bits)]
    return [
        reduce(xor, [s for s, column in zip(inputs, columns, strict=True) if column >> i & 1])
        for i in range(CRC_BITS)
    ]


def crc_table(byte: int, bits: int) -> list[int]:
    """What byte number ``byte`` of ``bits`` of data contributes to the CRC after them, by value.

    The CRC is the XOR of what all bytes contribute, the state first added to the first 32 bits.
    """
    return [_crc_after(0, value << 8 * byte, bits) for value in range(256)]


class Seal(LiteXModule):
    """Puts the CRC into the check word of each block that passes.

    ``bits_per_clock`` (32 or 64) of a word are taken in a clock: a block RAM for each 8 of them.
    The tables' other halves hold what the CRC starts with.
    """

    def __init__(self, bits_per_clock: int = 32) -> None:
        self.sink = sink = stream.Endpoint([("data", WORD_BITS)])
        self.source = source = stream.Endpoint([("data", WORD_BITS)])

        # # #

        index = Signal(max=wire.BLOCK_WORDS)
        check = Signal()
        whole = Signal()  # this clock takes the last part of the word
        reset = Signal(reset=1)  # the tables' outputs have no value yet
        part = sink.data
        if bits_per_clock < WORD_BITS:
            part = Mux(whole, sink.data[bits_per_clock:], sink.data[:bits_per_clock])
            self.sync += If(sink.valid & ~reset & (~whole | source.ready), whole.eq(~whole))
        else:
            self.comb += whole.eq(1)
        crc = Signal(CRC_BITS)
        data = Signal(bits_per_clock)
        step = Signal()
        contributions = []
        for byte in range(bits_per_clock // 8):
            start = CRC_ONES if byte == 0 else 0
            table = Memory(CRC_BITS, 512, init=crc_table(byte, bits_per_clock) + 256 * [start])
            port = table.get_port(has_re=True, mode=READ_FIRST)
            self.specials += table, port
            self.comb += [
                port.adr.eq(Cat(data[8 * byte : 8 * byte + 8], check | reset)),
                port.re.eq(step),
            ]
            contributions.append(port.dat_r)
        self.comb += [
            crc.eq(reduce(xor, contributions)),
            data.eq(part ^ crc),
            step.eq(reset | sink.valid & Mux(whole, source.ready, ~check)),
            source.valid.eq(sink.valid & whole & ~reset),
            source.data.eq(sink.data),
            source.last.eq(check),
            If(check, source.data[:CRC_BITS].eq(~crc)),
            sink.ready.eq(source.ready & whole & ~reset),
        ]
        self.sync += [
            reset.eq(0),
            If(
                sink.valid & sink.ready,
                index.eq(index + 1),
                check.eq(index == wire.WORD_CHECK - 1),
            ),
        ]


# Blocks ---------------------------------------------------------------------------------------


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
