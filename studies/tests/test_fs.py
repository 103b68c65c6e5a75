# SPDX-License-Identifier: BSD-2-Clause
"""File systems' studies without a guest: safety, the sweep, its figures."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptat_host import cli
from ptat_host.reports import perf_stat
from ptat_host.reports.perf_stat import Count, Stat
from ptat_parser.errors import BadInput, PtatError
from ptat_studies.fs import agent, operations, plots, procedure, report, systems
from ptat_studies.fs.place import CellFailed, Measured, this_machine
from ptat_studies.fs.procedure import Job
from ptat_studies.fs.sweep import (
    CELLS_FILE,
    Cell,
    Plan,
    Runner,
    Sweep,
    ratios,
    read_cells,
    summaries,
)

LOADS, STORES, FETCHES = (
    f"{name}_misses.walk_completed" for name in ("dtlb_load", "dtlb_store", "itlb")
)
PLAN = Plan(
    systems=("ext4", "ext4-dax"),
    operations=("write", "read"),
    file_bytes=(1 << 16, 1 << 20),
    unit_bytes=(4096, 1 << 20),
    repeats=2,
    where="nowhere",
)


def quiet(step, done, total):
    pass


def of(instructions: int, loads: int, stores: int) -> Stat:
    counts = {"instructions": instructions, LOADS: loads, STORES: stores, FETCHES: 0}
    return Stat(tuple(Count(name, float(count)) for name, count in counts.items()))


class FakePlace:
    """Walks that follow from the cell: one a page in the kernel, twice that with DAX."""

    device = Path("/dev/pmem7")
    cpu = None

    def __init__(self):
        self.jobs = []

    def run(self, job: Job) -> Measured:
        self.jobs.append(job)
        words = job.measure
        file_bytes = int(words[words.index("--file") + 1])
        total_bytes = int(words[words.index("--total") + 1])
        if file_bytes == 13 << 10:
            raise CellFailed("no space", "", [{"step": "mkfs"}])
        walks = total_bytes // 4096 * (2 if job.dax else 1)
        kernel, user = of(1000, walks, 0), of(500, 2, 1)
        total = of(1500, walks + 2, 1)
        counts = {"all": total, "user": user, "kernel": kernel}
        return Measured(0.5, total_bytes, counts, [{"step": "mkfs"}])


# Safety -------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """/sys and /proc of a machine with a disk 8:0 of two partitions and a pmem 259:0."""
    sys_dir, proc = tmp_path / "sys", tmp_path / "proc"
    for path in ("block/sda/sda1", "block/sda/sda2", "block/pmem0"):
        (sys_dir / path / "holders").mkdir(parents=True)
    (sys_dir / "block/sda/holders").mkdir()
    (sys_dir / "dev/block").mkdir(parents=True)
    for number, path in (("8:0", "sda"), ("8:1", "sda/sda1"), ("259:0", "pmem0")):
        (sys_dir / "dev/block" / number).symlink_to(sys_dir / "block" / path)
    for name, number in (("sda1", "8:1"), ("sda2", "8:2")):
        (sys_dir / "block/sda" / name / "partition").touch()
        (sys_dir / "block/sda" / name / "dev").write_text(f"{number}\n")
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text("22 1 0:5 / /proc rw,nosuid shared:1 - proc proc rw\n")
    (proc / "swaps").write_text("Filename Type Size Used Priority\n")
    return sys_dir, proc


def test_a_free_device_passes(machine):
    procedure.check_unused("259:0", Path("/dev/pmem0"), *machine)


@pytest.mark.parametrize("number", ["8:1", "8:0"])
def test_mounted_in_whole_or_in_part(machine, number):
    mountinfo = machine[1] / "self/mountinfo"
    mountinfo.write_text(
        mountinfo.read_text() + "36 22 8:1 / /mnt/home rw shared:2 - ext4 /dev/sda1 rw\n"
    )
    with pytest.raises(PtatError, match="mounted on /mnt/home"):
        procedure.check_unused(number, Path("/dev/sda"), *machine)
    procedure.check_unused("259:0", Path("/dev/pmem0"), *machine)


def test_held_by_another_device(machine):
    (machine[0] / "block/pmem0/holders/dm-3").touch()
    with pytest.raises(PtatError, match="part of dm-3"):
        procedure.check_unused("259:0", Path("/dev/pmem0"), *machine)


def test_has_partitions(machine):
    with pytest.raises(PtatError, match="has partitions"):
        procedure.check_unused("8:0", Path("/dev/sda"), *machine)


def test_no_block_device(tmp_path):
    with pytest.raises(PtatError, match="is no block device"):
        procedure.check_device(tmp_path)
    with pytest.raises(PtatError, match="No such file"):
        procedure.check_device(tmp_path / "none")


@pytest.mark.parametrize("allowed", [None, Path("/dev/pmem1")])
def test_formats_only_what_is_named_twice(allowed):
    with (
        pytest.raises(PtatError, match="would be lost"),
        this_machine(Path("/dev/pmem0"), allowed, (0, 0)),
    ):
        pass


def test_nothing_is_made_where_the_device_is_refused(tmp_path):
    """The agent's way: the refusal is the answer, and mkfs has not run."""
    made = tmp_path / "made"
    job = Job(0, ["touch", str(made)], ["false"], False, str(tmp_path), [], ["true"], 0)
    done = procedure.do(job)
    assert "is no block device" in done.error
    assert not made.exists()


def test_a_failing_step_is_told_and_undone(tmp_path):
    job = Job(0, ["sh", "-c", "echo out of luck >&2; exit 3"], ["false"], False, None, [], [], 0)
    done = procedure.do(job)
    assert done.error == "sh ended with 3: out of luck"
    assert [step["failed"] for step in done.steps] == [done.error]
    assert "refuses DAX" in procedure.do(Job(0, [], ["false"], True, None, [], [], 0)).error
    missing = procedure.do(Job(0, ["mkfs.none"], [], False, None, [], [], 0))
    assert missing.error == "mkfs.none is not installed"


def test_agent_answers_each_line(monkeypatch, capsys):
    job = {"label": 0, "mkfs": ["false"], "mount": [], "dax": False, "device": None}
    line = json.dumps(job | {"prepare": [], "measure": [], "needs_bytes": 0})
    monkeypatch.setattr(sys, "stdin", [line, line])
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    try:
        agent.main()
    finally:
        for number, handler in zip(
            (signal.SIGTERM, signal.SIGHUP, signal.SIGINT), handlers, strict=True
        ):
            signal.signal(number, handler)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["error"].split(":")[0] for answer in answers] == ["false ended with 1"] * 2


# File systems and operations ----------------------------------------------------------------------


def test_own_file_system(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[nova]\nmount = "mount -t NOVA -o init {device} {directory}"\ndax = true\n')
    known = systems.read(own)
    assert known["nova"].needs_device and known["nova"].dax and "ext4-dax" in known
    assert not known["tmpfs"].needs_device
    job = Runner(FakePlace(), known).job(Cell("nova", "read", 1 << 20, 4096))
    assert job.mkfs == [] and job.mount[-2:] == ["/dev/pmem7", "{directory}"]
    assert job.prepare[0] == "fsbench" and job.dax


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nmount = 3\n", "Expected `str`"),
        ("[x]\nmkfs = 'm'\n", "missing required field"),
        ("[x]\nmount = 'mount it'\n", "does not name the {directory}"),
        ("[x]\nmount = '{directory}'\nfast = true\n", "unknown field"),
        ("[x\n", "own.toml: "),
    ],
)
def test_no_file_system(tmp_path, text, message):
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        systems.read(tmp_path / "own.toml")


@pytest.mark.parametrize("name", [n for n in operations.OPERATIONS if not n.startswith("fio-")])
def test_operations_are_programs_that_run(workloads, tmp_path, monkeypatch, name):
    """Each command line is one that its program accepts, on this machine's own file system."""
    monkeypatch.setenv("PATH", f"{workloads}:{os.environ['PATH']}")
    job = Runner(FakePlace(), systems.read()).job(Cell("tmpfs", name, 1 << 16, 4096))
    for argv in filter(None, (job.prepare, job.measure)):
        words = [word.replace("{directory}", str(tmp_path)) for word in argv]
        done = subprocess.run(words, capture_output=True, text=True)
        if "has no such instruction" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
    said = dict(word.split("=") for word in done.stdout.split()[1:])
    assert float(said["seconds"]) > 0
    if name != "smallfiles":
        assert said["bytes"] == str(1 << 16)


# The sweep ----------------------------------------------------------------------------------------


def test_cells_are_all_there_once_in_another_order():
    cells = PLAN.cells()
    # A unit of 1 MiB fits into the larger file only.
    assert len(cells) == len(set(cells)) == 2 * 2 * 3 * 2
    assert cells != sorted(cells)
    assert cells == PLAN.cells()


def run(directory: Path, plan: Plan = PLAN) -> tuple[Sweep, FakePlace]:
    place = FakePlace()
    sweep = Sweep.open(directory, plan)
    sweep.run(Runner(place, systems.read(), plan.total_bytes), quiet)
    return sweep, place


def test_figures_of_a_cell():
    figures = Runner(FakePlace(), systems.read()).run(Cell("ext4-dax", "write", 1 << 20, 4096))
    assert figures.value("page walks", "kernel") == 512
    assert figures.value("page walks", "user") == 3
    assert figures.misses_per_byte() == 515 / (1 << 20)
    walks = figures.value("page walks per 1000 instructions (data)")
    assert walks is not None and math.isclose(walks, 515 / 1.5)
    assert figures.value("bytes per second") == 2 << 20
    assert figures.value("cycles spent in page walks (data)") is None


def test_total_goes_over_the_file_again():
    place = FakePlace()
    runner = Runner(place, systems.read(), total_bytes=10 << 20)
    figures = runner.run(Cell("ext4", "write", 1 << 20, 1 << 20))
    assert figures.value("bytes") == 10 << 20


def test_a_sweep_goes_on_where_it_was_killed(tmp_path):
    """Killed in mid-cell, with a half written line; what was done is not done again."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_fs import FakePlace, PLAN, quiet
from ptat_studies.fs import systems
from ptat_studies.fs.sweep import Runner, Sweep
class Slow(FakePlace):
    def run(self, job):
        if len(self.jobs) == 5:
            print("busy", flush=True)
            time.sleep(1000)
        return super().run(job)
sweep = Sweep.open(Path({str(tmp_path / "s")!r}), PLAN)
sweep.run(Runner(Slow(), systems.read()), quiet)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"busy\n"
        process.kill()
    cells = tmp_path / "s" / CELLS_FILE
    assert len(cells.read_bytes().splitlines()) == 5
    with cells.open("ab") as file:
        file.write(b'{"cell": {"system": "ex')
    done, place = run(tmp_path / "s")
    assert len(place.jobs) == len(PLAN.cells()) - 5
    assert not done.left and not done.failed
    assert len(list(read_cells(tmp_path / "s"))) == len(PLAN.cells())
    _, again = run(tmp_path / "s")
    assert not again.jobs


def test_another_plan_or_other_files_are_left_alone(tmp_path):
    run(tmp_path / "s")
    other = Plan(**{**PLAN.__dict__, "repeats": 3})
    with pytest.raises(PtatError, match="a sweep with other repeats"):
        Sweep.open(tmp_path / "s", other)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.tex").touch()
    with pytest.raises(PtatError, match="not empty"):
        Sweep.open(tmp_path / "x", PLAN)


def test_damaged_cells_are_refused(tmp_path):
    run(tmp_path / "s")
    cells = tmp_path / "s" / CELLS_FILE
    lines = cells.read_bytes().splitlines(keepends=True)
    cells.write_bytes(b"".join([lines[0], b'{"cell": 1}\n', *lines[2:]]))
    with pytest.raises(BadInput, match="line 2 is damaged"):
        list(read_cells(tmp_path / "s"))


def test_a_cell_that_fails_is_told_and_the_others_done(tmp_path):
    plan = Plan(("ext4",), ("write",), (13 << 10, 1 << 16), (1 << 10,), 1, "nowhere")
    done, _ = run(tmp_path / "s", plan)
    assert [one.error for one in done.failed] == ["no space"]
    told = report.as_dict(done)
    assert told["cells"] == 2 and told["failed"][0]["file_bytes"] == 13 << 10


def test_results_are_tidy(tmp_path):
    import pyarrow.parquet as pq

    done, _ = run(tmp_path / "s")
    table = pq.read_table(done.write_results()).to_pylist()
    found = [
        row["value"]
        for row in table
        if (row["system"], row["operation"], row["file_bytes"], row["unit_bytes"])
        == ("ext4", "read", 1 << 20, 4096)
        and (row["quantity"], row["mode"]) == ("page walks", "kernel")
    ]
    assert found == [256.0, 256.0]


def test_summaries_and_ratios(tmp_path):
    done, _ = run(tmp_path / "s")
    figures = list(done.done.values())
    (one,) = [
        one
        for one in summaries(figures, "page walks", "kernel")
        if one.cell == Cell("ext4-dax", "write", 1 << 16, 4096)
    ]
    assert one.spread.median == 32 and one.spread.spread == 0
    # 515/259 twice, 35/19 once, for the small file.
    assert ratios(figures, "ext4-dax", "ext4", "page walks") == {
        "read": pytest.approx(515 / 259),
        "write": pytest.approx(515 / 259),
    }


def test_figures_are_whole_files(tmp_path):
    done, _ = run(tmp_path / "s")
    written = plots.write(list(done.done.values()), tmp_path / "plots")
    names = {path.name for path in written}
    assert {"overhead.svg", "page-walks-write.svg", "page-walks-per-byte-read.svg"} <= names
    text = (tmp_path / "plots" / "page-walks-write.svg").read_text()
    assert text.rstrip().endswith("</svg>")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "ext5"], "there is no file system 'ext5'"),
        (["--operations", "wirte"], "there is no operation 'wirte'"),
        (["--files", "4K", "--units", "64K"], "no file consists of whole units"),
        (["--format", "/dev/null"], "--format without --device"),
        (["--device", "/dev/null", "--format", "/dev/null"], "is no block device"),
        (["--device", "/dev/null"], "would be lost"),
        (["--device", "/dev/null", "--trace", "s"], "--trace is of the testbed"),
        (["--device", "/dev/null", "--pmem", "1G"], "--pmem is of the testbed"),
    ],
)
def test_command_line_that_makes_no_sense(tmp_path, capsys, arguments, message):
    assert cli.main(["bench-fs", "-o", str(tmp_path / "s"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_refused_device_leaves_no_directory(tmp_path, capsys):
    out = tmp_path / "s"
    device = ["--device", "/dev/null", "--format", "/dev/null"]
    assert cli.main(["bench-fs", "-o", str(out), *device]) == 2
    assert "is no block device" in capsys.readouterr().err
    assert not out.exists()


def test_killed_agent_is_an_error_that_says_how_to_go_on(tmp_path):
    from ptat_studies.fs.place import Place

    with (tmp_path / "errors").open("w+") as errors:
        command = [sys.executable, "-c", "import sys; input(); sys.exit('ptat: error: no luck')"]
        place = Place(command, None, tmp_path, None, (0, 0), errors)
        with pytest.raises(PtatError, match=r"ended with 1: no luck .*continues"):
            place.run(Job(0, [], [], False, None, [], [], 0))
        place.close()


def test_measured_part_is_what_perf_is_told(workloads, tmp_path):
    """The other side of perf's control pipes: enable before, disable after, each awaited."""
    control, program_control = os.pipe()
    program_acknowledge, acknowledge = os.pipe()
    descriptors = f"{program_control},{program_acknowledge}"
    with subprocess.Popen(
        [workloads / "fsbench", tmp_path / "f"],
        env={**os.environ, "PTAT_PERF": descriptors},
        pass_fds=[program_control, program_acknowledge],
        stdout=subprocess.DEVNULL,
    ) as process:
        assert os.read(control, 100) == b"enable\n"
        time.sleep(0.1)
        assert process.poll() is None and (tmp_path / "f").stat().st_size == 0
        os.write(acknowledge, b"ack\n\0")
        assert os.read(control, 100) == b"disable\n"
        assert (tmp_path / "f").stat().st_size == 1 << 20
        os.write(acknowledge, b"ack\n\0")
    assert process.returncode == 0
    for end in (control, program_control, program_acknowledge, acknowledge):
        os.close(end)


def test_table(tmp_path, capsys):
    """A row for each cell, in the order of sizes; what is not known has no column."""
    from ptat_host import console

    done, _ = run(tmp_path / "s")
    console.show(report.render(done))
    lines = capsys.readouterr().out.splitlines()
    assert "walks per KiB" in lines[0] and "cycles" not in lines[0]
    rows = [line for line in lines if line.startswith("ext4")]
    assert len(rows) == 12
    (dax,) = (
        fields[6:10]
        for fields in map(str.split, rows)
        if fields[:6] == ["ext4-dax", "read", "1", "MiB", "4", "KiB"]
    )
    # 515 walks a MiB, of them 3 by the program.
    assert dax == ["343.3", "0.5029", "0.00293", "0.5"]


def test_command_shows_a_sweep_that_is_done(tmp_path, capsys):
    """No guest is needed where nothing is left."""
    directory = tmp_path / "s"
    where = "testbed, 512M of emulated persistent memory"
    plan = Plan(("ext4", "ext4-dax"), ("write",), (1 << 20,), (4096, 1 << 20), 2, where)
    run(directory, plan)
    command = ["bench-fs", "-o", str(directory), "--operations", "write", "--files", "1M"]
    command += ["--units", "4K,1M", "--repeats", "2", "--plots", str(tmp_path / "plots")]
    assert cli.main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cells"], told["left"], told["failed"]) == (8, 0, [])
    assert told["ext4_vs_dax"] == {"write": pytest.approx(515 / 259)}
    kernel = [
        one
        for one in told["summaries"]
        if (one["name"], one["mode"], one["system"]) == ("page walks", "kernel", "ext4-dax")
    ]
    assert [one["median"] for one in kernel] == [512, 512]
    assert (tmp_path / "plots" / "overhead.svg").exists()
    assert (directory / "results.parquet").exists()
    assert cli.main([*command, "--total", "2M"]) == 2
    assert "a sweep with other total_bytes" in capsys.readouterr().err


def test_perf_counts_the_transfers_alone(workloads, tmp_path, monkeypatch):
    """With events of the kernel's, as there may be no others here."""
    if not shutil.which("perf") or os.geteuid():
        pytest.skip("needs perf and root")
    monkeypatch.setenv("PATH", f"{workloads}:{os.environ['PATH']}")
    argv = ["fsbench", "--file", "4M", str(tmp_path / "f")]
    job = Job(0, [], [], False, None, [], argv, 0, events="task-clock,page-faults")
    done = procedure.Done()
    steps = procedure._Steps(done, job.other_cpu)
    try:
        output = procedure._run_measured(job, argv, steps, done)
    except PtatError as error:
        pytest.skip(f"perf does not run here: {error}")
    assert "op=write bytes=4194304" in output
    (counted,) = perf_stat.read(done.perf, "perf")
    faults, clock = counted.value("page-faults"), counted.value("task-clock")
    # Starting a program takes dozens of faults; writing to a file, next to none.
    assert faults is not None and clock is not None and faults < 20 and clock > 0
