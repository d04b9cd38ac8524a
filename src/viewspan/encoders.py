"""The encoders f that map data back to the sphere: a plain MLP, and encoders shaped like the inverse of a process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from viewspan import checks, processes

NORM_ORDERS = ("after", "before")


class MLP(nn.Module):
    """Hidden layers of linear, ReLU and BatchNorm, then linear, then onto the sphere.

    Args:
        in_dim: data dimension.
        out_dim: embedding dimension d >= 2.
        hidden: widths of the hidden layers.
        norm_order: BatchNorm ``after`` the ReLU, as the published code has it, or ``before`` it, as the text of
            arXiv 2606.04280 has it. With the text's order training can stall at a half-reflected sphere.
        generator: draws the initial weights.

    Shapes: (n, in_dim) to unit vectors (n, out_dim).
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        hidden: Sequence[int] = (128, 256, 256, 256, 128),
        norm_order: Literal["after", "before"] = "after",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        checks.choice("norm_order", norm_order, NORM_ORDERS)
        self.in_dim = checks.integer("in_dim", in_dim, low=1)
        self.out_dim = checks.integer("out_dim", out_dim, low=2)
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise([in_dim, *hidden]):
            checks.integer("hidden", b, low=1)
            tail = [nn.ReLU(), nn.BatchNorm1d(b)]
            layers += [linear(a, b, generator), *(tail if norm_order == "after" else reversed(tail))]
        self.layers = nn.Sequential(*layers, linear([in_dim, *hidden][-1], out_dim, generator))

    def forward(self, x: Tensor) -> Tensor:
        """Unit vectors, shape (n, out_dim)."""
        return _onto_sphere(self.layers(x))


class InverseLinear(nn.Module):
    """A linear map, then onto the sphere: the shape of the inverse of `Identity` and `Linear`.

    Args:
        in_dim: data dimension.
        out_dim: embedding dimension d >= 2.
        generator: draws the initial weights.
    """

    def __init__(self, in_dim: int, out_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.in_dim = checks.integer("in_dim", in_dim, low=1)
        self.out_dim = checks.integer("out_dim", out_dim, low=2)
        self.linear = linear(in_dim, out_dim, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Unit vectors, shape (n, out_dim)."""
        return _onto_sphere(self.linear(x))


class InverseSpiral(nn.Module):
    """The shape of the inverse of `Spiral`: a small MLP predicts the control c, and (x₁, x₂) is turned back by nπc.

    The result (·, ·, c) is put on the sphere.

    Args:
        turns: n of the process.
        generator: draws the initial weights.
    """

    in_dim = out_dim = 3

    def __init__(self, turns: float = 2, *, generator: torch.Generator) -> None:
        super().__init__()
        self.turns = checks.number("turns", turns)
        self.control = small_mlp((3, 64, 32, 1), generator)

    def forward(self, x: Tensor) -> Tensor:
        """Unit vectors, shape (n, 3)."""
        c = _wide(self.control(x))[:, 0]
        turned = processes.rotate_about_third(x, -self.turns * math.pi * c)
        return _onto_sphere(torch.cat([turned[:, :2], c[:, None]], dim=1))


class InversePatches(nn.Module):
    """The shape of the inverse of `Patches` (Algorithm 9 of arXiv 2606.04280): soft piecewise rotations around a pitch.

    One softmax over the buckets serves both rotations, so the exact inverse is not among the maps it can represent.

    Args:
        k: K of the process.
        variant: angles of the process, ``text`` or ``code``.
        generator: draws the initial weights.
    """

    in_dim = out_dim = 3
    angles: Tensor

    def __init__(
        self, k: int = 4, *, variant: processes.Variant = "text", generator: torch.Generator
    ) -> None:
        super().__init__()
        self.k = checks.integer("k", k, low=1)
        checks.choice("variant", variant, processes.VARIANTS)
        self.register_buffer("angles", processes.patch_angles(k, variant).float())
        self.bucket = small_mlp((3, 64, 32, k), generator)
        self.third = small_mlp((3, 32, 16, 1), generator)

    def forward(self, x: Tensor) -> Tensor:
        """Unit vectors, shape (n, 3)."""
        weight = _wide(self.bucket(x)).softmax(-1)
        back = self._turn_back(processes.pitch(self._turn_back(x, weight), -1), weight)
        third = _wide(self.third(x)).tanh()
        return _onto_sphere(torch.cat([back[:, :2], third], dim=1))

    def _turn_back(self, x: Tensor, weight: Tensor) -> Tensor:
        turned = processes.rotate_about_third(x[:, None, :], -self.angles[None, :].expand(len(x), -1))
        return (weight[..., None] * turned).sum(1)


def linear(in_dim: int, out_dim: int, generator: torch.Generator) -> nn.Linear:
    """A `torch.nn.Linear` with torch's default initial law, drawn from an explicit generator."""
    layer = nn.utils.skip_init(nn.Linear, in_dim, out_dim)
    bound = 1 / math.sqrt(in_dim)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def small_mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [linear(a, b, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _wide(x: Tensor) -> Tensor:
    """At least single precision, whatever autocast made of it."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _onto_sphere(x: Tensor) -> Tensor:
    return functional.normalize(_wide(x), dim=-1)
