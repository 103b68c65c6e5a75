# SPDX-License-Identifier: BSD-2-Clause
"""Figures of the studies, for the documentation: of the trace and the sweeps in examples/.

The sweeps were measured by ``ptat bench-fs`` in the testbed, as docs/studies.md says; of their
cells only what the figures show is kept.

usage: figures.py OUT
"""

import sys
from pathlib import Path

from ptat_host import progress
from ptat_studies.fs import plots, sweep
from ptat_studies.pagesize import figures, study, workload

EXAMPLES = Path(__file__).parent / "examples"


def make(out: Path) -> None:
    """Write a directory of SVG files for each study into `out`."""
    with progress.bar() as show:
        traces = study.open_traces([f"ls={EXAMPLES / 'ls.trace'}"], None, show)
        found = study.study(traces, workload.Settings(), [], show)
    figures.write(found, out / "pagesize")
    for directory in sorted((EXAMPLES / "sweeps").iterdir()):
        plots.write(list(sweep.read_cells(directory)), out / directory.name)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
