"""Encoders: unit rows, explicit randomness, gradients; inverse encoders can undo their process."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from viewspan import encoders, processes, sphere
from viewspan.encoders import MLP, InverseLinear, InversePatches, InverseSpiral


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ENCODERS = {
    "MLP": lambda g: MLP(3, 4, generator=g),
    "MLP, norm before": lambda g: MLP(7, 3, norm_order="before", hidden=(16, 8), generator=g),
    "MLP without hidden layers": lambda g: MLP(3, 2, hidden=(), generator=g),
    "linear": lambda g: InverseLinear(7, 3, generator=g),
    "spiral": lambda g: InverseSpiral(generator=g),
    "patches, text": lambda g: InversePatches(generator=g),
    "patches, code": lambda g: InversePatches(7, variant="code", generator=g),
}
every_encoder = pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS.keys())


def data(f, n: int = 64, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, f.in_dim, generator=seeded(1), dtype=dtype)


@every_encoder
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_come_out_on_the_sphere_in_their_precision(make, dtype):
    f = make(seeded()).to(dtype)
    for mode in (True, False):
        h = f.train(mode)(data(f, dtype=dtype))
        assert h.shape == (64, f.out_dim)
        assert h.dtype == dtype
        torch.testing.assert_close(h.norm(dim=1), torch.ones(64, dtype=dtype), atol=1e-6, rtol=0)


@every_encoder
def test_under_autocast_rows_are_still_single_precision_and_unit(make):
    f = make(seeded())
    with torch.autocast("cpu", torch.bfloat16):
        h = f(data(f))
    assert h.dtype == torch.float32
    torch.testing.assert_close(h.norm(dim=1), torch.ones(64), atol=1e-6, rtol=0)


@every_encoder
def test_equal_seeds_give_equal_bits_and_no_global_number_is_drawn(make):
    before = torch.get_rng_state()
    a, b, other = make(seeded(5)), make(seeded(5)), make(seeded(6))
    assert torch.equal(before, torch.get_rng_state())
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.equal(p, q)
    assert any(not torch.equal(p, q) for p, q in zip(a.parameters(), other.parameters()))
    x = data(a)
    assert torch.equal(a(x), b(x))
    assert torch.equal(before, torch.get_rng_state())


@every_encoder
def test_every_weight_gets_a_gradient(make):
    f = make(seeded())
    h = f(data(f))
    target = sphere.uniform(64, f.out_dim, generator=seeded(2))
    (h * target).sum().backward()
    for name, p in f.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
        if not (isinstance(f, MLP) and name.endswith("bias")):
            assert float(p.grad.abs().max()) > 0, name


@every_encoder
def test_in_eval_mode_rows_are_mapped_one_by_one(make):
    f = make(seeded()).eval()
    x = data(f, 8)
    torch.testing.assert_close(f(x)[2:3], f(x[2:3]), atol=1e-6, rtol=0)
    torch.testing.assert_close(f(x.T.contiguous().T), f(x), atol=1e-6, rtol=0)
    assert f(x[:0]).shape == (0, f.out_dim)


@every_encoder
def test_state_can_be_saved_and_loaded(make, tmp_path):
    f = make(seeded())
    torch.save(f.state_dict(), tmp_path / "f.pt")
    other = make(seeded(9))
    other.load_state_dict(torch.load(tmp_path / "f.pt", weights_only=True))
    x = data(f)
    assert torch.equal(f.eval()(x), other.eval()(x))


def test_initial_weights_follow_torchs_law():
    layer = encoders.linear(400, 300, seeded())
    reference = nn.Linear(400, 300)
    for ours, theirs in zip(layer.state_dict().values(), reference.state_dict().values()):
        assert ours.shape == theirs.shape
        assert float(ours.abs().max()) <= 1 / math.sqrt(400)
        assert float(ours.std()) == pytest.approx(1 / math.sqrt(3 * 400), rel=0.1)


def test_the_two_orders_of_batchnorm():
    kinds = [type(m) for m in MLP(3, 3, generator=seeded()).layers]
    assert kinds == [nn.Linear, nn.ReLU, nn.BatchNorm1d] * 5 + [nn.Linear]
    kinds = [type(m) for m in MLP(3, 3, norm_order="before", generator=seeded()).layers]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 5 + [nn.Linear]
    widths = [m.out_features for m in MLP(3, 3, generator=seeded()).layers if isinstance(m, nn.Linear)]
    assert widths == [128, 256, 256, 256, 128, 3]


def test_the_linear_encoder_can_undo_the_linear_process():
    g = processes.Linear(3, 7, generator=seeded())
    f = InverseLinear(7, 3, generator=seeded())
    with torch.no_grad():
        f.linear.weight.copy_(torch.linalg.pinv(g.weight))
        f.linear.bias.zero_()
    z = sphere.uniform(50, 3, generator=seeded(1))
    torch.testing.assert_close(f(g(z)), z, atol=1e-5, rtol=0)


def test_the_spiral_encoder_undoes_the_spiral_given_the_control():
    g, f = processes.Spiral(2), InverseSpiral(2, generator=seeded())
    f.control = nn.Sequential(nn.Linear(3, 1))
    with torch.no_grad():
        f.control[0].weight.copy_(torch.tensor([[0.0, 0, 1]]))
        f.control[0].bias.zero_()
    z = sphere.uniform(50, 3, generator=seeded(1))
    torch.testing.assert_close(f(g(z)), z, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["text", "code"])
def test_the_patches_encoder_with_one_bucket_undoes_the_first_two_coordinates(variant):
    g, f = processes.Patches(1, variant=variant), InversePatches(1, variant=variant, generator=seeded())
    z = sphere.uniform(50, 3, generator=seeded(1))
    weight = torch.ones(50, 1)
    back = f._turn_back(processes.pitch(f._turn_back(g(z), weight), -1), weight)
    torch.testing.assert_close(back, z, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("make", "error", "rule"),
    [
        (lambda: MLP(0, 3, generator=seeded()), ValueError, "in_dim must be at least 1"),
        (lambda: MLP(3, 1, generator=seeded()), ValueError, "out_dim must be at least 2"),
        (
            lambda: MLP(3, 3, hidden=(8, 0), generator=seeded()),
            ValueError,
            "hidden must be at least 1, got 0",
        ),
        (lambda: MLP(3, 3, hidden=(8.0,), generator=seeded()), TypeError, "hidden must be an integer"),
        (lambda: MLP(3, 3, norm_order="none", generator=seeded()), ValueError, "norm_order must be one of"),
        (lambda: InverseLinear(3, 1, generator=seeded()), ValueError, "out_dim must be at least 2"),
        (lambda: InverseSpiral(math.inf, generator=seeded()), ValueError, "turns must be finite"),
        (lambda: InversePatches(0, generator=seeded()), ValueError, "k must be at least 1"),
        (lambda: InversePatches(4, variant="x", generator=seeded()), ValueError, "variant must be one of"),
    ],
)
def test_bad_encoders_are_refused(make, error, rule):
    with pytest.raises(error, match=rule):
        make()
