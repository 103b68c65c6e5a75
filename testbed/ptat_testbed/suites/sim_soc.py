# SPDX-License-Identifier: BSD-2-Clause
"""The whole instrument in simulation: from a program's TLB misses to what ``ptat validate`` says.

A program runs in the testbed's guest; its bus is put before a simulated memory controller, and
on that controller's commands sits the simulated device with its CPU, firmware, DRAM and Ethernet.
This machine is its host, over UDP. What arrives must tell each miss.

Ends with one JSON line: ``{"blocks", "bytes", "equal", "lost", "seconds"}``: what arrived, whether
each miss is as the guest had it, what was lost on the way (accesses in the device, and blocks on
the link), and how long all of it took. Exit status 1 if they differ or something was lost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ptat_parser.wire import BLOCK_BYTES

PTAT = [sys.executable, "-m", "ptat_host.cli"]
COMMAND = ["seqpage", "--bytes", "12M"]


def main(argv: Sequence[str] | None = None) -> int:
    """Record and validate."""
    parser = argparse.ArgumentParser(prog="make sim-soc", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the session there")
    parser.add_argument("command", nargs="*", default=COMMAND, help="default: seqpage --bytes 12M")
    arguments = parser.parse_args(argv)
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ptat-sim-soc.") as temporary:
        session = arguments.keep or Path(temporary) / "session"
        recorded = subprocess.run(
            [*PTAT, "record", "--bus", "soc", "-o", session, "--", *arguments.command],
            stdout=sys.stderr,
        )
        if recorded.returncode:
            return recorded.returncode
        validated = subprocess.run([*PTAT, "validate", session], stdout=sys.stderr)
        link = json.loads((session / "session.json").read_text())["board"]["link"]
    lost = link["lost_accesses"] + link["missing_inside"] + link["missing_at_end"]
    figures = {
        "blocks": link["blocks"],
        "bytes": link["blocks"] * BLOCK_BYTES,
        "equal": validated.returncode == 0,
        "lost": lost,
        "seconds": round(time.monotonic() - start_s, 1),
    }
    print(json.dumps(figures))
    return int(lost > 0 or validated.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
