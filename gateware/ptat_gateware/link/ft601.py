# SPDX-License-Identifier: BSD-2-Clause
"""The capture stream and the commands over an FT601 in 245 multi-channel mode.

::

    sink ─► Gate ─► 64 to 32 bits ─►╎─► PacketStore ─► channel 2 ─┐
    Mailbox ── answers ────────────►╎─► PacketStore ─► channel 1 ─┼─► Bus ◄─► chip
    Mailbox ◄─ requests ◄───────────╎◄─ FIFO ◄──────── channel 1 ─┘
    domain sys                       domain ft: the chip's clock

The protocol is that of FTDI's DS_FT600Q-FT601Q, section on the multi-channel FIFO bus, and was held
against FTDI's own master of it (``mst_fifo_fsm.v`` of AN_421, "FIFO Bus Master For FT60x", 2016).
Chip and FPGA change their pins around the falling edge of the chip's clock, and look at the rising
edge. So what the chip says at a rising edge decides what it is shown after the next falling edge:
the pins' registers are in domain ``ft_n``, the same clock inverted. The chip takes a word at each
rising edge at which WR_N and RXF_N are both low; no word is ever guessed to be taken.
"""

from __future__ import annotations

from typing import Any

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import (
    FSM,
    ClockDomain,
    ClockDomainsRenamer,
    If,
    Mux,
    NextState,
    NextValue,
    Record,
    ResetSignal,
    Signal,
)
from migen.fhdl.specials import Tristate
from migen.genlib.cdc import MultiReg
from migen.genlib.resetsync import AsyncResetSynchronizer

from ptat_gateware.layouts import WORD_BITS
from ptat_gateware.link.gate import Gate
from ptat_gateware.link.mailbox import Mailbox

COMMANDS = 1  # channel: endpoints 0x02 and 0x82
STREAM = 2  # channel: endpoint 0x83
READ, WRITE = 0, 1  # command, on BE
PACKET_WORDS = 256  # 1 KiB: a whole packet of USB 3, two of USB 2
PATIENCE_CLOCKS = 15  # for the chip's answer to a command, which takes 2

# The chip's times, around the rising edge of its clock: for want of the data sheet's table, as two
# designs that run have them in their constraints, ufrisk/pcileech-fpga (pcileech_squirrel.xdc; its
# shortest delay is 6.5) and ncicek/FT601-FPGA-interface-board (ft601.sdc), both on GitHub.
# myriadrf/LimeSDR-Mini_GW (FT601_timing.sdc) asks for less.
CLOCK_NS = 10.0
DELAY_NS = (3.5, 7.0)  # from the edge to a change of what it drives: from, to
SETUP_NS = 1.0  # of what is driven for it
HOLD_NS = 4.8

PADS = [
    ("data_i", 32),
    ("data_o", 32),
    ("be_i", 4),
    ("be_o", 4),
    ("oe_status", 1),
    ("oe_rest", 1),
    ("txe_n", 1),
    ("rxf_n", 1),
    ("wr_n", 1),
]
"""``oe_status`` drives DATA[15:8], ``oe_rest`` the rest of DATA, and BE."""

# Packets ------------------------------------------------------------------------------------------


class PacketFIFO(LiteXModule):
    """FIFO that shows two words: the oldest, ``word``, and the one after it, ``next_word``.

    ``pop`` drops the oldest. ``whole`` counts packets, which end with ``last``, that are in it from
    their first word, or what is left of it, to their last.
    """

    def __init__(self, depth: int) -> None:
        layout = [("data", 32)]
        self.sink = sink = stream.Endpoint(layout)
        self.valid, self.word, self.last = Signal(), Signal(32), Signal()
        self.next_valid, self.next_word = Signal(), Signal(32)
        self.pop = Signal()
        self.whole = Signal(max=depth + 1)

        # # #

        self.fifo = fifo = stream.SyncFIFO(layout, depth, buffered=True)
        following = fifo.source
        ended = Signal()
        self.comb += [
            sink.connect(fifo.sink),
            self.next_valid.eq(following.valid),
            self.next_word.eq(following.data),
            following.ready.eq(self.pop | ~self.valid),
            ended.eq(self.pop & self.valid & self.last),
        ]
        self.sync += [
            If(
                following.ready,
                self.valid.eq(following.valid),
                self.word.eq(following.data),
                self.last.eq(following.last),
            ),
            self.whole.eq(self.whole + (sink.valid & sink.ready & sink.last) - ended),
        ]


# Bus ----------------------------------------------------------------------------------------------


class Bus(LiteXModule):
    """The master of the chip's bus: one transfer after the other, answers first. All in ``ft``.

    A transfer to the chip begins with a whole packet at hand and ends with one, when the next is
    not there, or when the chip says so; what it did not take is shown again in the next transfer.
    Words with missing bytes are no part of a command and are dropped.
    """

    def __init__(self, pads: Record, answers: PacketFIFO, blocks: PacketFIFO) -> None:
        self.requests = requests = stream.Endpoint([("data", 32)])
        self.room = Signal()  # for 4 words of requests
        self.drop = Signal()  # blocks

        # # #

        # Pins ---------------------------------------------------------------------------------

        # Sampled at the rising edge; driven from the falling edge after it.
        rxf, is_idle, status = Signal(), Signal(), Signal(8)
        data, be = Signal(32), Signal(4)
        idle = {"data_o": 2**32 - 1, "be_o": 15, "oe_status": 0, "oe_rest": 1, "wr_n": 1}
        drive = {name: Signal(len(getattr(pads, name)), name=name) for name in idle}
        for name, value in idle.items():
            driven = Signal(len(drive[name]), reset=value)
            self.comb += [drive[name].eq(value), getattr(pads, name).eq(driven)]
            self.sync.ft_n += driven.eq(drive[name])
        self.sync.ft += [
            rxf.eq(~pads.rxf_n),
            is_idle.eq(~pads.txe_n),
            status.eq(pads.data_i[8:16]),
            data.eq(pads.data_i),
            be.eq(pads.be_i),
        ]

        # Transfers ----------------------------------------------------------------------------

        channel, write = Signal(2), Signal()
        asked = Signal()  # WR_N was low at the last rising edge
        shown = Signal()  # and there was a word of ours
        seen = Signal()  # the chip has answered
        waited = Signal(max=PATIENCE_CLOCKS + 1)
        to_stream = channel == STREAM
        word = Mux(to_stream, blocks.word, answers.word)
        next_word = Mux(to_stream, blocks.next_word, answers.next_word)
        more = Signal()
        taken, over = Signal(), Signal()
        self.comb += [
            If(
                to_stream,
                more.eq(blocks.next_valid & (~blocks.last | (blocks.whole > 1))),
            ).Else(more.eq(answers.next_valid & (~answers.last | (answers.whole > 1)))),
            taken.eq(shown & rxf),
            over.eq((seen & ~rxf) | (waited == PATIENCE_CLOCKS)),
            answers.pop.eq(taken & ~to_stream),
            requests.valid.eq(asked & ~write & rxf & (be == 15)),
            requests.data.eq(data),
        ]
        self.sync.ft += [
            asked.eq(~drive["wr_n"]),
            If(rxf & asked, seen.eq(1)),
            waited.eq(waited + 1),
            If(seen | (waited == PATIENCE_CLOCKS), waited.eq(waited)),
        ]

        def transfer(number: int, direction: int) -> list[Any]:
            return [
                NextValue(channel, number),
                NextValue(write, direction),
                NextState("COMMAND"),
            ]

        self.fsm = fsm = ClockDomainsRenamer("ft")(FSM(reset_state="IDLE"))
        dropping = Signal()
        self.comb += blocks.pop.eq((taken & to_stream) | dropping)
        answer = is_idle & answers.valid & (answers.whole != 0) & ~status[COMMANDS - 1]
        request = is_idle & self.room & ~status[4 + COMMANDS - 1]
        block = is_idle & blocks.valid & (blocks.whole != 0) & ~status[STREAM - 1]
        fsm.act(
            "IDLE",
            NextValue(seen, 0),
            NextValue(waited, 0),
            dropping.eq(self.drop),
            If(answer, *transfer(COMMANDS, WRITE))
            .Elif(request, *transfer(COMMANDS, READ))
            .Elif(block & ~self.drop, *transfer(STREAM, WRITE)),
        )
        command = [
            drive["wr_n"].eq(0),
            drive["data_o"][:8].eq(channel),
            drive["be_o"].eq(write),
        ]
        fsm.act("COMMAND", *command, NextState("TURN"))
        fsm.act(
            "TURN",
            *command,
            If(write, NextState("WRITE")).Else(drive["oe_rest"].eq(0), NextState("READ")),
        )
        fsm.act(
            "WRITE",
            If((taken & ~more) | over, NextValue(shown, 0), NextState("IDLE")).Else(
                drive["wr_n"].eq(0),
                drive["oe_status"].eq(1),
                drive["data_o"].eq(Mux(taken, next_word, word)),
                NextValue(shown, 1),
            ),
        )
        fsm.act(
            "READ",
            If(seen & ~rxf, NextState("IDLE")).Else(
                drive["oe_rest"].eq(0),
                If(over | ~self.room, NextState("YIELD")).Else(drive["wr_n"].eq(0)),
            ),
        )
        # The chip drives the bus until it has seen WR_N, and while RXF_N is low.
        fsm.act("YIELD", drive["oe_rest"].eq(0), NextState("RELEASE"))
        fsm.act("RELEASE", If(rxf, drive["oe_rest"].eq(0)).Else(NextState("IDLE")))


# Pins ---------------------------------------------------------------------------------------------


class FT601Pins(LiteXModule):
    """The chip's pins on the board, and its clock: domains ``ft`` and ``ft_n``.

    ``pads`` have ``clk``, ``data``, ``be``, ``txe_n``, ``rxf_n``, ``wr_n``, and ``rd_n``, ``oe_n``,
    ``siwu_n``, ``reset_n`` where they are connected: the multi-channel mode does not use these.
    """

    def __init__(self, pads: Any, link: Record) -> None:
        self.cd_ft = ClockDomain()
        self.cd_ft_n = ClockDomain(reset_less=True)

        # # #

        self.comb += [
            self.cd_ft.clk.eq(pads.clk),
            self.cd_ft_n.clk.eq(~pads.clk),
            link.txe_n.eq(pads.txe_n),
            link.rxf_n.eq(pads.rxf_n),
            pads.wr_n.eq(link.wr_n),
            *(
                getattr(pads, name).eq(1)
                for name in ("rd_n", "oe_n", "siwu_n", "reset_n")
                if hasattr(pads, name)
            ),
        ]
        self.specials += AsyncResetSynchronizer(self.cd_ft, ResetSignal("sys"))
        for bit in range(32):
            enable = link.oe_status if 8 <= bit < 16 else link.oe_rest
            self.specials += Tristate(pads.data[bit], link.data_o[bit], enable, link.data_i[bit])
        for bit in range(4):
            self.specials += Tristate(pads.be[bit], link.be_o[bit], link.oe_rest, link.be_i[bit])


# Link ---------------------------------------------------------------------------------------------


class FT601Link(LiteXModule):
    """The stream from ``sink`` (64 bits, `Snooper.source`) and the commands, over an FT601.

    ``pads`` are the chip's pins (`PADS`), for `FT601Pins`. Domains ``ft`` and ``ft_n`` are its
    clock, and the same inverted.
    """

    stream_words = 2048
    answer_words = 256
    request_words = 16

    def __init__(self) -> None:
        self.gate = gate = Gate()
        self.mailbox = mailbox = Mailbox()
        self.sink = gate.sink
        self.pads = Record(PADS)

        # # #

        in_ft = ClockDomainsRenamer("ft")
        layout = [("data", 32)]
        self.answers = answers = in_ft(PacketFIFO(self.answer_words))
        self.blocks = blocks = in_ft(PacketFIFO(self.stream_words))
        self.requests = requests = in_ft(stream.SyncFIFO(layout, self.request_words))
        self.bus = bus = Bus(self.pads, answers, blocks)

        # Commands -----------------------------------------------------------------------------

        self.answer_cdc = stream.ClockDomainCrossing(layout, "sys", "ft", 16)
        self.request_cdc = stream.ClockDomainCrossing(layout, "ft", "sys", 16)
        self.comb += [
            mailbox.source.connect(self.answer_cdc.sink, keep={"valid", "ready", "data", "last"}),
            self.answer_cdc.source.connect(answers.sink),
            bus.requests.connect(requests.sink),
            bus.room.eq(requests.level < self.request_words - 4),
            requests.source.connect(self.request_cdc.sink),
            self.request_cdc.source.connect(mailbox.sink, keep={"valid", "ready", "data"}),
        ]

        # Stream -------------------------------------------------------------------------------

        self.converter = converter = stream.Converter(WORD_BITS, 32)
        self.stream_cdc = cdc = stream.ClockDomainCrossing(layout, "sys", "ft", 16)
        index = Signal(max=PACKET_WORDS)
        self.comb += [
            gate.source.connect(converter.sink, keep={"valid", "ready", "data"}),
            converter.source.connect(cdc.sink, keep={"valid", "ready", "data"}),
            cdc.sink.last.eq(index == PACKET_WORDS - 1),
            cdc.source.connect(blocks.sink),
        ]
        self.sync += If(cdc.sink.valid & cdc.sink.ready, index.eq(index + 1))

        # What has been let in is gone when nothing comes for longer than the crossing takes.
        still, still_ft = Signal(), Signal()
        quiet_clocks = Signal(4)
        gone, gone_sys = Signal(), Signal()
        self.sync += still.eq((gate.closed | gate.ended) & ~converter.source.valid)
        self.specials += [
            MultiReg(still, still_ft, "ft"),
            MultiReg(~gate.running, bus.drop, "ft"),
            MultiReg(gone, gone_sys, "sys"),
        ]
        self.sync.ft += [
            quiet_clocks.eq(quiet_clocks + 1),
            gone.eq(0),
            If(quiet_clocks == 15, quiet_clocks.eq(15), gone.eq(1)),
            If(~still_ft | cdc.source.valid | blocks.valid | blocks.next_valid, quiet_clocks.eq(0)),
        ]
        self.comb += [
            gate.quiet.eq(gone_sys),
            gate.done.eq(gone_sys),
        ]
