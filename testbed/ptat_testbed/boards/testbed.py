# SPDX-License-Identifier: BSD-2-Clause
"""The board `testbed`: our QEMU plugin models TLBs, page walker and memory bus."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptat_host.boards import contract
from ptat_host.boards.base import (
    BoardError,
    Check,
    ObserveRequest,
    Option,
    RecordRequest,
    RecordResult,
)
from ptat_parser.errors import PtatError
from ptat_parser.formats import access_log, kernel_misses
from ptat_parser.formats.session import SNAPSHOTS_FILE
from ptat_testbed.boards import guest_run
from ptat_testbed.bus import controller, dimm_bus, gateware
from ptat_testbed.bus.gateware import GatewareBus
from ptat_testbed.guest import build, layout
from ptat_testbed.guest.qemu import CPU, escape
from ptat_testbed.guest.steps import progress

if TYPE_CHECKING:
    from ptat_host.calibration.observations import Observed
    from ptat_testbed.bus.soc import SocBus

TLB_PRESETS = ("skylake", "ivybridge-ep", "zen4")
GRANULARITIES_BYTES = (8, 32, 64)
GRANULARITY_BYTES = 64
TICK_HZ = 1_000_000_000
"""The plugin's bus clock counts nanoseconds."""
KERNEL_MISSES = "kernel-misses"
SOC_BUS = "soc"
BUSES = ("model", "gateware", SOC_BUS)
NO_BYTE_STRINGS = "erms=off,fsrm=off"
"""Else the kernel copies with `rep movsb`, which QEMU executes, and counts, byte by byte."""
READS = 8
"""Of each address, in `TestbedBoard.observe`: there is no other traffic."""


class TestbedBoard:
    """The patched kernel in QEMU, its walks seen by our plugin."""

    name = "testbed"
    options: Mapping[str, Option] = {
        **guest_run.OPTIONS,
        "tlb": Option(
            f"TLB model: {', '.join(TLB_PRESETS)}; its parts can be changed, as"
            " skylake,l1d=32x4,psc_pde=0x0",
            TLB_PRESETS[0],
        ),
        "buffer": Option(
            "capture through a buffer that can overflow: how many records it holds, and how many"
            " leave it in a second, as 1024:1000000",
            "unlimited",
        ),
        "bus": Option(
            "what captures: model; gateware: the snooper, simulated on the bus of a simulated"
            " memory controller; soc: a whole simulated device there, with this ptat as its host",
            BUSES[0],
        ),
        "controller": Option(
            "memory controller between CPU and DIMM, which queues stores and answers reads from"
            f" the queue: {', '.join(controller.PRESETS)}; its parameters can be changed, as"
            " ecc-server,scrub_ns=0",
            "none",
        ),
        "channels": Option(f"memory channels of --bus gateware, 1 to {gateware.CHANNELS_MAX}", "1"),
        "accesses": Option(
            "yes: also record every access of user code, compressed, for ptat pagesize; with one"
            " CPU",
            "no",
        ),
        KERNEL_MISSES: Option(
            "yes: also record the misses of kernel code, with the calls that led there, for"
            " ptat report --kernel",
            "no",
        ),
        "pmem": Option(
            "size of emulated persistent memory, /dev/pmem0, in a guest whose kernel has ext4 and"
            " xfs with DAX",
            "none",
        ),
        "snapshots": Option(
            "yes: also write what the counters say where a workload begins and ends what it"
            " measures, for ptat bench-fs",
            "no",
        ),
        "mapping": Option(
            "address mapping of --bus gateware, a file of ptat calibrate",
            "the simulated controllers'",
        ),
    }

    def check(self) -> list[Check]:
        """What `record` needs; builds nothing."""
        return [
            *guest_run.check_common(),
            guest_run.check_built("QEMU plugin", build.PLUGIN_SCRIPT, ""),
            gateware.check(),
        ]

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command in the guest; see `Board.record`."""
        rules = controller.preset(request.options.get("controller", "none"))
        if rules:
            request = behind_controller(request)
        granularity = request.granularity_bytes or GRANULARITY_BYTES
        if granularity not in GRANULARITIES_BYTES:
            raise BoardError(
                f"--granularity {granularity}: the bus shows"
                f" {', '.join(map(str, GRANULARITIES_BYTES))} bytes"
            )
        tlb = parse_tlb(request.options.get("tlb", TLB_PRESETS[0]))
        channels = parse_bus(request.options, request.granularity_bytes)
        check_accesses(request.options)
        check_yes_or_no(request.options, KERNEL_MISSES)
        check_yes_or_no(request.options, "snapshots")
        recording = guest_run.Recording(
            request, build.studies_kernel() if "pmem" in request.options else None
        )
        base, region_bytes = _region(recording)
        session = request.session_dir
        bus_file = "bus.0.raw"
        gateware: GatewareBus | SocBus | None = None
        if channels is not None:
            programs = None
            if path := request.options.get("mapping"):
                from ptat_host.calibration import saved_mapping

                programs = saved_mapping.read(Path(path), base, region_bytes, channels)
            if request.options["bus"] == SOC_BUS:
                from ptat_testbed.bus.soc import SocBus  # LiteX: not for each ptat record

                gateware = SocBus(base, region_bytes, programs[0] if programs else None)
            else:
                gateware = GatewareBus(channels, base, region_bytes, programs)
            bus_file = "bus.model.raw"
        elif rules:
            bus_file = "bus.model.raw"
        known: dict[str, Any] = {
            "board": {
                "granularity_bytes": granularity,
                "walk_reads": "psc",
                "channels": [{"index": 0, "file": bus_file, "tick_hz": TICK_HZ}],
            },
            "cpu": {"name": "QEMU TCG with ptat's TLB model", **tlb},
        }
        # What a second pass captures comes when the guest has ended.
        later = gateware is not None or rules is not None
        # A controller queues words.
        shown = 8 if rules else granularity
        result = _run(recording, request, session / bus_file, shown, tlb, None if later else known)
        result.metadata |= known
        if later:
            _second_pass(result, session, (base, region_bytes), rules, gateware)
        return result

    def observe(self, request: ObserveRequest) -> Observed:
        """Read the region in the guest; see `CalibratingBoard.observe`."""
        from ptat_host.calibration import known_reads, observations

        channels = parse_bus(request.options, None)
        if channels is None or request.options["bus"] == SOC_BUS:
            raise BoardError("only the snooper alone can do this", "add --bus gateware")
        times = request.reads or READS
        tlb = parse_tlb(request.options.get("tlb", TLB_PRESETS[0]))
        numbers = {"addresses": request.addresses, "times": times, "seed": request.seed}
        with tempfile.TemporaryDirectory(prefix="ptat-calibrate-") as temporary:
            session = Path(temporary)
            reading = RecordRequest(
                argv=[
                    *(sys.executable, "-m", "ptat_host.calibration.known_reads"),
                    *(f"--{name}={value}" for name, value in numbers.items()),
                ],
                session_dir=session,
                cwd=Path("/"),
                env=dict(os.environ),
                children=False,
                options=request.options,
            )
            recording = guest_run.Recording(reading, build.board_kernel())
            base, region_bytes = _region(recording)
            addresses = known_reads.chosen(base, region_bytes, request.addresses, request.seed)
            bus = session / "bus.model.raw"
            result = _run(recording, reading, bus, GRANULARITY_BYTES, tlb)
            if not result.complete or result.exit_status:
                why = result.incomplete_reason or "see above"
                raise BoardError(f"the guest could not read: {why}")
            with progress("simulating the bus and its snooper"):
                parts = gateware.observe(channels, bus, addresses, session)
        seen, coordinates = observations.pairs(addresses, parts, times)
        return observations.Observed(seen, coordinates, base, region_bytes, channels, [])

    def load(self, mapping: Path) -> list[str]:
        """Nothing is kept: a simulated board is new in each recording."""
        return []


def behind_controller(request: RecordRequest) -> RecordRequest:
    """The request, with what a trace of this bus needs: marker loads, and each entry's event.

    :raises BoardError: the options make no sense.
    """
    if request.options.get("bus") == SOC_BUS:
        raise BoardError("--controller: not with --bus soc", "use --bus model or --bus gateware")
    if "buffer" in request.options:
        raise BoardError("--buffer: the controller's commands are not lost", "leave it out")
    return contract.needed(request, "--controller")


def _second_pass(
    result: RecordResult,
    session: Path,
    region: tuple[int, int],
    rules: controller.Controller | None,
    gateware: GatewareBus | SocBus | None,
) -> None:
    """Let what the plugin put on its bus pass through controller and gateware."""
    board = result.metadata["board"]
    model_bus, ticks_per_ns = session / "bus.model.raw", 1
    what = "bus"
    try:
        if rules:
            what = "memory controller"
            behind = session / ("bus.dimm.raw" if gateware else "bus.0.raw")
            with progress("simulating the memory controller"):
                channels = controller.ONE_CHANNEL
                if isinstance(gateware, GatewareBus):
                    channels = gateware.queues()
                dimm_bus.pass_through(rules, session, model_bus, behind, region, channels)
            model_bus, ticks_per_ns = behind, dimm_bus.TICKS_PER_NS
            tick_hz = TICK_HZ * ticks_per_ns
            board["channels"] = [{"index": 0, "file": behind.name, "tick_hz": tick_hz}]
        if gateware:
            what = "gateware"
            board.update(gateware.metadata())
            with progress("simulating the bus and its snooper"):
                gateware.capture(session, model_bus, ticks_per_ns)
            board.update(gateware.metadata())
    except PtatError as error:
        result.ended = False
        result.reason = f"the {what} captured nothing: {error.message}"
    if rules:
        board["contract"] = dimm_bus.contract(rules)


def _region(recording: guest_run.Recording) -> tuple[int, int]:
    """Base and size of the region, in bytes."""
    settings = recording.settings
    base = layout.region_in_ram(settings.region_bytes, settings.memory_bytes)
    return base, settings.region_bytes


def _run(
    recording: guest_run.Recording,
    request: RecordRequest,
    bus: Path,
    granularity: int,
    tlb: Mapping[str, str],
    known: dict[str, Any] | None = None,
) -> RecordResult:
    """Run the guest with the plugin, which writes its bus to a file.

    `known`: see `guest_run.Recording`.
    """
    settings = recording.settings
    base, region_bytes = _region(recording)
    plugin = {
        "region_base": hex(base),
        "region_size": hex(region_bytes),
        "marker_bytes": guest_run.MARKER_BYTES,
        "ram": "{ram}",
        "ram_size": settings.memory_bytes,
        "lowmem": layout.lowmem(settings.memory_bytes),
        "bus": bus,
        "truth": request.session_dir / "truth.0.bin",
        "counters": request.session_dir / "counters.json",
        "granularity": granularity,
        "pf_entry": hex(recording.kernel.symbol("asm_exc_page_fault")),
        **tlb,
    }
    if request.options.get("accesses") == "yes":
        plugin["accesses"] = request.session_dir / access_log.FILE
    if request.options.get(KERNEL_MISSES) == "yes":
        plugin |= {
            "kernel_misses": request.session_dir / kernel_misses.FILE,
            "entry_begin": hex(recording.kernel.symbol("__entry_text_start")),
            "entry_end": hex(recording.kernel.symbol("__entry_text_end")),
        }
        recording.kernel.write_functions(request.session_dir / kernel_misses.FUNCTIONS)
    if "buffer" in request.options:
        plugin |= parse_buffer(request.options["buffer"])
    extra: tuple[str, ...] = ()
    if request.options.get("snapshots") == "yes":
        plugin["snapshots"] = request.session_dir / SNAPSHOTS_FILE
        extra = ("-cpu", f"{CPU},{NO_BYTE_STRINGS}")
    arguments = ",".join(f"{key}={escape(value)}" for key, value in plugin.items())
    return recording.record(
        recording.machine_config(base, f"{escape(build.plugin())},{arguments}", extra),
        known=known,
    )


def parse_tlb(text: str) -> dict[str, str]:
    """The plugin's arguments for ``skylake`` or ``skylake,l1d=32x4,stlb=1024x8``.

    :raises BoardError: it is no such list.
    """
    preset, *changes = text.split(",")
    if preset not in TLB_PRESETS:
        raise BoardError(
            f"--tlb {text}: there is no model {preset!r}", f"use {', '.join(TLB_PRESETS)}"
        )
    parameters = {"tlb": preset}
    for change in changes:
        part, separator, value = change.partition("=")
        if not part or not separator or not value:
            raise BoardError(f"--tlb {text}: {change!r} is no change", "write it as l1d=32x4")
        parameters[part if part.startswith("psc_") else f"tlb_{part}"] = value
    return parameters


def parse_bus(options: Mapping[str, str], granularity_bytes: int | None) -> int | None:
    """How many channels the gateware is to capture; None: the model captures.

    :raises BoardError: the options make no sense.
    """
    bus = options.get("bus", BUSES[0])
    if bus not in BUSES:
        raise BoardError(f"--bus {bus}: there is no such bus", f"use {' or '.join(BUSES)}")
    if bus == BUSES[0]:
        for option in ("channels", "mapping"):
            if option in options:
                raise BoardError(f"--{option}: the model's bus has none", "add --bus gateware")
        return None
    if "buffer" in options:
        raise BoardError("--buffer: it is the model's", "leave it out with --bus gateware")
    shown = gateware.GRANULARITY_BYTES
    if granularity_bytes not in (None, shown):
        raise BoardError(f"--granularity {granularity_bytes}: a DDR3 bus shows {shown} bytes")
    most = 1 if bus == SOC_BUS else gateware.CHANNELS_MAX
    return layout.parse_count(options.get("channels", "1"), "--channels", most)


def check_accesses(options: Mapping[str, str]) -> None:
    """See that the option makes sense.

    :raises BoardError: it does not.
    """
    if check_yes_or_no(options, "accesses") and options.get("cpus", "1") != "1":
        raise BoardError("--accesses yes: possible with one CPU only", "leave out --cpus")


def check_yes_or_no(options: Mapping[str, str], name: str) -> bool:
    """Whether an option, by default "no", is "yes".

    :raises BoardError: it is neither.
    """
    wanted = options.get(name, "no")
    if wanted not in ("yes", "no"):
        raise BoardError(f"--{name} {wanted}: is neither yes nor no")
    return wanted == "yes"


def parse_buffer(text: str) -> dict[str, int]:
    """The plugin's arguments for ``RECORDS:RECORDS_PER_SECOND``.

    :raises BoardError: it is not that.
    """
    records, separator, rate = text.partition(":")
    if not separator:
        raise BoardError(f"--buffer {text}: no rate", "write it as 1024:1000000")
    maximum = 2**32 - 1
    return {
        "buffer": layout.parse_count(records, "--buffer", maximum),
        "drain": layout.parse_count(rate, "--buffer", maximum),
    }
