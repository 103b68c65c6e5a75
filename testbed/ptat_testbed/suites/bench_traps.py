# SPDX-License-Identifier: BSD-2-Clause
"""What a trapped TLB miss costs in QEMU's emulator: gups with traps, beside the plain run.

Both alternate in the same guest, since machines drift; the figure is of the medians. The time is
what gups measures inside the guest. The misses are those of its table after each page was touched.

Ends with one JSON line: ``{"plain_s", "trapped_s", "misses", "us_a_trap", "host_load"}``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_parser.formats.traps import read_records
from ptat_testbed.boards import guest_run
from ptat_testbed.guest.command_output import stdout_to
from ptat_testbed.guest.steps import progress

PROGRAM = ("gups", "--bytes", "512M", "--updates", "256K")
"""More pages than QEMU's TLB has entries."""
PRINTED = re.compile(rb"first=(0x[0-9a-f]+) bytes=(\d+) .*seconds=([\d.]+)")
AIM_US = 12.0


def measure(*, traced: bool) -> tuple[float, int]:
    """Seconds that the program measured, and its misses meanwhile."""
    with tempfile.TemporaryDirectory(prefix="ptat-bench.") as temporary:
        session, output = Path(temporary) / "session", Path(temporary) / "stdout"
        session.mkdir()
        request = RecordRequest(
            argv=PROGRAM,
            session_dir=session,
            cwd=Path("/"),
            env=dict(os.environ),
            children=False,
            faults=False,
            maps=False,
            region_bytes=32 << 20,
            options={"memory": "2G"},
        )
        recording = guest_run.Recording(request, traps=True, traced=traced)
        with stdout_to(output):
            result = recording.record(recording.machine_config(region_base=None))
        printed = PRINTED.search(output.read_bytes())
        if not result.complete or not printed:
            raise BoardError(f"gups: {result.incomplete_reason or 'it did not print its time'}")
        first, size_bytes = int(printed[1], 16), int(printed[2])
        if not traced:
            return float(printed[3]), 0
        page = read_records(session / "kernel" / "trap0.raw")["addr"] >> np.uint64(12)
        page = page[(page >= first >> 12) & (page < first + size_bytes >> 12)]
        _, touched = np.unique(page, return_index=True)
        return float(printed[3]), page.size - int(touched.max()) - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="of each kind (default: 5)")
    options = parser.parse_args(arguments)
    plain, trapped, misses = [], [], []
    for number in range(options.runs):
        with progress(f"what a trap costs, run {number + 1}"):
            plain.append(measure(traced=False)[0])
            seconds, count = measure(traced=True)
            trapped.append(seconds)
            misses.append(count)
    cost_s = statistics.median(trapped) - statistics.median(plain)
    result = {
        "plain_s": statistics.median(plain),
        "trapped_s": statistics.median(trapped),
        "misses": round(statistics.median(misses)),
        "us_a_trap": round(1e6 * cost_s / statistics.median(misses), 2),
        "host_load": os.getloadavg()[0],
    }
    if result["us_a_trap"] > AIM_US:
        print(f"a trap takes more than the {AIM_US:g} us that it should", file=sys.stderr)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BoardError as error:
        sys.exit(f"bench-traps: {error}")
