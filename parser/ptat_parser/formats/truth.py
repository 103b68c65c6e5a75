# SPDX-License-Identifier: BSD-2-Clause
"""Layout of ``truth.0.bin``: the walks of the testbed's page walker.

64-bit little-endian words, one per walk and some between walks; docs/formats.md explains them.
This is the only definition: the testbed's plugin gets it from
``python3 -m ptat_parser.formats.truth --c-header``.

Standard library only at import: builds of C parts run this file with the system's Python.
"""

from __future__ import annotations

import argparse
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptat_parser.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HEADER = int.from_bytes(b"PTATTRU\x02", "little")
WORD_BYTES = 8

KIND_SHIFT = 62  # a Cause, or 3: not a walk, but what the walks from here on are counted from
KIND_BASE = 3
WALK_FLAGS_SHIFT = 57
WALK_FLAGS_BITS = 5
WALK_LEVEL_SHIFT = 54
WALK_LEVEL_BITS = 3
WALK_DELTA_SHIFT = 36
WALK_DELTA_BITS = 18
WALK_PAGE_BITS = 36
BASE_SPACE_SHIFT = 61  # set: a SPACE; else a TIME
TIME_BITS = 60
SPACE_CPU_SHIFT = 40
SPACE_CPU_BITS = 8
SPACE_PGD_BITS = 40

PAGE_SHIFT = 12
LEVEL_BITS = 9  # a page table has 2^9 entries
LEVEL_MAX = 4

FIELDS = (
    ("time", 8, "ticks of the bus clock"),
    ("va", 8, "page that missed: its virtual address"),
    ("pgd_pfn", 8, "CR3 >> 12"),
    ("shift", 1, "log2 of the page size, or the level where the walk ended"),
    ("cause", 1, "Cause"),
    ("flags", 1, "Flag"),
    ("cpu", 1, "vCPU"),
)

BLOCK_WORDS = 1 << 20


class Cause(enum.IntEnum):
    """The kind of access that missed."""

    LOAD = 0
    STORE = 1
    FETCH = 2


class Flag(enum.IntFlag):
    """Properties of a walk."""

    FAULT = 1
    LEAF_IN_REGION = 2
    KERNEL_MODE = 4
    PMD_IN_REGION = 8
    RACE = 16


def dtype() -> np.dtype[np.void]:
    """A numpy structured dtype of one walk, with the fields of `FIELDS`."""
    import numpy as np

    return np.dtype([(name, f"<u{size}") for name, size, _ in FIELDS])


class Reader:
    """Iterates over the walks of a truth file in blocks.

    :param block_words: maximum number of the file's words per block.
    :raises BadInput: the file is missing, truncated, of another version or damaged.
    """

    def __init__(self, path: Path, block_words: int = BLOCK_WORDS) -> None:
        import numpy as np

        from ptat_parser.formats import storage

        if not path.is_file():
            raise BadInput(f"{path}: no such file", "only the testbed records the truth")
        size_bytes = path.stat().st_size
        if size_bytes % WORD_BYTES:
            raise BadInput(
                f"{path}: truncated: {size_bytes} bytes are not a multiple of {WORD_BYTES}",
                "record again",
            )
        self._path = path
        self._block_words = block_words
        self._words: npt.NDArray[np.uint64]
        if not size_bytes:  # the machine was killed before it wrote anything
            self._words = np.empty(0, np.uint64)
        elif storage.is_remote(path):
            self._words = storage.read_array(path, "<u8")
        else:
            self._words = np.memmap(path, "<u8", mode="r")
        if self._words.size and int(self._words[0]) != HEADER:
            raise BadInput(f"{path}: not a truth file of this version of ptat", "record again")
        self.words = self._words.size
        """Number of words in the file, including the header."""
        self.words_read = min(1, self.words)
        """Number of words in the blocks yielded so far."""

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yields non-empty structured arrays of `dtype`, shape ``(walks,)``."""
        import numpy as np

        time: int | None = None
        space: int | None = None
        while self.words_read < self.words:
            words = self._words[self.words_read : self.words_read + self._block_words]
            kind = words >> np.uint64(KIND_SHIFT)
            is_walk = kind != KIND_BASE
            is_space = ~is_walk & ((words >> np.uint64(BASE_SPACE_SHIFT) & np.uint64(1)) == 1)
            is_time = ~is_walk & ~is_space
            elapsed = np.cumsum(
                np.where(is_walk, _bits(words, WALK_DELTA_SHIFT, WALK_DELTA_BITS), 0),
                dtype=np.uint64,
            )
            # A TIME counts from what has elapsed there.
            start, has_time = _last(is_time, _bits(words, 0, TIME_BITS) - elapsed, time)
            of_space, has_space = _last(is_space, words, space)
            if not np.all((has_time & has_space)[is_walk]):
                raise BadInput(f"{self._path}: damaged: a walk without a time", "record again")
            level = _bits(words, WALK_LEVEL_SHIFT, WALK_LEVEL_BITS)[is_walk]
            if level.size and level.max() > LEVEL_MAX:
                raise BadInput(f"{self._path}: damaged: an impossible level", "record again")

            walks = np.empty(level.size, dtype())
            at = start + elapsed
            walks["time"] = at[is_walk]
            walks["va"] = _bits(words, 0, WALK_PAGE_BITS)[is_walk] << np.uint64(PAGE_SHIFT)
            walks["pgd_pfn"] = _bits(of_space, 0, SPACE_PGD_BITS)[is_walk]
            walks["cpu"] = _bits(of_space, SPACE_CPU_SHIFT, SPACE_CPU_BITS)[is_walk]
            walks["shift"] = PAGE_SHIFT + LEVEL_BITS * level
            walks["cause"] = kind[is_walk]
            walks["flags"] = _bits(words, WALK_FLAGS_SHIFT, WALK_FLAGS_BITS)[is_walk]
            time = int(at[-1]) if has_time[-1] else None
            space = int(of_space[-1]) if has_space[-1] else None
            self.words_read += words.size
            if walks.size:
                yield walks


def _bits(words: npt.NDArray[np.uint64], shift: int, bits: int) -> npt.NDArray[np.uint64]:
    import numpy as np

    return words >> np.uint64(shift) & np.uint64((1 << bits) - 1)


def _last(
    where: npt.NDArray[np.bool_], value: npt.NDArray[np.uint64], before: int | None
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """For each word: `value` at the last preceding word with `where`, and whether there is one."""
    import numpy as np

    at = np.maximum.accumulate(np.where(where, np.arange(where.size), -1))
    found = np.where(at < 0, np.uint64(before or 0), value[at])
    return found, (at >= 0) | (before is not None)


def read(path: Path) -> npt.NDArray[Any]:
    """All walks of a truth file: a structured array, shape ``(walks,)``, of `dtype`.

    :raises BadInput: as `Reader`.
    """
    import numpy as np

    return np.concatenate([np.empty(0, dtype()), *Reader(path)])


def write(path: Path, walks: npt.NDArray[Any]) -> None:
    """Write walks, a structured array of `dtype` with addresses below 2^48, as a truth file.

    Replaces the file at `path` only when the new file is complete.
    """
    import numpy as np

    time = walks["time"].astype(np.uint64)
    space = (
        np.uint64(KIND_BASE << KIND_SHIFT | 1 << BASE_SPACE_SHIFT)
        | walks["cpu"].astype(np.uint64) << np.uint64(SPACE_CPU_SHIFT)
        | walks["pgd_pfn"]
    )
    delta = np.diff(time, prepend=time[:1])  # beyond the maximum, too, where time runs backwards
    new_time = delta >> np.uint64(WALK_DELTA_BITS) != 0
    new_space = np.diff(space, prepend=space[:1]) != 0
    new_time[:1] = new_space[:1] = True
    at = np.arange(walks.size) + np.cumsum(new_time) + np.cumsum(new_space) + 1
    words = np.empty(1 + walks.size + int(new_time.sum()) + int(new_space.sum()), "<u8")
    words[0] = HEADER
    words[at] = (
        walks["cause"].astype(np.uint64) << np.uint64(KIND_SHIFT)
        | walks["flags"].astype(np.uint64) << np.uint64(WALK_FLAGS_SHIFT)
        | ((walks["shift"] - PAGE_SHIFT) // LEVEL_BITS).astype(np.uint64)
        << np.uint64(WALK_LEVEL_SHIFT)
        | np.where(new_time, np.uint64(0), delta) << np.uint64(WALK_DELTA_SHIFT)
        | walks["va"] >> np.uint64(PAGE_SHIFT)
    )
    words[at[new_space] - 1] = space[new_space]
    words[(at - new_space)[new_time] - 1] = np.uint64(KIND_BASE << KIND_SHIFT) | time[new_time]
    new = path.with_suffix(".new")
    words.tofile(new)
    new.replace(path)


_C_INTEGERS = [
    "KIND_SHIFT",
    "KIND_BASE",
    "WALK_FLAGS_SHIFT",
    "WALK_FLAGS_BITS",
    "WALK_LEVEL_SHIFT",
    "WALK_LEVEL_BITS",
    "WALK_DELTA_SHIFT",
    "WALK_DELTA_BITS",
    "WALK_PAGE_BITS",
    "BASE_SPACE_SHIFT",
    "TIME_BITS",
    "SPACE_CPU_SHIFT",
    "SPACE_CPU_BITS",
    "SPACE_PGD_BITS",
    "PAGE_SHIFT",
    "LEVEL_BITS",
]

_C_WORDS = """\
/* One word each. @delta: ticks since the walk before, or since the TIME before. */
#define PTAT_TRUTH_WALK(cause, flags, shift, delta, va) \\
    ((uint64_t)(cause) << PTAT_TRUTH_KIND_SHIFT | \\
     (uint64_t)(flags) << PTAT_TRUTH_WALK_FLAGS_SHIFT | \\
     (uint64_t)(((shift) - PTAT_TRUTH_PAGE_SHIFT) / PTAT_TRUTH_LEVEL_BITS) \\
         << PTAT_TRUTH_WALK_LEVEL_SHIFT | \\
     (uint64_t)(delta) << PTAT_TRUTH_WALK_DELTA_SHIFT | \\
     (uint64_t)(va) >> PTAT_TRUTH_PAGE_SHIFT)
#define PTAT_TRUTH_TIME(ticks) \\
    ((uint64_t)PTAT_TRUTH_KIND_BASE << PTAT_TRUTH_KIND_SHIFT | (uint64_t)(ticks))
#define PTAT_TRUTH_SPACE(cpu, pgd_pfn) \\
    ((uint64_t)PTAT_TRUTH_KIND_BASE << PTAT_TRUTH_KIND_SHIFT | \\
     UINT64_C(1) << PTAT_TRUTH_BASE_SPACE_SHIFT | \\
     (uint64_t)(cpu) << PTAT_TRUTH_SPACE_CPU_SHIFT | (uint64_t)(pgd_pfn))
"""


def c_header() -> str:
    """The layout as a C header (``ptat_truth.h``)."""
    lines = [
        "/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */",
        "/* Generated by ptat_parser.formats.truth --c-header; see docs/formats.md. */",
        "#ifndef PTAT_TRUTH_H",
        "#define PTAT_TRUTH_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define PTAT_TRUTH_HEADER UINT64_C({HEADER:#x})",
    ]
    lines += [f"#define PTAT_TRUTH_{name} {globals()[name]}" for name in _C_INTEGERS]
    lines += [""]
    lines += [f"#define PTAT_TRUTH_CAUSE_{cause.name} {int(cause)}" for cause in Cause]
    lines += [f"#define PTAT_TRUTH_FLAG_{flag.name} {int(flag)}" for flag in Flag]
    return "\n".join(lines) + "\n\n" + _C_WORDS + "\n#endif\n"


def main() -> None:
    """Command line: print the generated header."""
    parser = argparse.ArgumentParser(
        prog="ptat_parser.formats.truth", description="truth file layout"
    )
    parser.add_argument("--c-header", action="store_true", required=True, help="print ptat_truth.h")
    parser.parse_args()
    print(c_header(), end="")


if __name__ == "__main__":
    main()
