# SPDX-License-Identifier: BSD-2-Clause
"""Commands between host and board: the one definition.

A request is one frame, and so is its response; ``docs/protocol.md`` explains them. Firmware takes
its numbers from ``python3 -m ptat_host.protocol --c-header``.

Standard library only: firmware builds run this file with the system's Python.
"""

from __future__ import annotations

import argparse
import enum
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

VERSION = 1
MAGIC = 0x43415450  # "PTAC"
RESPONSE = 0x80  # in a response, added to the command's number

PAYLOAD_BYTES_MAX = 1000
FRAME_ALIGN_BYTES = 4  # FT601 and UART bridges move 32-bit words

HEARTBEAT_TIMEOUT_MS = 5000
"""A board ends the recording if its host has been silent for this time."""

WINDOWS_MAX = 4
WINDOW_UNIT_SHIFT = 16  # windows are multiples of 64 KiB
MATRIX_COLUMNS = 36  # bits of a DRAM coordinate
REMAP_UNIT_SHIFT = 20  # the remapping above the hole for devices, in MiB
ILLEGAL_KINDS = 8
RANKS_MAX = 4
EYE_TAPS_MAX = 128
EYES_PER_FRAME = 40
NO_TEMPERATURE = -(1 << 31)

DATA_MAGIC = 0x44415450  # "PTAD"
ACK_MAGIC = 0x41415450  # "PTAA"
CHUNK_BYTES = 1024
"""Bytes of the capture stream in a datagram: an eighth of a block."""
ACK_RANGES_MAX = 64
DATA_LAST = 1
"""Flag of the datagram that ends the stream."""
UDP_PORT = 0x5054

USB_VENDOR = 0x0403  # FTDI; FT601 in 245 multi-channel mode
USB_PRODUCT = 0x601F
USB_PRODUCT_NAME = "ptat"
USB_ENDPOINT_REQUEST = 0x02
USB_ENDPOINT_RESPONSE = 0x82
USB_ENDPOINT_STREAM = 0x83


class Command(enum.IntEnum):
    """Commands of requests."""

    IDENTIFY = 1
    START = 2
    STOP = 3
    FLUSH = 4
    TRIGGER = 5
    SET_WINDOWS = 6
    SET_MATRIX = 7
    HEALTH = 8
    READ_EYES = 9
    CALIBRATE = 10
    HEARTBEAT = 11
    SET_MIRROR = 12


class Status(enum.IntEnum):
    """Result of a command; the payload of a response is empty unless it is OK."""

    OK = 0
    UNKNOWN_COMMAND = 1
    BAD_LENGTH = 2
    BAD_ARGUMENT = 3
    BUSY = 4
    WRONG_STATE = 5
    FAILED = 6
    WRONG_VERSION = 7
    NOT_YET = 8


class State(enum.IntEnum):
    """States of a board."""

    IDLE = 0
    RECORDING = 1
    EXPIRED = 2
    STOPPING = 3


class Window(enum.IntFlag):
    """Uses of a window of addresses; bits as in the register ``window0_control``."""

    READ = 1
    WRITE = 2
    SAMPLED = 4
    START = 8
    STOP = 16


class Trigger(enum.IntFlag):
    """Triggers that start and end a recording besides the host; bits as in the register
    ``trigger``."""

    START_WINDOW = 1
    START_PIN = 2
    STOP_WINDOW = 4
    STOP_PIN = 8


STATUS_TEXTS = {
    Status.UNKNOWN_COMMAND: "its firmware does not know this command",
    Status.BAD_LENGTH: "it expects another number of bytes",
    Status.BAD_ARGUMENT: "it refuses the values",
    Status.BUSY: "another host is recording with it",
    Status.WRONG_STATE: "it cannot do that now",
    Status.FAILED: "its hardware failed to do it",
    Status.WRONG_VERSION: "its firmware speaks another version of the protocol",
    Status.NOT_YET: "it has not finished",
}

HEADER = struct.Struct("<IBBBxHHI")
"""Magic, version, command, status, a zero byte, id, bytes of payload, host."""
CRC = struct.Struct("<I")
FRAME_BYTES_MAX = HEADER.size + PAYLOAD_BYTES_MAX + CRC.size

DATA_HEADER = struct.Struct("<IIBBHI")
"""Magic, sequence number, channel, flags, zero, host."""
ACK_HEADER = struct.Struct("<IIIII")
"""Magic, host, next sequence number expected, window, number of ranges."""
ACK_RANGE = struct.Struct("<II")
"""First missing sequence number, and their number."""


class ProtocolError(Exception):
    """The bytes are no frame of this protocol."""


@dataclass(frozen=True)
class Frame:
    """One request or response."""

    command: int
    id: int
    payload: bytes = b""
    host: int = 0
    """A random number that the host chooses; a recording belongs to the host that started it."""
    status: int = Status.OK
    response: bool = False
    version: int = VERSION

    def encode(self) -> bytes:
        """The bytes on the link.

        :raises ValueError: the payload is too long, or not whole words.
        """
        if len(self.payload) > PAYLOAD_BYTES_MAX or len(self.payload) % FRAME_ALIGN_BYTES:
            raise ValueError(f"a payload of {len(self.payload)} bytes")
        command = self.command | (RESPONSE if self.response else 0)
        header = HEADER.pack(
            MAGIC, self.version, command, self.status, self.id, len(self.payload), self.host
        )
        body = header + self.payload
        return body + CRC.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Frame:
        """The frame that `data` begins with; bytes after it are ignored.

        :raises ProtocolError: it is no frame, or damaged.
        """
        if len(data) < HEADER.size + CRC.size:
            raise ProtocolError(f"{len(data)} bytes are no frame")
        magic, version, command, status, number, length, host = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise ProtocolError(f"starts with {magic:#x}, not {MAGIC:#x}")
        end = HEADER.size + length
        if length > PAYLOAD_BYTES_MAX or length % FRAME_ALIGN_BYTES or len(data) < end + CRC.size:
            raise ProtocolError(f"states a payload of {length} bytes")
        if CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
            raise ProtocolError("its checksum is wrong")
        return cls(
            command=command & ~RESPONSE,
            id=number,
            payload=bytes(data[HEADER.size : end]),
            host=host,
            status=status,
            response=bool(command & RESPONSE),
            version=version,
        )


class FrameReader:
    """Finds frames in a byte stream (UART, USB); skips and counts other bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.skipped_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes."""
        self._data += data
        frames = []
        while len(self._data) >= HEADER.size + CRC.size:
            length = HEADER.unpack_from(self._data)[5]
            size = HEADER.size + length + CRC.size
            plausible = self._data.startswith(CRC.pack(MAGIC)) and length <= PAYLOAD_BYTES_MAX
            if plausible and len(self._data) < size:
                break
            try:
                frames.append(Frame.decode(self._data))
                del self._data[:size]
            except ProtocolError:
                # The next frame can begin at the next byte that looks like it.
                at = self._data.find(CRC.pack(MAGIC), 1)
                keep = at if at > 0 else max(1, len(self._data) - CRC.size + 1)
                self.skipped_bytes += keep
                del self._data[:keep]
        return frames


# Payloads -----------------------------------------------------------------------------------------


def _text(data: bytes) -> str:
    return data.split(b"\0")[0].decode("ascii", errors="replace")


@dataclass(frozen=True)
class Identity:
    """Response to IDENTIFY."""

    git_hash: str
    """Commit of the sources of gateware and firmware: 40 hexadecimal digits."""
    wire_version: int
    channels: int
    granularity_bytes: int
    state: int
    tick_hz: int
    board: str
    serial: str

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<20sBBBBQ16s16s")

    def encode(self) -> bytes:
        """The payload."""
        return self.LAYOUT.pack(
            bytes.fromhex(self.git_hash),
            self.wire_version,
            self.channels,
            self.granularity_bytes,
            self.state,
            self.tick_hz,
            self.board.encode(),
            self.serial.encode(),
        )

    @classmethod
    def decode(cls, payload: bytes) -> Identity:
        """:raises ProtocolError: it has the wrong length."""
        git_hash, wire, channels, granularity, state, tick_hz, board, serial = _unpack(
            cls.LAYOUT, payload
        )
        return cls(
            git_hash.hex(),
            wire,
            channels,
            granularity,
            state,
            tick_hz,
            _text(board),
            _text(serial),
        )


@dataclass(frozen=True)
class Health:
    """Response to HEALTH."""

    fill_bytes: int
    """Records in the capture buffer."""
    capacity_bytes: int
    matched: int
    """Accesses inside of the windows, since START."""
    lost: int
    """Accesses that did not fit into the buffer."""
    blocks: int
    """Blocks passed from the buffer to the link, since START."""
    illegal: tuple[int, ...]
    """Illegal bus commands by kind, since START, saturating."""
    temperature_mc: int | None
    """In 1/1000 °C; None: the board has no sensor."""
    state: int

    LAYOUT: ClassVar[struct.Struct] = struct.Struct(f"<IIQQQ{ILLEGAL_KINDS}IiI")

    def encode(self) -> bytes:
        """The payload."""
        temperature_mc = NO_TEMPERATURE if self.temperature_mc is None else self.temperature_mc
        return self.LAYOUT.pack(
            self.fill_bytes,
            self.capacity_bytes,
            self.matched,
            self.lost,
            self.blocks,
            *self.illegal,
            temperature_mc,
            self.state,
        )

    @classmethod
    def decode(cls, payload: bytes) -> Health:
        """:raises ProtocolError: it has the wrong length."""
        fill, capacity, matched, lost, blocks, *rest = _unpack(cls.LAYOUT, payload)
        *illegal, temperature_mc, state = rest
        return cls(
            fill,
            capacity,
            matched,
            lost,
            blocks,
            tuple(illegal),
            None if temperature_mc == NO_TEMPERATURE else temperature_mc,
            state,
        )


@dataclass(frozen=True)
class Stopped:
    """Response to STOP: blocks passed to the link since START."""

    blocks: int
    state: int
    """Before the command; EXPIRED if the board had given its host up."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<QI4x")

    def encode(self) -> bytes:
        """The payload."""
        return self.LAYOUT.pack(self.blocks, self.state)

    @classmethod
    def decode(cls, payload: bytes) -> Stopped:
        """:raises ProtocolError: it has the wrong length."""
        return cls(*_unpack(cls.LAYOUT, payload))


@dataclass(frozen=True)
class Eye:
    """Capture quality of one pin at each delay: an entry of the response to READ_EYES."""

    taps: int
    first: int
    """First delay of the widest range without errors."""
    width: int
    """Its length; 0: no such range."""
    chosen: int
    good: int
    """Bit N: no error at delay N."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct(f"<HHHH{EYE_TAPS_MAX // 8}s")

    def encode(self) -> bytes:
        """The entry."""
        good = self.good.to_bytes(EYE_TAPS_MAX // 8, "little")
        return self.LAYOUT.pack(self.taps, self.first, self.width, self.chosen, good)

    @classmethod
    def decode(cls, data: bytes) -> Eye:
        """:raises ProtocolError: it has the wrong length."""
        taps, first, width, chosen, good = _unpack(cls.LAYOUT, data)
        return cls(taps, first, width, chosen, int.from_bytes(good, "little"))


EYES_HEADER = struct.Struct("<HHI")
"""Number of pins, first pin in this response, and their number."""
EYES_REQUEST = struct.Struct("<I")
"""First pin of the response."""
TRIGGER_REQUEST = struct.Struct("<I")
"""Set of `Trigger`."""
WINDOWS_HEADER = struct.Struct("<II")
"""Sampling: one in N; number of windows."""
WINDOW_ENTRY = struct.Struct("<III")
"""First and last unit of 64 KiB, set of `Window`."""
MIRROR_REQUEST = struct.Struct("<I")
"""Ranks (a bit each) for which the memory controller swaps the address pins of data commands."""
MATRIX = struct.Struct(f"<{MATRIX_COLUMNS}QQII")
"""Contribution of each bit of the coordinate to the address in units of 8 bytes, then a constant
that is always XORed, then the first remapped address (MiB) and its offset (MiB)."""
STATE_RESPONSE = struct.Struct("<I")
"""State, in response to START, FLUSH, HEARTBEAT; pins without an eye, to CALIBRATE."""


def encode_windows(windows: Sequence[tuple[int, int, Window]], sample_one_in: int = 1) -> bytes:
    """The payload of SET_WINDOWS.

    :param windows: first address, end (exclusive), use. Both are multiples of 64 KiB.
    :raises ValueError: there are too many, or addresses are not multiples of 64 KiB.
    """
    if len(windows) > WINDOWS_MAX:
        raise ValueError(f"{len(windows)} windows: a board has {WINDOWS_MAX}")
    payload = WINDOWS_HEADER.pack(sample_one_in, len(windows))
    for first, end, use in windows:
        unit = 1 << WINDOW_UNIT_SHIFT
        if first % unit or end % unit or not 0 <= first < end:
            raise ValueError(f"window {first:#x}-{end:#x}: not a multiple of {unit >> 10} KiB")
        payload += WINDOW_ENTRY.pack(
            first >> WINDOW_UNIT_SHIFT, (end >> WINDOW_UNIT_SHIFT) - 1, use
        )
    return payload


def encode_acknowledgement(
    host: int, next_: int, window: int, ranges: Sequence[tuple[int, int]] = ()
) -> bytes:
    """A datagram that acknowledges parts of the stream.

    :param next_: all earlier sequence numbers have arrived; not wrapped.
    :param window: number of datagrams from there on that fit.
    :param ranges: missing ranges: first sequence number (not wrapped), length.
    """
    message = ACK_HEADER.pack(ACK_MAGIC, host, next_ % 2**32, window, len(ranges))
    for first, count in ranges:
        message += ACK_RANGE.pack(first % 2**32, count)
    return message + CRC.pack(zlib.crc32(message))


def decode_eyes(payload: bytes) -> tuple[int, int, list[Eye]]:
    """Number of pins, first pin of these, their eyes.

    :raises ProtocolError: lengths and counts disagree.
    """
    if len(payload) < EYES_HEADER.size:
        raise ProtocolError(f"{len(payload)} bytes are no eye table")
    pins, first, count = EYES_HEADER.unpack_from(payload)
    if len(payload) != EYES_HEADER.size + count * Eye.LAYOUT.size or first + count > pins:
        raise ProtocolError(f"eyes {first}…{first + count} of {pins} in {len(payload)} bytes")
    size = Eye.LAYOUT.size
    starts = range(EYES_HEADER.size, len(payload), size)
    return pins, first, [Eye.decode(payload[at : at + size]) for at in starts]


def _unpack(layout: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) != layout.size:
        raise ProtocolError(f"{len(payload)} bytes instead of {layout.size}")
    return layout.unpack(payload)


# The C header -------------------------------------------------------------------------------------

_C_INTEGERS = [
    "VERSION",
    "MAGIC",
    "RESPONSE",
    "PAYLOAD_BYTES_MAX",
    "FRAME_BYTES_MAX",
    "FRAME_ALIGN_BYTES",
    "HEARTBEAT_TIMEOUT_MS",
    "WINDOWS_MAX",
    "WINDOW_UNIT_SHIFT",
    "MATRIX_COLUMNS",
    "REMAP_UNIT_SHIFT",
    "ILLEGAL_KINDS",
    "RANKS_MAX",
    "EYE_TAPS_MAX",
    "EYES_PER_FRAME",
    "DATA_MAGIC",
    "ACK_MAGIC",
    "CHUNK_BYTES",
    "ACK_RANGES_MAX",
    "DATA_LAST",
    "UDP_PORT",
    "USB_VENDOR",
    "USB_PRODUCT",
    "USB_ENDPOINT_REQUEST",
    "USB_ENDPOINT_RESPONSE",
    "USB_ENDPOINT_STREAM",
]

_C_SIZES = {
    "HEADER_BYTES": HEADER,
    "CRC_BYTES": CRC,
    "IDENTITY_BYTES": Identity.LAYOUT,
    "HEALTH_BYTES": Health.LAYOUT,
    "STOPPED_BYTES": Stopped.LAYOUT,
    "EYE_BYTES": Eye.LAYOUT,
    "EYES_HEADER_BYTES": EYES_HEADER,
    "EYES_REQUEST_BYTES": EYES_REQUEST,
    "TRIGGER_REQUEST_BYTES": TRIGGER_REQUEST,
    "WINDOWS_HEADER_BYTES": WINDOWS_HEADER,
    "WINDOW_ENTRY_BYTES": WINDOW_ENTRY,
    "MATRIX_BYTES": MATRIX,
    "MIRROR_REQUEST_BYTES": MIRROR_REQUEST,
    "STATE_RESPONSE_BYTES": STATE_RESPONSE,
    "DATA_HEADER_BYTES": DATA_HEADER,
    "ACK_HEADER_BYTES": ACK_HEADER,
    "ACK_RANGE_BYTES": ACK_RANGE,
}

# Payloads that firmware fills or reads as a whole; its machine is little-endian.
_C_STRUCTS = """\
struct ptat_proto_header {
	uint32_t magic;
	uint8_t version, command, status, zero;
	uint16_t id, length;
	uint32_t host;
};

struct ptat_proto_identity {
	uint8_t git_hash[20];
	uint8_t wire_version, channels, granularity_bytes, state;
	uint64_t tick_hz;
	char board[16], serial[16];
};

struct ptat_proto_health {
	uint32_t fill_bytes, capacity_bytes;
	uint64_t matched, lost, blocks;
	uint32_t illegal[PTAT_PROTO_ILLEGAL_KINDS];
	int32_t temperature_mc;
	uint32_t state;
};

struct ptat_proto_stopped {
	uint64_t blocks;
	uint32_t state, zero;
};

struct ptat_proto_eye {
	uint16_t taps, first, width, chosen;
	uint8_t good[PTAT_PROTO_EYE_TAPS_MAX / 8];
};

struct ptat_proto_eyes {
	uint16_t pins, first;
	uint32_t count;
	struct ptat_proto_eye eyes[PTAT_PROTO_EYES_PER_FRAME];
};

struct ptat_proto_window {
	uint32_t first, last, use;
};

struct ptat_proto_windows {
	uint32_t sample_one_in, count;
	struct ptat_proto_window windows[PTAT_PROTO_WINDOWS_MAX];
};

struct ptat_proto_matrix {
	uint64_t columns[PTAT_PROTO_MATRIX_COLUMNS], constant;
	uint32_t remap_first, remap_offset;
};

_Static_assert(sizeof(struct ptat_proto_header) == PTAT_PROTO_HEADER_BYTES, "header");
_Static_assert(sizeof(struct ptat_proto_identity) == PTAT_PROTO_IDENTITY_BYTES, "identity");
_Static_assert(sizeof(struct ptat_proto_health) == PTAT_PROTO_HEALTH_BYTES, "health");
_Static_assert(sizeof(struct ptat_proto_stopped) == PTAT_PROTO_STOPPED_BYTES, "stopped");
_Static_assert(sizeof(struct ptat_proto_eye) == PTAT_PROTO_EYE_BYTES, "eye");
_Static_assert(sizeof(struct ptat_proto_window) == PTAT_PROTO_WINDOW_ENTRY_BYTES, "window");
_Static_assert(sizeof(struct ptat_proto_matrix) == PTAT_PROTO_MATRIX_BYTES, "matrix");
_Static_assert(sizeof(struct ptat_proto_eyes) <= PTAT_PROTO_PAYLOAD_BYTES_MAX, "eyes");
"""


def c_header() -> str:
    """The protocol as a C header (``ptat_protocol.h``)."""
    lines = [
        "/* SPDX-License-Identifier: BSD-2-Clause */",
        "/* Generated by `python3 -m ptat_host.protocol --c-header`; see docs/protocol.md. */",
        "#ifndef PTAT_PROTOCOL_H",
        "#define PTAT_PROTOCOL_H",
        "",
        "#include <stdint.h>",
        "",
    ]
    lines += [f"#define PTAT_PROTO_{name} {globals()[name]:#x}" for name in _C_INTEGERS]
    lines += [f"#define PTAT_PROTO_{name} {layout.size}" for name, layout in _C_SIZES.items()]
    lines += [f"#define PTAT_PROTO_NO_TEMPERATURE (-{-NO_TEMPERATURE - 1} - 1)"]
    lines += [f'#define PTAT_PROTO_USB_PRODUCT_NAME "{USB_PRODUCT_NAME}"', ""]
    for kind in (Command, Status, State, Window, Trigger):
        lines += [
            f"#define PTAT_PROTO_{kind.__name__.upper()}_{item.name} {int(item)}" for item in kind
        ]
    return "\n".join(lines) + "\n\n" + _C_STRUCTS + "\n#endif\n"


def main() -> None:
    """Command line: print the generated header."""
    parser = argparse.ArgumentParser(prog="ptat_host.protocol", description="commands of boards")
    parser.add_argument(
        "--c-header", action="store_true", required=True, help="print ptat_protocol.h"
    )
    parser.parse_args()
    print(c_header(), end="")


if __name__ == "__main__":
    main()
