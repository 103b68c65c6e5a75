# SPDX-License-Identifier: BSD-2-Clause
"""The fabric parts of the captures, simulated; the rest, elaborated."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from litex.build.generic_platform import IOStandard, Pins, Subsignal
from litex.build.lattice import LatticePlatform
from litex.build.xilinx import XilinxPlatform
from litex.gen import LiteXModule
from migen import ClockDomain, Signal, run_simulation
from verilated import Bench, needs_verilator

from ptat_gateware.layouts import Layout, ddr3_command_layout, ddr4_command_layout
from ptat_gateware.snoop.capture import (
    Capture,
    ClockWatch,
    ECP5Capture,
    Gear,
    PinMonitor,
    S7Capture,
    StartSequence,
)

# Fabric parts -------------------------------------------------------------------------------------


def test_gear_keeps_the_order() -> None:
    """Two words of 4 become one of 8, the earlier first, at rest when `clk` rises."""
    dut = Gear(2)
    rng = random.Random(1)
    sent = [[rng.getrandbits(4) for _ in range(60)] for _ in dut.sinks]
    seen: list[list[int]] = [[] for _ in dut.sources]

    def drive() -> Iterator[Any]:
        for words in zip(*sent, strict=True):
            for sink, word in zip(dut.sinks, words, strict=True):
                yield sink.eq(word)
            yield

    def read() -> Iterator[Any]:
        clk_before = 0
        values_before: list[int] = []
        for _ in range(60):
            values = []
            for source in dut.sources:
                values.append((yield source))
            if (yield dut.clk) and not clk_before:
                assert values == values_before  # stable before and at the edge
                for pin, value in zip(seen, values, strict=True):
                    pin.append(value)
            clk_before, values_before = (yield dut.clk), values
            yield

    run_simulation(dut, {"capture": [drive(), read()]}, clocks={"capture": 10})
    for words, got in zip(sent, seen, strict=True):
        pairs = [low | high << 4 for low, high in pairwise(words)]
        # Which word comes first is chance.
        assert got[2:] in (pairs[start::2][: len(got) - 2] for start in range(4))


@pytest.mark.parametrize("phases", [4, 8])
def test_alignment(phases: int) -> None:
    """Pins that come a CK early are delayed; all commands are then what was on the bus."""
    layout = ddr3_command_layout(2)
    dut = Capture(layout, phases)
    rng = random.Random(phases)
    clocks = 50
    count = len(dut.words)
    levels = [[rng.getrandbits(1) for _ in range(clocks * phases + 1)] for _ in range(count)]
    early = rng.getrandbits(count)
    commands: list[int] = []

    def drive() -> Iterator[Any]:
        yield dut._late.storage.eq(early)
        yield
        for clock in range(clocks):
            for pin, word in enumerate(dut.words):
                start = clock * phases + (early >> pin & 1)
                bits = levels[pin][start : start + phases]
                yield word.eq(sum(bit << i for i, bit in enumerate(bits)))
            yield
            for command in dut.commands:
                commands.append((yield command.raw_bits()))

    run_simulation(dut, {"snoop": drive()}, clocks={"snoop": 10, "sys": 12})
    sent = [sum(pin[ck] << i for i, pin in enumerate(levels)) for ck in range(len(levels[0]))]
    # The word of a clock is seen a clock later; what was before the first is unknown.
    assert early
    assert commands[2 * phases :] == sent[phases : len(commands) - phases]
    assert dut.commands[0].layout == layout


def test_delay_pulses() -> None:
    """A step reaches the chosen pin alone, and its direction is there before it."""
    dut = Capture(ddr3_command_layout(1), 4)
    seen = []

    def drive() -> Iterator[Any]:
        fields = dut._delay.fields
        yield dut._pin.storage.eq(7)
        for name in ("up", "down", "load", "up"):
            yield getattr(fields, name).eq(1)
            yield dut._delay.re.eq(1)
            yield
            yield getattr(fields, name).eq(0)
            yield dut._delay.re.eq(0)
            before = None
            for _ in range(5):
                state = ((yield dut.down), (yield dut.move), (yield dut.load))
                if state[1] or state[2]:
                    seen.append((name, before, *state))
                before = state[0]
                yield

    run_simulation(dut, {"sys": drive()}, clocks={"snoop": 10, "sys": 12})
    pin = 1 << 7
    assert [(name, move, load) for name, _, _, move, load in seen] == [
        ("up", pin, 0),
        ("down", pin, 0),
        ("load", 0, pin),
        ("up", pin, 0),
    ]
    assert [(before, down) for name, before, down, *_ in seen if name != "load"] == [
        (0, 0),
        (1, 1),
        (0, 0),
    ]


def test_pin_monitor() -> None:
    """Counts are exact, of the selected pin, and of each window anew."""
    clocks = 32
    rng = random.Random(4)
    words = [[rng.getrandbits(4) & rng.getrandbits(4) for _ in range(200)] for _ in range(3)]
    pins = [Signal(4) for _ in words]
    dut = PinMonitor(pins, clocks)
    counts = []

    def drive() -> Iterator[Any]:
        yield dut.select.eq(2)
        for values in zip(*words, strict=True):
            for pin, value in zip(pins, values, strict=True):
                yield pin.eq(value)
            yield
            counts.append(((yield dut.high), (yield dut.changes)))

    run_simulation(dut, {"snoop": drive()}, clocks={"snoop": 10})
    bits = [word >> i & 1 for word in words[2] for i in range(4)]
    changes = [a ^ b for a, b in zip(bits[1:], bits, strict=False)]

    def window(start: int) -> tuple[int, int]:
        first = max(start * 4, 1)
        return sum(bits[first : first + 128]), sum(changes[first - 1 : first + 127])

    steps = [
        i for i, (now, before) in enumerate(zip(counts[1:], counts, strict=False)) if now != before
    ]
    assert {b - a for a, b in pairwise(steps)} == {clocks}
    got = [counts[step + 1] for step in steps[1:]]  # the first window began before the pins moved
    assert len(got) >= 4
    assert any(
        got == [window(start + clocks * i) for i in range(len(got))] for start in range(2 * clocks)
    )


@needs_verilator
def test_clock_watch() -> None:
    """A clock that stops is noticed; when it comes back, `snoop` is told before it is trusted."""
    watch = ClockWatch(patience=40)
    outputs = {"running": watch.running, "stopped": watch.stopped}
    bench = Bench(watch, {}, outputs, ("sys", "snoop"))
    rows = np.arange(600)
    ticks = (rows % 2 == 0) & ~((rows >= 200) & (rows < 400))  # snoop: half of sys, and a pause
    seen = bench.run((1 | ticks << 1).astype(np.uint8))
    running, stopped = seen["running"].astype(bool), seen["stopped"].astype(bool)
    assert stopped[0] and not running[0]
    assert running[60:200].all() and not stopped[80:200].any()
    assert not running[245:400].any()
    # The first ticks after the pause already find `stopped`, and it ends only when it runs.
    assert stopped[404:418].all()
    assert running[470:].all() and not stopped[480:].any()


def test_start_sequence() -> None:
    """Reset is released while the edge clock is stopped; losing lock starts all over."""
    dut = StartSequence()
    log: list[tuple[int, int, int]] = []

    def drive() -> Iterator[Any]:
        for enable, length in ((0, 5), (1, 60), (0, 3), (1, 60)):
            yield dut.enable.eq(enable)
            for _ in range(length):
                yield
                log.append(((yield dut.reset), (yield dut.stop), (yield dut.done)))

    run_simulation(dut, drive())
    order = [state for state, before in zip(log, [None, *log], strict=False) if state != before]
    once = [(1, 1, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1)]
    assert order[:4] == once
    assert order[-4:] == once


# Elaboration --------------------------------------------------------------------------------------


def tap(layout: Layout, differential: bool) -> list[Any]:
    """The pins of a DIMM's tap, at made-up places."""
    count = 0

    def places(bits: int) -> Pins:
        nonlocal count
        count += bits
        return Pins(" ".join(f"X{i}" for i in range(count - bits, count)))

    names = [("ck_p", 1), ("ck_n", 1)] if differential else [("ck", 1)]
    pins = [Subsignal(name, places(bits)) for name, bits in [*names, *layout]]
    return [("clk", 0, Pins("CLK")), ("dimm", 0, *pins, IOStandard("SSTL15_I"))]


def verilog(platform: Any, capture: type[Capture], ck_hz: float, phases: int, layout: Any) -> str:
    top = LiteXModule()
    top.cd_sys = ClockDomain(reset_less=True)
    top.comb += top.cd_sys.clk.eq(platform.request("clk"))
    top.capture = capture(platform, platform.request("dimm"), ck_hz, phases, layout)
    # Keep what a decoder would use.
    out = Signal()
    top.sync.snoop += out.eq(top.capture.commands[-1].raw_bits() != 0)
    return str(platform.get_verilog(top))


@pytest.mark.parametrize(
    ("ck_hz", "phases", "layout"),
    [
        (400e6, 4, ddr3_command_layout(2)),
        (800e6, 4, ddr3_command_layout(4)),
        (400e6, 8, ddr4_command_layout(2)),
    ],
)
def test_ecp5(ck_hz: float, phases: int, layout: Layout) -> None:
    """One delay and one deserialiser for each pin, one PLL."""
    platform = LatticePlatform("LFE5UM5G-85F-8BG554I", tap(layout, False), toolchain="trellis")
    text = verilog(platform, ECP5Capture, ck_hz, phases, layout)
    pins = sum(bits for _, bits in layout)
    for cell, count in {
        "DELAYF": pins,
        "IDDRX2F": pins,
        "EHXPLLL": 1,
        "ECLKSYNCB": 1,
        "CLKDIVF": 1,
    }.items():
        assert len(re.findall(rf"^{cell}\b", text, re.MULTILINE)) == count, cell


@pytest.mark.parametrize("phases", [4, 8])
def test_series_7(phases: int) -> None:
    """One delay and one deserialiser for each pin, clocked by CK."""
    layout = ddr4_command_layout(2)
    platform = XilinxPlatform("xc7a200tsbg484-3", tap(layout, True), toolchain="vivado")
    text = verilog(platform, S7Capture, 400e6, phases, layout)
    pins = sum(bits for _, bits in layout)
    for cell, count in {"IDELAYE2": pins, "ISERDESE2": pins, "BUFIO": 1, "BUFR": 1}.items():
        assert len(re.findall(rf"^{cell}\b", text, re.MULTILINE)) == count, cell
