"""L∞ of any map, by quadrature and by quasi-Monte Carlo, and the certificates built on it."""

import json

import pytest
import torch

from viewspan import checks, pairs, sphere, theory
from viewspan.theory import asymptotic_loss, certificates, maps

TAU = 0.3
KAPPA = 1 / TAU


def fixed(m: int = 1, dim: int = 3, convention: str = "subsphere") -> pairs.FixedLatents:
    return pairs.FixedLatents(dim=dim, kappa=KAPPA, n_fixed=m, convention=convention)  # type: ignore[arg-type]


def value(h: maps.Map, law: pairs.PairLaw, rho: float = 0.0) -> theory.AsymptoticLoss:
    return asymptotic_loss(h, law, temperature=TAU, rho=rho, dtype=torch.float64)


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("dim", "m"), [(2, 1), (3, 1), (3, 2), (3, 3), (4, 2)])
def test_the_grid_against_the_squeeze_family(dim: int, m: int, rho: float) -> None:
    for convention in ("ambient", "subsphere"):
        law = fixed(m, dim, convention)
        p = theory.predict(law, temperature=TAU, rho=rho)
        found = value(maps.identity(), law, rho)
        assert found.method == "quadrature"
        assert found.loss == pytest.approx(p.orthogonal_loss, abs=max(1e-7, found.error))
        if p.squeeze.lam is not None:
            assert value(maps.squeezed(p.squeeze.lam, m), law, rho).loss == pytest.approx(
                p.squeeze.loss, abs=1e-5
            )


def test_the_grid_for_full_support_and_mixtures() -> None:
    full = pairs.FullSupport(dim=3, kappa=2.0)
    law = pairs.Mixture(held=fixed(), moved=full, share=0.3)
    for each in (full, law):
        expected = theory.predict(each, temperature=TAU).orthogonal_loss
        assert value(maps.identity(), each).loss == pytest.approx(expected, abs=1e-9)
    rotation = torch.linalg.qr(
        torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )[0]
    turned = value(lambda z: z @ rotation, law)
    assert turned.loss == pytest.approx(value(maps.identity(), law).loss, abs=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_quasi_monte_carlo_states_its_error(rho: float) -> None:
    law = fixed(3, 10, "ambient")
    found = value(maps.identity(), law, rho)
    expected = theory.predict(law, temperature=TAU, rho=rho).orthogonal_loss
    assert found.method == "quasi_monte_carlo"
    assert abs(found.loss - expected) < 3 * found.error
    assert found.error < 0.02
    assert value(maps.identity(), law, rho) == found


def test_turned_pairs_go_by_quasi_monte_carlo() -> None:
    law = pairs.Jittered(held=fixed(), sigma=0.3)
    found = value(maps.identity(), law)
    assert abs(found.loss - theory.predict(law, temperature=TAU).orthogonal_loss) < 3 * found.error


def test_maps_too_rough_for_a_grid_are_refused() -> None:
    with pytest.raises(checks.RunFailed, match="too rough"):
        value(maps.spread_by_spiral(60), fixed())
    with pytest.raises(checks.RunFailed, match="kappa"):
        value(maps.identity(), pairs.FixedLatents(dim=3, kappa=1e6, n_fixed=1, convention="subsphere"))


def test_the_options_of_the_other_method_are_refused_and_its_own_are_kept() -> None:
    with pytest.raises(ValueError, match="seed must be left out where quadrature is used"):
        asymptotic_loss(maps.identity(), fixed(), temperature=TAU, seed=3)
    drawn = pairs.Jittered(held=fixed(), sigma=0.3)
    losses = [asymptotic_loss(maps.identity(), drawn, temperature=TAU, seed=s).loss for s in (0, 1)]
    assert losses[0] != losses[1]
    assert losses[0] == asymptotic_loss(maps.identity(), drawn, temperature=TAU).loss
    with pytest.raises(checks.RunFailed, match=r"draws left an error of .* above tolerance 1e-06"):
        asymptotic_loss(maps.identity(), drawn, temperature=TAU, tolerance=1e-6)


def test_bad_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="length 1"):
        value(lambda z: 2 * z, fixed())
    with pytest.raises(ValueError, match="h must map"):
        value(lambda z: z[:5], fixed())
    with pytest.raises(ValueError, match="temperature"):
        asymptotic_loss(maps.identity(), fixed(), temperature=0)
    with pytest.raises(TypeError, match="sample_support"):
        value(maps.identity(), pairs.Jittered(held=fixed(), sigma=0.3), rho=0.5)


@pytest.mark.parametrize("certificate", certificates.ALL, ids=lambda c: c.__name__)
def test_certificates_hold(certificate: object) -> None:
    found = certificate()  # type: ignore[operator]
    assert found.verdict, found
    assert found.sentence.endswith(".")
    json.dumps(found.to_json(), allow_nan=False)


def test_certificates_of_the_published_numbers() -> None:
    by_name = {c.name: c.numbers for c in certificates.run_all()}
    assert by_name["the corrected loss"]["identity, subsphere"] == pytest.approx(-0.7778, abs=5e-5)
    assert by_name["diversity and κ = 1/τ"]["κ below which constants win"] == pytest.approx(1.466, abs=5e-4)
    assert by_name["the squeeze pays at once"]["λ*, subsphere"] == pytest.approx(0.7296, abs=5e-5)


def test_maps_keep_unit_length() -> None:
    z = sphere.uniform(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for h in (
        maps.identity(), maps.constant(), maps.squeezed(0.4), maps.great_subspheres(), maps.folded(), maps.twisted(),
        maps.tilted(), maps.rescaled(2.0, TAU), maps.spread_by_spiral(5), maps.spread_from_disc(),
    ):  # fmt: skip
        assert torch.allclose(h(z).norm(dim=1), torch.ones(200, dtype=torch.float64), atol=1e-12)


def test_the_rescaled_map_attains_the_corrected_bound_for_a_lower_concentration() -> None:
    law = pairs.FixedLatents(dim=3, kappa=2.0, n_fixed=1, convention="ambient")
    p = theory.predict(law, temperature=TAU, rho=1)
    assert value(maps.rescaled(2.0, TAU), law, 1.0).loss == pytest.approx(p.lower_bound, abs=1e-8)
