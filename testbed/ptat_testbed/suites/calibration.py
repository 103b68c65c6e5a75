# SPDX-License-Identifier: BSD-2-Clause
"""``make calibrate``: from known reads to an exact trace, by a mapping that ptat found itself.

In the guest, the region is read through /dev/mem at chosen addresses. Those reads go to LiteDRAM's
controllers, whose mapping is a published one with a hashed channel; the snoopers do not know it,
and report coordinates. What `ptat calibrate` makes of that is held against the controllers'
functions, and then programmed into snoopers that record a workload: every miss must be right.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from ptat_gateware.sim import geometry
from ptat_host.calibration import dram
from ptat_host.cli import main as ptat
from ptat_testbed.bus import snooped_memory

WORKLOAD = ("gups", "--bytes", "1M", "--updates", "1280")


def agrees(found: dict[str, list[str]], determined: list[int], mapping: dram.Mapping) -> bool:
    """Whether the functions found (masks as text) are the mapping's, as far as bits are known."""
    known = sum(1 << bit for bit in determined)
    for name, masks in mapping.functions.items():
        ours = [int(mask, 16) for mask in found[name]] + [0] * dram.FIELDS[name]
        if any(mask & known != our & known for mask, our in zip(masks, ours, strict=False)):
            return False
    return True


def run(channels: int, directory: Path) -> dict[str, object]:
    """Calibrate and record with a number of channels.

    :raises RuntimeError: a command failed.
    """
    begun_s = time.monotonic()
    bus = ["--board", "testbed", "--bus", "gateware", "--channels", str(channels)]
    file, session = directory / "mapping.json", directory / "session"
    if ptat(["calibrate", *bus, "-o", str(file)]):
        raise RuntimeError("ptat calibrate failed")
    if ptat(["record", *bus, "--mapping", str(file), "-o", str(session), "--", *WORKLOAD]):
        raise RuntimeError("ptat record failed")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        ptat(["validate", "--json", str(session)])
    described, verdict = json.loads(file.read_text()), json.loads(output.getvalue())
    mapping = dram.preset(snooped_memory.MAPPING, channels, geometry.ROW_BITS)
    return {
        "channels": channels,
        "observations": described["observations"],
        "disagreeing": described["disagreeing"],
        "determined": len(described["determined"]),
        "functions_equal": agrees(described["functions"], described["determined"], mapping),
        "misses": verdict["matched"],
        "exact": verdict["exact"],
        "seconds": round(time.monotonic() - begun_s, 1),
    }


def main() -> int:
    """Command line; the last line is a JSON object."""
    parser = argparse.ArgumentParser(prog="ptat_testbed.suites.calibration", description=__doc__)
    parser.add_argument(
        "--channels", type=int, choices=(1, 2), help="memory channels (default: first 1, then 2)"
    )
    arguments = parser.parse_args()
    results = []
    for channels in [arguments.channels] if arguments.channels else [1, 2]:
        with tempfile.TemporaryDirectory(prefix="ptat-calibrated-") as temporary:
            results.append(run(channels, Path(temporary)))
    good = all(result["functions_equal"] and result["exact"] for result in results)
    print(json.dumps({"good": good, "runs": results}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
