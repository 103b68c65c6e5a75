# SPDX-License-Identifier: BSD-2-Clause
"""The workloads, run on this machine's own kernel at small sizes."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

MASK = (1 << 64) - 1


def run(program: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def fields(line: str) -> dict[str, str]:
    """`name key=value key=value` as a dict of the values."""
    return dict(word.split("=", 1) for word in line.split()[1:])


def hpcc_step(r: int) -> int:
    """One step of RandomAccess's stream, as HPCC's documentation states it."""
    return (r << 1) & MASK ^ (7 if ctypes.c_int64(r).value < 0 else 0)


@pytest.mark.parametrize(("entries", "updates"), [(128, 128), (1024, 4096), (4096, 128 * 77)])
def test_gups_follows_hpcc_stream(workloads, entries, updates):
    table = list(range(entries))
    r = 1
    for _ in range(updates):
        r = hpcc_step(r)
        table[r % entries] ^= r
    checksum = sum((i + 1) * value for i, value in enumerate(table)) & MASK

    lines = run(
        workloads / "gups", "--bytes", str(8 * entries), "--updates", str(updates), "--verify"
    ).stdout.splitlines()
    assert fields(lines[0])["updates"] == str(updates)
    assert fields(lines[1]) == {"checksum": hex(checksum), "wrong": "0"}


def test_gups_threads_share_the_stream(workloads):
    lines = run(
        workloads / "gups", "--bytes", "8M", "--updates", "256K", "--threads", "3", "--verify"
    ).stdout.splitlines()
    assert fields(lines[0])["threads"] == "3"
    assert int(fields(lines[1])["wrong"]) <= (8 << 20) // 8 // 100


def test_seqpage_touches_each_page_once(workloads):
    lines = run(workloads / "seqpage", "--bytes", "1M").stdout.splitlines()
    assert len(lines) == 1
    line = fields(lines[0])
    assert int(line["first"], 16) % 4096 == 0
    assert (line["pages"], line["page_bytes"]) == ("256", "4096")


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel shows page frames to root only")
def test_seqpage_pagemap_names_distinct_frames(workloads, tmp_path):
    listing = tmp_path / "pagemap"
    line = fields(run(workloads / "seqpage", "--bytes", "1M", "--pagemap", str(listing)).stdout)
    pairs = [[int(word, 16) for word in row.split()] for row in listing.read_text().splitlines()]
    first = int(line["first"], 16)
    assert [address for address, _ in pairs] == [first + 4096 * page for page in range(256)]
    assert len({frame for _, frame in pairs}) == 256


def test_huge_pages_are_used_or_refused(workloads):
    """Never a quiet fall-back to small pages."""
    reserve = Path("/proc/sys/vm/nr_hugepages")
    done = subprocess.run(
        [workloads / "seqpage", "--bytes", "4M", "--huge"], capture_output=True, text=True
    )
    if done.returncode == 0:
        line = fields(done.stdout)
        assert int(reserve.read_text()) >= 2
        assert int(line["first"], 16) % (2 << 20) == 0
        assert (line["pages"], line["page_bytes"]) == ("2", str(2 << 20))
    else:
        assert done.returncode == 2
        assert "no 2 free 2 MiB pages" in done.stderr
        assert "--hugepages 2M:N" in done.stderr


def test_chase_is_one_cycle(workloads):
    """It comes back to its first node after all nodes, and not before."""
    nodes = 64
    ends = [
        fields(
            run(
                workloads / "chase", "--bytes", "256K", "--stride", "4K", "--steps", str(steps)
            ).stdout
        )["end"]
        for steps in range(1, nodes + 1)
    ]
    assert sorted(map(int, ends)) == list(range(nodes))
    assert ends[-1] == "0"
    assert list(map(int, ends)) != [*range(1, nodes), 0]


def test_chase_default_is_once_around(workloads):
    line = fields(run(workloads / "chase", "--bytes", "1M").stdout)
    assert (line["nodes"], line["steps"], line["end"]) == ("16384", "16384", "0")


@pytest.mark.parametrize("scale", ["1", "10", "13"])
def test_bfs_trees_are_valid(workloads, scale):
    lines = run(workloads / "bfs", "--scale", scale, "--roots", "3").stdout.splitlines()
    assert int(fields(lines[0])["vertices"]) == 1 << int(scale)
    searches = [fields(line) for line in lines[1:]]
    assert len(searches) == 3
    assert all(search["valid"] == "yes" for search in searches)
    assert all(int(search["reached"]) >= 2 for search in searches)


def test_bfs_validation_refuses_wrong_trees(tmp_path):
    test = tmp_path / "bfs_test"
    source = Path(__file__).parent / "bfs_test.c"
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", test, source], check=True
    )
    assert run(test).stdout == ""


def test_remap_moves_contents_to_aligned_places(workloads):
    line = fields(run(workloads / "remap", "--bytes", "1G", "--stride", "2M").stdout)
    assert line["wrong"] == "0" and line["pages"] == "512"
    assert line["from"] != line["to"]
    assert int(line["from"], 16) % (1 << 30) == int(line["to"], 16) % (1 << 30) == 0


def test_forkexec_reports_every_process(workloads):
    done = run(workloads / "forkexec", "--children", "3", "--bytes", "64K")
    processes = [fields(line) for line in done.stdout.splitlines()]
    assert len({process["pid"] for process in processes}) == 4
    assert all(process["pages"] == "16" for process in processes)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("gups --bytes 12Q", "--bytes: '12Q' is not a size"),
        ("gups --bytes -1", "--bytes: '-1' is not a size"),
        ("gups --bytes 0", "--bytes: '0' is not a size"),
        ("gups --bytes 99999999999T", "is not a size"),
        ("gups --bytes 3M", "--bytes must be a power of two"),
        ("gups --updates 1000", "--updates must be a multiple of 128"),
        ("gups --threads 129", "--threads: 129 is not within 1…128"),
        ("seqpage --bytes 5000", "--bytes must be a multiple of the page size, 4096"),
        ("seqpage extra", "try 'seqpage --help'"),
        ("chase --stride 12", "--stride must be a multiple of 8"),
        ("chase --bytes 64", "--bytes must hold two nodes"),
        ("bfs --scale 32", "--scale: 32 is not within 1…31"),
        ("remap --stride 100", "--bytes and --stride must be multiples of 4096"),
        ("forkexec --children 5000", "--children: 5000 is not within"),
        ("gups --unknown", "try 'gups --help'"),
        ("fsbench", "try 'fsbench --help'"),
        ("fsbench --op copy f", "--op: 'copy' is none of write"),
        ("fsbench --api mmap f", "--api: 'mmap' is neither write nor fwrite"),
        ("fsbench --file 6K f", "must be multiples of --unit, 4096"),
        ("fsbench --random f", "--random: a file must be there"),
        ("fsbench --op read /nowhere/f", "/nowhere/f: No such file"),
        ("daxbench --block 100 f", "--block must be a multiple of 64"),
        ("daxbench --flush sfence f", "'sfence' is none of none, clwb"),
        ("daxbench --page 1G f", "--page: '1G' is neither 2M nor 4K"),
        ("smallfiles --most 1 d", "--most is less than --least"),
        ("counted", "try 'counted --help'"),
    ],
)
def test_bad_usage_exits_2(workloads, command, message):
    program, *arguments = command.split()
    done = run(workloads / program, *arguments, status=2)
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "program",
    [
        *("seqpage", "gups", "chase", "bfs", "remap", "forkexec"),
        *("fsbench", "daxbench", "smallfiles", "counted"),
    ],
)
def test_help_goes_to_stdout(workloads, program):
    done = run(workloads / program, "--help")
    assert done.stdout.startswith(f"usage: {program} ")
    assert done.stderr == ""


@pytest.mark.parametrize("api", ["write", "fwrite"])
def test_fsbench_writes_the_file_and_reads_it(workloads, tmp_path, api):
    file = tmp_path / "f"
    sizes = ["--api", api, "--file", "64K", "--unit", "16K"]
    line = run(workloads / "fsbench", *sizes, "--total", "192K", file).stdout
    assert fields(line)["bytes"] == str(192 << 10)
    assert fields(line)["units"] == "12"
    data = file.read_bytes()
    # Units are alike, and no line of one like the next.
    assert len(data) == 64 << 10
    assert data[: 16 << 10] * 4 == data
    assert len({data[at : at + 64] for at in range(0, 16 << 10, 64)}) == 256

    run(workloads / "fsbench", "--op", "append", *sizes, file)
    assert file.read_bytes() == data * 2
    file.write_bytes(b"\0" * (64 << 10))
    run(workloads / "fsbench", "--op", "rewrite", *sizes, file)
    assert file.read_bytes() == data
    run(workloads / "fsbench", "--op", "rewrite", "--random", *sizes, file)
    assert file.read_bytes() == data
    for operation in ("read", "reread"):
        run(workloads / "fsbench", "--op", operation, *sizes, file)
    file.write_bytes(data[:100])
    done = run(workloads / "fsbench", "--op", "read", *sizes, file, status=2)
    assert "has 100 bytes, not 65536: write it first" in done.stderr


@pytest.mark.parametrize("flush", ["none", "clwb", "clflush", "clflushopt", "nt"])
@pytest.mark.parametrize("page", ["4K", "2M"])
def test_daxbench_writes_the_file(workloads, tmp_path, flush, page):
    file = tmp_path / "f"
    file.write_bytes(b"\0" * (256 << 10))
    command = [workloads / "daxbench", "--bytes", "256K", "--block", "64K", "--flush", flush]
    done = subprocess.run([*command, "--page", page, file], capture_output=True, text=True)
    if "this CPU has no such instruction" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0
    assert fields(done.stdout)["blocks"] == "4"
    data = file.read_bytes()
    assert data[: 64 << 10] * 4 == data
    assert set(data) == set(range(ord("0"), ord("0") + 64))


def test_smallfiles_leaves_none(workloads, tmp_path):
    arguments = ["--files", "100", "--transactions", "100", "--most", "2K", tmp_path / "d"]
    line = fields(run(workloads / "smallfiles", *arguments).stdout)
    assert line["created"] == line["deleted"]
    assert int(line["created"]) > 100
    assert int(line["read"]) + int(line["appended"]) == 100
    assert list((tmp_path / "d").iterdir()) == []


def test_counted_passes_the_status_on(workloads):
    done = run(workloads / "counted", "sh", "-c", "exit 7", status=7)
    assert float(fields(done.stdout)["seconds"]) > 0


def test_debug_information_outlives_the_clone(tmp_path):
    """Objects are named by the source's lines: these must be there when the clone is not."""
    clone, new, kept = tmp_path / "clone", tmp_path / "new", tmp_path / "kept"
    shutil.copytree(Path(__file__).parents[1] / "workloads", clone)
    subprocess.run(["make", "-s", "-C", clone, f"OUT={new}", f"KEPT={kept}"], check=True)
    shutil.rmtree(clone)
    new.rename(kept)
    with (kept / "bfs").open("rb") as file:
        (unit,) = ELFFile(file).get_dwarf_info().iter_CUs()
        source = unit.get_top_DIE().get_full_path()
    assert source == str(kept / "source" / "bfs.c")
    assert Path(source).exists()
