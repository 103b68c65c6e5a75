# SPDX-License-Identifier: BSD-2-Clause
"""A synthetic machine's bus behind a memory controller with ECC: a queue of lines, no more."""

import json
from pathlib import Path

import synthetic

from ptat_parser.formats import truth
from ptat_parser.kernel.tracepoints import FLUSH_EVENTS

LINE_BYTES = 64
MARKERS_END = synthetic.REGION_BASE + synthetic.MARKER_SLOTS * synthetic.MARKER_STRIDE
CONTRACT = {"order": "controller", "ecc": True, "forwarding": True, "scrub": False}


class Queue:
    """The lines that wait, the oldest first; what it does goes to `bus`."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.waiting: list[int] = []
        self.bus: list[tuple[int, int, int]] = []
        self.answered: list[int] = []
        """Times of reads that never come."""

    def access(self, time: int, address: int, write: int) -> None:
        line = address & -LINE_BYTES
        if address < MARKERS_END:
            self.bus.append((time, line, 0))  # the kernel marks by loads
        elif write:
            if line not in self.waiting:
                self.waiting.append(line)
            if len(self.waiting) > self.lines:
                self.drain(time)
        elif line in self.waiting:
            self.answered.append(time)
        else:
            self.bus.append((time, line, 0))

    def drain(self, time: int) -> None:
        line = self.waiting.pop(0)
        self.bus += [(time + 2, line, 0), (time + 4, line, 1)]


def machine(pages: int, walks: int, lines: int = 4) -> tuple[synthetic.Machine, Queue]:
    """A program that stores to each page once, then walks random ones whose lines are written."""
    made = synthetic.Machine(granularity=8, entries=True, huge=0)
    mm = made.exec()
    for page in range(pages):
        made.access(mm, page << 12, True)
    written = len(made.bus)
    for _ in range(walks):
        made.idle(1000)
        made.walk(mm, made.rng.randrange(pages) << 12, False)
    made.event("ptat_marker", cookie=2)
    return made, put_behind(made, [written], lines)


def put_behind(made: synthetic.Machine, drained: list[int], lines: int = 4) -> Queue:
    """Put a machine's bus behind a queue, which is drained before these rows."""
    queue = Queue(lines)
    for i, (time, address, write) in enumerate(made.bus):
        while i in drained and queue.waiting:
            queue.drain(made.bus[i - 1][0] + 8 * len(queue.waiting))
        queue.access(time, address, write)
    made.bus = sorted(queue.bus)
    return queue


def write(
    made: synthetic.Machine,
    path: Path,
    contract: dict[str, object] = CONTRACT,
    markers: str = "load",
    flushes: bool = True,
) -> Path:
    """Write the session with its contract."""
    made.granularity = LINE_BYTES
    made.truth.sort()
    made.write(path)
    file = path / "session.json"
    description = json.loads(file.read_text())
    description["board"]["contract"] = contract
    description["region"]["markers"] = markers
    description["kernel"]["events"] += FLUSH_EVENTS if flushes else ()
    file.write_text(json.dumps(description))
    return path


def true_misses(made: synthetic.Machine) -> int:
    return sum(not row[5] & truth.Flag.FAULT for row in made.truth)
