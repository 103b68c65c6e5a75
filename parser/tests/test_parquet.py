# SPDX-License-Identifier: BSD-2-Clause
"""What the writer writes is what pyarrow, Polars and DuckDB read."""

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser.formats import parquet
from ptat_parser.formats.parquet import PAGE_ROWS, Column, Text, Writer

COLUMNS = [Column("time", np.int64), Column("page", np.uint32), Column("kind", np.uint8)]


def write(path, *columns, rows=90_000):
    with path.open("wb") as file, Writer(file, COLUMNS) as writer:
        for start in range(0, columns[0].size, rows):
            writer.write(*(column[start : start + rows] for column in columns))
    return path


def example(rows, seed=1):
    rng = np.random.default_rng(seed)
    time = rng.exponential(40, rows).astype(np.int64).cumsum() - 10**12
    page = rng.integers(0, 500_000, rows).astype(np.uint32)
    page[: rows // 4] = np.arange(rows // 4)  # differences that are all the same
    return time, page, rng.integers(1, 3, rows).astype(np.uint8)


def by_pyarrow(path):
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def by_polars(path):
    return {column.name: column.to_numpy() for column in pl.read_parquet(path)}


def by_duckdb(path):
    return {
        name: np.asarray(column)
        for name, column in duckdb.sql(f"SELECT * FROM '{path}'").fetchnumpy().items()
    }


@pytest.mark.parametrize("reader", [by_pyarrow, by_polars, by_duckdb])
@pytest.mark.parametrize("rows", [1, 2, 128, 129, 130, PAGE_ROWS, PAGE_ROWS + 1, 200_003])
def test_readers(tmp_path, monkeypatch, reader, rows):
    monkeypatch.setattr(parquet, "GROUP_ROWS", 150_000)
    columns = example(rows)
    found = reader(write(tmp_path / "f.parquet", *columns))
    for column, values in zip(COLUMNS, columns, strict=True):
        assert found[column.name].dtype == column.dtype
        np.testing.assert_array_equal(found[column.name], values)


def test_no_rows(tmp_path):
    table = pq.read_table(write(tmp_path / "f", *(values[:0] for values in example(1))))
    assert table.num_rows == 0
    assert table.schema.equals(
        pa.schema([
            pa.field("time", pa.int64(), nullable=False),
            pa.field("page", pa.uint32(), nullable=False),
            pa.field("kind", pa.uint8(), nullable=False),
        ])
    )  # fmt: skip


@pytest.mark.parametrize("reader", [by_pyarrow, by_polars, by_duckdb])
@pytest.mark.parametrize("words", [1, 2, 3, 257])
@pytest.mark.parametrize("rows", [1, 9, 33, PAGE_ROWS + 1, 200_003])
def test_text(tmp_path, monkeypatch, reader, words, rows):
    monkeypatch.setattr(parquet, "GROUP_ROWS", 150_000)
    texts = ["", "gups", "größer"][:words] + [f"number {i}" for i in range(words - 3)]
    column = np.random.default_rng(rows).integers(0, words, rows).astype(np.uint32)
    path = tmp_path / "f.parquet"
    with path.open("wb") as file, Writer(file, [Text("comm", texts), COLUMNS[1]]) as writer:
        writer.write(column, column)
    found = reader(path)
    assert found["comm"].tolist() == [texts[i] for i in column.tolist()]
    assert found["page"].tolist() == column.tolist()


def test_text_of_no_rows(tmp_path):
    path = tmp_path / "f.parquet"
    with path.open("wb") as file, Writer(file, [Text("comm", ["a"])]) as writer:
        writer.write(np.empty(0, np.uint32))
    table = pq.read_table(path)
    assert table.num_rows == 0
    assert table.schema.field("comm").type == pa.string()


def test_large_unsigned_values(tmp_path):
    values = np.array([3, 1 << 63, (1 << 64) - 1, 0], np.uint64)
    path = tmp_path / "f.parquet"
    with path.open("wb") as file, Writer(file, [Column("mm", np.uint64)]) as writer:
        writer.write(values)
    for reader in (by_pyarrow, by_polars, by_duckdb):
        np.testing.assert_array_equal(reader(path)["mm"], values)
    statistics = pq.ParquetFile(path).metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (0, (1 << 64) - 1)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=400))
def test_any_values(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("any") / "f.parquet"
    with path.open("wb") as file, Writer(file, COLUMNS[:1]) as writer:
        writer.write(np.array(values, np.int64))
    assert by_pyarrow(path)["time"].tolist() == values
    assert by_polars(path)["time"].tolist() == values


def test_widths(tmp_path):
    """Each width that differences can have, from 0 to 64 bits."""
    rng = np.random.default_rng(2)
    deltas = [rng.integers(0, 1 << bits, 128, np.uint64, endpoint=True) for bits in range(64)]
    values = np.concatenate(deltas).cumsum(dtype=np.uint64).view(np.int64)
    path = tmp_path / "f.parquet"
    with path.open("wb") as file, Writer(file, COLUMNS[:1]) as writer:
        writer.write(values)
    for reader in (by_pyarrow, by_polars, by_duckdb):
        np.testing.assert_array_equal(reader(path)["time"], values)


def test_largest_page_numbers(tmp_path):
    page = np.array([0, (1 << 31) - 1, 0, (1 << 31) - 1], np.uint32)
    path = tmp_path / "f.parquet"
    with path.open("wb") as file, Writer(file, COLUMNS[1:2]) as writer:
        writer.write(page)
    for reader in (by_pyarrow, by_polars, by_duckdb):
        np.testing.assert_array_equal(reader(path)["page"], page)


def test_statistics_find_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "PAGE_ROWS", 50)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 100)
    time, page, kind = example(1000)
    path = write(tmp_path / "f.parquet", time, page, kind, rows=70)
    metadata = pq.ParquetFile(path).metadata
    for group in range(10):
        rows = slice(group * 100, group * 100 + 100)
        for column, values in enumerate((time, page, kind)):
            statistics = metadata.row_group(group).column(column).statistics
            assert (statistics.min, statistics.max) == (values[rows].min(), values[rows].max())
            assert statistics.null_count == 0


def test_rows_at_a_time_make_no_difference(tmp_path):
    columns = example(PAGE_ROWS * 2 + 5)
    whole = write(tmp_path / "whole", *columns)
    for rows in (1009, PAGE_ROWS, PAGE_ROWS + 3):
        assert write(tmp_path / str(rows), *columns, rows=rows).read_bytes() == whole.read_bytes()


def test_error_leaves_no_whole_file(tmp_path):
    path = tmp_path / "f.parquet"
    with pytest.raises(OSError, match="full"), path.open("wb") as file, Writer(file, COLUMNS):
        raise OSError("full")
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(path)
