"""Predictions against closed forms, published numbers, slow twins and each other."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special

from viewspan import checks, experiments, pairs, sphere, theory
from viewspan.theory import mixtures, quadrature, squeeze
from viewspan.theory import model as models

TAU = 0.3
KAPPA = 1 / TAU


def fixed(
    m: int = 1, dim: int = 3, convention: str = "subsphere", kappa: float = KAPPA
) -> pairs.FixedLatents:
    return pairs.FixedLatents(dim=dim, kappa=kappa, n_fixed=m, convention=convention)  # type: ignore[arg-type]


def predict(law: pairs.PairLaw, rho: float = 0.0, temperature: float = TAU) -> theory.Prediction:
    return theory.predict(law, temperature=temperature, rho=rho)


# The published setting -------------------------------------------------------------------------------------------


def test_full_support_is_theorem_4_4() -> None:
    p = predict(pairs.FullSupport(dim=3, kappa=KAPPA))
    assert p.orthogonal_loss == pytest.approx(-0.9069, abs=5e-5)
    assert p.loss_minus_log_m("orthogonal", m=4000) + math.log(4000) == pytest.approx(7.3877, abs=5e-5)
    assert p.loss_minus_log_m("orthogonal", m=2000) + math.log(2000) == pytest.approx(6.6951, abs=5e-5)
    assert p.finite_m_coefficient["orthogonal"] == pytest.approx(2.171, abs=5e-4)
    assert p.orthogonal_is_minimiser is True
    assert p.incentive_nats == 0
    assert p.squeeze.lam == 1
    assert p.lower_bound == pytest.approx(float(sphere.entropy(3, KAPPA)), abs=1e-12)


def test_the_floor() -> None:
    p = predict(fixed())
    assert p.floor == pytest.approx(-1.8984, abs=5e-5)
    assert p.loss_minus_log_m("floor", m=2000) + math.log(2000) == pytest.approx(5.7053, abs=5e-5)
    assert p.finite_m_coefficient["floor"] == pytest.approx(5.504, abs=5e-4)
    ten = predict(fixed(dim=10))
    assert ten.floor == pytest.approx(-2.8011, abs=5e-5)
    assert ten.loss_minus_log_m("floor", m=2000) + math.log(2000) == pytest.approx(4.8077, abs=5e-5)
    assert theory.floor(3, temperature=TAU) == p.floor


@pytest.mark.parametrize(
    ("convention", "lam", "loss", "r2", "half_ape", "incentive", "c"),
    [
        ("subsphere", 0.7296, -1.5488, 0.9945, 0.0470, 0.3736, 3.997),
        ("ambient", 0.5717, -1.4469, 0.9822, 0.0853, 0.5430, 3.638),
    ],
)
def test_the_standard_loss_prefers_a_squeeze(
    convention: str, lam: float, loss: float, r2: float, half_ape: float, incentive: float, c: float
) -> None:
    p = predict(fixed(convention=convention))
    s = p.squeeze
    assert s.lam == pytest.approx(lam, abs=5e-5)
    assert s.loss == pytest.approx(loss, abs=5e-5)
    assert s.r2 == pytest.approx(r2, abs=5e-5)
    assert s.ape / 2 == pytest.approx(half_ape, abs=6e-5)
    assert p.incentive_nats == pytest.approx(incentive, abs=5e-5)
    assert p.incentive_bits == pytest.approx(incentive / math.log(2), abs=1e-4)
    assert p.finite_m_coefficient["squeeze"] == pytest.approx(c, abs=5e-4)
    assert (p.incentive, p.orthogonal_is_minimiser) == ("exact", False)
    if convention == "subsphere":
        assert p.loss_minus_log_m("squeeze", m=2000) + math.log(2000) == pytest.approx(6.0541, abs=5e-5)


def test_the_corrected_loss_under_both_conventions() -> None:
    ambient, subsphere = predict(fixed(convention="ambient"), rho=1), predict(fixed(), rho=1)
    assert ambient.orthogonal_loss == pytest.approx(-0.6083, abs=5e-5)
    assert (ambient.orthogonal_is_minimiser, ambient.incentive_nats, ambient.squeeze.lam) == (True, 0, 1)
    assert subsphere.orthogonal_loss == pytest.approx(-0.7778, abs=5e-5)
    assert subsphere.orthogonal_is_minimiser is False
    assert subsphere.incentive_nats == pytest.approx(0.1361, abs=5e-5)
    s = subsphere.squeeze
    assert (s.lam, s.limit) == (None, "great_subspheres")
    assert s.loss == pytest.approx(-0.9139, abs=5e-5)
    assert s.r2 == pytest.approx((math.pi / 4) ** 2, abs=1e-10)
    assert s.ape / 2 == pytest.approx(0.1566, abs=5e-5)
    assert subsphere.finite_m_coefficient["squeeze"] == pytest.approx(2.004, abs=5e-4)
    assert subsphere.loss_minus_log_m("squeeze", m=2000) + math.log(2000) == pytest.approx(6.6880, abs=5e-5)
    assert subsphere.loss_minus_log_m("squeeze", m=1000) + math.log(1000) == pytest.approx(5.9959, abs=5e-5)


LAM = [0.730, 0.791, 0.872, 0.974, 1.105, 1.283, 1.537, 1.944, 2.749, 5.49]
R2 = [0.99446, 0.99697, 0.99897, 0.99996, 0.99947, 0.99685, 0.99100, 0.97975, 0.95779, 0.90603, 0.61685]
APE = [0.04695, 0.03450, 0.01995, 0.00380, 0.01389, 0.03327, 0.05469, 0.07873, 0.10626, 0.13787, 0.15662]
LOSS = [6.053, 6.182, 6.290, 6.381, 6.459, 6.525, 6.581, 6.627, 6.662, 6.683, 6.688]
AMBIENT_LAM = [0.5717, 0.5935, 0.6207, 0.6520, 0.6869, 0.7256, 0.7684, 0.8159, 0.8693, 0.9300, 1]
AMBIENT_R2 = [0.98217, 0.98452, 0.98712, 0.98968, 0.99208, 0.99426, 0.99615, 0.99772, 0.99893, 0.99972, 1]
AMBIENT_APE = [0.08527, 0.07934, 0.07225, 0.06451, 0.05634, 0.04781, 0.03898, 0.02983, 0.02033, 0.01041, 0]


@pytest.mark.parametrize("i", range(11))
def test_the_rho_sweep(i: int) -> None:
    s, a = predict(fixed(), rho=i / 10).squeeze, predict(fixed(convention="ambient"), rho=i / 10).squeeze
    if i < 10:
        assert s.lam == pytest.approx(LAM[i], abs=6e-4 if i < 9 else 5e-3)
    else:
        assert (s.lam, s.limit) == (None, "great_subspheres")
    assert s.loss + math.log(2001) == pytest.approx(LOSS[i], abs=6e-4)
    assert s.r2 == pytest.approx(R2[i], abs=6e-6)
    assert s.ape / 2 == pytest.approx(APE[i], abs=6e-6)
    assert a.lam == pytest.approx(AMBIENT_LAM[i], abs=6e-5)
    assert a.r2 == pytest.approx(AMBIENT_R2[i], abs=6e-6)
    assert a.ape / 2 == pytest.approx(AMBIENT_APE[i], abs=6e-6)


def test_the_rho_sweep_meets_what_others_trained() -> None:
    """Tables 8, 10 and 11 of arXiv 2606.04280, identity with its inverse encoder: no number of ours is in them."""
    tables = [
        experiments.published()[name] for name in ("table8_rho_r2", "table10_rho_ape", "table11_rho_loss")
    ]
    for i, rows in enumerate(zip(*tables, strict=True)):
        r2, half_ape, loss = (row["identity/inverse"] for row in rows)
        p = predict(fixed(), rho=i / 10)
        assert p.loss_minus_log_m("squeeze", m=2000) + math.log(2000) == pytest.approx(loss, abs=0.012)
        assert p.squeeze.ape / 2 == pytest.approx(half_ape, abs=0.0022)
        if i < 10:  # at ρ = 1 the published descent is on its way to λ = ∞
            assert p.squeeze.r2 == pytest.approx(r2, abs=0.0015)
        else:
            assert p.squeeze.r2 < r2 < p.squeeze.r2_limit + 0.1


def test_recovery_falls_slowly_to_its_value_at_great_circles() -> None:
    model = models.of(fixed())
    found = [squeeze.recovery(model, lam, 411) for lam in (20, 60, 200, 1000)]
    assert found == pytest.approx([0.821, 0.773, 0.739, 0.710], abs=6e-4)


# Other settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "m", "losses", "lams"),
    [
        (3, 2, (-1.8956, -1.7678), (0.9953, 0.7324)),
        (10, 1, (-0.8071, -0.7343), (0.2821, 0.2616)),
        (10, 3, None, (0.1949, 0.1208)),
        (10, 5, (-2.0067, -1.7101), (0.1719, None)),
        (10, 7, None, (0.4010, None)),
        (10, 9, (-2.8002, -2.6651), (0.9945, None)),
    ],
)
def test_other_dimensions(
    dim: int, m: int, losses: tuple[float, float] | None, lams: tuple[float | None, float | None]
) -> None:
    for i, convention in enumerate(("subsphere", "ambient")):
        p = predict(fixed(m, dim, convention))
        if losses is not None:
            assert p.orthogonal_loss == pytest.approx(losses[i], abs=6e-5)
        if lams[i] is None:
            assert (p.squeeze.lam, p.squeeze.limit) == (None, "held_only")
            expected = -1 / TAU + float(sphere.log_phi(m, 1 / TAU))
            assert p.squeeze.loss == pytest.approx(expected, abs=1e-12)
        else:
            assert p.squeeze.lam == pytest.approx(lams[i], abs=6e-5)


@pytest.mark.parametrize(
    ("dim", "m", "r2", "half_ape"),
    [
        (3, 2, 0.250, 0.375),
        (4, 2, 0.444, 0.209),
        (10, 1, 0.895, 0.0354),
        (10, 5, 0.476, 0.129),
        (10, 9, 0.067, 0.467),
    ],
)
def test_great_subspheres(dim: int, m: int, r2: float, half_ape: float) -> None:
    s = predict(fixed(m, dim), rho=1).squeeze
    assert s.limit == "great_subspheres"
    assert s.r2 == pytest.approx(r2, abs=6e-4)
    assert s.ape / 2 == pytest.approx(half_ape, abs=6e-4)
    ell = dim - m
    assert s.loss == pytest.approx(
        -float(sphere.mean_cosine(ell, KAPPA)) / TAU + float(sphere.log_phi(ell, 1 / TAU))
    )


def test_nothing_is_gained_where_everything_is_held() -> None:
    for rho in (0, 0.5, 1):
        p = predict(fixed(3), rho=rho)
        assert (p.incentive_nats, p.orthogonal_is_minimiser, p.incentive) == (0, True, "exact")
    assert not fixed(3).diversity.holds
    assert predict(fixed(3)).orthogonal_loss == pytest.approx(theory.floor(3, temperature=TAU), abs=1e-12)
    assert predict(fixed(3), rho=1).orthogonal_loss == pytest.approx(0, abs=1e-12)


def test_nothing_held_is_full_support_and_rho_changes_nothing() -> None:
    full = predict(pairs.FullSupport(dim=3, kappa=2.0))
    for law in (pairs.FullSupport(dim=3, kappa=2.0), fixed(0, kappa=2.0)):
        for rho in (0, 0.4, 1):
            p = predict(law, rho=rho)
            assert p.orthogonal_loss == pytest.approx(full.orthogonal_loss, abs=1e-12)
            assert p.orthogonal_is_minimiser is not True


# κ ≠ 1/τ ---------------------------------------------------------------------------------------------------------


def test_without_the_matching_concentration_full_support_is_not_enough() -> None:
    low = predict(pairs.FullSupport(dim=3, kappa=1.0))
    assert low.orthogonal_loss > 0
    assert (low.orthogonal_is_minimiser, low.rival) == (False, "constant")
    assert low.incentive_nats == pytest.approx(low.orthogonal_loss)
    assert low.incentive == "at_least"
    high = predict(pairs.FullSupport(dim=3, kappa=10.0))
    assert (high.orthogonal_is_minimiser, high.incentive_nats, high.incentive) == (None, None, "unknown")
    at_threshold = [predict(pairs.FullSupport(dim=3, kappa=k)).orthogonal_loss for k in (1.4655, 1.4665)]
    assert at_threshold[0] > 0 > at_threshold[1]


@pytest.mark.parametrize("convention", ["ambient", "subsphere"])
def test_corrected_loss_with_a_lower_concentration_attains_the_entropy_bound(convention: str) -> None:
    p = predict(fixed(kappa=2.0, convention=convention), rho=1)
    bound = models.of(fixed(kappa=2.0, convention=convention)).fibre_entropy()
    assert p.lower_bound == pytest.approx(bound, abs=1e-8)
    assert p.incentive_nats == pytest.approx(p.orthogonal_loss - bound, abs=1e-8)
    assert (p.incentive, p.orthogonal_is_minimiser, p.rival) == ("exact", False, "rescaled")


@pytest.mark.parametrize("rho", [0.0, 0.05, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("kappa", [0.0, 1.0, KAPPA, 9.0])
@pytest.mark.parametrize(("dim", "m"), [(2, 1), (3, 1), (3, 2), (5, 3)])
def test_bounds_are_in_order(rho: float, kappa: float, dim: int, m: int) -> None:
    for convention in ("ambient", "subsphere"):
        p = predict(fixed(m, dim, convention, kappa), rho=rho)
        assert p.lower_bound <= p.squeeze.loss + 1e-9
        assert p.squeeze.loss <= p.orthogonal_loss + 1e-9
        assert p.lower_bound <= p.orthogonal_loss - (p.incentive_nats or 0.0) + 1e-9
        assert p.lower_bound >= theory.floor(dim, temperature=TAU) - 1e-12
        if 0 < rho < 1:
            model = models.of(fixed(m, dim, convention, kappa))
            assert p.lower_bound >= math.log(rho) + model.fibre_entropy() - 1e-9
        if p.orthogonal_is_minimiser:
            assert kappa == KAPPA
            assert rho == 1
            assert convention == "ambient"


# Extremes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("dim", "m", "kappa", "tau"),
    [
        (512, 1, KAPPA, TAU),
        (512, 256, 1e3, 1e-3),
        (512, 511, 1e6, 1e-3),
        (3, 1, 1e6, 1e-3),
        (3, 2, 1e6, TAU),
        (2, 1, 0.0, 1e3),
    ],
)
def test_extreme_settings_give_finite_numbers(dim: int, m: int, kappa: float, tau: float, rho: float) -> None:
    for convention in ("ambient", "subsphere"):
        p = predict(fixed(m, dim, convention, kappa), rho=rho, temperature=tau)
        text = json.dumps(p.to_json(), allow_nan=False)
        assert json.loads(text)["orthogonal_loss"] == p.orthogonal_loss
        assert p.error < 1e-4
        assert p.squeeze.loss is not None
        assert p.lower_bound <= p.squeeze.loss + 1e-6
        assert 0 <= p.squeeze.r2 <= 1 + 1e-12


def test_json_has_the_documented_names() -> None:
    names = {
        "dim", "n_fixed", "kappa", "temperature", "rho", "convention", "orthogonal_loss", "floor", "lower_bound",
        "squeeze", "incentive_nats", "incentive_bits", "orthogonal_is_minimiser", "error", "ms",
    }  # fmt: skip
    for rho in (0.0, 0.5):
        document = predict(fixed(), rho=rho).to_json()
        assert names <= set(document)
        assert {"lam", "limit", "loss", "r2", "ape"} <= set(document["squeeze"])
        assert (document["floor"] is None) == (rho > 0)


# Slow twins ------------------------------------------------------------------------------------------------------


def slow_squeezed_loss(convention: str, rho: float, lam: float) -> float:
    """L∞(h_λ) at d = 3, m = 1 by nested adaptive integration."""

    def point(t: float) -> tuple[float, float]:
        n = math.hypot(math.sin(t), lam * math.cos(t))
        return math.sin(t) / n, lam * math.cos(t) / n

    def everywhere(t: float) -> float:
        a, b = point(t)

        def inner(t2: float) -> float:
            a2, b2 = point(t2)
            return math.cos(t2) * math.cosh(a * a2 / TAU) * float(np.i0(b * b2 / TAU))

        return integrate.quad(inner, 0, math.pi / 2)[0]

    def outer(t: float) -> float:
        a, b = point(t)
        c = KAPPA * math.cos(t) ** 2 if convention == "ambient" else KAPPA
        alignment = a * a + b * b * float(sphere.mean_cosine(2, c))
        fibre = math.exp(a * a / TAU) * float(np.i0(b * b / TAU))
        return math.cos(t) * (math.log(rho * fibre + (1 - rho) * everywhere(t)) - alignment / TAU)

    return integrate.quad(outer, 0, math.pi / 2, epsabs=1e-10)[0]


@pytest.mark.parametrize("convention", ["ambient", "subsphere"])
@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_the_best_squeeze_against_adaptive_integration(convention: str, rho: float) -> None:
    p = predict(fixed(convention=convention), rho=rho)
    below, least, above = (slow_squeezed_loss(convention, rho, p.squeeze.lam + x) for x in (-0.005, 0, 0.005))
    assert p.squeeze.loss == pytest.approx(least, abs=1e-9)
    # the vertex of the parabola through three values is λ* itself
    assert below > least < above
    assert 0.0025 * (below - above) / (below - 2 * least + above) == pytest.approx(0, abs=5e-5)
    fast = squeeze.terms(models.of(fixed(convention=convention)), TAU, rho, p.squeeze.lam + 0.005, 24).loss[0]
    assert fast == pytest.approx(above, abs=1e-9)


def test_the_kernel_table_against_bessel_functions() -> None:
    rng = np.random.default_rng(0)
    for n, largest in ((2, 3.3), (9, 3.3), (2, 1e3), (511, 1e3), (256, 1e6)):
        a = rng.uniform(0, largest, 500)
        error = np.abs(quadrature.log_phi_scaled(n, a, largest) - sphere.log_phi_scaled(n, a)).max()
        assert error < 1e-9, (n, largest)


@pytest.mark.parametrize("ell", [1, 2, 3, 4, 7, 30])
def test_mean_absolute_value_of_a_shifted_coordinate(ell: int) -> None:
    x = sphere.uniform(400_000, ell, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[
        :, 0
    ].numpy()
    for a, b in ((0.3, 0.8), (-0.9, 0.2), (0.0, 1.0), (0.05, -0.4)):
        value = float(quadrature.mean_absolute(np.array(a), np.array(b), ell))
        sample = np.abs(a + b * x)
        assert abs(value - sample.mean()) <= 4.5 * sample.std() / math.sqrt(len(x)) + 1e-12


@pytest.mark.parametrize("ell", [4, 5, 30, 511])
def test_the_table_of_mean_absolute_values_against_the_integral(ell: int) -> None:
    def integrand(angle: float) -> float:
        return abs(x + math.cos(angle)) * math.sin(angle) ** (ell - 2)

    norm = special.beta((ell - 1) / 2, 0.5)
    for x in (0.0, 1e-3, 0.3 / math.sqrt(ell), 0.37, 0.9, 0.9999, 1.0):
        kink = [math.acos(-x), math.pi / 2]
        exact = integrate.quad(integrand, 0, math.pi, points=kink, epsabs=1e-14, limit=200)[0] / norm
        assert float(quadrature.mean_absolute(np.array(x), np.array(1.0), ell)) == pytest.approx(
            exact, abs=1e-11
        )


@pytest.mark.parametrize(("dim", "m"), [(2, 1), (3, 2), (10, 9)])
def test_the_thin_layer_where_a_sharp_draw_loses_its_concentration_is_not_overlooked(
    dim: int, m: int
) -> None:
    def expectation(f) -> float:  # over the radius r = sin e^y of the free part, one coordinate
        def integrand(y: float) -> float:
            x = math.exp(y)
            return 2 / special.beta(m / 2, 0.5) * x * math.cos(x) ** (m - 1) * f(math.sin(x))

        edges = np.linspace(-30, math.log(math.pi / 2), 30)
        return sum(integrate.quad(integrand, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(edges))

    kappa = 1e6
    law = fixed(m, dim, "ambient", kappa)
    entropy = expectation(lambda r: float(sphere.entropy(1, kappa * r * r)))
    limit = -expectation(lambda r: math.tanh(kappa * r * r)) / TAU + float(sphere.log_phi(1, 1 / TAU))
    model = models.of(law)
    for n in (16, 54):
        assert squeeze.squeezed_to_free(model, TAU, 1.0, n) == pytest.approx(limit, abs=1e-7)
        assert model.fibre_entropy(n) == pytest.approx(entropy, abs=1e-6)
    p = predict(law, rho=1.0)
    assert p.lower_bound == pytest.approx(entropy, abs=1e-8)
    assert entropy < p.squeeze.loss < limit


def test_equal_rivals_are_named_alike_whatever_the_rounding() -> None:
    for m, dim in (
        (1, 3),
        (2, 3),
        (1, 4),
        (5, 10),
    ):  # rescaled to a great subsphere, which is the squeeze's limit
        assert predict(fixed(m, dim), rho=1.0).rival == "rescaled"


@pytest.mark.parametrize(("dim", "m", "lam"), [(3, 1, 0.6), (4, 2, 1.7), (6, 4, 0.4), (3, 2, 2.0)])
def test_recovery_and_angle_error_against_draws(dim: int, m: int, lam: float) -> None:
    z = sphere.uniform(40_000, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h = torch.cat([z[:, :m], lam * z[:, m:]], 1)
    h = h / h.norm(dim=1, keepdim=True)
    model = models.of(fixed(m, dim))
    half = len(z) // 2
    gaps = ((z[:half] * z[half:]).sum(1) - (h[:half] * h[half:]).sum(1)).abs()
    tolerance = 4.5 * float(gaps.std()) / math.sqrt(half)
    assert abs(squeeze.angle_error(model, lam, 64) - float(gaps.mean())) < tolerance
    residual = z - h @ torch.linalg.lstsq(h, z).solution
    r2 = 1 - (residual.square().sum(0) / (z - z.mean(0)).square().sum(0)).mean()
    assert squeeze.recovery(model, lam, 64) == pytest.approx(float(r2), abs=4e-3)


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_finite_m_correction_against_draws(rho: float) -> None:
    """(L_M − L∞ − log M)·M tends to c; at M = 40 the next term is a few per cent."""
    rng, m, n = torch.Generator().manual_seed(2), 40, 400_000
    law = fixed(convention="ambient")
    z = sphere.uniform(n, 3, generator=rng)
    positive = law.sample(z, rng)
    total, square = 0.0, 0.0
    for chunk, chunk_positive in zip(z.split(40_000), positive.split(40_000)):
        if rho:
            negatives = law.sample_support(chunk, m, rng)
        else:
            negatives = sphere.uniform(len(chunk) * m, 3, generator=rng).reshape(len(chunk), m, 3)
        s_p = (chunk * chunk_positive).sum(1) / TAU
        s_n = (chunk[:, None] * negatives).sum(2) / TAU
        loss = torch.logaddexp(s_p, s_n.logsumexp(1)) - s_p
        total, square = total + float(loss.double().sum()), square + float(loss.double().square().sum())
    mean = total / n
    error = math.sqrt((square / n - mean**2) / n)
    p = predict(law, rho=rho)
    expected = p.loss_minus_log_m("orthogonal", m=m) + math.log(m)
    assert abs(mean - expected) < 4.5 * error + 3.0 / m**2


# Mixtures and turned pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("convention", "lams"),
    [
        ("subsphere", (0.730, 0.746, 0.762, 0.794, 0.852, 0.930, 1)),
        ("ambient", (0.572, 0.592, 0.612, 0.653, 0.735, 0.863, 1)),
    ],
)
def test_lambda_against_the_dose(convention: str, lams: tuple[float, ...]) -> None:
    moved = pairs.FullSupport(dim=3, kappa=KAPPA)
    for share, lam in zip((0, 0.05, 0.1, 0.2, 0.4, 0.7, 1), lams):
        p = predict(pairs.Mixture(held=fixed(convention=convention), moved=moved, share=share))
        assert p.squeeze.lam == pytest.approx(lam, abs=6e-4)
        if 0 < share < 1:
            assert (p.incentive, p.orthogonal_is_minimiser, p.rival) == ("at_least", False, "squeeze")


def test_break_even_matched_and_balancing_shares() -> None:
    ambient, subsphere = fixed(convention="ambient"), fixed()
    assert mixtures.break_even_dose(ambient, temperature=TAU) == pytest.approx(0.258, abs=6e-4)
    assert mixtures.break_even_dose(subsphere, temperature=TAU) == pytest.approx(0.193, abs=6e-4)
    found = [mixtures.matched_share(ambient, temperature=TAU, rho=r) for r in (0.1, 0.5, 0.9)]
    assert found == pytest.approx([0.196, 0.673, 0.947], abs=6e-4)
    moved = pairs.FullSupport(dim=3, kappa=KAPPA)
    for share, rho in ((0.05, 0.914), (0.1, 0.834), (0.2, 0.690), (0.4, 0.454), (0.7, 0.193)):
        law = pairs.Mixture(held=ambient, moved=moved, share=share)
        balanced = mixtures.balancing_rho(law, temperature=TAU)
        assert balanced == pytest.approx(rho, abs=6e-4)
        assert predict(law, rho=balanced).squeeze.lam == pytest.approx(1, abs=1e-4)
    with pytest.raises(ValueError, match="ambient"):
        mixtures.matched_share(subsphere, temperature=TAU, rho=0.5)


def test_moved_alignment_against_draws() -> None:
    rng = torch.Generator().manual_seed(3)
    for dim, m, kappa in ((3, 1, KAPPA), (5, 2, 40.0)):
        law = pairs.FullSupport(dim=dim, kappa=kappa)
        z = sphere.uniform(200_000, dim, generator=rng, dtype=torch.float64)
        scale = torch.ones(dim, dtype=torch.float64)
        scale[m:] = 0.5
        h = [(x * scale) / (x * scale).norm(dim=1, keepdim=True) for x in (z, law.sample(z, rng))]
        score = (h[0] * h[1]).sum(1)
        model = models.Model(dim, m, 0.0, "subsphere", share=1.0, kappa_moved=kappa)
        value = float(squeeze.moved_alignment(model, np.array([0.5]), 48)[0])
        assert abs(value - float(score.mean())) < 4.5 * float(score.std()) / math.sqrt(len(z))


@pytest.mark.parametrize(("dim", "m"), [(3, 1), (4, 2), (3, 2)])
def test_turned_pairs(dim: int, m: int) -> None:
    sigma = 0.6
    held = fixed(m, dim, "ambient")
    law = pairs.Jittered(held=held, sigma=sigma)
    rng = torch.Generator().manual_seed(4)
    z = sphere.uniform(200_000, dim, generator=rng)
    score = (z * law.sample(z, rng)).sum(1)
    p = predict(law)
    alignment = TAU * (float(sphere.log_phi(dim, 1 / TAU)) - p.orthogonal_loss)
    assert abs(alignment - float(score.mean())) < 4.5 * float(score.std()) / math.sqrt(len(z))
    assert p.squeeze.lam is None
    assert p.squeeze.reason
    assert p.incentive_nats is None
    still = predict(pairs.Jittered(held=held, sigma=0.0))
    assert still.squeeze == predict(held).squeeze
    if m == 1:
        q = math.exp(-(sigma**2) / 2)
        s = 1 / dim
        free = TAU * (float(sphere.log_phi(dim, 1 / TAU)) - predict(held).orthogonal_loss) - s
        assert alignment == pytest.approx(q * s + (1 - (1 - q) / (dim - 1)) * free, abs=1e-9)


# Bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused() -> None:
    for bad in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature"):
            theory.predict(fixed(), temperature=bad)
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="rho"):
            predict(fixed(), rho=bad)
    with pytest.raises(TypeError, match="Tagged"):
        predict(pairs.Tagged(held=fixed(), moved=pairs.FullSupport(dim=3, kappa=1.0), share=0.1))
    with pytest.raises(ValueError, match="Jittered"):
        predict(pairs.Jittered(held=fixed(), sigma=0.1), rho=0.5)
    with pytest.raises(TypeError, match="object"):
        theory.predict(object(), temperature=TAU)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="which"):
        predict(fixed()).loss_minus_log_m("best", m=10)


def test_two_rules_that_never_agree_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from viewspan.theory import prediction

    monkeypatch.setattr(prediction, "_RULES", (2, 3))
    with pytest.raises(checks.RunFailed, match="did not settle"):
        predict(fixed(), temperature=1e-3)
