# SPDX-License-Identifier: BSD-2-Clause
"""The decoders against the JEDEC model: legal streams of all kinds, and spoilt ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from jedec import (
    DDR3,
    DDR3_800E,
    DDR3_1600K,
    DDR4,
    DDR4_1600L,
    DDR4_3200AA,
    Access,
    Controller,
    Monitor,
    Pins,
    Setup,
    Standard,
    Timing,
    stream,
)
from migen import Cat, Module, Signal
from verilated import Bench, needs_verilator

from ptat_gateware.layouts import Illegal, coordinate_layout
from ptat_gateware.snoop.ddr3 import DDR3Decoder
from ptat_gateware.snoop.ddr4 import DDR4Decoder
from ptat_gateware.snoop.decoder import NO_COUNT, CommandDecoder

DECODERS: dict[str, type[CommandDecoder]] = {"DDR3": DDR3Decoder, "DDR4": DDR4Decoder}


# Bench --------------------------------------------------------------------------------------------


class PackedDecoder(Module):
    """A decoder whose commands, accesses and configuration are one signal each."""

    def __init__(self, decoder: CommandDecoder) -> None:
        self.submodules.decoder = decoder
        self.inputs = {}
        self.outputs = {}
        for phase, pins in enumerate(decoder.commands):
            self.inputs[f"pins{phase}"] = packed = Signal(len(pins.raw_bits()))
            self.comb += Cat(*(getattr(pins, name) for name, *_ in pins.layout)).eq(packed)
        fields = decoder._protocol.fields
        for name in ("mirror", "burst", "t_rcd"):
            self.inputs[name] = getattr(fields, name)
        self.inputs |= {"forget": decoder.forget, "clear": decoder.clear}
        self.inputs["select"] = decoder._count_select.storage
        self.inputs["ask"] = decoder._count_select.re
        for lane, source in enumerate(decoder.sources):
            parts = Cat(source.valid, *(getattr(source, name) for name, _ in coordinate_layout))
            self.outputs[f"source{lane}"] = packed = Signal(len(parts))
            self.comb += packed.eq(parts)
        self.outputs["illegal"] = packed = Signal(1 + len(Illegal))
        self.comb += packed.eq(Cat(decoder.illegal.valid, decoder.illegal.code))
        self.outputs["count"] = packed = Signal(len(decoder._count.status))
        shown = decoder._count.fields
        self.comb += packed.eq(Cat(shown.count, shown.kind))


def packed_pins(standard: Standard, ranks: int, pins: Pins) -> int:
    """The pins in the order of the command layout."""
    if standard is DDR3:
        fields = [
            (pins.cke, ranks),
            (pins.cs_n, ranks),
            (pins.ras_n, 1),
            (pins.cas_n, 1),
            (pins.we_n, 1),
            (pins.ba, 3),
            (pins.a, 16),
        ]
    else:
        fields = [
            (pins.cke, ranks),
            (pins.cs_n, ranks),
            (pins.act_n, 1),
            (pins.bg, 2),
            (pins.ba, 2),
            (pins.a, 14),
            (pins.we_n, 1),
            (pins.cas_n, 1),
            (pins.ras_n, 1),
        ]
    value = shift = 0
    for field, bits in fields:
        value |= field << shift
        shift += bits
    return value


@dataclass
class Outcome:
    """What a decoder made of a stream; clocks are those of the commands."""

    accesses: list[Access]
    illegal_clocks: dict[int, set[str]]
    illegal: Counter[str]
    unknown: int


class DecoderBench:
    def __init__(self, standard: Standard, phases: int, ranks: int) -> None:
        self.standard, self.phases, self.ranks = standard, phases, ranks
        top = PackedDecoder(DECODERS[standard.name](phases, ranks))
        self.latency = top.decoder.latency
        self.bench = Bench(top, top.inputs, top.outputs, ("snoop", "sys"))

    def run(self, setup: Setup, pins: list[Pins], restart: int | None = None) -> Outcome:
        """At clock `restart`, the banks are forgotten and the counters cleared."""
        assert setup.ranks == self.ranks
        assert len(pins) % self.phases == 0
        self.bench.reset()
        words = np.array([packed_pins(self.standard, self.ranks, p) for p in pins], np.uint64)
        idle = packed_pins(
            self.standard,
            self.ranks,
            Pins(2**self.ranks - 1, 2**self.ranks - 1, 1, 1, 1, 1, 0, 0, 0),
        )
        table = words.reshape(-1, self.phases)
        config = {"mirror": setup.mirror, "burst": setup.burst, "t_rcd": setup.t_rcd}
        clocks = len(table)
        # After the stream, each count is selected for as long as its way to `sys` may take.
        reading = 50
        select = np.repeat(np.arange(len(Illegal) + 1), reading)
        columns = {}
        for phase in range(self.phases):
            column = np.full(clocks + len(select), idle, np.uint64)
            column[:clocks] = table[:, phase]
            columns[f"pins{phase}"] = column
        if restart is not None:
            columns["forget"] = columns["clear"] = np.arange(clocks + len(select)) == restart
        columns["select"] = np.concatenate([np.zeros(clocks, np.uint64), select])
        columns["ask"] = np.arange(-clocks, len(select)) % reading == 0
        columns["ask"][:clocks] = 0
        seen = self.bench.run(np.full(clocks + len(select), 0b11, np.uint8), **columns, **config)
        return self._outcome(seen, clocks, reading)

    def _outcome(self, seen: dict[str, np.ndarray], clocks: int, reading: int) -> Outcome:
        accesses = []
        for lane in range(self.phases // 4):
            for row in np.flatnonzero(seen[f"source{lane}"] & np.uint64(1)):
                value, got = int(seen[f"source{lane}"][row]) >> 1, {}
                for name, bits in coordinate_layout:
                    got[name] = value & (1 << bits) - 1
                    value >>= bits
                assert got["phase"] // 4 == lane
                ck = (int(row) - self.latency) * self.phases + got.pop("phase")
                accesses.append(Access(ck, **got))
        accesses.sort()
        illegal_clocks = {}
        for row in np.flatnonzero(seen["illegal"] & np.uint64(1)):
            code = int(seen["illegal"][row]) >> 1
            kinds = {kind.name for kind in Illegal if code >> kind & 1}
            illegal_clocks[int(row) - self.latency] = kinds
        counts = seen["count"][clocks + reading - 1 :: reading].tolist()
        assert [count >> 28 for count in counts] == list(range(len(Illegal) + 1))
        # From the question on, no count is taken for another's, nor for the one of before.
        assert set((seen["count"][clocks::reading] >> np.uint64(28)).tolist()) == {NO_COUNT}
        values = [count & (1 << 28) - 1 for count in counts]
        illegal = Counter({kind.name: values[kind] for kind in Illegal if values[kind]})
        return Outcome(accesses, illegal_clocks, illegal, values[len(Illegal)])


@cache
def bench_of(name: str, phases: int, ranks: int) -> DecoderBench:
    return DecoderBench({"DDR3": DDR3, "DDR4": DDR4}[name], phases, ranks)


def expected(setup: Setup, pins: list[Pins], phases: int) -> Outcome:
    monitor = Monitor(setup)
    for ck, levels in enumerate(pins):
        monitor.see(ck, levels)
    clocks: dict[int, set[str]] = {}
    for ck, kinds in monitor.illegal_at.items():
        clocks.setdefault(ck // phases, set()).update(kinds)
    return Outcome(monitor.accesses, clocks, monitor.illegal, monitor.unknown)


# Streams ------------------------------------------------------------------------------------------

CLOCKS_CK = 24_000

# Standard, phases, ranks, mirrored ranks, burst mode, speed bin.
CASES: list[tuple[Standard, int, int, int, int, Timing]] = [
    (DDR3, 4, 2, 0b10, 1, DDR3_800E),
    (DDR3, 4, 2, 0b00, 0, DDR3_1600K),
    (DDR3, 4, 1, 0b1, 2, DDR3_1600K),
    (DDR3, 8, 4, 0b1010, 2, DDR3_1600K),
    (DDR3, 8, 4, 0b0110, 1, DDR3_800E),
    (DDR4, 4, 4, 0b1010, 1, DDR4_1600L),
    (DDR4, 4, 4, 0b0001, 0, DDR4_3200AA),
    (DDR4, 8, 2, 0b10, 1, DDR4_3200AA),
    (DDR4, 8, 2, 0b01, 2, DDR4_1600L),
]
each_case = pytest.mark.parametrize(
    ("standard", "phases", "ranks", "mirror", "burst", "timing"),
    CASES,
    ids=[f"{c[0].name}-{c[1]}-{c[2]}-{c[4]}" for c in CASES],
)


@needs_verilator
@each_case
def test_legal_streams(
    standard: Standard, phases: int, ranks: int, mirror: int, burst: int, timing: Timing
) -> None:
    """Whatever a right controller does is reported, completely, and is never called illegal."""
    setup = Setup(standard, ranks, mirror, burst, timing.t_rcd)
    controller = Controller(setup, timing, random.Random(phases * ranks + burst))
    pins = stream(controller, CLOCKS_CK)
    got = bench_of(standard.name, phases, ranks).run(setup, pins)
    asked = [access for access in controller.accesses if access.ck < CLOCKS_CK]
    assert got == Outcome(asked, {}, Counter(), 0)
    assert got == expected(setup, pins, phases)
    # Nothing was left out: each command in each phase, rare ones at all.
    for name in ("ACT", "PRE", "RD", "RDA", "WR", "WRA"):
        assert all(controller.issued[name, phase] for phase in range(8)), name
    for name in ("PREA", "REF", "SRE", "MRS", "ZQCS", "PDE"):
        assert any(controller.issued[name, phase] for phase in range(8)), name
    assert {access.rank for access in asked} == set(range(ranks))
    assert len({(access.bank_group, access.bank) for access in asked}) == standard.banks


@needs_verilator
@each_case
def test_2t(
    standard: Standard, phases: int, ranks: int, mirror: int, burst: int, timing: Timing
) -> None:
    """Pins that hold a command for two clocks carry it once, at the clock that selects a rank."""
    setup = Setup(standard, ranks, mirror, burst, timing.t_rcd)
    controller = Controller(setup, timing, random.Random(phases + ranks), two_t=True)
    pins = stream(controller, CLOCKS_CK)
    got = bench_of(standard.name, phases, ranks).run(setup, pins)
    asked = [access for access in controller.accesses if access.ck < CLOCKS_CK]
    assert len(asked) > 1_000
    assert got == Outcome(asked, {}, Counter(), 0) == expected(setup, pins, phases)
    # They do hold it: of each column command the first clock differs in CS_n and CKE only.
    for access in asked:
        first, second = pins[access.ck - 1 : access.ck + 1]
        assert first.cs_n == (1 << ranks) - 1 != second.cs_n
        assert first[2:] == second[2:]
    assert {access.ck % phases for access in asked} == set(range(phases))


@needs_verilator
@each_case
def test_attached_to_a_running_bus(
    standard: Standard, phases: int, ranks: int, mirror: int, burst: int, timing: Timing
) -> None:
    """From anywhere in a legal stream nothing is illegal, and known banks lose nothing."""
    setup = Setup(standard, ranks, mirror, burst, timing.t_rcd)
    rng = random.Random(phases + ranks)
    controller = Controller(setup, timing, rng)
    pins = stream(controller, 8_000)
    unknown = 0
    for start in sorted(rng.sample(range(1_000, 6_000), 4)):
        # A rank may be asleep at the start: its CKE is low from the first clock on.
        running = [level._replace(cke=2**ranks - 1) for level in pins[start : start + 2_000]]
        got = bench_of(standard.name, phases, ranks).run(setup, running)
        assert not got.illegal
        assert got == expected(setup, running, phases)
        asked = [
            access._replace(ck=access.ck - start)
            for access in controller.accesses
            if start <= access.ck < start + 2_000
        ]
        assert set(got.accesses) <= set(asked)
        assert len(got.accesses) + got.unknown == len(asked)
        unknown += got.unknown
    assert unknown


@needs_verilator
@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=["DDR3", "DDR4"])
def test_restart(case: tuple[Standard, int, int, int, int, Timing]) -> None:
    """After a pause of the bus, what was known of it is worth nothing, and counts start anew."""
    standard, phases, ranks, mirror, burst, timing = case
    setup = Setup(standard, ranks, mirror, burst, timing.t_rcd)
    rng = random.Random(3)
    controller = Controller(setup, timing, rng)
    pins = spoilt(standard, ranks, stream(controller, 8_000), rng)
    pause = [controller.deselected()._replace(cke=2**ranks - 1) for _ in range(20 * phases)]
    running = [level._replace(cke=2**ranks - 1) for level in pins]
    before, after = running[:4_000], pause + running[4_000:]
    got = bench_of(standard.name, phases, ranks).run(
        setup, before + after, restart=len(before) // phases + 10
    )
    first, second = expected(setup, before, phases), expected(setup, after, phases)
    shift = len(before)
    assert got.accesses == first.accesses + [
        access._replace(ck=access.ck + shift) for access in second.accesses
    ]
    assert first.illegal and second.unknown
    assert (got.illegal, got.unknown) == (second.illegal, second.unknown)


# Spoilt streams -----------------------------------------------------------------------------------


def drop(pins: list[Pins], ck: int, rng: random.Random) -> None:
    """A command that was not seen."""
    pins[ck] = pins[ck]._replace(cs_n=-1)


def flip(pins: list[Pins], ck: int, rng: random.Random) -> None:
    """A bit that was misread."""
    bus = rng.choice(["ras_n", "cas_n", "we_n", "act_n", "ba", "a", "bg"])
    bit = 1 << rng.randrange({"ba": 2, "a": 14, "bg": 2}.get(bus, 1))
    pins[ck] = pins[ck]._replace(**{bus: getattr(pins[ck], bus) ^ bit})


def select(pins: list[Pins], ck: int, rng: random.Random) -> None:
    """A rank that was not meant, or a command where there was none."""
    pins[ck] = pins[ck]._replace(cs_n=pins[ck].cs_n ^ 1 << rng.randrange(4))


def again(pins: list[Pins], ck: int, rng: random.Random) -> None:
    """A command seen a second time, 1 to 6 CK later."""
    later = min(ck + rng.randrange(1, 7), len(pins) - 1)
    pins[later] = pins[ck]._replace(cke=pins[later].cke)


def early(pins: list[Pins], ck: int, rng: random.Random) -> None:
    """A command that came too early."""
    sooner = max(ck - rng.randrange(1, 12), 0)
    pins[sooner], pins[ck] = (
        pins[ck]._replace(cke=pins[sooner].cke),
        pins[sooner]._replace(cke=pins[ck].cke),
    )


def sleep(pins: list[Pins], ck: int, rng: random.Random) -> None:
    """CKE low where a command is."""
    pins[ck] = pins[ck]._replace(cke=pins[ck].cke & ~(1 << rng.randrange(4)))


SPOILERS: list[Callable[[list[Pins], int, random.Random], None]] = [
    drop,
    flip,
    select,
    again,
    early,
    sleep,
]


def spoilt(standard: Standard, ranks: int, pins: list[Pins], rng: random.Random) -> list[Pins]:
    """A legal stream after some accidents, one in a dozen commands."""
    everyone = (1 << ranks) - 1
    pins = list(pins)
    for ck, level in enumerate(pins):
        if level.cs_n != everyone and rng.random() < 0.08:
            rng.choice(SPOILERS)(pins, ck, rng)
    result = []
    for level in pins:
        fixed = {"cs_n": level.cs_n & everyone, "cke": level.cke & everyone}
        if standard is DDR3:
            fixed |= {"act_n": 1, "bg": 0}
        result.append(level._replace(**fixed))
    return result


@needs_verilator
@each_case
def test_spoilt_streams(
    standard: Standard, phases: int, ranks: int, mirror: int, burst: int, timing: Timing
) -> None:
    """Illegal sequences are refused, counted by kind and marked, exactly as the model does."""
    # One CK more than the controller keeps to.
    setup = Setup(standard, ranks, mirror, burst, timing.t_rcd + 1)
    rng = random.Random(phases * 1000 + ranks * 10 + burst)
    legal = stream(Controller(setup, timing, rng), CLOCKS_CK)
    pins = spoilt(standard, ranks, legal, rng)
    want = expected(setup, pins, phases)
    got = bench_of(standard.name, phases, ranks).run(setup, pins)
    assert got.accesses == want.accesses
    assert got == want
    rare = {Illegal.REFRESH, Illegal.RANKS} if ranks == 1 else {Illegal.REFRESH}
    assert all(want.illegal[kind.name] for kind in set(Illegal) - rare), want.illegal
    assert want.unknown


@needs_verilator
@each_case
def test_noise(
    standard: Standard, phases: int, ranks: int, mirror: int, burst: int, timing: Timing
) -> None:
    """Random commands at random clocks: the model and the gateware agree on every one."""
    setup = Setup(standard, ranks, mirror, burst, t_rcd=5)
    rng = random.Random(phases * 77 + ranks)
    controller = Controller(setup, timing, rng)
    everyone = (1 << ranks) - 1
    pins = []
    density = 0.3
    for ck in range(24_000):
        if ck % 500 == 0:
            density = rng.choice([0.06, 0.12, 0.3, 0.8])
        level = controller.deselected()
        if rng.random() < density:
            chosen = 1 << rng.randrange(ranks) | (rng.random() < 0.1) * rng.getrandbits(ranks)
            # Few banks, so that sequences of commands to one are common.
            level = level._replace(cs_n=everyone & ~chosen, bg=0, ba=level.ba & 1)
        if rng.random() < 0.02:
            level = level._replace(cke=rng.getrandbits(ranks))
        pins.append(level)
    got = bench_of(standard.name, phases, ranks).run(setup, pins)
    want = expected(setup, pins, phases)
    assert got == want
    assert len(want.accesses) > 10
    assert want.illegal["REFRESH"]
