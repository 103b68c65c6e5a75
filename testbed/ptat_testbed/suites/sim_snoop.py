# SPDX-License-Identifier: BSD-2-Clause
"""Requests to a real memory controller against what the snooper says about them.

LiteDRAM's controller gets random, sequential, bank-conflicting and mixed requests as fast as it
takes them, and its commands go to the snooper in Verilator. What the snooper's stream must say
is known without it: the harness notes the time and the bank of each column command, and a bank
serves its requests in order. So each record is held against one request: address, read or
write, and the very tick.

The requests are shared out among simulators, one on each CPU.

Ends with one JSON line: ``{"requests", "recovered", "wrong", "lost", "cycles_per_s",
"simulators"}``; ``lost`` are requests that no record tells of, ``cycles_per_s`` are clocks of all
controllers in a second of the time that the simulators run. Exit status 1 if any is wrong, a
stream's own count of losses is another, or any is lost though the links never stall.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptat_gateware.sim import run
from ptat_gateware.sim.geometry import CLOCK_PS
from ptat_gateware.sim.words import BANK_SHIFT, PAUSE_SHIFT
from ptat_host.calibration.dram import Window
from ptat_parser import wire
from ptat_parser.capture.chunks import Lost
from ptat_parser.capture.reader import BusReader
from ptat_parser.errors import BadInput, PtatError
from ptat_testbed.bus.snooped_memory import SnoopedMemory, bank_in_all

U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

LINE_BYTES = 64
CHANNEL_BYTES = 8 << 30
"""What the address mapping gives a channel: two ranks."""
ROW_LINES = 1 << 24 - 6
"""Lines this far apart differ in their row only: bank functions use lower bits of the address."""
SEGMENT = 1 << 16
"""Requests of one kind in a row."""
BURST = 4096
"""Requests between which the link is given time: half of what the snooper's buffer holds."""
CAUGHT_UP_CLOCKS = 64
"""A link that is silent for this time has sent all complete blocks."""


class Wrong(Exception):
    """The stream contradicts the bus."""


# Requests ---------------------------------------------------------------------------------------


def _random(rng: np.random.Generator, count: int, memory_bytes: int) -> U64:
    return rng.integers(0, memory_bytes // LINE_BYTES, count, np.uint64)


def _sequential(rng: np.random.Generator, count: int, memory_bytes: int) -> U64:
    lines = memory_bytes // LINE_BYTES
    first = rng.integers(0, lines, dtype=np.uint64)
    return (first + np.arange(count, dtype=np.uint64)) % np.uint64(lines)


def _conflicts(rng: np.random.Generator, count: int, memory_bytes: int) -> U64:
    """Two rows of one bank in turn, for some time: each request closes the other's row."""
    spell = 32
    spells = -(-count // spell)
    lines = memory_bytes // LINE_BYTES
    base = rng.integers(0, lines, spells, np.uint64)
    other = base ^ (np.uint64(ROW_LINES) * rng.integers(1, 16, spells, np.uint64))
    pairs = np.stack([base, other], axis=1)
    alternating: U64 = np.tile(pairs, spell // 2).reshape(-1)[:count]
    return alternating


def _local(rng: np.random.Generator, count: int, memory_bytes: int) -> U64:
    """Spells within a few pages, as programs have them."""
    spell = 8
    spells = -(-count // spell)
    base = rng.integers(0, memory_bytes // LINE_BYTES, spells, np.uint64)
    lines: U64 = np.repeat(base, spell)[:count] & ~np.uint64(0x7F)
    lines |= rng.integers(0, 128, count, np.uint64)
    return lines


PATTERNS: tuple[Callable[[np.random.Generator, int, int], U64], ...] = (
    _random,
    _sequential,
    _conflicts,
    _local,
)


@dataclass(frozen=True)
class Requests:
    """Physical addresses (bytes) and kinds of requests, shape ``(requests,)``."""

    address: U64
    write: Bools


def generate(count: int, memory_bytes: int, seed: int) -> Iterator[Requests]:
    """Segments of requests, patterns in turn, reads only, writes only and mixed."""
    rng = np.random.default_rng(seed)
    segment = min(SEGMENT, -(-count // (2 * len(PATTERNS))))
    for i, start in enumerate(range(0, count, segment)):
        size = min(segment, count - start)
        lines = PATTERNS[i % len(PATTERNS)](rng, size, memory_bytes)
        write = rng.random(size) < (0.5, 0.0, 1.0, 0.1)[i // len(PATTERNS) % 4]
        yield Requests(lines * np.uint64(LINE_BYTES), write)


def shared_out(segments: Sequence[Requests], jobs: int) -> list[Sequence[Requests]]:
    """Split the segments among `jobs` simulators, evenly and in order."""
    ends = [len(segments) * job // jobs for job in range(jobs + 1)]
    return [segments[a:b] for a, b in pairwise(ends) if a < b]


def from_trace(path: Path) -> Iterator[Requests]:
    """The accesses of a recorded capture stream, as lines."""
    for chunk in BusReader(path):
        yield Requests(chunk.address & ~np.uint64(LINE_BYTES - 1), chunk.write)


def with_pauses(words: U64, rng: np.random.Generator) -> U64:
    """Now and then a bank's next request waits, so that refresh finds rows open and banks idle."""
    at = np.flatnonzero(rng.random(words.size) < 1e-3)
    which = np.uint64((1 << PAUSE_SHIFT) - 1) & ~np.uint64((1 << BANK_SHIFT) - 1)
    clocks = rng.integers(1, 500, at.size, np.uint64)
    waits = np.uint64(1 << PAUSE_SHIFT) | words[at] & which | clocks
    return np.insert(words, at, waits)


# Checking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """What one snooper wrote."""

    time_ticks: U64
    address: U64
    write: Bools
    lost: list[Lost]


def read_stream(path: Path, channel: int) -> Stream:
    """All of a capture stream."""
    times, addresses, writes = [], [], []
    lost: list[Lost] = []
    accesses = 0
    for chunk in BusReader(path, channel):
        for mark in chunk.marks:
            if mark.code not in (wire.Mark.START, wire.Mark.STOP):
                raise Wrong(f"channel {channel} has a mark {mark}")
        lost += [replace(lost, position=lost.position + accesses) for lost in chunk.lost]
        accesses += chunk.time.size
        times.append(chunk.time)
        addresses.append(chunk.address)
        writes.append(chunk.write)
    return Stream(np.concatenate(times), np.concatenate(addresses), np.concatenate(writes), lost)


def on_the_bus(requests: Requests, bank: U64, command_bank: U64) -> Requests:
    """The requests in the order of their column commands: each bank keeps their order."""
    if bank.size != command_bank.size:
        raise Wrong(f"{command_bank.size} column commands for {bank.size} requests")
    by_bank = np.argsort(bank, kind="stable")
    commands_by_bank = np.argsort(command_bank, kind="stable")
    if not np.array_equal(bank[by_bank], command_bank[commands_by_bank]):
        raise Wrong("the controller did not serve each request once in its bank")
    order = np.empty(bank.size, np.int64)
    order[commands_by_bank] = by_bank
    return Requests(requests.address[order], requests.write[order])


@dataclass
class Verdict:
    """Counts of requests; see the module."""

    requests: int = 0
    recovered: int = 0
    wrong: int = 0
    lost: int = 0


def compare(expected: Requests, time_ticks: U64, stream: Stream, verdict: Verdict) -> None:
    """Hold a channel's stream against its column commands, both in bus order.

    The snooper's time runs a constant ahead of the harness's: that of the first record.
    """
    verdict.requests += time_ticks.size
    if not stream.time_ticks.size:
        verdict.lost += time_ticks.size
        return
    at = stream.time_ticks - (stream.time_ticks[0] - time_ticks[0])
    command = np.minimum(np.searchsorted(time_ticks, at), time_ticks.size - 1)
    right = (
        (time_ticks[command] == at)
        & (expected.address[command] == stream.address)
        & (expected.write[command] == stream.write)
    )
    seen = np.zeros(time_ticks.size, np.bool_)
    seen[command[right]] = True
    recovered = int(np.count_nonzero(seen))
    verdict.recovered += recovered
    verdict.wrong += stream.time_ticks.size - recovered
    verdict.lost += time_ticks.size - recovered
    if sum(lost.count or 0 for lost in stream.lost) != time_ticks.size - stream.time_ticks.size:
        raise Wrong("the stream's LOST records do not tell how many accesses are missing")
    # Between the records around it, each LOST record must tell exactly what is missing there.
    missing = np.concatenate([[0], np.cumsum(~seen)])
    for lost in stream.lost:
        first = int(command[lost.position - 1]) + 1 if lost.position else 0
        end = int(command[lost.position]) if lost.position < command.size else time_ticks.size
        if missing[end] - missing[first] != lost.count:
            raise Wrong(f"a LOST record tells of {lost.count}, {end - first} are missing there")


# Running ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stall:
    """How a link stalls: mean lengths of the spells in which it takes words, and takes none."""

    open_clocks: int
    closed_clocks: int


def run_requests(
    segments: Sequence[Requests],
    *,
    channels: int = 1,
    ranks: int = 1,
    seed: int = 1,
    sys_ps: int = CLOCK_PS,
    stall: Stall | None = None,
) -> tuple[Verdict, run.Result]:
    """Simulate, and hold the streams against the commands.

    :raises Wrong: a stream contradicts the bus, or itself.
    :raises PtatError: the simulation failed, or a stream is damaged.
    """
    rng = np.random.default_rng(seed)
    window = Window(0, channels * CHANNEL_BYTES)
    memory = SnoopedMemory(channels, [window], ranks=ranks, sys_ps=sys_ps)
    segments = [Requests(memory.in_ranks(segment.address), segment.write) for segment in segments]
    memory.start()
    if stall:
        memory.simulation.stall(stall.open_clocks, stall.closed_clocks, seed)
    for segment in segments:
        words = with_pauses(memory.words(segment.address, segment.write), rng)
        for start in range(0, words.size, BURST):
            memory.simulation.flood(words[start : start + BURST])
            if not stall:
                memory.simulation.drain(CAUGHT_UP_CLOCKS)
    requests = Requests(
        np.concatenate([segment.address for segment in segments]),
        np.concatenate([segment.write for segment in segments]),
    )
    with tempfile.TemporaryDirectory(prefix="ptat-sim.") as work:
        paths = [Path(work) / f"bus.{channel}.raw" for channel in range(channels)]
        result, _ = memory.execute(paths)
        streams = [read_stream(path, channel) for channel, path in enumerate(paths)]
    channel = result.channel.astype(np.uint64)
    command_bank = bank_in_all(channel, result.bank.astype(np.uint64))
    expected = on_the_bus(requests, memory.bank_of(requests.address), command_bank)
    verdict = Verdict()
    for number, stream in enumerate(streams):
        here = channel == number
        mine = Requests(expected.address[here], expected.write[here])
        compare(mine, result.time_ticks[here], stream, verdict)
    return verdict, result


def parse_stall(text: str) -> Stall:
    """``OPEN:CLOSED``, in clocks."""
    open_clocks, _, closed_clocks = text.partition(":")
    if not (open_clocks.isdecimal() and closed_clocks.isdecimal() and int(open_clocks)):
        raise argparse.ArgumentTypeError(f"{text!r}: write it as 100:2000")
    return Stall(int(open_clocks), int(closed_clocks))


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate and print the verdict."""
    parser = argparse.ArgumentParser(prog="make sim-snoop", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=300_000, help="default: 300,000")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: 1)")
    parser.add_argument("--channels", type=int, choices=(1, 2), default=1, help="default: 1")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1, help="default: 1")
    parser.add_argument(
        "--trace", type=Path, help="a capture stream whose accesses are the requests instead"
    )
    parser.add_argument(
        "--sys-ps",
        type=int,
        default=CLOCK_PS,
        help=f"period of the link's clock (default: the snooper's, {CLOCK_PS} ps)",
    )
    parser.add_argument(
        "--stall",
        type=parse_stall,
        help="OPEN:CLOSED, mean clocks that the link takes words, or not",
    )
    parser.add_argument(
        "--jobs", type=int, help="simulators that share the requests (default: one a CPU)"
    )
    arguments = parser.parse_args(argv)
    if arguments.requests < 1:
        parser.error("--requests: at least 1")
    if arguments.jobs is not None and arguments.jobs < 1:
        parser.error("--jobs: at least 1")

    memory_bytes = arguments.channels * CHANNEL_BYTES

    def simulate(segments: Sequence[Requests], seed: int) -> tuple[Verdict, run.Result]:
        return run_requests(
            segments,
            channels=arguments.channels,
            ranks=arguments.ranks,
            seed=seed,
            sys_ps=arguments.sys_ps,
            stall=arguments.stall,
        )

    try:
        if arguments.trace:
            segments, jobs = list(from_trace(arguments.trace)), 1
            if not any(segment.address.size for segment in segments):
                raise BadInput(f"{arguments.trace}: has no accesses", "record some")
        else:
            segments = list(generate(arguments.requests, memory_bytes, arguments.seed))
            jobs = arguments.jobs or len(os.sched_getaffinity(0))
        lots = shared_out(segments, jobs)
        # Builds the simulator, if need be, before several want it.
        SnoopedMemory(arguments.channels, [Window(0, memory_bytes)], ranks=arguments.ranks)
        seeds = range(arguments.seed, arguments.seed + len(lots))
        # Threads: each waits for a simulator.
        with ThreadPoolExecutor(len(lots)) as pool:
            done = list(pool.map(simulate, lots, seeds))
    except Wrong as wrong:
        print(f"sim-snoop: {wrong}", file=sys.stderr)
        return 1
    except PtatError as error:
        print(f"sim-snoop: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"sim-snoop: {error.hint}", file=sys.stderr)
        return 2
    verdict = Verdict(*map(sum, zip(*(astuple(part) for part, _ in done), strict=True)))
    results = [result for _, result in done]
    took_s = max(result.ended_s for result in results) - min(result.begun_s for result in results)
    speed = round(sum(result.cycles for result in results) / took_s)
    print(json.dumps({**asdict(verdict), "cycles_per_s": speed, "simulators": len(lots)}))
    return int(verdict.wrong > 0 or (verdict.lost > 0 and not arguments.stall))


if __name__ == "__main__":
    sys.exit(main())
