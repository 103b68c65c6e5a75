# SPDX-License-Identifier: BSD-2-Clause
"""Which accesses are wanted: address windows, start and stop triggers, sampling.

All of it is in domain ``snoop`` and never stalls. Registers are read there as they are:
change them only while nothing is recorded.
"""

from __future__ import annotations

from typing import Any

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStorage
from migen import If, Mux, Signal
from migen.genlib.cdc import MultiReg

from ptat_gateware.layouts import Layout, access_layout
from ptat_parser import wire

WINDOWS = 4
WINDOW_UNIT_SHIFT = 16  # windows are multiples of 64 KiB
WINDOW_BITS = wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT - WINDOW_UNIT_SHIFT
SAMPLE_BITS = 16

# Origin of a trigger: argument of the marks TRIGGER and STOP.
BY_HOST, BY_WINDOW, BY_PIN, BY_WATCHDOG = range(4)

# What the windows say of an access. `exact`: it must not be left out by sampling.
selected_layout: Layout = [*access_layout, ("exact", 1), ("start", 1), ("stop", 1)]


class WindowFilter(LiteXModule):
    """Lets accesses through that lie in a window that wants them, 2 clocks later.

    Windows may overlap: an access is wanted if any window wants it, and exact if any window that
    wants it is not sampled.
    """

    latency = 2  # clocks

    def __init__(self, lanes: int = 1) -> None:
        self.sinks = [stream.Endpoint(access_layout) for _ in range(lanes)]
        self.sources = [stream.Endpoint(selected_layout) for _ in range(lanes)]

        self._windows = []
        for i in range(WINDOWS):
            first = CSRStorage(
                WINDOW_BITS,
                name=f"window{i}_first",
                description=f"First address of window {i}, in units of 64 KiB.",
            )
            last = CSRStorage(
                WINDOW_BITS,
                name=f"window{i}_last",
                description=f"Last address of window {i}, inclusive, in units of 64 KiB.",
            )
            control = CSRStorage(
                name=f"window{i}_control",
                fields=[
                    CSRField("read", size=1, description="Reads are wanted."),
                    CSRField("write", size=1, description="Writes are wanted."),
                    CSRField("sampled", size=1, description="Only one in N of them, see sample."),
                    CSRField("start", size=1, description="A hit may start the recording."),
                    CSRField("stop", size=1, description="A hit may end the recording."),
                ],
                description=f"What window {i} is for; 0: nothing.",
            )
            setattr(self, f"_window{i}_first", first)
            setattr(self, f"_window{i}_last", last)
            setattr(self, f"_window{i}_control", control)
            self._windows.append((first.storage, last.storage, control.fields))

        # # #

        for sink, source in zip(self.sinks, self.sources, strict=True):
            self._add_lane(sink, source)

    def _add_lane(self, sink: stream.Endpoint, source: stream.Endpoint) -> None:
        compared = stream.Endpoint(access_layout)
        self.sync.snoop += [
            compared.valid.eq(sink.valid),
            compared.payload.eq(sink.payload),
        ]
        unit = sink.address[WINDOW_UNIT_SHIFT - wire.ADDRESS_UNIT_SHIFT :]
        wanted: Any = 0
        exact: Any = 0
        start: Any = 0
        stop: Any = 0
        for first, last, control in self._windows:
            above, below, hit = Signal(), Signal(), Signal()
            self.sync.snoop += [above.eq(unit >= first), below.eq(unit <= last)]
            self.comb += hit.eq(above & below & Mux(compared.write, control.write, control.read))
            wanted |= hit
            exact |= hit & ~control.sampled
            start |= hit & control.start
            stop |= hit & control.stop
        self.sync.snoop += [
            source.valid.eq(compared.valid & wanted),
            source.write.eq(compared.write),
            source.phase.eq(compared.phase),
            source.address.eq(compared.address),
            source.exact.eq(exact),
            source.start.eq(start),
            source.stop.eq(stop),
        ]


class Trigger(LiteXModule):
    """Takes accesses from the start trigger to the stop trigger, and one in N of sampled ones.

    While ``enable`` is high: with no start trigger chosen all is taken from the first clock on,
    otherwise from the access (or edge at ``pin``) that fires it, itself included. After the stop
    trigger, whose access is still taken, nothing is until ``enable`` was low.

    ``started`` and ``stopped`` are high for the clock after the trigger fired, ``by`` tells the
    origin of the last. ``sources`` are 1 clock late.
    """

    latency = 1  # clocks

    def __init__(self, lanes: int = 1) -> None:
        self.sinks = [stream.Endpoint(selected_layout) for _ in range(lanes)]
        self.sources = [stream.Endpoint(access_layout) for _ in range(lanes)]
        self.enable = Signal()
        self.pin = Signal()
        self.started = Signal()
        self.stopped = Signal()
        self.by = Signal(max=BY_WATCHDOG + 1)
        self.one_in = Signal(SAMPLE_BITS)

        self._trigger = CSRStorage(
            fields=[
                CSRField("start_window", size=1, description="Start at a hit of a start window."),
                CSRField("start_pin", size=1, description="Start at a rising edge of the pin."),
                CSRField("stop_window", size=1, description="End at a hit of a stop window."),
                CSRField("stop_pin", size=1, description="End at a rising edge of the pin."),
            ],
            description="What starts and ends a recording besides the host; 0: nothing.",
        )
        self._sample = CSRStorage(
            SAMPLE_BITS,
            reset=1,
            description="N: of accesses that only sampled windows want, one in N is recorded;"
            " 0 counts as 1.",
        )

        # # #

        chosen = self._trigger.fields
        self.comb += self.one_in.eq(self._sample.storage | (self._sample.storage == 0))

        pin, pin_before, edge = Signal(), Signal(), Signal()
        self.specials += MultiReg(self.pin, pin, "snoop")
        self.sync.snoop += [pin_before.eq(pin), edge.eq(pin & ~pin_before)]

        is_open, over = Signal(), Signal()
        # Sampled accesses to leave out before the next one, less 1: the top bit says that there are
        # none left, so that no comparison is in the way.
        left = Signal(SAMPLE_BITS + 1, reset=2 ** (SAMPLE_BITS + 1) - 1)
        left_again = Signal(SAMPLE_BITS + 1)
        self.sync.snoop += left_again.eq(self.one_in - 2)
        start_by_pin = edge & chosen.start_pin
        stop_by_pin = edge & chosen.stop_pin & is_open
        now_open: Any = is_open | start_by_pin | ~(chosen.start_window | chosen.start_pin)
        now_over: Any = over | stop_by_pin
        now_left: Any = left
        by_window_start: Any = 0
        by_window_stop: Any = 0
        for sink, source in zip(self.sinks, self.sources, strict=True):
            hit_start = sink.valid & sink.start & chosen.start_window
            by_window_start |= hit_start & ~now_open
            now_open = now_open | hit_start
            inside = Signal()
            self.comb += inside.eq(sink.valid & now_open & ~now_over & self.enable)
            hit_stop = inside & sink.stop & chosen.stop_window
            by_window_stop |= hit_stop
            now_over = now_over | hit_stop

            after = Signal(SAMPLE_BITS + 1)
            none_left = now_left[-1]
            self.comb += [
                after.eq(now_left),
                If(inside & ~sink.exact, after.eq(Mux(none_left, left_again, now_left - 1))),
            ]
            self.sync.snoop += [
                source.valid.eq(inside & (sink.exact | none_left)),
                source.write.eq(sink.write),
                source.phase.eq(sink.phase),
                source.address.eq(sink.address),
            ]
            now_left = after

        self.sync.snoop += [
            is_open.eq(self.enable & now_open),
            over.eq(self.enable & now_over),
            left.eq(Mux(self.enable, now_left, 2 ** len(left) - 1)),
            self.started.eq(self.enable & ~over & (start_by_pin & ~is_open | by_window_start)),
            self.stopped.eq(self.enable & ~over & (stop_by_pin | by_window_stop)),
            self.by.eq(Mux(by_window_start | by_window_stop, BY_WINDOW, BY_PIN)),
        ]
