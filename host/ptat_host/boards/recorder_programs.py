# SPDX-License-Identifier: BSD-2-Clause
"""The programs in host/recorder: they record mappings and allocations, and measure the TSC."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ptat_host.boards.base import BoardError
from ptat_host.boards.program_cache import made

SOURCE = Path(__file__).resolve().parents[2] / "recorder"


def directory() -> Path:
    """The directory of ``ptat-maps``, ``tsc-khz`` and ``libptat-heap.so``, compiled unless they are
    in the cache.

    :raises BoardError: they cannot be compiled.
    """
    if not SOURCE.exists():
        raise BoardError(
            f"{SOURCE} is missing: mappings cannot be recorded",
            "install from a clone of ptat (pip install -e .), or record with --no-maps",
        )
    sources = [source for source in SOURCE.iterdir() if source.is_file()]
    return made("recorder", SOURCE, sources, "OUT")


@functools.cache
def tsc_khz() -> int:
    """Frequency of this machine's TSC, measured.

    :raises BoardError: the program cannot be compiled.
    """
    return int(subprocess.check_output([directory() / "tsc-khz"]))


def heap_environment(env: Mapping[str, str], heap_bytes: int, socket: str) -> dict[str, str]:
    """The environment of a command that reports its allocations of at least that size to
    `socket`."""
    library = str(directory() / "libptat-heap.so")
    others = env.get("LD_PRELOAD")
    preload = f"{library}:{others}" if others else library
    return {**env, "LD_PRELOAD": preload, "PTAT_HEAP": f"{heap_bytes}:{socket}"}


class Recording:
    """Records the mappings of processes that we start from now on; a context manager."""

    def __init__(self, target: Path, heap: bool) -> None:
        """Begin; `target` is the file to write. `heap`: also listen at `socket`.

        :raises BoardError: the kernel does not allow it, or the program cannot be compiled.
        """
        program = directory() / "ptat-maps"
        # Short: the path of a socket has 107 bytes.
        self._temporary = tempfile.TemporaryDirectory(prefix="ptat-") if heap else None
        self.socket = f"{self._temporary.name}/heap" if self._temporary else None
        self.written = False
        """Wait for its end, when the file is complete."""
        with target.open("wb") as file:
            self._process = subprocess.Popen(
                [program, str(os.getpid()), *([self.socket] if self.socket else [])],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is not for it
            )
        said = _of(self._process.stderr).readline().decode().strip()
        if said != "ready":
            self._end()
            raise BoardError(
                f"mappings cannot be recorded: {said}", "be root, or record with --no-maps"
            )

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.written = self._end() == 0

    def _end(self) -> int:
        _of(self._process.stdin).close()
        status = self._process.wait()
        _of(self._process.stderr).close()
        if self._temporary:
            self._temporary.cleanup()
        return status


def _of(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # stdout is a pipe
    return stream
