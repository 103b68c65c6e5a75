# SPDX-License-Identifier: BSD-2-Clause
"""The decoders against the JEDEC model: legal streams of all kinds, and spoilt ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from jedec import (
    DDR3,
    DDR3_800E,
    DDR3_1600K,
    DDR3_1600K_AL,
    DDR3_DLL_OFF_67,
    DDR3_DLL_OFF_100,
    DDR4,
    DDR4_1600L,
    DDR4_1600L_AL,
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
from ptat_gateware.snoop.ddr4 import CAL_CK, DDR4Decoder
from ptat_gateware.snoop.decoder import MPR_COUNT, NO_COUNT, UNKNOWN_COUNT, CommandDecoder
from ptat_gateware.snoop.rate import WINDOW_BITS

DECODERS: dict[str, type[CommandDecoder]] = {"DDR3": DDR3Decoder, "DDR4": DDR4Decoder}

COUNTS = [*range(len(Illegal)), UNKNOWN_COUNT, MPR_COUNT]
MODES = ("stale", "gear_down", "cal")  # bits of the register


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
        for name in ("mirror", "mirror_mrs", "burst", "t_rcd", "t_rp", "row_age", "cal"):
            if hasattr(fields, name):
                self.inputs[name] = getattr(fields, name)
        self.inputs["written"] = decoder._protocol.re
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
        modes = decoder._modes.fields
        self.outputs["modes"] = packed = Signal(len(MODES))
        self.comb += packed.eq(Cat(*(getattr(modes, name, 0) for name in MODES)))


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
    for level, bits in fields:
        value |= level << shift
        shift += bits
    return value


@dataclass
class Outcome:
    """What a decoder made of a stream; clocks are those of the commands."""

    accesses: list[Access]
    illegal_clocks: dict[int, set[str]]
    illegal: Counter[str]
    unknown: int
    mpr_reads: int = 0
    modes: set[str] = field(default_factory=set, compare=False)
    """Why accesses are refused, or not checked, at the end."""


class DecoderBench:
    def __init__(self, standard: Standard, phases: int, ranks: int) -> None:
        self.standard, self.phases, self.ranks = standard, phases, ranks
        top = PackedDecoder(DECODERS[standard.name](phases, ranks))
        self.latency = top.decoder.latency
        self.bench = Bench(top, top.inputs, top.outputs, ("snoop", "sys"))

    def run(
        self,
        setup: Setup,
        pins: list[Pins],
        restart: int | None = None,
        row_age: int = 0,
        slowed: float | None = None,
    ) -> Outcome:
        """At clock `restart`, the banks are forgotten and the counters cleared.

        `slowed`: before the first command, after the registers were written, CK has become slower
        by this part of itself.
        """
        assert setup.ranks == self.ranks
        assert len(pins) % self.phases == 0
        self.bench.reset()
        if slowed is not None:
            self._slow_down(slowed)
        words = np.array([packed_pins(self.standard, self.ranks, p) for p in pins], np.uint64)
        idle = packed_pins(
            self.standard,
            self.ranks,
            Pins(2**self.ranks - 1, 2**self.ranks - 1, 1, 1, 1, 1, 0, 0, 0),
        )
        table = words.reshape(-1, self.phases)
        config = {
            "mirror": setup.mirror,
            "mirror_mrs": setup.wired,
            "burst": setup.burst,
            "t_rcd": setup.t_rcd,
            "t_rp": setup.t_rp,
            "row_age": row_age,
        }
        if self.standard is DDR4:
            config["cal"] = CAL_CK.index(setup.cal)
        clocks = len(table)
        # After the stream, each count is selected for as long as its way to `sys` may take.
        reading = 50
        select = np.repeat(COUNTS, reading)
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

    def _slow_down(self, part: float) -> None:
        """Some windows of the RateWatch as it was, then some without a part of the clocks."""
        rows = 4 << WINDOW_BITS
        idle = packed_pins(
            self.standard, self.ranks, Pins(2**self.ranks - 1, 2**self.ranks - 1, *[1] * 4, 0, 0, 0)
        )
        columns = {
            f"pins{phase}": np.full(2 * rows, idle, np.uint64) for phase in range(self.phases)
        }
        columns["written"] = np.arange(2 * rows) == 0
        missing = np.floor(np.arange(2 * rows) * part) != np.floor(
            np.arange(1, 2 * rows + 1) * part
        )
        clocks = np.where(missing & (np.arange(2 * rows) > rows), 0b10, 0b11)
        self.bench.run(clocks.astype(np.uint8), **columns)

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
        assert [count >> 28 for count in counts] == COUNTS
        # From the question on, no count is taken for another's, nor for the one of before.
        assert set((seen["count"][clocks::reading] >> np.uint64(28)).tolist()) == {NO_COUNT}
        values = [count & (1 << 28) - 1 for count in counts]
        illegal = Counter({kind.name: values[kind] for kind in Illegal if values[kind]})
        modes = int(seen["modes"][-1])
        return Outcome(
            accesses,
            illegal_clocks,
            illegal,
            values[len(Illegal)],
            values[-1],
            {name for bit, name in enumerate(MODES) if modes >> bit & 1},
        )


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
    return Outcome(monitor.accesses, clocks, monitor.illegal, monitor.unknown, monitor.mpr_reads)


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
        rank = 1 << access.rank
        assert first.cs_n & rank and not second.cs_n & rank
        assert first[2:] == second[2:]
    assert {access.ck % phases for access in asked} == set(range(phases))


def attached(pins: list[Pins], ranks: int) -> list[Pins]:
    """What a decoder sees that is given the pins in mid-stream: of the first CK, CKE only."""
    return [pins[0]._replace(cs_n=2**ranks - 1), *pins[1:]]


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
        running = attached(pins[start : start + 2_000], ranks)
        got = bench_of(standard.name, phases, ranks).run(setup, running)
        assert not got.illegal
        assert got == expected(setup, running, phases)
        asked = [
            access._replace(ck=access.ck - start)
            for access in controller.accesses
            if start < access.ck < start + 2_000
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
    pause = [controller.deselected()._replace(cke=pins[4_000].cke) for _ in range(20 * phases)]
    before, after = pins[:4_000], pause + attached(pins[4_000:], ranks)
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
        elif standard.command(level) == "MRS":
            # A mode that is not decoded holds for clocks, not CKs: it has a test of its own.
            fixed |= {"a": level.a & ~0b1_1111_1000}
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


# Buses of other controllers ---------------------------------------------------------------------


def bus(ck: int, cke: int, cs_n: int, name: str = "NOP", bank: int = 0, a: int = 0) -> Pins:
    """DDR3 pins with a command; `ck` is for the reader."""
    levels = DDR3.levels(name, random.Random(ck))
    a = a & ~(1 << 10) | levels[4] << 10 if name in {"PREA", "PRE", "RD", "RDA"} else a
    return Pins(cke, cs_n, 1, *levels[1:4], 0, bank, a)


def played(pins: list[Pins], **setup: int) -> Outcome:
    """What the DDR3 decoder of two ranks, 4 phases, makes of them."""
    pins = pins + [bus(0, pins[-1].cke, 0b11)] * (-len(pins) % 4)
    got = bench_of("DDR3", 4, 2).run(Setup(DDR3, 2, **setup), pins)
    assert got == expected(Setup(DDR3, 2, **setup), pins, 4)
    return got


@needs_verilator
def test_a_sleeping_rank_keeps_its_rows_and_hides_no_other() -> None:
    """CKE truth table: in power-down all pins but CKE are X; active power-down keeps rows open."""
    quiet = [bus(0, 0b11, 0b11)] * 20
    asleep = [bus(ck, 0b01, 0b01, "RD", 3, ck) for ck in range(20)]  # rank 1's CS# floats low
    both = [
        bus(ck, 0b01, 0b00, "RD", 0, 8 * ck) if ck % 4 == 0 else asleep[ck % 20] for ck in range(40)
    ]
    opened = [bus(0, 0b11, 0b10, "ACT", 0, 5), *quiet, bus(0, 0b11, 0b01, "ACT", 1, 6), *quiet]
    slept = [bus(0, 0b01, 0b11), *asleep, *both[:40], bus(0, 0b11, 0b11), *quiet]
    after = [bus(0, 0b11, 0b01, "RD", 1, 64), *quiet]
    got = played(opened + slept + after)
    assert not got.illegal and not got.unknown
    assert [(a.rank, a.row) for a in got.accesses] == [(0, 5)] * 10 + [(1, 6)]


POSTED = [
    (DDR3, 4, DDR3_1600K_AL),
    (DDR3, 8, DDR3_1600K_AL),
    (DDR4, 4, DDR4_1600L_AL),
    (DDR4, 8, DDR4_1600L_AL),
]
SLOW = [
    (DDR3, 4, DDR3_DLL_OFF_100),
    (DDR3, 8, DDR3_DLL_OFF_100),
    (DDR3, 4, DDR3_DLL_OFF_67),
    (DDR3, 8, DDR3_DLL_OFF_67),
]


@needs_verilator
@pytest.mark.parametrize(
    ("standard", "phases", "timing"),
    POSTED + SLOW,
    ids=[f"{c[0].name}-{c[1]}-{c[2].al}-{c[2].t_rcd}" for c in POSTED + SLOW],
)
@pytest.mark.parametrize("spoil", [False, True])
def test_commands_closer_than_4_ck(
    standard: Standard, phases: int, timing: Timing, spoil: bool
) -> None:
    """Posted CAS, and clocks so slow that tRCD and tRP are 1 or 2 CK; with accidents, too."""
    ranks = {(p, s.name): r for s, p, r, *_ in CASES for r in [r]}[phases, standard.name]
    t_rcd = max(1, timing.t_rcd - timing.al)
    setup = Setup(standard, ranks, t_rcd=t_rcd + spoil, t_rp=min(4, timing.t_rp))
    rng = random.Random(phases)
    controller = Controller(setup, timing, rng, busy_banks=2)
    pins = stream(controller, CLOCKS_CK)
    if spoil:
        pins = spoilt(standard, ranks, pins, rng)
    got = bench_of(standard.name, phases, ranks).run(setup, pins)
    assert got == expected(setup, pins, phases)
    asked = [access for access in controller.accesses if access.ck < CLOCKS_CK]
    if spoil:
        assert set(Counter(got.illegal)) >= {"OPEN", "CLOSED", "BANK_SPACING", "TRCD"}
    else:
        assert (got.accesses, got.unknown) == (asked, 0)
        # Of an ACT that is closed again within 4 CK comes no access.
        assert set(got.illegal) <= ({"BANK_SPACING"} if timing.t_ras < 4 else set())


@needs_verilator
@pytest.mark.parametrize("standard", [DDR3, DDR4], ids=["DDR3", "DDR4"])
@pytest.mark.parametrize("phases", [4, 8])
def test_noise_closer_than_4_ck(standard: Standard, phases: int) -> None:
    """Dense random commands to two banks, with every value of the two bounds."""
    ranks = {(p, s.name): r for s, p, r, *_ in CASES}[phases, standard.name]
    rng = random.Random(phases)
    everyone = (1 << ranks) - 1
    names = ["ACT", "ACT", "PRE", "PREA", "RD", "RD", "WRA", "REF", "NOP"]
    accesses = 0
    for t_rcd, t_rp in [(0, 0), (1, 1), (2, 2), (3, 3), (5, 4)]:
        setup = Setup(standard, ranks, t_rcd=t_rcd, t_rp=t_rp)
        controller = Controller(setup, DDR3_DLL_OFF_67, rng)
        pins = []
        while len(pins) < 12_000:
            if rng.random() < 0.3:
                chain = [rng.choice(["PRE", "PREA"]), "ACT", "RD", "RD"][rng.randrange(2) :]
            else:
                chain = [rng.choice(names)]
            rank, bank = rng.randrange(ranks), rng.randrange(2)
            for name in chain:
                _, level = controller._issue(0, name, [rank], 0, bank, rng.getrandbits(14))
                pins.append(level)
                pins += [controller.deselected() for _ in range(rng.choice([0, 0, 0, 1, 2, 3, 9]))]
        pins = [p._replace(cs_n=p.cs_n & everyone) for p in pins[:12_000]]
        got = bench_of(standard.name, phases, ranks).run(setup, pins)
        assert got == expected(setup, pins, phases)
        accesses += len(got.accesses)
    assert accesses > 500


@needs_verilator
@pytest.mark.parametrize(
    ("slowed", "stale"), [(0.0, False), (0.03, False), (0.1, True), (0.8, True)]
)
def test_times_are_not_checked_after_ck_has_changed(slowed: float, stale: bool) -> None:
    """They are in CK, of a CK that is no more. Spread spectrum is no change."""
    told = Setup(DDR3, 2, t_rcd=11, t_rp=4)
    controller = Controller(told, DDR3_DLL_OFF_100, random.Random(1), busy_banks=2)
    pins = stream(controller, 8_000)
    got = bench_of("DDR3", 4, 2).run(told, pins, slowed=slowed)
    asked = [access for access in controller.accesses if access.ck < 8_000]
    assert got.modes == ({"stale"} if stale else set())
    if stale:
        assert (got.accesses, got.illegal, got.unknown) == (asked, Counter(), 0)
    else:
        assert got.illegal["TRCD"] and got.illegal["BANK_SPACING"]


@needs_verilator
def test_a_row_is_forgotten_when_no_act_confirms_it() -> None:
    """A missed PRE and ACT leave a stale row: for less than two periods, not for ever."""
    age = 6  # 64 clocks of 4 CK
    reads = [bus(0, 0b11, 0b10, "RD", 2, 0), *[bus(0, 0b11, 0b11)] * 7]
    pins = [bus(0, 0b11, 0b10, "ACT", 2, 9), *[bus(0, 0b11, 0b11)] * 7, *reads * 100]
    setup = Setup(DDR3, 2)
    unbounded = bench_of("DDR3", 4, 2).run(setup, pins)
    assert len(unbounded.accesses) == 100
    got = bench_of("DDR3", 4, 2).run(setup, pins, row_age=age)
    assert len(got.accesses) + got.unknown == 100
    assert 4 << age <= got.accesses[-1].ck <= 8 << age
    # An ACT begins anew, and a row that is opened often enough is never forgotten.
    cycle = [
        *[bus(0, 0b11, 0b10, "ACT", 2, 9), *[bus(0, 0b11, 0b11)] * 7, *reads * 20],
        *[bus(0, 0b11, 0b10, "PRE", 2, 0), *[bus(0, 0b11, 0b11)] * 7],
    ]
    got = bench_of("DDR3", 4, 2).run(setup, cycle * 12, row_age=age)
    assert (len(got.accesses), got.unknown) == (240, 0)


@needs_verilator
@pytest.mark.parametrize("standard", [DDR3, DDR4], ids=["DDR3", "DDR4"])
def test_reads_of_the_multi_purpose_register_are_no_accesses(standard: Standard) -> None:
    """They are told from accesses, counted apart, and spoil nothing that comes after them."""
    ranks = {"DDR3": 2, "DDR4": 4}[standard.name]
    setup = Setup(standard, ranks)
    controller = Controller(setup, DDR3_1600K, random.Random(5))

    def then(name: str, bank: int = 0, a: int = 0) -> list[Pins]:
        return [
            controller._issue(0, name, [1], 0, bank, a)[1],
            *[controller.deselected() for _ in range(15)],
        ]

    on, off = then("MRS", 3, 0b100), then("MRS", 3, 0)
    reads = then("RD") * 5
    open_and_read = [*then("ACT", 0, 7), *then("RD", 0, 8), *then("PREA")]
    pins = then("PREA") + open_and_read + on + reads + off + open_and_read + on + reads + off
    got = bench_of(standard.name, 4, ranks).run(setup, pins)
    assert got == expected(setup, pins, 4)
    assert (len(got.accesses), got.mpr_reads) == (2, 10)
    assert not got.illegal and not got.unknown
    # With a row open it is not allowed; and a row that is opened ends it, if its end was missed.
    pins = then("ACT", 0, 7) + on + then("RD") + then("PREA") + then("ACT", 0, 7) + then("RD")
    got = bench_of(standard.name, 4, ranks).run(setup, pins)
    assert got == expected(setup, pins, 4)
    assert got.illegal == {"REFRESH": 1} and (len(got.accesses), got.mpr_reads) == (1, 1)


@needs_verilator
@pytest.mark.parametrize("wired", [0, 0b1010], ids=["plain", "swapped wires"])
def test_mirroring_follows_the_controller(wired: int) -> None:
    """A controller that swaps the pins of MRS only sends data commands as they are."""
    setup = Setup(DDR4, 4, mirror=0, mirror_mrs=wired, t_rcd=DDR4_1600L.t_rcd)
    controller = Controller(setup, DDR4_1600L, random.Random(8))
    pins = stream(controller, CLOCKS_CK)
    asked = [access for access in controller.accesses if access.ck < CLOCKS_CK]
    got = bench_of("DDR4", 4, 4).run(setup, pins)
    assert got == Outcome(asked, {}, Counter(), 0) and not got.modes
    assert {access.rank for access in asked} == {0, 1, 2, 3}


def with_cal(pins: list[Pins], cal: int, ranks: int) -> list[Pins]:
    """The same commands with CS_n `cal` CK earlier."""
    idle = [pins[0]._replace(cs_n=2**ranks - 1)] * cal
    pins = idle + pins
    early = [level.cs_n for level in pins[cal:]] + [2**ranks - 1] * cal
    return [level._replace(cs_n=cs_n) for level, cs_n in zip(pins, early, strict=True)]


@needs_verilator
@pytest.mark.parametrize("cal", [3, 4, 5, 6, 8])
@pytest.mark.parametrize("phases", [4, 8])
def test_command_address_latency(cal: int, phases: int) -> None:
    """CS_n comes up to 8 CK before the command."""
    ranks = {4: 4, 8: 2}[phases]
    setup = Setup(DDR4, ranks, t_rcd=DDR4_1600L.t_rcd, cal=cal)
    controller = Controller(setup, DDR4_1600L, random.Random(cal))
    pins = [p._replace(cke=2**ranks - 1) for p in stream_awake(controller, 8_000)]
    late = with_cal(pins, cal, ranks)
    late += [late[-1]] * (-len(late) % 8)
    got = bench_of("DDR4", phases, ranks).run(setup, late)
    asked = [a._replace(ck=a.ck + cal) for a in controller.accesses if a.ck < 8_000]
    assert (got.accesses, got.illegal, got.unknown) == (asked, Counter(), 0)


def stream_awake(controller: Controller, clocks: int) -> list[Pins]:
    """A stream in which no rank sleeps."""
    controller._wish_sleep = controller._wish_rest  # type: ignore[method-assign]
    return stream(controller, clocks)


@needs_verilator
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("register", "bits", "name"),
    [(4, 0b010 << 6, "cal"), (3, 1 << 3, "gear_down")],
    ids=["CAL", "gear-down"],
)
def test_modes_that_are_not_decoded_are_refused_by_name(
    register: int, bits: int, name: str, mirrored: bool
) -> None:
    """From the MRS on there is no access, each is counted, and a register names the reason."""
    ranks = 4
    setup = Setup(DDR4, ranks, mirror_mrs=0b1111 * mirrored)
    controller = Controller(setup, DDR4_1600L, random.Random(2))

    def then(command: str, bank: int = 0, a: int = 0) -> list[Pins]:
        return [
            controller._issue(0, command, [1], bank >> 2, bank & 3, a)[1],
            *[controller.deselected() for _ in range(31)],
        ]

    read = [*then("ACT", 0, 7), *then("RD", 0, 8), *then("PREA")]
    on, off = then("MRS", register, bits), then("MRS", register, 0)
    got = bench_of("DDR4", 4, ranks).run(setup, then("PREA") + read + on + read * 3)
    assert (len(got.accesses), got.illegal, got.modes) == (1, Counter(COMMAND=3), {name})
    assert got == expected(setup, then("PREA") + read + on + read * 3, 4)
    got = bench_of("DDR4", 4, ranks).run(setup, then("PREA") + on + read + off + read)
    assert (len(got.accesses), got.illegal, got.modes) == (1, Counter(COMMAND=1), set())
