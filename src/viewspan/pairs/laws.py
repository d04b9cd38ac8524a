"""The pair laws of the paper, and those beyond it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from viewspan import checks, sphere
from viewspan.pairs.law import CONVENTIONS, Convention, DescribedLaw, Description, PairBatch

__all__ = ["FixedLatents", "FullSupport", "Jittered", "Mixture", "Tagged"]


@dataclass(frozen=True, kw_only=True)
class FullSupport(DescribedLaw):
    """z⁺ ~ vMF(z, κ) on the whole sphere: the diversity condition holds for every κ ≥ 0.

    Holding is not yet recovery: Theorem 4.4 of arXiv 2606.04280 needs κ = 1/τ.

    Args:
        dim: ambient dimension d >= 2.
        kappa: concentration κ >= 0.
    """

    dim: int
    kappa: float

    def __post_init__(self) -> None:
        checks.integer("dim", self.dim, low=2)
        checks.number("kappa", self.kappa, low=0)

    def describe(self) -> Description:
        return Description(dim=self.dim, share=1.0, kappa_moved=self.kappa)

    def sample(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """One von Mises-Fisher positive for each anchor, shape (..., d)."""
        return sphere.von_mises_fisher(_latents(z, self.dim), self.kappa, generator=generator)

    def sample_support(self, z: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """n uniform points of the support of P(z⁺|z), here the sphere, for each anchor; shape (..., n, d)."""
        z = _latents(z, self.dim)
        checks.integer("n", n, low=0)
        x = sphere.uniform(z[..., 0].numel() * n, self.dim, generator=generator, dtype=z.dtype)
        return x.reshape(*z.shape[:-1], n, self.dim)

    def log_prob(self, z_pos: Tensor, z: Tensor) -> Tensor:
        """Log-density of z⁺ relative to the uniform law on the sphere, nats, shape (...,)."""
        return sphere.log_prob(z_pos, z, self.kappa)


@dataclass(frozen=True, kw_only=True)
class FixedLatents(DescribedLaw):
    """The first m coordinates u of z = (u, v) are held; v moves on the sphere of its own radius r = ‖v‖.

    z⁺ = (u, r·w) lies on the fibre K(z), a sphere of dimension d − m − 1. The two conventions are different laws:

    - ``ambient``: the vMF(z, κ) density restricted to K(z), so w ~ vMF(v/r, κr²); Eq. (6) of arXiv 2606.04280,
      the law Theorem 4.6 is about.
    - ``subsphere``: w ~ vMF(v/r, κ) whatever r; its Algorithm 13, the law its experiments ran.

    Args:
        dim: ambient dimension d >= 2.
        kappa: concentration κ >= 0.
        n_fixed: m, number of held leading coordinates, 0 (full support) to d (z⁺ = z).
        convention: ``ambient`` or ``subsphere``; there is no default, since they give different answers.

    Example:
        >>> law = FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="ambient")
        >>> law.diversity.holds, law.diversity.support_dim
        (False, 1)
    """

    dim: int
    kappa: float
    n_fixed: int
    convention: Convention

    def __post_init__(self) -> None:
        checks.integer("dim", self.dim, low=2)
        checks.number("kappa", self.kappa, low=0)
        checks.integer("n_fixed", self.n_fixed, low=0, high=self.dim)
        checks.choice("convention", self.convention, CONVENTIONS)

    def describe(self) -> Description:
        if self.n_fixed == 0:
            return Description(dim=self.dim, share=1.0, kappa_moved=self.kappa)
        return Description(dim=self.dim, n_fixed=self.n_fixed, kappa=self.kappa, convention=self.convention)

    def sample(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """One positive for each anchor, shape (..., d); the held coordinates come back bit for bit."""
        z = _latents(z, self.dim)
        u, v = z[..., : self.n_fixed], z[..., self.n_fixed :]
        if self.n_fixed == self.dim:
            return z.clone()
        r, direction = _polar(v)
        kappa = self.kappa * r.squeeze(-1).double().square() if self.convention == "ambient" else self.kappa
        if z.device.type == "mps" and isinstance(kappa, Tensor):
            kappa = kappa.float()
        return torch.cat([u, r * sphere.von_mises_fisher(direction, kappa, generator=generator)], dim=-1)

    def sample_support(self, z: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """n uniform points of the fibre K(z) for each anchor, shape (..., n, d)."""
        z = _latents(z, self.dim)
        checks.integer("n", n, low=0)
        u, v = z[..., : self.n_fixed], z[..., self.n_fixed :]
        free = self.dim - self.n_fixed
        u = u.unsqueeze(-2).expand(*u.shape[:-1], n, self.n_fixed)
        if free == 0:
            return u.clone()
        w = sphere.uniform(v[..., 0].numel() * n, free, generator=generator, dtype=z.dtype)
        r, _ = _polar(v)
        return torch.cat([u, r.unsqueeze(-2) * w.reshape(*v.shape[:-1], n, free)], dim=-1)

    def log_prob(self, z_pos: Tensor, z: Tensor) -> Tensor:
        """Log-density of z⁺ relative to the uniform law on K(z), nats, shape (...,); −inf off the fibre.

        A point counts as on the fibre if its held coordinates agree to 1e-5.
        """
        z, z_pos = torch.broadcast_tensors(_latents(z, self.dim), _latents(z_pos, self.dim))
        m = self.n_fixed
        off = ((z[..., :m] - z_pos[..., :m]).abs() > 1e-5).any(-1)
        if m == self.dim:
            return torch.zeros_like(z[..., 0]).masked_fill(off, -torch.inf)
        r, direction = _polar(z[..., m:])
        _, other = _polar(z_pos[..., m:])
        kappa = self.kappa * r.squeeze(-1).square() if self.convention == "ambient" else self.kappa
        return sphere.log_prob(other, direction, kappa).masked_fill(off, -torch.inf)


@dataclass(frozen=True, kw_only=True)
class Mixture(DescribedLaw):
    """With probability ε a full-support pair, else one that holds latents; which is which is not known.

    Args:
        held: the law of the pairs that hold latents.
        moved: the full-support law, of the same dimension.
        share: ε in [0, 1], the probability of a moved pair.
    """

    held: FixedLatents
    moved: FullSupport
    share: float

    def __post_init__(self) -> None:
        checks.number("share", self.share, low=0, high=1)
        if self.held.dim != self.moved.dim:
            raise ValueError(f"held and moved must have one dim, got {self.held.dim} and {self.moved.dim}")

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.held.dim

    def describe(self) -> Description:
        held = self.held.describe()
        if held.n_fixed == 0:  # every pair is moved
            one = self.share in (0, 1) or self.held.kappa == self.moved.kappa
            kappa = self.moved.kappa if self.share > 0 else self.held.kappa
            return replace(held, kappa_moved=kappa if one else None)
        return replace(held, share=self.share, kappa_moved=self.moved.kappa if self.share > 0 else None)

    def sample(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """One positive for each anchor, shape (..., d)."""
        z = _latents(z, self.dim)
        moved = torch.rand(z.shape[:-1], generator=generator, device=z.device) < self.share
        return torch.where(moved[..., None], self.moved.sample(z, generator), self.held.sample(z, generator))


@dataclass(frozen=True, kw_only=True)
class Tagged(Mixture):
    """The pairs of `Mixture`, each known to be held or moved: batches carry `moved`.

    Args:
        held: the law of the pairs that hold latents.
        moved: the full-support law, of the same dimension.
        share: share of moved pairs in a batch, in [0, 1].
    """

    def describe(self) -> Description:
        return replace(super().describe(), tagged=True)

    def batch(self, n: int, *, group_size: int | None = None, generator: torch.Generator) -> PairBatch:
        """At most n pairs: round(share·n) moved ones (at least two if the share is positive), the rest held.

        With `group_size` the held pairs fill whole groups, as many as fit; moved pairs carry group −1.
        """
        checks.integer("n", n, low=1)
        if group_size is not None:
            checks.integer("group_size", group_size, low=2)
        n_moved = min(n, max(2, round(self.share * n))) if self.share > 0 else 0
        n_held = (n - n_moved) // (group_size or 1) * (group_size or 1)
        if n_held + n_moved == 0:
            raise ValueError(f"group_size must be at most the {n} held pairs of the batch, got {group_size}")
        parts = [self.held.batch(n_held, group_size=group_size, generator=generator)] if n_held else []
        if n_moved:
            moved = self.moved.batch(n_moved, generator=generator)
            alone = torch.full((n_moved,), -1, device=moved.anchor.device)
            parts.append(PairBatch(moved.anchor, moved.positive, alone if group_size else None))
        tags = torch.arange(n_held + n_moved, device=generator.device) >= n_held
        group = torch.cat([p.group for p in parts if p.group is not None]) if group_size else None
        return PairBatch(
            torch.cat([p.anchor for p in parts]), torch.cat([p.positive for p in parts]), group, moved=tags
        )


@dataclass(frozen=True, kw_only=True)
class Jittered(DescribedLaw):
    """Held latents, then z⁺ turned by an angle σ·normal in the plane of e₁ and a uniform free direction.

    A rotation keeps z⁺ uniform over the sphere exactly, so other anchors' positives stay right negatives; adding
    noise to the held coordinates and renormalising does not.

    Args:
        held: the law of the pairs before the turn, with 1 <= m < d held coordinates.
        sigma: standard deviation σ >= 0 of the angle, radians.
    """

    held: FixedLatents
    sigma: float

    def __post_init__(self) -> None:
        checks.number("sigma", self.sigma, low=0)
        if not 1 <= self.held.n_fixed < self.held.dim:
            raise ValueError(
                f"held must hold 1..{self.held.dim - 1} coordinates, got n_fixed={self.held.n_fixed}"
            )

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.held.dim

    def describe(self) -> Description:
        return replace(self.held.describe(), sigma=self.sigma)

    def sample(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """One positive for each anchor, shape (..., d)."""
        p = self.held.sample(z, generator)
        m = self.held.n_fixed
        w = sphere.uniform(p[..., 0].numel(), self.dim - m, generator=generator, dtype=p.dtype)
        w = w.reshape(*p.shape[:-1], self.dim - m)
        angle = self.sigma * torch.randn(p.shape[:-1], generator=generator, device=p.device, dtype=p.dtype)
        cos, sin = angle.cos()[..., None], angle.sin()[..., None]
        a, b = p[..., :1], (p[..., m:] * w).sum(-1, keepdim=True)
        turned_a, turned_b = cos * a - sin * b, sin * a + cos * b
        return torch.cat([turned_a, p[..., 1:m], p[..., m:] + (turned_b - b) * w], dim=-1)


def _latents(z: Tensor, dim: int) -> Tensor:
    """z as it is (bit for bit), once it is known to hold unit vectors of the law's dimension."""
    checks.unit_rows("z", z)
    if z.shape[-1] != dim:
        raise ValueError(f"z must have last dimension {dim}, got shape {tuple(z.shape)}")
    return z if z.dtype in (torch.float32, torch.float64) else z.float()


def _polar(v: Tensor) -> tuple[Tensor, Tensor]:
    """Radius (..., 1) and unit direction of v; an arbitrary direction where v = 0, which the radius cancels."""
    wide = v if v.device.type == "mps" else v.double()
    r = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    first = torch.zeros_like(wide)
    first[..., 0] = 1
    direction = torch.where(r > 0, wide / r.clamp_min(torch.finfo(wide.dtype).tiny), first)
    return r.to(v.dtype), direction.to(v.dtype)
