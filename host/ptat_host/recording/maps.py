# SPDX-License-Identifier: BSD-2-Clause
"""Mappings over time: ``kernel/maps.jsonl`` of a session (docs/formats.md).

An address space consists of disjoint pieces, each of a `Mapping`; a change ends pieces at its time.
The result is a list of `Region`s: rectangles of addresses and time.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROT_EXEC = 4
FOREVER_NS = (1 << 62) - 1
ANONYMOUS = "//anon"


@dataclass(eq=False)
class Mapping:
    """The result of one mmap, brk, exec or malloc, compared by identity."""

    name: str
    """The file's path, or the kernel's name: ``[heap]``, ``[stack]``, ``//anon``."""
    offset_bytes: int = 0
    """Offset of its start in the file."""
    start: int = 0
    bytes: int = 0
    prot: int = 0
    frames: tuple[Frame, ...] = ()
    """The call chain of the allocation, innermost first; empty if not recorded."""


@dataclass(frozen=True)
class Frame:
    """A return address as a position in the mapped file."""

    file: str
    offset_bytes: int
    """Offset of the byte before it, which is part of the call."""


@dataclass(frozen=True)
class Region:
    """`start` up to `end` (excluded) was `mapping` from `from_ns` up to `to_ns` (excluded)."""

    start: int
    end: int
    from_ns: int
    to_ns: int
    mapping: Mapping


@dataclass
class Maps:
    """The recording, by tgid. Times are ns of kernel time."""

    regions: dict[int, list[Region]] = field(default_factory=dict)
    """Of the kernel's mappings."""
    heap: dict[int, list[Region]] = field(default_factory=dict)
    """Allocations of the command, if they were recorded (``--heap``)."""
    lost: int = 0
    """Events that the kernel dropped, and malformed lines."""
    files: set[str] = field(default_factory=set)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    """Last name that each thread gave itself, by tgid and tid."""


class _Space:
    """One address space while it changes."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[int, int, Mapping]] = []  # end, since when, what
        self.closed: list[Region] = []

    def pieces(self, start: int, end: int) -> list[tuple[int, int, Mapping]]:
        """Start, end and mapping of overlapping pieces."""
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, end)
        return [
            (self._starts[i], self._pieces[i][0], self._pieces[i][2])
            for i in range(first, last)
            if self._pieces[i][0] > start
        ]

    def at(self, address: int) -> Mapping | None:
        """The mapping at an address."""
        found = self.pieces(address, address + 1)
        return found[0][2] if found else None

    def cut(self, start: int, end: int, ns: int) -> None:
        """Unmap a range."""
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, end)
        while first < last and self._pieces[first][0] <= start:
            first += 1
        kept = []
        for index in range(first, last):
            begin, (stop, since, mapping) = self._starts[index], self._pieces[index]
            if ns > since:
                self.closed.append(Region(max(begin, start), min(stop, end), since, ns, mapping))
            if begin < start:
                kept.append((begin, (start, since, mapping)))
            if stop > end:
                kept.append((end, (stop, since, mapping)))
        self._starts[first:last] = [begin for begin, _ in kept]
        self._pieces[first:last] = [piece for _, piece in kept]

    def put(self, start: int, end: int, mapping: Mapping, ns: int) -> None:
        """Map a range, replacing what is there."""
        self.cut(start, end, ns)
        at = bisect.bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._pieces.insert(at, (end, ns, mapping))

    def fill(self, start: int, end: int, mapping: Mapping, ns: int) -> None:
        """Map the unmapped parts of a range."""
        at = start
        for begin, stop, _ in self.pieces(start, end):
            if begin > at:
                self.put(at, begin, mapping, ns)
            at = stop
        if at < end:
            self.put(at, end, mapping, ns)

    def clear(self, ns: int) -> None:
        """End the address space."""
        self.cut(0, 1 << 64, ns)

    def copy(self, ns: int) -> _Space:
        """The copy for a forked process."""
        child = _Space()
        child._starts = list(self._starts)
        child._pieces = [(end, ns, mapping) for end, _, mapping in self._pieces]
        return child


class _Recorder:
    """Goes through the lines in order of time."""

    def __init__(self) -> None:
        self.maps: dict[int, _Space] = {}
        self.heap: dict[int, _Space] = {}
        self.files: set[str] = set()
        self.threads: dict[tuple[int, int], str] = {}
        self.lost = 0

    def handle(self, line: dict[str, Any], ns: int) -> None:
        kind, pid = line["kind"], line.get("pid", 0)
        if kind == "lost":
            self.lost += int(line["events"])
            return
        if kind == "comm":
            self.threads[pid, int(line["tid"])] = _text(line["comm"])
            return
        space = self.maps.setdefault(pid, _Space())
        heap = self.heap.setdefault(pid, _Space())
        if kind == "fork":
            space.clear(ns)  # the pid may have been another's before
            heap.clear(ns)
            closed, heap_closed = space.closed, heap.closed
            self.maps[pid] = self.maps.setdefault(line["parent"], _Space()).copy(ns)
            self.heap[pid] = self.heap.setdefault(line["parent"], _Space()).copy(ns)
            self.maps[pid].closed, self.heap[pid].closed = closed, heap_closed
        elif kind in ("exec", "exit"):
            if kind == "exec":
                self.threads = {key: name for key, name in self.threads.items() if key[0] != pid}
            space.clear(ns)
            heap.clear(ns)
        elif kind == "map":
            self._map(space, line, ns)
        elif kind == "maps":
            self._snapshot(space, line["lines"], ns)
        elif kind in ("alloc", "heap-map"):
            start, size = line["start"], line["bytes"]
            frames = tuple(self._frame(space, address) for address in line.get("frames", ()))
            block = Mapping(kind, 0, start, size, 0, tuple(f for f in frames if f))
            heap.put(start, start + size, block, ns)
        elif kind == "free":
            block_there = heap.at(line["start"])
            if block_there and block_there.start == line["start"]:
                heap.cut(block_there.start, block_there.start + block_there.bytes, ns)
        elif kind == "heap-unmap":
            heap.cut(line["start"], line["start"] + line["bytes"], ns)
        else:
            raise ValueError(kind)

    def _map(self, space: _Space, line: dict[str, Any], ns: int) -> None:
        start, end, name = line["start"], line["start"] + line["bytes"], _text(line["name"])
        if not _is_file(name):
            # The kernel reports a mapping that grew or changed its rights as a new one.
            for begin, stop, there in space.pieces(start, end):
                whole = there.start, there.start + there.bytes
                grown = start <= whole[0] and whole[1] <= end and whole != (start, end)
                changed = begin <= start and end <= stop and there.prot != line["prot"]
                if _is_anonymous(there.name) and (grown or changed):
                    there.start = min(there.start, start)
                    there.bytes = max(there.bytes, end - there.start)
                    space.fill(start, end, there, ns)
                    return
        if _is_file(name):
            self.files.add(name)
        offset = line["offset"] if _is_file(name) else 0
        space.put(start, end, Mapping(name, offset, start, end - start, line["prot"]), ns)

    def _snapshot(self, space: _Space, lines: Iterable[str], ns: int) -> None:
        at = 0
        for text in lines:
            fields = _text(text).split(None, 5)
            start, end = (int(part, 16) for part in fields[0].split("-"))
            name = fields[5] if len(fields) == 6 else ANONYMOUS
            space.cut(at, start, ns)
            at = end
            for begin, stop, there in space.pieces(start, end):
                if there.name == name:
                    continue
                if _is_anonymous(there.name) and not _is_file(name):
                    if name != ANONYMOUS:
                        there.name = name  # it had no name in the kernel's event
                else:
                    space.cut(max(begin, start), min(stop, end), ns)
            if _is_file(name):
                self.files.add(name)
            prot = PROT_EXEC if "x" in fields[1] else 0
            mapping = Mapping(name, int(fields[2], 16), start, end - start, prot)
            space.fill(start, end, mapping, ns)
        space.cut(at, 1 << 64, ns)

    def _frame(self, space: _Space, address: int) -> Frame | None:
        there = space.at(address - 1)
        if there is None or not _is_file(there.name):
            return None
        return Frame(there.name, address - 1 - there.start + there.offset_bytes)


def _is_file(name: str) -> bool:
    return name.startswith("/") and name != ANONYMOUS


def _is_anonymous(name: str) -> bool:
    return name == ANONYMOUS or name.startswith("[")


def _text(escaped: str) -> str:
    """Each character stands for a byte of the kernel's text."""
    return os.fsdecode(escaped.encode("latin-1"))


def path_of(session: Path) -> Path:
    """The recording of a session; need not exist."""
    return session / "kernel" / "maps.jsonl"


def read(path: Path, cycles_hz: float) -> Maps:
    """Read a recording; `cycles_hz` is the frequency of the TSC, kernel time 0 is its 0.

    A malformed line counts as lost. Raises `OSError` if there is no such file.
    """
    lost = 0
    clock: list[tuple[int, int]] = []
    timed: list[tuple[int, bool, dict[str, Any]]] = []
    with path.open("rb") as file:
        for line in _lines(file):
            try:
                if line is None:
                    raise ValueError
                if line["kind"] == "clock":
                    clock.append((int(line["tsc"]), int(line["ns"])))
                else:
                    of_tsc = "tsc" in line
                    timed.append((int(line["tsc" if of_tsc else "ns"]), of_tsc, line))
            except (ValueError, KeyError, TypeError):
                lost += 1
    if not clock:
        return Maps(lost=lost + len(timed))
    ns_per_cycle = 1e9 / cycles_hz
    (tsc, raw_ns), (last_tsc, last_ns) = clock[0], clock[-1]
    # The kernel's raw clock and the TSC run evenly, but not quite at one rate.
    rate = (last_tsc - tsc) * ns_per_cycle / (last_ns - raw_ns) if last_ns > raw_ns else 1.0

    def kernel_ns(time: int, of_tsc: bool) -> int:
        if of_tsc:
            return round(time * ns_per_cycle)
        return round(tsc * ns_per_cycle + (time - raw_ns) * rate)

    events = [(kernel_ns(time, of_tsc), line) for time, of_tsc, line in timed]
    events.sort(key=lambda event: event[0])
    recorder = _Recorder()
    for ns, line in events:
        try:
            recorder.handle(line, ns)
        except (ValueError, KeyError, TypeError, AttributeError, UnicodeEncodeError, IndexError):
            lost += 1
    return Maps(
        _closed(recorder.maps),
        _closed(recorder.heap),
        lost + recorder.lost,
        recorder.files,
        recorder.threads,
    )


def _lines(file: Iterable[bytes]) -> Iterator[dict[str, Any] | None]:
    for text in file:
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        yield line if isinstance(line, dict) else None


def _closed(spaces: dict[int, _Space]) -> dict[int, list[Region]]:
    for space in spaces.values():
        space.clear(FOREVER_NS)
    return {pid: space.closed for pid, space in spaces.items() if space.closed}
