# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record --bus soc``: the testbed's bus, captured by a whole device that is simulated.

As `gateware`, it is a second pass after the guest has ended: what the plugin put on its bus
becomes requests to a simulated memory controller. But here the snooper is in the device, with its
CPU and firmware, its buffer in DRAM and Ethernet, and this process is its host: the client of
``--board udp`` finds it at a UDP port, loads the address mapping, starts, receives and
acknowledges the stream, stops. Nothing of the device is reached in another way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ptat_gateware.sim import geometry, run
from ptat_gateware.sim.build import SimulatorError
from ptat_gateware.sim.device import Device
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Client
from ptat_host.boards.hardware import Tap
from ptat_host.boards.udp import UdpLink
from ptat_host.calibration import dram
from ptat_host.calibration.address_functions import Program
from ptat_host.protocol import Window
from ptat_parser import wire
from ptat_testbed.bus.gateware import (
    GAP_TICKS,
    GRANULARITY_BYTES,
    TICK_HZ,
    U64,
    Bools,
    Replay,
)
from ptat_testbed.bus.snooped_memory import MAPPING

PATIENCE_S = 10.0
"""For an answer: the device is some hundred times slower than a real one."""


class SocBus:
    """The device of one recording, with the controller's mapping or another `program`."""

    def __init__(self, region_base: int, region_bytes: int, program: Program | None = None) -> None:
        unit = dram.WINDOW_UNIT_BYTES
        self._window = (
            region_base // unit * unit,
            -(-(region_base + region_bytes) // unit) * unit,
            Window.READ | Window.WRITE,
        )
        self._mapping = dram.preset(MAPPING, 1, geometry.ROW_BITS)
        columns = [value >> wire.ADDRESS_UNIT_SHIFT for value in self._mapping.contributions]
        self._program = program or Program(columns[: dram.BUS_BITS], 0)
        self._board: dict[str, Any] = {}

    def capture(self, session: Path, model_bus: Path, ticks_per_ns: int = 1) -> None:
        """Replace the plugin's stream by the device's, and the times of the truth by its bus's.

        :raises BoardError: the simulation failed, or something was lost.
        :raises PtatError: the plugin's stream is damaged.
        """
        replay = Replay(session, model_bus, self._requests, ticks_per_ns)
        try:
            with (
                Device() as device,
                Client(UdpLink(f"127.0.0.1:{device.port}"), PATIENCE_S) as client,
            ):
                tap = Tap(client, 0, client.identify())
                tap.quiet()
                tap.choose(self._window, self._program)
                with (session / tap.file).open("wb", buffering=0) as file:
                    tap.start(file.fileno())
                    try:
                        time_ticks, channel = device.timed(
                            replay.words, replay.due_ticks, GAP_TICKS, lambda: _alive(tap)
                        )
                    finally:
                        tap.stop()
        except SimulatorError as error:
            raise BoardError(str(error), error.hint) from error
        tap.tidy(session)
        if problem := tap.problem or " and ".join(tap.losses):
            raise BoardError(f"the device: {problem}")
        replay.finish([session / tap.file], time_ticks, channel)
        self._board = {
            "granularity_bytes": tap.identity.granularity_bytes,
            "channels": [{"index": 0, "file": tap.file, "tick_hz": TICK_HZ}],
            "board": tap.identity.board,
            "git_hash": tap.identity.git_hash,
            "link": tap.link,
        }

    def metadata(self) -> dict[str, Any]:
        """`board` of session.json."""
        return {
            "granularity_bytes": GRANULARITY_BYTES,
            "channels": [{"index": 0, "file": "bus.0.raw", "tick_hz": TICK_HZ}],
            **self._board,
            "walk_reads": "psc",
            "bus": "soc",
            "address_mapping": self._mapping.name,
        }

    def _requests(self, addresses: U64, write: Bools) -> U64:
        at = self._mapping.coordinates(addresses)
        return run.requests(
            geometry.bank_address(at["row"], at["column"]),
            geometry.bank_number(at["rank"], at["bank"]),
            write.astype("u8"),
            at["channel"],
        )


def _alive(tap: Tap) -> None:
    if why := tap.broken():
        raise BoardError(f"the device: {why}")
