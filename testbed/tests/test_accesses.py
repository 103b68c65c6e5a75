# SPDX-License-Identifier: BSD-2-Clause
"""All that a program accesses, against what it says and against the truth about its walks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ptat_parser.formats import truth
from ptat_parser.formats.session import Session
from ptat_parser.kernel.log import read_kernel_log
from ptat_parser.kernel.tracepoints import MM_ATTACH
from ptat_studies.pagesize import accesses
from ptat_studies.pagesize.accesses import Kind
from ptat_testbed.boards import testbed

PAGE = 4096
PAGES = 8192
INCREMENT = f"""
#include <sys/mman.h>
int main(void)
{{
    volatile char *p = mmap(0, {PAGES * PAGE}ul, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    if (madvise((void *)p, {PAGES * PAGE}ul, MADV_NOHUGEPAGE))
        return 2;
    for (long page = 0; page < {PAGES}; page++)
        sum += p[page * {PAGE}];
    for (long page = 0; page < {PAGES}; page++)
        __asm__ volatile("incb %0" : "+m"(p[page * {PAGE}]));
    return sum != 0;
}}
"""
"""Reads pages, which makes each the zero page, and then changes them."""


@pytest.mark.guest
def test_a_programs_accesses(tmp_path):
    session = tmp_path / "s"
    command = [sys.executable, "-m", "ptat_host.cli", "record", "-o", str(session)]
    command += ["--accesses", "yes", "--", "seqpage", "--bytes", "4M"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first = int(re.search(r"first=(0x[0-9a-f]+)", done.stdout)[1], 16)
    trace = accesses.of_testbed(Session(session))
    found = list(trace.batches)
    assert not trace.rejected.rows
    address = np.concatenate([batch.address for batch in found]) & np.uint64((1 << 48) - 1)
    kind = np.concatenate([batch.kind for batch in found])
    page = address // np.uint64(PAGE)

    # It touches each page of its memory, in order.
    in_table = (address >= first) & (address < first + (4 << 20)) & (kind != Kind.FETCH)
    order = page[in_table] - np.uint64(first // PAGE)
    assert np.unique(order).size == 1024
    firsts = np.unique(order, return_index=True)[1]
    assert (np.diff(firsts) > 0).all()

    # Whatever it missed, it accessed.
    log = read_kernel_log(session / "kernel").tables
    pgds = log["pgd"][log["kind"] == MM_ATTACH] >> np.uint64(12)
    walks = np.concatenate(list(truth.Reader(session / "truth.0.bin")))
    own = np.isin(walks["pgd_pfn"], pgds)
    own &= (walks["flags"] & (truth.Flag.KERNEL_MODE | truth.Flag.FAULT)) == 0
    for cause, kinds in (
        (truth.Cause.LOAD, [Kind.READ]),
        (truth.Cause.STORE, [Kind.WRITE]),
        (truth.Cause.FETCH, [Kind.FETCH]),
    ):
        missed = np.unique(walks["va"][own & (walks["cause"] == cause)] // np.uint64(PAGE))
        assert missed.size
        assert np.isin(missed, page[np.isin(kind, kinds)]).all()


@pytest.mark.guest
@pytest.mark.parametrize("log", ["no", "yes"])
def test_an_instruction_that_loads_and_stores(tmp_path: Path, log: str):
    """Each page is read thrice: by the load, by the INC that faults, and when that is repeated.

    Where accesses are not logged, the plugin sees the INC's store only, and takes its load from it.
    """
    program, session = tmp_path / "increment", tmp_path / "s"
    subprocess.run(["cc", "-xc", "-", "-o", program], input=INCREMENT, text=True, check=True)
    command = [sys.executable, "-m", "ptat_host.cli", "record", "-o", str(session)]
    subprocess.run([*command, "--accesses", log, "--", str(program)], check=True)
    spaces = json.loads((session / "counters.json").read_text())["address_spaces"]
    walks = max(spaces, key=lambda space: space["dtlb_load_misses.walk_completed"])
    assert 3 * PAGES <= walks["dtlb_load_misses.walk_completed"] < 3.1 * PAGES
    assert PAGES <= walks["dtlb_load_misses.walk_faulted"] < 1.1 * PAGES
    assert PAGES <= walks["dtlb_store_misses.walk_faulted"] < 1.1 * PAGES
    assert walks["dtlb_store_misses.walk_completed"] < 0.1 * PAGES


def test_options_that_make_sense():
    for options in ({}, {"accesses": "no"}, {"cpus": "2"}, {"accesses": "yes", "cpus": "1"}):
        testbed.check_accesses(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"accesses": "on"}, "neither yes nor no"), ({"accesses": "yes", "cpus": "2"}, "one CPU")],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(testbed.BoardError, match=message):
        testbed.check_accesses(options)
