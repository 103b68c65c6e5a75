# SPDX-License-Identifier: BSD-2-Clause
"""The FT601 link against a model of the chip that forgives nothing.

The model follows the diagrams of DS_FT600Q-FT601Q for the multi-channel FIFO bus, and FTDI's own
master of it: who drives which pins in which cycle, what idle pins show, when a word counts. A cycle
is from one falling edge of the clock to the next, and the rising edge in its middle is where both
sides look. What the chip drives is noise but around that edge, and what the link drives may change
with the falling edge only, at no other clock's and not with what the chip shows: so setup and hold
times are kept by what the FPGA's pins need after an edge, which is a matter of constraints.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from litex.build.lattice.common import lattice_ecp5_trellis_special_overrides
from litex.gen import LiteXModule
from litex.gen.fhdl.verilog import convert
from migen import ClockDomain, Record, Signal
from verilated import Bench, Clocked, Registers, needs_verilator

from ptat_gateware.link import ft601
from ptat_gateware.link.ft601 import FT601Link, FT601Pins
from ptat_gateware.targets.ft601_soc import FT601SoC
from ptat_host import protocol
from ptat_host.protocol import Command, Frame
from ptat_parser import wire

pytestmark = needs_verilator

SYS, FT, FT_N = 1, 2, 4
CLOCKS_MAX = 60_000
ONES = 0xFFFF_FFFF
DRIVEN = ("data_o", "be_o", "oe_status", "oe_rest", "wr_n")


class Top(LiteXModule):
    def __init__(self) -> None:
        self.link = link = FT601Link()
        self.registers = Registers(link)
        bus, pads = self.registers.bus, link.pads
        self.inputs = {
            "adr": bus.adr,
            "we": bus.we,
            "re": bus.re,
            "dat_w": bus.dat_w,
            "offer": link.sink.valid,
            "word": link.sink.data,
            "data": pads.data_i,
            "be": pads.be_i,
            "txe_n": pads.txe_n,
            "rxf_n": pads.rxf_n,
        }
        self.outputs = {
            "dat_r": bus.dat_r,
            "taken": link.sink.ready,
            "data_o": pads.data_o,
            "be_o": pads.be_o,
            "oe_status": pads.oe_status,
            "oe_rest": pads.oe_rest,
            "wr_n": pads.wr_n,
        }


@functools.cache
def build() -> tuple[Top, Bench]:
    top = Top()
    return top, Bench(top, top.inputs, top.outputs, ("sys", "ft", "ft_n"))


@dataclass
class Pins:
    """What one side drives: None is high impedance."""

    status: int | None  # DATA[15:8]
    rest: int | None  # the other bits of DATA
    be: int | None


@dataclass
class Chip:
    """The chip, rising edge by rising edge; ``pins``, ``rxf_n``, ``txe_n`` until the next."""

    chance: random.Random
    in_words: int = 1024  # room for words to the host, by channel
    ends_early: float = 0.0  # chance, by word, that it ends a transfer
    slow: float = 0.0  # chance that it answers a command later than the data sheet shows
    out: deque[tuple[int, int]] = field(default_factory=deque)  # requests: word, BE
    to_host: dict[int, deque[int]] = field(default_factory=lambda: {1: deque(), 2: deque()})
    transfers: list[tuple[int, int, str]] = field(default_factory=list)  # channel, words, who ended
    state: str = "IDLE"
    channel: int = 0
    words: int = 0
    accepted: list[int] = field(default_factory=list)  # on channel 2, whatever became of it
    resetting: int = 0
    reset_due: int = 0
    deaf: bool = False
    rxf_n: int = 1
    txe_n: int = 0
    pins: Pins = field(default_factory=lambda: Pins(0xFF, None, None))

    def flags(self) -> int:
        """DATA[15:8] of an idle bus."""
        status = 0xFF
        for channel, words in self.to_host.items():
            if len(words) <= self.in_words // 2:
                status &= ~(1 << channel - 1)
        return status & ~0x10 if self.out else status

    def _lose_all(self) -> None:
        self._show("RESET", 1, 1, Pins(None, None, None))
        self.resetting, self.reset_due = self.reset_due, 0
        self.out.clear()
        for words in self.to_host.values():
            words.clear()

    def edge(self, wr_n: int, master: Pins) -> None:
        """A rising edge; what was driven in this cycle, and what will be in the next."""
        for ours, theirs in (
            (self.pins.status, master.status),
            (self.pins.rest, master.rest),
            (self.pins.be, master.be),
        ):
            assert ours is None or theirs is None, f"{self.state}: both drive the bus"
        getattr(self, f"_{self.state.lower()}")(wr_n, master)
        if self.reset_due:
            self._lose_all()

    def _show(self, state: str, rxf_n: int, txe_n: int, pins: Pins) -> None:
        self.state, self.rxf_n, self.txe_n, self.pins = state, rxf_n, txe_n, pins

    def _to_idle(self) -> None:
        self._show("IDLE", 1, 0, Pins(self.flags(), None, None))

    def _ended(self, who: str) -> None:
        self.transfers.append((self.channel, self.words, who))

    def _reset(self, wr_n: int, master: Pins) -> None:
        self.resetting -= 1
        self._show("RESET", 1, 1, Pins(None, None, None))
        if not self.resetting:
            assert wr_n
            self._to_idle()

    def _idle(self, wr_n: int, master: Pins) -> None:
        assert master.rest is not None
        assert master.be is not None
        if wr_n:
            assert (master.rest, master.be) == (ONES & ~0xFF00, 15), "an idle bus is all ones"
            self._to_idle()
            return
        self.channel, self.words = master.rest & 0xFF, 0
        assert master.rest >> 16 == 0xFFFF
        assert self.pins.status is not None
        if master.be == ft601.READ:
            assert not self.pins.status >> self.channel + 3 & 1, "reads where there is nothing"
            self._show("READ_TURN", 1, 1, Pins(0xFF, None, None))
        else:
            assert master.be == ft601.WRITE
            assert not self.pins.status >> self.channel - 1 & 1, "writes where there is no room"
            self._show("WRITE_TURN", 1, 1, Pins(None, None, None))

    # Reading: two cycles in which the bus is turned, then words while RXF_N is low.

    def _read_turn(self, wr_n: int, master: Pins) -> None:
        assert not wr_n
        assert (master.status, master.rest, master.be) == (None, None, None)
        self._show("READ_WAIT", 1, 1, Pins(0xFF, ONES & ~0xFF00, 15))

    def _read_wait(self, wr_n: int, master: Pins) -> None:
        assert (master.rest, master.be) == (None, None)
        if wr_n:
            self._show("READ_TURN_BACK", 1, 1, Pins(0xFF, None, None))
        elif self.deaf or self.chance.random() < self.slow:
            pass
        else:
            self._show_word()

    def _show_word(self) -> None:
        word, be = self.out[0]
        self._show("READ_DATA", 0, 1, Pins(word >> 8 & 0xFF, word & ~0xFF00, be))

    def _read_data(self, wr_n: int, master: Pins) -> None:
        if wr_n:  # this word is not taken
            self._ended("master")
            self._show("READ_TURN_BACK", 1, 1, Pins(0xFF, None, None))
            return
        self.out.popleft()
        self.words += 1
        if not self.out or self.chance.random() < self.ends_early:
            self._ended("chip")
            self._show("READ_TURN_BACK", 1, 1, Pins(0xFF, None, None))
        else:
            self._show_word()

    def _read_turn_back(self, wr_n: int, master: Pins) -> None:
        assert (master.status, master.rest, master.be) == (None, None, None), "no turn-around"
        self._show("READ_END", 1, 1, Pins(0xFF, None, None))

    def _read_end(self, wr_n: int, master: Pins) -> None:
        assert wr_n, "WR_N stays low after the chip has ended the transfer"
        self._to_idle()

    # Writing: the command is held for a cycle, then words, while RXF_N is low.

    def _write_turn(self, wr_n: int, master: Pins) -> None:
        assert not wr_n
        assert master.status is None, "the chip has just released these"
        assert master.rest == (ONES & ~0xFFFF) | self.channel
        assert master.be == ft601.WRITE
        self._show("WRITE_DATA", int(self.deaf or self.chance.random() < self.slow), 1, NOTHING)

    def _write_data(self, wr_n: int, master: Pins) -> None:
        if wr_n:
            assert master.status is None, "the master has not released these"
            self._ended("master")
            self._to_idle()
            return
        assert master.status is not None
        assert master.rest is not None
        if self.rxf_n:
            if not self.deaf and self.chance.random() >= self.slow:
                self._show("WRITE_DATA", 0, 1, NOTHING)
            return
        assert master.be == 15
        words = self.to_host[self.channel]
        words.append(master.rest | master.status << 8)
        self.words += 1
        if self.channel == 2:
            self.accepted.append(words[-1])
        if len(words) >= self.in_words or self.chance.random() < self.ends_early:
            self._ended("chip")
            self._show("WRITE_FULL", 1, 1, NOTHING)

    def _write_full(self, wr_n: int, master: Pins) -> None:
        if wr_n:
            assert master.status is None
            self._to_idle()
        else:
            self._show("WRITE_END", 1, 1, NOTHING)

    def _write_end(self, wr_n: int, master: Pins) -> None:
        assert wr_n, "WR_N stays low after the chip has ended the transfer"
        assert master.status is None
        self._to_idle()


NOTHING = Pins(None, None, None)


class World(Clocked):
    """Link and chip, on clocks of their own, with a host that reads when it likes."""

    def __init__(
        self,
        seed: int,
        sys_mhz: float = 100.0,
        supply: float = 1.0,
        drain: float = 1.0,
        **chip: Any,
    ) -> None:
        self.top, self.bench = build()
        self.bench.reset()
        self.chance = random.Random(seed)
        self.chip = Chip(self.chance, **chip)
        self.supply, self.drain = supply, drain
        self.words: deque[int] = deque()
        self.fed_blocks = 0
        self.received: dict[int, list[int]] = {1: [], 2: []}
        self.sys_period = 100.0 / sys_mhz  # in cycles of the chip
        self.sys_due = self.chance.random()
        self.half_cycles = 0
        self._edges = np.zeros(1, np.uint8)
        self._driven: dict[str, int] | None = None  # since the last falling edge
        self._at_edge: dict[str, int] = {}

    def _row(self, clocks: int, **pins: int) -> dict[str, int]:
        chip = self.chip
        # What nobody drives is anything, and so is what changes, 3.5 to 7 ns after the rising edge.
        noise = self.chance.getrandbits(38)
        shown = chip.pins if clocks == FT else NOTHING
        rest = noise if shown.rest is None else shown.rest
        status = noise >> 8 & 0xFF if shown.status is None else shown.status
        pins["data"] = (rest & ~0xFF00 | status << 8) & ONES
        pins["be"] = noise >> 32 & 15 if shown.be is None else shown.be
        pins["rxf_n"], pins["txe_n"] = noise >> 36 & 1, noise >> 37
        if clocks == FT:
            pins["rxf_n"], pins["txe_n"] = chip.rxf_n, chip.txe_n
        self._edges[0] = clocks
        seen = {k: int(v[0]) for k, v in self.bench.run(self._edges, **pins).items()}
        driven = {pin: seen[pin] for pin in DRIVEN}
        assert self._driven in (None, driven), "pins change, and not after the falling edge"
        self._driven = None if clocks == FT_N else driven
        return seen

    def step(self, **bus: int) -> int:
        """Until after the next clock of `sys`; what the CSR bus reads."""
        while self.sys_due >= (self.half_cycles + 1) / 2:
            self.half_cycles += 1
            if self.half_cycles % 2:
                self._at_edge = self._row(FT)
            else:
                self._row(FT_N)
                self._cycle(self._at_edge)
        self.sys_due += self.sys_period
        offer = bool(self.words) and self.chance.random() < self.supply
        word = {"offer": 1, "word": self.words[0]} if offer else {}
        seen = self._row(SYS, **bus, **word)
        if offer and seen["taken"]:
            self.words.popleft()
        return seen["dat_r"]

    def _cycle(self, seen: dict[str, int]) -> None:
        """The chip has seen the pins at the rising edge."""
        self.chip.edge(
            seen["wr_n"],
            Pins(
                seen["data_o"] >> 8 & 0xFF if seen["oe_status"] else None,
                seen["data_o"] & ~0xFF00 if seen["oe_rest"] else None,
                seen["be_o"] if seen["oe_rest"] else None,
            ),
        )
        for channel, words in self.chip.to_host.items():
            whole = len(words) >= 256 or self.chip.state == "IDLE"
            if whole and self.chance.random() < 0.01 * self.drain:  # a USB packet at a time
                for _ in range(min(len(words), 256)):
                    self.received[channel].append(words.popleft())
        assert self.half_cycles < 2 * CLOCKS_MAX, "it hangs"

    def run(self, clocks: int) -> None:
        for _ in range(clocks):
            self.step()

    # Firmware and host ------------------------------------------------------------------------

    def request_word(self) -> int:
        while not (status := self.read("mailbox_status")) & 1:
            pass
        assert not status & 2
        return self.read("mailbox_request")

    def answer(self, data: bytes) -> None:
        while self.read("mailbox_status") & 4:
            pass
        for (word,) in struct.iter_unpack("<I", data):
            self.write("mailbox_response", word)
        self.write("mailbox_control", 1)

    def start(self) -> None:
        self.write("gate_control", 0)
        while self.read("gate_blocks") != self.fed_blocks:
            pass
        self.write("gate_control", 1)
        while not self.read("gate_status") & 1:
            pass
        self.fed_blocks = 0

    def feed(self, blocks: int) -> bytes:
        rng = np.random.default_rng(self.chance.getrandbits(32))
        words = rng.integers(0, 1 << 63, blocks * wire.BLOCK_WORDS).astype("<u8")
        self.words.extend(words.tolist())
        self.fed_blocks += blocks
        return words.tobytes()

    def finish(self) -> None:
        """STOP: all that was fed is given to the chip."""
        while self.read("gate_blocks") != self.fed_blocks:
            pass
        self.write("gate_control", 3)
        while not self.read("gate_status") & 2:
            pass

    def collect(self, channel: int) -> bytes:
        """What has reached the host, and what the chip still has for it."""
        words = [*self.received[channel], *self.chip.to_host[channel]]
        return struct.pack(f"<{len(words)}I", *words)


def test_channels_are_the_protocols_endpoints() -> None:
    assert protocol.USB_ENDPOINT_REQUEST == 1 + ft601.COMMANDS
    assert protocol.USB_ENDPOINT_RESPONSE == 0x81 + ft601.COMMANDS
    assert protocol.USB_ENDPOINT_STREAM == 0x81 + ft601.STREAM


CHIPS: dict[str, dict[str, Any]] = {
    "as the data sheet shows": {},
    "ends transfers anywhere": {"ends_early": 0.02},
    "answers late": {"slow": 0.5, "ends_early": 0.005},
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    ("sys_mhz", "supply", "drain"), [(100, 1.0, 1.0), (61, 1.0, 0.3), (143, 0.2, 1.0)]
)
def test_the_stream_arrives(chip: str, sys_mhz: float, supply: float, drain: float) -> None:
    world = World(1, sys_mhz, supply, drain, **CHIPS[chip])
    world.start()
    stream = world.feed(5)
    world.finish()
    assert world.collect(2) == stream
    assert not world.collect(1)
    if "ends_early" not in CHIPS[chip]:  # a host's transfers do not end early
        assert all(words % 256 == 0 for _, words, _ in world.chip.transfers)


def test_a_transfer_fills_the_chip() -> None:
    """Where the link has the words, it does not stop after each packet."""
    world = World(2, drain=0.0)
    world.start()
    world.feed(2)
    world.run(4000)
    world.chip.to_host[2].clear()
    world.run(4000)
    assert world.chip.transfers[-1] == (2, 1024, "chip")


@pytest.mark.parametrize("chip", CHIPS)
def test_commands_and_answers_beside_the_stream(chip: str) -> None:
    world = World(3, 87, **CHIPS[chip])
    world.start()
    stream = world.feed(4)
    sent, answered, got = b"", b"", b""
    for i, size in enumerate([0, 1000, 4, 500]):
        frame = Frame(Command.HEALTH, i, world.chance.randbytes(size), 99).encode()
        sent += frame
        for (word,) in struct.iter_unpack("<I", frame):
            world.chip.out.append((word, 15))
        while len(got) < len(sent):
            got += struct.pack("<I", world.request_word())
        answer = Frame(Command.HEALTH, i, frame[:size], 99, response=True).encode()
        answered += answer
        world.answer(answer)
    world.finish()
    world.run(3000)
    assert got == sent
    assert world.collect(1) == answered
    assert world.collect(2) == stream


def test_requests_wait_for_the_firmware() -> None:
    """A host that sends more than there is room for; the stream flows on."""
    world = World(4)
    world.start()
    words = [world.chance.getrandbits(32) for _ in range(700)]
    world.chip.out.extend((word, 15) for word in words)
    stream = world.feed(2)
    world.finish()
    assert world.collect(2) == stream
    assert 300 < len(world.chip.out) < 500
    assert {who for channel, _, who in world.chip.transfers if channel == 1} == {"master"}
    assert [world.request_word() for _ in words] == words
    assert not world.chip.out


def test_words_with_missing_bytes_are_no_command() -> None:
    world = World(5)
    world.chip.out.extend([(1, 15), (2, 3), (3, 15), (4, 1)])
    assert [world.request_word(), world.request_word()] == [1, 3]
    world.run(100)
    assert not world.read("mailbox_status") & 1
    assert not world.chip.out


@pytest.mark.parametrize("seed", range(6))
def test_a_reset_of_the_chip_in_the_middle(seed: int) -> None:
    """What it held is lost; but it was given each word once, and in order."""
    world = World(seed, drain=0.5)
    world.start()
    stream = world.feed(6)
    world.run(2500 + 377 * seed)
    while world.chip.state != ("WRITE_DATA", "WRITE_TURN", "IDLE")[seed % 3]:
        world.run(1)
    world.chip.reset_due = 200
    world.finish()
    accepted = world.chip.accepted
    assert struct.pack(f"<{len(accepted)}I", *accepted) == stream
    arrived = world.collect(2)
    lost = len(stream) - len(arrived)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(stream, arrived, strict=False))
    at = len(list(same))
    assert arrived == stream[:at] + stream[at + lost :]
    assert lost <= 4 * world.chip.in_words


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_chip_that_does_not_answer_does_not_block_the_bus(direction: str) -> None:
    world = World(6)
    world.start()
    world.chip.deaf = True
    stream = world.feed(1)
    if direction == "read":
        world.chip.out.append((7, 15))
    world.run(6000)
    world.chip.deaf = False
    world.finish()
    assert world.collect(2) == stream
    if direction == "read":
        assert world.request_word() == 7


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_a_new_recording_after_a_host_that_is_gone(blocks: int) -> None:
    """Chip, link and what is before it are full of the old one."""
    world = World(blocks, 40 + 30 * blocks, drain=0.0)
    world.start()
    world.feed(blocks)
    world.run(12_000)
    assert world.words
    world.write("gate_control", 0)
    while world.read("gate_blocks") != world.fed_blocks:
        pass
    old = len(world.chip.to_host[2])
    world.chip.to_host[2].clear()  # the new host drains it
    world.drain = 1.0
    world.fed_blocks = 0
    world.write("gate_control", 1)
    while not world.read("gate_status") & 1:
        pass
    stream = world.feed(3)
    world.finish()
    assert old > 512
    assert world.collect(2) == stream


def test_the_pins_of_a_board() -> None:
    """32 + 4 of them both ways, on an ECP5."""
    top = LiteXModule()
    top.cd_sys = ClockDomain()
    pads = Record([*((name, 1) for name in ("clk", "txe_n", "rxf_n", "wr_n", "oe_n", "rd_n"))])
    pads.data, pads.be = Signal(32), Signal(4)
    top.link = FT601Link()
    top.pins = FT601Pins(pads, top.link.pads)
    ios = {*pads.flatten(), pads.data, pads.be, top.cd_sys.clk, top.cd_sys.rst}
    code = str(convert(top, ios, special_overrides=lattice_ecp5_trellis_special_overrides))
    assert code.count("TRELLIS_IO #(") == 36
    # The byte of the flags has an enable of its own.
    enables = re.findall(r"\.T \((.*)\)", code)
    assert sorted(map(enables.count, set(enables))) == [8, 28]


def test_vivado_is_told_the_chips_times() -> None:
    """What it is told leaves the FPGA's pins 4 ns after its edge, and 3 ns before the next."""
    half_ns = ft601.CLOCK_NS / 2
    assert half_ns > ft601.HOLD_NS  # pins that change at once still hold
    soc = FT601SoC(bytes(20))
    soc.finalize()
    commands = [
        command.format(**{name: signal.backtrace[-1][0] for name, signal in signals.items()})
        for command, signals in soc.platform.constraint_manager.get_platform_commands()
        if "ft601 " in command
    ]
    assert commands[0] == "create_clock -name ft601 -period 10.0 [get_ports ft601_clk]"
    for line in (
        "set_input_delay -clock ft601 -max 7.0 [get_ports ft601_rxf_n*]",
        "set_input_delay -clock ft601 -min 3.5 [get_ports ft601_data*]",
        "set_output_delay -clock ft601 -max 1.0 [get_ports ft601_wr_n*]",
        "set_output_delay -clock ft601 -min -4.8 [get_ports ft601_data*]",
    ):
        assert line in commands
