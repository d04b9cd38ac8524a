"""Pair laws: one list of laws, one list of what must hold for each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from viewspan import pairs, sphere
from viewspan.pairs import Diversity, FixedLatents, FullSupport, Jittered, Mixture, Tagged

KAPPA = 1 / 0.3


def fixed(dim: int, m: int, convention: str = "ambient", kappa: float = KAPPA) -> FixedLatents:
    return FixedLatents(dim=dim, kappa=kappa, n_fixed=m, convention=convention)


class Antipodal(pairs.PairLaw):
    """The own law of the module's documentation."""

    dim = 3
    diversity = Diversity(False, 0, 2, "z⁺ is ±z: two points")

    def __repr__(self) -> str:
        return "Antipodal()"

    def sample(self, z, generator):
        flip = torch.rand(z.shape[:-1], generator=generator, device=z.device) < 0.5
        return torch.where(flip[..., None], -z, z)


FIXED = [
    fixed(dim, m, convention, kappa)
    for dim, m in ((2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (3, 3), (10, 3), (10, 9))
    for convention in ("ambient", "subsphere")
    for kappa in (KAPPA,)
] + [fixed(3, 1, c, k) for c in ("ambient", "subsphere") for k in (0.0, 1e8)]
FULL = [FullSupport(dim=2, kappa=KAPPA), FullSupport(dim=3, kappa=0.0), FullSupport(dim=10, kappa=KAPPA)]
MIXED = [
    Mixture(held=fixed(3, 1), moved=FullSupport(dim=3, kappa=KAPPA), share=e) for e in (0.0, 0.25, 1.0)
] + [Tagged(held=fixed(3, 1, "subsphere"), moved=FullSupport(dim=3, kappa=KAPPA), share=0.25)]
JITTERED = [
    Jittered(held=fixed(d, m), sigma=s) for d, m, s in ((3, 1, 0.4), (3, 2, 0.4), (5, 2, 1.0), (3, 1, 0.0))
]
LAWS = [*FULL, *FIXED, *MIXED, *JITTERED, Antipodal()]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: repr(law)[:70])
fixed_laws = pytest.mark.parametrize("law", FIXED, ids=lambda law: repr(law)[:70])


def mean_cosine(law) -> float:
    """E⟨z, z⁺⟩ in closed form, by quadrature over s = ‖u‖² ~ Beta(m/2, ℓ/2)."""
    if isinstance(law, Antipodal):
        return 0.0
    if isinstance(law, Mixture):
        return law.share * mean_cosine(law.moved) + (1 - law.share) * mean_cosine(law.held)
    if isinstance(law, FullSupport):
        return float(sphere.mean_cosine(law.dim, law.kappa))
    held = law.held if isinstance(law, Jittered) else law
    m, free = held.n_fixed, held.dim - held.n_fixed
    if free == 0:
        return 1.0
    if m == 0:
        return float(sphere.mean_cosine(free, held.kappa))

    def along(s: float) -> float:
        return (1 - s) * float(
            sphere.mean_cosine(free, held.kappa * ((1 - s) if held.convention == "ambient" else 1))
        )

    # u in the angle t, s = sin²t, so that the ends are smooth
    norm = 2 / math.exp(math.lgamma(m / 2) + math.lgamma(free / 2) - math.lgamma((m + free) / 2))

    def mean(f) -> float:
        return integrate.quad(
            lambda t: norm * math.sin(t) ** (m - 1) * math.cos(t) ** (free - 1) * f(math.sin(t) ** 2), 0, math.pi / 2
        )[0]  # fmt: skip

    if not isinstance(law, Jittered):
        return mean(lambda s: s + along(s))
    # the turn leaves cos σ of the first held coordinate and of the free one it is paired with
    q = math.exp(-(law.sigma**2) / 2)
    return mean(lambda s: s * (m - 1 + q) / m) + (1 - (1 - q) / free) * mean(along)


def uniform_on_sphere(x: torch.Tensor) -> None:
    """Every coordinate has the law of a uniform point's, and so has a skew one."""
    n, d = x.shape
    skew = torch.nn.functional.normalize(torch.arange(1.0, d + 1), dim=0)
    for direction in (torch.eye(d)[0], torch.eye(d)[-1], skew):
        cos = (x.float() @ direction).double().numpy()
        assert stats.kstest((cos + 1) / 2, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue > 1e-4
    second = x.T.double() @ x.double() / n
    assert (second - torch.eye(d) / d).abs().max() < 6 / math.sqrt(n) / d


@every_law
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positives_are_unit_uniform_and_at_the_closed_mean_cosine(law, dtype, rng):
    n = 8000
    z = sphere.uniform(n, law.dim, generator=rng, dtype=dtype)
    p = law.sample(z, rng)
    assert p.shape == z.shape
    assert p.dtype == dtype
    torch.testing.assert_close(p.norm(dim=1), torch.ones(n, dtype=dtype), atol=1e-6, rtol=0)
    uniform_on_sphere(p)
    cos = (z * p).sum(1).double()
    assert abs(float(cos.mean()) - mean_cosine(law)) < 4.5 * float(cos.std()) / math.sqrt(n) + 1e-6


@fixed_laws
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_held_coordinates_come_back_bit_for_bit(law, dtype, rng):
    z = sphere.uniform(500, law.dim, generator=rng).to(dtype)
    m = law.n_fixed
    assert torch.equal(law.sample(z, rng)[:, :m], z[:, :m].to(law.sample(z, rng).dtype))
    support = law.sample_support(z, 3, rng)
    assert torch.equal(support[..., :m], z[:, None, :m].expand(500, 3, m).to(support.dtype))


@fixed_laws
def test_support_is_the_uniform_law_of_the_fibre(law, rng):
    z = sphere.uniform(3, law.dim, generator=rng, dtype=torch.float64)
    x = law.sample_support(z, 4000, rng)
    assert x.shape == (3, 4000, law.dim)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(3, 4000, dtype=torch.float64), atol=1e-6, rtol=0)
    free = law.dim - law.n_fixed
    if free > 1:
        for own in x:
            uniform_on_sphere(torch.nn.functional.normalize(own[:, law.n_fixed :], dim=1))
    elif free == 1:
        signs = (x[..., -1] > 0).double().mean(1)
        assert (signs - 0.5).abs().max() < 4.5 / math.sqrt(4 * 4000)


@pytest.mark.parametrize("m", [1, 2])
def test_the_conventions_differ_by_the_radius_in_the_concentration(m, rng):
    dim, n = 4, 40_000
    z = torch.zeros(n, dim, dtype=torch.float64)
    z[:, 0], z[:, -1] = 0.8, 0.6
    for convention, kappa in (("subsphere", 5.0), ("ambient", 5.0 * 0.36)):
        w = fixed(dim, m, convention, 5.0).sample(z, rng)[:, -1] / 0.6
        expected = float(sphere.mean_cosine(dim - m, kappa))
        assert abs(float(w.mean()) - expected) < 4.5 * float(w.std()) / math.sqrt(n)


def test_at_the_pole_the_positive_is_the_anchor(rng):
    z = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])
    for convention in ("ambient", "subsphere"):
        assert torch.equal(fixed(3, 1, convention).sample(z, rng), z)


# --- batches


@every_law
def test_batches_of_independent_anchors(law, rng):
    batch = law.batch(4000, generator=rng)
    assert len(batch) <= 4000
    assert batch.anchor.shape == batch.positive.shape == (len(batch), law.dim)
    assert batch.group is None
    uniform_on_sphere(batch.anchor)
    uniform_on_sphere(batch.positive)
    cos = (batch.anchor * batch.positive).sum(1).double()
    assert abs(float(cos.mean()) - mean_cosine(law)) < 5 * float(cos.std()) / math.sqrt(len(batch)) + 1e-6


grouped = pytest.mark.parametrize("law", [*FULL, *FIXED], ids=lambda law: repr(law)[:70])


@grouped
def test_a_group_shares_its_fibre_and_nothing_else(law, rng):
    size, groups = 4, 3000
    batch = law.batch(groups * size, group_size=size, generator=rng)
    assert batch.moved is None
    assert torch.equal(batch.group, torch.arange(groups).repeat_interleave(size))
    uniform_on_sphere(batch.anchor[::size])
    uniform_on_sphere(batch.positive[1::size])
    m = law.n_fixed if isinstance(law, FixedLatents) else 0
    u = batch.anchor.reshape(groups, size, -1)[..., :m]
    assert torch.equal(u, u[:, :1].expand_as(u))
    assert torch.equal(batch.positive[:, :m], batch.anchor[:, :m])
    if m == law.dim:
        return
    free = law.dim - m
    a, p = (
        torch.nn.functional.normalize(x[:, m:].double(), dim=1).reshape(groups, size, free)
        for x in (batch.anchor, batch.positive)
    )
    error = 4.5 / math.sqrt(groups * free)
    # members are independent and uniform on the fibre: zero mean cosine between them
    assert abs(float((a[:, 0] * a[:, 1]).sum(-1).mean())) < error
    assert abs(float((p[:, 0] * p[:, 1]).sum(-1).mean())) < error
    # another member's positive is independent of the anchor and of the anchor's own positive
    assert abs(float((a[:, 0] * p[:, 1]).sum(-1).mean())) < error
    own = (a[:, 0] * p[:, 0]).sum(-1)
    other = (a[:, 0] * p[:, 1]).sum(-1)
    if float(own.std()) > 1e-3:
        assert abs(float(np.corrcoef(own, other)[0, 1])) < 4.5 / math.sqrt(groups)


def test_tagged_batches_say_which_pairs_moved(rng):
    law = Tagged(held=fixed(3, 1), moved=FullSupport(dim=3, kappa=KAPPA), share=0.1)
    plain = law.batch(1000, generator=rng)
    assert plain.group is None
    assert int(plain.moved.sum()) == 100
    batch = law.batch(1000, group_size=25, generator=rng)
    assert len(batch) == 1000
    assert int(batch.moved.sum()) == 100
    assert torch.equal(batch.group == -1, batch.moved)
    assert torch.equal(torch.bincount(batch.group[~batch.moved]), torch.full((36,), 25))
    for b in (plain, batch):
        still = b.anchor[:, 0] == b.positive[:, 0]
        assert torch.equal(still, ~b.moved)
    short = law.batch(1010, group_size=25, generator=rng)  # 101 moved, 909 = 36·25 + 9 held
    assert len(short) == 36 * 25 + 101
    few = Tagged(held=fixed(3, 1), moved=FullSupport(dim=3, kappa=KAPPA), share=1e-6)
    assert int(few.batch(100, generator=rng).moved.sum()) == 2
    for share, expected in ((0.0, 0), (1.0, 100)):
        law = Tagged(held=fixed(3, 1), moved=FullSupport(dim=3, kappa=KAPPA), share=share)
        assert int(law.batch(100, group_size=10, generator=rng).moved.sum()) == expected


def test_mixtures_move_the_share_they_say(rng):
    law = Mixture(held=fixed(3, 1), moved=FullSupport(dim=3, kappa=KAPPA), share=0.25)
    batch = law.batch(20_000, generator=rng)
    moved = (batch.anchor[:, 0] != batch.positive[:, 0]).float().mean()
    assert float(moved) == pytest.approx(0.25, abs=4.5 * math.sqrt(0.25 * 0.75 / 20_000))


def test_jitter_turns_the_first_held_coordinate_only(rng):
    law = Jittered(held=fixed(5, 2), sigma=0.7)
    batch = law.batch(2000, generator=rng)
    assert torch.equal(batch.anchor[:, 1], batch.positive[:, 1])
    assert float((batch.anchor[:, 0] - batch.positive[:, 0]).abs().median()) > 0.05
    still = Jittered(held=fixed(5, 2), sigma=0.0).batch(100, generator=rng)
    torch.testing.assert_close(still.anchor[:, :2], still.positive[:, :2], atol=1e-6, rtol=0)


# --- densities


@pytest.mark.parametrize("convention", ["ambient", "subsphere"])
@pytest.mark.parametrize(("dim", "m"), [(3, 0), (3, 1), (3, 2), (5, 2)])
def test_log_prob_is_a_density_on_the_fibre(dim, m, convention, rng):
    law = fixed(dim, m, convention)
    z = sphere.uniform(1, dim, generator=rng, dtype=torch.float64)
    x = law.sample_support(z, 40_000, rng)[0]
    density = law.log_prob(x, z).exp()
    assert float(density.mean()) == pytest.approx(1, abs=4.5 * float(density.std()) / 200)
    # importance weights turn the uniform fibre into the law
    p = law.sample(z.expand(40_000, dim), rng)
    direct, weighted = p[:, -1], density * x[:, -1]
    error = 4.5 * math.hypot(float(direct.std()), float(weighted.std())) / 200
    assert abs(float(direct.mean()) - float(weighted.mean())) < error


def test_ambient_log_prob_is_the_restricted_full_density(rng):
    law, z = fixed(4, 2), sphere.uniform(1, 4, generator=rng, dtype=torch.float64)
    x = law.sample_support(z, 50, rng)[0]
    gap = law.log_prob(x, z) - FullSupport(dim=4, kappa=KAPPA).log_prob(x, z)
    assert float(gap.std()) < 1e-10


def test_off_the_fibre_there_is_no_density(rng):
    z = sphere.uniform(20, 3, generator=rng)
    for m in (1, 3):
        law = fixed(3, m)
        assert torch.equal(law.log_prob(z.flip(0), z), torch.full((20,), -math.inf))
        assert torch.isfinite(law.log_prob(law.sample(z, rng), z)).all()


def test_full_support_equals_no_held_coordinate(rng):
    z, x = sphere.uniform(20, 3, generator=rng), sphere.uniform(20, 3, generator=rng)
    full = FullSupport(dim=3, kappa=KAPPA)
    for convention in ("ambient", "subsphere"):
        torch.testing.assert_close(
            fixed(3, 0, convention).log_prob(x, z), full.log_prob(x, z), atol=1e-5, rtol=0
        )


# --- what the laws say of themselves


@every_law
def test_diversity_agrees_with_the_rank_of_the_positives_of_one_anchor(law, rng):
    said = law.diversity
    assert said.reason
    assert said.latent_dim == law.dim - 1
    assert said.support_dim <= said.latent_dim
    assert said.holds == (said.support_dim == said.latent_dim)
    if isinstance(law, Antipodal) or getattr(law, "kappa", 1) > 1e6:
        return
    z = sphere.uniform(1, law.dim, generator=rng, dtype=torch.float64)
    p = law.sample(z.expand(4000, law.dim), rng)
    affine = int(torch.linalg.matrix_rank(p - p.mean(0), atol=1e-6))
    # a sphere of dimension k spans k + 1 affine dimensions, a point none
    spans = 0 if said.support_dim == 0 and float(p.std(0).max()) < 1e-9 else said.support_dim + 1
    assert affine == spans


@every_law
def test_equal_seeds_give_equal_bits_and_the_global_state_is_left_alone(law):
    before = torch.get_rng_state()
    a, b = (law.batch(60, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a.anchor, b.anchor)
    assert torch.equal(a.positive, b.positive)
    assert torch.equal(before, torch.get_rng_state())


@every_law
def test_leading_shapes_are_free(law, rng):
    for shape in [(law.dim,), (0, law.dim), (2, 3, law.dim)]:
        z = sphere.uniform(math.prod(shape[:-1]), law.dim, generator=rng).reshape(shape)
        assert law.sample(z, rng).shape == shape
        if hasattr(law, "sample_support"):
            assert law.sample_support(z, 4, rng).shape == (*shape[:-1], 4, law.dim)
            assert law.sample_support(z, 0, rng).shape == (*shape[:-1], 0, law.dim)


@every_law
def test_every_law_is_a_pair_law(law):
    assert isinstance(law, pairs.PairLaw)


# --- bad input


@pytest.mark.parametrize(
    "law", [x for x in LAWS if not isinstance(x, Antipodal)], ids=lambda law: repr(law)[:70]
)
def test_bad_anchors_are_refused(law, rng):
    z = sphere.uniform(4, law.dim, generator=rng)
    for bad, rule in (
        (2 * z, "z row 0 must have length 1, got length 2"),
        (torch.full((2, law.dim), math.nan), "z row 0 must have length 1, got length nan"),
        (sphere.uniform(4, law.dim + 1, generator=rng), f"z must have last dimension {law.dim}"),
    ):
        with pytest.raises(ValueError, match=rule):
            law.sample(bad, rng)
    for bad in (z.numpy(), z.tolist(), torch.eye(law.dim).long()):
        with pytest.raises(TypeError, match=r"z must be"):
            law.sample(bad, rng)


@pytest.mark.parametrize("law", [*FULL, FIXED[4], *MIXED, JITTERED[0]], ids=lambda law: repr(law)[:70])
def test_bad_batches_are_refused(law, rng):
    for n, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError), ("2", TypeError)):
        with pytest.raises(error, match=r"n must be"):
            law.batch(n, generator=rng)
    for size, error in ((1, ValueError), (0, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match=r"group_size"):
            law.batch(12, group_size=size, generator=rng)
    with pytest.raises(TypeError, match=r"generator must be"):
        law.batch(12, generator=None)


def test_groups_must_fit(rng):
    with pytest.raises(ValueError, match=r"group_size must divide the batch size 10, got 4"):
        fixed(3, 1).batch(10, group_size=4, generator=rng)
    with pytest.raises(ValueError, match=r"group_size must be at most the 10 held pairs"):
        Tagged(held=fixed(3, 1), moved=FullSupport(dim=3, kappa=1), share=0).batch(
            10, group_size=11, generator=rng
        )
    for law in (Antipodal(), MIXED[0], JITTERED[0]):
        with pytest.raises(TypeError, match=r"group_size needs a law with sample_support"):
            law.batch(10, group_size=5, generator=rng)


@pytest.mark.parametrize(
    ("make", "error", "rule"),
    [
        (lambda: FullSupport(dim=1, kappa=1), ValueError, "dim must be at least 2, got 1"),
        (lambda: FullSupport(dim=3.0, kappa=1), TypeError, "dim must be an integer"),
        (lambda: FullSupport(dim=3, kappa=-1), ValueError, "kappa must be finite and in"),
        (lambda: FullSupport(dim=3, kappa=math.nan), ValueError, "kappa must be finite"),
        (lambda: FullSupport(dim=3, kappa=math.inf), ValueError, "kappa must be finite"),
        (lambda: FullSupport(dim=3, kappa="1"), TypeError, "kappa must be a number"),
        (lambda: fixed(3, 4), ValueError, "n_fixed must be in 0..3, got 4"),
        (lambda: fixed(3, -1), ValueError, "n_fixed must be in 0..3"),
        (lambda: fixed(3, True), TypeError, "n_fixed must be an integer"),
        (lambda: fixed(3, 1, "Ambient"), ValueError, "convention must be one of ambient, subsphere, got 'Ambient'"),
        (lambda: fixed(3, 1, kappa=-2), ValueError, "kappa must be finite"),
        (lambda: Mixture(held=fixed(3, 1), moved=FULL[1], share=1.5), ValueError, "share must be finite and in"),
        (lambda: Mixture(held=fixed(4, 1), moved=FULL[1], share=0.5), ValueError, "must have one dim, got 4 and 3"),
        (lambda: Tagged(held=fixed(3, 1), moved=FULL[1], share=math.nan), ValueError, "share must be finite"),
        (lambda: Jittered(held=fixed(3, 1), sigma=-1), ValueError, "sigma must be finite"),
        (lambda: Jittered(held=fixed(3, 0), sigma=1), ValueError, "held must hold 1..2 coordinates, got n_fixed=0"),
        (lambda: Jittered(held=fixed(3, 3), sigma=1), ValueError, "held must hold 1..2"),
    ],
)  # fmt: skip
def test_bad_laws_are_refused(make, error, rule):
    with pytest.raises(error, match=rule):
        make()


def test_the_convention_must_be_named():
    with pytest.raises(TypeError, match=r"convention"):
        FixedLatents(dim=3, kappa=1, n_fixed=1)


def test_a_law_without_its_members_cannot_be_made():
    class Unsampled(pairs.PairLaw):
        dim = 3
        diversity = Diversity(True, 2, 2, "says so")

    class Unsaid(pairs.PairLaw):
        dim = 3
        sample = Antipodal.sample

    for law in (Unsampled, Unsaid):
        with pytest.raises(TypeError, match=r"abstract"):
            law()


@given(
    dim=st.integers(2, 8),
    share=st.floats(0, 1),
    kappa=st.one_of(st.just(0.0), st.floats(1e-8, 1e8)),
    convention=st.sampled_from(["ambient", "subsphere"]),
    seed=st.integers(0, 2**20),
)
def test_every_fixed_law_stays_on_its_fibre(dim, share, kappa, convention, seed):
    m = round(share * dim)
    rng = torch.Generator().manual_seed(seed)
    law = fixed(dim, m, convention, kappa)
    batch = law.batch(30, group_size=3, generator=rng)
    assert torch.equal(batch.anchor[:, :m], batch.positive[:, :m])
    for x in (batch.anchor, batch.positive):
        torch.testing.assert_close(x.norm(dim=1), torch.ones(30), atol=1e-6, rtol=0)
    assert torch.isfinite(law.log_prob(batch.positive, batch.anchor)).all()
