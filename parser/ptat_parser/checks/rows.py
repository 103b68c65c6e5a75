# SPDX-License-Identifier: BSD-2-Clause
"""The rows of single reads in a session's results."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.checks.report import Check, Report
from ptat_parser.results.reader import Results


def rows_by_kind(found: Results, current: Check, report: Report) -> npt.NDArray[np.int64]:
    """Number of rows of single reads by kind; also checks that time does not run backwards."""
    by_kind = np.zeros(3, np.int64)
    for name, batches in (("misses", found.misses()), ("other", found.others())):
        last_ns = None
        for time, _, *kind in batches:
            by_kind += np.bincount(kind[0], minlength=3) if kind else [time.size, 0, 0]
            before = time[:1] if last_ns is None else [last_ns]
            backwards = np.flatnonzero(np.diff(time, prepend=before) < 0)
            if backwards.size:
                message = f"row of {time[backwards[0]]} ns after one of a later time"
                file = f"{found.path.name}/{name}"
                report.violated(current, message, file, int(backwards.size))
            last_ns = time[-1] if time.size else last_ns
    return by_kind
