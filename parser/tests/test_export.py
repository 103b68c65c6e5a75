# SPDX-License-Identifier: BSD-2-Clause
import csv
import io
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic

import ptat_parser
from ptat_parser.errors import PtatError
from ptat_parser.results.export import FORMATS, export

PAGE_NAMES = {4096: "4k", 2 << 20: "2m"}


@pytest.fixture(scope="module", params=[8, 64])
def trace(request, tmp_path_factory) -> ptat_parser.Trace:
    machine = synthetic.Machine(7, granularity=request.param).run(700)
    return ptat_parser.open(machine.write(tmp_path_factory.mktemp("export") / "s"))


@pytest.fixture
def rows(trace) -> list[dict]:
    """All misses, put together row by row from the files themselves."""
    pages = pq.read_table(trace.results.path / "pages.parquet").to_pylist()
    misses = pq.read_table(trace.results.path / "misses").to_pylist()
    columns = ("tgid", "comm", "vaddr", "page_size_bytes", "span", "mm")
    row_of = {page["page"]: row for row, page in enumerate(pages)}
    misses = [miss | {"page": row_of[miss["page"]]} for miss in misses]
    return [m | {name: pages[m["page"]][name] for name in columns} for m in misses]


def written(trace, format: str, path: Path, **which) -> bytes:
    export(trace.misses(**which), format, path)
    return path.read_bytes()


def test_columns(trace, rows, tmp_path):
    written(trace, "wide-parquet", tmp_path / "f.parquet")
    assert pq.read_table(tmp_path / "f.parquet").to_pylist() == in_order(rows)
    written(trace, "arrow", tmp_path / "f.arrow")
    with pa.ipc.open_file(tmp_path / "f.arrow") as file:
        assert file.read_all().to_pylist() == in_order(rows)
    text = written(trace, "csv", tmp_path / "f.csv").decode()
    read = list(csv.DictReader(io.StringIO(text)))
    assert read == [{name: str(value) for name, value in row.items()} for row in in_order(rows)]


def in_order(rows: list[dict]) -> list[dict]:
    names = ("time", "tgid", "comm", "vaddr", "page_size_bytes", "span", "mm", "page")
    return [{name: row[name] for name in names} for row in rows]


def test_perf(trace, rows, tmp_path):
    """As perf script -F comm,pid,time,period,event,addr --ns has it."""
    line = re.compile(
        r" *(?P<comm>\S+) +(?P<pid>\d+) +(?P<time>\d+\.\d{9}):"
        r" +1 (?P<event>\S+): +(?P<addr>[0-9a-f]+)"
    )
    found = [line.fullmatch(text) for text in lines(written(trace, "perf", tmp_path / "f"))]
    assert [
        (m["comm"], int(m["pid"]), m["time"], m["event"], int(m["addr"], 16)) for m in found
    ] == [
        (
            row["comm"],
            row["tgid"],
            f"{row['time'] // 10**9}.{row['time'] % 10**9:09}",
            f"tlb-miss-{PAGE_NAMES[row['page_size_bytes']]}",
            row["vaddr"],
        )
        for row in rows
    ]


def lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def test_lackey(trace, rows, tmp_path):
    found, process = [], None
    for text in lines(written(trace, "lackey", tmp_path / "f")):
        if header := re.fullmatch(r"==(\d+)== Command: (\S+)", text):
            assert process != header.groups()
            process = header.groups()
        else:
            # What Valgrind prints a load with: " L %08lx,%lu".
            access = re.fullmatch(r" L ([0-9a-f]{8,}),1", text)
            found.append((*process, int(access[1], 16)))
    assert found == [(str(row["tgid"]), row["comm"], row["vaddr"]) for row in rows]


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_lackey_lines_are_those_of_valgrind(trace, tmp_path):
    log = tmp_path / "log"
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={log}", "true"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    loads = [line for line in lines(log.read_bytes()) if line.startswith(" L")]
    form = re.compile(r" L [0-9a-f]{8,},\d+")
    ours = lines(written(trace, "lackey", tmp_path / "f"))
    for line in loads + [line for line in ours if not line.startswith("==")]:
        assert form.fullmatch(line)


def test_cachegrind(trace, rows, tmp_path):
    expected = Counter((f"{r['comm']}.{r['tgid']}.{r['mm']}", r["vaddr"]) for r in rows)
    found, file, base = Counter(), None, 0
    text = lines(written(trace, "cachegrind", tmp_path / "f"))
    assert text[:3] == ["desc: TLB misses, by ptat", "cmd: prog", "events: Misses"]
    for line in text[3:-1]:
        if line.startswith("fl="):
            file = line[3:]
        elif line.startswith("fn="):
            base = int(line[3:].split()[0], 16)
        else:
            index, count = map(int, line.split())
            found[file, base + 4096 * index] += count
    assert found == expected
    assert text[-1] == f"summary: {len(rows)}"


@pytest.mark.skipif(not shutil.which("cg_annotate"), reason="valgrind is not installed")
def test_cg_annotate_reads_it(trace, rows, tmp_path):
    written(trace, "cachegrind", tmp_path / "f")
    shown = subprocess.run(
        ["cg_annotate", "--threshold=0.1", tmp_path / "f"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"{len(rows):,}" in shown
    (comm, tgid, mm), _ = Counter((r["comm"], r["tgid"], r["mm"]) for r in rows).most_common(1)[0]
    assert f"{comm}.{tgid}.{mm}:0x" in shown


def test_drmemtrace(trace, rows, tmp_path):
    """Read with `struct`, by DynamoRIO's definition of an entry."""
    data = written(trace, "drmemtrace", tmp_path / "f")
    entries = list(struct.iter_unpack("<HHQ", data))
    header, marker, footer, thread, pid, exit_ = 25, 28, 26, 22, 24, 23
    assert entries[0] == (header, 0, 3)
    assert entries[1] == (marker, 12, 3)  # version
    assert entries[2] == (marker, 9, 0x1C0)  # only misses, of x86-64
    assert entries[-1] == (footer, 0, 0)
    now = at = None
    found, exited = [], set()
    for kind, size, value in entries[5:-1]:
        if kind == thread:
            now = value
        elif kind == pid:
            assert value == now
        elif kind == marker and size == 2:
            assert at is None or value >= at
            at = value
        elif kind == exit_:
            exited.add(value)
        elif kind == 0:
            assert size == 1
            found.append((now, value))
        else:
            assert (kind, size) == (marker, 3)
    assert found == [(row["tgid"], row["vaddr"]) for row in rows]
    assert exited == {row["tgid"] for row in rows}


def test_a_part_of_the_trace(trace, rows):
    middle = rows[len(rows) // 2]
    start, stop = rows[len(rows) // 4]["time"], rows[3 * len(rows) // 4]["time"]
    for which, wanted in (
        ({"time": (start, stop)}, lambda row: start <= row["time"] < stop),
        ({"time": (None, start)}, lambda row: row["time"] < start),
        ({"time": (stop, None)}, lambda row: row["time"] >= stop),
        ({"pid": middle["tgid"]}, lambda row: row["tgid"] == middle["tgid"]),
        (
            {"address": (middle["vaddr"] + 4095, middle["vaddr"] + 4096)},
            lambda row: (
                row["vaddr"]
                <= middle["vaddr"] + 4095
                < row["vaddr"] + row["span"] * row["page_size_bytes"]
            ),
        ),
        ({"address": (1 << 30, 1 << 47)}, lambda row: row["vaddr"] >= 1 << 30),
        (
            {"pid": middle["tgid"], "time": (start, stop), "address": (None, 6 << 30)},
            lambda row: (
                row["tgid"] == middle["tgid"]
                and start <= row["time"] < stop
                and row["vaddr"] < 6 << 30
            ),
        ),
        ({"pid": 1}, lambda row: False),
    ):
        expected = in_order([row for row in rows if wanted(row)])
        misses = trace.misses(**which)
        assert misses.to_arrow().to_pylist() == expected
        assert misses.to_polars().collect().to_dicts() == expected
        arrays = misses.to_numpy()
        assert arrays["time"].tolist() == [row["time"] for row in expected]
        assert arrays["vaddr"].tolist() == [row["vaddr"] for row in expected]
        by_page = np.bincount([row["page"] for row in expected], minlength=len(trace.pages))
        assert misses.counts().tolist() == by_page.tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_to_write(trace, tmp_path, format):
    data = written(trace, format, tmp_path / "f", pid=1)
    assert b"\n L " not in data
    if format == "wide-parquet":
        assert pq.read_table(tmp_path / "f").num_rows == 0


def test_nothing_is_left_of_what_cannot_be_written(trace, tmp_path):
    with pytest.raises(PtatError, match="cannot be written"):
        export(trace.misses(), "csv", tmp_path / "none" / "f.csv")
    (tmp_path / "f").mkdir()
    with pytest.raises(PtatError, match="cannot be written"):
        export(trace.misses(), "csv", tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_counts_only_results_have_no_misses(tmp_path):
    path = synthetic.Machine().run(20).write(tmp_path / "s")
    ptat_parser.parse(path, counts_only=True)
    with pytest.raises(PtatError, match="without --counts-only"):
        ptat_parser.open(path).misses()


# The peak of this process alone: what getrusage tells begins with that of the one that started it.
MEASURE = """
import re, sys
from pathlib import Path
import ptat_parser
from ptat_parser.results.export import export
def peak_bytes():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
trace = ptat_parser.open(sys.argv[1])
export(trace.misses(time=(None, 2 << 20)), sys.argv[2], Path(sys.argv[3]))
before = peak_bytes()
export(trace.misses(), sys.argv[2], Path(sys.argv[3]))
print(peak_bytes() - before)
"""


@pytest.mark.parametrize("format", FORMATS)
def test_memory_does_not_grow_with_the_misses(tmp_path, format):
    """Eight million of them take what two million take: all columns of the rest are 290 MB."""
    path = synthetic.Machine(3).run(100).write(tmp_path / "s")
    results = ptat_parser.parse(path)
    numbers = results.page_numbers
    (part,) = (results.path / "misses").glob("*.parquet")
    schema = pq.read_schema(part)
    choose = np.random.default_rng(1)
    with pq.ParquetWriter(part, schema) as writer:
        for i in range(8):
            columns = (
                np.arange(1 << 20) + (i << 20),
                choose.choice(numbers, 1 << 20),
            )
            writer.write_table(pa.table(list(columns), schema=schema))
    out = subprocess.run(
        [sys.executable, "-c", MEASURE, path, format, tmp_path / "f"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert int(out) < 64 << 20
