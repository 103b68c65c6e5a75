# SPDX-License-Identifier: BSD-2-Clause
"""Functions that model how TLB misses and page faults depend on the page size.

Park and Bahn, Modeling and Analysis of the Page Sizing Problem for NVM Storage in Virtualized
Systems, IEEE Access 9 (2021), equations 4 to 7 and tables 2 to 7.

Goodness is as MATLAB's ``fit`` has it, which the paper's tables agree with: both the adjusted R²
and the RMSE divide by the degrees of freedom, the points less the parameters. (For each program,
their RMSE² / (1 - adjusted R²) is the same for all three functions, as it then must be.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

F64 = npt.NDArray[np.float64]

_Basis = Callable[[F64, F64], F64]
"""Sizes and non-linear parameters to columns, of which the function is a linear combination."""


@dataclass(frozen=True)
class Model:
    """A family of functions of the page size."""

    name: str
    formula: str
    basis: _Basis
    starts: tuple[tuple[float, ...], ...]
    """Of the non-linear parameters."""
    order: tuple[int, ...]
    """Where the parameters, the linear ones first, are in the formula's alphabet."""


def _exponentials(x: F64, rates: F64) -> F64:
    return np.exp(np.clip(np.outer(x, rates), -300, 300))


_RATES = (-8.0, -2.0, -0.5, -0.1, -0.02, 0.005, 0.03)
"""Per KiB; the sizes of interest are from 1/2 to 64 KiB."""

QUADRATIC = Model(
    "quadratic",
    "ax² + bx + c",
    lambda x, _: np.stack([x * x, x, np.ones_like(x)], axis=1),
    ((),),
    (0, 1, 2),
)
POWER = Model(
    "power",
    "ax^b",
    lambda x, exponent: x[:, np.newaxis] ** exponent,
    ((-2.0,), (-0.5,), (0.5,)),
    (0, 1),
)
EXPONENTIAL = Model(
    "exponential", "ae^(bx)", _exponentials, tuple((rate,) for rate in _RATES), (0, 1)
)
TWO_EXPONENTIALS = Model(
    "two exponentials",
    "ae^(bx) + ce^(dx)",
    _exponentials,
    tuple(itertools.combinations(_RATES, 2)),
    (0, 2, 1, 3),
)
TLB_MODELS = (QUADRATIC, EXPONENTIAL, POWER)


@dataclass(frozen=True)
class Fit:
    """A model's function through some points."""

    model: Model
    linear: F64
    other: F64
    adjusted_r2: float | None
    """None: all points are equal, or no more than there are parameters."""
    rmse: float | None
    """None: there are no more points than parameters."""

    def __call__(self, x: F64) -> F64:
        """Its values, shape as `x`."""
        values: F64 = self.model.basis(x, self.other) @ self.linear
        return values

    @property
    def parameters(self) -> dict[str, float]:
        """By the letters of the formula."""
        values = np.concatenate([self.linear, self.other])
        letters = [_LETTERS[at] for at in self.model.order]
        return dict(sorted(zip(letters, values.tolist(), strict=True)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "function": self.model.name,
            "formula": self.model.formula,
            "parameters": self.parameters,
            "adjusted_r2": self.adjusted_r2,
            "rmse": self.rmse,
        }


_LETTERS = "abcd"


def fit(model: Model, x: Sequence[float] | F64, y: Sequence[float] | F64) -> Fit:
    """Least squares. `x` are page sizes in KiB, `y` rates; both have shape ``(points,)``.

    For given non-linear parameters the linear ones are solved for (variable projection), so only
    the former are searched, from several starts.
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)

    def solve(other: F64) -> tuple[F64, F64]:
        columns = model.basis(xs, other)
        scale = np.linalg.norm(columns, axis=0)
        scale[scale == 0] = 1
        linear = np.linalg.lstsq(columns / scale, ys, rcond=1e-10)[0] / scale
        return linear, columns @ linear - ys

    found: list[F64] = []
    for start in model.starts:
        if start:
            searched = optimize.least_squares(lambda other: solve(other)[1], start)
            found.append(searched.x)
        else:
            found.append(np.zeros(0))
    other = min(found, key=lambda other: float(np.sum(solve(other)[1] ** 2)))
    linear, residual = solve(other)
    free = xs.size - linear.size - other.size
    squares = float(residual @ residual)
    spread = float(np.sum((ys - ys.mean()) ** 2))
    return Fit(
        model,
        linear,
        other,
        1 - squares * (xs.size - 1) / (spread * free) if free > 0 and spread else None,
        math.sqrt(squares / free) if free > 0 else None,
    )


def paired_t_test(measured: F64, modelled: F64) -> tuple[float, float] | None:
    """t and p of the hypothesis that the two differ by 0 on average; None: nothing varies."""
    difference = modelled - measured
    if difference.size < 2 or not np.ptp(difference):
        return None
    found = stats.ttest_rel(modelled, measured)
    return float(found.statistic), float(found.pvalue)


def correlation(measured: F64, modelled: F64) -> float | None:
    """Pearson's coefficient; None: one of them does not vary."""
    if measured.size < 2 or not np.ptp(measured) or not np.ptp(modelled):
        return None
    return float(stats.pearsonr(measured, modelled).statistic)
