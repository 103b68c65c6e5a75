# SPDX-License-Identifier: BSD-2-Clause
"""``ptat top``: current misses of a session during its recording, or all misses of an ended one."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from stat import S_ISREG
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ptat_host import console
from ptat_host.boards import buffer_fill
from ptat_host.boards.buffer_fill import Fill
from ptat_host.recording import maps, symbols
from ptat_host.recording.session_recording import RUNNING
from ptat_host.reports.objects import Objects
from ptat_host.reports.session_report import printable
from ptat_host.sizes import format_size
from ptat_parser import Trace
from ptat_parser.errors import PtatError
from ptat_parser.formats.session import Session
from ptat_parser.live.bus_monitor import BusMonitor
from ptat_parser.live.increment import Increment, rows
from ptat_parser.live.trap_monitor import TrapMonitor
from ptat_parser.results.pipeline import load

STARTING, RECORDING, ENDED = "starting", "recording", "ended"
QUIET_S = 3.0
"""Time without a record after which the view reports it."""

Modules = tuple[frozenset[str], int]


@dataclass
class Rate:
    """Misses of a process or an object."""

    name: str
    kind: str
    tgid: int
    misses: int
    """Misses in the interval."""
    misses_per_s: float
    total: int
    """Misses since the recording began."""


@dataclass
class View:
    """A session at one moment. Times are of the bus."""

    session: str
    command: list[str]
    state: str
    """starting, recording (or its recorder was killed), ended."""
    elapsed_s: float = 0.0
    interval_s: float = 0.0
    """Time that the rates cover: since the previous view, or all of it."""
    quiet_s: float = 0.0
    """Time since the last record."""
    misses: int = 0
    misses_per_s: float = 0.0
    total: int = 0
    faulted: int = 0
    pmd_reads: int = 0
    unexplained: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """Losses since the recording began: accesses, blocks, kernel_events, records of traps."""
    waiting: int = 0
    """Accesses that were captured but wait for the kernel's log."""
    buffers: list[Fill] = field(default_factory=list)
    session_bytes: int = 0
    free_bytes: int = 0
    """On the session's disk."""
    full_in_s: float | None = None
    """Time until the disk is full at this rate; None: the session does not grow."""
    processes: list[Rate] = field(default_factory=list)
    objects: list[Rate] | None = None
    """None: mappings are not recorded."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Follower:
    """Follows one session."""

    def __init__(self, path: Path, top: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`top`: number of processes and objects to list; `clock` returns seconds."""
        self._path = path
        self._top = top
        self._clock = clock
        self._monitor: BusMonitor | TrapMonitor | None = None
        self._session: Session | None = None
        self._begun = False
        self._total = Increment()
        self._of_process: dict[int, int] = {}
        self._of_object: dict[tuple[int, str, str], int] = {}
        self._seen_s = 0.0
        self._heard_at = clock()
        self._bytes: tuple[float, int] | None = None
        self._modelled_records: int | None = None
        self._names: tuple[Modules, symbols.Symbols] | None = None

    def view(self) -> View:
        """Read what was added, and return the current view.

        Raises `PtatError` where there is no session, or one that cannot be read.
        """
        description = _description(self._path)
        running = not description.get("complete") and (
            description.get("incomplete_reason") == RUNNING
        )
        if not running and not self._begun:
            return self._whole()
        if self._monitor is None:
            if running and not (description.get("region") and self._captured(description)):
                return View(str(self._path), description["command"]["argv"], STARTING)
            self._session = Session(self._path)
            self._monitor = (
                TrapMonitor(self._session) if self._session.traps else self._bus_monitor()
            )
        assert self._session is not None
        first, self._begun = not self._begun, True
        found = self._monitor.update()
        elapsed_s = self._monitor.seconds
        interval_s = elapsed_s if first else elapsed_s - self._seen_s
        self._seen_s = elapsed_s
        self._add(found)
        now = self._clock()
        if found.accesses:
            self._heard_at = now
        fills = [*buffer_fill.read(self._path), *self._modelled()]
        view = View(
            str(self._path),
            self._session.command.argv,
            RECORDING if running else ENDED,
            elapsed_s,
            interval_s,
            now - self._heard_at,
            found.misses,
            _per_s(found.misses, interval_s),
            self._total.misses,
            self._total.faulted,
            self._total.pmd_reads,
            self._total.unexplained,
            {
                "accesses": self._total.lost_accesses,
                "blocks": self._total.lost_blocks,
                "kernel_events": self._total.lost_events,
                "traps": sum(fill.lost for fill in fills),
            },
            self._monitor.waiting,
            fills,
        )
        self._count(view, found, interval_s)
        self._disk(view, now)
        return view

    def _bus_monitor(self) -> BusMonitor:
        assert self._session is not None
        drain_per_s = None
        if model := re.fullmatch(r"(\d+):(\d+)", self._session.options.get("buffer", "")):
            self._modelled_records, drain_per_s = int(model[1]), float(model[2])
        return BusMonitor(self._session, self._clock, drain_per_s)

    def _captured(self, description: dict[str, Any]) -> bool:
        files = [*description["board"].get("channels", []), *description.get("traps", [])]
        return any((self._path / one["file"]).exists() for one in files)

    def _add(self, found: Increment) -> None:
        for name, value in vars(found).items():
            if isinstance(value, int) and name != "stopped":
                setattr(self._total, name, getattr(self._total, name) + value)

    # Whose ----------------------------------------------------------------------------------------

    def _count(self, view: View, found: Increment, interval_s: float) -> None:
        assert self._monitor is not None
        columns = rows(found.pages)
        mms, misses = self._monitor.mms, columns["misses"]
        by_mm = np.bincount(columns["mm"], misses, len(mms)).astype(np.int64).tolist()
        for index, count in enumerate(by_mm):
            self._of_process[index] = self._of_process.get(index, 0) + count
        view.processes = [
            Rate(
                printable(mms[index].comm) or "?",
                "process",
                mms[index].tgid,
                by_mm[index],
                _per_s(by_mm[index], interval_s),
                total,
            )
            for index, total in self._of_process.items()
            if total
        ]
        view.processes.sort(key=lambda one: (-one.misses, -one.total, one.tgid))
        del view.processes[self._top :]
        if maps.path_of(self._path).exists():
            view.objects = self._objects(columns, interval_s)

    def _objects(self, columns: dict[str, npt.NDArray[Any]], interval_s: float) -> list[Rate]:
        assert self._monitor is not None and self._session is not None
        mm, mms, size = columns["mm"], self._monitor.mms, columns["mm"].size
        tgid = np.array([one.tgid for one in mms], np.int64)
        comm = pa.array([one.comm for one in mms], pa.string())
        pages = pa.table(
            {
                "vaddr": columns["vaddr"],
                "page_size_bytes": columns["page_size_bytes"],
                "span": np.full(size, self._monitor.span, np.uint8),
                "tgid": tgid[mm] if size else np.zeros(0, np.int64),
                "comm": comm.take(pa.array(mm)),
            }
        )
        cycles_hz = self._session.kernel.tsc_hz
        trace = SimpleNamespace(
            session=self._session, pages=pages, summary={"clock": {"cycles_hz": cycles_hz}}
        )
        objects = Objects(cast(Trace, trace), self._symbols(cycles_hz))
        index = objects.of(columns["time_ns"], np.arange(size, dtype=np.uint32))
        counts = np.bincount(index, columns["misses"], len(objects.objects)).astype(np.int64)
        now: dict[tuple[int, str, str], int] = {}
        for one, count in zip(objects.objects, counts.tolist(), strict=True):
            # An address in the place of a name tells two mappings apart.
            where = f" {one.detail}" if one.kind in ("anonymous", "huge pages") else ""
            key = one.tgid, one.kind, printable(one.name + where)
            now[key] = now.get(key, 0) + count
        for key, count in now.items():
            self._of_object[key] = self._of_object.get(key, 0) + count
        found = [
            Rate(key[2], key[1], key[0], now.get(key, 0), _per_s(now.get(key, 0), interval_s), all_)
            for key, all_ in self._of_object.items()
            if all_
        ]
        found.sort(key=lambda one: (-one.misses, -one.total, one.name))
        return found[: self._top]

    def _symbols(self, cycles_hz: float) -> symbols.Symbols:
        """Names in the mapped programs, read again when mappings or call chains are new."""
        mapped = maps.read(maps.path_of(self._path), cycles_hz)
        frames = {
            frame
            for regions in mapped.heap.values()
            for region in regions
            for frame in region.mapping.frames
        }
        key = frozenset(mapped.files), len(frames)
        if self._names is None or self._names[0] != key:
            self._names = key, symbols.gather(mapped)
        return self._names[1]

    # How full -------------------------------------------------------------------------------------

    def _modelled(self) -> list[Fill]:
        """Fill level of the testbed's modelled buffer, which drains at a constant rate."""
        if self._modelled_records is None:
            return []
        assert self._monitor is not None
        return [Fill("capture", self._monitor.level, self._modelled_records, "records")]

    def _disk(self, view: View, now: float) -> None:
        view.session_bytes = sum(map(_size_bytes, self._path.rglob("*")))
        view.free_bytes = shutil.disk_usage(self._path).free
        if self._bytes and now > self._bytes[0] and view.session_bytes > self._bytes[1]:
            grown = (view.session_bytes - self._bytes[1]) / (now - self._bytes[0])
            view.full_in_s = view.free_bytes / grown
        self._bytes = now, view.session_bytes

    # The end --------------------------------------------------------------------------------------

    def _whole(self) -> View:
        """The view of a session that had ended before: its results, which are parsed if needed."""
        results = load(self._path)
        summary, trace = results.summary, Trace(results)
        pages = trace.pages
        begin, end = pc.min(pages["first_ns"]).as_py(), pc.max(pages["last_ns"]).as_py()
        elapsed_s = (end - begin) / 1e9 if len(pages) else 0.0
        totals = summary["totals"]
        view = View(
            str(self._path),
            trace.session.command.argv,
            ENDED,
            elapsed_s,
            elapsed_s,
            misses=totals["misses"],
            misses_per_s=_per_s(totals["misses"], elapsed_s),
            total=totals["misses"],
            faulted=totals["faulted"],
            pmd_reads=totals["pmd_reads"],
            unexplained=summary["unexplained"]["reads"],
            lost={name: summary["losses"].get(name, 0) for name in _LOSSES},
        )

        def rate(name: str, kind: str, tgid: int, misses: int) -> Rate:
            return Rate(
                printable(name) or "?", kind, tgid, misses, _per_s(misses, elapsed_s), misses
            )

        processes = sorted(summary["processes"], key=lambda process: -process["misses"])
        view.processes = [
            rate(process["comm"], "process", process["tgid"], process["misses"])
            for process in processes[: self._top]
            if process["misses"]
        ]
        if maps.path_of(self._path).exists() and (results.path / "misses").is_dir():
            view.objects = [
                rate(one.name, one.kind, one.tgid, one.misses)
                for one in Objects(trace).count()[: self._top]
            ]
        self._disk(view, self._clock())
        return view


_LOSSES = ("accesses", "blocks", "kernel_events", "traps")


def _size_bytes(path: Path) -> int:
    """Size of a file; 0 if it is none or no longer exists: a recorder replaces files meanwhile."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if S_ISREG(status.st_mode) else 0


def _per_s(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _description(path: Path) -> dict[str, Any]:
    """``session.json``, also of a recording that knows nothing yet."""
    try:
        found = json.loads((path / "session.json").read_bytes())
        if isinstance(found["command"]["argv"], list):
            return dict(found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    Session(path)  # says what is wrong
    raise PtatError(f"{path}: not a session", "name a directory made by ptat record")


# Output -------------------------------------------------------------------------------------------


def views(follower: Follower, interval_s: float) -> Iterator[View]:
    """Views until the recording has ended; the last one shows its end."""
    while True:
        view = follower.view()
        yield view
        if view.state == ENDED:
            return
        time.sleep(interval_s)


def show(follower: Follower, interval_s: float, *, as_json: bool) -> None:
    """Show one view after the other until the recording has ended, or the user quits."""
    try:
        if as_json or not sys.stdout.isatty():
            for view in views(follower, interval_s):
                if as_json:
                    print(json.dumps(view.as_dict()), flush=True)
                else:
                    console.show(render(view))
                    sys.stdout.flush()
            return
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            for view in views(follower, interval_s):
                live.update(render(view), refresh=True)
    except KeyboardInterrupt:
        return


def render(view: View) -> RenderableType:
    """One screen of text."""
    title = Text.assemble(
        (printable(shlex.join(view.command)), "bold"), f"  {view.state}, {view.elapsed_s:.1f} s"
    )
    if view.state == STARTING:
        return Group(title, Text("nothing captured yet; some boards report only at the end"))
    lost = ", ".join(f"{kind} {count:,}" for kind, count in view.lost.items() if count)
    lines = [
        title,
        Text(f"{view.misses_per_s:>14,.0f} misses/s   {view.total:,} in all"),
        Text.assemble(
            "          lost  ", (lost or "nothing", "bold red" if lost else ""),
            f"   waiting for the kernel's log {view.waiting:,}" if view.waiting else "",
        ),
        Text(f"          disk  {_disk(view)}"),
    ]  # fmt: skip
    lines += [
        Text(f"        buffer  {one.name}: {one.used:,} of {one.size:,} {one.unit}")
        for one in view.buffers
    ]
    if view.unexplained:
        lines.append(Text(f"! reads of no known table: {view.unexplained:,}", style="bold red"))
    if view.state == RECORDING and view.quiet_s >= QUIET_S:
        lines.append(Text(f"no data for {view.quiet_s:.0f} s", style="bold yellow"))
    parts: list[RenderableType] = [*lines, "", _rates("process", view.processes)]
    if view.objects is not None:
        parts += ["", _rates("object", view.objects)]
    return Group(*parts)


def _disk(view: View) -> str:
    text = f"{format_size(view.session_bytes)} written, {format_size(view.free_bytes)} free"
    if view.full_in_s is not None:
        text += f", full in {_long(view.full_in_s)}"
    return text


def _long(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def _rates(title: str, rates: list[Rate]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("misses/s", justify="right")
    table.add_column("in all", justify="right")
    table.add_column("tgid", justify="right")
    table.add_column(title)
    for one in rates:
        kind = "" if one.kind == "process" else f"  {one.kind}"
        table.add_row(
            f"{one.misses_per_s:,.0f}", f"{one.total:,}", str(one.tgid), Text(f"{one.name}{kind}")
        )
    return table
