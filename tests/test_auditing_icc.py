"""Intraclass correlation: printed values, exact references, a slow twin, undefined cases."""

import math

import numpy as np
import pytest

from viewspan import sphere, testing
from viewspan.auditing import agreement, intraclass_correlation, stability


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ([[1, 2], [3, 4], [5, 6], [7, 8]], 0.927711),
        ([[1, 1], [3, 3], [5, 5], [7, 7]], 1.0),
        ([[1, 7], [3, 5], [5, 3], [7, 1]], -1.0),
        ([[1, 2], [3, 3], [5, 4], [7, 8]], 0.944444),
    ],
)
def test_one_way_form(values: list[list[int]], right: float) -> None:
    assert intraclass_correlation(values) == pytest.approx(right, abs=1e-6)
    assert stability(values).icc == pytest.approx(right, abs=1e-6)
    assert "ICC(1)" in stability(values).form


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9])
def test_an_offset_changes_nothing(offset: float) -> None:
    values = np.array([[1, 2], [3, 4], [5, 6], [7, 8.0]]) + offset
    assert intraclass_correlation(values) == pytest.approx(0.927711, abs=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
def test_the_size_of_the_numbers_does_not_matter(size: float) -> None:
    values = size * np.array([[1, 2], [3, 3], [5, 4], [7, 8.0]])
    assert intraclass_correlation(values) == pytest.approx(0.944444, abs=1e-6)
    assert stability(values).icc == pytest.approx(0.944444, abs=1e-6)


def test_a_constant_factor_is_undefined_with_a_reason() -> None:
    result = stability([[2, 2]] * 4)
    assert math.isnan(intraclass_correlation([[2, 2]] * 4))
    assert (result.icc, result.interval) == (None, None)
    assert result.reason == "the factor does not vary in the data"


@pytest.mark.parametrize("values", [[[1], [2], [3]], [[1, 2]], np.zeros((3, 1, 2))])
def test_one_view_or_one_anchor_is_an_error(values: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least 2 anchors and 2 views"):
        stability(values)


def test_a_row_that_is_not_finite_is_named() -> None:
    values = np.arange(40.0).reshape(20, 2)
    values[17, 1] = np.nan
    with pytest.raises(ValueError, match="row 17"):
        intraclass_correlation(values)


def slow_icc(groups: list[list[float]]) -> float:
    """One-way analysis of variance with loops, groups of any size."""
    everything = [v for g in groups for v in g]
    grand, total, n = sum(everything) / len(everything), len(everything), len(groups)
    means = [sum(g) / len(g) for g in groups]
    msb = sum(len(g) * (m - grand) ** 2 for g, m in zip(groups, means)) / (n - 1)
    msw = sum((v - m) ** 2 for g, m in zip(groups, means) for v in g) / (total - n)
    k0 = (total - sum(len(g) ** 2 for g in groups) / total) / (n - 1)
    return (msb - msw) / (msb + (k0 - 1) * msw)


def test_undefined_views_are_left_out_as_in_the_loop() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1)) + rng.normal(size=(30, 5))
    x[rng.random(x.shape) < 0.3] = np.nan
    groups = [[v for v in row if np.isfinite(v)] for row in x]
    result = stability(x)
    assert result.icc == pytest.approx(slow_icc([g for g in groups if len(g) >= 2]), abs=1e-12)
    assert result.undefined == int(np.isnan(x).sum())


def test_two_components_are_pooled_and_rotation_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 1, 2)) + rng.normal(size=(50, 3, 2))
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    assert intraclass_correlation(x) == pytest.approx(intraclass_correlation(x @ turn), abs=1e-12)
    one = x[:, :, :1]
    assert intraclass_correlation(one) == pytest.approx(intraclass_correlation(one[:, :, 0]), abs=1e-12)


@pytest.mark.parametrize(("n_held", "right"), [(1, 0.6921), (0, 0.4936)])
def test_coordinates_of_a_known_law(n_held: int, right: float) -> None:
    kappa = 1 / 0.3
    exact = float(sphere.mean_cosine(3 - n_held, kappa)) ** 2
    assert exact == pytest.approx(right, abs=5e-5)
    data = testing.held_pairs(
        4000, dim=3, n_held=n_held, kappa=kappa, n_views=4, convention="subsphere", anchor_first=False
    )
    result = stability(data.latents[:, :, 2])
    assert result.icc is not None
    assert result.interval is not None
    standard_error = (result.interval[1] - result.interval[0]) / 3.92
    assert abs(result.icc - exact) < 4 * standard_error < 0.04
    if n_held:
        assert stability(data.latents[:, :, 0]).icc == 1.0


def test_interval_covers_and_clusters_widen_it() -> None:
    rng = np.random.default_rng(2)
    patient = np.repeat(np.arange(20), 10)
    x = rng.normal(size=(20, 1)).repeat(10, axis=0) + 0.5 * rng.normal(size=(200, 2))
    alone, together = stability(x), stability(x, clusters=patient)
    assert alone.interval is not None
    assert together.interval is not None
    assert together.interval[1] - together.interval[0] > 1.2 * (alone.interval[1] - alone.interval[0])
    assert together.interval[0] < 0.8 < together.interval[1]
    few = stability(x, clusters=patient // 10)
    assert few.interval is None
    assert "at least 3 clusters" in few.reason


def test_reach_is_the_share_of_the_range() -> None:
    x = np.linspace(0, 1, 2001)
    assert stability(np.stack([x, x], 1)).reach == 0
    assert stability(np.stack([x * 0, x * 0 + 1], 1)).reach == pytest.approx(1)


def test_agreement_against_chance() -> None:
    same = agreement([["left", "left"], ["right", "right"]] * 10)
    assert same.icc == pytest.approx(1)
    assert same.reach == 0
    rng = np.random.default_rng(3)
    free = agreement(rng.integers(0, 3, (2000, 2)))
    assert free.interval is not None
    assert free.interval[0] < 0 < free.interval[1]
    assert agreement([["a", "a"]] * 5).icc is None


def test_agreement_equals_the_loop() -> None:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, (12, 4))
    labels[:, 1] = labels[:, 0]
    within, across = [], []
    for i in range(12):
        for j in range(12):
            for a in range(4):
                for b in range(4):
                    if i == j and a < b:
                        within.append(labels[i, a] == labels[i, b])
                    elif i != j:
                        across.append(labels[i, a] == labels[j, b])
    chance = float(np.mean(across))
    assert agreement(labels).icc == pytest.approx((np.mean(within) - chance) / (1 - chance), abs=1e-12)
