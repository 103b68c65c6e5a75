# SPDX-License-Identifier: BSD-2-Clause
"""Passive decoder of DRAM commands: what DDR3 and DDR4 have in common.

The decoder keeps what a rank must know, the open row of each bank, and turns each legal column
command into an access. A bank is *unknown* when nothing was seen of it yet or when an illegal
command left it uncertain; an ACT or PRE makes it known again. So the decoder may be attached to
a running bus, and what it emits never rests on a guess:

==================  ==========================================================  ==================
command             state of its bank                                           result
==================  ==========================================================  ==================
ACT                 closed or unknown: open                                     —
ACT                 open: unknown                                               ``OPEN``
PRE, PREA           closed                                                      —
RD, WR              open, at least tRCD ago: open, or closed by auto-precharge  access
RD, WR              open, sooner: unknown                                       ``TRCD``
RD, WR              closed: unknown                                             ``CLOSED``
RD, WR              unknown                                                     counted, no access
REF                 open banks of the rank: unknown                             ``REFRESH``
MRS, ZQ, NOP, DES   as before                                                   —
==================  ==========================================================  ==================

Some commands are refused whatever the state, for the first reason of ``COMMAND``, ``RANKS``,
``COLUMN_SPACING`` and ``BANK_SPACING`` that applies, and leave the banks they name unknown. No
two commands to a bank may be closer than 4 CK (the shortest of tRCD, tRP, tRAS, tRTP and tCCD in
"Timing Parameters by Speed Bin" of JESD79-3F and JESD79-4), except that a bank may be precharged
twice; neither may two ACTs to a rank (tRRD). This makes the order of the commands within four
phases irrelevant to a bank: all but one of them are refused, or all are precharges. So four
phases are taken in one step::

    pins ─► A classes ─► B window of 4 CK, ─► C tRCD, bank ─► D operation ─► E state ─► F access
            per phase      first column,        masks, row      per bank       of bank    or error
                           first ACT            tables

With 8 phases there are two such lanes, and E applies the first lane's operations before the
second looks its bank up: a column command sees an ACT that came earlier in the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import Array, C, Case, Cat, If, Memory, Mux, Record, Signal
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

# "Command Truth Table" of JESD79-3F and JESD79-4: RAS_n, CAS_n, WE_n.
MRS, REF, PRE, ACT, WR, RD, ZQ, NOP = range(8)

# State of a bank. With two lanes, bit 0 of an open bank says whose row table has its row.
UNKNOWN, CLOSED, OPENED = 0b00, 0b01, 0b10

# What four phases do to a bank: the OR of what each does. A refused command prevails, but a refused
# PRE not over a legal one: that comes after it, if it is not overruled (`_overruled`).
OP_ACT, OP_PRE, OP_REF, OP_COLUMN, OP_COLUMN_AP, OP_REFUSED, OP_REFUSED_PRE = 1, 2, 3, 4, 5, 7, 8
OP_BITS = 4

REFUSED_BY_WINDOW = (
    Illegal.COMMAND,
    Illegal.RANKS,
    Illegal.COLUMN_SPACING,
    Illegal.BANK_SPACING,
)

T_RCD_BITS = 5
# ACTs are remembered for as many steps of 4 CK as the longest tRCD may reach back.
HISTORY_STEPS = 2**T_RCD_BITS // PHASES_PER_LANE

# Counts, by number: those of illegal commands by kind, then these.
UNKNOWN_COUNT = len(Illegal)  # column commands to banks of unknown state
MATCHED_COUNT = UNKNOWN_COUNT + 1
ACCESS_COUNT = MATCHED_COUNT + 1
COUNTER_BITS = 40
COUNT_BITS = 28  # of illegal commands, and of UNKNOWN_COUNT
NO_COUNT = 15


def _any(signals: Iterable[Any]) -> Any:
    return reduce(or_, signals)


def _chosen(one_hot: Any, values: Iterable[Any]) -> Any:
    return _any(Mux(hit, value, 0) for hit, value in zip(one_hot, values, strict=True))


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

        self._protocol = CSRStorage(
            description="What the memory controller was set up to. Change it only while nothing is"
            " recorded.",
            fields=[
                CSRField(
                    "mirror",
                    size=ranks,
                    description="Ranks (a bit each) whose address pins are mirrored on the DIMM.",
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
                    description="Shortest time from ACT to RD or WR, in CK; an earlier one is"
                    " illegal. 0: not checked.",
                ),
            ],
        )
        self._count_select = CSRStorage(
            4,
            description="Which count the next register shows: "
            + ", ".join(f"{kind.value} {kind.name}" for kind in Illegal)
            + f" (illegal commands by kind), {UNKNOWN_COUNT} (RD and WR to banks whose state is"
            " unknown, which are no accesses). Each write has the count read again.",
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

        # # #

        self.mirror = self._protocol.fields.mirror
        self.burst = self._protocol.fields.burst
        self.t_rcd = self._protocol.fields.t_rcd

        for pins in self.commands:
            pins.cke.reset = C(2**ranks - 1)
            pins.cs_n.reset = C(2**ranks - 1)

        # A: what each command is, on its own --------------------------------------------------

        stage_a = self._classified()

        # B: the 4 CK around each command ------------------------------------------------------

        # The last commands in B are those before the first in A.
        stage_b = [Record(stage_a[0].layout) for _ in stage_a]
        refused = [Signal(len(REFUSED_BY_WINDOW)) for _ in stage_a]
        self.sync.snoop += [
            after.eq(before) for after, before in zip(stage_b, stage_a, strict=True)
        ]
        window = stage_b[-3:] + stage_a
        for phase, command in enumerate(stage_a):
            self._check_window(command, window[phase : phase + 3], refused[phase])

        columns_b = [self._first_column(group) for group in self._grouped(stage_a)]
        acts_b = [
            [self._first_act(group, rank) for rank in range(ranks)]
            for group in self._grouped(stage_a)
        ]

        # C: masks of banks, tRCD, legality; D: the rows ---------------------------------------

        ops_c = [Signal(OP_BITS) for _ in stage_b]
        for command, why, op in zip(stage_b, refused, ops_c, strict=True):
            self.sync.snoop += [
                op.eq(0),
                If(command.act, op.eq(OP_ACT)),
                If(command.pre, op.eq(OP_PRE)),
                If(command.ref, op.eq(OP_REF)),
                If(command.column, op.eq(Mux(command.a[10], OP_COLUMN_AP, OP_COLUMN))),
                If(why != 0, op.eq(Mux(command.pre, OP_REFUSED_PRE, OP_REFUSED))),
            ]
        hits_c = [[self._bank_hits(command, rank) for rank in range(ranks)] for command in stage_b]

        overruled_c = [
            self._overruled(group, whys)
            for group, whys in zip(self._grouped(stage_b), self._grouped(refused), strict=True)
        ]

        early_c = self._too_early(columns_b, acts_b)
        # Of each kind at most one command of a group (and, but for columns, of a rank) is legal.
        legal_c: list[Any] = []
        legal_acts_c: list[list[Any]] = []
        legal_refs_c: list[list[Any]] = []
        for group, whys in zip(self._grouped(stage_b), self._grouped(refused), strict=True):
            legal = [(command, why == 0) for command, why in zip(group, whys, strict=True)]
            legal_c.append(self._delayed(_any(command.column & ok for command, ok in legal)))
            for result, name in ((legal_acts_c, "act"), (legal_refs_c, "ref")):
                found = [
                    _any(getattr(command, name) & ok & command.ranks[rank] for command, ok in legal)
                    for rank in range(ranks)
                ]
                result.append([self._delayed(signal) for signal in found])

        columns_c = [self._delayed(column) for column in columns_b]
        act_banks_c = [[self._delayed(act.bank) for act in lane_acts] for lane_acts in acts_b]
        rows_d = self._rows(columns_b, columns_c, acts_b)

        # D: what four phases do to each bank --------------------------------------------------

        ops_d = []
        for overruled, ops, hits in zip(
            overruled_c, self._grouped(ops_c), self._grouped(hits_c), strict=True
        ):
            ops_d.append(
                [
                    self._bank_ops(ops, overruled[rank], [hit[rank] for hit in hits])
                    for rank in range(ranks)
                ]
            )

        columns_d = [self._delayed(column) for column in columns_c]
        early_d = [self._delayed(signal) for signal in early_c]
        legal_d = [self._delayed(signal) for signal in legal_c]
        legal_acts_d, legal_refs_d, act_banks_d = (
            [[self._delayed(signal) for signal in signals] for signals in by_lane]
            for by_lane in (legal_acts_c, legal_refs_c, act_banks_c)
        )

        # E: the state of the banks ------------------------------------------------------------

        state = [[Signal(2) for _ in range(2**self.bank_bits)] for _ in range(ranks)]
        now = state
        looked_up = []
        opened_again, refreshed = [], []
        for lane, (column, ops) in enumerate(zip(columns_d, ops_d, strict=True)):
            found = [Signal(2) for _ in range(ranks)]
            looked_up.append(found)
            then = []
            for rank in range(ranks):
                act_bank = Array(now[rank])[act_banks_d[lane][rank]]
                any_open = _any(bank[1] for bank in now[rank])
                opened_again.append(self._delayed(legal_acts_d[lane][rank] & act_bank[1]))
                refreshed.append(self._delayed(legal_refs_d[lane][rank] & any_open))
                self.sync.snoop += found[rank].eq(Array(now[rank])[column.bank])
                banks = zip(ops[rank], now[rank], strict=True)
                then.append([self._next_state(op, bank, lane, early_d[lane]) for op, bank in banks])
            now = then
        for rank in range(ranks):
            for bank, following in zip(state[rank], now[rank], strict=True):
                self.sync.snoop += [bank.eq(following), If(self.forget, bank.eq(UNKNOWN))]

        columns_e = [self._delayed(column) for column in columns_d]
        rows_e = [[self._delayed(row) for row in tables] for tables in rows_d]
        early_e = [self._delayed(signal) for signal in early_d]
        mirrored_e = [self._delayed((column.ranks & self.mirror) != 0) for column in columns_d]
        legal_e = [self._delayed(signal) for signal in legal_d]

        # F: access, or why not ----------------------------------------------------------------

        closed, too_early, unknown = [], [], []
        for lane, source in enumerate(self.sources):
            column, legal, early = columns_e[lane], legal_e[lane], early_e[lane]
            state_then, row_pins = Signal(2), Signal(self.row_bits)
            self.comb += [
                state_then.eq(_chosen(column.ranks, looked_up[lane])),
                row_pins.eq(Array(rows_e[lane])[state_then[0]] if phases > 4 else rows_e[lane][0]),
            ]
            # Tables and states go by the pins; only now are they what the rank calls them.
            bank, row, a = (
                self._unmirrored(mirrored_e[lane], pins, pairs)
                for pins, pairs in (
                    (column.bank, self.mirrored_bank_pins),
                    (row_pins, self.mirrored_address_pins),
                    (column.a, self.mirrored_address_pins),
                )
            )
            chopped = self.burst[1] | (self.burst[0] & ~column.a[12])
            self.sync.snoop += [
                source.valid.eq(legal & state_then[1] & ~early),
                source.write.eq(column.write),
                source.phase.eq(Cat(column.phase, C(lane, 1))),
                source.rank.eq(_chosen(column.ranks, range(ranks))),
                Cat(source.bank[: self.bank_address_bits], source.bank_group).eq(bank),
                source.row.eq(row),
                # A burst of 8 shows its words 0 to 7 whatever A2:0 say, which only order them.
                source.column.eq(
                    Cat(C(0, 2), a[2] & chopped, *(a[pin] for pin in self.column_pins))
                ),
            ]
            closed.append(legal & (state_then == CLOSED))
            too_early.append(legal & state_then[1] & early)
            unknown.append(legal & (state_then == UNKNOWN))

        # Events of one clock, and how many clocks they come before F.
        events: dict[Illegal, tuple[list[Any], int]] = {
            kind: ([why[index] for why in refused], 3)
            for index, kind in enumerate(REFUSED_BY_WINDOW)
        }
        events |= {
            Illegal.CLOSED: (closed, 0),
            Illegal.TRCD: (too_early, 0),
            Illegal.OPEN: (opened_again, 0),
            Illegal.REFRESH: (refreshed, 0),
        }
        seen = []
        for kind in Illegal:
            strobes, clocks = events[kind]
            happened = _any(strobes)
            for _ in range(clocks + 1):
                happened = self._delayed(happened)
            seen.append(happened)
        self.comb += [
            self.illegal.valid.eq(_any(seen)),
            self.illegal.code.eq(Cat(*seen)),
        ]

        # Counts -------------------------------------------------------------------------------

        stops = COUNT_BITS - 1
        self.counters = counters = CounterBank(
            [
                *(Count(events[kind][0], stops) for kind in Illegal),
                Count(unknown, stops),
                Count(self.matched),
                Count([source.valid for source in self.sources]),
            ],
            COUNTER_BITS,
        )
        self.comb += counters.clear.eq(self.clear)

        # A write to `select` asks for its count, by a level that changes; the answer is given with
        # the same level and stands still. Another write meanwhile is another question, asked then.
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
            (question_here != answer) & (counters.number == select.storage),
            answer.eq(question_here),
            shown.eq(counters.count),
        )
        self.comb += [
            self._count.fields.count.eq(shown),
            self._count.fields.kind.eq(NO_COUNT),
            If(answered & ~asking & ~select.re, self._count.fields.kind.eq(select.storage)),
        ]

    # Steps ------------------------------------------------------------------------------------

    @staticmethod
    def _grouped(phases: list[Any]) -> list[list[Any]]:
        step = PHASES_PER_LANE
        return [phases[start : start + step] for start in range(0, len(phases), step)]

    def _delayed(self, source: Any) -> Any:
        result = Record(source.layout) if isinstance(source, Record) else Signal(len(source))
        self.sync.snoop += result.eq(source)
        return result

    def _unmirrored(self, mirrored: Any, pins: Any, pairs: tuple[tuple[int, int], ...]) -> Any:
        order = list(range(len(pins)))
        for low, high in pairs:
            order[low], order[high] = high, low
        result = Signal(len(pins))
        self.comb += result.eq(Mux(mirrored, Cat(*(pins[index] for index in order)), pins))
        return result

    def _classified(self) -> list[Any]:
        cke_before = Signal(self.ranks, reset=2**self.ranks - 1)
        self.sync.snoop += cke_before.eq(self.commands[-1].cke)
        result = []
        for pins in self.commands:
            command = Record(
                [
                    ("ranks", self.ranks),
                    ("act", 1),
                    ("pre", 1),
                    ("ref", 1),
                    ("column", 1),
                    ("write", 1),
                    ("reserved", 1),
                    ("several", 1),  # ACT or column command to several ranks
                    ("every_bank", 1),
                    ("bank", self.bank_bits),
                    ("a", self.row_bits),
                ]
            )
            result.append(command)
            code, reserved, bank = self.encoding(pins)
            ranks = Signal(self.ranks)
            several = (
                _any(ranks[i] & ranks[j] for j in range(self.ranks) for i in range(j))
                if self.ranks > 1
                else 0
            )
            # While CKE is low, and as it falls, a rank takes no command; REF as it falls is the
            # entry of self refresh.
            was_asleep, asleep_now, asleep = Signal(), Signal(), Signal()
            selected, present, awake = Signal(), Signal(), Signal()
            is_column = (code == RD) | (code == WR)
            self.comb += [
                ranks.eq(~pins.cs_n),
                was_asleep.eq((ranks & ~cke_before) != 0),
                asleep_now.eq((ranks & ~(cke_before & pins.cke)) != 0),
                asleep.eq(Mux(code == REF, was_asleep, asleep_now)),
                selected.eq(pins.cs_n != 2**self.ranks - 1),
                present.eq(selected & (code != NOP)),
                awake.eq(selected & ~asleep_now),
            ]
            # For timing, no term here waits for more than it must: of those reserved are only codes
            # of MRS and ACT, `reserved` prevails over `several`, and `every_bank` counts only for
            # commands.
            self.sync.snoop += [
                command.ranks.eq(ranks),
                command.act.eq(awake & (code == ACT) & ~reserved),
                command.pre.eq(awake & (code == PRE)),
                command.ref.eq(selected & ~was_asleep & (code == REF)),
                command.column.eq(awake & is_column),
                command.write.eq(code == WR),
                command.reserved.eq(present & (reserved | asleep)),
                command.several.eq(((code == ACT) | is_column) & several),
                command.every_bank.eq(
                    reserved | asleep | (code == REF) | ((code == PRE) & pins.a[10])
                ),
                command.bank.eq(bank),
                command.a.eq(pins.a),
            ]
            cke_before = pins.cke
        return result

    def _check_window(self, command: Any, earlier: list[Any], refused: Any) -> None:
        def touches(other: Any) -> Any:
            return other.act | other.pre | other.ref | other.column | other.reserved

        def too_close(other: Any) -> Any:
            same_bank = command.every_bank | other.every_bank | (command.bank == other.bank)
            return (
                touches(command)
                & touches(other)
                & ((command.ranks & other.ranks) != 0)
                & ((same_bank & ~(command.pre & other.pre)) | (command.act & other.act))
            )

        self.sync.snoop += [
            refused.eq(0),
            If(
                command.reserved,
                refused[REFUSED_BY_WINDOW.index(Illegal.COMMAND)].eq(1),
            )
            .Elif(
                command.several,
                refused[REFUSED_BY_WINDOW.index(Illegal.RANKS)].eq(1),
            )
            .Elif(
                command.column & _any(other.column for other in earlier),
                refused[REFUSED_BY_WINDOW.index(Illegal.COLUMN_SPACING)].eq(1),
            )
            .Elif(
                _any(too_close(other) for other in earlier),
                refused[REFUSED_BY_WINDOW.index(Illegal.BANK_SPACING)].eq(1),
            ),
        ]

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
                earlier = latest_first[len(columns) - lane :][:HISTORY_STEPS]
                found = []
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

    def _rows(self, columns_b: list[Any], columns_c: list[Any], acts: list[list[Any]]) -> Any:
        """Rows that the tables hold for each lane's column command, by lane and table.

        Each lane writes its ACTs to a table of its own. A lane must see the ACTs of the lanes
        before it in the same clock, but not its own nor those of later ones.
        """
        rows = [[Signal(self.row_bits) for _ in acts] for _ in columns_b]
        by_rank: list[list[list[Any]]] = [[[] for _ in acts] for _ in columns_b]
        for table, lane_acts in enumerate(acts):
            for act in lane_acts:
                memory = Memory(self.row_bits, 2**self.bank_bits)
                write = memory.get_port(write_capable=True, clock_domain="snoop")
                self.specials += memory, write
                self.comb += [
                    write.adr.eq(act.bank),
                    write.dat_w.eq(act.a),
                    write.we.eq(act.valid),
                ]
                for lane, (column_b, column_c) in enumerate(zip(columns_b, columns_c, strict=True)):
                    read = memory.get_port(async_read=True)
                    self.specials += read
                    # B is when the table is written, so B sees it before, and C after.
                    written = table < lane
                    self.comb += read.adr.eq(column_c.bank if written else column_b.bank)
                    row = read.dat_r if written else self._delayed(read.dat_r)
                    by_rank[lane][table].append(row)
        for lane, column in enumerate(columns_c):
            for table, row in enumerate(rows[lane]):
                self.sync.snoop += row.eq(_chosen(column.ranks, by_rank[lane][table]))
        return rows

    def _overruled(self, group: list[Any], whys: list[Any]) -> list[list[Any]]:
        """For each rank and phase: whether a refused PREA follows in the group.

        A legal PRE is then no longer the last word on its bank. A refused PRE of one bank needs
        no such care: what it is refused for comes after the legal one, and is refused as well.
        """
        refused_all = [
            command.pre & command.every_bank & (why != 0)
            for command, why in zip(group, whys, strict=True)
        ]
        result = []
        for rank in range(self.ranks):
            follows: Any = C(0)
            phases = []
            for command, refused in reversed(list(zip(group, refused_all, strict=True))):
                phases.append(self._delayed(follows))
                follows = follows | (refused & command.ranks[rank])
            result.append(phases[::-1])
        return result

    def _bank_hits(self, command: Any, rank: int) -> Any:
        """One bit for each bank of ``rank`` that the command names."""
        hits = Signal(2**self.bank_bits)
        self.sync.snoop += [
            hit.eq(command.ranks[rank] & (command.every_bank | (command.bank == index)))
            for index, hit in enumerate(hits)
        ]
        return hits

    def _bank_ops(self, ops: list[Any], overruled: list[Any], hits: list[Any]) -> list[Any]:
        """The operation of four phases on each bank of a rank."""
        final = [
            Mux(is_overruled & (op == OP_PRE), 0, op)
            for op, is_overruled in zip(ops, overruled, strict=True)
        ]
        banks = [Signal(OP_BITS) for _ in range(2**self.bank_bits)]
        for index, bank in enumerate(banks):
            terms = zip(final, hits, strict=True)
            self.sync.snoop += bank.eq(_any(Mux(hit[index], op, 0) for op, hit in terms))
        return banks

    def _next_state(self, op: Any, state: Any, lane: int, early: Any) -> Any:
        """State of a bank after the operation of ``lane``."""
        following, opened = Signal(2), state[1]
        self.comb += [
            Case(
                op[:3],
                {
                    OP_ACT: following.eq(Mux(opened, UNKNOWN, OPENED | lane)),
                    OP_PRE: following.eq(CLOSED),
                    OP_REF: following.eq(Mux(opened, UNKNOWN, state)),
                    OP_COLUMN: following.eq(Mux(opened, state, UNKNOWN)),
                    OP_COLUMN_AP: following.eq(Mux(opened, CLOSED, UNKNOWN)),
                    OP_REFUSED: following.eq(UNKNOWN),
                    "default": following.eq(state),
                },
            ),
            # Of a lane's operations on banks, at most one is that of a legal column command.
            If(early & ((op == OP_COLUMN) | (op == OP_COLUMN_AP)), following.eq(UNKNOWN)),
            If((op[:3] != OP_PRE) & (op >= OP_REFUSED_PRE), following.eq(UNKNOWN)),
        ]
        return following
