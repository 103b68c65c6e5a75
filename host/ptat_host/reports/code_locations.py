# SPDX-License-Identifier: BSD-2-Clause
"""Attributes instructions to functions, by the session's mappings and symbols.

The code at an address is that of the mapping at a given time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_host.recording import maps, symbols
from ptat_host.recording.maps import ANONYMOUS, Region
from ptat_host.recording.symbols import Symbols
from ptat_host.reports.kernel_functions import KernelFunctions
from ptat_parser import Trace
from ptat_parser.formats.kernel_misses import FUNCTIONS

KERNEL = "kernel"
UNKNOWN = "[unknown]"
_KERNEL_BEGINS = 1 << 63


class Location(NamedTuple):
    """A function, and its file or the kernel."""

    object: str
    function: str


class CodeLocations:
    """Finds the functions of a session's instructions."""

    def __init__(self, trace: Trace) -> None:
        """Read mappings and symbols; without them, functions are `UNKNOWN`.

        :raises BadInput: the session's list of kernel functions is damaged.
        """
        session = trace.session
        self._symbols: Symbols = symbols.load(session.path)
        self._regions: dict[int, list[Region]] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        """By tgid and tid, of threads that gave themselves one."""
        self.recorded = True
        """Whether the mappings were recorded."""
        try:
            read = maps.read(maps.path_of(session.path), session.kernel.tsc_hz)
            self._regions, self.thread_names = read.regions, read.threads
        except OSError:
            self.recorded = False
        path = session.path / FUNCTIONS
        self._kernel = KernelFunctions(path) if path.exists() else None

    def locate(
        self, tgid: int, time_ns: npt.NDArray[np.int64], ip: npt.NDArray[np.uint64]
    ) -> list[Location]:
        """The location of each instruction of a process, at its time."""
        of_files = [region for region in self._regions.get(tgid, ()) if _may_be_code(region)]
        index = _index(of_files, time_ns, ip)
        located = []
        for address, at in zip(ip.tolist(), index.tolist(), strict=True):
            if address >= _KERNEL_BEGINS:
                located.append(self._in_kernel(address))
            elif at < 0:
                located.append(Location(UNKNOWN, UNKNOWN))
            else:
                located.append(self._in_region(of_files[at], address))
        return located

    def _in_kernel(self, address: int) -> Location:
        return Location(KERNEL, self._kernel.name(address) if self._kernel else KERNEL)

    def _in_region(self, region: Region, address: int) -> Location:
        mapping = region.mapping
        if not mapping.name.startswith("/") or mapping.name == ANONYMOUS:
            return Location("anonymous" if mapping.name == ANONYMOUS else mapping.name, UNKNOWN)
        title = Path(mapping.name.removesuffix(" (deleted)")).name
        module = self._symbols.modules.get(mapping.name)
        offset_bytes = address - mapping.start + mapping.offset_bytes
        linked = module.address_of(offset_bytes) if module else None
        if module is None or linked is None:
            return Location(title, UNKNOWN)
        if name := module.function_at(linked):
            return Location(title, name)
        section = module.section_of(linked, linked + 1)
        return Location(title, f"[{section}]" if section else UNKNOWN)


def _may_be_code(region: Region) -> bool:
    """Whether a region may hold code. Its rights do not decide: they are unrecorded, or may have
    changed."""
    return region.mapping.name not in ("[heap]", "[stack]")


def _index(
    regions: Sequence[Region], time_ns: npt.NDArray[np.int64], ip: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """The region of each instruction; -1: none.

    The kernel reports mappings late rather than early, so an address before its first region
    belongs to the first one, and an address after its last to the last.
    """
    found = np.full(ip.size, -1, np.int64)
    order = np.argsort(ip, kind="stable")
    ascending = ip[order]
    for at in sorted(range(len(regions)), key=lambda at: regions[at].from_ns):
        region = regions[at]
        edges = np.array([region.start, region.end], np.uint64)
        first, end = np.searchsorted(ascending, edges)
        inside = order[first:end]
        begun = region.from_ns <= time_ns[inside]
        found[inside[(found[inside] < 0) | begun]] = at
    return found
