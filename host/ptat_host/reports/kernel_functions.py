# SPDX-License-Identifier: BSD-2-Clause
"""Names of kernel code: ``kernel_functions.gz`` of a session, lines of System.map or kallsyms."""

from __future__ import annotations

import bisect
import gzip
from pathlib import Path

from ptat_parser.errors import BadInput


class KernelFunctions:
    """Names of kernel code, from lines of System.map.

    :raises BadInput: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._addresses: list[int] = []
        self._names: list[str] = []
        try:
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    address, _, name = line.split()
                    self._addresses.append(int(address, 16))
                    self._names.append(name)
        except FileNotFoundError:
            raise BadInput(f"{path}: no such file", "record again") from None
        except (EOFError, ValueError, gzip.BadGzipFile) as error:
            raise BadInput(f"{path}: damaged: {error}", "record again") from error

    def name(self, address: int) -> str:
        """The function at an address; the address itself if it precedes all functions."""
        at = bisect.bisect_right(self._addresses, address) - 1
        return self._names[at] if at >= 0 else f"{address:#x}"
