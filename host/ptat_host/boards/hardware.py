# SPDX-License-Identifier: BSD-2-Clause
"""Recordings with real boards: they listen to the bus of the machine that this runs on."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptat_host import protocol
from ptat_host.boards import contract, stream
from ptat_host.boards.base import (
    BoardError,
    Check,
    ObserveRequest,
    Option,
    RecordRequest,
    RecordResult,
)
from ptat_host.boards.buffer_fill import Fill, Reporter
from ptat_host.boards.client import TRIES_RECORDING, Capture, Client, Link, LinkError
from ptat_host.boards.live import machine as live_machine
from ptat_host.boards.live.child import Run
from ptat_host.boards.live.lock import lock
from ptat_host.calibration import dram, spd
from ptat_host.protocol import Command, Health, Identity, Status, Window
from ptat_host.sizes import format_size
from ptat_parser import wire
from ptat_parser.errors import BadInput, PtatError

if TYPE_CHECKING:
    from ptat_host.calibration.address_functions import Program
    from ptat_host.calibration.observations import Observed

GRANULARITIES_BYTES = (8, 16, 32, 64)
STREAM_CHANNEL = 0
"""The channel number in a board's blocks; a board does not know its channel of the machine."""
UNLIKE_HINT = (
    "gear-down, CAL, another kind of DRAM than the gateware's, ranks encoded in chip selects, or"
    " misaligned pins: see docs/hardware.md"
)
ILLEGAL_MAX = 0.01
"""Share of the bus's commands that may be illegal; even one misread in a million would be bad."""
ILLEGAL_MIN = 20
"""Fewer illegal commands prove nothing: the first ones after START may be illegal."""
READS = 200
"""Reads of each address in `observe`: enough to stand out from a millisecond of other traffic."""


def module_checks() -> list[Check]:
    """Whether the buses of this machine's memory modules can be decoded."""
    found = []
    for path in spd.installed():
        name = f"module {path.parent.name}"
        try:
            found.append(Check(name, True, spd.read(path).describe()))
        except BadInput as error:
            found.append(Check(name, False, error.message, error.hint))
    return found


def distrust(health: Health) -> str | None:
    """Why the board's observations of the bus cannot be trusted; None: they can."""
    illegal = sum(health.illegal)
    if illegal <= ILLEGAL_MIN or illegal <= ILLEGAL_MAX * (illegal + health.matched):
        return None
    return (
        f"the bus does not match the decoder's settings: {illegal} illegal commands"
        f" for {health.matched} accesses"
    )


class HardwareBoard(ABC):
    """Common parts of boards on any link. Their address follows ``KIND:``."""

    kind: str
    """The name of its entry point."""

    options: Mapping[str, Option] = {
        "tsc-hz": Option("frequency of this machine's TSC (default: from the kernel's log)", None),
        "mapping": Option(
            "address mapping to program: a file of ptat calibrate (default: the board's own)",
            None,
        ),
        contract.OPTION: contract.ABOUT,
    }

    def __init__(self, address: str | None = None) -> None:
        """Only remember the address."""
        self._address = address

    @property
    def name(self) -> str:
        """As the user wrote it."""
        return f"{self.kind}:{self._address}" if self._address else self.kind

    @abstractmethod
    def discover(self) -> list[str]:
        """Addresses of the boards that can be found.

        :raises BoardError: looking is not possible.
        """

    @abstractmethod
    def open(self, address: str | None) -> Link:
        """Open the board at that address; None: the only one there is.

        :raises BoardError: it cannot be opened.
        """

    def connect(self) -> Client:
        """Open the board that the user named.

        :raises BoardError: it cannot be opened.
        """
        return Client(self.open(self._address))

    def check(self) -> list[Check]:
        """The boards that are connected, and whether this machine can be traced."""
        try:
            addresses = [self._address] if self._address else self.discover()
        except BoardError as error:
            return [Check("board", False, error.message, error.hint)]
        if not addresses:
            return [Check("board", None, f"none found; write it as {self.kind}:ADDRESS")]
        boards = [self._check_one(address) for address in addresses]
        more = [contract.check()] if contract.OPTION in self.options else []
        return boards + module_checks() + more + live_machine.checks()

    def _check_one(self, address: str | None) -> Check:
        try:
            with Client(self.open(address)) as client:
                identity, health = client.identify(), client.health()
        except BoardError as error:
            return Check(f"{self.kind}:{address}", False, error.message, error.hint)
        detail = (
            f"{identity.board}, gateware {identity.git_hash[:12]}, {identity.channels} channel(s),"
            f" {identity.tick_hz / 1e6:g} MHz, buffer {format_size(health.fill_bytes)} of"
            f" {format_size(health.capacity_bytes)}"
        )
        if health.temperature_mc is not None:
            detail += f", {health.temperature_mc / 1000:.1f} °C"
        if illegal := sum(health.illegal):
            detail += f", {illegal} illegal bus commands"
        return Check(f"{self.kind}:{address}", True, detail)

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command on this machine; see `Board.record`."""
        return BoardSet([self]).record(request)

    def observe(self, request: ObserveRequest) -> Observed:
        """See `CalibratingBoard.observe`."""
        return BoardSet([self]).observe(request)

    def load(self, mapping: Path) -> list[str]:
        """See `CalibratingBoard.load`."""
        return BoardSet([self]).load(mapping)


@dataclass
class Tap:
    """An open board on one channel of the memory."""

    client: Client
    channel: int
    identity: Identity
    stale_bytes: int = 0
    capture: Capture | None = None
    started_ns: tuple[int, int] = (0, 0)
    """Monotonic times between which it began to record."""
    failure: str | None = None
    sent_blocks: int | None = None
    lost_accesses: int | None = None
    report: stream.StreamReport = field(default_factory=stream.StreamReport)

    @property
    def file(self) -> str:
        """In the session."""
        return f"bus.{self.channel}.raw"

    def quiet(self) -> None:
        """End the recording of a ptat that was killed."""
        self.client.stop()
        self.stale_bytes = self.client.link.drain()

    def choose(self, window: tuple[int, int, Window], program: Program | None) -> None:
        """Program the windows and the mapping."""
        if program is not None:
            self.program(program)
        self.client.set_windows([window])
        self.client.command(Command.TRIGGER, protocol.TRIGGER_REQUEST.pack(0))

    def program(self, program: Program) -> None:
        """Load an address mapping."""
        command, payload = Command.SET_MIRROR, program.mirror_payload()
        # Older firmware swaps nothing back: fine if there is nothing to.
        if program.mirror or self.client.ask(command, payload).status != Status.UNKNOWN_COMMAND:
            self.client.command(command, payload)
        self.client.command(Command.SET_MATRIX, program.payload())

    def start(self, fd: int) -> None:
        """Begin to record into a file."""
        self.capture = self.client.link.capture(fd, self.client.host)
        before_ns = time.monotonic_ns()
        self.client.command(Command.START)
        self.started_ns = before_ns, time.monotonic_ns()
        self.client.tries = TRIES_RECORDING

    def fill(self) -> Fill | None:
        """Fill level of its buffer; None: the board does not report it."""
        try:
            health = self.client.health()
        except BoardError:
            return None  # a link that is broken ends the recording elsewhere
        return Fill(self.client.link.name, health.fill_bytes, health.capacity_bytes)

    def broken(self) -> str | None:
        """Why the recording must end."""
        if self.capture is not None and self.capture.failure is None:
            try:
                self.client.heartbeat()
            except BoardError as error:
                return error.message
        return self.capture.failure if self.capture else None

    def stop(self) -> None:
        """End the recording, and fetch what the board holds even after an error."""
        if self.capture is None:
            return
        self.failure = self.capture.failure
        try:
            if self.failure is None:
                stopped = self.client.stop(self.capture)
                self.sent_blocks = stopped.blocks
                self.lost_accesses = self.client.health().lost
                if stopped.state == protocol.State.EXPIRED:
                    self.failure = (
                        "the board ended the recording: it received nothing from this host"
                    )
        except BoardError as error:
            self.failure = self.capture.failure or error.message
        sent = self.sent_blocks
        self.capture.finish(None if sent is None else sent * wire.BLOCK_BYTES)
        self.failure = self.failure or self.capture.failure

    def tidy(self, directory: Path) -> None:
        """Reduce the file to whole blocks."""
        self.report = stream.tidy(
            directory / self.file, STREAM_CHANNEL, sent_blocks=self.sent_blocks
        )

    @property
    def problem(self) -> str | None:
        """Why the recording is not complete."""
        if self.failure:
            return self.failure
        if self.report.missing_at_end:
            return f"the last {self.report.missing_at_end} blocks did not arrive"
        if not self.report.blocks and self.sent_blocks is None:
            return "nothing was captured"
        return None

    @property
    def losses(self) -> list[str]:
        """What was lost, in words."""
        losses = []
        if missing := self.report.missing:
            losses.append(f"{missing} of {self.sent_blocks or self.report.blocks + missing} blocks")
        if self.lost_accesses:
            losses.append(f"{self.lost_accesses} accesses in the board")
        return losses

    @property
    def link(self) -> dict[str, int]:
        """What happened between the board and the file, for session.json."""
        return {
            "stale_bytes": self.stale_bytes,
            **self.report.as_dict(),
            **(self.capture.counters if self.capture else {}),
            "lost_accesses": self.lost_accesses or 0,
        }


class BoardSet:
    """One or several boards, one on each channel of this machine's memory.

    The parser aligns the clocks of several boards by pulses that all of them receive.
    """

    options = HardwareBoard.options

    def __init__(self, boards: Sequence[HardwareBoard]) -> None:
        """The board of channel 0 first."""
        self._boards = boards

    @property
    def name(self) -> str:
        """As the user wrote them."""
        return "+".join(board.name for board in self._boards)

    def check(self) -> list[Check]:
        """See `Board.check`."""
        return list(dict.fromkeys(check for board in self._boards for check in board.check()))

    @contextlib.contextmanager
    def _taps(self) -> Iterator[list[Tap]]:
        """The open boards, with earlier recordings ended."""
        with contextlib.ExitStack() as opened:
            taps = []
            for channel, board in enumerate(self._boards):
                client = opened.enter_context(board.connect())
                taps.append(Tap(client, channel, client.identify()))
            _check_together(taps)
            for tap in taps:
                tap.quiet()
            yield taps

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command on this machine; see `Board.record`."""
        try:
            with self._taps() as taps:
                return self._record(taps, request)
        except PtatError:
            _discard(request.session_dir)
            raise

    def _record(self, taps: list[Tap], request: RecordRequest) -> RecordResult:
        granularity_bytes = taps[0].identity.granularity_bytes
        request, stated = _behind(request, granularity_bytes)
        if request.granularity_bytes not in (None, granularity_bytes):
            raise BoardError(
                f"--granularity {request.granularity_bytes}: the bus of {self.name} shows"
                f" {granularity_bytes} bytes"
            )
        with live_machine.LiveMachine(request, request.options.get("tsc-hz")) as machine:
            region = machine.region
            base, size_bytes = region["base"], region["size_bytes"]
            programs = _programs(request.options.get("mapping"), base, size_bytes, len(taps))
            for tap, program in zip(taps, programs, strict=True):
                tap.choose(_window(base, size_bytes), program)
            board: dict[str, Any] = {
                "granularity_bytes": granularity_bytes,
                "walk_reads": "psc",
                "channels": [_channel(tap) for tap in taps],
            }
            if len(taps) > 1:
                board["clocks"] = "pulses"
            if stated:
                board["contract"] = stated
            metadata: dict[str, Any] = {
                "board": board,
                "region": region,
                "kernel": machine.kernel,
                "cpu": machine.cpu,
            }
            result = _capture(taps, machine, request, metadata)
            metadata["kernel"].update(machine.aftermath())
            return result

    def observe(self, request: ObserveRequest) -> Observed:
        """See `CalibratingBoard.observe`."""
        from ptat_host.calibration import known_reads
        from ptat_host.calibration.address_functions import IDENTITY
        from ptat_host.calibration.observations import Observed, between_flushes, pairs
        from ptat_parser.capture.reader import BusReader

        live_machine.require()
        modules = module_checks()
        if modules and not any(module.ok for module in modules):
            raise BoardError(modules[0].detail, modules[0].hint or "")
        base, size_bytes = known_reads.region()
        addresses = known_reads.chosen(base, size_bytes, request.addresses, request.seed)
        times = request.reads or READS
        everything = (0, 1 << dram.ADDRESS_BITS_MAX, Window.READ)
        with contextlib.ExitStack() as held:
            lock(held)
            loads = held.enter_context(known_reads.RegionLoads(base))
            directory = Path(held.enter_context(tempfile.TemporaryDirectory()))
            taps = held.enter_context(self._taps())
            for tap in taps:
                tap.choose(everything, IDENTITY)
                file = held.enter_context((directory / tap.file).open("wb", buffering=0))
                tap.start(file.fileno())
            try:
                for address in addresses:
                    loads.read(address, times)
                    for tap in taps:
                        tap.client.command(Command.FLUSH)
            finally:
                for tap in taps:
                    tap.stop()
            parts = []
            for tap in taps:
                if tap.failure:
                    raise BoardError(f"{tap.client.link.name}: {tap.failure}")
                if why := distrust(tap.client.health()):
                    raise BoardError(f"{tap.client.link.name}: {why}", UNLIKE_HINT)
                tap.tidy(directory)
                reader = BusReader(directory / tap.file, STREAM_CHANNEL)
                parts.append(between_flushes(reader, len(addresses)))
            seen, coordinates = pairs(addresses, parts, times)
            names = [tap.identity.serial or tap.client.link.name for tap in taps]
            return Observed(seen, coordinates, base, size_bytes, len(taps), names)

    def load(self, mapping: Path) -> list[str]:
        """See `CalibratingBoard.load`."""
        from ptat_host.calibration import known_reads

        programs = _programs(str(mapping), *known_reads.region(), len(self._boards))
        with self._taps() as taps:
            for tap, program in zip(taps, programs, strict=True):
                if program is not None:
                    tap.program(program)
            return [tap.client.link.name for tap in taps]


def _behind(
    request: RecordRequest, granularity_bytes: int
) -> tuple[RecordRequest, dict[str, Any] | None]:
    """The request for a bus behind a memory controller, and its contract; None for other buses.

    :raises BoardError: the board or other options cannot do that.
    """
    name = contract.stated(request.options)
    if name == contract.DEFAULT:
        return request, None
    option = f"--{contract.OPTION} {name}"
    if granularity_bytes != contract.LINE_BYTES:
        raise BoardError(
            f"{option}: this bus shows {granularity_bytes} bytes, not lines of"
            f" {contract.LINE_BYTES}",
            f"record with --{contract.OPTION} {contract.DEFAULT}",
        )
    if request.markers == "store":
        raise BoardError(
            "--markers store: a memory controller delays stores", "leave it out, or mark by loads"
        )
    return contract.needed(request, option), contract.named(name)


def _programs(
    mapping: str | None, base: int, size_bytes: int, channels: int
) -> Sequence[Program | None]:
    """Mappings to program into the boards; None: nothing."""
    if mapping is None:
        return [None] * channels
    from ptat_host.calibration import saved_mapping as files

    return files.read(Path(mapping), base, size_bytes, channels)


def _check_together(taps: Sequence[Tap]) -> None:
    for tap in taps:
        name, identity = tap.client.link.name, tap.identity
        if identity.channels != 1:
            raise BoardError(
                f"{name} has {identity.channels} channels; ptat records one from each board"
            )
        if identity.granularity_bytes not in GRANULARITIES_BYTES:
            raise BoardError(f"{name} says that its bus shows {identity.granularity_bytes} bytes")
        first = taps[0].identity
        ours = (identity.granularity_bytes, identity.tick_hz)
        if ours != (first.granularity_bytes, first.tick_hz):
            raise BoardError(
                f"{name} and {taps[0].client.link.name} differ in granularity or clock",
                "record with boards of one kind on channels of one speed",
            )


def _channel(tap: Tap) -> dict[str, Any]:
    """The part of an entry of `board.channels` in session.json that is known at the start."""
    identity = tap.identity
    return {
        "index": tap.channel,
        "file": tap.file,
        "tick_hz": identity.tick_hz,
        "stream_channel": STREAM_CHANNEL,
        "board": identity.board,
        "serial": identity.serial,
        "git_hash": identity.git_hash,
    }


def _window(base: int, size_bytes: int) -> tuple[int, int, Window]:
    unit = 1 << protocol.WINDOW_UNIT_SHIFT
    return base // unit * unit, -(-(base + size_bytes) // unit) * unit, Window.READ | Window.WRITE


def _capture(
    taps: Sequence[Tap],
    machine: live_machine.LiveMachine,
    request: RecordRequest,
    metadata: dict[str, Any],
) -> RecordResult:
    """Record, fetch the rest of the streams, and describe the result."""

    def fills() -> list[Fill]:
        found = [*(tap.fill() for tap in taps), *machine.fills()]
        return [fill for fill in found if fill]

    def tick() -> str | None:
        buffers.tick()
        return next((why for tap in taps if (why := tap.broken())), None)

    channels = metadata["board"]["channels"]
    with contextlib.ExitStack() as files, Reporter(request.session_dir, fills) as buffers:
        try:
            try:
                for tap, channel in zip(taps, channels, strict=True):
                    path = request.session_dir / tap.file
                    tap.start(files.enter_context(path.open("wb", buffering=0)).fileno())
                    channel["started_ns"] = list(tap.started_ns)
                request.describe(metadata)
                run = machine.run(tick)
            finally:
                for tap in taps:
                    tap.stop()
        except LinkError as error:
            if not any(tap.capture and tap.capture.received_bytes for tap in taps):
                raise
            # It began, and broke before it could say so.
            run = Run(failure=error.message)
    problems, losses, total = [run.failure], [], Counter[str]()
    for tap, channel in zip(taps, channels, strict=True):
        tap.tidy(request.session_dir)
        prefix = f"{tap.client.link.name}: " if len(taps) > 1 else ""
        problems.append(prefix + tap.problem if tap.problem else None)
        losses += [prefix + loss for loss in tap.losses]
        channel["link"] = tap.link
        total.update(tap.link)
    metadata["board"]["link"] = dict(total)
    reason = next((problem for problem in problems if problem), None)
    return RecordResult(
        exit_status=run.exit_status,
        ended=reason is None,
        reason=reason,
        interrupted=run.interrupted,
        metadata=metadata,
        lost=" and ".join(losses) or None,
    )


def _discard(session_dir: Path) -> None:
    """Restore the directory after a recording that captured nothing."""
    shutil.rmtree(session_dir / "kernel", ignore_errors=True)
    for file in session_dir.glob("bus.*.raw"):
        file.unlink()
