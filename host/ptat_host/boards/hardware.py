# SPDX-License-Identifier: BSD-2-Clause
"""A recording with a real board: it listens to the bus of the machine that this runs on."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptat_host import live, protocol
from ptat_host.boards import stream
from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_host.boards.client import Capture, Client, Link
from ptat_host.protocol import Command, Identity, Window
from ptat_host.sizes import format_size
from ptat_parser import wire

GRANULARITIES_BYTES = (8, 16, 32, 64)


class HardwareBoard(ABC):
    """What boards on any link have in common. Address: what follows ``KIND:``."""

    kind: str
    """The name of its entry point."""

    options: Mapping[str, Option] = {
        "tsc-hz": Option(
            "frequency of this machine's TSC (default: as the kernel's log tells)", None
        ),
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

    def check(self) -> list[Check]:
        """The boards that are there, and whether this machine can be traced."""
        try:
            addresses = [self._address] if self._address else self.discover()
        except BoardError as error:
            return [Check("board", False, error.message, error.hint)]
        if not addresses:
            return [Check("board", None, f"none found; it is named as {self.kind}:ADDRESS")]
        return [self._check_one(address) for address in addresses] + live.checks()

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
        try:
            with Client(self.open(self._address)) as client:
                return self._record(client, request)
        except BoardError:
            _discard(request.session_dir)
            raise

    def _record(self, client: Client, request: RecordRequest) -> RecordResult:
        identity = client.identify()
        _check_identity(client.link.name, identity, request)
        client.stop()  # of a ptat that was killed
        stale_bytes = client.link.drain()
        with live.LiveMachine(request, request.options.get("tsc-hz")) as machine:
            region = machine.region
            client.set_windows([_window(region["base"], region["size_bytes"])])
            client.command(Command.TRIGGER, protocol.TRIGGER_REQUEST.pack(0))
            file = "bus.0.raw"
            metadata: dict[str, Any] = {
                "board": {
                    "granularity_bytes": identity.granularity_bytes,
                    "walk_reads": "psc",
                    "channels": [{"index": 0, "file": file, "tick_hz": identity.tick_hz}],
                    "board": identity.board,
                    "serial": identity.serial,
                    "git_hash": identity.git_hash,
                },
                "region": region,
                "kernel": machine.kernel,
                "cpu": machine.cpu,
            }
            path = request.session_dir / file
            result, report = _capture(client, path, machine, request, metadata)
            metadata["kernel"].update(machine.aftermath())
            metadata["board"]["link"] = {"stale_bytes": stale_bytes, **report}
            return result


def _check_identity(name: str, identity: Identity, request: RecordRequest) -> None:
    if identity.channels != 1:
        raise BoardError(
            f"{name} has {identity.channels} channels; this version of ptat records one"
        )
    if identity.granularity_bytes not in GRANULARITIES_BYTES:
        raise BoardError(f"{name} says that its bus shows {identity.granularity_bytes} bytes")
    if request.granularity_bytes not in (None, identity.granularity_bytes):
        raise BoardError(
            f"--granularity {request.granularity_bytes}: the bus of {name} shows"
            f" {identity.granularity_bytes} bytes"
        )


def _window(base: int, size_bytes: int) -> tuple[int, int, Window]:
    unit = 1 << protocol.WINDOW_UNIT_SHIFT
    return base // unit * unit, -(-(base + size_bytes) // unit) * unit, Window.READ | Window.WRITE


def _capture(
    client: Client,
    path: Path,
    machine: live.LiveMachine,
    request: RecordRequest,
    metadata: dict[str, Any],
) -> tuple[RecordResult, dict[str, int]]:
    """Record, take the rest of the stream, and say what became of it."""

    def tick() -> str | None:
        if capture.failure is None:
            try:
                client.heartbeat()
            except BoardError as error:
                return error.message
        return capture.failure

    with path.open("wb", buffering=0) as file:
        capture = client.link.capture(file.fileno(), client.host)
        sent_blocks = lost = None
        try:
            client.command(Command.START)
            request.describe(metadata)
            run = machine.run(tick)
        finally:
            # Whatever happened: the board must not go on, and what it has is taken.
            failure, sent_blocks, lost = _stop(client, capture)
    report = stream.tidy(path, sent_blocks=sent_blocks)
    problems = [run.failure, failure]
    if report.missing_at_end:
        problems.append(f"the last {report.missing_at_end} blocks did not arrive")
    if not report.blocks and sent_blocks is None:
        problems.append("nothing was captured")
    reason = next((problem for problem in problems if problem), None)
    losses = []
    if report.missing:
        losses.append(f"{report.missing} of {sent_blocks or report.blocks + report.missing} blocks")
    if lost:
        losses.append(f"{lost} accesses in the board")
    result = RecordResult(
        exit_status=run.exit_status,
        complete=reason is None,
        reason=reason,
        interrupted=run.interrupted,
        metadata=metadata,
        lost=" and ".join(losses) or None,
    )
    return result, {**report.as_dict(), **capture.counters, "lost_accesses": lost or 0}


def _stop(client: Client, capture: Capture) -> tuple[str | None, int | None, int | None]:
    """End the recording: what went wrong, blocks that the board sent, accesses that it lost."""
    failure = capture.failure
    sent_blocks = lost = None
    try:
        if failure is None:
            stopped = client.stop(capture)
            sent_blocks = stopped.blocks
            lost = client.health().lost
            if stopped.state == protocol.State.EXPIRED:
                failure = "the board had ended the recording: it had not heard of us"
    except BoardError as error:
        failure = capture.failure or error.message
    expected_bytes = None if sent_blocks is None else sent_blocks * wire.BLOCK_BYTES
    capture.finish(expected_bytes)
    return failure or capture.failure, sent_blocks, lost


def _discard(session_dir: Path) -> None:
    """Nothing was recorded: leave the directory as it was."""
    shutil.rmtree(session_dir / "kernel", ignore_errors=True)
    for file in session_dir.glob("bus.*.raw"):
        file.unlink()
