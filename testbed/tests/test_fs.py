# SPDX-License-Identifier: BSD-2-Clause
"""File systems on the guest's emulated persistent memory."""

import re
import subprocess
import sys

import pytest

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_studies.fs import place, systems
from ptat_studies.fs.place import CellFailed
from ptat_studies.fs.sweep import Cell, Runner
from ptat_testbed.boards.guest_run import Settings
from ptat_testbed.guest import layout
from ptat_testbed.guest.layout import GIB, MIB

PMEM = "512M"
FILE_BYTES = 8 << 20
PAGES = FILE_BYTES // 4096

IN_USE = """
import subprocess, sys
from pathlib import Path
from ptat_studies.fs import procedure
from ptat_parser.errors import PtatError

def run(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

def refused(device, dax=False):
    made = Path("/tmp/made")
    job = procedure.Job(0, ["touch", str(made)], ["false"], dax, device, [], [], 1 << 20)
    print(procedure.do(job).error)
    assert not made.exists(), "a file system was made"

run("mkfs.ext4", "-q", "-F", "/dev/pmem0")
Path("/tmp/mnt").mkdir()
run("mount", "/dev/pmem0", "/tmp/mnt")
refused("/dev/pmem0")
run("truncate", "-s", "64M", "/tmp/mnt/disk")
loop = run("losetup", "-f", "--show", "/tmp/mnt/disk")
refused(loop, dax=True)
run("mkswap", loop)
run("swapon", loop)
refused(loop)
run("swapoff", loop)
run("losetup", "-d", loop)
"""


@pytest.mark.guest
def test_what_is_in_use_is_not_formatted():
    command = [sys.executable, "-m", "ptat_host.cli", "record", "--pmem", PMEM, "--no-maps"]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", IN_USE],
        env=environment | {"HOME": "/root"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    mounted, no_memory, swap = done.stdout.splitlines()
    assert mounted == "/dev/pmem0: is mounted on /tmp/mnt"
    assert "is no memory: a file system with DAX is not possible there" in no_memory
    assert swap.endswith("is swap space")


@pytest.mark.guest
def test_cells(tmp_path):
    """What is counted follows from what the program does to memory."""
    with place.testbed(PMEM) as there:
        runner = Runner(there, systems.read())

        # A copy of 4 KiB to a file is a few accesses of the kernel's, one of a page of the user's.
        figures = runner.run(Cell("ext4", "write", FILE_BYTES, 4096))
        assert figures.value("bytes") == FILE_BYTES
        in_kernel = figures.value("instructions", "kernel")
        assert in_kernel is not None and in_kernel > FILE_BYTES / 64
        assert figures.value("page walks", "kernel") + figures.value("page walks", "user") == (
            figures.value("page walks")
        )
        said = [str(step["step"]).split()[0] for step in figures.steps]
        assert [said.index(word) for word in ("mkfs.ext4", "mount", "fsbench", "umount")] == sorted(
            said.index(word) for word in ("mkfs.ext4", "mount", "fsbench", "umount")
        )

        # Each page of the mapping is walked to, or each 2 MiB of it.
        for system in ("ext4-dax", "xfs-dax"):
            small = runner.run(Cell(system, "map4k-read", FILE_BYTES, 4096))
            large = runner.run(Cell(system, "map2m-read", FILE_BYTES, 4096))
            assert small.value("dtlb_load_misses.walk_completed_4k", "user") >= PAGES
            assert small.value("dtlb_load_misses.walk_completed_2m_4m", "user") == 0
            assert large.value("dtlb_load_misses.walk_completed_4k", "user") < PAGES / 4
            assert large.value("dtlb_load_misses.walk_completed_2m_4m", "user") >= FILE_BYTES >> 21

        with pytest.raises(CellFailed, match="no space"):
            runner.run(Cell("ext4", "write", 512 << 20, 4096))
        # And the place is as it was.
        assert runner.run(Cell("tmpfs", "read", 1 << 20, 4096)).value("bytes") == 1 << 20


@pytest.mark.guest
def test_the_journal_has_a_cpu_of_its_own():
    with place.testbed("256M", cpus=(0, 1)) as there:
        figures = Runner(there, systems.read()).run(Cell("ext4", "write", 1 << 20, 64 << 10))
    assert figures.value("bytes") == 1 << 20
    assert any(re.fullmatch(r"jbd2/pmem0\S* to CPU 1", str(s["step"])) for s in figures.steps)


def test_persistent_memory_is_the_end_of_all():
    """Above 4 GiB, whatever else there is; below, the machine is full."""
    assert layout.with_pmem(GIB, 512 * MIB) == (
        2 * GIB + 512 * MIB,
        "memmap=0x20000000!0x100000000",
    )
    assert layout.with_pmem(3 * GIB, GIB) == (4 * GIB, "memmap=0x40000000!0x140000000")


def test_sizes_that_the_kernel_cannot_describe(tmp_path):
    request = RecordRequest(["true"], tmp_path, tmp_path, {}, False, options={"pmem": "100M"})
    with pytest.raises(BoardError, match="not a multiple of 128 MiB"):
        Settings.of(request)
