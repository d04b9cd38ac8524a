"""What laws say of themselves, and that theory and diagnosis ask them alone."""

from __future__ import annotations

import math

import pytest
import torch

from viewspan import diagnosis, pairs, sphere, theory
from viewspan.pairs import DescribedLaw, Description, FixedLatents, FullSupport, Jittered, Mixture, Tagged
from viewspan.theory import maps, mixtures

KAPPA = 1 / 0.3


def fixed(dim: int = 3, m: int = 1, convention: str = "ambient", kappa: float = KAPPA) -> FixedLatents:
    return FixedLatents(dim=dim, kappa=kappa, n_fixed=m, convention=convention)  # type: ignore[arg-type]


FULL = FullSupport(dim=3, kappa=KAPPA)
LAWS = [
    FULL, fixed(), fixed(3, 2, "subsphere"), fixed(5, 2), fixed(3, 0), fixed(3, 3), fixed(kappa=0.0),
    *(Mixture(held=fixed(), moved=FULL, share=e) for e in (0.0, 0.25, 1.0)),
    Mixture(held=fixed(3, 0), moved=FULL, share=0.5), Tagged(held=fixed(), moved=FULL, share=0.25),
    Jittered(held=fixed(5, 2), sigma=0.7), Jittered(held=fixed(), sigma=0.4), Jittered(held=fixed(), sigma=0.0),
]  # fmt: skip
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: repr(law)[:80])


class Redrawn(DescribedLaw):
    """The own law of the documentation: u₁ is held, the rest is drawn anew on its circle."""

    dim = 3

    def describe(self) -> Description:
        return Description(dim=3, n_fixed=1, kappa=0.0, convention="subsphere")

    def sample(self, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        w = sphere.uniform(len(z), 2, generator=generator, dtype=z.dtype)
        return torch.cat([z[:, :1], z[:, 1:].norm(dim=1, keepdim=True) * w], 1)


class Antipodal(pairs.PairLaw):
    """A law that cannot be put in these terms."""

    dim = 3
    diversity = pairs.Diversity(False, 0, 2, "z⁺ is ±z: two points")

    def sample(self, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        flip = torch.rand(z.shape[:-1], generator=generator) < 0.5
        return torch.where(flip[..., None], -z, z)


@every_law
def test_what_a_law_says_is_what_it_draws(law: pairs.PairLaw) -> None:
    """Dimension, held coordinates, share and concentration, each read off draws with nothing else known."""
    rng = torch.Generator().manual_seed(0)
    said, n = pairs.described(law), 20_000
    z = sphere.uniform(n, said.dim, generator=rng, dtype=torch.float64)
    p = law.sample(z, rng)
    assert said.dim == law.dim
    assert len(said.concentration) == said.dim
    assert said.concentration[: said.n_fixed] == (math.inf,) * said.n_fixed
    kept = (
        (p[:, : said.n_fixed] == z[:, : said.n_fixed]).all(1) if said.n_fixed else torch.zeros(n, dtype=bool)
    )
    if said.sigma == 0:
        assert float(kept.double().mean()) == pytest.approx(1 - said.share, abs=4.5 * math.sqrt(0.25 / n))
    else:
        assert not kept.any()
    cos = (z * p).sum(1)
    model = theory.model.Model(
        said.dim, max(said.n_fixed, 1), said.kappa or 0.0, said.convention or "subsphere", said.share,
        said.kappa_moved or 0.0, said.sigma,
    )  # fmt: skip
    error = 4.5 * float(cos.std()) / math.sqrt(n) + 1e-9
    assert abs(float(cos.mean()) - model.orthogonal_alignment()) < error


@every_law
def test_diversity_follows_from_the_description(law: pairs.PairLaw) -> None:
    said = pairs.described(law)
    assert law.diversity == said.diversity
    reaches_all = said.n_fixed == 0 or said.share > 0 or (said.sigma > 0 and said.n_fixed == 1)
    assert law.diversity.holds == reaches_all


def test_an_own_law_that_describes_itself_is_predicted_and_diagnosed_as_its_twin() -> None:
    own, twin = Redrawn(), fixed(kappa=0.0, convention="subsphere")
    assert isinstance(own, pairs.PairLaw)
    assert own.diversity == twin.diversity
    for rho in (0.0, 0.4, 1.0):
        assert theory.predict(own, temperature=0.3, rho=rho) == theory.predict(twin, temperature=0.3, rho=rho)
    a, b = (theory.asymptotic_loss(maps.squeezed(0.6), law, temperature=0.3) for law in (own, twin))
    assert (a, a.method) == (b, "quadrature")
    assert mixtures.break_even_dose(own, temperature=0.3) == mixtures.break_even_dose(twin, temperature=0.3)
    z = sphere.uniform(1000, 3, generator=torch.Generator().manual_seed(0))
    found = diagnosis.diagnose(z, maps.squeezed(0.6)(z), own)
    assert found == diagnosis.diagnose(z, maps.squeezed(0.6)(z), twin)
    assert found.kind == "squeezed"


def test_what_is_not_known_of_a_law_is_not_guessed() -> None:
    z = sphere.uniform(500, 3, generator=torch.Generator().manual_seed(0))
    rule = r"Antipodal has no method describe\(\) -> pairs.Description"
    with pytest.raises(TypeError, match=rule):
        diagnosis.diagnose(z, z, Antipodal())
    with pytest.raises(TypeError, match=rule):
        theory.predict(Antipodal(), temperature=0.3)
    with pytest.raises(TypeError, match=rule):
        theory.fold_cost(Antipodal(), temperature=0.3)
    with pytest.raises(TypeError, match=rule):
        mixtures.break_even_dose(Antipodal(), temperature=0.3)  # type: ignore[arg-type]
    # draws need no description
    found = theory.asymptotic_loss(maps.identity(), Antipodal(), temperature=0.3)
    assert found.method == "quasi_monte_carlo"
    assert abs(found.loss - float(sphere.log_phi(3, 1 / 0.3))) < 3 * found.error  # E⟨z, z⁺⟩ = 0


def test_a_subclass_that_draws_in_its_own_way_does_not_pass_for_its_parent() -> None:
    class Sticky(FullSupport):
        def sample(self, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            return z

    class Told(Sticky):
        def describe(self) -> Description:
            return Description(dim=3, n_fixed=3, kappa=0.0, convention="ambient")

    class Renamed(FullSupport):
        pass

    z = sphere.uniform(500, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        TypeError, match=r"Sticky has a sample of its own, write describe.* that of FullSupport"
    ):
        diagnosis.diagnose(z, z, Sticky(dim=3, kappa=1.0))
    assert theory.asymptotic_loss(maps.identity(), Sticky(dim=3, kappa=1.0), temperature=0.3).alignment == (
        pytest.approx(1)
    )
    assert diagnosis.diagnose(z, z, Told(dim=3, kappa=1.0)).kind == "isometry"
    assert pairs.described(Renamed(dim=3, kappa=1.0)) == pairs.described(FullSupport(dim=3, kappa=1.0))


def test_full_support_of_two_concentrations_is_diverse_and_not_predicted() -> None:
    law = Mixture(held=fixed(3, 0, kappa=9.0), moved=FULL, share=0.5)
    assert law.diversity.holds
    with pytest.raises(ValueError, match="one concentration"):
        theory.predict(law, temperature=0.3)
    for share, kappa in ((0.0, 9.0), (1.0, KAPPA)):
        law = Mixture(held=fixed(3, 0, kappa=9.0), moved=FULL, share=share)
        assert theory.predict(law, temperature=0.3) == theory.predict(
            FullSupport(dim=3, kappa=kappa), temperature=0.3
        )


GOOD = {"dim": 3, "n_fixed": 1, "kappa": 1.0, "convention": "ambient"}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"dim": 1}, "dim must be at least 2"),
        ({"n_fixed": 4}, r"n_fixed must be in 0\.\.3"),
        ({"kappa": None}, "kappa must be given where coordinates are held"),
        ({"kappa": -1.0}, "kappa must be finite"),
        ({"convention": None}, "convention must be one of"),
        ({"share": 1.5}, "share must be finite and in"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"kappa_moved": 2.0}, "kappa_moved must be left out where share is 0, got 2"),
        ({"n_fixed": 0}, "share must be 1, and kappa, convention and sigma left out, where n_fixed is 0"),
        ({"n_fixed": 0, "kappa": None, "convention": None}, "share must be 1"),
    ],
)
def test_descriptions_that_contradict_themselves_are_refused(change: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Description(**{**GOOD, **change})  # type: ignore[arg-type]


def test_a_description_must_be_one() -> None:
    class Wordy(Redrawn):
        def describe(self) -> str:  # type: ignore[override]
            return "the first is held"

        sample = Redrawn.sample

    with pytest.raises(TypeError, match=r"describe\(\) of Wordy must return a pairs.Description, got str"):
        pairs.described(Wordy())
