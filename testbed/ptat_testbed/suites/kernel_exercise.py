# SPDX-License-Identifier: BSD-2-Clause
"""``make kernel-exercise``: all that changes page tables, untraced and traced, side by side.

Boots a kernel with what these tests need (``kernel-patch/config/exercise.config``) on several
machines and runs ``kernel-patch/tests/exercise`` there: what a process sees must be the same
traced and untraced, the region must agree with the kernel's tables all the time, be free after
each group, and the kernel must not warn.

Ends with one JSON line: ``{"machines", "groups", "passed", "skipped", "failed", "compared",
"mismatches"}``; `failed` names machines and groups.

``make kernel-reclaim`` measures what reclaim takes from a process that uses all of its 8 MiB over
and over, beside one that streams through 40 MiB, where both together may have 32 MiB: the major
faults of the former, untraced and traced, with the kernel's two lists and with its generations
(MGLRU). Each case is repeated, in turn with the others. Ends with one JSON line:
``{"reclaim": {lists: {case: [faults, …]}}}``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import build, plain
from ptat_testbed.guest.steps import progress

TESTS = build.KERNEL_SCRIPT.parent / "tests"
CONFIG = build.KERNEL_CONFIGS / "exercise.config"
REGION = "ptat=8M@256M"
"""Small enough to be full at times."""
PARAMETERS = (
    "nokaslr loglevel=5 no_timer_check secretmem.enable=1 hugepagesz=1G hugepages=2"
    " rcupdate.rcu_cpu_stall_timeout=300"
)
DISK_MIB = 24
TIMEOUT_S = 3600
RESULT = re.compile(r"^(not ok|ok) \d+ - ([^#\n]*?)( # SKIP .*)?$", re.M)
COMPARED = re.compile(r"^# compared (\d+) times, \d+ times with present entries, (\d+) mismatches$")
RECLAIMED = re.compile(r"^reclaim: (.*): (.*): (\d+) major faults$", re.M)
TROUBLE = re.compile(r"WARNING:|BUG:|Oops|rcu: .*stall|Bad page|Bad rss-counter|pgtables_bytes")


def _node(number: int, memory_mib: int) -> tuple[str, ...]:
    """A NUMA node with that much memory and the CPU of its number."""
    return (
        *("-object", f"memory-backend-ram,id=node{number},size={memory_mib}M"),
        *("-numa", f"node,memdev=node{number},cpus={number}"),
    )


@dataclass(frozen=True)
class Machine:
    """Where the program runs; more CPUs and memory than its few pages need."""

    name: str
    cpu: str = "max,la57=off"
    parameters: str = ""
    nodes: int = 1
    region: str = REGION
    memory_mib: int = 6144

    def options(self) -> list[str]:
        """Of QEMU."""
        options = ["-accel", "tcg", "-cpu", self.cpu]
        if self.nodes > 1:
            options += ["-smp", f"sockets={self.nodes}"]
            for number in range(self.nodes):
                options += _node(number, self.memory_mib // self.nodes)
        return options


MACHINES = (
    Machine("two-nodes", nodes=2),
    Machine("five-levels-pti", cpu="max,la57=on", parameters="pti=on"),
    Machine("trap", region="ptat=8M,trap"),
)
RECLAIM_MACHINE = Machine("one-node")


@dataclass
class Totals:
    """What the last line tells."""

    machines: list[str] = field(default_factory=list)
    groups: int = 0
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    compared: int = 0
    mismatches: int = 0

    def add(self, machine: str, console: str) -> None:
        """Count what a machine's console shows."""
        self.machines.append(machine)
        for verdict, name, skip in RESULT.findall(console):
            self.groups += 1
            if verdict == "not ok":
                self.failed.append(f"{machine}: {name}")
            elif skip:
                self.skipped += 1
            else:
                self.passed += 1
        for line in console.splitlines():
            if compared := COMPARED.match(line):
                self.compared += int(compared[1])
                self.mismatches += int(compared[2])
        if TROUBLE.search(console):
            self.failed.append(f"{machine}: the kernel warned")
        if not re.search(r"^1\.\.[1-9]", console, re.M):
            self.failed.append(f"{machine}: it did not come to the end")


def reclaimed(console: str) -> dict[str, dict[str, list[int]]]:
    """Major faults, by the kernel's lists and by case, as a console shows them.

    :raises BoardError: it shows trouble, or no measurement to the end.
    """
    if trouble := TROUBLE.search(console):
        raise BoardError(f"the kernel's console shows {trouble[0]}", "it is above")
    if "/exercise: exit status 0" not in console:
        raise BoardError("the measurement did not come to its end", "its console is above")
    found: dict[str, dict[str, list[int]]] = {}
    for lists, case, faults in RECLAIMED.findall(console):
        found.setdefault(lists, {}).setdefault(case, []).append(int(faults))
    return found


def _disk(directory: Path) -> bytes:
    """An empty file system."""
    image = directory / "disk.img"
    with image.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    command = ["/usr/sbin/mkfs.ext4", "-q", "-O", "^has_journal", str(image)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BoardError(f"mkfs.ext4: {done.stderr.strip()}", "run setup/packages.sh kernel")
    return image.read_bytes()


def program(directory: Path) -> Path:
    """The program, compiled.

    :raises BoardError: it cannot be.
    """
    return build.compiled(directory / "exercise", *sorted((TESTS / "exercise").glob("*.c")))


def _boot(kernel: build.Kernel, initrd: Path, machine: Machine, arguments: str) -> str:
    """Run the program on a machine; return what it and the kernel print."""
    with progress(f"exercising the kernel ({machine.name})"):
        return plain.boot(
            kernel.image,
            initrd,
            f"{machine.region} {PARAMETERS} {machine.parameters} -- /exercise {arguments}",
            cpus=2,
            memory_mib=machine.memory_mib,
            options=machine.options(),
            timeout_s=TIMEOUT_S,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the groups on the machines; exit 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        prog="make kernel-exercise", description=__doc__.splitlines()[0]
    )
    names = [machine.name for machine in MACHINES]
    parser.add_argument("--machine", choices=names, help="only this one (default: all)")
    parser.add_argument("--reclaim", action="store_true", help="measure that instead")
    parser.add_argument("words", nargs="*", help="only groups with one of these words in the name")
    arguments = parser.parse_args(argv)
    if arguments.reclaim and (arguments.machine or arguments.words):
        parser.error("--reclaim has a machine of its own, and no groups")
    totals = Totals()
    try:
        kernel = build.kernel_variant(CONFIG)
        with tempfile.TemporaryDirectory(prefix="ptat-exercise.") as temporary:
            directory = Path(temporary)
            members = {
                "init": plain.test_init(directory),
                "exercise": program(directory).read_bytes(),
                "disk.img": _disk(directory),
            }
            initrd = plain.archive(directory / "initramfs.cpio", members)
            if arguments.reclaim:
                console = _boot(kernel, initrd, RECLAIM_MACHINE, "--reclaim")
                print(console, file=sys.stderr)
                print(json.dumps({"reclaim": reclaimed(console)}))
                return 0
            for machine in MACHINES:
                if arguments.machine not in (None, machine.name):
                    continue
                console = _boot(kernel, initrd, machine, " ".join(arguments.words))
                print(console[console.find("TAP version") :], file=sys.stderr, flush=True)
                totals.add(machine.name, console)
    except BoardError as error:
        print(f"kernel-exercise: {error}", file=sys.stderr)
        return 2
    print(json.dumps(vars(totals)))
    return int(bool(totals.failed or totals.mismatches))


if __name__ == "__main__":
    sys.exit(main())
