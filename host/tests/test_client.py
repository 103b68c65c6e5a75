# SPDX-License-Identifier: BSD-2-Clause
"""The host's end of the command protocol, against boards that lie."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_host import protocol
from ptat_host.boards import client as clients
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Client, LinkError
from ptat_host.protocol import Command, Frame, FrameReader, Status
from ptat_parser import wire

GOOD = {
    Command.IDENTIFY: protocol.Identity("00" * 20, wire.VERSION, 1, 64, 0, 1, "b", "s").encode(),
    Command.HEALTH: protocol.Health(0, 1, 0, 0, 0, (0,) * 8, None, 0).encode(),
    Command.STOP: protocol.Stopped(0, 0).encode(),
    Command.HEARTBEAT: protocol.STATE_RESPONSE.pack(protocol.State.RECORDING),
    Command.READ_EYES: protocol.EYES_HEADER.pack(0, 0, 0),
}
ASKS = {
    Command.IDENTIFY: Client.identify,
    Command.HEALTH: Client.health,
    Command.STOP: Client.stop,
    Command.HEARTBEAT: Client.heartbeat,
    Command.READ_EYES: Client.eyes,
}


class Liar:
    """A link to a board whose answers are changed on the way."""

    name = "liar"

    def __init__(self, change) -> None:
        self.change = change
        self.reader = FrameReader()
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        asked = Frame.decode(data)
        answer = Frame(
            asked.command, asked.id, GOOD.get(asked.command, b""), asked.host, response=True
        )
        self.sent += self.change(answer)

    def receive(self, timeout_s: float) -> list[Frame]:
        if not self.sent:
            raise LinkError("the test's patience ends here")
        sent, self.sent = self.sent, []
        return [frame for data in sent for frame in self.reader.feed(data)]

    def close(self) -> None:
        pass


def asking(command: Command, change) -> object:
    with Client(Liar(change)) as client:
        return ASKS[command](client)


@pytest.mark.parametrize("command", GOOD)
def test_what_is_right_is_taken(command):
    asking(command, lambda answer: [answer.encode()])


@pytest.mark.parametrize("command", GOOD)
@pytest.mark.parametrize("bytes_more", [-4, 4, 400])
def test_a_board_that_lies_about_lengths(command, bytes_more):
    def change(answer: Frame) -> list[bytes]:
        payload = (answer.payload + bytes(400))[: max(0, len(answer.payload) + bytes_more)]
        return [dataclasses.replace(answer, payload=payload).encode()]

    with pytest.raises(BoardError, match="liar sent an invalid answer"):
        asking(command, change)


@pytest.mark.parametrize("command", GOOD)
def test_other_firmware(command):
    with pytest.raises(BoardError, match="speaks version 2 of the protocol") as caught:
        asking(command, lambda answer: [dataclasses.replace(answer, version=2).encode()])
    assert "update" in caught.value.hint
    for status, message in [*protocol.STATUS_TEXTS.items(), (99, "status 99")]:
        if (command, status) == (Command.STOP, Status.NOT_YET):
            continue  # that is no refusal
        with pytest.raises(BoardError, match=message):
            asking(
                command,
                lambda answer, status=status: [
                    dataclasses.replace(answer, status=status, payload=b"").encode()
                ],
            )


def test_a_board_that_never_gets_done(monkeypatch):
    monkeypatch.setattr(clients, "STOP_SILENCE_S", 0.1)
    with pytest.raises(LinkError, match="does not deliver the rest of its capture"):
        asking(
            Command.STOP,
            lambda answer: [
                dataclasses.replace(answer, status=Status.NOT_YET, payload=b"").encode()
            ],
        )


def test_eyes_without_end():
    """A board with many pins that never tells of one."""
    with pytest.raises(BoardError, match="invalid answer"):
        asking(
            Command.READ_EYES,
            lambda answer: [
                dataclasses.replace(answer, payload=protocol.EYES_HEADER.pack(9, 0, 0)).encode()
            ],
        )


edits = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "twice"]), st.integers(0, 10_000)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400)
@given(command=st.sampled_from(list(GOOD)), changes=edits, junk=st.binary(max_size=40))
def test_malformed_answers(command, changes, junk):
    """Whatever arrives: the right answer, or an error that is meant for the user."""

    def change(answer: Frame) -> list[bytes]:
        data = bytearray(answer.encode())
        for kind, number in changes:
            at = number % len(data) if data else 0
            if kind == "flip" and data:
                data[at] ^= 1 << number % 8
            elif kind == "cut":
                del data[at : at + 1 + number % 7]
            elif kind == "insert":
                data[at:at] = junk
            else:
                data += data[at:]
        return [bytes(data)]

    right = asking(command, lambda answer: [answer.encode()])
    try:
        assert asking(command, change) == right
    except BoardError as error:
        assert error.message


@settings(max_examples=200)
@given(command=st.sampled_from(list(GOOD)), payload=st.binary(max_size=1000))
def test_answers_that_are_well_formed_nonsense(command, payload):
    """A right frame around anything."""

    def change(answer: Frame) -> list[bytes]:
        whole = payload[: len(payload) // 4 * 4]
        return [dataclasses.replace(answer, payload=whole).encode()]

    try:
        asking(command, change)
    except BoardError as error:
        assert error.message
