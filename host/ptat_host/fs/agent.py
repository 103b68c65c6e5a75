# SPDX-License-Identifier: BSD-2-Clause
"""Does the jobs that arrive on standard input, one JSON object a line, until that ends.

Each is answered by a line. ``python3 -m ptat_host.fs.agent`` runs where the file systems are: in
the testbed's guest or, in a mount namespace of its own, on this machine.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from types import FrameType
from typing import Never

from ptat_host.fs.procedure import Job, do


def _end(number: int, _: FrameType | None) -> Never:
    """As an exception, so that all is undone."""
    sys.exit(128 + number)


def main() -> None:
    """Work until the input ends."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)
    for line in sys.stdin:
        print(json.dumps(asdict(do(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
