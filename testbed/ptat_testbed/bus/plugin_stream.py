# SPDX-License-Identifier: BSD-2-Clause
"""Reads what the plugin put on its bus, for the models that come after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptat_host.boards.base import BoardError


@dataclass(frozen=True)
class PluginStream:
    """Times (ns), addresses (bytes), which accesses are stores, and when the stream ended (ns)."""

    time_ns: npt.NDArray[np.uint64]
    address: npt.NDArray[np.uint64]
    write: npt.NDArray[np.bool_]
    stop_ns: int


def read(path: Path) -> PluginStream:
    """Read a whole stream.

    :raises BoardError: it has losses.
    :raises PtatError: it is damaged.
    """
    from ptat_parser.capture.reader import BusReader  # numba: `--help` must not wait for it

    none = np.empty(0, np.uint64)
    times, addresses, writes = [none], [none], [np.empty(0, np.bool_)]
    stop_ns = 0
    for chunk in BusReader(path):
        if chunk.lost:
            raise BoardError(f"{path}: the plugin's own stream has losses", "make room on the disk")
        times.append(chunk.time)
        addresses.append(chunk.address)
        writes.append(chunk.write)
        stop_ns = max([stop_ns, chunk.last_ticks, *(mark.time_ticks for mark in chunk.marks)])
    return PluginStream(
        np.concatenate(times), np.concatenate(addresses), np.concatenate(writes), stop_ns
    )
