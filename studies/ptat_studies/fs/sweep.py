# SPDX-License-Identifier: BSD-2-Clause
"""A sweep over file systems, operations, file sizes and unit sizes, and a single cell of one.

To measure one cell, as `ptat hunt` does for each that it looks at::

    with place.testbed() as where:
        figures = Runner(where, systems.read()).run(Cell("ext4-dax", "write", 1 << 20, 4096))
    figures.misses_per_byte()

`Runner.run` makes the file system anew, so cells do not know of each other and their order is
free. It raises `CellFailed` where a cell is not possible (no space, no DAX), which says nothing of
others, and `PtatError` where the guest or the agent has ended.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ptat_host.reports import counters
from ptat_host.reports.perf_stat import Stat
from ptat_host.reports.repeats import Spread
from ptat_parser.errors import BadInput, PtatError
from ptat_studies.files import write_whole
from ptat_studies.fs import operations
from ptat_studies.fs.place import CellFailed, Place
from ptat_studies.fs.procedure import Job
from ptat_studies.fs.systems import FileSystem

PLAN_FILE = "sweep.json"
CELLS_FILE = "cells.jsonl"
RESULTS_FILE = "results.parquet"
METADATA_BYTES = 8 << 20
"""Left free beside the files."""
SMALL_FILES = 300
"""Of the largest size take as much as those that smallfiles has at a time, half as large."""
DATA_ROLES = ("walks_load", "walks_store")
ALL_ROLES = (*DATA_ROLES, "walks_fetch")


@dataclass(frozen=True, order=True)
class Cell:
    """One point of a sweep."""

    system: str
    operation: str
    file_bytes: int
    unit_bytes: int
    repeat: int = 0

    @property
    def possible(self) -> bool:
        """Whether the file consists of whole units."""
        return self.unit_bytes <= self.file_bytes and not self.file_bytes % self.unit_bytes


@dataclass(frozen=True)
class Value:
    """One number of a cell. `mode`: "all", "user" or "kernel"; `running`: see `perf_stat.Count`."""

    quantity: str
    mode: str
    value: float
    unit: str = ""
    running: float | None = None


@dataclass(frozen=True)
class Figures:
    """What a cell brought. `error`: why it brought nothing."""

    cell: Cell
    values: Sequence[Value]
    steps: Sequence[Mapping[str, object]]
    error: str | None = None

    def value(self, quantity: str, mode: str = "all") -> float | None:
        """A number; None: there is no such."""
        for one in self.values:
            if (one.quantity, one.mode) == (quantity, mode):
                return one.value
        return None

    def misses_per_byte(self, mode: str = "all") -> float | None:
        """Page walks, of data and instructions, per byte transferred."""
        return self.value(WALKS_PER_BYTE, mode)


WALKS = "page walks"
DATA_WALKS = "page walks (data)"
WALKS_PER_BYTE = "page walks per byte"
SECONDS, BYTES, THROUGHPUT = "seconds", "bytes", "bytes per second"


class Runner:
    """Measures cells at a place."""

    def __init__(
        self, place: Place, systems: Mapping[str, FileSystem], total_bytes: int | None = None
    ) -> None:
        """:param total_bytes: that an operation transfers; None: as many as the file has."""
        self._place = place
        self._systems = systems
        self._total_bytes = total_bytes

    def run(self, cell: Cell) -> Figures:
        """Measure one cell, see above."""
        measured = self._place.run(self.job(cell))
        transferred = measured.bytes if measured.bytes is not None else self._total(cell)
        values = [
            Value(SECONDS, "all", measured.seconds, "s"),
            Value(BYTES, "all", transferred, "B"),
            Value(THROUGHPUT, "all", transferred / measured.seconds, "B/s"),
        ]
        for mode, counts in measured.counts.items():
            values += _values(mode, counts, self._place, transferred)
        return Figures(cell, values, measured.steps)

    def job(self, cell: Cell) -> Job:
        """The cell as commands."""
        system = self._systems[cell.system]
        operation = operations.find(cell.operation)
        total_bytes = self._total(cell)
        device = str(self._place.device) if system.needs_device else None
        if system.needs_device and self._place.device is None:
            raise PtatError(f"{cell.system} needs a device", "add --device")
        names = {
            "device": device or "",
            "directory": "{directory}",
            "file": "{directory}/file",
            "file_bytes": cell.file_bytes,
            "total_bytes": total_bytes,
            "unit_bytes": cell.unit_bytes,
            "whole_unit": min(cell.file_bytes, 2 << 20),
        }
        grows = total_bytes if cell.operation == "append" else 0
        files = SMALL_FILES if cell.operation == "smallfiles" else 1
        return Job(
            label=0,
            mkfs=_words(system.mkfs, names),
            mount=_words(system.mount, names),
            dax=system.dax,
            device=device,
            prepare=_words(operations.WRITE_FILE, names) if operation.needs_file else [],
            measure=_words(operation.command, names),
            needs_bytes=cell.file_bytes * files + grows + METADATA_BYTES,
        )

    def _total(self, cell: Cell) -> int:
        wanted = self._total_bytes or cell.file_bytes
        return max(wanted // cell.unit_bytes, 1) * cell.unit_bytes


def _words(command: str, names: Mapping[str, object]) -> list[str]:
    return [word.format_map(names) for word in command.split()]


def _values(mode: str, counts: Stat, place: Place, transferred: int) -> list[Value]:
    values = [
        Value(count.event, mode, count.value, count.unit, count.running)
        for count in counts.counts
        if count.value is not None
    ]
    for metric in counters.metrics(counts, place.cpu):
        values.append(Value(metric.name, mode, metric.value, metric.unit, metric.running))
    data, walks = (
        counters.count_of(counts, place.cpu, *roles) for roles in (DATA_ROLES, ALL_ROLES)
    )
    if data is not None:
        values.append(Value(DATA_WALKS, mode, data))
    if walks is not None:
        values.append(Value(WALKS, mode, walks))
        values.append(Value(WALKS_PER_BYTE, mode, walks / transferred, "1/B"))
    return values


# Many cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a sweep measures; its order follows from it alone."""

    systems: Sequence[str]
    operations: Sequence[str]
    file_bytes: Sequence[int]
    unit_bytes: Sequence[int]
    repeats: int
    where: str
    """The place, for people."""
    total_bytes: int | None = None
    seed: int = 1

    def cells(self) -> list[Cell]:
        """All possible cells in random order, so that what drifts does not look like a result."""
        found = [
            cell
            for repeat in range(self.repeats)
            for system in self.systems
            for operation in self.operations
            for file_bytes in self.file_bytes
            for unit_bytes in self.unit_bytes
            if (cell := Cell(system, operation, file_bytes, unit_bytes, repeat)).possible
        ]
        random.Random(self.seed).shuffle(found)
        return found


@dataclass
class Sweep:
    """A directory with a plan and what has been measured of it."""

    directory: Path
    plan: Plan
    done: dict[Cell, Figures] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path, plan: Plan) -> Sweep:
        """A new sweep, or the rest of one that was begun there.

        :raises PtatError: another plan was begun there, or the directory holds other things.
        """
        plan_path = directory / PLAN_FILE
        if not plan_path.exists():
            if directory.exists() and any(directory.iterdir()):
                raise PtatError(f"{directory} is not empty", "name another directory")
            return cls(directory, plan)
        wanted = json.loads(json.dumps(asdict(plan)))
        try:
            found = json.loads(plan_path.read_text())
        except ValueError:
            raise BadInput(f"{plan_path}: damaged", "name another directory") from None
        if found != wanted:
            differ = sorted(key for key in wanted if found.get(key) != wanted[key])
            raise PtatError(
                f"{directory} has a sweep with other {', '.join(differ)}",
                "name another directory, or the same options",
            )
        sweep = cls(directory, plan)
        sweep.done = {figures.cell: figures for figures in read_cells(directory)}
        return sweep

    @property
    def left(self) -> list[Cell]:
        """Cells that have not been tried."""
        return [cell for cell in self.plan.cells() if cell not in self.done]

    @property
    def failed(self) -> list[Figures]:
        """Cells that brought nothing."""
        return [figures for figures in self.done.values() if figures.error]

    def run(
        self,
        runner: Runner,
        show: Callable[[str, int, int], None],
        cells: Iterable[Cell] | None = None,
    ) -> None:
        """Measure the remaining cells. Each is on the disk before the next begins.

        :param show: see `progress.bar`.
        :param cells: which of those that are left, and in which order; None: all.
        """
        total = len(self.plan.cells())
        plan_path, path = self.directory / PLAN_FILE, self.directory / CELLS_FILE
        if not plan_path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(plan_path, (json.dumps(asdict(self.plan), indent=1) + "\n").encode())
        _drop_partial_line(path)
        with path.open("ab") as file:
            for cell in self.left if cells is None else cells:
                show(f"{cell.system} {cell.operation}", len(self.done), total)
                try:
                    figures = runner.run(cell)
                except CellFailed as error:
                    figures = Figures(cell, (), error.steps, str(error))
                file.write(json.dumps(asdict(figures)).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                self.done[cell] = figures
        show("", total, total)

    def write_results(self) -> Path:
        """Write all figures as Parquet, a row each; return the file."""
        path = self.directory / RESULTS_FILE
        write_whole(path, _parquet(self.done.values()))
        return path


def _drop_partial_line(path: Path) -> None:
    """Of a sweep that was killed while it wrote."""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(path, len(whole))


def read_cells(directory: Path) -> Iterator[Figures]:
    """What a sweep's directory holds; a last line that is not whole is left out.

    :raises BadInput: a line is none of ours.
    """
    path = directory / CELLS_FILE
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield Figures(
                Cell(**row["cell"]),
                [Value(**value) for value in row["values"]],
                row["steps"],
                row["error"],
            )
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                f"{path}: line {number} is damaged", "take it out to measure that cell again"
            ) from None


def _parquet(figures: Iterable[Figures]) -> bytes:
    """Columns: those of `Cell` and of `Value`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [asdict(one.cell) | asdict(value) for one in figures for value in one.values]
    names = ("system", "operation", "quantity", "mode", "unit")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("system", "operation")),
            *((name, pa.int64()) for name in ("file_bytes", "unit_bytes", "repeat")),
            *((name, pa.string()) for name in ("quantity", "mode")),
            ("value", pa.float64()),
            ("unit", pa.string()),
            ("running", pa.float64()),
        ]
    )
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, sink, compression="zstd", use_dictionary=list(names))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@dataclass(frozen=True)
class Summary:
    """The repeats of a cell, which is named by the first of them."""

    cell: Cell
    spread: Spread
    """Named after the quantity: median, spread, and two kinds of runs where there are."""


def summaries(figures: Sequence[Figures], quantity: str, mode: str = "all") -> list[Summary]:
    """Of each cell that has the quantity, in order of the cells."""
    found: dict[Cell, list[float]] = {}
    for one in figures:
        value = one.value(quantity, mode)
        if value is not None:
            found.setdefault(replace(one.cell, repeat=0), []).append(value)
    return [Summary(cell, Spread(quantity, tuple(found[cell]))) for cell in sorted(found)]


def ratios(figures: Sequence[Figures], over: str, under: str, quantity: str) -> dict[str, float]:
    """By operation: the median over sizes of one system's median to another's."""
    medians = {one.cell: one.spread.median for one in summaries(figures, quantity)}
    found: dict[str, list[float]] = {}
    for cell, value in medians.items():
        base = medians.get(replace(cell, system=under))
        if cell.system == over and base:
            found.setdefault(cell.operation, []).append(value / base)
    return {operation: Spread("", tuple(values)).median for operation, values in found.items()}
