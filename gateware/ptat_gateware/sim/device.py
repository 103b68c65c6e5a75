# SPDX-License-Identifier: BSD-2-Clause
"""The simulated device as a process: it is there on a UDP port, and requests can be put on its bus.

It runs as long as it is open, several hundred times slower than a real one. Its clocks of bus and
system are one: a real bus is up to twice as fast.
"""

from __future__ import annotations

import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ptat_gateware.sim import soc
from ptat_gateware.sim.build import SimulatorError
from ptat_gateware.sim.words import COLUMN_BANK_SHIFT, COLUMN_CHANNEL_SHIFT

U64 = npt.NDArray[np.uint64]

CLOCK_PS = int(1e12 / soc.SYS_CLOCK_HZ)
READY = "ready"
"""What the firmware says on its UART when it takes commands."""
BOOT_S = 300.0
POLL_S = 0.1
END_S = 30.0


class Device:
    """A context manager; in it, the device runs, and its firmware takes commands.

    :raises SimulatorError: it cannot be built, or does not start.
    """

    def __init__(self) -> None:
        self._directory = soc.simulator()
        self._stack = tempfile.TemporaryDirectory(prefix="ptat-soc.")
        self._work = Path(self._stack.name)
        self.port = 0
        """Of its commands, on 127.0.0.1."""
        self.clocks: int | None = None
        """That were simulated; known at the end."""

    def __enter__(self) -> Device:
        with (self._work / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    self._directory / "soc-harness",
                    *(str(CLOCK_PS), str(CLOCK_PS), self._work / "columns", self._work / "uart"),
                ],
                cwd=self._directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        try:
            self.port = int(self._said("port", BOOT_S, lambda: None))
            deadline_s = time.monotonic() + BOOT_S
            while READY not in self.console.splitlines():
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise self._failure("the firmware does not start")
                time.sleep(POLL_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def console(self) -> str:
        """What its UART has said, in complete lines."""
        return self.console_bytes.decode(errors="replace")

    @property
    def console_bytes(self) -> bytes:
        """What its UART has said; frames, too."""
        return (self._work / "uart").read_bytes()

    def timed(
        self, words: U64, time_ticks: U64, gap_ticks: int, tick: Callable[[], None]
    ) -> tuple[U64, npt.NDArray[np.uint8]]:
        """Put requests on the bus, as `Simulation.timed` does; times count from now on.

        :param tick: called ten times a second meanwhile.
        :returns: when each column command was on the bus, and on which channel (`PAUSE_CHANNEL`:
            it was a pause), since the device runs.
        """
        files = [self._work / "requests", self._work / "times"]
        for file, values in zip(files, (words, time_ticks), strict=True):
            values.astype("<u8", copy=False).tofile(file)
        self._say(f"timed {files[0]} {files[1]} {gap_ticks}")
        self._said("timed", float("inf"), tick)
        columns = np.fromfile(self._work / "columns", "<u8")
        return (
            columns & np.uint64((1 << COLUMN_BANK_SHIFT) - 1),
            (columns >> np.uint64(COLUMN_CHANNEL_SHIFT)).astype(np.uint8),
        )

    def send_to_uart(self, data: bytes) -> None:
        """Bytes for its UART."""
        self._say(f"uart {data.hex()}")

    def hang(self, hangs: bool) -> None:
        """Let its CPU stand still; afterwards it starts from the beginning."""
        self._say(f"hang {int(hangs)}")

    def _say(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{line}\n")
        except BrokenPipeError:
            raise self._failure("the simulator ended") from None

    def _said(self, what: str, patience_s: float, tick: Callable[[], None]) -> str:
        """What follows in the line that begins with `what`."""
        assert self._process.stdout
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            tick()
            if not select.select([self._process.stdout], [], [], POLL_S)[0]:
                continue
            line = self._process.stdout.readline().split()
            if not line:
                raise self._failure("the simulator ended")
            if line[0] == what:
                return line[1]
        raise self._failure(f"the simulator never says {what}")

    def _failure(self, otherwise: str) -> SimulatorError:
        self._process.kill()
        self._process.wait()
        return SimulatorError((self._work / "errors").read_text().strip() or otherwise)

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.stdin.close()  # type: ignore[union-attr]
            try:
                self.clocks = int(self._said("end", END_S, lambda: None))
                self._process.wait(END_S)
            except (SimulatorError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._stack.cleanup()
