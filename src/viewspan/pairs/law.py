"""What a pair law is: how it draws, the batches it makes, and what it says of itself."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from viewspan import checks, sphere

__all__ = [
    "CONVENTIONS",
    "Convention",
    "DescribedLaw",
    "Description",
    "Diversity",
    "PairBatch",
    "PairLaw",
    "described",
]

Convention = Literal["ambient", "subsphere"]
CONVENTIONS = ("ambient", "subsphere")


class Diversity(NamedTuple):
    """Whether the diversity condition holds, the dimensions of P(z⁺|z)'s support and of the sphere, and why."""

    holds: bool
    support_dim: int
    latent_dim: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Description:
    """A pair law in numbers: what theory, diagnosis and reports ask of it.

    With probability `share` a pair is *moved*: z⁺ ~ vMF(z, `kappa_moved`) on the whole sphere. Any other is *held*: the
    leading `n_fixed` coordinates of z = (u, v) stay, v moves on the sphere of its own radius with concentration
    `kappa`, and then z⁺ is turned by an angle `sigma`·normal in the plane of e₁ and a uniform free direction.

    Args:
        dim: ambient dimension d >= 2.
        n_fixed: m, coordinates that a held pair keeps, 0 to d; 0 where every pair is moved.
        kappa: κ >= 0 of held pairs on their fibre; None exactly where n_fixed is 0.
        convention: ``ambient`` (concentration κr² at radius r) or ``subsphere`` (κ); None exactly where n_fixed is 0.
        share: ε in [0, 1], the share of pairs with full support; 1 where n_fixed is 0.
        kappa_moved: κ >= 0 of moved pairs; None where there are none, or no single κ describes them.
        sigma: standard deviation σ >= 0 of the turn of held pairs, radians.
        tagged: whether it is known of each pair if it is held or moved.

    Example:
        >>> d = Description(dim=3, n_fixed=1, kappa=2.0, convention="ambient")
        >>> d.concentration, d.diversity.holds
        ((inf, 2.0, 2.0), False)
    """

    dim: int
    n_fixed: int = 0
    kappa: float | None = None
    convention: Convention | None = None
    share: float = 0.0
    kappa_moved: float | None = None
    sigma: float = 0.0
    tagged: bool = False

    def __post_init__(self) -> None:
        checks.integer("dim", self.dim, low=2)
        checks.integer("n_fixed", self.n_fixed, low=0, high=self.dim)
        checks.number("share", self.share, low=0, high=1)
        checks.number("sigma", self.sigma, low=0)
        for name in ("kappa", "kappa_moved"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), low=0)
        if self.n_fixed:
            if self.kappa is None:
                raise ValueError(f"kappa must be given where coordinates are held, n_fixed={self.n_fixed}")
            checks.choice("convention", self.convention, CONVENTIONS)
        elif (self.kappa, self.convention, self.sigma, self.share) != (None, None, 0, 1):
            raise ValueError(
                f"share must be 1, and kappa, convention and sigma left out, where n_fixed is 0, got {self}"
            )
        if self.share == 0 and self.kappa_moved is not None:
            raise ValueError(f"kappa_moved must be left out where share is 0, got {self.kappa_moved:g}")

    @property
    def concentration(self) -> tuple[float | None, ...]:
        """κ along each coordinate in a pair that is held, ∞ where it is kept; of a moved pair where none is held."""
        free = self.kappa if self.n_fixed else self.kappa_moved
        return (math.inf,) * self.n_fixed + (free,) * (self.dim - self.n_fixed)

    @property
    def diversity(self) -> Diversity:
        """Whether the diversity condition holds, and the reason."""
        m, d = self.n_fixed, self.dim
        if m == 0:
            return Diversity(True, d - 1, d - 1, "every positive has a positive density on the whole sphere")
        if self.share > 0:
            return Diversity(True, d - 1, d - 1, f"a share {self.share:g} of the positives has full support")
        if m == d:
            return Diversity(False, 0, d - 1, "every coordinate is held: the positive is the anchor")
        if self.sigma > 0 and m == 1:
            return Diversity(True, d - 1, d - 1, f"the held coordinate turns by {self.sigma:g} radians")
        if self.sigma > 0:
            return Diversity(False, d - m, d - 1, "only the first of the held coordinates is turned")
        what = "the first coordinate is" if m == 1 else f"the first {m} coordinates are"
        where = "a pair of points" if d - m == 1 else f"a sphere of dimension {d - m - 1}"
        return Diversity(
            False, d - m - 1, d - 1, f"{what} held: positives stay on {where} in one of dimension {d - 1}"
        )


@dataclass(frozen=True)
class PairBatch:
    """A batch of positive pairs.

    Attributes:
        anchor: z, unit vectors, shape (n, d).
        positive: z⁺, unit vectors, shape (n, d).
        group: fibre of each pair, integers of shape (n,), or None where anchors are independent; −1 marks a pair
            that shares its fibre with no other (the moved pairs of `Tagged`).
        moved: True where the pair is known to come from the full-support law, shape (n,); None where unknown.
    """

    anchor: Tensor
    positive: Tensor
    group: Tensor | None = None
    moved: Tensor | None = None

    def __len__(self) -> int:
        return len(self.anchor)


@runtime_checkable
class PairLaw(Protocol):
    """What a pair law is. Subclass it to inherit `batch`.

    `dim`, `diversity` and `sample` are enough to train and to measure. Two further methods open more:

    - ``sample_support(z, n, generator)``, n uniform points of the support of P(z⁺|z) for each anchor, shape
      (..., n, d): batches in groups, and with them negatives from the anchor's own fibre.
    - ``describe()``, a `Description`: `predict` and `diagnose`. `DescribedLaw` asks for it.
    """

    dim: int

    @property
    @abstractmethod
    def diversity(self) -> Diversity:
        """Whether the diversity condition holds, and the reason."""
        ...

    @abstractmethod
    def sample(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """One positive for each anchor; z and the result are unit vectors of shape (..., d)."""
        ...

    def batch(self, n: int, *, group_size: int | None = None, generator: torch.Generator) -> PairBatch:
        """n pairs with uniform anchors, independent or `group_size` to a fibre.

        With groups, a fibre is that of a uniform z and its anchors are uniform on it. Given the fibre, the positives
        of the other members are independent and uniform on it, whatever the anchor's own positive: they serve as
        the negatives of the support-corrected loss at no further encoder row.

        Args:
            n: number of pairs, >= 1.
            group_size: pairs on each fibre, >= 2, a divisor of n; None draws every anchor by itself.
            generator: the source of randomness; the batch lies on its device.

        Returns:
            `PairBatch` of n pairs; the members of a group are adjacent.
        """
        checks.integer("n", n, low=1)
        if group_size is None:
            z = sphere.uniform(n, self.dim, generator=generator)
            return PairBatch(z, self.sample(z, generator))
        checks.integer("group_size", group_size, low=2)
        if n % group_size:
            raise ValueError(f"group_size must divide the batch size {n}, got {group_size}")
        support = getattr(self, "sample_support", None)
        if support is None:
            raise TypeError(
                f"group_size needs a law with sample_support(z, n, generator); {type(self).__name__} has none"
            )
        fibres = sphere.uniform(n // group_size, self.dim, generator=generator)
        z = support(fibres, group_size, generator).reshape(n, self.dim)
        group = torch.arange(n // group_size, device=z.device).repeat_interleave(group_size)
        return PairBatch(z, self.sample(z, generator), group)


class DescribedLaw(PairLaw):
    """A law that says what it is; its diversity follows. An own one writes `dim`, `describe` and `sample`::

    class Mirrored(DescribedLaw):           # u₁ is held, the rest is redrawn
        dim = 3

        def describe(self):
            return Description(dim=3, n_fixed=1, kappa=0.0, convention="subsphere")

        def sample(self, z, generator):
            w = sphere.uniform(len(z), 2, generator=generator)
            return torch.cat([z[:, :1], z[:, 1:].norm(dim=1, keepdim=True) * w], 1)
    """

    @abstractmethod
    def describe(self) -> Description:
        """What the law holds and moves, in numbers."""
        ...

    @property
    def diversity(self) -> Diversity:
        return self.describe().diversity


def described(law: Any) -> Description:
    """What a law says of itself.

    Raises:
        TypeError: for a law that does not, or whose class draws in its own way but describes itself as its parent.

    Example:
        >>> from viewspan import pairs
        >>> described(pairs.FullSupport(dim=3, kappa=2.0)).share
        1.0
    """
    name = type(law).__name__
    if not hasattr(law, "describe"):
        raise TypeError(
            f"law must say what it holds and moves: {name} has no method describe() -> pairs.Description"
        )
    owner = {
        method: next((i for i, kind in enumerate(type(law).__mro__) if method in vars(kind)), -1)
        for method in ("sample", "describe")
    }
    if owner["sample"] < owner["describe"]:
        raise TypeError(
            f"law must describe the pairs it draws: {name} has a sample of its own, write describe() -> "
            f"pairs.Description for it too (it inherits that of {type(law).__mro__[owner['describe']].__name__})"
        )
    found = law.describe()
    if not isinstance(found, Description):
        raise TypeError(f"describe() of {name} must return a pairs.Description, got {type(found).__name__}")
    return found
