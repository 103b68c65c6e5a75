# SPDX-License-Identifier: BSD-2-Clause
"""``make kernel-debug``: the patched kernel under the kernel's own checkers.

The kernel has KASAN, lockdep (PROVE_LOCKING), UBSAN, DEBUG_VM, DEBUG_VM_PGTABLE, PAGE_TABLE_CHECK
and more (``kernel-patch/variants/debug.config``). It runs PTAT's KUnit test, the selftest (faults,
fork, exec, mremap, huge pages, swap, migration, full region …) on one and on two CPUs, and a
recording of gups in the testbed. Every report of a checker is counted.

That none was reported means something only if one would have been: on the same kernel, bugs of
several kinds are provoked, and each must be counted.

Ends with one JSON line: ``{"booted", "reports", "runs", "provoked"}``; `provoked` says which kinds
of bugs were seen of those that were provoked. Exit status 1 if there are reports, a run fails, or
a provoked bug is not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_testbed import build, plain, run, sizes
from ptat_testbed.progress import progress

CONFIG = build.KERNEL_SCRIPT.parent / "variants" / "debug.config"
INIT = build.KERNEL_SCRIPT.parent / "tests" / "init.c"
PROVOKE = build.SOURCES / "testbed" / "guest" / "provoke.c"
PARAMETERS = "ptat=8M@256M kunit.enable=1 kasan_multi_shot rcupdate.rcu_cpu_stall_timeout=300"
GUPS = ("gups", "--bytes", "4M", "--updates", "20K")
REGION_BYTES = 8 << 20
TIMEOUT_S = 3600
"""All checkers together take an order of magnitude."""

# The first line of a report, whoever writes it.
REPORT = re.compile(
    r"^(?:\[ *\d+\.\d+\](?:\[[^]]*\])? )?"
    r"((?:BUG|WARNING|UBSAN|Oops|watchdog: BUG): .*|kernel BUG at .*"
    r"|general protection fault.*|rcu: INFO: .* stall.*)$",
    re.M,
)
# What each checker says when it is at work.
AT_WORK = {
    "KASAN": "KernelAddressSanitizer initialized",
    "lockdep": "Lock dependency validator:",
    "DEBUG_VM_PGTABLE": "Validating architecture page table helpers",
}
# Kinds of bugs by LKDTM's name, and what reports them. The second leaves a lock behind, and has to
# come before KASAN's: whatever that reports turns lockdep off.
PROVOKED = {
    "WARNING": "WARNING: ",
    "SPINLOCKUP": "lock held when returning to user space",
    "READ_AFTER_FREE": "BUG: KASAN: ",
    "ARRAY_BOUNDS": "UBSAN: array-index-out-of-bounds",
}


def reports(console: str) -> list[str]:
    """The first line of each report in what a kernel wrote."""
    return REPORT.findall(console)


def _recorded(kernel: build.Kernel, session: Path) -> tuple[bool, str]:
    """Record gups on this kernel: whether it was complete, and what the kernel wrote."""
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
    recording = run.Recording(request, kernel)
    settings = recording.settings
    base = sizes.region_in_ram(settings.region_bytes, settings.memory_bytes)
    result = recording.record(recording.machine_config(base))
    return result.complete and not result.exit_status, (session / "console.log").read_text()


def main(argv: Sequence[str] | None = None) -> int:
    """Run all on the checked kernel; exit 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="make kernel-debug", description=__doc__.splitlines()[0])
    parser.parse_args(argv)
    runs: dict[str, bool] = {}
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ptat-kernel-debug.") as temporary:
        directory = Path(temporary)
        try:
            kernel = build.kernel_variant(CONFIG)
            programs = {
                "init": plain.compiled(directory / "init", INIT),
                "ptat_test": (kernel.directory / "ptat_test").read_bytes(),
                "provoke": plain.compiled(directory / "provoke", PROVOKE),
            }
            initrd = plain.archive(directory / "initramfs.cpio", programs)

            def boot(name: str, command: str, cpus: int = 1) -> str:
                with progress(f"checking the kernel: {name}"):
                    console = plain.boot(
                        kernel.image,
                        initrd,
                        f"{PARAMETERS} -- {command}",
                        cpus=cpus,
                        timeout_s=TIMEOUT_S,
                    )
                (directory / f"{name}.log").write_text(console)
                return console

            for cpus in (1, 2):
                name = f"selftest-{cpus}"
                console = boot(name, "/ptat_test", cpus)
                idle = [checker for checker, says in AT_WORK.items() if says not in console]
                if idle:
                    raise BoardError(f"not at work in this kernel: {', '.join(idle)}")
                runs[name] = "/ptat_test: exit status 0" in console
                runs["kunit"] = runs.get("kunit", True) and bool(
                    re.search(r"\bok \d+ ptat$", console, re.M)
                )
                found += reports(console)
            with progress("checking the kernel: recording gups"):
                runs["gups"], console = _recorded(kernel, directory / "session")
            found += reports(console)
            console = boot("provoke", f"/provoke {' '.join(PROVOKED)}")
        except BoardError as error:
            print(f"kernel-debug: {error}", file=sys.stderr)
            return 2
    seen = reports(console)
    provoked = {name: any(says in line for line in seen) for name, says in PROVOKED.items()}
    for line in found:
        print(line, file=sys.stderr)
    result = {
        "booted": all(runs.values()),
        "reports": len(found),
        "runs": runs,
        "provoked": provoked,
    }
    print(json.dumps(result))
    return int(bool(found) or not all(runs.values()) or not all(provoked.values()))


if __name__ == "__main__":
    sys.exit(main())
