# SPDX-License-Identifier: BSD-2-Clause
"""Reads the kernel's log: raw ring-buffer pages of each CPU, as tracefs gives them.

``kernel/cpuN.raw`` holds the pages that ``per_cpu/cpuN/trace_pipe_raw`` returned, one after
the other. What a page and an event look like is taken from the format files that the kernel
itself wrote (``kernel/formats/``), never assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import ParseError
from ptat_parser.events import ENTRY_EVENTS, FAULT_EVENTS, TABLE_EVENTS
from ptat_parser.jit import Integer, jit
from ptat_parser.storage import read_array

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

TABLE_KINDS = TABLE_EVENTS
"""Index = `kind` of a row of `TABLE_EVENT`."""

(
    MM_ATTACH,
    MM_EXIT,
    TABLE_ALLOC,
    TABLE_LINK,
    TABLE_MOVE,
    TABLE_FREE,
    LEAF_SET,
    LEAF_CLEAR,
    MARKER,
) = range(len(TABLE_KINDS))

COOKIE_START = 1
COOKIE_STOP = 2


class TableEvent(NamedTuple):
    """One table event: `time` in clock cycles, then the event's fields, 0 where it has none."""

    time: int
    kind: int
    cpu: int
    seq: int
    mm: int
    pa: int
    slot_pa: int
    va: int
    entry: int
    level: int
    pgd: int
    tgid: int
    why: int
    cookie: int
    comm: bytes


TABLE_EVENT = np.dtype([(name, "S16" if name == "comm" else "<u8") for name in TableEvent._fields])
"""`TableEvent` as a numpy structured dtype."""

_INTEGERS = frozenset(TableEvent._fields) - {"time", "kind", "cpu", "comm"}

TIMED_EVENT = np.dtype(
    [
        ("time", "<u8"),
        ("kind", "u1"),
        ("mm", "<u8"),
        ("va", "<u8"),
        ("slot_pa", "<u8"),
        ("entry", "<u8"),
    ]
)
"""One event without a marker: a fault, or a 4 KiB entry set or cleared."""

TIMED_KINDS = FAULT_EVENTS + ENTRY_EVENTS
"""Optional events without a marker; index = `kind` of a row."""

FAULT, ENTRY_SET, ENTRY_CLEAR = range(len(TIMED_KINDS))

_ENTRY_FIELDS = ("mm", "slot_pa", "va", "entry")
_NEEDED = {
    "ptat_mm_attach": ("seq", "mm", "pgd", "tgid", "why", "comm"),
    "ptat_mm_exit": ("seq", "mm"),
    "ptat_table_alloc": ("seq", "mm", "pa", "level"),
    "ptat_table_link": ("seq", "mm", "pa", "slot_pa", "va", "level"),
    "ptat_table_move": ("seq", "mm", "pa", "va", "level"),
    "ptat_table_free": ("seq", "mm", "pa"),
    "ptat_leaf_set": ("seq", *_ENTRY_FIELDS),
    "ptat_leaf_clear": ("seq", *_ENTRY_FIELDS),
    "ptat_marker": ("seq", "cookie"),
    "ptat_fault": ("mm", "va"),
    "ptat_pte_set": _ENTRY_FIELDS,
    "ptat_pte_clear": _ENTRY_FIELDS,
}
"""Fields that each event must have; others may come and go."""

_LEVELS = (1, 2)

_PAGE_BYTES_MAX = 1 << 20
_TEXT_BYTES_MAX = 1 << 20
_MISSED_EVENTS = 1 << 31
_MISSED_STORED = 1 << 30
_SIZE_MASK = (1 << 20) - 1


@dataclass(frozen=True)
class KernelLog:
    """All events of a recording.

    `tables` (dtype `TABLE_EVENT`) is sorted by `seq`; `timed` (`TIMED_EVENT`) by `time`.
    `lost_events` counts what the ring buffers dropped, `gaps` says since and until when (clock
    cycles, None where unknown), and `lost_seqs` counts the sequence numbers missing among the
    table events.
    """

    tables: npt.NDArray[Any]
    timed: npt.NDArray[Any]
    lost_events: int
    lost_seqs: int
    gaps: list[tuple[int | None, int | None]]


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
    r"field:(?P<declaration>[^;]+);\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);"
    r"(?:\s*signed:(?P<signed>\d+);)?"
)


def _fields(text: str) -> dict[str, _Field]:
    fields = {}
    for match in _FIELD.finditer(text):
        declaration = match["declaration"].strip()
        name = re.sub(r"\[[^\]]*\]$", "", declaration).split()[-1].lstrip("*")
        fields[name] = _Field(
            int(match["offset"]),
            int(match["size"]),
            match["signed"] == "1",
            declaration.startswith("__data_loc"),
        )
    return fields


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_TEXT_BYTES_MAX + 1)
        if len(data) > _TEXT_BYTES_MAX:
            raise _damaged(path)
        return data.decode("ascii")
    except FileNotFoundError:
        raise ParseError(
            f"{path}: missing: the kernel's log cannot be read without it", "record again"
        ) from None
    except UnicodeDecodeError:
        raise _damaged(path) from None


def _damaged(path: Path, problem: str = "damaged") -> ParseError:
    return ParseError(f"{path}: {problem}", "restore the file, or record again")


def _read_format(path: Path) -> _Format:
    text = _read_text(path)
    name = re.search(r"^name: (\S+)", text, re.MULTILINE)
    number = re.search(r"^ID: (\d+)", text, re.MULTILINE)
    fields = _fields(text)
    if not name or not number or "common_type" not in fields:
        raise ParseError(f"{path}: not the format of a trace event", "record again")
    if name[1] != path.name:
        raise _damaged(path, f"the format of {name[1]}")
    missing = [field for field in _NEEDED.get(path.name, ()) if field not in fields]
    if missing:
        raise ParseError(
            f"{path}: no field {', '.join(missing)}: of another version of the kernel patch",
            "use the ptat that goes with that kernel, or record again",
        )
    for field_name, field in fields.items():
        if field.size not in (1, 2, 4, 8) and field_name != "comm":
            raise _damaged(path, f"field {field_name} has {field.size} bytes")
    return _Format(name[1], int(number[1]), fields)


class _Layout:
    """What the kernel says about its pages and events."""

    def __init__(self, directory: Path) -> None:
        page = _fields(_read_text(directory / "header_page"))
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
            raise _damaged(directory / "header_page")
        header = _read_text(directory / "header_event")
        codes = dict(re.findall(r"(padding|time_extend|time_stamp)\s*: type ==\s*(\d+)", header))
        wanted = {"padding": "29", "time_extend": "30", "time_stamp": "31"}
        if codes != wanted or not re.search(r"time_delta\s*:\s*27 bits", header):
            raise ParseError(
                f"{directory}/header_event: a ring buffer that this version cannot read",
                "update ptat",
            )
        self.formats = {path.name: _read_format(path) for path in sorted(directory.glob("ptat_*"))}
        missing = [name for name in TABLE_KINDS if name not in self.formats]
        if missing:
            raise ParseError(
                f"{directory}: no format of {', '.join(missing)}",
                "the kernel lacks PTAT, or the session is incomplete: record again",
            )
        if len({format.id for format in self.formats.values()}) < len(self.formats):
            raise _damaged(directory, "two events have one number")

    def check(self, path: Path, kind: npt.NDArray[np.uint16], size_bytes: I64) -> None:
        """Each event must be one of ours, and as long as its format says."""
        smallest = np.full(1 << 16, np.iinfo(np.int64).max)
        for format in self.formats.values():
            ends = [field.offset + field.size for field in format.fields.values()]
            smallest[format.id & 0xFFFF] = max(ends)
        wrong = np.flatnonzero(size_bytes < smallest[kind])
        if wrong.size:
            event = wrong[0]
            raise _damaged(
                path,
                f"event {event} has type {kind[event]} and {size_bytes[event]} bytes,"
                " which is not what the formats say",
            )


@jit
def _load(data: U8, offset: Integer, size: Integer) -> Integer:
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[offset + i]) << np.uint64(8 * i)
    return value


@jit
def _scan_pages(
    data: U8,
    page_bytes: Integer,
    timestamp_at: Integer,
    commit_at: Integer,
    commit_bytes: Integer,
    data_at: Integer,
    type_at: Integer,
    type_bytes: Integer,
    offset: I64,
    size: I64,
    time: U64,
    kind: npt.NDArray[np.uint16],
) -> tuple[Integer, Integer, Integer, Integer]:
    """Find the events of whole pages.

    Fills `offset` (of the event's fields in `data`), their `size` in bytes, `time` (clock cycles)
    and `kind` (the event's type). Returns the number of events, the missed events that the pages
    count, the pages that only say that some were missed, and the first malformed page, or -1.
    """
    n = 0
    missed = np.int64(0)
    missed_uncounted = np.int64(0)
    for page in range(data.size // page_bytes):
        base = page * page_bytes
        now = _load(data, base + timestamp_at, 8)
        commit = _load(data, base + commit_at, commit_bytes)
        at = base + data_at
        end = at + np.int64(commit & np.uint64(_SIZE_MASK))
        if end > base + page_bytes:
            return n, missed, missed_uncounted, page
        if commit & np.uint64(_MISSED_EVENTS):
            if commit & np.uint64(_MISSED_STORED) and end + 8 <= base + page_bytes:
                missed += np.int64(_load(data, end, 8))
            else:
                missed_uncounted += 1
        while at < end:
            if at + 4 > end:
                return n, missed, missed_uncounted, page
            header = _load(data, at, 4)
            code = header & np.uint64(31)
            delta = header >> np.uint64(5)
            if code == 29 and delta == 0:  # the rest of the page is padding
                break
            if code == 0 or code >= 29:
                if at + 8 > end:
                    return n, missed, missed_uncounted, page
                word = _load(data, at + 4, 4)
            if code == 29:  # a discarded event
                at += 4 + np.int64(word)
            elif code == 30:
                now += (word << np.uint64(27)) + delta
                at += 8
            elif code == 31:  # absolute, without its five highest bits
                high = now >> np.uint64(59) << np.uint64(59)
                absolute = high | (word << np.uint64(27)) + delta
                if absolute < now:
                    absolute += np.uint64(1) << np.uint64(59)
                now = absolute
                at += 8
            else:
                now += delta
                if code == 0:
                    fields = at + 8
                    at += 4 + np.int64(word)
                else:
                    fields = at + 4
                    at += 4 + 4 * np.int64(code)
                if at > end or fields + type_at + type_bytes > at:
                    return n, missed, missed_uncounted, page
                offset[n] = fields
                size[n] = at - fields
                time[n] = now
                kind[n] = _load(data, fields + type_at, type_bytes)
                n += 1
    return n, missed, missed_uncounted, -1


@jit
def _gather(
    data: U8, offset: I64, field_at: Integer, size: Integer, signed: bool, out: U64
) -> None:
    for i in range(offset.size):
        value = _load(data, offset[i] + field_at, size)
        if signed and size < 8 and value >> np.uint64(8 * size - 1):
            value |= ~np.uint64(0) << np.uint64(8 * size)
        out[i] = value


@dataclass(frozen=True)
class _Cpu:
    """One CPU's pages, scanned."""

    number: int
    data: U8
    offset: I64
    time: U64
    kind: npt.NDArray[np.uint16]

    def column(self, rows: I64, field: _Field) -> U64:
        out = np.empty(rows.size, np.uint64)
        _gather(self.data, self.offset[rows], field.offset, field.size, field.signed, out)
        return out

    def strings(self, rows: I64, field: _Field) -> npt.NDArray[np.bytes_]:
        """Zero-terminated strings, fixed or of dynamic length, cut at 16 bytes."""
        out = np.zeros(rows.size, "S16")
        for i, start in enumerate(self.offset[rows].tolist()):
            at, size = start + field.offset, field.size
            if field.dynamic:
                location = int(_load(self.data, at, 4))
                at, size = start + (location & 0xFFFF), location >> 16
            out[i] = self.data[at : at + min(size, 16)].tobytes().split(b"\0")[0]
        return out


def _scan_cpu(
    path: Path, number: int, layout: _Layout
) -> tuple[_Cpu, int, list[tuple[int | None, int | None]]]:
    """A CPU's events, how many it lost, and when."""
    size_bytes = path.stat().st_size
    if size_bytes % layout.page_bytes:
        raise ParseError(
            f"{path}: truncated: {size_bytes} bytes are not a multiple of the kernel's"
            f" {layout.page_bytes}-byte pages",
            "record again",
        )
    data: U8 = read_array(path, np.uint8)
    cpu, missed, uncounted = _scan(path, number, data, layout)
    n = cpu.kind.size
    stats = _read_stats(path.with_suffix(".stats"))
    read = stats.get("read events")
    if read is not None and read != n:
        raise _damaged(path, f"truncated or damaged: {n} events, of which the kernel wrote {read}")
    dropped = sum(stats.get(key, 0) for key in ("overrun", "commit overrun", "dropped events"))
    lost = max(dropped, missed + uncounted)
    gaps = _gaps(data, layout) if missed + uncounted else []
    if dropped > missed and not uncounted:
        gaps = [(None, None)]
    return cpu, lost, gaps


def _scan(path: Path, number: int, data: U8, layout: _Layout) -> tuple[_Cpu, int, int]:
    """The events of whole pages, those missed, and the pages that only say that some were."""
    common = next(iter(layout.formats.values())).fields["common_type"]
    capacity = data.size // 8 + 1  # no event is smaller than its header and 4 bytes
    offset = np.empty(capacity, np.int64)
    size = np.empty(capacity, np.int64)
    time = np.empty(capacity, np.uint64)
    kind = np.empty(capacity, np.uint16)
    n, missed, uncounted, bad_page = _scan_pages(
        data,
        layout.page_bytes,
        layout.timestamp,
        layout.commit,
        layout.commit_bytes,
        layout.data,
        common.offset,
        common.size,
        offset,
        size,
        time,
        kind,
    )
    if bad_page >= 0:
        raise _damaged(path, f"page {bad_page} at byte {bad_page * layout.page_bytes}: damaged")
    layout.check(path, kind[:n], size[:n])
    return _Cpu(number, data, offset[:n], time[:n], kind[:n]), missed, uncounted


def _gaps(data: U8, layout: _Layout) -> list[tuple[int | None, int | None]]:
    """When events were missed: before a page that says so, and after the one before began."""
    pages = data.reshape(-1, layout.page_bytes)

    def column(at: int, size: int) -> U64:
        words = np.zeros((len(pages), 8), np.uint8)
        words[:, :size] = pages[:, at : at + size]
        return words.view("<u8")[:, 0]

    time = column(layout.timestamp, 8).tolist()
    commit = column(layout.commit, layout.commit_bytes)
    return [
        (time[i - 1] if i else None, time[i])
        for i in np.flatnonzero(commit & np.uint64(_MISSED_EVENTS)).tolist()
    ]


def _read_stats(path: Path) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in re.findall(r"^([a-z ]+): (\d+)$", _read_text(path), re.MULTILINE)
    }


def read_kernel_log(directory: Path) -> KernelLog:
    """Read a session's ``kernel/`` directory.

    Raises `ParseError` if a file is missing, truncated or damaged.
    """
    if not directory.is_dir():
        raise ParseError(f"{directory}: missing: the kernel's log was not saved", "record again")
    layout = _Layout(directory / "formats")
    paths = sorted(directory.glob("cpu*.raw"))
    if not paths:
        raise ParseError(
            f"{directory}: no cpuN.raw: the kernel's log was not saved", "record again"
        )
    lost_events = 0
    gaps: list[tuple[int | None, int | None]] = []
    tables: list[npt.NDArray[Any]] = []
    timed: list[npt.NDArray[Any]] = []
    for path in paths:
        match = re.fullmatch(r"cpu(\d+)", path.stem)
        if not match:
            raise ParseError(f"{path}: not the log of a CPU", "remove the file")
        cpu, lost, when = _scan_cpu(path, int(match[1]), layout)
        lost_events += lost
        gaps += when
        events = _table_events(cpu, layout)
        leveled = np.isin(events["kind"], (TABLE_ALLOC, TABLE_LINK, TABLE_MOVE))
        if not np.isin(events["level"][leveled], _LEVELS).all():
            raise _damaged(path, "damaged: a table of an unknown level")
        tables.append(events)
        timed.append(_timed_events(cpu, layout))

    table = _in_order(tables, "seq")
    if np.any(table["seq"][1:] == table["seq"][:-1]):
        raise ParseError(f"{directory}: two events with one sequence number", "record again")
    lost_seqs = int(table["seq"][-1] - table["seq"][0]) + 1 - table.size if table.size else 0
    return KernelLog(
        table,
        _in_order(timed, "time"),
        lost_events,
        lost_seqs,
        gaps,
    )


def _in_order(parts: list[npt.NDArray[Any]], by: str) -> npt.NDArray[Any]:
    """All rows, in the order of a column; what is in order already is not moved."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if np.all(rows[by][1:] >= rows[by][:-1]):
        return rows
    return rows[np.argsort(rows[by], kind="stable")]


class LogTail:
    """The log while it is written: what was added since the last look."""

    def __init__(self, directory: Path) -> None:
        """Nothing needs to be there yet."""
        self._directory = directory
        self._layout: _Layout | None = None
        self._read_bytes: dict[Path, int] = {}
        self.lost_events = 0
        """So many were missed, as far as the pages say."""

    def read(self) -> npt.NDArray[Any]:
        """Table events of the whole pages that were added (dtype `TABLE_EVENT`), by `seq`.

        Raises `ParseError` if one is damaged.
        """
        tables = [np.zeros(0, TABLE_EVENT)]
        for path in sorted(self._directory.glob("cpu*.raw")):
            if self._layout is None:
                self._layout = _Layout(self._directory / "formats")
            page_bytes = self._layout.page_bytes
            read_bytes = self._read_bytes.get(path, 0)
            with path.open("rb") as file:
                file.seek(read_bytes)
                added = file.read()
            whole = len(added) // page_bytes * page_bytes
            self._read_bytes[path] = read_bytes + whole
            data = np.frombuffer(added, np.uint8, whole)
            number = int(path.stem.removeprefix("cpu"))
            cpu, missed, uncounted = _scan(path, number, data, self._layout)
            self.lost_events += missed + uncounted
            tables.append(_table_events(cpu, self._layout))
        return _in_order(tables, "seq")


def traced_spaces(log: KernelLog) -> set[int]:
    """Page frames of the top page tables (CR3 >> 12) of what was traced."""
    attached = log.tables["kind"] == MM_ATTACH
    return set((log.tables["pgd"][attached] >> np.uint64(12)).tolist())


def _table_events(cpu: _Cpu, layout: _Layout) -> npt.NDArray[Any]:
    parts = []
    for kind, name in enumerate(TABLE_KINDS):
        rows = np.flatnonzero(cpu.kind == layout.formats[name].id)
        events = np.zeros(rows.size, TABLE_EVENT)
        events["time"] = cpu.time[rows]
        events["kind"] = kind
        events["cpu"] = cpu.number
        for field_name, field in layout.formats[name].fields.items():
            if field_name == "comm":
                events["comm"] = cpu.strings(rows, field)
            elif field_name in _INTEGERS:
                events[field_name] = cpu.column(rows, field)
        parts.append(events)
    return np.concatenate(parts)


def _timed_events(cpu: _Cpu, layout: _Layout) -> npt.NDArray[Any]:
    parts = []
    for kind, name in enumerate(TIMED_KINDS):
        if name not in layout.formats:
            continue
        fields = layout.formats[name].fields
        rows = np.flatnonzero(cpu.kind == layout.formats[name].id)
        events = np.zeros(rows.size, TIMED_EVENT)
        events["time"] = cpu.time[rows]
        events["kind"] = kind
        for field_name in ("mm", "va", "slot_pa", "entry"):
            if field_name in fields:
                events[field_name] = cpu.column(rows, fields[field_name])
        parts.append(events)
    parts = [part for part in parts if part.size] or [np.zeros(0, TIMED_EVENT)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
