# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record --controller PRESET``: the plugin's bus, as it is behind a memory controller.

A second pass after the guest has ended, as for ``--bus gateware``: what the plugin put on its bus,
in program order, goes through `controller`, and its commands become the capture. The truth's walks
get the times of their commands; a walk that the queue answered keeps its own, at which nothing is
on the bus.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_parser import wire
from ptat_parser.formats import truth
from ptat_testbed.bus import command_kinds, controller, plugin_stream
from ptat_testbed.bus.command_kinds import NEVER_NS
from ptat_testbed.bus.controller import (
    ONE_CHANNEL,
    Accesses,
    Answers,
    Channels,
    Commands,
    Controller,
)

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

TICKS_PER_NS = 2
"""Of the new stream. What is not on the bus has odd times."""
APART_NS = 3
"""Results round times to nanoseconds of another clock."""
AWAY_STEPS = 8
"""Commands of several channels come close after each other."""
COUNTS_FILE = "controller.json"


def pass_through(
    rules: Controller,
    session: Path,
    model_bus: Path,
    bus: Path,
    region: tuple[int, int],
    channels: Channels = ONE_CHANNEL,
) -> None:
    """Replace the plugin's stream by the controller's commands, and the times of the truth.

    :param bus: the new stream.
    :param region: base and size in bytes.
    :raises BoardError: the plugin's own stream has losses.
    :raises PtatError: it is damaged.
    """
    stream = plugin_stream.read(model_bus)
    time_ns, address, write = stream.time_ns.astype(np.int64), stream.address, stream.write
    walks = truth.read(session / "truth.0.bin")
    accesses = Accesses(time_ns, address, write, _walk_of(time_ns, walks))
    commands, answers = controller.run(rules, accesses, region, channels=channels)
    before = int(np.searchsorted(commands.time_ns, stream.stop_ns))
    _write(bus, commands, before, stream.stop_ns)
    walks["time"] = _times(walks, time_ns, commands, answers)
    truth.write(session / "truth.0.bin", walks[np.argsort(walks["time"], kind="stable")])
    model_bus.unlink()
    counts = _counts(walks, commands, answers, write)
    (session / COUNTS_FILE).write_text(json.dumps(counts) + "\n")
    _count_uncore(session / "counters.json", commands.kind[:before], counts["answered_from_queue"])


def contract(rules: Controller) -> dict[str, Any]:
    """`board.contract` of session.json."""
    return {
        "order": "controller",
        "ecc": rules.ecc,
        "forwarding": rules.forwarding,
        "scrub": bool(rules.scrub_ns),
    }


def _walk_of(time_ns: I64, walks: npt.NDArray[Any]) -> I64:
    """The number of the walk that each access belongs to; -1: of none."""
    found = np.full(time_ns.size, -1, np.int64)
    in_region = np.flatnonzero(walks["flags"] & truth.Flag.LEAF_IN_REGION)
    leaf = np.searchsorted(time_ns, walks["time"][in_region].astype(np.int64))
    found[leaf] = in_region
    # A walk's reads follow each other.
    both = walks["flags"][in_region] & truth.Flag.PMD_IN_REGION != 0
    found[leaf[both] - 1] = in_region[both]
    return found


def _times(walks: npt.NDArray[Any], time_ns: I64, commands: Commands, answers: Answers) -> U64:
    """When each walk's last read is on the bus, or would be: ticks of the new stream."""
    own_ns = walks["time"].astype(np.int64)
    # No command's nanosecond, which walks are recognised by.
    for _ in range(AWAY_STEPS):
        at = np.searchsorted(commands.time_ns, own_ns - APART_NS)
        taken = np.append(commands.time_ns, NEVER_NS)[at] <= own_ns + APART_NS
        own_ns += 2 * APART_NS * taken
    ticks = own_ns * TICKS_PER_NS + 1
    in_region = np.flatnonzero(walks["flags"] & truth.Flag.LEAF_IN_REGION)
    command = answers.command[np.searchsorted(time_ns, walks["time"][in_region].astype(np.int64))]
    seen = command >= 0
    ticks[in_region[seen]] = commands.time_ns[command[seen]] * TICKS_PER_NS
    return ticks.astype(np.uint64)


def _write(path: Path, commands: Commands, before: int, stop_ns: int) -> None:
    """Write the commands up to the recording's end as a capture stream."""
    from ptat_parser.capture.writer import BlockWriter

    is_write = commands.kind == command_kinds.WR
    with path.open("wb") as file, BlockWriter(file) as writer:
        ticks = commands.time_ns * TICKS_PER_NS
        writer.mark(int(ticks[0]) if before else 0, wire.Mark.START)
        for at, address, write in zip(
            ticks[:before].tolist(),
            commands.address[:before].tolist(),
            is_write[:before].tolist(),
            strict=True,
        ):
            writer.access(at, address, write)
        writer.mark(stop_ns * TICKS_PER_NS, wire.Mark.STOP)


def _counts(
    walks: npt.NDArray[Any], commands: Commands, answers: Answers, write: npt.NDArray[np.bool_]
) -> dict[str, int]:
    """What the controller did, for tests and `make check-controller`."""
    kinds = np.bincount(commands.kind, minlength=4).tolist()
    return {
        "walks": len(walks),
        "stores": int(np.count_nonzero(write)),
        "reads": kinds[command_kinds.RD],
        "writes": kinds[command_kinds.WR],
        "underfills": kinds[command_kinds.UNDERFILL],
        "scrubs": kinds[command_kinds.SCRUB],
        "answered_from_queue": int(np.count_nonzero(~write & (answers.command < 0))),
    }


def _count_uncore(path: Path, kinds: npt.NDArray[np.uint8], answered: int) -> None:
    """Add what the counters of a memory controller would say, of the commands that were captured.

    A CPU's count all that the machine does; these have no other traffic.
    """
    content = json.loads(path.read_bytes())
    of_kind = np.bincount(kinds, minlength=4).tolist()
    reads = (command_kinds.RD, command_kinds.UNDERFILL, command_kinds.SCRUB)
    content["uncore"] = {
        "unc_m_cas_count.rd": sum(of_kind[kind] for kind in reads),
        "unc_m_cas_count.wr": of_kind[command_kinds.WR],
        "unc_m_cas_count.rd_underfill": of_kind[command_kinds.UNDERFILL],
        "unc_m_wpq_read_hit": answered,
    }
    path.write_text(json.dumps(content) + "\n")
