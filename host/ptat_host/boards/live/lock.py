# SPDX-License-Identifier: BSD-2-Clause
"""A lock that lets only one ptat at a time trace this machine, which has one bus."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

from ptat_host.boards.base import BoardError

LOCK = Path("/run/ptat.lock")


def lock(taking: contextlib.ExitStack) -> None:
    """Keep other ptats from this machine's bus until `taking` ends.

    :raises BoardError: another ptat has it.
    """
    file = taking.enter_context(LOCK.open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BoardError(
            "another ptat is tracing this machine", "wait until it ends: there is only one bus"
        ) from None
