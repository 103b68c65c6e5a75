# SPDX-License-Identifier: BSD-2-Clause
"""The interface between the host and boards.

A board is a class registered as an entry point of the group ``ptat.boards``; it is made without
arguments, or with the address that follows its name (``usb:A7``), and must not touch the machine
before `check` or `record` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ptat_parser.errors import PtatError

if TYPE_CHECKING:
    from ptat_host.calibration.observations import Observed

Levels = Literal["pte", "pte+pmd"]


class BoardError(PtatError):
    """The board or its machine cannot do what the request needs: nothing was recorded."""


@dataclass(frozen=True)
class Option:
    """An option that this board understands, set by ``ptat record --NAME VALUE``."""

    help: str
    default: str | None
    """The default, as the user would write it; None: see `help`."""


@dataclass(frozen=True)
class Check:
    """One line of ``ptat doctor``."""

    name: str
    ok: bool | None
    """None: unknown, or not needed here."""
    detail: str
    hint: str | None = None
    """What to do if `ok` is False."""


@dataclass(frozen=True)
class RecordRequest:
    """What to record. The paths are absolute and exist; `session_dir` holds session.json only."""

    argv: Sequence[str]
    session_dir: Path
    cwd: Path
    env: Mapping[str, str]
    children: bool
    """Also the processes that the command forks."""
    levels: Levels = "pte+pmd"
    readback: bool = False
    markers: Literal["store", "load"] | None = None
    """How events are marked in the region; None: as the board's bus needs it."""
    granularity_bytes: int | None = None
    """Bytes that one address on the bus covers (8, 32 or 64); None: the board's own."""
    entries: bool = False
    """Log each 4 KiB entry that the kernel sets or clears."""
    faults: bool = True
    """Log page faults."""
    maps: bool = True
    """Record what is mapped where."""
    heap_bytes: int | None = None
    """With `maps`: record where the command allocates memory of at least that size."""
    region_bytes: int | None = None
    """Memory for the hardware's copy of the page tables; None: the board's default."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The board's own options that the user set, by the names in `Board.options`, unparsed."""
    describe: Callable[[dict[str, Any]], None] = lambda metadata: None
    """Called with the known part of `RecordResult.metadata` when the capture begins, so that a
    killed recording leaves a readable session."""


@dataclass
class RecordResult:
    """How a recording ended. If not in order, it still describes all that was captured."""

    exit_status: int | None
    """The command's exit status, as a shell shows it (128 + N after signal N); None: unknown."""
    ended: bool
    """It ended in order."""
    reason: str | None = None
    """Why it did not."""
    interrupted: bool = False
    """The user stopped it."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The keys `board` (without `name`), `region`, `kernel` and `cpu` of session.json, and `traps`
    in trap mode."""
    lost: str | None = None
    """Known losses on the way from the bus to the file."""

    @property
    def complete(self) -> bool:
        """It ended in order, and the recorder knows of no loss."""
        return self.ended and self.lost is None

    @property
    def incomplete_reason(self) -> str | None:
        """Why it is not complete, or None."""
        lost = f"lost {self.lost}" if self.lost else None
        return lost if self.ended else self.reason


class Board(Protocol):
    """A capture device together with the machine it listens to."""

    @property
    def name(self) -> str:
        """The name of its entry point."""

    @property
    def options(self) -> Mapping[str, Option]:
        """Options beyond those of `RecordRequest`; the command line refuses all others."""

    def check(self) -> list[Check]:
        """Check everything that a recording needs, without changing or building anything."""

    def record(self, request: RecordRequest) -> RecordResult:
        """Run the command and fill the session directory with everything but session.json.

        The command's standard streams are the caller's. On KeyboardInterrupt, or when the machine
        dies, the board stops the machine, keeps what it has and returns with `ended` False.

        :raises BoardError: nothing could be recorded.
        """


@dataclass(frozen=True)
class ObserveRequest:
    """Known reads of memory; see `ptat_host.calibration.known_reads.chosen`."""

    addresses: int
    """Number of different addresses."""
    reads: int | None = None
    """Reads of each address; None: as many as this board needs."""
    seed: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    """As in `RecordRequest`."""


@runtime_checkable
class CalibratingBoard(Board, Protocol):
    """A board that observes DRAM coordinates, and maps them to addresses."""

    def observe(self, request: ObserveRequest) -> Observed:
        """Read addresses of the region, and return the coordinates that the board observed.

        :raises PtatError: the machine or the board cannot do that.
        """

    def load(self, mapping: Path) -> list[str]:
        """Program the mapping in a file; return the names of the boards that keep it."""


@runtime_checkable
class ReplayingBoard(Board, Protocol):
    """A board that runs no command."""

    @property
    def argv(self) -> list[str]:
        """The command of the original recording."""
