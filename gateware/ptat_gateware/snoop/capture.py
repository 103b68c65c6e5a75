# SPDX-License-Identifier: BSD-2-Clause
"""From the pins of a DIMM to words of command phases, clocked by the DIMM's own CK.

Commands are single data rate: each pin has one level per CK, valid around CK's rising edge. ::

    pins ─► input delay ─► deserialiser ─► (Gear) ─► PinAligner ─► commands[phase]
             per pin        1:4 or 1:8      4 → 8     0 or 1 CK     domain snoop
                                                         │
    CK ──► clocks ─► ClockWatch                          └─► PinMonitor

The input delays take the pins' skew away, so that each is sampled in the middle of its eye. A pin
whose delay had to be moved past an edge of CK is one CK late; PinAligner delays the others. Which
pins toggle how often (PinMonitor), and how many commands the decoder calls illegal, tell the host
where the eyes are: nothing else is known of a bus that is only watched. Which CK of a word comes
first does not matter; it is a constant offset of time.

How delays and deserialisers behave on silicon is not simulated: docs/hardware.md.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from litex.gen import LiteXModule
from litex.soc.cores.clock import ECP5PLL
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import (
    Array,
    Cat,
    ClockDomain,
    ClockSignal,
    If,
    Instance,
    Mux,
    Record,
    Signal,
)
from migen.genlib.cdc import MultiReg
from migen.genlib.resetsync import AsyncResetSynchronizer

from ptat_gateware.layouts import Layout, ddr3_command_layout

# FPGA-DS-02012 (ECP5 data sheet): "sysCLOCK PLL Timing"; "Maximum I/O Buffer Speed", inputs.
ECP5_SSTL15_MAX_HZ = 400_000_000
ECP5_LVCMOS33_MAX_HZ = 200_000_000

# Fabric parts -----------------------------------------------------------------------------------


class Gear(LiteXModule):
    """Words of 4 phases in domain ``capture`` to words of 8 in ``snoop``, of half the frequency.

    ``clk`` is the clock for ``snoop``; it falls when ``source`` changes, so half a period is left
    on both sides of its rising edge.
    """

    def __init__(self, pins: int) -> None:
        self.sinks = [Signal(4) for _ in range(pins)]
        self.sources = [Signal(8) for _ in range(pins)]
        self.clk = Signal()

        # # #

        self.sync.capture += self.clk.eq(~self.clk)
        for sink, source in zip(self.sinks, self.sources, strict=True):
            first = Signal(4)
            self.sync.capture += If(self.clk, source.eq(Cat(first, sink))).Else(first.eq(sink))


class PinAligner(LiteXModule):
    """Delays the pins whose bit in ``late`` is set by one CK, in domain ``snoop``."""

    def __init__(self, pins: int, phases: int) -> None:
        self.sinks = [Signal(phases) for _ in range(pins)]
        self.sources = [Signal(phases) for _ in range(pins)]
        self.late = Signal(pins)

        # # #

        for late, sink, source in zip(self.late, self.sinks, self.sources, strict=True):
            last = Signal()
            self.sync.snoop += [
                last.eq(sink[-1]),
                source.eq(Mux(late, Cat(last, sink[:-1]), sink)),
            ]


class PinMonitor(LiteXModule):
    """Counts, for one pin, how often it is high and how often it changes in ``clocks`` clocks."""

    def __init__(self, pins: list[Any], clocks: int) -> None:
        bits = (clocks * len(pins[0])).bit_length()
        self.select = Signal(max=len(pins))
        self.high = Signal(bits)
        self.changes = Signal(bits)

        # # #

        phases = len(pins[0])
        pin, last = Signal(phases), Signal()
        change, left = Signal(phases), Signal(max=clocks, reset=clocks - 1)
        highs, changes = Signal(bits), Signal(bits)
        self.comb += change.eq(pin ^ Cat(last, pin[:-1]))
        # Sums are registered before they are accumulated, for timing.
        high_now, changes_now = Signal(max=phases + 1), Signal(max=phases + 1)
        self.sync.snoop += [
            pin.eq(Array(pins)[self.select]),
            last.eq(pin[-1]),
            high_now.eq(reduce(add, pin)),
            changes_now.eq(reduce(add, change)),
            highs.eq(highs + high_now),
            changes.eq(changes + changes_now),
            left.eq(left - 1),
            If(
                left == 0,
                left.eq(clocks - 1),
                self.high.eq(highs),
                self.changes.eq(changes),
                highs.eq(high_now),
                changes.eq(changes_now),
            ),
        ]


class ClockWatch(LiteXModule):
    """``running`` (domain ``sys``): domain ``snoop`` has ticked in the last ``patience`` clocks.

    ``stopped`` is for ``snoop``: high for its first clocks when it has come back.
    """

    def __init__(self, patience: int = 256) -> None:
        self.running = Signal()
        self.stopped = Signal()

        # # #

        divider = Signal(4)
        toggle, before = Signal(), Signal()
        left = Signal(max=patience + 1)
        self.sync.snoop += divider.eq(divider + 1)
        self.specials += [
            MultiReg(divider[-1], toggle, "sys"),
            MultiReg(~self.running, self.stopped, "snoop", reset=1),
        ]
        # Only the second sign of life counts: by then, what was under way when it stopped is gone.
        self.sync += [
            before.eq(toggle),
            If(toggle != before, left.eq(patience), self.running.eq(left != 0))
            .Elif(left != 0, left.eq(left - 1))
            .Else(self.running.eq(0)),
        ]


class StartSequence(LiteXModule):
    """Starts all deserialisers of an edge clock in the same clock, in domain ``sys``.

    While ``enable`` is low they are held. Then the edge clock is stopped, their reset is released,
    and the edge clock is started, so that each begins its words with the same CK.
    """

    def __init__(self) -> None:
        self.enable = Signal()
        self.stop = Signal(reset=1)
        self.reset = Signal(reset=1)
        self.done = Signal()

        # # #

        step = Signal(5)
        self.sync += [
            If(~self.enable, step.eq(0)).Elif(~self.done, step.eq(step + 1)),
            self.reset.eq(step < 8),
            self.stop.eq(step < 16),
        ]
        self.comb += self.done.eq(step == 2 ** len(step) - 1)


# Capture ----------------------------------------------------------------------------------------


class Capture(LiteXModule):
    """What all captures share: alignment, monitor and registers.

    A subclass drives ``words`` (a word of ``phases`` levels for each pin, in domain ``snoop``, the
    earliest in bit 0), and obeys ``move``, ``down`` and ``load`` (pulses in domain ``sys``, a bit
    for each pin but for ``down``). ``commands[phase]`` and ``stopped`` (what comes is no
    continuation) are for a decoder.
    """

    def __init__(self, layout: Layout, phases: int) -> None:
        self.layout = layout
        self.commands = [Record(layout, name=f"captured{phase}") for phase in range(phases)]
        count = sum(bits for _, bits in layout)
        self.words = [Signal(phases) for _ in range(count)]
        self.move = Signal(count)
        self.down = Signal()
        self.load = Signal(count)
        self.locked = Signal()

        names = ", ".join(f"{name} ({bits})" for name, bits in layout)
        self._pin = CSRStorage(
            count.bit_length(),
            description=f"Pin that delay and monitor are about. From 0: {names}.",
        )
        self._delay = CSRStorage(
            description="Input delay of the pin.",
            fields=[
                CSRField("up", size=1, pulse=True, description="One step more."),
                CSRField("down", size=1, pulse=True, description="One step less."),
                CSRField("load", size=1, pulse=True, description="Back to 0 steps."),
            ],
        )
        self._late = CSRStorage(count, description="Pins (a bit each) to delay by one CK.")
        self._status = CSRStatus(
            description="State of the clocks.",
            fields=[
                CSRField("running", size=1, description="CK is there."),
                CSRField("locked", size=1, description="Deserialisers run."),
            ],
        )
        self._high = CSRStatus(16, description="CKs of 4,096 clocks for which the pin was high.")
        self._changes = CSRStatus(16, description="Changes of the pin in 4,096 clocks.")

        # # #

        self.aligner = aligner = PinAligner(count, phases)
        self.monitor = monitor = PinMonitor(aligner.sources, 4096)
        self.watch = watch = ClockWatch()
        self.stopped = watch.stopped
        for index, (word, sink) in enumerate(zip(self.words, aligner.sinks, strict=True)):
            chosen = self._pin.storage == index
            fields = self._delay.fields
            self.comb += sink.eq(word)
            # `down` is there a clock before `move`.
            wanted = Signal()
            self.sync += [
                wanted.eq(chosen & (fields.up | fields.down)),
                self.move[index].eq(wanted),
                self.load[index].eq(chosen & fields.load),
            ]
        self.sync += If(self._delay.re, self.down.eq(self._delay.fields.down))
        for phase, command in enumerate(self.commands):
            levels = Cat(*(source[phase] for source in aligner.sources))
            self.comb += Cat(*(getattr(command, name) for name, _ in layout)).eq(levels)
        self.comb += [
            aligner.late.eq(self._late.storage),
            monitor.select.eq(self._pin.storage),
            self._status.fields.running.eq(watch.running),
            self._status.fields.locked.eq(self.locked),
            self._high.status.eq(monitor.high),
            self._changes.status.eq(monitor.changes),
        ]

    def _pins(self, pads: Any) -> list[Any]:
        return [pin for name, _ in self.layout for pin in getattr(pads, name)]


class ECP5Capture(Capture):
    """Lattice ECP5: DELAYF and IDDRX2F, clocked on both edges of CK / 2.

    A PLL makes CK / 2 from ``pads.ck``. For a CK above ``ck_max_hz``, what the clock's pin takes,
    ``pads.ck`` must be CK / 2 already (a divider on the interposer).
    """

    def __init__(
        self,
        platform: Any,
        pads: Any,
        ck_hz: float,
        phases: int = 4,
        layout: Layout | None = None,
        *,
        ck_max_hz: float = ECP5_SSTL15_MAX_HZ,
    ) -> None:
        Capture.__init__(self, layout or ddr3_command_layout(len(pads.cs_n)), phases)
        self.cd_snoop = ClockDomain()
        words_domain = "snoop"
        if phases == 8:
            self.cd_capture = ClockDomain()
            words_domain = "capture"
        self.cd_edge_pll = ClockDomain(reset_less=True)
        self.cd_edge = ClockDomain(reset_less=True)

        # # #

        # Clocks ---------------------------------------------------------------------------------

        self.pll = pll = ECP5PLL()
        self.start = start = StartSequence()
        pll.register_clkin(pads.ck, ck_hz if ck_hz <= ck_max_hz else ck_hz / 2)
        pll.create_clkout(self.cd_edge_pll, ck_hz / 2, with_reset=False)
        words_clk = ClockSignal(words_domain)
        self.specials += [
            MultiReg(pll.locked, start.enable, "sys"),
            Instance(
                "ECLKSYNCB",
                i_ECLKI=self.cd_edge_pll.clk,
                i_STOP=start.stop,
                o_ECLKO=self.cd_edge.clk,
            ),
            Instance(
                "CLKDIVF",
                p_DIV="2.0",
                i_CLKI=self.cd_edge.clk,
                i_RST=start.reset,
                i_ALIGNWD=0,
                o_CDIVX=words_clk,
            ),
            AsyncResetSynchronizer(self.cd_snoop, ~start.done),
        ]
        self.comb += self.locked.eq(start.done)

        # Pins -----------------------------------------------------------------------------------

        words = self.words
        if phases == 8:
            self.specials += AsyncResetSynchronizer(self.cd_capture, ~start.done)
            self.gear = gear = Gear(len(words))
            self.comb += self.cd_snoop.clk.eq(gear.clk)
            self.comb += [word.eq(wide) for word, wide in zip(words, gear.sources, strict=True)]
            words = gear.sinks
        for index, (pin, word) in enumerate(zip(self._pins(pads), words, strict=True)):
            delayed = Signal()
            self.specials += [
                Instance(
                    "DELAYF",
                    p_DEL_MODE="USER_DEFINED",
                    p_DEL_VALUE=0,
                    i_A=pin,
                    i_LOADN=~self.load[index],
                    i_MOVE=self.move[index],
                    i_DIRECTION=self.down,
                    o_Z=delayed,
                ),
                Instance(
                    "IDDRX2F",
                    i_D=delayed,
                    i_ECLK=self.cd_edge.clk,
                    i_SCLK=words_clk,
                    i_RST=start.reset,
                    **{f"o_Q{phase}": word[phase] for phase in range(4)},
                ),
            ]
        platform.add_period_constraint(self.cd_edge.clk, 2e9 / ck_hz)
        platform.add_period_constraint(self.cd_snoop.clk, phases * 1e9 / ck_hz)
        if phases == 8:
            platform.add_period_constraint(self.cd_capture.clk, 4e9 / ck_hz)


class S7Capture(Capture):
    """Xilinx 7 series: IDELAYE2 and ISERDESE2, clocked by CK (``pads.ck_p``, ``ck_n``).

    All pins and CK must be in one clock region. BUFIO limits CK to 600 MHz (speed grade -1) or 680
    MHz (-2, -3; DS181, table 33), and BUFR its input to 315 or 375 MHz unless it divides: SDR at
    DDR3-1333 at the most. Domain ``idelay`` of the target is the
    reference of the delays (200 MHz, with an IDELAYCTRL).
    """

    def __init__(
        self, platform: Any, pads: Any, ck_hz: float, phases: int = 4, layout: Layout | None = None
    ) -> None:
        Capture.__init__(self, layout or ddr3_command_layout(len(pads.cs_n)), phases)
        self.cd_snoop = ClockDomain()
        self.cd_ck = ClockDomain(reset_less=True)

        # # #

        ck = Signal()
        self.specials += [
            Instance("IBUFDS", i_I=pads.ck_p, i_IB=pads.ck_n, o_O=ck),
            Instance("BUFIO", i_I=ck, o_O=self.cd_ck.clk),
            Instance(
                "BUFR",
                p_BUFR_DIVIDE=str(phases),
                i_I=ck,
                i_CE=1,
                i_CLR=0,
                o_O=self.cd_snoop.clk,
            ),
            AsyncResetSynchronizer(self.cd_snoop, ~self.watch.running),
        ]
        self.comb += self.locked.eq(self.watch.running)
        for index, (pin, word) in enumerate(zip(self._pins(pads), self.words, strict=True)):
            delayed = Signal()
            self.specials += [
                Instance(
                    "IDELAYE2",
                    p_IDELAY_TYPE="VARIABLE",
                    p_IDELAY_VALUE=0,
                    p_REFCLK_FREQUENCY=200.0,
                    p_DELAY_SRC="IDATAIN",
                    p_HIGH_PERFORMANCE_MODE="TRUE",
                    p_SIGNAL_PATTERN="DATA",
                    i_C=ClockSignal("sys"),
                    i_LD=self.load[index],
                    i_CE=self.move[index],
                    i_INC=~self.down,
                    i_IDATAIN=pin,
                    o_DATAOUT=delayed,
                ),
                # Q1 is the latest.
                Instance(
                    "ISERDESE2",
                    p_DATA_RATE="SDR",
                    p_DATA_WIDTH=phases,
                    p_INTERFACE_TYPE="NETWORKING",
                    p_IOBDELAY="IFD",
                    p_NUM_CE=1,
                    p_SERDES_MODE="MASTER",
                    i_DDLY=delayed,
                    i_CE1=1,
                    i_CLK=self.cd_ck.clk,
                    i_CLKB=~self.cd_ck.clk,
                    i_CLKDIV=self.cd_snoop.clk,
                    i_RST=self.cd_snoop.rst,
                    i_BITSLIP=0,
                    **{f"o_Q{phases - phase}": word[phase] for phase in range(phases)},
                ),
            ]
        platform.add_period_constraint(ck, 1e9 / ck_hz)
        platform.add_period_constraint(self.cd_snoop.clk, phases * 1e9 / ck_hz)
