# SPDX-License-Identifier: BSD-2-Clause
"""Words between a link and the firmware, which sits behind the CSR bus."""

import random
from collections.abc import Generator
from typing import Any

import pytest
from litex.gen import LiteXModule
from litex.gen.sim import run_simulation
from verilated import Registers

from ptat_gateware.link.mailbox import FRAME_WORDS, Mailbox

VALID, LAST, BUSY = 1, 2, 4


class OnBus(LiteXModule):
    """A mailbox behind the CSR bus."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        registers = Registers(self.mailbox)
        self.bus = registers.bus
        self.address = registers.addresses

    def read(self, name: str) -> Generator[Any, Any, int]:
        yield self.bus.adr.eq(self.address(name)[0])
        yield self.bus.re.eq(1)
        yield
        yield self.bus.re.eq(0)
        yield
        return (yield self.bus.dat_r)

    def write(self, name: str, value: int) -> Generator[Any, Any, None]:
        yield self.bus.adr.eq(self.address(name)[0])
        yield self.bus.dat_w.eq(value)
        yield self.bus.we.eq(1)
        yield
        yield self.bus.we.eq(0)

    def take(self) -> Generator[Any, Any, tuple[int, int]]:
        """The next word of a request, and whether it is the last."""
        while not (status := (yield from self.read("status"))) & VALID:
            pass
        return (yield from self.read("request")), int(bool(status & LAST))

    def answer(self, words: list[int]) -> Generator[Any, Any, None]:
        while (yield from self.read("status")) & BUSY:
            pass
        for word in words:
            yield from self.write("response", word)
        yield from self.write("control", 1)


def link(dut: OnBus, datagrams: list[list[int]], pause: random.Random) -> Generator[Any, Any, None]:
    """Sends each datagram once the mailbox is idle."""
    sink = dut.mailbox.sink
    for words in datagrams:
        while not (yield dut.mailbox.idle):
            yield
        for i, word in enumerate(words):
            while pause.random() < 0.3:
                yield
            yield sink.valid.eq(1)
            yield sink.data.eq(word)
            yield sink.last.eq(i == len(words) - 1)
            yield
            while not (yield sink.ready):
                yield
            yield sink.valid.eq(0)
        yield


def answers(dut: OnBus, count: int, pause: random.Random) -> Generator[Any, Any, list[list[int]]]:
    """What the link is given to send."""
    source, result = dut.mailbox.source, []
    while len(result) < count:
        words = []
        while True:
            yield source.ready.eq(pause.random() < 0.6)
            yield
            if (yield source.valid) and (yield source.ready):
                words.append((yield source.data))
                if (yield source.last):
                    break
        result.append(words)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_each_request_gets_its_answer(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [1, 2, 5, FRAME_WORDS, chance.randrange(1, 200), 3]
    requests = [[chance.getrandbits(32) for _ in range(size)] for size in sizes]
    got: list[list[int]] = []
    sent: list[list[int]] = []
    lengths: list[int] = []

    def firmware(dut: OnBus) -> Generator[Any, Any, None]:
        for i in range(len(requests)):
            words, last = [], 0
            while not last:
                word, last = yield from dut.take()
                words.append(word)
            got.append(words)
            # Each second one deserves no answer.
            yield from dut.answer([word ^ 0xFFFF_FFFF for word in words] if i % 2 else [])

    def other_end(dut: OnBus) -> Generator[Any, Any, None]:
        sent.extend((yield from answers(dut, len(requests) // 2, chance)))

    def watch(dut: OnBus) -> Generator[Any, Any, None]:
        source = dut.mailbox.source
        while len(lengths) < len(requests) // 2:
            if (yield source.valid) and (yield source.ready) and (yield source.last):
                lengths.append((yield source.words))
            yield

    dut = OnBus()
    run_simulation(dut, [link(dut, requests, chance), firmware(dut), other_end(dut), watch(dut)])
    assert got == requests
    assert sent == [[word ^ 0xFFFF_FFFF for word in words] for words in requests[1::2]]
    assert lengths == [len(words) for words in requests[1::2]]


def test_not_idle_from_the_first_word_to_the_end_of_the_answer() -> None:
    seen: list[tuple[str, int]] = []

    def check(dut: OnBus, when: str) -> Generator[Any, Any, None]:
        yield
        seen.append((when, (yield dut.mailbox.idle)))

    def run(dut: OnBus) -> Generator[Any, Any, None]:
        sink, source = dut.mailbox.sink, dut.mailbox.source
        yield from check(dut, "at rest")
        for last in (0, 1):
            yield sink.valid.eq(1)
            yield sink.last.eq(last)
            yield
            yield sink.valid.eq(0)
            yield from check(dut, "receiving")
        yield from dut.take()
        yield from dut.take()
        yield from check(dut, "taken")
        yield from dut.answer([1, 2])
        for _ in range(5):
            yield from check(dut, "answering")
        yield source.ready.eq(1)
        for _ in range(3):
            yield
        yield from check(dut, "sent")

    dut = OnBus()
    run_simulation(dut, run(dut))
    assert {when for when, idle in seen if idle} == {"at rest", "sent"}


def test_a_stream_waits_for_the_firmware() -> None:
    """More than the mailbox holds, without `last`: a USB host's requests."""
    words = list(range(FRAME_WORDS + 50))
    got: list[int] = []

    def send(dut: OnBus) -> Generator[Any, Any, None]:
        sink = dut.mailbox.sink
        yield sink.valid.eq(1)
        for word in words:
            yield sink.data.eq(word)
            yield
            while not (yield sink.ready):
                yield
        yield sink.valid.eq(0)

    def firmware(dut: OnBus) -> Generator[Any, Any, None]:
        for _ in range(2 * FRAME_WORDS):
            yield
        assert not (yield dut.mailbox.sink.ready)
        while len(got) < len(words):
            word, last = yield from dut.take()
            assert not last
            got.append(word)
        assert not (yield from dut.read("status")) & VALID

    dut = OnBus()
    run_simulation(dut, [send(dut), firmware(dut)])
    assert got == words


def test_an_answer_under_way_is_not_spoilt() -> None:
    """Words written, and `done` again, while it is sent."""
    sent: list[list[int]] = []

    def firmware(dut: OnBus) -> Generator[Any, Any, None]:
        yield from dut.answer([1, 2, 3])
        yield
        yield
        assert (yield from dut.read("status")) & BUSY
        yield from dut.write("response", 99)
        yield from dut.write("control", 1)
        for _ in range(20):
            yield
        sent.extend((yield from answers(dut, 1, random.Random(0))))
        yield from dut.answer([7])
        sent.extend((yield from answers(dut, 1, random.Random(0))))

    dut = OnBus()
    run_simulation(dut, firmware(dut))
    assert sent == [[1, 2, 3], [7]]
