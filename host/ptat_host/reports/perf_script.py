# SPDX-License-Identifier: BSD-2-Clause
"""Reads the output of ``perf script`` for ``perf record -e dTLB-load-misses -g`` and similar
events.

Each sample has a header line. Without ``-g`` the instruction is at its end; with it the frames
follow, the innermost first, one a line, and an empty line. The columns depend on perf's version and
options: thread, CPU, time and period may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ptat_host.reports.kernel_profile import SAMPLES, Profile
from ptat_parser.errors import BadInput

_HINT = "give the output of perf script for: perf record -e dTLB-load-misses,iTLB-load-misses -g"
_TLB = re.compile(r"[di]?tlb|walk", re.IGNORECASE)

_PLACE = r"(?P<ip>[0-9a-f]{1,16}) (?P<symbol>.+?) \((?P<dso>.*)\)"
_FRAME = re.compile(rf"\s+{_PLACE}\s*")
_INLINED = re.compile(r"\s+(?P<symbol>\S.*) \(inlined\)\s*")
_HEAD = re.compile(
    r"\s*(?P<comm>\S.*?)\s+-?\d+(?:/-?\d+)?(?:\s+\[\d+\])?(?:\s+(?=\S*[.a-zA-Z])[-.#\w]{3,6})?"
    r"(?:\s+\d+\.\d+:)?\s+(?:(?P<period>\d+)\s+)?(?P<event>[^\s:]\S*?):"
    rf"(?:\s+(?:.*\s)?{_PLACE})?\s*"
)
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_HALF = 1 << 63
"""The kernel's lowest address."""


@dataclass
class _Sample:
    line: int
    event: str
    period: int
    frames: list[tuple[int | None, str]] = field(default_factory=list)
    """Address (None for an inlined call) and function, the innermost first."""
    whole: bool = False


def read(lines: Iterator[str], source: str) -> Profile:
    """The samples of TLB events that hit kernel code; `source` is named in errors.

    :raises BadInput: the text is not from ``perf script``, or truncated.
    """
    profile = Profile(source, SAMPLES, (), tells_addresses=False)
    profile.others_are = "samples of user code"
    events: list[str] = []
    strange: dict[str, int] = {}
    somewhere = nowhere = 0
    for sample in _samples(lines, source):
        event = _plain(sample.event)
        if not _TLB.search(event):
            strange[event] = strange.get(event, 0) + 1
            continue
        if event not in events:
            events.append(event)
        if not sample.frames:
            nowhere += 1
            continue
        somewhere += 1
        if not _is_kernel(sample.frames[0][0]):
            profile.others += 1
            continue
        profile.misses[_chain(sample), event, False] += sample.period
    if not events:
        others = f"; there are: {', '.join(strange)}" if strange else ""
        raise BadInput(f"{source}: no sample of a TLB event{others}", _HINT)
    if not somewhere:
        raise BadInput(
            f"{source}: no sample has an instruction",
            "let perf script print ip, sym and dso, as it does without -F",
        )
    if nowhere:
        profile.problems.append(f"{nowhere:,} samples without an instruction are left out")
    for event, samples in strange.items():
        profile.problems.append(f"{samples:,} samples of {event} are left out")
    profile.events = tuple(events)
    return profile


def _samples(lines: Iterator[str], source: str) -> Iterator[_Sample]:
    """Yields complete samples."""
    sample: _Sample | None = None
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            raise BadInput(f"{source}: line {number}: cut off", "write the file again")
        if line.startswith("#"):
            continue
        if not line.strip():
            if sample:
                yield sample
            sample = None
            continue
        frame = _FRAME.fullmatch(line) or _INLINED.fullmatch(line)
        if sample and frame and not sample.whole:
            sample.frames.append(_frame(frame))
            continue
        if sample and not sample.whole:
            raise BadInput(f"{source}: line {number}: not a frame of a call chain", _HINT)
        if sample:
            yield sample
        sample = _head(line, number)
        if sample is None:
            raise BadInput(f"{source}: line {number}: not a sample of perf script", _HINT)
    if sample and not sample.whole:
        raise BadInput(
            f"{source}: line {number}: cut off in the call chain of the sample in line"
            f" {sample.line}",
            "write the file again",
        )
    if sample:
        yield sample


def _head(line: str, number: int) -> _Sample | None:
    head = _HEAD.fullmatch(line)
    if head is None:
        return None
    sample = _Sample(number, head["event"], int(head["period"] or 1))
    if head["ip"]:
        sample.frames.append(_frame(head))
        sample.whole = True
    return sample


def _frame(found: re.Match[str]) -> tuple[int | None, str]:
    groups = found.groupdict()
    address = int(groups["ip"], 16) if groups.get("ip") else None
    return address, _OFFSET.sub("", groups["symbol"])


def _is_kernel(address: int | None) -> bool:
    return address is not None and address >= _HALF


def _chain(sample: _Sample) -> tuple[str, ...]:
    """The kernel's frames, the outermost first."""
    chain = []
    for address, name in sample.frames:
        if address is not None and not _is_kernel(address):
            break
        chain.append(name)
    return tuple(reversed(chain))


def _plain(event: str) -> str:
    """The event without its modifiers; the samples show user or kernel mode."""
    return re.sub(r":[a-zA-Z]+$", "", event)
