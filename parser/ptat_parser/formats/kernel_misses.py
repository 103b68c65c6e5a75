# SPDX-License-Identifier: BSD-2-Clause
"""``kernel_misses.bin.gz``: TLB misses of kernel code in the testbed, with their call chains.

One gzip stream of 32-byte records; docs/formats.md explains them. This is the only definition:
the testbed's plugin gets it from ``python3 -m ptat_parser.formats.kernel_misses --c-header``.

Standard library only at import: builds of C parts run this file with the system's Python.
"""

from __future__ import annotations

import argparse
import enum
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptat_parser.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FILE = "kernel_misses.bin.gz"
FUNCTIONS = "kernel_functions.gz"
"""File beside it: the lines of the kernel's System.map that name code."""
HEADER = b"PTATKMI\x01"
RECORD_BYTES = 32
READ_BYTES = RECORD_BYTES << 16
USER_VA_BITS = 47


class Kind(enum.IntEnum):
    """Kind of a record."""

    MISS = 0
    PLACE = 1
    END = 2


_MISS = (
    ("kind", 1, "Kind.MISS"),
    ("cause", 1, "ptat_parser.formats.truth.Cause"),
    ("shift", 1, "log2 of the page size"),
    ("cpu", 1, "vCPU"),
    ("place", 4, "which instruction, called from where"),
    ("time", 8, "ticks of the bus clock"),
    ("va", 8, "what was accessed"),
    ("pgd_pfn", 8, "CR3 >> 12"),
)
_PLACE = (
    ("kind", 4, "Kind.PLACE"),
    ("place", 4, "its number, from 1 up; written before the first miss there"),
    ("caller", 8, "the place of the call that led here, 0: none"),
    ("address", 8, "of the instruction that missed or called"),
    ("zero", 8, ""),
)
_END = (
    ("kind", 4, "Kind.END"),
    ("zero", 4, ""),
    ("misses", 8, "how many are in the file"),
    ("zeros", 16, ""),
)


def _dtype(fields: tuple[tuple[str, int, str], ...]) -> np.dtype[np.void]:
    import numpy as np

    return np.dtype([(name, f"<u{size}" if size <= 8 else f"V{size}") for name, size, _ in fields])


def dtype() -> np.dtype[np.void]:
    """A miss as a numpy structured dtype of 32 bytes: cause, shift, cpu, place, time, va, …"""
    return _dtype(_MISS)


class Reader:
    """Iterates over the misses of a file, and collects the places where they happened.

    :raises BadInput: while iterating: the file is missing, damaged or of another version. A
        truncated file can be read up to its end; `complete` is then False.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            hint = "ptat record --kernel-misses yes, in the testbed"
            raise BadInput(f"{path}: no such file", hint)
        self._path = path
        self.callers = [0]
        """Caller of each place, by place number; 0 if there is none. Place 0 is unused."""
        self.addresses = [0]
        """Address of the instruction that missed or called, by place number."""
        self.complete = False
        """Whether the file was read to its end and is not truncated."""

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yields non-empty arrays of `dtype`, shape ``(misses,)``, whose places are all known."""
        import numpy as np

        misses = 0
        for data in self._pieces():
            records = np.frombuffer(data, dtype())
            places = np.frombuffer(data, _dtype(_PLACE))[records["kind"] == Kind.PLACE]
            for place, caller, address in zip(
                places["place"].tolist(),
                places["caller"].tolist(),
                places["address"].tolist(),
                strict=True,
            ):
                if place != len(self.addresses) or caller >= place:
                    raise self._damaged("a place that nothing leads to")
                self.callers.append(caller)
                self.addresses.append(address)
            ends = np.frombuffer(data, _dtype(_END))[records["kind"] == Kind.END]
            if (records["kind"] > Kind.END).any():
                raise self._damaged("a record of no kind")
            found = records[records["kind"] == Kind.MISS]
            if found.size and found["place"].max() >= len(self.addresses):
                raise self._damaged("a miss at an unknown place")
            misses += found.size
            self.complete = bool(ends.size and ends["misses"][-1] == misses)
            if found.size:
                yield found

    def _pieces(self) -> Iterator[bytes]:
        """Yields whole records; a truncated last record is dropped."""
        try:
            with gzip.open(self._path) as file:
                if file.read(len(HEADER)) != HEADER:
                    raise BadInput(f"{self._path}: not of this version of ptat", "record again")
                while data := file.read(READ_BYTES):
                    if whole := len(data) // RECORD_BYTES * RECORD_BYTES:
                        yield data[:whole]
        except EOFError:
            return
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, what: str) -> BadInput:
        return BadInput(f"{self._path}: damaged: {what}", "record again")


def c_header() -> str:
    """The layout as a C header (``ptat_kernel_misses.h``)."""
    lines = [
        "/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */",
        "/* Generated by ptat_parser.formats.kernel_misses --c-header; see docs/formats.md. */",
        "#ifndef PTAT_KERNEL_MISSES_H",
        "#define PTAT_KERNEL_MISSES_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define PTAT_KERNEL_MISSES_HEADER UINT64_C({int.from_bytes(HEADER, 'little'):#x})",
        *(f"#define PTAT_KERNEL_MISSES_{kind.name} {int(kind)}" for kind in Kind),
    ]
    for name, fields in (("miss", _MISS), ("place", _PLACE), ("end", _END)):
        lines += ["", f"struct ptat_kernel_{name} {{"]
        for field, size, about in fields:
            comment = f" /* {about} */" if about else ""
            bits, array = (8, f"[{size}]") if size > 8 else (8 * size, "")
            lines.append(f"\tuint{bits}_t {field}{array};{comment}")
        lines.append("};")
    return "\n".join(lines) + "\n\n#endif\n"


def main() -> None:
    """Command line: print the generated header."""
    parser = argparse.ArgumentParser(prog="ptat_parser.formats.kernel_misses")
    parser.add_argument("--c-header", action="store_true", required=True, help="print the C header")
    parser.parse_args()
    print(c_header(), end="")


if __name__ == "__main__":
    main()
