# SPDX-License-Identifier: BSD-2-Clause
"""A trace of a study: what was simulated, the functions fitted to that, and page sizes advised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ptat_studies.pagesize import fits, memory_time, simulation
from ptat_studies.pagesize.accesses import Kind
from ptat_studies.pagesize.fits import POWER, TLB_MODELS, TWO_EXPONENTIALS, Fit
from ptat_studies.pagesize.memory_time import STORAGES, Memory, Storage
from ptat_studies.pagesize.references import FOOTPRINT_PAGE_BYTES, References
from ptat_studies.pagesize.simulation import Measured

F64 = npt.NDArray[np.float64]

COMMON_BYTES = memory_time.COMMON_PAGE_BYTES
PAGE_SIZES = tuple(512 << step for step in range(8))
"""Of the paper: those that the functions are fitted to, and one of which is advised."""
LARGE_SIZES = (2 << 20, 1 << 30)
"""Also simulated, for their TLB misses."""
PERCENTS = tuple(range(10, 101, 10))
TLB_ENTRIES = 64
SHOWN_ENTRIES = (16, 64, 512, 1536)
COMPARED_PERCENT = 30
"""Memory of the paper's figure 8 and table 7."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What is simulated."""

    page_sizes: tuple[int, ...] = PAGE_SIZES
    percents: tuple[int, ...] = PERCENTS
    """Memory, of the footprint."""
    tlb_entries: int = TLB_ENTRIES
    cache_bytes: int = 0
    storage: str = "nvm"
    """For which a page size is advised."""
    memory: Memory = field(default_factory=Memory)
    storages: Mapping[str, Storage] = field(default_factory=lambda: STORAGES)
    strict: bool = False
    """Malformed rows of a trace are an error."""
    workers: int = 1


class Workload:
    """A trace, and what was simulated for it."""

    def __init__(
        self, name: str, references: References, measured: list[Measured], settings: Settings
    ) -> None:
        self.name, self.format = name, references.format
        self.footprint_bytes = references.footprint_bytes
        self.counts = dict(references.counts)
        self.accesses, self.cached = references.accesses, references.cached
        self.rejected = references.rejected
        self.all_sizes = measured
        self.settings = settings
        self._fault_fits: dict[int, Fit] = {}

    @property
    def reads(self) -> int:
        """Instructions and data."""
        return self.counts[Kind.FETCH] + self.counts[Kind.READ]

    @property
    def density(self) -> float:
        """Accesses for each 4 KiB of the footprint."""
        return self.accesses * FOOTPRINT_PAGE_BYTES / self.footprint_bytes

    @cached_property
    def measured(self) -> list[Measured]:
        """For the page sizes that functions are fitted to."""
        return [one for one in self.all_sizes if one.page_bytes in self.settings.page_sizes]

    def _held(self, percent: int | None) -> list[Measured]:
        """For the page sizes of which a memory holds at least one page; None: for all."""
        return [one for one in self.measured if percent is None or percent in one.faults]

    def sizes(self, percent: int | None = None) -> F64:
        """Page sizes in bytes; only those of which a memory holds one."""
        return np.array([one.page_bytes for one in self._held(percent)], np.float64)

    def tlb_rates(self, percent: int | None = None) -> F64:
        """TLB misses per reference, for `sizes`."""
        return np.array([one.tlb_rate for one in self._held(percent)])

    def fault_rates(self, percent: int) -> F64:
        """Page faults per reference, for `sizes`."""
        return np.array([one.fault_rate(percent) for one in self._held(percent)], np.float64)

    @cached_property
    def tlb_fits(self) -> dict[str, Fit]:
        """By the function's name."""
        kib = self.sizes() / 1024
        return {model.name: fits.fit(model, kib, self.tlb_rates()) for model in TLB_MODELS}

    def fault_fit(self, percent: int) -> Fit:
        """For a memory that holds a page of some size."""
        if percent not in self._fault_fits:
            self._fault_fits[percent] = fits.fit(
                TWO_EXPONENTIALS, self.sizes(percent) / 1024, self.fault_rates(percent)
            )
        return self._fault_fits[percent]

    @cached_property
    def percents(self) -> list[int]:
        """Memories of the settings that hold a page of some size."""
        return [percent for percent in self.settings.percents if self.sizes(percent).size]

    @cached_property
    def modelled(self) -> tuple[F64, F64]:
        """All page fault rates, as simulated and as the functions have them."""
        simulated = [self.fault_rates(percent) for percent in self.percents]
        functions = [self.fault_fit(one)(self.sizes(one) / 1024) for one in self.percents]
        return np.concatenate(simulated), np.concatenate(functions)

    @cached_property
    def t_test(self) -> tuple[float, float] | None:
        """t and p of simulated and modelled page fault rates."""
        return fits.paired_t_test(*self.modelled)

    def rates(self, percent: int, model: bool) -> tuple[F64, F64]:
        """TLB miss rates and page fault rates for `sizes`, simulated or of the functions."""
        if not model:
            return self.tlb_rates(percent), self.fault_rates(percent)
        kib = self.sizes(percent) / 1024
        found = self.tlb_fits[POWER.name](kib), self.fault_fit(percent)(kib)
        return np.clip(found[0], 0, 1), np.clip(found[1], 0, 1)

    def times_ns(self, percent: int, storage: str, model: bool = False) -> tuple[F64, F64]:
        """Address translation time and data access time for `sizes`."""
        tlb, fault = self.rates(percent, model)
        memory = self.settings.memory
        return (
            memory_time.address_ns(memory, tlb),
            memory_time.data_ns(memory, fault, self.fault_ns(percent, storage)),
        )

    def fault_ns(self, percent: int, storage: str) -> F64:
        """What a fault takes, for `sizes`."""
        device = self.settings.storages[storage]
        return np.array([device.fault_ns(int(size)) for size in self.sizes(percent)])

    @cached_property
    def pearson(self) -> float | None:
        """Correlation of simulated and modelled access times, as in the paper's table 7."""
        percent = nearest(COMPARED_PERCENT, self.percents)
        simulated, modelled = (
            sum(self.times_ns(percent, self.settings.storage, model)) for model in (False, True)
        )
        return fits.correlation(np.asarray(simulated), np.asarray(modelled))

    def advise(self, percent: int, storage: str) -> Advice:
        """The page size with the shortest access time by the functions, and what it brings."""
        sizes = self.sizes(percent)
        simulated = np.add(*self.times_ns(percent, storage))
        modelled = np.add(*self.times_ns(percent, storage, model=True))
        advised = int(np.argmin(modelled))
        common = np.flatnonzero(sizes == COMMON_BYTES)
        common_ns = float(simulated[common[0]]) if common.size else None
        climbed = self._climb(percent, storage, int(common[0])) if common.size else None
        return Advice(
            page_bytes=int(sizes[advised]),
            best_bytes=int(sizes[np.argmin(simulated)]),
            access_ns=float(simulated[advised]),
            best_ns=float(simulated.min()),
            common_ns=common_ns,
            climbed_ns=climbed.access_ns if climbed else None,
            climbing_ns=climbed.change_ns if climbed else None,
            climbed_bytes=int(sizes[climbed.sizes[-1]]) if climbed else None,
        )

    def _climb(self, percent: int, storage: str, start: int) -> memory_time.Climb:
        held = self._held(percent)
        count = np.stack([one.references for one in held], axis=1)
        tlb = np.stack([one.tlb_misses for one in held], axis=1)
        faults = np.stack([one.faults[percent] for one in held], axis=1)
        whole = (count > 0).all(axis=1)  # of a short trace some windows have none
        count, tlb, faults = count[whole], tlb[whole], faults[whole]
        memory = self.settings.memory
        times = memory_time.access_ns(
            memory, tlb / count, faults / count, self.fault_ns(percent, storage)
        )
        # A change fills the TLB anew, and writes an entry for each page that is in memory.
        frames = [simulation.frames(self.footprint_bytes, percent, one.page_bytes) for one in held]
        change = (np.array(frames) + self.settings.tlb_entries) * memory.access_ns
        return memory_time.climb(times, count[:, start].astype(np.float64), change, start)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "format": self.format,
            "footprint_bytes": self.footprint_bytes,
            "accesses_per_4k": self.density,
            "accesses": {kind.name.lower(): count for kind, count in self.counts.items()},
            "cached": self.cached,
            "malformed": self.rejected.rows,
            "sizes": [
                {
                    "page_bytes": one.page_bytes,
                    "pages": one.pages,
                    "references": int(one.references.sum()),
                    "tlb_miss_rate": one.tlb_rate,
                    "tlb_miss_rate_by_entries": {n: one.miss_rate(n) for n in SHOWN_ENTRIES},
                    "fault_rate": {percent: one.fault_rate(percent) for percent in one.faults},
                }
                for one in self.all_sizes
            ],
            "tlb_fits": [fit.as_dict() for fit in self.tlb_fits.values()],
            "fault_fits": {percent: self.fault_fit(percent).as_dict() for percent in self.percents},
            "t_test": {"sample_size": self.modelled[0].size}
            | ({"t": self.t_test[0], "p": self.t_test[1]} if self.t_test else {}),
            "pearson": self.pearson,
            "advice": {
                percent: self.advise(percent, self.settings.storage).as_dict()
                for percent in self.percents
            },
        }


def nearest(percent: int, among: Sequence[int]) -> int:
    """The percentage that was simulated and is next to another."""
    return min(among, key=lambda one: abs(one - percent))


@dataclass(frozen=True)
class Advice:
    """For a trace, a memory and a storage. Times are simulated, of an access."""

    page_bytes: int
    """By the functions."""
    best_bytes: int
    """By simulation."""
    access_ns: float
    best_ns: float
    common_ns: float | None
    """With 4 KiB; None: these were not simulated, or the memory holds none."""
    climbed_ns: float | None
    """With hill climbing, if changes cost nothing."""
    climbing_ns: float | None
    """What they cost."""
    climbed_bytes: int | None
    """Where hill climbing ended."""

    @property
    def improvement(self) -> float | None:
        """Share of the time with 4 KiB that the advised page size saves."""
        return 1 - self.access_ns / self.common_ns if self.common_ns else None

    @property
    def climbed_improvement(self) -> float | None:
        """The same of hill climbing, if changes cost nothing."""
        if self.common_ns is None or self.climbed_ns is None:
            return None
        return 1 - self.climbed_ns / self.common_ns

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {
            "improvement": self.improvement,
            "climbed_improvement": self.climbed_improvement,
        }
