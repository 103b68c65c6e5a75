# SPDX-License-Identifier: BSD-2-Clause
"""``make kernel-cost``: how many instructions of the kernel PTAT costs.

The operations are lmbench's: fork, exec, exit, page faults, mmap and munmap (see
``testbed/guest/cost.c``). QEMU counts instructions exactly with ``-icount``: the same machine
gives the same counts to the last digit, which is checked. An operation's count is the median of
hundreds: that is how many it takes when neither the timer ticks nor an allocator's list runs out.
Another amount of memory moves all that the kernel allocates; how far the counts then differ is the
spread.

Compared are the unpatched kernel and the patched one, of the same source and configuration, in
six ways: unpatched; with CONFIG_PTAT but without ``ptat=`` (off); with ``ptat=`` while no process
was traced yet (idle); for a process that is not traced, beside one that is (untraced); for one
that is traced; and untraced where TLB misses of others would trap (trap). An uncached store counts
as one instruction, as does any.

Ends with one JSON line: ``{"off_percent", "idle_percent", "untraced_percent", "trap_percent",
"traced", "unpatched", "spread_percent", "repeatable"}``. The first four are what an operation takes
more than on the unpatched kernel, in percent; `traced` and `unpatched` are instructions. Exit
status 1 if a machine does not repeat its counts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import build, plain
from ptat_testbed.guest.steps import progress

GUEST = build.SOURCES / "testbed" / "guest"
LAYOUTS_MIB = (1024, 1040, 1088)
"""Of memory: as many machines that differ."""
REGION = "ptat=16M"
TIMEOUT_S = 900
# One nanosecond an instruction, on a virtual clock that all devices follow; no entropy of the
# host's; and clears and copies of pages as a few instructions a word: `rep` counts each step.
EXACT = (
    *("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"),
    *("-rtc", "base=2026-01-01,clock=vm", "-seed", "1"),
    *("-cpu", "max,la57=off,erms=off,fsrm=off,rdrand=off,rdseed=off"),
)
COST = re.compile(r"^cost (\w+) (\d+)$", re.M)


@dataclass(frozen=True)
class Way:
    """A kernel and how it is booted."""

    name: str
    kernel: build.Kernel
    parameters: str


def measure(way: Way, initrd: Path, memory_mib: int) -> dict[str, float]:
    """Instructions of each operation.

    :raises BoardError: the guest failed.
    """
    console = plain.boot(
        way.kernel.image,
        initrd,
        f"nokaslr norandmaps {way.parameters}",
        memory_mib=memory_mib,
        options=EXACT,
        timeout_s=TIMEOUT_S,
    )
    counts = {name: float(count) for name, count in COST.findall(console)}
    if "cost: done" not in console or not counts:
        raise BoardError(f"the guest ({way.name}) failed: {console[-2000:]}")
    return counts


def spread_percent(counts: Sequence[float]) -> float:
    """Between the machines, relative to their mean."""
    return 100 * (max(counts) - min(counts)) / fmean(counts)


def above_percent(counts: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """How much more `counts` are than `base`, for each operation."""
    return {name: round(100 * (counts[name] / base[name] - 1), 3) for name in base}


def ways() -> tuple[Way, ...]:
    """The kernels, built if they are not in the cache, and what they are compared as."""
    options = (build.KERNEL_CONFIGS / "small.config", build.KERNEL_CONFIGS / "cost.config")
    unpatched = build.kernel_variant(
        *options, build.KERNEL_CONFIGS / "unpatched.config", patched=False
    )
    patched = build.kernel_variant(*options)
    return (
        Way("unpatched", unpatched, ""),
        Way("off", patched, ""),
        Way("idle", patched, REGION),
        Way("untraced", patched, f"{REGION} beside"),
        Way("traced", patched, f"{REGION} traced"),
        Way("trap", patched, f"{REGION},trap"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make kernel-cost", description=__doc__)
    parser.add_argument(
        "--layouts",
        type=int,
        default=len(LAYOUTS_MIB),
        choices=range(1, len(LAYOUTS_MIB) + 1),
        help="how many machines with other amounts of memory to count on (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    layouts = LAYOUTS_MIB[: options.layouts]
    runs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bare = ("-nostdlib", "-nostartfiles")
        paths = (
            build.compiled(folder / "init", GUEST / "cost.c"),
            build.compiled(folder / "cost_exec", GUEST / "cost_exec.c", flags=bare),
        )
        programs = {path.name: path.read_bytes() for path in paths}
        initrd = plain.archive(folder / "initramfs.cpio", programs)
        for way in ways():
            with progress(f"counting instructions: {way.name}"):
                runs[way.name] = [measure(way, initrd, memory) for memory in layouts]
        with progress("counting instructions: unpatched, again"):
            again = measure(ways()[0], initrd, layouts[0])

    repeatable = again == runs["unpatched"][0]
    mean = {
        name: {operation: fmean(run[operation] for run in of) for operation in of[0]}
        for name, of in runs.items()
    }
    above = {
        name: above_percent(of, mean["unpatched"])
        for name, of in mean.items()
        if name != "unpatched"
    }
    spread = {
        operation: round(
            max(spread_percent([run[operation] for run in of]) for of in runs.values()), 3
        )
        for operation in mean["unpatched"]
    }
    names = "".join(f"{name:>10}" for name in above)
    print(f"{'instructions':16} {'unpatched':>11}{names}  spread")
    for name, count in mean["unpatched"].items():
        more = "".join(f"{of[name]:+9.2f}%" for of in above.values())
        print(f"{name:16} {count:11,.0f}{more}  {spread[name]:.2f}%")
    result = {
        "off_percent": above["off"],
        "idle_percent": above["idle"],
        "untraced_percent": above["untraced"],
        "trap_percent": above["trap"],
        "traced": {name: round(count) for name, count in mean["traced"].items()},
        "unpatched": {name: round(count) for name, count in mean["unpatched"].items()},
        "spread_percent": spread,
        "repeatable": repeatable,
    }
    print(json.dumps(result))
    return 0 if repeatable else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BoardError as error:
        sys.exit(f"kernel-cost: {error}")
