# SPDX-License-Identifier: BSD-2-Clause
"""Reads ``results/``: misses, other reads and pages of a parsed session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import BadInput
from ptat_parser.formats import storage
from ptat_parser.formats.session import Session
from ptat_parser.replay import state as replay_state

if TYPE_CHECKING:  # not imported by a parse, which then starts sooner
    import pyarrow as pa

_NO_ROW = np.iinfo(np.uint32).max
_BLOCK_BITS = np.uint32(9)
_IN_BLOCK = np.uint32((1 << 9) - 1)
KIND_FAULT = replay_state.FAULT
KIND_PMD_READ = replay_state.PMD_READ


@dataclass(frozen=True)
class Results:
    """The results of a session; `summary` is the content of ``summary.json``."""

    session: Session
    summary: dict[str, Any]

    @property
    def path(self) -> Path:
        """The directory that holds the results."""
        return self.session.results_path

    def pages(self) -> pa.Table:
        """``pages.parquet``: one row per page; `page` in other tables is the row's index."""
        stored = self._stored_pages(None)
        row = np.arange(len(stored), dtype=np.uint32)
        return stored.set_column(stored.schema.get_field_index("page"), "page", [row])

    def misses(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
        """Yields batches of misses in bus order: time (ns of kernel time) and row of the page."""
        for batch in self._batches("misses"):
            yield batch["time"].to_numpy(), self.row_of(batch["page"].to_numpy())

    def others(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.uint8]]]:
        """Yields batches of faulted walks and non-leaf reads: time, row of the page, kind."""
        for batch in self._batches("other"):
            page = self.row_of(batch["page"].to_numpy())
            yield batch["time"].to_numpy(), page, batch["kind"].to_numpy()

    @cached_property
    def page_numbers(self) -> npt.NDArray[np.uint32]:
        """Page number of each row, as used in the files of reads; ascending."""
        numbers: npt.NDArray[np.uint32] = self._stored_pages(["page"])["page"].to_numpy()
        return numbers

    def row_of(self, number: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Rows of pages, given their page numbers."""
        starts, row_at = self._rows_by_block
        rows = row_at[starts.take(number >> _BLOCK_BITS, mode="clip") + (number & _IN_BLOCK)]
        if rows.max(initial=0) == _NO_ROW:
            raise BadInput(
                f"{self.path}: pages.parquet does not know a page of the reads",
                "the results are damaged: run ptat parse again",
            )
        return rows

    @cached_property
    def _rows_by_block(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Start of each block of page numbers in the second array, and the rows of the numbers.

        Numbers have gaps; all blocks without pages share one block.
        """
        numbers = self.page_numbers
        block = numbers >> _BLOCK_BITS
        used = np.unique(block)
        starts = np.zeros(int(block.max(initial=0)) + 2, np.uint32)
        starts[used] = np.arange(1, used.size + 1) << _BLOCK_BITS
        row_at = np.full((used.size + 1) << _BLOCK_BITS, _NO_ROW, np.uint32)
        row_at[starts[block] + (numbers & _IN_BLOCK)] = np.arange(numbers.size)
        return starts, row_at

    def _stored_pages(self, columns: list[str] | None) -> pa.Table:
        import pyarrow.parquet as pq

        with storage.opened(self.path / "pages.parquet") as file:
            return pq.read_table(file, columns=columns)

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        directory = self.path / name
        if not directory.is_dir():
            raise BadInput(
                f"{directory}: missing: the session was parsed for counts only",
                "run ptat parse again without --counts-only",
            )
        for part in storage.parts(directory):
            with storage.opened(part) as stored, pq.ParquetFile(stored) as file:
                yield from file.iter_batches(batch_size=1 << 20)
