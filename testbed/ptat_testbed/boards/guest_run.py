# SPDX-License-Identifier: BSD-2-Clause
"""What both boards share: options, checks, and a recording from boot to metadata."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptat_host.boards import recorder_programs
from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_host.boards.live.machine import numbers
from ptat_host.boards.live.tracing import BUFFER_MAX_KIB, events_of
from ptat_host.sizes import parse_size
from ptat_testbed.guest import build, kernel_messages, layout, qemu, session

OPTIONS = {
    "memory": Option("memory of the guest", "2G"),
    "cpus": Option("CPUs of the guest", "1"),
    "hugepages": Option("huge pages reserved at boot, as 2M:512 or 1G:1 or both", "none"),
}
CPUS_MAX = 64
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
MARKER_BYTES = 1024 * 64
PMEM_UNIT_BYTES = 128 * layout.MIB
"""The kernel's sections of memory, which it describes as a whole."""

# The kernel's addresses are those of System.map (nokaslr); the console shows warnings and worse;
# a guest that panics ends QEMU; timer and clocks are not doubted only because the host is busy.
KERNEL_PARAMETERS = (
    "console=ttyS0",
    "loglevel=5",
    "nokaslr",
    "oops=panic",
    "panic=-1",
    "no_timer_check",
    "tsc=reliable",
    "rcupdate.rcu_cpu_stall_timeout=300",
)

LOST = " were lost"
"""The end of what the plugin says of losses."""


@dataclass(frozen=True)
class Settings:
    """The options of a request, parsed."""

    memory_bytes: int
    cpus: int
    region_bytes: int
    kernel_parameters: Sequence[str]

    @property
    def buffer_kib(self) -> int:
        """Ring buffer of each CPU: seconds of faults, but no great part of the memory."""
        return min(BUFFER_MAX_KIB, self.memory_bytes // 16 // self.cpus // layout.KIB)

    @classmethod
    def of(cls, request: RecordRequest) -> Settings:
        """Parse the user's options.

        :raises PtatError: it makes no sense.
        """
        options = request.options
        memory_bytes = parse_size(options.get("memory", "2G"), "--memory")
        if memory_bytes < layout.MEMORY_MIN_BYTES:
            raise BoardError(
                f"--memory {options['memory']}: too little for the guest",
                f"the smallest is {layout.show_size(layout.MEMORY_MIN_BYTES)}",
            )
        if memory_bytes % layout.MIB:
            raise BoardError(f"--memory {options['memory']}: not a whole number of MiB")
        cpus = layout.parse_count(options.get("cpus", "1"), "--cpus", CPUS_MAX)
        parameters = list(KERNEL_PARAMETERS)
        if hugepages := options.get("hugepages"):
            parameters += layout.parse_hugepages(hugepages, memory_bytes)
        region_bytes = request.region_bytes or layout.default_region(memory_bytes)
        if pmem := options.get("pmem"):
            pmem_bytes = parse_size(pmem, "--pmem")
            if pmem_bytes % PMEM_UNIT_BYTES:
                raise BoardError(f"--pmem {pmem}: not a multiple of 128 MiB")
            memory_bytes, parameter = layout.with_pmem(memory_bytes, pmem_bytes)
            parameters.append(parameter)
        return cls(memory_bytes, cpus, region_bytes, parameters)


def check_common() -> list[Check]:
    """QEMU, the guest's kernel, and a compiler for its init."""
    checks = []
    try:
        path, version = qemu.find()
        checks.append(Check("QEMU", True, f"{path}, version {version}"))
    except BoardError as error:
        checks.append(Check("QEMU", False, error.message, error.hint or None))
    checks.append(check_built("guest kernel", build.KERNEL_SCRIPT, "bzImage"))
    gcc = shutil.which("gcc")
    checks.append(
        Check("gcc", gcc is not None, gcc or "not found", None if gcc else "install Debian's gcc")
    )
    return checks


def check_built(name: str, script: Path, file: str) -> Check:
    """Whether a build script's result is in the cache."""
    try:
        path = build.run_script(script, "--key")
    except BoardError as error:
        return Check(name, False, error.message, error.hint or None)
    if (path / file).exists():
        return Check(name, True, str(path))
    return Check(name, None, "not built yet", "the first recording builds it")


def rings(text: str) -> list[dict[str, Any]]:
    """`traps` of session.json: what the kernel's rings of records had; see guest/traps.h."""
    names = ("cpu", "records", "lost", "waits")
    found = []
    for line in text.splitlines():
        ring: dict[str, Any] = dict(zip(names, map(int, line.split()[1:]), strict=True))
        ring["file"] = f"kernel/trap{ring['cpu']}.raw"
        found.append(ring)
    return found


def _clock() -> list[str]:
    """Kernel parameters: the frequency of the TSC, which is this machine's.

    On a busy host the guest's kernel gets it wrong, by a factor of up to 17 in our boots, as it
    compares the TSC with an emulated timer. Then its time runs too fast, and so do all timeouts.
    """
    if platform.machine() != "x86_64":
        return []
    return [f"tsc_early_khz={recorder_programs.tsc_khz()}"]


class Recording:
    """One recording in the guest, from boot to metadata."""

    def __init__(
        self,
        request: RecordRequest,
        kernel: build.Kernel | None = None,
        *,
        traps: bool = False,
        traced: bool = True,
        device: bool = False,
    ) -> None:
        """Parse the options and find, or build, what the guest consists of.

        :param kernel: another than the usual one.
        :param traps: TLB misses trap.
        :param traced: whether the command is. If not, it can use the kernel's PTAT itself.
        :param device: a device of the machine brings the region, not the boot parameter.

        :raises BoardError: the options make no sense, or something cannot be built.
        """
        self.settings = Settings.of(request)
        self._traps = traps
        self._traced = traced
        self._device = device
        self.kernel = kernel or build.kernel()
        # Our workloads are found by name, and before others of that name.
        path = f"{build.workloads()}:{request.env.get('PATH', DEFAULT_PATH)}"
        env = {**request.env, "PATH": path}
        if request.heap_bytes is not None:
            env = recorder_programs.heap_environment(env, request.heap_bytes, session.HEAP_SOCKET)
        self.request = replace(request, env=env)
        self._initramfs = build.guest_initramfs()
        self._log = request.session_dir / "kernel"
        self._console = request.session_dir / "console.log"
        try:
            (self._log / "formats").mkdir(parents=True)
        except OSError as error:
            raise BoardError(f"cannot create {self._log}: {error.strerror}") from error

    def machine_config(
        self,
        region_base: int | None = 0,
        plugin: str | None = None,
        extra: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> qemu.MachineConfig:
        """The machine, with the region at physical address `region_base`, or where there is RAM."""
        region = f"ptat={self.settings.region_bytes:#x}"
        if region_base is not None:
            region += f"@{region_base:#x}"
        if self._traps:
            region += ",trap"
        parameters = _clock() if self._device else [*_clock(), region]
        return qemu.MachineConfig(
            memory_bytes=self.settings.memory_bytes,
            cpus=self.settings.cpus,
            kernel=self.kernel.image,
            initramfs=self._initramfs,
            append=[*parameters, *self.settings.kernel_parameters],
            console=self._console,
            ports=session.PORTS,
            shares=(
                (session.SHARE_ROOT, Path("/"), False),
                (session.SHARE_KERNEL, self._log, True),
            ),
            plugin=plugin,
            extra=extra,
            pass_fds=pass_fds,
        )

    def record(
        self,
        config: qemu.MachineConfig,
        on_start: Callable[[qemu.Machine], None] = lambda _: None,
        on_stop: Callable[[qemu.Machine], None] = lambda _: None,
        known: dict[str, Any] | None = None,
    ) -> RecordResult:
        """Boot, run the command, and describe what was recorded: `region` and `kernel`.

        `on_start` and `on_stop` are called right before and after the recorded time. `known`: what
        else can be said of the session when it begins, where its capture can be read as it grows.

        :raises BoardError: nothing was recorded.
        """
        try:
            outcome, errors = self._run(config, on_start, on_stop, known)
        except BoardError as error:
            self._discard()
            raise BoardError(self._in_words(error.message), error.hint) from error
        losses = [error for error in errors if error.endswith(LOST)]
        failures = [error for error in errors if error not in losses]
        if outcome.failure is None and failures:
            outcome.failure = failures[0]
        elif outcome.failure and not outcome.interrupted:
            outcome.failure = self._in_words(outcome.failure)
        if want := kernel_messages.want_of_memory(kernel_messages.read(self._console)):
            print(f"ptat: in the guest: {want}: give it more --memory", file=sys.stderr)
        return RecordResult(
            exit_status=outcome.exit_status,
            ended=outcome.failure is None,
            reason=outcome.failure,
            interrupted=outcome.interrupted,
            metadata=self._metadata(outcome) if outcome.started and self._traced else {},
            lost="; ".join(loss.removesuffix(LOST) for loss in losses) or None,
        )

    def _run(
        self,
        config: qemu.MachineConfig,
        on_start: Callable[[qemu.Machine], None],
        on_stop: Callable[[qemu.Machine], None],
        known: dict[str, Any] | None,
    ) -> tuple[session.Outcome, list[str]]:
        """What the guest reported, and what our plugin complained about.

        Boots again where QEMU aborts before the recorded time: see docs/testbed.md.
        """
        begun = False

        def begin(outcome: session.Outcome) -> None:
            nonlocal begun
            begun = True
            if known is not None:
                kernel = self._kernel_metadata(outcome)
                region = self._region_metadata(outcome)
                self.request.describe({**known, "region": region, "kernel": kernel})
            on_start(machine)

        settings = session.configuration(
            self.request,
            self.settings.buffer_kib,
            traps=self._traps and self._traced,
            traced=self._traced,
        )
        boots = 0
        while True:
            boots += 1
            with qemu.Machine(config) as machine:
                try:
                    guest = session.Guest(machine, settings, begin, lambda: on_stop(machine))
                    outcome = guest.run()
                except BoardError as error:
                    if begun or boots == qemu.BOOTS or not machine.aborted():
                        raise
                    print(f"ptat: {error.message}; booting again", file=sys.stderr)
                else:
                    machine.stop()
                    return outcome, machine.complaints()

    def _discard(self) -> None:
        """Nothing was recorded: leave only the console, if it may explain why."""
        shutil.rmtree(self._log)
        for file in self.request.session_dir.iterdir():
            if not file.name.startswith("session.json") and (
                file != self._console or not kernel_messages.warnings(kernel_messages.read(file))
            ):
                file.unlink()

    def _in_words(self, reason: str) -> str:
        """Why the guest ended: the kernel's last words tell more than that QEMU is gone."""
        lines = kernel_messages.read(self._console)
        if last_words := kernel_messages.panic(lines):
            return f"the guest's kernel panicked: {last_words} (see {self._console})"
        if complaint := kernel_messages.ours(lines):
            return f"{reason} ({complaint})"
        return reason

    def _metadata(self, outcome: session.Outcome) -> dict[str, Any]:
        """What session.json has of the guest's kernel."""
        metadata: dict[str, Any] = {
            "region": self._region_metadata(outcome),
            "kernel": self._kernel_metadata(outcome),
        }
        if self._traps:
            metadata["traps"] = rings(outcome.texts.get("traps", ""))
        return metadata

    def _region_metadata(self, outcome: session.Outcome) -> dict[str, Any]:
        """`region` of session.json: as the kernel reports it, not as we requested it."""
        region = numbers(outcome.texts["region"])
        return {
            "base": region["base"],
            "size_bytes": region["size"],
            "marker_slots": region["marker_slots"],
            "marker_stride_bytes": region["marker_stride"],
            "levels": self.request.levels,
            "readback": outcome.texts["readback"].strip() == "on",
            "markers": self.request.markers or "store",
        }

    def _kernel_metadata(self, outcome: session.Outcome) -> dict[str, Any]:
        """`kernel` of session.json."""
        return {
            "release": outcome.values["release"],
            "clock": "x86-tsc",
            "tsc_hz": int(outcome.values["tsc_hz"]),
            "cpus": int(outcome.values["cpus"]),
            "events": events_of(self.request),
            "stat": numbers(outcome.texts.get("stat", "")),
            "check": numbers(outcome.texts.get("check", "")),
            "warnings": kernel_messages.warnings(kernel_messages.read(self._console)),
        }
