# SPDX-License-Identifier: BSD-2-Clause
"""What both boards share: options, checks, and a recording from boot to metadata."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult

from ptat_testbed import build, console, guest, qemu, sizes

OPTIONS = {
    "memory": Option("memory of the guest", "2G"),
    "cpus": Option("CPUs of the guest", "1"),
    "hugepages": Option("huge pages reserved at boot, as 2M:512 or 1G:1 or both", "none"),
}
REGION_BYTES = 64 * sizes.MIB
CPUS_MAX = 64
PLUGIN_SAYS = "ptat plugin: "
MARKER_SLOTS = 1024
MARKER_STRIDE_BYTES = 64

# The kernel's addresses are those of System.map (nokaslr); the console shows warnings and worse;
# a guest that panics ends QEMU; clocks are not doubted only because the host is busy.
KERNEL_PARAMETERS = (
    "console=ttyS0",
    "loglevel=5",
    "nokaslr",
    "mitigations=off",
    "oops=panic",
    "panic=-1",
    "tsc=reliable",
    "rcupdate.rcu_cpu_stall_timeout=300",
)


@dataclass(frozen=True)
class Settings:
    """The options of a request, parsed."""

    memory_bytes: int
    cpus: int
    region_bytes: int
    kernel_parameters: Sequence[str]

    @classmethod
    def of(cls, request: RecordRequest) -> Settings:
        """Parse what the user asked for.

        :raises BoardError: it makes no sense.
        """
        options = request.options
        memory_bytes = sizes.parse_size(options.get("memory", "2G"), "--memory")
        if memory_bytes < sizes.MEMORY_MIN_BYTES:
            raise BoardError(
                f"--memory {options['memory']}: too little for the guest",
                f"the smallest is {sizes.show_size(sizes.MEMORY_MIN_BYTES)}",
            )
        memory_bytes -= memory_bytes % sizes.MIB
        cpus = sizes.parse_count(options.get("cpus", "1"), "--cpus", CPUS_MAX)
        parameters = list(KERNEL_PARAMETERS)
        if hugepages := options.get("hugepages"):
            parameters += sizes.parse_hugepages(hugepages)
        return cls(memory_bytes, cpus, request.region_bytes or REGION_BYTES, parameters)


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


def record(
    request: RecordRequest,
    settings: Settings,
    kernel: build.Kernel,
    region_base: int,
    board: Mapping[str, Any],
    cpu: Mapping[str, Any],
    *,
    plugin: str | None = None,
    extra: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    on_start: Callable[[qemu.Machine], None] = lambda _: None,
    on_stop: Callable[[qemu.Machine], None] = lambda _: None,
) -> RecordResult:
    """Boot the guest, run the command in it, and describe the recording.

    `on_start` and `on_stop` are called right before and after the recorded time.

    :raises BoardError: nothing was recorded.
    """
    session = request.session_dir
    log = session / "kernel"
    try:
        (log / "formats").mkdir(parents=True)
    except OSError as error:
        raise BoardError(f"cannot create {log / 'formats'}: {error.strerror}") from error
    console_log = session / "console.log"
    parameters = [*settings.kernel_parameters, f"ptat={settings.region_bytes:#x}@{region_base:#x}"]
    config = qemu.MachineConfig(
        memory_bytes=settings.memory_bytes,
        cpus=settings.cpus,
        kernel=kernel.image,
        initramfs=build.guest_initramfs(),
        append=parameters,
        console=console_log,
        ports=guest.PORTS,
        shares=((guest.SHARE_ROOT, Path("/"), False), (guest.SHARE_KERNEL, log, True)),
        plugin=plugin,
        extra=extra,
        pass_fds=pass_fds,
    )
    with qemu.Machine(config) as machine:
        try:
            outcome = guest.Guest(
                machine, request, lambda: on_start(machine), lambda: on_stop(machine)
            ).run()
        except BoardError as error:
            raise BoardError(_in_words(error.message, console_log), error.hint) from error
        machine.stop()
        plugin_errors = [
            line.partition(PLUGIN_SAYS)[2]
            for line in machine.messages().splitlines()
            if PLUGIN_SAYS in line
        ]
    if outcome.failure is None and plugin_errors:
        outcome.failure = plugin_errors[0]
    elif outcome.failure and not outcome.interrupted:
        outcome.failure = _in_words(outcome.failure, console_log)
    return RecordResult(
        exit_status=outcome.exit_status,
        complete=outcome.failure is None,
        reason=outcome.failure,
        interrupted=outcome.interrupted,
        metadata={
            "board": dict(board),
            "region": _region(outcome, request, settings, region_base),
            "kernel": _kernel(outcome, settings, console_log),
            "cpu": dict(cpu),
        },
    )


def _in_words(reason: str, console_log: Path) -> str:
    """Why the guest ended: the kernel's last words tell more than that QEMU is gone."""
    if last_words := console.panic(console.read(console_log)):
        return f"the guest's kernel panicked: {last_words} (see {console_log})"
    return reason


def _region(
    outcome: guest.Outcome, request: RecordRequest, settings: Settings, base: int
) -> dict[str, Any]:
    """`region` of session.json; what the kernel says goes before what we asked it for."""
    told = guest.numbers(outcome.texts.get("region", ""))
    return {
        "base": told.get("base", base),
        "size_bytes": told.get("size", settings.region_bytes),
        "marker_slots": told.get("marker_slots", MARKER_SLOTS),
        "marker_stride_bytes": told.get("marker_stride", MARKER_STRIDE_BYTES),
        "levels": request.levels,
    }


def _kernel(outcome: guest.Outcome, settings: Settings, console_log: Path) -> dict[str, Any]:
    """`kernel` of session.json."""
    values = outcome.values
    return {
        "release": values.get("release"),
        "clock": "x86-tsc",
        "tsc_hz": int(values["tsc_hz"]) if "tsc_hz" in values else None,
        "cpus": int(values.get("cpus", settings.cpus)),
        "events": outcome.events,
        "stat": guest.numbers(outcome.texts.get("stat", "")),
        "check": guest.numbers(outcome.texts.get("check", "")),
        "warnings": console.warnings(console.read(console_log)),
    }
