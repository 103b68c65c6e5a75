# SPDX-License-Identifier: BSD-2-Clause
"""Known reads of physical memory: what `ptat calibrate` has the boards look at.

Of PTAT's region, which is not cached: each load is a read on the bus. Root only.

``python3 -m ptat_host.reads`` does it in the testbed's guest; standard library only, as importing
more would take the emulator longer than the reads.
"""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import random
import sys
from pathlib import Path
from types import TracebackType

from ptat_parser.errors import PtatError

REGION = Path("/sys/kernel/mm/ptat/region")
MEMORY = Path("/dev/mem")
LINE_BYTES = 64
"""A burst on the bus: addresses closer than this look alike."""
WORD_BYTES = 8


def chosen(base: int, size_bytes: int, count: int, seed: int) -> list[int]:
    """Different addresses of lines in a range, all over it.

    :raises PtatError: the range has fewer.
    """
    lines = size_bytes // LINE_BYTES
    if count > lines:
        raise PtatError(f"{count} addresses: the region has {lines}", "give fewer addresses")
    picked = random.Random(seed).sample(range(lines), count)
    return [base + line * LINE_BYTES for line in picked]


def region() -> tuple[int, int]:
    """Base and size (bytes) of PTAT's region.

    :raises PtatError: this kernel has none.
    """
    try:
        told = dict(line.split() for line in REGION.read_text().splitlines())
    except PermissionError:
        raise PtatError("only root may read memory by its address", "use sudo") from None
    except OSError:
        raise PtatError(
            f"no {REGION}: this kernel has no PTAT with a region",
            "boot a kernel with the series in kernel-patch/ and the parameter ptat=SIZE@ADDRESS",
        ) from None
    return int(told["base"], 0), int(told["size"], 0)


class PhysicalMemory:
    """A range of physical memory, mapped uncached; a context manager that unmaps it.

    :raises PtatError: the kernel does not allow it.
    """

    def __init__(self, base: int, size_bytes: int) -> None:
        self._base = base
        try:
            # O_SYNC is what makes the kernel map it uncached.
            self._file = os.open(MEMORY, os.O_RDONLY | os.O_SYNC | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(
                    self._file, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, 0, base
                )
            except OSError:
                os.close(self._file)
                raise
        except OSError as error:
            hints = {
                errno.ENOENT: "build the kernel with CONFIG_DEVMEM",
                errno.ENXIO: "build the kernel with CONFIG_DEVMEM",
                errno.EACCES: "use sudo",
            }
            raise PtatError(
                f"cannot map the region through {MEMORY}: {error.strerror}",
                hints.get(
                    error.errno or 0,
                    "see that the kernel is not locked down (secure boot), and has no"
                    " IO_STRICT_DEVMEM",
                ),
            ) from None
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")

    def __enter__(self) -> PhysicalMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._words.release()
        self._bytes.release()
        self._map.close()
        os.close(self._file)

    def read(self, address: int, times: int) -> int:
        """Load the word there, so often, and return it."""
        words, at = self._words, (address - self._base) // WORD_BYTES
        word = 0
        for _ in range(times):
            word = words[at]
        return word

    def read_by_kernel(self, address: int, times: int) -> int:
        """The same, but it is the kernel that loads it; only below the end of its memory."""
        word = b""
        for _ in range(times):
            word = os.pread(self._file, WORD_BYTES, address)
        return int.from_bytes(word, "little")


def main() -> int:
    """Command line: read what `chosen` gives for the same numbers.

    The testbed's model sees loads of the kernel only; that the mapping shows the same memory is
    checked.
    """
    parser = argparse.ArgumentParser(prog="ptat_host.reads", description="known reads of memory")
    parser.add_argument("--addresses", type=int, required=True)
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    try:
        base, size_bytes = region()
        addresses = chosen(base, size_bytes, arguments.addresses, arguments.seed)
        with PhysicalMemory(base, size_bytes) as memory:
            for address in addresses:
                word = memory.read_by_kernel(address, arguments.times)
                if word != memory.read(address, 1):
                    raise PtatError(f"{MEMORY} does not map {address:#x} where it reads it")
    except PtatError as error:
        print(f"ptat: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
