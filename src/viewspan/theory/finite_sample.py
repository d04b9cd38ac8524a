r"""What M negatives instead of infinitely many cost: L_M − log M = L∞ + c/M + O(M⁻²).

    c = E_z[ E_p e^(s_p)/μ_z − Var(e^(s_n))/(2μ_z²) ],   μ_z = E e^(s_n),   s = ⟨h, h'⟩/τ,

with negatives drawn independently from the loss's own negative law.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

from viewspan import sphere
from viewspan.theory import quadrature, squeeze
from viewspan.theory.model import Model

Floats = npt.NDArray[np.float64]

_LARGEST = 700.0  # e^700 is about the largest number


def floor_coefficient(dim: int, tau: float) -> float | None:
    """c of a map at the floor: positives coincide, all else is uniform. None where it overflows."""
    a, b = float(sphere.log_phi(dim, 1 / tau)), float(sphere.log_phi(dim, 2 / tau))
    return _coefficient(np.array([1 / tau - a]), np.array([b - 2 * a]), np.ones(1))


def coefficient(model: Model, tau: float, rho: float, lam: float, n: int) -> float | None:
    """c of the squeeze map h_λ, λ in [0, ∞]; λ = 1 is the identity. None where it overflows."""
    rule = model.rule(n)
    if lam in (0, np.inf):
        phi = np.full_like(rule.t, np.pi / 2 if lam == 0 else 0.0)
    else:
        phi = np.arctan2(np.sin(rule.t), lam * np.cos(rule.t))
    log_mean = _log_moment(model, tau, rho, lam, phi, n)
    log_square = _log_moment(model, tau / 2, rho, lam, phi, n)
    log_positive = _log_positive(model, tau, lam, rule.t, phi, n)
    return _coefficient(log_positive - log_mean, log_square - 2 * log_mean, rule.weight)


def _coefficient(log_positive: Floats, log_square: Floats, weight: Floats) -> float | None:
    if max(log_positive.max(), log_square.max()) > _LARGEST:
        return None
    return float(weight @ (np.exp(log_positive) - np.expm1(log_square) / 2))


def _log_moment(model: Model, tau: float, rho: float, lam: float, phi: Floats, n: int) -> Floats:
    """log E_neg e^⟨h(z), h'⟩/τ at each latitude."""

    def everywhere() -> Floats:
        if lam not in (0, 1, np.inf) and model.ell:
            return squeeze.log_everywhere(model, tau, np.array([lam]), phi[None], n)[0]
        kept = {0: model.m, np.inf: model.ell}.get(lam, model.dim)
        return np.full_like(phi, sphere.log_phi(kept, 1 / tau))

    return quadrature.log_mixture(rho, lambda: model.log_fibre(phi, tau), everywhere)


def _log_positive(model: Model, tau: float, lam: float, t: Floats, phi: Floats, n: int) -> Floats:
    """log E e^⟨h(z), h(z⁺)⟩/τ at each latitude."""

    def held() -> Floats:
        if model.ell == 0:
            return np.full_like(t, 1 / tau)
        c = model.fibre_concentration(t)
        free = sphere.log_phi(model.ell, c + np.cos(phi) ** 2 / tau) - sphere.log_phi(model.ell, c)
        return np.sin(phi) ** 2 / tau + free

    return quadrature.log_mixture(1 - model.share, held, lambda: _log_moved(model, tau, lam, t, phi, n))


def _log_moved(model: Model, tau: float, lam: float, t: Floats, phi: Floats, n: int) -> Floats:
    """log E_s' Φ_m(κ√(ss') + √(UU')/τ)Φ_ℓ(κrr' + √(VV')/τ)/Φ_d(κ)."""
    kappa, dim = model.kappa_moved, model.dim
    if lam == 1:
        both = sphere.log_phi(dim, kappa + 1 / tau) - sphere.log_phi(dim, kappa)
        return np.full_like(t, float(both))
    # both factors peak at t' = t, so a window around the narrower one holds the whole product
    if kappa >= 1 / tau:
        other_t, log_w = quadrature.window(
            t, squeeze.half_width(1 / kappa, n), model.m, model.ell, 2 * n, np.ones(1)
        )
    else:
        other_t, log_w = quadrature.window(
            phi,
            squeeze.half_width(tau, n),
            model.m,
            model.ell,
            2 * n,
            np.array([1.0 if lam in (0, np.inf) else lam]),
        )
    if lam in (0, np.inf):
        other = np.full_like(other_t, np.pi / 2 if lam == 0 else 0.0)
    else:
        other = np.arctan2(np.sin(other_t), lam * np.cos(other_t))
    a = kappa * np.sin(t)[:, None] * np.sin(other_t) + np.sin(phi)[:, None] * np.sin(other) / tau
    b = kappa * np.cos(t)[:, None] * np.cos(other_t) + np.cos(phi)[:, None] * np.cos(other) / tau
    inner = log_w + sphere.log_phi(model.m, a) + sphere.log_phi(model.ell, b)
    return special.logsumexp(inner, axis=1) - float(sphere.log_phi(dim, kappa))
