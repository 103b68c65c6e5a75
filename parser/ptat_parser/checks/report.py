# SPDX-License-Identifier: BSD-2-Clause
"""The report of a check: groups of invariants, and the first place that violates each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Violation:
    """Where an invariant is violated.

    `file` is relative to the session. For captures, `block`, `word` (in the block) and `byte` (in
    the file) give the position, `time_ticks` the time on the bus clock, and `address` the access's
    address. Fields that do not apply are None.
    """

    message: str
    file: str
    block: int | None = None
    word: int | None = None
    byte: int | None = None
    time_ticks: int | None = None
    address: int | None = None

    def __str__(self) -> str:
        place = [self.file]
        if self.block is not None:
            place.append(f"block {self.block} word {self.word} (byte {self.byte})")
        if self.time_ticks is not None:
            place.append(f"at {self.time_ticks} ticks")
        if self.address is not None:
            place.append(f"address {self.address:#x}")
        return f"{', '.join(place)}: {self.message}"


@dataclass
class Check:
    """A group of invariants: number of violations and the first one, or why it was not checked."""

    name: str
    about: str
    violations: int = 0
    first: Violation | None = None
    skipped: str | None = None


@dataclass
class Report:
    """The outcome; `as_dict` of it is what ``ptat check --json`` prints.

    `lost` is the number of losses that the session counts, or None if it cannot be parsed.
    """

    checks: list[Check] = field(default_factory=list)
    accesses: int = 0
    lost: int | None = None

    @property
    def first(self) -> Violation | None:
        """The first violation of the first group that has any."""
        return next((check.first for check in self.checks if check.first), None)

    @property
    def ok(self) -> bool:
        """Whether no invariant is violated."""
        return self.first is None

    def as_dict(self) -> dict[str, Any]:
        """The report as a dict for JSON."""
        first = asdict(self.first) if self.first else None
        return {"ok": self.ok, "first": first, **asdict(self)}

    def begin(self, name: str, about: str) -> Check:
        """Start a group of checks."""
        self.checks.append(Check(name, about))
        return self.checks[-1]

    def violated(
        self, current: Check, message: str, file: str, times: int = 1, **place: int
    ) -> None:
        """Count violations of one kind; `place` is the position of the first one."""
        current.violations += times
        if current.first is None:
            current.first = Violation(message, file, **place)
