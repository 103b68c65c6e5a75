# SPDX-License-Identifier: BSD-2-Clause
"""What the firmware tests the capture with, before there is a host: a bus of its own, and a meter.

    capture ─► PatternGenerator ─► snooper ─┬─► link
               or commands of its own       └─► Meter

Generator and firmware know the same sequence, so the firmware knows what the Meter must show:
see `pattern`.
"""

from __future__ import annotations

from collections.abc import Iterator

from litex.gen import LiteXModule
from litex.soc.interconnect.csr import CSRField, CSRStatus, CSRStorage
from migen import Case, Cat, Constant, If, Mux, Record, Signal
from migen.genlib.cdc import MultiReg

from ptat_gateware.layouts import BANK_BITS, WORD_BITS, ddr3_command_layout
from ptat_parser import wire

# Pattern ------------------------------------------------------------------------------------------

LFSR_BITS = 32
LFSR_TAPS = 0x80200003  # x^32 + x^22 + x^2 + x + 1, of maximal length
LFSR_SEED = 1

# What the bits of its state are, the lowest first: the fields of an access.
BURST_BITS, ROW_BITS, PHASE_BITS = 7, 16, 2
BURST_SHIFT = 3  # a column is a multiple of 8


def lfsr_next(state: int) -> int:
    """The state after ``state``."""
    return state >> 1 ^ (LFSR_TAPS if state & 1 else 0)


def pattern(count: int) -> Iterator[tuple[int, int, int, bool, int]]:
    """The first accesses: bank, row, column, whether it writes, command phase (of 4)."""
    state = LFSR_SEED
    for _ in range(count):
        yield (
            state >> BURST_BITS + ROW_BITS & (1 << BANK_BITS) - 1,
            state >> BURST_BITS & (1 << ROW_BITS) - 1,
            (state & (1 << BURST_BITS) - 1) << BURST_SHIFT,
            bool(state >> BURST_BITS + ROW_BITS + BANK_BITS & 1),
            state >> BURST_BITS + ROW_BITS + BANK_BITS + 1 & (1 << PHASE_BITS) - 1,
        )
        state = lfsr_next(state)


class PatternGenerator(LiteXModule):
    """Stands between the command pins and a DDR3 decoder, and can take the pins' place.

    ``sinks`` and ``sources`` are commands of the phases of a clock, in domain ``snoop``. For each
    access, it opens a row of the first rank, reads or writes, and closes the row again. ``forget``:
    what comes is no continuation.
    """

    step_clocks = 16  # for an access
    _open, _access, _close = 0, 4, 10  # 4 clocks are more than any tRCD, 6 more than any tWR + tRTP

    def __init__(self, phases: int, ranks: int) -> None:
        layout = ddr3_command_layout(ranks)
        self.sinks = [Record(layout, name=f"pins{phase}") for phase in range(phases)]
        self.sources = [Record(layout, name=f"commands{phase}") for phase in range(phases)]
        self.forget = Signal()

        self._control = CSRStorage(
            fields=[
                CSRField("enable", size=1, description="Take the pins' place."),
                CSRField("run", size=1, description="Put `count` accesses on the bus, once."),
            ],
            description="Control of the generator.",
        )
        self._count = CSRStorage(16, description="Number of accesses.")
        self._status = CSRStatus(
            fields=[CSRField("done", size=1, description="All are on the bus; falls with `run`.")],
            description="State of the generator. Without a clock from the bus it does not change.",
        )

        # # #

        enable, enabled, run, done = Signal(), Signal(), Signal(), Signal()
        self.specials += [
            MultiReg(self._control.fields.enable, enable, "snoop"),
            MultiReg(self._control.fields.run, run, "snoop"),
            MultiReg(done, self._status.fields.done, "sys"),
        ]
        state = Signal(LFSR_BITS, reset=LFSR_SEED)
        step = Signal(max=self.step_clocks)
        number = Signal(len(self._count.storage))
        self.comb += done.eq(run & (number == self._count.storage))
        self.sync.snoop += [
            enabled.eq(enable),
            self.forget.eq(enable ^ enabled),
            If(~run, state.eq(LFSR_SEED), step.eq(0), number.eq(0)).Elif(
                ~done,
                step.eq(step + 1),
                If(
                    step == self.step_clocks - 1,
                    number.eq(number + 1),
                    state.eq(
                        Cat(state[1:], Constant(0, 1)) ^ Mux(state[0], LFSR_TAPS, 0),
                    ),
                ),
            ),
        ]

        burst, row = Signal(BURST_BITS), Signal(ROW_BITS)
        bank, write, phase = Signal(BANK_BITS), Signal(), Signal(PHASE_BITS)
        self.comb += Cat(burst, row, bank, write, phase).eq(state)

        # JESD79-3F, table 6. A10 is low: no auto-precharge, and PRE closes one bank.
        command = Record(layout)
        self.comb += [
            command.cke.eq(2**ranks - 1),
            command.cs_n.eq(2**ranks - 2),
            command.ba.eq(bank),
            Case(
                step,
                {
                    self._open: [
                        Cat(command.ras_n, command.cas_n, command.we_n).eq(0b110),
                        command.a.eq(row),
                    ],
                    self._access: [
                        Cat(command.ras_n, command.cas_n, command.we_n).eq(
                            Cat(Constant(1, 1), Constant(0, 1), ~write)
                        ),
                        command.a.eq(Cat(Constant(0, BURST_SHIFT), burst)),
                    ],
                    self._close: Cat(command.ras_n, command.cas_n, command.we_n).eq(0b010),
                    "default": [
                        command.cs_n.eq(2**ranks - 1),
                        Cat(command.ras_n, command.cas_n, command.we_n).eq(0b111),
                    ],
                },
            ),
            If(~run | done, command.cs_n.eq(2**ranks - 1)),
        ]
        for i, (sink, source) in enumerate(zip(self.sinks, self.sources, strict=True)):
            here = Signal()
            self.comb += here.eq(Mux(step == self._access, phase, 0) == i)
            self.sync.snoop += [
                *(getattr(source, name).eq(getattr(sink, name)) for name, _ in layout),
                If(
                    enable,
                    *(getattr(source, name).eq(getattr(command, name)) for name, _ in layout),
                    If(~here, source.cs_n.eq(2**ranks - 1)),
                ),
            ]


# Meter --------------------------------------------------------------------------------------------


class Meter(LiteXModule):
    """Looks at the words that leave the buffer, and counts accesses.

    ``word`` is checked while ``taken``. ``restart`` is high with each reset of the counters.
    """

    def __init__(self) -> None:
        self.word = Signal(WORD_BITS)
        self.taken = Signal()
        self.restart = Signal()

        self._control = CSRStorage(
            fields=[
                CSRField(
                    "restart",
                    size=1,
                    pulse=True,
                    description="Reset the counters, and let the next block be number 0. Only while"
                    " no block is under way.",
                ),
            ],
            description="Control of the meter.",
        )
        self._accesses = CSRStatus(32, description="Accesses in blocks that left the buffer.")
        self._writes = CSRStatus(32, description="Those of them that write.")
        self._sum = CSRStatus(
            32, description="Sum of the low 32 bits of their addresses, in units of 8 bytes."
        )

        # # #

        self.comb += self.restart.eq(self._control.fields.restart)
        word, taken = Signal(WORD_BITS), Signal()
        counts = (self._accesses, self._writes, self._sum)
        self.sync += [
            word.eq(self.word),
            taken.eq(self.taken),
            # No other word of a block has this tag, a header's magic included.
            If(
                taken & (word[wire.TAG_SHIFT :] == wire.Tag.ACCESS),
                self._accesses.status.eq(self._accesses.status + 1),
                self._writes.status.eq(self._writes.status + word[wire.ACCESS_WRITE_SHIFT]),
                self._sum.status.eq(self._sum.status + word[:32]),
            ),
            If(self.restart, *(count.status.eq(0) for count in counts)),
        ]
