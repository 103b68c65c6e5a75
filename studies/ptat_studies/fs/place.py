# SPDX-License-Identifier: BSD-2-Clause
"""Where measurements are made: in the testbed's guest, or on this machine.

In both, `ptat_studies.fs.agent` does the jobs. A place starts the agent and counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from ptat_host.reports import perf_stat, pmu
from ptat_host.reports.perf_stat import Count, Stat
from ptat_parser.errors import PtatError
from ptat_parser.formats.session import SNAPSHOTS_FILE
from ptat_studies.fs.agent import exit_on
from ptat_studies.fs.procedure import Done, Job, check_device

AGENT = (sys.executable, "-m", "ptat_studies.fs.agent")
MODES = ("user", "kernel")
TRACED = ("--children", "--faults", "--granularity", "8")
"""Options of ptat record for a recording that is of use by itself."""
TESTBED_DEVICE = Path("/dev/pmem0")
PMEM = "512M"
CPUS_OF_MACHINE = (2, 8)
"""As in the notes whose steps `procedure` takes: the program on core 2, jbd2 on core 8."""
GENERIC_EVENTS = ("dTLB-loads", "dTLB-stores", "dTLB-load-misses", "dTLB-store-misses")
"""Of the thesis's seventeen, those that are no part of a metric."""
WORKLOADS = Path(__file__).resolve().parents[3] / "host" / "workloads"


class CellFailed(PtatError):
    """This cell cannot be measured here; other cells may be. `steps`: how far it came."""

    def __init__(self, message: str, hint: str, steps: Sequence[Mapping[str, object]]) -> None:
        super().__init__(message, hint)
        self.steps = steps


@dataclass(frozen=True)
class Measured:
    """What one job brought: `counts` by mode ("user", "kernel", "all")."""

    seconds: float
    bytes: int | None
    """That the program transferred, where it says so."""
    counts: Mapping[str, Stat]
    steps: Sequence[Mapping[str, object]]


class Place:
    """A running agent. Use `testbed` or `this_machine`."""

    def __init__(
        self,
        command: Sequence[str],
        device: Path | None,
        session: Path | None,
        cpu: pmu.Cpu | None,
        cpus: tuple[int, int],
        errors: IO[str],
    ) -> None:
        """:param session: of the testbed; None: perf counts, the events of `cpu`.

        :param cpus: for what is measured, and for all else.
        """
        self.device = device
        self.cpu = cpu
        self.window_ns: tuple[int, int] | None = None
        """When the last job measured, by the testbed's bus clock."""
        self._session = session
        self._cpus = cpus
        self._errors = errors
        self._number = 0
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._snapshots_read_bytes = 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is ours: the agent ends when its input does
        )

    def run(self, job: Job) -> Measured:
        """Do a job whose `label`, `device`, CPUs and `events` are the place's.

        :raises CellFailed: a step of it failed.
        :raises PtatError: the agent has ended.
        """
        self._number += 2
        events = "" if self._session else ",".join(_events(self.cpu))
        job = replace(
            job,
            label=self._number,
            device=None if job.device is None else str(self.device),
            cpu=self._cpus[0],
            other_cpu=self._cpus[1],
            events=events,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asdict(job)) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        done = Done(**json.loads(line))
        if done.error:
            raise CellFailed(done.error, done.hint, done.steps)
        counts = self._perf(done) if events else self._between(job.label)
        said = done.output.get("bytes")
        return Measured(
            float(done.output.get("seconds", "nan")),
            None if said is None else int(said),
            counts,
            done.steps,
        )

    def close(self) -> None:
        """Let the agent clean up and end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ended(self) -> PtatError:
        status = self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        said = [line for line in lines if "error:" in line] or lines[-1:]
        return PtatError(
            f"the agent that measures ended with {status}"
            + (f": {said[0].removeprefix('ptat: error: ')}" if said else ""),
            "the same command continues with the rest",
        )

    def _perf(self, done: Done) -> dict[str, Stat]:
        (found,) = perf_stat.read(done.perf, "perf stat")
        return {"all": found}

    def _between(self, label: int) -> dict[str, Stat]:
        """What the testbed counted between two snapshots."""
        self._read_snapshots()
        try:
            begin, end = self._snapshots[label], self._snapshots[label + 1]
        except KeyError:
            raise PtatError(
                "the testbed's plugin took no snapshot", "is the program built with counted.h?"
            ) from None
        self.window_ns = begin["time_ns"], end["time_ns"]
        found = {
            mode: Stat(tuple(Count(n, end[mode][n] - begin[mode][n]) for n in end[mode]))
            for mode in MODES
        }
        both = {count.event: count.value or 0.0 for count in found["user"].counts}
        for count in found["kernel"].counts:
            both[count.event] += count.value or 0.0
        return {"all": Stat(tuple(Count(*item) for item in both.items())), **found}

    def _read_snapshots(self) -> None:
        assert self._session is not None
        with contextlib.suppress(FileNotFoundError):
            with (self._session / SNAPSHOTS_FILE).open("rb") as file:
                file.seek(self._snapshots_read_bytes)
                lines = file.readlines()
            self._snapshots_read_bytes += sum(map(len, lines))
            self._snapshots |= {found["label"]: found for found in map(json.loads, lines)}


def _events(cpu: pmu.Cpu | None) -> list[str]:
    assert cpu is not None
    return [*cpu.events(), *GENERIC_EVENTS]


@contextlib.contextmanager
def testbed(
    pmem: str = PMEM,
    options: Sequence[str] = (),
    session: Path | None = None,
    cpus: tuple[int, int] = (0, 0),
) -> Iterator[Place]:
    """The testbed's guest with emulated persistent memory, booted once for all jobs.

    :param pmem: its size.
    :param options: more of ``ptat record``, such as ``--tlb zen4`` or ``--kernel-misses yes``.
    :param session: directory for the recording, new or empty; None: it is not kept.
    :param cpus: for what is measured, and for all else.
    """
    exit_on(signal.SIGTERM, signal.SIGHUP)
    with contextlib.ExitStack() as stack:
        if session is None:
            session = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ptat-fs-")))
        command = [
            *(sys.executable, "-m", "ptat_host.cli", "record", "--board", "testbed"),
            *("--output", str(session), "--pmem", pmem, "--snapshots", "yes"),
            *("--cpus", str(max(cpus) + 1), "--no-maps", "--no-faults"),
            "--no-archive",
            *(*options, "--", *AGENT),
        ]
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        place = Place(command, TESTBED_DEVICE, session, None, cpus, errors)
        stack.callback(place.close)
        yield place


@contextlib.contextmanager
def this_machine(
    device: Path | None, allowed: Path | None, cpus: tuple[int, int]
) -> Iterator[Place]:
    """This machine, whose hardware counters perf reads. Needs root.

    :param device: for file systems that need one.
    :param allowed: the device that may be formatted, as the user named it.
    :param cpus: for what is measured, and for all else.

    :raises PtatError: the device is in use or may not be formatted, or nothing can be counted.
    """
    if device is not None:
        if allowed is None or allowed.resolve() != device.resolve():
            raise PtatError(
                f"{device}: all that is on it would be lost",
                f"if that is what you want, add --format {device}",
            )
        check_device(device)
    if os.geteuid():
        raise PtatError("ptat bench-fs makes and mounts file systems: it needs root", "use sudo")
    for program in ("perf", "unshare"):
        if shutil.which(program) is None:
            raise PtatError(f"{program} is not installed", "apt-get install linux-perf util-linux")
    cpu = pmu.find(pmu.this_machine())
    if cpu is None or not Path("/sys/bus/event_source/devices/cpu").exists():
        raise PtatError(
            "this machine has no hardware counters that ptat knows (a virtual machine?)",
            "the testbed counts page walks: leave --device out",
        )
    from ptat_host.boards.program_cache import made

    programs = made("workloads", WORKLOADS, [f for f in WORKLOADS.iterdir() if f.is_file()], "OUT")
    # Mounts go with the last process, even if all are killed.
    command = [
        *("env", f"PATH={programs}:{os.environ.get('PATH', os.defpath)}"),
        *("unshare", "--mount", "--propagation", "private", *AGENT),
    ]
    exit_on(signal.SIGTERM, signal.SIGHUP)
    with tempfile.TemporaryFile("w+") as errors:
        place = Place(command, device, None, cpu, cpus, errors)
        try:
            yield place
        finally:
            place.close()
