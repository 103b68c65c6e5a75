# SPDX-License-Identifier: BSD-2-Clause
"""Readable output: coloured and as wide as the terminal, or plain text without a terminal."""

from __future__ import annotations

import io
import sys

from rich.console import Console, RenderableType

_PLAIN_WIDTH = 400


def show(renderable: RenderableType) -> None:
    """Print to stdout; a pipe or file gets plain text of any width."""
    if sys.stdout.isatty():
        Console(highlight=False).print(renderable)
    else:
        sys.stdout.write(plain(renderable))


def plain(renderable: RenderableType) -> str:
    """The text without colours or trailing blanks."""
    text = io.StringIO()
    Console(file=text, width=_PLAIN_WIDTH, highlight=False, color_system=None).print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
