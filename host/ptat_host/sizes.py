# SPDX-License-Identifier: BSD-2-Clause
"""Parsing and formatting of sizes."""

from __future__ import annotations

import re

from ptat_parser.errors import PtatError

_UNITS = ("", "K", "M", "G", "T")


def parse_size(text: str, option: str) -> int:
    """`4096`, `64M`, `1G` or `1 GiB` (binary units) in bytes.

    :raises PtatError: it is not a positive size; `option` is named in the message.
    """
    match = re.fullmatch(r"([0-9]+)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    size_bytes = int(match[1]) << 10 * _UNITS.index(match[2]) if match else 0
    if not 0 < size_bytes < 1 << 63:
        raise PtatError(f"{option}: {text!r} is not a size", "write 4096, 64M or 1G")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Bytes in the largest binary unit that keeps the number above 1: `1.5 MiB`, `4 KiB`."""
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    number = f"{size_bytes / (1 << 10 * power):.1f}".removesuffix(".0")
    return f"{number} {_UNITS[power]}{'iB' if power else 'B'}"
