# SPDX-License-Identifier: BSD-2-Clause
"""``make kernel-debug``: the patched kernel under the kernel's own checkers.

Two kernels, for KCSAN excludes KASAN: one has KASAN, lockdep (PROVE_LOCKING), UBSAN, DEBUG_VM,
DEBUG_VM_PGTABLE, PAGE_TABLE_CHECK and more (``kernel-patch/config/debug.config``), the other
KCSAN, which detects data races (``kcsan.config``). Each runs PTAT's KUnit test, the selftest
(faults, fork, exec, mremap, huge pages, swap, migration, full region …) on one and on two CPUs, and
a recording of gups in the testbed. Every report of a checker is counted.

That none was reported means something only if one would have been: on the same kernels, bugs of
several kinds are provoked, and each must be counted. The data race is one in PTAT's own code, which
a patch adds (``kcsan-race.patch``).

Ends with one JSON line: ``{"booted", "reports", "kernels": {kernel: {"runs", "reports",
"provoked"}}}``; `provoked` says which kinds of bugs were seen of those that were provoked. Exit
status 1 if there are reports, a run fails, or a provoked bug is not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_testbed.boards import guest_run
from ptat_testbed.guest import build, layout, plain
from ptat_testbed.guest.steps import progress

RACE = build.KERNEL_SCRIPT.parent / "tests" / "kcsan-race.patch"
PROVOKE = build.SOURCES / "testbed" / "guest" / "provoke.c"
BUS = "ptat=8M@256M"
TRAP = "ptat=8M,trap"
PARAMETERS = "nokaslr kunit.enable=1 rcupdate.rcu_cpu_stall_timeout=300"
GUPS = ("gups", "--bytes", "4M", "--updates", "20K")
DETACHING = "/ptat_test -r -d /sys/kernel/mm/ptat/detach"
"""Reads back before each flush, until a region that is in use is given up."""
REGION_BYTES = 8 << 20
TIMEOUT_S = 3600
"""All checkers together take an order of magnitude."""

# The first line of a report, whoever writes it; but of races of a CPU with a device only if KCSAN
# names a second function: QEMU writes virtio's rings.
REPORT = re.compile(
    r"^(?:\[ *\d+\.\d+\](?:\[[^]]*\])? )?(?:\[ )?"
    r"(?!BUG: KCSAN: data-race in virtqueue_[^ ]+$)"
    r"((?:BUG|WARNING|UBSAN|Oops|watchdog: BUG): .*|kernel BUG at .*"
    r"|general protection fault.*|rcu: INFO: .* stall.*)$",
    re.M,
)


@dataclass(frozen=True)
class Checked:
    """A kernel with checkers."""

    config: Path
    at_work: dict[str, str]
    """What each checker says when it is at work."""
    provoked: dict[str, str]
    """Kinds of bugs, by the names that `PROVOKE` has for them, and a pattern of their report."""
    parameters: str = ""
    cpus: int = 1
    """When bugs are provoked."""
    beside: Path | None = None
    """A patch that helps with that."""


KERNELS = {
    "kasan": Checked(
        build.KERNEL_CONFIGS / "debug.config",
        at_work={
            "KASAN": "KernelAddressSanitizer initialized",
            "lockdep": "Lock dependency validator:",
            "DEBUG_VM_PGTABLE": "Validating architecture page table helpers",
        },
        # The second leaves a lock behind, and has to come before KASAN's: whatever that reports
        # turns lockdep off. Lockdep sees it on the way to user space, or in rseq's code there,
        # which locks the mm if the thread was interrupted.
        provoked={
            "WARNING": "WARNING: ",
            "SPINLOCKUP": r"lock held when returning to user space|BUG: Invalid wait context",
            "READ_AFTER_FREE": "BUG: KASAN: ",
            "ARRAY_BOUNDS": "UBSAN: array-index-out-of-bounds",
        },
        parameters="kasan_multi_shot",
    ),
    "kcsan": Checked(
        build.KERNEL_CONFIGS / "kcsan.config",
        at_work={"KCSAN": "kcsan: selftest: 3/3 tests passed"},
        provoked={"PTAT_DATA_RACE": "BUG: KCSAN: data-race in ptat_pool_"},
        cpus=2,
        beside=RACE,
    ),
}


def reports(console: str) -> list[str]:
    """The first line of each report in what a kernel wrote."""
    return REPORT.findall(console)


def _recorded(kernel: build.Kernel, session: Path, *, traps: bool) -> tuple[bool, str]:
    """Record gups on this kernel: whether it was complete, and what the kernel wrote."""
    session.mkdir()
    request = RecordRequest(
        argv=list(GUPS),
        session_dir=session,
        cwd=Path("/"),
        env=dict(os.environ),
        children=False,
        maps=False,
        region_bytes=REGION_BYTES,
        options={"cpus": "2"},
    )
    recording = guest_run.Recording(request, kernel, traps=traps)
    settings = recording.settings
    base = None if traps else layout.region_in_ram(settings.region_bytes, settings.memory_bytes)
    result = recording.record(recording.machine_config(base))
    return result.complete and not result.exit_status, (session / "console.log").read_text()


def _checked(name: str, checked: Checked, directory: Path) -> dict[str, Any]:
    """Run all on this kernel; what it wrote goes to `directory`.

    :raises BoardError: it cannot be built, or a checker is not at work.
    """
    kernel = build.kernel_variant(checked.config, beside=checked.beside)
    programs = {
        "init": plain.test_init(directory),
        **{
            name: (kernel.directory / name).read_bytes() for name in ("ptat_test", "ptat_trap_test")
        },
        "provoke": build.compiled(directory / "provoke", PROVOKE).read_bytes(),
    }
    initrd = plain.archive(directory / "initramfs.cpio", programs)

    def boot(run: str, command: str, cpus: int, region: str = BUS) -> str:
        with progress(f"checking the kernel ({name}): {run}"):
            console = plain.boot(
                kernel.image,
                initrd,
                f"{region} {PARAMETERS} {checked.parameters} -- {command}",
                cpus=cpus,
                timeout_s=TIMEOUT_S,
            )
        (directory / f"{run}.log").write_text(console)
        return console

    runs: dict[str, bool] = {}
    found: list[str] = []
    for cpus in (1, 2):
        run = f"selftest-{cpus}"
        console = boot(run, "/ptat_test", cpus)
        idle = [checker for checker, says in checked.at_work.items() if says not in console]
        if idle:
            raise BoardError(f"not at work in this kernel: {', '.join(idle)}")
        runs[run] = "/ptat_test: exit status 0" in console
        runs["kunit"] = runs.get("kunit", True) and bool(
            re.search(r"\bok \d+ ptat$", console, re.M)
        )
        found += reports(console)
    for run, command, region in (
        ("detaching", DETACHING, BUS),
        ("trap-selftest", "/ptat_test", TRAP),
        ("trap", "/ptat_trap_test", TRAP),
    ):
        console = boot(run, command, 2, region)
        runs[run] = f"{command.split()[0]}: exit status 0" in console
        found += reports(console)
    for run, traps in (("gups", False), ("trap-gups", True)):
        with progress(f"checking the kernel ({name}): recording {run}"):
            runs[run], console = _recorded(kernel, directory / run, traps=traps)
        found += reports(console)
    seen = reports(boot("provoke", f"/provoke {' '.join(checked.provoked)}", checked.cpus))
    return {
        "runs": runs,
        "reports": found,
        "provoked": {
            kind: any(re.search(says, line) for line in seen)
            for kind, says in checked.provoked.items()
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run all on the checked kernels; exit 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="make kernel-debug", description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", choices=KERNELS, help="only this one (default: all)")
    parser.add_argument("--logs", type=Path, help="keep here what the kernels write")
    arguments = parser.parse_args(argv)
    names = [arguments.kernel] if arguments.kernel else list(KERNELS)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ptat-kernel-debug.") as temporary:
        for name in names:
            directory = (arguments.logs or Path(temporary)) / name
            directory.mkdir(parents=True, exist_ok=True)
            try:
                results[name] = _checked(name, KERNELS[name], directory)
            except BoardError as error:
                print(f"kernel-debug: {error}", file=sys.stderr)
                return 2
    for result in results.values():
        for line in result["reports"]:
            print(line, file=sys.stderr)
        result["reports"] = len(result["reports"])
    booted = all(all(result["runs"].values()) for result in results.values())
    provoked = all(all(result["provoked"].values()) for result in results.values())
    count = sum(result["reports"] for result in results.values())
    print(json.dumps({"booted": booted, "reports": count, "kernels": results}))
    return int(not booted or not provoked or bool(count))


if __name__ == "__main__":
    sys.exit(main())
