# SPDX-License-Identifier: BSD-2-Clause
"""Options that several of these commands have."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from ptat_parser.errors import PtatError


def add_plots(parser: argparse.ArgumentParser) -> None:
    """Add ``--plots``."""
    parser.add_argument(
        "--plots",
        metavar="DIR",
        type=Path,
        help="write figures there, as SVG, in place of older ones (default: none)",
    )


def need_plots() -> None:
    """See that figures can be drawn, before anything is measured for them.

    :raises PtatError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise PtatError("figures need matplotlib", "pip install 'ptat[studies]'")
