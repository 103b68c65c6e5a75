# SPDX-License-Identifier: BSD-2-Clause
"""One measurement on a freshly made file system, step by step, and all undone at its end.

Runs in the testbed's guest, too, where Python is slow: nothing but the standard library here.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptat_parser.errors import PtatError

SECTOR_BYTES = 512
"""Of sizes in /sys, whatever the device's are."""
UNMOUNT_TRIES = 50
UNMOUNT_PAUSE_S = 0.1
METADATA_SHARE = 16
"""A file system's own data take about 1/16 of a device."""
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Job:
    """What to do. Commands are lists of words, in which ``{directory}`` is the mount point."""

    label: int
    """Of the testbed's snapshots: this at the begin of what is measured, the next at its end."""
    mkfs: list[str]
    mount: list[str]
    dax: bool
    device: str | None
    prepare: list[str]
    """Makes the file; empty: it is not needed."""
    measure: list[str]
    needs_bytes: int
    """Of the file system, for the files."""
    cpu: int = 0
    """Where what is measured runs."""
    other_cpu: int = 0
    """Where all else runs, the journal's thread, too."""
    events: str = ""
    """For perf stat; empty: the testbed counts."""


@dataclass
class Done:
    """What came of a job: each step with its seconds, and if none failed, the measurement."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, str] = field(default_factory=dict)
    """What the program printed as ``key=value``."""
    perf: str = ""
    """What perf stat -j wrote."""
    error: str = ""
    hint: str = ""


# Is the device ours? ------------------------------------------------------------------------------


def check_device(device: Path) -> None:
    """See that nobody uses a block device, neither as a whole nor in part.

    :raises PtatError: somebody does, or it is no block device.
    """
    try:
        status = device.stat()
    except OSError as error:
        raise PtatError(f"{device}: {error.strerror}", "give a block device") from None
    if not stat.S_ISBLK(status.st_mode):
        raise PtatError(f"{device}: is no block device", "a file becomes one by losetup -f --show")
    check_unused(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}", device)
    try:
        # The kernel's own answer, also for what has no trace above.
        os.close(os.open(device, os.O_RDWR | os.O_EXCL))
    except OSError as error:
        raise PtatError(f"{device}: {error.strerror}", "choose another device") from None


def check_unused(
    number: str, device: Path, sys: Path = Path("/sys"), proc: Path = Path("/proc")
) -> None:
    """See that a block device, of that major:minor, is neither mounted, swap nor part of another.

    :raises PtatError: it is, or one of its partitions.
    """
    node = (sys / "dev" / "block" / number).resolve()
    partitions = [path.parent for path in node.glob("*/partition")]
    numbers = {number, *((path / "dev").read_text().strip() for path in partitions)}
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] in numbers or fields[fields.index("-") + 2] == str(device):
            raise PtatError(f"{device}: is mounted on {fields[4]}", f"umount {fields[4]} first")
    for line in (proc / "swaps").read_text().splitlines()[1:]:
        swap = Path(line.split()[0])
        with contextlib.suppress(OSError):
            found = swap.stat().st_rdev
            if f"{os.major(found)}:{os.minor(found)}" in numbers:
                raise PtatError(f"{device}: is swap space", f"swapoff {swap} first")
    for part in (node, *partitions):
        for holder in (part / "holders").glob("*"):
            raise PtatError(f"{device}: is part of {holder.name}", "choose another device")
    if partitions:
        raise PtatError(f"{device}: has partitions", "choose one of them")


def device_bytes(device: Path) -> int:
    """The size of a block device."""
    status = device.stat()
    node = f"/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return int(Path(node, "size").read_text()) * SECTOR_BYTES


def can_dax(device: Path) -> bool:
    """Whether a block device's memory can be mapped."""
    status = device.stat()
    node = Path(f"/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    for queue in (node / "queue", node.resolve().parent / "queue"):
        with contextlib.suppress(OSError):
            return (queue / "dax").read_text().strip() == "1"
    return False


# Steps --------------------------------------------------------------------------------------------


class _Steps:
    """Does what a job needs, and notes it."""

    def __init__(self, done: Done, cpu: int) -> None:
        self._done = done
        self._cpu = cpu

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Note what is done, how long it took and whether it failed."""
        note: dict[str, Any] = {"step": what}
        self._done.steps.append(note)
        begin = time.monotonic()
        try:
            yield
        except BaseException as error:
            note["failed"] = str(error)
            raise
        finally:
            note["seconds"] = round(time.monotonic() - begin, 6)

    def command(
        self,
        argv: Sequence[str],
        *,
        cpu: int | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> str:
        """Run a command on a CPU (None: on that of all that is not measured); its output.

        :raises PtatError: it is missing or fails.
        """
        with self.step(" ".join(argv)):
            os.sched_setaffinity(0, {self._cpu if cpu is None else cpu})
            try:
                done = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    env={**os.environ, **(env or {})},
                    pass_fds=pass_fds,
                    text=True,
                    errors="replace",
                    check=False,
                )
            except FileNotFoundError:
                raise PtatError(f"{argv[0]} is not installed", _package_of(argv[0])) from None
            finally:
                os.sched_setaffinity(0, {self._cpu})
            if done.returncode:
                raise PtatError(f"{argv[0]} ended with {done.returncode}: {_said(done.stderr)}")
            return done.stdout


def _said(errors: str) -> str:
    """The last line of a program's messages, or the one before it says how to use it."""
    message = "it says nothing"
    for line in filter(str.strip, errors.splitlines()):
        if line.lower().startswith("usage:"):
            break
        message = line.strip()
    return message


def _package_of(program: str) -> str:
    packages = {"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "fio": "fio"}
    return f"apt-get install {packages[program]}" if program in packages else ""


def do(job: Job) -> Done:
    """Make the file system, measure, and clean up, whatever happens in between."""
    done = Done()
    steps = _Steps(done, job.other_cpu)
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{SBIN}"
    try:
        with contextlib.ExitStack() as undo:
            _measure(job, steps, undo, done)
    except PtatError as error:
        done.error, done.hint = error.message, error.hint
    except OSError as error:
        done.error = f"{error.filename or 'this machine'}: {error.strerror}"
        done.hint = "ptat bench-fs needs root" if isinstance(error, PermissionError) else ""
    return done


def _measure(job: Job, steps: _Steps, undo: contextlib.ExitStack, done: Done) -> None:
    missing = {job.cpu, job.other_cpu} - os.sched_getaffinity(0) - _online()
    if missing:
        raise PtatError(f"this machine has no CPU {min(missing)}")
    if job.device is not None:
        with steps.step(f"is {job.device} free"):
            _check(job, Path(job.device))
    directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="ptat-fs-")))
    place = {"{directory}": str(directory)}
    if job.mkfs:
        steps.command(job.mkfs)
    try:
        steps.command(_filled(job.mount, place))
    except PtatError as error:
        if job.dax:
            raise PtatError(f"the file system refuses DAX: {error.message}") from None
        raise
    undo.callback(_unmount, directory, steps)
    if job.dax:
        with steps.step("is it mounted with DAX"):
            _check_dax(directory)
    _check_space(directory, job.needs_bytes)
    if job.device is not None and len(_online()) > 1:
        _pin_journal(Path(job.device).resolve().name, job.other_cpu, steps)
    if job.prepare:
        steps.command(_filled(job.prepare, place))
    _use_governor(steps, undo)
    with steps.step("sync, drop caches"):
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    done.output = _values(_run_measured(job, _filled(job.measure, place), steps, done))


def _online() -> set[int]:
    return set(range(os.cpu_count() or 1))


def _check(job: Job, device: Path) -> None:
    check_device(device)
    size_bytes = device_bytes(device)
    if job.needs_bytes > size_bytes - size_bytes // METADATA_SHARE:
        raise PtatError(
            f"{device}: no space for files of {job.needs_bytes} bytes: it has {size_bytes}",
            "use smaller files or a larger device",
        )
    if job.dax and not can_dax(device):
        raise PtatError(
            f"{device}: is no memory: a file system with DAX is not possible there",
            "use /dev/pmemN, or file systems without DAX",
        )


def _filled(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    filled = []
    for word in argv:
        for name, value in values.items():
            word = word.replace(name, value)
        filled.append(word)
    return filled


def _unmount(directory: Path, steps: _Steps) -> None:
    with steps.step(f"umount {directory}"):
        for left in reversed(range(UNMOUNT_TRIES)):
            done = subprocess.run(["umount", str(directory)], capture_output=True, check=False)
            if not done.returncode:
                return
            if left:
                time.sleep(UNMOUNT_PAUSE_S)
        raise PtatError(f"cannot unmount {directory}: {done.stderr.decode().strip()}")


def _check_dax(directory: Path) -> None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(directory):
            options = [*fields[5].split(","), *fields[-1].split(",")]
            if "dax" in options or "dax=always" in options:
                return
            raise PtatError("the file system was mounted without DAX, although its options name it")


def _check_space(directory: Path, needs_bytes: int) -> None:
    free = os.statvfs(directory)
    free_bytes = free.f_bavail * free.f_frsize
    if needs_bytes > free_bytes:
        raise PtatError(
            f"no space for files of {needs_bytes} bytes: {free_bytes} are free",
            "use smaller files or a larger device",
        )


def _pin_journal(device: str, cpu: int, steps: _Steps) -> None:
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            name = comm.read_text().strip()
            if name.startswith(f"jbd2/{device}"):
                with steps.step(f"{name} to CPU {cpu}"):
                    os.sched_setaffinity(int(comm.parent.name), {cpu})


def _use_governor(steps: _Steps, undo: contextlib.ExitStack) -> None:
    governors = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    for path in governors:
        before = path.read_text()
        with steps.step(f"performance into {path}"):
            path.write_text("performance")
        undo.callback(path.write_text, before)


def _run_measured(job: Job, argv: list[str], steps: _Steps, done: Done) -> str:
    if not job.events:
        return steps.command(argv, cpu=job.cpu, env={"PTAT_SNAPSHOT": str(job.label)})
    with contextlib.ExitStack() as files:
        # perf counts from the program's first message to its second (counted.h).
        to_perf, from_perf = (
            [files.enter_context(os.fdopen(fd)) for fd in os.pipe()] for _ in ".."
        )
        control = f"{to_perf[0].fileno()},{from_perf[1].fileno()}"
        program = f"{to_perf[1].fileno()},{from_perf[0].fileno()}"
        counts = files.enter_context(tempfile.NamedTemporaryFile("r", prefix="ptat-perf-"))
        perf = ["perf", "stat", "-j", "-o", counts.name, "-D", "-1", "--control", f"fd:{control}"]
        output = steps.command(
            [*perf, "-e", job.events, "--", *argv],
            cpu=job.cpu,
            env={"PTAT_PERF": program},
            pass_fds=[end.fileno() for pipe in (to_perf, from_perf) for end in pipe],
        )
        lines = [line for line in counts.read().splitlines() if not line.startswith("#")]
        done.perf = "\n".join(lines)
        return output


def _values(output: str) -> dict[str, str]:
    words = [word for line in output.splitlines() for word in line.split() if "=" in word]
    return dict(word.split("=", 1) for word in words)
