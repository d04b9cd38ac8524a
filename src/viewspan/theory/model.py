"""A pair law as the numbers the quadrature needs, and the closed-form pieces they give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from viewspan import checks, pairs, sphere
from viewspan.theory import quadrature

Floats = npt.NDArray[np.float64]

_LAYER = 8.0  # r√κ above which a draw on the fibre is concentrated
_THIN = 0.1  # radians; a wider layer is seen by any rule


@dataclass(frozen=True)
class Model:
    """The positive law: with probability `share` vMF(z, `kappa_moved`), else a draw on the fibre K(z).

    Attributes:
        dim: d.
        m: held coordinates, 1..d; 1 where every pair has full support and the split only names coordinates.
        kappa: κ of the fibre draw.
        convention: ``ambient`` (κr² on the fibre) or ``subsphere`` (κ).
        share: probability ε of a full-support pair.
        kappa_moved: κ of a full-support pair.
        sigma: standard deviation of the turn after the fibre draw, radians.
        everywhere: the fibre is the whole sphere.
    """

    dim: int
    m: int
    kappa: float
    convention: str
    share: float = 0.0
    kappa_moved: float = 0.0
    sigma: float = 0.0
    everywhere: bool = False

    @property
    def ell(self) -> int:
        """Free coordinates ℓ = d − m."""
        return self.dim - self.m

    def rule(self, n: int) -> quadrature.Latitude:
        """Nodes for the latitude, some of them where κr² falls to nothing if that happens in a thin layer at r = 0."""
        width = _LAYER / math.sqrt(self.kappa) if self.convention == "ambient" and self.kappa > 0 else 0.0
        return quadrature.latitude(self.m, self.ell, n, width if width < _THIN else 0.0)

    def fibre_concentration(self, t: Floats) -> Floats:
        """c: the concentration of the draw on the fibre at latitude t."""
        return self.kappa * np.cos(t) ** 2 if self.convention == "ambient" else np.full_like(t, self.kappa)

    def fibre_cosine(self, t: Floats) -> Floats:
        """A_ℓ(c): the mean cosine between the anchor's free direction and the positive's."""
        return sphere.mean_cosine(self.ell, self.fibre_concentration(t)) if self.ell else np.ones_like(t)

    def log_fibre(self, angle: Floats, tau: float) -> Floats:
        """log E e^⟨h, h'⟩/τ over a fibre whose image has the latitude `angle`."""
        if self.ell == 0:
            return np.full_like(angle, 1 / tau)
        return np.sin(angle) ** 2 / tau + sphere.log_phi(self.ell, np.cos(angle) ** 2 / tau)

    def held_alignment(self, n: int = 64) -> float:  # theory.md (3), theory.md (16)
        """a_K = E⟨z, z⁺⟩ of a held pair, E[s + r²·A_ℓ(c)]; 1 where everything is held."""
        rule = self.rule(n)
        s, r2 = np.sin(rule.t) ** 2, np.cos(rule.t) ** 2
        cosine = self.fibre_cosine(rule.t)
        turn = -math.expm1(-(self.sigma**2) / 2)  # 1 − q
        held, free = 1 - turn / self.m, 1 - turn / max(self.ell, 1)
        return float(rule.weight @ (held * s + free * r2 * cosine))

    def orthogonal_alignment(self, n: int = 64) -> float:
        """E⟨z, z⁺⟩ of any pair."""
        moved = float(sphere.mean_cosine(self.dim, self.kappa_moved))
        return self.share * moved + (1 - self.share) * self.held_alignment(n)

    def fibre_entropy(self, n: int = 64) -> float:
        """E H(P(·|z)) of a held pair relative to the uniform law on its fibre: −E KL(P(·|z) ‖ U(K)), nats."""
        if self.ell == 0:
            return 0.0
        rule = self.rule(n)
        return float(rule.weight @ sphere.entropy(self.ell, self.fibre_concentration(rule.t)))


def of(law: object) -> Model:
    """The model of a pair law, from what the law says of itself.

    Raises:
        TypeError: for a law that does not describe itself, or is two laws for two losses.
        ValueError: for one whose full-support pairs have no single concentration.
    """
    d = pairs.described(law)
    if d.tagged:
        raise TypeError(
            f"law must say one positive law for one loss, got {type(law).__name__}: predict its parts, "
            "predict(law.held, rho=1.0) and predict(law.moved), whose losses the tagged loss adds"
        )
    if d.share > 0 and d.kappa_moved is None:
        raise ValueError(
            f"law must have one concentration of its full-support pairs to be predicted, got {law}"
        )
    return Model(
        d.dim, max(d.n_fixed, 1), d.kappa or 0.0, d.convention or "subsphere", d.share, d.kappa_moved or 0.0, d.sigma,
        everywhere=d.n_fixed == 0,
    )  # fmt: skip


def floor(dim: int, *, temperature: float) -> float:  # theory.md (9)
    """The floor −1/τ + log Φ_d(1/τ) of the standard loss over all measurable maps and all pair laws, nats.

    Args:
        dim: d >= 2.
        temperature: τ > 0.

    Example:
        >>> round(floor(3, temperature=0.3), 4), round(floor(10, temperature=0.3), 4)
        (-1.8984, -2.8011)
    """
    checks.integer("dim", dim, low=2)
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    return float(sphere.log_phi_scaled(dim, 1 / tau))
