# SPDX-License-Identifier: BSD-2-Clause
"""The completer between a host that sends anything and a memory that answers when it likes."""

import dataclasses
import functools
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litex.gen import LiteXModule
from migen import Signal
from pcie_bench import WITHOUT_SHRINKING, Receiver, Sender, Stepper, World, wide
from pcie_model import (
    ATOMICS,
    COMPLETIONS,
    CPLD,
    LOCKED,
    MALFORMED,
    MESSAGES,
    MRD64,
    MWR64,
    OTHERS,
    PREFIX,
    READS,
    SC,
    WINDOW,
    WRITES,
    Completion,
    Endpoint,
    Tlp,
    decoded,
)
from verilated import needs_verilator

from ptat_gateware.pcie.completer import Completer
from ptat_gateware.pcie.layouts import READS as READS_UNDER_WAY
from ptat_gateware.pcie.layouts import Refused, memory_layout, record_layout

pytestmark = needs_verilator

WIDTHS = (64, 128)
COMPLETER = 0x0300
BAR_BYTES = 1 << 16
WINDOW_BYTES = 1 << 12
REGION_BYTES = 1 << 15  # between region and window there is nothing
BASE = 0x12_3456_0000  # of the BAR
QUEUE_DEPTH = 16


class Bare(LiteXModule):
    """A completer, all of whose ends are pins."""

    def __init__(self, data_width: int) -> None:
        completer = Signal(16, reset=COMPLETER)
        self.completer = dut = Completer(
            data_width, BAR_BYTES, WINDOW_BYTES, completer, REGION_BYTES, QUEUE_DEPTH
        )
        bus = dut.bus
        self.inputs = {
            "rx_valid": dut.sink.valid,
            **wide("rx_dat", dut.sink.dat),
            "rx_be": dut.sink.be,
            "rx_last": dut.sink.last,
            "tx_ready": dut.source.ready,
            "record_ready": dut.record.ready,
            "command_ready": dut.command.ready,
            "response_valid": dut.response.valid,
            "response_data": dut.response.data,
            "bus_ack": bus.ack,
            "bus_err": bus.err,
            "bus_dat_r": bus.dat_r,
            "abort": dut.abort,
        }
        self.outputs = {
            "rx_ready": dut.sink.ready,
            "tx_valid": dut.source.valid,
            **wide("tx_dat", dut.source.dat),
            "tx_be": dut.source.be,
            "tx_last": dut.source.last,
            "record_valid": dut.record.valid,
            **{f"record_{name}": getattr(dut.record, name) for name, _ in record_layout},
            "command_valid": dut.command.valid,
            **{f"command_{name}": getattr(dut.command, name) for name, _ in memory_layout},
            "response_ready": dut.response.ready,
            "bus_cyc": bus.cyc,
            "bus_stb": bus.stb,
            "bus_we": bus.we,
            "bus_adr": bus.adr,
            "bus_sel": bus.sel,
            "bus_dat_w": bus.dat_w,
            "refused": dut.refused,
            "empty": dut.empty,
            "busy": dut.busy,
        }


@functools.cache
def stepper(data_width: int) -> Stepper:
    top = Bare(data_width)
    return Stepper(top, top.inputs, top.outputs)


# What is around it --------------------------------------------------------------------------------


class Bytes:
    """The contents of memory and registers, as the completer left them."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}

    def write(self, address: int, data: int, enables: int, size: int) -> None:
        for i in range(size):
            if enables >> i & 1:
                self.values[(address + i) % BAR_BYTES] = data >> 8 * i & 0xFF

    def read(self, address: int, size: int) -> int:
        return sum(self.values.get((address + i) % BAR_BYTES, 0) << 8 * i for i in range(size))


class Memory:
    """Takes commands and answers reads in their order, each after a time of its own."""

    def __init__(self, contents: Bytes, chance: random.Random, latency: int, pause: float) -> None:
        self.contents, self.chance = contents, chance
        self.latency, self.pause = latency, pause
        self.under_way: deque[tuple[int, int]] = deque()  # when, data
        self.most = 0
        self.writes = 0
        self.now = 0
        self._before: tuple[int, ...] | None = None

    def drive(self, pins: dict[str, int]) -> None:
        pins["command_ready"] = int(self.chance.random() >= self.pause)
        due = bool(self.under_way) and self.under_way[0][0] <= self.now
        pins["response_valid"] = int(due)
        pins["response_data"] = self.under_way[0][1] if due else 0xBAD
        self._pins = pins

    def seen(self, outputs: dict[str, int]) -> None:
        self.now += 1
        if self._pins["response_valid"] and outputs["response_ready"]:
            self.under_way.popleft()
        command = tuple(outputs[f"command_{name}"] for name, _ in memory_layout)
        if self._before is not None:
            assert outputs["command_valid"] and command == self._before
        taken = outputs["command_valid"] and self._pins["command_ready"]
        self._before = command if outputs["command_valid"] and not taken else None
        if not taken:
            return
        write, address, enables, data = command
        if write:
            self.writes += 1
            self.contents.write(8 * address, data, enables, 8)
        else:
            when = self.now + self.chance.randint(0, self.latency)
            self.under_way.append((when, self.contents.read(8 * address, 8)))
            self.most = max(self.most, len(self.under_way))


class Registers:
    """The bus of the window; addresses in ``missing`` (dwords) give an error."""

    def __init__(self, contents: Bytes, chance: random.Random, missing: frozenset[int]) -> None:
        self.contents, self.chance, self.missing = contents, chance, missing
        self.cycles = 0
        self._cycle: dict[str, int] | None = None

    def drive(self, pins: dict[str, int]) -> None:
        pins["bus_ack"] = pins["bus_err"] = 0
        cycle = self._cycle
        if cycle is None or self.chance.random() < 0.4:
            self._answering = False
            return
        self._answering = True
        self.cycles += 1
        place = BAR_BYTES - WINDOW_BYTES + 4 * cycle["bus_adr"]
        if cycle["bus_adr"] in self.missing:
            pins["bus_err"] = 1
            return
        pins["bus_ack"] = 1
        pins["bus_dat_r"] = self.contents.read(place, 4)
        if cycle["bus_we"]:
            self.contents.write(place, cycle["bus_dat_w"], cycle["bus_sel"], 4)

    def seen(self, outputs: dict[str, int]) -> None:
        asks = outputs["bus_cyc"] and outputs["bus_stb"]
        if self._answering:
            assert asks
            self._cycle = None
        else:
            self._cycle = (
                {k: v for k, v in outputs.items() if k.startswith("bus_")} if asks else None
            )


class Trace:
    """Takes records, while ``room``; counts what was refused."""

    def __init__(self, chance: random.Random, pause: float) -> None:
        self.chance, self.pause = chance, pause
        self.room = True
        self.records: list[tuple[int, int]] = []
        self.partial: list[int] = []
        self.refused: list[int] = []
        self.empty = 0
        self._before: tuple[int, ...] | None = None

    def drive(self, pins: dict[str, int]) -> None:
        pins["record_ready"] = int(self.room and self.chance.random() >= self.pause)
        self._ready = pins["record_ready"]

    def seen(self, outputs: dict[str, int]) -> None:
        if outputs["record_valid"] and self._ready:
            self.records.append((outputs["record_write"], outputs["record_address"]))
            self.partial.append(outputs["record_partial"])
        self.refused += [kind for kind in range(len(Refused)) if outputs["refused"] >> kind & 1]
        self.empty += outputs["empty"]


class Order:
    """Watches that each access's record is there before the memory has the access."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def drive(self, pins: dict[str, int]) -> None:
        self.recorded = set(self.trace.records)

    def seen(self, outputs: dict[str, int]) -> None:
        if outputs["command_valid"] and outputs["command_be"]:
            access = (outputs["command_write"], outputs["command_address"])
            # The later beats of a read have no record of their own.
            assert access in self.recorded or not outputs["command_write"]


class Bench:
    """A completer in the middle of all that."""

    def __init__(
        self,
        data_width: int = 64,
        *,
        seed: int = 0,
        latency: int = 8,
        pause: float = 0.3,
        missing: frozenset[int] = frozenset(),
    ) -> None:
        chance = random.Random(seed)
        self.contents = Bytes()
        self.host = Sender(data_width, "rx", chance, pause)
        self.back = Receiver(data_width, "tx", chance, pause)
        self.memory = Memory(self.contents, chance, latency, pause)
        self.registers = Registers(self.contents, chance, missing)
        self.trace = Trace(chance, pause)
        self.world = World(
            stepper(data_width),
            self.host,
            self.back,
            self.memory,
            self.registers,
            Order(self.trace),
            self.trace,
        )

    def completions(self) -> list[Completion]:
        return [decoded(dwords) for dwords in self.back.packets]


def settle(bench: Bench, limit: int = 40_000) -> None:
    """Until all that was sent is done, and for a while longer."""
    quiet = 0
    for _ in range(limit):
        outputs = bench.world.step()
        quiet = 0 if outputs["busy"] or bench.host.words else quiet + 1
        if quiet > 40:
            return
    raise AssertionError("the completer is never done")


def compare(bench: Bench, model: Endpoint, tlps: list[Tlp]) -> None:
    """Send packets, and compare everything that comes of them with the model."""
    reactions = [model.react(tlp) for tlp in tlps]
    for tlp in tlps:
        bench.host.send(tlp.dwords())
    settle(bench)

    got = bench.completions()
    expected = [r.completion for r in reactions if r.completion is not None]
    assert sorted(got, key=repr) == sorted(expected, key=repr)
    # Completions of the region keep their order, those of the window and of refusals theirs.
    in_region = {r.completion for r in reactions if r.completion and r.records}
    assert [c for c in got if c in in_region] == [c for c in expected if c in in_region]
    assert bench.trace.records == [record for r in reactions for record in r.records]
    assert sorted(bench.trace.refused) == sorted(
        r.refused for r in reactions if r.refused is not None
    )
    for address in range(BAR_BYTES):
        assert bench.contents.values.get(address, 0) == model.bytes[address]


# Anything ---------------------------------------------------------------------------------------


def payload(draw: Any, length: int) -> tuple[int, ...]:
    word = st.integers(0, 0xFFFF_FFFF)
    return tuple(draw(st.lists(word, min_size=length, max_size=length)))


@st.composite
def memory_request(draw: Any) -> Tlp:
    """Reads and writes around few places, so that they meet; some against the rules."""
    kind = draw(st.sampled_from((*READS, *WRITES, *WRITES)))
    length = draw(st.sampled_from([1, 1, 2, 2, 2, 3, 5, 15, 16, 17, 32]))
    pages = [0, 0, 0x1000, REGION_BYTES - 0x1000, REGION_BYTES, BAR_BYTES - WINDOW_BYTES]
    page = draw(st.sampled_from(pages))
    place = draw(st.sampled_from([0, 4, 8, 0x3C, 0x40, 0xFF8, 0xFFC]))
    be = st.integers(0, 15)
    first, last = draw(st.tuples(be, be if length > 1 else st.sampled_from([0, 0, 0, 0, 0, 1])))
    base = BASE if kind & 0x20 else BASE % 2**32
    return Tlp(
        kind=kind,
        length=length,
        address=base + page + place,
        first_be=first or draw(st.sampled_from([0, 15])),
        last_be=last,
        requester=draw(st.integers(0, 0xFFFF)),
        tag=draw(st.integers(0, 255)),
        traffic_class=draw(st.integers(0, 7)),
        attributes=draw(st.integers(0, 7)),
        poisoned=int(draw(st.integers(0, 9)) == 0),
        digest=int(draw(st.integers(0, 9)) == 0),
        payload=payload(draw, length) if kind in WRITES else (),
    )


@st.composite
def other_request(draw: Any) -> Tlp:
    """All the kinds that are no reads or writes of memory."""
    kind = draw(
        st.sampled_from((*LOCKED, *ATOMICS, *OTHERS, *COMPLETIONS, *MESSAGES, PREFIX, 0x1F, 0x5B))
    )
    length = draw(st.integers(1, 4))
    return Tlp(
        kind=kind,
        length=length,
        address=BASE if kind & 0x20 else BASE % 2**32,
        last_be=0xF if length > 1 else 0,
        tag=draw(st.integers(0, 255)),
        poisoned=draw(st.integers(0, 1)),
        payload=payload(draw, length) if kind & 0x40 else (),
    )


@st.composite
def cut_request(draw: Any) -> Tlp:
    """A write that ends early."""
    tlp = draw(memory_request().filter(lambda tlp: tlp.kind in WRITES))
    return dataclasses.replace(tlp, payload=tlp.payload[: draw(st.integers(0, tlp.length - 1))])


def distinct(tlps: list[Tlp]) -> list[Tlp]:
    """With tags by which completions can be told apart."""
    return [dataclasses.replace(tlp, tag=i) for i, tlp in enumerate(tlps)]


packets = st.lists(
    st.one_of(memory_request(), memory_request(), memory_request(), other_request(), cut_request()),
    min_size=1,
    max_size=40,
).map(distinct)


@settings(max_examples=60, deadline=None, phases=WITHOUT_SHRINKING)
@given(st.sampled_from(WIDTHS), packets, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.8]))
def test_any_packets(data_width, tlps, seed, pause):
    bench = Bench(data_width, seed=seed, latency=random.Random(seed).randint(0, 40), pause=pause)
    model = Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES)
    compare(bench, model, tlps)
    assert bench.trace.empty == sum(
        tlp.length == 1
        and tlp.first_be == 0
        and tlp.kind in (*READS, *WRITES)
        and tlp.address % BAR_BYTES < REGION_BYTES
        and not (tlp.kind in WRITES and tlp.poisoned)
        and not tlp.last_be
        and len(tlp.payload) == (tlp.kind in WRITES)
        for tlp in tlps
    )


@pytest.mark.parametrize("data_width", WIDTHS)
@pytest.mark.parametrize("kind", READS)
def test_every_byte_enable_and_length(data_width, kind):
    """All rows of the tables of section 2.3.1.1, at even and odd dwords."""
    base = BASE if kind == MRD64 else BASE % 2**32
    tlps = [
        Tlp(kind, length, base + place, first, last, tag=first | last << 4)
        for length in (1, 2, 3, 16)
        for place in (0x70, 0x7C)
        for first in range(16)
        for last in (range(16) if length > 1 else (0,))
        if length == 1 or (first and last)
    ]
    for start in range(0, len(tlps), 240):
        bench = Bench(data_width, pause=0.0, latency=3)
        model = Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES)
        fill = [
            Tlp(MWR64, 16, BASE + 0x40 * i, 15, 15, payload=tuple(range(16 * i, 16 * i + 16)))
            for i in range(4)
        ]
        compare(bench, model, fill + distinct(tlps[start : start + 240]))


def test_refused_atomic_operations_name_the_bytes_that_they_would_return():
    """Byte Count of section 2.2.9: an operand's size; of compare and swap, one of its two."""
    tlps = [
        Tlp(
            kind,
            length,
            BASE if kind & 0x20 else BASE % 2**32,
            last_be=0xF if length > 1 else 0,
            payload=tuple(range(length)),
        )
        for kind in ATOMICS
        for length in (1, 2, 4, 8)
    ]
    compare(Bench(), Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES), distinct(tlps))


# Order and holding --------------------------------------------------------------------------------


def reads(count: int, length: int = 2) -> list[Tlp]:
    return distinct(
        [Tlp(MRD64, length, BASE + 64 * i, 15, 15 if length > 1 else 0) for i in range(count)]
    )


@pytest.mark.parametrize("data_width", WIDTHS)
def test_a_read_sees_every_write_before_it(data_width):
    tlps = []
    for i in range(60):
        value = (i, i ^ 0xFFFF)
        tlps.append(Tlp(MWR64, 2, BASE + 8 * (i % 3), 15, 15, payload=value))
        tlps.append(Tlp(MRD64, 2, BASE + 8 * (i % 3), 15, 15))
    bench = Bench(data_width, latency=60, pause=0.1)
    compare(bench, Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES), distinct(tlps))


def test_several_reads_are_under_way():
    bench = Bench(latency=200, pause=0.0)
    compare(bench, Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES), reads(60))
    assert bench.memory.most >= READS_UNDER_WAY


def test_no_completion_without_a_record():
    """While records find no room, the region answers nothing; then everything."""
    bench = Bench(pause=0.0)
    bench.trace.room = False
    for tlp in reads(8):
        bench.host.send(tlp.dwords())
    for _ in range(2000):
        bench.world.step()
    assert not bench.completions()
    assert not bench.memory.under_way
    assert bench.world.step()["busy"]
    bench.trace.room = True
    settle(bench)
    assert len(bench.completions()) == len(bench.trace.records) == 8


def test_registers_and_refusals_pass_what_waits():
    bench = Bench(pause=0.0)
    model = Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES)
    bench.trace.room = False
    write = Tlp(MWR64, 2, BASE, 15, 15, payload=(1, 2))
    for tlp in (*reads(4), write):
        bench.host.send(tlp.dwords())
    window = BASE + BAR_BYTES - WINDOW_BYTES
    register = Tlp(MWR64, 1, window + 8, payload=(0x1234,))
    answer = model.react(register), model.react(Tlp(MRD64, 2, window + 8, 15, 15, tag=9))
    refusal = model.react(Tlp(MRD64, 32, BASE, 15, 15, tag=10))
    for tlp in (
        register,
        Tlp(MRD64, 2, window + 8, 15, 15, tag=9),
        Tlp(MRD64, 32, BASE, 15, 15, tag=10),
    ):
        bench.host.send(tlp.dwords())
    bench.world.run_until(lambda: len(bench.back.packets) == 2)
    assert bench.completions() == [answer[1].completion, refusal.completion]
    assert not bench.trace.records
    bench.trace.room = True
    settle(bench)
    assert len(bench.completions()) == 6
    assert [write for write, _ in bench.trace.records] == [0, 0, 0, 0, 1]


def test_credits_run_out_and_come_back():
    """Nothing is taken from the completer for long: it stops taking, and nothing is lost."""
    bench = Bench(pause=0.0, latency=0)
    bench.back.pause = 1.0
    tlps = reads(80, 16)
    for tlp in tlps:
        bench.host.send(tlp.dwords())
    for _ in range(4000):
        bench.world.step()
    assert bench.host.words
    assert bench.memory.most <= READS_UNDER_WAY * 8
    bench.back.pause = 0.5
    settle(bench)
    assert [c.tag for c in bench.completions()] == [tlp.tag for tlp in tlps]
    assert all(
        c.status == SC and c.kind == CPLD and c.byte_count == 64 for c in bench.completions()
    )


# Window -------------------------------------------------------------------------------------------


def test_accesses_of_registers_are_of_one_or_two_dwords():
    """Up to the window's end; others are refused, and none is an access of the region."""
    window = BASE + BAR_BYTES - WINDOW_BYTES
    tlps = []
    for length in (1, 2, 3, 4, 16):
        last = 15 if length > 1 else 0
        for place in (window, window + 4, window + WINDOW_BYTES - 4 * length):
            data = tuple(range(len(tlps), len(tlps) + length))
            tlps.append(Tlp(MWR64, length, place, 15, last, payload=data))
            tlps.append(Tlp(MRD64, length, place, 15, last))
    compare(Bench(), Endpoint(BAR_BYTES, WINDOW_BYTES, COMPLETER, REGION_BYTES), distinct(tlps))


def test_a_register_that_is_not_there():
    missing = frozenset({2})
    bench = Bench(missing=missing)
    window = BASE + BAR_BYTES - WINDOW_BYTES
    tlps = distinct(
        [
            Tlp(MRD64, 1, window + 8),
            Tlp(MRD64, 2, window + 4, 15, 15),
            Tlp(MWR64, 1, window + 8, payload=(1,)),
            Tlp(MRD64, 1, window + 4),
        ]
    )
    for tlp in tlps:
        bench.host.send(tlp.dwords())
    settle(bench)
    assert [(c.status, len(c.payload)) for c in bench.completions()] == [(1, 0), (1, 0), (0, 1)]
    assert bench.trace.refused == [WINDOW] * 3
    assert bench.trace.records == []


# Partial ------------------------------------------------------------------------------------------


def test_accesses_of_other_than_8_bytes_are_marked():
    bench = Bench()
    tlps = [
        Tlp(MRD64, 2, BASE, 15, 15),
        Tlp(MRD64, 1, BASE),
        Tlp(MRD64, 2, BASE + 4, 15, 15),
        Tlp(MRD64, 16, BASE, 15, 15),
        Tlp(MWR64, 2, BASE, 15, 15, payload=(1, 2)),
        Tlp(MWR64, 2, BASE, 15, 7, payload=(1, 2)),
        Tlp(MWR64, 4, BASE, 15, 15, payload=(1, 2, 3, 4)),
    ]
    for tlp in distinct(tlps):
        bench.host.send(tlp.dwords())
    settle(bench)
    assert bench.trace.partial == [0, 1, 1, 1, 0, 1, 1, 1]


# Breaking off -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("data_width", WIDTHS)
def test_a_link_that_goes_down_in_the_middle(data_width, seed):
    """Whole requests are served to their end, the cut one is forgotten, the next one is right."""
    chance = random.Random(seed)
    bench = Bench(data_width, seed=seed)
    for tlp in reads(chance.randint(0, 5)):
        bench.host.send(tlp.dwords())
    bench.world.run_until(lambda: not bench.host.words)
    cut = Tlp(MWR64, 16, BASE, 15, 15, payload=tuple(range(16)))
    whole = Sender(data_width, "rx", chance, 0)
    whole.send(cut.dwords())
    bench.host.words.extend(list(whole.words)[: chance.randint(0, len(whole.words) - 1)])
    # Of the last word, which is never taken whole, some dwords have been looked at.
    bench.world.run_until(lambda: len(bench.host.words) <= 1)
    bench.world.run_until(lambda: not bench.host.words or bench.world.stepper.pins["rx_valid"])
    for _ in range(chance.randint(0, data_width // 32 - 2)):
        bench.world.step()
    bench.host.clear()
    bench.world.stepper.pins["abort"] = 1
    settle(bench)
    bench.world.stepper.pins["abort"] = 0
    before = len(bench.completions())
    bench.host.send(Tlp(MRD64, 16, BASE, 15, 15, tag=77).dwords())
    settle(bench)
    assert len(bench.completions()) == before + 1
    last = bench.completions()[-1]
    assert (last.tag, last.payload) == (77, (0,) * 16)
    assert MALFORMED not in bench.trace.refused
