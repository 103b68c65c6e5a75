# SPDX-License-Identifier: BSD-2-Clause
"""A simulated memory with a snooper on each channel: addresses in, capture streams out.

The gateware's simulator knows DRAM coordinates, registers and clocks. Here it gets what a host
would give a board: an address mapping (`ptat_host.calibration.dram`), windows, start and stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptat_gateware.sim import geometry, run
from ptat_gateware.sim.build import SimulatorError
from ptat_host.boards.base import BoardError
from ptat_host.calibration import dram
from ptat_host.calibration.address_functions import Program
from ptat_parser import wire

U64 = npt.NDArray[np.uint64]

MAPPING = "ivy-bridge-ep"
RUN, FLUSH, LATCH = 1, 2, 4
"""Bits of a snooper's register `control`."""
SETTLE_CLOCKS = 200
"""From a register to the snooper's clock and through all of its stages, with room to spare."""
SILENT_CLOCKS = 4096
"""Links that are silent for this time have nothing more to send."""
COUNTERS = ("accesses", "matched", "packer_emitted", "packer_lost")
READINESS = (
    "wire_version",
    "address_control",
    *(f"filter_window{i}_control" for i in range(dram.WINDOWS_MAX)),
)
"""What `dram.check_ready` asks for."""


@dataclass(frozen=True)
class Counters:
    """What the snooper of a channel counted."""

    accesses: int
    matched: int
    emitted: int
    lost: int

    def check(self, channel: int) -> None:
        """Raise `BoardError` unless all that matched was emitted or is counted as lost."""
        if self.emitted + self.lost != self.matched:
            raise BoardError(
                f"snooper {channel}: of {self.matched} accesses that matched, {self.emitted} were"
                f" emitted and {self.lost} counted as lost"
            )


class SnoopedMemory:
    """Memory of 4 GiB a rank, its controllers' address mapping, and the snoopers.

    The mapping is of two ranks a channel; with one, there are no others' addresses.

    `simulation` is for what else there is to do between `start` and `execute`.
    """

    def __init__(
        self,
        channels: int,
        windows: Sequence[dram.Window],
        *,
        ranks: int = geometry.RANKS_MAX,
        sys_ps: int = geometry.CLOCK_PS,
        programs: Sequence[Program] | None = None,
    ) -> None:
        """`programs`: what the snoopers make addresses with; None: the controllers' mapping."""
        self.channels = channels
        self.ranks = ranks
        self.mapping = dram.preset(MAPPING, channels, geometry.ROW_BITS)
        try:
            self.simulation = run.Simulation(channels, ranks, sys_ps=sys_ps)
        except SimulatorError as error:
            raise BoardError(str(error), error.hint) from error
        for channel in range(channels):
            writes = programs[channel].register_writes() if programs else None
            for register, value in [
                ("packer_channel", channel),
                *(writes or self.mapping.register_writes(channel)),
                *dram.window_writes(windows),
            ]:
                self.simulation.write(f"snooper{channel}_{register}", value)

    def in_ranks(self, addresses: U64) -> U64:
        """The addresses, those of ranks that are not there moved to the same place in others."""
        at = self.mapping.coordinates(addresses)
        return self.mapping.addresses({**at, "rank": at["rank"] % np.uint64(self.ranks)})

    def words(self, addresses: U64, write: npt.NDArray[np.bool_]) -> U64:
        """Requests for reads and writes of these physical addresses (64-byte lines)."""
        at = self.mapping.coordinates(addresses)
        return run.requests(
            geometry.bank_address(at["row"], at["column"]),
            geometry.bank_number(at["rank"], at["bank"]),
            write.astype(np.uint64),
            at["channel"],
        )

    def bank_of(self, addresses: U64) -> U64:
        """Channel, rank and bank of each address, as one number."""
        at = self.mapping.coordinates(addresses)
        return bank_in_all(at["channel"], geometry.bank_number(at["rank"], at["bank"]))

    def start(self) -> None:
        """Let the snoopers record."""
        for channel in range(self.channels):
            self.simulation.write(f"snooper{channel}_control", RUN)
        self.simulation.run(SETTLE_CLOCKS)

    def flush(self) -> None:
        """Put a FLUSH mark into each stream, and let it out: the rest of its block is padded."""
        for channel in range(self.channels):
            self.simulation.write(f"snooper{channel}_control", RUN | FLUSH)
        self.simulation.run(SETTLE_CLOCKS + 2 * wire.BLOCK_WORDS)

    def execute(self, bus_paths: list[Path]) -> tuple[run.Result, list[Counters]]:
        """Stop the snoopers and run it all; the streams go to `bus_paths`.

        :raises BoardError: it could not be run, or the snoopers' counters do not add up.
        :raises BadInput: a snooper was not fit to record: `ptat_host.calibration.dram.check_ready`.
        """
        self.simulation.run(SETTLE_CLOCKS)
        for channel in range(self.channels):
            self.simulation.write(f"snooper{channel}_control", 0)
        self.simulation.stall(1, 0, 0)
        self.simulation.drain(SILENT_CLOCKS)
        for channel in range(self.channels):
            self.simulation.write(f"snooper{channel}_control", LATCH)
            self.simulation.run(SETTLE_CLOCKS)
            for register in (*COUNTERS, *READINESS):
                self.simulation.read(f"snooper{channel}_{register}")
        try:
            result = self.simulation.execute(bus_paths)
        except SimulatorError as error:
            raise BoardError(str(error), error.hint) from error
        counters = []
        for channel in range(self.channels):
            mine = {
                name: result.registers[f"snooper{channel}_{name}"][0]
                for name in (*COUNTERS, *READINESS)
            }
            dram.check_ready(mine.__getitem__)
            counters.append(Counters(*(mine[name] for name in COUNTERS)))
            counters[-1].check(channel)
        return result, counters


def bank_in_all(channel: U64, bank: U64) -> U64:
    """One number for a channel's bank, `bank` being the controller's number."""
    return channel << np.uint64(geometry.RANK_BITS + geometry.BANK_BITS) | bank
