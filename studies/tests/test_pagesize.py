# SPDX-License-Identifier: BSD-2-Clause
import errno
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ptat_host import cli
from ptat_studies.commands import common
from ptat_studies.pagesize import figures, machines, memory_time, study, tables, workload
from ptat_studies.pagesize.workload import PAGE_SIZES, PERCENTS

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
TRACE = EXAMPLES / "ls.trace"
KIB = 1024

MACHINES = """
[memory]
tlb_ns = 2.0
access_ns = 80.0
[storage.ssd]
latency_ns = 80_000.0
bytes_per_second = 500e6
[[scenario]]
name = "one"
vm = [
  { name = "VM-1", workload = "ls", memory_percent = 25, storage = "ssd", paper_page_size = "4K" },
  { name = "VM-2", workload = "ls", memory_percent = 90, storage = "nvm" },
]
"""


@pytest.fixture(scope="module")
def found():
    """The study of the trace that is shipped."""
    traces = study.open_traces([str(TRACE)], None)
    return study.study(traces, workload.Settings())


def run(capsys, *arguments):
    """Exit status, standard output and standard error."""
    status = cli.main(["pagesize", *map(str, arguments)])
    return status, *capsys.readouterr()


def refused(capsys, *arguments):
    """The error of a command that gives nothing else."""
    status, out, err = run(capsys, *arguments)
    assert status == 2 and not out
    assert len(err.splitlines()) <= 2
    return err


def test_table_1(found):
    """By counting lines."""
    rows = [line.split() for line in TRACE.read_text().splitlines()]
    pages = set()
    for _, address, size in rows:
        first = int(address, 16)
        pages |= {first // 4096, (first + int(size) - 1) // 4096}
    table = tables.tables(found)[0]
    writes = sum(row[0] == "write" for row in rows)
    assert table.rows == [
        [
            "ls",
            f"{len(pages) / 256:.2f}",
            f"{len(rows) / len(pages):.2f}",
            f"{writes:,}",
            f"{len(rows) - writes:,}",
            f"{len(rows):,}",
        ]
    ]


def test_all_tables(found):
    titles = [table.title for table in tables.tables(found)]
    for number in range(1, 8):
        assert any(title.startswith(f"Table {number}.") for title in titles)
    for table in tables.tables(found):
        assert all(len(row) == len(table.columns) for row in table.rows), table.title


def test_times_follow_the_equations(found):
    (one,) = found.workloads
    memory = found.settings.memory
    for name, storage in memory_time.STORAGES.items():
        translation, data = one.times_ns(30, name)
        for at, measured in enumerate(one.measured):
            r, f = measured.tlb_rate, measured.fault_rate(30)
            assert translation[at] == pytest.approx(memory.tlb_ns + r * memory.access_ns)
            assert data[at] == pytest.approx(
                memory.access_ns + f * storage.fault_ns(measured.page_bytes)
            )


def test_advice_is_where_the_functions_are_fastest(found):
    (one,) = found.workloads
    for percent in PERCENTS:
        advice = one.advise(percent, "nvm")
        modelled = np.add(*one.times_ns(percent, "nvm", model=True))
        simulated = np.add(*one.times_ns(percent, "nvm"))
        assert advice.page_bytes == PAGE_SIZES[int(modelled.argmin())]
        assert advice.best_bytes == PAGE_SIZES[int(simulated.argmin())]
        assert advice.best_ns <= advice.access_ns
        common = simulated[PAGE_SIZES.index(4096)]
        assert advice.improvement == pytest.approx(1 - advice.access_ns / common)
        assert advice.climbed_ns is not None


def test_what_is_advised_grows_with_the_memory(found):
    """A finding of the paper, which this trace shares."""
    sizes = [found.advised["ls"][percent] for percent in PERCENTS]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_json(capsys):
    status, out, err = run(capsys, f"name={TRACE}", "--json", "--memory", "20,60", "--workers", 2)
    assert status == 0 and not err
    answer = json.loads(out)
    assert set(answer["fits"]["name"]) == {"quadratic", "exponential", "power"}
    assert set(answer["advised"]["name"]) == {"20", "60"}
    (workload,) = answer["workloads"]
    sizes = workload["sizes"]
    assert [one["page_bytes"] for one in sizes] == [*PAGE_SIZES, 2 << 20, 1 << 30]
    assert set(sizes[0]["fault_rate"]) == {"20", "60"}
    assert sizes[-1]["fault_rate"] == {}  # the memory holds no page of 1 GiB
    assert workload["t_test"]["sample_size"] == 2 * len(PAGE_SIZES)


def test_text(capsys):
    status, out, _ = run(capsys, TRACE, "--cache", "4K", "--tlb-entries", 16, "--pages", "1K-16K")
    assert status == 0
    assert "Table 7." in out and "behind a cache of 4 KiB" in out
    assert re.search(r"TLB of 16 entries", out)
    assert "512 B" not in out and "64 KiB" not in out


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open, self.images, self.tables, self.captions = [], [], 0, 0

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "img":
            self.images.append(values)
        self.tables += tag == "table"
        if tag not in ("img", "meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_figures_and_page(tmp_path, capsys):
    machines = tmp_path / "vms.toml"
    machines.write_text(MACHINES)
    html, plots = tmp_path / "report.html", tmp_path / "new" / "plots"
    status, out, err = run(
        capsys, f"ls={TRACE}", "--machines", machines, "--html", html, "--plots", plots
    )
    assert (status, out, err) == (0, "", "")
    assert sorted(path.name for path in plots.iterdir()) == [f"fig{n}.svg" for n in range(2, 10)]
    assert all("</svg>" in path.read_text() for path in plots.iterdir())
    page = _Page()
    page.feed(html.read_text())
    assert not page.open
    assert len(page.images) == 8 and all(image["alt"] for image in page.images)
    assert page.tables == 11
    assert not re.search("https?://", html.read_text())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_same_figures_make_the_same_files(found, tmp_path):
    figures.write(found, tmp_path / "a")
    figures.write(found, tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_names_are_not_markup(tmp_path, capsys):
    html = tmp_path / "page.html"
    assert run(capsys, f"<b>&x={TRACE}", "--memory", "50", "--html", html)[0] == 0
    text = html.read_text()
    assert "<b>" not in text and "&lt;b&gt;&amp;x" in text


def test_nothing_is_left_half_written(found, tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        figures.write_html(found, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_machines(tmp_path, capsys):
    machines = tmp_path / "vms.toml"
    machines.write_text(MACHINES)
    arguments = (f"ls={TRACE}", "--machines", machines, "--memory", "50")
    status, out, _ = run(capsys, *arguments, "--json")
    assert status == 0
    first, second = json.loads(out)["vms"]
    assert (first["name"], first["storage"], first["memory_percent"]) == ("VM-1", "ssd", 25)
    # A fault takes at least 80 µs, and it is the time of DRAM that the file says.
    assert first["access_ns"] > 80 + 2 + 0.01 * 80_000
    assert second["improvement"] == pytest.approx(1 - second["access_ns"] / second["common_ns"])
    # What is simulated for a machine alone is in no other table.
    assert set(json.loads(out)["advised"]["ls"]) == {"50"}
    status, out, _ = run(capsys, *arguments)
    assert "Table 8 and figure 9" in out and "look-up 2 ns, DRAM 80 ns" in out


def test_the_example_of_machines_is_table_8():
    scenarios, memory, storages = machines.read_machines(EXAMPLES / "pagesize-vms.toml")
    assert [len(scenario.vm) for scenario in scenarios] == [3, 3, 2, 2, 2]
    assert memory == memory_time.Memory()
    assert set(memory_time.STORAGES) < set(storages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[memory]", "[memory"), "Expected"),
        (('storage = "ssd"', 'storage = "tape"'), "there is no storage 'tape'"),
        (("memory_percent = 25", "memory_percent = 0"), ">= 1"),
        (('workload = "ls", memory_percent = 90', 'workload = "x", memory_percent = 90'), "of x"),
        (("bytes_per_second = 500e6", "bytes_per_second = 0.0"), "> 0"),
        (("latency_ns", "latency"), "unknown field `latency`"),
        (('paper_page_size = "4K"', 'paper_page_size = "4Q"'), "not a size"),
    ],
)
def test_machines_that_make_no_sense(tmp_path, capsys, change, message):
    machines = tmp_path / "vms.toml"
    machines.write_text(MACHINES.replace(*change))
    assert message in refused(capsys, f"ls={TRACE}", "--machines", machines)


def test_malformed_rows(tmp_path, capsys):
    trace = tmp_path / "t.trace"
    trace.write_text(TRACE.read_text() + "readd oops\n")
    number = len(TRACE.read_text().splitlines()) + 1
    status, out, _ = run(capsys, trace, "--memory", "50")
    assert status == 0
    assert f"note: t: 1 malformed lines, the first is line {number:,}" in out
    assert f"line {number:,}" in refused(capsys, trace, "--strict")


def write(path, text):
    path.write_text(text)
    return path


def test_traces_that_are_of_no_use(tmp_path, capsys):
    only_text = write(tmp_path / "none", "==1== Lackey\n==1== Exit code: 0\n")
    assert "a trace without accesses" in refused(capsys, only_text)
    small = write(tmp_path / "small", "readd 0x1000 8\nreadd 0x2000 8\n")
    assert "footprint of 8 KiB is smaller than a page of 64 KiB" in refused(capsys, small)
    assert "no such file" in refused(capsys, tmp_path / "nothing").lower()
    assert "is empty" in refused(capsys, write(tmp_path / "empty", ""))
    assert "two traces are named 'ls'" in refused(capsys, TRACE, TRACE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", "0"), "percentages from 1"),
        (("--memory", "10,x"), "percentages from 1"),
        (("--pages", "3K"), "not a power of two"),
        (("--pages", "8K-4K"), "not a range"),
        (("--pages", "64K-1M-2M"), "not a range"),
        (("--cache", "3K"), "no power of two of sets"),
        (("--storage", "tape"), "there is no 'tape'"),
        (("--tlb-entries", "0"), "not a whole number of at least 1"),
    ],
)
def test_options_that_make_no_sense(capsys, arguments, message):
    assert message in refused(capsys, TRACE, *arguments)


def test_a_memory_that_holds_no_large_page(capsys):
    status, out, _ = run(capsys, TRACE, "--memory", "1,100", "--pages", "512-256K", "--json")
    assert status == 0
    sizes = {one["page_bytes"]: one for one in json.loads(out)["workloads"][0]["sizes"]}
    assert set(sizes[8 * KIB]["fault_rate"]) == {"1", "100"}
    assert set(sizes[16 * KIB]["fault_rate"]) == {"100"}
    assert json.loads(out)["advised"]["ls"]["1"] <= 8 * KIB


def test_without_matplotlib(capsys, monkeypatch):
    monkeypatch.setattr(common, "find_spec", lambda _: None)
    assert "pip install 'ptat[studies]'" in refused(capsys, TRACE, "--plots", "x")


def test_a_session(tmp_path, capsys, synthetic):
    machine = synthetic.Machine(7, granularity=8).run(700)
    session = machine.write(tmp_path / "session")
    status, out, _ = run(capsys, session, "--pages", "4K-8K", "--memory", "50,100", "--json")
    assert status == 0
    answer = json.loads(out)
    (workload,) = answer["workloads"]
    summary = json.loads((session / "results" / "summary.json").read_text())
    assert workload["accesses"]["miss"] == summary["totals"]["misses"]
    assert any("only what missed the TLB" in note for note in answer["notes"])
    assert "multiples of 4 KiB" in refused(capsys, session, "--pages", "512-8K")
    assert "--accesses yes" in refused(capsys, session, "--format", "accesses")
