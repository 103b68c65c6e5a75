# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record --bus gateware``: the bus of the testbed as real commands, seen by the gateware.

The plugin's bus is a model: it writes records. Here what it wrote is put onto a simulated DDR3
bus: each access becomes a request to LiteDRAM's controller of the channel that the address
mapping says, and the snoopers' streams become the session's. It is a second pass, after the guest
has ended: nothing on a bus that is only listened to can change what the guest does.

**Order.** The region is mapped uncached, and a CPU's uncached accesses do not overtake each
other: one request is on its way at a time, over all channels. So each access, and with it each
marker, keeps its place.

**Time.** A guest under emulation is tens of times slower than silicon, its bus is not: one
nanosecond of the plugin is `TICKS_PER_NS` clocks of the bus, so that an access is over before the
model has the next. Where nothing happens for longer, the harness lets the snoopers' time jump.
Refresh continues at the pace of the clocks that are simulated.

**Truth.** The walks' times are those of the plugin's bus. They become the times at which the
harness, not the snooper, saw the walk's leaf read on the bus.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_gateware.sim import build, run
from ptat_host.boards.base import BoardError, Check
from ptat_host.calibration.address_functions import IDENTITY, Program
from ptat_host.calibration.dram import ADDRESS_BITS_MAX, WINDOW_UNIT_BYTES, Window
from ptat_host.calibration.observations import between_flushes
from ptat_parser.formats import truth
from ptat_testbed.bus import plugin_stream
from ptat_testbed.bus.controller import Channels
from ptat_testbed.bus.snooped_memory import SnoopedMemory

U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

GRANULARITY_BYTES = 64
CHANNELS_MAX = 2
TICKS_PER_NS = 64
"""Clocks of the bus (1.25 ns on a real DDR3-1600 bus) in a nanosecond of the plugin's bus."""
TICK_HZ = TICKS_PER_NS * 1_000_000_000
GAP_TICKS = 2 * TICKS_PER_NS
"""Between accesses, so that no two fall into one nanosecond."""
FIRST_TICKS = 1 << 22
"""When the first access may come: after the snoopers were programmed."""


class Replay:
    """What the plugin put on its bus, as requests for a simulated memory controller; its truth.

    :param words: makes requests of addresses and whether they are written.
    :param ticks_per_ns: of the model's bus.
    :raises PtatError: the plugin's stream is damaged.
    """

    def __init__(
        self,
        session: Path,
        model_bus: Path,
        words: Callable[[U64, Bools], U64],
        ticks_per_ns: int = 1,
    ) -> None:
        self._truth_path = session / "truth.0.bin"
        self._model_bus = model_bus
        accesses = plugin_stream.read(model_bus)
        # Walks that read nothing in the region have a time, but no access.
        others = np.setdiff1d(truth.read(self._truth_path)["time"], accesses.time_ns)
        time_ns = np.concatenate([accesses.time_ns, others])
        requests = np.concatenate(
            [
                words(accesses.address, accesses.write),
                np.full(others.size, run.pause(0), np.uint64),
            ]
        )
        order = np.argsort(time_ns)
        self._time_ns = time_ns[order]
        start_ns = self._time_ns[0] if time_ns.size else np.uint64(0)
        self.words: U64 = requests[order]
        self.due_ticks: U64 = (self._time_ns - start_ns) * np.uint64(
            TICKS_PER_NS // ticks_per_ns
        ) + np.uint64(FIRST_TICKS)

    def finish(self, paths: list[Path], time_ticks: U64, channel: npt.NDArray[np.uint8]) -> None:
        """Give the walks the times at which the harness saw their reads; drop the plugin's stream.

        :param paths: the snoopers' streams, one for each channel.
        :param time_ticks: when each command was on the bus, by the harness's count, of which
            `channel`.
        :raises BoardError: not each access was on the bus once.
        """
        time_ns = self._time_ns
        if time_ticks.size != time_ns.size:
            raise BoardError(
                f"the bus carried {time_ticks.size} commands for {time_ns.size} accesses"
            )
        walks = truth.read(self._truth_path)
        at = np.searchsorted(time_ns, walks["time"])
        walks["time"] = time_ticks[at] + _stamp_offset(paths, time_ticks, channel)
        truth.write(self._truth_path, walks)
        self._model_bus.unlink()


class GatewareBus:
    """The snoopers of one recording, with the controllers' mapping or other `programs`.

    :raises BoardError: the simulator cannot be built.
    """

    def __init__(
        self,
        channels: int,
        region_base: int,
        region_bytes: int,
        programs: Sequence[Program] | None = None,
    ) -> None:
        first = region_base // WINDOW_UNIT_BYTES * WINDOW_UNIT_BYTES
        end = -(-(region_base + region_bytes) // WINDOW_UNIT_BYTES) * WINDOW_UNIT_BYTES
        self._memory = SnoopedMemory(channels, [Window(first, end)], programs=programs)
        self._files = [f"bus.{channel}.raw" for channel in range(channels)]

    def capture(self, session: Path, model_bus: Path, ticks_per_ns: int = 1) -> None:
        """Replace the plugin's stream by the snoopers', and the times of the truth by theirs.

        :param ticks_per_ns: of the plugin's stream.
        :raises BoardError: the simulation failed.
        :raises PtatError: the plugin's stream is damaged.
        """
        replay = Replay(session, model_bus, self._memory.words, ticks_per_ns)
        self._memory.start()
        self._memory.simulation.timed(replay.words, replay.due_ticks, GAP_TICKS)
        paths = [session / file for file in self._files]
        try:
            result, counters = self._memory.execute(paths)
        except BoardError:
            for path in paths:
                if path.is_file():
                    path.unlink()
            raise
        if seen := sum(each.lost for each in counters):
            raise BoardError(f"the snoopers lost {seen} accesses, though their links are fast")
        replay.finish(paths, result.time_ticks, result.channel)

    def queues(self) -> Channels:
        """Each channel has a memory controller of its own, with a queue."""
        mapping = self._memory.mapping
        return Channels(
            self._memory.channels, lambda address: mapping.coordinates(address)["channel"]
        )

    def metadata(self) -> dict[str, Any]:
        """`board` of session.json."""
        return {
            "granularity_bytes": GRANULARITY_BYTES,
            "walk_reads": "psc",
            "channels": [
                {"index": channel, "file": file, "tick_hz": TICK_HZ}
                for channel, file in enumerate(self._files)
            ],
            "bus": "gateware",
            "address_mapping": self._memory.mapping.name,
        }


def observe(
    channels: int, model_bus: Path, addresses: Sequence[int], directory: Path
) -> list[list[U64]]:
    """What snoopers that know no mapping report of the guest's reads, for each channel.

    As a host would do it: a FLUSH before the next address is read. See `between_flushes`.

    :raises BoardError: the simulation failed, or the guest did not read the addresses.
    """
    from ptat_parser.capture.reader import BusReader

    accesses = plugin_stream.read(model_bus)
    lines = accesses.address // np.uint64(GRANULARITY_BYTES) * np.uint64(GRANULARITY_BYTES)
    lines[accesses.write] = 0
    starts = []
    at = 0
    for address in addresses:
        found = np.flatnonzero(lines[at:] == address)
        if not found.size:
            raise BoardError(f"the guest did not read {address:#x}")
        at += int(found[0])
        starts.append(at)
    end = at + int(np.flatnonzero(lines[at:] == addresses[-1])[-1]) + 1

    memory = SnoopedMemory(
        channels, [Window(0, 1 << ADDRESS_BITS_MAX)], programs=[IDENTITY] * channels
    )
    memory.start()
    words = memory.words(accesses.address[:end], accesses.write[:end])
    for part in np.split(words, starts)[1:]:
        memory.simulation.timed(part, np.zeros(part.size, np.uint64), GAP_TICKS)
        memory.flush()
    paths = [directory / f"bus.{channel}.raw" for channel in range(channels)]
    memory.execute(paths)
    return [
        between_flushes(BusReader(path, channel), len(addresses))
        for channel, path in enumerate(paths)
    ]


def check() -> Check:
    """Whether the gateware can be simulated."""
    path = shutil.which("verilator")
    if path is None:
        return Check("Verilator", None, f"not found; only --bus gateware needs it: {build.HINT}")
    return Check("Verilator", True, path)


def _stamp_offset(
    paths: list[Path], time_ticks: U64, command_channel: npt.NDArray[np.uint8]
) -> np.uint64:
    """Ticks from a command, as the harness counts, to its stamp: a constant of the snooper."""
    from ptat_parser.capture.reader import BusReader

    for channel, path in enumerate(paths):
        here = np.flatnonzero(command_channel == channel)
        for chunk in BusReader(path, channel):
            if chunk.time.size:
                return np.uint64(chunk.time[0] - time_ticks[here[0]])
    return np.uint64(0)
