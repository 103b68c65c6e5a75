# SPDX-License-Identifier: BSD-2-Clause
"""Accesses, marks and losses to words, at the pace of the bus.

::

    ElapsedTime ── ticks since the last word ──┐
    MarkQueue ──── the next mark ──────────────┼─► WordBuilder ─► words
    Encoder ────── what is sent in this clock ─┘
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import Case, Cat, ClockDomainsRenamer, Constant, If, Mux, Signal, log2_int
from migen.genlib.fsm import FSM, NextState

from ptat_gateware.filter import SAMPLE_BITS
from ptat_gateware.layouts import WORD_BITS, Illegal, access_layout
from ptat_gateware.stream.stamp import SYNC_NUMBER_BITS
from ptat_parser import wire

# Kinds of decode errors: those of the decoder, and accesses without an address mapping.
ERROR_UNMAPPED = len(Illegal)
ERROR_KINDS = len(Illegal) + 1
ERROR_COUNT_BITS = wire.MARK_ARGUMENT_BITS - wire.DECODE_ERROR_COUNT_SHIFT


class ElapsedTime(LiteXModule):
    """Counts the ticks from the last word to phase 0 of this clock.

    The count stops when its top bit is set. Then a TIME word is ``due``, and from the next clock on
    (``stale``) nothing else is known. So a delta is at most half of what a record can hold, and
    some ticks. Whether there was a word is known late: both outcomes are kept for the next clock.
    """

    def __init__(self, phases: int) -> None:
        phase_bits = log2_int(phases)
        self.word = Signal()  # there is one in this clock
        self.last_phase = Signal(phase_bits)  # of its last access
        self.ends_at_access = Signal()
        self.skip = Signal()  # the stamp skips clocks
        self.elapsed = Signal(wire.ACCESS_DELTA_BITS)
        self.due = Signal()
        self.stale = Signal()

        # # #

        without_word = Signal(wire.ACCESS_DELTA_BITS)
        with_word = Signal(phase_bits + 1)
        had_word = Signal()
        self.comb += [
            self.elapsed.eq(Mux(had_word, with_word, without_word)),
            self.due.eq(without_word[-1] & ~had_word),
        ]
        self.sync.snoop += [
            self.stale.eq(self.due & ~self.word | self.skip),
            had_word.eq(self.word & ~self.skip),
            with_word.eq(Mux(self.ends_at_access, phases - self.last_phase, phases)),
            without_word.eq(self.elapsed + Mux(self.due, 0, phases)),
            If(self.skip, without_word[-1].eq(1)),
        ]


class MarkQueue(LiteXModule):
    """Keeps what is to be marked until there is a clock for it; outside of recordings, nothing.

    For timing, a mark is chosen a clock before it may be sent. So ``pending`` says nothing after
    one was sent, and a STOP waits until it is ``settled`` that none is left. ``force_code``
    (START, SAMPLE or STOP) overrides the chosen mark.
    """

    def __init__(self) -> None:
        self.idle = Signal()
        self.stopping = Signal()
        self.errors = Signal(ERROR_KINDS)  # of this clock
        self.started = Signal()
        self.by = Signal(2)
        self.flush = Signal()
        self.sync_pending = Signal()
        self.sync_done = Signal()
        self.sync_number = Signal(SYNC_NUMBER_BITS)
        self.sync_age = Signal(wire.SYNC_NUMBER_SHIFT)

        self.pending = Signal()
        self.settled = Signal()
        self.send = Signal()
        self.force_code = Signal(wire.MARK_CODE_BITS)
        self.force_argument = Signal(wire.MARK_ARGUMENT_BITS)
        self.code = Signal(wire.MARK_CODE_BITS)
        self.argument = Signal(wire.MARK_ARGUMENT_BITS)

        # # #

        error_kinds, error_count, error_done = self._decode_errors()
        trigger_pending, trigger_by, trigger_done = Signal(), Signal(2), Signal()
        flush_pending, flush_done = Signal(), Signal()
        self.sync.snoop += [
            If(trigger_done | self.idle, trigger_pending.eq(0)),
            If(self.started, trigger_pending.eq(1), trigger_by.eq(self.by)),
            If(flush_done | self.idle, flush_pending.eq(0)),
            If(self.flush & ~self.idle, flush_pending.eq(1)),
        ]
        self.comb += If(self.idle, self.sync_done.eq(1))

        error_argument = Cat(
            error_kinds,
            Constant(0, wire.DECODE_ERROR_COUNT_SHIFT - ERROR_KINDS),
            error_count,
        )
        sync_argument = Cat(self.sync_age, self.sync_number)
        self._choose(
            [
                (error_kinds != 0, wire.Mark.DECODE_ERROR, error_argument, error_done),
                (self.sync_pending, wire.Mark.SYNC, sync_argument, self.sync_done),
                (trigger_pending, wire.Mark.TRIGGER, trigger_by, trigger_done),
                (flush_pending, wire.Mark.FLUSH, 0, flush_done),
            ]
        )

    def _decode_errors(self) -> tuple[Signal, Signal, Signal]:
        """The kinds since the last mark, how many clocks had some, and what begins anew."""
        kinds, count, done = Signal(ERROR_KINDS), Signal(ERROR_COUNT_BITS), Signal()
        self.sync.snoop += If(
            done | self.idle,
            kinds.eq(self.errors),
            count.eq(self.errors != 0),
        ).Else(
            kinds.eq(kinds | self.errors),
            If(
                (self.errors != 0) & (count != 2**ERROR_COUNT_BITS - 1),
                count.eq(count + 1),
            ),
        )
        return kinds, count, done

    def _choose(self, marks: list[tuple[Any, wire.Mark, Any, Signal]]) -> None:
        """`marks`, the most urgent first: pending, code, argument, done."""
        waiting = Cat(*(pending for pending, _, _, _ in marks))
        choice = Signal(max=len(marks))
        self.sync.snoop += [
            self.pending.eq((waiting != 0) & ~self.send),
            self.settled.eq(self.stopping & ~self.send),
            *(If(marks[i][0], choice.eq(i)) for i in reversed(range(len(marks)))),
        ]
        chosen = {
            i: [self.code.eq(code), self.argument.eq(argument), If(self.send, done.eq(1))]
            for i, (_, code, argument, done) in enumerate(marks)
        }
        self.comb += [
            Case(choice, chosen),
            If(
                self.force_code != 0,
                self.code.eq(self.force_code),
                self.argument.eq(self.force_argument),
            ),
        ]


class WordBuilder(LiteXModule):
    """Builds the words of a clock; a clock later they leave.

    What a word would be is chosen by what is known early in the clock; whether there is one, by
    ``send_accesses`` and ``send_other``. What a mark says is found late, so it joins one clock
    later, as does an access's phase.
    """

    def __init__(self, lanes: int) -> None:
        self.sinks = [stream.Endpoint(access_layout) for _ in range(lanes)]
        self.running = Signal()
        self.losing = Signal()
        self.time_is_next = Signal()  # a word of this clock that is no access is TIME
        self.elapsed = Signal(wire.ACCESS_DELTA_BITS)
        self.time = Signal(wire.TIME_BITS)
        self.lost = Signal(wire.LOST_COUNT_BITS)
        self.mark_code = Signal(wire.MARK_CODE_BITS)
        self.mark_argument = Signal(wire.MARK_ARGUMENT_BITS)
        self.send_accesses = Signal()
        self.send_other = Signal()
        self.words = [Signal(WORD_BITS) for _ in range(lanes)]
        self.valids = Signal(lanes)

        # # #

        first = self.sinks[0]
        taken = reduce(or_, [sink.valid for sink in self.sinks])
        payload = Signal(wire.TAG_SHIFT)
        tag = Signal(WORD_BITS - wire.TAG_SHIFT)
        self.comb += [
            If(
                self.running & taken,
                payload.eq(Cat(first.address, self.elapsed, first.write)),
                tag.eq(wire.Tag.ACCESS),
            )
            .Elif(self.time_is_next, payload.eq(self.time), tag.eq(wire.Tag.TIME))
            .Else(
                payload.eq(Cat(self.lost, self.elapsed)),
                tag.eq(Mux(self.losing, wire.Tag.LOST, wire.Tag.MARK)),
            ),
        ]
        word, mark = Signal(WORD_BITS), Signal(wire.EVENT_DELTA_SHIFT)
        phase = Signal(len(first.phase))
        valids = Signal(lanes)
        delta_end = wire.ACCESS_DELTA_SHIFT + wire.ACCESS_DELTA_BITS
        delta = word[wire.ACCESS_DELTA_SHIFT : delta_end]
        each_valid = Cat(*(sink.valid for sink in self.sinks))
        self.sync.snoop += [
            word.eq(Cat(payload, tag)),
            mark.eq(Cat(self.mark_argument, self.mark_code)),
            phase.eq(Mux(self.running & first.valid, first.phase, 0)),
            valids.eq(Mux(self.send_accesses, each_valid, self.send_other)),
            self.words[0].eq(word),
            self.words[0][wire.ACCESS_DELTA_SHIFT : delta_end].eq(delta + phase),
            If(
                word[wire.TAG_SHIFT :] == wire.Tag.MARK,
                self.words[0][: wire.EVENT_DELTA_SHIFT].eq(mark),
            ),
            self.valids.eq(valids),
        ]
        if lanes > 1:
            self._second_lane()

    def _second_lane(self) -> None:
        """Its word is always an access."""
        first, second = self.sinks
        since = Signal(wire.ACCESS_DELTA_BITS)
        self.comb += since.eq(
            Mux(first.valid, second.phase - first.phase, self.elapsed + second.phase)
        )
        word = Signal(WORD_BITS)
        self.sync.snoop += [
            word.eq(Cat(second.address, since, second.write, Constant(wire.Tag.ACCESS, 4))),
            self.words[1].eq(word),
        ]


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
        self.elapsed = elapsed = ElapsedTime(phases)
        self.marks = marks = MarkQueue()
        self.builder = builder = WordBuilder(lanes)

        self.sinks = builder.sinks
        self.soon = Signal()
        self.words = builder.words
        self.valids = builder.valids
        self.room = Signal()
        self.resume = Signal()

        # Control.
        self.run = Signal()
        self.flush = marks.flush
        self.enable = Signal()  # of the trigger
        self.starting = Signal()  # for one clock
        self.recording = Signal()
        self.closed = Signal()  # what enters the trigger now is no part of a recording

        # From the stamp.
        self.time = builder.time
        self.skip = elapsed.skip
        self.sync_pending = marks.sync_pending
        self.sync_done = marks.sync_done
        self.sync_number = marks.sync_number
        self.sync_age = marks.sync_age

        # From trigger, decoder and address map.
        self.started = marks.started
        self.stopped = Signal()
        self.by = marks.by
        self.one_in = Signal(SAMPLE_BITS)
        self.errors = marks.errors

        # Accesses of this clock that are part of the recording.
        self.matched = Signal(max=lanes + 1)

        # # #

        self.fsm = fsm = ClockDomainsRenamer("snoop")(FSM("IDLE"))
        self._taken = Signal()
        self._over = Signal()
        self._stop_by = Signal(2)
        self._count_lost = Signal()
        self._send_accesses, self._send_time, self._send_lost, self._send_mark = (
            Signal() for _ in range(4)
        )
        self._state()
        self._connect(phases)
        self._count_losses()
        self._control(fsm)

    def _state(self) -> None:
        """What the state of the control says."""
        fsm = self.fsm
        idle, stop_pending = fsm.ongoing("IDLE"), Signal()
        running, losing = fsm.ongoing("RUN"), fsm.ongoing("LOSING")
        ended = fsm.ongoing("STOPPING") | fsm.ongoing("STOPPED")
        valids = [sink.valid for sink in self.sinks]
        self.comb += [
            self._taken.eq(reduce(or_, valids)),
            self.matched.eq(reduce(lambda total, valid: total + valid, valids, 0)),
            self.starting.eq(idle & self.run),
            self.recording.eq(~idle),
            self.closed.eq(idle & ~self.run | ended),
            self.enable.eq((running | losing) & ~self._over),
        ]
        self.sync.snoop += [
            If(idle, stop_pending.eq(0), self._stop_by.eq(0)),
            If(self.stopped, stop_pending.eq(1), self._stop_by.eq(self.by)),
            self._over.eq(~self.run | stop_pending),
        ]

    def _connect(self, phases: int) -> None:
        """The stages with each other and with the control."""
        fsm, elapsed, marks, builder = self.fsm, self.elapsed, self.marks, self.builder
        send_other = self._send_time | self._send_lost | self._send_mark
        self.comb += [
            elapsed.word.eq(self._send_accesses | send_other),
            elapsed.last_phase.eq(0),
            *(
                If(sink.valid, elapsed.last_phase.eq(sink.phase[: log2_int(phases)]))
                for sink in self.sinks
            ),
            elapsed.ends_at_access.eq(builder.running & self._taken),
            marks.idle.eq(fsm.ongoing("IDLE")),
            marks.stopping.eq(fsm.ongoing("STOPPING")),
            builder.running.eq(fsm.ongoing("RUN")),
            builder.losing.eq(fsm.ongoing("LOSING")),
            builder.time_is_next.eq(elapsed.due | fsm.ongoing("TIME")),
            builder.elapsed.eq(elapsed.elapsed),
            builder.mark_code.eq(marks.code),
            builder.mark_argument.eq(marks.argument),
            builder.send_accesses.eq(self._send_accesses),
            builder.send_other.eq(send_other),
        ]

    def _count_losses(self) -> None:
        lost, lost_now = Signal(wire.LOST_COUNT_BITS), self.builder.lost
        # Stays where it is from half of its range on.
        self.comb += lost_now.eq(lost + Mux(lost[-1], 0, self.matched))
        self.sync.snoop += [
            If(self._count_lost, lost.eq(lost_now)),
            If(self._send_lost, lost.eq(0)),
        ]

    def _forced(self, code: wire.Mark, argument: Any, following: str) -> Any:
        """Send this mark when there is room, and the time before it if that is due."""
        return If(
            self.room,
            If(self.elapsed.due, self._send_time.eq(1)).Else(
                self._send_mark.eq(1),
                self.marks.force_code.eq(code),
                self.marks.force_argument.eq(argument),
                NextState(following),
            ),
        )

    def _control(self, fsm: FSM) -> None:
        """What is sent in each state of a recording."""
        due, marks = self.elapsed.due, self.marks
        idle_clock = [
            If(due & (self.soon | marks.pending), self._send_time.eq(1)).Elif(
                marks.pending,
                self._send_mark.eq(1),
                marks.send.eq(1),
            ),
        ]
        fsm.act("IDLE", If(self.run, NextState("TIME")))
        fsm.act("TIME", If(self.room, self._send_time.eq(1), NextState("START")))
        fsm.act("START", self._forced(wire.Mark.START, 0, "SAMPLE"))
        fsm.act(
            "SAMPLE",
            If(self.one_in == 1, NextState("RUN")).Else(
                self._forced(wire.Mark.SAMPLE, self.one_in, "RUN"),
            ),
        )
        fsm.act(
            "RUN",
            If(
                self._taken,
                If(self.room & ~self.elapsed.stale, self._send_accesses.eq(1)).Else(
                    self._count_lost.eq(1),
                    NextState("LOSING"),
                ),
            )
            .Elif(self._over, NextState("STOPPING"))
            .Elif(self.room, *idle_clock),
        )
        fsm.act(
            "LOSING",
            self._count_lost.eq(1),
            If(
                self.room & self.resume,
                If(due, self._send_time.eq(1)).Else(
                    self._send_lost.eq(1),
                    NextState("RUN"),
                ),
            ),
        )
        fsm.act(
            "STOPPING",
            If(marks.pending, If(self.room, *idle_clock)).Elif(
                marks.settled,
                self._forced(wire.Mark.STOP, self._stop_by, "STOPPED"),
            ),
        )
        fsm.act("STOPPED", If(~self.run, NextState("IDLE")))
