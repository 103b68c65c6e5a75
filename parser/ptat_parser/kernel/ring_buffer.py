# SPDX-License-Identifier: BSD-2-Clause
"""Decodes pages of the kernel's ring buffer into events.

The layout of pages and events comes only from the kernel's format files (``kernel/formats/``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, bare, inner
from ptat_parser.errors import ParseError
from ptat_parser.formats.storage import read_array
from ptat_parser.kernel.tracepoints import (
    END_OF_CYCLES,
    FLUSH_ALL,
    FLUSH_EVENTS,
    INTEGER_FIELDS,
    LEVELS,
    NEEDED_FIELDS,
    NOT_TIMED,
    TABLE_ALLOC,
    TABLE_EVENT,
    TABLE_KINDS,
    TABLE_LINK,
    TABLE_MOVE,
    TGID_MAX,
    TIMED_EVENT,
    TIMED_FIELDS,
    TIMED_KINDS,
)

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

BATCH_BYTES = 1 << 20
"""Size of the batches of pages to scan."""

_PAGE_BYTES_MAX = 1 << 20
_TEXT_BYTES_MAX = 1 << 20
_MISSED_EVENTS = 1 << 31
_MISSED_STORED = 1 << 30
_SIZE_MASK = (1 << 20) - 1


@dataclass(frozen=True)
class _Field:
    offset: int
    size: int
    signed: bool
    dynamic: bool


@dataclass(frozen=True)
class _Format:
    name: str
    id: int
    fields: Mapping[str, _Field]


_FIELD = re.compile(
    r"field:(?P<declaration>[^;]+);\s*offset:(?P<offset>\d{1,9});\s*size:(?P<size>\d{1,9});"
    r"(?:\s*signed:(?P<signed>\d+);)?"
)


def _fields(text: str) -> dict[str, _Field]:
    fields = {}
    for match in _FIELD.finditer(text):
        declaration = match["declaration"].strip()
        words = re.sub(r"\[[^\]]*\]$", "", declaration).split()
        fields[words[-1].lstrip("*") if words else ""] = _Field(
            int(match["offset"]),
            int(match["size"]),
            match["signed"] == "1",
            declaration.startswith("__data_loc"),
        )
    return fields


def read_text(path: Path) -> str:
    """The text of a small file.

    :raises ParseError: the file is missing or not ASCII.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_TEXT_BYTES_MAX + 1)
        if len(data) > _TEXT_BYTES_MAX:
            raise damaged(path)
        return data.decode("ascii")
    except FileNotFoundError:
        raise ParseError(
            f"{path}: missing: the kernel's log cannot be read without it", "record again"
        ) from None
    except UnicodeDecodeError:
        raise damaged(path) from None


def damaged(path: Path, problem: str = "damaged") -> ParseError:
    """The error of a damaged file."""
    return ParseError(f"{path}: {problem}", "restore the file, or record again")


def _read_format(path: Path) -> _Format:
    text = read_text(path)
    name = re.search(r"^name: (\S+)", text, re.MULTILINE)
    number = re.search(r"^ID: (\d{1,9})", text, re.MULTILINE)
    fields = _fields(text)
    if not name or not number or int(number[1]) >= 1 << 16 or "common_type" not in fields:
        raise ParseError(f"{path}: not the format of a trace event", "record again")
    if name[1] != path.name:
        raise damaged(path, f"the format of {name[1]}")
    missing = [field for field in NEEDED_FIELDS.get(path.name, ()) if field not in fields]
    if missing:
        raise ParseError(
            f"{path}: no field {', '.join(missing)}: of another version of the kernel patch",
            "use the ptat that goes with that kernel, or record again",
        )
    for field_name, field in fields.items():
        if field.size not in (1, 2, 4, 8) and field_name != "comm":
            raise damaged(path, f"field {field_name} has {field.size} bytes")
    return _Format(name[1], int(number[1]), fields)


class Layout:
    """The kernel's layout of pages and events."""

    def __init__(self, directory: Path) -> None:
        page = _fields(read_text(directory / "header_page"))
        try:
            self.timestamp = page["timestamp"].offset
            self.commit = page["commit"].offset
            self.commit_bytes = page["commit"].size
            self.data = page["data"].offset
            self.page_bytes = self.data + page["data"].size
        except KeyError as error:
            raise ParseError(f"{directory}/header_page: no field {error}") from None
        fits = self.timestamp + 8 <= self.data and self.commit + self.commit_bytes <= self.data
        if not fits or self.commit_bytes not in (4, 8) or self.page_bytes > _PAGE_BYTES_MAX:
            raise damaged(directory / "header_page")
        self.batch_pages = max(BATCH_BYTES // self.page_bytes, 1)
        header = read_text(directory / "header_event")
        codes = dict(re.findall(r"(padding|time_extend|time_stamp)\s*: type ==\s*(\d+)", header))
        wanted = {"padding": "29", "time_extend": "30", "time_stamp": "31"}
        if codes != wanted or not re.search(r"time_delta\s*:\s*27 bits", header):
            raise ParseError(
                f"{directory}/header_event: a ring buffer that this version cannot read",
                "update ptat",
            )
        paths = [*directory.glob("ptat_*"), *(directory / name for name in FLUSH_EVENTS)]
        self.formats = {path.name: _read_format(path) for path in sorted(paths) if path.exists()}
        missing = [name for name in TABLE_KINDS if name not in self.formats]
        if missing:
            raise ParseError(
                f"{directory}: no format of {', '.join(missing)}",
                "the kernel lacks PTAT, or the session is incomplete: record again",
            )
        if len({format.id for format in self.formats.values()}) < len(self.formats):
            raise damaged(directory, "two events have one number")
        self.smallest_bytes = np.full(1 << 16, np.iinfo(np.int64).max)
        for format in self.formats.values():
            ends = [field.offset + field.size for field in format.fields.values()]
            self.smallest_bytes[format.id] = max(ends)
        number_of_kind = np.full(1 << 16, NOT_TIMED, np.uint8)
        fields = np.zeros((len(TIMED_KINDS), len(TIMED_FIELDS), 2), np.int64)
        for number, name in enumerate(TIMED_KINDS):
            if found := self.formats.get(name):
                number_of_kind[found.id] = number
                for i, field in enumerate(map(found.fields.get, TIMED_FIELDS)):
                    if field:
                        fields[number, i] = field.offset, field.size
        self.timed: tuple[U8, I64] = number_of_kind, fields
        """For each event type: its index in `TIMED_KINDS`, and its fields' offsets and sizes."""

    def check(
        self, path: Path, first_page: int, kind: npt.NDArray[np.uint16], size_bytes: I64
    ) -> None:
        """Raise `ParseError` unless each event has a known type and the size of its format."""
        short = np.flatnonzero(size_bytes < self.smallest_bytes[kind])
        if short.size:
            event = int(short[0])
            raise damaged(
                path,
                f"event {event} from page {first_page} on has type {kind[event]} and"
                f" {size_bytes[event]} bytes, which contradicts the formats",
            )


@inner
def _load(data: U8, offset: Integer, size: Integer) -> Integer:
    # Unsigned indices avoid sign checks, so that 8 bytes become one load.
    at, value = np.uint64(offset), np.uint64(0)
    if size == 8:
        for i in range(8):
            value |= np.uint64(data[at + np.uint64(i)]) << np.uint64(8 * i)
        return value
    for i in range(size):
        value |= np.uint64(data[at + np.uint64(i)]) << np.uint64(8 * i)
    return value


PAGE_BEGINS, PAGE_FIRST, PAGE_LAST, PAGE_MISSED = range(4)

PAGE_TIMES = 4
"""Columns per page: the header's time, its first and last event's time, and a flag for losses."""

_NO_TIME = np.uint64(END_OF_CYCLES)
_FOUR, _EIGHT = np.int64(4), np.int64(8)  # numba gives literals other types


class _PageLayout(NamedTuple):
    """Offsets and sizes in a page and in an event, in bytes."""

    page_bytes: int
    timestamp: int
    commit: int
    commit_bytes: int
    data: int
    type: int
    type_bytes: int


class _Events(NamedTuple):
    """Events of some pages.

    For each event: the `offset` of its fields in the pages' data and their `size` in bytes, its
    `time` (clock cycles) and `kind` (event type). For each page `times`: see `PAGE_TIMES`.
    """

    offset: I64
    size: I64
    time: U64
    kind: npt.NDArray[np.uint16]
    times: U64


@bare
def _scan_pages(
    data: U8, layout: _PageLayout, events: _Events
) -> tuple[Integer, Integer, Integer, Integer]:
    """Find the events of whole pages.

    Returns the number of events, the number of lost events that the pages count, the number of
    pages that report a loss without a count, and the first malformed page or -1.
    """
    n = np.int64(0)
    missed = np.int64(0)
    missed_uncounted = np.int64(0)
    for page in range(data.size // layout.page_bytes):
        base = page * layout.page_bytes
        now = _load(data, base + layout.timestamp, _EIGHT)
        times = events.times[page]
        times[PAGE_BEGINS], times[PAGE_FIRST], times[PAGE_LAST] = now, _NO_TIME, 0
        commit = _load(data, base + layout.commit, layout.commit_bytes)
        start = base + layout.data
        end = start + np.int64(commit & np.uint64(_SIZE_MASK))
        if end > base + layout.page_bytes:
            return n, missed, missed_uncounted, page
        times[PAGE_MISSED] = (commit & np.uint64(_MISSED_EVENTS)) != 0
        if times[PAGE_MISSED]:
            if commit & np.uint64(_MISSED_STORED) and end + 8 <= base + layout.page_bytes:
                missed += np.int64(_load(data, end, _EIGHT))
            else:
                missed_uncounted += 1
        n = _scan_page(data, start, end, page, n, layout, events)
        if n < 0:
            return -n - 1, missed, missed_uncounted, page
    return n, missed, missed_uncounted, -1


@inner
def _scan_page(
    data: U8,
    at: Integer,
    end: Integer,
    page: Integer,
    n: Integer,
    layout: _PageLayout,
    events: _Events,
) -> Integer:
    """Find the events of a page, ``data[at:end]``, and number them from `n` on.

    Returns the number after the last event, or ``-1 - number`` if the page is malformed.
    """
    times = events.times[page]
    now = times[PAGE_BEGINS]
    while at < end:
        if at + 4 > end:
            return -n - 1
        header = _load(data, at, _FOUR)
        code = header & np.uint64(31)
        delta = header >> np.uint64(5)
        word = np.uint64(0)
        if code == 29 and delta == 0:  # the rest of the page is padding
            break
        if code == 0 or code >= 29:
            if at + 8 > end:
                return -n - 1
            word = _load(data, at + 4, _FOUR)
        if code == 29:  # a discarded event
            at += 4 + np.int64(word)
        elif code == 30:
            now += (word << np.uint64(27)) + delta
            at += 8
        elif code == 31:  # an absolute time without its five highest bits
            high = now >> np.uint64(59) << np.uint64(59)
            absolute = high | (word << np.uint64(27)) + delta
            if absolute < now:
                absolute += np.uint64(1) << np.uint64(59)
            now = absolute
            at += 8
        else:
            now += delta
            fields = at + (8 if code == 0 else 4)
            at += 4 + (np.int64(word) if code == 0 else 4 * np.int64(code))
            if at > end or fields + layout.type + layout.type_bytes > at:
                return -n - 1
            events.offset[n] = fields
            events.size[n] = at - fields
            events.time[n] = now
            times[PAGE_FIRST] = min(times[PAGE_FIRST], now)
            times[PAGE_LAST] = max(times[PAGE_LAST], now)
            events.kind[n] = _load(data, fields + layout.type, layout.type_bytes)
            n += 1
    return n


def _gather(data: U8, start: I64, size: int) -> U64:
    """Little-endian integers of `size` bytes at the offsets `start`; 0 if `size` is 0."""
    values = np.zeros((start.size, 8), np.uint8)
    values[:, :size] = data[start[:, None] + np.arange(size)]
    return values.view(np.uint64)[:, 0]


@dataclass(frozen=True)
class Scanned:
    """The events of some pages of a CPU."""

    cpu: int
    data: U8
    offset: I64
    time: U64
    kind: npt.NDArray[np.uint16]
    page_times: U64
    missed: int
    missed_uncounted: int

    def column(self, rows: I64, field: _Field) -> U64:
        """An integer field of the events `rows`, sign-extended; shape ``(rows,)``."""
        values = _gather(self.data, self.offset[rows] + field.offset, field.size)
        if field.signed and field.size < 8:
            negative = values >> np.uint64(8 * field.size - 1) != 0
            values[negative] |= ~np.uint64(0) << np.uint64(8 * field.size)
        return values

    def strings(self, rows: I64, field: _Field) -> npt.NDArray[np.bytes_]:
        """Zero-terminated strings, fixed or of dynamic length, cut at 16 bytes."""
        out = np.zeros(rows.size, "S16")
        for i, start in enumerate(self.offset[rows].tolist()):
            at, size = start + field.offset, field.size
            if field.dynamic:
                location = int.from_bytes(self.data[at : at + 4], "little")
                at, size = start + (location & 0xFFFF), location >> 16
            out[i] = self.data[at : at + min(size, 16)].tobytes().split(b"\0")[0]
        return out


class CpuPages:
    """A CPU's pages, read in batches. Can be pickled."""

    def __init__(self, path: Path, layout: Layout) -> None:
        match = re.fullmatch(r"cpu(\d+)", path.stem)
        if not match:
            raise ParseError(f"{path}: not the log of a CPU", "remove the file")
        self.path, self.number, self.layout = path, int(match[1]), layout
        size_bytes = path.stat().st_size
        if size_bytes % layout.page_bytes:
            raise ParseError(
                f"{path}: truncated: {size_bytes} bytes are not a multiple of the kernel's"
                f" {layout.page_bytes}-byte pages",
                "record again",
            )
        self.pages = size_bytes // layout.page_bytes

    def scan(self, first: int, end: int) -> Iterator[Scanned]:
        """Yields the events of the pages ``[first, end)`` in batches."""
        page_bytes, batch = self.layout.page_bytes, self.layout.batch_pages
        for start in range(first, end, batch):
            pages = min(end - start, batch)
            data: U8 = read_array(self.path, np.uint8, start * page_bytes, pages * page_bytes)
            yield scan(self.path, self.number, data, self.layout, start)


def scan(path: Path, number: int, data: U8, layout: Layout, first_page: int = 0) -> Scanned:
    """The events of whole pages; the first page has the number `first_page`."""
    common = next(iter(layout.formats.values())).fields["common_type"]
    capacity = data.size // 8 + 1  # an event has a header and at least 4 bytes
    events = _Events(
        offset=np.empty(capacity, np.int64),
        size=np.empty(capacity, np.int64),
        time=np.empty(capacity, np.uint64),
        kind=np.empty(capacity, np.uint16),
        times=np.empty((data.size // layout.page_bytes, PAGE_TIMES), np.uint64),
    )
    pages = _PageLayout(
        layout.page_bytes,
        layout.timestamp,
        layout.commit,
        layout.commit_bytes,
        layout.data,
        common.offset,
        common.size,
    )
    n, missed, uncounted, bad_page = _scan_pages(data, pages, events)
    if bad_page >= 0:
        page = first_page + bad_page
        raise damaged(path, f"page {page} at byte {page * layout.page_bytes}: damaged")
    offset, size, time, kind, page_times = events
    layout.check(path, first_page, kind[:n], size[:n])
    return Scanned(number, data, offset[:n], time[:n], kind[:n], page_times, missed, uncounted)


def table_events(scanned: Scanned, layout: Layout) -> npt.NDArray[Any]:
    """The table events of some pages (dtype `TABLE_EVENT`), grouped by kind."""
    parts = [np.zeros(0, TABLE_EVENT)]
    others = np.flatnonzero(layout.timed[0][scanned.kind] == NOT_TIMED)  # usually few
    kinds = scanned.kind[others]
    for kind, name in enumerate(TABLE_KINDS):
        rows = others[kinds == layout.formats[name].id]
        if not rows.size:
            continue
        events = np.zeros(rows.size, TABLE_EVENT)
        events["time"] = scanned.time[rows]
        events["kind"] = kind
        events["cpu"] = scanned.cpu
        for field_name, field in layout.formats[name].fields.items():
            if field_name == "comm":
                events["comm"] = scanned.strings(rows, field)
            elif field_name in INTEGER_FIELDS:
                events[field_name] = scanned.column(rows, field)
        parts.append(events)
    return np.concatenate(parts)


def timed_events(
    scanned: Scanned, layout: Layout, since: int = 0, until: int = END_OF_CYCLES
) -> npt.NDArray[Any]:
    """Fault and entry events of an interval in cycles, both ends included (`TIMED_EVENT`)."""
    number_of_kind, fields = layout.timed
    numbers = number_of_kind[scanned.kind]
    inside = (scanned.time >= np.uint64(since)) & (scanned.time <= np.uint64(until))
    rows = np.flatnonzero(inside & (numbers != NOT_TIMED))
    events = np.empty(rows.size, TIMED_EVENT)
    events["time"], events["kind"] = scanned.time[rows], numbers[rows]
    for kind in np.unique(numbers[rows]).tolist():
        of_kind = np.flatnonzero(events["kind"] == kind)
        start = scanned.offset[rows[of_kind]]
        for name, (offset, size) in zip(TIMED_FIELDS, fields[kind].tolist(), strict=True):
            events[name][of_kind] = _gather(scanned.data, start + offset, size)
    return events


def count_kinds(scanned: Scanned, layout: Layout) -> list[int]:
    """Number of events of each of `TIMED_KINDS`."""
    counts = np.bincount(layout.timed[0][scanned.kind], minlength=len(TIMED_KINDS))
    found: list[int] = counts[: len(TIMED_KINDS)].tolist()
    return found


def whole_flushes(scanned: Scanned, layout: Layout) -> U64:
    """Times of flushes of a CPU's whole TLB (clock cycles)."""
    (name,) = FLUSH_EVENTS
    if name not in layout.formats:
        return np.empty(0, np.uint64)
    format = layout.formats[name]
    rows = np.flatnonzero(scanned.kind == format.id)
    pages = scanned.column(rows, format.fields["pages"])
    found: U64 = scanned.time[rows[pages == np.uint64(FLUSH_ALL)]]
    return found


def check_tables(path: Path, found: npt.NDArray[Any]) -> None:
    """Raise `ParseError` for impossible table events."""
    leveled = np.isin(found["kind"], (TABLE_ALLOC, TABLE_LINK, TABLE_MOVE))
    if not np.isin(found["level"][leveled], LEVELS).all():
        raise damaged(path, "damaged: a table of an unknown level")
    if found["tgid"].max(initial=0) > TGID_MAX:
        raise damaged(path, "damaged: an impossible process number")


def in_order(parts: list[npt.NDArray[Any]], by: str) -> npt.NDArray[Any]:
    """All rows sorted by the column `by`; does not copy parts that are already in order."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    column = rows[by]
    if np.all(column[1:] >= column[:-1]):
        return rows
    return rows[np.argsort(column, kind="stable")]
