# SPDX-License-Identifier: BSD-2-Clause
import math

import numpy as np
import pytest

from ptat_studies.pagesize import fits
from ptat_studies.pagesize.fits import (
    EXPONENTIAL,
    POWER,
    QUADRATIC,
    TLB_MODELS,
    TWO_EXPONENTIALS,
    fit,
)

KIB = np.array([0.5, 1, 2, 4, 8, 16, 32, 64])


@pytest.mark.parametrize(
    ("model", "function", "parameters"),
    [
        (QUADRATIC, lambda x: 3e-4 * x * x - 0.02 * x + 0.4, {"a": 3e-4, "b": -0.02, "c": 0.4}),
        (POWER, lambda x: 0.23 * x**-0.74, {"a": 0.23, "b": -0.74}),
        (EXPONENTIAL, lambda x: 0.46 * np.exp(-0.52 * x), {"a": 0.46, "b": -0.52}),
        (
            TWO_EXPONENTIALS,
            lambda x: 0.1 * np.exp(-1.3 * x) + 0.02 * np.exp(0.025 * x),
            {"a": 0.1, "b": -1.3, "c": 0.02, "d": 0.025},
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_function_is_found_again(model, function, parameters):
    found = fit(model, KIB, function(KIB))
    if model is TWO_EXPONENTIALS and found.parameters["b"] > found.parameters["d"]:
        a, b, c, d = found.parameters.values()
        assert {"a": c, "b": d, "c": a, "d": b} == pytest.approx(parameters, rel=1e-3)
    else:
        assert found.parameters == pytest.approx(parameters, rel=1e-3)
    assert found.adjusted_r2 == pytest.approx(1, abs=1e-6)
    assert found.rmse == pytest.approx(0, abs=1e-5)
    assert found(KIB) == pytest.approx(function(KIB), abs=1e-5)


@pytest.mark.parametrize("model", [*TLB_MODELS, TWO_EXPONENTIALS], ids=lambda model: model.name)
def test_no_parameters_nearby_are_better(model):
    y = np.array([0.31, 0.2, 0.15, 0.09, 0.07, 0.03, 0.035, 0.02])
    found = fit(model, KIB, y)
    best = np.sum((found(KIB) - y) ** 2)
    for at in range(found.linear.size):
        for step in (-1e-3, 1e-3):
            linear = found.linear.copy()
            linear[at] += step * max(abs(linear[at]), 1e-6)
            assert np.sum((model.basis(KIB, found.other) @ linear - y) ** 2) >= best
    for at in range(found.other.size):
        for step in (-1e-3, 1e-3):
            other = found.other.copy()
            other[at] += step
            assert np.sum((model.basis(KIB, other) @ found.linear - y) ** 2) >= best


def test_goodness_is_by_degrees_of_freedom():
    """By hand: the line of means of 1, 3 at two places is no better than the mean itself."""
    x = np.array([1.0, 1, 2, 2, 3, 3])
    y = np.array([1.0, 3, 1, 3, 1, 3])
    found = fit(QUADRATIC, x, y)
    # The best parabola is y = 2: squares 6, spread 6, 6 - 3 degrees of freedom.
    assert found.rmse == pytest.approx(math.sqrt(6 / 3))
    assert found.adjusted_r2 == pytest.approx(1 - 6 * 5 / (6 * 3))


def test_the_papers_tables_have_the_same_degrees_of_freedom():
    """RMSE² / (1 - adjusted R²) is the variance of the data, whatever the function."""
    adjusted = {"office": (0.841, 0.794, 0.965), "game": (0.876, 0.858, 0.938)}
    rmse = {"office": (0.068, 0.077, 0.032), "game": (0.064, 0.068, 0.045)}
    for name, values in adjusted.items():
        variance = [r * r / (1 - a) for a, r in zip(values, rmse[name], strict=True)]
        assert max(variance) / min(variance) < 1.05


def test_too_few_points_and_equal_ones():
    few = fit(TWO_EXPONENTIALS, KIB[:4], [0.3, 0.2, 0.1, 0.2])
    assert few.adjusted_r2 is None and few.rmse is None
    assert np.isfinite(few(KIB)).all()
    flat = fit(POWER, KIB, np.full(8, 0.25))
    assert flat.adjusted_r2 is None
    assert flat(KIB) == pytest.approx(np.full(8, 0.25))
    zero = fit(TWO_EXPONENTIALS, KIB, np.zeros(8))
    assert (zero(KIB) == 0).all()


def test_t_test():
    measured = np.array([1.0, 2, 3, 4])
    t, p = fits.paired_t_test(measured, measured + np.array([0.1, -0.1, 0.2, 0.2]))
    # By hand: mean 0.1, standard deviation 0.1414 (n - 1), so t = 0.1 / (0.1414 / 2).
    assert t == pytest.approx(math.sqrt(2))
    assert 0.25 < p < 0.26  # a table of Student's t with 3 degrees of freedom
    assert fits.paired_t_test(measured, measured) is None
    assert fits.paired_t_test(measured[:1], measured[1:2]) is None


def test_correlation():
    x = np.array([1.0, 2, 3])
    assert fits.correlation(x, 5 - 2 * x) == pytest.approx(-1)
    assert fits.correlation(x, np.array([1.0, 3, 2])) == pytest.approx(0.5)
    assert fits.correlation(x, np.ones(3)) is None
