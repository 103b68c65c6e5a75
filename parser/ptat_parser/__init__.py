# SPDX-License-Identifier: BSD-2-Clause
"""ptat parser: captured page-table reads → (time, process, virtual page).

`parse` writes a session's results, `load` reads them (and parses first if needed), `open` gives
programs access to the misses, and `validate` compares them with the testbed's truth. Each is
imported on first use, because builds of C parts run modules of this package with the system's
Python, without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptat_parser.checks.validation import Validation, validate
    from ptat_parser.results.pipeline import load, parse
    from ptat_parser.results.reader import Results
    from ptat_parser.results.trace import Misses, Trace, open

__all__ = ["Misses", "Results", "Trace", "Validation", "load", "open", "parse", "validate"]

_HOME = {
    "Misses": "results.trace",
    "Results": "results.reader",
    "Trace": "results.trace",
    "Validation": "checks.validation",
    "load": "results.pipeline",
    "open": "results.trace",
    "parse": "results.pipeline",
    "validate": "checks.validation",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(name)
    module = importlib.import_module(f"ptat_parser.{_HOME[name]}")
    found: object = getattr(module, name)
    return found
