# SPDX-License-Identifier: BSD-2-Clause
"""The stream through registers, read over the CSR bus as a bridge would."""

import random
from collections.abc import Generator
from typing import Any

import pytest
from litex.gen import LiteXModule
from litex.gen.sim import run_simulation
from litex.soc.interconnect import csr_bus

from ptat_gateware.link.registers import RegisterLink

BLOCK_WORDS = 5  # the link goes by `last`, not by the length
STATUS, DATA = 0, 1  # word addresses, in order of declaration


class OnBus(LiteXModule):
    """A link behind the CSR bus."""

    def __init__(self, depth: int) -> None:
        self.link = RegisterLink(depth)
        self.bank = csr_bus.CSRBank(
            self.link.get_csrs(), bus=csr_bus.Interface(data_width=32), ordering="big"
        )
        self.bus = self.bank.bus


def send(dut: OnBus, words: list[int], pause: random.Random) -> Generator[Any, Any, None]:
    sink = dut.link.sink
    for i, word in enumerate(words):
        while pause.random() < 0.3:
            yield
        yield sink.valid.eq(1)
        yield sink.data.eq(word)
        yield sink.last.eq(i % BLOCK_WORDS == BLOCK_WORDS - 1)
        yield
        while not (yield sink.ready):
            yield
        yield sink.valid.eq(0)


def read(dut: OnBus, address: int) -> Generator[Any, Any, int]:
    yield dut.bus.adr.eq(address)
    yield dut.bus.re.eq(1)
    yield
    yield dut.bus.re.eq(0)
    yield
    return (yield dut.bus.dat_r)


@pytest.mark.parametrize("depth", [2, 8, 64])
def test_words_arrive_once_and_in_order(depth: int) -> None:
    chance = random.Random(depth)
    words = [chance.getrandbits(64) for _ in range(8 * BLOCK_WORDS)]
    halves = [half for word in words for half in (word & 0xFFFF_FFFF, word >> 32)]
    seen: list[int] = []
    starts: list[int] = []
    levels: set[int] = set()

    def host(dut: OnBus) -> Generator[Any, Any, None]:
        while len(seen) < len(halves):
            for _ in range(chance.choice([1, 1, 1, 100])):
                yield
            status = yield from read(dut, STATUS)
            level, first = status & 0xFFFF, status >> 16
            levels.add(level)
            if level and first:
                starts.append(len(seen))
            for _ in range(level):
                seen.append((yield from read(dut, DATA)))

    dut = OnBus(depth)
    run_simulation(dut, [send(dut, words, chance), host(dut)])
    assert seen == halves
    assert starts  # a host that joins late can find a block's start
    assert all(start % (2 * BLOCK_WORDS) == 0 for start in starts)
    assert max(levels) == depth + 1  # it was full, so the stream had to wait


def test_reading_an_empty_link_takes_nothing() -> None:
    seen: list[int] = []

    def host(dut: OnBus) -> Generator[Any, Any, None]:
        for _ in range(3):
            assert (yield from read(dut, STATUS)) == 1 << 16
            yield from read(dut, DATA)
        yield from send(dut, [0x1122_3344_5566_7788], random.Random(0))
        for _ in range(10):
            yield
        assert (yield from read(dut, STATUS)) == 1 << 16 | 2
        for _ in range(2):
            seen.append((yield from read(dut, DATA)))

    dut = OnBus(8)
    run_simulation(dut, host(dut))
    assert seen == [0x5566_7788, 0x1122_3344]
