# SPDX-License-Identifier: BSD-2-Clause
"""What a memory access takes on average, given how often the TLB misses and pages are faulted in.

Equations 1 to 3 of Park and Bahn, Modeling and Analysis of the Page Sizing Problem for NVM Storage
in Virtualized Systems, IEEE Access 9 (2021). The paper does not say what times it computes with;
those here are of the kinds of device it speaks of, and can all be changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Number = TypeVar("Number", float, F64)
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]

COMMON_PAGE_BYTES = 4096


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLB and DRAM."""

    tlb_ns: NotNegative = 1.0
    """A look-up."""
    access_ns: Positive = 50.0
    """Of DRAM; the page table takes one, too."""


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where pages come from."""

    latency_ns: NotNegative = 0.0
    """Of any access, whatever its size."""
    seek_ns: NotNegative = 0.0
    """Until the head is there."""
    bytes_per_second: Positive

    def fault_ns(self, page_bytes: int) -> float:
        """To bring in a page."""
        return self.latency_ns + self.seek_ns + page_bytes * 1e9 / self.bytes_per_second

    def as_fast_as(self, other: Storage) -> Storage:
        """The same behaviour at another speed: as long for a page of 4 KiB as `other` takes."""
        scale = other.fault_ns(COMMON_PAGE_BYTES) / self.fault_ns(COMMON_PAGE_BYTES)
        return Storage(
            latency_ns=self.latency_ns * scale,
            seek_ns=self.seek_ns * scale,
            bytes_per_second=self.bytes_per_second / scale,
        )


# A disk of 7,200 turns a minute: half a turn, an average seek, its sustained rate.
HDD = Storage(latency_ns=4.2e6, seek_ns=8.5e6, bytes_per_second=150e6)
# A module of Optane DC: Izraelevitz et al., Basic Performance Measurements of the Intel Optane DC
# Persistent Memory Module (arXiv:1903.05714): a random read, and the most that can be read.
NVM = Storage(latency_ns=305.0, bytes_per_second=6.6e9)
# The paper's two hypothetical ones: NVM's speed with a head, HDD's without.
FAST_HDD = HDD.as_fast_as(NVM)
SLOW_NVM = NVM.as_fast_as(HDD)
STORAGES = {"hdd": HDD, "fast-hdd": FAST_HDD, "slow-nvm": SLOW_NVM, "nvm": NVM}


def address_ns(memory: Memory, tlb_rate: Number) -> Number:
    """Equation 2: the address translation time."""
    hit = memory.tlb_ns
    return (1 - tlb_rate) * hit + tlb_rate * (hit + memory.access_ns)


def data_ns(memory: Memory, fault_rate: Number, fault_ns: Number) -> Number:
    """Equation 3: the data access time."""
    return (1 - fault_rate) * memory.access_ns + fault_rate * (memory.access_ns + fault_ns)


def access_ns(memory: Memory, tlb_rate: Number, fault_rate: Number, fault_ns: Number) -> Number:
    """Equation 1: both."""
    return address_ns(memory, tlb_rate) + data_ns(memory, fault_rate, fault_ns)


@dataclass(frozen=True)
class Climb:
    """What hill climbing did."""

    access_ns: float
    """On average, if its changes cost nothing."""
    change_ns: float
    """What they cost, for each access."""
    sizes: list[int]
    """Index of the page size in each window."""


def climb(times_ns: F64, weights: F64, change_ns: F64, start: int) -> Climb:
    """Search a page size while the program runs, one window after the other.

    It takes a step to a larger one, continues while it becomes faster, and turns where
    it does not. It never stays, for the program may change.

    :param times_ns: of an access in each window with each page size, shape ``(windows, sizes)``.
    :param weights: references of each window, shape ``(windows,)``.
    :param change_ns: cost of a change to each page size, shape ``(sizes,)``.
    :param start: index of the page size to begin with.
    """
    count = times_ns.shape[1]
    sizes: list[int] = []
    total_ns, changes_ns, before_ns = 0.0, 0.0, np.inf
    size, step = start, 1
    for now, weight in zip(times_ns, weights, strict=True):
        if sizes and size != sizes[-1]:
            changes_ns += float(change_ns[size])
        sizes.append(size)
        total_ns += float(now[size] * weight)
        if now[size] > before_ns:
            step = -step
        before_ns = float(now[size])
        if not 0 <= size + step < count:
            step = -step
        if 0 <= size + step < count:
            size += step
    accesses = float(weights.sum())
    return Climb(total_ns / accesses, changes_ns / accesses, sizes)
