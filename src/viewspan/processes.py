"""The processes g that turn latents into data, x = g(z); all injective, all frozen.

A process is any callable with `dim` (of the latents) and `out_dim` (of the data); an own one::

    class Doubled:
        dim, out_dim = 3, 6

        def __call__(self, z):
            return torch.cat([z, z**3], dim=-1)
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from viewspan import checks

Variant = Literal["text", "code"]
VARIANTS = ("text", "code")


@runtime_checkable
class Process(Protocol):
    """A map g from latents (n, dim) to data (n, out_dim)."""

    dim: int
    out_dim: int

    def __call__(self, z: Tensor) -> Tensor:
        """g(z), row by row."""
        ...


class Identity(nn.Module):
    """g(z) = z.

    Args:
        dim: d >= 2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = self.out_dim = checks.integer("dim", dim, low=2)

    def forward(self, z: Tensor) -> Tensor:
        """z itself, shape (n, d)."""
        return z

    def inverse(self, x: Tensor) -> Tensor:
        """x itself."""
        return x


class Linear(nn.Module):
    """g(z) = Wz + b with W of full column rank.

    Args:
        dim: d >= 2.
        out_dim: rows of W, >= d.
        variant: ``text``, W normal and no bias; ``code``, what the published code draws: W = [diag(U(0,1)); normal]
            and a normal bias.
        generator: draws W and b.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self, dim: int, out_dim: int, *, variant: Variant = "text", generator: torch.Generator
    ) -> None:
        super().__init__()
        checks.choice("variant", variant, VARIANTS)
        self.dim = checks.integer("dim", dim, low=2)
        self.out_dim = checks.integer("out_dim", out_dim, low=dim)
        weight = torch.randn(out_dim, dim, generator=generator)
        bias = torch.zeros(out_dim)
        if variant == "code":
            weight[:dim] = torch.diag(torch.rand(dim, generator=generator))
            bias = torch.randn(out_dim, generator=generator)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, z: Tensor) -> Tensor:
        """Wz + b, shape (n, out_dim)."""
        return z @ self.weight.T + self.bias

    def inverse(self, x: Tensor) -> Tensor:
        """The z with Wz + b nearest to x."""
        return (x - self.bias) @ torch.linalg.pinv(self.weight).T


class Spiral(nn.Module):
    """Turns (z₁, z₂) by the angle nπz₃; d = 3.

    Args:
        turns: n; the published code has 2.
    """

    dim = out_dim = 3

    def __init__(self, turns: float = 2) -> None:
        super().__init__()
        self.turns = checks.number("turns", turns)

    def forward(self, z: Tensor) -> Tensor:
        """The turned points, shape (n, 3)."""
        return rotate_about_third(z, self.turns * math.pi * z[:, 2])

    def inverse(self, x: Tensor) -> Tensor:
        """The points turned back; z₃ is not changed by g."""
        return rotate_about_third(x, -self.turns * math.pi * x[:, 2])


class Patches(nn.Module):
    """A piecewise rotation about the third axis, a quarter pitch about the second, and the piecewise rotation again.

    Bucket k and angle θ_k of a point depend on its third coordinate c:

    - ``text``: k = ⌊(c + 1)K/2⌋, θ_k = −π/max(1, K − k);
    - ``code``, what the published experiments ran: k = ⌊|c|K⌋, θ_k = +π/(K − k).

    Args:
        k: K, number of buckets >= 1; the published code has 4.
        variant: ``text`` or ``code``.
    """

    dim = out_dim = 3

    def __init__(self, k: int = 4, *, variant: Variant = "text") -> None:
        super().__init__()
        self.k = checks.integer("k", k, low=1)
        self.variant = checks.choice("variant", variant, VARIANTS)

    def forward(self, z: Tensor) -> Tensor:
        """The image points, shape (n, 3)."""
        return self._piecewise(pitch(self._piecewise(z, 1), 1), 1)

    def inverse(self, x: Tensor) -> Tensor:
        """The same three rotations undone in reverse order."""
        return self._piecewise(pitch(self._piecewise(x, -1), -1), -1)

    def _piecewise(self, z: Tensor, sign: int) -> Tensor:
        c = z[:, 2]
        bucket = (c.abs() * self.k if self.variant == "code" else (c + 1) * self.k / 2).floor()
        angles = patch_angles(self.k, self.variant).to(z)
        return rotate_about_third(z, sign * angles[bucket.long().clamp(0, self.k - 1)])


class InvertibleMLP(nn.Module):
    """Square layers with leaky ReLUs of slope .2 between them.

    Columns have unit norm and each matrix is the first of 10,000 normal draws (200 above 16 dimensions) whose
    condition number is in their lowest quarter, as in the published code.

    Args:
        dim: d >= 2.
        layers: number of square layers >= 1; the paper has 3.
        variant: ``text``, normal biases and an activation after every layer; ``code``, no bias and no activation
            after the last.
        generator: draws the matrices.
    """

    slope = 0.2

    def __init__(
        self, dim: int, *, layers: int = 3, variant: Variant = "text", generator: torch.Generator
    ) -> None:
        super().__init__()
        self.dim = self.out_dim = checks.integer("dim", dim, low=2)
        self.layers = checks.integer("layers", layers, low=1)
        self.variant = checks.choice("variant", variant, VARIANTS)
        for i in range(layers):
            self.register_buffer(f"weight{i}", _well_conditioned(dim, generator))
            bias = torch.randn(dim, generator=generator) if variant == "text" else torch.zeros(dim)
            self.register_buffer(f"bias{i}", bias)

    def forward(self, z: Tensor) -> Tensor:
        """The image points, shape (n, d)."""
        x = z
        for i in range(self.layers):
            x = x @ self.get_buffer(f"weight{i}").T + self.get_buffer(f"bias{i}")
            if self._activated(i):
                x = torch.where(x > 0, x, self.slope * x)
        return x

    def inverse(self, x: Tensor) -> Tensor:
        """Each layer solved in turn, last first."""
        for i in reversed(range(self.layers)):
            if self._activated(i):
                x = torch.where(x > 0, x, x / self.slope)
            x = torch.linalg.solve(self.get_buffer(f"weight{i}"), (x - self.get_buffer(f"bias{i}")).T).T
        return x

    def _activated(self, layer: int) -> bool:
        return self.variant == "text" or layer < self.layers - 1


class Monomial(nn.Module):
    """Powers 1 … degree of each coordinate, R^d → R^(degree·d).

    Args:
        dim: d >= 2.
        degree: highest power >= 1; the published code has 7.
    """

    def __init__(self, dim: int, *, degree: int = 7) -> None:
        super().__init__()
        self.dim = checks.integer("dim", dim, low=2)
        self.degree = checks.integer("degree", degree, low=1)
        self.out_dim = self.dim * self.degree

    def forward(self, z: Tensor) -> Tensor:
        """All powers, the first powers leading; shape (n, degree·d)."""
        return torch.cat([z**k for k in range(1, self.degree + 1)], dim=-1)

    def inverse(self, x: Tensor) -> Tensor:
        """The first powers."""
        return x[:, : self.dim]


def rotate_about_third(z: Tensor, angle: Tensor) -> Tensor:
    """Turn the first two coordinates of each row by `angle` radians; shapes (n, 3) and (n,) or broadcastable."""
    c, s = angle.cos(), angle.sin()
    return torch.stack(
        [c * z[..., 0] - s * z[..., 1], s * z[..., 0] + c * z[..., 1], z[..., 2].expand_as(c)], dim=-1
    )


def pitch(z: Tensor, sign: int) -> Tensor:
    """A turn by ±π/2 about the second axis: (x, y, z) → (z, y, −x) for sign +1."""
    return torch.stack([sign * z[..., 2], z[..., 1], -sign * z[..., 0]], dim=-1)


def patch_angles(k: int, variant: str) -> Tensor:
    """θ_k of `Patches` for each of its K buckets, radians, shape (K,)."""
    left = torch.arange(k, 0, -1, dtype=torch.float64)
    return math.pi / left if variant == "code" else -math.pi / left.clamp_min(1)


def _well_conditioned(dim: int, generator: torch.Generator) -> Tensor:
    w = torch.randn(10_000 if dim <= 16 else 200, dim, dim, generator=generator)
    w = w / torch.linalg.vector_norm(w, dim=1, keepdim=True)
    condition = torch.linalg.cond(w)
    return w[int((condition <= condition.quantile(0.25)).nonzero()[0, 0])].clone()
