# SPDX-License-Identifier: BSD-2-Clause
"""How fast are LRU and CLOCK? Ends with one line of JSON, references per second of CPU time.

    python studies/bench_pages.py [--references N]

Of one page size, and for CLOCK one memory, on one core:

* zipf: pages as programs use them, few of them often (exponent 1.2)
* uniform: each page as often as any other, which no cache of the CPU can help

over 20,000 pages, as many as 10 MiB have of 512 bytes. No reference repeats the one before: those,
most of a real trace, never come to the simulators. `trace` is all of a trace, from its
addresses on, with eight page sizes and ten memories each: accesses × configurations per second,
where one is a page size with LRU, or with CLOCK and a memory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from ptat_studies.pagesize.accesses import Accesses, Batch
from ptat_studies.pagesize.paging import Clock, StackDistances
from ptat_studies.pagesize.references import References
from ptat_studies.pagesize.simulation import measure

PAGES = 20_000
SIZES = [512 << step for step in range(8)]
PERCENTS = range(10, 101, 10)
ENTRIES = 64
WARM_UP = 1000


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds that it takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def numbers(kind: str, references: int) -> npt.NDArray[np.uint32]:
    """Numbers of pages without immediate repetition."""
    rng = np.random.default_rng(1)
    if kind == "uniform":
        pages = rng.integers(0, PAGES, references)
    else:
        rank = rng.zipf(1.2, references) % PAGES
        pages = rng.permutation(PAGES)[rank]
    different = np.append(True, pages[1:] != pages[:-1])
    return np.asarray(pages[different], np.uint32)


def traced(addresses: npt.NDArray[np.uint64]) -> Accesses:
    """As a trace of reads of 8 bytes."""
    parts = np.array_split(addresses, max(addresses.size >> 18, 1))
    batches = (
        Batch(part, np.full(part.size, 8, np.uint32), np.ones(part.size, np.uint8))
        for part in parts
    )
    return Accesses("bench", "text", batches)


def whole(addresses: npt.NDArray[np.uint64]) -> None:
    """Everything that ptat pagesize simulates for a trace."""
    with References(traced(addresses), SIZES[0]) as references:
        measure(references, SIZES, PERCENTS, ENTRIES)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--references", type=int, default=20_000_000, help="of each kind (default: 20 million)"
    )
    count = parser.parse_args().references
    stack, clock = {}, {}
    for kind in ("zipf", "uniform"):
        pages = numbers(kind, count)
        distances = StackDistances(PAGES)
        distances.run(pages[:WARM_UP], ENTRIES)
        stack[kind] = round(pages.size / cpu_s(partial(distances.run, pages, ENTRIES)))
        for percent in (10, 50, 100):
            memory = Clock(PAGES, PAGES * percent // 100)
            memory.run(pages[:WARM_UP])
            seconds = cpu_s(partial(memory.run, pages))
            clock[f"{kind}_{percent}_percent"] = round(pages.size / seconds)
    pages = numbers("zipf", count // 4)
    addresses = pages.astype(np.uint64) * np.uint64(SIZES[0])
    whole(addresses[:WARM_UP])
    configurations = len(SIZES) * (1 + len(PERCENTS))
    trace = round(addresses.size * configurations / cpu_s(partial(whole, addresses)))
    print(
        json.dumps(
            {
                "references": count,
                "stack_distances_per_s": stack,
                "clock_per_s": clock,
                "trace_configurations_per_s": trace,
            }
        )
    )


if __name__ == "__main__":
    main()
