"""Mixtures of held and moved pairs: break-even doses, and the shares at which orthogonal maps win again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import optimize

from viewspan import checks, pairs, sphere
from viewspan.theory import model as models
from viewspan.theory import quadrature, squeeze

_NODES = 96


def break_even_dose(law: pairs.FixedLatents, *, temperature: float) -> float:  # theory.md (14)
    r"""A lower bound on the share ε* of moved pairs at which orthogonal maps beat spreading ones again.

    ε* ≥ (1 − a_K)/(1 − a_K + (1 − m/d)·A_d(1/τ)), under the standard loss, the moved pairs having κ = 1/τ.

    Args:
        law: the held pairs, 1 <= m < d.
        temperature: τ > 0.

    Returns:
        A share in [0, 1].

    Example:
        >>> law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="ambient")
        >>> round(break_even_dose(law, temperature=0.3), 3)
        0.258
    """
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    model = _held(law)
    lost = 1 - model.held_alignment(_NODES)
    gained = (1 - model.m / model.dim) * float(sphere.mean_cosine(model.dim, 1 / tau))
    return lost / (lost + gained)


def matched_share(law: pairs.FixedLatents, *, temperature: float, rho: float) -> float:  # theory.md (15)
    r"""The mean share of fibre draws that makes orthogonal maps unique minimisers when ρ < 1 negatives lie on K.

    The positive is the fibre draw with probability π(z) = ρa/(ρa + (1 − ρ)Φ_d(1/τ)), a = e^(s/τ)Φ_ℓ(r²/τ), else
    vMF(z, 1/τ) on the sphere: then the positives' law is the negatives' law tilted by e^(⟨z,z⁺⟩/τ).

    Args:
        law: the held pairs, ``ambient`` with κ = 1/τ, 1 <= m < d.
        temperature: τ > 0.
        rho: ρ in [0, 1].

    Returns:
        E π(z) in [0, 1].

    Example:
        >>> law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="ambient")
        >>> [round(matched_share(law, temperature=0.3, rho=r), 3) for r in (0.1, 0.5, 0.9)]
        [0.196, 0.673, 0.947]
    """
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    rho = checks.number("rho", rho, low=0, high=1)
    model = _held(law)
    if model.convention != "ambient" or not np.isclose(model.kappa * tau, 1):
        raise ValueError(f"law must be ambient with kappa = 1/temperature = {1 / tau:g}, got {law}")
    if rho in (0, 1):
        return rho
    rule = quadrature.latitude(model.m, model.ell, _NODES)
    fibre = np.sin(rule.t) ** 2 / tau + sphere.log_phi(model.ell, np.cos(rule.t) ** 2 / tau)
    odds = np.log(rho) - np.log1p(-rho) + fibre - sphere.log_phi(model.dim, 1 / tau)
    return float(rule.weight @ (1 / (1 + np.exp(-odds))))


def balancing_rho(law: pairs.Mixture, *, temperature: float) -> float | None:
    r"""The share ρ of fibre negatives at which λ = 1 is stationary for an untagged mixture: λ* = 1.

    Args:
        law: the mixture; its `share` is the dose ε.
        temperature: τ > 0.

    Returns:
        ρ in [0, 1], or None if no ρ balances the dose.

    Example:
        >>> held = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="ambient")
        >>> moved = pairs.FullSupport(dim=3, kappa=1 / 0.3)
        >>> law = pairs.Mixture(held=held, moved=moved, share=0.2)
        >>> round(balancing_rho(law, temperature=0.3), 3)
        0.69
    """
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    model = models.of(law)

    def slope(rho: float) -> float:
        return squeeze_slope(model, tau, rho).loss

    if slope(0.0) * slope(1.0) > 0:
        return None
    return float(optimize.brentq(slope, 0.0, 1.0, xtol=1e-10))


class Slopes(NamedTuple):
    """Derivatives with respect to λ at λ = 1."""

    alignment: float
    uniformity: float
    loss: float


def squeeze_slope(model: models.Model, tau: float, rho: float, n: int = _NODES) -> Slopes:
    """d/dλ at λ = 1 of the squeeze family's alignment, uniformity and loss: central differences of fourth order."""
    h = 1e-3
    at = squeeze.terms(model, tau, rho, 1 + h * np.array([-2.0, -1.0, 1.0, 2.0]), n)
    stencil = np.array([1.0, -8.0, 8.0, -1.0]) / (12 * h)
    return Slopes(*(float(stencil @ values) for values in at))


def _held(law: pairs.FixedLatents) -> models.Model:
    model = models.of(law)
    if model.everywhere or model.share or model.sigma or model.ell == 0:
        raise ValueError(f"law must hold 1..{model.dim - 1} coordinates in every pair, got {law}")
    return model
