# SPDX-License-Identifier: BSD-2-Clause
"""Reads the output of ``perf stat``: text, ``-x`` separated values or ``-j`` lines.

Also the output of ``ptat stat --output``: a line of JSON for each run.

perf has already scaled the counts of events that shared a counter. We keep how long each event ran,
because a short run gives only an estimate.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from ptat_parser.errors import BadInput

COUNTED, NOT_COUNTED, NOT_SUPPORTED = "counted", "not counted", "not supported"

_HINT = "give the output of perf stat: text, -x or -j"


@dataclass(frozen=True)
class Count:
    """One event: `value` (None unless `status` is "counted") in `unit` ("" for plain numbers).

    `running` is the share of time in which the event was really counted, 0 … 1, None if unknown.
    """

    event: str
    value: float | None
    unit: str = ""
    running: float | None = None
    status: str = COUNTED


@dataclass(frozen=True)
class Stat:
    """One run of ``perf stat``: its counts, and the time and command where they were printed."""

    counts: tuple[Count, ...]
    command: str | None = None
    seconds: float | None = None

    def value(self, event: str) -> float | None:
        """The count of an event, whatever its modifiers and PMU; None if it has none."""
        for count in self.counts:
            if plain_name(count.event) == event:
                return count.value
        return None


def plain_name(event: str) -> str:
    """An event's name in lower case, without its PMU (``cpu_core/…/``) and modifiers (``:u``)."""
    inside = re.fullmatch(r"[\w-]+/([^/]+)/\w*", event)
    name = inside[1] if inside else re.sub(r":[a-zA-Z]+$", "", event)
    return name.lower()


def read(text: str, source: str) -> list[Stat]:
    """All runs in a text; `source` is named in errors.

    Raises `BadInput` if there is no count in it.
    """
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first.lstrip().startswith('{"command"'):
        stats = _read_ours(text, source)
    elif first.lstrip().startswith("{"):
        stats = [_read_json(text, source)]
    elif "Performance counter stats for" in text:
        stats = _read_text(text)
    else:
        stats = [_read_separated(text, source)]
    if not any(stat.counts for stat in stats):
        raise BadInput(f"{source}: holds no counts of perf stat", _HINT)
    return stats


# -j -----------------------------------------------------------------------------------------------


def _read_json(text: str, source: str) -> Stat:
    counts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "event" not in row:  # a metric of its own
                continue
            if "interval" in row:
                raise _interval(source)
            share = row.get("pcnt-running")
            counts.append(
                _count(
                    str(row["event"]),
                    str(row["counter-value"]),
                    str(row.get("unit", "")),
                    None if share is None else float(share),
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{source}: line {number} is not a count of perf stat -j", _HINT
            ) from error
    return Stat(tuple(counts))


# ptat stat --output -------------------------------------------------------------------------------


def _read_ours(text: str, source: str) -> list[Stat]:
    stats = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        try:
            run = json.loads(line)
            counts = tuple(Count(**{key: row[key] for key in _OUR_KEYS}) for row in run["counts"])
            if not all(_is_ours(count) for count in counts):
                raise ValueError(line)
            stats.append(Stat(counts, run["command"], run["seconds"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{source}: line {number} is no run of ptat stat", _HINT) from error
    return stats


_OUR_KEYS = ("event", "value", "unit", "running", "status")


def _is_ours(count: Count) -> bool:
    strings = isinstance(count.event, str) and isinstance(count.unit, str)
    return strings and (count.value is None or math.isfinite(count.value))


# -x -----------------------------------------------------------------------------------------------

_SEPARATORS = (",", ";", "|", "\t", ":")


def _read_separated(text: str, source: str) -> Stat:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for separator in _SEPARATORS:
        rows = [line.split(separator) for line in lines]
        if rows and all(len(row) >= 5 for row in rows):
            break
    else:
        raise BadInput(f"{source}: not the output of perf stat", _HINT)
    counts = []
    for number, row in enumerate(rows, 1):
        if re.fullmatch(r"\s*\d+\.\d{9}", row[0]):
            raise _interval(source)
        # value, unit, event, time the event ran, share of the time in percent, metric, its unit
        value, unit, event, _, share = row[:5]
        if not event:  # another metric of the line before
            continue
        try:
            counts.append(_count(event, value, unit, float(share) if share else None))
        except ValueError as error:
            raise BadInput(
                f"{source}: line {number} is not a count of perf stat -x", _HINT
            ) from error
    return Stat(tuple(counts))


def _interval(source: str) -> BadInput:
    return BadInput(f"{source}: counts of intervals (-I)", "run perf stat without -I")


# Text ---------------------------------------------------------------------------------------------

_NUMBER = r"\d[\d.,'\u2019\u202f\u00a0]*|<not counted>|<not supported>"
_LINE = re.compile(
    rf"\s*(?P<value>{_NUMBER})\s+(?:(?P<unit>msec|nsec|Joules|MiB|GiB|%)\s+)?(?P<event>[^\s#(]+)"
    r"(?:\s+#[^(]*)?(?:\s*\(\s*\+-[^)]*\))?(?:\s*\(\s*(?P<share>[\d.,]+)%\s*\))?\s*"
)
_TIME = re.compile(rf"\s*(?P<seconds>{_NUMBER})\s+(?:\+-\s*[\d.,]+\s+)?seconds time elapsed.*")
_HEAD = re.compile(r"\s*Performance counter stats for (?P<command>.*?)(?: \(\d+ runs\))?:\s*")


def _read_text(text: str) -> list[Stat]:
    stats: list[Stat] = []
    counts: list[Count] = []
    command: str | None = None
    for line in text.splitlines():
        head, time, count = (pattern.fullmatch(line) for pattern in (_HEAD, _TIME, _LINE))
        if head:
            if counts:
                stats.append(Stat(tuple(counts), command))
            counts, command = [], head["command"].strip("'")
        elif time:
            stats.append(Stat(tuple(counts), command, _number(time["seconds"])))
            counts, command = [], None
        elif count and count["event"] != "seconds":
            share = count["share"]
            counts.append(
                _count(
                    count["event"],
                    count["value"],
                    count["unit"] or "",
                    None if share is None else _number(share),
                )
            )
    if counts:
        stats.append(Stat(tuple(counts), command))
    return stats


def _count(event: str, value: str, unit: str, percent: float | None) -> Count:
    value = value.strip()
    running = None if percent is None else percent / 100
    if value in (f"<{NOT_COUNTED}>", f"<{NOT_SUPPORTED}>"):
        return Count(event, None, unit, None, value.strip("<>"))
    number = _number(value)
    if not (math.isfinite(number) and (running is None or 0 <= running <= 1.001)):
        raise ValueError(value)
    return Count(event, number, unit, running)


def _number(text: str) -> float:
    """A number as any locale groups it: the last separator is the decimal one unless it groups."""
    digits = re.sub(r"['\u2019\u202f\u00a0]", "", text)
    separators = set(re.findall(r"[.,]", digits))
    if len(separators) == 2:
        decimal = digits[max(digits.rfind("."), digits.rfind(","))]
        digits = digits.replace(({".", ","} - {decimal}).pop(), "").replace(decimal, ".")
    elif digits.count(",") > 1 or re.fullmatch(r"\d{1,3},\d{3}", digits):
        digits = digits.replace(",", "")
    elif digits.count(".") > 1:
        digits = digits.replace(".", "")
    else:
        digits = digits.replace(",", ".")
    return float(digits)


def as_dict(count: Count) -> dict[str, Any]:
    """For JSON."""
    return {
        "event": count.event,
        "value": count.value,
        "unit": count.unit,
        "running": count.running,
        "status": count.status,
    }
