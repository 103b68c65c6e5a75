# SPDX-License-Identifier: BSD-2-Clause
"""Passive decoder of DRAM commands: what DDR3 and DDR4 have in common.

The decoder keeps what a rank must know, the open row of each bank, and turns each legal column
command into an access. A bank is *unknown* when nothing was seen of it yet or when an illegal
command left it uncertain; an ACT or PRE makes it known again. So the decoder may be attached to
a running bus.

==================  ==========================================================  ==================
command             state of its bank                                           result
==================  ==========================================================  ==================
ACT                 closed or unknown: open                                     —
ACT                 open: unknown                                               ``OPEN``
PRE, PREA           closed                                                      —
RD, WR              open, at least tRCD ago: open, or closed by auto-precharge  access
RD, WR              open, sooner: unknown                                       ``TRCD``
RD, WR              not open, MPR on: as before                                 counted as MPR
RD, WR              closed: unknown                                             ``CLOSED``
RD, WR              unknown                                                     counted, no access
REF, MRS of MR3     open banks of the rank: unknown                             ``REFRESH``
MRS, ZQ, NOP, DES   as before                                                   —
==================  ==========================================================  ==================

What is emitted rests on one assumption: no command was missed. A missed PRE, ACT, PREA or REF
shows at the next command that contradicts it. A PRE and the ACT after it, if both are missed, show
nowhere: until the bank's next ACT, its accesses are reported with the row of before. The register
``row_age`` bounds this. No controller may keep a row open for longer than 9 tREFI (tRAS max), so a
row that was not opened anew within one to two periods of ``row_age`` is forgotten.

A rank takes part in a command if its CS# is low and its CKE is high now or was in the CK before
("CKE Truth Table" of both standards): while CKE stays low its pins may float. At the edges of CKE a
rank may see NOP, DES and, as CKE falls, REF; anything else is ``COMMAND``.

Some commands are refused whatever the state, for the first reason of ``COMMAND``, ``RANKS``,
``COLUMN_SPACING`` and ``BANK_SPACING`` that applies, and leave the banks they name unknown.
Column commands are at least 4 CK apart, ACTs to a rank too. Of two commands to a bank that are
less than 4 CK apart, only these orders are legal:

* PRE, PRE: a bank may be precharged twice.
* PRE, then ACT, REF or MR3, at least ``t_rp`` CK later: 4 by default, less with a slow clock.
* ACT, then RD or WR: posted (additive latency), or with a slow clock. ``t_rcd`` bounds it.
* PRE, ACT, then RD or WR.

(tRAS, tRTP, tCCD, tRRD and tRFC are 4 CK or more in "Timing Parameters by Speed Bin" of JESD79-3F
and JESD79-4, but for tRAS below 110 MHz: no access comes of such an ACT.) So the legal commands to
a bank within four phases are PREs, at most one ACT after them, and at most one column command or
REF after these, and four phases are taken in one step::

    pins ─► A classes ─► B window of 4 CK, ─► C tRCD, bank ─► D operation ─► E state ─► F access
            per phase      first column,        masks, row      per bank       of bank    or error
                           first ACT            tables

With 8 phases there are two such lanes, and E applies the first lane's operations before the
second looks its bank up: a column command sees an ACT that came earlier in the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import Array, C, Cat, If, Memory, Mux, Record, Signal
from migen.genlib.cdc import MultiReg

from ptat_gateware.counters import Count, CounterBank
from ptat_gateware.layouts import (
    PHASES_PER_LANE,
    Illegal,
    Layout,
    coordinate_layout,
    illegal_layout,
    lanes,
)
from ptat_gateware.snoop.rate import RateWatch

# "Command Truth Table" of JESD79-3F and JESD79-4: RAS_n, CAS_n, WE_n.
MRS, REF, PRE, ACT, WR, RD, ZQ, NOP = range(8)

# State of a bank. With two lanes, bit 0 of an open bank says whose row table has its row.
UNKNOWN, CLOSED, OPENED = 0b00, 0b01, 0b10

REFUSED_BY_WINDOW = (
    Illegal.COMMAND,
    Illegal.RANKS,
    Illegal.COLUMN_SPACING,
    Illegal.BANK_SPACING,
)

MPR_REGISTER = 3  # of the mode registers, and its bit that has reads answered by the MPR
MPR_BIT = 2

WINDOW_CK = 4
T_RP_BITS = 3
T_RCD_BITS = 5
# ACTs are remembered for as many steps of 4 CK as the longest tRCD may reach back.
HISTORY_STEPS = 2**T_RCD_BITS // PHASES_PER_LANE

ROW_AGE_BITS = 4
ROW_AGE_RESET = 14  # 2^14 clocks are more than 9 tREFI (70.2 us) up to 233 MHz

# Counts, by number: those of illegal commands by kind, then these.
UNKNOWN_COUNT = len(Illegal)  # column commands to banks of unknown state
MATCHED_COUNT = UNKNOWN_COUNT + 1
ACCESS_COUNT = MATCHED_COUNT + 1
MPR_COUNT = ACCESS_COUNT + 1  # column commands that the MPR answers
COUNTER_BITS = 40
COUNT_BITS = 28  # of illegal commands, of UNKNOWN_COUNT and of MPR_COUNT
NO_COUNT = 15


def _any(signals: Iterable[Any]) -> Any:
    return reduce(or_, signals, C(0))


def _chosen(one_hot: Any, values: Iterable[Any]) -> Any:
    return _any(Mux(hit, value, 0) for hit, value in zip(one_hot, values, strict=True))


@dataclass
class _Ops:
    """What the PREs and the refused commands of four phases do, a bit for each bank of a rank."""

    precharged: Any  # by a legal PRE that no refused PREA follows
    doubtful: Any  # by a refused PRE
    spoilt: Any  # by another refused command: unknown, whatever else there is
    activated: Any
    column: Any


@dataclass
class _Lane:
    """Four phases at stage D; lists are by rank."""

    legal: Any  # `_legal_layout`
    column: Any  # the column command, if legal the only one
    acts: list[Any]  # the ACT, if legal the only one
    posted: list[Any]  # the column command follows the legal ACT to its bank
    early: Any  # the column command comes sooner than tRCD after its bank's ACT
    rows: list[Any]  # at the column command's bank, by table
    ops: list[_Ops]


def _legal_layout(ranks: int) -> Layout:
    """What of four phases is legal, a bit for each rank."""
    return [
        ("column", 1),
        ("acts", ranks),
        ("refs", ranks),
        ("mpr_on", ranks),
        ("mpr_off", ranks),
        ("reclosed", ranks),  # a PRE comes before the legal ACT to its bank
        ("undone", ranks),  # a refused PRE comes after the legal ACT to its bank
        ("orphan", 1),  # the legal column command follows a refused ACT to its bank
    ]


def _protocol_fields(ranks: int) -> list[Any]:
    return [
        CSRField(
            "mirror",
            size=ranks,
            description="Ranks (a bit each) for which the memory controller swaps the address pins"
            " of data commands. Not the wiring of the DIMM (SPD): most controllers swap those of"
            " MRS only.",
        ),
        CSRField(
            "mirror_mrs",
            size=ranks,
            offset=4,
            description="Ranks whose wires are swapped on the DIMM (SPD), and so the pins of MRS.",
        ),
        CSRField(
            "burst",
            size=2,
            offset=8,
            description="Burst length, as in MR0 A1:0.",
            values=[
                ("``0b00``", "bursts of 8"),
                ("``0b01``", "on the fly: A12 low with the command chops to 4"),
                ("``0b10``", "bursts chopped to 4"),
            ],
        ),
        CSRField(
            "t_rcd",
            size=T_RCD_BITS,
            offset=16,
            description="Shortest time from ACT to RD or WR, in CK (tRCD less the additive"
            " latency); an earlier one is illegal. 0: not checked.",
        ),
        CSRField(
            "t_rp",
            size=T_RP_BITS,
            offset=24,
            reset=WINDOW_CK,
            description="Shortest time from PRE to ACT or REF, in CK, up to 4; an earlier one is"
            " illegal. 0: not checked.",
        ),
        CSRField(
            "row_age",
            size=ROW_AGE_BITS,
            offset=28,
            reset=ROW_AGE_RESET,
            description="An open row is forgotten after 2^N to 2^(N+1) clocks of domain snoop"
            " without an ACT to its bank. 0: never.",
        ),
    ]


class CommandDecoder(LiteXModule):
    """Decodes ``phases`` commands a clock for ``ranks`` ranks; subclasses know the pins.

    ``commands[phase]`` are the levels of the pins at that phase's rising CK. ``sources[lane]``
    are the accesses (``coordinate_layout``, ``ready`` is ignored), ``latency`` clocks later;
    ``illegal`` says at the same time which kinds of illegal commands there were. All of it is in
    domain ``snoop``.
    """

    command_layout: ClassVar[staticmethod[[int], Layout]]
    # Of the pins of one phase: RAS_n, CAS_n and WE_n as a number of the truth table, whether
    # the command is reserved, and the bank (below its group).
    encoding: ClassVar[staticmethod[[Any], tuple[Any, Any, Any]]]
    bank_bits: ClassVar[int]  # with the bank group
    bank_address_bits: ClassVar[int]
    row_bits: ClassVar[int]
    column_pins: ClassVar[tuple[int, ...]]
    mirrored_address_pins: ClassVar[tuple[tuple[int, int], ...]]
    mirrored_bank_pins: ClassVar[tuple[tuple[int, int], ...]]

    latency: ClassVar[int] = 6  # clocks from commands to sources
    gives_addresses: ClassVar[bool] = False  # but coordinates

    def __init__(self, phases: int = 4, ranks: int = 2) -> None:
        if not 1 <= ranks <= 4:
            raise ValueError(f"{ranks} ranks: must be 1 to 4")
        self.phases = phases
        self.ranks = ranks
        self.commands = [
            Record(self.command_layout(ranks), name=f"p{phase}") for phase in range(phases)
        ]
        self.sources = [stream.Endpoint(coordinate_layout) for _ in range(lanes(phases))]
        self.illegal = stream.Endpoint(illegal_layout)

        self.forget = Signal()  # every bank becomes unknown: what comes is not a continuation
        self.clear = Signal()  # the counters
        self.matched = [Signal() for _ in self.sources]  # accesses of which to count, too

        for pins in self.commands:
            pins.cke.reset = C(2**ranks - 1)
            pins.cs_n.reset = C(2**ranks - 1)

        # # #

        self._add_registers()
        stage_a = self._classified(self._taken())
        # The last commands in B are those before the first in A.
        stage_b = [Record(command.layout) for command in stage_a]
        self.sync.snoop += [
            after.eq(before) for after, before in zip(stage_b, stage_a, strict=True)
        ]
        refused = [Signal(len(REFUSED_BY_WINDOW)) for _ in stage_a]
        window = stage_b[1 - WINDOW_CK :] + stage_a
        for phase, command in enumerate(stage_a):
            earlier = window[phase : phase + WINDOW_CK - 1]
            self._check_window(command, earlier, refused[phase])

        columns, found = self._looked_up(self._lanes(stage_a, stage_b, refused))
        events = self._accesses(columns, found, self._mode_refused(stage_a))
        self._report(refused, events)
        self._add_counts(refused, events)

    # Registers --------------------------------------------------------------------------------

    def _further_fields(self) -> list[Any]:
        """Fields of the register ``protocol`` that only one kind of DRAM has."""
        return []

    def _mode_fields(self) -> list[Any]:
        """Fields of the register ``modes`` that only one kind of DRAM has."""
        return []

    def _add_registers(self) -> None:
        self._protocol = CSRStorage(
            description="What the memory controller was set up to. Change it only while nothing is"
            " recorded.",
            fields=sorted(
                [*_protocol_fields(self.ranks), *self._further_fields()],
                key=lambda field: field.offset or 0,
            ),
        )
        self._modes = CSRStatus(
            description="What the bus does that this decoder is not set up for.",
            fields=[
                CSRField(
                    "stale",
                    size=1,
                    description="CK has changed by more than 1/16 since protocol was written: its"
                    " times are not checked until it is written again.",
                ),
                *self._mode_fields(),
            ],
        )
        self._add_count_registers()
        self._add_times()
        self._add_row_age()

    def _add_count_registers(self) -> None:
        self._count_select = CSRStorage(
            4,
            description="Which count the next register shows: "
            + ", ".join(f"{kind.value} {kind.name}" for kind in Illegal)
            + f" (illegal commands by kind), {UNKNOWN_COUNT} (RD and WR to banks whose state is"
            f" unknown, which are no accesses), {MPR_COUNT} (RD and WR that the multi-purpose"
            " register answers, which are none either). Each write has the count read again.",
        )
        self._count = CSRStatus(
            description="The selected count since recording started, as it was soon after it was"
            " selected.",
            fields=[
                CSRField(
                    "count",
                    size=COUNT_BITS,
                    description="How many. Stays where it is from half of its range on.",
                ),
                CSRField(
                    "kind",
                    size=4,
                    description=f"Whose count it is; {NO_COUNT}: of none, it is still on its way.",
                ),
            ],
        )

    def _add_times(self) -> None:
        """Times in CK; once CK has changed they are not checked."""
        fields = self._protocol.fields
        self.mirror, self.burst = fields.mirror, fields.burst
        self.rate = rate = RateWatch()
        self.t_rcd = Signal(T_RCD_BITS)
        self.gap_ok = Signal(WINDOW_CK)  # by distance: ACT or REF may come so soon after PRE
        self.comb += [
            rate.arm.eq(self._protocol.re),
            self._modes.fields.stale.eq(rate.changed),
        ]
        self.specials += MultiReg(rate.changed, stale := Signal(), "snoop")
        self.sync.snoop += [
            self.t_rcd.eq(Mux(stale, 0, fields.t_rcd)),
            *(ok.eq(stale | (fields.t_rp <= distance)) for distance, ok in enumerate(self.gap_ok)),
        ]

    def _add_row_age(self) -> None:
        """Every 2^N clocks, rows that were open at the last such time are forgotten."""
        self.old_rows_expire = Signal()
        clocks = Signal(2**ROW_AGE_BITS)
        phase, before = Signal(), Signal()
        self.sync.snoop += [
            clocks.eq(clocks + 1),
            # Bit N - 1 falls every 2^N clocks.
            phase.eq(Array([C(0, 1), *clocks[:-1]])[self._protocol.fields.row_age]),
            before.eq(phase),
            self.old_rows_expire.eq(before & ~phase),
        ]

    # Stage A: what each command is, on its own --------------------------------------------------

    def _taken(self) -> list[Any]:
        """The commands with the ranks that they select."""
        return self.commands

    def _classified(self, taken: list[Any]) -> list[Any]:
        flags = ("act", "pre", "ref", "column", "write", "reserved", "mrs", "mr3")
        result = [
            Record(
                [
                    ("ranks", self.ranks),
                    *((name, 1) for name in flags),
                    ("touched", self.ranks),  # those whose banks it touches
                    ("several", 1),  # ACT or column command to several ranks
                    ("every_bank", 1),
                    ("bank", self.bank_bits),
                    ("a", self.row_bits),
                    # By distance from 1 CK: it and an earlier command touch banks of one rank,
                    # and have the same bank
                    ("same_rank", WINDOW_CK - 1),
                    ("same_bank", WINDOW_CK - 1),
                ]
            )
            for _ in taken
        ]
        cke_before = Signal(self.ranks, reset=2**self.ranks - 1)
        self.sync.snoop += cke_before.eq(taken[-1].cke)
        # Of each command before: ranks that it touches, and its bank.
        named = [(command.touched, command.bank) for command in result]
        for pins, command in zip(taken, result, strict=True):
            named.append(self._classify(pins, cke_before, named[::-1], command))
            cke_before = pins.cke
        return result

    def _classify(
        self, pins: Any, cke_before: Any, earlier: list[tuple[Any, Any]], command: Any
    ) -> tuple[Any, Any]:
        """Fill a command in; the ranks whose banks it touches, and its bank."""
        code, reserved, bank = self.encoding(pins)
        ranks, is_column, mr3, pre = Signal(self.ranks), Signal(), Signal(), Signal()
        # In the clock in which CKE falls a rank may see NOP and REF (it enters self refresh), in
        # that in which it rises NOP.
        was_asleep, at_edge, wrong_at_edge = Signal(), Signal(), Signal()
        selected, present, awake = Signal(), Signal(), Signal()
        self.comb += [
            ranks.eq(~pins.cs_n & (cke_before | pins.cke)),
            was_asleep.eq((ranks & ~cke_before) != 0),
            at_edge.eq((ranks & ~(cke_before & pins.cke)) != 0),
            wrong_at_edge.eq(Mux(code == REF, was_asleep, at_edge)),
            selected.eq(ranks != 0),
            present.eq(selected & (code != NOP)),
            awake.eq(selected & ~at_edge),
            is_column.eq((code == RD) | (code == WR)),
            mr3.eq((code == MRS) & (bank == MPR_REGISTER)),
            pre.eq(code == PRE),
        ]
        # For timing, no term here waits for more than it must: of those reserved are only codes
        # of MRS and ACT, `reserved` prevails over `several`, and `every_bank` counts only for
        # commands.
        kinds = {
            "act": awake & (code == ACT) & ~reserved,
            "pre": awake & pre,
            "ref": (selected & ~was_asleep & (code == REF)) | (awake & mr3),
            "column": awake & is_column,
            "reserved": present & (reserved | wrong_at_edge),
        }
        touched = Signal(self.ranks)
        self.comb += touched.eq(Mux(_any(kinds.values()), ranks, 0))
        self.sync.snoop += [
            *(getattr(command, name).eq(kind) for name, kind in kinds.items()),
            command.touched.eq(touched),
            command.ranks.eq(ranks),
            command.write.eq(code == WR),
            command.mrs.eq(awake & (code == MRS) & ~reserved),
            command.mr3.eq(mr3),
            command.several.eq(((code == ACT) | is_column) & self._several(ranks)),
            command.every_bank.eq(
                reserved | wrong_at_edge | (code == REF) | mr3 | (pre & pins.a[10])
            ),
            command.bank.eq(bank),
            command.a.eq(pins.a),
        ]
        self._compare(command, touched, bank, earlier)
        return touched, bank

    @staticmethod
    def _several(ranks: Any) -> Any:
        return _any(ranks[i] & ranks[j] for j in range(len(ranks)) for i in range(j))

    def _compare(
        self, command: Any, touched: Any, bank: Any, earlier: list[tuple[Any, Any]]
    ) -> None:
        for index, (other_ranks, other_bank) in enumerate(earlier[: WINDOW_CK - 1]):
            self.sync.snoop += [
                command.same_rank[index].eq((touched & other_ranks) != 0),
                command.same_bank[index].eq(bank == other_bank),
            ]

    # Stage B: the 4 CK around each command ------------------------------------------------------

    @staticmethod
    def _meets(command: Any, earlier: Any, distance: int) -> Any:
        """Whether two commands, `distance` CK apart, name a bank of a rank in common."""
        every_bank = command.every_bank | earlier.every_bank
        return command.same_rank[distance - 1] & (every_bank | command.same_bank[distance - 1])

    def _check_window(self, command: Any, earlier: list[Any], refused: Any) -> None:
        # Reasons that apply; which is the first is decided a clock later, for timing.
        too_close, orphaned, activated = [], [], C(0)
        for distance, other in enumerate(reversed(earlier), start=1):
            meets = self._meets(command, other, distance)
            after_pre, after_act = meets & other.pre, meets & other.act
            in_time = command.pre | ((command.act | command.ref) & self.gap_ok[distance])
            too_close += [
                meets & ~other.pre & ~other.act,
                ~command.column & (after_act | (after_pre & ~in_time)),
                command.act & other.act & command.same_rank[distance - 1],
            ]
            orphaned.append(after_pre & ~activated)
            activated = activated | after_act
        reasons = {
            Illegal.COMMAND: command.reserved,
            Illegal.RANKS: command.several,
            Illegal.COLUMN_SPACING: command.column & _any(other.column for other in earlier),
            Illegal.BANK_SPACING: _any(too_close) | (command.column & _any(orphaned)),
        }
        self.sync.snoop += refused.eq(Cat(*(reasons[kind] for kind in REFUSED_BY_WINDOW)))

    @staticmethod
    def _first_reason(refused: Any, kind: Illegal) -> Any:
        """Whether a command was refused for this reason and no other before it."""
        index = REFUSED_BY_WINDOW.index(kind)
        return refused[index] & ~_any(refused[:index])

    def _lanes(self, stage_a: list[Any], stage_b: list[Any], refused: list[Any]) -> list[_Lane]:
        """Stages B to D."""
        ranks = range(self.ranks)
        groups_a, groups_b = self._grouped(stage_a), self._grouped(stage_b)
        whys = self._grouped(refused)
        columns_b = [self._first_column(group) for group in groups_a]
        acts_b = [[self._first_act(group, rank) for rank in ranks] for group in groups_a]
        meets = [self._pairs(group) for group in groups_a]
        legal_b = [
            self._legal(group, why, pairs)
            for group, why, pairs in zip(groups_b, whys, meets, strict=True)
        ]
        early_c = self._too_early(columns_b, acts_b)
        columns_c = [self._delayed(column) for column in columns_b]
        rows_d = self._rows(columns_b, columns_c, acts_b, legal_b)
        result = []
        for lane, (group, why, pairs) in enumerate(zip(groups_b, whys, meets, strict=True)):
            legal_c, column_c = self._delayed(legal_b[lane]), columns_c[lane]
            acts_c = [self._delayed(act) for act in acts_b[lane]]
            doings = self._doings(group, why, pairs)
            hits = [[self._bank_hits(command, rank) for rank in ranks] for command in group]
            result.append(
                _Lane(
                    legal=self._delayed(legal_c),
                    column=self._delayed(column_c),
                    acts=[self._delayed(act) for act in acts_c],
                    posted=[
                        self._delayed(legal_c.acts[rank] & (acts_c[rank].bank == column_c.bank))
                        for rank in ranks
                    ],
                    early=self._delayed(early_c[lane]),
                    rows=rows_d[lane],
                    ops=[
                        self._bank_ops(
                            [doing[rank] for doing in doings],
                            [hit[rank] for hit in hits],
                            self._is_bank(acts_c[rank].bank, legal_c.acts[rank]),
                            self._is_bank(column_c.bank, legal_c.column & column_c.ranks[rank]),
                        )
                        for rank in ranks
                    ],
                )
            )
        return result

    def _pairs(self, group: list[Any]) -> dict[tuple[int, int], Any]:
        """For two of four phases, the earlier first: whether they meet; registered."""
        return {
            (first, second): self._delayed(self._meets(group[second], group[first], second - first))
            for second in range(len(group))
            for first in range(second)
        }

    def _legal(self, group: list[Any], whys: list[Any], meets: dict[tuple[int, int], Any]) -> Any:
        """What of four phases at stage B is legal: of each kind, at most one command a rank."""
        legal = Record(_legal_layout(self.ranks))
        ok = [why == 0 for why in whys]

        def ranks_of(flags: list[Any]) -> Any:
            return _any(
                Mux(flag, command.ranks, 0) for flag, command in zip(flags, group, strict=True)
            )

        def legal_ones(name: str) -> list[Any]:
            return [getattr(command, name) & fine for command, fine in zip(group, ok, strict=True)]

        acts, columns, refs = (legal_ones(name) for name in ("act", "column", "ref"))
        reclosed: list[Any] = [C(0)] * len(group)
        undone: list[Any] = [C(0)] * len(group)
        orphan: Any = C(0)
        for (first, second), meet in meets.items():
            reclosed[second] |= meet & group[first].pre & acts[second]
            undone[first] |= meet & group[second].pre & acts[first]
            orphan |= meet & group[first].act & ~ok[first] & columns[second]
        on = [flag & c.mr3 & c.a[MPR_BIT] for flag, c in zip(refs, group, strict=True)]
        off = [flag & c.mr3 & ~c.a[MPR_BIT] for flag, c in zip(refs, group, strict=True)]
        self.comb += [
            legal.column.eq(_any(columns)),
            legal.acts.eq(ranks_of(acts)),
            legal.refs.eq(ranks_of(refs)),
            legal.mpr_on.eq(ranks_of(on)),
            legal.mpr_off.eq(ranks_of(off)),
            legal.reclosed.eq(ranks_of(reclosed)),
            legal.undone.eq(ranks_of(undone)),
            legal.orphan.eq(orphan),
        ]
        return legal

    def _doings(
        self, group: list[Any], whys: list[Any], meets: dict[tuple[int, int], Any]
    ) -> list[list[Any]]:
        """By phase and rank, at stage C: PRE, refused PRE and other refused command, a bit each.

        A refused PRE may be made up for by a PRE or ACT that follows in the group, but not one that
        follows a REF. A legal PRE is not the last word on its bank where a refused PREA follows in
        the group; a refused PRE of one bank needs no such care: what it is refused for comes after
        the legal one, and is refused as well or makes up for it.
        """
        refused_all = [
            command.pre & command.every_bank & (why != 0)
            for command, why in zip(group, whys, strict=True)
        ]
        result: list[list[Any]] = []
        for phase, (command, why) in enumerate(zip(group, whys, strict=True)):
            after_ref = _any(meets[first, phase] & group[first].ref for first in range(phase))
            fine, doubtful = why == 0, command.pre & ~after_ref
            by_rank = []
            for rank in range(self.ranks):
                overruled = _any(
                    refused_all[later] & group[later].ranks[rank]
                    for later in range(phase + 1, len(group))
                )
                closes = command.pre & fine & ~overruled
                by_rank.append(self._delayed(Cat(closes, doubtful & ~fine, ~doubtful & ~fine)))
            result.append(by_rank)
        return result

    @staticmethod
    def _grouped(phases: list[Any]) -> list[list[Any]]:
        step = PHASES_PER_LANE
        return [phases[start : start + step] for start in range(0, len(phases), step)]

    def _delayed(self, source: Any) -> Any:
        result = Record(source.layout) if isinstance(source, Record) else Signal(len(source))
        self.sync.snoop += result.eq(source)
        return result

    def _first(self, group: list[Any], chosen: list[Any], names: tuple[str, ...]) -> Any:
        """Some fields of the first chosen command of a group, and its phase; registered."""
        layout = [(name, len(getattr(group[0], name))) for name in names]
        first = Record([("valid", 1), ("phase", 2), *layout])
        phase = Signal(2)
        choose = phase.eq(PHASES_PER_LANE - 1)
        for index in reversed(range(PHASES_PER_LANE - 1)):
            choose = If(chosen[index], phase.eq(index)).Else(choose)
        self.comb += choose
        self.sync.snoop += [
            first.valid.eq(_any(chosen)),
            first.phase.eq(phase),
            *(
                getattr(first, name).eq(Array(getattr(command, name) for command in group)[phase])
                for name in names
            ),
        ]
        return first

    def _first_column(self, group: list[Any]) -> Any:
        """The column command of four phases; if there are several, only the first can be legal."""
        chosen = [command.column for command in group]
        return self._first(group, chosen, ("ranks", "bank", "write", "a"))

    def _first_act(self, group: list[Any], rank: int) -> Any:
        """The ACT of four phases to a rank; if there are several, only the first can be legal."""
        chosen = [command.act & command.ranks[rank] for command in group]
        return self._first(group, chosen, ("bank", "a"))

    def _too_early(self, columns: list[Any], acts: list[list[Any]]) -> list[Any]:
        """For each lane: its column command comes sooner than tRCD after an ACT to its bank."""
        groups = self.t_rcd[2:]
        early: list[list[Any]] = [[] for _ in columns]
        for rank in range(self.ranks):
            # `ready_phase` is tRCD after the ACT's, without the whole groups of 4 CK.
            layout = [("valid", 1), ("ready_phase", 3), ("bank", self.bank_bits)]
            present = [Record(layout) for _ in acts]
            past = [Record(layout) for _ in range(HISTORY_STEPS)]
            for lane_acts, now in zip(acts, present, strict=True):
                act = lane_acts[rank]
                self.comb += [
                    now.valid.eq(act.valid),
                    now.ready_phase.eq(act.phase + self.t_rcd[:2]),
                    now.bank.eq(act.bank),
                ]
            latest_first = present[::-1] + past
            for after, before in zip(past, latest_first, strict=False):
                self.sync.snoop += after.eq(before)
            for lane, column in enumerate(columns):
                same_clock = present[lane]
                earlier = latest_first[len(columns) - lane :][:HISTORY_STEPS]
                found = [
                    column.ranks[rank]
                    & same_clock.valid
                    & (column.bank == same_clock.bank)
                    & (acts[lane][rank].phase < column.phase)
                    & (
                        (groups > 0)
                        | same_clock.ready_phase[2]
                        | (column.phase < same_clock.ready_phase[:2])
                    )
                ]
                for step, act in enumerate(earlier, start=1):
                    before_phase = column.phase < act.ready_phase[:2]
                    found.append(
                        column.ranks[rank]
                        & act.valid
                        & (column.bank == act.bank)
                        & (
                            (groups > step)
                            | ((groups == step) & (act.ready_phase[2] | before_phase))
                            | ((groups == step - 1) & act.ready_phase[2] & before_phase)
                        )
                    )
                # Registered in two parts, for timing.
                early[lane] += [self._delayed(_any(found[part::2])) for part in range(2)]
        return [_any(parts) for parts in early]

    def _rows(
        self,
        columns_b: list[Any],
        columns_c: list[Any],
        acts: list[list[Any]],
        legal: list[Any],
    ) -> Any:
        """Rows that the tables hold for each lane's column command, by lane and table.

        Each lane writes its legal ACTs to a table of its own. A lane must see its own (one that
        comes after the column command to the same bank is not legal) and those of the lanes before
        it in the same clock, but not those of later ones.
        """
        rows = [[Signal(self.row_bits) for _ in acts] for _ in columns_b]
        by_rank: list[list[list[Any]]] = [[[] for _ in acts] for _ in columns_b]
        for table, lane_acts in enumerate(acts):
            for rank, act in enumerate(lane_acts):
                memory = Memory(self.row_bits, 2**self.bank_bits)
                write = memory.get_port(write_capable=True, clock_domain="snoop")
                self.specials += memory, write
                self.comb += [
                    write.adr.eq(act.bank),
                    write.dat_w.eq(act.a),
                    write.we.eq(legal[table].acts[rank]),
                ]
                for lane, (column_b, column_c) in enumerate(zip(columns_b, columns_c, strict=True)):
                    read = memory.get_port(async_read=True)
                    self.specials += read
                    # B is when the table is written, so B sees it before, and C after.
                    written = table <= lane
                    self.comb += read.adr.eq(column_c.bank if written else column_b.bank)
                    row = read.dat_r if written else self._delayed(read.dat_r)
                    by_rank[lane][table].append(row)
        for lane, column in enumerate(columns_c):
            for table, row in enumerate(rows[lane]):
                self.sync.snoop += row.eq(_chosen(column.ranks, by_rank[lane][table]))
        return rows

    def _bank_hits(self, command: Any, rank: int) -> Any:
        """One bit for each bank of ``rank`` that the command names."""
        hits = Signal(2**self.bank_bits)
        self.sync.snoop += [
            hit.eq(command.ranks[rank] & (command.every_bank | (command.bank == index)))
            for index, hit in enumerate(hits)
        ]
        return hits

    def _is_bank(self, bank: Any, valid: Any) -> Any:
        """One bit for each bank: it is `bank`, if that is valid."""
        return Cat(*(valid & (bank == index) for index in range(2**self.bank_bits)))

    def _bank_ops(self, doings: list[Any], hits: list[Any], activated: Any, column: Any) -> _Ops:
        """What four phases do to each bank of a rank."""
        precharged, doubtful, spoilt = (
            self._delayed(
                _any(Mux(doing[kind], hit, 0) for doing, hit in zip(doings, hits, strict=True))
            )
            for kind in range(3)
        )
        return _Ops(precharged, doubtful, spoilt, self._delayed(activated), self._delayed(column))

    # Stage E: the state of the banks ------------------------------------------------------------

    def _looked_up(self, lanes_d: list[_Lane]) -> tuple[list[_Lane], list[list[Any]]]:
        """The lanes at stage E, and for each by rank its column command's bank and MPR."""
        state = [[Signal(2) for _ in range(2**self.bank_bits)] for _ in range(self.ranks)]
        mpr = [Signal() for _ in range(self.ranks)]
        self.opened_again: list[Any] = []
        self.refreshed: list[Any] = []
        found: list[list[Any]] = [[] for _ in lanes_d]
        for rank in range(self.ranks):
            now: list[Any] = state[rank]
            mpr_now: Any = mpr[rank]
            for number, lane in enumerate(lanes_d):
                found[number].append(self._found(number, lane, rank, now, mpr_now))
                now = [
                    self._next_state(number, lane, rank, index, bank, mpr_now)
                    for index, bank in enumerate(now)
                ]
                mpr_now = lane.legal.mpr_on[rank] | (mpr_now & ~lane.legal.mpr_off[rank])
            self.sync.snoop += [mpr[rank].eq(mpr_now), If(self.forget, mpr[rank].eq(0))]
            for index, (bank, following) in enumerate(zip(state[rank], now, strict=True)):
                old = Signal()  # it was open at the last time that old rows expired
                activated = _any(lane.ops[rank].activated[index] for lane in lanes_d)
                self.sync.snoop += [
                    old.eq((old | self.old_rows_expire) & ~activated),
                    bank.eq(following),
                    If(
                        self.forget | (self.old_rows_expire & bank[1] & old),
                        bank.eq(UNKNOWN),
                    ),
                ]
        return [self._lane_e(lane) for lane in lanes_d], found

    def _found(self, number: int, lane: _Lane, rank: int, now: list[Any], mpr: Any) -> Any:
        """What the column command finds: the state of its bank, and above it whether MPR is on."""
        ops, legal = lane.ops[rank], lane.legal
        act_bank = Array(now)[lane.acts[rank].bank]
        again = legal.acts[rank] & act_bank[1] & ~legal.reclosed[rank]
        left_open = [
            bank[1] & ~ops.precharged[index] & ~ops.doubtful[index]
            for index, bank in enumerate(now)
        ]
        self.opened_again.append(self._delayed(again))
        self.refreshed.append(self._delayed(legal.refs[rank] & _any(left_open)))
        result = Signal(3)
        self.sync.snoop += [
            result.eq(Cat(Array(now)[lane.column.bank], mpr)),
            If(lane.posted[rank], result[:2].eq(Mux(again, UNKNOWN, OPENED | number))),
            If(legal.orphan, result[:2].eq(UNKNOWN)),
        ]
        return result

    def _next_state(
        self, number: int, lane: _Lane, rank: int, index: int, state: Any, mpr: Any
    ) -> Any:
        """State of a bank after the four phases of a lane."""
        ops, legal = lane.ops[rank], lane.legal
        precharged, doubtful = ops.precharged[index], ops.doubtful[index]
        following, opened = Signal(2), state[1]
        after_column = Mux(lane.early, UNKNOWN, Mux(lane.column.a[10], CLOSED, OPENED | number))
        unlucky = legal.undone[rank] | (opened & ~legal.reclosed[rank])
        self.comb += [
            following.eq(state),
            If(
                ops.activated[index],
                following.eq(OPENED | number),
                If(ops.column[index], following.eq(after_column)),
                If(unlucky, following.eq(UNKNOWN)),
            )
            .Elif(
                ops.column[index],
                If(
                    opened,
                    If(lane.early, following.eq(UNKNOWN)).Elif(
                        lane.column.a[10], following.eq(CLOSED)
                    ),
                ).Elif(~mpr, following.eq(UNKNOWN)),
                If(doubtful, following.eq(UNKNOWN)),
            )
            .Elif(precharged, following.eq(CLOSED))
            .Elif(doubtful | (legal.refs[rank] & opened), following.eq(UNKNOWN)),
            If(ops.spoilt[index], following.eq(UNKNOWN)),
        ]
        return following

    def _lane_e(self, lane: _Lane) -> _Lane:
        return replace(
            lane,
            legal=self._delayed(lane.legal),
            column=self._delayed(lane.column),
            early=self._delayed(lane.early),
            rows=[self._delayed(row) for row in lane.rows],
        )

    # Stage F: access, or why not ----------------------------------------------------------------

    def _unmirrored(self, mirrored: Any, pins: Any, pairs: tuple[tuple[int, int], ...]) -> Any:
        order = list(range(len(pins)))
        for low, high in pairs:
            order[low], order[high] = high, low
        result = Signal(len(pins))
        self.comb += result.eq(Mux(mirrored, Cat(*(pins[index] for index in order)), pins))
        return result

    def _mode_refused(self, stage_a: list[Any]) -> Any:
        """At stage E: the bus is in a mode that this decoder is not set up for."""
        return C(0)

    def _accesses(
        self, lanes_e: list[_Lane], found: list[list[Any]], refused: Any
    ) -> dict[Illegal | int, list[Any]]:
        """Drive the sources; events by kind of illegal command, or by number of count."""
        events: dict[Illegal | int, list[Any]] = {
            kind: []
            for kind in (Illegal.COMMAND, Illegal.CLOSED, Illegal.TRCD, UNKNOWN_COUNT, MPR_COUNT)
        }
        for number, (source, lane) in enumerate(zip(self.sources, lanes_e, strict=True)):
            column, legal = lane.column, lane.legal.column
            state, mpr, mirrored, row_pins = Signal(2), Signal(), Signal(), Signal(self.row_bits)
            self.comb += [
                Cat(state, mpr).eq(_chosen(column.ranks, found[number])),
                row_pins.eq(Array(lane.rows)[state[0]] if self.phases > 4 else lane.rows[0]),
                mirrored.eq((column.ranks & self.mirror) != 0),
            ]
            # Tables and states go by the pins; only now are they what the rank calls them.
            bank, row, a = (
                self._unmirrored(mirrored, pins, pairs)
                for pins, pairs in (
                    (column.bank, self.mirrored_bank_pins),
                    (row_pins, self.mirrored_address_pins),
                    (column.a, self.mirrored_address_pins),
                )
            )
            chopped = self.burst[1] | (self.burst[0] & ~column.a[12])
            in_time = legal & state[1] & ~lane.early
            self.sync.snoop += [
                source.valid.eq(in_time & ~refused),
                source.write.eq(column.write),
                source.phase.eq(Cat(column.phase, C(number, 1))),
                source.rank.eq(_chosen(column.ranks, range(self.ranks))),
                Cat(source.bank[: self.bank_address_bits], source.bank_group).eq(bank),
                source.row.eq(row),
                # A burst of 8 shows its words 0 to 7 whatever A2:0 say, which only order them.
                source.column.eq(
                    Cat(C(0, 2), a[2] & chopped, *(a[pin] for pin in self.column_pins))
                ),
            ]
            events[Illegal.COMMAND].append(in_time & refused)
            events[Illegal.TRCD].append(legal & state[1] & lane.early)
            events[Illegal.CLOSED].append(legal & (state == CLOSED) & ~mpr)
            events[UNKNOWN_COUNT].append(legal & (state == UNKNOWN) & ~mpr)
            events[MPR_COUNT].append(legal & ~state[1] & mpr)
        events[Illegal.OPEN] = self.opened_again
        events[Illegal.REFRESH] = self.refreshed
        return events

    # Reports ------------------------------------------------------------------------------------

    def _report(self, refused: list[Any], events: dict[Illegal | int, list[Any]]) -> None:
        """Which kinds of illegal commands there were, in the clock of F."""
        seen = []
        for kind in Illegal:
            happened = _any(events.get(kind, []))
            if kind in REFUSED_BY_WINDOW:
                early = _any(self._first_reason(why, kind) for why in refused)
                for _ in range(3):
                    early = self._delayed(early)
                happened = happened | early
            seen.append(self._delayed(happened))
        self.comb += [
            self.illegal.valid.eq(_any(seen)),
            self.illegal.code.eq(Cat(*seen)),
        ]

    def _add_counts(self, refused: list[Any], events: dict[Illegal | int, list[Any]]) -> None:
        stops = COUNT_BITS - 1

        def strobes(kind: Illegal) -> list[Any]:
            if kind not in REFUSED_BY_WINDOW:
                return events[kind]
            return [self._first_reason(why, kind) for why in refused] + events.get(kind, [])

        self.counters = CounterBank(
            [
                *(Count(strobes(kind), stops) for kind in Illegal),
                Count(events[UNKNOWN_COUNT], stops),
                Count(self.matched),
                Count([source.valid for source in self.sources]),
                Count(events[MPR_COUNT], stops),
            ],
            COUNTER_BITS,
        )
        self.comb += self.counters.clear.eq(self.clear)
        self._show_counts()

    def _show_counts(self) -> None:
        # A write to `select` asks for its count, by a level that changes; the answer is given with
        # the same level and stands still. Another write meanwhile starts another query then.
        select, asking = self._count_select, Signal(reset=1)
        question, question_here, answer, answer_there = (Signal() for _ in range(4))
        answered = question == answer_there
        shown = Signal(COUNT_BITS)
        self.specials += [
            MultiReg(question, question_here, "snoop"),
            MultiReg(answer, answer_there, "sys"),
        ]
        self.sync += [
            If(asking & answered, asking.eq(0), question.eq(~question)),
            If(select.re, asking.eq(1)),
        ]
        self.sync.snoop += If(
            (question_here != answer) & (self.counters.number == select.storage),
            answer.eq(question_here),
            shown.eq(self.counters.count),
        )
        self.comb += [
            self._count.fields.count.eq(shown),
            self._count.fields.kind.eq(NO_COUNT),
            If(answered & ~asking & ~select.re, self._count.fields.kind.eq(select.storage)),
        ]
