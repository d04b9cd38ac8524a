"""The cost of a fold on moved pairs, against the grid, draws, and maps whose fold is known."""

import math

import pytest
import torch

from viewspan import pairs, sphere, theory
from viewspan.theory import maps

TAU = 0.3
KAPPA = 1 / TAU


def excess(h: maps.Map, law: pairs.FullSupport, temperature: float = TAU) -> float:
    """L∞ of a map above that of an isometry, by the grid."""
    found = theory.asymptotic_loss(h, law, temperature=temperature, dtype=torch.float64)
    return found.loss - theory.predict(law, temperature=temperature).orthogonal_loss


def folded_back(colatitude: float) -> maps.Map:
    """The cap beyond a colatitude is folded back over the rest: π/2 is u → |u|, π the identity."""

    def h(z: torch.Tensor) -> torch.Tensor:
        angle = torch.acos(z[:, :1].clamp(-1, 1))
        angle = torch.where(angle > colatitude, 2 * colatitude - angle, angle)
        direction = z[:, 1:] / z[:, 1:].norm(dim=1, keepdim=True)
        return torch.cat([angle.cos(), angle.sin() * direction], 1)

    return h


@pytest.mark.parametrize("dim", [2, 3, 4])
@pytest.mark.parametrize(("kappa", "temperature"), [(KAPPA, TAU), (8.0, TAU), (2.0, 0.5), (0.0, 0.3)])
def test_the_exact_fold_costs_what_the_grid_says(dim: int, kappa: float, temperature: float) -> None:
    law = pairs.FullSupport(dim=dim, kappa=kappa)
    expected = excess(maps.folded(), law, temperature)
    assert theory.fold_cost(law, temperature=temperature) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("dim", "n_folded"), [(3, 2), (6, 1), (6, 4), (10, 3)])
def test_folds_of_several_coordinates_against_draws(dim: int, n_folded: int) -> None:
    rng = torch.Generator().manual_seed(dim)
    law = pairs.FullSupport(dim=dim, kappa=KAPPA)
    z = sphere.uniform(3000, dim, generator=rng, dtype=torch.float64)
    positive = law.sample(z, rng)

    def h(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :n_folded].norm(dim=1, keepdim=True), x[:, n_folded:]], 1)

    each = []
    for f, sign in ((h, 1.0), (lambda x: x, -1.0)):  # paired: most of the noise is common to both
        a, others = (
            f(z),
            f(sphere.uniform(20_000, dim, generator=torch.Generator().manual_seed(1), dtype=z.dtype)),
        )
        each.append(
            sign * ((a @ others.T / TAU).logsumexp(1) - math.log(20_000) - (a * f(positive)).sum(1) / TAU)
        )
    gap = sum(each)
    error = 4.5 * float(gap.std()) / math.sqrt(len(z)) + 0.002
    assert abs(float(gap.mean()) - theory.fold_cost(law, temperature=TAU, n_folded=n_folded)) < error


def test_maps_whose_fold_is_known_measured_in_folds() -> None:
    law = pairs.FullSupport(dim=3, kappa=KAPPA)
    unit = theory.fold_cost(law, temperature=TAU)
    assert unit == pytest.approx(0.2680, abs=5e-5)
    shares = [excess(folded_back(c), law) / unit for c in (math.pi / 2, 2.0, 2.2, 2.4, 2.8, math.pi)]
    assert shares[0] == pytest.approx(1, abs=1e-8)
    assert shares[-1] == pytest.approx(0, abs=1e-8)
    assert shares == sorted(shares, reverse=True)
    assert 0.2 < shares[3] < 0.6
    turn = torch.linalg.qr(
        torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )[0]
    assert excess(lambda z: z @ turn, law) / unit == pytest.approx(0, abs=1e-8)
    assert excess(maps.squeezed(0.8), law) / unit < 0.1
    assert (
        excess(maps.twisted(), law) / unit > 3
    )  # no fold: the cost is a sign that a fold is possible, not a name


@pytest.mark.parametrize(
    ("dim", "kappa", "temperature", "n_folded"),
    [(512, KAPPA, TAU, 1), (512, 1e3, 1e-3, 256), (3, 1e6, 1e-3, 1), (1024, 10.0, 0.1, 1023), (2, 1.0, 1e3, 1)],
)  # fmt: skip
def test_extreme_settings_settle(dim: int, kappa: float, temperature: float, n_folded: int) -> None:
    law = pairs.FullSupport(dim=dim, kappa=kappa)
    assert math.isfinite(theory.fold_cost(law, temperature=temperature, n_folded=n_folded))


def test_bad_input_is_refused() -> None:
    law = pairs.FullSupport(dim=3, kappa=1.0)
    with pytest.raises(ValueError, match="temperature"):
        theory.fold_cost(law, temperature=0)
    for n, rule in ((0, "n_folded must be in 1..2, got 0"), (3, "got 3")):
        with pytest.raises(ValueError, match=rule):
            theory.fold_cost(law, temperature=TAU, n_folded=n)
