"""Encoders: published sizes, any channels and sizes, own ones, seeds."""

from __future__ import annotations

import functools

import pytest
import torch
import torchvision
from torch import Tensor, nn

from viewspan import vision
from viewspan.vision import backbones


@pytest.mark.parametrize(
    ("backbone", "millions"), [(vision.resnet18, 11.2), (vision.vit, 10.9), (vision.mlp, 15.7)]
)
def test_published_sizes(backbone: backbones.Backbone, millions: float) -> None:
    encoder = backbones.build(backbone, (3, 32, 32), head="none", seed=0).eval()
    assert sum(p.numel() for p in encoder.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    with torch.no_grad():
        out = encoder(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (2, 512)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(2))
    assert (out[0] - out[1]).abs().max() > 1e-4


def test_the_small_encoder_takes_any_image() -> None:
    encoder = backbones.build(vision.convnet, (2, 9, 12), head="none", seed=0).eval()
    with torch.no_grad():
        assert encoder(torch.rand(2, 2, 9, 12)).shape == (2, 256)


@pytest.mark.parametrize("backbone", [vision.resnet18, vision.vit, vision.mlp])
@pytest.mark.parametrize("shape", [(1, 24, 24), (5, 20, 20)])
def test_any_channels_and_size(backbone: backbones.Backbone, shape: tuple[int, int, int]) -> None:
    encoder = backbones.build(backbone, shape, head="none", seed=0).eval()
    with torch.no_grad():
        assert encoder(torch.rand(2, *shape)).shape == (2, 512)


def test_vit_refuses_a_size_that_patches_do_not_tile() -> None:
    with pytest.raises(ValueError, match="multiple of patch=4"):
        vision.vit(3, (30, 30))


def test_the_projection_head_is_for_training_only() -> None:
    encoder = backbones.build(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 6)), (3, 2, 2), head="mlp", seed=0
    )
    x = torch.rand(4, 3, 2, 2)
    assert encoder(x).shape == (4, 128)
    assert encoder.features(x).shape == (4, 6)
    with pytest.raises(ValueError, match="head must be"):
        backbones.Encoder(nn.Flatten(), head="two", shape=(3, 2, 2))


def test_weights_follow_from_the_seed_and_leave_the_callers_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    a, b, c = (backbones.build(lambda: nn.Linear(3, 2), (3, 1, 1), head="none", seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(a.backbone.weight, b.backbone.weight)
    assert not torch.equal(a.backbone.weight, c.backbone.weight)


def test_own_encoders_get_the_arguments_they_have() -> None:
    seen: dict[str, object] = {}

    def own(size: tuple[int, int], width: int = 4) -> nn.Module:
        seen.update(size=size, width=width)
        return nn.Flatten()

    backbones.build(own, (3, 5, 6), head="none", seed=0)
    assert seen == {"size": (5, 6), "width": 4}
    net = nn.Linear(3, 2)
    copied = backbones.build(net, (3, 1, 1), head="none", seed=0)
    assert copied.backbone is not net
    assert torch.equal(copied.backbone.weight, net.weight)
    assert backbones.build(torchvision.models.squeezenet1_1, (3, 32, 32), head="none", seed=0) is not None
    with pytest.raises(TypeError, match="needs depth"):
        backbones.build(lambda depth: nn.Flatten(), (3, 1, 1), head="none", seed=0)
    with pytest.raises(TypeError, match="must give a torch"):
        backbones.build(lambda: 3, (3, 1, 1), head="none", seed=0)


def test_an_encoder_that_loses_rows_is_refused() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(0)

    with pytest.raises(ValueError, match="must map"):
        backbones.build(Sum(), (3, 2, 2), head="none", seed=0)(torch.rand(4, 3, 2, 2))


def test_names_can_be_imported_again_or_are_none() -> None:
    assert backbones.name(vision.resnet18) == "viewspan.vision.backbones:resnet18"
    assert backbones.name(lambda: nn.Flatten()) is None
    assert backbones.name(nn.Flatten()) is None
    small = functools.partial(vision.vit, width=48, heads=3)
    assert backbones.described(small) == "viewspan.vision.backbones:vit(width=48, heads=3)"


@pytest.mark.parametrize("head", ["none", "mlp"])
def test_lazy_layers_get_their_sizes_before_anything_else(head: str) -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(7))

    a, b = (backbones.build(lazy, (3, 2, 2), head=head, seed=0) for _ in range(2))
    assert a.backbone[1].weight.shape == (7, 12)
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(torch.ones(2, 3, 2, 2)), b(torch.ones(2, 3, 2, 2)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 2), (3, 1), (3, 4), (4, 4), (5, 4)])
def test_a_convolution_on_a_small_map_is_the_convolution(size: tuple[int, int], stride: int) -> None:
    rng = torch.Generator().manual_seed(0)
    plain = nn.Conv2d(3, 5, 3, stride, 1, bias=False).double()
    small = backbones.SmallMapConv(3, 5, 3, stride, 1, bias=False).double()
    small.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, *size, generator=rng, dtype=torch.float64)
    out = torch.randn(plain(x).shape, generator=rng, dtype=torch.float64)
    grads = []
    for conv in (plain, small):
        at = x.clone().requires_grad_()
        conv(at).backward(out)
        grads.append((conv(at).detach(), at.grad, conv.weight.grad))
    for theirs, ours in zip(*grads):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_resnet_is_torchvisions() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torchvision.models.resnet18(weights=None)
        theirs.fc = nn.Identity()
        ours = vision.resnet18()
    assert any(isinstance(part, backbones.SmallMapConv) for part in ours.modules())
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours.train()(x), theirs.train()(x), rtol=1e-4, atol=1e-4)
