"""Training: real short runs that show the claims, and what stops a run."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from viewspan import checks, encoders, losses, metrics, pairs, processes, sphere
from viewspan.training import evaluate, fit

TAU = 0.3
HOLDS = pairs.FullSupport(dim=3, kappa=1 / TAU)


def violated(convention: str = "subsphere", dim: int = 3) -> pairs.FixedLatents:
    return pairs.FixedLatents(dim=dim, kappa=1 / TAU, n_fixed=1, convention=convention)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def recovered(f, g, n: int = 4096) -> metrics.Score:
    z = sphere.uniform(n, 3, generator=seeded(99))
    f.eval()
    with torch.no_grad():
        return metrics.score(z, f(g(z)))


def small(seed: int = 0, in_dim: int = 3) -> encoders.MLP:
    return encoders.MLP(in_dim, 3, hidden=(16,), generator=seeded(seed))


# --- the claims


def test_where_diversity_holds_the_latents_are_recovered():
    f, g = encoders.MLP(3, 3, generator=seeded()), processes.Identity(3)
    run = fit(
        f, g, HOLDS, losses.InfoNCE(TAU), steps=150, batch_size=384, schedule="cosine", generator=seeded(1)
    )
    assert recovered(f, g).r2 >= 0.99
    ahead = float(sphere.log_phi(3, 1 / TAU) - sphere.mean_cosine(3, 1 / TAU) / TAU)
    got = evaluate(f, g, HOLDS, temperature=TAU, generator=seeded(2))
    assert got.loss_minus_log_m == pytest.approx(ahead + 2.171 / 2000, abs=4.5 * got.standard_error)
    assert run.history["loss"][-1] < run.history["loss"][0]


def test_where_it_is_violated_the_standard_loss_reaches_its_floor_and_the_latents_are_lost():
    f, g = encoders.MLP(3, 3, generator=seeded()), processes.Identity(3)
    law = violated()
    fit(f, g, law, losses.InfoNCE(TAU), steps=350, schedule="cosine", generator=seeded(1))
    floor = -1 / TAU + float(sphere.log_phi(3, 1 / TAU))
    got = evaluate(f, g, law, temperature=TAU, generator=seeded(2))
    above = got.loss_minus_log_m - floor - 5.504 / 2000
    assert -4.5 * got.standard_error < above < 0.05
    assert recovered(f, g).r2 < 0.6


def test_the_corrected_loss_gives_great_circles_under_the_subsphere_law():
    f, g = encoders.MLP(3, 3, generator=seeded()), processes.Identity(3)
    loss = losses.InfoNCE(TAU, rho=1.0)
    fit(
        f,
        g,
        violated(),
        loss,
        steps=200,
        batch_size=384,
        group_size=32,
        schedule="cosine",
        generator=seeded(1),
    )
    got = recovered(f, g)
    assert 0.55 < got.r2 < 0.73
    assert got.ape / 2 == pytest.approx(0.1566, abs=0.02)


def test_a_linear_encoder_squeezes_as_predicted():
    f, g, law = encoders.InverseLinear(3, 3, generator=seeded()), processes.Identity(3), violated()
    fit(f, g, law, losses.InfoNCE(TAU), steps=500, lr=0.01, schedule="cosine", generator=seeded(1))
    got = recovered(f, g)
    assert got.r2 == pytest.approx(0.9945, abs=0.003)
    assert got.ape / 2 == pytest.approx(0.0470, abs=0.012)
    loss = evaluate(f, g, law, temperature=TAU, n=8192, generator=seeded(2))
    assert loss.loss == pytest.approx(6.0541, abs=4.5 * loss.standard_error + 0.005)


# --- what a run is


def test_two_equal_seeds_give_equal_bits():
    def once():
        f, g = small(), processes.Spiral()
        run = fit(f, g, violated(), losses.InfoNCE(TAU, rho=0.5), steps=12, batch_size=60, group_size=6,
                  generator=seeded(3))  # fmt: skip
        return (
            f.state_dict(),
            run.history,
            evaluate(f, g, violated(), temperature=TAU, n=256, m=50, generator=seeded(4)),
        )

    before = torch.get_rng_state()
    (a, history_a, value_a), (b, history_b, value_b) = once(), once()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert history_a == history_b
    assert value_a == value_b


def test_a_step_encodes_two_rows_for_each_anchor_whatever_the_loss():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.rows = small(), []

        def forward(self, x):
            self.rows.append(len(x))
            return self.inner(x)

    for loss, group_size in (
        (losses.InfoNCE(TAU), None),
        (losses.InfoNCE(TAU, rho=1.0), 10),
        (losses.InfoNCE(TAU, rho=0.3), 10),
        (losses.UniformityInfoNCE(TAU), 10),
    ):
        f = Counting()
        fit(f, processes.Identity(3), violated(), loss, steps=2, batch_size=40, group_size=group_size,
            generator=seeded())  # fmt: skip
        assert f.rows == [80, 80]


def test_history_is_recorded_every_tenth_step_and_at_the_last():
    seen = []
    run = fit(small(), processes.Identity(3), HOLDS, losses.InfoNCE(TAU), steps=25, batch_size=16,
              generator=seeded(), on_step=lambda step, loss: seen.append((step, loss)))  # fmt: skip
    assert run.history["step"] == [1, 11, 21, 25]
    assert [step for step, _ in seen] == [1, 11, 21, 25]
    assert [loss for _, loss in seen] == run.history["loss"]
    parts = [a + u for a, u in zip(run.history["alignment"], run.history["uniformity"])]
    assert parts == pytest.approx(run.history["loss"], abs=1e-5)
    assert run.steps == 25
    assert run.precision == "float32"
    assert run.seconds > 0


@pytest.mark.parametrize(
    ("loss", "group_size", "log_m"),
    [
        (losses.InfoNCE(TAU), None, math.log(39)),
        (losses.InfoNCE(TAU, rho=1.0), 10, math.log(9)),
        (losses.InfoNCE(TAU, rho=0.3), 10, math.log(39)),
        (losses.UniformityInfoNCE(TAU), 10, math.log(9)),
        (losses.NTXent(TAU), None, math.log(78)),
        (losses.TaggedInfoNCE(TAU, weight=0.25), 10, 0.75 * math.log(9) + 0.25 * math.log(39)),
    ],
)  # fmt: skip
def test_history_compares_over_the_number_of_negatives_the_loss_itself_met(loss, group_size, log_m):
    law = violated()
    if isinstance(loss, losses.TaggedInfoNCE):
        law = pairs.Tagged(held=law, moved=HOLDS, share=0.25)
    run = fit(small(), processes.Identity(3), law, loss, steps=11, batch_size=40, group_size=group_size,
              generator=seeded())  # fmt: skip
    gaps = [a - b for a, b in zip(run.history["loss"], run.history["loss_minus_log_m"], strict=True)]
    assert gaps == pytest.approx([log_m] * 2, abs=1e-12)


def test_the_first_step_is_adams():
    """One step moves every weight with a gradient by lr, and cosine decay scales the second step."""

    def moved(schedule, steps):
        f = encoders.InverseLinear(3, 3, generator=seeded())
        fit(f, processes.Identity(3), HOLDS, losses.InfoNCE(TAU), steps=steps, batch_size=64, lr=0.01,
            schedule=schedule, generator=seeded(1))  # fmt: skip
        return (
            f.linear.weight.detach() - encoders.InverseLinear(3, 3, generator=seeded()).linear.weight
        ).abs()

    torch.testing.assert_close(moved("constant", 1), torch.full((3, 3), 0.01), atol=1e-4, rtol=0)
    first = moved("cosine", 1)
    torch.testing.assert_close(first, torch.full((3, 3), 0.01), atol=1e-4, rtol=0)
    # steps of size lr·(1, 1/2) for cosine over two steps, lr·(1, 1) for constant
    assert float(moved("cosine", 2).detach().mean()) < float(moved("constant", 2).detach().mean())


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_precision_is_used_and_reported(precision):
    f = small()
    run = fit(f, processes.Identity(3), HOLDS, losses.InfoNCE(TAU), steps=3, batch_size=32, precision=precision,
              generator=seeded())  # fmt: skip
    other = small()
    fit(other, processes.Identity(3), HOLDS, losses.InfoNCE(TAU), steps=3, batch_size=32, generator=seeded())
    assert run.precision == precision
    same = all(torch.equal(p, q) for p, q in zip(f.parameters(), other.parameters()))
    assert same == (precision == "float32")
    assert all(p.dtype == torch.float32 for p in f.parameters())


def test_own_parts_are_ten_lines():
    class Antipodal(pairs.PairLaw):
        dim = 3
        diversity = pairs.Diversity(False, 0, 2, "z⁺ is ±z: two points")

        def sample(self, z, generator):
            flip = torch.rand(z.shape[:-1], generator=generator, device=z.device) < 0.5
            return torch.where(flip[..., None], -z, z)

    class Doubled:
        dim, out_dim = 3, 6

        def __call__(self, z):
            return torch.cat([z, z**3], dim=-1)

    class Alignment(nn.Module):
        def forward(self, anchor, positive):
            return (1 - (anchor * positive).sum(1)).mean()

    class Fibrewise(nn.Module):
        """Within a group, spread; the contract in full."""

        fields = ("group",)

        def forward(self, anchor, positive, *, group):
            return self.parts(anchor, positive, group=group).total

        def parts(self, anchor, positive, *, group):
            same = group[:, None] == group[None, :]
            alignment, uniformity = -(anchor * positive).sum(1).mean(), ((anchor @ positive.T) * same).mean()
            return losses.LossParts(alignment + uniformity, alignment, uniformity, 3, math.log(3))

    for g in (Doubled(), lambda z: torch.cat([z, z**3], dim=-1)):
        run = fit(
            small(in_dim=6), g, Antipodal(), losses.InfoNCE(TAU), steps=2, batch_size=16, generator=seeded()
        )
        assert run.steps == 2
    run = fit(small(), processes.Identity(3), HOLDS, Alignment(), steps=2, batch_size=16, generator=seeded())
    assert run.history["alignment"] == run.history["loss_minus_log_m"] == []
    assert len(run.history["loss"]) == 2
    assert isinstance(Fibrewise(), losses.Loss)
    assert not isinstance(Alignment(), losses.Loss)
    run = fit(small(), processes.Identity(3), violated(), Fibrewise(), steps=2, batch_size=16, group_size=4,
              generator=seeded())  # fmt: skip
    assert run.history["loss"][0] - run.history["loss_minus_log_m"][0] == pytest.approx(math.log(3))


def test_tagged_pairs_reach_the_tagged_loss():
    law = pairs.Tagged(held=violated("ambient"), moved=HOLDS, share=0.1)
    for weight in (0.1, 1.0):
        run = fit(small(), processes.Identity(3), law, losses.TaggedInfoNCE(TAU, weight=weight), steps=30,
                  batch_size=100, group_size=10, generator=seeded())  # fmt: skip
        assert run.history["loss"][-1] < run.history["loss"][0]
    # the untagged mixture: the same pairs under the standard loss, tags unread
    fit(small(), processes.Identity(3), law, losses.InfoNCE(TAU), steps=2, batch_size=100, generator=seeded())


# --- what stops a run


class Explodes(nn.Module):
    """A loss that is, or whose gradient is, not finite from the third step on."""

    def __init__(self, how: str):
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, anchor, positive):
        self.calls += 1
        value = -(anchor * positive).sum()
        if self.calls < 3:
            return value
        if self.how == "gradient":
            return value + (anchor - anchor.detach()).abs().sum().sqrt()  # slope of a square root at 0
        return value * {"nan": math.nan, "inf": math.inf}[self.how]


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_encoder(how):
    f, again = small(), small()
    with pytest.raises(checks.RunFailed, match=r"at step 3 of 9 \(lr=0\.001\)"):
        fit(f, processes.Identity(3), HOLDS, Explodes(how), steps=9, batch_size=16, generator=seeded())
    fit(again, processes.Identity(3), HOLDS, Explodes(how), steps=2, batch_size=16, generator=seeded())
    for (name, a), b in zip(f.state_dict().items(), again.state_dict().values()):
        assert torch.isfinite(a).all(), name
        assert torch.equal(a, b), name


@pytest.mark.parametrize("lr", [1e6, 1e30])
def test_a_huge_learning_rate_never_leaves_a_broken_encoder(lr):
    f = encoders.MLP(3, 3, hidden=(16, 16, 16, 16, 16), generator=seeded())
    message = "finished"
    try:
        fit(
            f,
            processes.Identity(3),
            HOLDS,
            losses.InfoNCE(TAU),
            steps=40,
            batch_size=32,
            lr=lr,
            generator=seeded(),
        )
    except checks.RunFailed as failure:
        message = str(failure)
    assert (message == "finished") == (lr == 1e6)
    assert message == "finished" or f"(lr={lr:g})" in message
    assert all(torch.isfinite(x).all() for x in f.state_dict().values())


def test_an_encoder_that_starts_broken_fails_at_the_first_step():
    f = small()
    with torch.no_grad():
        next(f.parameters())[0, 0] = math.nan
    with pytest.raises(checks.RunFailed, match=r"the embedding became non-finite at step 1 of 5"):
        fit(f, processes.Identity(3), HOLDS, losses.InfoNCE(TAU), steps=5, batch_size=16, generator=seeded())
    assert all(torch.isfinite(b).all() for b in f.buffers())


class Misnamed(nn.Module):
    fields = ("fibre",)


GOOD = {"steps": 2, "batch_size": 16}


@pytest.mark.parametrize(
    ("change", "error", "rule"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"steps": 2.0}, TypeError, "steps must be an integer"),
        ({"batch_size": 1}, ValueError, "batch_size must be at least 2"),
        ({"lr": 0}, ValueError, "lr must be finite and in"),
        ({"lr": math.nan}, ValueError, "lr must be finite"),
        ({"lr": 1e300}, ValueError, "lr must be finite and in"),
        ({"schedule": "step"}, ValueError, "schedule must be one of constant, cosine, got 'step'"),
        ({"precision": "float16"}, ValueError, "precision must be one of"),
        ({"device": "tpu"}, ValueError, "device must be one of"),
        ({"loss": losses.InfoNCE(TAU, rho=1.0), "group_size": 3}, ValueError, "group_size must divide the batch size 16, got 3"),
        ({"loss": losses.InfoNCE(TAU, rho=1.0), "group_size": 1}, ValueError, "group_size must be at least 2"),
        ({"generator": None}, TypeError, r"generator must be a torch\.Generator"),
        ({"loss": losses.InfoNCE(TAU, rho=1.0)}, ValueError, "group_size must be given: InfoNCE needs the group"),
        ({"loss": losses.UniformityInfoNCE(TAU)}, ValueError, "group_size must be given: UniformityInfoNCE"),
        ({"loss": losses.TaggedInfoNCE(TAU), "group_size": 4}, ValueError, r"law must tag .*Tagged.*TaggedInfoNCE"),
        ({"loss": losses.InfoNCE(TAU), "group_size": 4}, ValueError, "group_size must be left out: InfoNCE .* got 4"),
        ({"loss": losses.NTXent(TAU), "group_size": 4}, ValueError, "group_size must be left out: NTXent"),
        ({"loss": lambda a, p: a.sum(), "group_size": 4}, ValueError, "group_size must be left out: function"),
        ({"loss": Misnamed()}, ValueError, "fields of Misnamed must be one of group, moved, got 'fibre'"),
        ({"g": processes.Identity(4)}, ValueError, "g must take latents of dimension 3, .* got dim=4"),
        ({"g": processes.Monomial(3, degree=2)}, ValueError, "f must take data of dimension 6, .* got in_dim=3"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_before_anything_is_trained(change, error, rule):
    f, before = small(), small()
    given = {"g": processes.Identity(3), "loss": losses.InfoNCE(TAU), "generator": seeded(), **GOOD, **change}
    with pytest.raises(error, match=rule):
        fit(f, given.pop("g"), violated(), given.pop("loss"), **given)
    assert all(torch.equal(p, q) for p, q in zip(f.parameters(), before.parameters()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"device must be available on this machine, got 'cuda'"):
        fit(
            small(),
            processes.Identity(3),
            HOLDS,
            losses.InfoNCE(TAU),
            **GOOD,
            device="cuda",
            generator=seeded(),
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_claims_hold_too():
    rng = torch.Generator("cuda").manual_seed(0)
    f, g = encoders.MLP(3, 3, generator=seeded()), processes.Identity(3)
    with pytest.raises(ValueError, match=r"generator must lie on the device cuda"):
        fit(f, g, HOLDS, losses.InfoNCE(TAU), **GOOD, device="cuda", generator=seeded())
    fit(f, g, HOLDS, losses.InfoNCE(TAU), steps=300, schedule="cosine", device="cuda", generator=rng)
    z = sphere.uniform(4096, 3, generator=rng)
    f.eval()
    assert metrics.score(z, f(g(z))).r2 >= 0.99


# --- evaluation


def slow_evaluation(f, g, law, rho: float, n: int, m: int, rng) -> list[float]:
    """Anchor by anchor, every one with its own m fresh negatives."""
    values = []
    near = round(rho * m)
    for _ in range(n):
        z = sphere.uniform(1, 3, generator=rng)
        own = law.sample_support(z, near, rng)[0] if near else z[:0]
        negatives = torch.cat([own, sphere.uniform(m - near, 3, generator=rng)])
        h = f(g(torch.cat([z, law.sample(z, rng), negatives])))
        s = (h[0] * h[1:]).sum(1) / TAU
        values.append(float(s.logsumexp(0) - s[0]))
    return values


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_evaluation_is_unbiased(rho):
    f, g, law = small(3), processes.Spiral(), violated("ambient")
    f.eval()
    with torch.no_grad():
        slow = torch.tensor(slow_evaluation(f, g, law, rho, 800, 40, seeded(5)))
    fast = evaluate(f, g, law, temperature=TAU, rho=rho, n=8192, m=40, generator=seeded(6))
    error = math.hypot(float(slow.std()) / math.sqrt(800), fast.standard_error)
    assert abs(fast.loss - float(slow.mean())) < 4.5 * error
    assert fast.loss_minus_log_m == pytest.approx(fast.loss - math.log(40))
    assert fast.m == 40
    assert fast.standard_error < 0.1


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("n", [2, 3, 33, 63, 64, 65, 300, 513])
def test_any_number_of_anchors_is_evaluated_and_no_other(n, rho):
    class Counting(nn.Module):
        rows = 0

        def forward(self, x):
            self.rows += len(x)
            return torch.nn.functional.normalize(x * torch.tensor([1.0, 2.0, 3.0]), dim=1)

    f, m = Counting(), 40
    got = evaluate(
        f, processes.Identity(3), violated(), temperature=TAU, rho=rho, n=n, m=m, generator=seeded(1)
    )
    assert 0 < got.standard_error < 1.5
    assert abs(got.loss_minus_log_m) < 5
    on_fibre, per_fibre = round(rho * m), min(32, n // 2)
    chunks = math.ceil(n / (256 if rho == 0 else 256 // per_fibre * per_fibre))
    assert f.rows == 2 * n + chunks * (m - on_fibre) + (math.ceil(n / per_fibre) * on_fibre if rho else 0)


def test_the_standard_error_of_an_evaluation_is_honest():
    f, g, law = small(3), processes.Identity(3), violated()
    for rho in (0.0, 1.0):
        got = [
            evaluate(f, g, law, temperature=TAU, rho=rho, n=512, m=100, generator=seeded(s))
            for s in range(30)
        ]
        spread = float(torch.tensor([x.loss for x in got]).std())
        said = sum(x.standard_error for x in got) / 30
        assert 0.5 < spread / said < 1.7


def test_evaluation_leaves_the_mode_of_the_encoder_and_takes_no_gradient():
    f = small()
    for mode in (True, False):
        f.train(mode)
        state = {k: v.clone() for k, v in f.state_dict().items()}
        evaluate(f, processes.Identity(3), HOLDS, temperature=TAU, n=256, m=10, generator=seeded())
        assert f.training == mode
        assert all(torch.equal(state[k], v) for k, v in f.state_dict().items())
        assert all(p.grad is None for p in f.parameters())


def test_a_constant_encoder_evaluates_to_log_of_all_candidates():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.eye(3)[:1].expand(len(x), 3)

    for rho in (0.0, 0.5, 1.0):
        got = evaluate(Constant(), processes.Identity(3), violated(), temperature=TAU, rho=rho, n=256, m=100,
                       generator=seeded())  # fmt: skip
        assert got.loss == pytest.approx(math.log(101), abs=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "rule"),
    [
        ({"n": 1}, ValueError, "n must be at least 2, got 1"),
        ({"n": 300.0}, TypeError, "n must be an integer"),
        ({"m": 0}, ValueError, "m must be at least 1"),
        ({"temperature": 0}, ValueError, "temperature must be"),
        ({"rho": 2}, ValueError, "rho must be finite and in"),
        (
            {"rho": 1e-4},
            ValueError,
            "m must be large enough for a share rho=0.0001 of the negatives, got 2000",
        ),
        ({"rho": 0.9999, "m": 100}, ValueError, "m must be large enough"),
        (
            {"law": pairs.Mixture(held=violated(), moved=HOLDS, share=0.5), "rho": 0.5},
            TypeError,
            "sample_support",
        ),
        ({"law": violated(dim=4)}, ValueError, "g must take latents of dimension 4"),
        ({"generator": None}, TypeError, "generator must be"),
    ],
)
def test_bad_evaluations_are_refused(change, error, rule):
    given = {"law": violated(), "temperature": TAU, "generator": seeded(), **change}
    with pytest.raises(error, match=rule):
        evaluate(small(), processes.Identity(3), given.pop("law"), **given)
