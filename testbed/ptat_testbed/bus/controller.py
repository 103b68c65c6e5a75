# SPDX-License-Identifier: BSD-2-Clause
"""A model of the memory controller between CPU and DIMM: program order in, commands out.

A store completes when it is in the write pending queue (WPQ); its WR command comes later::

    stores ─► WPQ ──(drain)──► underfill RD, WR ─┐
    reads ──┬─ hit: answered, no command         ├─► commands of the DIMM
            └─ miss ──────────────────────► RD ──┤
    patrol scrub ─────────────────────────► RD ──┘

*Rules and sources.* Posted writes, reads answered from the queue, and partial writes that merge
there and need no underfill then: Intel, "Xeon E5-2600 Uncore Performance Monitoring Guide"
(327043), events WPQ_OCCUPANCY, WPQ_READ_HIT, WPQ_WRITE_HIT. Read and write major modes:
MAJOR_MODES and CAS_COUNT of the same; "RD_CAS is not issued during WMM (with the exception of
underfills)". Underfill reads of partial writes: CAS_COUNT.RD_UNDERFILL. Watermarks, and how many
writes a read may have to wait for (`min_writes_per_switch`): gem5's MemCtrl.

*Time.* A page fault takes about ten times as long in the emulator as on silicon. So does all here
(`SLOWDOWN`): the retry of a walk meets the queue as it would on silicon. A CPU waits for what it
reads, but its kernel's log is that of a CPU that did not: so no read may wait much longer than an
event takes after its marker.

Each channel has a queue of its own, and its own patrol scrub. The model takes no notice of banks
and rows: LiteDRAM's controller does, behind it (``--bus gateware``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_host.boards.base import BoardError
from ptat_testbed.bus.command_kinds import NEVER_NS, WR

if TYPE_CHECKING:
    from ptat_testbed.bus.controller_loop import State, Work

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LINE_BYTES = 64
WORDS = 8
"""Of 8 bytes, in a line."""
SLOWDOWN = 10


@dataclass(frozen=True)
class Controller:
    """Parameters of a controller. Times in ns of the guest, which are `SLOWDOWN` real ones."""

    ecc: bool = False
    """Partial writes need an underfill read; else they are masked."""
    forwarding: bool = True
    """A read that hits the queue is answered from it; else it waits until the line is written."""
    capacity: int = 32
    """Lines in the write pending queue."""
    high: int = 27
    """Number of queued lines at which write major mode begins."""
    low: int = 16
    """Number of queued lines at which it ends."""
    burst: int = 16
    """Writes after which it ends for a read that waits."""
    idle_ns: int = NEVER_NS
    """Time without a read after which writes go out in read major mode, down to `low`."""
    age_ns: int = NEVER_NS
    """No write waits longer."""
    others_ns: int = NEVER_NS
    """A write of other traffic comes so often; it fills the queue, too."""
    command_ns: int = 5 * SLOWDOWN
    """One command each."""
    window_ns: int = 0
    """Reads of different walks that come so soon after each other may change places."""
    out_of_order: float = 0.0
    """How many writes do not leave the queue by age, and how many such reads change places."""
    early_underfill: float = 0.0
    """How many underfill reads are made when the store is queued, not when it is written."""
    scrub_ns: int = 0
    """Patrol scrub reads a line so often; 0: there is none."""


PRESETS = {
    # A core's uncached accesses alone, and nothing on the way: order is program order.
    "none": None,
    # gem5's MemCtrl: 64 writes, watermarks of 85 and 50 %, writes while no read waits. A desktop's
    # other programs write 320 MB/s to a channel.
    "client": Controller(
        capacity=64, high=54, low=32, idle_ns=100 * SLOWDOWN, others_ns=200 * SLOWDOWN
    ),
    # WPQ_OCCUPANCY grows by 32 at the most. Firmware sets Intel's watermarks: gem5's, of 32. Others
    # write 1.3 GB/s. Patrol scrub, once a day over 64 GiB, would be a line each 80 us: 8 times
    # faster here.
    "ecc-server": Controller(
        ecc=True,
        idle_ns=100 * SLOWDOWN,
        others_ns=50 * SLOWDOWN,
        window_ns=10 * SLOWDOWN,
        out_of_order=0.1,
        early_underfill=0.2,
        scrub_ns=10_000 * SLOWDOWN,
    ),
    # As bad as the rules allow: a deep queue that only age and watermarks drain, in any order.
    "adversarial": Controller(
        ecc=True,
        capacity=256,
        high=256,
        low=8,
        age_ns=2_000_000 * SLOWDOWN,
        window_ns=100 * SLOWDOWN,
        out_of_order=0.5,
        early_underfill=0.5,
        scrub_ns=1000 * SLOWDOWN,
    ),
}


def preset(text: str) -> Controller | None:
    """The controller of ``ecc-server`` or ``ecc-server,scrub_ns=0,capacity=8``; None: none.

    :raises BoardError: it is no such list.
    """
    name, *changes = text.split(",")
    if name not in PRESETS:
        raise BoardError(
            f"--controller {text}: there is no preset {name!r}", f"use {', '.join(PRESETS)}"
        )
    found = PRESETS[name]
    if not changes:
        return found
    found = found or Controller()
    for change in changes:
        key, separator, value = change.partition("=")
        if not separator or key not in Controller.__dataclass_fields__:
            raise BoardError(
                f"--controller {text}: {change!r} is no change", "write it as capacity=8"
            )
        kind = type(getattr(found, key))
        try:
            parsed = {"yes": True, "no": False}[value] if kind is bool else kind(value)
        except (ValueError, KeyError):
            raise BoardError(f"--controller {text}: {change!r} has no {kind.__name__}") from None
        found = replace(found, **{key: parsed})
    if not 0 <= found.low < found.high <= found.capacity or found.command_ns < 1:
        raise BoardError(f"--controller {text}: not low < high <= capacity")
    return found


class Accesses(NamedTuple):
    """What the CPUs do, in program order: times (ns, increasing), addresses, stores.

    `walk`: reads of one number depend on each other; -1: no read may pass, as with an uncached
    load by the kernel.
    """

    time_ns: I64
    address: U64
    write: Bools
    walk: I64


class Commands(NamedTuple):
    """What the DIMM sees: times (ns, increasing), addresses of lines, kinds.

    `access`: which read an RD is for, else -1. `values`: of each WR which store each word is of,
    -1 where it is masked or comes from the underfill.
    """

    time_ns: I64
    address: U64
    kind: npt.NDArray[np.uint8]
    access: I64
    values: I64


class Answers(NamedTuple):
    """Of each access: for a read, its command, or -1 if the queue answered.

    `commands`: how many commands its channel had had; `value`: the store in the queue that had the
    word that was read, else -1. Only tests need the two.
    """

    command: I64
    commands: I64
    value: I64


class Channels(NamedTuple):
    """How many there are, and the one of each address."""

    number: int
    of: Callable[[U64], U64]


ONE_CHANNEL = Channels(1, np.zeros_like)


def run(
    controller: Controller,
    accesses: Accesses,
    scrubbed: tuple[int, int],
    seed: int = 1,
    channels: Channels = ONE_CHANNEL,
) -> tuple[Commands, Answers]:
    """Let the controller serve all accesses; what is queued at the end stays there.

    :param scrubbed: address and bytes of the memory that patrol scrub goes over, round and round.
    """
    from ptat_testbed.bus import controller_loop  # numba

    named = {name: getattr(controller, name) for name in controller_loop.Rules._fields[:-1]}
    rules = controller_loop.Rules(**named, seed=seed)
    work = controller_loop.Work(
        accesses.time_ns,
        _line(accesses.address),
        ((accesses.address // np.uint64(WORDS)) % np.uint64(WORDS)).astype(np.int64),
        accesses.write,
        accesses.walk,
        channels.of(accesses.address).astype(np.int64),
    )
    answers = Answers(*(np.full(work.line.size, -1, np.int64) for _ in Answers._fields))
    first = scrubbed[0] // LINE_BYTES * LINE_BYTES
    scrub = np.arange(first, sum(scrubbed), LINE_BYTES).astype(np.uint64)
    scrub_channel = channels.of(scrub)
    states = tuple(
        _empty(controller, work, channel, _line(scrub[scrub_channel == channel]), answers)
        for channel in range(channels.number)
    )
    counts = controller_loop.serve(rules, work, states)
    return _merged(states, counts, answers, work.channel)


def _line(address: U64) -> I64:
    return (address // np.uint64(LINE_BYTES)).astype(np.int64)


def _empty(
    controller: Controller, work: Work, channel: int, scrub_lines: I64, answers: Answers
) -> State:
    """A channel before its first access, with room for all commands."""
    from ptat_testbed.bus import controller_loop  # numba

    mine = work.channel == channel
    span_ns = int(work.time_ns[-1] - work.time_ns[0]) if work.line.size else 0
    scrubs = span_ns // controller.scrub_ns + 2 if controller.scrub_ns else 0
    room = 2 * int(np.count_nonzero(mine)) + scrubs
    return controller_loop.State(
        time=np.zeros(room, np.int64),
        line=np.zeros(room, np.int64),
        kind=np.zeros(room, np.uint8),
        access=np.full(room, -1, np.int64),
        values=np.full((int(np.count_nonzero(mine & work.write)), WORDS), -1, np.int64),
        queue_line=np.zeros(controller.capacity, np.int64),
        queue_time=np.zeros(controller.capacity, np.int64),
        queue_filled=np.zeros(controller.capacity, np.bool_),
        queue_values=np.zeros((controller.capacity, WORDS), np.int64),
        answer=answers.command,
        answered=answers.commands,
        answer_value=answers.value,
        scrub_lines=scrub_lines,
    )


def _merged(
    states: Sequence[State], counts: I64, answers: Answers, channel: I64
) -> tuple[Commands, Answers]:
    """The commands of all channels in order of time, no two at the same."""
    parts = list(zip(states, counts.tolist(), strict=True))
    time_ns, line, kind, access = (
        np.concatenate([getattr(state, name)[:count] for state, count in parts])
        for name in ("time", "line", "kind", "access")
    )
    order = np.argsort(time_ns, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
    seen = np.flatnonzero(answers.command >= 0)
    command = np.full(answers.command.size, -1, np.int64)
    command[seen] = place[answers.command[seen] + begins[channel[seen]]]
    values = np.concatenate(
        [state.values[: np.count_nonzero(state.kind[:count] == WR)] for state, count in parts]
    )
    writes = np.flatnonzero(kind == WR)
    of_write = np.zeros(order.size, np.int64)
    of_write[writes] = np.arange(writes.size)
    steps = np.arange(order.size)
    commands = Commands(
        np.maximum.accumulate(time_ns[order] - steps) + steps,
        line[order].astype(np.uint64) * np.uint64(LINE_BYTES),
        kind[order],
        access[order],
        values[of_write[order[kind[order] == WR]]],
    )
    return commands, Answers(command, answers.commands, answers.value)
