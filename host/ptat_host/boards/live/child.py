# SPDX-License-Identifier: BSD-2-Clause
"""The traced command, whose address space is chosen right before it is executed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_host.boards.live.kernel_files import MARKER_MS, TRACE_CHILDREN, TRACE_COMMAND

GRACE_S = 2.0
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Run:
    """How the command ended."""

    exit_status: int | None = None
    interrupted: bool = False
    failure: str | None = None
    """Why the recording is incomplete."""


@contextlib.contextmanager
def adopting(children: bool) -> Iterator[None]:
    """Become the parent of processes that the command leaves behind, if its `children` are
    traced."""
    if children:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        if children:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def start(request: RecordRequest, env: Mapping[str, str], choice: int) -> subprocess.Popen[bytes]:
    """Start the command, traced.

    :param choice: the open file ``self`` of the kernel's PTAT.
    :raises BoardError: it cannot be run.
    """
    how = (TRACE_CHILDREN if request.children else TRACE_COMMAND).encode()
    try:
        return subprocess.Popen(
            request.argv, cwd=request.cwd, env=env, preexec_fn=lambda: os.write(choice, how)
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BoardError(f"cannot run {request.argv[0]}: {why}") from None


def attend(child: subprocess.Popen[bytes], tick: Callable[[], str | None], run: Run) -> None:
    """Wait for the end of the command; kill it at a second interruption.

    :param tick: called each `MARKER_MS`; returns the reason why the recording must end, or None.
    """
    pidfd = os.pidfd_open(child.pid)
    stopped_s: float | None = None
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while True:
            try:
                if poll.poll(MARKER_MS):
                    break
                failure = tick()
                run.failure = run.failure or failure
                if run.failure and stopped_s is None:
                    stopped_s = time.monotonic()
                    if not run.interrupted:
                        child.terminate()
                elif stopped_s is not None and time.monotonic() - stopped_s > GRACE_S:
                    child.kill()
            except KeyboardInterrupt:
                # A terminal has signalled the command, too.
                if run.interrupted:
                    child.kill()
                run.interrupted = True
                run.failure = run.failure or "interrupted"
    finally:
        os.close(pidfd)
    status = child.wait()
    run.exit_status = status if status >= 0 else 128 - status


def end_children() -> None:
    """Kill the processes that the command left behind, until none is left."""
    while True:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # pid (comm) state ppid …; comm may hold anything.
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
