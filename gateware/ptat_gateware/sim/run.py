# SPDX-License-Identifier: BSD-2-Clause
"""Runs the simulator: a script of register accesses and requests, made here, executed in C++."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_gateware.sim.build import SimulatorError, simulator
from ptat_gateware.sim.geometry import CLOCK_PS
from ptat_gateware.sim.words import (
    BANK_SHIFT,
    CHANNEL_SHIFT,
    COLUMN_BANK_SHIFT,
    COLUMN_CHANNEL_SHIFT,
    PAUSE_SHIFT,
    WRITE_SHIFT,
)

U64 = npt.NDArray[np.uint64]

_CSR_BITS = 32


def requests(address: U64, bank: U64, write: U64, channel: U64) -> U64:
    """Words for the harness: reads and writes of addresses in banks, see `geometry`."""
    return (
        address
        | bank << np.uint64(BANK_SHIFT)
        | np.uint64(channel) << np.uint64(CHANNEL_SHIFT)
        | write << np.uint64(WRITE_SHIFT)
    )


def pause(clocks: int, bank: int = 0, channel: int = 0) -> np.uint64:
    """A word that is no request: the bank's next waits. In a timed run it only takes its time."""
    return np.uint64(1 << PAUSE_SHIFT | channel << CHANNEL_SHIFT | bank << BANK_SHIFT | clocks)


@dataclass(frozen=True)
class Result:
    """What a run left.

    `registers`: the values read, by name. `time_ticks`, `channel` and `bank`, shape
    ``(commands,)``: when each column command was on which channel's DFI, for which bank (rank
    above), by what the harness saw there; for pauses of timed runs the channel is
    `words.PAUSE_CHANNEL`. From `begun_s` to `ended_s` the simulator ran (`time.monotonic`).
    """

    cycles: int
    begun_s: float
    ended_s: float
    registers: dict[str, list[int]]
    time_ticks: U64
    channel: npt.NDArray[np.uint8]
    bank: npt.NDArray[np.uint8]


class Simulation:
    """A machine with a snooper on each of its channels, and what is to be done with it.

    The methods queue commands; `execute` runs them all. Registers have the names that LiteX
    gives them; that of channel N's snooper begin with ``snooperN_``.

    :raises SimulatorError: the simulator cannot be built, or finds something wrong.
    """

    def __init__(
        self, channels: int, ranks: int, *, snoop_ps: int = CLOCK_PS, sys_ps: int = CLOCK_PS
    ) -> None:
        directory = simulator(channels, ranks)
        self.channels = channels
        self._program = directory / "harness"
        self._periods_ps = (snoop_ps, sys_ps)
        self._registers: dict[str, Any] = json.loads((directory / "csr.json").read_text())
        self._script: list[str] = []
        self._reads: list[tuple[str, int]] = []
        self._files: dict[str, U64] = {}

    def write(self, register: str, value: int) -> None:
        """Write a register, its upper words first."""
        address, words = self._place(register)
        for i in range(words):
            word = value >> _CSR_BITS * (words - 1 - i) & (1 << _CSR_BITS) - 1
            self._script.append(f"write {address + 4 * i:#x} {word:#x}")

    def read(self, register: str) -> None:
        """Read a register."""
        address, words = self._place(register)
        self._script += [f"read {address + 4 * i:#x}" for i in range(words)]
        self._reads.append((register, words))

    def stall(self, open_clocks: int, closed_clocks: int, seed: int) -> None:
        """Let the links take words in spells of random lengths; `closed_clocks` 0: always."""
        self._script.append(f"stall {open_clocks} {closed_clocks} {seed}")

    def flood(self, words: U64) -> None:
        """Offer requests as fast as the banks take them; each bank keeps its order."""
        self._script.append(f"flood {self._file(words)}")

    def timed(self, words: U64, time_ticks: U64, gap_ticks: int) -> None:
        """Ask one request after the other, none before its time, and skip idle time.

        As a CPU does uncached accesses. Each comes at least `gap_ticks` after the one before.
        """
        files = f"{self._file(words)} {self._file(time_ticks)}"
        self._script.append(f"timed {files} {gap_ticks}")

    def run(self, clocks: int) -> None:
        """Let time pass: clocks of the snooper."""
        self._script.append(f"run {clocks}")

    def drain(self, clocks: int) -> None:
        """Run until the links have been silent for `clocks`."""
        self._script.append(f"drain {clocks}")

    def execute(self, bus_paths: list[Path]) -> Result:
        """Do it all; the blocks of each channel's link go to a file."""
        with tempfile.TemporaryDirectory(prefix="ptat-sim.") as work:
            for name, words in self._files.items():
                words.tofile(Path(work) / name)
            script = "".join(f"{line}\n" for line in self._script)
            command: list[str | Path] = [
                self._program,
                *map(str, self._periods_ps),
                "columns",
                *bus_paths,
            ]
            begun_s = time.monotonic()
            done = subprocess.run(command, cwd=work, input=script, capture_output=True, text=True)
            ended_s = time.monotonic()
            if done.returncode:
                raise SimulatorError(done.stderr.strip() or f"harness: exit {done.returncode}")
            columns = np.fromfile(Path(work) / "columns", "<u8")
        output = json.loads(done.stdout)
        bank_mask = (1 << COLUMN_CHANNEL_SHIFT - COLUMN_BANK_SHIFT) - 1
        return Result(
            output["cycles"],
            begun_s,
            ended_s,
            self._values(output["reads"]),
            columns & np.uint64((1 << COLUMN_BANK_SHIFT) - 1),
            (columns >> np.uint64(COLUMN_CHANNEL_SHIFT)).astype(np.uint8),
            (columns >> np.uint64(COLUMN_BANK_SHIFT) & np.uint64(bank_mask)).astype(np.uint8),
        )

    def _place(self, register: str) -> tuple[int, int]:
        try:
            place = self._registers[register]
        except KeyError:
            raise SimulatorError(f"the snooper has no register {register}") from None
        return place["addr"], place["size"]

    def _file(self, words: U64) -> str:
        name = f"input{len(self._files)}"
        self._files[name] = words.astype("<u8", copy=False)
        return name

    def _values(self, words: list[int]) -> dict[str, list[int]]:
        values: dict[str, list[int]] = {}
        at = 0
        for register, size in self._reads:
            value = 0
            for word in words[at : at + size]:
                value = value << _CSR_BITS | word
            values.setdefault(register, []).append(value)
            at += size
        return values
