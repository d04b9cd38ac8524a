"""Diagnoses of exact maps of each kind, with noise, rotations and permutations, and of a trained encoder."""

import pytest
import torch

from viewspan import diagnosis, pairs, sphere
from viewspan.theory import maps

KAPPA = 1 / 0.3
N = 3000


def fixed(dim: int, m: int = 1) -> pairs.FixedLatents:
    return pairs.FixedLatents(dim=dim, kappa=KAPPA, n_fixed=m, convention="subsphere")


def spread(dim: int) -> maps.Map:
    """A map of u₁ alone onto a dense curve: cosines of many frequencies."""
    if dim == 3:
        return maps.spread_by_spiral(6)
    frequencies = torch.arange(1, dim + 1, dtype=torch.float32) * 1.7

    def h(z: torch.Tensor) -> torch.Tensor:
        x = torch.cos(5 * frequencies * z[:, :1] + torch.arange(dim))
        return x / x.norm(dim=1, keepdim=True)

    return h


def low_rank(z: torch.Tensor) -> torch.Tensor:
    """Only a circle of the embedding is used, at an angle that mixes held and free coordinates."""
    angle = 2 * z[:, 0] + 3 * z[:, 1]
    out = torch.zeros_like(z)
    out[:, 0], out[:, 1] = angle.cos(), angle.sin()
    return out


def shuffled_hash(z: torch.Tensor) -> torch.Tensor:
    """A map that no name fits: signs of high frequencies."""
    mix = torch.randn(z.shape[1], z.shape[1], generator=torch.Generator().manual_seed(5))
    x = torch.sin(40 * z @ mix) + 0.01
    return x / x.norm(dim=1, keepdim=True)


CASES = [
    ("isometry", lambda d: maps.identity()),
    ("isometry", lambda d: maps.squeezed(1.02)),
    ("squeezed", lambda d: maps.squeezed(0.73)),
    ("squeezed", lambda d: maps.squeezed(1.94 if d == 3 else 3.0)),
    ("squeezed", lambda d: maps.squeezed(0.28)),
    ("great_subspheres", lambda d: maps.great_subspheres()),
    ("folded", lambda d: maps.folded()),
    ("twisted", lambda d: maps.twisted(1.0)),
    ("tilted", lambda d: maps.tilted(1.5 if d == 3 else 5.0)),
    ("spreading", spread),
    ("collapsed", lambda d: maps.constant()),
    ("collapsed", lambda d: low_rank),
    ("unresolved", lambda d: shuffled_hash),
]


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("dim", [3, 10])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_exact_maps_are_named(case: int, dim: int, noise: float) -> None:
    kind, build = CASES[case]
    rng = torch.Generator().manual_seed(case)
    z = sphere.uniform(N, dim, generator=rng)
    h = build(dim)(z)
    h = h @ torch.linalg.qr(torch.randn(dim, dim, generator=rng))[0]
    if kind != "collapsed":  # noise fills any rank
        h = h + noise * torch.randn(h.shape, generator=rng)
        h = h / h.norm(dim=1, keepdim=True)
    order = torch.randperm(N, generator=rng)
    found = diagnosis.diagnose(z[order], h[order], fixed(dim))
    assert found.kind == kind, found
    assert found.sentence.endswith(".")
    assert all(isinstance(value, float) for value in found.evidence.values())


@pytest.mark.parametrize("lam", [0.3, 0.73, 1.4, 2.75])
@pytest.mark.parametrize("dim", [3, 10])
def test_lambda_is_fitted(lam: float, dim: int) -> None:
    rng = torch.Generator().manual_seed(0)
    z = sphere.uniform(N, dim, generator=rng)
    h = maps.squeezed(lam)(z) + 0.02 * torch.randn(N, dim, generator=rng)
    found = diagnosis.diagnose(z, h / h.norm(dim=1, keepdim=True), fixed(dim))
    assert found.kind == "squeezed"
    assert found.evidence["lam"] == pytest.approx(lam, rel=0.01)


def test_more_than_one_held_coordinate() -> None:
    z = sphere.uniform(N, 10, generator=torch.Generator().manual_seed(0))
    law = fixed(10, 3)
    for kind, h in {
        "isometry": maps.identity(),
        "squeezed": maps.squeezed(0.4, 3),
        "great_subspheres": maps.great_subspheres(3),
        "folded": maps.folded(),
    }.items():
        assert diagnosis.diagnose(z, h(z), law).kind == kind
    disc = sphere.uniform(N, 3, generator=torch.Generator().manual_seed(0))
    assert diagnosis.diagnose(disc, maps.spread_from_disc()(disc), fixed(3, 2)).kind == "spreading"


@pytest.mark.parametrize("law", [pairs.FullSupport(dim=3, kappa=KAPPA), fixed(3, 3)])
def test_without_a_split(law: pairs.PairLaw) -> None:
    z = sphere.uniform(N, 3, generator=torch.Generator().manual_seed(0))
    axis = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))[0]
    found = {
        "isometry": z @ axis,
        "folded": maps.folded()(z @ axis),
        "collapsed": maps.constant()(z),
        "unresolved": maps.twisted(3.0)(z),
    }
    for kind, h in found.items():
        assert diagnosis.diagnose(z, h, law).kind == kind


def test_a_fold_that_has_spread_over_the_sphere() -> None:
    """Trained folds fill the sphere: the pole goes to one pole, the crease to the other, and not sharply."""
    z = sphere.uniform(N, 3, generator=torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(2)
    angle = 2 * torch.acos(z[:, :1].abs())
    h = torch.cat([angle.cos(), angle.sin() * z[:, 1:] / z[:, 1:].norm(dim=1, keepdim=True)], 1)
    h = h + 0.3 * torch.randn(N, 3, generator=rng)
    found = diagnosis.diagnose(z, h / h.norm(dim=1, keepdim=True), fixed(3))
    assert found.kind == "folded"
    assert found.evidence["fold_r2_even"] < 0.9
    assert "without its sign" in found.sentence


def test_laws_that_wrap_held_pairs_and_wider_embeddings() -> None:
    z = sphere.uniform(N, 3, generator=torch.Generator().manual_seed(0))
    held, moved = fixed(3), pairs.FullSupport(dim=3, kappa=KAPPA)
    wide = torch.cat([maps.squeezed(0.6)(z), torch.zeros(N, 2)], 1)
    for law in (
        pairs.Mixture(held=held, moved=moved, share=0.1),
        pairs.Tagged(held=held, moved=moved, share=0.1),
        pairs.Jittered(held=held, sigma=0.1),
    ):
        found = diagnosis.diagnose(z, wide, law)
        assert (found.kind, found.evidence["lam"]) == ("squeezed", pytest.approx(0.6, rel=1e-2))


def test_the_published_numbers_of_each_failure() -> None:
    z = sphere.uniform(20_000, 3, generator=torch.Generator().manual_seed(0))
    fold = diagnosis.diagnose(z, maps.folded()(z), fixed(3)).evidence
    assert fold["r2"] == pytest.approx(2 / 3, abs=0.01)
    assert fold["ape"] / 2 == pytest.approx(0.125, abs=0.002)
    twist = diagnosis.diagnose(z, maps.twisted(1.0)(z), fixed(3)).evidence
    assert twist["r2_free"] == pytest.approx(0.0924, abs=0.01)


def test_half_precision_and_arrays_are_read_as_metrics_read_them() -> None:
    z = sphere.uniform(500, 3, generator=torch.Generator().manual_seed(0))
    h = maps.squeezed(0.6)(z)
    for given in (h.bfloat16(), h.half(), h.numpy(), h.half().numpy(), h.double().requires_grad_()):
        found = diagnosis.diagnose(z, given, fixed(3))
        assert (found.kind, found.evidence["lam"]) == ("squeezed", pytest.approx(0.6, rel=1e-2))


def test_bad_input_is_refused() -> None:
    z = sphere.uniform(500, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="rows"):
        diagnosis.diagnose(z, z[:400], fixed(3))
    with pytest.raises(ValueError, match="200"):
        diagnosis.diagnose(z[:100], z[:100], fixed(3))
    with pytest.raises(ValueError, match="dimension 4"):
        diagnosis.diagnose(z, z, fixed(4))
    with pytest.raises(ValueError, match="length 1"):
        diagnosis.diagnose(z, 2 * z, fixed(3))
    broken = z.clone()
    broken[17, 0] = float("nan")
    with pytest.raises(ValueError, match="row 17"):
        diagnosis.diagnose(z, broken, fixed(3))
