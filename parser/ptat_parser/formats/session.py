# SPDX-License-Identifier: BSD-2-Clause
"""Reads the description of a session: what was recorded, how, and whether it is complete.

``docs/formats.md`` explains the keys. Unknown keys are ignored, so that a newer host may write
more keys than this parser knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
from zlib_ng import zlib_ng

from ptat_parser import wire
from ptat_parser.errors import SessionError

FORMAT = "ptat-session"
VERSION = 1

Positive = Annotated[int, msgspec.Meta(gt=0)]
Frequency = Annotated[float, msgspec.Meta(gt=0, le=1e12)]

SNAPSHOTS_FILE = "snapshots.jsonl"
"""The testbed's counters, one line each time a program requests them."""
DESCRIPTION_BYTES_MAX = 16 << 20
REGION_BYTES_MAX = 64 << 30
"""Page tables for 32 TiB of memory; the parser's state grows with the region."""

CANARY_OFFSET_BYTES = 8
"""Offset in the region of the word that the kernel reads back; ``PTAT_CANARY_OFFSET`` there."""
NO_ADDRESS = (1 << 64) - 1
_CHECKED_BYTES = 1 << 18
BUS_BYTES = 1 << wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT
MARKER_DELAY_NS = 100_000
"""Largest median delay of an event after its marker on a busy machine."""
MARKER_DELAY_NS_MAX = 100_000_000
"""Largest delay that a board may state; with more, markers could match another recording."""


class Command(msgspec.Struct, frozen=True):
    """The command that was recorded."""

    argv: list[str]
    cwd: str = "/"
    exit_status: int | None = None
    children: bool = False


class Channel(msgspec.Struct, frozen=True):
    """One capture stream."""

    index: int
    file: str
    tick_hz: Frequency
    stream_channel: int | None = None
    """Channel number in the blocks' headers; None: the same as `index`."""
    started_ns: tuple[int, int] | None = None
    """Host times between which the board started; only used to identify pulses."""

    @property
    def in_blocks(self) -> int:
        """Channel number in the blocks' headers."""
        return self.index if self.stream_channel is None else self.stream_channel


class Contract(msgspec.Struct, frozen=True):
    """How the bus may change the CPUs' accesses.

    `order` "program": each access is on the bus once, in program order. "controller": a memory
    controller queues stores; see `ptat_parser.order.program_order`.
    """

    order: str = "program"
    ecc: bool = False
    """A store is preceded by a read of its line."""
    forwarding: bool = False
    """Reads of lines in the write queue are answered there."""
    scrub: bool = False
    """Patrol scrub reads all lines."""

    @property
    def is_program_order(self) -> bool:
        """Whether the capture shows the CPUs' accesses in program order."""
        return self.order == "program"


class Board(msgspec.Struct, frozen=True):
    """The capture device."""

    name: str
    granularity_bytes: int
    channels: list[Channel]
    walk_reads: str = "psc"
    clocks: str = "one"
    """"one": all channels share a clock; "pulses": separate clocks that see the same pulses."""
    marker_delay_ns: Positive = MARKER_DELAY_NS
    """Largest median delay of an event after its marker's time stamp; only a simulation that
    delivers stores late states its own."""
    contract: Contract = Contract()


class Region(msgspec.Struct, frozen=True):
    """Where the hardware's page tables lie. Addresses and sizes in bytes."""

    base: int
    size_bytes: Positive
    marker_slots: Positive
    marker_stride_bytes: Positive
    levels: str
    readback: bool = False
    """Whether the kernel reads a word of the marker area before it flushes TLBs."""
    markers: str = "store"
    """How events are marked: by a "store" to their slot or a "load" of it."""


class Kernel(msgspec.Struct, frozen=True):
    """The traced kernel."""

    tsc_hz: Frequency
    cpus: Positive
    release: str = ""
    clock: str = "x86-tsc"
    events: list[str] = []
    stat: dict[str, Any] = {}
    check: Any = None
    warnings: list[str] = []


class TrapRing(msgspec.Struct, frozen=True):
    """The records of trapped TLB misses of one CPU; see `formats.traps`."""

    cpu: int
    file: str
    records: int
    lost: int = 0
    """Records dropped because the ring was full."""
    waits: int = 0
    """How often a thread waited for space in the ring."""


class FileSum(msgspec.Struct, frozen=True):
    """Size and CRC-32 of a file of the session."""

    bytes: int
    crc32: int


class _Description(msgspec.Struct, frozen=True):
    board: Board
    region: Region
    kernel: Kernel
    command: Command
    complete: bool
    ended: bool | None = None
    incomplete_reason: str | None = None
    created_utc: str = ""
    cpu: dict[str, Any] = {}
    options: dict[str, Any] = {}
    traps: list[TrapRing] = []
    files: dict[str, FileSum] = {}
    crc32: int | None = None


def seal(content: dict[str, Any], directory: Path) -> None:
    """Add checksums of the kernel's log, counters, symbols and the description itself.

    The capture's blocks have their own checksums.
    """
    named = (directory / "counters.json", directory / "symbols.json")
    files = [*(directory / "kernel").rglob("*"), *named]
    content["files"] = {
        str(file.relative_to(directory)): {"bytes": file.stat().st_size, "crc32": _file_crc32(file)}
        for file in sorted(files)
        if file.is_file()
    }
    content["crc32"] = _crc32(content)


def _crc32(content: dict[str, Any]) -> int:
    """CRC-32 of the description without ``crc32``, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in content.items() if key != "crc32"}
    return zlib_ng.crc32(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def _file_crc32(path: Path) -> int:
    crc = 0
    data = memoryview(bytearray(_CHECKED_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(data):
            crc = zlib_ng.crc32(data[:size], crc)
    return crc


class Session:
    """A session directory whose description has been read and checked.

    :raises SessionError: `path` is not a session, or this version cannot read it.
    """

    path: Path
    command: Command
    board: Board
    region: Region
    kernel: Kernel
    complete: bool
    """The recording ended in order, and nothing that its recorder knows of was lost."""
    ended: bool
    """The recording ended in order: its files have their ends."""
    incomplete_reason: str | None
    created_utc: str
    cpu: dict[str, Any]
    options: dict[str, Any]
    traps: list[TrapRing]
    """The rings of a trap-mode session; empty if there is a bus."""
    files: dict[str, FileSum]

    def __init__(self, path: Path) -> None:
        description = _read(path)
        self.path = path
        self.command = description.command
        self.board = description.board
        self.region = description.region
        self.kernel = description.kernel
        self.complete = description.complete
        # Version 0.2 and before had only one of the two.
        self.ended = description.complete if description.ended is None else description.ended
        self.incomplete_reason = description.incomplete_reason
        self.created_utc = description.created_utc
        self.cpu = description.cpu
        self.options = description.options
        self.traps = description.traps
        self.files = description.files
        self._check()

    @property
    def channel(self) -> Channel:
        """The first or only capture stream."""
        return self.board.channels[0]

    @property
    def readback_address(self) -> int:
        """Bus address that the kernel reads before it flushes TLBs, or `NO_ADDRESS`."""
        if not self.region.readback:
            return NO_ADDRESS
        return self.region.base + CANARY_OFFSET_BYTES & -self.board.granularity_bytes

    @property
    def bus_path(self) -> Path:
        """File of `channel`."""
        return self.path / self.channel.file

    @property
    def kernel_path(self) -> Path:
        """Directory of the kernel's log."""
        return self.path / "kernel"

    @property
    def counters_path(self) -> Path:
        """File of the hardware counters."""
        return self.path / "counters.json"

    @property
    def truth_path(self) -> Path:
        """File of the walker's ground truth (testbed only)."""
        return self.path / "truth.0.bin"

    @property
    def results_path(self) -> Path:
        """Directory that the parser writes."""
        return self.path / "results"

    def check_files(self) -> None:
        """Raise `SessionError` if a file differs from the recorded one."""
        here = self.path.resolve()
        for name, recorded in self.files.items():
            path = self.path / name
            if not path.is_file() or not path.resolve().is_relative_to(here):
                continue  # its reader reports that it is missing
            size_bytes = path.stat().st_size
            problem = None
            if size_bytes != recorded.bytes:
                problem = f"truncated: it has {size_bytes} of {recorded.bytes} bytes"
                if size_bytes > recorded.bytes:
                    problem = f"it has {size_bytes} bytes, {recorded.bytes} were recorded"
            elif _file_crc32(path) != recorded.crc32:
                problem = "damaged: its CRC differs from the recorded one"
            if problem:
                raise SessionError(f"{path}: {problem}", "restore the file, or record again")

    def _check(self) -> None:
        where = self.path / "session.json"
        for is_wrong, problem in self._problems():
            if is_wrong:
                raise SessionError(f"{where}: {problem}", "record again with this version of ptat")

    def _problems(self) -> list[tuple[bool, str]]:
        """Pairs of a condition that makes the description invalid and its message."""
        board, region, channels = self.board, self.region, self.board.channels
        end = region.base + region.size_bytes
        marker_bytes = region.marker_slots * region.marker_stride_bytes
        return [
            (not channels and not self.traps, "neither a capture channel nor records of traps"),
            (
                bool(channels and self.traps),
                "capture channels and records of traps in one session",
            ),
            (
                len({ring.cpu for ring in self.traps}) != len(self.traps),
                "several files of trap records belong to one CPU",
            ),
            (
                len({channel.index for channel in channels}) != len(channels),
                "several capture channels have the same number",
            ),
            (
                len({channel.tick_hz for channel in channels}) > 1,
                "the capture channels' clocks differ",
            ),
            (
                board.clocks not in ("one", "pulses"),
                f"board.clocks is {board.clocks!r}, not 'one' or 'pulses'",
            ),
            (
                board.granularity_bytes not in (8, 16, 32, 64),
                f"granularity of {board.granularity_bytes} bytes; 8, 16, 32 or 64 are known",
            ),
            (
                board.walk_reads not in ("psc", "all"),
                f"board.walk_reads is {board.walk_reads!r}, not 'psc' or 'all'",
            ),
            (
                board.marker_delay_ns > MARKER_DELAY_NS_MAX,
                f"board.marker_delay_ns is {board.marker_delay_ns}, more than"
                f" {MARKER_DELAY_NS_MAX}",
            ),
            (
                board.contract.order not in ("program", "controller"),
                f"board.contract.order is {board.contract.order!r}, not 'program' or 'controller'",
            ),
            (
                region.markers not in ("store", "load"),
                f"region.markers is {region.markers!r}, not 'store' or 'load'",
            ),
            (
                region.markers == "load" and region.readback and board.granularity_bytes > 8,
                "the word that is read back and a marker that is loaded share one bus address",
            ),
            (
                region.levels not in ("pte", "pte+pmd"),
                f"region.levels is {region.levels!r}, not 'pte' or 'pte+pmd'",
            ),
            (
                bool(region.base % 4096 or region.size_bytes % 4096),
                "the region is not a whole number of pages",
            ),
            (
                region.size_bytes > REGION_BYTES_MAX or region.base < 0 or end > BUS_BYTES,
                f"a region of {region.size_bytes} bytes at {region.base:#x} cannot be",
            ),
            (marker_bytes >= region.size_bytes, "the region is smaller than its markers"),
            (
                bool(region.marker_stride_bytes % (board.granularity_bytes or 1)),
                "several markers share one bus address",
            ),
        ]


def _read(path: Path) -> _Description:
    where = path / "session.json"
    if not path.is_dir():
        raise SessionError(f"{path}: no such session", "name a directory made by ptat record")
    try:
        with where.open("rb") as file:
            text = file.read(DESCRIPTION_BYTES_MAX + 1)
        if len(text) > DESCRIPTION_BYTES_MAX:
            raise SessionError(f"{where}: too large for the description of a session")
        fields = json.loads(text)
    except FileNotFoundError:
        raise SessionError(
            f"{path}: not a session: it has no session.json", "name a directory made by ptat record"
        ) from None
    except OSError as error:
        raise SessionError(f"{where}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SessionError(
            f"{where}: truncated or damaged: {error}", "record again, or restore the file"
        ) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise SessionError(f"{where}: not a session's description (format is not {FORMAT!r})")
    if fields.get("version") != VERSION:
        raise SessionError(
            f"{where}: version {fields.get('version')}; this ptat reads version {VERSION}",
            "use the ptat that recorded it, or record again",
        )
    try:
        description = msgspec.convert(fields, _Description)
    except msgspec.ValidationError as error:
        if fields.get("complete") is False and not fields.get("region"):
            raise SessionError(
                f"{path}: nothing was recorded: {fields.get('incomplete_reason')}", "record again"
            ) from None
        raise SessionError(f"{where}: {error}", "record again") from None
    if description.crc32 not in (None, _crc32(fields)):
        raise SessionError(
            f"{where}: changed since it was recorded: its CRC is wrong",
            "restore the file; if you changed it on purpose, remove its key crc32",
        )
    return description
