# SPDX-License-Identifier: BSD-2-Clause
import gzip
import io
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ptat_parser
from ptat_parser.errors import BadInput
from ptat_parser.formats import access_log
from ptat_parser.formats.session import Session
from ptat_parser.kernel.log import read_kernel_log
from ptat_parser.kernel.tracepoints import MM_ATTACH
from ptat_parser.results.export import DRMEMTRACE
from ptat_studies.pagesize import accesses
from ptat_studies.pagesize.accesses import ACCESS_MAX_BYTES, FORMATS, Kind, open_trace

NAMES = {Kind.FETCH: "readi", Kind.READ: "readd", Kind.WRITE: "write"}
LETTERS = {Kind.FETCH: "I  ", Kind.READ: " L ", Kind.WRITE: " S "}

ROWS = st.lists(
    st.tuples(
        st.sampled_from([Kind.FETCH, Kind.READ, Kind.WRITE]),
        st.integers(0, 2**64 - ACCESS_MAX_BYTES),
        st.integers(1, ACCESS_MAX_BYTES),
    ),
    min_size=1,
)


def rows_of(trace):
    """Everything in it, as tuples."""
    found = []
    for batch in trace.batches:
        found += zip(
            map(Kind, batch.kind.tolist()), batch.address.tolist(), batch.size.tolist(), strict=True
        )
    return found


def read(tmp_path, data, kind=None):
    path = tmp_path / "trace"
    path.write_bytes(data)
    trace = open_trace(str(path), kind)
    return rows_of(trace), trace


@given(ROWS, st.sampled_from(["{} 0x{:x} {}\n", "{}\t0x{:08X}\t{}\r\n", " {}  {:016x} {} \n\n"]))
def test_text(tmp_path_factory, rows, line):
    text = "".join(line.format(NAMES[kind], address, size) for kind, address, size in rows)
    found, trace = read(tmp_path_factory.mktemp("t"), text.encode(), "text")
    assert found == rows
    assert not trace.rejected.rows


@given(ROWS)
def test_lackey(tmp_path_factory, rows):
    lines = [f"{LETTERS[kind]}{address:08x},{size}\n" for kind, address, size in rows]
    lines.insert(len(lines) // 2, "==42== Command: ls\n--42-- a warning\n")
    found, trace = read(tmp_path_factory.mktemp("t"), "".join(lines).encode(), "lackey")
    assert found == rows
    assert not trace.rejected.rows


def test_a_modified_place_is_read_and_written(tmp_path):
    found, trace = read(tmp_path, b" M 04222c00,8\n")
    assert trace.format == "lackey"
    assert found == [(Kind.READ, 0x4222C00, 8), (Kind.WRITE, 0x4222C00, 8)]


MALFORMED = [
    *("readx 0x1 4", "readd 0x1", "readd", "readd 0x1 4 5", "readd 0x 4", "readd 0xg 4"),
    *("readd 0x1 0", "readd 0x1 -4", "readd 0x1 4k", f"readd 0x1 {ACCESS_MAX_BYTES + 1}"),
    *(
        "readd 0x10000000000000000 4",
        "readd 0xffffffffffffffff 2",
        "write 0x1 99999999999999999999",
    ),
    *("read 0x1 4", ": : :", "\x00\xff"),
]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_line_is_left_out_and_counted(tmp_path, line):
    text = f"readd 0x1000 8\n\n{line}\n# {line}\nwrite 0xffffffffffffffff 1\n{line}"
    found, trace = read(tmp_path, text.encode("latin-1"))
    assert found == [(Kind.READ, 0x1000, 8), (Kind.WRITE, 2**64 - 1, 1)]
    assert (trace.rejected.rows, trace.rejected.first) == (2, 3)
    assert str(trace.rejected) == "2 malformed lines, the first is line 3"


@pytest.mark.parametrize("line", [" L 0x10,4", " L 10", " X 10,4", "L", " LL 10,4", " L 10,4,4"])
def test_a_malformed_line_of_lackey(tmp_path, line):
    found, trace = read(tmp_path, f"==1== Lackey\n L 10,4\n{line}\n".encode())
    assert found == [(Kind.READ, 0x10, 4)]
    assert (trace.rejected.rows, trace.rejected.first) == (1, 3)


def test_lines_are_counted_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(accesses, "READ_BYTES", 100)
    rows = [(Kind.READ, 4096 * i, 8) for i in range(1000)]
    lines = [f"readd {address:#x} {size}\n" for _, address, size in rows]
    lines[777:777] = ["oh\n"]
    found, trace = read(tmp_path, "".join(lines).encode())
    assert found == rows
    assert (trace.rejected.rows, trace.rejected.first) == (1, 778)


def test_a_line_without_end(tmp_path):
    with pytest.raises(BadInput, match="line 2 is longer than a trace's"):
        read(tmp_path, b"readd 0x1 4\n" + b"x" * 5_000_000)


@given(st.binary(max_size=400), st.sampled_from(sorted(FORMATS)))
@example(b"", "testbed")
@example(b"readd", "text")
def test_no_input_does_harm(tmp_path_factory, data, kind):
    """Found accesses make sense; what is not one is counted or refused."""
    try:
        found, _ = read(tmp_path_factory.mktemp("t"), data, kind)
    except BadInput:
        return
    assert all(0 < size <= ACCESS_MAX_BYTES and at + size <= 2**64 for _, at, size in found)


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_compressed(tmp_path, codec):
    text = b"".join(b"readd %#x 8\n" % (i * 64) for i in range(300_000))
    path = tmp_path / "compressed"
    with pa.CompressedOutputStream(str(path), codec) as out:
        out.write(text)
    found, trace = read(tmp_path, path.read_bytes())
    assert len(found) == 300_000 and not trace.rejected.rows


def test_compressed_and_cut_off(tmp_path):
    data = gzip.compress(b"".join(b"readd %#x 8\n" % (i * i) for i in range(100_000)))
    with pytest.raises(BadInput, match="is it cut off"):
        read(tmp_path, data[: len(data) // 2])


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "is empty"), (b"\x7fELF" * 30, "not a trace of a known kind")],
)
def test_what_is_no_trace(tmp_path, data, message):
    with pytest.raises(BadInput, match=message):
        read(tmp_path, data)


def test_standard_input(monkeypatch):
    data = io.BufferedReader(io.BytesIO(b"write 0x10 4\n"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data))
    assert rows_of(open_trace("-")) == [(Kind.WRITE, 0x10, 4)]


# DynamoRIO ----------------------------------------------------------------------------------------


def entries(*rows):
    return np.array([(25, 0, 2), *rows, (26, 0, 0)], DRMEMTRACE).tobytes()


def test_drmemtrace(tmp_path):
    data = entries(
        (22, 0, 100),
        (24, 0, 7),
        (28, 2, 1234),  # marker
        (10, 3, 0x401000),
        (0, 8, 0x7FFF_0000_0000),
        (47, 4, 0x90909090),  # encoding
        (16, 1, 0x401003),
        (1, 4, 0x5000),
        (3, 64, 0x6000),  # a prefetch is no access
        (10, 0, 0x402000),  # where the program is
        (24, 0, 8),
        (0, 8, 0x5000),
        (24, 0, 7),
        (48, 2, 0x401004),
    )
    found, trace = read(tmp_path, data)
    assert trace.format == "drmemtrace" and not trace.rejected.rows
    assert found == [
        (Kind.FETCH, 0x401000, 3),
        (Kind.READ, 0x7FFF_0000_0000, 8),
        (Kind.FETCH, 0x401003, 1),
        (Kind.WRITE, 0x5000, 4),
        (Kind.READ, 0x5000 | 1 << 48, 8),
        (Kind.FETCH, 0x401004, 2),
    ]


def test_drmemtrace_may_name_the_process_first(tmp_path, monkeypatch):
    """As the trace, or what is read of it at a time, begins."""
    data = entries((24, 0, 7), (0, 8, 0x1000), (24, 0, 8), (0, 8, 0x1000))
    for read_bytes in (len(data), len(data) // 2):
        monkeypatch.setattr(accesses, "READ_BYTES", read_bytes)
        assert read(tmp_path, data)[0] == [
            (Kind.READ, 0x1000, 8),
            (Kind.READ, 0x1000 | 1 << 48, 8),
        ]


def test_drmemtrace_bundles_go_on_where_the_instruction_before_ended(tmp_path):
    data = entries((10, 3, 0x1000), (17, 3, 0x020504), (17, 1, 0x01))
    assert read(tmp_path, data)[0] == [
        (Kind.FETCH, 0x1000, 3),
        (Kind.FETCH, 0x1003, 4),
        (Kind.FETCH, 0x1007, 5),
        (Kind.FETCH, 0x100C, 2),
        (Kind.FETCH, 0x100E, 1),
    ]


def test_drmemtrace_malformed(tmp_path):
    data = entries((0, 8, 0x1000), (999, 8, 0x1000), (0, 0, 0x1000), (0, 8, 2**64 - 4))
    found, trace = read(tmp_path, data + b"cut")
    assert found == [(Kind.READ, 0x1000, 8)]
    assert str(trace.rejected) == "4 malformed records, the first is record 3"


def test_drmemtrace_in_an_archive(tmp_path):
    data = entries(*((0, 8, 64 * i) for i in range(1000)))
    path = tmp_path / "trace.zip"
    part = len(data) // 4 + 1
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(4):
            archive.writestr(f"chunk.{i:04}", data[part * i : part * (i + 1)])
        archive.writestr("schedule", b"other things")
    trace = open_trace(str(path))
    assert [address for _, address, _ in rows_of(trace)] == [64 * i for i in range(1000)]
    assert not trace.rejected.rows


# The testbed --------------------------------------------------------------------------------------


def log(*rows, end=None):
    """A testbed's file of (kind, log2 of size, address), or of a space's number."""
    words, last, count = [access_log.HEADER], 0, 0
    for row in rows:
        if isinstance(row, int):
            words.append(access_log.BASE << 62 | 1 << access_log.BASE_SPACE_SHIFT | row)
            continue
        kind, shift, va = row
        words.append(kind << 62 | shift << access_log.SIZE_SHIFT | (va - last) % 2**47)
        last, count = va, count + 1
    words.append(access_log.BASE << 62 | (count if end is None else end))
    return gzip.compress(np.array(words, "<u8").tobytes())


def test_testbed(tmp_path):
    last = 2**47 - 8
    data = log(5, (0, 3, last), (1, 0, 0), 6, (2, 0, 0x400123), 5, (0, 6, 0x1000))
    found, trace = read(tmp_path, data)
    assert trace.format == "testbed" and not trace.rejected.rows
    assert found == [
        (Kind.READ, last, 8),
        (Kind.WRITE, 0, 1),
        (Kind.FETCH, 0x400123 | 1 << 48, 1),
        (Kind.READ, 0x1000, 64),
    ]


@given(
    st.lists(
        st.integers(0, 9)
        | st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 2**47 - 64))
    ),
    st.integers(2, 50),
)
def test_testbed_in_pieces(tmp_path_factory, rows, piece):
    path = tmp_path_factory.mktemp("t") / "trace"
    path.write_bytes(log(*rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accesses, "READ_BYTES", piece)
        trace = open_trace(str(path), "testbed")
        found = rows_of(trace)
    assert [address % 2**48 for _, address, _ in found] == [
        row[2] for row in rows if isinstance(row, tuple)
    ]
    assert not trace.rejected.rows


def test_testbed_without_its_end(tmp_path):
    data = gzip.decompress(log(5, (0, 3, 4096), (0, 3, 8192)))
    for whole in (data[:-8], data[:-3], gzip.decompress(log((0, 3, 4096), end=2))):
        found, trace = read(tmp_path, whole)
        assert found and trace.rejected.rows == 1


def test_testbed_of_what_a_session_traced(session):
    """Other programs of the machine are in the file, too."""
    found = session()
    log_ = read_kernel_log(found / "kernel").tables
    pgds = [int(pgd) >> 12 for pgd in log_["pgd"][log_["kind"] == MM_ATTACH]]
    other = max(pgds) + 1
    data = log(pgds[0], (0, 3, 0x1000), other, (0, 3, 0x2000), pgds[-1], (1, 3, 0x3000))
    (found / access_log.FILE).write_bytes(data)
    trace = accesses.of_testbed(Session(found))
    assert [address % 2**48 for _, address, _ in rows_of(trace)] == [0x1000, 0x3000]
    assert not trace.rejected.rows
    (found / access_log.FILE).unlink()
    with pytest.raises(BadInput, match="--accesses yes"):
        accesses.of_testbed(Session(found))


def test_a_session_is_its_misses(session):
    trace = ptat_parser.open(session(granularity=64))
    found = rows_of(accesses.of_session(trace))
    pages = trace.pages.to_pylist()
    missed = [page for _, batch in trace.misses().raw() for page in batch.tolist()]
    assert len(found) == trace.summary["totals"]["misses"]
    assert [address % 2**48 for _, address, _ in found] == [pages[page]["vaddr"] for page in missed]
    mms = [pages[page]["mm"] for page in missed]
    # One number for each address space, in every access.
    assert len({(mm, at >> 48) for mm, (_, at, _) in zip(mms, found, strict=True)}) == len(set(mms))
    assert accesses.of_session(trace).granularity_bytes == 4096 * max(
        page["span"] for page in pages if page["page_size_bytes"] == 4096
    )
