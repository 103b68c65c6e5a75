# SPDX-License-Identifier: BSD-2-Clause
"""The instrument: from a decoder of bus commands to blocks for a link.

::

    decoder ─► AddressMap ─► WindowFilter ─► Trigger ─► Encoder ─► CrossingFIFO ┐
                                              Stamp ──────┘                     │
    domain snoop (DIMM clock)                                                   │
    ────────────────────────────────────────────────────────────────────────────┼──
    domain sys                                                                  │
                        source ◄── Buffer ◄── Packer ◄── LaneSerializer ◄───────┘

The bus cannot wait. So all in domain ``snoop`` takes what comes, and what does not fit into the
CrossingFIFO is lost and counted before it is a word; behind it all may wait, and nothing is lost.
``sys`` may have any frequency. To sustain an access every 4 CK for ever, the words of a block's
frame included, it must be 1,024 / 1,021 of CK / 4.
"""

from __future__ import annotations

import itertools
from typing import Any

from litex.gen import LiteXModule
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import Cat, If, Mux, Signal
from migen.genlib.cdc import MultiReg, PulseSynchronizer

from ptat_gateware.address import AddressMap
from ptat_gateware.filter import BY_WATCHDOG, Trigger, WindowFilter
from ptat_gateware.layouts import WORD_BITS, Illegal
from ptat_gateware.snoop.decoder import ACCESS_COUNT, COUNTER_BITS, MATCHED_COUNT
from ptat_gateware.stream.buffer import Buffer, CrossingFIFO, LaneSerializer
from ptat_gateware.stream.encoder import Encoder
from ptat_gateware.stream.packer import Packer
from ptat_gateware.stream.stamp import Stamp
from ptat_parser import wire


class Snooper(LiteXModule):
    """Captures what ``decoder`` sees; ``source`` are blocks (64 bits, ``last`` at their ends).

    ``decoder`` (`ptat_gateware.snoop`) becomes a part of it. ``advance`` skips clocks of the time,
    for simulations.

    ``sync_pulse`` and ``trigger_pin`` may be asynchronous. ``halt`` (domain ``sys``) ends a
    recording with a STOP mark that says it was the watchdog. A pulse of ``restart`` (``sys``),
    given while nothing is under way, lets blocks count from 0 again. ``buffer`` holds the finished
    blocks; by default 64 KiB in block RAM.

    ``decoder.gives_addresses``: its accesses have physical addresses already (`access_layout`), and
    no AddressMap is needed. A bus that can wait takes no access while ``admit`` (domain ``snoop``)
    is low: those that it takes otherwise, one a clock, are not lost. They have room in the
    CrossingFIFO, or nothing is being recorded.
    """

    def __init__(
        self,
        decoder: Any,
        buffer: Buffer | None = None,
        fifo_depth: int = 1024,
    ) -> None:
        lanes = len(decoder.sources)
        self.sync_pulse = Signal()
        self.trigger_pin = Signal()
        self.halt = Signal()
        self.restart = Signal()
        self.advance = Signal(32)
        self.admit = Signal()

        self._registers()

        # # #

        self.decoder = decoder
        unmapped: Any = 0
        stages: list[Any] = [decoder]
        if not decoder.gives_addresses:
            self.address = AddressMap(lanes)
            unmapped = self.address.unmapped
            stages.append(self.address)
        self.filter = windows = WindowFilter(lanes)
        self.trigger = trigger = Trigger(lanes)
        self.stamp = Stamp(decoder.phases)
        self.encoder = encoder = Encoder(decoder.phases, lanes)
        self.fifo = CrossingFIFO(lanes * WORD_BITS + (lanes if lanes > 1 else 0), fifo_depth)
        self.serializer = LaneSerializer(lanes)
        self.packer = Packer()
        self.buffer = buffer = Buffer() if buffer is None else buffer
        self.source = buffer.source

        # The accesses' way, stage by stage.
        stages += [windows, trigger, encoder]
        for before, after in itertools.pairwise(stages):
            for source, sink in zip(before.sources, after.sinks, strict=True):
                self.comb += source.connect(sink)
        self._connect_words(lanes)
        self._connect_events(unmapped)
        self._latch_counters()
        self.comb += [
            self._wire_version.status.eq(wire.VERSION),
            self._phases.status.eq(decoder.phases),
        ]

    def _registers(self) -> None:
        """Those of the instrument itself."""
        self._control = CSRStorage(
            fields=[
                CSRField("run", size=1, description="Record; the stream is from START to STOP."),
                CSRField(
                    "flush",
                    size=1,
                    pulse=True,
                    description="Put a FLUSH mark and send all that is buffered.",
                ),
                CSRField(
                    "latch",
                    size=1,
                    pulse=True,
                    description="Take the values of accesses and matched.",
                ),
            ],
            description="Control. Before run is set again, recording must have become 0.",
        )
        self._status = CSRStatus(
            fields=[
                CSRField("recording", size=1, description="START is under way, STOP is not yet."),
                CSRField(
                    "open",
                    size=1,
                    description="Words wait in front of the buffer, or a block is not yet whole."
                    " Read it again after recording became 0: what was under way is seen late.",
                ),
            ],
            description="State.",
        )
        self._wire_version = CSRStatus(8, description="Version of the stream's format.")
        self._phases = CSRStatus(8, description="Ticks (CK) in a clock of domain snoop.")
        self._accesses = CSRStatus(
            COUNTER_BITS, description="Accesses on the bus since the recording started; see latch."
        )
        self._matched = CSRStatus(
            COUNTER_BITS,
            description="Accesses that were to be recorded since it started; see latch. While"
            " nothing is under way, they are emitted + lost.",
        )

    def _connect_words(self, lanes: int) -> None:
        """From the encoder's words to blocks, and from one clock domain to the other."""
        encoder, fifo, serializer, packer = self.encoder, self.fifo, self.serializer, self.packer
        self.comb += [
            encoder.soon.eq(Cat(*(sink.valid for sink in self.trigger.sinks)) != 0),
            fifo.din.eq(Cat(*encoder.words, *([encoder.valids] if lanes > 1 else []))),
            fifo.we.eq(encoder.valids != 0),
            serializer.sink.valid.eq(fifo.source.valid),
            serializer.sink.words.eq(fifo.source.data[: lanes * WORD_BITS]),
            serializer.sink.valids.eq(fifo.source.data[lanes * WORD_BITS :] if lanes > 1 else 1),
            fifo.source.ready.eq(serializer.sink.ready),
            serializer.source.connect(packer.sink),
            packer.source.connect(self.buffer.sink),
            packer.restart.eq(self.restart),
            self._status.fields.open.eq(fifo.source.valid | packer.open),
        ]

    def _connect_events(self, unmapped: Any) -> None:
        """What is no access: control, losses, marks. `unmapped`: an access has no address."""
        decoder, stamp, trigger = self.decoder, self.stamp, self.trigger
        encoder, fifo, buffer = self.encoder, self.fifo, self.buffer
        errors = Signal(len(Illegal))
        self.flush_pulse = flush = PulseSynchronizer("sys", "snoop")
        self.latch_pulse = latch = PulseSynchronizer("sys", "snoop")
        self.specials += [
            MultiReg(self._control.fields.run, encoder.run, "snoop"),
            MultiReg(buffer.half_empty, half_empty := Signal(), "snoop"),
            MultiReg(self.halt, halt := Signal(), "snoop"),
            MultiReg(encoder.recording, self._status.fields.recording, "sys"),
        ]
        self.comb += [
            flush.i.eq(self._control.fields.flush),
            encoder.flush.eq(flush.o),
            latch.i.eq(self._control.fields.latch),
            decoder.clear.eq(encoder.starting),
            Cat(*decoder.matched).eq(Cat(*(sink.valid for sink in encoder.sinks))),
            If(decoder.illegal.valid, errors.eq(decoder.illegal.code)),
            encoder.errors.eq(Cat(errors, unmapped)),
            encoder.room.eq(fifo.room),
            encoder.resume.eq(fifo.half_empty & half_empty),
            self.admit.eq(fifo.half_empty | encoder.closed),
            encoder.time.eq(stamp.time),
            encoder.skip.eq(stamp.advance != 0),
            stamp.advance.eq(self.advance),
            encoder.sync_pending.eq(stamp.pending),
            encoder.sync_number.eq(stamp.number),
            encoder.sync_age.eq(stamp.age),
            stamp.done.eq(encoder.sync_done),
            stamp.pulse.eq(self.sync_pulse),
            trigger.enable.eq(encoder.enable),
            trigger.pin.eq(self.trigger_pin),
            encoder.started.eq(trigger.started),
            encoder.stopped.eq(trigger.stopped | halt),
            encoder.by.eq(Mux(halt, BY_WATCHDOG, trigger.by)),
            encoder.one_in.eq(trigger.one_in),
        ]

    def _latch_counters(self) -> None:
        """Hold the decoder's counters still for the slower reader.

        First those that matched, so that there are never more of them than there are accesses.
        """
        counters, wanted = self.decoder.counters, self.latch_pulse.o
        for status, number in ((self._matched, MATCHED_COUNT), (self._accesses, ACCESS_COUNT)):
            taking, now, held = Signal(), Signal(), Signal(COUNTER_BITS)
            self.comb += [now.eq(taking & (counters.number == number)), status.status.eq(held)]
            self.sync.snoop += [
                If(now, taking.eq(0), held.eq(counters.count)),
                If(wanted, taking.eq(1)),
            ]
            wanted = now
