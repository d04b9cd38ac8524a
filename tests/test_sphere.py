"""The sphere: samplers against closed forms and scipy, Φ and A against mpmath."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from viewspan import sphere

DIMS = (1, 2, 3, 4, 10, 50, 1024)


def axis(dim: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    mean = torch.zeros(n, dim, dtype=dtype)
    mean[:, 0] = 1
    return mean


# --- samplers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", DIMS)
def test_uniform_has_unit_rows_and_the_moments_of_the_sphere(dim, dtype, rng):
    n = 20_000 if dim <= 10 else 2000
    x = sphere.uniform(n, dim, generator=rng, dtype=dtype)
    assert x.shape == (n, dim)
    assert x.dtype == dtype
    torch.testing.assert_close(x.norm(dim=1), torch.ones(n, dtype=dtype), atol=1e-6, rtol=0)
    error = 4.5 / math.sqrt(n)
    assert x.mean(0).norm() < error * 1.5
    second = x.T.double() @ x.double() / n
    assert (second - torch.eye(dim) / dim).abs().max() < error * math.sqrt(2) / dim + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kappa", [0.0, 1e-8, 1e-4, 1e-2, 1.0, 5.0, 100.0, 1e4, 1e8])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 10, 128])
def test_vmf_cosine_has_its_closed_mean_and_spread(dim, kappa, dtype, rng):
    n = 10_000 if dim <= 10 else 2000
    x = sphere.von_mises_fisher(axis(dim, n, dtype), kappa, generator=rng)
    assert x.dtype == dtype
    assert torch.isfinite(x).all()
    torch.testing.assert_close(x.norm(dim=1), torch.ones(n, dtype=dtype), atol=1e-6, rtol=0)
    cos = x[:, 0].double()
    a = float(sphere.mean_cosine(dim, kappa))
    # Var cos = A'(κ) = 1 − A² − (d−1)A/κ
    variance = 1 / dim if kappa == 0 else 1 - a * a - (dim - 1) * a / kappa
    if kappa >= 1e4:  # where the difference above is rounding noise
        variance = (dim - 1) / (2 * kappa**2)
    rounding = 1e-6 if dtype == torch.float32 else 1e-12
    assert abs(cos.mean() - a) < 4.5 * math.sqrt(variance / n) + rounding
    if dim > 1:  # the other coordinates: centred, of variance A/κ each
        side = x[:, 1].double()
        spread = 1 / dim if kappa == 0 else a / kappa
        assert abs(side.mean()) < 4.5 * math.sqrt(spread / n)
        assert abs(side.square().mean() / spread - 1) < 4.5 * math.sqrt(2 / n) * 1.5


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 128])
@pytest.mark.parametrize("kappa", [1e30, 1e200, 1e308])
def test_beyond_double_precision_a_draw_is_its_mean(dim, kappa, rng):
    mean = sphere.uniform(100, dim, generator=rng, dtype=torch.float64)
    x = sphere.von_mises_fisher(mean, kappa, generator=rng)
    torch.testing.assert_close(x, mean, atol=1e-13, rtol=0)


@pytest.mark.parametrize(
    ("kappa", "mean"), [(0, 0.0), (1e-8, 5e-9), (1e-4, 5e-5), (1e-2, 0.0050), (5, 0.893383)]
)
def test_small_concentrations_on_the_circle(kappa, mean, rng):
    x = sphere.von_mises_fisher(axis(2, 100_000), kappa, generator=rng)
    assert abs(x[:, 0].mean() - mean) < (0.003 if kappa == 5 else 0.010)
    assert abs(x[:, 1].mean()) < 0.010
    assert (x[:, 1] > 0).float().mean() == pytest.approx(0.5, abs=0.01)


def test_small_concentration_in_three_dimensions(rng):
    x = sphere.von_mises_fisher(axis(3, 100_000), 1e-4, generator=rng)
    assert abs(x[:, 0].mean() - 3.3e-5) < 0.009


def test_two_points(rng):
    x = sphere.von_mises_fisher(torch.ones(40_000, 1), 0.5, generator=rng)
    assert set(x.flatten().tolist()) == {-1.0, 1.0}
    assert float((x > 0).float().mean()) == pytest.approx(0.731059, abs=0.010)


@pytest.mark.parametrize("dim", [2, 3, 4, 8])
@pytest.mark.parametrize("kappa", [0.5, 3.3, 40.0])
def test_vmf_agrees_with_scipy(dim, kappa):
    rng = torch.Generator().manual_seed(dim)
    mean = torch.nn.functional.normalize(torch.arange(1.0, dim + 1), dim=0).double()
    ours = sphere.von_mises_fisher(mean.expand(3000, dim), kappa, generator=rng).numpy()
    theirs = stats.vonmises_fisher(mean.numpy(), kappa, seed=0).rvs(3000)
    for direction in (mean.numpy(), np.eye(dim)[0], np.eye(dim)[-1]):
        assert stats.ks_2samp(ours @ direction, theirs @ direction).pvalue > 1e-3


def test_one_mean_and_one_concentration_per_row(rng):
    mean = sphere.uniform(3, 4, generator=rng)
    kappa = torch.tensor([0.0, 5.0, 500.0])
    x = sphere.von_mises_fisher(mean.expand(8000, 3, 4), kappa.expand(8000, 3), generator=rng)
    assert x.shape == (8000, 3, 4)
    cos = (x * mean).sum(-1).mean(0)
    np.testing.assert_allclose(cos.numpy(), sphere.mean_cosine(4, kappa.numpy()), atol=0.025)


def test_shapes_follow_the_mean(rng):
    for shape in [(3,), (0, 3), (5, 3), (2, 0, 3), (2, 4, 5)]:
        mean = torch.zeros(shape)
        mean[..., -1] = 1
        assert sphere.von_mises_fisher(mean, 2.0, generator=rng).shape == shape
    strided = torch.eye(3).repeat(4, 2)[:, ::2].T.contiguous().T  # not contiguous, rows not unit
    strided = torch.nn.functional.normalize(strided, dim=1)
    assert sphere.von_mises_fisher(strided, 2.0, generator=rng).shape == strided.shape
    assert sphere.uniform(0, 3, generator=rng).shape == (0, 3)


def test_half_precision_means_are_promoted_and_renormalised(rng):
    for dtype in (torch.float16, torch.bfloat16):
        mean = torch.full((20_000, 3), 0.5771, dtype=dtype)
        x = sphere.von_mises_fisher(mean, 10.0, generator=rng)
        assert x.dtype == torch.float32
        cos = x @ torch.full((3,), 3**-0.5)
        assert float(cos.mean()) == pytest.approx(0.900, abs=0.005)


@pytest.mark.parametrize(
    ("mean", "quoted"),
    [
        (torch.tensor([3.0, 0, 0]), "length 3"),
        (torch.zeros(3), "length 0"),
        (torch.tensor([math.nan, 0, 1]), "length nan"),
        (torch.tensor([[1.0, 0, 0], [0, math.inf, 0]]), "row 1 .*length inf"),
        (torch.zeros(3, 0), r"shape \(\.\.\., d\)"),
        (torch.tensor(1.0), r"shape \(\.\.\., d\)"),
    ],
)
def test_a_mean_that_is_no_direction_is_refused(mean, quoted, rng):
    with pytest.raises(ValueError, match=f"mean.*{quoted}"):
        sphere.von_mises_fisher(mean, 10.0, generator=rng)


@pytest.mark.parametrize("mean", [torch.tensor([1, 0, 0]), np.eye(3), [1.0, 0.0, 0.0]])
def test_a_mean_that_is_no_float_tensor_is_refused(mean, rng):
    with pytest.raises(TypeError, match=r"mean must be"):
        sphere.von_mises_fisher(mean, 10.0, generator=rng)


@pytest.mark.parametrize("kappa", [-1.0, math.nan, math.inf, torch.tensor([1.0, -2.0, 1.0])])
def test_bad_concentrations_are_refused(kappa, rng):
    with pytest.raises(ValueError, match=r"kappa must be finite and in \[0, inf\), got"):
        sphere.von_mises_fisher(torch.eye(3), kappa, generator=rng)
    with pytest.raises(ValueError, match=r"kappa must be finite"):
        sphere.log_prob(torch.eye(3), torch.eye(3), kappa)


def test_misfitting_concentrations_and_generators_are_refused(rng):
    for kappa in (torch.ones(2), torch.ones(3, 1), torch.ones(1, 3)):
        with pytest.raises(ValueError, match=r"kappa must be a scalar or have shape \(3,\)"):
            sphere.von_mises_fisher(torch.eye(3), kappa, generator=rng)
    with pytest.raises(TypeError, match=r"kappa must be a number"):
        sphere.von_mises_fisher(torch.eye(3), "5", generator=rng)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got NoneType"):
        sphere.von_mises_fisher(torch.eye(3), 5.0, generator=None)
    with pytest.raises(TypeError, match=r"generator must be"):
        sphere.uniform(3, 3, generator=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((-1, 3), ValueError), ((3, 0), ValueError), ((2.0, 3), TypeError), ((True, 3), TypeError)],
)
def test_bad_sizes_are_refused(arguments, error, rng):
    with pytest.raises(error, match=r"n must be|dim must be"):
        sphere.uniform(*arguments, generator=rng)


def test_half_precision_draws_are_refused(rng):
    with pytest.raises(ValueError, match=r"dtype must be"):
        sphere.uniform(3, 3, generator=rng, dtype=torch.float16)


def test_integral_and_array_concentrations_are_numbers_too(rng):
    mean = axis(3, 2)
    for kappa in (3, np.float64(3), torch.tensor(3), torch.tensor([3, 3]), np.array([3.0, 3.0]), [3.0, 3.0]):
        a = sphere.von_mises_fisher(mean, kappa, generator=torch.Generator().manual_seed(1))
        b = sphere.von_mises_fisher(mean, 3.0, generator=torch.Generator().manual_seed(1))
        assert torch.equal(a, b)


@given(
    dim=st.integers(1, 12),
    n=st.integers(0, 40),
    kappa=st.one_of(st.just(0.0), st.floats(1e-8, 1e8)),
    seed=st.integers(0, 2**20),
    double=st.booleans(),
)
def test_vmf_laws(dim, n, kappa, seed, double):
    dtype = torch.float64 if double else torch.float32
    rng = torch.Generator().manual_seed(seed)
    mean = sphere.uniform(n, dim, generator=rng, dtype=dtype)
    state, global_state = rng.get_state(), torch.get_rng_state()
    x = sphere.von_mises_fisher(mean, kappa, generator=rng)
    assert x.shape == mean.shape
    torch.testing.assert_close(x.norm(dim=1), torch.ones(n, dtype=dtype), atol=1e-6, rtol=0)
    again = sphere.von_mises_fisher(mean, kappa, generator=torch.Generator().set_state(state))
    assert torch.equal(x, again)
    assert torch.equal(global_state, torch.get_rng_state())


# --- closed forms

ARGUMENTS = (1e-8, 1e-3, 0.1, 1.0, 10 / 3, 10.0, 50.0, 1e3, 1e5, 1e6, 1e8)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 10, 101, 102, 103, 104, 512, 1024])
def test_log_phi_mean_cosine_and_entropy_against_mpmath(n):
    with mpmath.workdps(40):
        for a in ARGUMENTS:
            order, x = mpmath.mpf(n) / 2 - 1, mpmath.mpf(a)
            lower = mpmath.besseli(order, x)
            phi = mpmath.log(lower) + order * mpmath.log(2 / x) + mpmath.loggamma(mpmath.mpf(n) / 2)
            ratio = mpmath.besseli(order + 1, x) / lower
            assert float(sphere.log_phi(n, a)) == pytest.approx(float(phi), rel=1e-11)
            assert float(sphere.log_phi_scaled(n, a)) == pytest.approx(float(phi - x), rel=1e-12, abs=1e-13)
            assert float(sphere.mean_cosine(n, a)) == pytest.approx(float(ratio), rel=1e-11)
            assert float(sphere.entropy(n, a)) == pytest.approx(float(phi - x * ratio), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 7, 100, 512, 5000])
def test_the_power_series_keeps_its_digits_up_to_where_it_ends(n):
    with mpmath.workdps(40):
        for a in math.sqrt(n) * np.array([1e-6, 0.5, 1.0, 1.9, 2.0]):
            exact = mpmath.log(mpmath.hyp0f1(mpmath.mpf(n) / 2, mpmath.mpf(a) ** 2 / 4))
            assert float(sphere.log_phi(n, a)) == pytest.approx(float(exact), rel=3e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 104])
def test_entropy_keeps_its_digits_where_the_law_is_nearly_a_point(n):
    with mpmath.workdps(50):
        order, x = mpmath.mpf(n) / 2 - 1, mpmath.mpf(10) ** 12
        if n == 1:
            expected = mpmath.log((1 + mpmath.exp(-2 * x)) / 2)
        else:
            lower = mpmath.besseli(order, x)
            phi = mpmath.log(lower) + order * mpmath.log(2 / x) + mpmath.loggamma(mpmath.mpf(n) / 2)
            expected = phi - x * mpmath.besseli(order + 1, x) / lower
        assert float(sphere.entropy(n, 1e12)) == pytest.approx(float(expected), rel=1e-10)


def test_known_values():
    a = np.array([0.0, 1e-3, 0.5, 3.0, 20.0])
    np.testing.assert_allclose(sphere.mean_cosine(1, a), np.tanh(a), rtol=1e-14)
    np.testing.assert_allclose(sphere.mean_cosine(3, a[2:]), 1 / np.tanh(a[2:]) - 1 / a[2:], rtol=1e-13)
    np.testing.assert_allclose(sphere.log_phi(1, a), np.log(np.cosh(a)), rtol=1e-9, atol=1e-16)
    np.testing.assert_allclose(sphere.log_phi(2, a), np.log(special.i0(a)), rtol=1e-12, atol=1e-15)
    for n in (1, 2, 3, 7, 1024):
        assert sphere.log_phi(n, 0.0) == sphere.mean_cosine(n, 0.0) == sphere.entropy(n, 0.0) == 0


def test_shape_of_the_argument_is_kept():
    for f in (sphere.log_phi, sphere.log_phi_scaled, sphere.mean_cosine, sphere.entropy):
        for n in (1, 2, 3, 200):
            assert np.shape(f(n, 2.0)) == ()
            assert np.shape(f(n, np.ones((2, 3)))) == (2, 3)
            assert np.shape(f(n, np.ones(0))) == (0,)
            assert np.all(np.isfinite(f(n, np.array([0, 1e-300, 1e12]))))


@pytest.mark.parametrize("a", [-1.0, math.nan, math.inf, np.array([1.0, -1.0])])
def test_bad_arguments_are_refused(a):
    for f in (sphere.log_phi, sphere.log_phi_scaled, sphere.mean_cosine, sphere.entropy):
        with pytest.raises(ValueError, match=r"concentration must be finite"):
            f(3, a)
        with pytest.raises(ValueError, match=r"n must be at least 1|dim must be at least 1"):
            f(0, 1.0)


def test_mean_cosine_is_the_derivative_of_log_phi():
    a = np.array([0.3, 2.0, 9.0, 60.0])
    for n in (1, 2, 3, 10, 128):
        slope = (sphere.log_phi(n, a + 1e-4) - sphere.log_phi(n, a - 1e-4)) / 2e-4
        np.testing.assert_allclose(slope, sphere.mean_cosine(n, a), rtol=1e-6)


@pytest.mark.parametrize("kappa", [0.0, 0.7, 10 / 3, 200.0])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 20])
def test_log_prob_integrates_to_one_and_gives_the_entropy(dim, kappa):
    def density(cos: float) -> float:
        x, mean = torch.zeros(dim, dtype=torch.float64), axis(dim, 1, torch.float64)[0]
        x[0] = cos
        if dim > 1:
            x[1] = math.sqrt(max(0.0, 1 - cos * cos))
        return float(sphere.log_prob(x, mean, kappa))

    if dim == 1:
        total = sum(math.exp(density(c)) for c in (1.0, -1.0)) / 2
        entropy = -sum(math.exp(density(c)) * density(c) for c in (1.0, -1.0)) / 2
    else:
        area = math.exp(sphere.log_area(dim - 1) - sphere.log_area(dim))

        def over_angle(f) -> float:
            return (
                area
                * integrate.quad(
                    lambda t: math.sin(t) ** (dim - 2) * f(density(math.cos(t))), 0, math.pi, limit=200
                )[0]
            )

        total, entropy = over_angle(math.exp), over_angle(lambda p: -math.exp(p) * p)
    assert total == pytest.approx(1, abs=1e-8)
    assert float(sphere.entropy(dim, kappa)) == pytest.approx(entropy, abs=1e-7)


def test_log_prob_and_entropy_agree_with_scipy():
    mean = torch.nn.functional.normalize(torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64), dim=0)
    law = stats.vonmises_fisher(mean.numpy(), 7.0)
    x = sphere.uniform(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = sphere.log_prob(x, mean, 7.0) - sphere.log_area(4)
    np.testing.assert_allclose(ours.numpy(), law.logpdf(x.numpy()), rtol=1e-10)
    assert float(sphere.entropy(4, 7.0)) + sphere.log_area(4) == pytest.approx(law.entropy(), rel=1e-10)


@pytest.mark.parametrize(("dim", "kappa"), [(1, 0.8), (2, 3.0), (3, 1e3), (10, 5.0), (100, 1e4)])
def test_entropy_is_minus_the_mean_log_prob(dim, kappa, rng):
    mean = axis(dim, 20_000, torch.float64)
    x = sphere.von_mises_fisher(mean, kappa, generator=rng)
    value = -sphere.log_prob(x, mean, kappa)
    error = 4.5 * float(value.std()) / math.sqrt(len(value))
    assert abs(float(value.mean()) - float(sphere.entropy(dim, kappa))) < error


def test_area_of_small_spheres():
    expected = [2, 2 * math.pi, 4 * math.pi, 2 * math.pi**2]
    np.testing.assert_allclose([math.exp(sphere.log_area(d)) for d in (1, 2, 3, 4)], expected)


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_log_prob_has_the_derivative_of_its_concentration(dim):
    """d log p/dκ = ⟨x, µ⟩ − A(κ)."""
    kappa = torch.tensor([0.3, 5.0], dtype=torch.float64, requires_grad=True)
    x, mean = (axis(dim, 2, torch.float64), axis(dim, 2, torch.float64))
    x = torch.where(torch.arange(dim) == dim - 1, 1.0, torch.zeros_like(x))
    (got,) = torch.autograd.grad(sphere.log_prob(x, mean, kappa).sum(), kappa)
    want = (x * mean).sum(1).numpy() - sphere.mean_cosine(dim, kappa.detach().numpy())
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_do_not_overflow():
    assert sphere.log_phi_scaled(3, 1e308) == pytest.approx(-math.log(2) - 308 * math.log(10))


def test_a_bad_concentration_among_many_is_named(rng):
    with pytest.raises(ValueError, match="nan in row 1"):
        sphere.von_mises_fisher(axis(2, 3), torch.tensor([1.0, math.nan, 1.0]), generator=rng)
