# SPDX-License-Identifier: BSD-2-Clause
"""``make kernel-selftests``: tests that nobody here wrote, traced and untraced.

The kernel's own ``tools/testing/selftests/mm``, built from the same source, runs in the guest,
category by category, once untraced and once with all of it traced; what passes untraced must
pass traced. Then stress-ng's vm stressors run traced on two CPUs, and what fails there untraced,
too. All the while, the region is compared with the kernel's tables.

Ends with one JSON line: ``{"tests", "passed_untraced", "passed_traced", "failed_traced",
"stress_seconds", "stress", "compared", "check_bad", "warnings", "used_after"}``; `stress` names
the stressors that passed, were skipped, failed traced only, or failed both ways.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_host.boards.live.kernel_files import CHECK_FILE, CONTROL, TRACING
from ptat_host.boards.live.machine import numbers
from ptat_host.boards.program_cache import cache_root, new_directory
from ptat_testbed.boards import guest_run
from ptat_testbed.guest import build, layout
from ptat_testbed.guest.command_output import stdout_to
from ptat_testbed.guest.steps import progress
from ptat_testbed.suites.kernel_exercise import CONFIG

TARBALL = Path(f"/usr/src/linux-source-{build.VERSION}.tar.xz")
TESTS = "tools/testing/selftests/mm"
SOURCES = ("Makefile", "Kbuild", "arch/x86", "include", "lib", "mm", "scripts", "tools", "usr")
"""What building the tests reads: they include some of the kernel's own files."""
LIBURING = Path("/usr/include/liburing.h")
"""Without it, the tests are built, but those of io_uring do nothing."""
CATEGORIES = (
    *("mmap", "mremap", "mlock", "madv_populate", "memfd_secret", "process_mrelease", "mkdirty"),
    *("mdwe", "migration", "soft_dirty", "pagemap", "pkey", "gup_test", "userfaultfd", "cow"),
    *("ksm", "ksm_numa", "compaction", "thp", "hugetlb", "hugevm"),
)
"""Of run_vmtests.sh, but those that need modules: vmalloc, hmm; and its test of PTAT itself."""
RACY_SIZE = "half_ufd_size_MB=$(((freepgs * hpgsize_KB) / 1024 / 2))"
SIZE = "half_ufd_size_MB=$((((freepgs - (nr_cpus - 1)) * hpgsize_KB) / 1024 / 2))"
"""uffd-stress takes all huge pages there are, but its threads may reserve one more each for a
moment: it fails now and then, on any kernel. Linux 6.18's run_vmtests.sh spares them
(<https://lore.kernel.org/all/20250909061531.57272-2-dev.jain@arm.com/>); so does this one."""
SHORT = CATEGORIES[: CATEGORIES.index("gup_test")]
"""Those that take seconds."""
CATEGORY_TIMEOUT_S = 1800
COMPARE_EVERY_S = 2.0
REGION_BYTES = 32 << 20
RESULT = re.compile(r"^(ok|not ok) \d+ (.*?)(?: # (SKIP|exit=\d+).*)?$", re.M)
OF_FREE_MEMORY = re.compile(r"^(uffd-stress [\w-]+) \d.*")
"""A test's name with arguments that run_vmtests.sh derives from the memory that is free."""
STRESSORS = (
    *("fork", "vfork", "vforkmany", "exec", "malloc", "madvise", "memfd", "memhotplug", "mincore"),
    *("mlock", "mlockmany", "mmap", "mmapaddr", "mmapfixed", "mmapfork", "mmaphuge", "mmapmany"),
    *("mprotect", "mremap", "msync", "numa", "pageswap", "remap", "shm", "shm-sysv", "tmpfs"),
    *("userfaultfd", "vm", "vm-addr", "vm-rw", "vm-segv", "vm-splice"),
)
"""Of stress-ng, those of virtual memory, and of processes."""
STRESS_OPTIONS = {
    "mmap": ("--mmap-bytes", "64M"),
    "vm": ("--vm-bytes", "128M"),
    "mremap": ("--mremap-bytes", "16M"),
    "mlockmany": ("--pathological",),
    # Its default takes all memory there is: an OOM kill is reported, traced or not.
    "mmaphuge": ("--mmaphuge-mmaps", "256"),
}
STRESS_SKIPPED = 4
"""Its exit status where the kernel lacks what a stressor needs."""
STRESS_LEFT_OUT = ", skipping "
"""It says so where root or the machine is not what a stressor wants, with any exit status."""


@dataclass(frozen=True)
class Asked:
    """What to run; passed to the guest as it is."""

    tests: Path
    categories: list[str]
    stress_s: int


def selftests() -> Path:
    """The directory of the kernel's selftests of mm, built if they are not in the cache.

    :raises BoardError: they cannot be built.
    """
    if not LIBURING.exists():
        raise BoardError(f"there is no {LIBURING}", "run setup/packages.sh kernel")
    with tempfile.TemporaryDirectory() as temporary:
        return _selftests(build.series(Path(temporary)))


def _selftests(patches: Sequence[Path]) -> Path:
    key = hashlib.sha256(repr((TARBALL.stat().st_mtime_ns, SOURCES, str(LIBURING), SIZE)).encode())
    for patch in patches:
        key.update(patch.read_bytes())
    directory = cache_root() / f"selftests-{key.hexdigest()[:16]}"
    if directory.exists():
        return directory
    with (
        progress("building the kernel's selftests of mm"),
        new_directory(directory) as new,
        tempfile.TemporaryDirectory(dir=cache_root()) as temporary,
    ):
        source = Path(temporary) / "src"
        source.mkdir()
        wanted = [f"linux-source-{build.VERSION}/{name}" for name in SOURCES]
        _call("tar", "-xJf", str(TARBALL), "-C", str(source), "--strip-components=1", *wanted)
        for patch in patches:
            # Of other files than these, there is nothing to patch.
            command = ["patch", "-d", str(source), "-p1", "-s", "-f", "-r", "-", "-i", str(patch)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        headers = Path(temporary) / "headers"
        _call("make", "-s", "-C", str(source), f"O={headers}", "headers")
        _call(
            *("make", "-s", "-k", "-C", str(source / TESTS), "all"),
            *(f"OUTPUT={new}", f"KHDR_INCLUDES=-isystem {headers}/usr/include"),
        )
        for path in (source / TESTS).glob("*.sh"):
            (new / path.name).write_text(path.read_text().replace(RACY_SIZE, SIZE))
            (new / path.name).chmod(0o755)
    return directory


def _call(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
        raise BoardError(f"{command[0]} failed: {' / '.join(said)}", "run setup/packages.sh kernel")


# In the guest -------------------------------------------------------------------------------------


class Comparer:
    """Compares the region with the kernel's tables, over and over."""

    def __init__(self) -> None:
        self.compared = 0
        self.mismatches = 0
        self._over = threading.Event()

    def _run(self) -> None:
        while not self._over.wait(COMPARE_EVERY_S):
            text = CHECK_FILE.read_text()
            found = numbers(text)["mismatches"]
            if found:
                print(f"region and twins differ: {text}", file=sys.stderr, flush=True)
            self.mismatches += found
            self.compared += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the context lasts."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def _trace_me(mode: int) -> None:
    """The process that calls this, and what it executes; from a child, before it executes."""
    (CONTROL / "self").write_text(str(mode))


def _vmtests(tests: Path, category: str, mode: int) -> dict[str, str]:
    """The result of each test of a category: ``ok``, ``not ok`` or ``SKIP``."""
    begun_s = time.monotonic()
    with subprocess.Popen(
        ["./run_vmtests.sh", "-t", category],
        cwd=tests,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: _trace_me(mode),
        start_new_session=True,
    ) as running:
        try:
            text, _ = running.communicate(timeout=CATEGORY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # What the script began would keep its memory.
            os.killpg(running.pid, signal.SIGKILL)
            text = running.communicate()[0] + f"\nnot ok 0 {category}: too slow\n"
    results: dict[str, str] = {}
    for verdict, name, why in RESULT.findall(text):
        results[OF_FREE_MEMORY.sub(r"\1", name)] = "SKIP" if why == "SKIP" else verdict
    for name, verdict in results.items():
        how = "traced" if mode else "untraced"
        print(f"{verdict:7} {how:9} {name}", file=sys.stderr, flush=True)
    if "not ok" in results.values():
        print(text, file=sys.stderr, flush=True)
    print(f"{category}: {time.monotonic() - begun_s:.1f} s", file=sys.stderr, flush=True)
    return results


def _stress(seconds: int) -> dict[str, list[str]]:
    """stress-ng's stressors of virtual memory, one after the other, traced.

    Those that ``passed``, those that stress-ng ``skipped``, those that ``failed_traced``, and those
    that ``failed_both`` ways, when they ran again untraced.
    """
    each_s = max(1, seconds // len(STRESSORS))
    found: dict[str, list[str]] = {
        name: [] for name in ("passed", "skipped", "failed_traced", "failed_both")
    }
    for stressor in STRESSORS:
        status = _stressor(stressor, each_s, 2)
        if status in (0, STRESS_SKIPPED):
            found["skipped" if status else "passed"].append(stressor)
            continue
        untraced = _stressor(stressor, each_s, 0)
        text = f"stress-ng {stressor}: exit {status} traced, {untraced} untraced"
        print(text, file=sys.stderr, flush=True)
        found["failed_both" if untraced else "failed_traced"].append(stressor)
    return found


def _stressor(name: str, seconds: int, mode: int) -> int:
    """Its exit status; `STRESS_SKIPPED` also where stress-ng only says that it left it out."""
    done = subprocess.run(
        [
            *("stress-ng", f"--{name}", "2", "--timeout", f"{seconds}s", "--oomable"),
            *("--temp-path", "/dev/shm", *STRESS_OPTIONS.get(name, ())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: _trace_me(mode),
        check=False,
    )
    print(done.stdout, end="", file=sys.stderr, flush=True)
    return STRESS_SKIPPED if STRESS_LEFT_OUT in done.stdout else done.returncode


def inside(asked: Asked) -> int:
    """All of it; the last line of stdout is a JSON object."""
    (TRACING / "tracing_on").write_text("0")
    untraced: dict[str, str] = {}
    traced: dict[str, str] = {}
    comparer = Comparer()
    with comparer.running():
        for category in asked.categories:
            untraced |= _vmtests(asked.tests, category, 0)
            traced |= _vmtests(asked.tests, category, 2)
        stressed = _stress(asked.stress_s) if asked.stress_s else {}
    passed = {name for name, verdict in untraced.items() if verdict == "ok"}
    failed = sorted(name for name in passed if traced.get(name) != "ok")
    print(
        json.dumps(
            {
                "tests": len(untraced),
                "passed_untraced": len(passed),
                "passed_traced": sum(verdict == "ok" for verdict in traced.values()),
                "failed_traced": failed,
                "stress_seconds": asked.stress_s,
                "stress": stressed,
                "compared": comparer.compared,
                "check_bad": comparer.mismatches,
            }
        )
    )
    return 0


# On the host --------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit 1 if something passes untraced only, or the region is not as it must."""
    parser = argparse.ArgumentParser(
        prog="make kernel-selftests", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--all", action="store_true", help="also the categories that take minutes")
    parser.add_argument("--trap", action="store_true", help="where TLB misses trap")
    parser.add_argument("--stress", type=int, default=60, metavar="SECONDS", help="default: 60")
    parser.add_argument("categories", nargs="*", help="of run_vmtests.sh, instead")
    arguments = parser.parse_args(argv)
    categories = arguments.categories or list(CATEGORIES if arguments.all else SHORT)
    if arguments.inside:
        return inside(Asked(arguments.inside, categories, arguments.stress))
    try:
        return _outside(categories, arguments.stress, traps=arguments.trap)
    except BoardError as error:
        print(f"kernel-selftests: {error}", file=sys.stderr)
        return 2


def _outside(categories: list[str], stress_s: int, *, traps: bool) -> int:
    tests = selftests()
    kernel = build.kernel_variant(CONFIG)
    with tempfile.TemporaryDirectory(prefix="ptat-selftests.") as temporary:
        session = Path(temporary) / "session"
        session.mkdir()
        output = Path(temporary) / "stdout"
        recording = guest_run.Recording(
            RecordRequest(
                argv=[
                    *(sys.executable, "-m", "ptat_testbed.suites.kernel_selftests"),
                    *("--inside", str(tests), "--stress", str(stress_s), *categories),
                ],
                session_dir=session,
                cwd=Path("/"),
                env=dict(os.environ),
                children=False,  # the tests choose
                faults=False,
                maps=False,
                region_bytes=REGION_BYTES,
                options={"cpus": "2", "memory": "4G"},
            ),
            kernel,
            traps=traps,
        )
        settings = recording.settings
        base = None if traps else layout.region_in_ram(settings.region_bytes, settings.memory_bytes)
        with stdout_to(output):
            result = recording.record(recording.machine_config(base))
        if not result.complete or result.exit_status:
            raise BoardError(f"the guest: {result.incomplete_reason or output.read_text()[-2000:]}")
        totals = json.loads(output.read_text().splitlines()[-1])
    seen = result.metadata["kernel"]
    totals["check_bad"] += seen["check"]["mismatches"]
    totals["warnings"] = len(seen["warnings"])
    totals["used_after"] = seen["stat"]["used"]
    for line in seen["warnings"]:
        print(line, file=sys.stderr)
    print(json.dumps(totals))
    wrong = ("failed_traced", "check_bad", "warnings", "used_after")
    failed = any(totals[name] for name in wrong) or totals["stress"].get("failed_traced")
    return int(bool(failed) or not totals["passed_traced"])


if __name__ == "__main__":
    sys.exit(main())
