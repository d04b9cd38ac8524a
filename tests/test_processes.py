"""Processes: inverse, injective, of the dimensions they say; the variants are what they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from viewspan import processes, sphere
from viewspan.processes import Identity, InvertibleMLP, Linear, Monomial, Patches, Spiral


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PROCESSES = {
    "identity": lambda: Identity(5),
    "linear, text": lambda: Linear(3, 7, generator=seeded()),
    "linear, code": lambda: Linear(3, 7, variant="code", generator=seeded()),
    "linear, square": lambda: Linear(4, 4, generator=seeded()),
    "spiral": lambda: Spiral(),
    "spiral of half a turn": lambda: Spiral(0.5),
    "patches, text": lambda: Patches(),
    "patches, code": lambda: Patches(variant="code"),
    "patches of one": lambda: Patches(1),
    "patches of nine": lambda: Patches(9, variant="code"),
    "invertible MLP, text": lambda: InvertibleMLP(3, generator=seeded()),
    "invertible MLP, code": lambda: InvertibleMLP(3, variant="code", generator=seeded()),
    "invertible MLP of one layer": lambda: InvertibleMLP(6, layers=1, generator=seeded()),
    "monomial": lambda: Monomial(4),
}
every_process = pytest.mark.parametrize("make", PROCESSES.values(), ids=PROCESSES.keys())


def latents(g, n: int = 400, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return sphere.uniform(n, g.dim, generator=seeded(1), dtype=dtype)


@every_process
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_inverse_undoes_the_process(make, dtype):
    g = make().to(dtype)
    z = latents(g, dtype=dtype)
    x = g(z)
    assert x.shape == (400, g.out_dim)
    assert x.dtype == dtype
    torch.testing.assert_close(g.inverse(x), z, atol=1e-9 if dtype == torch.float64 else 2e-4, rtol=0)


@every_process
def test_different_latents_give_different_data(make):
    g = make().double()
    z = latents(g)
    assert float(torch.pdist(g(z)).min()) > 1e-6


@every_process
def test_rows_are_mapped_one_by_one(make):
    g = make().double()
    z = latents(g, 30)
    whole = g(z)
    for i in (0, 7, 29):
        torch.testing.assert_close(whole[i : i + 1], g(z[i : i + 1]), atol=1e-12, rtol=0)
    assert g(z[:0]).shape == (0, g.out_dim)
    torch.testing.assert_close(g(z.T.contiguous().T), whole, atol=1e-12, rtol=0)


@every_process
def test_a_process_is_frozen_repeatable_and_leaves_the_global_state_alone(make):
    before = torch.get_rng_state()
    g, again = make(), make()
    z = latents(g, 20, torch.float32)
    assert torch.equal(g(z), again(z))
    assert torch.equal(before, torch.get_rng_state())
    assert not list(g.parameters())
    assert isinstance(g, processes.Process)
    assert isinstance(g, nn.Module)
    loaded = make()
    loaded.load_state_dict(g.state_dict())
    assert torch.equal(loaded(z), g(z))


@every_process
def test_the_latents_are_not_changed(make):
    g = make()
    z = latents(g, 20, torch.float32)
    copy = z.clone()
    g(z)
    assert torch.equal(z, copy)


def test_known_values():
    z = torch.tensor([[0.6, 0.0, 0.8], [0.0, 0.6, -0.8], [0.0, 0.0, 1.0]], dtype=torch.float64)
    t = 2 * math.pi * 0.8
    expected = [
        [0.6 * math.cos(t), 0.6 * math.sin(t), 0.8],
        [0.6 * math.sin(t), 0.6 * math.cos(t), -0.8],
        [0, 0, 1],
    ]
    torch.testing.assert_close(Spiral(2)(z), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    assert torch.equal(Monomial(3, degree=2)(z), torch.cat([z, z * z], dim=1))
    assert torch.equal(Identity(3)(z), z)


def slow_patches(z, k: int, variant: str):
    def turn(x, y, c):
        if variant == "code":
            b = min(k - 1, math.floor(abs(c) * k))
            t = math.pi / (k - b)
        else:
            b = min(k - 1, math.floor((c + 1) * k / 2))
            t = -math.pi / max(1, k - b)
        return math.cos(t) * x - math.sin(t) * y, math.sin(t) * x + math.cos(t) * y, c

    x, y, c = turn(*z)
    return turn(c, y, -x)


@pytest.mark.parametrize("variant", ["text", "code"])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_patches_equal_their_loop_twin(k, variant):
    z = sphere.uniform(300, 3, generator=seeded(2), dtype=torch.float64)
    z[:4] = torch.tensor([[0, 0, 1.0], [0, 0, -1], [1, 0, 0], [0, 1, 0]])
    expected = torch.tensor([slow_patches(row, k, variant) for row in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(Patches(k, variant=variant)(z), expected, atol=1e-12, rtol=0)


def test_spheres_stay_spheres_under_rotations():
    z = sphere.uniform(200, 3, generator=seeded(2), dtype=torch.float64)
    for g in (Spiral(), Patches(), Patches(variant="code")):
        torch.testing.assert_close(g(z).norm(dim=1), torch.ones(200, dtype=torch.float64))


def test_linear_variants():
    text = Linear(3, 7, generator=seeded())
    code = Linear(3, 7, variant="code", generator=seeded())
    assert torch.equal(text.bias, torch.zeros(7))
    assert bool((code.bias != 0).all())
    assert torch.equal(code.weight[:3], torch.diag(code.weight[:3].diagonal()))
    assert bool(((code.weight[:3].diagonal() >= 0) & (code.weight[:3].diagonal() <= 1)).all())
    assert torch.linalg.matrix_rank(text.weight) == 3


@pytest.mark.parametrize("variant", ["text", "code"])
def test_the_matrices_of_the_invertible_mlp_are_as_published(variant):
    g = InvertibleMLP(3, variant=variant, generator=seeded(3))
    w = torch.randn(10_000, 3, 3, generator=seeded(4))
    quarter = torch.linalg.cond(w / w.norm(dim=1, keepdim=True)).quantile(0.25)
    for i in range(3):
        weight = g.get_buffer(f"weight{i}")
        torch.testing.assert_close(weight.norm(dim=0), torch.ones(3))
        assert float(torch.linalg.cond(weight)) < 1.05 * float(quarter)
        assert bool((g.get_buffer(f"bias{i}") != 0).any()) == (variant == "text")
    # slope .2 between the layers, and after the last in the text's variant only
    z = torch.tensor([[0.3, -0.5, 0.2]])
    x = z
    for i in range(3):
        x = x @ g.get_buffer(f"weight{i}").T + g.get_buffer(f"bias{i}")
        if variant == "text" or i < 2:
            x = torch.maximum(x, 0.2 * x)
    torch.testing.assert_close(g(z), x)


@pytest.mark.parametrize(
    ("make", "error", "rule"),
    [
        (lambda: Identity(1), ValueError, "dim must be at least 2"),
        (lambda: Linear(3, 2, generator=seeded()), ValueError, "out_dim must be at least 3, got 2"),
        (
            lambda: Linear(3, 7, variant="paper", generator=seeded()),
            ValueError,
            "variant must be one of code, text",
        ),
        (lambda: Spiral(math.nan), ValueError, "turns must be finite"),
        (lambda: Spiral("2"), TypeError, "turns must be a number"),
        (lambda: Patches(0), ValueError, "k must be at least 1"),
        (lambda: Patches(4, variant=None), ValueError, "variant must be one of"),
        (lambda: InvertibleMLP(3, layers=0, generator=seeded()), ValueError, "layers must be at least 1"),
        (lambda: InvertibleMLP(2.5, generator=seeded()), TypeError, "dim must be an integer"),
        (lambda: Monomial(3, degree=0), ValueError, "degree must be at least 1"),
    ],
)
def test_bad_processes_are_refused(make, error, rule):
    with pytest.raises(error, match=rule):
        make()


def test_an_own_process_is_ten_lines():
    class Doubled:
        dim, out_dim = 3, 6

        def __call__(self, z):
            return torch.cat([z, z**3], dim=-1)

    assert isinstance(Doubled(), processes.Process)


@given(turns=st.floats(-5, 5), k=st.integers(1, 12), seed=st.integers(0, 999))
def test_rotating_processes_are_inverted_for_any_setting(turns, k, seed):
    z = sphere.uniform(20, 3, generator=seeded(seed), dtype=torch.float64)
    for g in (Spiral(turns), Patches(k), Patches(k, variant="code")):
        np.testing.assert_allclose(g.inverse(g(z)).numpy(), z.numpy(), atol=1e-10)
