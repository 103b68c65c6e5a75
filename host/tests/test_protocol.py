# SPDX-License-Identifier: BSD-2-Clause
"""The command protocol: what is encoded is decoded, nothing else is, and C agrees."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_host import protocol
from ptat_host.protocol import Eye, Frame, FrameReader, Health, Identity, ProtocolError, Window

frames = st.builds(
    Frame,
    command=st.integers(0, 127),
    id=st.integers(0, 2**16 - 1),
    payload=st.binary(max_size=250).map(lambda data: data + bytes(-len(data) % 4)),
    host=st.integers(0, 2**32 - 1),
    status=st.integers(0, 255),
    response=st.booleans(),
    version=st.integers(0, 255),
)


@given(frames, st.binary(max_size=20))
def test_frames_survive(frame, behind):
    assert Frame.decode(frame.encode() + behind) == frame


def test_bytes_of_a_frame():
    # Written by hand from docs/protocol.md.
    frame = Frame(command=9, id=0x1234, payload=b"\x07\0\0\0", host=0xDEADBEEF)
    covered = "505441430109000034120400efbeadde07000000"
    assert frame.encode().hex() == covered + _crc(covered)


def _crc(text: str) -> str:
    """CRC-32 bit by bit, as IEEE 802.3 describes it."""
    crc = 0xFFFFFFFF
    for byte in bytes.fromhex(text):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little").hex()


@given(frames, st.data())
def test_a_changed_bit_is_noticed(frame, data):
    encoded = bytearray(frame.encode())
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        Frame.decode(encoded)


@given(frames, st.data())
def test_a_cut_frame_is_noticed(frame, data):
    encoded = frame.encode()
    with pytest.raises(ProtocolError):
        Frame.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(st.lists(st.one_of(frames, st.binary(max_size=30)), max_size=6), st.integers(1, 50))
def test_frames_are_found_among_garbage(pieces, step):
    # Garbage that looks like a header may swallow what follows it for a while; none here does.
    magic = protocol.MAGIC.to_bytes(4, "little")
    pieces = [
        piece.replace(magic[:2], b"") if isinstance(piece, bytes) else piece for piece in pieces
    ]
    data = b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces) + bytes(40)
    reader = FrameReader()
    found = [f for at in range(0, len(data), step) for f in reader.feed(data[at : at + step])]
    assert found == [piece for piece in pieces if isinstance(piece, Frame)]


def test_a_lying_length_does_not_swallow_the_next_frame():
    liar = bytearray(Frame(1, 1).encode())
    liar[10:12] = (512).to_bytes(2, "little")
    good = Frame(2, 2, bytes(600))
    reader = FrameReader()
    assert reader.feed(bytes(liar) + good.encode()) == [good]
    assert reader.skipped_bytes == len(liar)


def test_payloads_that_no_frame_holds():
    for size in (protocol.PAYLOAD_BYTES_MAX + 4, 3):
        with pytest.raises(ValueError):
            Frame(1, 1, bytes(size)).encode()


IDENTITY = Identity("0123456789abcdef" * 2 + "01234567", 1, 1, 64, 0, 400_000_000, "ecpix5", "A7")


def test_payloads_survive():
    assert Identity.decode(IDENTITY.encode()) == IDENTITY
    for temperature_mc in (None, -5250):
        health = Health(8192, 1 << 20, 9, 8, 7, (1, 2, 3, 4, 5, 6, 7, 8), temperature_mc, 1)
        assert Health.decode(health.encode()) == health
    eye = Eye(32, 3, 9, 7, 0x1FF << 3)
    assert Eye.decode(eye.encode()) == eye
    with pytest.raises(ProtocolError):
        Identity.decode(IDENTITY.encode()[:-1])


def test_windows():
    payload = protocol.encode_windows([(0x1_0000, 0x3_0000, Window.READ | Window.WRITE)], 10)
    assert payload.hex() == "0a00000001000000010000000200000003000000"
    for window in ((0x1000, 0x2_0000), (0x2_0000, 0x1_0000), (0, 0x1_0001)):
        with pytest.raises(ValueError, match="64 KiB"):
            protocol.encode_windows([(*window, Window.READ)])
    with pytest.raises(ValueError, match="has 4"):
        protocol.encode_windows([(0, 0x1_0000, Window.READ)] * 5)


def test_an_eye_table_that_lies_about_its_length():
    eye = Eye(32, 3, 9, 7, 0x1FF << 3)
    table = protocol.EYES_HEADER.pack(3, 1, 2) + eye.encode() * 2
    assert protocol.decode_eyes(table) == (3, 1, [eye, eye])
    for bad in (
        table[:-24],
        table + bytes(24),
        protocol.EYES_HEADER.pack(2, 1, 2) + eye.encode() * 2,
        b"",
    ):
        with pytest.raises(ProtocolError):
            protocol.decode_eyes(bad)


def test_c_agrees(tmp_path):
    """A C program writes a frame and an identity from the generated header."""
    header = subprocess.run(
        [sys.executable, "-m", "ptat_host.protocol", "--c-header"],
        capture_output=True,
        check=True,
    ).stdout
    (tmp_path / "ptat_protocol.h").write_bytes(header)
    source = tmp_path / "frame.c"
    source.write_text(
        r"""
#include <stdio.h>
#include <string.h>
#include "ptat_protocol.h"
int main(void)
{
	struct ptat_proto_header header = {
		.magic = PTAT_PROTO_MAGIC,
		.version = PTAT_PROTO_VERSION,
		.command = PTAT_PROTO_COMMAND_IDENTIFY | PTAT_PROTO_RESPONSE,
		.status = PTAT_PROTO_STATUS_BUSY,
		.id = 77,
		.length = sizeof(struct ptat_proto_identity),
		.host = 99,
	};
	struct ptat_proto_identity identity = {
		.wire_version = 1, .channels = 1, .granularity_bytes = 64,
		.state = PTAT_PROTO_STATE_EXPIRED,
		.tick_hz = 400000000, .board = "ecpix5", .serial = "A7",
	};
	fwrite(&header, sizeof(header), 1, stdout);
	fwrite(&identity, sizeof(identity), 1, stdout);
	return 0;
}
"""
    )
    program = tmp_path / "frame"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    written = subprocess.run([program], capture_output=True, check=True).stdout
    identity = Identity("00" * 20, 1, 1, 64, 2, 400_000_000, "ecpix5", "A7")
    frame = Frame(1, 77, identity.encode(), 99, protocol.Status.BUSY, response=True)
    assert written == frame.encode()[: -protocol.CRC.size]


def test_the_page_names_all():
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    for kind in (protocol.Command, protocol.Status):
        for item in kind:
            assert re.search(rf"\| {int(item)} (\| )?{item.name} \|", page), item
    for magic in (protocol.MAGIC, protocol.DATA_MAGIC, protocol.ACK_MAGIC):
        assert f"`{magic:#x}`" in page
