# SPDX-License-Identifier: BSD-2-Clause
"""The interface of links to boards, and the host's end of the command protocol."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, TypeVar

from ptat_host import protocol
from ptat_host.boards.base import BoardError
from ptat_host.protocol import Command, Frame, Health, Identity, ProtocolError, Status, Stopped
from ptat_parser import wire

ANSWER_TIMEOUT_S = 0.5
TRIES = 5
TRIES_RECORDING = 20
"""Long, because the recorded command may keep the machine busy."""
HEARTBEAT_S = 1.0
STOP_POLL_S = 0.01
STOP_SILENCE_S = 5.0
"""Longest time without progress of a board that has to stop."""

_T = TypeVar("_T", Identity, Health, Stopped)


class LinkError(BoardError):
    """The link to the board broke: it was unplugged, or does not answer."""


class Capture(Protocol):
    """A background transfer of the capture stream into a file."""

    @property
    def received_bytes(self) -> int:
        """Bytes received so far."""

    @property
    def failure(self) -> str | None:
        """Reason why nothing more will arrive, or None."""

    @property
    def counters(self) -> dict[str, int]:
        """Events on the link: recoveries, repeated datagrams, …"""

    def finish(self, expected_bytes: int | None) -> None:
        """Wait for the rest, then end; the file then holds everything that arrived.

        :param expected_bytes: size of the whole stream; None: unknown.
        """


class Link(Protocol):
    """An open board. Not thread-safe; a `Capture` may run at the same time."""

    @property
    def name(self) -> str:
        """Its name for users: ``usb:A7``."""

    def send(self, data: bytes) -> None:
        """Send one encoded frame.

        :raises LinkError: the board is gone.
        """

    def receive(self, timeout_s: float) -> list[Frame]:
        """Frames that have arrived, or arrive within the time; maybe none.

        :raises LinkError: the board is gone.
        """

    def drain(self) -> int:
        """Drop the rest of an earlier recording from the stream; return its size in bytes."""

    def capture(self, fd: int, host: int) -> Capture:
        """Begin to write the stream of the recording of `host` to a file."""

    def close(self) -> None:
        """Give the board back."""


class Client:
    """Sends commands to a board and returns the responses; a context manager that closes its link.

    `patience_s`: time before a command is repeated; simulated boards are slow.
    """

    def __init__(self, link: Link, patience_s: float = ANSWER_TIMEOUT_S) -> None:
        self.link = link
        self._patience_s = patience_s
        self.host = secrets.randbelow(2**32 - 1) + 1
        self._id = secrets.randbelow(2**16)
        self._heartbeat_due_s = 0.0
        self.tries = TRIES
        """Attempts to send a command before the board counts as gone."""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.link.close()

    def ask(self, command: Command, payload: bytes = b"", timeout_s: float | None = None) -> Frame:
        """Send a command, with retries, and return the response.

        :raises LinkError: there is none.
        :raises BoardError: the board speaks another version of the protocol.
        """
        self._id = (self._id + 1) % 2**16
        request = Frame(command, self._id, payload, self.host).encode()
        for _ in range(self.tries):
            self.link.send(request)
            deadline = time.monotonic() + (timeout_s or self._patience_s)
            while (left_s := deadline - time.monotonic()) > 0:
                for frame in self.link.receive(left_s):
                    if not frame.response or (frame.id, frame.host) != (self._id, self.host):
                        continue  # an answer that came too late
                    if frame.version != protocol.VERSION:
                        raise BoardError(
                            f"{self.link.name} speaks version {frame.version} of the protocol,"
                            f" this ptat speaks version {protocol.VERSION}",
                            "update the board's firmware, or ptat",
                        )
                    return frame
        raise LinkError(
            f"{self.link.name} does not answer",
            "check that it has power and runs ptat's firmware, then plug it in again",
        )

    def command(
        self, command: Command, payload: bytes = b"", timeout_s: float | None = None
    ) -> bytes:
        """Send a command and return the payload of the response.

        :raises BoardError: the board refuses.
        """
        answer = self.ask(command, payload, timeout_s)
        if answer.status != Status.OK:
            raise self._refusal(command, answer.status)
        return answer.payload

    def identify(self) -> Identity:
        """Query the board's identity.

        :raises BoardError: this version of ptat cannot read the board's stream.
        """
        identity = self._decode(Identity, self.command(Command.IDENTIFY))
        if identity.wire_version != wire.VERSION:
            raise BoardError(
                f"{self.link.name} captures in wire format {identity.wire_version},"
                f" this ptat reads format {wire.VERSION}",
                f"load the gateware of this ptat (the board's is {identity.git_hash[:12]})",
            )
        if not identity.channels or not identity.tick_hz:
            raise BoardError(f"{self.link.name} reports no channel or no clock")
        return identity

    def health(self) -> Health:
        """Query fill level, losses and other counters."""
        return self._decode(Health, self.command(Command.HEALTH))

    def eyes(self) -> list[protocol.Eye]:
        """Query how well each pin of the bus is captured."""
        eyes: list[protocol.Eye] = []
        while True:
            try:
                pins, first, some = protocol.decode_eyes(
                    self.command(Command.READ_EYES, protocol.EYES_REQUEST.pack(len(eyes)))
                )
            except ProtocolError as error:
                raise self._nonsense(error) from None
            if first != len(eyes) or (not some and len(eyes) < pins):
                raise self._nonsense(ProtocolError(f"eyes from {first} on"))
            eyes += some
            if len(eyes) >= pins:
                return eyes

    def heartbeat(self) -> None:
        """Send a heartbeat if one is due.

        :raises BoardError: the board has ended the recording.
        """
        if time.monotonic() < self._heartbeat_due_s:
            return
        self._heartbeat_due_s = time.monotonic() + HEARTBEAT_S
        (state,) = protocol.STATE_RESPONSE.unpack(
            self._sized(self.command(Command.HEARTBEAT), protocol.STATE_RESPONSE.size)
        )
        if state != protocol.State.RECORDING:
            raise LinkError(
                f"{self.link.name} ended the recording: it received nothing from this host for"
                f" {protocol.HEARTBEAT_TIMEOUT_MS // 1000} s, or was reset"
            )

    def set_windows(
        self, windows: Sequence[tuple[int, int, protocol.Window]], sample_one_in: int = 1
    ) -> None:
        """Choose the addresses to record: first, end, use."""
        self.command(Command.SET_WINDOWS, protocol.encode_windows(windows, sample_one_in))

    def stop(self, capture: Capture | None = None) -> Stopped:
        """End the recording; returns when the board has passed everything to the link.

        :raises LinkError: the board makes no progress.
        """
        moved_s, received_bytes = time.monotonic(), -1
        while True:
            answer = self.ask(Command.STOP)
            if answer.status == Status.OK:
                return self._decode(Stopped, answer.payload)
            if answer.status != Status.NOT_YET:
                raise self._refusal(Command.STOP, answer.status)
            now_bytes = capture.received_bytes if capture else 0
            if now_bytes != received_bytes:
                moved_s, received_bytes = time.monotonic(), now_bytes
            elif time.monotonic() - moved_s > STOP_SILENCE_S:
                raise LinkError(f"{self.link.name} does not deliver the rest of its capture")
            time.sleep(STOP_POLL_S)

    def _decode(self, kind: type[_T], payload: bytes) -> _T:
        try:
            return kind.decode(payload)
        except ProtocolError as error:
            raise self._nonsense(error) from None

    def _sized(self, payload: bytes, size: int) -> bytes:
        if len(payload) != size:
            raise self._nonsense(ProtocolError(f"{len(payload)} bytes instead of {size}"))
        return payload

    def _nonsense(self, error: ProtocolError) -> BoardError:
        return BoardError(
            f"{self.link.name} sent an invalid answer: {error}",
            "update the board's firmware, or ptat",
        )

    def _refusal(self, command: Command, status: int) -> BoardError:
        known = status in protocol.STATUS_TEXTS
        text = protocol.STATUS_TEXTS[Status(status)] if known else f"status {status}"
        hint = ""
        if status == Status.BUSY:
            hint = "wait until it ends; a board stays reserved for 5 s after its host dies"
        return BoardError(f"{self.link.name} refuses {command.name}: {text}", hint)
