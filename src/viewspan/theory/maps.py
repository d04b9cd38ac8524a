"""Known maps h of the latent sphere into itself: minimisers, rivals and failure modes, as functions on tensors.

Each takes parameters and returns a callable (n, d) → (n, d) of unit vectors; the held coordinates are the leading m.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]


def identity() -> Map:
    """h(z) = z, the representative of all orthogonal maps."""
    return lambda z: z


def constant() -> Map:
    """h(z) = e₁: no information."""

    def h(z: Tensor) -> Tensor:
        out = torch.zeros_like(z)
        out[:, 0] = 1
        return out

    return h


def squeezed(lam: float, m: int = 1) -> Map:
    """h_λ(u, v) = (u, λv)/N: what a linear encoder can do."""

    def h(z: Tensor) -> Tensor:
        return _unit(torch.cat([z[:, :m], lam * z[:, m:]], 1))

    return h


def great_subspheres(m: int = 1) -> Map:
    """h(u, v) = (0, v/‖v‖): every fibre goes to one great subsphere and u is forgotten."""

    def h(z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z[:, :m]), _unit(z[:, m:])], 1)

    return h


def folded() -> Map:
    """h(u, v) = (|u₁|, …): two fibres share one image."""

    def h(z: Tensor) -> Tensor:
        return torch.cat([z[:, :1].abs(), z[:, 1:]], 1)

    return h


def twisted(turns: float = 1.0, m: int = 1) -> Map:
    """h(u, v) = (u, R(u)v), R(u) a turn by π·turns·u₁ of the first two free coordinates."""
    return _turned(m, m + 1, math.pi * turns)


def tilted(angle: float = 1.0, m: int = 1) -> Map:
    """h = Q(u)z, Q(u) a turn by angle·u₁ in the plane of the first held and the first free coordinate."""
    return _turned(0, m, angle)


def rescaled(kappa: float, temperature: float, m: int = 1) -> Map:  # theory.md (18)
    """h(u, v) = (√(1 − κτr²)·e₁, √(κτ)·v): the minimiser of the corrected loss under `ambient` for κτ <= 1."""
    share = kappa * temperature

    def h(z: Tensor) -> Tensor:
        v = math.sqrt(share) * z[:, m:]
        first = (1 - v.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
        return torch.cat([first, torch.zeros_like(z[:, 1:m]), v], 1)

    return h


def spread_by_spiral(turns: float) -> Map:
    """h(u, v) = (u₁, √(1 − u₁²)·e^(iπ·turns·u₁)) on S²: continuous, blind to v, uniform as turns → ∞ (d = 3)."""

    def h(z: Tensor) -> Tensor:
        u = z[:, :1]
        r = (1 - u.square()).clamp_min(0).sqrt()
        return torch.cat([u, r * torch.cos(math.pi * turns * u), r * torch.sin(math.pi * turns * u)], 1)

    return h


def spread_from_disc() -> Map:
    """A measure-preserving φ from the two held coordinates onto S² (d = 3, m = 2): third coordinate 1 − 2r."""

    def h(z: Tensor) -> Tensor:
        height = 1 - 2 * z[:, 2:].abs()
        return torch.cat([(1 - height.square()).clamp_min(0).sqrt() * _unit(z[:, :2]), height], 1)

    return h


def _turned(i: int, j: int, rate: float) -> Map:
    def h(z: Tensor) -> Tensor:
        if j >= z.shape[1]:
            raise ValueError(
                f"z must have more than {j} coordinates for this map, got shape {tuple(z.shape)}"
            )
        angle = rate * z[:, 0]
        out = z.clone()
        out[:, i] = angle.cos() * z[:, i] - angle.sin() * z[:, j]
        out[:, j] = angle.sin() * z[:, i] + angle.cos() * z[:, j]
        return out

    return h


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
