# SPDX-License-Identifier: BSD-2-Clause
"""Exports misses in other tools' formats; docs/formats.md shows a line of each.

All writers stream: their memory grows with the pages of the trace, not with its misses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ptat_parser.errors import PtatError
from ptat_parser.formats.traps import Flag
from ptat_parser.results.trace import Misses

PAGE_SIZES = {1 << 12: "4K", 1 << 21: "2M", 1 << 30: "1G"}


@dataclass(frozen=True)
class Format:
    """An export format. `write` writes misses to a file, which must be seekable if `seekable`."""

    write: Callable[[Misses, BinaryIO], None]
    binary: bool = False
    seekable: bool = False


def export(misses: Misses, format: str, path: Path) -> None:
    """Write `misses` to a file in one of `FORMATS`; the file appears only when it is complete.

    :raises PtatError: the file cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.new")
    try:
        with unfinished.open("wb") as out:
            FORMATS[format].write(misses, out)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise PtatError(
            f"{path}: cannot be written: {error.strerror or error}", "make room, or choose -o"
        ) from error
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


# Columns ------------------------------------------------------------------------------------------


def _wide_parquet(misses: Misses, out: BinaryIO) -> None:
    # Times grow slowly: delta encoding. Columns of pages repeat: dictionaries.
    schema = misses.trace.schema
    repeated = [name for name in schema.names if name != "time"]
    with pq.ParquetWriter(
        out,
        schema,
        use_dictionary=repeated,
        column_encoding={"time": "DELTA_BINARY_PACKED"},
        compression="zstd",
        compression_level=1,
    ) as writer:
        for batch in misses.batches():
            writer.write_batch(batch)


def _arrow(misses: Misses, out: BinaryIO) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd", unify_dictionaries=True)
    with pa.ipc.new_file(out, misses.trace.schema, options=options) as writer:
        for batch in misses.batches():
            writer.write_batch(batch)


def _csv(misses: Misses, out: BinaryIO) -> None:
    schema = misses.trace.schema
    at = schema.get_field_index("comm")
    schema = schema.set(at, pa.field("comm", pa.string()))
    options = pa.csv.WriteOptions(quoting_style="needed")
    with pa.csv.CSVWriter(out, schema, write_options=options) as writer:
        for batch in misses.batches():
            columns = batch.columns
            columns[at] = columns[at].cast(pa.string())
            writer.write_batch(pa.record_batch(columns, schema))


# Text, one miss per line --------------------------------------------------------------------------


def seconds(time_ns: pa.Array) -> pa.Array:
    """Times in ns as text, in seconds with nine decimals."""
    whole = pc.divide(time_ns, 1_000_000_000)
    rest = pc.subtract(time_ns, pc.multiply(whole, 1_000_000_000))
    return pc.binary_join_element_wise(
        pc.cast(whole, pa.string()), pc.utf8_lpad(pc.cast(rest, pa.string()), 9, "0"), "."
    )


def printable(comm: str) -> str:
    """A name without spaces, so that the text can be split into columns."""
    return re.sub(r"[^!-~]", lambda found: f"\\x{ord(found[0]):02x}", comm) or "?"


def page_texts(pages: pa.Table, line: Callable[..., str], *columns: str) -> pa.Array:
    """Apply `line` to the columns of each page; names are made printable first."""
    values = [pages[column].to_pylist() for column in columns]
    if "comm" in columns:
        at = columns.index("comm")
        names = {name: printable(name) for name in set(values[at])}
        values[at] = [names[name] for name in values[at]]
    return pa.array([line(*row) for row in zip(*values, strict=True)], pa.string())


def write_joined(out: BinaryIO, *texts: pa.Array) -> None:
    """Write texts joined row by row; Arrow does this without a Python object per row."""
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "")
    # The text of all rows is contiguous in one buffer.
    _, offsets, text = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    if text is not None:
        out.write(memoryview(text)[ends[0] : ends[-1]])


_BLANK = pa.scalar(" ")


def _perf(misses: Misses, out: BinaryIO) -> None:
    def before(comm: str) -> str:
        return f"{comm:>16} "

    def after(vaddr: int, size: int) -> str:
        return f": {1:>10} tlb-miss-{PAGE_SIZES[size].lower()}: {vaddr:>16x}\n"

    pages = misses.trace.pages
    start = page_texts(pages, before, "comm")
    end = page_texts(pages, after, "vaddr", "page_size_bytes")
    tgid = pa.array(pages["tgid"].to_numpy())
    for batch in misses.stored():
        rows = batch["page"]
        # Like perf, name the thread if it is known.
        thread = batch["thread"] if misses.trace.session.traps else tgid.take(rows)
        text = pc.utf8_lpad(seconds(batch["time"]), 15)
        task = pc.utf8_lpad(thread.cast(pa.string()), 7)
        write_joined(out, start.take(rows), task, _BLANK, text, end.take(rows))


_LACKEY_KINDS = pa.array([" L ", " S ", "I  "])


def _lackey(misses: Misses, out: BinaryIO) -> None:
    pages = misses.trace.pages
    lines = page_texts(pages, lambda vaddr: f"{vaddr:08x},1\n", "vaddr")
    headers = page_texts(
        pages, lambda tgid, comm: f"=={tgid}== Command: {comm}\n", "tgid", "comm"
    ).dictionary_encode()
    header_of = headers.indices.to_numpy()
    last = -1
    for batch in misses.stored():
        page = batch["page"].to_numpy()
        header = header_of[page]
        changed = np.diff(header, prepend=last) != 0
        last = header[-1]
        before = headers.dictionary.take(pa.array(header, mask=~changed)).fill_null("")
        kind = _LACKEY_KINDS.take(pa.array(_causes(batch)))
        write_joined(out, before, kind, lines.take(batch["page"]))


def _causes(batch: pa.RecordBatch) -> npt.NDArray[np.uint8]:
    """0 read, 1 write, 2 fetch; a bus does not show it, so always read."""
    if "access" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.uint8)
    access = batch["access"].to_numpy()
    return np.where(access & Flag.FETCH, 2, access & Flag.WRITE).astype(np.uint8)


# Counts -------------------------------------------------------------------------------------------


def _cachegrind(misses: Misses, out: BinaryIO) -> None:
    """Processes become files, ranges of 2 MiB functions, and the pages in them lines."""
    pages = misses.trace.pages
    counts = misses.counts()
    rows = np.flatnonzero(counts)
    vaddr_of = pages["vaddr"].to_numpy().astype(np.int64)
    size, mm = (pages[name].to_numpy()[rows] for name in ("page_size_bytes", "mm"))
    rows = rows[np.lexsort((vaddr_of[rows], size, mm))]
    command = " ".join(printable(word) for word in misses.trace.session.command.argv)
    out.write(f"desc: TLB misses, by ptat\ncmd: {command}\nevents: Misses\n".encode())
    names = page_texts(pages, "fl={}.{}.{}\n".format, "comm", "tgid", "mm")
    areas = page_texts(
        pages,
        lambda vaddr, size: f"fn={vaddr >> 21 << 21:#x} {PAGE_SIZES[size]}\n",
        "vaddr",
        "page_size_bytes",
    )
    last = ""
    for row in rows.tolist():
        name, area = names[row].as_py(), areas[row].as_py()
        if name + area != last:
            last = name + area
            out.write(last.encode())
        out.write(b"%d %d\n" % (vaddr_of[row] >> 12 & 511, counts[row]))
    out.write(b"summary: %d\n" % counts.sum())


# DynamoRIO ----------------------------------------------------------------------------------------

# `trace_entry_t` and its types: clients/drcachesim/common/trace_entry.h of DynamoRIO.
DRMEMTRACE = np.dtype([("type", "<u2"), ("size", "<u2"), ("addr", "<u8")])
_CAUSES = np.array([0, 1, 10], np.uint16)  # read, write, instr
_THREAD, _THREAD_EXIT, _PID, _HEADER, _FOOTER, _MARKER = 22, 23, 24, 25, 26, 28
_TIMESTAMP, _CPU_ID, _FILETYPE, _CACHE_LINE, _VERSION, _PAGE_SIZE = 2, 3, 9, 10, 12, 18
_FORMAT_VERSION = 3
_FILTERED_X86_64 = 0x40 | 0x80 | 0x100  # a filtered trace of data and instructions: misses only
_UNKNOWN_CPU = (1 << 64) - 1

TIMESTAMP_EVERY = 4096
"""Misses between two time stamps; DynamoRIO writes one per buffer."""


def _drmemtrace(misses: Misses, out: BinaryIO) -> None:
    pages = misses.trace.pages
    tgid_of, vaddr_of = pages["tgid"].to_numpy(), pages["vaddr"].to_numpy()
    header = [
        (_HEADER, 0, _FORMAT_VERSION),
        (_MARKER, _VERSION, _FORMAT_VERSION),
        (_MARKER, _FILETYPE, _FILTERED_X86_64),
        (_MARKER, _CACHE_LINE, 64),
        (_MARKER, _PAGE_SIZE, 4096),
    ]
    out.write(np.array(header, DRMEMTRACE).tobytes())
    seen: set[tuple[int, int]] = set()
    last = -1
    for batch in misses.stored():
        time, page = batch["time"].to_numpy(), batch["page"].to_numpy()
        tgid = tgid_of[page]
        thread = batch["thread"].to_numpy() if misses.trace.session.traps else tgid
        # At each change of the thread, and every TIMESTAMP_EVERY misses: thread, time and CPU.
        before = np.diff(thread.astype(np.int64), prepend=last) != 0
        before[::TIMESTAMP_EVERY] = True
        last = int(thread[-1])
        at = np.arange(page.size) + 4 * np.cumsum(before)
        entries = np.zeros(page.size + 4 * np.count_nonzero(before), DRMEMTRACE)
        entries["size"][at] = 1
        entries["type"][at] = _CAUSES[_causes(batch)]
        entries["addr"][at] = vaddr_of[page]
        first = at[before] - 4
        for i, (type_, marker, value) in enumerate(
            (
                (_THREAD, 0, thread[before]),
                (_PID, 0, tgid[before]),
                (_MARKER, _TIMESTAMP, time[before] // 1000),
                (_MARKER, _CPU_ID, _UNKNOWN_CPU),
            )
        ):
            entries["type"][first + i] = type_
            entries["size"][first + i] = marker
            entries["addr"][first + i] = value
        out.write(entries.tobytes())
        seen.update(zip(thread[before].tolist(), tgid[before].tolist(), strict=True))
    for one, process in sorted(seen):
        end = [(_THREAD, 0, one), (_PID, 0, process), (_THREAD_EXIT, 0, one)]
        out.write(np.array(end, DRMEMTRACE).tobytes())
    out.write(np.array([(_FOOTER, 0, 0)], DRMEMTRACE).tobytes())


FORMATS = {
    "wide-parquet": Format(_wide_parquet, binary=True, seekable=True),
    "arrow": Format(_arrow, binary=True, seekable=True),
    "csv": Format(_csv),
    "perf": Format(_perf),
    "lackey": Format(_lackey),
    "cachegrind": Format(_cachegrind),
    "drmemtrace": Format(_drmemtrace, binary=True),
}
