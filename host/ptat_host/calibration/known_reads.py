# SPDX-License-Identifier: BSD-2-Clause
"""Known reads of PTAT's region, which the boards observe for `ptat calibrate`.

The kernel maps the region uncached, so each load through debugfs' ``ptat/load``
is a read on the bus. Root only.

``python3 -m ptat_host.calibration.known_reads`` does it in the guest of the testbed. It imports
only the standard library: other imports would take longer in the emulator than the reads.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from types import TracebackType

from ptat_parser.errors import PtatError

REGION = Path("/sys/kernel/mm/ptat/region")
LOAD = Path("/sys/kernel/debug/ptat/load")
LINE_BYTES = 64
"""Size of a burst on the bus: closer addresses are indistinguishable."""


def chosen(base: int, size_bytes: int, count: int, seed: int) -> list[int]:
    """Distinct cache-line addresses, spread over a range.

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
        base, size_bytes = ((REGION / name).read_text() for name in ("base", "size"))
    except PermissionError:
        raise PtatError("only root may read memory by its address", "use sudo") from None
    except OSError:
        raise PtatError(
            f"no {REGION}: this kernel has no PTAT with a region",
            "boot a kernel with the series in kernel-patch/ and the parameter ptat=SIZE@ADDRESS",
        ) from None
    return int(base, 0), int(size_bytes, 0)


class RegionLoads:
    """Loads words of the region through the kernel; a context manager.

    :param base: physical address of the region.
    :raises PtatError: the kernel does not allow it.
    """

    def __init__(self, base: int) -> None:
        self._base = base
        try:
            self._file = os.open(LOAD, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            hint = "use sudo" if isinstance(error, PermissionError) else "mount debugfs"
            raise PtatError(f"cannot open {LOAD}: {error.strerror}", hint) from None

    def __enter__(self) -> RegionLoads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def read(self, address: int, times: int) -> None:
        """Load the word at a physical address this many times."""
        offset = str(address - self._base).encode()
        for _ in range(times):
            os.write(self._file, offset)


def main() -> int:
    """Command line: read what `chosen` gives for the same numbers."""
    parser = argparse.ArgumentParser(
        prog="ptat_host.calibration.known_reads", description="known reads of memory"
    )
    parser.add_argument("--addresses", type=int, required=True)
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    try:
        base, size_bytes = region()
        addresses = chosen(base, size_bytes, arguments.addresses, arguments.seed)
        with RegionLoads(base) as loads:
            for address in addresses:
                loads.read(address, arguments.times)
    except PtatError as error:
        print(f"ptat: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
