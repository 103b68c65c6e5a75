# SPDX-License-Identifier: BSD-2-Clause
"""DRAM as JEDEC describes it: what commands mean, and which sequences a controller may issue.

Written from the standards and from docs/gateware.md, not from the gateware, for one command at a
time: `Monitor` says what a passive observer must conclude, `Controller` makes random streams that
respect all timing of a speed bin. JESD79-3F is DDR3, JESD79-4 is DDR4; the parameters are those
of the tables "Timing Parameters by Speed Bin" and "Speed Bins and Operating Conditions".

The CKE truth table (JESD79-3F table 7; JESD79-4, "CKE Truth Table") decides whether a rank takes
part in a clock, from CKE in the clock before and in this one:

======  ====  ==========================================================================
before  this  command
======  ====  ==========================================================================
high    high  any
high    low   NOP or DES (power-down entry), REF (self-refresh entry)
low     low   X: power-down or self refresh goes on; all pins but CKE may float
low     high  NOP or DES (exit)
======  ====  ==========================================================================
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

# Pins -------------------------------------------------------------------------------------------


class Pins(NamedTuple):
    """Levels at a rising edge of CK. `cke` and `cs_n` have a bit a rank.

    On DDR4, ras_n, cas_n and we_n are the pins RAS_n/A16, CAS_n/A15 and WE_n/A14, and `a` ends at
    A13; DDR3 has no act_n and no bg.
    """

    cke: int
    cs_n: int
    act_n: int
    ras_n: int
    cas_n: int
    we_n: int
    bg: int
    ba: int
    a: int


# Command truth tables: JESD79-3F table 6; JESD79-4, section "Command Truth Table".
# Name: ACT_n, RAS_n, CAS_n, WE_n, A10. V is any defined level.
DDR3_TRUTH = {
    "MRS": "VLLLV",
    "REF": "VLLHV",
    "PRE": "VLHLL",
    "PREA": "VLHLH",
    "ACT": "VLHHV",
    "WR": "VHLLL",
    "WRA": "VHLLH",
    "RD": "VHLHL",
    "RDA": "VHLHH",
    "ZQCS": "VHHLL",
    "ZQCL": "VHHLH",
    "NOP": "VHHHV",
}
DDR4_TRUTH = {
    "ACT": "LVVVV",
    "MRS": "HLLLV",
    "REF": "HLLHV",
    "PRE": "HLHLL",
    "PREA": "HLHLH",
    "RFU": "HLHHV",
    "WR": "HHLLL",
    "WRA": "HHLLH",
    "RD": "HHLHL",
    "RDA": "HHLHH",
    "ZQCS": "HHHLL",
    "ZQCL": "HHHLH",
    "NOP": "HHHHV",
}

COLUMN_COMMANDS = {"RD", "RDA", "WR", "WRA"}
PRECHARGES = {"PRE", "PREA"}
CAL_CK = (0, 3, 4, 5, 6, 8)  # JESD79-4, MR4 A8:6


@dataclass(frozen=True)
class Standard:
    """One kind of DRAM."""

    name: str
    truth: dict[str, str]
    group_bits: int
    bank_bits: int
    row_bits: int
    column_pins: tuple[int, ...]
    swaps: tuple[tuple[str, int, int], ...]  # of the pins of a mirrored rank

    @property
    def banks(self) -> int:
        return 1 << (self.group_bits + self.bank_bits)

    def command(self, pins: Pins) -> str:
        """Name of the command that a selected rank takes."""
        levels = (pins.act_n, pins.ras_n, pins.cas_n, pins.we_n, pins.a >> 10 & 1)
        for name, pattern in self.truth.items():
            if all(
                want == "V" or "LH"[got] == want for want, got in zip(pattern, levels, strict=True)
            ):
                return name
        raise AssertionError(f"no row of the truth table: {pins}")

    def levels(self, name: str, rng: random.Random) -> tuple[int, int, int, int, int]:
        """Levels of ACT_n, RAS_n, CAS_n, WE_n and A10 for a command; V at random."""
        pattern = self.truth[name]
        act_n, ras_n, cas_n, we_n, a10 = (
            rng.getrandbits(1) if want == "V" else "LH".index(want) for want in pattern
        )
        return act_n, ras_n, cas_n, we_n, a10

    def mirrored(self, pins: Pins) -> Pins:
        """What a rank with mirrored wiring gets (and what must be sent so that it gets `pins`)."""
        fields = {"a": pins.a, "ba": pins.ba, "bg": pins.bg}
        for bus, one, other in self.swaps:
            value = fields[bus]
            if (value >> one ^ value >> other) & 1:
                fields[bus] = value ^ (1 << one | 1 << other)
        return pins._replace(**fields)


DDR3 = Standard(
    "DDR3",
    DDR3_TRUTH,
    group_bits=0,
    bank_bits=3,
    row_bits=16,
    column_pins=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13),
    # JEDEC standard 21C page 4.20.19: DDR3 UDIMM, "address mirroring"
    swaps=(("a", 3, 4), ("a", 5, 6), ("a", 7, 8), ("ba", 0, 1)),
)
DDR4 = Standard(
    "DDR4",
    DDR4_TRUTH,
    group_bits=2,
    bank_bits=2,
    row_bits=17,
    column_pins=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    # JEDEC standard 21C page 4.20.26: DDR4 UDIMM, "address mirroring"
    swaps=(
        ("a", 3, 4),
        ("a", 5, 6),
        ("a", 7, 8),
        ("a", 11, 13),
        ("ba", 0, 1),
        ("bg", 0, 1),
    ),
)


class Access(NamedTuple):
    """A burst on the data bus; `column` is that of its lowest word."""

    ck: int
    write: int
    rank: int
    bank_group: int
    bank: int
    row: int
    column: int


# Monitor ----------------------------------------------------------------------------------------


@dataclass
class _Open:
    row: int
    since_ck: int


@dataclass
class Setup:
    """What the host programs."""

    standard: Standard
    ranks: int
    mirror: int = 0  # ranks for which the controller swaps the pins of data commands
    burst: int = 0  # MR0 A1:0
    t_rcd: int = 0
    t_rp: int = 4
    cal: int = 0  # CS_n comes this many CK before its command
    mirror_mrs: int | None = None  # ranks with swapped wires; None: those of `mirror`

    @property
    def wired(self) -> int:
        """Ranks whose wires are swapped: of these, each controller swaps the pins of MRS."""
        return self.mirror if self.mirror_mrs is None else self.mirror_mrs


@dataclass
class Monitor:
    """A passive observer of the pins, one CK at a time."""

    setup: Setup
    accesses: list[Access] = field(default_factory=list)
    illegal: Counter[str] = field(default_factory=Counter)
    illegal_at: dict[int, set[str]] = field(default_factory=dict)
    unknown: int = 0
    mpr_reads: int = 0

    def __post_init__(self) -> None:
        standard = self.setup.standard
        self._mpr = [False] * self.setup.ranks
        self._bus_cal: int | None = None  # as MR4 was last written
        self._gear_down = False
        # Per rank and bank: "unknown", "closed" or _Open.
        self._banks: list[list[str | _Open]] = [
            ["unknown"] * standard.banks for _ in range(self.setup.ranks)
        ]
        self._cke_before = (1 << self.setup.ranks) - 1
        self._recent: deque[tuple[int, str, list[int], int | None]] = deque(maxlen=8)

    def _refuse(self, ck: int, kind: str) -> None:
        self.illegal[kind] += 1
        self.illegal_at.setdefault(ck, set()).add(kind)

    def see(self, ck: int, pins: Pins) -> None:
        """Take the levels at clock `ck`; every clock with a rank selected or a change of CKE."""
        standard = self.setup.standard
        cke_before, self._cke_before = self._cke_before, pins.cke
        name = standard.command(pins)
        ranks = []
        nonsense = name == "RFU"
        for rank in range(self.setup.ranks):
            before, now = cke_before >> rank & 1, pins.cke >> rank & 1
            if pins.cs_n >> rank & 1 or not (before or now):
                continue
            ranks.append(rank)
            allowed = {(1, 0): {"NOP", "REF"}, (0, 1): {"NOP"}}.get((before, now))
            nonsense |= allowed is not None and name not in allowed
        if not ranks or name == "NOP":
            return
        if standard is DDR3 and name == "MRS" and pins.ba & 4:
            nonsense = True  # BA2 must be 0: there are four mode registers
        if name == "MRS" and not nonsense:
            wired = any(self.setup.wired >> rank & 1 for rank in ranks)
            name = self._mode(standard.mirrored(pins) if wired else pins)
        if not nonsense and name in {"MRS", "ZQCS", "ZQCL"}:
            return
        self._take(ck, "nonsense" if nonsense else name, ranks, pins)

    def _mode(self, pins: Pins) -> str:
        """Take a mode register's value; "MR3" for the one that must find all banks idle.

        MR3 A2 turns MPR reads on. On DDR4, MR3 A3 is gear-down and MR4 A8:6 is CAL.
        """
        register = pins.bg << 2 | pins.ba
        if self.setup.standard is DDR4:
            if register == 3:
                self._gear_down = bool(pins.a >> 3 & 1)
            if register == 4:
                self._bus_cal = (*CAL_CK, -1, -1)[pins.a >> 6 & 7]
        return "MR3" if register == 3 else "MRS"

    @property
    def mode_refused(self) -> bool:
        """The bus is in a mode that the observer is not set up for."""
        return self._gear_down or self._bus_cal not in (None, self.setup.cal)

    def _take(self, ck: int, name: str, ranks: list[int], pins: Pins) -> None:
        standard = self.setup.standard
        everywhere = name in {"PREA", "REF", "MR3", "nonsense"}
        bank_pins = None if everywhere else pins.bg << standard.bank_bits | pins.ba
        reason = self._against_neighbours(ck, name, ranks, bank_pins)
        self._recent.append((ck, name, ranks, bank_pins))
        if reason:
            self._refuse(ck, reason)
        for rank in ranks:
            wired = standard.mirrored(pins) if self.setup.mirror >> rank & 1 else pins
            bank = wired.bg << standard.bank_bits | wired.ba
            state = self._banks[rank]
            if reason:
                for index in range(standard.banks) if everywhere else [bank]:
                    state[index] = "unknown"
            elif name == "ACT":
                self._activate(ck, state, bank, wired)
            elif name == "PRE":
                state[bank] = "closed"
            elif name == "PREA":
                state[:] = ["closed"] * standard.banks
            elif name in {"REF", "MR3"}:
                if any(isinstance(bank_state, _Open) for bank_state in state):
                    self._refuse(ck, "REFRESH")
                state[:] = ["unknown" if isinstance(s, _Open) else s for s in state]
                if name == "MR3":
                    self._mpr[rank] = bool(pins.a >> 2 & 1)
            else:
                self._column(ck, name, rank, state, bank, wired)

    def _against_neighbours(
        self, ck: int, name: str, ranks: list[int], bank_pins: int | None
    ) -> str | None:
        if name == "nonsense":
            return "COMMAND"
        if len(ranks) > 1 and (name == "ACT" or name in COLUMN_COMMANDS):
            return "RANKS"
        recent = [entry for entry in self._recent if ck - entry[0] < 4]
        if name in COLUMN_COMMANDS and any(entry[1] in COLUMN_COMMANDS for entry in recent):
            return "COLUMN_SPACING"
        activated = False  # since the neighbour that is looked at
        for at, other, other_ranks, other_pins in reversed(recent):
            same_bank = bank_pins is None or other_pins is None or bank_pins == other_pins
            if not set(ranks) & set(other_ranks):
                continue
            if name == other == "ACT":
                return "BANK_SPACING"
            if not same_bank:
                continue
            precharged = other in PRECHARGES
            allowed = (
                (precharged and name in PRECHARGES)
                or (precharged and name in {"ACT", "REF", "MR3"} and ck - at >= self.setup.t_rp)
                or (name in COLUMN_COMMANDS and (other == "ACT" or (precharged and activated)))
            )
            if not allowed:
                return "BANK_SPACING"
            activated |= other == "ACT"
        return None

    def _activate(self, ck: int, state: list[str | _Open], bank: int, pins: Pins) -> None:
        if isinstance(state[bank], _Open):
            self._refuse(ck, "OPEN")
            state[bank] = "unknown"
            return
        row = pins.a
        if self.setup.standard is DDR4:
            row |= pins.we_n << 14 | pins.cas_n << 15 | pins.ras_n << 16
        state[bank] = _Open(row, ck)

    def _column(
        self, ck: int, name: str, rank: int, state: list[str | _Open], bank: int, pins: Pins
    ) -> None:
        is_open = state[bank]
        if not isinstance(is_open, _Open) and self._mpr[rank]:
            self.mpr_reads += 1
        elif is_open == "unknown":
            self.unknown += 1
        elif not isinstance(is_open, _Open):
            self._refuse(ck, "CLOSED")
            state[bank] = "unknown"
        elif ck - is_open.since_ck < self.setup.t_rcd:
            self._refuse(ck, "TRCD")
            state[bank] = "unknown"
        else:
            if name.endswith("A"):
                state[bank] = "closed"
            if self.mode_refused:
                self._refuse(ck, "COMMAND")
                return
            standard = self.setup.standard
            column = sum((pins.a >> pin & 1) << i for i, pin in enumerate(standard.column_pins))
            on_the_fly_4 = self.setup.burst == 1 and not pins.a >> 12 & 1
            words = 4 if on_the_fly_4 or self.setup.burst == 2 else 8
            self.accesses.append(
                Access(
                    ck,
                    int(name.startswith("WR")),
                    rank,
                    bank >> standard.bank_bits,
                    bank & (1 << standard.bank_bits) - 1,
                    is_open.row,
                    column // words * words,
                )
            )


# Controller -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """A speed bin, in CK. On DDR3 both values of a pair (same, different bank group) are equal."""

    t_rcd: int
    t_rp: int
    t_ras: int
    t_rrd_l: int
    t_rrd_s: int
    t_faw: int
    t_ccd_l: int
    t_ccd_s: int
    t_wtr_l: int
    t_wtr_s: int
    t_rtp: int
    t_wr: int
    t_rfc: int
    t_xp: int
    cl: int
    cwl: int
    t_mod: int = 12
    t_zqcs: int = 64
    al: int = 0  # additive latency: a posted RD or WR may come sooner after ACT by this

    @property
    def t_rc(self) -> int:
        return self.t_ras + self.t_rp


# Devices of x16 (DDR3) and x8 (DDR4); the same figures as in Ramulator 2's tables
# (github.com/CMU-SAFARI/ramulator2). tRFC is shortened (a device of 1 Gb, at most), and like tMOD,
# tZQCS and tXP only adds silence.
DDR3_800E = Timing(6, 6, 15, 4, 4, 20, 4, 4, 4, 4, 4, 6, 44, 3, 6, 5)
DDR3_1600K = Timing(11, 11, 28, 6, 6, 32, 4, 4, 6, 6, 6, 12, 88, 5, 11, 8)
DDR4_1600L = Timing(12, 12, 28, 5, 4, 20, 5, 4, 6, 2, 6, 12, 128, 5, 12, 9, t_mod=24)
DDR4_3200AA = Timing(22, 22, 52, 8, 4, 34, 8, 4, 12, 4, 12, 24, 256, 10, 22, 16, t_mod=24)

# With posted CAS: AL is CL - 1 (MR1 A4:3), so that RD may follow ACT in the next CK.
DDR3_1600K_AL = replace(DDR3_1600K, al=10)
DDR4_1600L_AL = replace(DDR4_1600L, al=11)

# DLL off: tRCD and tRP of 13.75 ns and tRAS of 35 ns at 100 and 67 MHz; CL and CWL are 6.
DDR3_DLL_OFF_100 = Timing(2, 2, 4, 4, 4, 16, 4, 4, 4, 4, 4, 2, 12, 3, 6, 6)
DDR3_DLL_OFF_67 = Timing(1, 1, 3, 4, 4, 16, 4, 4, 4, 4, 4, 1, 8, 3, 6, 6)

BURST_CK = 4  # a burst of 8; one chopped on the fly blocks the bus as long
TURN_CK = 2  # between bursts of different ranks or directions


@dataclass
class _BankTimes:
    act: int = 0  # earliest time of the next command of a kind
    column: int = 0
    precharge: int = 0
    row: int | None = None


@dataclass
class _RankTimes:
    banks: list[_BankTimes]
    act: list[int]  # by bank group: tRRD
    four_acts: deque[int]
    any_command: int = 0  # tRFC, tMOD, tXP
    all_closed: int = 0  # when the last precharge of a bank ends
    auto_precharge: int = 0  # when the last one starts
    last_command: int = 0


class Controller:
    """A memory controller that wants random things, and issues them when JEDEC allows.

    Iterating gives ``(ck, pins)`` with a command or a change of CKE; at all other clocks ranks are
    deselected. ``accesses`` are the bursts it has asked for, in its own terms: what any right
    observer must report. ``issued`` counts what was done, to show that nothing was left out.

    ``two_t``: address and command pins are driven for two clocks, and CS_n selects in the second.
    So no command may follow another in the next clock.

    ``busy_banks``: how many banks of a rank are used; few make close sequences to a bank common.
    """

    def __init__(
        self,
        setup: Setup,
        timing: Timing,
        rng: random.Random,
        two_t: bool = False,
        busy_banks: int | None = None,
    ) -> None:
        self.two_t = two_t
        self.busy_banks = busy_banks or setup.standard.banks
        self.setup = setup
        self.timing = timing
        self.rng = rng
        self.accesses: list[Access] = []
        self.issued: Counter[tuple[str, int]] = Counter()
        groups = 1 << setup.standard.group_bits
        self._ranks = [
            _RankTimes(
                [_BankTimes() for _ in range(setup.standard.banks)],
                [0] * groups,
                deque([-1000] * 4, maxlen=4),
            )
            for _ in range(setup.ranks)
        ]
        self._writing = False
        self._column: list[tuple[int, str, int, int]] = []  # latest column commands
        self._cke = (1 << setup.ranks) - 1
        self._now = 0

    # Pins

    def _pins(self, name: str, ranks: Iterable[int], group: int, bank: int, a: int) -> Pins:
        act_n, ras_n, cas_n, we_n, a10 = self.setup.standard.levels(name, self.rng)
        ddr4_act = self.setup.standard is DDR4 and name == "ACT"
        if ddr4_act:
            we_n, cas_n, ras_n = a >> 14 & 1, a >> 15 & 1, a >> 16 & 1
            a &= (1 << 14) - 1
        elif name != "ACT":
            a = a & ~(1 << 10) | a10 << 10
        if self.setup.standard is DDR3:
            act_n, group = 1, 0
        ranks = list(ranks)
        cs_n = (1 << self.setup.ranks) - 1
        for rank in ranks:
            cs_n &= ~(1 << rank)
        pins = Pins(self._cke, cs_n, act_n, ras_n, cas_n, we_n, group, bank, a)
        swapped = self.setup.wired if name == "MRS" else self.setup.mirror
        return self.setup.standard.mirrored(pins) if swapped >> ranks[0] & 1 else pins

    def _a(self) -> int:
        return self.rng.getrandbits(16 if self.setup.standard is DDR3 else 14)

    def deselected(self) -> Pins:
        """Any levels, as pins have while no rank is selected."""
        rng, standard = self.rng, self.setup.standard
        return Pins(
            self._cke,
            (1 << self.setup.ranks) - 1,
            rng.getrandbits(1) if standard is DDR4 else 1,
            rng.getrandbits(1),
            rng.getrandbits(1),
            rng.getrandbits(1),
            rng.getrandbits(2) if standard is DDR4 else 0,
            rng.getrandbits(standard.bank_bits),
            self._a(),
        )

    # Time

    def _take(self, earliest: int, patience: int) -> int | None:
        """A free clock at or after `earliest`, or None if that is too far off."""
        ck = max(earliest, self._now)
        if ck - self._now > patience:
            return None
        if self.rng.random() < 0.3:
            ck += self.rng.randrange(8)
        self._now = ck + 1 + self.two_t
        return ck

    def __iter__(self) -> Iterator[tuple[int, Pins]]:
        rng = self.rng
        wishes = [self._wish_bank] * 500 + [self._wish_precharge_all] * 3
        wishes += [self._wish_rest] * 4 + [self._wish_sleep] * 2
        while True:
            yield from rng.choice(wishes)()

    # Wishes

    def _wish_bank(self) -> Iterator[tuple[int, Pins]]:
        rng, timing, standard = self.rng, self.timing, self.setup.standard
        rank = rng.randrange(self.setup.ranks)
        bank = rng.randrange(self.busy_banks)
        times = self._ranks[rank]
        own = times.banks[bank]
        group, address = bank >> standard.bank_bits, bank & (1 << standard.bank_bits) - 1
        if own.row is None:
            earliest = max(own.act, times.act[group], times.four_acts[0] + timing.t_faw)
            ck = self._take(max(earliest, times.any_command), patience=6)
            if ck is None:
                return
            own.row = rng.getrandbits(standard.row_bits)
            own.column = ck + max(1, timing.t_rcd - timing.al)
            own.precharge = ck + timing.t_ras
            own.act = ck + timing.t_rc
            times.four_acts.append(ck)
            for other in range(len(times.act)):
                gap = timing.t_rrd_l if other == group else timing.t_rrd_s
                times.act[other] = max(times.act[other], ck + gap)
            yield self._issue(ck, "ACT", [rank], group, address, own.row)
        elif rng.random() < 0.15:
            ck = self._take(max(own.precharge, times.any_command), patience=6)
            if ck is None:
                return
            self._close(rank, own, ck)
            yield self._issue(ck, "PRE", [rank], group, address, self._a())
        else:
            if rng.random() < 0.05:
                self._writing = not self._writing
            write = self._writing
            earliest = max(own.column, self._bus_free(rank, group, write), times.any_command)
            ck = self._take(earliest, patience=6)
            if ck is None:
                return
            name = ("WR" if write else "RD") + ("A" if rng.random() < 0.2 else "")
            self._column.append((ck, "WR" if write else "RD", rank, group))
            del self._column[:-8]
            a = self._a()
            row = own.row
            end = ck + timing.cwl + BURST_CK + timing.t_wr if write else ck + timing.t_rtp
            own.precharge = max(own.precharge, end + timing.al)
            if name.endswith("A"):
                self._close(rank, own, own.precharge)
                times.auto_precharge = max(times.auto_precharge, own.precharge)
            pins = self._issue(ck, name, [rank], group, address, a)
            self._record(ck, write, rank, group, address, row, a)
            yield pins

    def _wish_precharge_all(self, chosen: list[int] | None = None) -> Iterator[tuple[int, Pins]]:
        chosen = chosen or self._some_ranks()
        opened = [own for rank in chosen for own in self._ranks[rank].banks if own.row is not None]
        earliest = max((own.precharge for own in opened), default=0)
        # Auto-precharges that are under way must have started (tRTP, tWR).
        earliest = max(earliest, *(self._ranks[rank].auto_precharge for rank in chosen))
        ck = self._take(max(earliest, *(self._ranks[r].any_command for r in chosen)), patience=200)
        if ck is None:
            return
        for rank in chosen:
            for own in self._ranks[rank].banks:
                self._close(rank, own, ck)
        yield self._issue(ck, "PREA", chosen, self.rng.getrandbits(2), 0, self._a())
        # A PRE of a closed bank is allowed, and restarts its tRP.
        ck = self._take(0, patience=0)
        assert ck is not None
        bank = self.rng.randrange(self.setup.standard.banks)
        self._close(chosen[0], self._ranks[chosen[0]].banks[bank], ck)
        group = bank >> self.setup.standard.bank_bits
        address = bank & (1 << self.setup.standard.bank_bits) - 1
        yield self._issue(ck, "PRE", chosen[:1], group, address, self._a())

    def _wish_rest(self) -> Iterator[tuple[int, Pins]]:
        """REF, MRS or ZQCS of idle ranks."""
        chosen = self._some_ranks()
        if not all(self._idle(rank) for rank in chosen):
            yield from self._wish_precharge_all(chosen)
        if not all(self._idle(rank) for rank in chosen):
            return
        name, busy = self.rng.choice(
            [("REF", self.timing.t_rfc), ("MRS", self.timing.t_mod), ("ZQCS", self.timing.t_zqcs)]
        )
        earliest = max(
            max(self._ranks[rank].all_closed, self._ranks[rank].any_command) for rank in chosen
        )
        ck = self._take(earliest, patience=300)
        if ck is None:
            return
        group, bank, a = self.rng.getrandbits(2), self.rng.randrange(4), self._a()
        if name == "MRS":  # BA2 must be 0; MPR and gear-down stay off, CAL as it is
            group &= 1
            a &= ~{3: 0b1100, 4: 0b1_1100_0000}.get(group << 2 | bank, 0)
            a |= CAL_CK.index(self.setup.cal) << 6 if group << 2 | bank == 4 else 0
        yield self._issue(ck, name, chosen, group, bank, a)
        for rank in chosen:
            self._ranks[rank].any_command = ck + busy

    def _wish_sleep(self) -> Iterator[tuple[int, Pins]]:
        """Power-down with whatever is open, or self refresh of an idle rank."""
        rank = self.rng.randrange(self.setup.ranks)
        times = self._ranks[rank]
        if self.rng.random() < 0.3:
            yield from self._wish_precharge_all([rank])
        self_refresh = self._idle(rank) and self.rng.random() < 0.7
        earliest = times.all_closed if self_refresh else 0
        # Not while a burst or an auto-precharge of the rank is under way.
        earliest = max(
            earliest, times.auto_precharge, times.last_command + self.timing.al + self.timing.cl + 8
        )
        ck = self._take(max(earliest, times.any_command), patience=300)
        if ck is None:
            return
        bit = 1 << rank
        self._cke &= ~bit
        if self_refresh:
            yield self._issue(ck, "REF", [rank], 0, 0, self._a(), key="SRE")
        else:
            yield ck, self.deselected()
            self.issued["PDE", ck % 8] += 1
        wake = ck + 8 + self.rng.randrange(60)
        times.any_command = wake + 1000  # until it wakes
        others = [r for r in range(self.setup.ranks) if r != rank]
        while others and self._now < wake:
            for ck, pins in self._wish_bank():
                if ck >= wake:
                    wake = ck + 1
                yield ck, pins
            self._now += 1
        self._now = max(self._now, wake)
        self._cke |= bit
        ck = self._now
        self._now += 1
        times.any_command = ck + (self.timing.t_rfc if self_refresh else self.timing.t_xp)
        yield ck, self.deselected()

    # Bookkeeping

    def _some_ranks(self) -> list[int]:
        """One rank, or sometimes several whose pins are wired alike."""
        ranks = range(self.setup.ranks)
        first = self.rng.choice(ranks)
        if self.rng.random() < 0.7:
            return [first]
        mirrored = self.setup.mirror >> first & 1
        return [r for r in ranks if self.setup.mirror >> r & 1 == mirrored and self._awake(r)] or [
            first
        ]

    def _awake(self, rank: int) -> bool:
        return bool(self._cke >> rank & 1)

    def _idle(self, rank: int) -> bool:
        return all(own.row is None for own in self._ranks[rank].banks)

    def _close(self, rank: int, own: _BankTimes, start: int) -> None:
        own.row = None
        own.act = max(own.act, start + self.timing.t_rp)
        times = self._ranks[rank]
        times.all_closed = max(times.all_closed, start + self.timing.t_rp)

    def _bus_free(self, rank: int, group: int, write: bool) -> int:
        timing = self.timing
        earliest = 0
        for ck, kind, other_rank, other_group in self._column:
            same = other_rank == rank and other_group == group
            gap = timing.t_ccd_l if same else timing.t_ccd_s
            if other_rank != rank:
                gap = BURST_CK + TURN_CK
            if kind == "WR" and not write:
                wtr = timing.t_wtr_l if same else timing.t_wtr_s
                gap = timing.cwl + BURST_CK + wtr if other_rank == rank else gap + timing.cwl
            if kind == "RD" and write:
                gap = timing.cl + BURST_CK + TURN_CK - timing.cwl
            earliest = max(earliest, ck + gap)
        return earliest

    def _issue(
        self,
        ck: int,
        name: str,
        ranks: list[int],
        group: int,
        bank: int,
        a: int,
        key: str | None = None,
    ) -> tuple[int, Pins]:
        for rank in ranks:
            self._ranks[rank].last_command = ck
        self.issued[key or name, ck % 8] += 1
        return ck, self._pins(name, ranks, group, bank, a)

    def _record(
        self, ck: int, write: bool, rank: int, group: int, bank: int, row: int, a: int
    ) -> None:
        pins = self.setup.standard.column_pins
        column = 0
        for place, pin in enumerate(pins):
            column |= (a >> pin & 1) << place
        chopped = self.setup.burst == 2 or (self.setup.burst == 1 and not a >> 12 & 1)
        column &= ~3 if chopped else ~7
        self.accesses.append(Access(ck, int(write), rank, group, bank, row, column))


def stream(controller: Controller, clocks: int) -> list[Pins]:
    """The pins at each of `clocks` clocks; levels are random while nothing is selected.

    Of a rank that is asleep CS_n is random, too: it may float.
    """
    result: list[Pins] = []
    everyone = (1 << controller.setup.ranks) - 1
    for ck, pins in controller:
        before = result[-1].cke if result else everyone
        while len(result) < min(ck, clocks):
            result.append(controller.deselected()._replace(cke=before))
        if len(result) >= clocks:
            break
        if controller.two_t and result and pins.cs_n != everyone:
            first = result[-1]
            assert first.cs_n == everyone
            result[-1] = pins._replace(cs_n=first.cs_n, cke=first.cke)
        result.append(pins)
    cke_before = everyone
    for at, pins in enumerate(result):
        asleep = everyone & ~(cke_before | pins.cke)
        floating = controller.rng.getrandbits(controller.setup.ranks) & asleep
        result[at] = pins._replace(cs_n=pins.cs_n & ~floating)
        cke_before = pins.cke
    return result
