# SPDX-License-Identifier: BSD-2-Clause
"""How fast is the parser? Prints one line of JSON.

    python parser/bench.py [--records N] [--megabytes M] [--granularity G]

Makes the capture of a program that touches its memory page by page and then at random, with each
first touch a fault that the kernel logs, and parses it in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent / "tests"))
import synthetic

from ptat_parser import parse, wire
from ptat_parser.blocks import CHUNK_BLOCKS, BlockWriter, seal

STEP_TICKS = 40
"""Time between two random accesses."""


def random_blocks(start_ticks: int, addresses: npt.NDArray[np.uint64], seq: int) -> list[bytes]:
    """Blocks of reads, `STEP_TICKS` apart."""
    words = addresses >> np.uint64(3) | np.uint64(1 << 60 | STEP_TICKS << 36)
    blocks = []
    for first in range(0, len(addresses), wire.BLOCK_RECORDS_MAX):
        part = words[first : first + wire.BLOCK_RECORDS_MAX]
        block = np.zeros(wire.BLOCK_WORDS, "<u8")
        block[wire.WORD_HEADER] = wire.MAGIC << 48 | wire.VERSION << 44 | seq + len(blocks)
        block[wire.WORD_TIME] = start_ticks + (first - 1) * STEP_TICKS
        block[wire.WORD_FIRST_RECORD : wire.WORD_FIRST_RECORD + len(part)] = part
        seal(block, len(part))
        blocks.append(block.tobytes())
    return blocks


def make_session(path: Path, records: int, megabytes: int, granularity: int) -> None:
    """A session of `records` random misses over `megabytes` of memory."""
    tables = megabytes // 2
    machine = synthetic.Machine(granularity=granularity, region_pages=tables + 16)
    mm = machine.exec()
    pages = tables * 512
    for page in range(pages):
        machine.walk(mm, page << 12, True)
        machine.event("ptat_fault", mm=mm.id, va=page << 12, error_code=2)
        machine.set_pte(mm, page << 12, True)
        machine.access(mm, page << 12, True)
    slots = np.array(
        [machine.slot(machine.pte(mm, page << 12), page & 511) for page in range(pages)], np.uint64
    )
    slots &= np.uint64(-granularity & (1 << 64) - 1)
    start_ticks = machine.now + 1000
    machine.now = start_ticks + records * STEP_TICKS + 1000
    machine.event("ptat_marker", cookie=2)
    machine.write(path)  # as if the random accesses had not been

    with (path / "bus.0.raw").open("wb") as file:
        writer = BlockWriter(file)
        writer.mark(1, wire.Mark.START)
        for ticks, address, write in machine.bus[:-1]:
            writer.access(ticks, address, bool(write))
        writer.flush()
        choose = np.random.default_rng(1)
        step = CHUNK_BLOCKS * wire.BLOCK_RECORDS_MAX
        for first in range(0, records, step):
            addresses = slots[choose.integers(0, pages, min(step, records - first))]
            blocks = random_blocks(start_ticks + first * STEP_TICKS, addresses, writer.blocks)
            file.writelines(blocks)
            writer.blocks += len(blocks)
        ticks, address, _ = machine.bus[-1]
        writer.access(ticks, address, True)
        writer.mark(machine.now, wire.Mark.STOP)
        writer.flush()


def measure(path: Path, counts_only: bool) -> None:
    """Parse and print the figures; run in a process of its own, for its memory."""
    parse(path, counts_only=counts_only)  # compiles, or loads what was compiled before
    started = time.perf_counter()
    summary = parse(path, counts_only=counts_only).summary
    seconds = time.perf_counter() - started
    figures = {
        "records": summary["totals"]["accesses"],
        "misses": summary["totals"]["misses"],
        "seconds": round(seconds, 2),
        "records_per_s": round(summary["totals"]["accesses"] / seconds),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "counts_only": counts_only,
        "lost": summary["lost"],
        "unexplained": summary["unexplained"]["reads"],
    }
    print(json.dumps(figures))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000_000, help="default: 20 million")
    parser.add_argument("--megabytes", type=int, default=256, help="memory touched; default: 256")
    parser.add_argument("--granularity", type=int, default=64, help="bytes; default: 64")
    parser.add_argument("--counts-only", action="store_true", help="write no single misses")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.counts_only)
        return
    with tempfile.TemporaryDirectory(prefix="ptat-bench-") as directory:
        path = Path(directory) / "session"
        make_session(path, arguments.records, arguments.megabytes, arguments.granularity)
        command = [sys.executable, __file__, "--measure", str(path)]
        subprocess.run(command + ["--counts-only"] * arguments.counts_only, check=True)


if __name__ == "__main__":
    main()
