# SPDX-License-Identifier: BSD-2-Clause
"""The generator's commands through the decoder, and what the meter says of a block's words."""

from collections.abc import Generator
from typing import Any

import pytest
from litex.gen import LiteXModule
from litex.gen.sim import run_simulation
from migen import ClockDomainsRenamer

from ptat_gateware.selftest import Meter, PatternGenerator, pattern
from ptat_gateware.snoop.ddr3 import DDR3Decoder
from ptat_parser.capture.writer import BlockWriter

ACCESSES = 6


class Generated(LiteXModule):
    """A generator in front of a decoder, in one clock domain."""

    def __init__(self, phases: int, ranks: int) -> None:
        self.generator = generator = PatternGenerator(phases, ranks)
        self.decoder = decoder = DDR3Decoder(phases, ranks)
        self.comb += [
            *(a.eq(b) for a, b in zip(decoder.commands, generator.sources, strict=True)),
            *(pins.cs_n.eq(2**ranks - 1) for pins in generator.sinks),
            decoder.forget.eq(generator.forget),
        ]


@pytest.mark.parametrize(("phases", "ranks"), [(4, 1), (8, 2)])
def test_the_decoder_sees_the_pattern_and_nothing_illegal(phases: int, ranks: int) -> None:
    dut = Generated(phases, ranks)
    seen: list[tuple[int, int, int, bool, int]] = []
    illegal: list[int] = []

    def play() -> Generator[Any, Any, None]:
        control = dut.generator._control.fields
        yield dut.decoder.t_rcd.eq(13)  # DDR3-1600
        yield dut.generator._count.storage.eq(ACCESSES)
        yield  # the registers behind the pins show them now, and not their reset values
        yield control.enable.eq(1)
        for _ in range(8):
            yield
        yield control.run.eq(1)
        for _ in range(PatternGenerator.step_clocks * ACCESSES + 40):
            yield
            for lane in dut.decoder.sources:
                if (yield lane.valid):
                    assert not (yield lane.rank)
                    seen.append(
                        (
                            (yield lane.bank),
                            (yield lane.row),
                            (yield lane.column),
                            bool((yield lane.write)),
                            (yield lane.phase),
                        )
                    )
            if (yield dut.decoder.illegal.valid):
                illegal.append((yield dut.decoder.illegal.code))
        assert (yield dut.generator._status.fields.done)

    run_simulation(ClockDomainsRenamer({"snoop": "sys"})(dut), play())
    assert seen == list(pattern(ACCESSES))
    assert not illegal


def test_without_enable_the_pins_pass() -> None:
    dut = PatternGenerator(4, 2)

    def play() -> Generator[Any, Any, None]:
        yield dut._count.storage.eq(ACCESSES)
        yield dut._control.fields.run.eq(1)
        for sink in dut.sinks:
            yield sink.raw_bits().eq(0x155_5555)
        for clock in range(40):
            yield
            if clock > 2:
                for source in dut.sources:
                    assert (yield source.raw_bits()) == 0x155_5555

    run_simulation(ClockDomainsRenamer({"snoop": "sys"})(dut), play())


def test_the_meter_counts_accesses_only(tmp_path: Any) -> None:
    path = tmp_path / "bus.raw"
    addresses = [0x12345678 * 8 * i % (1 << 39) & ~7 for i in range(1, 40)]
    with path.open("wb") as file, BlockWriter(file) as writer:
        for i, address in enumerate(addresses):
            writer.access(1000 + 10 * i, address, i % 3 == 0)
    data = path.read_bytes()
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    dut = Meter()

    def play() -> Generator[Any, Any, None]:
        for i, word in enumerate(words):
            if i % 5 == 2:  # a word that is not taken is not counted
                yield dut.word.eq(words[2])
                yield dut.taken.eq(0)
                yield
            yield dut.word.eq(word)
            yield dut.taken.eq(1)
            yield
        yield dut.taken.eq(0)
        for _ in range(3):
            yield
        assert (yield dut._accesses.status) == len(addresses)
        assert (yield dut._writes.status) == len(range(0, len(addresses), 3))
        assert (yield dut._sum.status) == sum(address >> 3 for address in addresses) % (1 << 32)

    run_simulation(dut, play())
