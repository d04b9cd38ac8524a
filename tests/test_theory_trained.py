"""Trained runs meet their predictions: linear encoders on the identity process, every number from `predict`."""

import math

import pytest
import torch

from viewspan import diagnosis, encoders, losses, pairs, processes, sphere, theory, training

TAU = 0.3
G = processes.Identity(3)
FIBRES, PER_FIBRE = 100, 20  # of a grouped batch: with fewer, the fibre's own terms shift λ*


def law(convention: str) -> pairs.FixedLatents:
    return pairs.FixedLatents(dim=3, kappa=1 / TAU, n_fixed=1, convention=convention)  # type: ignore[arg-type]


def trained(
    convention: str, rho: float, steps: int, lr: float
) -> tuple[encoders.InverseLinear, torch.Generator]:
    rng = torch.Generator().manual_seed(0)
    f = encoders.InverseLinear(3, 3, generator=rng)
    batch, group = (FIBRES * PER_FIBRE, PER_FIBRE) if rho else (1000, None)
    training.fit(
        f, G, law(convention), losses.InfoNCE(TAU, rho=rho), steps=steps, batch_size=batch, group_size=group, lr=lr,
        schedule="cosine", generator=rng,
    )  # fmt: skip
    return f.eval(), rng


def diagnosed(f: torch.nn.Module, convention: str, rng: torch.Generator) -> diagnosis.Diagnosis:
    z = sphere.uniform(4096, 3, generator=rng)
    with torch.no_grad():
        return diagnosis.diagnose(z, f(G(z)), law(convention))


@pytest.mark.parametrize(
    ("convention", "rho", "steps", "lr"),
    [
        ("subsphere", 0.0, 200, 0.02),
        ("subsphere", 0.3, 120, 0.03),
        ("subsphere", 0.7, 120, 0.03),
        ("ambient", 0.0, 150, 0.03),
        ("ambient", 1.0, 100, 0.03),
    ],
)
def test_linear_encoders_find_the_predicted_squeeze(
    convention: str, rho: float, steps: int, lr: float
) -> None:
    f, rng = trained(convention, rho, steps, lr)
    p = theory.predict(law(convention), temperature=TAU, rho=rho)
    found = diagnosed(f, convention, rng)
    e = found.evidence
    assert e["lam"] == pytest.approx(p.squeeze.lam, rel=0.03)
    assert e["r2"] == pytest.approx(p.squeeze.r2, abs=0.005)
    assert e["ape"] / 2 == pytest.approx(p.squeeze.ape / 2, abs=0.008 if rho else 0.005)
    assert found.kind == ("squeezed" if abs(math.log(p.squeeze.lam)) > 0.05 else "isometry")
    exact = theory.asymptotic_loss(lambda z: f(G(z)), law(convention), temperature=TAU, rho=rho)
    assert exact.loss == pytest.approx(p.squeeze.loss, abs=0.005)
    evaluation = training.evaluate(
        f, G, law(convention), temperature=TAU, rho=rho, n=16_384, m=500, generator=rng
    )
    expected = p.loss_minus_log_m("squeeze", m=500)
    assert abs(evaluation.loss_minus_log_m - expected) < max(0.02, 3 * evaluation.standard_error)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7])
def test_fresh_negatives_find_it_more_closely(rho: float) -> None:
    """M = 2000 fresh negatives for each fibre, fibres stratified in u, the weights of the last half averaged.

    The loss is flat in λ (at ρ = 0.7 one per cent of λ is 5e-6 nats), so plain draws would leave two per cent of noise.
    """
    rng, held, m = torch.Generator().manual_seed(1), law("subsphere"), 2000
    fibres, per_fibre, steps = 200, 5, 300
    near = round(rho * m)
    f = encoders.InverseLinear(3, 3, generator=rng)
    average = torch.optim.swa_utils.AveragedModel(f)
    loss = losses.InfoNCE(TAU)
    optimizer = torch.optim.Adam(f.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.003)
    for step in range(steps):
        u = (
            2 * (torch.arange(fibres) + torch.rand(fibres, generator=rng)) / fibres - 1
        )  # uniform, by Archimedes
        free = sphere.uniform(fibres * per_fibre, 2, generator=rng).reshape(fibres, per_fibre, 2)
        anchor = torch.cat(
            [u[:, None, None].expand(-1, per_fibre, 1), (1 - u * u).sqrt()[:, None, None] * free], 2
        )
        anchor = anchor.reshape(-1, 3)
        negatives = sphere.uniform(fibres * (m - near), 3, generator=rng).reshape(fibres, m - near, 3)
        if near:
            own = held.sample_support(anchor[::per_fibre], near, rng)
            negatives = torch.cat([negatives, own], 1)
        encoded = f(G(negatives.reshape(-1, 3))).reshape(fibres, m, 3).repeat_interleave(per_fibre, 0)
        optimizer.zero_grad()
        loss(f(G(anchor)), f(G(held.sample(anchor, rng))), encoded).backward()
        optimizer.step()
        schedule.step()
        if step >= steps // 2:
            average.update_parameters(f)
    p = theory.predict(held, temperature=TAU, rho=rho)
    assert diagnosed(average.eval(), "subsphere", rng).evidence["lam"] == pytest.approx(
        p.squeeze.lam, rel=0.015
    )


def test_a_trained_mlp_meets_its_quadrature_value() -> None:
    rng = torch.Generator().manual_seed(0)
    f = encoders.MLP(3, 3, generator=rng)
    training.fit(f, G, law("subsphere"), losses.InfoNCE(TAU), steps=100, batch_size=512, generator=rng)
    evaluation = training.evaluate(f, G, law("subsphere"), temperature=TAU, generator=rng)
    f.eval()
    found = theory.asymptotic_loss(lambda z: f(G(z)), law("subsphere"), temperature=TAU)
    assert found.loss == pytest.approx(evaluation.loss_minus_log_m, abs=0.02)
    assert found.loss >= theory.floor(3, temperature=TAU) - found.error


@pytest.mark.slow
def test_a_trained_mlp_spreads_under_the_standard_loss() -> None:
    rng = torch.Generator().manual_seed(0)
    f = encoders.MLP(3, 3, generator=rng)
    training.fit(f, G, law("subsphere"), losses.InfoNCE(TAU), steps=500, batch_size=1000, generator=rng)
    found = diagnosed(f.eval(), "subsphere", rng)
    assert found.kind == "spreading", found
