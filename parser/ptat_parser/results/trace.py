# SPDX-License-Identifier: BSD-2-Clause
"""The Python API: misses by process, time and address, streamed.

``ptat_parser.open(directory)`` returns a `Trace`; nothing is read until the misses are used::

    trace = ptat_parser.open("DIR")
    for batch in trace.misses(pid=42, time=(0, 5_000_000_000)).batches():
        ...

docs/python-api.md has examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from ptat_parser.errors import BadInput, PtatError
from ptat_parser.formats.session import Session
from ptat_parser.formats.storage import dataset, is_remote, location, parts
from ptat_parser.results.pipeline import load
from ptat_parser.results.reader import Results

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS = 1 << 18

Bounds = tuple[int | None, int | None]
"""A half-open interval; None: no bound."""

_OF_PAGE = ("tgid", "comm", "vaddr", "page_size_bytes", "span", "mm")

SCHEMA = pa.schema(
    [
        ("time", pa.int64()),
        ("tgid", pa.int32()),
        ("comm", pa.dictionary(pa.int32(), pa.string())),
        ("vaddr", pa.uint64()),
        ("page_size_bytes", pa.int64()),
        ("span", pa.uint8()),
        ("mm", pa.uint64()),
        ("page", pa.uint32()),
    ]
)
"""Columns of a miss: `time` in ns of kernel time; `vaddr`, the start of its page or, if `span` is
greater than 1, of the first candidate page; `page`, its row in `Trace.pages`."""

TRAP_COLUMNS = (
    pa.field("thread", pa.uint32()),
    pa.field("ip", pa.uint64()),
    pa.field("access", pa.uint8()),
)
"""Further columns in a trap-mode session: the thread's tid, the address of the instruction, and the
flags `WRITE`, `FETCH` and `KERNEL` of `ptat_parser.formats.traps.Flag`."""


def open(directory: Path | str) -> Trace:
    """Open a session; parses it if there are no results.

    `directory` may be in an object store (``s3://bucket/session``).

    :raises PtatError: the session cannot be read.
    """
    return Trace(load(location(directory)))


@dataclass(frozen=True)
class Trace:
    """A parsed session."""

    results: Results

    @property
    def session(self) -> Session:
        """The session's description: what was recorded, and how."""
        return self.results.session

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: totals, processes, losses."""
        return self.results.summary

    @property
    def schema(self) -> pa.Schema:
        """Columns of a miss: `SCHEMA`, and in a trap-mode session `TRAP_COLUMNS`."""
        return pa.schema([*SCHEMA, *TRAP_COLUMNS]) if self.session.traps else SCHEMA

    @cached_property
    def pages(self) -> pa.Table:
        """``pages.parquet``: one row per page of a process; the row's index is `page`."""
        return self.results.pages()

    def misses(
        self,
        *,
        pid: int | None = None,
        time: Bounds = (None, None),
        address: Bounds = (None, None),
    ) -> Misses:
        """Select misses by process (tgid), time (ns) and pages that overlap an address range."""
        directory = self.results.path / "misses"
        if not directory.is_dir():
            raise BadInput(
                f"{directory}: missing: the session was parsed for counts only",
                "run ptat parse again without --counts-only",
            )
        return Misses(self, parts(directory), pid, time, address)


@dataclass(frozen=True)
class Misses:
    """A selection of misses in bus order, read lazily. Made by `Trace.misses`."""

    trace: Trace
    parts: list[Path]
    pid: int | None
    time: Bounds
    address: Bounds

    def raw(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
        """Yields batches of time (ns) and page (row in `Trace.pages`)."""
        for batch in self._selected():
            yield batch["time"].to_numpy(), batch["page"].to_numpy()

    def stored(self) -> Iterator[pa.RecordBatch]:
        """Yields batches of `time`, `page` and, in a trap-mode session, `TRAP_COLUMNS`."""
        names = ["time", "page", *self.trace.schema.names[len(SCHEMA) :]]
        for batch in self._selected():
            try:
                yield batch.select(names)
            except KeyError:
                raise BadInput(
                    f"{self.trace.results.path}: made by another version of ptat",
                    "run ptat parse again",
                ) from None

    def _selected(self) -> Iterator[pa.RecordBatch]:
        wanted = self._pages_wanted
        for batch in self._stored():
            page = self.trace.results.row_of(batch["page"].to_numpy())
            at = batch.schema.get_field_index("page")
            batch = batch.set_column(at, "page", pa.array(page))
            if wanted is not None:
                batch = batch.filter(pa.array(wanted[page]))
            if batch.num_rows:
                yield batch

    def _stored(self) -> Iterator[pa.RecordBatch]:
        """Yields one row group at a time; pyarrow would read ahead however slow the consumer is."""
        in_time = self._time_filter()
        for part in dataset(self.parts).get_fragments(in_time):
            for group in part.split_by_row_group(in_time):
                yield from group.to_batches(filter=in_time, batch_size=BATCH_ROWS)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields batches of `Trace.schema` of at most `BATCH_ROWS` rows."""
        schema = self.trace.schema
        columns = {name: _whole(self.trace.pages[name]) for name in _OF_PAGE}
        columns["comm"] = columns["comm"].dictionary_encode()
        for batch in self.stored():
            found = {name: column.take(batch["page"]) for name, column in columns.items()}
            found |= dict(zip(batch.schema.names, batch.columns, strict=True))
            yield pa.record_batch([found[name] for name in schema.names], schema)

    def to_arrow(self) -> pa.Table:
        """All misses as a table of `Trace.schema`, in memory."""
        return pa.Table.from_batches(self.batches(), self.trace.schema)

    def to_numpy(self) -> dict[str, npt.NDArray[Any]]:
        """All misses as arrays by column name, in memory; without `comm`."""
        table = self.to_arrow().drop_columns(["comm"])
        return {name: table[name].to_numpy() for name in table.column_names}

    def to_polars(self) -> pl.LazyFrame:
        """A lazy frame with the columns of `Trace.schema`; Polars reads only what a query needs.

        :raises PtatError: Polars is not installed (``pip install 'ptat[polars]'``).
        """
        try:
            import polars as pl
        except ImportError:
            raise PtatError("Polars is not installed", "pip install 'ptat[polars]'") from None
        pages = pl.from_arrow(self.trace.pages.select(["page", *_OF_PAGE]))
        assert isinstance(pages, pl.DataFrame)
        pages = pages.with_columns(pl.Series("number", self.trace.results.page_numbers))
        if self.parts and is_remote(self.parts[0]):
            frame = pl.scan_pyarrow_dataset(dataset(self.parts))
        else:
            frame = pl.scan_parquet(self.parts)
        start, stop = self.time
        if start is not None:
            frame = frame.filter(pl.col("time") >= start)
        if stop is not None:
            frame = frame.filter(pl.col("time") < stop)
        wanted = self._pages_wanted
        if wanted is not None:
            pages = pages.filter(pl.Series(wanted))
        joined = frame.rename({"page": "number"}).join(
            pages.lazy(), on="number", maintain_order="left"
        )
        return joined.select(self.trace.schema.names)

    def counts(self) -> npt.NDArray[np.int64]:
        """Number of misses of each page, shape ``(pages,)``, without holding misses in memory."""
        counts = np.zeros(len(self.trace.pages), np.int64)
        for _, page in self.raw():
            counts += np.bincount(page, minlength=counts.size)
        return counts

    def _time_filter(self) -> ds.Expression | None:
        start, stop = self.time
        bounds = [] if start is None else [ds.field("time") >= start]
        bounds += [] if stop is None else [ds.field("time") < stop]
        return bounds[0] & bounds[-1] if bounds else None

    @cached_property
    def _pages_wanted(self) -> npt.NDArray[np.bool_] | None:
        """Mask of the selected pages, or None for all."""
        start, stop = self.address
        if self.pid is None and start is None and stop is None:
            return None
        pages = self.trace.pages
        wanted = np.ones(len(pages), np.bool_)
        if self.pid is not None:
            wanted &= pages["tgid"].to_numpy() == self.pid
        first = pages["vaddr"].to_numpy()
        size = pages["page_size_bytes"].to_numpy() * pages["span"].to_numpy()
        if start is not None:
            wanted &= first + size.astype(np.uint64) > np.uint64(start)
        if stop is not None:
            wanted &= first < np.uint64(stop)
        return wanted


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else found.chunk(0)
