# SPDX-License-Identifier: BSD-2-Clause
"""Misses of kernel code: against the truth, and their chains against the guest's own stack dump."""

import re
import subprocess
import sys

import numpy as np
import pytest

from ptat_host.reports import kernel_profile as shown
from ptat_parser.formats import kernel_misses, truth

PROGRAM = """
import mmap, os, time

BYTES = 16 << 20
large = bytearray(BYTES)
fresh = memoryview(mmap.mmap(-1, BYTES))
pipe, to_child = os.pipe()
memory = os.memfd_create("file")  # of tmpfs
child = os.fork()
if not child:
    os.close(to_child)
    while os.read(pipe, 4096):
        pass
    os._exit(0)
while True:
    stack = open(f"/proc/{child}/stack").read()
    if "pipe_read" in stack:
        break
    time.sleep(0.01)
print(stack, flush=True)
for turn in range(100):
    large[::4096] = bytes(BYTES // 4096)  # leaves nothing of anybody in the TLB
    os.write(to_child, b"x" * 4096)
    os.pwrite(memory, memoryview(large)[:65536], turn << 16)
    os.preadv(memory, [fresh[turn << 16 :][:65536]], turn << 16)  # of which no page is there
    time.sleep(0.001)
os.close(to_child)
os.wait()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A session, and the functions that /proc/PID/stack shows of the child, outermost first."""
    session = tmp_path_factory.mktemp("kernel") / "s"
    command = [sys.executable, "-m", "ptat_host.cli", "record", "-o", str(session), "--children"]
    command += ["--kernel-misses", "yes", "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    stack = re.findall(r"\[<\w+>\] (?:\? )?(\w+)", done.stdout)
    return session, stack[::-1]


@pytest.mark.guest
def test_at_user_addresses_they_are_those_of_the_truth(recorded):
    session, _ = recorded
    reader = kernel_misses.Reader(session / kernel_misses.FILE)
    found = np.concatenate(list(reader))
    assert reader.complete
    user = found[found["va"] < 1 << kernel_misses.USER_VA_BITS]
    walks = truth.read(session / "truth.0.bin")
    in_kernel = walks["flags"] & (truth.Flag.KERNEL_MODE | truth.Flag.FAULT)
    walks = walks[in_kernel == truth.Flag.KERNEL_MODE]
    assert 0 < user.size < found.size
    assert (user["va"] >> 12 << 12).tolist() == walks["va"].tolist()
    for column in ("cause", "shift", "pgd_pfn", "cpu"):
        assert user[column].tolist() == walks[column].tolist()


@pytest.mark.guest
def test_chains_are_those_of_the_kernels_own_stack_dump(recorded):
    """The guest's unwinder also prints what is left on the stack: ours must be among it."""
    session, stack = recorded
    profile = shown.of_session(session)
    reads = {chain for chain, _, _ in profile.misses if "pipe_read" in " ".join(chain)}
    assert reads
    for chain in reads:
        at = next(i for i, name in enumerate(chain) if "pipe_read" in name)
        rest = iter(stack)
        assert all(name in rest for name in chain[: at + 1]), (chain, stack)
        assert chain[:2] == ("entry_SYSCALL_64_after_hwframe", "do_syscall_64")


@pytest.mark.guest
def test_a_write_copies_from_the_program(recorded):
    session, _ = recorded
    profile = shown.of_session(session)
    copies = {
        chain: misses
        for (chain, event, user), misses in profile.misses.items()
        if "shmem_file_write_iter" in chain and user and event == "loads"
    }
    # 16 pages each of 100 times, all but where the program has just moved to another CPU.
    assert sum(copies.values()) >= 1000
    for chain in copies:
        assert chain[:2] == ("entry_SYSCALL_64_after_hwframe", "do_syscall_64")
        assert re.search("pwrite", " ".join(chain))
    # Their chains run from the entry to the copy without a gap.
    assert any("generic_perform_write" in chain for chain in copies)


@pytest.mark.guest
def test_faults_in_the_kernel_stand_above_what_they_interrupted(recorded):
    """A system call that touches a page for the first time: the fault is part of its chain."""
    session, _ = recorded
    chains = {chain for chain, _, _ in shown.of_session(session, everyone=True).misses}
    faults = [c for c in chains if "exc_page_fault" in c and "do_syscall_64" in c]
    assert faults
    for chain in faults:
        at = chain.index("asm_exc_page_fault")
        assert chain.index("do_syscall_64") < at
        assert chain[at + 1] == "exc_page_fault"
        # Once, where the exception came.
        assert chain.count("asm_exc_page_fault") == 1
