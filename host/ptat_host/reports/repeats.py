# SPDX-License-Identifier: BSD-2-Clause
"""Statistics of repeated runs: spread, clusters, and the difference of two sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

ALPHA = 0.05
"""A difference is significant if chance alone produces it less often than this."""

REPEATS_MIN = 5
"""With fewer values, chance produces two groups too often."""
CLUSTERS_ALPHA = 0.01
"""Stricter than `ALPHA`: each quantity of a run is tested."""
GAP_MIN = 0.01
"""Groups closer than this share of the median are not worth reporting."""
SAMPLES = 9_999
PERMUTATIONS = 4_999
_SEED = 1

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clusters:
    """Two groups of runs."""

    counts: tuple[int, int]
    """Number of runs in the lower and in the upper group."""
    means: tuple[float, float]
    p: float
    """How often runs of one population look as divided as these (p)."""


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one quantity."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    @property
    def spread(self) -> float | None:
        """Range relative to the median; None: the median is 0."""
        return (max(self.values) - min(self.values)) / self.median if self.median else None

    @property
    def clusters(self) -> Clusters | None:
        """See `clusters`."""
        return clusters(self.values)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.clusters
        return {
            "name": self.name,
            "values": list(self.values),
            "median": self.median,
            "least": min(self.values),
            "most": max(self.values),
            "spread": self.spread,
            "clusters": found.__dict__ if found else None,
        }


def clusters(values: Sequence[float]) -> Clusters | None:
    """The two groups that values fall into; None: one population explains them.

    The measure is the largest ratio of the sum of squares between two groups to that within them,
    over all ways to cut the sorted values in two, each part with at least two values and a fifth
    of all (Engelman and Hartigan, "Percentage points of a test for clusters", Journal of the
    American Statistical Association 64, 1969). It is held against the same of as many draws of a
    uniform distribution, which of all that have one peak look most divided (so the dip test of
    Hartigan and Hartigan, Annals of Statistics 13, 1985).
    """
    count = len(values)
    if count < REPEATS_MIN:
        return None
    ordered = np.sort(np.array(values, np.float64))
    (ratio,), (cut,) = _division(ordered[None])
    means = float(ordered[:cut].mean()), float(ordered[cut:].mean())
    if means[1] - means[0] < GAP_MIN * abs(float(np.median(ordered))):
        return None
    chance = _chance(count)
    p = float((1 + np.count_nonzero(chance >= ratio)) / (1 + chance.size))
    return Clusters((int(cut), int(count - cut)), means, p) if p < CLUSTERS_ALPHA else None


def _division(ordered: F64) -> tuple[F64, npt.NDArray[np.intp]]:
    """The best cut of each row of sorted values, shape ``(rows, values)``, and its ratio."""
    count = ordered.shape[1]
    least = max(2, count // 5)
    cut = np.arange(least, count - least + 1)
    centred = ordered - ordered.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, cut - 1]
    between = sums**2 * count / (cut * (count - cut))
    best = between.argmax(axis=1)
    most = between[np.arange(len(between)), best]
    within = np.maximum((centred**2).sum(axis=1) - most, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(most > 0, most / within, 0.0), cut[best]


@cache
def _chance(count: int) -> F64:
    """Ratios for samples of a uniform distribution, `count` values each."""
    samples = np.random.default_rng(_SEED).random((SAMPLES, count))
    return _division(np.sort(samples, axis=1))[0]


def difference(before: Sequence[float], after: Sequence[float]) -> float:
    """How often chance alone makes two sets of runs differ this much (p, two-sided).

    Mann and Whitney's U, by exchanging runs between the sets: repeats are few, and counts of
    misses and times are skewed and may have two groups, so that nothing can be said of their
    distribution, which Welch's t needs. All exchanges are tried where there are at most
    `PERMUTATIONS`, else that many random ones.
    """
    if len(set(before) | set(after)) == 1:
        return 1.0
    from scipy import stats

    method = stats.PermutationMethod(PERMUTATIONS, rng=np.random.default_rng(_SEED))
    return float(stats.mannwhitneyu(before, after, method=method).pvalue)


def least_p(before: int, after: int) -> float:
    """The smallest possible p for sets of this size: all runs of one above all of the other."""
    from scipy.special import comb

    return min(1.0, 2 / float(comb(before + after, before)))


def adjusted(p: Sequence[float]) -> list[float]:
    """Adjusts p of several comparisons, so that it bounds the share of false positives.

    Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995.
    """
    if not p:
        return []
    from scipy import stats

    found: list[float] = stats.false_discovery_control(p).tolist()
    return found
