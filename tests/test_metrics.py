"""Metrics: known answers, closed forms, and what must stay undefined."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from viewspan import checks, metrics, sphere
from viewspan.metrics import angle_preservation_error, mean_correlation_coefficient, r2, score


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def latents(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return sphere.uniform(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(d: int, seed: int = 0) -> torch.Tensor:
    return torch.linalg.qr(normal(d, d, seed))[0]


def corners() -> torch.Tensor:
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)), dtype=torch.float64)


def design() -> torch.Tensor:
    """All 16 settings of four two-level factors, twice."""
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)) * 2, dtype=torch.float64)


# --- R²


def test_noise_cannot_score():
    for seed in range(10):
        with pytest.raises(ValueError, match=r"50 rows give 25 to fit \(at least 66 for an embedding of 64"):
            r2(normal(50, 3, seed), normal(50, 64, seed + 100))
        assert r2(normal(400, 3, seed), normal(400, 64, seed + 100)).value < 0.1


def test_a_constant_factor_is_not_scored():
    z = design()[:, :3].clone()
    z[:, 2] = 4.0
    got = r2(z, design()[:, :1], n_fit=16)
    assert got.value == pytest.approx(0.5)
    assert got.per_coordinate[0] == pytest.approx(1)
    assert got.per_coordinate[1] == pytest.approx(0)
    assert got.per_coordinate[2] is None
    assert got.undefined == {"coordinate 2": "constant, not scored"}
    assert got.pooled == pytest.approx(0.5)
    assert (got.n_fit, got.n_scored) == (16, 16)


def test_a_rank_deficient_embedding_is_handled():
    z = design()
    h = torch.stack([z[:, 0], z[:, 1], 2 * z[:, 0], torch.full((32,), 3.0, dtype=torch.float64)], dim=1)
    got = r2(z, h, n_fit=16)
    assert got.per_coordinate == pytest.approx((1, 1, 0, 0), abs=1e-6)
    assert got.value == pytest.approx(0.5, abs=1e-6)


def test_nothing_varies():
    got = r2(torch.ones(40, 2), normal(40, 2))
    assert got.value is None
    assert got.pooled is None
    assert got.per_coordinate == (None, None)
    assert got.undefined["r2"] == "no coordinate of z varies"


def test_a_constant_embedding_scores_no_better_than_the_mean():
    got = r2(normal(400, 2), torch.full((400, 3), 7.0))
    assert got.value == pytest.approx(0, abs=0.02)
    assert got.value <= 0


def test_r2_is_scored_on_rows_it_was_not_fitted_on():
    z, h = normal(300, 2, 1), normal(300, 4, 2)
    design = np.hstack([np.ones((100, 1)), h[:100].numpy()])
    weights = np.linalg.lstsq(design, z[:100].numpy(), rcond=None)[0]
    rest = z[100:].numpy()
    residual = ((rest - np.hstack([np.ones((200, 1)), h[100:].numpy()]) @ weights) ** 2).sum(0)
    total = ((rest - rest.mean(0)) ** 2).sum(0)
    got = r2(z, h, n_fit=100)
    np.testing.assert_allclose(got.per_coordinate, 1 - residual / total, rtol=1e-10)
    assert got.value == pytest.approx(np.mean(1 - residual / total))
    assert got.pooled == pytest.approx(1 - residual.sum() / total.sum())


def test_ordered_rows_can_be_shuffled():
    n = 400
    z = torch.cat([normal(n // 2, 1, 1), normal(n // 2, 1, 2) + 50])
    h = torch.tanh(z / 10) + 0.1 * normal(n, 1, 3)
    in_order, shuffled = r2(z, h), r2(z, h, generator=torch.Generator().manual_seed(0))
    assert in_order.value < 0 < shuffled.value
    assert r2(z, h, generator=torch.Generator().manual_seed(0)) == shuffled
    with pytest.raises(TypeError, match=r"must be a torch.Generator, got Generator"):
        metrics.r2(z, z, generator=np.random.default_rng(0))


def test_scale_and_offset_do_not_matter():
    z = latents(400, 3)
    for scale, offset in ((1e-6, 0), (1e6, 0), (1, 1e4), (1e-3, -30)):
        assert r2(z, scale * z + offset).value == pytest.approx(1, abs=1e-6)
        assert r2(scale * z + offset, z).value == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("n_fit", "error"), [(0, ValueError), (41, ValueError), (39, ValueError), (2.0, TypeError)]
)
def test_bad_splits_are_refused(n_fit, error):
    with pytest.raises(error, match=r"n_fit|enough rows"):
        r2(normal(40, 2), normal(40, 2), n_fit=n_fit)


# --- mean correlation coefficient


def test_a_constant_embedding_dimension_counts_as_zero():
    z = corners()
    h = torch.stack([1 - 2 * z[:, 2], torch.full((8,), 7.0, dtype=torch.float64), 5 * z[:, 0]], dim=1)
    with pytest.warns(checks.ViewspanWarning, match=r"embedding dimension 1 is constant"):
        got = mean_correlation_coefficient(z, h)
    assert got.value == pytest.approx(2 / 3)
    assert got.assignment == (2, 1, 0)
    assert got.per_coordinate == pytest.approx((1, 0, 1))


def test_one_dimension():
    z = torch.tensor([-1, -0.5, 0, 0.5, 1])[:, None]
    assert mean_correlation_coefficient(z, -(z**3), method="spearman").value == pytest.approx(1)
    assert mean_correlation_coefficient(z, -(z**3)).value == pytest.approx(0.942990, abs=1e-6)


def test_the_best_assignment_not_the_greedy_one():
    b = torch.linalg.qr(torch.cat([torch.ones(9, 1, dtype=torch.float64), normal(9, 4)], dim=1))[0][:, 1:].T
    z = torch.stack([b[0], b[1]], dim=1)
    h = torch.stack(
        [0.9 * b[0] + 0.4 * b[1] + math.sqrt(0.03) * b[2], 0.8 * b[0] + 0.1 * b[1] + math.sqrt(0.35) * b[3]],
        dim=1,
    )
    assert mean_correlation_coefficient(z, h).value == pytest.approx(0.6, abs=1e-9)


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match=r"at least 6 rows for 3 latents and 3 embedding dimensions, got 2"):
        mean_correlation_coefficient(normal(2, 3), normal(2, 3))


def test_more_and_fewer_embedding_dimensions():
    z = latents(500, 3)
    noise = normal(500, 2, 5)
    wide = torch.cat([noise[:, :1], z[:, 1:2], noise[:, 1:], -z[:, 0:1], z[:, 2:]], dim=1)
    got = mean_correlation_coefficient(z, wide)
    assert got.value == pytest.approx(1)
    assert got.assignment == (3, 1, 4)
    narrow = mean_correlation_coefficient(z, z[:, 2:])
    assert narrow.per_coordinate == pytest.approx((0, 0, 1))
    assert narrow.assignment == (None, None, 0)


def test_signs_and_order_do_not_matter():
    z = latents(500, 3)
    for h in (-z, z[:, [2, 0, 1]], z * torch.tensor([1, -1, 3.0]) + 2):
        assert mean_correlation_coefficient(z, h).value == pytest.approx(1)


def test_constant_latents_are_not_scored():
    z = latents(100, 3)
    z[:, 1] = 0.25
    got = mean_correlation_coefficient(z, latents(100, 3))
    assert got.per_coordinate[1] is None
    assert got.undefined == {"coordinate 1": "constant, not scored"}
    assert mean_correlation_coefficient(z, z[:, [0, 2]]).value == pytest.approx(1)
    nothing = mean_correlation_coefficient(torch.ones(100, 2), z[:, [0, 2]])
    assert nothing.value is None
    assert nothing.undefined["mcc"] == "no coordinate of z varies"


@pytest.mark.parametrize(("dim", "mean", "sd"), [(2, 0.900, 0.088), (3, 0.828, 0.080), (10, 0.594, 0.034)])
def test_reference_of_a_perfect_map(dim, mean, sd):
    got = metrics.mcc_reference(dim)
    assert got[0] == pytest.approx(mean, abs=0.01)
    assert got[1] == pytest.approx(sd, abs=0.01)
    z = latents(2000, dim)
    values = [mean_correlation_coefficient(z, z @ rotation(dim, s)).value for s in range(60)]
    assert np.mean(values) == pytest.approx(got[0], abs=4.5 * got[1] / math.sqrt(60) + 0.01)


def test_reference_of_one_dimension_is_one():
    assert metrics.mcc_reference(1) == (1.0, 0.0)


# --- angle preservation error


def test_ape_equals_its_loop_twin_for_every_block():
    z, h = latents(37, 3, 1), latents(37, 5, 2)
    total = 0.0
    for i in range(37):
        for j in range(37):
            if i != j:
                total += abs(float(z[i] @ z[j]) - float(h[i] @ h[j]))
    for block in (1, 2, 7, 36, 37, 1000):
        assert angle_preservation_error(z, h, block=block) == pytest.approx(total / (37 * 36), abs=1e-12)


def test_ape_of_isometries_is_zero_and_its_worst_value_two():
    z = latents(300, 4)
    assert angle_preservation_error(z, z @ rotation(4)) < 1e-12
    opposite = torch.tensor([[1.0, 0], [-1, 0]])
    assert angle_preservation_error(opposite, torch.tensor([[1.0, 0], [1, 0]])) == pytest.approx(2)


def test_great_circles_have_their_closed_form():
    """h = (0, v/r): R² = (π/4)² (mean over coordinates 0, E r², E r²) and APE/2 = .1566 for d = 3."""
    z = latents(20_000, 3)
    h = torch.nn.functional.normalize(torch.cat([torch.zeros(20_000, 1), z[:, 1:]], dim=1), dim=1)
    got = r2(z, h)
    assert got.per_coordinate[0] == pytest.approx(0, abs=0.005)
    # each of the other coordinates: (E r)²/(E r²) = (π/4)²·3/2
    assert got.per_coordinate[1] == pytest.approx((math.pi / 4) ** 2 * 1.5, abs=0.01)
    assert got.value == pytest.approx((math.pi / 4) ** 2, abs=0.01)
    assert angle_preservation_error(z[:6000], h[:6000]) / 2 == pytest.approx(0.1566, abs=0.002)
    with pytest.warns(checks.ViewspanWarning, match=r"embedding dimension 0 is constant"):
        assert mean_correlation_coefficient(z, h).value < 0.7


def test_folding_has_its_closed_form():
    z = latents(6000, 3)
    h = torch.cat([z[:, :1].abs(), z[:, 1:]], dim=1)
    assert angle_preservation_error(z, h) / 2 == pytest.approx(0.125, abs=0.003)
    assert r2(z, h).value == pytest.approx(2 / 3, abs=0.01)


# --- what every metric takes and refuses

METRICS = {
    "r2": lambda z, h: r2(z, h).value,
    "mcc": lambda z, h: mean_correlation_coefficient(z, h).value,
    "ape": angle_preservation_error,
    "score": lambda z, h: score(z, h).r2,
}
every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


@every_metric
def test_the_first_bad_row_is_named(metric):
    for bad in (math.nan, math.inf, -math.inf):
        z, h = latents(64, 128), latents(64, 128, 1)
        h[17, 3], h[40, 1] = bad, bad
        with pytest.raises(ValueError, match=r"h row 17 is not finite"):
            metric(z, h)
        with pytest.raises(ValueError, match=r"z row 17 is not finite"):
            metric(h, z)
        with pytest.raises(ValueError, match=r"h row 17 is not finite"):
            metric(z.numpy(), h.numpy())


@every_metric
def test_kinds_of_arrays_do_not_matter(metric):
    z = latents(200, 3)
    h = torch.nn.functional.normalize(z + 0.3 * latents(200, 3, 1), dim=1)
    expected = metric(z, h)
    strided = torch.cat([h, h], dim=1)[:, ::2][:, [0, 2, 1]]  # not contiguous
    assert metric(z, strided) == pytest.approx(metric(z, strided.contiguous()), abs=1e-12)
    assert metric(z.numpy(), h.numpy()) == expected
    assert metric(z, h.clone().requires_grad_()) == expected
    assert metric(z.float().numpy(), h.float()) == pytest.approx(expected, abs=1e-5)
    if metric is not METRICS["ape"] and metric is not METRICS["score"]:
        assert metric(z.half(), h.bfloat16()) == pytest.approx(expected, abs=0.02)
        levels = (10 * z).round()
        assert metric(levels.long(), h) == pytest.approx(metric(levels, h), abs=1e-12)
        assert metric(levels.numpy().astype(np.int8), h) == pytest.approx(metric(levels, h), abs=1e-12)


@every_metric
def test_bad_arrays_are_refused(metric):
    z = latents(64, 3)
    for bad in (z[:63], z[:0], z[:1], z[:, :0], z[:, 0], z[None]):
        with pytest.raises(ValueError, match=r"must have|enough rows"):
            metric(z, bad)
        with pytest.raises(ValueError, match=r"must have|enough rows"):
            metric(bad, z)
    for bad in (None, "rows", np.array([["a"] * 3] * 64), z.to(torch.complex64)):
        with pytest.raises(TypeError, match=r"h must be"):
            metric(z, bad)


def test_angles_need_unit_rows():
    z = latents(20, 3)
    with pytest.raises(ValueError, match=r"h row 4 must have length 1, got length 2"):
        angle_preservation_error(z, torch.cat([z[:4], 2 * z[4:5], z[5:]]))
    with pytest.raises(ValueError, match=r"block must be at least 1"):
        angle_preservation_error(z, z, block=0)
    with pytest.raises(ValueError, match=r"method must be one of"):
        mean_correlation_coefficient(z, z, method="kendall")


def test_score_gathers_the_parts():
    z = latents(600, 3)
    h = z @ rotation(3)
    got = score(z, h)
    assert got.r2 == got.r2_parts.value == r2(z, h).value
    assert got.mcc == got.mcc_parts.value == mean_correlation_coefficient(z, h).value
    assert got.ape == angle_preservation_error(z, h)
    assert got.n == 600
    assert got.undefined == {}
    still = z.clone()
    still[:, 0], still[:, 1:] = 0.6, 0.8 * latents(600, 2)
    assert score(still, h).undefined == {"coordinate 0": "constant, not scored"}


@given(n=st.integers(20, 60), d=st.integers(1, 5), seed=st.integers(0, 2**20))
def test_metric_laws(n, d, seed):
    z, h = latents(n, d, seed), latents(n, d + 1, seed + 1)
    assert 0 <= angle_preservation_error(z, h) <= 2
    assert angle_preservation_error(z, h) == pytest.approx(angle_preservation_error(h, z), abs=1e-12)
    q = rotation(d + 1, seed)
    assert angle_preservation_error(z, h @ q) == pytest.approx(angle_preservation_error(z, h), abs=1e-10)
    fit = r2(z, h)
    assert fit.value <= 1 + 1e-12
    assert r2(z, h @ q + 3).value == pytest.approx(fit.value, abs=1e-6)  # any invertible affine map of h
    if d > 1:
        match = mean_correlation_coefficient(z, h)
        assert 0 <= match.value <= 1
        columns = torch.randperm(d + 1, generator=torch.Generator().manual_seed(seed))
        assert mean_correlation_coefficient(z, -h[:, columns]).value == pytest.approx(match.value, abs=1e-10)


# --- unusual but legal numbers


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size_z", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("size_h", [1e-200, 1.0, 1e200])
def test_the_size_of_the_numbers_does_not_matter(size_z, size_h):
    z, h = latents(60, 3), normal(60, 3) + latents(60, 3)
    want, match = r2(z, h), mean_correlation_coefficient(z, h).value
    got = r2(z * size_z, h * size_h)
    assert got.value == pytest.approx(want.value, abs=1e-9)
    assert got.pooled == pytest.approx(want.pooled, abs=1e-9)
    assert mean_correlation_coefficient(z * size_z, h * size_h).value == pytest.approx(match, abs=1e-9)


def test_pooled_weighs_coordinates_by_their_spread():
    z = latents(60, 2) * torch.tensor([1.0, 10.0])
    h = z[:, :1] + 0.1 * normal(60, 1)
    got = r2(z, h)
    design = np.hstack([np.ones((30, 1)), h[:30].numpy()])
    fitted = np.hstack([np.ones((30, 1)), h[30:].numpy()]) @ np.linalg.lstsq(design, z[:30].numpy())[0]
    left = z[30:].numpy()
    want = 1 - ((left - fitted) ** 2).sum() / ((left - left.mean(0)) ** 2).sum()
    assert got.pooled == pytest.approx(want, abs=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(">f8"),
        lambda x: x.astype(object),
        lambda x: np.broadcast_to(x, x.shape),
    ],
    ids=["reversed", "columns first", "other byte order", "objects", "read-only"],
)
def test_arrays_of_any_layout_are_read(change):
    z = latents(60, 3).numpy()
    got = score(change(z), -change(z))
    assert (got.r2, got.mcc, got.ape) == pytest.approx((1.0, 1.0, 0.0), abs=1e-9)


@pytest.mark.parametrize("values", [[["a"]] * 9, np.full((9, 2), None), np.ones((9, 2)) * 1j])
def test_what_is_no_number_is_refused(values):
    with pytest.raises(TypeError, match=r"z must be a tensor or an array of real numbers"):
        r2(values, np.ones((9, 2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_are_read(dtype):
    z = latents(200, 3)
    assert angle_preservation_error(z, (-z).to(dtype)) < 1e-2
    assert angle_preservation_error(z.numpy(), z.numpy().astype(np.float16)) < 1e-3


def test_a_coordinate_that_varies_by_rounding_alone_is_constant():
    z = latents(200, 3).float()
    noise = 0.7071067 * (1 + 3e-8 * normal(200, 1).float())
    assert len(noise.unique()) > 1
    got = r2(torch.cat([z, noise], 1), z)
    assert got.undefined == {"coordinate 3": "constant, not scored"}
    assert got.value == pytest.approx(1)
