# SPDX-License-Identifier: BSD-2-Clause
"""How long does a new user wait for the first report? Ends with one line of JSON.

    python parser/first_report.py [--session DIR]

Runs ``ptat report`` on a copy of the session of docs/notebooks, which one process does: once with
an empty cache of compiled code, and once more, without results, when the code is in the cache.

* cold_cpu_s: CPU seconds of the first, from its start to its end
* warm_s: seconds of the second
* compiled_functions: functions that the first compiled, each variant for other types
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SESSION = Path(__file__).parents[1] / "docs" / "notebooks" / "session"
REPORT = """
import sys
from numba.core.event import install_recorder
from ptat_host.cli import main
with install_recorder("numba:compile") as recorder:
    status = main(["report", sys.argv[1]])
compiled = sum(event.is_end for _, event in recorder.buffer)
print(compiled, file=sys.stderr)
sys.exit(status)
"""


def report(session: Path, cache: Path) -> tuple[float, float, int]:
    """Parse and report a copy of a session: CPU seconds, elapsed seconds, compiled functions."""
    with tempfile.TemporaryDirectory(prefix="ptat-first-") as directory:
        copy = Path(directory) / "session"
        shutil.copytree(session, copy, ignore=shutil.ignore_patterns("results*"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", REPORT, str(copy)],
            env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        elapsed_s = time.perf_counter() - started_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, elapsed_s, int(done.stderr.splitlines()[-1])


def measure(session: Path) -> dict[str, float]:
    """The figures of a session."""
    with tempfile.TemporaryDirectory(prefix="ptat-cache-") as directory:
        cold_cpu_s, _, functions = report(session, Path(directory))
        _, warm_s, again = report(session, Path(directory))
    if again:
        sys.exit(f"error: the second report compiled {again} functions that the cache should have")
    return {
        "cold_cpu_s": round(cold_cpu_s, 2),
        "warm_s": round(warm_s, 2),
        "compiled_functions": functions,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--session", type=Path, default=SESSION, help="default: docs/notebooks'")
    print(json.dumps(measure(parser.parse_args().session)))


if __name__ == "__main__":
    main()
