# SPDX-License-Identifier: BSD-2-Clause
"""Does the jobs that arrive on standard input, one JSON object a line, until that ends.

Each is answered by a line. ``python3 -m ptat_studies.fs.agent`` runs where the file systems are: in
the testbed's guest or, in a mount namespace of its own, on this machine.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from types import FrameType
from typing import Never

from ptat_studies.fs.procedure import Job, do


def _end(number: int, _: FrameType | None) -> Never:
    """As an exception, so that all is undone."""
    sys.exit(128 + number)


def exit_on(*signals: signal.Signals) -> None:
    """Let these end the process with all cleaned up, not at once."""
    for number in signals:
        signal.signal(number, _end)


def main() -> None:
    """Work until the input ends."""
    exit_on(signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for line in sys.stdin:
        print(json.dumps(asdict(do(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
