# SPDX-License-Identifier: BSD-2-Clause
"""What the documentation shows is run, and what it lists is all there is."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pytest
import synthetic

import ptat_parser
from ptat_parser.order.clock import Clock
from ptat_parser.results.export import FORMATS
from ptat_parser.results.reader import KIND_PMD_READ

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


@pytest.fixture(scope="module", params=[8, 64])
def directory(request, tmp_path_factory) -> Path:
    """A directory in which the session DIR lies."""
    path = tmp_path_factory.mktemp("docs")
    machine = synthetic.Machine(11, granularity=request.param).run(500)
    ptat_parser.parse(machine.write(path / "DIR"))
    return path


@pytest.fixture
def rows(directory, monkeypatch) -> list[dict]:
    monkeypatch.chdir(directory)
    return ptat_parser.open("DIR").misses().to_arrow().to_pylist()


def test_python_examples(rows, directory):
    names: dict = {}
    for block in blocks("python-api.md", "python"):
        exec(compile(block, "python-api.md", "exec"), names)
    start = names["first_ns"]
    some = [
        r
        for r in rows
        if r["tgid"] == 41 and start <= r["time"] < start + 10**9 and r["vaddr"] < 1 << 46
    ]
    assert some and names["some"].to_arrow().to_pylist() == some
    assert names["misses_per_ms"].sum() == len(some)
    counts = Counter((row["comm"], row["vaddr"]) for row in rows)
    assert names["hottest"]["misses"].to_list() == [n for _, n in counts.most_common(10)]
    of_41 = sum(row["tgid"] == 41 for row in rows)
    assert len((directory / "misses.txt").read_text().splitlines()) == of_41


def test_sql_examples(rows):
    connection = duckdb.connect()
    hottest, per_ms, working_sets, gaps, _, shares = (
        connection.execute(query).fetchall() for query in blocks("python-api.md", "sql")
    )
    pages = ptat_parser.open("DIR").pages.to_pylist()
    assert [row[-1] for row in hottest] == sorted((p["misses"] for p in pages), reverse=True)[:20]
    assert sum(row[-1] for row in per_ms) == len(rows)
    sets = {(row["time"] // 10**7, row["page"]) for row in rows}
    assert [(w, n) for w, n, _ in working_sets] == sorted(Counter(w for w, _ in sets).items())
    most = Counter(row["page"] for row in rows).most_common(20)
    assert [times for _, _, times in gaps] == [n - 1 for _, n in most]

    misses, entries = Counter(), Counter()
    for page in pages:
        if page["misses"]:
            line = page["vaddr"] // page["page_size_bytes"] // 8
            key = page["mm"], page["tgid"], page["comm"], page["page_size_bytes"], line
            misses[key] += page["misses"]
            entries[key] += page["span"]
    averages = connection.execute("SELECT average FROM lines").fetchall()
    expected = [misses[key] / entries[key] for key in misses]
    assert sorted(a for (a,) in averages) == pytest.approx(sorted(expected))
    assert shares[-1] == (100, 1)


def test_every_export_format_is_described():
    text = (DOCS / "formats.md").read_text()
    described = re.findall(
        r"^\| `([a-z-]+)` \|", text.split("## Exports")[1].split("\n## ")[0], re.M
    )
    assert described == list(FORMATS)


READER = DOCS / "examples" / "reader.py"


@pytest.mark.parametrize("options", [{}, {"levels": "pte"}, {"cpus": 3}, {"reuse": True}])
@pytest.mark.parametrize("seed", range(3))
def test_the_independent_reader_agrees(tmp_path, options, seed):
    """What it prints of each read is what the results say: time, process, page, kind."""
    assert len(READER.read_text().splitlines()) <= 60
    machine = synthetic.Machine(seed, granularity=8, **options).run(400)
    results = ptat_parser.parse(machine.write(tmp_path / "s"))
    shown = subprocess.run(
        [sys.executable, READER, tmp_path / "s"], capture_output=True, text=True, check=True
    ).stdout
    read = [line.split() for line in shown.splitlines()]

    pages = results.pages()
    reads = [(t, page, "leaf") for part in results.misses() for t, page in zip(*part, strict=True)]
    for part in results.others():
        for t, page, kind in zip(*part, strict=True):
            reads.append((t, page, "table" if kind == KIND_PMD_READ else "leaf"))
    mm, va, size = (pages[c].to_pylist() for c in ("mm", "vaddr", "page_size_bytes"))
    ticks = np.array([row[0] for row in read], np.uint64)
    times = Clock.from_summary(results.summary["clock"]).to_ns(ticks).tolist()
    ours = [(t, *map(int, row[1:4]), row[4]) for t, row in zip(times, read, strict=True)]
    reads.sort(key=lambda row: row[0])
    assert ours == [(t, mm[page], va[page], size[page], kind) for t, page, kind in reads]
    assert len(ours) > 500
