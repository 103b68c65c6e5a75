# SPDX-License-Identifier: BSD-2-Clause
"""Worlds around compiled PCIe cores: one clock after the other, both ends of the PHY in Python."""

import random
from collections import deque
from collections.abc import Callable

import numpy as np
from hypothesis import Phase
from migen import Module, Signal
from pcie_model import unpacked, words
from verilated import Bench

ONE_CLOCK = np.ones(1, np.uint8)

# A failing example is a few packets already; to make it smaller takes minutes.
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


def wide(name: str, signal: Signal) -> dict[str, Signal]:
    """Pins for a signal of more than 64 bits."""
    return {f"{name}{i}": signal[64 * i : 64 * (i + 1)] for i in range(len(signal) // 64)}


def parts(name: str, value: int, count: int) -> dict[str, int]:
    """Values of such pins."""
    return {f"{name}{i}": value >> 64 * i & (1 << 64) - 1 for i in range(count)}


class Stepper:
    """A module that goes on clock by clock; ``pins`` keep their values until they are changed."""

    def __init__(self, top: Module, inputs: dict[str, Signal], outputs: dict[str, Signal]) -> None:
        # A pin is a signal of its own: slices cannot be pins.
        self._bench = Bench(top, _driving(top, inputs), _driven(top, outputs))
        self.pins: dict[str, int] = dict.fromkeys(inputs, 0)

    def reset(self) -> None:
        self._bench.reset()
        self.pins = dict.fromkeys(self.pins, 0)

    def step(self) -> dict[str, int]:
        """A clock; the outputs as they were before its edge."""
        seen = self._bench.run(ONE_CLOCK, **self.pins)
        return {name: int(column[0]) for name, column in seen.items()}

    def run(self, clocks: int, **columns: np.ndarray) -> dict[str, np.ndarray]:
        """Many clocks at once."""
        return self._bench.run(np.ones(clocks, np.uint8), **(self.pins | columns))


def _driving(top: Module, pins: dict[str, Signal]) -> dict[str, Signal]:
    made = {name: Signal(len(pin), name=f"in_{name}") for name, pin in pins.items()}
    top.comb += [pin.eq(made[name]) for name, pin in pins.items()]
    return made


def _driven(top: Module, pins: dict[str, Signal]) -> dict[str, Signal]:
    made = {name: Signal(len(pin), name=f"out_{name}") for name, pin in pins.items()}
    top.comb += [made[name].eq(pin) for name, pin in pins.items()]
    return made


class Sender:
    """Offers packets to a PHY's source; ``pause`` is the chance of a clock without a word."""

    def __init__(self, data_width: int, prefix: str, chance: random.Random, pause: float) -> None:
        self.data_width, self.prefix = data_width, prefix
        self.chance, self.pause = chance, pause
        self.words: deque[tuple[int, int, int]] = deque()
        self._offered = False

    def send(self, dwords: list[int], exact: bool = True) -> None:
        self.words.extend(words(dwords, self.data_width, exact))

    def clear(self) -> None:
        """Forget what was to be sent."""
        self.words.clear()
        self._offered = False

    def drive(self, pins: dict[str, int]) -> None:
        if not self._offered:
            self._offered = bool(self.words) and self.chance.random() >= self.pause
        pins[f"{self.prefix}_valid"] = int(self._offered)
        data, enables, last = self.words[0] if self._offered else (0xBAD, 0xF, 1)
        pins |= parts(f"{self.prefix}_dat", data, self.data_width // 64)
        pins[f"{self.prefix}_be"] = enables
        pins[f"{self.prefix}_last"] = last

    def seen(self, outputs: dict[str, int]) -> None:
        if self._offered and outputs[f"{self.prefix}_ready"]:
            self.words.popleft()
            self._offered = False


class Receiver:
    """Takes packets from a PHY's sink; ``pause`` is the chance of a clock that takes no word."""

    def __init__(self, data_width: int, prefix: str, chance: random.Random, pause: float) -> None:
        self.data_width, self.prefix = data_width, prefix
        self.chance, self.pause = chance, pause
        self.packets: deque[list[int]] = deque()
        self._words: list[tuple[int, int]] = []
        self._before: tuple[int, ...] | None = None  # what was offered and not taken

    def clear(self) -> None:
        """Forget what has come."""
        self.packets.clear()
        self._words.clear()
        self._before = None

    def drive(self, pins: dict[str, int]) -> None:
        pins[f"{self.prefix}_ready"] = int(self.chance.random() >= self.pause)
        self._ready = pins[f"{self.prefix}_ready"]

    def seen(self, outputs: dict[str, int]) -> None:
        valid = outputs[f"{self.prefix}_valid"]
        data = sum(outputs[f"{self.prefix}_dat{i}"] << 64 * i for i in range(self.data_width // 64))
        # Dwords that are not enabled may be anything, at any time.
        enables = outputs[f"{self.prefix}_be"]
        data &= sum(0xFF << 8 * i for i in range(self.data_width // 8) if enables >> i & 1)
        now = (data, enables, outputs[f"{self.prefix}_last"])
        if self._before is not None:
            assert valid and now == self._before, "a word that was offered must stay"
        self._before = now if valid and not self._ready else None
        if not (valid and self._ready):
            return
        self._words.append(now[:2])
        if now[2]:
            self.packets.append(unpacked(self._words, self.data_width))
            self._words = []


class World:
    """Runs agents around a stepper: each drives its pins before a clock and sees the outputs."""

    def __init__(self, stepper: Stepper, *agents: object) -> None:
        stepper.reset()
        self.stepper = stepper
        self.agents = list(agents)
        self.clocks = 0

    def step(self) -> dict[str, int]:
        for agent in self.agents:
            agent.drive(self.stepper.pins)
        outputs = self.stepper.step()
        for agent in self.agents:
            agent.seen(outputs)
        self.clocks += 1
        return outputs

    def run_until(self, condition: Callable[[], bool], limit: int = 20_000) -> None:
        for _ in range(limit):
            if condition():
                return
            self.step()
        raise AssertionError(f"nothing for {limit} clocks")
