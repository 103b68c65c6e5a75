# SPDX-License-Identifier: BSD-2-Clause
"""The frequency of the TSC from the kernel's messages, and the kernel's later warnings."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from ptat_host.boards.base import BoardError

KMSG = "/dev/kmsg"
RECORD_BYTES_MAX = 8192
WARNING_LEVEL = 4

_TSC = re.compile(r"tsc: (Refined TSC clocksource calibration|Detected):? ([0-9.]+) MHz")


def tsc_hz(messages: str) -> int | None:
    """The frequency of the TSC from the kernel's messages; the refined one if available."""
    found = {kind: float(mhz) for kind, mhz in _TSC.findall(messages)}
    mhz = found.get("Refined TSC clocksource calibration") or found.get("Detected")
    return round(mhz * 1e6) if mhz else None


class KernelMessages:
    """The kernel's earlier messages, then the new ones."""

    def __init__(self, taking: contextlib.ExitStack) -> None:
        self._kmsg = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
        taking.callback(os.close, self._kmsg)

    def frequency(self, given: str | None) -> int:
        """The frequency of the TSC in Hz, from all messages up to now.

        :param given: the user's value.
        :raises BoardError: `given` is no frequency, or no message states it.
        """
        messages = "\n".join(self._new())
        if given is not None:
            if not (given.isascii() and given.isdigit() and int(given)):
                raise BoardError(f"--tsc-hz {given}: not a number of Hz")
            return int(given)
        if found := tsc_hz(messages):
            return found
        raise BoardError(
            "the kernel's log no longer has the TSC's frequency",
            "find it (journalctl -k -b | grep tsc:) and give it as --tsc-hz 2600000000",
        )

    def warnings(self) -> list[str]:
        """The first lines of the warnings and errors since the last call."""
        found = []
        for message in self._new():
            prefix, _, text = message.partition(";")
            if int(prefix.split(",")[0]) & 7 <= WARNING_LEVEL:
                found.append(text.splitlines()[0])
        return found

    def _new(self) -> Iterator[str]:
        """Unread records: ``level,…;text``."""
        while True:
            try:
                yield os.read(self._kmsg, RECORD_BYTES_MAX).decode(errors="replace")
            except BrokenPipeError:
                continue  # some were overwritten
            except BlockingIOError:
                return
